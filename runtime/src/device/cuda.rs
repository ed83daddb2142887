//! The CUDA device: one stream of one GPU. Several logical devices may share a GPU; they share its context
//! and its compiled modules, and have a memory budget each.
//!
//! Invariants: all work of a device is issued on its one stream, all work of a fork on the fork's; they share
//! memory, whose next use is ordered behind the last one. The driver is called only after [`availability`] has
//! said that it is there.

mod arena;
mod module;
mod nccl;
mod peer;
mod scrub;
mod staging;

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream};
use dkb_kernels::{Builtin, Elem, Framework, Plan};

use self::arena::Arena;
use self::module::{Code, CudaModule, Function, Place, TRITON_EXTRA_ARGS, TritonModule};
pub(crate) use self::peer::CudaLinks;
use self::scrub::Scrub;
use self::staging::Staging;
use super::cache::SharedMap;
use super::nvrtc::{self, Cubin};
use super::{
    Device, DeviceError, Download, Extent, MEMORY_PADDING, Mark, Memory, Module, Priority, Recording,
    Registration, Resources, sanitizing, triton,
};
use crate::trace::now_ms;

/// Threads a block, unless a kernel's launch bounds say fewer.
const BLOCK_THREADS: u64 = 256;
/// Blocks of so many threads a multiprocessor at most; kernels loop over what is left.
const BLOCKS_PER_SM: u64 = 16;
/// The most blocks that a grid has in its first dimension.
const MAX_BLOCKS: u64 = i32::MAX as u64;
/// The share of a GPU's memory that its devices take together unless told otherwise, in percent.
const MEMORY_PERCENT: usize = 90;
/// Loads beside each other: while one's bytes come over the link, for some 3 ms, the pages of others are decompressed
/// and decoded, for some 14 ms.
const LOADS: usize = 8;

/// What this machine has.
#[derive(Debug, Clone)]
pub struct Gpus {
    /// The model of each GPU, by ordinal.
    pub models: Vec<String>,
    /// NVRTC's version.
    pub nvrtc: String,
}

/// Looks for a driver, a GPU and NVRTC.
///
/// # Errors
/// [`DeviceError::Unavailable`] says which is missing and what to do.
pub fn availability() -> Result<Gpus, DeviceError> {
    let missing = |what: String| DeviceError::Unavailable(what);
    // SAFETY: loads libcuda, whose loading has no side effects.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing("no CUDA driver (libcuda.so) on this machine; use --device host".to_owned()));
    }
    let models = || {
        result::init()?;
        (0..result::device::get_count()?)
            .map(|ordinal| result::device::get_name(result::device::get(ordinal)?))
            .collect::<Result<Vec<_>, DriverError>>()
    };
    match models() {
        Ok(models) if models.is_empty() => {
            Err(missing("the CUDA driver finds no GPU; use --device host".to_owned()))
        }
        Ok(models) => Ok(Gpus { models, nvrtc: nvrtc::version()? }),
        Err(e) => Err(missing(format!("the CUDA driver does not start ({}); use --device host", words(e)))),
    }
}

/// Opens one logical device per ordinal; an ordinal may occur several times. Each may take `memory_bytes`, or
/// its share of 90 percent of its GPU.
///
/// # Errors
/// [`DeviceError::Unavailable`] without driver, GPU, NVRTC or so much memory; a failed call.
pub fn open(ordinals: &[usize], memory_bytes: Option<u64>) -> Result<Vec<CudaDevice>, DeviceError> {
    availability()?;
    let mut gpus: HashMap<usize, Arc<Gpu>> = HashMap::new();
    let mut seen: HashMap<usize, usize> = HashMap::new();
    let mut devices = Vec::with_capacity(ordinals.len());
    for &ordinal in ordinals {
        let gpu = match gpus.get(&ordinal) {
            Some(gpu) => gpu.clone(),
            None => gpus.entry(ordinal).or_insert(Arc::new(Gpu::open(ordinal)?)).clone(),
        };
        let nth = seen.entry(ordinal).or_default();
        let sharing = ordinals.iter().filter(|o| **o == ordinal).count();
        let name = if sharing > 1 { format!("cuda:{ordinal}/{nth}") } else { format!("cuda:{ordinal}") };
        *nth += 1;
        let all = gpu.memory_bytes as usize / 100 * MEMORY_PERCENT;
        let limit = memory_bytes.map_or(all / sharing, |bytes| bytes as usize);
        if limit > gpu.memory_bytes as usize / sharing {
            return Err(DeviceError::Unavailable(format!(
                "--device-memory: {sharing} x {limit} bytes are more than the {} bytes of {name}",
                gpu.memory_bytes
            )));
        }
        let arena = Arc::new(Arena::new(gpu.context.clone(), limit, gpu.sanitize));
        devices.push(CudaDevice::on(gpu, name, arena, Priority::High)?);
    }
    Ok(devices)
}

