//! Parquet on a device: files of several writers, with every type, encoding, codec, page version, pattern of NULLs
//! and shape of row groups and pages, decode to what the `parquet` crate reads; damaged files are named.
//!
//! On the host's device, or on a GPU with `DKB_TEST_DEVICE=cuda`.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::datatypes::DataType;
use dkb_kernels::{ColumnRepr, Elem};
use dkb_runtime::device::{Device, DeviceKind, DeviceSpec, open_devices};
use dkb_runtime::load::read_on_device;
use dkb_runtime::table::{DataSet, Table};
use dkb_tests::{cache_dir, root, run, tables, tpch_data, tpch_small_groups};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{
    ByteArray, ByteArrayType, DataType as Physical, FixedLenByteArray, FixedLenByteArrayType,
};
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const ROWS: usize = 2500;

fn device() -> Arc<dyn Device> {
    // SAFETY: the tests read and write the environment through the standard library only, which locks it.
    unsafe { std::env::set_var("DKB_CACHE_DIR", cache_dir()) }
    let kind = match std::env::var("DKB_TEST_DEVICE").as_deref() {
        Ok("cuda") => DeviceKind::Cuda,
        _ => DeviceKind::Host,
    };
    // Tests beside each other share a GPU.
    let spec = DeviceSpec { memory_bytes: Some(4 << 30), ..DeviceSpec::default() };
    open_devices(kind, &spec).expect("a device").remove(0)
}

/// Which rows of a column are NULL.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Nulls {
    /// The schema has none.
    Required,
    /// There happen to be none.
    Absent,
    Some,
    Runs,
    All,
}

impl Nulls {
    const OTHERS: [Nulls; 3] = [Nulls::Absent, Nulls::Runs, Nulls::All];

    fn at(self, r: &mut SmallRng, row: usize) -> bool {
        match self {
            Nulls::Required | Nulls::Absent => false,
            Nulls::Some => r.random_bool(0.3),
            Nulls::Runs => row / 90 % 3 == 1 || row > 2000,
            Nulls::All => true,
        }
    }
}

/// Every type, as columns such as `i32_runs`: without NULLs, with some, and with one of the other patterns.
fn every_type() -> RecordBatch {
    let mut r = SmallRng::seed_from_u64(7);
    let mut columns: Vec<(String, ArrayRef, bool)> = Vec::new();
    let mut others = Nulls::OTHERS.into_iter().cycle();
    macro_rules! column {
        ($name:literal, $array:ident, $value:expr $(, $finish:expr)?) => {
            for nulls in [Nulls::Required, Nulls::Some].into_iter().chain(others.next()) {
                let value: fn(&mut SmallRng, usize) -> _ = $value;
                let cells = (0..ROWS).map(|row| {
                    let cell = value(&mut r, row);
                    if nulls.at(&mut r, row) { None } else { Some(cell) }
                });
                let array = cells.collect::<$array>();
                $(let array = $finish(array);)?
                let name = format!("{}_{nulls:?}", $name).to_lowercase();
                columns.push((name, Arc::new(array), nulls != Nulls::Required));
            }
        };
    }
    macro_rules! decimal {
        ($precision:literal, $scale:literal) => {
            |array: Decimal128Array| {
                array.with_precision_and_scale($precision, $scale).expect("cells fit the precision")
            }
        };
    }
    column!("bool", BooleanArray, |r, _| r.random_bool(0.3));
    column!("i8", Int8Array, |r, _| r.random());
    column!("i16", Int16Array, |r, _| r.random());
    column!("i32", Int32Array, |r, _| r.random());
    column!("i64", Int64Array, |r, _| r.random());
    column!("edges", Int64Array, |r, _| [i64::MIN, -1, 0, i64::MAX][r.random_range(0..4)]);
    column!("few", Int64Array, |r, _| r.random_range(-3..12));
    column!("sorted", Int64Array, |r, row| row as i64 * 7 + r.random_range(0..7));
    column!("repeated", Int32Array, |_, row| row as i32 / 100);
    column!("constant", Int32Array, |_, _| -77);
    column!("u8", UInt8Array, |r, _| r.random());
    column!("u16", UInt16Array, |r, _| r.random());
    column!("u32", UInt32Array, |r, _| r.random());
    column!("u64", UInt64Array, |r, _| r.random());
    column!("f32", Float32Array, |r, _| [f32::NAN, -0.0, f32::INFINITY, r.random()][r.random_range(0..4)]);
    column!("f64", Float64Array, |r, _| [f64::MIN, f64::NAN, 0.5, r.random()][r.random_range(0..4)]);
    column!("date", Date32Array, |r, _| r.random_range(-9000..20_000));
    column!("ms", TimestampMillisecondArray, |r, _| r.random_range(-1_000_000_000..1 << 40));
    column!("us", TimestampMicrosecondArray, |r, _| r.random_range(-1_000_000_000..1 << 50));
    column!("ns", TimestampNanosecondArray, |r, _| r.random_range(-1_000_000..1 << 50) * 1000);
    column!("d5", Decimal128Array, |r, _| r.random_range(-99_999..=99_999), decimal!(5, 2));
    column!("d15", Decimal128Array, |r, _| r.random_range(-(1 << 49)..1 << 49), decimal!(15, 2));
    column!("d38", Decimal128Array, |r, _| r.random_range(-(1 << 126)..1 << 126), decimal!(38, 6));
    column!("word", StringArray, |r, _| tables::WORDS[r.random_range(0..8)]);
    column!("text", StringArray, |r, _| {
        let length = r.random_range(0..40);
        (0..length).map(|_| char::from(r.random_range(b' '..b'~'))).collect::<String>()
    });
    column!("long", StringArray, |r, row| "ü-".repeat(if row % 60 == 7 {
        r.random_range(0..3000)
    } else {
        0
    }));
    column!("path", StringArray, |r, row| format!(
        "/a/common/prefix/{:05}/{}",
        row / 3,
        r.random_range(0..9)
    ));
    RecordBatch::try_from_iter_with_nullable(columns).expect("equal lengths")
}

