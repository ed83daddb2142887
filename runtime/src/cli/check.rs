//! Whether an answer is correct: columns, then rows, then cells against a reference.
//!
//! Rows that tie under ORDER BY may come in any order, under LIMIT only ties at its border may differ, and
//! without ORDER BY rows are a multiset. Invariant: nothing is compared with a tolerance unless one side is
//! floating point.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{self as types, DataType, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// Differing cells that a mismatch shows.
const SAMPLE: usize = 5;

/// When two cells are equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Types and values equal; floating point by relative error 1e-12 times the square root of `rows`.
    Exact {
        /// Rows of the largest table the query reads.
        rows: u64,
    },
    /// For stored answers, whose types are another system's: an integral double equals an integer, numbers
    /// of different width compare by value, a double and a decimal of scale s differ by at most 10^-s plus
    /// 1e-12 relative; all else exact.
    Stored,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Exact { rows } => write!(
                f,
                "every cell equal; floating point within relative {:.1e} (1e-12 * sqrt({rows} rows))",
                tolerance(*rows)
            ),
            Rule::Stored => f.write_str(
                "columns by position; an integral double equals an integer; a double against a decimal of \
                 scale s within 10^-s plus 1e-12 relative; all else exact",
            ),
        }
    }
}

fn tolerance(rows: u64) -> f64 {
    1e-12 * (rows.max(1) as f64).sqrt()
}

/// What the query says about the order of its rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderInfo {
    /// Columns of the reference that are sort keys, most significant first. They may lie beyond the answer's
    /// own columns: then they only serve to recognise ties.
    pub keys: Vec<usize>,
    /// The query has LIMIT: its last rows may be some of more that tie.
    pub limited: bool,
    /// The query has OFFSET: its first rows may be some of more that tie.
    pub skipped: bool,
}

/// Streams all rows, in any order, that the reference has without LIMIT and OFFSET, in the reference's columns.
pub type Unlimited<'a> = dyn Fn(&mut dyn FnMut(&RecordBatch)) -> Result<(), String> + 'a;

/// What was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Rows, equal on both sides.
    pub rows: usize,
    /// Columns, equal on both sides.
    pub columns: usize,
}

/// A cell that differs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CellDiff {
    /// Row of the answer, from 0.
    pub row: usize,
    /// Column's name.
    pub column: String,
    /// The answer's value.
    pub got: String,
    /// The reference's value.
    pub want: String,
}

/// How an answer differs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Mismatch {
    /// One line.
    pub message: String,
    /// Up to five differing cells.
    pub cells: Vec<CellDiff>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for cell in &self.cells {
            write!(f, "\n  row {}, {}: got {}, want {}", cell.row, cell.column, cell.got, cell.want)?;
        }
        Ok(())
    }
}

fn mismatch(message: String) -> Mismatch {
    Mismatch { message, cells: Vec::new() }
}

/// A value free of its Arrow type's width.
#[derive(Debug, Clone, PartialEq)]
enum Cell {
    Null,
    Bool(bool),
    Int(i128),
    Decimal(i128, i8),
    Float(f64),
    Text(String),
    Date(i32),
    Micros(i64),
    Other(String),
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Null => f.write_str("NULL"),
            Cell::Bool(v) => write!(f, "{v}"),
            Cell::Int(v) => write!(f, "{v}"),
            Cell::Decimal(v, s) => f.write_str(&decimal_text(*v, *s)),
            Cell::Float(v) => write!(f, "{v:?}"),
            Cell::Text(v) => write!(f, "'{v}'"),
            Cell::Date(v) => f.write_str(
                &types::Date32Type::to_naive_date_opt(*v)
                    .map_or_else(|| format!("day {v}"), |date| date.to_string()),
            ),
            Cell::Micros(v) => write!(f, "{v} us since 1970"),
            Cell::Other(v) => f.write_str(v),
        }
    }
}

fn decimal_text(value: i128, scale: i8) -> String {
    use arrow::datatypes::DecimalType;
    types::Decimal128Type::format_decimal(value, 38, scale)
}

