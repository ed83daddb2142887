//! How fast the devices' memory is, measured with a plain copy.

use std::sync::Arc;
use std::thread;

use dkb_kernels::{COPY, Elem};

use super::host::HostDevice;
use super::{Device, DeviceError, Memory, Module};

/// Bytes copied at once on a GPU, where there is room.
const GPU_BYTES: u64 = 1 << 30;
/// Bytes copied at once on a host device.
const HOST_BYTES: u64 = 64 << 20;
/// Caches may hold less than that.
const LEAST_BYTES: u64 = 64 << 20;
/// Of a device's free memory, each of the two buffers takes one part in this many at most.
const SHARE: u64 = 8;
/// Copies between two marks: enough that neither their resolution nor the first launch counts.
const COPIES: u64 = 16;
/// Measurements, of which the best counts.
const REPETITIONS: usize = 4;
/// Bytes that the kernel copies at once.
const WORD_BYTES: u64 = 16;

/// Two buffers of one device and the kernel that copies between them.
struct Copy<'a> {
    device: &'a dyn Device,
    module: Arc<dyn Module>,
    into: Box<dyn Memory>,
    from: Box<dyn Memory>,
}

impl Copy<'_> {
    fn new(device: &dyn Device, bytes: u64) -> Result<Copy<'_>, DeviceError> {
        let alloc = || {
            let memory = device.alloc(bytes as usize)?;
            // Pages of host memory that nobody has written need not exist.
            device.fill(memory.as_ref(), Elem::U8, 1, bytes as usize)?;
            Ok(memory)
        };
        Ok(Copy { device, module: device.compile_builtin(&COPY)?, into: alloc()?, from: alloc()? })
    }

    /// Bytes read and written between two marks.
    fn moved_bytes(&self) -> u64 {
        2 * COPIES * self.from.bytes() as u64
    }

    /// Copies, and says from when to when.
    fn run(&self) -> Result<(f64, f64), DeviceError> {
        let words = self.from.bytes() as u64 / WORD_BYTES;
        let args = [words, self.into.address(), self.from.address()];
        let start = self.device.mark()?;
        for _ in 0..COPIES {
            self.device.launch(self.module.as_ref(), COPY.kernels[0], words, &args)?;
        }
        let end = self.device.mark()?;
        self.device.synchronize()?;
        Ok((start.ms()?, end.ms()?))
    }
}

/// Gigabytes (1e9 bytes) a second that the memory of all devices together reads and writes while each copies a
/// buffer; the sum, for logical devices may share one memory. None where too little memory is free.
///
/// # Errors
/// No compiler, or a failed device call.
pub(crate) fn memory_gb_per_s(devices: &[Arc<dyn Device>]) -> Result<Option<f64>, DeviceError> {
    let mut copies = Vec::new();
    for device in devices {
        let most = if device.as_any().is::<HostDevice>() { HOST_BYTES } else { GPU_BYTES };
        let bytes = most.min(device.free_bytes() / SHARE) / WORD_BYTES * WORD_BYTES;
        if bytes < LEAST_BYTES {
            return Ok(None);
        }
        copies.push(Copy::new(device.as_ref(), bytes)?);
    }
    let moved_bytes: u64 = copies.iter().map(Copy::moved_bytes).sum();
    let mut best = None;
    for _ in 0..REPETITIONS {
        let spans = thread::scope(|scope| {
            let threads: Vec<_> = copies.iter().map(|copy| scope.spawn(|| copy.run())).collect();
            let ended = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(span) => span,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(ended).collect::<Result<Vec<(f64, f64)>, DeviceError>>()
        })?;
        let start_ms = spans.iter().map(|span| span.0).fold(f64::INFINITY, f64::min);
        let end_ms = spans.iter().map(|span| span.1).fold(f64::NEG_INFINITY, f64::max);
        if end_ms > start_ms {
            let gb_per_s = moved_bytes as f64 / (end_ms - start_ms) / 1e6;
            best = Some(best.map_or(gb_per_s, |best: f64| best.max(gb_per_s)));
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceKind, DeviceSpec, nvrtc, open_devices};

    fn measure(memory_bytes: u64) -> Option<f64> {
        let spec = DeviceSpec { gpus: Some(2), memory_bytes: Some(memory_bytes), ..DeviceSpec::default() };
        memory_gb_per_s(&open_devices(DeviceKind::Host, &spec).unwrap()).unwrap()
    }

    #[test]
    fn it_is_measured_where_there_is_room() {
        assert!(measure(1 << 30).is_some_and(|gb_per_s| gb_per_s > 0.0));
        assert_eq!(measure(100 << 20), None);
    }

    #[test]
    fn copies_are_whole() {
        let devices = open_devices(DeviceKind::Host, &DeviceSpec::default()).unwrap();
        let copy = Copy::new(devices[0].as_ref(), 1008).unwrap();
        devices[0].fill(copy.from.as_ref(), Elem::U8, 7, 1008).unwrap();
        copy.run().unwrap();
        let mut bytes = [0; 1008];
        devices[0].download(copy.into.as_ref(), 0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 1008]);
    }

    #[test]
    fn the_kernel_compiles_for_a_gpu() {
        match nvrtc::compile_cubin(&dkb_kernels::cuda_builtin_unit(&COPY), "sm_90") {
            Ok(image) => assert!(image.starts_with(b"\x7fELF")),
            Err(DeviceError::Unavailable(why)) => eprintln!("skipped: {why}"),
            Err(e) => panic!("{e}"),
        }
    }
}
