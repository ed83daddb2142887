//! What happens between devices when a phase ends: their copies of a buffer become one.
//!
//! Afterwards every device holds the reduced content; buffers of the result that the last phase completes stay
//! with the root. Everything is issued on the devices' streams. The host waits only for the counters of rows
//! that are put one after another, for they say where each device's rows go.

use std::ops::Range;

use dkb_kernels::{Buffer, Elem, Reduce, Start};

use super::Error;
use super::buffers::{Place, extreme};
use super::exchange::Exchange;
use super::program::Step;
use super::schedule::{Machine, raise};
use crate::device::links::{Fold, Piece, Shared};

/// Whether a buffer's copies become one. Not so for rows of the result that stay where they are, and for
/// buffers that hold one part.
pub(super) fn is_reduced(machine: &Machine, buffer: usize) -> bool {
    let (program, parts) = (machine.env.program, machine.env.parts);
    program.plan.buffers[buffer].reduce != Reduce::None
        && !(program.in_result[buffer] && program.rows_on_every_device(parts))
        && !(parts > 1 && program.is_sharded(buffer))
}

/// A buffer to be reduced.
struct Reduced<'a> {
    buffer: usize,
    spec: &'a Buffer,
    place: Place,
    shared: Shared<'a>,
    /// Whether it is a size's counter.
    counts: bool,
    /// Whether only the root needs the reduced content.
    to_root: bool,
}

impl<'a> Reduced<'a> {
    fn new(machine: &Machine<'a>, buffer: usize, last: bool) -> Reduced<'a> {
        let program = machine.env.program;
        let (spec, place) = (&program.plan.buffers[buffer], machine.layout.places[buffer]);
        let memory = machine.workers.iter().map(|w| w.slabs.memory(place.slab)).collect();
        let shared = Shared { name: &spec.name, memory, offset: place.offset, bytes: place.bytes };
        let counts = program.counters.contains(&Some(buffer));
        Reduced { buffer, spec, place, shared, counts, to_root: last && program.in_result[buffer] }
    }

    fn fold(&self, reduce: Reduce) -> Fold<'_> {
        let idle = idle(self.spec, reduce);
        Fold { of: &self.shared, elem: self.spec.ty, reduce, to_root: self.to_root, idle }
    }
}

/// What a buffer starts with, over and over, if folding that changes nothing. Zeros of doubles have a sign.
fn idle(spec: &Buffer, reduce: Reduce) -> Option<[u8; 16]> {
    let unsigned = matches!(spec.ty, Elem::U8 | Elem::U16 | Elem::U32 | Elem::U64);
    let value = match (reduce, spec.start) {
        _ if spec.ty == Elem::F64 => return None,
        (Reduce::Sum | Reduce::Or, Start::Zero) => 0,
        (Reduce::Max, Start::Zero) if unsigned => 0,
        (Reduce::Min, Start::Max) | (Reduce::Max, Start::Min) => extreme(spec.ty, spec.start),
        _ => return None,
    };
    let bytes = value.to_le_bytes();
    Some(std::array::from_fn(|at| bytes[at % spec.ty.bytes()]))
}

/// Reduces what `steps` have written. `counts` is raised to the counters that the host has looked at.
///
/// # Errors
/// A failed device call, or a concat-reduced buffer whose length is not a multiple of its size.
pub(super) fn reduce(machine: &Machine, steps: Range<usize>, counts: &mut [u64]) -> Result<(), Error> {
    let Some(exchange) = &machine.store.exchange else { return Ok(()) };
    let program = machine.env.program;
    for at in steps {
        let step = &program.steps[at];
        let last = at + 1 == program.steps.len();
        let reduced: Vec<Reduced> = step
            .writes
            .iter()
            .filter(|buffer| is_reduced(machine, **buffer))
            .map(|buffer| Reduced::new(machine, *buffer, last))
            .collect();

        // A device whose counter is past the end must be noticed. All other reductions keep the largest.
        let counted =
            |r: &Reduced| r.spec.reduce == Reduce::Concat || r.counts && r.spec.reduce == Reduce::Min;
        let mut before = Vec::new();
        if reduced.iter().any(counted) {
            for worker in machine.workers {
                before.push(machine.status(worker)?.counters);
            }
        }
        before.iter().for_each(|reported| raise(counts, reported));

        let (mut folds, mut pieces, mut joined) = (Vec::new(), Vec::new(), Vec::new());
        for r in reduced.iter().filter(|r| r.spec.reduce == Reduce::Concat) {
            let (size, total) = concat(machine, exchange, &before, r, &mut pieces)?;
            counts[size] = counts[size].max(total);
            if let Some(counter) = program.counters[size].filter(|c| !joined.contains(c)) {
                let place = machine.layout.places[counter];
                for worker in machine.workers {
                    let memory = worker.slabs.memory(place.slab);
                    worker.device.upload(memory, place.offset, &total.to_le_bytes())?;
                }
                joined.push(counter);
            }
        }
        let merged: Vec<&Reduced> = reduced.iter().filter(|r| r.spec.reduce == Reduce::Merge).collect();
        if !merged.is_empty() {
            merge(machine, exchange, step, &merged)?;
        }
        for r in &reduced {
            match r.spec.reduce {
                // The root has the largest, unless a device had no room for what it merged.
                Reduce::Merge if r.counts => folds.push(r.fold(Reduce::Max)),
                Reduce::Merge if !r.to_root => {
                    let (of, bytes) = (&r.shared, r.shared.bytes);
                    pieces.push(Piece { of, owner: 0, start: 0, bytes, to_root: false });
                }
                Reduce::Sum | Reduce::Min | Reduce::Max | Reduce::Or if !joined.contains(&r.buffer) => {
                    folds.push(r.fold(r.spec.reduce));
                }
                _ => {}
            }
        }
        exchange.combine(&folds, &pieces)?;
    }
    Ok(())
}

