//! The host device: the same source, compiled by the system's C++ compiler, on the cores of this machine.
//!
//! A block has one thread; the blocks of a launch are spread over the device's worker threads. A machine can
//! be divided into several logical devices, which share compiled libraries and nothing else. Every call
//! finishes before it returns, so work is ordered as issued.

use std::alloc::{self, Layout};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{fs, ptr, slice};

use dkb_kernels::{Builtin, Elem, Framework, Plan};
use libloading::Library;

use super::cache::{self, DiskCache, SharedMap};
use super::elf::keeps_nothing;
use super::fence::Fenced;
use super::{
    Device, DeviceError, Extent, MEMORY_ALIGN, MEMORY_PADDING, Mark, Memory, Module, Priority, Registration,
    sanitizing, shorten,
};
use crate::sandbox::program_path;
use crate::trace::now_ms;

const FLAGS: [&str; 11] = [
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    // A kernel named like a function of the C library (`link`) must still call itself.
    "-Wl,-Bsymbolic",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-Wno-attributes",
    "-Wno-unknown-pragmas",
    "-Werror=return-type",
];

/// Work items for which one more block pays.
const ITEMS_PER_BLOCK: u64 = 1024;
/// Work items up to which starting threads costs more than it saves.
const INLINE_ITEMS: u64 = 16 * 1024;
/// Blocks a worker thread, so that an uneven launch still fills all of them.
const BLOCKS_PER_WORKER: u64 = 4;

/// The share of the machine's memory that its devices take together unless told otherwise, in percent.
const MEMORY_PERCENT: u64 = 90;

/// One logical device on the cores of this machine.
pub struct HostDevice {
    index: usize,
    workers: usize,
    memory_bytes: u64,
    heap: Arc<Mutex<Heap>>,
    cache: Arc<DiskCache>,
}

/// What a logical device and its forks have allocated.
#[derive(Default)]
struct Heap {
    /// By address: bytes, padding included.
    blocks: BTreeMap<u64, usize>,
    used: usize,
    changes: u64,
}

impl HostDevice {
    /// Logical device `index` with `workers` worker threads (at least one) and room for `memory_bytes`.
    pub fn new(index: usize, workers: usize, memory_bytes: u64) -> Self {
        let cache = Arc::new(DiskCache::from_env());
        HostDevice { index, workers: workers.max(1), memory_bytes, heap: Arc::default(), cache }
    }

    /// `count` logical devices that share the machine's cores evenly. Each may take `memory_bytes`, or its share
    /// of 90 percent of the memory.
    pub fn open(count: usize, memory_bytes: Option<u64>) -> Vec<HostDevice> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let share = machine_memory_bytes() / 100 * MEMORY_PERCENT / count.max(1) as u64;
        let memory = memory_bytes.unwrap_or(share);
        (0..count).map(|index| HostDevice::new(index, cores / count.max(1), memory)).collect()
    }

    fn out_of_memory(&self, bytes: usize) -> DeviceError {
        DeviceError::OutOfMemory { device: self.name(), bytes }
    }

    /// Memory of `bytes`, which lies in a place of `size` bytes.
    fn take(
        &self,
        bytes: usize,
        size: usize,
        place: impl FnOnce() -> Option<Place>,
    ) -> Result<Box<dyn Memory>, DeviceError> {
        let mut heap = lock(&self.heap);
        let used = heap.used.checked_add(size).filter(|used| *used as u64 <= self.memory_bytes);
        let Some((used, place)) = used.and_then(|used| Some((used, place()?))) else {
            return Err(self.out_of_memory(bytes));
        };
        heap.used = used;
        heap.changes += 1;
        heap.blocks.insert(place.address(), size);
        Ok(Box::new(HostMemory { place, bytes, size, heap: self.heap.clone() }))
    }

    fn check_range(
        &self,
        call: &str,
        memory: &dyn Memory,
        offset: usize,
        len: usize,
    ) -> Result<(), DeviceError> {
        super::check_range(&self.name(), call, memory, offset, len)
    }

    /// The compiled form of a translation unit.
    fn library(&self, source: &str) -> Result<Arc<dyn Module>, DeviceError> {
        static LIBRARIES: SharedMap<HostModule> = SharedMap::new();
        let compiler = compiler()?;
        let key = cache::key(&[source, &compiler.version, &FLAGS.join(" ")]);
        let module = LIBRARIES.get_or_make(&key, || load_or_build(compiler, source, &key, &self.cache))?;
        Ok(module)
    }

    fn kernel(&self, module: &dyn Module, name: &str, args: usize) -> Result<Block, DeviceError> {
        let module = module.as_any().downcast_ref::<HostModule>().ok_or_else(|| DeviceError::Call {
            device: self.name(),
            call: format!("launch of `{name}`"),
            message: "the module was compiled for another kind of device".to_owned(),
        })?;
        let kernel = module.kernel(name)?;
        super::check_args(&self.name(), name, kernel.args, args)?;
        Ok(kernel.block)
    }
}

