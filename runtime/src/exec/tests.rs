//! Small hand-written plans on one, two and four host devices.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema};
use arrow::record_batch::RecordBatch;
use dkb_kernels::text;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;

use super::Error;
use crate::device::{DeviceKind, DeviceSpec};
use crate::session::{Execution, Mode, Session, SessionConfig};

const ROWS: i64 = 10_000;

/// Table `t`: `k` = row number, `v` = k % 100 - 50 and NULL where k % 7 = 0, `s` one of five texts, `u`
/// unique text. Table `none` is empty.
pub(super) fn data() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let k = Int64Array::from_iter_values(0..ROWS);
    let v = Int32Array::from_iter((0..ROWS).map(value));
    let s = StringArray::from_iter_values((0..ROWS).map(|k| NAMES[(k % 5) as usize]));
    let u = StringArray::from_iter_values((0..ROWS).map(|k| format!("text {k}")));
    let columns: [(&str, DataType, bool, ArrayRef); 4] = [
        ("k", DataType::Int64, false, Arc::new(k)),
        ("v", DataType::Int32, true, Arc::new(v)),
        ("s", DataType::Utf8, false, Arc::new(s)),
        ("u", DataType::Utf8, false, Arc::new(u)),
    ];
    let schema = Schema::new(
        columns.iter().map(|(n, t, null, _)| Field::new(*n, t.clone(), *null)).collect::<Vec<_>>(),
    );
    let arrays = columns.iter().map(|(_, _, _, a)| a.clone()).collect();
    let batch = RecordBatch::try_new(Arc::new(schema), arrays).unwrap();
    write(&dir.path().join("t.parquet"), &batch);
    write(&dir.path().join("none.parquet"), &batch.slice(0, 0));
    dir
}

const NAMES: [&str; 5] = ["delta", "alpha", "echo", "bravo", "charlie"];

fn value(k: i64) -> Option<i32> {
    (k % 7 != 0).then_some((k % 100 - 50) as i32)
}

pub(super) fn write(path: &Path, batch: &RecordBatch) {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1000)).build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

fn config(devices: usize) -> SessionConfig {
    SessionConfig {
        kind: DeviceKind::Host,
        spec: DeviceSpec { gpus: Some(devices), ..DeviceSpec::default() },
        poison: true,
        ..SessionConfig::default()
    }
}

/// Configurations that must all give the same answer.
fn configs() -> Vec<SessionConfig> {
    let mut all = Vec::new();
    for devices in [1, 2, 3, 4] {
        let plain = config(devices);
        all.push(SessionConfig { chunk_bytes: Some(20_000), ..plain.clone() });
        all.push(SessionConfig { chunk_bytes: Some(30_000), mode: Mode::Stream, ..plain.clone() });
        all.push(SessionConfig { shrink: Some(1 << 40), ..plain.clone() });
        all.push(SessionConfig { shards: Some(3), shrink: Some(50), ..plain.clone() });
        all.push(SessionConfig { shards: Some(3), mode: Mode::Stream, ..plain.clone() });
        all.push(plain);
    }
    all
}

fn run(dir: &TempDir, config: SessionConfig, plan: &str) -> Result<Execution, Error> {
    let session = Session::open(dir.path(), config)?;
    let mut prepared = session.prepare_plan(text::parse(plan).unwrap())?;
    session.load(&mut prepared)?;
    let first = session.execute(&mut prepared, &[])?;
    let second = session.execute(&mut prepared, &[])?;
    assert_eq!(first.batch, second.batch, "a second run gives another answer");
    assert_eq!(first.reruns, second.reruns, "sizes were kept between runs");
    Ok(first)
}

fn everywhere(plan: &str, check: impl Fn(&RecordBatch)) {
    let dir = data();
    for config in configs() {
        let execution = run(&dir, config.clone(), plan).unwrap_or_else(|e| panic!("{config:?}: {e}"));
        check(&execution.batch);
    }
}

