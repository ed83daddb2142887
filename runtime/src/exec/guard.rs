//! What a plan may not touch: everything in a device's memory that is none of its buffers. Sums of it are taken before
//! and after a run, outside its time.
//!
//! Columns and dictionaries have a sum each, padding included, and all the rest of the budget has one: what is free, what
//! is behind buffers. Parameters and the padding between buffers must be as they were given. Where the runtime takes
//! memory during a run, for an exchange or a rerun, the rest changes without the plan: such a run's rest is not judged,
//! but all except the inputs is then given back and overwritten, so that nothing is left for the next run.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use dkb_kernels::{Elem, GUARD};

use super::Error;
use super::buffers::Layout;
use super::program::Program;
use super::schedule::Worker;
use crate::device::{DeviceError, Download, Memory, Module};

/// Bytes of a sum.
const SUM_BYTES: usize = 8;

/// Sums of a loaded query's devices.
pub(crate) struct Guard {
    /// Nobody else knows it, so that nobody changes memory and keeps its sum.
    seed: u64,
    /// By device.
    watches: Vec<Watch>,
    /// Whether rows are swapped.
    swapped: bool,
    /// Whether keys are relabelled.
    relabelled: bool,
}

/// One device.
struct Watch {
    module: Arc<dyn Module>,
    /// Where the device adds up: a cell for each input, and one for the rest. None until needed.
    cells: Option<Box<dyn Memory>>,
    /// The sums of inputs as they were loaded, and as they are now.
    loaded: Vec<u64>,
    inputs: Vec<u64>,
    /// The sum of the rest, and at how many changes of what is allocated.
    rest: Option<(u64, u64)>,
}

/// A column or dictionary in memory.
struct Input {
    name: String,
    at: Range<u64>,
}

impl Guard {
    /// Sums the inputs of a query that has been loaded, and gives back and overwrites what runs of it have left.
    ///
    /// # Errors
    /// No compiler, out of memory, or a failed device call.
    pub(crate) fn new(program: &Program, workers: &mut [Worker]) -> Result<Guard, Error> {
        let seed = RandomState::new().build_hasher().finish();
        let watch = |worker: &mut Worker| {
            let module = worker.device.compile_builtin(&GUARD)?;
            let mut watch = Watch { module, cells: None, loaded: Vec::new(), inputs: Vec::new(), rest: None };
            watch.clear(worker)?;
            watch.loaded = watch.sum_inputs(worker, &inputs(program, worker), seed)?;
            watch.inputs.clone_from(&watch.loaded);
            Ok(watch)
        };
        let watches = workers.iter_mut().map(watch).collect::<Result<_, DeviceError>>()?;
        Ok(Guard { seed, watches, swapped: false, relabelled: false })
    }

    /// Readies devices for a run whose buffers and parameters have memory: sums the rest where that is not known, and
    /// overwrites what kernels would find without being given it. Waits.
    ///
    /// # Errors
    /// Out of memory, or a failed device call.
    pub(crate) fn before(&mut self, program: &Program, workers: &[Worker]) -> Result<(), DeviceError> {
        for (watch, worker) in self.watches.iter_mut().zip(workers) {
            let inputs = inputs(program, worker);
            watch.make_cells(worker, inputs.len() + 1)?;
            let changes = worker.device.extent().changes;
            if watch.rest.is_none_or(|(_, known)| known != changes) {
                let sums = watch.sum(worker, self.seed, [watch.rest_of(worker, &inputs)])?;
                watch.rest = Some((sums[0], changes));
            }
            // Nobody else writes it in a run whose result is small.
            if let Some(narrower) = &worker.narrower {
                narrower.clear(worker.device.as_ref())?;
            }
            worker.device.scrub()?;
        }
        Ok(())
    }

