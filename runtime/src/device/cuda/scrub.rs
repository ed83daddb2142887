//! Overwriting what kernels find on a GPU without being given it.

use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUdeviceptr, CUfunction_attribute};
use dkb_kernels::SCRUB;

use super::module::{CudaModule, Function};
use super::{CudaDevice, Gpu, nvrtc};
use crate::device::DeviceError;

/// The cache is overwritten with so many times its bytes.
const CACHES: u64 = 2;
/// Blocks that fill shared memory, a multiprocessor: should one end before another begins, the next fills its place.
const SHARED_BLOCKS: u64 = 2;

/// Kernels and memory that overwrite.
pub(super) struct Scrub {
    gpu: Arc<Gpu>,
    module: Arc<CudaModule>,
    /// The kernel for shared memory, with all that a block may have.
    shared: Function,
    scratch: CUdeviceptr,
    scratch_words: u64,
    /// Whether the cache can be told to keep lines.
    persists: bool,
    /// Differs from run to run.
    pattern: u64,
}

impl Scrub {
    /// Compiles the kernels and takes scratch memory from the driver, beside the device's budget. The context is bound.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn new(device: &CudaDevice) -> Result<Scrub, DeviceError> {
        let gpu = device.gpu.clone();
        let source = dkb_kernels::cuda_builtin_unit(&SCRUB);
        let module = device.module(&nvrtc::cached_cubin(&source, &gpu.arch)?)?;
        let attribute = |attribute| gpu.context.attribute(attribute);
        let made = || {
            let shared_bytes =
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
            let cache_bytes = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
            let shared = Function { shared_bytes: shared_bytes as u32, ..module.function(SCRUB.kernels[0])? };
            let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is valid.
            unsafe { result::function::set_function_attribute(shared.handle, most, shared_bytes) }?;
            let scratch_words = (cache_bytes.max(1) as u64 * CACHES).div_ceil(8);
            // SAFETY: freed once, when the value is dropped.
            let scratch = unsafe { result::malloc_sync(scratch_words as usize * 8) }?;
            let persisting = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE)?;
            Ok((shared, scratch, scratch_words, persisting > 0))
        };
        let (shared, scratch, scratch_words, persists) =
            made().map_err(|e: DriverError| device.error("preparing to scrub", e))?;
        Ok(Scrub { gpu, module, shared, scratch, scratch_words, persists, pattern: 0 })
    }

    /// Issues the work on the device's stream.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn issue(&mut self, device: &CudaDevice) -> Result<(), DeviceError> {
        self.pattern = self.pattern.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let [shared, local, cache] = [SCRUB.kernels[0], SCRUB.kernels[1], SCRUB.kernels[2]];
        let blocks = (self.gpu.multiprocessors * SHARED_BLOCKS) as u32;
        let shared_bytes = self.shared.shared_bytes.into();
        device.issue(&self.shared, shared, blocks, &[shared_bytes, self.pattern])?;
        // As many threads as a device ever runs at a time.
        device.launch_in(&self.module, local, u64::MAX, &[self.pattern, self.scratch])?;
        let args = [self.scratch_words, self.pattern, self.scratch];
        device.launch_in(&self.module, cache, self.scratch_words, &args)?;
        if !self.persists {
            return Ok(());
        }
        // SAFETY: acts on the bound context and takes no argument.
        let reset = unsafe { sys::cuCtxResetPersistingL2Cache() };
        reset.result().map_err(|e| device.error("cuCtxResetPersistingL2Cache", e))
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        if self.gpu.context.bind_to_thread().is_ok() && self.gpu.context.synchronize().is_ok() {
            // SAFETY: allocated in `new`, freed once, and no work uses it any more.
            let _ = unsafe { result::free_sync(self.scratch) };
        }
    }
}
