//! Tests of tables as a whole, on files written for the purpose.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Int8Array,
    Int32Array, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray, TimestampNanosecondArray,
    UInt32Array, new_empty_array,
};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Decimal128Type, Int64Type};
use dkb_kernels::{ColumnRepr, Elem};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::arrow_writer::{ArrowRowGroupWriterFactory, compute_leaves};
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int32Type};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::statistics::Statistics;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::TempDir;

use super::*;
use crate::tpch::generate::{GenerateOptions, generate_with};

/// TPC-H at scale 0.01 with many small row groups in several files, and with the default layout.
static TPCH: LazyLock<(TempDir, PathBuf, PathBuf)> = LazyLock::new(|| {
    let root = tempfile::tempdir().unwrap();
    let small = GenerateOptions { row_group_rows: Some(700), files_per_table: 3 };
    let small = generate_with(0.01, &root.path().join("small"), &small, &|_| {}).unwrap();
    let whole = generate_with(0.01, root.path(), &GenerateOptions::default(), &|_| {}).unwrap();
    (root, small, whole)
});

fn repr(text: &str) -> ColumnRepr {
    text.parse().unwrap()
}

/// Writes a table of one batch, in row groups of `rows`.
fn write(path: &Path, columns: Vec<(&str, ArrayRef)>, rows: usize) {
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(rows)).build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn open_one(path: &Path) -> Arc<Table> {
    Arc::clone(&DataSet::open(path.parent().unwrap()).unwrap().tables[0])
}

/// A table of one file with these columns.
fn table_of(columns: Vec<(&str, ArrayRef)>, rows: usize) -> (TempDir, Arc<Table>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    write(&path, columns, rows);
    let table = open_one(&path);
    (dir, table)
}

fn integers(column: &HostColumn, width: usize) -> Vec<i128> {
    let sign = |chunk: &[u8]| if chunk[width - 1] & 0x80 == 0 { 0 } else { 0xff };
    let one = |chunk: &[u8]| {
        let mut bytes = [sign(chunk); 16];
        bytes[..width].copy_from_slice(chunk);
        i128::from_le_bytes(bytes)
    };
    column.values.chunks(width).map(one).collect()
}

fn strings(column: &HostColumn) -> Vec<String> {
    let offsets = column.offsets.as_ref().unwrap();
    let text = |w: &[u32]| String::from_utf8(column.values[w[0] as usize..w[1] as usize].to_vec()).unwrap();
    offsets.windows(2).map(text).collect()
}

/// The narrowest representation of a column, as the planner chooses it.
fn narrowest(table: &Table, column: usize) -> ColumnRepr {
    let info = &table.info.columns[column];
    let elem = || Elem::narrowest(info.min.unwrap(), info.max.unwrap());
    let text = match table.info.schema.field(column).data_type() {
        DataType::Utf8View => match info.dict_entries {
            Some(0..=256) => "dict<u8>".to_owned(),
            Some(_) => "dict<u16>".to_owned(),
            None => "utf8".to_owned(),
        },
        DataType::Decimal128(p, s) => format!("decimal({p},{s}) as {}", elem()),
        DataType::Int32 => format!("int32 as {}", elem()),
        DataType::Int64 => format!("int64 as {}", elem()),
        DataType::Date32 => format!("date as {}", elem()),
        other => panic!("{other}"),
    };
    repr(&text)
}

