//! Launches as they are about to happen, for those who look for what is wrong with a plan: which kernel, and where what
//! it is given lies.

use dkb_kernels::Physical;
use serde::{Deserialize, Serialize};

use super::program::{Program, Slot};

/// What is told each launch before it happens. A run that is watched waits for each launch to end.
pub type Watch = fn(&Launching);

/// A launch that is about to happen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launching {
    /// Number of the device.
    pub device: usize,
    /// The phase.
    pub phase: String,
    /// The kernel.
    pub kernel: String,
    /// Its arguments that are addresses, in order.
    pub places: Vec<Argument>,
}

/// Memory that a launch is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Argument {
    /// As the plan calls it: a buffer, `peer.NAME`, `table.column`, `dict(table.column).offsets`, `flags`, `params`.
    pub name: String,
    /// Its address on the device.
    pub address: u64,
    /// Elements; None where it has parts of different types.
    pub elements: Option<u64>,
    /// Bytes of an element.
    pub element_bytes: u64,
}

impl Argument {
    /// What `slot` refers to, of which only an address and, as far as the caller knows, a number of elements change
    /// between launches; None for a number.
    pub(super) fn new(
        program: &Program,
        slot: Slot,
        address: u64,
        elements: Option<u64>,
    ) -> Option<Argument> {
        let column = |at: usize| {
            let column = &program.columns[at];
            let physical = column.repr.physical;
            (format!("{}.{}", column.table, column.column), physical.row_bytes())
        };
        let dict = |at: usize| {
            let (table, column) = &program.dicts[at];
            format!("dict({table}.{column})")
        };
        let buffer = |at: usize| (&program.plan.buffers[at].name, program.plan.buffers[at].ty.bytes() as u64);
        let (name, element_bytes) = match slot {
            Slot::Rows | Slot::FirstRow | Slot::Part | Slot::Parts | Slot::Len(_) => return None,
            Slot::Params => ("params".to_owned(), 1),
            Slot::Flags => ("flags".to_owned(), 4),
            Slot::Values(c) => column(c),
            Slot::Valid(c) => (column(c).0 + ".valid", 1),
            Slot::Offsets(c) => (column(c).0 + ".offsets", Physical::Utf8.row_bytes()),
            Slot::Bytes(c) => (column(c).0 + ".bytes", 1),
            Slot::DictOffsets(d) => (dict(d) + ".offsets", Physical::Utf8.row_bytes()),
            Slot::DictBytes(d) => (dict(d) + ".bytes", 1),
            Slot::Buffer(b) => (buffer(b).0.clone(), buffer(b).1),
            Slot::Peer(b) => (format!("peer.{}", buffer(b).0), buffer(b).1),
        };
        Some(Argument { name, address, elements, element_bytes })
    }
}
