//! One file of a table, and the reading of its column chunks into Arrow arrays.
//!
//! Pages are read with positioned reads, so any number of threads share one file handle.

use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Schema};
use bytes::{Buf, Bytes};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::column::page::{Page, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::disk::{Mapping, read_exact_at};
use super::workers::lock;
use super::{Place, TableError};

/// Rows decoded at a time: few enough to stay in the core's cache.
const BATCH_ROWS: usize = 1 << 16;
/// Bytes read at a time where it is not known how long a page's header is.
const HEADER_BYTES: usize = 512;

/// An open Parquet file.
#[derive(Debug)]
pub(crate) struct ParquetFile {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// Bytes in it when it was opened.
    pub(crate) bytes: u64,
    file: Arc<File>,
    mapping: OnceLock<Option<Mapping>>,
    /// Text is read as strings.
    plain: ArrowReaderMetadata,
    /// Text is read as dictionary arrays.
    dictionaries: ArrowReaderMetadata,
}

impl ParquetFile {
    /// Opens a file and reads its footer.
    pub(crate) fn open(path: &Path) -> Result<ParquetFile, TableError> {
        let file = File::open(path).map_err(|source| io(path, source))?;
        let bytes = file.metadata().map_err(|source| io(path, source))?.len();
        let footer_error = |what| unreadable(path, ParquetError::General(what));
        guard(footer_error, || {
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            let footer = FooterSource { file: &file, bytes };
            let plain = ArrowReaderMetadata::load(&footer, options).map_err(|e| unreadable(path, e))?;
            let options = ArrowReaderOptions::new().with_schema(Arc::new(with_dictionaries(plain.schema())));
            let dictionaries = ArrowReaderMetadata::try_new(Arc::clone(plain.metadata()), options);
            let dictionaries = dictionaries.unwrap_or_else(|_| plain.clone());
            Ok(ParquetFile {
                path: path.to_owned(),
                bytes,
                file: Arc::new(file),
                mapping: OnceLock::new(),
                plain,
                dictionaries,
            })
        })
    }

    /// The footer.
    pub(crate) fn metadata(&self) -> &Arc<ParquetMetaData> {
        self.plain.metadata()
    }

    /// The types in which columns are read.
    pub(crate) fn read_schema(&self) -> &Schema {
        self.plain.schema()
    }

    /// The types in which DataFusion reads the file: strings as views; dictionaries, an encoding to us, as
    /// their values.
    pub(crate) fn sql_schema(&self) -> Schema {
        let embedded = ArrowReaderMetadata::try_new(Arc::clone(self.metadata()), ArrowReaderOptions::new());
        let schema = embedded.as_ref().unwrap_or(&self.plain).schema();
        let fields: Vec<Field> = schema
            .fields()
            .iter()
            .map(|f| Field::new(f.name(), sql_type(f.data_type()), f.is_nullable()))
            .collect();
        Schema::new(fields)
    }

    /// The row groups.
    pub(crate) fn row_group(&self, index: usize) -> &RowGroupMetaData {
        self.metadata().row_group(index)
    }

    /// Decodes `rows` (numbered from the start of the row group) of one column, and hands on the arrays. Of the pages
    /// before them only the headers are read.
    pub(crate) fn decode(
        &self,
        part: ChunkPart,
        dictionaries: bool,
        mut sink: impl FnMut(&ArrayRef) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let damaged = |what: String| self.damaged(part.row_group, part.leaf, what);
        let source = self.source(self.chunk_range(part.row_group, part.leaf)?);
        let failed = source.failed.clone();
        let decoded = guard(damaged, || {
            let metadata = if dictionaries { &self.dictionaries } else { &self.plain };
            let mask = ProjectionMask::leaves(self.metadata().file_metadata().schema_descr(), [part.leaf]);
            let mut reader = ParquetRecordBatchReaderBuilder::new_with_metadata(source, metadata.clone())
                .with_projection(mask)
                .with_row_groups(vec![part.row_group])
                .with_batch_size(part.rows.len().clamp(1, BATCH_ROWS));
            if part.rows.len() as i64 != self.row_group(part.row_group).num_rows() {
                reader = reader.with_offset(part.rows.start).with_limit(part.rows.len());
            }
            let reader = reader.build().map_err(|e| damaged(e.to_string()))?;
            let mut left = part.rows.len();
            let miscounted = |what| damaged(format!("{what} rows than the footer says"));
            for batch in reader {
                let batch = batch.map_err(|e| damaged(e.to_string()))?;
                left = left.checked_sub(batch.num_rows()).ok_or_else(|| miscounted("more"))?;
                sink(batch.column(0))?;
            }
            if left > 0 { Err(miscounted("fewer")) } else { Ok(()) }
        });
        self.or_unread(decoded, &failed)
    }

    /// The entries of a chunk's dictionary page; None if the chunk does not start with one.
    pub(crate) fn dictionary_page(
        &self,
        row_group: usize,
        leaf: usize,
    ) -> Result<Option<DictionaryPage>, TableError> {
        let damaged = |what: String| self.damaged(row_group, leaf, what);
        let source = Arc::new(self.source(self.chunk_range(row_group, leaf)?));
        let failed = source.failed.clone();
        let found = guard(damaged, || {
            let rows = self.row_group(row_group);
            let mut pages =
                SerializedPageReader::new(source, rows.column(leaf), rows.num_rows().max(0) as usize, None)
                    .map_err(|e| damaged(e.to_string()))?;
            match pages.get_next_page().map_err(|e| damaged(e.to_string()))? {
                Some(Page::DictionaryPage { buf, num_values, .. }) => {
                    Ok(Some(DictionaryPage { bytes: buf, entries: num_values as usize }))
                }
                _ => Ok(None),
            }
        });
        self.or_unread(found, &failed)
    }

    /// Where a column chunk lies in the file.
    ///
    /// # Errors
    /// The footer says that it lies outside.
    pub(crate) fn chunk_range(&self, row_group: usize, leaf: usize) -> Result<Range<u64>, TableError> {
        let chunk = self.row_group(row_group).column(leaf);
        let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
        let end = start.checked_add(chunk.compressed_size());
        match (u64::try_from(start), end.and_then(|end| u64::try_from(end).ok())) {
            (Ok(start), Some(end)) if start <= end && end <= self.bytes => Ok(start..end),
            _ => {
                let (length, file) = (chunk.compressed_size(), self.bytes);
                let what = format!("its {length} bytes at {start} lie outside the file of {file} bytes");
                Err(self.damaged(row_group, leaf, what))
            }
        }
    }

    /// The error for a column chunk that is not what it should be.
    pub(crate) fn damaged(&self, row_group: usize, leaf: usize, what: String) -> TableError {
        let column = self.row_group(row_group).column(leaf).column_path().string();
        TableError::Damaged { place: Place { path: self.path.clone(), row_group, column }, what }
    }

    /// Fills `bytes` from the file at `offset`.
    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), TableError> {
        read_exact_at(&self.file, bytes, offset).map_err(|source| io(&self.path, source))
    }

    /// The file in memory, mapped once; None if it is empty or the system refuses.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        self.mapping.get_or_init(|| Mapping::new(&self.file, self.bytes)).as_ref()
    }

    fn source(&self, range: Range<u64>) -> ChunkSource {
        ChunkSource { file: self.file.clone(), range, file_bytes: self.bytes, failed: Arc::default() }
    }

    /// What was made of a chunk, or why it could not be read.
    fn or_unread<T>(&self, made: Result<T, TableError>, failed: &Failed) -> Result<T, TableError> {
        match lock(failed).take() {
            Some(source) if made.is_err() => Err(io(&self.path, source)),
            _ => made,
        }
    }
}

