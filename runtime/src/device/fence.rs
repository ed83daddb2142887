//! Host memory between addresses that nobody may touch, for runs that look for accesses out of bounds: such an access
//! is a fault at once, at an address that tells how far it is off.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, ptr};

/// Bytes in front of and behind an allocation that nobody may touch. They take addresses and no memory.
const FENCE_BYTES: usize = 16 << 30;

/// Where allocations are asked for, one behind the other: far from everything else, so that an index that is off by
/// more than the fence leads to nothing either. The kernel puts them elsewhere if there is no room.
const FIRST: usize = 0x1000_0000_0000;
const LAST: usize = 0x5000_0000_0000;

/// Zeroed memory that ends where fenced addresses begin; unmapped when dropped.
pub(super) struct Fenced {
    base: usize,
    reserved: usize,
    address: usize,
}

impl Fenced {
    /// Memory of `bytes`, at least one. Its address is a multiple of every power of two, up to the size of a page, of
    /// which `bytes` is a multiple.
    ///
    /// # Errors
    /// No memory, or no addresses.
    pub(super) fn new(bytes: usize) -> io::Result<Fenced> {
        static NEXT: AtomicUsize = AtomicUsize::new(FIRST);
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let used = bytes.checked_next_multiple_of(page).ok_or_else(too_large)?;
        let reserved = used.checked_add(2 * FENCE_BYTES).ok_or_else(too_large)?;
        let hint = match NEXT.fetch_add(reserved, Ordering::Relaxed) {
            hint if hint < LAST => hint,
            _ => FIRST,
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which replaces none: the address is a hint.
        let base = unsafe { libc::mmap(hint as *mut _, reserved, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base as usize;
        let fenced = Fenced { base, reserved, address: base + FENCE_BYTES + used - bytes };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the pages lie within the mapping, which nobody uses yet.
        match unsafe { libc::mprotect((base + FENCE_BYTES) as *mut _, used, access) } {
            0 => Ok(fenced),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Where it begins.
    pub(super) fn address(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address)
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once, and nobody uses it any more.
        unsafe { libc::munmap(self.base as *mut _, self.reserved) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system reads and writes on our behalf, and says where it may not.
    #[test]
    fn the_end_is_exact() {
        let memory = Fenced::new(4000).unwrap();
        let (read_end, write_end) = io::pipe().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&write_end);
        // SAFETY: the call fails where it must not read; the pipe holds what it does read.
        let send = |offset, bytes| unsafe { libc::write(fd, memory.address().add(offset).cast(), bytes) };
        assert_eq!((send(0, 4000), send(3999, 1), send(4000, 1)), (4000, 1, -1));
        assert_eq!(memory.address() as usize % 32, 0);
        drop(read_end);
    }
}
