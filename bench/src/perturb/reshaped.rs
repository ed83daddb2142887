//! [`Kind::Reshaped`](super::Kind) and [`Kind::Hostile`](super::Kind): the same relations in another shape.
//!
//! A first pass over all tables collects the values of the keys; then one table at a time is read, permuted and
//! written.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, PrimitiveArray, RecordBatch,
};
use arrow::compute::{interleave, nullif};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use dkb_runtime::table::key_name;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::{SliceRandom, index};

use super::{Sink, Table, cast, is_key, rng};

/// One row in so many is NULL.
const ROWS_PER_NULL: usize = 100;
/// How many labels there are for each value of a key.
const LABELS_PER_VALUE: usize = 4;
/// Row groups have up to two to the power of this many rows.
const ROW_GROUP_BITS: u32 = 17;

/// New values of a key, by the old ones.
type Labels = HashMap<i64, i64>;

/// Writes the tables to `target`, several files each, with or without NULLs in columns that are no keys.
pub(super) fn write(tables: &[Table], nulls: bool, seed: u64, target: &Path) -> Result<()> {
    let domains = label_keys(tables, seed)?;
    for table in tables {
        write_table(table, &domains, nulls, seed, target)
            .with_context(|| format!("table `{}`", table.name))?;
    }
    Ok(())
}

fn write_table(
    table: &Table,
    domains: &BTreeMap<String, Labels>,
    nulls: bool,
    seed: u64,
    target: &Path,
) -> Result<()> {
    let mut batches = Vec::new();
    for file in &table.files {
        for group in 0..file.row_groups() {
            for batch in file.batches(group)? {
                batches.push(batch?);
            }
        }
    }
    let positions =
        |(number, batch): (usize, &RecordBatch)| (0..batch.num_rows()).map(move |row| (number, row));
    let mut order: Vec<(usize, usize)> = batches.iter().enumerate().flat_map(positions).collect();
    order.shuffle(&mut table.rng(seed, "order"));

    let schema = schema(table, nulls);
    let columns: Vec<Column> = schema
        .fields()
        .iter()
        .enumerate()
        .map(|(number, field)| Column {
            arrays: batches.iter().map(|batch| batch.column(number).as_ref()).collect(),
            labels: domain(field).and_then(|domain| domains.get(&domain)),
            nulls: (nulls && !is_key(field))
                .then(|| draw_nulls(order.len(), &mut table.rng(seed, field.name()))),
        })
        .collect();
    for (number, groups) in layout(order.len(), &mut table.rng(seed, "layout")).into_iter().enumerate() {
        let path = target.join(&table.name).join(format!("part-{number:05}.parquet"));
        let mut sink = Sink::create(path, &schema)?;
        for rows in groups {
            let arrays = columns.iter().map(|column| column.rows(&order, rows.clone()));
            sink.write(arrays.collect::<Result<_>>()?)?;
            sink.end_row_group()?;
        }
        sink.close()?;
    }
    Ok(())
}

/// A column of a table that is being written.
struct Column<'a> {
    /// By batch.
    arrays: Vec<&'a dyn Array>,
    /// Of a key.
    labels: Option<&'a Labels>,
    /// Rows that become NULL, in the new order.
    nulls: Option<BooleanArray>,
}

impl Column<'_> {
    /// Rows of the new order.
    fn rows(&self, order: &[(usize, usize)], rows: Range<usize>) -> Result<ArrayRef> {
        let array = interleave(&self.arrays, &order[rows.clone()])?;
        let array = match self.labels {
            Some(labels) => relabel(&array, labels)?,
            None => array,
        };
        match &self.nulls {
            Some(nulls) => Ok(nullif(&array, &nulls.slice(rows.start, rows.len()))?),
            None => Ok(array),
        }
    }
}

fn relabel(array: &ArrayRef, labels: &Labels) -> Result<ArrayRef> {
    let keys = cast(array, &DataType::Int64)?;
    let relabelled: PrimitiveArray<Int64Type> = keys.as_primitive::<Int64Type>().try_unary(|key| {
        let changed = || ArrowError::ComputeError(format!("key {key} appeared while the data was read"));
        labels.get(&key).copied().ok_or_else(changed)
    })?;
    cast(&(Arc::new(relabelled) as ArrayRef), array.data_type())
}