/// The cells of a column.
fn cells(array: &ArrayRef) -> Result<Vec<Cell>, Mismatch> {
    let to = |ty: DataType| cast(array, &ty).map_err(|e| mismatch(format!("cannot read a column: {e}")));
    let collect = |array: &dyn Array, value: &dyn Fn(usize) -> Cell| {
        (0..array.len()).map(|i| if array.is_null(i) { Cell::Null } else { value(i) }).collect()
    };
    Ok(match array.data_type() {
        DataType::Boolean => collect(array, &|i| Cell::Bool(array.as_boolean().value(i))),
        DataType::UInt64 => {
            let values = array.as_primitive::<types::UInt64Type>();
            collect(array, &|i| Cell::Int(values.value(i).into()))
        }
        ty if ty.is_integer() => {
            let array = to(DataType::Int64)?;
            let values = array.as_primitive::<types::Int64Type>();
            collect(values, &|i| Cell::Int(values.value(i).into()))
        }
        ty if ty.is_floating() => {
            let array = to(DataType::Float64)?;
            let values = array.as_primitive::<types::Float64Type>();
            collect(values, &|i| Cell::Float(values.value(i)))
        }
        DataType::Decimal32(_, s) | DataType::Decimal64(_, s) | DataType::Decimal128(_, s) => {
            let array = to(DataType::Decimal128(38, *s))?;
            let values = array.as_primitive::<types::Decimal128Type>();
            collect(values, &|i| Cell::Decimal(values.value(i), *s))
        }
        DataType::Decimal256(_, s) => {
            let values = array.as_primitive::<types::Decimal256Type>();
            collect(values, &|i| match values.value(i).to_i128() {
                Some(value) => Cell::Decimal(value, *s),
                None => Cell::Other(values.value_as_string(i)),
            })
        }
        DataType::Date32 | DataType::Date64 => {
            let array = to(DataType::Date32)?;
            let values = array.as_primitive::<types::Date32Type>();
            collect(values, &|i| Cell::Date(values.value(i)))
        }
        DataType::Timestamp(..) => {
            let array = to(DataType::Timestamp(TimeUnit::Microsecond, None))?;
            let values = array.as_primitive::<types::TimestampMicrosecondType>();
            collect(values, &|i| Cell::Micros(values.value(i)))
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..) => {
            let array = to(DataType::Utf8)?;
            let values = array.as_string::<i32>();
            collect(values, &|i| Cell::Text(values.value(i).to_owned()))
        }
        _ => {
            let options = FormatOptions::new();
            let text = ArrayFormatter::try_new(array, &options).map_err(|e| mismatch(e.to_string()))?;
            collect(array, &|i| Cell::Other(text.value(i).to_string()))
        }
    })
}

/// A batch as columns of cells.
struct Rows {
    columns: Vec<Vec<Cell>>,
    rows: usize,
}

impl Rows {
    fn new(batch: &RecordBatch) -> Result<Rows, Mismatch> {
        let columns = batch.columns().iter().map(cells).collect::<Result<_, _>>()?;
        Ok(Rows { columns, rows: batch.num_rows() })
    }

    fn row(&self, row: usize) -> impl Iterator<Item = &Cell> {
        self.columns.iter().map(move |column| &column[row])
    }
}

impl Rule {
    fn equal(self, got: &Cell, want: &Cell) -> bool {
        match (self, got, want) {
            (Rule::Exact { rows }, Cell::Float(a), Cell::Float(b)) => near(*a, *b, tolerance(rows) * b.abs()),
            (Rule::Exact { .. }, _, _) => got == want,
            (Rule::Stored, Cell::Float(a), Cell::Float(b)) => near(*a, *b, 0.0),
            (Rule::Stored, Cell::Decimal(a, s), Cell::Float(b))
            | (Rule::Stored, Cell::Float(b), Cell::Decimal(a, s)) => {
                let unit = 10f64.powi(-i32::from(*s));
                near(*a as f64 * unit, *b, unit + 1e-12 * b.abs())
            }
            (Rule::Stored, Cell::Int(a), Cell::Float(b)) | (Rule::Stored, Cell::Float(b), Cell::Int(a)) => {
                b.fract() == 0.0 && *a as f64 == *b
            }
            (Rule::Stored, _, _) => canonical(got) == canonical(want),
        }
    }

