//! Row groups that a phase may skip: their statistics rule out that a row has any effect in it.
//!
//! Invariant: a row for which the predicate holds is kept. What statistics do not tell keeps a row group.

use std::cmp::Ordering;
use std::ops::Range;

use arrow::datatypes::DataType;
use dkb_kernels::{Comparison, ParamWord, Plan, Predicate, SqlType};

use super::Error;
use crate::table::Table;

/// The pruning predicate of a checked plan's phase, its parameters resolved.
#[derive(Debug)]
pub(crate) enum Prune {
    /// A column, the operator, the index of the parameter, and the parameter's decimal places.
    Compare(String, Comparison, usize, i8),
    And(Vec<Prune>),
    Or(Vec<Prune>),
}

impl Prune {
    pub(crate) fn new(predicate: &Predicate, plan: &Plan) -> Prune {
        let each = |list: &[Predicate]| list.iter().map(|p| Prune::new(p, plan)).collect();
        match predicate {
            Predicate::Compare(column, op, name) => {
                let (index, _, param) = plan.params.get_full(name).expect("a checked plan's parameter");
                let places = if let SqlType::Decimal(_, scale) = param.ty { scale } else { 0 };
                Prune::Compare(column.clone(), *op, index, places)
            }
            Predicate::And(list) => Prune::And(each(list)),
            Predicate::Or(list) => Prune::Or(each(list)),
        }
    }

    /// Rows of the row groups that may hold one for which the predicate is true: in order, neighbours joined,
    /// none at all if no row group may. `values` are those of the plan's parameters.
    ///
    /// # Errors
    /// The table lacks a column.
    pub(crate) fn keeps(&self, values: &[ParamWord], table: &Table) -> Result<Vec<Range<u64>>, Error> {
        let mut kept: Vec<Range<u64>> = Vec::new();
        for (rows, _) in self.judge(values, table)?.into_iter().filter(|(_, may)| *may) {
            match kept.last_mut() {
                Some(last) if last.end == rows.start => last.end = rows.end,
                _ => kept.push(rows),
            }
        }
        Ok(kept)
    }

    /// By row group: its rows, and whether the predicate may be true for one.
    fn judge(&self, values: &[ParamWord], table: &Table) -> Result<Vec<(Range<u64>, bool)>, Error> {
        let (list, is_and) = match self {
            Prune::Compare(column, op, param, places) => {
                let groups = table.row_group_bounds(column)?;
                let field = table.info.schema.field_with_name(column);
                let scale = match field.map(|f| f.data_type()) {
                    Ok(DataType::Decimal128(_, scale)) => *scale,
                    _ => 0,
                };
                let value = match values.get(*param) {
                    Some(ParamWord::Int(value)) => Some(*value),
                    _ => None,
                };
                let may = |bounds: (i128, i128), value| may_hold(bounds, scale, *op, value, *places);
                let judged = groups.into_iter().map(|g| {
                    let known = g.bounds.zip(value);
                    (g.rows, known.is_none_or(|(bounds, value)| may(bounds, value)))
                });
                return Ok(judged.collect());
            }
            Prune::And(list) => (list, true),
            Prune::Or(list) => (list, false),
        };
        let mut judged: Vec<(Range<u64>, bool)> = Vec::new();
        for part in list {
            let part = part.judge(values, table)?;
            if judged.is_empty() {
                judged = part;
                continue;
            }
            for ((_, may), (_, other)) in judged.iter_mut().zip(part) {
                *may = if is_and { *may && other } else { *may || other };
            }
        }
        Ok(judged)
    }
}

/// Whether `x op value` is possible for an x within the bounds, inclusive. Numbers are scaled by powers of ten.
fn may_hold((lo, hi): (i128, i128), scale: i8, op: Comparison, value: i128, places: i8) -> bool {
    let low = compare(lo, scale, value, places);
    let high = compare(hi, scale, value, places);
    match op {
        Comparison::Eq => low.is_le() && high.is_ge(),
        Comparison::Lt => low.is_lt(),
        Comparison::Le => low.is_le(),
        Comparison::Gt => high.is_gt(),
        Comparison::Ge => high.is_ge(),
    }
}