impl Device for HostDevice {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn name(&self) -> String {
        format!("host:{}", self.index)
    }

    fn model(&self) -> String {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = info.lines().find(|line| line.starts_with("model name"));
        let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
        name.unwrap_or(std::env::consts::ARCH).to_owned()
    }

    fn versions(&self) -> String {
        compiler().map_or_else(|e| e.to_string(), |c| c.version.clone())
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn loads(&self) -> usize {
        2
    }

    fn free_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(lock(&self.heap).used as u64)
    }

    fn extent(&self) -> Extent {
        let heap = lock(&self.heap);
        let ranges = heap.blocks.iter().map(|(address, bytes)| *address..*address + *bytes as u64).collect();
        Extent { ranges, changes: heap.changes }
    }

    fn fork(&self, _: Priority) -> Result<Arc<dyn Device>, DeviceError> {
        let HostDevice { index, workers, memory_bytes, .. } = *self;
        let (heap, cache) = (self.heap.clone(), self.cache.clone());
        Ok(Arc::new(HostDevice { index, workers, memory_bytes, heap, cache }))
    }

    fn compile(&self, plan: &Plan) -> Result<Arc<dyn Module>, DeviceError> {
        if plan.section(Framework::Triton).is_some() {
            let text = "kernels in Triton run on GPUs only: use --device cuda";
            return Err(DeviceError::Unavailable(text.to_owned()));
        }
        self.library(&dkb_kernels::host_translation_unit(plan).map_err(super::bad_source)?)
    }

    fn compile_builtin(&self, builtin: &Builtin) -> Result<Arc<dyn Module>, DeviceError> {
        self.library(&dkb_kernels::host_builtin_unit(builtin))
    }

    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, DeviceError> {
        let padded = bytes.checked_add(MEMORY_PADDING).ok_or_else(|| self.out_of_memory(bytes))?;
        let fenced = || Fenced::new(padded.next_multiple_of(MEMORY_ALIGN)).ok().map(Place::Fenced);
        self.take(bytes, padded, || if sanitizing() { fenced() } else { Place::on_heap(padded) })
    }

    fn alloc_strict(&self, bytes: usize) -> Result<Box<dyn Memory>, DeviceError> {
        match sanitizing() {
            true => self.take(bytes, bytes, || Fenced::new(bytes.max(1)).ok().map(Place::Fenced)),
            false => self.alloc(bytes),
        }
    }

