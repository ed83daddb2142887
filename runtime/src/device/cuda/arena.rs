//! Device memory: one allocation of the driver's for each logical device, shared out by the runtime.
//!
//! So a budget holds exactly, taking memory costs nothing, and what was freed is used again at once. Work that
//! still runs on freed memory was issued before it was freed, on the stream that took it: whoever gets it next,
//! on another stream, waits on the device for what that stream had been given by then. Under a memory checker
//! every allocation is the driver's own instead.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use cudarc::driver::{CudaContext, CudaStream};

use super::{Event, lock};
use crate::device::{Extent, Memory};

/// Allocations are multiples of this many bytes.
const STEP: usize = 512;

/// Offsets that are free, and what work on them has to be waited for.
struct Space<E> {
    gaps: BTreeMap<usize, Gap<E>>,
    /// How often memory was given back.
    given: u64,
}

struct Gap<E> {
    bytes: usize,
    /// By stream, its latest work.
    work: BTreeMap<usize, Work<E>>,
}

/// What a stream had been given when memory was freed on it.
#[derive(Debug, Clone, PartialEq)]
struct Work<E> {
    /// Counts up.
    turn: u64,
    event: E,
}

impl<E: Clone> Space<E> {
    fn new(bytes: usize) -> Self {
        Space { gaps: BTreeMap::from([(0, Gap { bytes, work: BTreeMap::new() })]), given: 0 }
    }

    /// Takes `bytes` from the smallest gap that has them; gives the offset, and by stream what to wait for.
    fn take(&mut self, bytes: usize) -> Option<(usize, Vec<(usize, E)>)> {
        let large = self.gaps.iter().filter(|(_, gap)| gap.bytes >= bytes);
        let (&offset, _) = large.min_by_key(|(_, gap)| gap.bytes)?;
        let gap = self.gaps.remove(&offset)?;
        let work = gap.work.iter().map(|(stream, work)| (*stream, work.event.clone())).collect();
        if gap.bytes > bytes {
            self.gaps.insert(offset + bytes, Gap { bytes: gap.bytes - bytes, ..gap });
        }
        Some((offset, work))
    }

    /// Gives `bytes` at `offset` back, which work of a stream up to an event may still use.
    fn give(&mut self, offset: usize, bytes: usize, work: Option<(usize, E)>) {
        self.given += 1;
        let work = work.map(|(stream, event)| (stream, Work { turn: self.given, event }));
        let mut gap = Gap { bytes, work: work.into_iter().collect() };
        let mut start = offset;
        let merge = |gap: &mut Gap<E>, other: Gap<E>| {
            gap.bytes += other.bytes;
            for (stream, work) in other.work {
                let latest = gap.work.entry(stream).or_insert_with(|| work.clone());
                if latest.turn < work.turn {
                    *latest = work;
                }
            }
        };
        if let Some(after) = self.gaps.remove(&(offset + bytes)) {
            merge(&mut gap, after);
        }
        if let Some((&before, found)) = self.gaps.range(..offset).next_back()
            && before + found.bytes == offset
            && let Some(found) = self.gaps.remove(&before)
        {
            merge(&mut gap, found);
            start = before;
        }
        self.gaps.insert(start, gap);
    }
}

struct State {
    /// None until memory is first asked for.
    base: Option<CUdeviceptr>,
    space: Space<Arc<Event>>,
    used: usize,
    /// How often memory was taken or given back.
    changes: u64,
    /// By number: the streams that take memory here.
    streams: Vec<Arc<CudaStream>>,
}

/// The memory of one logical device.
pub(super) struct Arena {
    context: Arc<CudaContext>,
    limit: usize,
    sanitize: bool,
    state: Mutex<State>,
}

impl Arena {
    /// Memory of at most `limit` bytes.
    pub(super) fn new(context: Arc<CudaContext>, limit: usize, sanitize: bool) -> Arena {
        let limit = limit / STEP * STEP;
        let state = State { base: None, space: Space::new(0), used: 0, changes: 0, streams: Vec::new() };
        Arena { context, limit, sanitize, state: Mutex::new(state) }
    }

    /// Bytes of the budget.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that are not allocated.
    pub(super) fn free_bytes(&self) -> usize {
        self.limit - lock(&self.state).used
    }

    /// The whole budget, once any of it was taken. Nothing under a memory checker, which reports what is written
    /// elsewhere.
    pub(super) fn extent(&self) -> Extent {
        let state = lock(&self.state);
        let ranges = state.base.map(|base| base..base + self.limit as u64).into_iter().collect();
        Extent { ranges, changes: state.changes }
    }

    /// What of the budget is free, once any of it was taken.
    pub(super) fn gaps(&self) -> Vec<Range<u64>> {
        let state = lock(&self.state);
        let Some(base) = state.base else { return Vec::new() };
        let range = |(offset, gap): (&usize, &Gap<_>)| {
            let start = base + *offset as u64;
            start..start + gap.bytes as u64
        };
        state.space.gaps.iter().map(range).collect()
    }

