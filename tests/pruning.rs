//! Row groups skipped by their statistics: over data sorted by what queries filter by, streamed in small
//! partitions, answers are those of the reference, and plans prune by what they should and nothing else.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};

use dkb_kernels::{Plan, SqlType};
use dkb_planner::ParamDecl;
use dkb_runtime::session::{Mode, Session, SessionConfig};
use dkb_tests::reference::Reference;
use dkb_tests::tables::FIRST_DAY;
use dkb_tests::{answer, host_session, tables};

const ROWS: i64 = 3000;

fn ints(value: impl Fn(i64) -> Option<i64>, rows: i64) -> ArrayRef {
    Arc::new((0..rows).map(value).collect::<Int64Array>())
}

/// `event`, in row groups of 100 rows, sorted by each of `e_id`, `e_day`, `e_price`, `e_at` and `e_size` (with
/// NULLs); and `item`, in row groups of 20, with the keys 0 to 299, some of them NULL.
fn write_tables(dir: &Path) {
    let price = Decimal128Array::from_iter_values((0..ROWS).map(|i| i128::from(i) * 25));
    let size = (0..ROWS).map(|i| (i % 3 != 0 && !(500..800).contains(&i)).then_some((i / 10) as i32));
    let event: [(&str, ArrayRef, bool); 7] = [
        ("e_id", ints(Some, ROWS), false),
        (
            "e_day",
            Arc::new(Date32Array::from_iter_values((0..ROWS as i32).map(|i| FIRST_DAY + i / 4))),
            false,
        ),
        ("e_price", Arc::new(price.with_precision_and_scale(15, 2).expect("cells fit")), false),
        (
            "e_at",
            Arc::new(TimestampMicrosecondArray::from_iter_values((0..ROWS).map(|i| i * 1_000_000))),
            false,
        ),
        ("e_size", Arc::new(size.collect::<Int32Array>()), true),
        ("e_item", ints(|i| (i % 13 != 0).then_some(i * 7 % 320), ROWS), true),
        (
            "e_name",
            Arc::new(StringArray::from_iter_values((0..ROWS).map(|i| format!("name {}", i % 5)))),
            false,
        ),
    ];
    let event = RecordBatch::try_from_iter_with_nullable(event).expect("equal lengths");
    tables::write_batch(dir, "event", &event, 100);
    let item: [(&str, ArrayRef, bool); 3] = [
        ("i_id", ints(|i| (i % 17 != 3).then_some(i), 300), true),
        ("i_rank", ints(|i| Some(i / 2), 300), false),
        ("i_rare", ints(|i| (i >= 240).then_some(i), 300), true),
    ];
    let item = RecordBatch::try_from_iter_with_nullable(item).expect("equal lengths");
    tables::write_batch(dir, "item", &item, 20);
}

/// Queries, each with the pruning predicates of its plan's phases, in order; `?` stands for a parameter.
const QUERIES: &[(&[&str], &str)] = &[
    (&[], "select count(*), sum(e_price) from event"),
    (
        &["e_day >= ? and e_day < ?"],
        "select count(*), sum(e_price), min(e_id) from event
         where e_day >= date '1995-06-01' and e_day < date '1995-06-01' + interval '1' month",
    ),
    (
        &["e_price >= ? and e_price <= ?"],
        "select e_id, e_name from event where e_price between 100.5 and 112 order by e_id",
    ),
    (&["e_price < ?"], "select count(*) from event where 200 > e_price"),
    (&["e_at < ?"], "select count(*), max(e_id) from event where e_at < timestamp '1970-01-01 00:10:00.5'"),
    (&["e_size = ?"], "select count(*) from event where e_size = 120"),
    (&["e_size <= ?"], "select e_size, count(*) from event where e_size <= 60 group by e_size"),
    (
        &["e_id = ? or e_id = ? or e_id = ? or e_id = ?"],
        "select e_id from event where e_id in (3, 777, 2999, 5000) order by e_id",
    ),
    // Of a disjunction every part must be judged, of a conjunction any.
    (
        &["e_id < ? or e_id > ?"],
        "select count(*) from event where e_id < 100 or e_id > 2900 and e_name = 'name 1'",
    ),
    (&[], "select count(*) from event where e_id < 100 or e_name = 'name 1'"),
    (
        &["(e_id < ? or e_size > ?) and e_day > ?"],
        "select count(*) from event
         where (e_id < 100 or e_size > 290) and e_name <> 'name 2' and e_day > date '1995-01-05'",
    ),
    // Nothing is left.
    (&["e_id > ?"], "select count(*), sum(e_id) from event where e_id > 5000"),
    (&["e_id < ?"], "select e_name, count(*) from event where e_id < 0 group by e_name"),
    // What statistics do not tell.
    (&[], "select count(*) from event where e_id <> 5"),
    (&[], "select count(*) from event where e_id + 1 > 2900"),
    (&[], "select count(*) from event where e_id > e_item"),
    (&["e_id >= ?"], "select count(*) from event where e_size is null and e_id >= 2000"),
    (&["e_size <= ?"], "select count(*) from event where not (e_size > 100)"),
    // Each phase by its own table's filter; rows that an outer join keeps matter.
    (
        &["i_rank < ?", "e_id >= ?"],
        "select sum(e_price) from event, item where e_item = i_id and i_rank < 20 and e_id >= 1500",
    ),
    (
        &["i_rank >= ?", "e_id < ?", "i_rank >= ?"],
        "select i_id, count(e_id) from item left join event on i_id = e_item and e_id < 400
         where i_rank >= 100 group by i_id",
    ),
    (
        &["e_id < ?", "i_rank < ?"],
        "select i_id, e_id from (select * from item where i_rank < 10)
         full join (select * from event where e_id < 150) on i_id = e_item",
    ),
    (&[], "select count(*) from item full join event on i_id = e_item and e_id < 150"),
    (
        &["e_id > ?", "i_rank > ?"],
        "select count(*) from item
         where exists (select * from event where e_item = i_id and e_id > 2800) and i_rank > 75",
    ),
    (
        &["e_id > ?", "i_rank > ?"],
        "select count(*) from item
         where not exists (select * from event where e_item = i_id and e_id > 2800) and i_rank > 75",
    ),
    (
        &["i_rare > ?", "e_id < ?"],
        "select e_id from event
         where e_id < 500 and e_item not in (select i_rare from item where i_rare > 250)",
    ),
    (
        &["i_rank > ?", "e_id < ?"],
        "select e_id from event
         where e_id < 500 and e_item not in (select i_rare from item where i_rank > 100)",
    ),
    (
        &["e_id < ?", "e_id >= ? and e_item < ?"],
        "select count(*) from event a, event b where a.e_id = b.e_item and a.e_id < 200 and b.e_id >= 2500",
    ),
    (
        &["e_id < ?", "e_day > ?"],
        "select sum(e_id) from event
         where e_day > date '1996-12-01' and e_price > (select avg(e_price) from event where e_id < 2990)",
    ),
];