/// The representations in which a column is read.
fn representations(table: &Table, column: usize) -> Vec<ColumnRepr> {
    let info = &table.info.columns[column];
    let field = table.info.schema.field(column);
    let elem = match (info.min, info.max) {
        (Some(min), Some(max)) => Elem::narrowest(min, max),
        _ if field.name().ends_with("_all") => Elem::I8,
        _ => Elem::I128,
    };
    let bodies = match field.data_type() {
        DataType::Boolean => vec!["bool as u8".to_owned()],
        DataType::Int8 => vec!["int8 as i8".to_owned(), "int64 as i64".to_owned()],
        DataType::Int16 | DataType::UInt8 => vec![format!("int16 as {elem}"), "int16 as i16".to_owned()],
        DataType::Int32 | DataType::UInt16 => vec![format!("int32 as {elem}"), "int64 as i64".to_owned()],
        DataType::Int64 | DataType::UInt32 => {
            vec![format!("int64 as {elem}"), "decimal(25,3) as i128".to_owned()]
        }
        DataType::UInt64 => vec![format!("decimal(20,0) as {elem}"), "decimal(20,0) as i128".to_owned()],
        DataType::Float32 => vec!["float32 as f64".to_owned()],
        DataType::Float64 => vec!["float64 as f64".to_owned()],
        DataType::Date32 => vec![format!("date as {elem}"), "date as i32".to_owned()],
        DataType::Timestamp(..) => vec!["timestamp as i64".to_owned()],
        DataType::Decimal128(p, s) if *p <= 15 => {
            vec![format!("decimal({p},{s}) as {elem}"), format!("decimal({},{}) as i128", p + 3, s + 2)]
        }
        DataType::Decimal128(p, s) => vec![format!("decimal({p},{s}) as i128")],
        DataType::Utf8View => vec!["utf8".to_owned(), "dict<u32>".to_owned()],
        other => panic!("column `{}` is {other}", field.name()),
    };
    let null = if info.nullable { " null" } else { "" };
    let parse = |body: String| format!("{body}{null}").parse().expect("a representation");
    let mut all: Vec<ColumnRepr> = bodies.into_iter().map(parse).collect();
    if !info.nullable {
        all.push(ColumnRepr { nullable: true, ..all[0] });
    }
    all
}

/// Why columns may be decoded by the host.
const LEFT_TO_THE_HOST: [&str; 3] = [
    "INT96 values",
    "part of a DELTA_BYTE_ARRAY page",
    "the device does not decode this combination of encoding and type",
];

