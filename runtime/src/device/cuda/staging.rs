//! Transfers between host and device, through pinned memory that is allocated once.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdeviceptr};

/// Bytes of each of the two pinned buffers that uploads go through, at most and at first: pinning takes a
/// millisecond for every 2 MB, and many streams upload only what describes their work.
const STAGING_BYTES: usize = 8 << 20;
const FIRST_BYTES: usize = 2 << 20;
/// Bytes of the pinned buffer that small downloads go through.
const SMALL_BYTES: usize = 256 << 10;
/// Alignment within that buffer.
const SMALL_ALIGN: usize = 64;

/// Pinned memory that transfers go through: two buffers for uploads, used in turn, and behind them one for
/// small downloads.
pub(super) struct Staging {
    stream: Arc<CudaStream>,
    base: *mut u8,
    /// Of each buffer for uploads.
    bytes: usize,
    /// Recorded behind the last copy out of each buffer.
    done: [sys::CUevent; 2],
    current: usize,
    used: usize,
}

// SAFETY: the memory is owned, and events may be used from any thread with the context bound.
unsafe impl Send for Staging {}

impl Staging {
    /// In the bound context.
    pub(super) fn new(stream: Arc<CudaStream>) -> Result<Staging, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let done = [result::event::create(flags)?, result::event::create(flags)?];
        Ok(Staging { stream, base: pinned(FIRST_BYTES)?, bytes: FIRST_BYTES, done, current: 0, used: 0 })
    }

    /// Larger buffers, if these are small for an upload of `bytes`.
    fn grow(&mut self, bytes: usize) -> Result<(), DriverError> {
        let wanted = bytes.next_power_of_two().min(STAGING_BYTES);
        if wanted > self.bytes {
            // SAFETY: the memory is owned, and the wait ends all transfers out of it.
            unsafe {
                result::stream::synchronize(self.stream.cu_stream())?;
                let old = std::mem::replace(&mut self.base, pinned(wanted)?);
                (self.bytes, self.used) = (wanted, 0);
                result::free_host(old.cast())?;
            }
        }
        Ok(())
    }

    /// Copies `bytes` into pinned memory and issues their transfer to `to`.
    pub(super) fn upload(&mut self, to: CUdeviceptr, bytes: &[u8]) -> Result<(), DriverError> {
        self.upload_with(to, bytes.len(), &mut |at, pinned| copy(pinned, &bytes[at..][..pinned.len()]))
    }

    /// Has `bytes` bytes written into pinned memory, piece by piece, and issues their transfer to `to`.
    pub(super) fn upload_with(
        &mut self,
        to: CUdeviceptr,
        bytes: usize,
        write: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), DriverError> {
        self.grow(bytes)?;
        let stream = self.stream.cu_stream();
        let mut at = 0;
        while at < bytes {
            if self.used == self.bytes {
                // SAFETY: stream and events are alive. An event that was never recorded counts as reached.
                unsafe {
                    result::event::record(self.done[self.current], stream)?;
                    self.current = 1 - self.current;
                    result::event::synchronize(self.done[self.current])?;
                }
                self.used = 0;
            }
            let piece = (bytes - at).min(self.bytes - self.used);
            // SAFETY: `used` and the piece lie within the current buffer, and no transfer reads that part: it
            // was waited for when the buffer's turn came.
            unsafe {
                let from = self.base.add(self.current * self.bytes + self.used);
                write(at, std::slice::from_raw_parts_mut(from, piece));
                sys::cuMemcpyHtoDAsync_v2(to + at as u64, from.cast(), piece, stream).result()?;
            }
            self.used = (self.used + piece).next_multiple_of(256);
            at += piece;
        }
        Ok(())
    }

    /// Copies each `(from, to)`, once all earlier work is finished.
    pub(super) fn download(&mut self, pieces: &mut [(CUdeviceptr, &mut [u8])]) -> Result<(), DriverError> {
        let stream = self.stream.cu_stream();
        // SAFETY: the third part of the staging memory, which starts here, has room for `SMALL_BYTES`.
        let pinned = unsafe { self.base.add(2 * self.bytes) };
        let mut used = 0;
        let mut issue = |from: CUdeviceptr, bytes: &mut [u8]| {
            let at = (used + bytes.len() <= SMALL_BYTES).then_some(used);
            if let Some(at) = at {
                used = (at + bytes.len()).next_multiple_of(SMALL_ALIGN);
            }
            // SAFETY: only this function, under the device's lock, uses that part of the staging memory, and
            // the piece lies within it; one that has no room goes to the caller's slice, which outlives the
            // wait below.
            unsafe {
                let to = at.map_or(bytes.as_mut_ptr(), |at| pinned.add(at));
                sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes.len(), stream).result()?;
            }
            Ok(at)
        };
        let issued: Result<Vec<Option<usize>>, DriverError> =
            pieces.iter_mut().map(|(from, bytes)| issue(*from, bytes)).collect();
        // Even after a failure, for transfers into the caller's slices may be on their way.
        // SAFETY: the stream is alive.
        let finished = unsafe { result::stream::synchronize(stream) };
        let places = issued?;
        finished?;
        for (place, (_, bytes)) in places.into_iter().zip(pieces) {
            if let Some(at) = place {
                // SAFETY: the transfer into these bytes of the staging memory is finished.
                bytes.copy_from_slice(unsafe { std::slice::from_raw_parts(pinned.add(at), bytes.len()) });
            }
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.stream.context().bind_to_thread().is_err() {
            return;
        }
        // SAFETY: made in `new`, and freed once, after all transfers are finished.
        unsafe {
            let _ = result::stream::synchronize(self.stream.cu_stream());
            let _ = result::free_host(self.base.cast());
            for event in self.done {
                let _ = result::event::destroy(event);
            }
        }
    }
}

/// Pinned memory for buffers of `bytes` for uploads, owned by the caller.
fn pinned(bytes: usize) -> Result<*mut u8, DriverError> {
    // SAFETY: an allocation; whoever gets it frees it.
    let base = unsafe { result::malloc_host(2 * bytes + SMALL_BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) }?;
    Ok(base.cast())
}

/// Copies with several threads where one would be slower than the link to the GPU.
fn copy(to: &mut [u8], from: &[u8]) {
    const PIECE_BYTES: usize = 4 << 20;
    if from.len() <= PIECE_BYTES {
        to.copy_from_slice(from);
        return;
    }
    std::thread::scope(|scope| {
        for (to, from) in to.chunks_mut(PIECE_BYTES).zip(from.chunks(PIECE_BYTES)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_copy_copies_all() {
        let from: Vec<u8> = (0..(9 << 20) + 3).map(|i: u32| (i % 251) as u8).collect();
        let mut to = vec![0; from.len()];
        copy(&mut to, &from);
        assert!(to == from);
    }
}
