//! The device source of the exchange between devices, and the tasks that its kernel takes.

use crate::plan::Reduce;
use crate::repr::Elem;
use crate::source::Builtin;

/// Kernel `dkb_exchange(u64 count, const ExchangeTask* tasks)` carries out tasks in order; `dkb_mark(u64 count, const
/// MarkTask* tasks)` marks blocks.
pub const EXCHANGE: Builtin = Builtin {
    name: "exchange",
    source: include_str!("../cuda/exchange.cuh"),
    kernels: &["dkb_exchange", "dkb_mark"],
};

/// Bytes of a block of a buffer, which has a bit among the marks of a [`MarkTask`]. Mirrors `exchange.cuh`.
pub const EXCHANGE_BLOCK: u64 = 4096;

/// Set the bits of the blocks of a buffer that are anything but 16 bytes over and over. Mirrors `MarkTask` of
/// `exchange.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkTask {
    /// Address of the buffer, a multiple of 16.
    pub data: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The bytes that are not marked.
    pub idle: [u8; 16],
    /// Address of the marks: 32-bit words, zero at first.
    pub marks: u64,
}

impl MarkTask {
    /// The task as the kernel reads it.
    pub fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.data.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.idle);
        bytes[32..].copy_from_slice(&self.marks.to_le_bytes());
        bytes
    }
}

/// Copy, or fold, one stretch of memory into another. Mirrors `ExchangeTask` of `exchange.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeTask {
    /// Address of the first element of what is written.
    pub into: u64,
    /// Address of the first element of what is read, at the same position within 16 bytes.
    pub from: u64,
    /// Elements.
    pub count: u64,
    kind: u32,
    /// The thread, counted round the grid, that handles the first word of 16 bytes; the same for all tasks that
    /// write the same elements.
    pub first: u32,
    /// Address of the marks of the blocks of a buffer that are to be written; 0 for all.
    pub marks: u64,
    /// How many bytes `into` is behind the beginning of that buffer.
    pub at: u64,
}

impl ExchangeTask {
    /// Bytes of a task in device memory.
    pub const BYTES: usize = 48;

    /// A copy of `bytes` bytes.
    pub fn copy(into: u64, from: u64, bytes: u64) -> ExchangeTask {
        ExchangeTask { into, from, count: bytes, kind: 0, first: 0, marks: 0, at: 0 }
    }

    /// An elementwise fold of `bytes` bytes; None where the reduction is not elementwise.
    pub fn fold(into: u64, from: u64, bytes: u64, elem: Elem, reduce: Reduce) -> Option<ExchangeTask> {
        // Bits know no elements.
        let elem = if reduce == Reduce::Or { Elem::U8 } else { elem };
        let operation = match reduce {
            Reduce::Sum => 1,
            Reduce::Min => 2,
            Reduce::Max => 3,
            Reduce::Or => 4,
            Reduce::None | Reduce::Concat | Reduce::Merge => return None,
        };
        let (count, kind) = (bytes / elem.bytes() as u64, operation * 16 + elem as u32);
        Some(ExchangeTask { into, from, count, kind, first: 0, marks: 0, at: 0 })
    }

    /// The task as the kernel reads it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let last = u64::from(self.first) << 32 | u64::from(self.kind);
        let words = [self.into, self.from, self.count, last, self.marks, self.at];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}