/// One GPU of this process.
struct Gpu {
    context: Arc<CudaContext>,
    model: String,
    arch: String,
    multiprocessors: u64,
    memory_bytes: u64,
    driver: i32,
    /// Whether every allocation is the driver's own, so that `compute-sanitizer` sees its bounds.
    sanitize: bool,
    modules: SharedMap<CudaModule>,
    triton_modules: SharedMap<TritonModule>,
    /// An event, and when it was reached by [`now_ms`].
    epoch: (Event, f64),
}

impl Gpu {
    fn open(ordinal: usize) -> Result<Gpu, DeviceError> {
        let name = format!("cuda:{ordinal}");
        let failed = |e| call_error(&name, "opening the GPU", e);
        let context = CudaContext::new(ordinal).map_err(failed)?;
        // SAFETY: this module orders all work itself: one stream a device, and no memory handed between
        // devices without waiting.
        unsafe { context.disable_event_tracking() };
        let (major, minor) = context.compute_capability().map_err(failed)?;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let mut driver = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDriverGetVersion(&mut driver) }.result().map_err(failed)?;
        let stream = context.new_stream().map_err(failed)?;
        let epoch = Event::record(&stream).map_err(failed)?;
        stream.synchronize().map_err(failed)?;
        Ok(Gpu {
            epoch: (epoch, now_ms()),
            model: context.name().map_err(failed)?,
            arch: format!("sm_{major}{minor}"),
            multiprocessors: context.attribute(attribute).map_err(failed)?.max(1) as u64,
            memory_bytes: context.total_mem().map_err(failed)? as u64,
            driver,
            sanitize: sanitizing(),
            modules: SharedMap::new(),
            triton_modules: SharedMap::new(),
            context,
        })
    }
}

/// A logical device: one stream of one GPU.
pub struct CudaDevice {
    name: String,
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
    arena: Arc<Arena>,
    /// The stream's number in the arena.
    queue: usize,
    staging: Mutex<Option<Staging>>,
    fill: Mutex<Option<Arc<CudaModule>>>,
    scrub: Mutex<Option<Scrub>>,
}

impl CudaDevice {
    fn on(
        gpu: Arc<Gpu>,
        name: String,
        arena: Arc<Arena>,
        priority: Priority,
    ) -> Result<CudaDevice, DeviceError> {
        let stream = result::stream::get_priority_range().and_then(|(least, greatest)| {
            gpu.context.new_stream_with_priority(match priority {
                Priority::High => greatest,
                Priority::Low => least,
            })
        });
        let stream = stream.map_err(|e| call_error(&name, "cuStreamCreate", e))?;
        let queue = arena.join(stream.clone());
        let (staging, fill, scrub) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(CudaDevice { name, gpu, stream, arena, queue, staging, fill, scrub })
    }

