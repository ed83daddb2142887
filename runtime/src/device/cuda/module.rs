//! Loaded machine code and its kernels.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaContext;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUfunction_attribute, CUresult};

use super::{BLOCK_THREADS, Gpu, lock};
use crate::device::triton::Compiled;
use crate::device::{Module, Resources};

/// The first driver that tells the parameters of a kernel and loads it ahead of its first launch.
pub(super) const DRIVER_WITH_FUNCTION_CALLS: i32 = 12_040;

#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) handle: sys::CUfunction,
    /// Number of parameters, where the driver tells it. It does so by refusing to describe the one behind
    /// the last, which a memory checker would report.
    pub(super) args: Option<usize>,
    /// Threads a block: what the kernel's launch bounds allow, at most the usual number; or what Triton asks for.
    pub(super) block_threads: u64,
    /// Bytes of dynamic shared memory a block.
    pub(super) shared_bytes: u32,
}

impl Function {
    /// What the driver tells of the function. The context is bound.
    pub(super) fn resources(&self) -> Option<Resources> {
        let attribute = |which| {
            // SAFETY: the function is valid.
            let value = unsafe { result::function::get_function_attribute(self.handle, which) };
            value.ok().map(|value| value.max(0) as u32)
        };
        Some(Resources {
            registers: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            shared_bytes: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?
                + self.shared_bytes,
        })
    }
}

// SAFETY: function handles may be used from any thread with the context bound.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Loaded code: a module for each language in which there are kernels.
pub(super) struct Code {
    cuda: Option<Arc<CudaModule>>,
    triton: Option<Arc<TritonModule>>,
}

