//! Answers as text cells, and their comparison: by position where order is given, else as multisets.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// The relative error that floating-point cells may have: one unit of their last digit, and sums in another
/// order.
const FLOAT_ERROR: f64 = 2e-8;

/// The rows of a batch as text; NULL is `NULL`, floats have nine significant digits.
pub fn rows(batch: &RecordBatch) -> Vec<Vec<String>> {
    let columns: Vec<Vec<String>> = batch.columns().iter().map(column).collect();
    (0..batch.num_rows()).map(|row| columns.iter().map(|c| c[row].clone()).collect()).collect()
}

fn column(array: &ArrayRef) -> Vec<String> {
    if array.data_type().is_floating() {
        let wide = cast(array, &DataType::Float64).expect("floats widen");
        let values = wide.as_primitive::<Float64Type>();
        return values.iter().map(|v| v.map_or("NULL".to_owned(), |v| format!("{:.8e}", v + 0.0))).collect();
    }
    let options = FormatOptions::default().with_null("NULL");
    let cells = ArrayFormatter::try_new(array.as_ref(), &options).expect("result columns have a text form");
    (0..array.len()).map(|row| cells.value(row).to_string()).collect()
}

/// Compares two answers: column names, types up to the width of text, rows, cells.
///
/// # Errors
/// What differs first.
pub fn compare(ours: &RecordBatch, reference: &RecordBatch, ordered: bool) -> Result<(), String> {
    let shape = |batch: &RecordBatch| -> Vec<(String, DataType)> {
        let fields = batch.schema_ref().fields().iter();
        fields.map(|f| (f.name().clone(), plain(f.data_type()))).collect()
    };
    if shape(ours) != shape(reference) {
        return Err(format!("columns {:?} instead of {:?}", shape(ours), shape(reference)));
    }
    let (mut ours, mut reference) = (rows(ours), rows(reference));
    if ours.len() != reference.len() {
        return Err(format!("{} rows instead of {}", ours.len(), reference.len()));
    }
    if !ordered {
        ours.sort();
        reference.sort();
    }
    for (index, (got, want)) in ours.iter().zip(&reference).enumerate() {
        if got.len() != want.len() || !got.iter().zip(want).all(|(got, want)| same(got, want)) {
            return Err(format!("row {index} is {got:?} instead of {want:?}"));
        }
    }
    Ok(())
}

fn plain(ty: &DataType) -> DataType {
    match ty {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::Dictionary(_, value) => plain(value),
        _ => ty.clone(),
    }
}

fn same(got: &str, want: &str) -> bool {
    let close = || {
        let float = |text: &str| text.contains('e').then(|| text.parse::<f64>().ok()).flatten();
        let (got, want) = (float(got)?, float(want)?);
        Some((got - want).abs() <= FLOAT_ERROR * want.abs())
    };
    got == want || close().unwrap_or(false)
}
