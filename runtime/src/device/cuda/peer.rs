//! Links between GPUs: events that order their streams, access to each other's memory where the machine has
//! it, copies, and NCCL.

use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream};

use super::nccl::Nccl;
use super::{CudaDevice, call_error};
use crate::device::links::{Collectives, Links, Spot, Way};
use crate::device::{Device, DeviceError, check_range};

/// One logical device's side.
pub(super) struct End {
    pub(super) name: String,
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    /// Recorded on the stream at every barrier. A wait for it means the latest record before the wait.
    reached: sys::CUevent,
}

// SAFETY: an event may be used from any thread with its context bound.
unsafe impl Send for End {}
// SAFETY: as above; calls of one query come from one thread at a time.
unsafe impl Sync for End {}

impl End {
    fn new(device: &CudaDevice) -> Result<End, DeviceError> {
        let name = device.name();
        let context = device.context().clone();
        let create = || {
            context.bind_to_thread()?;
            result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
        };
        let reached = create().map_err(|e| call_error(&name, "cuEventCreate", e))?;
        Ok(End { name, stream: device.stream().clone(), reached, context })
    }

    fn is_on_the_gpu_of(&self, other: &End) -> bool {
        self.context.cu_ctx() == other.context.cu_ctx()
    }

    /// Whether its kernels can read the memory of `peer`.
    fn can_read(&self, peer: &End) -> Result<bool, DriverError> {
        let mut can = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.context.cu_device(), peer.context.cu_device()) }
            .result()?;
        Ok(can != 0)
    }

    fn enable_reading(&self, peer: &End) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        // SAFETY: both contexts are alive, and stay so as long as memory of theirs is used.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context.cu_ctx(), 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            other => other.result(),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made in `new` and destroyed once; the driver keeps it until waits for it are over.
            let _ = unsafe { result::event::destroy(self.reached) };
        }
    }
}

/// Links between logical devices on GPUs.
pub(crate) struct CudaLinks {
    /// Before the ends, whose streams it uses, so that it is dropped first.
    nccl: Option<Nccl>,
    ends: Vec<End>,
    reads_peers: bool,
}

impl CudaLinks {
    /// Links devices in the way wanted, or in the best way there is: between two that read each other, NCCL is no faster
    /// than the kernel of the exchange, and takes 10 to 30 ms when it is first used for a type and an operation.
    ///
    /// # Errors
    /// The way wanted is not there; a failed device call.
    pub(crate) fn new(devices: &[&CudaDevice], way: Option<Way>) -> Result<CudaLinks, DeviceError> {
        let ends = devices.iter().map(|d| End::new(d)).collect::<Result<Vec<End>, DeviceError>>()?;
        let pairs = || ends.iter().flat_map(|a| ends.iter().map(move |b| (a, b)));
        let apart = || pairs().filter(|(a, b)| !a.is_on_the_gpu_of(b));
        let mut blocked = None;
        for (end, peer) in apart() {
            let can = end.can_read(peer).map_err(|e| failed("cuDeviceCanAccessPeer", end, peer, e))?;
            if !can {
                blocked
                    .get_or_insert_with(|| format!("{} cannot read the memory of {}", end.name, peer.name));
            }
        }
        match (&blocked, way) {
            (Some(why), Some(Way::Peer)) => {
                return Err(DeviceError::Unavailable(format!("DKB_EXCHANGE is `peer`: {why}")));
            }
            (Some(why), _) => tracing::info!("devices exchange copies: {why}"),
            (None, _) => {}
        }
        let reads_peers = blocked.is_none() && way != Some(Way::Host);
        if reads_peers {
            for (end, peer) in apart() {
                end.enable_reading(peer).map_err(|e| failed("cuCtxEnablePeerAccess", end, peer, e))?;
            }
        }
        let nccl = match way {
            Some(Way::Peer | Way::Host) => None,
            None if reads_peers && ends.len() == 2 => None,
            None | Some(Way::Nccl) => match Nccl::new(&ends) {
                Ok(nccl) => Some(nccl),
                Err(why) if way.is_some() => {
                    return Err(DeviceError::Unavailable(format!("DKB_EXCHANGE is `nccl`: {why}")));
                }
                Err(why) => {
                    tracing::info!("devices exchange without NCCL: {why}");
                    None
                }
            },
        };
        Ok(CudaLinks { nccl, ends, reads_peers })
    }
}

fn failed(call: &str, end: &End, peer: &End, e: DriverError) -> DeviceError {
    call_error(&end.name, &format!("{call} for {}", peer.name), e)
}

impl Links for CudaLinks {
    fn name(&self) -> String {
        let without = if self.reads_peers { "peer access" } else { "copies through the host" };
        self.nccl.as_ref().map_or_else(|| without.to_owned(), |nccl| format!("{}, {without}", nccl.version()))
    }

    fn reads_peers(&self) -> bool {
        self.reads_peers
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        for end in &self.ends {
            let record = || {
                end.context.bind_to_thread()?;
                // SAFETY: stream and event are alive and of one context.
                unsafe { result::event::record(end.reached, end.stream.cu_stream()) }
            };
            record().map_err(|e| call_error(&end.name, "cuEventRecord", e))?;
        }
        for (at, end) in self.ends.iter().enumerate() {
            end.context.bind_to_thread().map_err(|e| call_error(&end.name, "an earlier call", e))?;
            for (_, peer) in self.ends.iter().enumerate().filter(|(p, _)| *p != at) {
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                // SAFETY: stream and event are alive; the event may be another context's.
                unsafe { result::stream::wait_event(end.stream.cu_stream(), peer.reached, flags) }
                    .map_err(|e| failed("cuStreamWaitEvent", end, peer, e))?;
            }
        }
        Ok(())
    }

    fn copy(&self, to: Spot, from: Spot, bytes: usize) -> Result<(), DeviceError> {
        let (end, peer) = (&self.ends[to.device], &self.ends[from.device]);
        let call = format!("copy from {}", peer.name);
        check_range(&end.name, &call, to.memory, to.offset, bytes)?;
        check_range(&end.name, &call, from.memory, from.offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let (into, source, stream) = (to.address(), from.address(), end.stream.cu_stream());
        let issue = || {
            end.context.bind_to_thread()?;
            // SAFETY: both ranges lie within allocations of the devices named; the stream is alive.
            unsafe {
                if end.is_on_the_gpu_of(peer) {
                    return sys::cuMemcpyDtoDAsync_v2(into, source, bytes, stream).result();
                }
                let (context, peer) = (end.context.cu_ctx(), peer.context.cu_ctx());
                sys::cuMemcpyPeerAsync(into, context, source, peer, bytes, stream).result()
            }
        };
        issue().map_err(|e| call_error(&end.name, &call, e))
    }

    fn collectives(&self) -> Option<&dyn Collectives> {
        self.nccl.as_ref().map(|nccl| nccl as &dyn Collectives)
    }
}