pub(super) fn ints(batch: &RecordBatch, column: usize) -> Vec<i64> {
    batch.column(column).as_primitive::<Int64Type>().values().to_vec()
}

pub(super) fn plan(header: &str, source: &str) -> String {
    format!(
        "/*--- kernel plan 1\nsql = \"\"\nframework = \"cuda\"\nlevel = \"full\"\n{header}---*/\n#include \"dkb.cuh\"\n{source}"
    )
}

const SUM: &str = r#"
[inputs.t]
k = "int64 as i16"
v = "int32 as i8 null"
[sizes]
one = { value = "1" }
[[buffers]]
name = "total"
type = "i128"
len = "one"
start = "zero"
reduce = "sum"
[[buffers]]
name = "least"
type = "i64"
len = "one"
start = "max"
reduce = "min"
[[phases]]
name = "scan"
over = "t"
on = "partitions"
writes = ["total", "least"]
launches = [{ kernel = "scan", threads = "rows", args = ["rows", "first_row", "t.k", "t.v", "t.v.valid", "total", "least"] }]
[result]
size = "one"
columns = [
  { name = "total", type = "decimal(38,2)", from = "total" },
  { name = "least", type = "int64", from = "least" },
]
"#;

const SUM_SOURCE: &str = r#"
extern "C" __global__ void scan(u64 rows, u64 first, const i16* k, const i8* v, const u8* valid, i128* total, i64* least) {
  i64 sum = 0, low = 1000;
  DKB_ROWS(i, rows) {
    if (u64(k[i]) != first + i) sum += 1000000;
    if (valid[i]) { sum += v[i]; low = v[i] < low ? v[i] : low; }
  }
  block_add(total, i128(sum));
  block_min(least, low);
}
"#;

#[test]
fn a_global_sum_has_one_row() {
    everywhere(&plan(SUM, SUM_SOURCE), |batch| {
        assert_eq!(batch.num_rows(), 1);
        let total: i64 = (0..ROWS).filter_map(value).map(i64::from).sum();
        let decimal = batch.column(0).as_primitive::<arrow::datatypes::Decimal128Type>();
        assert_eq!((decimal.value(0), decimal.scale()), (total.into(), 2));
        assert_eq!(ints(batch, 1), [-50]);
    });
}

#[test]
fn an_empty_table_leaves_start_values() {
    let header = SUM.replace("inputs.t]", "inputs.none]").replace("over = \"t\"", "over = \"none\"");
    let header = header.replace("\"t.", "\"none.");
    everywhere(&plan(&header, SUM_SOURCE), |batch| assert_eq!(ints(batch, 1), [i64::MAX]));
}

#[test]
fn rows_per_device_and_launches_are_counted() {
    let dir = data();
    let execution = run(&dir, config(4), &plan(SUM, SUM_SOURCE)).unwrap();
    assert_eq!(execution.rows_per_device.iter().sum::<u64>(), ROWS as u64);
    assert!(execution.rows_per_device.iter().all(|rows| *rows > 0));
    assert_eq!((execution.launches, execution.reruns, execution.finish_rows), (4, 0, 1));
}

/// What a plan must read at least, and what its launches were given.
fn traffic(config: SessionConfig, plan: &str) -> (u64, u64) {
    let dir = data();
    let session = Session::open(dir.path(), config).unwrap();
    let mut prepared = session.prepare_plan(text::parse(plan).unwrap()).unwrap();
    let execution = session.execute(&mut prepared, &[]).unwrap();
    (session.floor_bytes(&prepared).unwrap(), execution.kernel_bytes)
}

