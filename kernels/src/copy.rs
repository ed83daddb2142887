//! The device source of a plain copy.

use crate::source::Builtin;

/// Kernel `dkb_copy(u64 words, CopyWord* into, const CopyWord* from)`: copies words of 16 bytes.
pub const COPY: Builtin =
    Builtin { name: "copy", source: include_str!("../cuda/copy.cuh"), kernels: &["dkb_copy"] };