    /// The GPU's context, for work beyond [`Device`] such as peer access.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.gpu.context
    }

    /// The device's stream, for work beyond [`Device`] such as NCCL.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn error(&self, call: &str, e: DriverError) -> DeviceError {
        call_error(&self.name, call, e)
    }

    fn failure(&self, call: &str, message: &str) -> DeviceError {
        DeviceError::Call { device: self.name.clone(), call: call.to_owned(), message: message.to_owned() }
    }

    /// Memory for work on this stream, which is given back on the stream of that number, with so many bytes behind it.
    fn take(&self, bytes: usize, padding: usize, gives: usize) -> Result<Box<dyn Memory>, DeviceError> {
        self.bind()?;
        match self.arena.take(bytes, padding, self.queue, gives).map_err(|e| self.error("cuMemAlloc", e))? {
            Some(memory) => Ok(Box::new(memory)),
            None => Err(DeviceError::OutOfMemory { device: self.name.clone(), bytes }),
        }
    }

    fn bind(&self) -> Result<(), DeviceError> {
        self.gpu.context.bind_to_thread().map_err(|e| self.error("an earlier call", e))
    }

    fn module(&self, cubin: &Cubin) -> Result<Arc<CudaModule>, DeviceError> {
        self.bind()?;
        let gpu = &self.gpu;
        let load = || CudaModule::load(gpu, &cubin.image).map_err(|e| self.error("cuModuleLoadData", e));
        gpu.modules.get_or_make(&cubin.key, load)
    }

    /// The compiled form of a translation unit with these kernels.
    fn compiled<'a>(
        &self,
        source: &str,
        kernels: impl IntoIterator<Item = &'a str>,
    ) -> Result<Arc<CudaModule>, DeviceError> {
        let module = self.module(&nvrtc::cached_cubin(source, &self.gpu.arch)?)?;
        for kernel in kernels {
            // Loads its code now rather than within a timed or captured run; a missing kernel is reported
            // there.
            let _ = module.function(kernel);
        }
        Ok(module)
    }

    fn launch_in(
        &self,
        module: &CudaModule,
        kernel: &str,
        threads: u64,
        args: &[u64],
    ) -> Result<(), DeviceError> {
        self.bind()?;
        let function = module.function(kernel).map_err(|e| match e.0 {
            CUresult::CUDA_ERROR_NOT_FOUND => DeviceError::NoKernel(kernel.to_owned()),
            _ => self.error(&format!("launch of `{kernel}`"), e),
        })?;
        if let Some(expected) = function.args {
            super::check_args(&self.name, kernel, expected, args.len())?;
        }
        let most = self.gpu.multiprocessors * BLOCKS_PER_SM * BLOCK_THREADS;
        let blocks = threads.min(most).div_ceil(function.block_threads) as u32;
        self.issue(&function, kernel, blocks, args)
    }

    /// Launches so many programs of a kernel in Triton, a block each.
    fn launch_programs(
        &self,
        module: &TritonModule,
        kernel: &str,
        programs: u64,
        args: &[u64],
    ) -> Result<(), DeviceError> {
        self.bind()?;
        let function =
            module.function(kernel, args).ok_or_else(|| DeviceError::NoKernel(kernel.to_owned()))?;
        if let Some(expected) = function.args {
            super::check_args(&self.name, kernel, expected, args.len())?;
        }
        if programs > MAX_BLOCKS {
            let message = format!("{programs} programs are more than {MAX_BLOCKS}");
            return Err(self.failure(&format!("launch of `{kernel}`"), &message));
        }
        let args: Vec<u64> = args.iter().copied().chain(TRITON_EXTRA_ARGS).collect();
        self.issue(&function, kernel, programs as u32, &args)
    }

    fn issue(&self, function: &Function, kernel: &str, blocks: u32, args: &[u64]) -> Result<(), DeviceError> {
        if blocks == 0 {
            return Ok(());
        }
        let mut pointers: Vec<*mut c_void> =
            args.iter().map(|arg| std::ptr::from_ref(arg) as *mut c_void).collect();
        let (grid, block) = ((blocks, 1, 1), (function.block_threads as u32, 1, 1));
        // SAFETY: the function belongs to a loaded module; there is a value of 8 bytes for each of its
        // parameters, which the driver copies before it returns. What the kernel does with them is the plan's
        // responsibility: a plan that is not accepted runs in a process of its own.
        unsafe {
            let (shared, stream) = (function.shared_bytes, self.stream.cu_stream());
            result::launch_kernel(function.handle, grid, block, shared, stream, &mut pointers)
        }
        .map_err(|e| self.error(&format!("launch of `{kernel}`"), e))
    }

    /// Runs `work` with the device's staging memory, which is allocated on first use.
    fn with_staging<T>(
        &self,
        call: &str,
        work: impl FnOnce(&mut Staging) -> Result<T, DriverError>,
    ) -> Result<T, DeviceError> {
        self.bind()?;
        let mut staging = lock(&self.staging);
        if staging.is_none() {
            let made = Staging::new(self.stream.clone());
            *staging = Some(made.map_err(|e| self.error("allocating pinned memory", e))?);
        }
        match staging.as_mut() {
            Some(staging) => work(staging).map_err(|e| self.error(call, e)),
            None => Err(self.failure(call, "no pinned memory")),
        }
    }
}

