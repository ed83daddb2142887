//! The primitives of `dkb.cuh` against plain Rust, in hand-written plans on one device and on three, at sizes
//! around the borders of blocks.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Date32Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::{DatePart, date_part};
use arrow::datatypes::{Decimal128Type, Float64Type, Int32Type, Int64Type};
use dkb_kernels::text;
use dkb_runtime::exec::Error;
use dkb_runtime::session::{Session, SessionConfig};
use dkb_tests::{host_session, tables};
use tempfile::TempDir;

const SIZES: [usize; 6] = [0, 1, 255, 256, 257, 100_000];
const DEVICES: [usize; 2] = [1, 3];

/// Table `t` in memory and as a file: `id` is the row number, `v` lies in -500..500, `g` in 0..5, `d` is any
/// day, `s` is text of every kind.
struct Table {
    dir: TempDir,
    v: Vec<i64>,
    g: Vec<i32>,
    d: Vec<i32>,
    s: Vec<String>,
}

impl Table {
    fn new(rows: usize) -> Table {
        let mix = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let v: Vec<i64> = (0..rows).map(|i| (mix(i) % 1000) as i64 - 500).collect();
        let g: Vec<i32> = (0..rows).map(|i| (mix(i) / 1000 % 5) as i32).collect();
        let d: Vec<i32> = (0..rows).map(|i| (mix(i) % 1_600_000) as i32 - 800_000).collect();
        let words = tables::WORDS;
        let s: Vec<String> = (0..rows)
            .map(|i| match mix(i) as usize % 3 {
                0 => words[mix(i) as usize / 3 % words.len()].to_owned(),
                1 => format!("{}{}", words[mix(i) as usize / 3 % words.len()], i % 100),
                _ => format!("{} ß {}", i % 7, words[i % words.len()]),
            })
            .collect();
        let dir = tempfile::tempdir().expect("a temporary folder");
        let columns: [(&str, ArrayRef, bool); 5] = [
            ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64)), false),
            ("v", Arc::new(Int64Array::from(v.clone())), false),
            ("g", Arc::new(Int32Array::from(g.clone())), false),
            ("d", Arc::new(Date32Array::from(d.clone())), false),
            ("s", Arc::new(StringArray::from(s.clone())), false),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("equal lengths");
        tables::write_batch(dir.path(), "t", &batch, 10_000);
        Table { dir, v, g, d, s }
    }

    fn session(&self, devices: usize) -> Session {
        host_session(self.dir.path(), devices, SessionConfig { poison: true, ..SessionConfig::default() })
    }
}

/// A buffer: name, element type, length, start value, reduce.
type Buffer<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);
/// A result column: name, SQL type, buffer.
type Column<'a> = (&'a str, &'a str, &'a str);