/// Reads all columns in some of their representations, all rows and random parts of them, on the device and on the
/// host. Returns what is wrong.
fn check(device: &Arc<dyn Device>, table: &Arc<Table>, r: &mut SmallRng) -> Vec<String> {
    let name = &table.info.name;
    let fields = table.info.schema.fields();
    let reprs: Vec<Vec<ColumnRepr>> =
        (0..fields.len()).map(|column| representations(table, column)).collect();
    let all = table.info.rows;
    let from = r.random_range(0..=all);
    let mut wrong = Vec::new();
    for rows in [0..all, from..all, from / 2..r.random_range(from / 2..=all)] {
        let reprs = reprs.iter().map(|reprs| reprs[r.random_range(0..reprs.len())]);
        let columns: Vec<_> = fields.iter().map(|f| f.name().as_str()).zip(reprs).collect();
        let expected = table.read_many(&columns, rows.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (found, left) = match read_on_device(device, table, &columns, rows.clone()) {
            Ok(read) => read,
            Err(error) => {
                wrong.push(format!("{name}, rows {rows:?}: {error}"));
                continue;
            }
        };
        assert_eq!(found.len(), columns.len());
        for (((column, repr), found), expected) in columns.iter().zip(&found).zip(&expected) {
            let differs = if found.valid != expected.valid {
                "NULLs"
            } else if found.offsets != expected.offsets {
                "offsets"
            } else if found.values != expected.values {
                "values"
            } else {
                continue;
            };
            wrong.push(format!("{name}.{column} as `{repr}`, rows {rows:?}: other {differs}"));
        }
        wrong.extend(left.into_iter().filter(|left| !LEFT_TO_THE_HOST.iter().any(|why| left.ends_with(why))));
    }
    wrong
}

/// Checks every table of a folder.
fn check_folder(folder: &Path) {
    let device = device();
    let mut r = SmallRng::seed_from_u64(11);
    let data = DataSet::open(folder).unwrap_or_else(|e| panic!("{e}"));
    let wrong: Vec<String> = data.tables.iter().flat_map(|table| check(&device, table, &mut r)).collect();
    println!("{} tables in {}", data.tables.len(), folder.display());
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// How a column is encoded in a style; None stands for a dictionary.
fn encoding(style: &str, ty: &DataType) -> Option<Encoding> {
    let encoding = match (style, ty) {
        ("dictionary" | "fallback", _) => return None,
        ("plain", _) => Encoding::PLAIN,
        (_, DataType::Boolean) => Encoding::RLE,
        ("delta", DataType::Utf8) => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        (_, DataType::Utf8) => Encoding::DELTA_BYTE_ARRAY,
        ("split", _) | (_, DataType::Float32 | DataType::Float64) => Encoding::BYTE_STREAM_SPLIT,
        (_, DataType::Decimal128(19.., _)) => Encoding::DELTA_BYTE_ARRAY,
        _ => Encoding::DELTA_BINARY_PACKED,
    };
    Some(encoding)
}

fn write(path: &Path, batch: &RecordBatch, style: &str, mut properties: WriterPropertiesBuilder) {
    if style == "fallback" {
        properties = properties.set_dictionary_page_size_limit(300);
    }
    for field in batch.schema().fields() {
        if let Some(encoding) = encoding(style, field.data_type()) {
            let column = || field.name().as_str().into();
            properties = properties.set_column_dictionary_enabled(column(), false);
            properties = properties.set_column_encoding(column(), encoding);
        }
    }
    let file = File::create(path).expect("the folder can be written");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).expect("a schema");
    writer.write(batch).expect("the batch is written");
    writer.close().expect("the file is complete");
}

#[test]
fn files_of_the_parquet_crate() {
    let codecs = [
        ("none", Compression::UNCOMPRESSED),
        ("snappy", Compression::SNAPPY),
        ("lz4", Compression::LZ4),
        ("lz4raw", Compression::LZ4_RAW),
        ("zstd", Compression::ZSTD(Default::default())),
        ("gzip", Compression::GZIP(Default::default())),
        ("brotli", Compression::BROTLI(Default::default())),
    ];
    let styles = ["dictionary", "fallback", "plain", "delta", "split"];
    // Rows of a row group, of a page, of the table.
    let shapes = [
        ("one", ROWS, ROWS, ROWS),
        ("pages", 1300, 37, ROWS),
        ("groups", 611, ROWS, ROWS),
        ("lines", 1, 1, 7),
    ];
    let batch = every_type();
    let dir = tempfile::tempdir().expect("a temporary folder");
    // 7, 5, and 4 have no common divisor: every two of them meet, and codec and style meet in both versions.
    for i in 0..2 * codecs.len() * styles.len() {
        let ((codec, compression), style) = (codecs[i % codecs.len()], styles[i % styles.len()]);
        let (shape, group_rows, page_rows, rows) = shapes[i % shapes.len()];
        // A page takes this codec long, however small it is.
        let page_rows = if codec == "brotli" { page_rows.max(400) } else { page_rows };
        let (version, number) = match i / (codecs.len() * styles.len()) {
            0 => (WriterVersion::PARQUET_1_0, 1),
            _ => (WriterVersion::PARQUET_2_0, 2),
        };
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_writer_version(version)
            .set_max_row_group_row_count(Some(group_rows))
            .set_data_page_row_count_limit(page_rows)
            .set_write_batch_size(page_rows.min(64));
        let path = dir.path().join(format!("{codec}_v{number}_{style}_{shape}.parquet"));
        write(&path, &batch.slice(0, rows), style, properties);
    }
    check_folder(dir.path());
}

#[test]
fn files_of_other_writers() {
    let found = Command::new("python3").args(["-c", "import pyarrow.parquet, duckdb"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        let required = std::env::var_os("DKB_REQUIRE_PYTHON").is_some();
        assert!(!required, "python3 lacks pyarrow or duckdb, and DKB_REQUIRE_PYTHON is set");
        println!("skipped: python3 with pyarrow and duckdb is not installed");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (source, out) = (dir.path().join("types.parquet"), dir.path().join("out"));
    write(&source, &every_type(), "plain", WriterProperties::builder());
    let script = root().join("scripts/write_parquet_variants.py");
    let (code, ..) = run(Command::new("python3").arg(script).arg("--every").args([&source, &out]));
    assert_eq!(code, 0);
    check_folder(&out);
    damaged_checksums(&out.join("pyarrow_snappy_v1_delta_pages.parquet"));
}

#[test]
fn files_of_tpchgen() {
    for folder in [tpch_data(), tpch_small_groups()] {
        check_folder(&folder);
    }
}

#[test]
fn decimals_as_byte_arrays() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let schema = "message t {
        required binary wide (DECIMAL(38,2));
        optional binary some (DECIMAL(9,2));
        required fixed_len_byte_array(1) f1 (DECIMAL(2,1));
        optional fixed_len_byte_array(5) f5 (DECIMAL(11,1));
        required fixed_len_byte_array(16) f16 (DECIMAL(38,0)); }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let value = |row: usize| (row as i128 - 60) * [1, 2, 9_999_991, 1 << 70][row % 4];
    // As many bytes as are needed, and now and then more.
    let bytes = |value: i128, row: usize| {
        let needed = 16 - (value ^ value >> 127).leading_zeros() as usize / 8;
        let value = value.to_be_bytes();
        value[16 - (needed + row % 3).clamp(1, 16)..].to_vec()
    };
    let levels: Vec<i16> = (0..300).map(|row| i16::from(row % 7 != 3)).collect();
    for (name, dictionary, version) in
        [("v1", false, WriterVersion::PARQUET_1_0), ("v2", true, WriterVersion::PARQUET_2_0)]
    {
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(dictionary)
            .set_writer_version(version)
            .set_data_page_row_count_limit(50)
            .set_write_batch_size(10);
        let file =
            File::create(dir.path().join(format!("{name}.parquet"))).expect("the folder can be written");
        let mut writer =
            SerializedFileWriter::new(file, schema.clone(), Arc::new(properties.build())).expect("a writer");
        // The group in between has no rows.
        for rows in [100, 0, 200] {
            let mut group = writer.next_row_group().expect("a row group");
            let cells = |optional: bool| {
                (0..rows).filter(move |row| !optional || row % 7 != 3).collect::<Vec<usize>>()
            };
            let variable = |optional: bool, modulus: i128| -> Vec<ByteArray> {
                cells(optional).iter().map(|row| bytes(value(*row) % modulus, *row).into()).collect()
            };
            let fixed = |optional: bool, length: usize| -> Vec<FixedLenByteArray> {
                let modulus =
                    1i128.checked_shl(length as u32 * 8 - 1).filter(|m| *m > 0).unwrap_or(i128::MAX);
                let cell = |row: &usize| value(*row) % modulus.min(10i128.pow(37));
                let bytes = |row| ByteArray::from(cell(row).to_be_bytes()[16 - length..].to_vec()).into();
                cells(optional).iter().map(bytes).collect()
            };
            column::<ByteArrayType>(&mut group, &variable(false, i128::MAX), None);
            column::<ByteArrayType>(&mut group, &variable(true, 999_999_999), Some(&levels[..rows]));
            column::<FixedLenByteArrayType>(&mut group, &fixed(false, 1), None);
            column::<FixedLenByteArrayType>(&mut group, &fixed(true, 5), Some(&levels[..rows]));
            column::<FixedLenByteArrayType>(&mut group, &fixed(false, 16), None);
            group.close().expect("the row group is complete");
        }
        writer.close().expect("the file is complete");
    }
    check_folder(dir.path());
}

fn column<T: Physical>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    levels: Option<&[i16]>,
) {
    let mut column = group.next_column().expect("a column").expect("one more column");
    column.typed::<T>().write_batch(values, levels, None).expect("values");
    column.close().expect("the chunk is complete");
}

