//! Which rows of a large result may be among its first, found on the devices that hold them, so that the host
//! downloads and orders those alone.

use std::sync::Arc;

use dkb_kernels::{Elem, NARROW, SortKey};

use super::Error;
use super::schedule::{Machine, Worker};
use crate::device::{Device, DeviceError, Memory, Module};

/// Rows of a result from which on looking for the first of them on the device repays its launches.
const LEAST_ROWS: usize = 16 << 10;
/// It is not done for more than one row in so many.
const LEAST_SHARE: usize = 8;
/// Rows that a device lists; if there are more candidates, the order's first column tells too little.
const ROOM: usize = 8 << 10;
/// Bytes of `Narrow` in `narrow.cuh`, which begins with the number of rows found.
const STATE_BYTES: usize = 40 + 4 * 4096;

/// What finds a device's candidates.
pub(super) struct Narrower {
    module: Arc<dyn Module>,
    /// State, and the rows that are listed.
    pub(super) memory: Box<dyn Memory>,
}

impl Narrower {
    /// The device's kernels, and memory for them.
    ///
    /// # Errors
    /// No compiler, out of memory, or a failed device call.
    pub(super) fn new(device: &dyn Device) -> Result<Narrower, DeviceError> {
        let module = device.compile_builtin(&NARROW)?;
        Ok(Narrower { module, memory: device.alloc(STATE_BYTES + ROOM * 4)? })
    }

    /// Zeroes the memory, with which looking for candidates begins.
    ///
    /// # Errors
    /// A failed device call.
    pub(super) fn clear(&self, device: &dyn Device) -> Result<(), DeviceError> {
        device.fill(self.memory.as_ref(), Elem::U8, 0, self.memory.bytes())
    }
}

/// The rows of the result that can be among the first `wanted` of its order: few of them, in any order. `rows` says how
/// many each device holds, one behind the other. None where all of them should be looked at.
///
/// # Errors
/// A failed device call.
pub(super) fn candidates(
    machine: &Machine,
    rows: &[usize],
    wanted: usize,
) -> Result<Option<Vec<u32>>, Error> {
    let plan = &machine.env.program.plan;
    let Some(key) = plan.finish.order_by.first() else { return Ok(None) };
    let total: usize = rows.iter().sum();
    let values = &plan.buffers[machine.env.program.result[key.column].0];
    let orders = plan.result.columns[key.column].fetch.is_none() && values.ty != Elem::I128;
    if !orders
        || plan.finish.limit.is_none()
        || total < LEAST_ROWS
        || wanted > total / LEAST_SHARE
        || wanted > ROOM
    {
        return Ok(None);
    }
    let found = machine.on_all(|device, worker| on_device(machine, worker, key, rows[device], wanted))?;
    let mut all = Vec::new();
    let mut first = 0;
    for (found, rows) in found.into_iter().zip(rows) {
        let Some(found) = found else { return Ok(None) };
        all.extend(found.into_iter().map(|row| first + row));
        first += *rows as u32;
    }
    Ok(Some(all))
}

