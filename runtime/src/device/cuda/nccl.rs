//! NCCL: collectives among GPUs, one communicator each, in this one process.
//!
//! The library is loaded by path, from the folders that a person names before those of the system, and is never
//! required.

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, OnceLock};

use dkb_kernels::{Elem, Reduce};
use libloading::Library;

use super::lock;
use super::peer::End;
use crate::device::links::{Collectives, Fold, Piece};
use crate::device::{DeviceError, nvrtc};

/// Names of the library, by which the system finds it too.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

type Communicator = *mut c_void;
type Stream = *mut c_void;
type Status = c_int;

/// `ncclUint8`.
const BYTES: c_int = 1;

/// The functions of NCCL's C interface that we use.
struct Functions {
    version: String,
    init_all: unsafe extern "C" fn(*mut Communicator, c_int, *const c_int) -> Status,
    destroy: unsafe extern "C" fn(Communicator) -> Status,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, Stream) -> Status,
    broadcast:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, Stream) -> Status,
    error: unsafe extern "C" fn(Status) -> *const c_char,
    _library: Library,
}

impl Functions {
    fn get() -> Result<&'static Functions, String> {
        static NCCL: OnceLock<Result<Functions, String>> = OnceLock::new();
        NCCL.get_or_init(Functions::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Functions, String> {
        let in_folders = folders().into_iter().flat_map(|dir| NAMES.map(|name| dir.join(name)));
        let mut reason = None;
        for path in in_folders.filter(|path| path.exists()).chain(NAMES.map(PathBuf::from)) {
            match Functions::open(&path) {
                Ok(functions) => return Ok(functions),
                Err(e) if path.is_absolute() => reason = Some(format!(" ({}: {e})", path.display())),
                Err(_) => {}
            }
        }
        Err(format!(
            "no usable NCCL library (libnccl.so.2){}: install NCCL, or put the folder that holds it into \
             DKB_CUDA_LIB_DIR",
            reason.unwrap_or_default()
        ))
    }

    fn open(path: &Path) -> Result<Functions, libloading::Error> {
        // SAFETY: NCCL's loading has no side effects; the symbols have these types in every NCCL 2, and the
        // library stays loaded as long as the pointers.
        unsafe {
            let library = Library::new(path)?;
            let version: unsafe extern "C" fn(*mut c_int) -> Status = *library.get("ncclGetVersion")?;
            let mut number = 0;
            version(&mut number);
            Ok(Functions {
                version: format!("NCCL {}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
                init_all: *library.get("ncclCommInitAll")?,
                destroy: *library.get("ncclCommDestroy")?,
                group_start: *library.get("ncclGroupStart")?,
                group_end: *library.get("ncclGroupEnd")?,
                all_reduce: *library.get("ncclAllReduce")?,
                broadcast: *library.get("ncclBroadcast")?,
                error: *library.get("ncclGetErrorString")?,
                _library: library,
            })
        }
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function gives a static string for every status.
        let words = unsafe { CStr::from_ptr((self.error)(status)) };
        Err(words.to_string_lossy().into_owned())
    }
}

/// Where the library may lie: beside CUDA's, and where Python packages have it.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for dir in nvrtc::library_dirs() {
        folders.push(dir.join("nvidia/nccl/lib"));
        folders.push(dir.join("../../nccl/lib"));
        folders.push(dir);
    }
    folders
}

/// One communicator a GPU.
pub(super) struct Nccl {
    functions: &'static Functions,
    ranks: Mutex<Vec<Rank>>,
}

struct Rank {
    /// The device's name.
    device: String,
    communicator: Communicator,
    stream: Stream,
}

// SAFETY: communicators may be used from any thread, one at a time; they are behind a lock.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

impl Nccl {
    /// Communicators for devices that each have a GPU of their own. Their streams must outlive the value.
    ///
    /// # Errors
    /// Why there can be none.
    pub(super) fn new(ends: &[End]) -> Result<Nccl, String> {
        let ordinals: Vec<c_int> = ends.iter().map(|end| end.context.ordinal() as c_int).collect();
        if ordinals.iter().collect::<HashSet<_>>().len() < ordinals.len() {
            return Err("several devices share a GPU".to_owned());
        }
        let functions = Functions::get()?;
        let mut communicators = vec![ptr::null_mut(); ends.len()];
        // SAFETY: both arrays have as many entries as are named; the GPUs exist.
        let status = unsafe {
            (functions.init_all)(communicators.as_mut_ptr(), ends.len() as c_int, ordinals.as_ptr())
        };
        functions.check(status).map_err(|e| format!("ncclCommInitAll: {e}"))?;
        let rank = |(end, communicator): (&End, Communicator)| Rank {
            device: end.name.clone(),
            communicator,
            stream: end.stream.cu_stream().cast(),
        };
        Ok(Nccl { functions, ranks: Mutex::new(ends.iter().zip(communicators).map(rank).collect()) })
    }