/// The table's columns; with NULLs, all but keys are nullable.
fn schema(table: &Table, nulls: bool) -> SchemaRef {
    let fields: Vec<Field> = table
        .schema()
        .fields()
        .iter()
        .enumerate()
        .map(|(number, field)| {
            let declared = table.files.iter().any(|f| f.metadata.schema().field(number).is_nullable());
            field.as_ref().clone().with_nullable(declared || nulls && !is_key(field))
        })
        .collect();
    Arc::new(Schema::new_with_metadata(fields, table.schema().metadata().clone()))
}

/// Exactly 1 % of the rows, rounded down.
fn draw_nulls(rows: usize, rng: &mut SmallRng) -> BooleanArray {
    let mut mask = BooleanBufferBuilder::new(rows);
    mask.append_n(rows, false);
    index::sample(rng, rows, rows / ROWS_PER_NULL).into_iter().for_each(|row| mask.set_bit(row, true));
    BooleanArray::new(mask.finish(), None)
}

/// The rows of each row group of each file. The first file has one row, the second none, the others a third and the
/// rest; the sizes of row groups spread over all orders of magnitude, and the first has one row.
fn layout(rows: usize, rng: &mut SmallRng) -> Vec<Vec<Range<usize>>> {
    let one = rows.min(1);
    let files = [0..one, one..one, one..one.max(rows / 3), one.max(rows / 3)..rows];
    let groups = |file: Range<usize>| {
        let mut groups = Vec::new();
        let mut start = file.start;
        while start < file.end {
            let bits = if groups.is_empty() { 0 } else { rng.random_range(0..=ROW_GROUP_BITS) };
            let end = file.end.min(start + rng.random_range(1..=1usize << bits));
            groups.push(start..end);
            start = end;
        }
        groups
    };
    files.into_iter().map(groups).collect()
}

/// The name of an integer key: keys of one domain are joined with each other.
fn domain(field: &Field) -> Option<String> {
    key_name(field).filter(|_| field.data_type().is_integer())
}

/// Per domain, a label for each value.
fn label_keys(tables: &[Table], seed: u64) -> Result<BTreeMap<String, Labels>> {
    let mut domains: BTreeMap<String, (HashSet<i64>, i64)> = BTreeMap::new();
    for table in tables {
        for (column, field) in table.schema().fields().iter().enumerate() {
            let Some(name) = domain(field) else { continue };
            let (values, most) = domains.entry(name).or_insert((HashSet::new(), i64::MAX));
            *most = (*most).min(greatest(field.data_type()));
            for file in &table.files {
                let context = || format!("{}, column `{}`", file.path.display(), field.name());
                for group in 0..file.row_groups() {
                    for batch in file.columns(group, &[column])? {
                        let keys = cast(batch?.column(0), &DataType::Int64).with_context(context)?;
                        values.extend(keys.as_primitive::<Int64Type>().iter().flatten());
                    }
                }
            }
        }
    }
    let label = |(name, (values, most)): (String, (HashSet<i64>, i64))| {
        let mut values: Vec<i64> = values.into_iter().collect();
        values.sort_unstable();
        let least = values.first().copied().unwrap_or(0);
        let labels = labels(values.len(), least, most, &mut rng(seed, &name)).with_context(|| {
            format!("columns `{name}` have {} values, too many to relabel within their type", values.len())
        })?;
        Ok((name, values.into_iter().zip(labels).collect()))
    };
    domains.into_iter().map(label).collect()
}

