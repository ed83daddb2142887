//! [`Kind::Perturbed`](super::Kind): other values in the same places.
//!
//! Two passes over each table: the first finds the columns of few values, the second writes. Columns draw from
//! random numbers of their own, so that what one becomes does not depend on the others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Decimal128Type, Field, Float64Type, Int64Type, TimeUnit};
use arrow::row::{RowConverter, SortField};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::{Sink, Source, Table, cast, is_key};

/// A column of more distinct values is not drawn anew.
const FEW_VALUES: usize = 50;
/// How far a number moves at most: 30 %, in millionths.
const MOST_MILLIONTHS: i128 = 300_000;
/// How far a date moves at most.
const MOST_DAYS: i64 = 30;

/// Writes the tables to `target`, in files and row groups like those in `data`.
pub(super) fn write(tables: &[Table], data: &Path, seed: u64, target: &Path) -> Result<()> {
    for table in tables {
        let few = few_values(table)?;
        let mut columns = Vec::new();
        for (field, few) in table.schema().fields().iter().zip(few) {
            let mut rng = table.rng(seed, field.name());
            columns.push((Change::of(field, few, &mut rng), rng));
        }
        for file in &table.files {
            write_file(file, &mut columns, target.join(file.path.strip_prefix(data)?))?;
        }
    }
    Ok(())
}

fn write_file(file: &Source, columns: &mut [(Change, SmallRng)], path: PathBuf) -> Result<()> {
    let mut sink = Sink::create(path, file.metadata.schema())?;
    for group in 0..file.row_groups() {
        for batch in file.batches(group)? {
            let batch = batch?;
            let mut changed = Vec::new();
            for (number, (change, rng)) in columns.iter_mut().enumerate() {
                changed.push(change.apply(batch.column(number), rng).with_context(|| {
                    let schema = file.metadata.schema();
                    format!("{}, column `{}`", file.path.display(), schema.field(number).name())
                })?);
            }
            sink.write(changed)?;
        }
        sink.end_row_group()?;
    }
    sink.close()
}

/// How a column changes. NULLs stay.
enum Change {
    Keep,
    /// Drawn from the column's distinct values.
    Draw(ArrayRef),
    /// The column's distinct values, each once: what identifies a row still does. The rest of the row numbers.
    Deal(ArrayRef, Vec<u32>),
    /// Integers and decimals: the scale, and the least and the greatest value without it.
    Scale(i8, i128, i128),
    /// Floats: the greatest finite value.
    ScaleFloat(f64),
    /// Dates and timestamps: units of a day, and the least and the greatest value.
    Shift(i64, i64, i64),
}

impl Change {
    fn of(field: &Field, few: Option<Distinct>, rng: &mut SmallRng) -> Change {
        if is_key(field) {
            return Change::Keep;
        }
        let ty = field.data_type();
        match few {
            Some(Distinct { values, rows }) if values.len() as u64 == rows => {
                let mut order: Vec<u32> = (0..values.len() as u32).collect();
                order.shuffle(rng);
                Change::Deal(values, order)
            }
            Some(Distinct { values, .. }) => Change::Draw(values),
            None => float(ty)
                .map(Change::ScaleFloat)
                .or_else(|| exact(ty).map(|(scale, least, most)| Change::Scale(scale, least, most)))
                .or_else(|| day(ty).map(|(day, least, most)| Change::Shift(day, least, most)))
                .unwrap_or(Change::Keep),
        }
    }

    fn apply(&mut self, array: &ArrayRef, rng: &mut SmallRng) -> Result<ArrayRef> {
        let changed: ArrayRef = match self {
            Change::Keep => return Ok(array.clone()),
            Change::Draw(values) => {
                let most = values.len() as u32;
                pick(array, values, || rng.random_range(0..most))?
            }
            Change::Deal(values, order) => pick(array, values, || order.pop().unwrap_or(0))?,
            Change::Scale(scale, least, most) => {
                let numbers = cast(array, &DataType::Decimal128(38, *scale))?;
                map::<Decimal128Type>(&numbers, |v| {
                    let by = rng.random_range(-MOST_MILLIONTHS..=MOST_MILLIONTHS);
                    let by = v / 1_000_000 * by + v % 1_000_000 * by / 1_000_000;
                    v.saturating_add(by).clamp(*least, *most)
                })
            }
            Change::ScaleFloat(most) => {
                let share = MOST_MILLIONTHS as f64 / 1e6;
                map::<Float64Type>(&cast(array, &DataType::Float64)?, |v| {
                    let by = rng.random_range(-share..=share);
                    if v.is_finite() { (v + v * by).clamp(-*most, *most) } else { v }
                })
            }
            Change::Shift(day, least, most) => map::<Int64Type>(&cast(array, &DataType::Int64)?, |v| {
                let days = rng.random_range(-MOST_DAYS..=MOST_DAYS);
                v.saturating_add(days * *day).clamp(*least, *most)
            }),
        };
        cast(&changed, array.data_type())
    }
}