/// What reading a column of `t.parquet` in `dir`, with this content, says.
fn error_of(device: &Arc<dyn Device>, dir: &Path, content: &[u8], column: &str, repr: &str) -> String {
    fs::write(dir.join("t.parquet"), content).expect("the folder can be written");
    let data = DataSet::open(dir).expect("the footer is in order");
    let table = data.table("t").expect("the table");
    let columns = [(column, repr.parse().expect("a representation"))];
    let error = read_on_device(device, table, &columns, 0..table.info.rows).err();
    error.unwrap_or_else(|| panic!("{column} as `{repr}`: damage went unseen")).to_string()
}

fn assert_named(error: &str, column: &str) {
    assert!(error.contains(&format!("t.parquet, row group 0, column `{column}`: ")), "{error}");
}

/// Where a pattern first lies in a file.
fn find(content: &[u8], pattern: &[u8]) -> usize {
    content.windows(pattern.len()).position(|window| window == pattern).expect("the file holds the pattern")
}

/// A file whose pages have checksums: no flipped bit of a page's body passes.
fn damaged_checksums(path: &Path) {
    let good = fs::read(path).expect("the file");
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::write(dir.path().join("t.parquet"), &good).expect("the folder can be written");
    let data = DataSet::open(dir.path()).expect("a data set");
    let table = data.table("t").expect("the table");
    let repr_of = |column: &str| {
        let column = table.info.schema.index_of(column).expect("the column");
        representations(table, column)[0].to_string()
    };
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&File::open(path).expect("the file"));
    let metadata = metadata.expect("a footer");
    let device = device();
    for chunk in metadata.row_group(0).columns().iter().step_by(7) {
        let (start, length) = chunk.byte_range();
        let mut bad = good.clone();
        // The chunk's last byte belongs to a body.
        bad[(start + length) as usize - 1] ^= 0x10;
        let column = chunk.column_path().string();
        let repr = repr_of(&column);
        let error = error_of(&device, dir.path(), &bad, &column, &repr);
        assert_named(&error, &column);
        assert!(error.contains("checksum"), "{error}");
    }
}