/// Distinct numbers from `least` to `most` with gaps, in no order. The least key stays the least that there can be, and
/// labels are no more than [`LABELS_PER_VALUE`] times as many as keys, so that what holds the keys of a data set ten
/// times as large holds the labels.
fn labels(values: usize, least: i64, most: i64, rng: &mut SmallRng) -> Result<Vec<i64>> {
    let fitting = usize::try_from(i128::from(most) - i128::from(least) + 1).unwrap_or(usize::MAX);
    let range = values.saturating_mul(LABELS_PER_VALUE).min(fitting);
    ensure!(range >= values, "only {range} labels");
    let sample = index::sample(rng, range, values).into_iter();
    let mut labels: Vec<i64> = sample.map(|label| least.saturating_add_unsigned(label as u64)).collect();
    let falling = |labels: &[i64]| labels.len() > 2 && labels.is_sorted_by(|a, b| a > b);
    if labels.len() > 1 && (labels.is_sorted() || falling(&labels)) {
        labels.swap(0, 1);
    }
    Ok(labels)
}

/// The greatest value of an integer type, as far as 64 bits with a sign reach.
fn greatest(ty: &DataType) -> i64 {
    match ty {
        DataType::Int8 => i8::MAX.into(),
        DataType::Int16 => i16::MAX.into(),
        DataType::Int32 => i32::MAX.into(),
        DataType::UInt8 => u8::MAX.into(),
        DataType::UInt16 => u16::MAX.into(),
        DataType::UInt32 => u32::MAX.into(),
        _ => i64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int8Array, Int32Array, StringViewArray};
    use arrow::compute::is_null;
    use dkb_runtime::table::DataSet;

    use super::super::tests::{read_table, tpch, write_table};
    use super::super::{Kind, perturb};
    use super::*;

    fn keys(batch: &RecordBatch, name: &str) -> Vec<i64> {
        let keys = cast(batch.column_by_name(name).unwrap(), &DataType::Int64).unwrap();
        assert_eq!(keys.null_count(), 0, "{name}");
        keys.as_primitive::<Int64Type>().values().to_vec()
    }

    #[test]
    fn joins_match_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let data = tpch(dir.path());
        let output = dir.path().join("out");
        perturb(&data, Kind::Reshaped, 3, &output).unwrap();
        // Per row of lineitem: lines of its order, its line number, and whether the order is there.
        let joined = |dir: &Path| {
            let (orders, lines) = (read_table(dir, "orders"), read_table(dir, "lineitem"));
            let order_keys: HashSet<i64> = keys(&orders, "o_orderkey").into_iter().collect();
            assert_eq!(order_keys.len(), orders.num_rows());
            let line_keys = keys(&lines, "l_orderkey");
            let mut count: HashMap<i64, usize> = HashMap::new();
            line_keys.iter().for_each(|key| *count.entry(*key).or_default() += 1);
            let numbers = keys(&lines, "l_linenumber");
            let mut rows: Vec<_> = line_keys
                .iter()
                .zip(numbers)
                .map(|(key, number)| (count[key], number, order_keys.contains(key)))
                .collect();
            rows.sort_unstable();
            rows
        };
        assert_eq!(joined(&data), joined(&output));

        let parts: HashSet<i64> = keys(&read_table(&output, "part"), "p_partkey").into_iter().collect();
        let most = parts.iter().max().copied().unwrap_or(0);
        assert!((parts.len() as i64 * 2..=parts.len() as i64 * 4).contains(&most), "{most}");
        assert!(parts.iter().all(|key| *key >= 1));
        for (table, name) in [("partsupp", "ps_partkey"), ("lineitem", "l_partkey")] {
            assert!(keys(&read_table(&output, table), name).iter().all(|key| parts.contains(key)), "{name}");
        }
        let nations = keys(&read_table(&output, "nation"), "n_nationkey");
        assert!(!nations.is_sorted() && nations.iter().any(|key| *key >= 25), "{nations:?}");
    }

    #[test]
    fn files_are_uneven_and_a_hundredth_of_the_values_is_null_where_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let data = tpch(dir.path());
        let [reshaped, hostile] = [Kind::Reshaped, Kind::Hostile].map(|kind| {
            let output = dir.path().join(format!("{kind:?}"));
            perturb(&data, kind, 3, &output).unwrap();
            output
        });
        for table in &DataSet::open(&data).unwrap().tables {
            let [without, with] = [&reshaped, &hostile].map(|dir| read_table(dir, &table.info.name));
            assert_eq!(with.num_rows() as u64, table.info.rows);
            for ((field, array), all) in
                with.schema().fields().iter().zip(with.columns()).zip(without.columns())
            {
                let share = if is_key(field) { 0 } else { with.num_rows() / 100 };
                assert_eq!((field.is_nullable(), array.null_count()), (!is_key(field), share), "{field}");
                // The sets differ in nothing but their NULLs.
                let nulls = is_null(array).unwrap();
                assert_eq!((&nullif(all, &nulls).unwrap(), all.null_count()), (array, 0), "{field}");
            }
            assert!(without.schema().fields().iter().all(|field| !field.is_nullable()));
        }
        let made = DataSet::open(&reshaped).unwrap();
        let lines = made.table("lineitem").unwrap();
        assert_eq!(lines.paths().count(), 4);
        let bounds = lines.row_group_bounds("l_orderkey").unwrap();
        let sizes: Vec<u64> = bounds.iter().map(|group| group.rows.end - group.rows.start).collect();
        assert_eq!(sizes.iter().sum::<u64>(), lines.info.rows);
        assert!(sizes.iter().filter(|rows| **rows == 1).count() >= 3, "{sizes:?}");
        assert!(sizes.iter().any(|rows| *rows > 100), "{sizes:?}");
    }

    #[test]
    fn labels_keep_no_order() {
        for values in 2..40 {
            for seed in 0..50 {
                let labels = labels(values, 1, i64::MAX, &mut rng(seed, "")).unwrap();
                let distinct: HashSet<i64> = labels.iter().copied().collect();
                assert_eq!(distinct.len(), values);
                assert!(labels.iter().all(|label| (1..=values as i64 * 4).contains(label)), "{labels:?}");
                assert!(!labels.is_sorted(), "{labels:?}");
                assert!(values == 2 || !labels.is_sorted_by(|a, b| a > b), "{labels:?}");
            }
        }
    }

    #[test]
    fn narrow_keys_text_keys_and_empty_tables() {
        let dir = tempfile::tempdir().unwrap();
        let (data, output) = (dir.path().join("data"), dir.path().join("out"));
        std::fs::create_dir(&data).unwrap();
        let table = |keys: Vec<i8>| {
            let text = StringViewArray::from_iter_values(keys.iter().map(|key| format!("key {key}")));
            let wide = Int32Array::from_iter(keys.iter().map(|key| (*key > 3).then_some(i32::from(*key))));
            let columns: [(&str, ArrayRef, bool); 3] = [
                ("t_key", Arc::new(Int8Array::from(keys)), false),
                ("t_textkey", Arc::new(text), false),
                ("t_otherkey", Arc::new(wide), true),
            ];
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        };
        write_table(&data, "t", &table((0..100).collect()), 7);
        write_table(&data, "empty", &table(Vec::new()), 7);
        perturb(&data, Kind::Hostile, 3, &output).unwrap();
        let made = read_table(&output, "t");
        let labels = keys(&made, "t_key");
        assert_eq!(labels.iter().collect::<HashSet<_>>().len(), 100);
        assert!(labels.iter().all(|label| (0..=127).contains(label)));
        assert_eq!(made.column(2).null_count(), 4);
        assert_eq!(read_table(&output, "empty").num_rows(), 0);

        write_table(&data, "t", &table((-100..100).collect()), 7);
        let signed = dir.path().join("signed");
        perturb(&data, Kind::Reshaped, 3, &signed).unwrap();
        assert_eq!(keys(&read_table(&signed, "t"), "t_key").iter().collect::<HashSet<_>>().len(), 200);

        let wide: ArrayRef = Arc::new(Int32Array::from_iter_values(0..300));
        write_table(&data, "u", &RecordBatch::try_from_iter([("u_key", wide)]).unwrap(), 7);
        let error = perturb(&data, Kind::Hostile, 3, &dir.path().join("none")).unwrap_err();
        assert!(format!("{error:#}").contains("`key` have 400 values, too many"), "{error:#}");
    }
}