    /// Whether a run with this layout, and this pattern in buffers that start unspecified, has left everything as it
    /// was. Waits.
    ///
    /// # Errors
    /// [`Error::Trespass`] names what has changed; or a failed device call.
    pub(crate) fn after(
        &mut self,
        program: &Program,
        workers: &mut [Worker],
        layout: &Layout,
        poison: Option<u8>,
    ) -> Result<(), Error> {
        for (watch, worker) in self.watches.iter_mut().zip(workers) {
            let name = worker.device.name();
            let changed = |what: &str| Err(Error::Trespass(format!("{what} on {name}")));
            if !worker.has_params()? {
                return changed("the parameters");
            }
            if let Some(buffer) = changed_padding(program, worker, layout, poison)? {
                return changed(&format!("the padding behind buffer `{buffer}`"));
            }
            let inputs = inputs(program, worker);
            let sums = watch.sum_inputs(worker, &inputs, self.seed)?;
            if let Some(at) = (0..inputs.len()).find(|at| sums[*at] != watch.inputs[*at]) {
                return changed(&inputs[at].name);
            }
            match watch.rest {
                Some((before, changes)) if changes == worker.device.extent().changes => {
                    let sums = watch.sum(worker, self.seed, [watch.rest_of(worker, &inputs)])?;
                    if sums[0] != before {
                        return changed("memory outside the declared buffers");
                    }
                }
                _ => watch.clear(worker)?,
            }
        }
        Ok(())
    }

    /// Swaps rows of tables in pairs, in place, the same ones in all columns of a table; called again, puts them back.
    /// Tables of which the program reads text, on the devices or for its result, stay as they are; gives their names.
    ///
    /// # Errors
    /// What is put back and differs from what was loaded, or a failed device call.
    pub(crate) fn swap_rows(&mut self, program: &Program, workers: &[Worker]) -> Result<Vec<String>, Error> {
        // Text of the result is fetched from the files, by the number of the row.
        let fetched = program.plan.result.columns.iter().filter_map(|c| c.fetch.as_deref()?.split_once('.'));
        let fetched: Vec<&str> = fetched.map(|(table, _)| table).collect();
        let mut left: Vec<String> = Vec::new();
        self.swapped = !self.swapped;
        for (watch, worker) in self.watches.iter().zip(workers) {
            let device = worker.device.as_ref();
            for (used, column) in program.columns.iter().zip(&worker.columns) {
                let mut columns = program.columns.iter().zip(&worker.columns);
                let text = columns.any(|(other, column)| other.table == used.table && column.has_text());
                if text || fetched.contains(&used.table.as_str()) {
                    if !left.contains(&used.table) {
                        left.push(used.table.clone());
                    }
                    continue;
                }
                for (width, address) in column.arrays() {
                    let args = [column.rows(), width, address, self.seed];
                    device.launch(watch.module.as_ref(), GUARD.kernels[1], column.rows() / 2, &args)?;
                }
            }
        }
        self.sum_changed(program, workers)?;
        Ok(left)
    }

    /// Reflects the values of columns within ranges, in place; called again, puts them back. `ranges` are by column of the
    /// program, in the units of its representation; a column without one stays as it is, and so do NULLs.
    ///
    /// # Errors
    /// As [`Guard::swap_rows`].
    pub(crate) fn relabel_keys(
        &mut self,
        program: &Program,
        workers: &[Worker],
        ranges: &[Option<RangeInclusive<i64>>],
    ) -> Result<(), Error> {
        self.relabelled = !self.relabelled;
        for (watch, worker) in self.watches.iter().zip(workers) {
            for (column, range) in worker.columns.iter().zip(ranges) {
                let mut arrays = column.arrays();
                let (Some(range), Some((width, values))) = (range, arrays.next()) else { continue };
                let valid = arrays.next().map_or(0, |(_, valid)| valid);
                let [least, most] = [*range.start(), *range.end()].map(i64::cast_unsigned);
                let args = [column.rows(), width, values, valid, least, most];
                worker.device.launch(watch.module.as_ref(), GUARD.kernels[2], column.rows(), &args)?;
            }
        }
        self.sum_changed(program, workers)
    }

    /// Whether columns are not as they were loaded.
    pub(crate) fn has_changed_columns(&self) -> bool {
        self.swapped || self.relabelled
    }

    /// Sums the inputs after they were changed in place, or put back. Waits.
    fn sum_changed(&mut self, program: &Program, workers: &[Worker]) -> Result<(), Error> {
        let changed = self.has_changed_columns();
        for (watch, worker) in self.watches.iter_mut().zip(workers) {
            let inputs = inputs(program, worker);
            watch.inputs = watch.sum_inputs(worker, &inputs, self.seed)?;
            let differs = |at: &usize| !changed && watch.inputs[*at] != watch.loaded[*at];
            if let Some(at) = (0..inputs.len()).find(differs) {
                let name = &inputs[at].name;
                let message = format!("{name} is not what it was after its rows and keys were put back");
                return Err(Error::Execution(message));
            }
        }
        Ok(())
    }
}