#[test]
fn bytes_are_rows_times_widths_and_buffers_once_a_launch() {
    let sum = plan(SUM, SUM_SOURCE);
    let streamed = SessionConfig { mode: Mode::Stream, chunk_bytes: Some(30_000), ..config(1) };
    // `k` as i16, `v` as i8 with validity; `total` and `least`.
    let (columns, buffers) = (ROWS as u64 * (2 + 1 + 1), 16 + 8);
    assert_eq!(traffic(config(1), &sum), (columns, columns + buffers));
    assert_eq!(traffic(streamed, &sum), (columns, columns + buffers));
    assert_eq!(traffic(config(2), &sum), (columns, columns + 2 * buffers));
    // `k` as i32, `s` as codes, `u` as text.
    let rows = ROWS as u64;
    let text = (0..ROWS).map(|k| format!("text {k}").len() as u64).sum::<u64>();
    let (names, found) = (NAMES.concat().len() as u64, rows / 5 * 2);
    let entries = (NAMES.len() as u64 + 1) * 4 + names + 5;
    let collect = rows * (4 + 1) + 5 + 8 + found * 4;
    let build = 8 + found * 4 + rows * 4;
    let probe = rows * (4 + 1 + 4) + text + rows * 4 + 8 + found * (8 + 1 + 8);
    let expected = (rows * (4 + 1 + 4) + text, entries + collect + build + probe);
    assert_eq!(traffic(config(1), &plan(JOIN, JOIN_SOURCE)), expected);
}

/// Collects keys of one name, replicates them, and looks every row up in them.
const JOIN: &str = r#"
[inputs.t]
k = "int64 as i32"
s = "dict<u8>"
u = "utf8"
[sizes]
names = { value = "dict(t.s)" }
kept = { value = "rows(t) / 4", counter = "kept_n" }
found = { value = "rows(t)", counter = "found_n" }
[[buffers]]
name = "wanted"
type = "u8"
len = "names"
start = "poison"
[[buffers]]
name = "kept_n"
type = "u64"
len = "1"
start = "zero"
reduce = "sum"
[[buffers]]
name = "kept_k"
type = "i32"
len = "kept"
start = "poison"
reduce = "concat"
[[buffers]]
name = "marks"
type = "u32"
len = "max(t.k) + 1"
start = "zero"
[[buffers]]
name = "found_n"
type = "u64"
len = "1"
start = "zero"
[[buffers]]
name = "found_k"
type = "i64"
len = "found"
start = "poison"
[[buffers]]
name = "found_s"
type = "u8"
len = "found"
start = "poison"
[[buffers]]
name = "found_len"
type = "i64"
len = "found"
start = "poison"
[[phases]]
name = "entries"
over = "dict(t.s)"
on = "each"
launches = [{ kernel = "entries", threads = "rows", args = ["rows", "dict(t.s).offsets", "dict(t.s).bytes", "wanted"] }]
[[phases]]
name = "collect"
over = "t"
on = "partitions"
writes = ["kept_n", "kept_k"]
launches = [{ kernel = "collect", threads = "rows", args = ["rows", "t.k", "t.s", "wanted", "len(kept)", "kept_n", "kept_k"] }]
[[phases]]
name = "build"
over = "rows(kept)"
on = "each"
launches = [{ kernel = "build", threads = "rows", args = ["rows", "kept_n", "kept_k", "marks"] }]
[[phases]]
name = "probe"
over = "t"
on = "partitions"
launches = [{ kernel = "probe", threads = "rows", args = ["rows", "t.k", "t.s", "t.u.offsets", "t.u.bytes", "marks", "len(found)", "found_n", "found_k", "found_s", "found_len"] }]
[result]
size = "found"
columns = [
  { name = "k", type = "int64", from = "found_k" },
  { name = "s", type = "utf8", from = "found_s", dict = "t.s" },
  { name = "u", type = "utf8", from = "found_k", fetch = "t.u" },
  { name = "len", type = "int64", from = "found_len" },
]
[finish]
order_by = [{ column = 1, descending = true }, { column = 0 }]
"#;

