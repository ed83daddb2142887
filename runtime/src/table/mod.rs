//! Tables: a folder of Parquet files as columns in the representations that plans ask for.
//!
//! Invariant: every value handed out was checked against the footer of its row group and against its element
//! type, and every code lies within its dictionary, so that kernels may index by them.

mod chunk;
mod codec;
mod decode;
mod dictionary;
mod disk;
mod keys;
mod open;
mod pages;
mod split;
mod stats;
mod text;
mod thrift;
pub(crate) mod workers;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use arrow::array::StringArray;
use arrow::datatypes::DataType;
use dkb_kernels::ColumnRepr;
use dkb_planner::catalog::TableInfo;
use parquet::basic::Compression;
use parquet::errors::ParquetError;

use chunk::ChunkPart;

pub(crate) use chunk::ParquetFile;
pub(crate) use codec::decompress;
pub use decode::HostColumn;
pub(crate) use decode::{Encoding, Target};
pub use dictionary::Dictionary;
pub use keys::key_name;
pub(crate) use keys::key_ranges;
pub(crate) use pages::{ChunkPages, Page, PageKind, crc_matches};
pub use split::split;
pub(crate) use stats::{Bounds, Factor, Kind};

/// Why tables cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The folder does not exist or is no folder.
    #[error("{}: no such folder", .0.display())]
    NoFolder(PathBuf),
    /// The folder holds nothing that is a table.
    #[error("{} holds no Parquet tables: expected NAME.parquet files or NAME/ folders of them", .0.display())]
    NoTables(PathBuf),
    /// Two entries of the folder are one table.
    #[error("{} and {} are both table `{table}`: remove or rename one", .first.display(), .second.display())]
    Duplicate {
        /// The table.
        table: String,
        /// One entry.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is no Parquet file, or a damaged one.
    #[error("{} is not a readable Parquet file: {source}", .path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The reader's reason.
        source: ParquetError,
    },
    /// A column chunk that is not what its footer or itself says.
    #[error("{place}: {what}; the file is damaged")]
    Damaged {
        /// File, row group and column.
        place: Place,
        /// The contradiction.
        what: String,
    },
    /// The files of one table have different columns.
    #[error("table `{table}`: {} and {} differ: {detail}", .first.display(), .second.display())]
    Schemas {
        /// The table.
        table: String,
        /// Its first file.
        first: PathBuf,
        /// The file that differs from it.
        second: PathBuf,
        /// The first difference.
        detail: String,
    },
    /// No such column.
    #[error("table `{table}` has no column `{column}`; its columns are {known}")]
    NoColumn {
        /// The table.
        table: String,
        /// The column asked for.
        column: String,
        /// The columns there are.
        known: String,
    },
    /// Rows past the table's end.
    #[error("table `{table}` has {rows} rows; rows up to {end} were asked for")]
    NoRows {
        /// The table.
        table: String,
        /// Its rows.
        rows: u64,
        /// One past the last row asked for.
        end: u64,
    },
    /// The column cannot have the representation.
    #[error("column {table}.{column} of type {ty} cannot be read as `{repr}`")]
    Representation {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Its type in the file.
        ty: DataType,
        /// What was asked for.
        repr: ColumnRepr,
    },
    /// The column holds no text.
    #[error("column {table}.{column} of type {ty} is not text")]
    NotText {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Its type in the file.
        ty: DataType,
    },
    /// A value outside what the footer states.
    #[error("{place}: value {value} outside the footer's range {min}..={max}; the file is damaged")]
    OutsideFooter {
        /// File, row group and column.
        place: Place,
        /// The value, in the file's unit.
        value: i128,
        /// The footer's minimum.
        min: i128,
        /// The footer's maximum.
        max: i128,
    },
    /// A value that is not NULL where the footer says that all are.
    #[error("{place}: value {value} where the footer says that all are NULL; the file is damaged")]
    NotNull {
        /// File, row group and column.
        place: Place,
        /// The value, in the file's unit.
        value: i128,
    },
    /// A value that the representation cannot hold.
    #[error("{place}: value {value} cannot be represented as `{repr}`")]
    TooWide {
        /// File, row group and column.
        place: Place,
        /// The value, in the file's unit.
        value: i128,
        /// The representation.
        repr: ColumnRepr,
    },
    /// A NULL though the representation has none.
    #[error("{place}: NULL in a column read as `{repr}`; read it as `{repr} null`")]
    Null {
        /// File, row group and column.
        place: Place,
        /// The representation.
        repr: ColumnRepr,
    },
    /// A text that the table-wide dictionary lacks.
    #[error(
        "{place}: {value:?} is missing from the table-wide dictionary; the file's page statistics are wrong"
    )]
    DictionaryMiss {
        /// File, row group and column.
        place: Place,
        /// The text.
        value: String,
    },
    /// The dictionary has more entries than codes.
    #[error("column {table}.{column} has {entries} distinct values, more than `{repr}` can number")]
    DictionarySize {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Entries of its dictionary.
        entries: u64,
        /// The representation.
        repr: ColumnRepr,
    },
    /// More text than 32-bit offsets reach.
    #[error(
        "column {table}.{column}: {bytes} bytes of text at once, more than 32-bit offsets reach; read fewer rows"
    )]
    TooMuchText {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Bytes of text.
        bytes: u64,
    },
}

