//! What the planner knows of a data set: schemas, and statistics from the Parquet footers.

use arrow::datatypes::SchemaRef;

/// One table of a data set.
#[derive(Debug, Clone)]
pub struct TableInfo {
    /// Name in SQL.
    pub name: String,
    /// Arrow schema as DataFusion sees it.
    pub schema: SchemaRef,
    /// Rows, exact.
    pub rows: u64,
    /// Statistics per column, in schema order.
    pub columns: Vec<ColumnInfo>,
}

/// Statistics of one column, table-wide.
#[derive(Debug, Clone, Default)]
pub struct ColumnInfo {
    /// Smallest value as an integer: scaled decimal, days, microseconds, 0/1. None for text, floats and where
    /// the footers do not say. The decoder verifies it.
    pub min: Option<i128>,
    /// Largest value, likewise.
    pub max: Option<i128>,
    /// Whether NULLs can occur: false only where the schema or every footer says that none does.
    pub nullable: bool,
    /// Entries of the sorted table-wide dictionary, for text columns that have one when the table is opened.
    pub dict_entries: Option<u64>,
    /// Whether the dictionary can only be had by hashing all values (then it has `rows` entries at most).
    pub text: bool,
}