const JOIN_SOURCE: &str = r#"
extern "C" __global__ void entries(u64 rows, const u32* offsets, const u8* bytes, u8* wanted) {
  DKB_ROWS(i, rows) wanted[i] = bytes[offsets[i]] == 'b' || bytes[offsets[i]] == 'd';
}
extern "C" __global__ void collect(u64 rows, const i32* k, const u8* s, const u8* wanted, u64 room, u64* n, i32* out) {
  DKB_ROWS(i, rows) if (wanted[s[i]]) {
    u64 at = atomic_add(n, u64(1));
    if (at < room) out[at] = k[i];
  }
}
extern "C" __global__ void build(u64 rows, const u64* n, const i32* k, u32* marks) {
  DKB_ROWS(i, rows) if (i < *n) marks[k[i]] = 1;
}
extern "C" __global__ void probe(u64 rows, const i32* k, const u8* s, const u32* offsets, const u8* bytes, const u32* marks,
                                 u64 room, u64* n, i64* out_k, u8* out_s, i64* out_len) {
  DKB_ROWS(i, rows) if (marks[k[i]]) {
    u64 at = atomic_add(n, u64(1));
    if (at < room) {
      out_k[at] = k[i];
      out_s[at] = s[i];
      out_len[at] = bytes[offsets[i]] == 't' ? offsets[i + 1] - offsets[i] : -1;
    }
  }
}
"#;

#[test]
fn concat_replicates_and_result_rows_stay_apart() {
    everywhere(&plan(JOIN, JOIN_SOURCE), |batch| {
        let deltas = (0..ROWS).filter(|k| k % 5 == 0);
        let expected: Vec<i64> = deltas.chain((0..ROWS).filter(|k| k % 5 == 3)).collect();
        assert_eq!(ints(batch, 0), expected);
        for (row, k) in expected.iter().enumerate() {
            assert_eq!(batch.column(1).as_string::<i32>().value(row), NAMES[(k % 5) as usize]);
            assert_eq!(batch.column(2).as_string::<i32>().value(row), format!("text {k}"));
            assert_eq!(
                batch.column(3).as_primitive::<Int64Type>().value(row),
                format!("text {k}").len() as i64
            );
        }
    });
}

#[test]
fn finish_limits_by_fetched_text_and_drops_columns() {
    let finish = "order_by = [{ column = 2, descending = true }]\nlimit = 2\noffset = 1\nkeep = 3\n";
    let (head, _) = JOIN.split_once("order_by").unwrap();
    everywhere(&plan(&format!("{head}{finish}"), JOIN_SOURCE), |batch| {
        assert_eq!((batch.num_columns(), ints(batch, 0)), (3, vec![9995, 9993]));
    });
}

/// Counts rows by `v` in a small hash table of (key + 1000, count) pairs, merged or sharded.
const GROUP: &str = r#"
[inputs.t]
v = "int32 as i32 null"
[sizes]
slots = { value = "2000", counter = "groups", pow2 = true }
out = { value = "slots", counter = "out_n" }
[[buffers]]
name = "groups"
type = "u64"
len = "1"
start = "zero"
reduce = "merge"
[[buffers]]
name = "keys"
type = "u64"
len = "slots"
start = "zero"
reduce = "merge"
[[buffers]]
name = "counts"
type = "u64"
len = "slots"
start = "zero"
reduce = "merge"
[[buffers]]
name = "out_n"
type = "u64"
len = "1"
start = "zero"
[[buffers]]
name = "out_v"
type = "i32"
len = "out"
start = "poison"
[[buffers]]
name = "out_count"
type = "u64"
len = "out"
start = "poison"
[[buffers]]
name = "out_valid"
type = "u8"
len = "out"
start = "poison"
[[phases]]
name = "group"
over = "t"
on = "partitions"
writes = ["groups", "keys", "counts"]
launches = [{ kernel = "group", threads = "rows", args = ["rows", "t.v", "t.v.valid", "part", "parts", "len(slots)", "groups", "keys", "counts"] }]
merge = { kernel = "fold", threads = "slots", args = ["len(slots)", "peer.keys", "peer.counts", "groups", "keys", "counts"] }
[[phases]]
name = "out"
over = "rows(slots)"
on = "each"
launches = [{ kernel = "out", threads = "rows", args = ["rows", "keys", "counts", "len(out)", "out_n", "out_v", "out_count", "out_valid"] }]
[shard]
first = "group"
last = "out"
buffers = ["groups", "keys", "counts"]
[result]
size = "out"
columns = [
  { name = "v", type = "int32", nullable = true, from = "out_v", valid = "out_valid" },
  { name = "n", type = "int64", from = "out_count" },
]
[finish]
order_by = [{ column = 0, nulls_first = true }]
"#;

