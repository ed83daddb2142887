//! The SQL suite: every query of `sql/*.sql` on DataFusion, on one device, on three, and with state divided into
//! parts on two, with equal answers.
//!
//! The files hold queries only, each ended by `;`. A comment line before a query may say what is special:
//! `-- fallback` marks one that generated kernels do not cover, `-- error` one that must fail on this data.
//! Both marks are checked, so that they stay true, and `DKB_UPDATE=1` sets those for fallbacks anew. Under a
//! final ORDER BY rows are compared in order: such queries order completely.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray,
};

use dkb_runtime::exec::Error;
use dkb_runtime::session::{Session, SessionConfig};
use dkb_tests::reference::Reference;
use dkb_tests::{answer, host_session, root, tables};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    None,
    Fallback,
    Error,
}

/// A query of a suite's file.
struct Case {
    mark: Mark,
    sql: String,
    /// Index of its first line.
    line: usize,
}

/// The queries of a file with their marks.
fn cases(text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    let (mut mark, mut sql, mut first) = (Mark::None, String::new(), 0);
    for (index, line) in text.lines().enumerate() {
        match line.trim() {
            comment if comment.starts_with("-- fallback") => mark = Mark::Fallback,
            comment if comment.starts_with("-- error") => mark = Mark::Error,
            comment if comment.starts_with("--") => {}
            text => {
                if sql.is_empty() {
                    first = index;
                }
                sql.push_str(text);
                sql.push(' ');
                if text.ends_with(';') {
                    let sql = std::mem::take(&mut sql).trim().trim_end_matches(';').to_owned();
                    cases.push(Case { mark: std::mem::replace(&mut mark, Mark::None), sql, line: first });
                }
            }
        }
    }
    assert!(sql.trim().is_empty(), "a query lacks its `;`: {sql}");
    cases
}

/// The file's text with `-- fallback` above the queries that begin on `lines`, and nowhere else.
fn with_marks(text: &str, lines: &[usize]) -> String {
    let mut out = String::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with("-- fallback")) {
        if lines.contains(&index) {
            out.push_str("-- fallback\n");
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

fn is_ordered(sql: &str) -> bool {
    let tail = sql.rsplit(')').next().unwrap_or(sql);
    tail.to_lowercase().contains("order by")
}

fn decimals(values: &[Option<i128>], precision: u8) -> ArrayRef {
    let array = Decimal128Array::from(values.to_vec());
    Arc::new(array.with_precision_and_scale(precision, 2).expect("cells fit"))
}

/// `t` has NULLs in every column but its key, `u` has NULL and duplicate keys, `w` has text of every kind,
/// and `nothing` has no rows.
fn write_tables(dir: &Path) {
    let n = None;
    let t = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from_iter_values(1..=10)) as ArrayRef, false),
        (
            "k",
            Arc::new(Int64Array::from(vec![
                Some(1),
                Some(2),
                Some(2),
                n,
                Some(-3),
                Some(4),
                n,
                Some(2),
                Some(7),
                Some(1),
            ])),
            true,
        ),
        (
            "g",
            Arc::new(Int32Array::from(vec![
                Some(1),
                Some(1),
                Some(2),
                Some(2),
                None,
                None,
                Some(3),
                Some(1),
                Some(-1),
                Some(-1),
            ])),
            true,
        ),
        (
            "d",
            decimals(
                &[
                    Some(100),
                    Some(-250),
                    None,
                    Some(0),
                    Some(99_999_999),
                    Some(-1),
                    None,
                    Some(100),
                    Some(333),
                    Some(50),
                ],
                12,
            ),
            true,
        ),
        (
            "dt",
            Arc::new(Date32Array::from(vec![
                Some(9131),
                Some(9161),
                None,
                Some(9190),
                Some(0),
                Some(-1),
                Some(19782),
                None,
                Some(9131),
                Some(9500),
            ])),
            true,
        ),
        (
            "s",
            Arc::new(StringArray::from(vec![
                Some("red"),
                Some("green"),
                Some(""),
                None,
                Some("red"),
                Some("Red"),
                None,
                Some("blue"),
                Some("a%b_c"),
                Some("grün"),
            ])),
            true,
        ),
        (
            "f",
            Arc::new(BooleanArray::from(vec![
                Some(true),
                Some(false),
                None,
                Some(true),
                Some(false),
                None,
                Some(true),
                Some(true),
                None,
                Some(false),
            ])),
            true,
        ),
        (
            "x",
            Arc::new(Float64Array::from(vec![
                Some(0.5),
                Some(-1.25),
                None,
                Some(0.0),
                Some(1e10),
                Some(3.0),
                None,
                Some(2.5),
                Some(-0.125),
                Some(8.0),
            ])),
            true,
        ),
    ]);
    tables::write_batch(dir, "t", &t.expect("equal lengths"), 4);
    let u = RecordBatch::try_from_iter_with_nullable([
        (
            "uk",
            Arc::new(Int64Array::from(vec![Some(1), Some(2), Some(2), None, Some(9), Some(-3), None]))
                as ArrayRef,
            true,
        ),
        ("v", decimals(&[Some(500), Some(-700), None, Some(1), Some(2), Some(300), Some(4)], 15), true),
        (
            "name",
            Arc::new(StringArray::from(vec![
                Some("one"),
                Some("two"),
                Some("deux"),
                Some("none"),
                None,
                Some("minus three"),
                Some("red"),
            ])),
            true,
        ),
    ]);
    tables::write_batch(dir, "u", &u.expect("equal lengths"), 3);
    let w = RecordBatch::try_from_iter_with_nullable([
        ("wid", Arc::new(Int64Array::from_iter_values(0..300)) as ArrayRef, false),
        (
            "txt",
            Arc::new(
                (0..300).map(|i| Some(format!("row {} of {}", i, i * 7919 % 300))).collect::<StringArray>(),
            ),
            false,
        ),
        ("grp", Arc::new((0..300).map(|i| (i % 11 != 0).then_some(i % 7)).collect::<Int32Array>()), true),
    ]);
    tables::write_batch(dir, "w", &w.expect("equal lengths"), 64);
    let nothing = RecordBatch::try_from_iter_with_nullable([
        ("nid", Arc::new(Int64Array::from(Vec::<i64>::new())) as ArrayRef, false),
        ("nk", Arc::new(Int64Array::from(Vec::<Option<i64>>::new())), true),
        ("nd", decimals(&[], 12), true),
        ("ns", Arc::new(StringArray::from(Vec::<Option<&str>>::new())), true),
        ("ndt", Arc::new(Date32Array::from(Vec::<Option<i32>>::new())), true),
    ]);
    tables::write_batch(dir, "nothing", &nothing.expect("equal lengths"), 100);
}

