//! The device source of the exchange between devices, and the tasks that its kernel takes.

use crate::plan::Reduce;
use crate::repr::Elem;
use crate::source::Builtin;

/// Kernel `dkb_exchange(u64 count, const ExchangeTask* tasks)`: carries out tasks in order.
pub const EXCHANGE: Builtin =
    Builtin { name: "exchange", source: include_str!("../cuda/exchange.cuh"), kernels: &["dkb_exchange"] };

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
}

impl ExchangeTask {
    /// Bytes of a task in device memory.
    pub const BYTES: usize = 32;

    /// A copy of `bytes` bytes.
    pub fn copy(into: u64, from: u64, bytes: u64) -> ExchangeTask {
        ExchangeTask { into, from, count: bytes, kind: 0, first: 0 }
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
        Some(ExchangeTask { into, from, count, kind, first: 0 })
    }

    /// The task as the kernel reads it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let last = u64::from(self.first) << 32 | u64::from(self.kind);
        let words = [self.into, self.from, self.count, last];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}
