//! Devices: where plans run. Two implementations of one interface: `cuda` and `host`.
//!
//! Work on a device is ordered as issued (one stream): uploads, fills, launches and downloads need no
//! explicit waiting among themselves. Invariant: nothing outside this module touches device memory.

mod bandwidth;
pub mod cache;
pub mod cuda;
mod elf;
mod fence;
pub mod host;
pub(crate) mod links;
pub mod nvrtc;
#[cfg(test)]
mod testing;
pub mod triton;

use std::env;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use dkb_kernels::Elem;
use serde::{Deserialize, Serialize};

pub(crate) use bandwidth::memory_gb_per_s;

/// What goes wrong on a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No such device, or no driver.
    #[error("{0}")]
    Unavailable(String),
    /// The source does not compile.
    #[error("{compiler} cannot compile the plan's source:\n{log}")]
    Compile {
        /// Compiler and version.
        compiler: String,
        /// Its output, shortened.
        log: String,
    },
    /// The module has no such kernel.
    #[error("the source has no kernel `{0}`")]
    NoKernel(String),
    /// Not enough memory.
    #[error("{device}: out of memory allocating {bytes} bytes")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// Any other failure of a device call.
    #[error("{device}: {call} failed: {message}")]
    Call {
        /// The device's name.
        device: String,
        /// What was being done, including the kernel's name for a launch.
        call: String,
        /// The driver's words.
        message: String,
    },
}

/// Memory of a device; freed when dropped. 256-byte aligned, with at least 64 bytes of padding behind it.
pub trait Memory: Send + Sync {
    /// Address on the device.
    fn address(&self) -> u64;
    /// Bytes asked for.
    fn bytes(&self) -> usize;
    /// Addresses of all that was allocated, padding included.
    fn span(&self) -> Range<u64>;
}

/// The memory from which a device allocates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Addresses, in order: the whole budget where it is one allocation of the driver's, else what is allocated.
    pub ranges: Vec<Range<u64>>,
    /// How often memory was taken or given back.
    pub changes: u64,
}

/// Compiled device code.
pub trait Module: Send + Sync {
    /// The implementation's own type, for the device that made it.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Fills and launches that run again as one.
pub trait Recording: Send + Sync {
    /// Issues all of them on the device that recorded them.
    ///
    /// # Errors
    /// A failed device call.
    fn launch(&self) -> Result<(), DeviceError>;
}

/// A moment in the work of a device.
pub trait Mark: Send {
    /// When it was reached, by [`crate::trace::now_ms`]; work up to it has been waited for.
    ///
    /// # Errors
    /// A failed device call.
    fn ms(&self) -> Result<f64, DeviceError>;
}

/// One of several copies from a device.
pub struct Download<'a> {
    /// Where from.
    pub memory: &'a dyn Memory,
    /// First byte.
    pub offset: usize,
    /// Where to.
    pub bytes: &'a mut [u8],
}

/// Whose work goes first where that of several forks waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// That of devices themselves and of such forks.
    High,
    /// Work that fills what the other leaves.
    Low,
}

/// What a kernel takes of a multiprocessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's memory outside registers: spilled values, and arrays that registers cannot hold.
    pub local_bytes: u32,
    /// Bytes of a block's shared memory.
    pub shared_bytes: u32,
}

/// Host memory made known to devices; undone when dropped.
pub type Registration = Box<dyn Send + Sync>;