/// The whole table, read by the Parquet crate alone.
fn reference(table: &Table) -> RecordBatch {
    let mut batches = Vec::new();
    for path in table.paths() {
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
        batches.extend(reader.map(|b| b.unwrap()));
    }
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

fn assert_column(table: &Table, column: usize, repr: ColumnRepr, read: &HostColumn, expected: &ArrayRef) {
    match repr.physical {
        dkb_kernels::Physical::Utf8 => {
            let expected: Vec<&str> = expected.as_string::<i32>().iter().map(|t| t.unwrap()).collect();
            assert_eq!(strings(read), expected);
        }
        dkb_kernels::Physical::Dict(elem) => {
            let dictionary = table.dictionary(table.info.schema.field(column).name()).unwrap();
            assert_eq!(Some(dictionary.len() as u64), table.info.columns[column].dict_entries);
            let codes =
                read.values.chunks(elem.bytes()).map(|c| c.iter().rev().fold(0, |n, b| n << 8 | *b as usize));
            let texts = codes.map(|c| dictionary.get(c));
            assert!(texts.eq(expected.as_string::<i32>().iter().map(|t| t.unwrap())));
        }
        dkb_kernels::Physical::Fixed(elem) => {
            let expected: Vec<i128> = match expected.data_type() {
                DataType::Decimal128(..) => expected.as_primitive::<Decimal128Type>().values().to_vec(),
                _ => {
                    let days = cast(expected, &DataType::Int32).unwrap_or_else(|_| expected.clone());
                    let wide = cast(
                        if *expected.data_type() == DataType::Date32 { &days } else { expected },
                        &DataType::Int64,
                    );
                    wide.unwrap()
                        .as_primitive::<Int64Type>()
                        .values()
                        .iter()
                        .map(|v| i128::from(*v))
                        .collect()
                }
            };
            assert_eq!(integers(read, elem.bytes()), expected);
        }
    }
}

#[test]
fn tpch_columns_read_as_written() {
    let (_, small, whole) = &*TPCH;
    for folder in [small, whole] {
        for table in &DataSet::open(folder).unwrap().tables {
            let expected = reference(table);
            let reprs: Vec<ColumnRepr> = (0..expected.num_columns()).map(|i| narrowest(table, i)).collect();
            let schema = expected.schema();
            let columns: Vec<_> =
                schema.fields().iter().map(|f| f.name().as_str()).zip(reprs.iter().copied()).collect();
            let read = table.read_many(&columns, 0..table.info.rows).unwrap();
            for (i, column) in read.iter().enumerate() {
                assert!(!table.info.columns[i].nullable);
                let expected = cast(
                    expected.column(i),
                    &match expected.column(i).data_type() {
                        DataType::Utf8View => DataType::Utf8,
                        other => other.clone(),
                    },
                );
                assert_column(table, i, reprs[i], column, &expected.unwrap());
            }
        }
    }
}

#[test]
fn ranges_are_slices_of_the_whole() {
    let data = DataSet::open(&TPCH.1).unwrap();
    let orders = data.table("orders").unwrap();
    assert!(orders.row_group_bounds("o_orderkey").unwrap().len() > 20);
    let columns = [
        ("o_orderkey", repr("int64 as i32")),
        ("o_comment", repr("utf8")),
        ("o_orderstatus", repr("dict<u8> null")),
    ];
    let all = orders.read_many(&columns, 0..orders.info.rows).unwrap();
    let texts = strings(&all[1]);
    for rows in [0..0, 0..1, 699..701, 1..700, 650..4321, 14_999..15_000, 15_000..15_000, 0..15_000] {
        let part = orders.read_many(&columns, rows.clone()).unwrap();
        let Range { start, end } = rows.start as usize..rows.end as usize;
        assert_eq!(part[0].values, all[0].values[start * 4..end * 4]);
        assert_eq!(strings(&part[1]), texts[start..end]);
        assert_eq!(part[2].values, all[2].values[start..end]);
        assert_eq!(part[2].valid.as_ref().unwrap(), &vec![1; end - start]);
    }
    let error = orders.read("o_orderkey", repr("int64 as i64"), 0..15_001).unwrap_err();
    assert!(error.to_string().contains("15000 rows"), "{error}");
}

#[test]
fn catalog_says_what_the_footers_say() {
    let data = DataSet::open(&TPCH.1).unwrap();
    let lineitem = data.table("lineitem").unwrap();
    let info = |name: &str| &lineitem.info.columns[lineitem.index(name).unwrap()];
    assert_eq!((info("l_quantity").min, info("l_quantity").max), (Some(100), Some(5000)));
    assert_eq!((info("l_discount").min, info("l_discount").max), (Some(0), Some(10)));
    assert_eq!((info("l_linenumber").min, info("l_linenumber").max), (Some(1), Some(7)));
    assert_eq!(info("l_returnflag").dict_entries, Some(3));
    assert_eq!(info("l_shipmode").dict_entries, Some(7));
    assert_eq!((info("l_comment").dict_entries, info("l_comment").text), (None, true));
    assert_eq!(info("l_shipmode").min, None);
    assert_eq!(data.table("customer").unwrap().info.columns[1].dict_entries, None, "c_name is unique");
    assert_eq!(data.table("nation").unwrap().info.columns[1].dict_entries, Some(25));
    assert_eq!(lineitem.info.schema.field(8).data_type(), &DataType::Utf8View);
    let bytes = lineitem.bytes_per_row(&["l_comment", "l_shipmode"]).unwrap();
    assert!((20.0..40.0).contains(&bytes), "{bytes}");
    assert!(lineitem.bytes_per_row(&[]).unwrap() > bytes);
    let groups = lineitem.row_group_bounds("l_orderkey").unwrap();
    assert!(
        groups
            .windows(2)
            .all(|w| w[0].rows.end == w[1].rows.start && w[0].bounds.unwrap().1 <= w[1].bounds.unwrap().0)
    );
}

#[test]
fn partitions_end_at_row_groups() {
    let data = DataSet::open(&TPCH.1).unwrap();
    let lineitem = data.table("lineitem").unwrap();
    let borders: Vec<u64> =
        lineitem.row_group_bounds("l_tax").unwrap().iter().map(|g| g.rows.start).collect();
    let ranges = lineitem.partitions(&["l_comment"], u64::MAX, 4).unwrap();
    assert_eq!((ranges.len(), ranges[0].start, ranges[3].end), (4, 0, lineitem.info.rows));
    assert!(ranges.iter().all(|r| borders.contains(&r.start)));
    let ranges = lineitem.partitions(&[], 1000, 1).unwrap();
    assert!(ranges.iter().all(|r| r.end - r.start <= 1000));
    assert!(ranges.windows(2).all(|w| w[0].end == w[1].start));
}

#[test]
fn dictionary_of_any_text_and_text_of_any_row() {
    let data = DataSet::open(&TPCH.1).unwrap();
    let orders = data.table("orders").unwrap();
    let expected = strings(&orders.read("o_comment", repr("utf8"), 0..15_000).unwrap());
    let dictionary = orders.dictionary("o_comment").unwrap();
    let mut sorted = expected.clone();
    sorted.sort();
    sorted.dedup();
    assert!((0..dictionary.len()).map(|i| dictionary.get(i)).eq(sorted.iter().map(String::as_str)));
    let codes = orders.read("o_comment", repr("dict<u16>"), 10..14_000).unwrap();
    let codes = codes.values.chunks(2).map(|c| u16::from_le_bytes([c[0], c[1]]) as usize);
    assert!(codes.map(|c| dictionary.get(c)).eq(expected[10..14_000].iter().map(String::as_str)));
    let error = orders.read("o_comment", repr("dict<u8>"), 0..1).unwrap_err().to_string();
    assert!(error.contains("distinct values"), "{error}");

    let rows = [14_999, 0, 700, 700, 3];
    let text = orders.text("o_comment", &rows).unwrap();
    assert!(text.iter().map(|t| t.unwrap()).eq(rows.iter().map(|r| expected[*r as usize].as_str())));
    orders.load_text("o_comment").unwrap();
    assert_eq!(orders.text("o_comment", &[]).unwrap().len(), 0);
    assert!(matches!(orders.text("o_comment", &[15_000]), Err(TableError::NoRows { .. })));
    assert!(matches!(orders.text("o_orderkey", &[0]), Err(TableError::NotText { .. })));
}

#[test]
fn nulls_have_validity_and_zero_values() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i", Arc::new(Int32Array::from(vec![Some(5), None, Some(-7), None, Some(300)]))),
        ("t", Arc::new(StringArray::from(vec![None, Some("b"), Some(""), Some("a"), None]))),
        ("n", Arc::new(Int64Array::from(vec![None, None, None, None, None]))),
        ("f", Arc::new(Float32Array::from(vec![Some(1.5), None, None, Some(-2.0), None]))),
        ("b", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true), None]))),
    ];
    for rows in [2, 5] {
        let (_dir, table) = table_of(columns.clone(), rows);
        assert!(table.info.columns.iter().all(|c| c.nullable));
        let i = table.read("i", repr("int32 as i16 null"), 0..5).unwrap();
        assert_eq!(integers(&i, 2), [5, 0, -7, 0, 300]);
        assert_eq!(i.valid.unwrap(), [1, 0, 1, 0, 1]);
        let t = table.read("t", repr("utf8 null"), 0..5).unwrap();
        assert_eq!(strings(&t), ["", "b", "", "a", ""]);
        assert_eq!(t.valid.unwrap(), [0, 1, 1, 1, 0]);
        let codes = table.read("t", repr("dict<u8> null"), 0..5).unwrap();
        assert_eq!((codes.values, codes.valid.unwrap()), (vec![0, 2, 0, 1, 0], vec![0, 1, 1, 1, 0]));
        let n = table.read("n", repr("int64 as i8 null"), 0..5).unwrap();
        assert_eq!((n.values, n.valid.unwrap()), (vec![0; 5], vec![0; 5]));
        assert_eq!(table.info.columns[2].min, None);
        let f = table.read("f", repr("float32 as f64 null"), 0..5).unwrap();
        assert_eq!(f.values[24..32], (-2.0f64).to_le_bytes());
        let b = table.read("b", repr("bool as u8 null"), 0..5).unwrap();
        assert_eq!((b.values, table.info.columns[4].max), (vec![1, 0, 0, 1, 0], Some(1)));
        let error = table.read("i", repr("int32 as i32"), 0..5).unwrap_err().to_string();
        assert!(error.contains("t.parquet, row group 0, column `i`: NULL"), "{error}");
        let text = table.text("t", &[4, 3]).unwrap();
        assert_eq!((text.is_null(0), text.value(1)), (true, "a"));
    }
    let (_dir, table) = table_of(vec![("i", Arc::new(Int8Array::from(vec![1, 2])))], 1);
    assert!(!table.info.columns[0].nullable, "all null counts are 0");
}

