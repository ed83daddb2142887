//! Reading files: positioned reads that are retried, and mappings.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::thread;
use std::time::Duration;

/// Attempts after the first, 1, 4 and 16 ms apart.
const RETRIES: u32 = 3;

/// Fills `bytes` from the file at `offset`. What may be a passing fault of storage or network is tried again.
///
/// # Errors
/// The last attempt's, with the bytes that were wanted.
pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
    let mut attempt = 0;
    loop {
        let Err(error) = file.read_exact_at(bytes, offset) else { return Ok(()) };
        let passing = matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::UnexpectedEof)
            || error.raw_os_error() == Some(libc::EIO);
        if !passing || attempt == RETRIES {
            let what = format!("{} bytes at {offset}: {error}", bytes.len());
            return Err(Error::new(error.kind(), what));
        }
        thread::sleep(Duration::from_millis(1 << (2 * attempt)));
        attempt += 1;
    }
}

/// A whole file, mapped shared and read-only. Reading it where the file has been cut short since raises SIGBUS.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is read-only and stays mapped until the value is dropped, whatever thread that is on.
unsafe impl Send for Mapping {}
// SAFETY: see above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file; None if there are none, or the system refuses.
    pub(crate) fn new(file: &File, len: u64) -> Option<Mapping> {
        let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
        // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        Some(Mapping { start: NonNull::new(start.cast())?, len })
    }

    /// The file's first byte; valid for [`Self::len`] bytes as long as the mapping lives.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Bytes mapped, at least 1.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether at least 15 of 16 pages lie in the page cache, going by a sample. The system says so of every
    /// page of a file that this user neither owns nor may write.
    pub(crate) fn is_cached(&self) -> bool {
        const SAMPLES: usize = 256;
        // SAFETY: no memory is passed.
        let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1);
        let pages = self.len.div_ceil(page_bytes);
        let samples = pages.min(SAMPLES);
        let cached = |sample: usize| {
            let page = (sample as u128 * pages as u128 / samples as u128) as usize;
            let mut state = 0u8;
            // SAFETY: the page lies within the mapping, and `state` has room for one page's byte.
            let status = unsafe {
                libc::mincore(self.start.as_ptr().add(page * page_bytes).cast(), 1, (&raw mut state).cast())
            };
            status == 0 && state & 1 == 1
        };
        let hits = (0..samples).filter(|sample| cached(*sample)).count();
        hits * 16 >= samples * 15
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped only here. A failure leaves it mapped.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_mapping_is_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        assert!(Mapping::new(&file, 0).is_none());
        let content: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        file.write_all(&content).unwrap();
        let mapping = Mapping::new(&file, content.len() as u64).unwrap();
        // SAFETY: the mapping and the file live on.
        assert_eq!(unsafe { std::slice::from_raw_parts(mapping.as_ptr(), mapping.len()) }, content);
        assert!(mapping.is_cached());
    }

    #[test]
    fn reads_past_the_end_are_named() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        let mut bytes = [0; 2];
        read_exact_at(&file, &mut bytes, 1).unwrap();
        assert_eq!(&bytes, b"bc");
        let error = read_exact_at(&file, &mut bytes, 2).unwrap_err().to_string();
        assert!(error.starts_with("2 bytes at 2: "), "{error}");
    }
}