/// The candidates among the rows of one device; None if there are too many.
fn on_device(
    machine: &Machine,
    worker: &Worker,
    key: &SortKey,
    rows: usize,
    wanted: usize,
) -> Result<Option<Vec<u32>>, Error> {
    let Some(narrower) = worker.narrower.as_ref().filter(|_| rows > 0) else {
        return Ok(Some(Vec::new()));
    };
    let Narrower { module, memory } = narrower;
    let (device, program) = (worker.device.as_ref(), machine.env.program);
    let (values, valid) = program.result[key.column];
    let address = |buffer: usize| {
        let place = &machine.layout.places[buffer];
        worker.slabs.memory(place.slab).address() + place.offset as u64
    };
    let flags = u64::from(key.descending) << 4 | u64::from(key.nulls_first) << 5;
    let how = program.plan.buffers[values].ty as u64 | flags;

    narrower.clear(device)?;
    let (at, count) = (memory.address(), rows as u64);
    let column = [count, address(values), valid.map_or(0, address), how, at];
    let list = [&column[..], &[ROOM as u64, at + STATE_BYTES as u64]].concat();
    let cut = [wanted as u64, at];
    let work: [(u64, &[u64]); 4] = [(count, &column), (count, &column), (1, &cut), (count, &list)];
    for (kernel, (threads, args)) in NARROW.kernels.iter().zip(work) {
        device.launch(module.as_ref(), kernel, threads, args)?;
    }
    let mut found = [0; 8];
    device.download(memory.as_ref(), 0, &mut found)?;
    let found = u64::from_le_bytes(found) as usize;
    if found > ROOM {
        return Ok(None);
    }
    let mut listed = vec![0; found * 4];
    device.download(memory.as_ref(), STATE_BYTES, &mut listed)?;
    Ok(Some(listed.as_chunks().0.iter().map(|row| u32::from_le_bytes(*row)).collect()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int32Array, Int64Array, StringArray};
    use arrow::record_batch::RecordBatch;
    use parquet::arrow::ArrowWriter;

    use crate::device::{DeviceKind, DeviceSpec};
    use crate::session::{Session, SessionConfig};

    /// A table whose columns are spread evenly, few-valued, or far apart, with NULLs and floats of either sign.
    fn table(rows: i64) -> RecordBatch {
        let mixed = |k: i64| (k.wrapping_mul(0x9e37_79b9_7f4a_7c15u64.cast_signed()) >> 20) % 100_000;
        let even = Int32Array::from_iter((0..rows).map(|k| (k % 9 != 0).then_some(mixed(k) as i32)));
        let few = Int64Array::from_iter_values((0..rows).map(|k| mixed(k) % 5));
        let far = Int64Array::from_iter_values((0..rows).map(|k| if k == 7 { i64::MAX } else { -mixed(k) }));
        let float = Float64Array::from_iter_values((0..rows).map(|k| mixed(k) as f64 / 8.0));
        let text = StringArray::from_iter_values((0..rows).map(|k| ["b", "c", "a"][(k % 3) as usize]));
        let columns: [(&str, ArrayRef); 6] = [
            ("k", Arc::new(Int64Array::from_iter_values(0..rows))),
            ("even", Arc::new(even)),
            ("few", Arc::new(few)),
            ("far", Arc::new(far)),
            ("float", Arc::new(float)),
            ("text", Arc::new(text)),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(n, a)| (n, a, n == "even"))).unwrap()
    }

    #[test]
    fn the_first_rows_are_those_of_a_full_sort() {
        let dir = tempfile::tempdir().unwrap();
        let batch = table(40_000);
        let file = File::create(dir.path().join("t.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let orders =
            ["even", "even desc", "even nulls first", "even desc nulls last", "few desc", "far", "far desc"];
        for devices in [1, 3] {
            let spec = DeviceSpec { gpus: Some(devices), ..DeviceSpec::default() };
            let config =
                SessionConfig { kind: DeviceKind::Host, spec, poison: true, ..SessionConfig::default() };
            let session = Session::open(dir.path(), config).unwrap();
            for order in orders.into_iter().chain(["float", "float desc", "text desc", "k desc"]) {
                let sql = format!("select k, even, few, far, float, text from t order by {order}, k");
                let answer = |limit: &str| {
                    let mut prepared = session.prepare(&format!("{sql}{limit}"), &[]).unwrap();
                    session.execute(&mut prepared, &[]).unwrap().batch
                };
                let all = answer("");
                for (offset, limit) in [(0, 1), (3, 20), (100, 4000)] {
                    let some = answer(&format!(" limit {limit} offset {offset}"));
                    assert_eq!(some, all.slice(offset, limit), "{devices} devices, order by {order}");
                }
            }
        }
    }
}