impl Watch {
    /// Gives back all but the inputs, and overwrites it.
    fn clear(&mut self, worker: &mut Worker) -> Result<(), DeviceError> {
        (self.rest, self.cells) = (None, None);
        worker.clear();
        worker.device.wipe()
    }

    fn make_cells(&mut self, worker: &Worker, count: usize) -> Result<(), DeviceError> {
        if self.cells.is_none() {
            self.cells = Some(worker.device.alloc(count * SUM_BYTES)?);
        }
        Ok(())
    }

    fn sum_inputs(&mut self, worker: &Worker, inputs: &[Input], seed: u64) -> Result<Vec<u64>, DeviceError> {
        self.make_cells(worker, inputs.len() + 1)?;
        self.sum(worker, seed, inputs.iter().map(|input| vec![input.at.clone()]))
    }

    /// The sum of each list of ranges. Waits.
    fn sum(
        &self,
        worker: &Worker,
        seed: u64,
        lists: impl IntoIterator<Item = Vec<Range<u64>>>,
    ) -> Result<Vec<u64>, DeviceError> {
        let (device, Some(cells)) = (worker.device.as_ref(), self.cells.as_deref()) else {
            return Ok(Vec::new());
        };
        device.fill(cells, Elem::U64, 0, cells.bytes() / SUM_BYTES)?;
        let mut bytes = Vec::new();
        for ranges in lists {
            let cell = cells.address() + bytes.len() as u64;
            for Range { start, end } in ranges {
                let args = [end - start, start, seed, cell];
                // A thread for each word; bytes at the edges are few.
                device.launch(self.module.as_ref(), GUARD.kernels[0], (end - start).div_ceil(8), &args)?;
            }
            bytes.extend([0; SUM_BYTES]);
        }
        device.download(cells, 0, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|sum| u64::from_le_bytes(*sum)).collect())
    }

    /// The device's memory without inputs, buffers, parameters and cells.
    fn rest_of(&self, worker: &Worker, inputs: &[Input]) -> Vec<Range<u64>> {
        let own = worker.memory().chain(self.cells.as_deref());
        // What is behind them is not theirs.
        let own = own.map(|memory| memory.address()..memory.address() + memory.bytes() as u64);
        without(worker.device.extent().ranges, inputs.iter().map(|input| input.at.clone()).chain(own))
    }
}

/// The columns and dictionaries of a program, each with the padding behind it.
fn inputs(program: &Program, worker: &Worker) -> Vec<Input> {
    let columns = program.columns.iter().zip(&worker.columns).flat_map(|(used, column)| {
        column.memory().map(move |memory| (format!("column {}.{}", used.table, used.column), memory))
    });
    let dicts = program.dicts.iter().zip(&worker.dicts).flat_map(|((table, column), dict)| {
        dict.memory().map(move |memory| (format!("the dictionary of {table}.{column}"), memory))
    });
    columns.chain(dicts).map(|(name, memory)| Input { name, at: memory.span() }).collect()
}

/// What is left of `ranges` without `holes`.
fn without(ranges: Vec<Range<u64>>, holes: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut holes: Vec<Range<u64>> = holes.collect();
    holes.sort_by_key(|hole| hole.start);
    let mut left = Vec::new();
    for Range { mut start, end } in ranges {
        for hole in holes.iter().filter(|hole| hole.start < end) {
            if start < hole.start {
                left.push(start..hole.start);
            }
            start = start.max(hole.end);
        }
        if start < end {
            left.push(start..end);
        }
    }
    left
}

