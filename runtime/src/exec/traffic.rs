//! Bytes that a query must read, and those that its launches were given: what a run's time is compared with.
//!
//! Invariant: everything here is counted from the plan, the footers and the counters of a run that has ended.

use std::sync::Arc;

use dkb_kernels::{On, Physical};

use super::Error;
use super::buffers::Layout;
use super::columns::{DeviceDict, Store};
use super::program::{Program, Slot};

/// Bytes that a query must read at least: every column among the plan's inputs once, in the representation that the
/// plan gives it. Text counts its offsets, and its bytes where the footers state them.
///
/// # Errors
/// No such table or column.
pub(crate) fn floor_bytes(program: &Program, store: &Store) -> Result<u64, Error> {
    let mut bytes = 0;
    for (table, columns) in &program.plan.inputs {
        let table = store.table(table)?;
        for (column, repr) in columns {
            let row_bytes = repr.physical.row_bytes() + u64::from(repr.nullable);
            bytes += table.info.rows * row_bytes;
            if repr.physical == Physical::Utf8 {
                bytes += table.text_bytes(column)?.unwrap_or(0);
            }
        }
    }
    Ok(bytes)
}

/// What a run's launches were given beside columns.
pub(crate) struct Given<'a> {
    pub(crate) program: &'a Program,
    pub(crate) layout: &'a Layout,
    /// The counters by size.
    pub(crate) counts: &'a [u64],
    pub(crate) dicts: &'a [Arc<DeviceDict>],
}

impl Given<'_> {
    /// Bytes of the buffers and dictionaries among the arguments of a run's launches, once for each launch of the plan
    /// on each device, or in each part, that it runs on.
    pub(crate) fn in_run(&self, devices: u64, parts: u64) -> u64 {
        let sharded = self.program.shard.as_ref().filter(|_| parts > 1).map(|shard| shard.first..=shard.last);
        let steps = self.program.steps.iter().enumerate().map(|(at, step)| {
            let times = match &sharded {
                Some(steps) if steps.contains(&at) => parts,
                _ if step.on == On::Root => 1,
                _ => devices,
            };
            times * step.calls.iter().map(|call| self.in_launch(&call.slots)).sum::<u64>()
        });
        steps.sum()
    }

    /// Bytes of the buffers and dictionaries among the arguments of one launch. A buffer to which rows are appended has
    /// as many as its counter says.
    pub(crate) fn in_launch(&self, slots: &[Slot]) -> u64 {
        let bytes = |slot: &Slot| match *slot {
            Slot::Buffer(buffer) => self.in_buffer(buffer),
            Slot::DictOffsets(dict) => {
                (u64::from(self.dicts[dict].entries()) + 1) * Physical::Utf8.row_bytes()
            }
            Slot::DictBytes(dict) => self.dicts[dict].pointers().text_bytes,
            _ => 0,
        };
        slots.iter().map(bytes).sum()
    }

    fn in_buffer(&self, at: usize) -> u64 {
        let Given { program, layout, counts, .. } = self;
        let (buffer, place) = (&program.plan.buffers[at], &layout.places[at]);
        let size = program.plan.sizes.get_full(&buffer.len);
        // All slots of a hash table count, whatever their number of rows.
        let size = size.filter(|(size, _, spec)| program.counters[*size].is_some() && !spec.pow2);
        let rows = size.map_or(place.len, |(size, ..)| counts[size].min(place.len));
        rows * buffer.ty.bytes() as u64
    }
}