#[test]
fn values_outside_the_footer_and_codes_outside_the_dictionary() {
    let device = device();
    let columns: [(&str, ArrayRef); 4] = [
        ("plain", Arc::new(Int64Array::from_iter_values((0..100).map(|i| 0x0102_0304_0000 + i)))),
        ("coded", Arc::new(Int64Array::from_iter_values((0..64).chain(0..36).map(|i| 1000 + i % 3)))),
        ("text", Arc::new(StringArray::from_iter_values((0..100).map(|i| format!("{}", i % 3))))),
        ("lengths", Arc::new(StringArray::from_iter_values((0..100).map(|i| format!("{i:*>5}"))))),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("equal lengths");
    let properties = WriterProperties::builder()
        .set_data_page_row_count_limit(64)
        .set_write_batch_size(64)
        .set_column_dictionary_enabled("plain".into(), false)
        .set_column_dictionary_enabled("lengths".into(), false);
    let dir = tempfile::tempdir().expect("a temporary folder");
    write(&dir.path().join("t.parquet"), &batch, "dictionary", properties);
    let good = fs::read(dir.path().join("t.parquet")).expect("the file");
    let patched = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        bad
    };

    let at = find(&good, &(0x0102_0304_0000i64 + 50).to_le_bytes());
    let bad = patched(at, &i64::MAX.to_le_bytes());
    for repr in ["int64 as i64", "decimal(20,1) as i128"] {
        let error = error_of(&device, dir.path(), &bad, "plain", repr);
        assert_named(&error, "plain");
        assert!(error.contains("outside the footer's range"), "{error}");
    }

    // 64 codes of two bits: 0, 1, 2, 0 and so on.
    let codes = [2, 8 << 1 | 1, 0x24, 0x49, 0x92];
    let first = find(&good, &codes);
    let second = first + 1 + find(&good[first + 1..], &codes);
    for (at, column, reprs) in
        [(first, "coded", ["int64 as i16", "int64 as i64"]), (second, "text", ["utf8", "dict<u8>"])]
    {
        let bad = patched(at + 3, &[0xff]);
        for repr in reprs {
            assert_named(&error_of(&device, dir.path(), &bad, column, repr), column);
        }
    }

    let at = find(&good, b"***50") - 4;
    for length in [6u32, 1 << 20, u32::MAX] {
        let bad = patched(at, &length.to_le_bytes());
        assert_named(&error_of(&device, dir.path(), &bad, "lengths", "utf8"), "lengths");
    }
}