/// The pruning predicates of a plan, in the order of its phases.
fn prunes(plan: &Plan) -> Vec<String> {
    let texts = plan.phases.iter().filter_map(|p| p.prune.as_ref()).map(ToString::to_string);
    let anonymous = |text: String| {
        let rest = |part: &str| part.trim_start_matches(|c: char| c.is_ascii_alphanumeric()).to_owned();
        let (first, params) = text.split_once(':').expect("a comparison with a parameter");
        params.split(':').fold(first.to_owned(), |all, part| all + "?" + &rest(part))
    };
    texts.map(anonymous).collect()
}

fn sessions(dir: &Path) -> Vec<Session> {
    let config = SessionConfig { poison: true, ..SessionConfig::default() };
    let stream = SessionConfig { mode: Mode::Stream, chunk_bytes: Some(20_000), ..config.clone() };
    vec![host_session(dir, 1, config), host_session(dir, 1, stream.clone()), host_session(dir, 3, stream)]
}

#[test]
fn pruned_answers_are_right() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write_tables(dir.path());
    let reference = Reference::open(dir.path());
    let sessions = sessions(dir.path());
    let mut wrong = Vec::new();
    for (expected, sql) in QUERIES {
        let want = reference.run(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        for (k, session) in sessions.iter().enumerate() {
            let mut prepared = session.prepare(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e}"));
            let found = prunes(prepared.plan());
            if k == 0 && found != *expected {
                wrong.push(format!("{sql}\n  prunes by {found:?} instead of {expected:?}"));
            }
            let got = session.execute(&mut prepared, &[]).unwrap_or_else(|e| panic!("{sql}: {e}"));
            if let Err(what) = answer::compare(&got.batch, &want, sql.contains("order by")) {
                wrong.push(format!("{sql}\n  session {k}: {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn skipped_rows_are_not_streamed() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write_tables(dir.path());
    for session in &sessions(dir.path())[1..] {
        for (limit, rows) in [(150, 200), (1, 100), (0, 0)] {
            let sql = format!("select sum(e_price) from event where e_id < {limit}");
            let mut prepared = session.prepare(&sql, &[]).expect("the query has kernels");
            let run = session.execute(&mut prepared, &[]).expect("the query runs");
            assert_eq!(run.rows_per_device.iter().sum::<u64>(), rows, "e_id < {limit}");
        }
    }
}

/// One prepared query, with values on both sides of what statistics rule out.
#[test]
fn parameters_decide_anew_in_every_run() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write_tables(dir.path());
    let reference = Reference::open(dir.path());
    let decl =
        |name: &str, ty, default: &str| ParamDecl { name: name.to_owned(), ty, default: default.to_owned() };
    let decls = [decl("day", SqlType::Date, "1995-06-01"), decl("price", SqlType::Decimal(15, 2), "200")];
    let query = |day: &str, price: &str| {
        format!(
            "select count(*), sum(e_id) from event
             where e_day >= {day} and e_day < {day} + interval '1' month and e_price < {price} + 0.5"
        )
    };
    for session in sessions(dir.path()) {
        let mut prepared = session.prepare(&query(":day", ":price"), &decls).expect("the query has kernels");
        assert_eq!(prunes(prepared.plan()), ["e_day >= ? and e_day < ? and e_price < ?"]);
        for (day, price) in [
            ("1995-06-01", "200"),
            ("1990-01-01", "200"),
            ("1996-12-31", "749.75"),
            ("1995-01-01", "-3"),
            ("1997-01-01", "600.25"),
        ] {
            let given = [("day", day), ("price", price)].map(|(n, v)| (n.to_owned(), v.to_owned()));
            let got = session.execute(&mut prepared, &given).unwrap_or_else(|e| panic!("{day} {price}: {e}"));
            let want =
                reference.run(&query(&format!("date '{day}'"), price)).expect("the reference's answer");
            answer::compare(&got.batch, &want, true).unwrap_or_else(|e| panic!("{day} {price}: {e}"));
        }
    }
}