    fn rows_equal<'a>(
        self,
        got: impl Iterator<Item = &'a Cell>,
        want: impl Iterator<Item = &'a Cell>,
    ) -> bool {
        got.zip(want).all(|(got, want)| self.equal(got, want))
    }
}

/// NaN equals NaN and infinities equal themselves.
fn near(a: f64, b: f64, tolerance: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance
}

/// Integers and decimals of any scale in one form.
fn canonical(cell: &Cell) -> Cell {
    let (mut value, mut scale) = match cell {
        Cell::Int(value) => (*value, 0),
        Cell::Decimal(value, scale) => (*value, *scale),
        other => return other.clone(),
    };
    while scale > 0 && value % 10 == 0 {
        (value, scale) = (value / 10, scale - 1);
    }
    Cell::Decimal(value, scale)
}

/// Compares an answer with a reference, whose columns beyond the answer's are hidden sort keys.
///
/// `visible` is the number of columns the answer must have. `unlimited` serves to judge rows that tie at
/// LIMIT's border; without it they need only have the border's sort keys.
///
/// # Errors
/// The first of columns, rows and cells that differs, with a sample of the cells.
pub fn compare(
    ours: &RecordBatch,
    reference: &RecordBatch,
    visible: usize,
    rule: Rule,
    order: &OrderInfo,
    unlimited: Option<&Unlimited<'_>>,
) -> Result<Summary, Mismatch> {
    let columns = ours.num_columns();
    if columns != visible {
        return Err(mismatch(format!("{columns} columns, the reference has {visible}")));
    }
    if let Rule::Exact { .. } = rule {
        for (got, want) in ours.schema().fields().iter().zip(reference.schema().fields()) {
            if family(got.data_type()) != family(want.data_type()) {
                let (name, got, want) = (got.name(), got.data_type(), want.data_type());
                return Err(mismatch(format!("column {name} is {got}, the reference has {want}")));
            }
        }
    }
    if ours.num_rows() != reference.num_rows() {
        return Err(mismatch(format!(
            "{} rows, the reference has {}",
            ours.num_rows(),
            reference.num_rows()
        )));
    }
    // Looking at cells one by one is for answers that differ.
    if ours.columns() == reference.columns() {
        return Ok(Summary { rows: ours.num_rows(), columns });
    }
    let (got, want) = (Rows::new(ours)?, Rows::new(reference)?);
    let mut diffs = Diffs { ours, visible, rule, total: 0, cells: Vec::new() };
    for group in ties(&want, rule, &order.keys) {
        if group.clone().all(|row| rule.rows_equal(got.row(row), want.row(row))) {
            continue;
        }
        let (missing, extra) = unmatched(rule, &got, group.clone(), &want, group.clone(), visible);
        let at_border = (order.limited && group.end == want.rows) || (order.skipped && group.start == 0);
        if extra.is_empty()
            || (at_border && border_holds(rule, &got, &extra, &want, &group, order, visible, unlimited)?)
        {
            continue;
        }
        diffs.add(&got, &extra, &want, &missing);
    }
    diffs.finish(got.rows)?;
    Ok(Summary { rows: got.rows, columns })
}

/// Types that count as the same: text however stored, integers and timestamps of any width.
fn family(ty: &DataType) -> DataType {
    match ty {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::Dictionary(_, value) => family(value),
        DataType::Timestamp(..) => DataType::Timestamp(TimeUnit::Microsecond, None),
        ty if ty.is_integer() => DataType::Int64,
        other => other.clone(),
    }
}

/// Runs of reference rows whose sort keys are equal; all rows where there are no keys.
fn ties(want: &Rows, rule: Rule, keys: &[usize]) -> Vec<Range<usize>> {
    let keys: Vec<&Vec<Cell>> = keys.iter().filter_map(|&key| want.columns.get(key)).collect();
    let mut groups = Vec::new();
    let mut start = 0;
    for row in 1..=want.rows {
        if row == want.rows || keys.iter().any(|key| !rule.equal(&key[row], &key[row - 1])) {
            groups.push(start..row);
            start = row;
        }
    }
    groups
}