/// Where a kernel is.
pub(super) enum Place<'a> {
    Cuda(&'a CudaModule),
    Triton(&'a TritonModule),
}

impl Module for Code {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Code {
    pub(super) fn new(cuda: Option<Arc<CudaModule>>, triton: Option<Arc<TritonModule>>) -> Code {
        Code { cuda, triton }
    }

    /// Where a kernel is, or may be: whether a module from CUDA C++ has it shows when it is asked for. The checker
    /// lets no plan launch kernels of one name in both languages.
    pub(super) fn place(&self, kernel: &str) -> Option<Place<'_>> {
        match &self.triton {
            Some(triton) if triton.has(kernel) => Some(Place::Triton(triton)),
            _ => self.cuda.as_deref().map(Place::Cuda),
        }
    }
}

pub(super) struct CudaModule {
    handle: sys::CUmodule,
    /// Keeps the context alive, and says how to unload.
    context: Arc<CudaContext>,
    /// Whether the driver is asked about kernels, see [`Function::args`].
    asks: bool,
    /// Whether the driver loads kernels ahead of their first launch.
    loads: bool,
    functions: Mutex<HashMap<String, Function>>,
}

// SAFETY: module handles may be used from any thread with the context bound.
unsafe impl Send for CudaModule {}
// SAFETY: as above; the map is behind a lock.
unsafe impl Sync for CudaModule {}

impl CudaModule {
    /// Loads a cubin into the bound context.
    pub(super) fn load(gpu: &Gpu, image: &[u8]) -> Result<CudaModule, DriverError> {
        // SAFETY: `image` is a complete cubin: fresh from NVRTC or with its digest verified.
        let handle = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
        Ok(CudaModule {
            handle,
            context: gpu.context.clone(),
            asks: gpu.driver >= DRIVER_WITH_FUNCTION_CALLS && !gpu.sanitize,
            loads: gpu.driver >= DRIVER_WITH_FUNCTION_CALLS,
            functions: Mutex::default(),
        })
    }

    pub(super) fn function(&self, name: &str) -> Result<Function, DriverError> {
        let mut functions = lock(&self.functions);
        if let Some(function) = functions.get(name) {
            return Ok(*function);
        }
        let symbol = CString::new(name).map_err(|_| DriverError(CUresult::CUDA_ERROR_NOT_FOUND))?;
        // SAFETY: the module is loaded.
        let handle = unsafe { result::module::get_function(self.handle, symbol) }?;
        if self.loads {
            // SAFETY: the function is valid, and this driver has the call.
            unsafe { sys::cuFuncLoad(handle) }.result()?;
        }
        let args = self.asks.then(|| (0..).take_while(|k| has_parameter(handle, *k)).count());
        let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        // SAFETY: the function is valid.
        let most = unsafe { result::function::get_function_attribute(handle, most) }?;
        let block_threads = (most.max(1) as u64).min(BLOCK_THREADS);
        let function = Function { handle, args, block_threads, shared_bytes: 0 };
        functions.insert(name.to_owned(), function);
        Ok(function)
    }
}

/// A plan's kernels in Triton.
pub(super) struct TritonModule {
    /// By name; the plain variant before the one that relies on divisible arguments.
    kernels: HashMap<String, Vec<Variant>>,
}

struct Variant {
    divisible: Vec<usize>,
    function: Function,
    /// Keeps the function loaded.
    _module: CudaModule,
}

/// Parameters behind those of the source: addresses of global and of profiler scratch memory, null where a kernel
/// needs neither. From `make_launcher` in `triton/backends/nvidia/driver.py` and the `.entry` of the PTX, both of
/// Triton 3.6.0; parameters that are `tl.constexpr` do not occur in the PTX, unused others do.
pub(super) const TRITON_EXTRA_ARGS: [u64; 2] = [0, 0];
/// Threads a warp, by `blockDimX = 32 * num_warps` there.
const WARP_THREADS: u64 = 32;
/// Dynamic shared memory that every kernel may use; for more it must be asked for.
const SHARED_BYTES: u32 = 48 << 10;

impl TritonModule {
    /// Loads kernels into the bound context. Errors come with the call that failed.
    pub(super) fn load(gpu: &Gpu, compiled: &[Compiled]) -> Result<TritonModule, (String, DriverError)> {
        let mut kernels: HashMap<String, Vec<Variant>> = HashMap::new();
        for Compiled { name, symbol, divisible, num_warps, shared_bytes, image, .. } in compiled {
            let failed = |call: &str| {
                let call = format!("{call} for `{name}`");
                move |e| (call, e)
            };
            let module = CudaModule::load(gpu, image).map_err(failed("cuModuleLoadData"))?;
            let loaded = module.function(symbol).map_err(failed("cuModuleGetFunction"))?;
            if *shared_bytes > SHARED_BYTES {
                let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: the function is valid.
                unsafe {
                    result::function::set_function_attribute(loaded.handle, most, *shared_bytes as i32)
                }
                .map_err(failed(&format!("asking for {shared_bytes} bytes of shared memory")))?;
            }
            let function = Function {
                args: loaded.args.map(|args| args.saturating_sub(TRITON_EXTRA_ARGS.len())),
                block_threads: u64::from(*num_warps) * WARP_THREADS,
                shared_bytes: *shared_bytes,
                ..loaded
            };
            let variant = Variant { divisible: divisible.clone(), function, _module: module };
            kernels.entry(name.clone()).or_default().push(variant);
        }
        Ok(TritonModule { kernels })
    }

    fn has(&self, name: &str) -> bool {
        self.kernels.contains_key(name)
    }

    /// The variant of a kernel that relies on no more than these arguments give.
    pub(super) fn function(&self, name: &str, args: &[u64]) -> Option<Function> {
        let holds = |variant: &&Variant| {
            variant.divisible.iter().all(|at| args.get(*at).is_some_and(|arg| arg.is_multiple_of(16)))
        };
        self.kernels.get(name)?.iter().rev().find(holds).map(|variant| variant.function)
    }
}

/// Whether `function`, of a driver that tells, has a parameter `k`.
fn has_parameter(function: sys::CUfunction, k: usize) -> bool {
    let (mut offset, mut size) = (0, 0);
    // SAFETY: the function is valid; the call writes two integers.
    unsafe { sys::cuFuncGetParamInfo(function, k, &mut offset, &mut size) }.result().is_ok()
}

impl Drop for CudaModule {
    fn drop(&mut self) {
        // Launches may still be running; waiting is cheap next to unloading.
        if self.context.synchronize().is_ok() {
            // SAFETY: loaded once, unloaded once, and no work uses it any more.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}