impl Device for CudaDevice {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn model(&self) -> String {
        self.gpu.model.clone()
    }

    fn versions(&self) -> String {
        let (major, minor) = (self.gpu.driver / 1000, self.gpu.driver % 1000 / 10);
        let nvrtc = nvrtc::version().unwrap_or_else(|e| e.to_string());
        format!("CUDA driver {major}.{minor}, {nvrtc}, {}", self.gpu.arch)
    }

    fn memory_bytes(&self) -> u64 {
        self.arena.limit() as u64
    }

    fn loads(&self) -> usize {
        LOADS
    }

    fn free_bytes(&self) -> u64 {
        self.arena.free_bytes() as u64
    }

    fn extent(&self) -> Extent {
        self.arena.extent()
    }

    fn wipe(&self) -> Result<(), DeviceError> {
        self.bind()?;
        for Range { start, end } in self.arena.gaps() {
            // SAFETY: the range lies within the arena's allocation, and nobody owns it.
            let status =
                unsafe { sys::cuMemsetD8Async(start, 0, (end - start) as usize, self.stream.cu_stream()) };
            status.result().map_err(|e| self.error("cuMemsetAsync", e))?;
        }
        self.synchronize()
    }

    fn scrub(&self) -> Result<(), DeviceError> {
        self.bind()?;
        let mut scrub = lock(&self.scrub);
        match scrub.as_mut() {
            Some(scrub) => scrub.issue(self)?,
            None => scrub.insert(Scrub::new(self)?).issue(self)?,
        }
        self.synchronize()
    }

    fn fork(&self, priority: Priority) -> Result<Arc<dyn Device>, DeviceError> {
        self.bind()?;
        let (gpu, name, arena) = (self.gpu.clone(), self.name.clone(), self.arena.clone());
        let fork = CudaDevice::on(gpu, name, arena, priority)?;
        // Pinning takes milliseconds, in which the driver does nothing else.
        fork.with_staging("allocating pinned memory", |_| Ok(()))?;
        Ok(Arc::new(fork))
    }

    fn follow(&self, other: &dyn Device) -> Result<(), DeviceError> {
        let Some(other) = other.as_any().downcast_ref::<CudaDevice>() else {
            return Err(self.failure("cuStreamWaitEvent", "the other device is of another kind"));
        };
        self.bind()?;
        let given = Event::record(&other.stream).and_then(|event| event.hold(&self.stream));
        given.map_err(|e| self.error("cuStreamWaitEvent", e))
    }

    fn compile(&self, plan: &Plan) -> Result<Arc<dyn Module>, DeviceError> {
        let in_cuda = || {
            let source = dkb_kernels::cuda_translation_unit(plan).map_err(super::bad_source)?;
            self.compiled(&source, dkb_kernels::kernels(plan))
        };
        let in_triton = || {
            let kernels = triton::cached(plan, &self.gpu.arch)?;
            self.bind()?;
            let load =
                || TritonModule::load(&self.gpu, &kernels.compiled).map_err(|(call, e)| self.error(&call, e));
            self.gpu.triton_modules.get_or_make(&kernels.key, load)
        };
        let has = |framework| plan.section(framework).is_some();
        let cuda = has(Framework::Cuda).then(in_cuda).transpose()?;
        let triton = has(Framework::Triton).then(in_triton).transpose()?;
        Ok(Arc::new(Code::new(cuda, triton)))
    }