/// A device. Calls take `&self` and may come from any one thread at a time.
pub trait Device: Send + Sync {
    /// The implementation's own type, for what goes beyond this interface: NCCL, peer copies, graphs.
    fn as_any(&self) -> &dyn std::any::Any;
    /// Short name with index, such as `cuda:0` or `host:3`.
    fn name(&self) -> String;
    /// The hardware, such as `NVIDIA H200` or the CPU model.
    fn model(&self) -> String;
    /// Driver and compiler versions, for reports.
    fn versions(&self) -> String;
    /// Bytes that may be allocated in all.
    fn memory_bytes(&self) -> u64;
    /// Bytes that are not allocated.
    fn free_bytes(&self) -> u64;
    /// The memory from which this device and its forks allocate.
    fn extent(&self) -> Extent;
    /// Overwrites what kernels find without being given it: shared memory, local memory and caches. Waits. A host
    /// device has nothing of the kind: what its kernels find is the process's.
    ///
    /// # Errors
    /// A failed device call, now or from earlier work.
    fn scrub(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Overwrites memory of the budget that is not allocated; what was has been waited for. Nothing on a host device,
    /// whose free memory is the process's.
    ///
    /// # Errors
    /// A failed device call.
    fn wipe(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// The same device once more, with an order of work of its own: work given to a fork runs beside this one's.
    /// Memory, budget and compiled code are shared. What one has written the other may use once it was waited
    /// for, and memory goes back to the one that allocated it only when neither uses it any more.
    ///
    /// # Errors
    /// A failed device call.
    fn fork(&self, priority: Priority) -> Result<Arc<dyn Device>, DeviceError>;
    /// Makes this device's later work wait for what `other`, the same device or a fork of it, has been given.
    ///
    /// # Errors
    /// A failed device call.
    fn follow(&self, other: &dyn Device) -> Result<(), DeviceError> {
        let _ = other;
        Ok(())
    }
    /// Compiles a plan's source (see [`dkb_kernels::cuda_translation_unit`] and [`triton`]), or takes it from the
    /// disk cache.
    ///
    /// # Errors
    /// [`DeviceError::Compile`], or no compiler for the plan's framework.
    fn compile(&self, plan: &dkb_kernels::Plan) -> Result<Arc<dyn Module>, DeviceError>;
    /// Compiles device source of the runtime's own, or takes it from the same cache.
    ///
    /// # Errors
    /// As [`Device::compile`].
    fn compile_builtin(&self, builtin: &dkb_kernels::Builtin) -> Result<Arc<dyn Module>, DeviceError>;
    /// Uninitialised memory.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, DeviceError>;
    /// Uninitialised memory whose end a memory checker watches: under one there is no padding behind it, and it is
    /// aligned to what divides `bytes`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn alloc_strict(&self, bytes: usize) -> Result<Box<dyn Memory>, DeviceError> {
        self.alloc(bytes)
    }
    /// What a kernel takes of a multiprocessor; None where nothing tells.
    fn resources(&self, module: &dyn Module, kernel: &str) -> Option<Resources> {
        let _ = (module, kernel);
        None
    }
    /// How many loads beside each other keep the device busy.
    fn loads(&self) -> usize;
    /// Memory that this device fills, and that `user`, from whose work this one's is apart (see
    /// [`Device::fork`]), uses afterwards and gives back.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn alloc_for(&self, user: &dyn Device, bytes: usize) -> Result<Box<dyn Memory>, DeviceError> {
        let _ = user;
        self.alloc(bytes)
    }
    /// Copies host bytes to `memory` at `offset`. The source may be reused on return.
    ///
    /// # Errors
    /// A failed device call, now or from earlier work.
    fn upload(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Copies `bytes` host bytes to `memory` at `offset`, in pieces: `write` is called with where a piece begins,
    /// counted from `offset`, and the slice to write it to.
    ///
    /// # Errors
    /// A failed device call, now or from earlier work.
    fn upload_with(
        &self,
        memory: &dyn Memory,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), DeviceError>;
    /// Lets kernels of all devices of this kind read host memory at its address; None if the system does not
    /// allow that.
    ///
    /// # Errors
    /// A failure of earlier work.
    ///
    /// # Safety
    /// The range stays readable until the registration is dropped, and is then not being read.
    unsafe fn register(&self, address: *const u8, bytes: usize) -> Result<Option<Registration>, DeviceError>;
    /// Copies from `memory` at `offset` into `bytes`, waiting for all earlier work.
    ///
    /// # Errors
    /// A failed device call, now or from earlier work.
    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError>;
    /// Like [`Device::download`], several at once with one wait.
    ///
    /// # Errors
    /// A failed device call, now or from earlier work.
    fn download_all(&self, downloads: &mut [Download]) -> Result<(), DeviceError> {
        downloads.iter_mut().try_for_each(|d| self.download(d.memory, d.offset, d.bytes))
    }
    /// Sets `count` elements of type `elem` from the start of `memory` to the low bytes of `value`.
    ///
    /// # Errors
    /// A failed device call.
    fn fill(&self, memory: &dyn Memory, elem: Elem, value: i128, count: usize) -> Result<(), DeviceError>;
    /// Launches a kernel for so many work items, or so many programs of a kernel in Triton. Every argument is 8
    /// bytes.
    ///
    /// # Errors
    /// [`DeviceError::NoKernel`], or a failed launch.
    fn launch(&self, module: &dyn Module, kernel: &str, work: u64, args: &[u64]) -> Result<(), DeviceError>;
    /// Records the fills and launches that `issue` makes on this thread, instead of running them. They must
    /// have run once, and the memory they name must outlive the recording. A device that cannot record gives
    /// None and does not call `issue`.
    ///
    /// # Errors
    /// `issue` called for something that cannot be recorded. Nothing of it has run.
    fn record(&self, issue: &mut dyn FnMut()) -> Result<Option<Box<dyn Recording>>, DeviceError> {
        let _ = issue;
        Ok(None)
    }
    /// Marks the end of all work issued so far.
    ///
    /// # Errors
    /// A failed device call.
    fn mark(&self) -> Result<Box<dyn Mark>, DeviceError>;
    /// Waits for all work issued so far.
    ///
    /// # Errors
    /// A failure of earlier work.
    fn synchronize(&self) -> Result<(), DeviceError>;
}

/// Alignment of every allocation, in bytes.
pub const MEMORY_ALIGN: usize = 256;
/// Bytes behind every allocation that kernels may read.
pub const MEMORY_PADDING: usize = 64;

/// Whether a memory checker watches (`DKB_SANITIZE`): no sharing of allocations, no poison that would hide reads of
/// uninitialised memory.
pub(crate) fn sanitizing() -> bool {
    static WATCHED: LazyLock<bool> =
        LazyLock::new(|| env::var_os("DKB_SANITIZE").is_some_and(|v| !v.is_empty() && v != "0"));
    *WATCHED
}

/// The most logical devices a process opens.
const MAX_DEVICES: usize = 64;

/// Which kind of device to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum DeviceKind {
    /// GPUs where there are any and NVRTC is installed, else the host.
    #[default]
    Auto,
    /// NVIDIA GPUs.
    Cuda,
    /// The cores of this machine.
    Host,
}