/// Compares `a / 10^scale_a` with `b / 10^scale_b`, exactly.
fn compare(a: i128, scale_a: i8, b: i128, scale_b: i8) -> Ordering {
    if scale_a < scale_b {
        return compare(b, scale_b, a, scale_a).reverse();
    }
    let places = u32::from(scale_a.abs_diff(scale_b));
    match 10i128.checked_pow(places).and_then(|by| b.checked_mul(by)) {
        Some(b) => a.cmp(&b),
        // b is zero, or too far from it to be reached by a.
        None if b == 0 => a.cmp(&0),
        None => 0.cmp(&b),
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "rows that are kept are a list of ranges")]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, Date32Array, Decimal128Array, Int64Array, RecordBatch, StringArray,
        TimestampMillisecondArray,
    };
    use dkb_kernels::text;
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::{EnabledStatistics, WriterProperties};
    use parquet::schema::types::ColumnPath;

    use super::*;
    use crate::table::DataSet;

    const ROWS: i64 = 1000;
    const GROUP: u64 = 100;

    /// `k` is the row number and the others follow from it: `cents` = k / 100, `day`, `at` = k milliseconds;
    /// `n` = k, but NULL in the third row group and in every odd row; `bare` = k, without statistics.
    fn table() -> (tempfile::TempDir, Arc<Table>) {
        let dir = tempfile::tempdir().unwrap();
        let cents = Decimal128Array::from_iter_values((0..ROWS).map(i128::from));
        let n = (0..ROWS).map(|k| (k % 2 == 0 && k / GROUP as i64 != 2).then_some(k));
        let columns: [(&str, ArrayRef); 7] = [
            ("k", Arc::new(Int64Array::from_iter_values(0..ROWS))),
            ("cents", Arc::new(cents.with_precision_and_scale(15, 2).unwrap())),
            ("day", Arc::new(Date32Array::from_iter_values(0..ROWS as i32))),
            ("at", Arc::new(TimestampMillisecondArray::from_iter_values(0..ROWS))),
            ("n", Arc::new(Int64Array::from_iter(n))),
            ("bare", Arc::new(Int64Array::from_iter_values(0..ROWS))),
            ("s", Arc::new(StringArray::from_iter_values((0..ROWS).map(|k| k.to_string())))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(GROUP as usize))
            .set_column_statistics_enabled(ColumnPath::from("bare"), EnabledStatistics::None);
        let file = File::create(dir.path().join("t.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let table = Arc::clone(DataSet::open(dir.path()).unwrap().table("t").unwrap());
        (dir, table)
    }

    const PLAN: &str = r#"/*--- kernel plan 1
sql = ""
framework = "cuda"
level = "full"
phases = []
result = { size = "n", columns = [] }
[params]
a = { type = "int64", default = "0" }
b = { type = "int64", default = "0" }
day = { type = "date", default = "1970-01-01" }
at = { type = "timestamp", default = "1970-01-01" }
fine = { type = "decimal(38,4)", default = "0" }
---*/
"#;

    /// The hundreds of rows that are kept; parameters are `a`, `b`, and for all others `b`.
    fn kept(table: &Table, predicate: &str, a: i128, b: i128) -> Vec<Range<u64>> {
        let plan = text::parse(PLAN).unwrap();
        let prune = Prune::new(&predicate.parse().unwrap(), &plan);
        let values = [a, b, b, b, b].map(ParamWord::Int);
        let kept = prune.keeps(&values, table).unwrap();
        assert!(kept.iter().all(|r| r.start % GROUP == 0 && r.end % GROUP == 0 && r.start < r.end));
        kept.into_iter().map(|r| r.start / GROUP..r.end / GROUP).collect()
    }

    #[test]
    fn row_groups_are_kept_by_their_bounds() {
        let (_dir, table) = table();
        for (predicate, a, b, expected) in [
            ("k = :a", 199, 0, vec![1..2]),
            ("k < :a", 200, 0, vec![0..2]),
            ("k <= :a", 200, 0, vec![0..3]),
            ("k > :a", 899, 0, vec![9..10]),
            ("k >= :a", 899, 0, vec![8..10]),
            ("k >= :a", 1000, 0, vec![]),
            ("k < :a", 0, 0, vec![]),
            ("k >= :a and k < :b", 250, 500, vec![2..5]),
            ("k < :a or k >= :b", 100, 800, vec![0..1, 8..10]),
            ("k = :a and k = :b", 1, 2, vec![0..1]),
            ("k = :a and k = :b", 1, 200, vec![]),
            ("k = :a or k = :b or n = :b", 1, 1000, vec![0..1, 2..3]),
            ("k < :a and (n = :a or n = :b)", 500, 302, vec![2..4]),
            // Bounds of nothing but NULLs, and missing ones.
            ("n = :a", 700, 0, vec![2..3, 7..8]),
            ("bare = :a", 700, 0, vec![0..10]),
            ("bare = :a and k < :b", 700, 100, vec![0..1]),
            ("bare = :a or k < :b", 700, 100, vec![0..10]),
        ] {
            assert_eq!(kept(&table, predicate, a, b), expected, "{predicate} with {a} and {b}");
        }
    }

    #[test]
    fn units_are_those_of_the_values() {
        let (_dir, table) = table();
        for (predicate, b, expected) in [
            ("cents >= :b", 3, vec![3..10]),
            ("cents > :fine", 29_899, vec![2..10]),
            ("cents > :fine", 29_900, vec![3..10]),
            ("cents >= :fine", 29_901, vec![3..10]),
            ("cents = :fine", 1, vec![0..1]),
            ("k = :fine", 5_000_000, vec![5..6]),
            ("k < :fine", i128::MIN + 1, vec![]),
            ("day < :day", 101, vec![0..2]),
            ("at >= :at", 899_001, vec![9..10]),
            ("at >= :at", 899_000, vec![8..10]),
        ] {
            assert_eq!(kept(&table, predicate, 0, b), expected, "{predicate} with {b}");
        }
    }

    #[test]
    fn no_matching_row_is_pruned() {
        let (_dir, table) = table();
        for a in (-50..1050).step_by(37) {
            for b in (-50..1050).step_by(53) {
                for predicate in ["k >= :a and k <= :b", "k < :a or k > :b", "n = :a or k = :b", "n <= :a"] {
                    let groups = kept(&table, predicate, a, b);
                    for k in 0..i128::from(ROWS) {
                        let n = (k % 2 == 0 && k / GROUP as i128 != 2).then_some(k);
                        let holds = match predicate {
                            "k >= :a and k <= :b" => k >= a && k <= b,
                            "k < :a or k > :b" => k < a || k > b,
                            "n = :a or k = :b" => n == Some(a) || k == b,
                            _ => n.is_some_and(|n| n <= a),
                        };
                        let group = k as u64 / GROUP;
                        assert!(!holds || groups.iter().any(|g| g.contains(&group)), "{predicate}: {k}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_missing_column_is_named() {
        let (_dir, table) = table();
        let prune = Prune::new(&"x = :a".parse().unwrap(), &text::parse(PLAN).unwrap());
        let error = prune.keeps(&[ParamWord::Int(0)], &table).unwrap_err().to_string();
        assert!(error.contains("`x`") || error.contains("t.x"), "{error}");
    }

    #[test]
    fn scaled_numbers_compare_exactly() {
        assert_eq!(compare(150, 2, 15, 1), Ordering::Equal);
        assert_eq!(compare(-1, 2, 0, 0), Ordering::Less);
        assert_eq!(compare(i128::MAX, 0, i128::MAX, 1), Ordering::Greater);
        assert_eq!(compare(i128::MAX, 2, i128::MAX / 2, 0), Ordering::Less);
        assert_eq!(compare(i128::MIN, 2, i128::MIN / 2, 0), Ordering::Greater);
        assert_eq!(compare(5, 127, 0, -128), Ordering::Greater);
        assert_eq!(compare(5, 127, 1, -128), Ordering::Less);
    }
}