/// Where in a data set a value lies.
#[derive(Debug, Clone)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// Its row group, counted from 0.
    pub row_group: usize,
    /// The column.
    pub column: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, row group {}, column `{}`", self.path.display(), self.row_group, self.column)
    }
}

/// The tables of one folder.
#[derive(Debug)]
pub struct DataSet {
    /// The folder.
    pub path: PathBuf,
    /// Its tables, by name.
    pub tables: Vec<Arc<Table>>,
}

impl DataSet {
    /// Opens every `NAME.parquet` file and every folder `NAME/` of such files in `dir` as a table. Names
    /// become lower case; the files of a folder are read in the order of their names; all else is ignored.
    ///
    /// Reads footers and the dictionary pages of text columns, on all cores.
    ///
    /// # Errors
    /// No such folder, no tables in it, or files that are unreadable or do not fit together.
    pub fn open(dir: &Path) -> Result<DataSet, TableError> {
        open::data_set(dir)
    }

    /// The table of that name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.iter().find(|t| t.info.name == name)
    }

    /// What the planner needs to know of the tables.
    pub fn catalog(&self) -> Vec<TableInfo> {
        self.tables.iter().map(|t| t.info.clone()).collect()
    }
}

/// A table: one or more Parquet files with the same columns.
#[derive(Debug)]
pub struct Table {
    /// Name, schema, rows and statistics.
    pub info: TableInfo,
    files: Vec<ParquetFile>,
    groups: Vec<Group>,
    columns: Vec<Column>,
}

/// A row group with rows.
#[derive(Debug)]
pub(crate) struct Group {
    /// Position of its file in [`Table::files`].
    pub(crate) file: usize,
    /// Position in the file.
    pub(crate) row_group: usize,
    /// Rows of the table.
    pub(crate) rows: Range<u64>,
}

/// How the values of one column chunk are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Type of the values.
    pub(crate) physical: parquet::basic::Type,
    /// Bytes of a `FIXED_LEN_BYTE_ARRAY`; 0 for other types.
    pub(crate) type_bytes: u32,
    /// Largest definition level: 1 if the chunk has levels and may hold NULLs, else 0.
    pub(crate) max_def_level: i16,
    /// Codec of its pages.
    pub(crate) codec: Compression,
}

/// One column of a table.
#[derive(Debug)]
struct Column {
    kind: Kind,
    /// The type in which the Parquet reader returns it.
    ty: DataType,
    /// Leaf column of the files; None for nested and repeated columns.
    leaf: Option<usize>,
    /// Per row group, in stored units.
    bounds: Vec<Bounds>,
    /// Uncompressed bytes of all chunks, as encoded.
    bytes: u64,
    /// The table-wide dictionary, once there is one.
    dictionary: Mutex<Option<Arc<Dictionary>>>,
    /// Decoded text per row group, for [`Table::text`].
    text: Vec<Mutex<Option<StringArray>>>,
    /// Page headers per row group.
    pages: Vec<OnceLock<ChunkPages>>,
}

/// One row group of a table, for pruning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowGroupBounds {
    /// Its rows of the table.
    pub rows: Range<u64>,
    /// Smallest and largest value of the column, in the units of [`dkb_planner::catalog::ColumnInfo::min`];
    /// None where the footer does not say, or all values are NULL.
    pub bounds: Option<(i128, i128)>,
}