/// Rows of one column chunk.
#[derive(Debug, Clone)]
pub(crate) struct ChunkPart {
    /// Row group of the file.
    pub(crate) row_group: usize,
    /// Leaf column of the file.
    pub(crate) leaf: usize,
    /// Rows, numbered from the start of the row group.
    pub(crate) rows: Range<usize>,
}

/// The uncompressed dictionary page of a text column.
pub(crate) struct DictionaryPage {
    bytes: Bytes,
    entries: usize,
}

impl DictionaryPage {
    /// The entries; None if the page is malformed or holds no text.
    pub(crate) fn entries(&self) -> Option<Vec<&str>> {
        let mut rest: &[u8] = &self.bytes;
        let mut entries = Vec::with_capacity(self.entries.min(rest.len()));
        for _ in 0..self.entries {
            let (length, tail) = rest.split_first_chunk::<4>()?;
            let (entry, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            entries.push(std::str::from_utf8(entry).ok()?);
            rest = tail;
        }
        Some(entries)
    }
}

/// Size in the file of a chunk's dictionary page, in bytes; None if there is none or it cannot be told.
pub(crate) fn dictionary_page_bytes(chunk: &ColumnChunkMetaData) -> Option<u64> {
    let start = chunk.dictionary_page_offset()?;
    u64::try_from(chunk.data_page_offset().checked_sub(start)?).ok()
}

/// A whole file, of which only the footer is read.
struct FooterSource<'a> {
    file: &'a File,
    bytes: u64,
}