const GROUP_SOURCE: &str = r#"
DKB_FN void bump(u64 key, u64 by, u64 room, u64* groups, u64* keys, u64* counts) {
  for (u64 step = 0; step < room; ++step) {
    u64 at = (key * 11400714819323198485ull + step) & (room - 1);
    u64 seen = atomic_cas(&keys[at], u64(0), key);
    if (seen == 0) atomic_add(groups, u64(1));
    if (seen == 0 || seen == key) { atomic_add(&counts[at], by); return; }
  }
  atomic_add(groups, u64(room + 1));
}
extern "C" __global__ void group(u64 rows, const i32* v, const u8* valid, u64 part, u64 parts, u64 room, u64* groups, u64* keys, u64* counts) {
  DKB_ROWS(i, rows) {
    u64 key = valid[i] ? u64(v[i] + 1000) : 1;
    if (key % parts == part) bump(key, 1, room, groups, keys, counts);
  }
}
extern "C" __global__ void fold(u64 room, const u64* peer_keys, const u64* peer_counts, u64* groups, u64* keys, u64* counts) {
  DKB_ROWS(i, room) if (peer_keys[i] != 0) bump(peer_keys[i], peer_counts[i], room, groups, keys, counts);
}
extern "C" __global__ void out(u64 rows, const u64* keys, const u64* counts, u64 room, u64* n, i32* v, u64* count, u8* valid) {
  DKB_ROWS(i, rows) if (keys[i] != 0) {
    u64 at = atomic_add(n, u64(1));
    if (at < room) { v[at] = i32(keys[i]) - 1000; valid[at] = keys[i] != 1; count[at] = counts[i]; }
  }
}
"#;

#[test]
fn merge_and_shards_group_exactly() {
    everywhere(&plan(GROUP, GROUP_SOURCE), |batch| {
        let v = batch.column(0).as_primitive::<Int32Type>();
        let mut expected = vec![(None, (0..ROWS).filter(|k| value(*k).is_none()).count() as i64)];
        expected
            .extend((-50..50).map(|v| (Some(v), (0..ROWS).filter(|k| value(*k) == Some(v)).count() as i64)));
        let got: Vec<(Option<i32>, i64)> = ints(batch, 1)
            .into_iter()
            .enumerate()
            .map(|(i, n)| (v.is_valid(i).then(|| v.value(i)), n))
            .collect();
        assert_eq!(got, expected);
    });
}

fn tight(mut config: SessionConfig, memory_bytes: u64) -> SessionConfig {
    config.spec.memory_bytes = Some(memory_bytes);
    config
}

#[test]
fn shrunk_sizes_cost_reruns_and_parts_are_reported() {
    let dir = data();
    let plan = plan(GROUP, GROUP_SOURCE);
    let shrunk = run(&dir, SessionConfig { shrink: Some(4000), ..config(4) }, &plan).unwrap();
    assert!(shrunk.reruns > 0);
    let roomy = run(&dir, config(4), &plan).unwrap();
    assert_eq!((roomy.reruns, roomy.parts), (0, 1));
    let forced = run(&dir, SessionConfig { shards: Some(5), ..config(2) }, &plan).unwrap();
    assert_eq!(forced.parts, 5);
    let tight = tight(config(1), 100_000);
    assert!(run(&dir, tight, &plan).unwrap().parts > 1);
}