    fn compile_builtin(&self, builtin: &Builtin) -> Result<Arc<dyn Module>, DeviceError> {
        let kernels = builtin.kernels.iter().copied();
        let module = self.compiled(&dkb_kernels::cuda_builtin_unit(builtin), kernels)?;
        Ok(Arc::new(Code::new(Some(module), None)))
    }

    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, DeviceError> {
        self.take(bytes, MEMORY_PADDING, self.queue)
    }

    fn alloc_strict(&self, bytes: usize) -> Result<Box<dyn Memory>, DeviceError> {
        let padding = if self.gpu.sanitize { 0 } else { MEMORY_PADDING };
        self.take(bytes, padding, self.queue)
    }

    fn resources(&self, module: &dyn Module, kernel: &str) -> Option<Resources> {
        self.bind().ok()?;
        match module.as_any().downcast_ref::<Code>()?.place(kernel)? {
            Place::Cuda(module) => module.function(kernel).ok()?.resources(),
            Place::Triton(module) => module.function(kernel, &[])?.resources(),
        }
    }

    fn alloc_for(&self, user: &dyn Device, bytes: usize) -> Result<Box<dyn Memory>, DeviceError> {
        let user = user.as_any().downcast_ref::<CudaDevice>();
        let user = user.filter(|user| Arc::ptr_eq(&user.arena, &self.arena));
        self.take(bytes, MEMORY_PADDING, user.map_or(self.queue, |user| user.queue))
    }

    fn upload(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        super::check_range(&self.name, "upload", memory, offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.with_staging("upload", |staging| staging.upload(memory.address() + offset as u64, bytes))
    }

    fn upload_with(
        &self,
        memory: &dyn Memory,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), DeviceError> {
        super::check_range(&self.name, "upload", memory, offset, bytes)?;
        self.with_staging("upload", |staging| {
            staging.upload_with(memory.address() + offset as u64, bytes, write)
        })
    }

    unsafe fn register(&self, address: *const u8, bytes: usize) -> Result<Option<Registration>, DeviceError> {
        self.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY;
        let host = address as *mut c_void;
        // SAFETY: the caller keeps the range mapped for as long as the registration lives.
        let status = unsafe { sys::cuMemHostRegister_v2(host, bytes, flags) };
        if let Err(e) = status.result() {
            tracing::info!(
                "{}: files are read into pinned memory: cuMemHostRegister: {}",
                self.name,
                words(e)
            );
            return Ok(None);
        }
        let registered = Registered { address: address as usize, context: self.gpu.context.clone() };
        let mut seen = 0;
        // SAFETY: writes one address; the range is registered.
        let status = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut seen, host, 0) };
        if status.result().is_err() || seen != address as u64 {
            tracing::info!("{}: files are read into pinned memory: kernels see them elsewhere", self.name);
            return Ok(None);
        }
        Ok(Some(Box::new(registered)))
    }

    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.download_all(&mut [Download { memory, offset, bytes }])
    }

    fn download_all(&self, downloads: &mut [Download]) -> Result<(), DeviceError> {
        let mut pieces = Vec::with_capacity(downloads.len());
        for Download { memory, offset, bytes } in downloads {
            super::check_range(&self.name, "download", *memory, *offset, bytes.len())?;
            if !bytes.is_empty() {
                pieces.push((memory.address() + *offset as u64, &mut **bytes));
            }
        }
        if pieces.is_empty() {
            return self.synchronize();
        }
        self.with_staging("download", |staging| staging.download(&mut pieces))
    }

    fn fill(&self, memory: &dyn Memory, elem: Elem, value: i128, count: usize) -> Result<(), DeviceError> {
        let bytes = count.saturating_mul(elem.bytes());
        super::check_range(&self.name, "fill", memory, 0, bytes)?;
        if count == 0 {
            return Ok(());
        }
        self.bind()?;
        let (address, stream) = (memory.address(), self.stream.cu_stream());
        let pattern = &value.to_le_bytes()[..elem.bytes()];
        // SAFETY: the range lies within an allocation of this device and is aligned to the element.
        let status = unsafe {
            if pattern.iter().all(|b| *b == pattern[0]) {
                sys::cuMemsetD8Async(address, pattern[0], bytes, stream)
            } else if pattern.len() == 2 {
                sys::cuMemsetD16Async(address, value as u16, count, stream)
            } else if pattern.chunks(4).all(|word| word == &pattern[..4]) {
                sys::cuMemsetD32Async(address, value as u32, bytes / 4, stream)
            } else {
                return self.fill_words(address, elem, value, count);
            }
        };
        status.result().map_err(|e| self.error("cuMemsetAsync", e))
    }

    fn launch(&self, module: &dyn Module, kernel: &str, work: u64, args: &[u64]) -> Result<(), DeviceError> {
        let Some(code) = module.as_any().downcast_ref::<Code>() else {
            let call = format!("launch of `{kernel}`");
            return Err(self.failure(&call, "the module was compiled for another kind of device"));
        };
        match code.place(kernel) {
            Some(Place::Cuda(module)) => self.launch_in(module, kernel, work, args),
            Some(Place::Triton(module)) => self.launch_programs(module, kernel, work, args),
            None => Err(DeviceError::NoKernel(kernel.to_owned())),
        }
    }

    fn record(&self, issue: &mut dyn FnMut()) -> Result<Option<Box<dyn Recording>>, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(|e| self.error("cuStreamBeginCapture", e))?;
        issue();
        let flags = sys::CUgraphInstantiate_flags(0);
        let graph = self.stream.end_capture(flags).map_err(|e| self.error("cuStreamEndCapture", e))?;
        let graph = graph.ok_or_else(|| self.failure("cuStreamEndCapture", "nothing was recorded"))?;
        Ok(Some(Box::new(Graph { graph: Mutex::new(graph), device: self.name.clone() })))
    }

    fn mark(&self) -> Result<Box<dyn Mark>, DeviceError> {
        self.bind()?;
        let mark = Event::record(&self.stream).map_err(|e| self.error("cuEventRecord", e))?;
        Ok(self.event_mark(mark))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.stream.cu_stream()) }
            .map_err(|e| self.error("cuStreamSynchronize", e))
    }
}

