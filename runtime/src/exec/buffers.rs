//! Sizes in force, and where a plan's buffers lie on each device.
//!
//! Buffers that start alike share one allocation (a slab), so that starting a run takes a few fills, and
//! flags and counters share one small slab, so that checking a run takes one download. Under a memory
//! checker (`DKB_SANITIZE`) every other buffer has an allocation of its own, of as many bytes as it has.

use std::collections::HashMap;

use dkb_kernels::expr::{ExprError, eval};
use dkb_kernels::{Elem, Start};

use super::Error;
use super::program::Program;
use crate::device::{Device, DeviceError, Memory, sanitizing};

/// Bytes between buffers of a slab.
const ALIGN: usize = 256;
/// Bytes between counters.
const COUNTER_ALIGN: usize = 64;
/// No buffer may be larger, whatever a length expression says.
const MAX_BUFFER_BYTES: u64 = 1 << 44;

/// The rows of tables (`rows(t)`), entries of dictionaries (`dict(t.c)`) and largest values of columns (`max(t.c)`).
pub(crate) type Facts = HashMap<String, u64>;

/// What length expressions may refer to.
#[derive(Clone, Copy)]
pub(crate) struct Env<'a> {
    pub(crate) program: &'a Program,
    pub(crate) facts: &'a Facts,
    /// Capacities in force; while sizes are computed, the earlier ones.
    pub(crate) sizes: &'a [u64],
    pub(crate) parts: u64,
}

impl Env<'_> {
    /// Evaluates a length expression; `rows` is the meaning of the plain name.
    pub(crate) fn eval(&self, text: &str, rows: Option<u64>) -> Result<u64, Error> {
        if let (Some(rows), "rows") = (rows, text) {
            return Ok(rows);
        }
        let lookup = |name: &str| match name {
            "rows" => rows,
            "parts" => Some(self.parts),
            _ => match self.program.plan.sizes.get_index_of(name) {
                Some(at) => self.sizes.get(at).copied(),
                None => self.facts.get(name).copied(),
            },
        };
        eval(text, &lookup).map_err(|e| {
            // The check has looked at all names.
            let unstated = matches!(e, ExprError::Unknown { .. });
            let why = if unstated { ": the footers of the data set do not state it" } else { "" };
            Error::Execution(format!("length {e}{why}"))
        })
    }
}

/// The capacities of all sizes: as the plan says, divided among parts where state is sharded, divided by
/// `shrink` where a counter watches, and never below `learned`.
///
/// # Errors
/// An expression that cannot be evaluated, or a capacity beyond any memory.
pub(crate) fn capacities(
    program: &Program,
    facts: &Facts,
    parts: u64,
    shrink: Option<u64>,
    learned: &[u64],
) -> Result<Vec<u64>, Error> {
    let mut sizes = Vec::with_capacity(program.plan.sizes.len());
    for (at, (name, size)) in program.plan.sizes.iter().enumerate() {
        let mut rows = Env { program, facts, sizes: &sizes, parts }.eval(&size.value, None)?;
        if let Some(counter) = program.counters[at] {
            if program.is_sharded(counter) {
                rows = rows.div_ceil(parts);
            }
            rows /= shrink.unwrap_or(1).max(1);
        }
        rows = rows.max(1).max(learned[at]);
        if rows > MAX_BUFFER_BYTES {
            return Err(Error::Execution(format!(
                "size `{name}`: {rows} rows are beyond any device's memory"
            )));
        }
        sizes.push(if size.pow2 { rows.next_power_of_two() } else { rows });
    }
    Ok(sizes)
}

/// What a slab is for; slabs of different use are started and downloaded apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Flags, and counters that accumulate over a whole run.
    Status,
    /// Counters that are started anew for each part.
    PartStatus,
    /// Buffers that are started anew for each part.
    Part,
    /// Columns of the result.
    Result,
    /// All else.
    Plain,
}

/// One allocation on every device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slab {
    pub(crate) purpose: Use,
    start: Start,
    /// The element type to fill with; u8 where the start is the same for all types.
    elem: Elem,
    pub(crate) bytes: usize,
}

impl Slab {
    /// Type and value of what it is filled with; None where that is unspecified.
    fn fill(&self) -> Option<(Elem, i128)> {
        match self.start {
            // Words where they fit: under a memory checker a slab may have any number of bytes.
            Start::Zero => Some((if self.bytes.is_multiple_of(8) { Elem::U64 } else { Elem::U8 }, 0)),
            Start::Min | Start::Max => Some((self.elem, extreme(self.elem, self.start))),
            Start::Poison => None,
        }
    }