impl Table {
    /// The files, in row order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.path.as_path())
    }

    /// Bytes of the column chunks of these columns as encoded but not compressed, as the footers state them,
    /// per row. All columns if none is named.
    ///
    /// # Errors
    /// No such column.
    pub fn bytes_per_row(&self, columns: &[&str]) -> Result<f64, TableError> {
        let bytes: u64 = match columns {
            [] => self.columns.iter().map(|c| c.bytes).sum(),
            _ => columns
                .iter()
                .map(|c| Ok(self.columns[self.index(c)?].bytes))
                .sum::<Result<u64, TableError>>()?,
        };
        Ok(bytes as f64 / self.info.rows.max(1) as f64)
    }

    /// The bounds of a column per row group, in row order.
    ///
    /// # Errors
    /// No such column.
    pub fn row_group_bounds(&self, column: &str) -> Result<Vec<RowGroupBounds>, TableError> {
        let column = &self.columns[self.index(column)?];
        let groups = self.groups.iter().zip(&column.bounds);
        Ok(groups
            .map(|(g, b)| RowGroupBounds { rows: g.rows.clone(), bounds: b.in_catalog(column.kind) })
            .collect())
    }

    /// The position of a column.
    ///
    /// # Errors
    /// No such column.
    pub(crate) fn index(&self, column: &str) -> Result<usize, TableError> {
        self.info.schema.index_of(column).map_err(|_| TableError::NoColumn {
            table: self.info.name.clone(),
            column: column.to_owned(),
            known: self.info.schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    fn column_name(&self, index: usize) -> &str {
        self.info.schema.field(index).name()
    }

    /// The leaf column of a text column.
    fn text_leaf(&self, index: usize) -> Result<usize, TableError> {
        let column = &self.columns[index];
        match column.leaf {
            Some(leaf) if column.kind == Kind::Text => Ok(leaf),
            _ => Err(TableError::NotText {
                table: self.info.name.clone(),
                column: self.column_name(index).to_owned(),
                ty: column.ty.clone(),
            }),
        }
    }

    fn check_rows(&self, end: u64) -> Result<(), TableError> {
        if end <= self.info.rows {
            return Ok(());
        }
        Err(TableError::NoRows { table: self.info.name.clone(), rows: self.info.rows, end })
    }

    /// The row groups that have rows, in row order.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The files, in row order.
    pub(crate) fn files(&self) -> &[ParquetFile] {
        &self.files
    }

    /// What a column's values are.
    pub(crate) fn kind(&self, column: usize) -> Kind {
        self.columns[column].kind
    }

    /// What the footer says of a column's values in a row group, in stored units.
    pub(crate) fn bounds(&self, column: usize, group: usize) -> Bounds {
        self.columns[column].bounds.get(group).copied().unwrap_or(Bounds::Unknown)
    }

    /// A column's leaf in its files; None for nested and repeated columns.
    pub(crate) fn leaf(&self, column: usize) -> Option<usize> {
        self.columns[column].leaf
    }

    /// How a column is stored in a row group, which may differ from file to file; None without a leaf.
    pub(crate) fn stored(&self, column: usize, group: usize) -> Option<Stored> {
        let chunk = self.file(group).row_group(self.groups[group].row_group).column(self.leaf(column)?);
        let descriptor = chunk.column_descr();
        Some(Stored {
            physical: chunk.column_type(),
            type_bytes: u32::try_from(descriptor.type_length()).unwrap_or(0),
            max_def_level: descriptor.max_def_level(),
            codec: chunk.compression(),
        })
    }

    /// Bytes of a column's chunk in a row group as it lies in the file, and decompressed, 0 if it is plain; None
    /// without a leaf.
    pub(crate) fn chunk_bytes(&self, column: usize, group: usize) -> Option<(u64, u64)> {
        let chunk = self.file(group).row_group(self.groups[group].row_group).column(self.leaf(column)?);
        let bytes = |n: i64| u64::try_from(n).unwrap_or(0);
        let plain = match chunk.compression() {
            Compression::UNCOMPRESSED => 0,
            _ => bytes(chunk.uncompressed_size()),
        };
        Some((bytes(chunk.compressed_size()), plain))
    }

    /// Bytes of a column's text, each value counted as often as it occurs; None where a footer does not say.
    ///
    /// # Errors
    /// No such column.
    pub(crate) fn text_bytes(&self, column: &str) -> Result<Option<u64>, TableError> {
        let Some(leaf) = self.leaf(self.index(column)?) else { return Ok(None) };
        let groups = self.groups.iter().enumerate();
        let chunks = groups.map(|(at, group)| self.file(at).row_group(group.row_group).column(leaf));
        Ok(chunks.map(|chunk| u64::try_from(chunk.unencoded_byte_array_data_bytes()?).ok()).sum())
    }

    /// Where in the files a row group's values of a column lie.
    pub(crate) fn place(&self, group: usize, column: usize) -> Place {
        let Group { file, row_group, .. } = self.groups[group];
        Place { path: self.files[file].path.clone(), row_group, column: self.column_name(column).to_owned() }
    }

    /// The file of a row group.
    pub(crate) fn file(&self, group: usize) -> &ParquetFile {
        &self.files[self.groups[group].file]
    }

    /// All rows of a row group's chunk.
    fn whole(&self, group: usize, leaf: usize) -> ChunkPart {
        let Group { row_group, ref rows, .. } = self.groups[group];
        ChunkPart { row_group, leaf, rows: 0..(rows.end - rows.start) as usize }
    }
}

#[cfg(test)]
mod tests;
