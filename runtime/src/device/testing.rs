//! What every device must do, checked the same way on each kind.

use std::sync::Arc;

use dkb_kernels::{Elem, Plan};

use super::{Device, Memory, Module};

const HEADER: &str = r#"/*--- kernel plan 1
sql = ""
framework = "cuda"
level = "full"
phases = [{ name = "all", on = "root", launches = [
  { kernel = "add", threads = "rows", args = ["rows"] },
  { kernel = "sum", threads = "rows", args = ["rows"] },
  { kernel = "absent", threads = "rows", args = [] },
] }]
result = { size = "n", columns = [] }
---*/
"#;

const SOURCE: &str = r#"#include "dkb.cuh"
extern "C" __global__ void add(u64 rows, const i32* __restrict__ a, const i32* b, i64* out) {
  DKB_ROWS(i, rows) out[i] = i64(a[i]) + b[i];
}
extern "C" __global__ void sum(u64 rows, const i64* values, i128* total, u64* blocks) {
  i64 part = 0;
  DKB_ROWS(i, rows) part += values[i];
  block_add(total, i128(part));
  if (block_leader()) atomic_add(blocks, u64(1));
}
"#;

/// A plan with this source, which launches `add`, `sum` and a kernel that no source has.
pub(super) fn plan(source: &str) -> Plan {
    dkb_kernels::text::parse(&format!("{HEADER}{source}")).unwrap()
}

/// Two columns, their sum, and its total.
pub(super) struct AddAndSum<'a> {
    device: &'a dyn Device,
    pub(super) module: Arc<dyn Module>,
    rows: u64,
    a: Box<dyn Memory>,
    b: Box<dyn Memory>,
    out: Box<dyn Memory>,
    total: Box<dyn Memory>,
    blocks: Box<dyn Memory>,
}

impl<'a> AddAndSum<'a> {
    pub(super) fn new(device: &'a dyn Device, rows: u64) -> Self {
        let alloc = |bytes| device.alloc(bytes).unwrap();
        let column = |values: Vec<i32>| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let memory = alloc(bytes.len());
            device.upload(&*memory, 0, &bytes).unwrap();
            memory
        };
        let n = rows as usize;
        AddAndSum {
            device,
            module: device.compile(&plan(SOURCE)).unwrap(),
            rows,
            a: column((0..rows as i32).collect()),
            b: column(vec![-7; n]),
            out: alloc(n * 8),
            total: alloc(16),
            blocks: alloc(8),
        }
    }

    /// Issues fills and launches.
    pub(super) fn issue(&self) {
        let (device, rows) = (self.device, self.rows);
        device.fill(&*self.out, Elem::I64, 0x0123_4567_89ab_cdef, rows as usize).unwrap();
        device.fill(&*self.total, Elem::I128, 0, 1).unwrap();
        device.fill(&*self.blocks, Elem::U64, 0, 1).unwrap();
        let args = [rows, self.a.address(), self.b.address(), self.out.address()];
        device.launch(&*self.module, "add", rows, &args).unwrap();
        let args = [rows, self.out.address(), self.total.address(), self.blocks.address()];
        device.launch(&*self.module, "sum", rows, &args).unwrap();
    }

    /// The total is right; gives the number of blocks that added to it.
    pub(super) fn check(&self) -> u64 {
        let (mut total, mut blocks) = ([0; 16], [0; 8]);
        self.device.download(&*self.total, 0, &mut total).unwrap();
        self.device.download(&*self.blocks, 0, &mut blocks).unwrap();
        let expected: i128 = (0..i128::from(self.rows)).map(|i| i - 7).sum();
        assert_eq!(i128::from_le_bytes(total), expected, "{} rows on {}", self.rows, self.device.name());
        u64::from_le_bytes(blocks)
    }
}

/// Kernels, fills of every width, and transfers, on `device`.
pub(super) fn exercise(device: &dyn Device) {
    for rows in [0, 1, 255, 256, 257, 1023, 1024, 1025, 12_345, 300_000] {
        let work = AddAndSum::new(device, rows);
        work.issue();
        assert_eq!(work.check() == 0, rows == 0, "{rows} rows");
    }
    fills(device);
    transfers(device);
}

fn fills(device: &dyn Device) {
    let memory = device.alloc(64).unwrap();
    for elem in [Elem::U8, Elem::I16, Elem::U32, Elem::I64, Elem::I128, Elem::F64] {
        for value in [0, -1, 0x0123_4567_89ab_cdef_0011_2233_4455_6677i128] {
            let width = elem.bytes();
            device.fill(&*memory, Elem::U8, 0x5a, 64).unwrap();
            device.fill(&*memory, elem, value, 32 / width).unwrap();
            let mut bytes = [0; 64];
            device.download(&*memory, 0, &mut bytes).unwrap();
            assert!(bytes[..32].chunks(width).all(|c| c == &value.to_le_bytes()[..width]), "{elem} {value}");
            assert!(bytes[32..].iter().all(|b| *b == 0x5a), "{elem} {value}");
        }
    }
}

/// Sizes around those at which the CUDA device changes its way.
fn transfers(device: &dyn Device) {
    let all: Vec<u8> = (0..(65 << 20) + 5u32).map(|i| (i % 251) as u8).collect();
    let memory = device.alloc(all.len()).unwrap();
    for len in [0, 1, 255, 64 << 10, (64 << 10) + 1, (4 << 20) + 1, 32 << 20, all.len()] {
        let offset = all.len() - len;
        device.upload(&*memory, offset, &all[..len]).unwrap();
        let mut back = vec![0; len];
        device.download(&*memory, offset, &mut back).unwrap();
        assert!(back == all[..len], "{len} bytes");
    }
    assert!(device.upload(&*memory, all.len(), &[0]).is_err());
    assert!(device.download(&*memory, usize::MAX, &mut [0; 3]).is_err());
    assert!(device.fill(&*memory, Elem::I32, 0, all.len()).is_err());
}