    /// Bytes of which its buffers' places are multiples.
    fn align(&self) -> usize {
        if matches!(self.purpose, Use::Status | Use::PartStatus) { COUNTER_ALIGN } else { ALIGN }
    }
}

/// Bytes behind a buffer that belong to none.
pub(crate) struct Padding {
    /// None for the flags.
    pub(crate) buffer: Option<usize>,
    pub(crate) slab: usize,
    pub(crate) offset: usize,
    /// What it was started with.
    pub(crate) expected: Vec<u8>,
}

/// Where one buffer lies.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    pub(crate) slab: usize,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    /// Elements.
    pub(crate) len: u64,
}

/// Where all buffers lie, the same on every device.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    pub(crate) slabs: Vec<Slab>,
    /// By buffer.
    pub(crate) places: Vec<Place>,
    pub(crate) flags: Place,
}

impl Layout {
    /// Lays out the buffers for the capacities of `env`.
    ///
    /// # Errors
    /// A length that cannot be evaluated or is beyond any memory.
    pub(crate) fn new(env: &Env) -> Result<Layout, Error> {
        let program = env.program;
        let mut layout = Layout::default();
        let apart = sanitizing();
        layout.flags = layout.put(Use::Status, Start::Zero, Elem::U32, 2, false).unwrap_or_default();
        for (at, buffer) in program.plan.buffers.iter().enumerate() {
            let sharded = env.parts > 1 && program.is_sharded(at);
            let purpose = match (program.counters.contains(&Some(at)), sharded) {
                (true, false) => Use::Status,
                (true, true) => Use::PartStatus,
                (false, true) => Use::Part,
                (false, false) if program.in_result[at] => Use::Result,
                (false, false) => Use::Plain,
            };
            let len = env.eval(&buffer.len, None)?;
            let place = layout.put(purpose, buffer.start, buffer.ty, len, apart).ok_or_else(|| {
                Error::Execution(format!(
                    "buffer `{}`: {len} elements are beyond any device's memory",
                    buffer.name
                ))
            })?;
            layout.places.push(place);
        }
        Ok(layout)
    }

    fn put(&mut self, purpose: Use, start: Start, elem: Elem, len: u64, apart: bool) -> Option<Place> {
        let bytes = len.saturating_mul(elem.bytes() as u64);
        if bytes > MAX_BUFFER_BYTES {
            return None;
        }
        let status = matches!(purpose, Use::Status | Use::PartStatus);
        let fill = if matches!(start, Start::Min | Start::Max) { elem } else { Elem::U8 };
        let same =
            |s: &Slab| s.purpose == purpose && s.start == start && s.elem == fill && (status || !apart);
        let slab = self.slabs.iter().position(same).unwrap_or_else(|| {
            self.slabs.push(Slab { purpose, start, elem: fill, bytes: 0 });
            self.slabs.len() - 1
        });
        let (offset, align) = (self.slabs[slab].bytes, self.slabs[slab].align());
        // A byte at least, so that every buffer has an address of its own.
        let taken = bytes.max(1) as usize;
        self.slabs[slab].bytes =
            offset + if apart && !status { taken } else { taken.next_multiple_of(align) };
        Some(Place { slab, offset, bytes: bytes as usize, len })
    }

    /// The padding behind every buffer within its slab. `pattern` is what buffers that start unspecified were filled
    /// with, if they were.
    pub(crate) fn paddings(&self, pattern: Option<u8>) -> impl Iterator<Item = Padding> {
        let buffers = self.places.iter().enumerate().map(|(at, place)| (Some(at), place));
        [(None, &self.flags)].into_iter().chain(buffers).filter_map(move |(buffer, place)| {
            let slab = &self.slabs[place.slab];
            let (elem, value) = slab.fill().or(pattern.map(|byte| (Elem::U8, byte.into())))?;
            let (value, bytes) = (value.to_le_bytes(), elem.bytes());
            let offset = place.offset + place.bytes;
            let end = place.offset + place.bytes.max(1).next_multiple_of(slab.align());
            let expected: Vec<u8> = (offset..end).map(|at| value[at % bytes]).collect();
            (!expected.is_empty()).then_some(Padding { buffer, slab: place.slab, offset, expected })
        })
    }

    /// Bytes of all buffers on one device.
    pub(crate) fn bytes(&self) -> u64 {
        self.slabs.iter().map(|s| s.bytes as u64).sum()
    }
}

