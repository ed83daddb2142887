//! What happens between devices when a phase ends: their copies of a buffer become one.
//!
//! Contents are staged through host memory. Afterwards every device holds the reduced content; buffers of
//! the result that the last phase completes stay with the root.

use std::ops::Range;
use std::thread;

use dkb_kernels::{Elem, Reduce};

use super::Error;
use super::program::Step;
use super::schedule::{Machine, Worker, raise};
use crate::device::Memory;

/// Bytes of a fold that are worth another thread.
const FOLD_BYTES: usize = 1 << 20;

/// Whether only the root needs a buffer's reduced content.
type Rooted<'a> = dyn Fn(usize) -> bool + Sync + 'a;

/// Whether a buffer's copies become one. Not so for rows of the result that stay where they are, and for
/// buffers that hold one part.
pub(super) fn is_reduced(machine: &Machine, buffer: usize) -> bool {
    let (program, parts) = (machine.env.program, machine.env.parts);
    program.plan.buffers[buffer].reduce != Reduce::None
        && !(program.in_result[buffer] && program.rows_on_every_device(parts))
        && !(parts > 1 && program.is_sharded(buffer))
}

/// Reduces what `steps` have written. `counts` is raised to every counter's value before and after.
///
/// # Errors
/// A failed device call, or a concat-reduced buffer whose length is not a multiple of its size.
pub(super) fn exchange(machine: &Machine, steps: Range<usize>, counts: &mut [u64]) -> Result<(), Error> {
    let program = machine.env.program;
    for at in steps {
        let step = &program.steps[at];
        let reduced: Vec<usize> = step.writes.iter().copied().filter(|b| is_reduced(machine, *b)).collect();
        let last = at + 1 == program.steps.len();
        let to_root = |buffer: usize| last && program.in_result[buffer];
        let how = |buffer: usize| program.plan.buffers[buffer].reduce;

        let counted =
            reduced.iter().any(|b| how(*b) == Reduce::Concat || program.counters.contains(&Some(*b)));
        let before =
            if counted { machine.on_all(|_, w| Ok(machine.status(w)?.counters))? } else { Vec::new() };
        before.iter().for_each(|reported| raise(counts, reported));

        let mut joined_counters = Vec::new();
        for buffer in reduced.iter().copied().filter(|b| how(*b) == Reduce::Concat) {
            let (size, total) = concat(machine, &before, buffer, to_root(buffer))?;
            counts[size] = counts[size].max(total);
            if let Some(counter) = program.counters[size]
                && !joined_counters.contains(&counter)
            {
                put_everywhere(machine, counter, &total.to_le_bytes(), false)?;
                joined_counters.push(counter);
            }
        }
        let folds = |b: &usize| matches!(how(*b), Reduce::Sum | Reduce::Min | Reduce::Max | Reduce::Or);
        let plain: Vec<usize> =
            reduced.iter().copied().filter(folds).filter(|b| !joined_counters.contains(b)).collect();
        if !plain.is_empty() {
            fold_plain(machine, &plain, &to_root)?;
        }
        let merged: Vec<usize> = reduced.iter().copied().filter(|b| how(*b) == Reduce::Merge).collect();
        if !merged.is_empty() {
            merge(machine, step, &merged, &to_root)?;
        }
    }
    Ok(())
}

/// The content of a buffer on one device.
fn get(machine: &Machine, worker: &Worker, buffer: usize) -> Result<Vec<u8>, Error> {
    let place = &machine.layout.places[buffer];
    let mut bytes = vec![0; place.bytes];
    worker.device.download(worker.slabs.memory(place.slab), place.offset, &mut bytes)?;
    Ok(bytes)
}

fn put(machine: &Machine, worker: &Worker, buffer: usize, bytes: &[u8]) -> Result<(), Error> {
    let place = &machine.layout.places[buffer];
    Ok(worker.device.upload(worker.slabs.memory(place.slab), place.offset, bytes)?)
}

fn put_everywhere(machine: &Machine, buffer: usize, bytes: &[u8], only_root: bool) -> Result<(), Error> {
    machine.on_all(|device, worker| match device {
        1.. if only_root => Ok(()),
        _ => put(machine, worker, buffer, bytes),
    })?;
    Ok(())
}