#[test]
fn flipped_bits_and_lost_bytes() {
    let device = device();
    let batch = every_type();
    let keep: Vec<usize> = (0..batch.num_columns()).step_by(4).collect();
    let batch = batch.project(&keep).expect("columns").slice(0, 120);
    let mut r = SmallRng::seed_from_u64(5);
    let codecs = [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW, Compression::LZ4];
    for (i, style) in ["dictionary", "fallback", "plain", "delta", "split"].into_iter().enumerate() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("t.parquet");
        let version = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][i % 2];
        let properties = WriterProperties::builder()
            .set_writer_version(version)
            .set_data_page_row_count_limit(50)
            .set_write_batch_size(25)
            .set_compression(codecs[i % codecs.len()]);
        write(&path, &batch, style, properties);
        let good = fs::read(&path).expect("the file");
        let data = DataSet::open(dir.path()).expect("a data set");
        let table = data.table("t").expect("the table");
        let columns: Vec<(&str, ColumnRepr)> = (0..keep.len())
            .map(|column| {
                (batch.schema_ref().field(column).name().as_str(), representations(table, column)[0])
            })
            .collect();
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&File::open(&path).expect("the file"));
        let metadata = metadata.expect("a footer");
        let read = |content: &[u8], column: usize| {
            fs::write(&path, content).expect("the folder can be written");
            let data = match DataSet::open(dir.path()) {
                Ok(data) => data,
                Err(error) => return Some(error.to_string()),
            };
            let table = data.table("t").expect("the table");
            read_on_device(&device, table, &columns[column..=column], 0..120).err().map(|e| e.to_string())
        };
        let mut errors = 0;
        for flip in 0..200 {
            let column = flip % keep.len();
            let (start, length) = metadata.row_group(0).column(column).byte_range();
            let mut bad = good.clone();
            bad[r.random_range(start..start + length) as usize] ^= 1 << r.random_range(0..8);
            if let Some(error) = read(&bad, column) {
                assert!(error.contains("t.parquet"), "{style}: {error}");
                errors += 1;
            }
        }
        println!("{style}: {errors} of 200 flipped bits are errors");
        assert!(errors > 20);
        let (start, length) = metadata.row_group(0).column(0).byte_range();
        let cut = [&good[..start as usize], &good[(start + length) as usize - 3..]].concat();
        let error = read(&cut, keep.len() - 1).expect("lost bytes are seen");
        assert!(error.contains("t.parquet"), "{error}");
    }
}