const FILL_SOURCE: &str = "
typedef unsigned long long u64;
extern \"C\" __global__ void dkb_fill(u64* words, u64 even, u64 odd, u64 count) {
  for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x)
    words[i] = i % 2 == 0 ? even : odd;
}
";

impl CudaDevice {
    fn event_mark(&self, mark: Event) -> Box<dyn Mark> {
        Box::new(EventMark { mark, gpu: self.gpu.clone(), device: self.name.clone() })
    }

    /// Fills with a pattern of 8 or 16 bytes that the driver has no call for.
    fn fill_words(&self, address: u64, elem: Elem, value: i128, count: usize) -> Result<(), DeviceError> {
        let module = {
            let mut fill = lock(&self.fill);
            match fill.as_ref() {
                Some(module) => module.clone(),
                None => {
                    let module = self.module(&nvrtc::cached_cubin(FILL_SOURCE, &self.gpu.arch)?)?;
                    fill.insert(module).clone()
                }
            }
        };
        let even = value as u64;
        let odd = if elem.bytes() == 16 { (value >> 64) as u64 } else { even };
        let words = (count * elem.bytes() / 8) as u64;
        self.launch_in(&module, "dkb_fill", words, &[address, even, odd, words])
    }
}

/// A timing event on a stream.
struct Event(sys::CUevent);

// SAFETY: events may be used from any thread with the context bound.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// In the bound context.
    fn record(stream: &CudaStream) -> Result<Event, DriverError> {
        let event = Event(result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)?);
        // SAFETY: event and stream are alive.
        unsafe { result::event::record(event.0, stream.cu_stream()) }?;
        Ok(event)
    }
}

