//! Random tables with everything that SQL finds difficult: NULLs, duplicates, negative numbers, no rows at
//! all.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray,
};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Low-cardinality texts, with the empty one and some that LIKE finds difficult.
pub const WORDS: [&str; 8] = ["", "apple", "apple pie", "banana", "Banana", "a_b%c", "übergrün", "zebra"];

/// The first day of the dates: 1995-01-01.
pub const FIRST_DAY: i32 = 9131;

/// 2024-01-01 as a day of the dates of sales.
const FIRST_DAY_OF_2024: i32 = 19_723;

/// Writes table `name` with `rows` rows into `dir`, in row groups of 100 rows. Its columns begin with
/// `name_`:
///
/// `id` int64 unique and not null, `k` int64 with duplicates and negative values, `g` int32 of few values,
/// `d` decimal(12,2), `e` decimal(15,2) not null, `dt` date, `s` text of few values, `t` text of many values,
/// `f` bool, `x` float64.
pub fn write(dir: &Path, name: &str, rows: usize, seed: u64) {
    let mut r = SmallRng::seed_from_u64(seed);
    let keys = (rows as i64 / 2).clamp(4, 60);
    let nulls = [0.0, 0.1, 0.4][r.random_range(0..3)];
    let mut column = |make: &mut dyn FnMut(&mut SmallRng, bool) -> ArrayRef| {
        let nullable = r.random_bool(0.8);
        make(&mut r, nullable)
    };
    macro_rules! values {
        ($array:ident, $value:expr) => {
            column(&mut |r: &mut SmallRng, nullable: bool| {
                let value: fn(&mut SmallRng, i64) -> _ = $value;
                let cells = (0..rows).map(|_| {
                    let cell = value(r, keys);
                    if nullable && r.random_bool(nulls) { None } else { Some(cell) }
                });
                Arc::new(cells.collect::<$array>()) as ArrayRef
            })
        };
    }
    let decimal = |array: ArrayRef, precision: u8| -> ArrayRef {
        let array = array.as_any().downcast_ref::<Decimal128Array>().expect("a decimal column").clone();
        Arc::new(array.with_precision_and_scale(precision, 2).expect("cells fit the precision"))
    };
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|i| i * 3 + 1)));
    let k = values!(Int64Array, |r, keys| r.random_range(-3..keys));
    let g = values!(Int32Array, |r, _| r.random_range(-2..4));
    let d = decimal(values!(Decimal128Array, |r, _| r.random_range(-100_000i128..100_000)), 12);
    let e: Decimal128Array = (0..rows).map(|i| Some(i as i128 * 7919 % 10_007)).collect();
    let e = decimal(Arc::new(e), 15);
    let dt = values!(Date32Array, |r, _| FIRST_DAY + r.random_range(0..900));
    let s = values!(StringArray, |r, _| WORDS[r.random_range(0..WORDS.len())]);
    let t = values!(StringArray, |r, keys| {
        format!(
            "{} {} {}",
            WORDS[r.random_range(0..WORDS.len())],
            r.random_range(0..keys * 50),
            r.random_range(0..9)
        )
    });
    let f = values!(BooleanArray, |r, _| r.random_bool(0.5));
    let x = values!(Float64Array, |r, _| f64::from(r.random_range(-1000..1000)) / 8.0);
    let columns = [
        ("id", id, false),
        ("k", k, true),
        ("g", g, true),
        ("d", d, true),
        ("e", e, false),
        ("dt", dt, true),
        ("s", s, true),
        ("t", t, true),
        ("f", f, true),
        ("x", x, true),
    ];
    let columns = columns.map(|(column, array, nullable)| (format!("{name}_{column}"), array, nullable));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns have equal lengths");
    write_batch(dir, name, &batch, 100);
}

/// Writes the tables of the prompts' worked examples into `dir`: `stores` of five regions, and `sales`, of which some have
/// no discount, and none of one region has.
pub fn write_shop(dir: &Path, sales: usize, seed: u64) {
    const REGIONS: [&str; 5] = ["east", "north", "online", "south", "west"];
    const STORES: i64 = 500;
    let mut r = SmallRng::seed_from_u64(seed);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(1..=STORES));
    let region = |store: i64| REGIONS[store as usize % REGIONS.len()];
    let regions: ArrayRef = Arc::new(StringArray::from_iter_values((1..=STORES).map(region)));
    let stores = [("st_id", ids, false), ("st_region", regions, false)];
    let stores = RecordBatch::try_from_iter_with_nullable(stores).expect("columns have equal lengths");
    write_batch(dir, "stores", &stores, 100);

    let store: Vec<i64> = (0..sales).map(|_| r.random_range(1..=STORES)).collect();
    let day = Date32Array::from_iter_values((0..sales).map(|_| FIRST_DAY_OF_2024 + r.random_range(0..366)));
    let cents = store.iter().map(|s| {
        let known = region(*s) != "online" && r.random_bool(0.8);
        known.then(|| r.random_range(0i128..2000))
    });
    let discount = cents.collect::<Decimal128Array>().with_precision_and_scale(12, 2);
    let sales = [
        ("sa_store", Arc::new(Int64Array::from(store)) as ArrayRef, false),
        ("sa_day", Arc::new(day), false),
        ("sa_discount", Arc::new(discount.expect("cents fit the precision")), true),
    ];
    let sales = RecordBatch::try_from_iter_with_nullable(sales).expect("columns have equal lengths");
    write_batch(dir, "sales", &sales, 5000);
}

/// Writes a batch as `dir/name.parquet`.
pub fn write_batch(dir: &Path, name: &str, batch: &RecordBatch, row_group_rows: usize) {
    let file = File::create(dir.join(format!("{name}.parquet"))).expect("the folder can be written");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(row_group_rows)).build();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("a writable schema");
    writer.write(batch).expect("the batch is written");
    writer.close().expect("the file is complete");
}