/// Rows of `want` without a partner in `got`, and rows of `got` without one in `want`.
fn unmatched(
    rule: Rule,
    got: &Rows,
    got_rows: Range<usize>,
    want: &Rows,
    want_rows: Range<usize>,
    visible: usize,
) -> (Vec<usize>, Vec<usize>) {
    let inexact: Vec<bool> =
        (0..visible).map(|c| has_floats(&got.columns[c]) || has_floats(&want.columns[c])).collect();
    let mut buckets: HashMap<String, Vec<usize>> = HashMap::new();
    for row in want_rows {
        buckets.entry(exact_key(want, row, &inexact)).or_default().push(row);
    }
    // Later rows are taken first from a bucket's end: reverse to keep partners in order.
    buckets.values_mut().for_each(|rows| rows.reverse());
    let mut extra = Vec::new();
    for row in got_rows {
        let bucket = buckets.get_mut(&exact_key(got, row, &inexact));
        let partner = bucket.and_then(|rows| {
            let equal = |want_row: &usize| {
                let pairs = got.row(row).zip(want.row(*want_row)).zip(&inexact);
                pairs.filter(|(_, inexact)| **inexact).all(|((g, w), _)| rule.equal(g, w))
            };
            let at = rows.iter().rposition(equal)?;
            Some(rows.remove(at))
        });
        if partner.is_none() {
            extra.push(row);
        }
    }
    let mut missing: Vec<usize> = buckets.into_values().flatten().collect();
    missing.sort_unstable();
    (missing, extra)
}

fn has_floats(column: &[Cell]) -> bool {
    column.iter().any(|cell| matches!(cell, Cell::Float(_)))
}

/// The row's cells outside `inexact` columns as one text; equal texts are equal rows there.
fn exact_key(rows: &Rows, row: usize, inexact: &[bool]) -> String {
    use std::fmt::Write;
    let mut key = String::new();
    for (cell, _) in rows.row(row).zip(inexact).filter(|(_, inexact)| !**inexact) {
        // Infallible: writing to a String.
        let _ = match canonical(cell) {
            Cell::Text(text) => write!(key, "t{}:{text}", text.len()),
            cell => write!(key, "{cell:?};"),
        };
    }
    key
}

/// Whether the `extra` rows of a group cut by LIMIT or OFFSET are others that tie with the reference's.
#[expect(clippy::too_many_arguments, reason = "one call, and the parts have no other meaning together")]
fn border_holds(
    rule: Rule,
    got: &Rows,
    extra: &[usize],
    want: &Rows,
    group: &Range<usize>,
    order: &OrderInfo,
    visible: usize,
    unlimited: Option<&Unlimited<'_>>,
) -> Result<bool, Mismatch> {
    let border = group.start;
    let same_keys = |rows: &Rows, row: usize, keys: &[usize]| {
        keys.iter().all(|&key| rule.equal(&rows.columns[key][row], &want.columns[key][border]))
    };
    let visible_keys: Vec<usize> = order.keys.iter().copied().filter(|key| *key < visible).collect();
    if !extra.iter().all(|&row| same_keys(got, row, &visible_keys)) {
        return Ok(false);
    }
    let Some(unlimited) = unlimited else {
        return Ok(true);
    };
    // Candidates: rows that tie at the border and whose exact cells occur among the group's rows.
    let inexact: Vec<bool> =
        (0..visible).map(|c| has_floats(&got.columns[c]) || has_floats(&want.columns[c])).collect();
    let wanted: std::collections::HashSet<String> =
        group.clone().map(|row| exact_key(got, row, &inexact)).collect();
    let mut candidates = Rows { columns: vec![Vec::new(); want.columns.len()], rows: 0 };
    let mut failure = None;
    let read = unlimited(&mut |batch| match Rows::new(batch) {
        Ok(rows) => {
            for row in 0..rows.rows {
                if same_keys(&rows, row, &order.keys) && wanted.contains(&exact_key(&rows, row, &inexact)) {
                    for (column, cell) in candidates.columns.iter_mut().zip(rows.row(row)) {
                        column.push(cell.clone());
                    }
                    candidates.rows += 1;
                }
            }
        }
        Err(error) => failure = Some(error),
    });
    read.map_err(mismatch)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let all = 0..candidates.rows;
    let (_, not_there) = unmatched(rule, got, group.clone(), &candidates, all, visible);
    Ok(not_there.is_empty())
}

