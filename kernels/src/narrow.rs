//! The device source that finds the rows of a result which may be among the first of an order.

use crate::source::Builtin;

/// Kernels, in the order in which they run, all on memory that holds a `Narrow` of `narrow.cuh`:
/// `dkb_narrow_bounds` and `dkb_narrow_count(rows, values, valid, how, state)`, `dkb_narrow_cut(wanted, state)` in one
/// block, and `dkb_narrow_rows(rows, values, valid, how, state, room, out)`, which lists rows as u32.
pub const NARROW: Builtin = Builtin {
    name: "narrow",
    source: include_str!("../cuda/narrow.cuh"),
    kernels: &["dkb_narrow_bounds", "dkb_narrow_count", "dkb_narrow_cut", "dkb_narrow_rows"],
};