/// The allocations of one device, kept between runs.
#[derive(Default)]
pub(crate) struct Slabs {
    memory: Vec<Box<dyn Memory>>,
}

impl Slabs {
    /// Makes room for `layout`, keeping allocations that are large enough.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn fit(&mut self, device: &dyn Device, layout: &Layout) -> Result<(), DeviceError> {
        self.memory.truncate(layout.slabs.len());
        if let Some(small) = self.memory.iter().zip(&layout.slabs).position(|(m, s)| m.bytes() < s.bytes) {
            self.memory.truncate(small);
        }
        for slab in &layout.slabs[self.memory.len()..] {
            self.memory.push(device.alloc_strict(slab.bytes)?);
        }
        Ok(())
    }

    /// Gives every buffer that starts with a value that value, or only those that hold one part.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn start(
        &self,
        device: &dyn Device,
        layout: &Layout,
        only_parts: bool,
    ) -> Result<(), DeviceError> {
        for (slab, memory) in self.of(layout, only_parts) {
            if let Some((elem, value)) = slab.fill() {
                device.fill(memory, elem, value, slab.bytes / elem.bytes())?;
            }
        }
        Ok(())
    }

    /// Fills the buffers that start unspecified with `pattern`, or only those of them that hold one part.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn poison(
        &self,
        device: &dyn Device,
        layout: &Layout,
        only_parts: bool,
        pattern: u8,
    ) -> Result<(), DeviceError> {
        let mut unspecified = self.of(layout, only_parts).filter(|(slab, _)| slab.start == Start::Poison);
        unspecified.try_for_each(|(slab, memory)| device.fill(memory, Elem::U8, pattern.into(), slab.bytes))
    }

    fn of<'a>(
        &'a self,
        layout: &'a Layout,
        only_parts: bool,
    ) -> impl Iterator<Item = (&'a Slab, &'a dyn Memory)> {
        let wanted = move |slab: &Slab| !only_parts || matches!(slab.purpose, Use::Part | Use::PartStatus);
        let slabs = layout.slabs.iter().zip(&self.memory).map(|(slab, memory)| (slab, memory.as_ref()));
        slabs.filter(move |(slab, _)| wanted(slab))
    }

    /// Every allocation.
    pub(crate) fn all(&self) -> impl Iterator<Item = &dyn Memory> {
        self.memory.iter().map(|memory| memory.as_ref())
    }

    /// The address of a buffer.
    pub(crate) fn address(&self, place: &Place) -> u64 {
        self.memory[place.slab].address() + place.offset as u64
    }

    /// The allocation a buffer lies in.
    pub(crate) fn memory(&self, slab: usize) -> &dyn Memory {
        self.memory[slab].as_ref()
    }

    /// Gives all memory back.
    pub(crate) fn clear(&mut self) {
        self.memory.clear();
    }
}

/// The smallest or largest value of a type, as the low bytes of an integer.
pub(super) fn extreme(elem: Elem, start: Start) -> i128 {
    let min = start == Start::Min;
    let signed = |bits: u32| if min { -(1i128 << (bits - 1)) } else { (1i128 << (bits - 1)) - 1 };
    match elem {
        Elem::U8 | Elem::U16 | Elem::U32 | Elem::U64 => {
            if min {
                0
            } else {
                -1
            }
        }
        Elem::I8 => signed(8),
        Elem::I16 => signed(16),
        Elem::I32 => signed(32),
        Elem::I64 => signed(64),
        Elem::I128 => {
            if min {
                i128::MIN
            } else {
                i128::MAX
            }
        }
        Elem::F64 => {
            let end = if min { f64::NEG_INFINITY } else { f64::INFINITY };
            i128::from(end.to_bits())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Filling by words leaves no byte of a slab out, whether or not buffers lie apart.
    #[test]
    fn a_fill_covers_its_slab() {
        for apart in [false, true] {
            let mut layout = Layout::default();
            for (start, elem) in [
                (Start::Zero, Elem::U8),
                (Start::Zero, Elem::U32),
                (Start::Zero, Elem::I128),
                (Start::Max, Elem::I16),
                (Start::Min, Elem::U32),
            ] {
                for len in [1, 3, 65] {
                    layout.put(Use::Plain, start, elem, len, apart).unwrap();
                }
            }
            for slab in &layout.slabs {
                let (elem, _) = slab.fill().unwrap();
                assert!(
                    slab.bytes.is_multiple_of(elem.bytes()),
                    "{slab:?} in steps of {elem:?}, apart {apart}"
                );
            }
        }
    }
}