/// Runs one query on one session: `None` where it has no kernels.
fn ours(session: &Session, sql: &str) -> Option<Result<RecordBatch, Error>> {
    let mut prepared = match session.prepare(sql, &[]) {
        Ok(prepared) => prepared,
        Err(Error::Unsupported(reason)) => {
            println!("  no kernels: {reason}");
            return None;
        }
        Err(error) => return Some(Err(error)),
    };
    Some(session.execute(&mut prepared, &[]).map(|execution| execution.batch))
}

fn check(file: &str) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write_tables(dir.path());
    let reference = Reference::open(dir.path());
    let poison = SessionConfig { poison: true, ..SessionConfig::default() };
    let runs = [(1, None), (3, None), (2, Some(5))];
    let sessions = runs.map(|(devices, shards)| {
        let session = host_session(dir.path(), devices, SessionConfig { shards, ..poison.clone() });
        (session, format!("{devices} devices, parts: {shards:?}"))
    });
    let path = root().join("tests/sql").join(file);
    let text = std::fs::read_to_string(&path).expect("the suite's file");
    let mut wrong = Vec::new();
    let mut without_kernels = Vec::new();
    for Case { mark, sql, line } in cases(&text) {
        println!("{sql}");
        let want = reference.run(&sql);
        for (session, run) in &sessions {
            let got = ours(session, &sql);
            if got.is_none() && mark != Mark::Error && !without_kernels.contains(&line) {
                without_kernels.push(line);
            }
            if let Err(what) = verdict(mark, &sql, got, &want) {
                wrong.push(format!("{sql}\n  on {run}: {what}"));
            }
        }
    }
    if std::env::var_os("DKB_UPDATE").is_some() {
        std::fs::write(&path, with_marks(&text, &without_kernels)).expect("the suite's file can be written");
    }
    assert!(wrong.is_empty(), "{file}: {} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Compares what we give, `None` where there are no kernels, with what DataFusion gives.
fn verdict(
    mark: Mark,
    sql: &str,
    got: Option<Result<RecordBatch, Error>>,
    want: &Result<RecordBatch, String>,
) -> Result<(), String> {
    match (mark, got, want) {
        (Mark::None | Mark::Fallback, _, Err(error)) => Err(format!("DataFusion fails: {error}")),
        (Mark::Fallback, None, Ok(_)) => Ok(()),
        (Mark::Fallback, Some(_), _) => Err("has kernels, so drop its mark `-- fallback`".to_owned()),
        // What fails in the reference may fail there for us too.
        (Mark::Error, None, Err(_)) => Ok(()),
        (_, None, _) => Err("has no kernels and no mark `-- fallback`".to_owned()),
        (Mark::Error, Some(Err(error)), Err(_)) => {
            println!("  fails as it must: {error}");
            Ok(())
        }
        (Mark::Error, Some(got), want) => {
            Err(format!("must fail: ours {}, DataFusion {}", got.is_err(), want.is_err()))
        }
        (Mark::None, Some(Err(error)), _) => Err(format!("fails: {error}")),
        (Mark::None, Some(Ok(got)), Ok(want)) => answer::compare(&got, want, is_ordered(sql)),
    }
}

macro_rules! suite {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(concat!(stringify!($name), ".sql"));
        })*

        #[test]
        fn every_file_is_run() {
            let listed = [$(stringify!($name)),*];
            for file in std::fs::read_dir(root().join("tests/sql")).expect("the suite's folder") {
                let path = file.expect("an entry").path();
                let stem = path.file_stem().and_then(|s| s.to_str()).expect("a plain name");
                assert!(listed.contains(&stem), "add `{stem}` to the suite");
            }
        }
    };
}

suite! { nulls joins aggregates subqueries text order empty numbers dates }