/// Reduces buffers elementwise.
fn fold_plain(machine: &Machine, buffers: &[usize], to_root: &Rooted) -> Result<(), Error> {
    let mut copies = machine.on_all(|_, worker| {
        buffers.iter().map(|b| get(machine, worker, *b)).collect::<Result<Vec<Vec<u8>>, Error>>()
    })?;
    let folded: Vec<Vec<u8>> = (0..buffers.len())
        .map(|at| {
            let spec = &machine.env.program.plan.buffers[buffers[at]];
            let copies = copies.iter_mut().map(|c| std::mem::take(&mut c[at])).collect();
            fold_all(spec.ty, spec.reduce, copies)
        })
        .collect();
    machine.on_all(|device, worker| {
        let wanted = buffers.iter().zip(&folded).filter(|(b, _)| device == 0 || !to_root(**b));
        wanted.into_iter().try_for_each(|(b, bytes)| put(machine, worker, *b, bytes))
    })?;
    Ok(())
}

/// Puts the rows of all devices one after another. Returns the size and its rows in total, which may be
/// more than fit.
fn concat(
    machine: &Machine,
    before: &[Vec<Option<u64>>],
    buffer: usize,
    only_root: bool,
) -> Result<(usize, u64), Error> {
    let program = machine.env.program;
    let spec = &program.plan.buffers[buffer];
    let place = &machine.layout.places[buffer];
    let size = program.plan.concat_size(spec).and_then(|s| program.plan.sizes.get_index_of(s));
    let size =
        size.ok_or_else(|| Error::Execution(format!("buffer `{}` has no size with a counter", spec.name)))?;
    let capacity = machine.env.sizes[size];
    if !place.len.is_multiple_of(capacity) {
        let message = format!(
            "buffer `{}`: length {} is no multiple of its size's {capacity} rows",
            spec.name, place.len
        );
        return Err(Error::Execution(message));
    }
    let row_bytes = place.bytes / capacity as usize;
    let rows = |device: usize| before.get(device).and_then(|b| b[size]).unwrap_or(0);
    let pieces = machine.on_all(|device, worker| {
        let mut bytes = vec![0; rows(device).min(capacity) as usize * row_bytes];
        worker.device.download(worker.slabs.memory(place.slab), place.offset, &mut bytes)?;
        Ok(bytes)
    })?;
    let mut joined = pieces.concat();
    joined.truncate(place.bytes);
    put_everywhere(machine, buffer, &joined, only_root)?;
    let total = (0..machine.workers.len()).fold(0u64, |sum, d| sum.saturating_add(rows(d)));
    Ok((size, total))
}

/// Folds every peer's buffers into the root's with the step's merge launch, and hands them round.
fn merge(machine: &Machine, step: &Step, merged: &[usize], to_root: &Rooted) -> Result<(), Error> {
    let root = &machine.workers[0];
    let staged: Vec<Box<dyn Memory>> = merged
        .iter()
        .map(|b| root.device.alloc(machine.layout.places[*b].bytes.max(1)))
        .collect::<Result<_, _>>()?;
    let mut addresses = vec![0; machine.layout.places.len()];
    for (buffer, memory) in merged.iter().zip(&staged) {
        addresses[*buffer] = memory.address();
    }
    for peer in &machine.workers[1..] {
        for (buffer, memory) in merged.iter().zip(&staged) {
            root.device.upload(memory.as_ref(), 0, &get(machine, peer, *buffer)?)?;
        }
        machine.merge(step, &addresses)?;
    }
    // Before the staged copies are freed.
    root.device.synchronize()?;
    let shared: Vec<usize> = merged.iter().copied().filter(|b| !to_root(*b)).collect();
    let contents: Vec<Vec<u8>> = shared.iter().map(|b| get(machine, root, *b)).collect::<Result<_, _>>()?;
    machine.on_all(|device, worker| {
        if device == 0 {
            return Ok(());
        }
        shared.iter().zip(&contents).try_for_each(|(b, bytes)| put(machine, worker, *b, bytes))
    })?;
    Ok(())
}