#[test]
fn values_must_fit_the_representation() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i", Arc::new(Int64Array::from(vec![1, 128]))),
        ("u", Arc::new(UInt32Array::from(vec![u32::MAX, 0]))),
        ("d", Arc::new(Decimal128Array::from(vec![150, 200]).with_precision_and_scale(9, 2).unwrap())),
        ("ms", Arc::new(TimestampMillisecondArray::from(vec![-1, 2]))),
        ("ns", Arc::new(TimestampNanosecondArray::from(vec![-2000, 1001]))),
        ("day", Arc::new(Date32Array::from(vec![1, 2]))),
    ];
    let (_dir, table) = table_of(columns, 10);
    let read = |column: &str, text: &str| table.read(column, repr(text), 0..2);
    let fails = |column: &str, text: &str| read(column, text).unwrap_err().to_string();
    assert_eq!(integers(&read("i", "int64 as i16").unwrap(), 2), [1, 128]);
    assert!(fails("i", "int64 as i8").contains("value 128 cannot be represented as `int64 as i8`"));
    assert!(fails("i", "date as i16").contains("cannot be read as `date as i16`"));
    assert!(fails("i", "utf8").contains("cannot be read as `utf8`"));
    assert!(fails("x", "utf8").contains("its columns are i, u, d, ms, ns, day"));
    assert_eq!(integers(&read("u", "int64 as i64").unwrap(), 8), [i128::from(u32::MAX), 0]);
    assert_eq!(table.info.columns[1].max, Some(u32::MAX.into()));
    assert_eq!(integers(&read("d", "decimal(12,4) as i64").unwrap(), 8), [15_000, 20_000]);
    assert_eq!(integers(&read("d", "decimal(9,1) as i8").unwrap(), 1), [15, 20]);
    assert!(fails("d", "decimal(9,0) as i32").contains("value 150"));
    assert_eq!(integers(&read("ms", "timestamp as i64").unwrap(), 8), [-1000, 2000]);
    assert_eq!(table.info.columns[3].min, Some(-1000));
    assert!(fails("ns", "timestamp as i64").contains("value 1001"));
    assert_eq!(integers(&read("day", "date as i128").unwrap(), 16), [1, 2]);
}