    fn upload(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_range("upload", memory, offset, bytes.len())?;
        let to = (memory.address() as usize + offset) as *mut u8;
        // SAFETY: the range lies within memory that a host device allocated; no slice of ours aliases it.
        unsafe { ptr::copy(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn upload_with(
        &self,
        memory: &dyn Memory,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), DeviceError> {
        self.check_range("upload", memory, offset, bytes)?;
        let to = (memory.address() as usize + offset) as *mut u8;
        // SAFETY: the range lies within memory that a host device allocated, and nothing else of ours refers to
        // it during the call. Any bytes are valid.
        write(0, unsafe { slice::from_raw_parts_mut(to, bytes) });
        Ok(())
    }

    unsafe fn register(&self, _: *const u8, _: usize) -> Result<Option<Registration>, DeviceError> {
        Ok(Some(Box::new(())))
    }

    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.check_range("download", memory, offset, bytes.len())?;
        let from = (memory.address() as usize + offset) as *const u8;
        // SAFETY: as in `upload`.
        unsafe { ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn fill(&self, memory: &dyn Memory, elem: Elem, value: i128, count: usize) -> Result<(), DeviceError> {
        self.check_range("fill", memory, 0, count.saturating_mul(elem.bytes()))?;
        let address = memory.address();
        // SAFETY: `count` elements lie within the allocation, whose start is aligned for every type, and any
        // bit pattern is a value of these types.
        unsafe {
            match elem.bytes() {
                1 => (address as *mut u8).write_bytes(value as u8, count),
                2 => slice::from_raw_parts_mut(address as *mut u16, count).fill(value as u16),
                4 => slice::from_raw_parts_mut(address as *mut u32, count).fill(value as u32),
                8 => slice::from_raw_parts_mut(address as *mut u64, count).fill(value as u64),
                _ => slice::from_raw_parts_mut(address as *mut i128, count).fill(value),
            }
        }
        Ok(())
    }

    fn launch(
        &self,
        module: &dyn Module,
        kernel: &str,
        threads: u64,
        args: &[u64],
    ) -> Result<(), DeviceError> {
        let run = self.kernel(module, kernel, args.len())?;
        if threads == 0 {
            return Ok(());
        }
        let blocks = threads.div_ceil(ITEMS_PER_BLOCK).min(self.workers as u64 * BLOCKS_PER_WORKER);
        let next = AtomicU64::new(0);
        let work = || {
            loop {
                let block = next.fetch_add(1, Ordering::Relaxed);
                if block >= blocks {
                    return;
                }
                // SAFETY: the function was exported by the shim, which reads as many arguments as were
                // checked to be there. What the kernel does with them is the plan's responsibility: a plan
                // that is not accepted runs in a process of its own.
                unsafe { run(block, blocks, args.as_ptr()) };
            }
        };
        let helpers = (self.workers as u64).min(blocks) - 1;
        if threads <= INLINE_ITEMS || helpers == 0 {
            work();
        } else {
            std::thread::scope(|scope| {
                for _ in 0..helpers {
                    // A helper that cannot start leaves its blocks to the others.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, work);
                }
                work();
            });
        }
        Ok(())
    }

    fn mark(&self) -> Result<Box<dyn Mark>, DeviceError> {
        Ok(Box::new(Moment(now_ms())))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// All work is finished when it is issued.
struct Moment(f64);

impl Mark for Moment {
    fn ms(&self) -> Result<f64, DeviceError> {
        Ok(self.0)
    }
}

/// Where memory lies; freed when dropped.
enum Place {
    Heap(NonNull<u8>, Layout),
    Fenced(Fenced),
}

// SAFETY: the memory belongs to no thread.
unsafe impl Send for Place {}
// SAFETY: as above; a place gives out an address and nothing else.
unsafe impl Sync for Place {}

impl Place {
    /// At least one byte.
    fn on_heap(size: usize) -> Option<Place> {
        let layout = Layout::from_size_align(size, MEMORY_ALIGN).ok()?;
        // SAFETY: the size is not zero.
        Some(Place::Heap(NonNull::new(unsafe { alloc::alloc(layout) })?, layout))
    }

    fn address(&self) -> u64 {
        match self {
            Place::Heap(address, _) => address.as_ptr() as u64,
            Place::Fenced(fenced) => fenced.address() as u64,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Place::Heap(address, layout) = self {
            // SAFETY: allocated in `on_heap` with this layout, and freed once.
            unsafe { alloc::dealloc(address.as_ptr(), *layout) };
        }
    }
}

struct HostMemory {
    place: Place,
    bytes: usize,
    /// Bytes of the place, padding included.
    size: usize,
    heap: Arc<Mutex<Heap>>,
}

impl Memory for HostMemory {
    fn address(&self) -> u64 {
        self.place.address()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn span(&self) -> Range<u64> {
        self.address()..self.address() + self.size as u64
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let mut heap = lock(&self.heap);
        heap.blocks.remove(&self.address());
        heap.used -= self.size;
        heap.changes += 1;
    }
}

fn lock(heap: &Mutex<Heap>) -> MutexGuard<'_, Heap> {
    heap.lock().unwrap_or_else(PoisonError::into_inner)
}

type Block = unsafe extern "C" fn(block: u64, blocks: u64, args: *const u64);

#[derive(Clone, Copy)]
struct HostKernel {
    block: Block,
    args: usize,
}

/// A compiled library. Kernels point into it, so it outlives every launch.
struct HostModule {
    library: Library,
    kernels: Mutex<HashMap<String, HostKernel>>,
}

impl Module for HostModule {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl HostModule {
    fn open(path: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: the library is one that we compiled; it has no constructors with side effects, because its
        // source is a shim, the primitives and a plan's kernels.
        let library = unsafe { Library::new(path) }?;
        Ok(HostModule { library, kernels: Mutex::default() })
    }

    fn kernel(&self, name: &str) -> Result<HostKernel, DeviceError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name) {
            return Ok(*kernel);
        }
        let missing = |_| DeviceError::NoKernel(name.to_owned());
        // SAFETY: the shim exports both symbols with these types.
        let kernel = unsafe {
            let block = self.library.get::<Block>(format!("dkb_run_{name}")).map_err(missing)?;
            let args = self.library.get::<*const u64>(format!("dkb_args_{name}")).map_err(missing)?;
            HostKernel { block: *block, args: **args as usize }
        };
        kernels.insert(name.to_owned(), kernel);
        Ok(kernel)
    }
}

fn load_or_build(
    compiler: &Compiler,
    source: &str,
    key: &str,
    disk: &DiskCache,
) -> Result<HostModule, DeviceError> {
    let name = format!("{key}.so");
    if let Some(module) = disk.path(&name).and_then(|path| HostModule::open(&path).ok()) {
        return Ok(module);
    }
    let failed = |call: &str, message: String| DeviceError::Call {
        device: "host".to_owned(),
        call: call.to_owned(),
        message,
    };
    let dir = tempfile::tempdir().map_err(|e| failed("making a folder to compile in", e.to_string()))?;
    let library = dir.path().join("plan.so");
    compiler.build(source, dir.path(), &library)?;
    let image = fs::read(&library).map_err(|e| failed("reading a compiled plan", e.to_string()))?;
    keeps_nothing(&image, &compiler.version)?;
    let stored = disk.put(&name, &image);
    if let Err(e) = &stored {
        tracing::warn!("cannot store compiled code in {}: {e}; set DKB_CACHE_DIR", disk.dir().display());
    }
    HostModule::open(&library).map_err(|e| failed("loading a compiled plan", e.to_string()))
}

struct Compiler {
    /// The command and arguments that `$CXX` may hold.
    command: Vec<OsString>,
    /// First line of `--version`.
    version: String,
}

impl Compiler {
    fn probe(command: Vec<OsString>) -> Option<Self> {
        let (program, args) = command.split_first()?;
        let output = Command::new(program).args(args).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or_default().trim().to_owned();
        output.status.success().then_some(Compiler { command, version })
    }

    fn build(&self, source: &str, dir: &Path, library: &Path) -> Result<(), DeviceError> {
        let failed = |log: &str| DeviceError::Compile { compiler: self.version.clone(), log: shorten(log) };
        let input = dir.join("unit.cc");
        fs::write(&input, source).map_err(|e| failed(&format!("writing {}: {e}", input.display())))?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).args(FLAGS).arg("-o").arg(library).arg(input).current_dir(dir);
        let output = command.output().map_err(|e| failed(&e.to_string()))?;
        if output.status.success() { Ok(()) } else { Err(failed(&String::from_utf8_lossy(&output.stderr))) }
    }
}

/// The C++ compiler: `$CXX`, else the first that runs of c++, g++ and clang++.
fn compiler() -> Result<&'static Compiler, DeviceError> {
    static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
    let found = COMPILER.get_or_init(|| {
        if let Some(cxx) = std::env::var("CXX").ok().filter(|v| !v.trim().is_empty()) {
            let command = cxx.split_whitespace().map(OsString::from).collect();
            return Compiler::probe(command).ok_or_else(|| format!("CXX names `{cxx}`, which does not run"));
        }
        let names = ["c++", "g++", "clang++"];
        names.iter().find_map(|name| Compiler::probe(vec![name.into()])).ok_or_else(|| {
            "no C++ compiler (tried c++, g++, clang++): install one, for example `apt-get install g++`, \
             or set CXX"
                .to_owned()
        })
    });
    found.as_ref().map_err(|message| DeviceError::Unavailable(message.clone()))
}

/// The program that compiles plans for the host, if there is one.
pub(crate) fn compiler_path() -> Option<PathBuf> {
    program_path(&compiler().ok()?.command[0].to_string_lossy())
}

fn machine_memory_bytes() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(4 << 30, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{AddAndSum, exercise, plan};
    use super::*;

    #[test]
    fn does_what_every_device_must() {
        exercise(&HostDevice::new(0, 3, 1 << 30));
    }

    #[test]
    fn blocks_follow_rows_and_workers() {
        let device = HostDevice::new(0, 3, 1 << 30);
        for rows in [1, 1024, 1025, 300_000] {
            let work = AddAndSum::new(&device, rows);
            work.issue();
            assert_eq!(work.check(), rows.div_ceil(1024).min(12), "{rows} rows");
        }
    }

    #[test]
    fn logical_devices_run_side_by_side_from_one_library() {
        let devices: Vec<HostDevice> = (0..4).map(|i| HostDevice::new(i, 2, 1 << 30)).collect();
        let works: Vec<AddAndSum> = devices.iter().map(|device| AddAndSum::new(device, 100_000)).collect();
        std::thread::scope(|scope| {
            for work in &works {
                scope.spawn(|| work.issue());
            }
        });
        for work in &works {
            work.check();
            assert!(ptr::eq(work.module.as_any(), works[0].module.as_any()));
        }
    }

    #[test]
    fn wrong_launches_are_errors() {
        let device = HostDevice::new(0, 1, 1 << 20);
        let module = AddAndSum::new(&device, 1).module;
        let absent = device.launch(&*module, "absent", 1, &[]);
        assert!(matches!(absent, Err(DeviceError::NoKernel(name)) if name == "absent"));
        let short = device.launch(&*module, "add", 1, &[1]).unwrap_err().to_string();
        assert!(short.contains("4 parameters") && short.contains("1 arguments"), "{short}");
    }

    #[test]
    fn compile_errors_give_the_line_of_the_source() {
        let device = HostDevice::new(0, 1, 1 << 20);
        for (source, place) in
            [("#include \"dkb.cuh\"\nint x = ;\n", "plan.cu:2"), ("#include <cstdio>\n", "line 1")]
        {
            let error = device.compile(&plan(source)).err().map(|e| e.to_string());
            assert!(error.as_ref().is_some_and(|e| e.contains(place)), "{error:?}");
        }
    }

    #[test]
    fn memory_is_aligned_bounded_and_given_back() {
        let device = HostDevice::new(0, 1, 1 << 20);
        for _ in 0..10 {
            let memory = device.alloc(600_000).unwrap();
            assert_eq!(memory.address() % 256, 0);
            let second = device.alloc(600_000);
            assert!(matches!(second, Err(DeviceError::OutOfMemory { bytes: 600_000, .. })));
        }
        assert!(matches!(device.alloc(usize::MAX), Err(DeviceError::OutOfMemory { .. })));
    }
}