/// Which devices of a kind. Without either field: one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceSpec {
    /// `--gpus`: this many distinct GPUs, or this many logical host devices.
    pub gpus: Option<usize>,
    /// `--devices`: one logical device per entry, on the GPU with that ordinal; entries may repeat.
    pub devices: Option<Vec<usize>>,
    /// `--device-memory`: the bytes that each logical device may take; 90 percent of what there is by default.
    pub memory_bytes: Option<u64>,
}

impl DeviceSpec {
    fn count(&self) -> Result<usize, DeviceError> {
        let bad = |text: String| Err(DeviceError::Unavailable(text));
        let (option, count) = match (self.gpus, &self.devices) {
            (Some(_), Some(_)) => return bad("--gpus and --devices exclude each other: give one".to_owned()),
            (_, Some(list)) => ("--devices", list.len()),
            (gpus, None) => ("--gpus", gpus.unwrap_or(1)),
        };
        if (1..=MAX_DEVICES).contains(&count) {
            Ok(count)
        } else {
            bad(format!("{option} names {count} devices: take 1 to {MAX_DEVICES}"))
        }
    }
}

/// Opens devices. The first is the root.
///
/// # Errors
/// [`DeviceError::Unavailable`] names the option and what this machine has.
pub fn open_devices(kind: DeviceKind, spec: &DeviceSpec) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
    let count = spec.count()?;
    let gpus = match kind {
        DeviceKind::Host => None,
        DeviceKind::Cuda => {
            Some(cuda::availability().map_err(|e| DeviceError::Unavailable(format!("--device cuda: {e}")))?)
        }
        DeviceKind::Auto => cuda::availability().inspect_err(|e| tracing::info!("no GPU is used: {e}")).ok(),
    };
    let Some(gpus) = gpus else {
        let devices = host::HostDevice::open(count, spec.memory_bytes).into_iter();
        return Ok(devices.map(|d| Arc::new(d) as Arc<dyn Device>).collect());
    };
    let ordinals = ordinals(spec, count, &gpus.models)?;
    let devices = cuda::open(&ordinals, spec.memory_bytes)?.into_iter();
    Ok(devices.map(|d| Arc::new(d) as Arc<dyn Device>).collect())
}