/// Moves each device's rows to where they lie among those of all devices, in any order, and adds them to the
/// pieces to be shared. Returns the size and its rows in total, which may be more than fit.
fn concat<'a>(
    machine: &Machine,
    exchange: &Exchange,
    before: &[Vec<Option<u64>>],
    r: &'a Reduced,
    pieces: &mut Vec<Piece<'a>>,
) -> Result<(usize, u64), Error> {
    let (program, name) = (machine.env.program, &r.spec.name);
    let size = program.plan.concat_size(r.spec).and_then(|s| program.plan.sizes.get_index_of(s));
    let size = size.ok_or_else(|| Error::Execution(format!("buffer `{name}` has no size with a counter")))?;
    let capacity = machine.env.sizes[size];
    if !r.place.len.is_multiple_of(capacity) {
        let message =
            format!("buffer `{name}`: length {} is no multiple of its size's {capacity} rows", r.place.len);
        return Err(Error::Execution(message));
    }
    let row_bytes = r.place.bytes / capacity as usize;
    let mut total = 0u64;
    for (device, counters) in before.iter().enumerate() {
        let rows = counters[size].unwrap_or(0);
        let first = total.min(capacity) as usize;
        let kept = rows.min(capacity - first as u64) as usize;
        // Rows before the first place are moved behind the last of the others: no range overlaps.
        let moved = kept.min(first);
        if moved > 0 {
            let to = first + kept - moved;
            exchange.move_within(&r.shared, device, to * row_bytes, 0, moved * row_bytes)?;
        }
        let (start, bytes) = (first * row_bytes, kept * row_bytes);
        pieces.push(Piece { of: &r.shared, owner: device, start, bytes, to_root: r.to_root });
        total = total.saturating_add(rows);
    }
    Ok((size, total))
}

/// Folds all devices' buffers into the root's with the step's merge launch: pairs of devices at once, then pairs
/// of those that folded.
fn merge(machine: &Machine, exchange: &Exchange, step: &Step, merged: &[&Reduced]) -> Result<(), Error> {
    let count = machine.workers.len();
    let buffers: Vec<&Shared> = merged.iter().map(|r| &r.shared).collect();
    let mut stride = 1;
    while stride < count {
        exchange.barrier()?;
        for device in (0..count - stride).step_by(2 * stride) {
            let (copies, _kept) = exchange.peer_copies(device, device + stride, &buffers)?;
            let mut addresses = vec![0; machine.layout.places.len()];
            for (r, copy) in merged.iter().zip(copies) {
                addresses[r.buffer] = copy;
            }
            machine.merge(&machine.workers[device], step, &addresses)?;
        }
        stride *= 2;
    }
    exchange.barrier()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_start_that_changes_nothing_is_idle() {
        let of = |ty, reduce, start| {
            let (name, len) = ("b".to_owned(), "1".to_owned());
            idle(&Buffer { name, ty, len, start, reduce }, reduce)
        };
        assert_eq!(of(Elem::I64, Reduce::Sum, Start::Zero), Some([0; 16]));
        assert_eq!(of(Elem::U32, Reduce::Or, Start::Zero), Some([0; 16]));
        assert_eq!(of(Elem::U8, Reduce::Max, Start::Zero), Some([0; 16]));
        assert_eq!(of(Elem::U16, Reduce::Min, Start::Max), Some([0xff; 16]));
        let least = [0, 0, 0, 0x80].repeat(4);
        assert_eq!(of(Elem::I32, Reduce::Max, Start::Min).as_ref(), least.first_chunk());
        // Not what a fold leaves as it is, not known, or zeros of either sign.
        assert_eq!(of(Elem::I32, Reduce::Max, Start::Zero), None);
        assert_eq!(of(Elem::I32, Reduce::Sum, Start::Poison), None);
        assert_eq!(of(Elem::F64, Reduce::Sum, Start::Zero), None);
    }
}