impl Event {
    /// Makes later work of a stream wait for the event.
    fn hold(&self, stream: &CudaStream) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event are alive; the driver keeps an event that is waited for until it is reached.
        unsafe { result::stream::wait_event(stream.cu_stream(), self.0, flags) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `record`, destroyed once. The driver keeps it until it is reached.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

struct EventMark {
    mark: Event,
    gpu: Arc<Gpu>,
    device: String,
}

impl Mark for EventMark {
    fn ms(&self) -> Result<f64, DeviceError> {
        let (epoch, epoch_ms) = &self.gpu.epoch;
        let bound = self.gpu.context.bind_to_thread();
        // SAFETY: both events have been recorded.
        let elapsed = bound.and_then(|()| unsafe { result::event::elapsed(epoch.0, self.mark.0) });
        Ok(epoch_ms + f64::from(elapsed.map_err(|e| call_error(&self.device, "cuEventElapsedTime", e))?))
    }
}

/// Host memory that the GPUs read in place.
struct Registered {
    address: usize,
    context: Arc<CudaContext>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: registered once, at this address; the owner has waited for all copies.
            let _ = unsafe { sys::cuMemHostUnregister(self.address as *mut c_void) };
        }
    }
}

/// Recorded work of one stream.
struct Graph {
    graph: Mutex<CudaGraph>,
    device: String,
}