    /// Announces a stream that will take memory; the number it goes by.
    pub(super) fn join(&self, stream: Arc<CudaStream>) -> usize {
        let streams = &mut lock(&self.state).streams;
        streams.push(stream);
        streams.len() - 1
    }

    /// Memory of `bytes`, and behind them `padding`, for work on stream `takes`, given back on stream `gives`; None if
    /// there is not enough. The context is bound.
    pub(super) fn take(
        self: &Arc<Self>,
        bytes: usize,
        padding: usize,
        takes: usize,
        gives: usize,
    ) -> Result<Option<CudaMemory>, DriverError> {
        let step = if self.sanitize { 1 } else { STEP };
        let padded = bytes.checked_add(padding).and_then(|b| b.checked_next_multiple_of(step));
        let Some(size) = padded else { return Ok(None) };
        let mut state = lock(&self.state);
        if size > self.limit - state.used {
            return Ok(None);
        }
        let address = match self.sanitize {
            // SAFETY: the memory is owned by the value returned, which alone frees it.
            true => match unsafe { result::malloc_sync(size) } {
                Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => return Ok(None),
                other => other?,
            },
            false => match self.carve(&mut state, size, takes)? {
                Some(address) => address,
                None => return Ok(None),
            },
        };
        state.used += size;
        state.changes += 1;
        Ok(Some(CudaMemory { address, bytes, size, stream: gives, arena: self.clone() }))
    }

    fn carve(
        &self,
        state: &mut State,
        size: usize,
        stream: usize,
    ) -> Result<Option<CUdeviceptr>, DriverError> {
        let base = match state.base {
            Some(base) => base,
            None => {
                // SAFETY: freed once, when the arena is dropped.
                let base = match unsafe { result::malloc_sync(self.limit) } {
                    Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => return Ok(None),
                    other => other?,
                };
                state.space = Space::new(self.limit);
                *state.base.insert(base)
            }
        };
        let Some((offset, work)) = state.space.take(size) else { return Ok(None) };
        for (_, event) in work.iter().filter(|(other, _)| *other != stream) {
            event.hold(&state.streams[stream])?;
        }
        Ok(Some(base + offset as u64))
    }

    fn give(&self, memory: &CudaMemory) {
        let mut state = lock(&self.state);
        state.used -= memory.size;
        state.changes += 1;
        if !self.sanitize {
            let offset = memory.address - state.base.unwrap_or(memory.address);
            let stream = &state.streams[memory.stream];
            // Nothing to wait for where the stream is idle. Where that cannot be told, the device has failed.
            let bound = self.context.bind_to_thread().is_ok();
            let work = (bound && !is_idle(stream)).then(|| Event::record(stream).ok()).flatten();
            let work = work.map(|event| (memory.stream, Arc::new(event)));
            return state.space.give(offset as usize, memory.size, work);
        }
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the stream is alive; the address comes from `malloc_sync` and nobody owns it any more.
            unsafe {
                let _ = result::stream::synchronize(state.streams[memory.stream].cu_stream());
                let _ = result::free_sync(memory.address);
            }
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let state = lock(&self.state);
        if let Some(base) = state.base
            && self.context.synchronize().is_ok()
        {
            // SAFETY: allocated in `carve`; all memory keeps the arena alive, so none is in use.
            let _ = unsafe { result::free_sync(base) };
        }
    }
}

fn is_idle(stream: &CudaStream) -> bool {
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamQuery(stream.cu_stream()) }.result().is_ok()
}

/// Memory of an arena; given back when dropped.
pub(super) struct CudaMemory {
    address: CUdeviceptr,
    bytes: usize,
    size: usize,
    /// The stream on which it is given back.
    stream: usize,
    arena: Arc<Arena>,
}

impl Memory for CudaMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn span(&self) -> Range<u64> {
        self.address..self.address + self.size as u64
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        self.arena.clone().give(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_split_and_joined() {
        let mut space = Space::new(100);
        assert_eq!(space.take(30), Some((0, vec![])));
        assert_eq!(space.take(30), Some((30, vec![])));
        assert_eq!(space.take(50), None);
        space.give(0, 30, Some((1, 'a')));
        // The smallest gap that is large enough.
        assert_eq!(space.take(20), Some((0, vec![(1, 'a')])));
        space.give(30, 30, Some((2, 'b')));
        assert_eq!(space.take(80), Some((20, vec![(1, 'a'), (2, 'b')])));
        space.give(20, 80, Some((1, 'c')));
        space.give(0, 20, Some((2, 'd')));
        assert_eq!(space.gaps.len(), 1);
        // Work of a stream ends in its order.
        assert_eq!(space.take(100), Some((0, vec![(1, 'c'), (2, 'd')])));
        assert_eq!(space.take(1), None);
    }
}
