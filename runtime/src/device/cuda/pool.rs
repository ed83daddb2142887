//! Device memory: taken from the driver once and used again.
//!
//! Invariant: memory returns to the free list of the stream that used it, so whoever gets it next on that
//! stream is ordered behind its last use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, result};

use super::lock;
use crate::device::{MEMORY_PADDING, Memory};

/// Memory that was freed on one stream and waits to be used there again.
pub(super) struct Pool {
    pub(super) stream: Arc<CudaStream>,
    /// Addresses by size.
    pub(super) free: Mutex<BTreeMap<usize, Vec<CUdeviceptr>>>,
}

impl Pool {
    /// The smallest free piece of at least `size` bytes that wastes no more than an eighth.
    pub(super) fn take(&self, size: usize) -> Option<(CUdeviceptr, usize)> {
        let mut free = lock(&self.free);
        let (&found, addresses) = free.range_mut(size..=size.saturating_add(size / 8)).next()?;
        let address = addresses.pop()?;
        if addresses.is_empty() {
            free.remove(&found);
        }
        Some((address, found))
    }

    pub(super) fn take_all(&self) -> Vec<CUdeviceptr> {
        std::mem::take(&mut *lock(&self.free)).into_values().flatten().collect()
    }

    /// Frees memory of the driver once all work issued so far is finished. Failures surface at the next call.
    pub(super) fn release(&self, addresses: Vec<CUdeviceptr>) {
        let context = self.stream.context();
        if addresses.is_empty() || context.bind_to_thread().is_err() {
            return;
        }
        // SAFETY: the stream is alive; the addresses come from `malloc_sync` and nobody owns them any more.
        unsafe {
            let _ = result::stream::synchronize(self.stream.cu_stream());
            for address in addresses {
                let _ = result::free_sync(address);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.release(self.take_all());
    }
}

/// Bytes to take from the driver for `bytes`: padded, and rounded so that pieces can be used again.
pub(super) fn pool_size(bytes: usize, exact: bool) -> Option<usize> {
    let padded = bytes.checked_add(MEMORY_PADDING)?;
    let step = match padded {
        _ if exact => return Some(padded),
        0..=0x10_0000 => 512,
        0x10_0001..=0x200_0000 => 64 << 10,
        _ => 2 << 20,
    };
    padded.checked_next_multiple_of(step)
}

pub(super) struct CudaMemory {
    pub(super) address: CUdeviceptr,
    pub(super) bytes: usize,
    pub(super) size: usize,
    pub(super) pool: Arc<Pool>,
    pub(super) reuse: bool,
}

impl Memory for CudaMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if self.reuse {
            lock(&self.pool.free).entry(self.size).or_default().push(self.address);
        } else {
            self.pool.release(vec![self.address]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_sizes_have_room_for_padding() {
        for bytes in [0, 1, 448, 449, 1 << 20, (1 << 20) + 1, 32 << 20, 1 << 40] {
            let size = pool_size(bytes, false).unwrap();
            assert!(size >= bytes + MEMORY_PADDING && size.is_multiple_of(512), "{bytes}");
        }
        assert_eq!(pool_size(100, true), Some(164));
        assert_eq!(pool_size(usize::MAX, false), None);
    }
}