    /// Name and version.
    pub(super) fn version(&self) -> &str {
        &self.functions.version
    }

    /// Issues one call per device and item, as one group.
    fn grouped<T>(
        &self,
        call: &str,
        items: &[T],
        name: impl Fn(&T) -> &str,
        issue: impl Fn(&T, usize, &Rank) -> Status,
    ) -> Result<(), DeviceError> {
        let ranks = lock(&self.ranks);
        let failure = |device: &str, what: String, message| DeviceError::Call {
            device: device.to_owned(),
            call: what,
            message,
        };
        let all = || ranks.iter().map(|rank| rank.device.as_str()).collect::<Vec<_>>().join(", ");
        let group = |status| self.functions.check(status).map_err(|e| failure(&all(), call.to_owned(), e));
        // SAFETY: the library is loaded; every group that starts is ended below.
        group(unsafe { (self.functions.group_start)() })?;
        let issued = items.iter().try_for_each(|item| {
            ranks.iter().enumerate().try_for_each(|(device, rank)| {
                let status = self.functions.check(issue(item, device, rank));
                status.map_err(|e| failure(&rank.device, format!("{call} of `{}`", name(item)), e))
            })
        });
        // SAFETY: as above.
        let ended = group(unsafe { (self.functions.group_end)() });
        issued.and(ended)
    }
}

impl Collectives for Nccl {
    fn reduces(&self, elem: Elem, reduce: Reduce) -> bool {
        // How NCCL orders a NaN and the zeros is its own.
        let ordered = elem != Elem::F64 || reduce == Reduce::Sum;
        ordered && data_type(elem).is_some() && operation(reduce).is_some()
    }

    fn all_reduce(&self, folds: &[Fold]) -> Result<(), DeviceError> {
        self.grouped(
            "ncclAllReduce",
            folds,
            |fold| fold.of.name,
            |fold, device, rank| {
                let (Some(ty), Some(operation)) = (data_type(fold.elem), operation(fold.reduce)) else {
                    return INVALID_ARGUMENT;
                };
                let (at, count) = (fold.of.on(device).address(), fold.of.bytes / fold.elem.bytes());
                let (from, to) = (at as *const c_void, at as *mut c_void);
                // SAFETY: the buffer has so many elements on that device; working in place is allowed.
                unsafe {
                    (self.functions.all_reduce)(
                        from,
                        to,
                        count,
                        ty,
                        operation,
                        rank.communicator,
                        rank.stream,
                    )
                }
            },
        )
    }

    fn broadcast(&self, pieces: &[Piece]) -> Result<(), DeviceError> {
        self.grouped(
            "ncclBroadcast",
            pieces,
            |piece| piece.of.name,
            |piece, device, rank| {
                let at = piece.of.on(device).plus(piece.start).address();
                let (from, to, root) = (at as *const c_void, at as *mut c_void, piece.owner as c_int);
                // SAFETY: the piece lies within the buffer on that device; working in place is allowed.
                unsafe {
                    (self.functions.broadcast)(
                        from,
                        to,
                        piece.bytes,
                        BYTES,
                        root,
                        rank.communicator,
                        rank.stream,
                    )
                }
            },
        )
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        for rank in lock(&self.ranks).drain(..) {
            // SAFETY: made in `new` and destroyed once; NCCL waits for its work.
            unsafe { (self.functions.destroy)(rank.communicator) };
        }
    }
}

/// `ncclInvalidArgument`.
const INVALID_ARGUMENT: Status = 4;

/// `ncclDataType_t` of a type that NCCL adds and compares.
fn data_type(elem: Elem) -> Option<c_int> {
    match elem {
        Elem::I8 => Some(0),
        Elem::U8 => Some(1),
        Elem::I32 => Some(2),
        Elem::U32 => Some(3),
        Elem::I64 => Some(4),
        Elem::U64 => Some(5),
        Elem::F64 => Some(8),
        Elem::U16 | Elem::I16 | Elem::I128 => None,
    }
}

/// `ncclRedOp_t`.
fn operation(reduce: Reduce) -> Option<c_int> {
    match reduce {
        Reduce::Sum => Some(0),
        Reduce::Max => Some(2),
        Reduce::Min => Some(3),
        Reduce::Or | Reduce::None | Reduce::Concat | Reduce::Merge => None,
    }
}