#[test]
fn decimals_of_every_physical_type() {
    let dir = tempfile::tempdir().unwrap();
    let schema = "message t {
        required fixed_len_byte_array(7) f (DECIMAL(15,2));
        required binary b (DECIMAL(15,2));
        required int32 i (DECIMAL(9,2));
        required binary raw; }";
    let path = dir.path().join("t.parquet");
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let values = [-150i64, 0, 1_234_567];
    let short = |v: &i64| ByteArray::from(v.to_be_bytes()[1..].to_vec());
    let mut column = group.next_column().unwrap().unwrap();
    let fixed: Vec<FixedLenByteArray> = values.iter().map(|v| short(v).into()).collect();
    column.typed::<FixedLenByteArrayType>().write_batch(&fixed, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let bytes: Vec<ByteArray> = values.iter().map(short).collect();
    column.typed::<ByteArrayType>().write_batch(&bytes, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&values.map(|v| v as i32), None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(&bytes, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();

    let table = open_one(&path);
    for column in ["f", "b", "i"] {
        let info = &table.info.columns[table.index(column).unwrap()];
        // The writer marks bounds of byte array decimals as compared bytewise: of no use.
        let bounds = if column == "b" { (None, None) } else { (Some(-150), Some(1_234_567)) };
        assert_eq!(((info.min, info.max), info.nullable), (bounds, false), "{column}");
        let read = table.read(column, repr("decimal(15,2) as i32"), 0..3).unwrap();
        assert_eq!(integers(&read, 4), values.map(i128::from), "{column}");
    }
    let error = table.read("raw", repr("utf8"), 0..3).unwrap_err().to_string();
    assert!(error.contains("t.raw of type Binary cannot be read as `utf8`"), "{error}");
}

#[test]
fn empty_tables_and_row_groups() {
    let (_dir, table) =
        table_of(vec![("a", new_empty_array(&DataType::Int32)), ("t", new_empty_array(&DataType::Utf8))], 5);
    assert_eq!((table.info.rows, table.info.columns[0].min), (0, None));
    assert_eq!(
        table.read("a", repr("int32 as i32"), 0..0).unwrap(),
        HostColumn { valid: None, ..Default::default() }
    );
    let text = table.read("t", repr("utf8 null"), 0..0).unwrap();
    assert_eq!(text, HostColumn { values: vec![], offsets: Some(vec![0]), valid: Some(vec![]) });
    assert!(table.dictionary("t").unwrap().is_empty());
    assert_eq!(table.partitions(&["t"], 100, 4).unwrap(), []);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let schema =
        Arc::new(parse_message_type("message t { required int32 a; required binary t (UTF8); }").unwrap());
    let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::default()).unwrap();
    for rows in [0, 2, 0, 1, 0] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&[3, 4][..rows], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&["x".into(), "y".into()][..rows], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    let table = open_one(&path);
    assert_eq!(
        (table.info.rows, table.info.columns[0].min, table.info.columns[1].dict_entries),
        (3, Some(3), Some(2))
    );
    assert_eq!(integers(&table.read("a", repr("int32 as i8"), 0..3).unwrap(), 1), [3, 4, 3]);
    assert_eq!(strings(&table.read("t", repr("utf8"), 1..3).unwrap()), ["y", "x"]);
}

#[test]
fn missing_statistics_are_no_statistics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter_with_nullable([("a", column, true)]).unwrap();
    let properties = WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None).build();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let table = open_one(&path);
    let info = &table.info.columns[0];
    assert_eq!((info.min, info.max, info.nullable), (None, None, true));
    assert_eq!(integers(&table.read("a", repr("int32 as i8 null"), 0..2).unwrap(), 1), [1, 2]);
}