#[test]
fn state_that_outgrows_memory_is_divided() {
    let plan = plan(GROUP, GROUP_SOURCE);
    for devices in [1, 2] {
        let streamed = SessionConfig { mode: Mode::Stream, ..config(devices) };
        let small = tight(SessionConfig { shrink: Some(4000), ..streamed }, 90_000);
        let execution = run(&data(), small, &plan).unwrap();
        assert_eq!(execution.batch.num_rows(), 101);
        assert!(execution.parts > 1);
    }
}

#[test]
fn append_counters_need_one_rerun() {
    let dir = data();
    let execution =
        run(&dir, SessionConfig { shrink: Some(1000), ..config(2) }, &plan(JOIN, JOIN_SOURCE)).unwrap();
    assert!((1..=2).contains(&execution.reruns), "{}", execution.reruns);
}

fn flagging(body: &str) -> Result<Execution, Error> {
    let header = SUM.replace("\"t.v.valid\", ", "\"t.v.valid\", \"flags\", ");
    let source = format!(
        "extern \"C\" __global__ void scan(u64 rows, u64 first, const i16* k, const i8* v, const u8* valid, u32* flags, \
         i128* total, i64* least) {{ {body} }}"
    );
    run(&data(), config(2), &plan(&format!("assumes = [\"x\"]\n{header}"), &source))
}

#[test]
fn flags_become_errors() {
    for (code, expected) in [(1, "decimal overflow"), (2, "division by zero"), (3, "a scalar subquery")] {
        let error = flagging(&format!("if (first > 0) flags[1] = {code};")).unwrap_err();
        assert!(matches!(&error, Error::Data(m) if m.starts_with(expected)), "{error}");
    }
    // The plan's SQL is empty, so that it cannot be planned anew.
    let error = flagging("atomic_or(flags, 1u);").unwrap_err();
    assert!(matches!(error, Error::Query(_) | Error::Unsupported(_)), "{error}");
    let error = flagging("atomic_or(flags, 2u);").unwrap_err();
    assert!(error.to_string().contains("assumption 1"), "{error}");
}

#[test]
fn a_size_that_never_suffices_is_an_error() {
    let header = SUM.replace(
        "one = { value = \"1\" }",
        "one = { value = \"1\" }\nn = { value = \"1\", counter = \"c\" }",
    );
    let buffer = "[[buffers]]\nname = \"c\"\ntype = \"u64\"\nlen = \"1\"\nstart = \"zero\"\n[[phases]]";
    let header = header
        .replace("[[phases]]", buffer)
        .replace("\"rows\", \"first", "\"len(n)\", \"c\", \"rows\", \"first");
    let source =
        SUM_SOURCE.replace("scan(", "scan(u64 n, u64* c, ").replace("i64 sum = 0", "*c = n + 1; i64 sum = 0");
    let error = run(&data(), config(1), &plan(&header, &source)).unwrap_err();
    assert!(error.to_string().contains("size `n` is still too small after 20 reruns"), "{error}");
}

#[test]
fn plans_that_do_not_fit_the_data_are_refused() {
    let dir = data();
    let other = plan(&SUM.replace("k = \"int64", "x = \"int64").replace("\"t.k\"", "\"t.x\""), SUM_SOURCE);
    let error = run(&dir, config(1), &other).unwrap_err();
    assert_eq!(error.to_string(), "the plan is not valid: inputs.t.x: table `t` has no column `x`");
    let error = run(&dir, config(1), &plan(&JOIN.replace("fetch = \"t.u\"", "fetch = \"w.u\""), JOIN_SOURCE))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the plan is not valid: result.columns[2].fetch: the data set has no table `w`"
    );
}