// SAFETY: a graph may be used from any thread with the context bound, one at a time; it is behind a lock.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Recording for Graph {
    fn launch(&self) -> Result<(), DeviceError> {
        lock(&self.graph).launch().map_err(|e| call_error(&self.device, "cuGraphLaunch", e))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn call_error(device: &str, call: &str, e: DriverError) -> DeviceError {
    DeviceError::Call { device: device.to_owned(), call: call.to_owned(), message: words(e) }
}

/// The driver's name for an error and its explanation.
fn words(e: DriverError) -> String {
    let text = |s: Result<&std::ffi::CStr, DriverError>| s.map(|s| s.to_string_lossy().into_owned());
    match (text(e.error_name()), text(e.error_string())) {
        (Ok(name), Ok(explanation)) => format!("{name}: {explanation}"),
        _ => format!("{:?}", e.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{AddAndSum, exercise};
    use super::module::DRIVER_WITH_FUNCTION_CALLS;
    use super::*;

    /// Two logical devices on the first GPU, for one test at a time: recording and running out of memory
    /// disturb others. Without a GPU: None, and a word about it.
    fn two_on_one() -> Option<(Vec<CudaDevice>, std::sync::MutexGuard<'static, ()>)> {
        static TURN: Mutex<()> = Mutex::new(());
        match availability() {
            Ok(_) => Some((open(&[0, 0], Some(1 << 30)).unwrap(), lock(&TURN))),
            Err(e) => {
                eprintln!("skipped: {e}");
                None
            }
        }
    }

    #[test]
    fn does_what_every_device_must() {
        let Some((devices, _turn)) = two_on_one() else { return };
        std::thread::scope(|scope| {
            for device in &devices {
                scope.spawn(|| exercise(device));
            }
        });
    }

    #[test]
    fn memory_is_bounded_and_used_again() {
        let Some((devices, _turn)) = two_on_one() else { return };
        let half = devices[0].memory_bytes() as usize / 2;
        let first = devices[0].alloc(half).unwrap().address();
        let again = devices[0].alloc(half).unwrap();
        assert!(first == again.address() || devices[0].gpu.sanitize);
        assert!(matches!(devices[0].alloc(half), Err(DeviceError::OutOfMemory { .. })));
        drop(again);
        let fork = devices[0].fork(Priority::Low).unwrap();
        let taken = fork.alloc(half).unwrap();
        assert!(devices[0].free_bytes() < half as u64);
        drop(taken);
        assert!(devices[0].alloc(half).is_ok());
    }

    #[test]
    fn wrong_launches_are_errors() {
        let Some((devices, _turn)) = two_on_one() else { return };
        let module = AddAndSum::new(&devices[0], 1).module;
        let absent = devices[0].launch(&*module, "absent", 1, &[]);
        assert!(matches!(absent, Err(DeviceError::NoKernel(name)) if name == "absent"));
        if devices[0].gpu.driver >= DRIVER_WITH_FUNCTION_CALLS && !devices[0].gpu.sanitize {
            let short = devices[0].launch(&*module, "add", 1, &[1]).unwrap_err().to_string();
            assert!(short.contains("4 parameters") && short.contains("1 arguments"), "{short}");
        }
    }

    /// The sum of what is at least a parameter.
    const TRITON_PLAN: &str = include_str!("../../../tests/plans/filtered-sum-triton.plan");

    #[test]
    fn plans_in_triton_run() {
        let Some((devices, _turn)) = two_on_one() else { return };
        if let Err(e) = triton::version() {
            assert!(std::env::var_os("DKB_REQUIRE_TRITON").is_none(), "{e}");
            eprintln!("skipped: {e}");
            return;
        }
        let device = &devices[0];
        let module = device.compile(&dkb_kernels::text::parse(TRITON_PLAN).unwrap()).unwrap();
        // A text of two words, then the least value.
        let words: Vec<u8> = [0u64, 0, 100].iter().flat_map(|word| word.to_le_bytes()).collect();
        let params = device.alloc(words.len()).unwrap();
        device.upload(&*params, 0, &words).unwrap();
        let values: Vec<i32> = (0..100_003).map(|i| i % 1000).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (a, total) = (device.alloc(bytes.len()).unwrap(), device.alloc(8).unwrap());
        device.upload(&*a, 0, &bytes).unwrap();
        // From the second value on, the address is no multiple of 16.
        for (first, rows) in [(0, 100_003), (1, 100_002), (1, 1), (4, 1024), (7, 0)] {
            device.fill(&*total, Elem::I64, 0, 1).unwrap();
            let args = [rows, params.address(), a.address() + first * 4, total.address()];
            device.launch(&*module, "scan", rows.div_ceil(1024), &args).unwrap();
            let mut found = [0; 8];
            device.download(&*total, 0, &mut found).unwrap();
            let here = &values[first as usize..][..rows as usize];
            let expected: i64 = here.iter().filter(|v| **v >= 100).map(|v| i64::from(*v)).sum();
            assert_eq!(i64::from_le_bytes(found), expected, "{rows} rows from {first}");
        }
        let most = device.launch(&*module, "scan", 1 << 31, &[0, 0, 0, 0]).unwrap_err().to_string();
        assert!(most.contains("more than 2147483647"), "{most}");
        assert!(matches!(device.launch(&*module, "gone", 1, &[]), Err(DeviceError::NoKernel(_))));

        let source =
            "extern \"C\" __global__ void negate(i64* total) { if (block_leader()) *total = -*total; }\n";
        let plan = dkb_kernels::text::parse(&format!("{TRITON_PLAN}/*--- cuda ---*/\n{source}")).unwrap();
        let both = device.compile(&plan).unwrap();
        device.fill(&*total, Elem::I64, 0, 1).unwrap();
        device.launch(&*both, "scan", 1, &[200, params.address(), a.address(), total.address()]).unwrap();
        device.launch(&*both, "negate", 1, &[total.address()]).unwrap();
        let mut found = [0; 8];
        device.download(&*total, 0, &mut found).unwrap();
        assert_eq!(i64::from_le_bytes(found), -(100..200).sum::<i64>());
        assert!(matches!(device.launch(&*both, "gone", 1, &[]), Err(DeviceError::NoKernel(_))));
        assert!(["scan", "negate"].iter().all(|kernel| device.resources(&*both, kernel).is_some()));
    }

    #[test]
    fn recorded_work_runs_again() {
        let Some((devices, _turn)) = two_on_one() else { return };
        let work = AddAndSum::new(&devices[0], 100_000);
        work.issue();
        let blocks = work.check();
        let recording = devices[0].record(&mut || work.issue()).unwrap().unwrap();
        for _ in 0..2 {
            recording.launch().unwrap();
            assert_eq!(work.check(), blocks);
        }
        // What cannot be recorded is an error, after which the device works as before.
        assert!(devices[0].record(&mut || drop(devices[0].synchronize())).is_err());
        work.issue();
        assert_eq!(work.check(), blocks);
    }
}