#[test]
fn lying_footers_are_caught() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 12, 10]));
    let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column))]).unwrap();
    let schema = ArrowSchemaConverter::new().convert(&batch.schema()).unwrap().root_schema_ptr();
    let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::default()).unwrap();
    let factory = ArrowRowGroupWriterFactory::new(&writer, batch.schema());
    let mut encoder = factory.create_column_writers(0).unwrap().remove(0);
    encoder.write(&compute_leaves(batch.schema().field(0), &column).unwrap()[0]).unwrap();
    let mut chunk = encoder.close().unwrap();
    let lie = Statistics::int32(Some(1), Some(10), None, Some(0), false);
    let honest = chunk.close().metadata.clone();
    chunk.close_mut().metadata = honest.into_builder().set_statistics(lie).build().unwrap();
    let mut group = writer.next_row_group().unwrap();
    chunk.append_to_row_group(&mut group).unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let error = open_one(&path).read("a", repr("int32 as i32"), 0..3).unwrap_err().to_string();
    let expected = "t.parquet, row group 0, column `a`: value 12 outside the footer's range 1..=10;";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn folders_that_are_no_data_sets() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |path: &Path| DataSet::open(path).unwrap_err().to_string();
    assert!(fails(&dir.path().join("none")).ends_with("none: no such folder"));
    fs::write(dir.path().join("readme.txt"), "x").unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    assert!(
        fails(dir.path()).contains("holds no Parquet tables: expected NAME.parquet files or NAME/ folders")
    );

    let good = dir.path().join("T.parquet");
    write(&good, vec![("a", Arc::new(Int32Array::from_iter_values(0..1000)))], 100);
    assert_eq!(DataSet::open(dir.path()).unwrap().table("t").unwrap().info.rows, 1000);
    let bytes = fs::read(&good).unwrap();
    for damaged in [&bytes[..bytes.len() - 9], &bytes[..20], b"", b"hello, this is not Parquet"] {
        fs::write(dir.path().join("bad.parquet"), damaged).unwrap();
        let error = fails(dir.path());
        assert!(error.contains("bad.parquet is not a readable Parquet file"), "{error}");
    }
    // A footer without its data.
    let mut cut = bytes.clone();
    cut.drain(4..2000);
    fs::write(dir.path().join("bad.parquet"), cut).unwrap();
    let data = DataSet::open(dir.path()).unwrap();
    let error = data.table("bad").unwrap().read("a", repr("int32 as i32"), 0..1000).unwrap_err().to_string();
    assert!(error.contains("bad.parquet"), "{error}");
    fs::remove_file(dir.path().join("bad.parquet")).unwrap();

    let parts = dir.path().join("p");
    fs::create_dir(&parts).unwrap();
    write(&parts.join("0.parquet"), vec![("a", Arc::new(Int32Array::from(vec![1])))], 1);
    write(&parts.join("1.parquet"), vec![("a", Arc::new(Int64Array::from(vec![1])))], 1);
    let error = fails(dir.path());
    assert!(
        error.contains("table `p`") && error.contains("`a` of type Int32 and `a` of type Int64"),
        "{error}"
    );
    fs::rename(&parts, dir.path().join("t")).unwrap();
    assert!(fails(dir.path()).contains("are both table `t`"));
}