/// A plan file over all columns of `t`.
fn plan(
    head: &str,
    sizes: &str,
    buffers: &[Buffer<'_>],
    phases: &str,
    size: &str,
    columns: &[Column<'_>],
    source: &str,
) -> String {
    let mut text =
        format!("/*--- kernel plan 1\nsql = \"\"\nframework = \"cuda\"\nlevel = \"full\"\n{head}\n");
    text += "[inputs.t]\nid = \"int64 as i64\"\nv = \"int64 as i64\"\ng = \"int32 as i32\"\nd = \"date as i32\"\ns = \"utf8\"\n";
    let _ = writeln!(text, "[sizes]\n{sizes}");
    for (name, ty, len, start, reduce) in buffers {
        let _ = writeln!(
            text,
            "[[buffers]]\nname = \"{name}\"\ntype = \"{ty}\"\nlen = \"{len}\"\nstart = \"{start}\"\nreduce = \"{reduce}\""
        );
    }
    let _ = writeln!(text, "{phases}\n[result]\nsize = \"{size}\"\ncolumns = [");
    for (name, ty, from) in columns {
        let _ = writeln!(text, "  {{ name = \"{name}\", type = \"{ty}\", from = \"{from}\" }},");
    }
    format!("{text}]\n[finish]\norder_by = [{{ column = 0 }}]\n---*/\n#include \"dkb.cuh\"\n{source}")
}

fn run(session: &Session, plan: &str, params: &[(&str, &str)]) -> Result<RecordBatch, Error> {
    let parsed = text::parse(plan).unwrap_or_else(|e| panic!("{e}\n{plan}"));
    let mut prepared = session.prepare_plan(parsed)?;
    let params: Vec<_> = params.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    session.execute(&mut prepared, &params).map(|execution| execution.batch)
}

/// Runs a plan at every size on every number of devices.
fn everywhere(plan: &str, check: impl Fn(&Table, &RecordBatch)) {
    for rows in SIZES {
        let table = Table::new(rows);
        for devices in DEVICES {
            println!("{rows} rows, {devices} devices");
            let batch = run(&table.session(devices), plan, &[]).unwrap_or_else(|e| panic!("{e}"));
            check(&table, &batch);
        }
    }
}

/// A plan that computes, for every row, the columns of `outputs` (name, element, SQL type) by `body`, which
/// assigns `name[at]`. The first result column is `id`.
fn each_row(params: &str, outputs: &[(&str, &str, &str)], body: &str) -> String {
    let mut buffers = vec![("n", "u64", "1", "zero", "none"), ("out_id", "i64", "out", "poison", "none")];
    buffers.extend(outputs.iter().map(|(name, ty, _)| (*name, *ty, "out", "poison", "none")));
    let mut columns = vec![("id", "int64", "out_id")];
    columns.extend(outputs.iter().map(|(name, _, sql)| (*name, *sql, *name)));
    let (mut args, mut fields) = (String::new(), String::new());
    for (name, ty, _) in outputs {
        let _ = write!(args, ", \"{name}\"");
        let _ = write!(fields, ", {ty}* {name}");
    }
    let phases = format!(
        "[[phases]]\nname = \"map\"\nover = \"t\"\non = \"partitions\"\nlaunches = [{{ kernel = \"map\", threads = \
         \"rows\", args = [\"rows\", \"t.id\", \"t.v\", \"t.g\", \"t.d\", \"t.s.offsets\", \"t.s.bytes\", \"params\", \
         \"flags\", \"len(out)\", \"n\", \"out_id\"{args}] }}]"
    );
    let source = format!(
        "extern \"C\" __global__ void map(u64 rows, const i64* id, const i64* v, const i32* g, const i32* d, \
         const u32* offsets, const u8* bytes, const Params* p, u32* flags, u64 room, u64* n, i64* out_id{fields}) {{\n\
         \x20 DKB_ROWS(i, rows) {{\n    u64 at = append(n);\n    if (at >= room) continue;\n    out_id[at] = id[i];\n\
         \x20   Str s = text_at(offsets, bytes, i);\n    {body}\n  }}\n}}\n"
    );
    plan(
        params,
        "out = { value = \"rows(t) / 3\", counter = \"n\" }",
        &buffers,
        &phases,
        "out",
        &columns,
        &source,
    )
}

fn ints(batch: &RecordBatch, column: usize) -> Vec<i64> {
    batch.column(column).as_primitive::<Int64Type>().values().to_vec()
}

fn decimals(batch: &RecordBatch, column: usize) -> Vec<i128> {
    batch.column(column).as_primitive::<Decimal128Type>().values().to_vec()
}

#[test]
fn folds_of_a_block() {
    let buffers = [
        ("wide", "i128", "one", "zero", "sum"),
        ("sum", "i64", "one", "zero", "sum"),
        ("count", "u64", "one", "zero", "sum"),
        ("real", "f64", "one", "zero", "sum"),
        ("low", "i64", "one", "max", "min"),
        ("high", "i64", "one", "min", "max"),
        ("seen", "u32", "one", "zero", "or"),
        ("last", "i32", "one", "min", "max"),
    ];
    let columns = [
        ("wide", "decimal(38,0)", "wide"),
        ("sum", "int64", "sum"),
        ("count", "int64", "count"),
        ("real", "float64", "real"),
        ("low", "int64", "low"),
        ("high", "int64", "high"),
        ("seen", "int32", "seen"),
        ("last", "int32", "last"),
    ];
    let phases = r#"[[phases]]
name = "scan"
over = "t"
on = "partitions"
writes = ["wide", "sum", "count", "real", "low", "high", "seen", "last"]
launches = [{ kernel = "scan", threads = "rows", args = [
  "rows", "t.v", "t.g", "wide", "sum", "count", "real", "low", "high", "seen", "last"
] }]"#;
    let source = r#"
extern "C" __global__ void scan(u64 rows, const i64* v, const i32* g, i128* wide, i64* sum, u64* count, f64* real,
                                i64* low, i64* high, u32* seen, i32* last) {
  i128 w = 0;
  i64 s = 0, lo = i64(~0ull >> 1), hi = -lo - 1;
  u64 n = 0;
  f64 r = 0;
  DKB_ROWS(i, rows) {
    w += i128(v[i]) * 1000000000000000000ll * 1000000;
    s += v[i];
    n += 1;
    r += v[i] * 0.25;
    lo = v[i] < lo ? v[i] : lo;
    hi = v[i] > hi ? v[i] : hi;
    atomic_or(seen, 1u << g[i]);
    atomic_max(last, g[i]);
  }
  block_add(wide, w);
  block_add(sum, s);
  block_add(count, n);
  block_add(real, r);
  block_min(low, lo);
  block_max(high, hi);
}
"#;
    everywhere(
        &plan("", "one = { value = \"1\" }", &buffers, phases, "one", &columns, source),
        |table, batch| {
            let sum: i64 = table.v.iter().sum();
            assert_eq!(batch.num_rows(), 1);
            assert_eq!(decimals(batch, 0), [i128::from(sum) * 10i128.pow(24)]);
            assert_eq!(ints(batch, 1), [sum]);
            assert_eq!(ints(batch, 2), [table.v.len() as i64]);
            assert_eq!(batch.column(3).as_primitive::<Float64Type>().value(0), sum as f64 * 0.25);
            assert_eq!(ints(batch, 4), [table.v.iter().copied().min().unwrap_or(i64::MAX)]);
            assert_eq!(ints(batch, 5), [table.v.iter().copied().max().unwrap_or(i64::MIN)]);
            let int = |column| batch.column(column).as_primitive::<Int32Type>().value(0);
            assert_eq!(int(6), table.g.iter().fold(0, |seen, g| seen | 1 << g));
            assert_eq!(int(7), table.g.iter().copied().max().unwrap_or(i32::MIN));
        },
    );
}

#[test]
fn sums_of_few_groups() {
    let buffers = [("groups", "i64", "five", "zero", "sum"), ("sums", "i64", "five", "zero", "sum")];
    let columns = [("groups", "int64", "groups"), ("sums", "int64", "sums")];
    let phases = r#"[[phases]]
name = "scan"
over = "t"
on = "partitions"
writes = ["groups", "sums"]
launches = [{ kernel = "scan", threads = "rows", args = ["rows", "t.v", "t.g", "groups", "sums"] }]"#;
    let source = r#"
extern "C" __global__ void scan(u64 rows, const i64* v, const i32* g, i64* groups, i64* sums) {
  FewSums<5, i64> count, sum;
  DKB_ROWS(i, rows) {
    count.add(g[i], 1);
    sum.add(g[i], v[i]);
  }
  count.flush(groups);
  sum.flush(sums);
}
"#;
    everywhere(
        &plan("", "five = { value = \"5\" }", &buffers, phases, "five", &columns, source),
        |table, batch| {
            let mut want: Vec<(i64, i64)> = (0..5)
                .map(|group| {
                    let rows = (0..table.v.len()).filter(|i| table.g[*i] == group);
                    rows.fold((0, 0), |(n, sum), i| (n + 1, sum + table.v[i]))
                })
                .collect();
            let mut got: Vec<(i64, i64)> = ints(batch, 0).into_iter().zip(ints(batch, 1)).collect();
            want.sort_unstable();
            got.sort_unstable();
            assert_eq!(got, want);
        },
    );
}

#[test]
fn hash_tables_group_and_find() {
    let buffers = [
        ("n1", "u64", "1", "zero", "merge"),
        ("keys1", "u64", "slots1", "zero", "merge"),
        ("count1", "u64", "slots1", "zero", "merge"),
        ("n2", "u64", "1", "zero", "merge"),
        ("state2", "u32", "slots2", "zero", "merge"),
        ("keys2", "u64", "slots2 * 2", "zero", "merge"),
        ("sum2", "i64", "slots2", "zero", "merge"),
        ("wrong", "u64", "1", "zero", "sum"),
        ("n", "u64", "1", "zero", "none"),
        ("out_v", "i64", "out", "poison", "none"),
        ("out_g", "i64", "out", "poison", "none"),
        ("out_sum", "i64", "out", "poison", "none"),
        ("out_count", "u64", "out", "poison", "none"),
        ("out_wrong", "u64", "out", "poison", "none"),
    ];
    let columns = [
        ("v", "int64", "out_v"),
        ("g", "int64", "out_g"),
        ("sum", "int64", "out_sum"),
        ("count", "int64", "out_count"),
        ("wrong", "int64", "out_wrong"),
    ];
    let sizes = "slots1 = { value = \"4\", counter = \"n1\", pow2 = true }\n\
                 slots2 = { value = \"4\", counter = \"n2\", pow2 = true }\n\
                 out = { value = \"slots2\", counter = \"n\" }";
    let phases = r#"[[phases]]
name = "group"
over = "t"
on = "partitions"
writes = ["n1", "keys1", "count1", "n2", "state2", "keys2", "sum2"]
launches = [{ kernel = "group", threads = "rows", args = [
  "rows", "t.v", "t.g", "len(slots1)", "n1", "keys1", "count1", "len(slots2)", "n2", "state2", "keys2",
  "sum2"
] }]
merge = { kernel = "fold", threads = "slots1 + slots2", args = [
  "peer.keys1", "peer.count1", "peer.state2", "peer.keys2", "peer.sum2", "len(slots1)", "n1", "keys1",
  "count1", "len(slots2)", "n2", "state2", "keys2", "sum2"
] }
[[phases]]
name = "find"
over = "t"
on = "partitions"
writes = ["wrong"]
launches = [{ kernel = "find", threads = "rows", args = [
  "rows", "t.v", "t.g", "len(slots1)", "keys1", "len(slots2)", "state2", "keys2", "wrong"
] }]
[[phases]]
name = "out"
over = "rows(slots2)"
on = "root"
launches = [{ kernel = "out", threads = "rows", args = [
  "rows", "state2", "keys2", "sum2", "len(slots1)", "keys1", "count1", "wrong", "len(out)", "n", "out_v",
  "out_g", "out_sum", "out_count", "out_wrong"
] }]"#;
    let source = r#"
DKB_FN u64 biased(i64 v) { return u64(v + 501); }
extern "C" __global__ void group(u64 rows, const i64* v, const i32* g, u64 slots1, u64* n1, u64* keys1, u64* count1,
                                 u64 slots2, u64* n2, u32* state2, u64* keys2, i64* sum2) {
  DKB_ROWS(i, rows) {
    u64 slot = hash_insert(keys1, slots1, n1, biased(v[i]));
    if (slot != DKB_NONE) atomic_add(count1 + slot, 1ull);
    const u64 key[2] = {u64(v[i]), u64(g[i])};
    slot = hash_insert(state2, keys2, slots2, n2, key);
    if (slot != DKB_NONE) atomic_add(sum2 + slot, v[i]);
  }
}
extern "C" __global__ void fold(const u64* peer_keys1, const u64* peer_count1, const u32* peer_state2,
                                const u64* peer_keys2, const i64* peer_sum2, u64 slots1, u64* n1, u64* keys1,
                                u64* count1, u64 slots2, u64* n2, u32* state2, u64* keys2, i64* sum2) {
  DKB_ROWS(i, slots1) if (peer_keys1[i] != 0) {
    u64 slot = hash_insert(keys1, slots1, n1, peer_keys1[i]);
    if (slot != DKB_NONE) atomic_add(count1 + slot, peer_count1[i]);
  }
  DKB_ROWS(i, slots2) if (peer_state2[i] != 0) {
    const u64 key[2] = {peer_keys2[i * 2], peer_keys2[i * 2 + 1]};
    u64 slot = hash_insert(state2, keys2, slots2, n2, key);
    if (slot != DKB_NONE) atomic_add(sum2 + slot, peer_sum2[i]);
  }
}
extern "C" __global__ void find(u64 rows, const i64* v, const i32* g, u64 slots1, const u64* keys1, u64 slots2,
                                const u32* state2, const u64* keys2, u64* wrong) {
  u64 bad = 0;
  DKB_ROWS(i, rows) {
    const u64 key[2] = {u64(v[i]), u64(g[i])}, none[2] = {u64(v[i]), u64(g[i] + 5)};
    bad += hash_find(keys1, slots1, biased(v[i])) >= slots1;
    bad += hash_find(keys1, slots1, biased(v[i]) + 5000) != DKB_NONE;
    bad += hash_find(state2, keys2, slots2, key) >= slots2;
    bad += hash_find(state2, keys2, slots2, none) != DKB_NONE;
  }
  block_add(wrong, bad);
}
extern "C" __global__ void out(u64 rows, const u32* state2, const u64* keys2, const i64* sum2, u64 slots1,
                               const u64* keys1, const u64* count1, const u64* wrong, u64 room, u64* n, i64* out_v,
                               i64* out_g, i64* out_sum, u64* out_count, u64* out_wrong) {
  DKB_ROWS(i, rows) if (state2[i] != 0) {
    u64 at = append(n);
    if (at >= room) continue;
    u64 slot = hash_find(keys1, slots1, biased(i64(keys2[i * 2])));
    out_v[at] = i64(keys2[i * 2]);
    out_g[at] = i64(keys2[i * 2 + 1]);
    out_sum[at] = sum2[i];
    out_count[at] = slot < slots1 ? count1[slot] : 0;
    out_wrong[at] = *wrong;
  }
}
"#;
    everywhere(&plan("", sizes, &buffers, phases, "out", &columns, source), |table, batch| {
        let mut groups: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
        for (v, g) in table.v.iter().zip(&table.g) {
            *groups.entry((*v, i64::from(*g))).or_default() += v;
            *counts.entry(*v).or_default() += 1;
        }
        let want: Vec<[i64; 5]> = groups.iter().map(|((v, g), sum)| [*v, *g, *sum, counts[v], 0]).collect();
        let columns: Vec<Vec<i64>> = (0..5).map(|column| ints(batch, column)).collect();
        let mut got: Vec<[i64; 5]> =
            (0..batch.num_rows()).map(|row| std::array::from_fn(|c| columns[c][row])).collect();
        got.sort_unstable();
        assert_eq!(got, want);
    });
}

#[test]
fn linked_rows_and_bitmaps() {
    let buffers = [
        ("heads", "u32", "keys", "zero", "none"),
        ("next", "u32", "rows(t)", "poison", "none"),
        ("bits", "u32", "keys / 32 + 1", "zero", "or"),
        ("again", "u64", "1", "zero", "sum"),
        ("n", "u64", "1", "zero", "none"),
        ("out_key", "i64", "out", "poison", "none"),
        ("out_rows", "i64", "out", "poison", "none"),
        ("out_sum", "i64", "out", "poison", "none"),
        ("out_again", "u64", "out", "poison", "none"),
    ];
    let columns = [
        ("key", "int64", "out_key"),
        ("rows", "int64", "out_rows"),
        ("sum", "int64", "out_sum"),
        ("again", "int64", "out_again"),
    ];
    let sizes = "keys = { value = \"1000\" }\nout = { value = \"keys\", counter = \"n\" }";
    let phases = r#"[[phases]]
name = "link"
over = "t"
on = "partitions"
writes = ["bits", "again"]
launches = [{ kernel = "link", threads = "rows", args = [
  "rows", "first_row", "t.v", "len(keys)", "heads", "next", "bits", "again"
] }]
[[phases]]
name = "walk"
over = "rows(keys)"
on = "root"
launches = [{ kernel = "walk", threads = "rows", args = [
  "rows", "heads", "next", "bits", "again", "len(out)", "n", "out_key", "out_rows", "out_sum", "out_again"
] }]"#;
    let source = r#"
extern "C" __global__ void link(u64 rows, u64 first, const i64* v, u64 keys, u32* heads, u32* next, u32* bits, u64* again) {
  DKB_ROWS(i, rows) {
    if (link_row(heads, u64(v[i] + 500), next, first + i)) atomic_add(again, 1ull);
    bit_set(bits, keys, u64(v[i] + 500));
    bit_set(bits, keys, u64(v[i] + 500) + keys);
  }
}
extern "C" __global__ void walk(u64 rows, const u32* heads, const u32* next, const u32* bits, const u64* again, u64 room,
                                u64* n, i64* key, i64* count, i64* sum, u64* out_again) {
  DKB_ROWS(i, rows) if (bit_test(bits, rows, i) && !bit_test(bits, rows, i + rows)) {
    u64 at = append(n);
    if (at >= room) continue;
    key[at] = i64(i) - 500;
    count[at] = sum[at] = 0;
    out_again[at] = *again;
    for (u32 link = first_link(heads, rows, i); link != 0; link = next[link - 1]) {
      count[at] += 1;
      sum[at] += link - 1;
    }
  }
}
"#;
    let plan = plan("", sizes, &buffers, phases, "out", &columns, source);
    for rows in SIZES {
        let table = Table::new(rows);
        // Links are row numbers of one device.
        let batch = run(&table.session(1), &plan, &[]).unwrap_or_else(|e| panic!("{rows} rows: {e}"));
        let mut want: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
        for (row, v) in table.v.iter().enumerate() {
            let (count, sum) = want.entry(*v).or_default();
            (*count, *sum) = (*count + 1, *sum + row as i64);
        }
        assert_eq!(ints(&batch, 0), want.keys().copied().collect::<Vec<_>>());
        assert_eq!(ints(&batch, 1), want.values().map(|(count, _)| *count).collect::<Vec<_>>());
        assert_eq!(ints(&batch, 2), want.values().map(|(_, sum)| *sum).collect::<Vec<_>>());
        assert!(ints(&batch, 3).iter().all(|again| *again == (rows - want.len()) as i64));
    }
}

#[test]
fn ranked_bitmaps_number_their_keys() {
    let buffers = [
        ("words", "u64", "words", "zero", "none"),
        ("ranks", "u64", "1", "zero", "none"),
        ("n", "u64", "1", "zero", "none"),
        ("out_key", "i64", "out", "poison", "none"),
        ("out_rank", "i64", "out", "poison", "none"),
    ];
    let columns = [("key", "int64", "out_key"), ("rank", "int64", "out_rank")];
    // Every third row gives a key, 108 after the one before.
    let sizes =
        "words = { value = \"rows(t) * 36 / 32 + 1\" }\nout = { value = \"rows(t) + 1\", counter = \"n\" }";
    let phases = r#"[[phases]]
name = "mark"
over = "t"
on = "partitions"
launches = [{ kernel = "mark", threads = "rows", args = ["rows", "t.id", "words"] }]
[[phases]]
name = "walk"
over = "rows(out)"
on = "root"
launches = [
  { kernel = "rank", threads = "words", args = ["len(words)", "words", "ranks"] },
  { kernel = "walk", threads = "rows", args = ["rows", "len(words)", "words", "n", "out_key", "out_rank"] },
]"#;
    let source = r#"
extern "C" __global__ void mark(u64 rows, const i64* id, u64* words) {
  DKB_ROWS(i, rows) if (id[i] % 3 == 0) rank_set(words, u64(id[i]) * 36);
}
extern "C" __global__ void rank(u64 count, u64* words, u64* ranks) { rank_words(words, count, ranks); }
extern "C" __global__ void walk(u64 rows, u64 count, const u64* words, u64* n, i64* key, i64* rank) {
  DKB_ROWS(i, rows) {
    u64 found = rank_find(words, count, i * 36);
    if (found == DKB_NONE || rank_find(words, count, i * 36 + 1) != DKB_NONE) continue;
    u64 at = append(n);
    key[at] = i64(i);
    rank[at] = rank_of(words, i * 36) == found ? i64(found) : -1;
  }
}
"#;
    let plan = plan("", sizes, &buffers, phases, "out", &columns, source);
    for rows in SIZES {
        let table = Table::new(rows);
        let batch = run(&table.session(1), &plan, &[]).unwrap_or_else(|e| panic!("{rows} rows: {e}"));
        let keys: Vec<i64> = (0..rows as i64).step_by(3).collect();
        assert_eq!(ints(&batch, 0), keys, "{rows} rows");
        let mut ranks = ints(&batch, 1);
        ranks.sort_unstable();
        assert_eq!(ranks, (0..keys.len() as i64).collect::<Vec<_>>(), "{rows} rows");
    }
}

#[test]
fn calendar_of_days() {
    let outputs = [("year", "i64", "int64"), ("month", "i64", "int64"), ("day", "i64", "int64")];
    let body = "year[at] = year_of(d[i]); month[at] = month_of(d[i]); day[at] = day_of(d[i]);";
    everywhere(&each_row("", &outputs, body), |table, batch| {
        let days = Date32Array::from(table.d.clone());
        for (column, part) in [(1, DatePart::Year), (2, DatePart::Month), (3, DatePart::Day)] {
            let want = date_part(&days, part).expect("dates have parts");
            let want: Vec<i64> =
                want.as_primitive::<Int32Type>().values().iter().map(|v| i64::from(*v)).collect();
            assert_eq!(ints(batch, column), want);
        }
    });
}

/// LIKE by plain recursion.
fn like(text: &[char], pattern: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['%', rest @ ..] => (0..=text.len()).any(|skip| like(&text[skip..], rest)),
        ['_', rest @ ..] => !text.is_empty() && like(&text[1..], rest),
        ['\\', c, rest @ ..] | [c, rest @ ..] => text.first() == Some(c) && like(&text[1..], rest),
    }
}

#[test]
fn like_substring_and_order_of_text() {
    let params = "[params]\npattern = { type = \"utf8\", default = \"\" }\nfrom = { type = \"int64\", default = \"1\" }\n\
                  count = { type = \"int64\", default = \"1\" }\n";
    let outputs = [("matches", "i64", "int64"), ("order", "i64", "int64"), ("cut", "i64", "int64")];
    let body = "matches[at] = like(s, p->pattern); order[at] = compare(s, p->pattern); \
                Str piece = substring(s, p->from, p->count); \
                cut[at] = i64(piece.ptr - s.ptr) * 1000 + piece.len + equal(piece, s) * 1000000;";
    let plan = each_row(params, &outputs, body);
    let table = Table::new(3000);
    let session = table.session(3);
    let patterns = [
        "",
        "%",
        "a%",
        "%a",
        "%an%",
        "_pple",
        "%ü%",
        "_bergrün",
        "a\\_%\\%c",
        "%a%a%a",
        "% ß %",
        "banana",
        "%%_",
        "%na%na%",
        "%anan%",
        "%bergr%",
    ];
    for (index, pattern) in patterns.into_iter().enumerate() {
        let (from, count) = ([1i64, 2, 0, -3, 40][index % 5], [2i64, 0, 1, 30, 1 << 50][index % 4]);
        let given = [("pattern", pattern), ("from", &from.to_string()), ("count", &count.to_string())];
        let batch = run(&session, &plan, &given).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        let pattern_chars: Vec<char> = pattern.chars().collect();
        for (row, text) in table.s.iter().enumerate() {
            let chars: Vec<char> = text.chars().collect();
            assert_eq!(
                ints(&batch, 1)[row],
                i64::from(like(&chars, &pattern_chars)),
                "{text:?} like {pattern:?}"
            );
            assert_eq!(
                ints(&batch, 2)[row],
                text.as_bytes().cmp(pattern.as_bytes()) as i64,
                "{text:?} {pattern:?}"
            );
            let in_range =
                |at: &usize| (*at as i64 + 1) >= from && (*at as i64 + 1) < from.saturating_add(count);
            let first = (0..chars.len()).find(in_range);
            let piece: String = (0..chars.len()).filter(in_range).map(|at| chars[at]).collect();
            let got = ints(&batch, 3)[row];
            assert_eq!(got % 1000, piece.len() as i64, "substring of {text:?} from {from} for {count}");
            if let Some(first) = first {
                let start: usize = chars[..first].iter().map(|c| c.len_utf8()).sum();
                assert_eq!(got / 1000 % 1000, start as i64, "start within {text:?}");
            }
            assert_eq!(got / 1_000_000, i64::from(piece == *text), "{text:?}");
        }
    }
}

#[test]
fn decimal_and_integer_arithmetic() {
    let outputs = [
        ("quotient", "i128", "decimal(38,6)"),
        ("rounded", "i128", "decimal(38,0)"),
        ("product", "i128", "decimal(38,0)"),
        ("whole", "i64", "int64"),
        ("rest", "i64", "int64"),
    ];
    let body = "i64 by = g[i] - 2 == 0 ? -1 : g[i] - 2; \
                quotient[at] = decimal_div(v[i], by, power10(6), flags); \
                rounded[at] = round_scale(v[i] * 7, 10); \
                product[at] = within(checked_mul(i128(v[i]) * 1000000007ll, i128(v[i]) * power10(12), flags), power10(38), flags); \
                whole[at] = int_div(v[i], by, flags); rest[at] = int_mod(v[i], by, flags);";
    everywhere(&each_row("", &outputs, body), |table, batch| {
        let by = |row: usize| if table.g[row] == 2 { -1 } else { i64::from(table.g[row]) - 2 };
        let rows = 0..table.v.len();
        let wide = |row: usize| i128::from(table.v[row]);
        let each = |f: &dyn Fn(usize) -> i128| rows.clone().map(f).collect::<Vec<i128>>();
        assert_eq!(decimals(batch, 1), each(&|row| wide(row) * 1_000_000 / i128::from(by(row))));
        assert_eq!(
            decimals(batch, 2),
            each(&|row| {
                let value = wide(row) * 7;
                (value.abs() + 5) / 10 * value.signum()
            })
        );
        assert_eq!(decimals(batch, 3), each(&|row| wide(row) * 1_000_000_007 * wide(row) * 10i128.pow(12)));
        assert_eq!(ints(batch, 4), rows.clone().map(|row| table.v[row] / by(row)).collect::<Vec<_>>());
        assert_eq!(ints(batch, 5), rows.clone().map(|row| table.v[row] % by(row)).collect::<Vec<_>>());
    });
}

#[test]
fn arithmetic_fails_instead_of_trapping() {
    let table = Table::new(300);
    let session = table.session(1);
    let outputs = [("x", "i128", "decimal(38,0)")];
    for (body, message) in [
        ("x[at] = int_div(v[i], i64(0), flags);", "division by zero"),
        ("x[at] = int_mod(v[i], v[i] - v[i], flags);", "division by zero"),
        ("x[at] = decimal_div(v[i], 0, 10, flags);", "division by zero"),
        ("x[at] = decimal_div(power10(30), 3, power10(20), flags);", "decimal overflow"),
        ("x[at] = checked_mul(power10(30), power10(20), flags);", "decimal overflow"),
        ("x[at] = within(power10(20), power10(20), flags);", "decimal overflow"),
    ] {
        let error = run(&session, &each_row("", &outputs, body), &[]).expect_err(body);
        assert!(matches!(&error, Error::Data(text) if text.contains(message)), "{body}: {error}");
    }
}

#[test]
fn packed_text_keeps_its_order() {
    let outputs = [("packed", "i128", "decimal(38,0)")];
    let head = "assumes = [\"short text\"]";
    // Halved, so that it fits a decimal; texts differ in more than the last bit.
    let plan = each_row(head, &outputs, "packed[at] = pack_text(s, flags, 0) / 8;");
    let table = Table::new(2000);
    let batch = run(&table.session(3), &plan, &[]).unwrap_or_else(|e| panic!("{e}"));
    let mut rows: Vec<(i128, &str)> =
        decimals(&batch, 1).into_iter().zip(table.s.iter().map(String::as_str)).collect();
    rows.sort_unstable();
    assert!(rows.is_sorted_by_key(|(_, text)| text.as_bytes()));
    assert_eq!(batch.column(1).null_count(), 0);
}