/// The buffer behind which padding within an allocation is not what the allocation was started with.
fn changed_padding<'p>(
    program: &'p Program,
    worker: &Worker,
    layout: &Layout,
    poison: Option<u8>,
) -> Result<Option<&'p str>, DeviceError> {
    let paddings: Vec<_> = layout.paddings(poison).collect();
    let mut copies: Vec<Vec<u8>> = paddings.iter().map(|p| vec![0; p.expected.len()]).collect();
    let mut downloads: Vec<Download> = paddings
        .iter()
        .zip(&mut copies)
        .map(|(padding, bytes)| Download {
            memory: worker.slabs.memory(padding.slab),
            offset: padding.offset,
            bytes,
        })
        .collect();
    worker.device.download_all(&mut downloads)?;
    let changed = paddings.iter().zip(&copies).find(|(padding, bytes)| padding.expected != **bytes);
    // The flags are no buffer of the plan's.
    let name = |buffer: Option<usize>| buffer.map_or("flags", |b| program.plan.buffers[b].name.as_str());
    Ok(changed.map(|(padding, _)| name(padding.buffer)))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};

    use super::super::tests::{data, ints, plan, write};
    use super::*;
    use crate::device::{DeviceKind, DeviceSpec, nvrtc, open_devices};
    use crate::session::{Relabelled, Session, SessionConfig};

    const HEADER: &str = r#"
[params.at]
type = "int64"
default = "0"
[inputs.t]
k = "int64 as i16"
[sizes]
one = { value = "1" }
[[buffers]]
name = "total"
type = "i64"
len = "1"
start = "zero"
reduce = "sum"
[[buffers]]
name = "least"
type = "i64"
len = "3"
start = "max"
reduce = "min"
[[phases]]
name = "scan"
over = "t"
on = "partitions"
writes = ["total", "least"]
launches = [{ kernel = "scan", threads = "rows", args = ["rows", "t.k", "params", "total", "least"] }]
[result]
size = "one"
columns = [{ name = "k", type = "int64", from = "total" }]
"#;

    /// Adds up a column, and writes a byte in the way that the parameter says.
    const SOURCE: &str = r#"
