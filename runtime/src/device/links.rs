//! Links between devices: what they do with each other's memory.
//!
//! Everything is issued on the devices' own streams and returns at once on GPUs. Invariant: a device touches
//! another's memory only between two barriers, so that neither sees the other's unfinished work.

use std::sync::Arc;
use std::{env, ptr};

use dkb_kernels::{Elem, Reduce};

use super::cuda::{CudaDevice, CudaLinks};
use super::host::HostDevice;
use super::{Device, DeviceError, Memory, check_range};

/// A place in one device's memory.
#[derive(Clone, Copy)]
pub(crate) struct Spot<'a> {
    /// The device's number.
    pub(crate) device: usize,
    pub(crate) memory: &'a dyn Memory,
    /// In bytes.
    pub(crate) offset: usize,
}

impl Spot<'_> {
    /// The address on its device.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// So many bytes further on.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Spot { offset: self.offset + bytes, ..self }
    }
}

/// A buffer that every device has, at the same offset of an allocation of its own.
pub(crate) struct Shared<'a> {
    pub(crate) name: &'a str,
    /// By device.
    pub(crate) memory: Vec<&'a dyn Memory>,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl<'a> Shared<'a> {
    /// Where the buffer begins on a device.
    pub(crate) fn on(&self, device: usize) -> Spot<'a> {
        Spot { device, memory: self.memory[device], offset: self.offset }
    }
}

/// A buffer whose copies are folded elementwise into one.
#[derive(Clone, Copy)]
pub(crate) struct Fold<'a> {
    pub(crate) of: &'a Shared<'a>,
    pub(crate) elem: Elem,
    /// One of the elementwise reductions.
    pub(crate) reduce: Reduce,
    /// Whether only the root needs the outcome.
    pub(crate) to_root: bool,
    /// What a copy holds, over and over, where its device adds nothing to the outcome; None if that is not known.
    pub(crate) idle: Option<[u8; 16]>,
}

/// A part of a buffer that one device has and the others, or only the root, are to have too.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) of: &'a Shared<'a>,
    pub(crate) owner: usize,
    /// Where it begins, in bytes from the start of the buffer.
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) to_root: bool,
}

/// How devices reach each other.
pub(crate) trait Links: Send + Sync {
    /// In words, for reports.
    fn name(&self) -> String;
    /// Whether kernels of each device can read the memory of all others.
    fn reads_peers(&self) -> bool;
    /// Later work of every device waits for all earlier work of all.
    ///
    /// # Errors
    /// A failed device call.
    fn barrier(&self) -> Result<(), DeviceError>;
    /// Copies bytes, as work of the device that receives them. The two ranges do not overlap.
    ///
    /// # Errors
    /// A failed device call, naming both devices.
    fn copy(&self, to: Spot, from: Spot, bytes: usize) -> Result<(), DeviceError>;
    /// A library that does more, if there is one.
    fn collectives(&self) -> Option<&dyn Collectives> {
        None
    }
}

/// What a library does with all devices at once. Its calls order themselves: they need no barrier.
pub(crate) trait Collectives {
    /// Whether the library has such a reduction.
    fn reduces(&self, elem: Elem, reduce: Reduce) -> bool;
    /// Folds buffers, each into all its copies.
    ///
    /// # Errors
    /// A failed call, naming the device and the buffer.
    fn all_reduce(&self, folds: &[Fold]) -> Result<(), DeviceError>;
    /// Gives pieces to all devices.
    ///
    /// # Errors
    /// A failed call, naming the device and the buffer.
    fn broadcast(&self, pieces: &[Piece]) -> Result<(), DeviceError>;
}

/// A way between devices that `DKB_EXCHANGE` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// NCCL, beside one of the others for what it lacks.
    Nccl,
    /// Devices read each other's memory.
    Peer,
    /// What a device reads of another is copied to it, through the host's memory.
    Host,
}

impl Way {
    /// The way asked for; None for the best there is.
    ///
    /// # Errors
    /// Another word.
    fn wanted() -> Result<Option<Way>, DeviceError> {
        match env::var("DKB_EXCHANGE").unwrap_or_default().as_str() {
            "" => Ok(None),
            "nccl" => Ok(Some(Way::Nccl)),
            "peer" => Ok(Some(Way::Peer)),
            "host" => Ok(Some(Way::Host)),
            other => Err(DeviceError::Unavailable(format!(
                "DKB_EXCHANGE is `{other}`: take nccl, peer or host, or leave it unset"
            ))),
        }
    }
}

/// Links devices, all of one kind.
///
/// # Errors
/// The way that `DKB_EXCHANGE` asks for is not there; a failed device call.
pub(crate) fn link(devices: &[Arc<dyn Device>]) -> Result<Box<dyn Links>, DeviceError> {
    let way = Way::wanted()?;
    let gpus: Vec<&CudaDevice> = devices.iter().filter_map(|d| d.as_any().downcast_ref()).collect();
    if gpus.len() == devices.len() {
        return Ok(Box::new(CudaLinks::new(&gpus, way)?));
    }
    if !devices.iter().all(|d| d.as_any().is::<HostDevice>()) {
        return Err(DeviceError::Unavailable("devices of different kinds cannot work together".to_owned()));
    }
    match way {
        Some(Way::Nccl) => {
            Err(DeviceError::Unavailable("DKB_EXCHANGE is `nccl`, which needs GPUs".to_owned()))
        }
        _ => Ok(Box::new(HostLinks::new(devices, way != Some(Way::Host)))),
    }
}

/// Links between host devices. Their calls finish before they return, so that a barrier has nothing to do.
pub(crate) struct HostLinks {
    devices: Vec<Arc<dyn Device>>,
    reads_peers: bool,
}

impl HostLinks {
    /// Links host devices, which read each other's memory or act as if they could not.
    pub(crate) fn new(devices: &[Arc<dyn Device>], reads_peers: bool) -> HostLinks {
        HostLinks { devices: devices.to_vec(), reads_peers }
    }
}

impl Links for HostLinks {
    fn name(&self) -> String {
        "shared memory".to_owned()
    }

    fn reads_peers(&self) -> bool {
        self.reads_peers
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn copy(&self, to: Spot, from: Spot, bytes: usize) -> Result<(), DeviceError> {
        let (name, peer) = (self.devices[to.device].name(), self.devices[from.device].name());
        let call = format!("copy from {peer}");
        check_range(&name, &call, to.memory, to.offset, bytes)?;
        check_range(&name, &call, from.memory, from.offset, bytes)?;
        // SAFETY: both ranges lie within memory that host devices allocated; no slice of ours aliases them.
        unsafe { ptr::copy(from.address() as *const u8, to.address() as *mut u8, bytes) };
        Ok(())
    }
}