impl Length for FooterSource<'_> {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for FooterSource<'_> {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.get_bytes(start, self.bytes.saturating_sub(start) as usize)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} lie outside the file")));
        }
        let mut bytes = vec![0; length];
        read_exact_at(self.file, &mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// A system's error. Readers of Parquet pass it on as text, or not at all.
type Failed = Arc<Mutex<Option<std::io::Error>>>;

/// A column chunk under its offsets in the file, read as it is asked for.
#[derive(Clone)]
struct ChunkSource {
    file: Arc<File>,
    range: Range<u64>,
    file_bytes: u64,
    failed: Failed,
}

impl ChunkSource {
    fn read_at(&self, bytes: &mut [u8], start: u64) -> std::io::Result<()> {
        read_exact_at(&self.file, bytes, start).map_err(|error| {
            let kind = error.kind();
            *lock(&self.failed) = Some(error);
            kind.into()
        })
    }

    fn check(&self, start: u64, length: usize) -> Result<(), ParquetError> {
        let end = start.checked_add(length as u64);
        if start < self.range.start || end.is_none_or(|end| end > self.range.end) {
            let what = format!("a page at byte {start} lies outside its column chunk");
            return Err(ParquetError::EOF(what));
        }
        Ok(())
    }
}

impl Length for ChunkSource {
    fn len(&self) -> u64 {
        self.file_bytes
    }
}

impl ChunkReader for ChunkSource {
    type T = BufReader<Rest>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        self.check(start, 0)?;
        Ok(BufReader::with_capacity(HEADER_BYTES, Rest { source: self.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.check(start, length)?;
        let mut bytes = vec![0; length];
        self.read_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// What is left of a chunk.
struct Rest {
    source: ChunkSource,
    at: u64,
}

impl Read for Rest {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.source.range.end - self.at).unwrap_or(usize::MAX);
        let count = bytes.len().min(left);
        self.source.read_at(&mut bytes[..count], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

fn with_dictionaries(schema: &Schema) -> Schema {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|f| match f.data_type() {
            DataType::Utf8 => f.as_ref().clone().with_data_type(dictionary.clone()),
            _ => f.as_ref().clone(),
        })
        .collect();
    Schema::new(fields)
}

fn sql_type(ty: &DataType) -> DataType {
    match ty {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, values) => sql_type(values),
        other => other.clone(),
    }
}

fn io(path: &Path, source: std::io::Error) -> TableError {
    TableError::Io { path: path.to_owned(), source }
}

/// The error for a file whose content is not what it should be.
pub(crate) fn unreadable(path: &Path, source: ParquetError) -> TableError {
    TableError::Parquet { path: path.to_owned(), source }
}

/// Turns a panic over a malformed file into an error.
fn guard<R>(
    error: impl FnOnce(String) -> TableError,
    work: impl FnOnce() -> Result<R, TableError>,
) -> Result<R, TableError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the reader gave up");
        Err(error(text.to_owned()))
    })
}