extern "C" __global__ void scan(u64 rows, i16* k, const Params* p, i64* total, i64* least) {
  i64 sum = 0;
  DKB_ROWS(i, rows) sum += k[i];
  block_add(total, sum);
  if (p->at == 1) k[0] += 1;
  if (p->at == 2) k[rows] = 1;
  if (p->at == 3) ((i64*)p)[0] = 9;
  if (p->at == 4) least[3] = 1;
  DKB_ROWS(i, rows) if (p->at == 5 && i == 0) ((u8*)total)[256] ^= 1;
}
"#;

    #[test]
    fn what_is_written_outside_buffers_is_named() {
        let dir = data();
        let config =
            SessionConfig { kind: DeviceKind::Host, guard: true, poison: true, ..SessionConfig::default() };
        for (at, word) in [
            (0, None),
            (1, Some("column t.k")),
            (2, Some("column t.k")),
            (3, Some("the parameters")),
            (4, Some("the padding behind buffer `least`")),
            (5, Some("memory outside the declared buffers")),
        ] {
            let session = Session::open(dir.path(), config.clone()).unwrap();
            let mut prepared =
                session.prepare_plan(dkb_kernels::text::parse(&plan(HEADER, SOURCE)).unwrap()).unwrap();
            let sum = (0..10_000).sum::<i64>();
            for _ in 0..3 {
                assert_eq!(ints(&session.execute(&mut prepared, &[]).unwrap().batch, 0), [sum]);
            }
            let params = [("at".to_owned(), at.to_string())];
            match (session.execute(&mut prepared, &params), word) {
                (Ok(execution), None) => assert_eq!(ints(&execution.batch, 0), [sum]),
                (Err(Error::Trespass(what)), Some(word)) => assert!(what.contains(word), "{at}: {what}"),
                (other, _) => panic!("{at}: {:?}", other.map(|e| e.batch)),
            }
        }
    }

    #[test]
    fn nothing_is_kept_where_first_rows_are_found() {
        let dir = data();
        let config = SessionConfig { kind: DeviceKind::Host, guard: true, ..SessionConfig::default() };
        let session = Session::open(dir.path(), config).unwrap();
        let limited = plan(&format!("{HEADER}[finish]\nlimit = 1\n"), SOURCE);
        let mut prepared = session.prepare_plan(dkb_kernels::text::parse(&limited).unwrap()).unwrap();
        session.execute(&mut prepared, &[]).unwrap();
        let worker = &prepared.workers[0];
        let (device, memory) = (worker.device.clone(), &worker.narrower.as_ref().unwrap().memory);
        let mut bytes = vec![7; memory.bytes()];
        device.upload(memory.as_ref(), 0, &bytes).unwrap();
        session.execute(&mut prepared, &[]).unwrap();
        let memory = &prepared.workers[0].narrower.as_ref().unwrap().memory;
        device.download(memory.as_ref(), 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn rows_are_swapped_and_put_back() {
        let dir = data();
        let source = SOURCE.replace("sum += k[i];", "sum += k[i] * i64(i);");
        let config = SessionConfig { kind: DeviceKind::Host, guard: true, ..SessionConfig::default() };
        let session = Session::open(dir.path(), config).unwrap();
        let mut prepared =
            session.prepare_plan(dkb_kernels::text::parse(&plan(HEADER, &source)).unwrap()).unwrap();
        let run = |prepared: &mut _| ints(&session.execute(prepared, &[]).unwrap().batch, 0)[0];
        let first = run(&mut prepared);
        assert_eq!(session.swap_rows(&mut prepared).unwrap(), Vec::<String>::new());
        let swapped = run(&mut prepared);
        session.swap_rows(&mut prepared).unwrap();
        assert_eq!((swapped == first, run(&mut prepared)), (false, first));
    }

    const KEYS: &str = r#"
assumes = ["as_it_was(t.t_key)"]
buffers = [
  { name = "keys_t", type = "i64", len = "rows_t", start = "zero" },
  { name = "keys_u", type = "i64", len = "rows_t", start = "zero" },
  { name = "names", type = "i64", len = "rows_t", start = "zero" },
]
[params.first]
type = "int64"
default = "-1"
[inputs.t]
t_key = "int32 as i16"
t_namekey = "int32 as i16"
[inputs.u]
u_key = "decimal(9,1) as i16 null"
[sizes]
rows_t = { value = "rows(t)" }
[[phases]]
name = "scan_t"
over = "t"
on = "partitions"
writes = ["keys_t", "names"]
launches = [{ kernel = "scan_t", threads = "rows", args = ["rows", "t.t_key", "t.t_namekey", "params", "flags", "keys_t", "names"] }]
[[phases]]
name = "scan_u"
over = "u"
on = "partitions"
writes = ["keys_u"]
launches = [{ kernel = "scan_u", threads = "rows", args = ["rows", "u.u_key", "u.u_key.valid", "keys_u"] }]
[result]
size = "rows_t"
columns = [
  { name = "t", type = "int64", from = "keys_t" },
  { name = "u", type = "int64", from = "keys_u" },
  { name = "names", type = "int64", from = "names" },
]
"#;

    /// Copies keys; NULLs become -1, whatever lies at them.
    const COPY_KEYS: &str = r#"
extern "C" __global__ void scan_t(u64 rows, const i16* key, const i16* name, const Params* p, u32* flags, i64* keys, i64* names) {
  DKB_ROWS(i, rows) {
    keys[i] = key[i];
    names[i] = name[i];
    if (i == 0 && p->first >= 0 && key[i] != p->first) refute(flags, 0);
  }
}
extern "C" __global__ void scan_u(u64 rows, const i16* key, const u8* valid, i64* keys) {
  DKB_ROWS(i, rows) keys[i] = valid[i] ? key[i] : -1;
}
"#;

    #[test]
    fn keys_are_relabelled_alike_within_the_range_of_each_column() {
        let dir = tempfile::tempdir().unwrap();
        let table = |name: &str, columns: Vec<(&str, ArrayRef)>| {
            let batch = RecordBatch::try_from_iter(columns).unwrap();
            write(&dir.path().join(format!("{name}.parquet")), &batch);
        };
        // Common are 5 to 199; zero is a NULL's or none of them.
        let (keys_t, keys_u): (Vec<i32>, Vec<i64>) = ((0..200).collect(), (5..205).collect());
        let of_u = |key: &i64| (key % 7 != 0).then_some(*key);
        table(
            "t",
            vec![
                ("t_key", Arc::new(Int32Array::from(keys_t.clone()))),
                ("t_namekey", Arc::new(Int32Array::from(keys_t.clone()))),
            ],
        );
        table(
            "u",
            vec![
                ("u_key", Arc::new(Int64Array::from_iter(keys_u.iter().map(of_u)))),
                ("u_namekey", Arc::new(StringArray::from_iter_values(keys_u.iter().map(i64::to_string)))),
            ],
        );
        let config =
            SessionConfig { kind: DeviceKind::Host, guard: true, poison: true, ..SessionConfig::default() };
        let session = Session::open(dir.path(), config).unwrap();
        let text = plan(KEYS, COPY_KEYS);
        let mut prepared = session.prepare_plan(dkb_kernels::text::parse(&text).unwrap()).unwrap();
        let check = |prepared: &mut _, label: &dyn Fn(i64) -> i64| {
            let batch = session.execute(prepared, &[]).unwrap().batch;
            let t: Vec<i64> = keys_t.iter().map(|key| label((*key).into())).collect();
            let u: Vec<i64> = keys_u.iter().map(|key| of_u(key).map_or(-1, |key| 10 * label(key))).collect();
            let names: Vec<i64> = keys_t.iter().map(|key| (*key).into()).collect();
            assert_eq!([0, 1, 2].map(|column| ints(&batch, column)), [t, u, names]);
        };
        let reflected = |key: i64| if (5..200).contains(&key) { 204 - key } else { key };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = Relabelled { keys: set(&["key"]), left: set(&["namekey"]) };
        check(&mut prepared, &|key| key);
        assert_eq!(session.relabel_keys(&mut prepared).unwrap(), expected);
        check(&mut prepared, &reflected);
        session.relabel_keys(&mut prepared).unwrap();
        check(&mut prepared, &|key| key);

        // Nothing is planned anew, and so loaded, over keys that are relabelled.
        let first = [("first".to_owned(), "0".to_owned())];
        session.swap_rows(&mut prepared).unwrap();
        session.relabel_keys(&mut prepared).unwrap();
        let refuted = session.execute(&mut prepared, &first);
        assert!(matches!(refuted, Err(Error::Assumption { index: 0, .. })), "{:?}", refuted.map(|e| e.batch));
        session.swap_rows(&mut prepared).unwrap();
        check(&mut prepared, &reflected);
        session.relabel_keys(&mut prepared).unwrap();
        check(&mut prepared, &|key| key);
        session.execute(&mut prepared, &first).unwrap();
    }

    #[test]
    fn values_of_any_width_are_reflected() {
        let spec = DeviceSpec { gpus: Some(1), ..DeviceSpec::default() };
        let device = open_devices(DeviceKind::Host, &spec).unwrap().remove(0);
        let module = device.compile_builtin(&GUARD).unwrap();
        for (all, least, most) in [
            (-128..128, -100, 90),
            (-128..128, -128, 127),
            (-128..128, 5, 7),
            (0..256, 3, 250),
            (0..256, 0, 255),
        ] {
            let values: Vec<i128> = all.collect();
            let between = |value: &i128| (least..=most).contains(value);
            let reflected: Vec<i128> = values
                .iter()
                .map(|value| if between(value) { least + most - *value } else { *value })
                .collect();
            for width in [1, 2, 4, 8, 16] {
                let bytes = |values: &[i128]| -> Vec<u8> {
                    values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
                };
                let mut found = bytes(&values);
                let memory = device.alloc(found.len()).unwrap();
                device.upload(memory.as_ref(), 0, &found).unwrap();
                let rows = values.len() as u64;
                let bounds = [least, most].map(|bound| bound as u64);
                let args = [rows, width as u64, memory.address(), 0, bounds[0], bounds[1]];
                device.launch(module.as_ref(), GUARD.kernels[2], rows, &args).unwrap();
                device.download(memory.as_ref(), 0, &mut found).unwrap();
                assert_eq!(found, bytes(&reflected), "{least} to {most}, {width} bytes");
            }
        }
    }

    #[test]
    fn ranges_without_holes() {
        let holes = [180..190, 110..130, 125..140, 190..200, 0..5];
        let left = without(vec![100..200, 300..400], holes.into_iter());
        assert_eq!(left, [100..110, 140..180, 300..400]);
        assert_eq!(without(vec![100..200, 210..220], [50..205, 206..250].into_iter()), []);
    }

    #[test]
    fn the_kernels_compile_for_a_gpu() {
        for builtin in [GUARD, dkb_kernels::SCRUB] {
            match nvrtc::compile_cubin(&dkb_kernels::cuda_builtin_unit(&builtin), "sm_90") {
                Ok(image) => assert!(image.starts_with(b"\x7fELF")),
                Err(DeviceError::Unavailable(why)) => eprintln!("skipped: {why}"),
                Err(e) => panic!("{e}"),
            }
        }
    }
}