/// Folds copies of a buffer elementwise.
fn fold_all(elem: Elem, reduce: Reduce, copies: Vec<Vec<u8>>) -> Vec<u8> {
    let mut copies = copies.into_iter();
    let mut into = copies.next().unwrap_or_default();
    let rest: Vec<Vec<u8>> = copies.collect();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(into.len() / FOLD_BYTES).max(1);
    let chunk = into.len().div_ceil(threads).next_multiple_of(16).max(16);
    thread::scope(|scope| {
        for (i, part) in into.chunks_mut(chunk).enumerate() {
            let rest = &rest;
            let mut work = move || {
                for from in rest {
                    fold(elem, reduce, part, &from[i * chunk..]);
                }
            };
            if threads == 1 {
                work();
            } else {
                scope.spawn(work);
            }
        }
    });
    into
}

fn pairwise<const N: usize>(into: &mut [u8], from: &[u8], f: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (a, b) in into.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
        *a = f(*a, *b);
    }
}

/// Folds the elements of `from` into those of `into`, as many as there are in both.
fn fold(elem: Elem, reduce: Reduce, into: &mut [u8], from: &[u8]) {
    // One loop for each operation, so that the compiler can vectorise it.
    macro_rules! integers {
        ($ty:ty) => {
            match reduce {
                Reduce::Sum => integers!($ty, |a, b| a.wrapping_add(b)),
                Reduce::Min => integers!($ty, |a, b| a.min(b)),
                Reduce::Max => integers!($ty, |a, b| a.max(b)),
                Reduce::Or => integers!($ty, |a, b| a | b),
                Reduce::None | Reduce::Concat | Reduce::Merge => {}
            }
        };
        ($ty:ty, |$a:ident, $b:ident| $value:expr) => {
            pairwise(into, from, |a, b| {
                let ($a, $b) = (<$ty>::from_le_bytes(a), <$ty>::from_le_bytes(b));
                <$ty>::to_le_bytes($value)
            })
        };
    }
    match elem {
        Elem::U8 => integers!(u8),
        Elem::U16 => integers!(u16),
        Elem::U32 => integers!(u32),
        Elem::U64 => integers!(u64),
        Elem::I8 => integers!(i8),
        Elem::I16 => integers!(i16),
        Elem::I32 => integers!(i32),
        Elem::I64 => integers!(i64),
        Elem::I128 => integers!(i128),
        Elem::F64 if reduce == Reduce::Or => integers!(u64),
        Elem::F64 => pairwise(into, from, |a, b| {
            let (a, b) = (f64::from_le_bytes(a), f64::from_le_bytes(b));
            let folded = match reduce {
                Reduce::Sum => a + b,
                Reduce::Min if b.total_cmp(&a).is_lt() => b,
                Reduce::Max if b.total_cmp(&a).is_gt() => b,
                _ => a,
            };
            folded.to_le_bytes()
        }),
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn bytes<const N: usize, T: Copy>(values: &[T], f: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|v| f(*v)).collect()
    }

    #[test]
    fn folds_elementwise() {
        let i = |v: &[i128]| bytes(v, i128::to_le_bytes);
        let copies = || vec![i(&[1, i128::MAX]), i(&[-5, 1])];
        assert_eq!(fold_all(Elem::I128, Reduce::Sum, copies()), i(&[-4, i128::MIN]));
        assert_eq!(fold_all(Elem::I128, Reduce::Min, copies()), i(&[-5, 1]));
        assert_eq!(fold_all(Elem::I128, Reduce::Max, copies()), i(&[1, i128::MAX]));
        let f = |v: &[f64]| bytes(v, f64::to_le_bytes);
        let copies = || vec![f(&[1.5, f64::INFINITY]), f(&[-2.0, 3.0])];
        assert_eq!(fold_all(Elem::F64, Reduce::Sum, copies()), f(&[-0.5, f64::INFINITY]));
        assert_eq!(fold_all(Elem::F64, Reduce::Min, copies()), f(&[-2.0, 3.0]));
        assert_eq!(fold_all(Elem::U8, Reduce::Or, vec![vec![1, 2], vec![4, 2]]), vec![5, 2]);
    }

    #[test]
    fn folds_large_buffers_in_chunks() {
        let ones = bytes(&vec![1u32; 1 << 20], u32::to_le_bytes);
        let folded = fold_all(Elem::U32, Reduce::Sum, vec![ones.clone(), ones.clone(), ones]);
        assert_eq!(folded, bytes(&vec![3u32; 1 << 20], u32::to_le_bytes));
    }
}