/// The GPUs that `spec` means, on a machine that has `models`.
fn ordinals(spec: &DeviceSpec, count: usize, models: &[String]) -> Result<Vec<usize>, DeviceError> {
    let has = || {
        let plural = if models.len() == 1 { "" } else { "s" };
        format!("this machine has {} GPU{plural} ({})", models.len(), models.first().map_or("", |m| m))
    };
    match &spec.devices {
        Some(list) => match list.iter().find(|ordinal| **ordinal >= models.len()) {
            Some(ordinal) => {
                Err(DeviceError::Unavailable(format!("--devices: there is no GPU {ordinal}: {}", has())))
            }
            None => Ok(list.clone()),
        },
        None if count > models.len() => Err(DeviceError::Unavailable(format!("--gpus {count}: {}", has()))),
        None => Ok((0..count).collect()),
    }
}

fn check_range(
    device: &str,
    call: &str,
    memory: &dyn Memory,
    offset: usize,
    len: usize,
) -> Result<(), DeviceError> {
    if offset.checked_add(len).is_some_and(|end| end <= memory.bytes()) {
        return Ok(());
    }
    let message = format!("{len} bytes at offset {offset} do not lie within {} bytes", memory.bytes());
    Err(DeviceError::Call { device: device.to_owned(), call: call.to_owned(), message })
}

fn check_args(device: &str, kernel: &str, expected: usize, actual: usize) -> Result<(), DeviceError> {
    if expected == actual {
        return Ok(());
    }
    let message = format!("the kernel has {expected} parameters, and the plan gives {actual} arguments");
    Err(DeviceError::Call { device: device.to_owned(), call: format!("launch of `{kernel}`"), message })
}

fn bad_source(e: dkb_kernels::SourceError) -> DeviceError {
    DeviceError::Compile { compiler: "dkb".to_owned(), log: e.to_string() }
}

/// A compiler's log without what nobody reads.
fn shorten(log: &str) -> String {
    const LINES: usize = 40;
    const LINE_CHARS: usize = 400;
    let mut lines: Vec<String> =
        log.trim().lines().take(LINES).map(|line| line.chars().take(LINE_CHARS).collect()).collect();
    let left = log.trim().lines().count().saturating_sub(LINES);
    if left > 0 {
        lines.push(format!("... and {left} more lines"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_resolved_or_refused_by_name() {
        let models = vec!["NVIDIA H200".to_owned(); 2];
        let spec = |gpus, devices: Option<&[usize]>| DeviceSpec {
            gpus,
            devices: devices.map(<[usize]>::to_vec),
            memory_bytes: None,
        };
        let resolve = |spec: DeviceSpec| {
            spec.count().and_then(|count| ordinals(&spec, count, &models)).map_err(|e| e.to_string())
        };
        assert_eq!(resolve(spec(None, None)), Ok(vec![0]));
        assert_eq!(resolve(spec(Some(2), None)), Ok(vec![0, 1]));
        assert_eq!(resolve(spec(None, Some(&[0, 0, 1, 1]))), Ok(vec![0, 0, 1, 1]));
        let message = "--gpus 4: this machine has 2 GPUs (NVIDIA H200)";
        assert_eq!(resolve(spec(Some(4), None)), Err(message.to_owned()));
        assert!(resolve(spec(None, Some(&[2]))).unwrap_err().contains("no GPU 2"));
        assert!(resolve(spec(Some(0), None)).unwrap_err().contains("1 to 64"));
        assert!(resolve(spec(Some(1), Some(&[0]))).unwrap_err().contains("exclude"));
    }

    #[test]
    fn host_devices_are_numbered() {
        let spec = DeviceSpec { gpus: Some(4), ..DeviceSpec::default() };
        let devices = open_devices(DeviceKind::Host, &spec).unwrap();
        let names: Vec<String> = devices.iter().map(|d| d.name()).collect();
        assert_eq!(names, ["host:0", "host:1", "host:2", "host:3"]);
        assert!(devices.iter().all(|d| d.memory_bytes() > 0 && !d.model().is_empty()));
    }

    #[test]
    fn cuda_without_a_driver_says_what_to_do() {
        match open_devices(DeviceKind::Cuda, &DeviceSpec::default()) {
            Ok(_) => eprintln!("skipped: this machine has a GPU"),
            Err(e) => assert!(e.to_string().starts_with("--device cuda: "), "{e}"),
        }
    }

    #[test]
    fn long_logs_are_cut() {
        assert_eq!(shorten("a\nb\n"), "a\nb");
        assert!(shorten(&"x\n".repeat(100)).ends_with("... and 60 more lines"));
    }
}
