//! The device source of what a judge asks of memory.

use crate::source::Builtin;

/// Kernels `dkb_sum(u64 bytes, const u8* from, u64 seed, u64* sum)`, which adds to a sum what depends on every byte and
/// its address, `dkb_swap_rows(u64 rows, u64 width, u8* values, u64 key)`, which swaps rows in pairs, and
/// `dkb_reflect(u64 rows, u64 width, u8* values, const u8* valid, i64 least, i64 most)`, which reflects the values between
/// two bounds.
pub const GUARD: Builtin = Builtin {
    name: "guard",
    source: include_str!("../cuda/guard.cuh"),
    kernels: &["dkb_sum", "dkb_swap_rows", "dkb_reflect"],
};

/// Kernels for GPUs alone: `dkb_scrub_shared(u64 bytes, u64 pattern)` with that many bytes of dynamic shared memory,
/// `dkb_scrub_local(u64 pattern, u64* into)` and `dkb_scrub_cache(u64 words, u64 pattern, u64* scratch)`.
pub const SCRUB: Builtin = Builtin {
    name: "scrub",
    source: include_str!("../cuda/scrub.cuh"),
    kernels: &["dkb_scrub_shared", "dkb_scrub_local", "dkb_scrub_cache"],
};