/// Differing cells as they are found.
struct Diffs<'a> {
    ours: &'a RecordBatch,
    visible: usize,
    rule: Rule,
    total: usize,
    cells: Vec<CellDiff>,
}

impl Diffs<'_> {
    fn add(&mut self, got: &Rows, extra: &[usize], want: &Rows, missing: &[usize]) {
        self.total += extra.len();
        for (&got_row, &want_row) in extra.iter().zip(missing) {
            for column in 0..self.visible {
                let (got, want) = (&got.columns[column][got_row], &want.columns[column][want_row]);
                if self.cells.len() < SAMPLE && !self.rule.equal(got, want) {
                    let column = self.ours.schema().field(column).name().clone();
                    self.cells.push(CellDiff {
                        row: got_row,
                        column,
                        got: got.to_string(),
                        want: want.to_string(),
                    });
                }
            }
        }
    }

    fn finish(self, rows: usize) -> Result<(), Mismatch> {
        if self.total == 0 {
            return Ok(());
        }
        Err(Mismatch { message: format!("{} of {rows} rows differ", self.total), cells: self.cells })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray, StringViewArray};

    use super::*;

    const EXACT: Rule = Rule::Exact { rows: 1 };

    fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
        let names = ["a", "b", "c", "d"];
        RecordBatch::try_from_iter(names.iter().zip(columns).map(|(n, c)| (*n, c))).unwrap()
    }

    fn ints(values: &[i64]) -> ArrayRef {
        Arc::new(Int64Array::from(values.to_vec()))
    }

    fn texts(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    fn floats(values: &[f64]) -> ArrayRef {
        Arc::new(Float64Array::from(values.to_vec()))
    }

    fn decimals(values: &[i128], precision: u8, scale: i8) -> ArrayRef {
        Arc::new(Decimal128Array::from(values.to_vec()).with_precision_and_scale(precision, scale).unwrap())
    }

    fn same(
        ours: &RecordBatch,
        reference: &RecordBatch,
        rule: Rule,
        order: &OrderInfo,
    ) -> Result<Summary, Mismatch> {
        compare(ours, reference, reference.num_columns(), rule, order, None)
    }

    fn by(keys: &[usize], limited: bool) -> OrderInfo {
        OrderInfo { keys: keys.to_vec(), limited, skipped: false }
    }

    #[test]
    fn without_order_rows_are_a_multiset() {
        let none = OrderInfo::default();
        let want = batch(vec![ints(&[1, 2, 2])]);
        assert!(same(&batch(vec![ints(&[2, 1, 2])]), &want, EXACT, &none).is_ok());
        let wrong = same(&batch(vec![ints(&[2, 1, 1])]), &want, EXACT, &none).unwrap_err();
        assert_eq!(wrong.message, "1 of 3 rows differ");
        assert_eq!(
            wrong.cells[0],
            CellDiff { row: 2, column: "a".into(), got: "1".into(), want: "2".into() }
        );
    }

    #[test]
    fn order_binds_all_but_ties() {
        let want = batch(vec![ints(&[1, 1, 2]), texts(&["x", "y", "z"])]);
        let tied = batch(vec![ints(&[1, 1, 2]), texts(&["y", "x", "z"])]);
        let wrong = batch(vec![ints(&[1, 2, 1]), texts(&["x", "z", "y"])]);
        assert!(same(&tied, &want, EXACT, &by(&[0], false)).is_ok());
        assert!(same(&tied, &want, EXACT, &by(&[0, 1], false)).is_err());
        assert!(same(&wrong, &want, EXACT, &by(&[0], false)).is_err());
        assert!(same(&wrong, &want, EXACT, &OrderInfo::default()).is_ok());
    }

    #[test]
    fn only_ties_at_the_border_may_differ_under_limit() {
        let want = batch(vec![ints(&[1, 2, 2]), texts(&["x", "y", "z"])]);
        let other_tie = batch(vec![ints(&[1, 2, 2]), texts(&["x", "w", "z"])]);
        let inner = batch(vec![ints(&[1, 2, 2]), texts(&["w", "y", "z"])]);
        let all = batch(vec![ints(&[2, 2, 1, 2, 3]), texts(&["w", "z", "x", "y", "v"])]);
        let compare_with = |ours: &RecordBatch, all: &RecordBatch| {
            let unlimited = |each: &mut dyn FnMut(&RecordBatch)| {
                each(all);
                Ok(())
            };
            compare(ours, &want, 2, EXACT, &by(&[0], true), Some(&unlimited))
        };
        assert!(same(&other_tie, &want, EXACT, &by(&[0], false)).is_err());
        assert!(same(&other_tie, &want, EXACT, &by(&[0], true)).is_ok());
        assert!(same(&inner, &want, EXACT, &by(&[0], true)).is_err());
        assert!(compare_with(&other_tie, &all).is_ok());
        assert!(compare_with(&other_tie, &want).is_err(), "w is no row of the reference");
        let doubled = batch(vec![ints(&[1, 2, 2]), texts(&["x", "y", "y"])]);
        assert!(compare_with(&doubled, &all).is_err());
    }

    #[test]
    fn hidden_keys_tell_ties_apart() {
        let want = batch(vec![texts(&["x", "y", "z"]), ints(&[1, 1, 2])]);
        let order = by(&[1], false);
        assert!(compare(&batch(vec![texts(&["y", "x", "z"])]), &want, 1, EXACT, &order, None).is_ok());
        assert!(compare(&batch(vec![texts(&["x", "z", "y"])]), &want, 1, EXACT, &order, None).is_err());
    }

    #[test]
    fn exact_wants_types_and_tolerates_only_float_noise() {
        let none = OrderInfo::default();
        let view: ArrayRef = Arc::new(StringViewArray::from(vec!["x"]));
        assert!(same(&batch(vec![texts(&["x"])]), &batch(vec![view]), EXACT, &none).is_ok());
        let narrow: ArrayRef = Arc::new(Int32Array::from(vec![1]));
        assert!(same(&batch(vec![narrow]), &batch(vec![ints(&[1])]), EXACT, &none).is_ok());
        assert!(same(&batch(vec![ints(&[1])]), &batch(vec![floats(&[1.0])]), EXACT, &none).is_err());
        let (a, b) = (batch(vec![decimals(&[100], 15, 2)]), batch(vec![decimals(&[1000], 15, 3)]));
        assert!(same(&a, &b, EXACT, &none).unwrap_err().message.contains("column a is"));
        let (a, b) = (batch(vec![floats(&[1.0 + 1e-10])]), batch(vec![floats(&[1.0])]));
        assert!(same(&a, &b, EXACT, &none).is_err());
        assert!(same(&a, &b, Rule::Exact { rows: 1_000_000 }, &none).is_ok());
    }

    #[test]
    fn stored_answers_compare_by_value() {
        let none = OrderInfo::default();
        let stored = |ours: ArrayRef, want: ArrayRef| {
            same(&batch(vec![ours]), &batch(vec![want]), Rule::Stored, &none)
        };
        assert!(stored(ints(&[7]), floats(&[7.0])).is_ok());
        assert!(stored(ints(&[7]), floats(&[7.5])).is_err());
        assert!(stored(ints(&[7]), decimals(&[700], 38, 2)).is_ok());
        assert!(stored(decimals(&[12345], 19, 6), floats(&[0.0123454])).is_ok());
        assert!(stored(decimals(&[12345], 19, 6), floats(&[0.0123465])).is_err());
        assert!(stored(texts(&["x"]), texts(&["y"])).is_err());
    }

    #[test]
    fn shapes_come_first() {
        let none = OrderInfo::default();
        let one = batch(vec![ints(&[1])]);
        let wide = batch(vec![ints(&[1]), ints(&[1])]);
        assert_eq!(same(&one, &wide, EXACT, &none).unwrap_err().message, "1 columns, the reference has 2");
        let long = batch(vec![ints(&[1, 2])]);
        assert_eq!(same(&one, &long, EXACT, &none).unwrap_err().message, "1 rows, the reference has 2");
    }

    #[test]
    fn nulls_equal_only_nulls() {
        let null: ArrayRef = Arc::new(Int64Array::from(vec![None]));
        let none = OrderInfo::default();
        assert!(same(&batch(vec![null.clone()]), &batch(vec![null.clone()]), EXACT, &none).is_ok());
        assert!(same(&batch(vec![null]), &batch(vec![ints(&[0])]), EXACT, &none).is_err());
    }
}