/// Each value changed, those below a NULL, too.
fn map<T: ArrowPrimitiveType>(array: &ArrayRef, change: impl FnMut(T::Native) -> T::Native) -> ArrayRef {
    let array = array.as_primitive::<T>();
    let values: Vec<T::Native> = array.values().iter().copied().map(change).collect();
    let changed = PrimitiveArray::<T>::new(values.into(), array.nulls().cloned());
    Arc::new(changed.with_data_type(array.data_type().clone()))
}

/// One of `values` for each row that is not NULL.
fn pick(array: &ArrayRef, values: &ArrayRef, mut index: impl FnMut() -> u32) -> Result<ArrayRef> {
    let nulls = array.logical_nulls();
    let valid = |row| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
    let indices: UInt32Array = (0..array.len()).map(|row| valid(row).then(&mut index)).collect();
    Ok(take(values, &indices, None)?)
}

/// Of integers and decimals of up to 128 bits: the scale, and the least and the greatest value without it.
fn exact(ty: &DataType) -> Option<(i8, i128, i128)> {
    use DataType::*;
    let signed = |bits: u32| Some((0, -(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1));
    let unsigned = |bits: u32| Some((0, 0, (1i128 << bits) - 1));
    match ty {
        Int8 => signed(8),
        Int16 => signed(16),
        Int32 => signed(32),
        Int64 => signed(64),
        UInt8 => unsigned(8),
        UInt16 => unsigned(16),
        UInt32 => unsigned(32),
        UInt64 => unsigned(64),
        Decimal32(precision, scale) | Decimal64(precision, scale) | Decimal128(precision, scale) => {
            let most = 10i128.checked_pow(u32::from(*precision))? - 1;
            Some((*scale, -most, most))
        }
        _ => None,
    }
}

/// Of floats: the greatest finite value.
fn float(ty: &DataType) -> Option<f64> {
    match ty {
        DataType::Float16 => Some(65504.0),
        DataType::Float32 => Some(f64::from(f32::MAX)),
        DataType::Float64 => Some(f64::MAX),
        _ => None,
    }
}

/// Of dates and timestamps: units of a day, and the least and the greatest value.
fn day(ty: &DataType) -> Option<(i64, i64, i64)> {
    let wide = |day| Some((day, i64::MIN, i64::MAX));
    match ty {
        DataType::Date32 => Some((1, i32::MIN.into(), i32::MAX.into())),
        DataType::Timestamp(TimeUnit::Second, _) => wide(86_400),
        DataType::Date64 | DataType::Timestamp(TimeUnit::Millisecond, _) => wide(86_400_000),
        DataType::Timestamp(TimeUnit::Microsecond, _) => wide(86_400_000_000),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => wide(86_400_000_000_000),
        _ => None,
    }
}

fn is_text(ty: &DataType) -> bool {
    match ty {
        DataType::Dictionary(_, values) => is_text(values),
        _ => ty.is_string(),
    }
}

/// The distinct values of a column of few, ascending; there is at least one.
struct Distinct {
    values: ArrayRef,
    /// Rows that are not NULL.
    rows: u64,
}

/// Per column, its values if it is a text or number column of few, and no key.
fn few_values(table: &Table) -> Result<Vec<Option<Distinct>>> {
    let fields = table.schema().fields();
    let mut found: Vec<Option<Distinct>> = fields.iter().map(|_| None).collect();
    let eligible = |f: &Field| {
        let ty = f.data_type();
        !is_key(f) && (is_text(ty) || exact(ty).is_some() || float(ty).is_some())
    };
    let mut open: Vec<Values> = Vec::new();
    for (column, field) in fields.iter().enumerate().filter(|(_, field)| eligible(field)) {
        let converter = RowConverter::new(vec![SortField::new(field.data_type().clone())])?;
        open.push(Values { column, converter, seen: BTreeSet::new(), rows: 0 });
    }
    for file in &table.files {
        for group in 0..file.row_groups() {
            // A column that turns out to have many values is not read on.
            open.retain(|values| values.seen.len() <= FEW_VALUES);
            if open.is_empty() {
                return Ok(found);
            }
            let columns: Vec<usize> = open.iter().map(|values| values.column).collect();
            for batch in file.columns(group, &columns)? {
                for (values, array) in open.iter_mut().zip(batch?.columns()) {
                    values.add(array)?;
                }
            }
        }
    }
    for values in open {
        if (1..=FEW_VALUES).contains(&values.seen.len()) {
            found[values.column] = Some(Distinct { values: values.array()?, rows: values.rows });
        }
    }
    Ok(found)
}

/// The distinct values of a column so far, encoded so that they order by their bytes.
struct Values {
    column: usize,
    converter: RowConverter,
    seen: BTreeSet<Box<[u8]>>,
    rows: u64,
}

impl Values {
    fn add(&mut self, array: &ArrayRef) -> Result<()> {
        if self.seen.len() > FEW_VALUES {
            return Ok(());
        }
        let nulls = array.logical_nulls();
        let rows = self.converter.convert_columns(std::slice::from_ref(array))?;
        for (number, row) in rows.iter().enumerate() {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(number)) {
                continue;
            }
            self.rows += 1;
            if !self.seen.contains(row.as_ref()) {
                self.seen.insert(row.as_ref().into());
                if self.seen.len() > FEW_VALUES {
                    break;
                }
            }
        }
        Ok(())
    }

    fn array(&self) -> Result<ArrayRef> {
        let parser = self.converter.parser();
        let mut arrays = self.converter.convert_rows(self.seen.iter().map(|bytes| parser.parse(bytes)))?;
        Ok(arrays.swap_remove(0))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Date32Array, Decimal128Array, DictionaryArray, Float32Array, Int8Array, Int64Array, RecordBatch,
        StringArray, TimestampMicrosecondArray,
    };
    use arrow::datatypes::{Date32Type, Float32Type, Int8Type};
    use dkb_runtime::table::DataSet;

    use super::super::tests::{read_table, tpch, write_table};
    use super::super::{Kind, perturb};
    use super::*;

    fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a ArrayRef {
        batch.column_by_name(name).unwrap()
    }

    /// 1000 rows of many values each, some NULL.
    fn made() -> RecordBatch {
        let rows = 0..1000i64;
        let decimals = rows.clone().map(|v| (v % 7 > 0).then_some(i128::from(v) * 99_999 * 100)).collect();
        let decimals = Decimal128Array::from_iter::<Vec<Option<i128>>>(decimals);
        let few: DictionaryArray<Int8Type> =
            (0..1000).map(|v| ["one", "two", "three"].get(v % 4).copied()).collect();
        let columns: [(&str, ArrayRef); 9] = [
            ("t_few", Arc::new(few)),
            ("t_key", Arc::new(Int64Array::from_iter_values(rows.clone()))),
            ("t_linenumber", Arc::new(Int64Array::from_iter_values(rows.clone()))),
            ("t_byte", Arc::new(Int8Array::from_iter_values((0..1000).map(|v| (v % 256 - 128) as i8)))),
            ("t_float", Arc::new(Float32Array::from_iter_values((0..1000).map(|v| v as f32 * 3e35)))),
            ("t_decimal", Arc::new(decimals.with_precision_and_scale(10, 2).unwrap())),
            ("t_date", Arc::new(Date32Array::from_iter_values(0..1000))),
            ("t_time", Arc::new(TimestampMicrosecondArray::from_iter_values(rows.clone()))),
            ("t_text", Arc::new(StringArray::from_iter_values(rows.map(|v| format!("text {v}"))))),
        ];
        let columns = columns.map(|(name, array)| (name, array, true));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    #[test]
    fn values_move_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let (data, output) = (dir.path().join("data"), dir.path().join("out"));
        std::fs::create_dir(&data).unwrap();
        let before = made();
        write_table(&data, "t", &before, 300);
        perturb(&data, Kind::Perturbed, 7, &output).unwrap();
        let after = read_table(&output, "t");
        for kept in ["t_key", "t_linenumber", "t_text"] {
            assert_eq!(column(&after, kept), column(&before, kept));
        }
        for name in ["t_few", "t_byte", "t_float", "t_decimal", "t_date", "t_time"] {
            let (a, b) = (column(&before, name), column(&after, name));
            assert_eq!(a.data_type(), b.data_type());
            assert_eq!(a.nulls(), b.nulls(), "{name}");
            assert_ne!(a, b, "{name}");
        }
        let pairs = |name: &str, ty: DataType| {
            let cast = |batch| cast(column(batch, name), &ty).unwrap();
            let (a, b) = (cast(&before), cast(&after));
            let of = |array: &ArrayRef| array.as_primitive::<Float64Type>().iter().collect::<Vec<_>>();
            of(&a).into_iter().zip(of(&b)).filter_map(|(a, b)| Some((a?, b?))).collect::<Vec<_>>()
        };
        for name in ["t_byte", "t_float", "t_decimal"] {
            let pairs = pairs(name, DataType::Float64);
            assert!(pairs.iter().all(|(a, b)| (a - b).abs() <= a.abs() * 0.300_001), "{name}: {pairs:?}");
            assert!(pairs.iter().any(|(a, b)| (a - b).abs() > a.abs() * 0.25), "{name}: {pairs:?}");
        }
        let bytes = column(&after, "t_byte").as_primitive::<Int8Type>();
        assert!(bytes.iter().flatten().any(|v| v == i8::MIN), "clamped");
        let floats = column(&after, "t_float").as_primitive::<Float32Type>();
        assert!(floats.iter().flatten().all(|v| v.is_finite() && v >= 0.0));
        let dates = column(&after, "t_date").as_primitive::<Date32Type>().iter().flatten();
        let moved: Vec<i32> = dates.enumerate().map(|(row, day)| day - row as i32).collect();
        assert_eq!((moved.iter().min(), moved.iter().max()), (Some(&-30), Some(&30)));
        let times = cast(column(&after, "t_time"), &DataType::Int64).unwrap();
        let times = times.as_primitive::<Int64Type>().iter().flatten().enumerate();
        assert!(times.into_iter().all(|(row, at)| (at - row as i64) % 86_400_000_000 == 0));
        let groups = |dir: &Path| {
            let set = DataSet::open(dir).unwrap();
            let table = set.table("t").unwrap();
            table.row_group_bounds("t_key").unwrap().into_iter().map(|g| g.rows).collect::<Vec<_>>()
        };
        assert_eq!(groups(&data), groups(&output));
    }

    #[test]
    fn few_values_are_drawn_anew() {
        let dir = tempfile::tempdir().unwrap();
        let data = tpch(dir.path());
        let output = dir.path().join("out");
        perturb(&data, Kind::Perturbed, 1, &output).unwrap();
        let distinct = |dir: &Path, table: &str, name: &str| {
            let batch = read_table(dir, table);
            let text = cast(column(&batch, name), &DataType::Utf8).unwrap();
            let all: Vec<String> = text.as_string::<i32>().iter().flatten().map(str::to_owned).collect();
            (all.iter().cloned().collect::<BTreeSet<_>>(), all)
        };
        let drawn = [("lineitem", "l_quantity"), ("lineitem", "l_shipmode"), ("part", "p_brand")];
        // Unique values are permuted: each nation still has a name of its own.
        for (table, name) in drawn.into_iter().chain([("nation", "n_name"), ("region", "r_name")]) {
            let (before, after) = (distinct(&data, table, name), distinct(&output, table, name));
            assert_eq!(before.0, after.0, "{name}");
            assert_ne!(before.1, after.1, "{name}");
        }
        for (table, name) in [("lineitem", "l_comment"), ("part", "p_type"), ("partsupp", "ps_suppkey")] {
            assert_eq!(distinct(&data, table, name).1, distinct(&output, table, name).1, "{name}");
        }
    }
}
