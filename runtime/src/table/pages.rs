//! Where the pages of column chunks lie: their headers, read without the bodies between them.
//!
//! Invariant: the pages of a chunk lie one after another within it, the values of its data pages are as many as
//! the rows of the row group, and no header contradicts itself. The bodies are unchecked.

use std::ops::Range;

use parquet::basic::{Compression, Encoding, Type};
use parquet::file::metadata::ColumnChunkMetaData;

use super::chunk::ParquetFile;
use super::codec::crc32;
use super::thrift::{Bad, Header};
use super::{Table, TableError, workers};

/// Bytes read for a header whose length is not known yet; most have 20 to 80.
const WINDOW_BYTES: u64 = 512;
/// What is left of a chunk is read at once if it is no larger.
const SMALL_CHUNK_BYTES: u64 = 16 << 10;
/// Largest header; it may hold the page's smallest and largest value.
const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Largest page, decompressed.
const MAX_PAGE_BYTES: u32 = 2 << 30;

/// What a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// Values that data pages refer to.
    Dictionary,
    /// Levels and values, compressed together.
    V1,
    /// Levels, and values behind them; only these may be compressed.
    V2,
}

/// One page of a column chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// What it is.
    pub(crate) kind: PageKind,
    /// Where its body lies in the file.
    pub(crate) body: Range<u64>,
    /// Bytes of the body once decompressed, levels included.
    pub(crate) plain_bytes: u32,
    /// Entries of a dictionary; rows of a data page, at least one.
    pub(crate) values: u32,
    /// How the values are stored.
    pub(crate) encoding: Encoding,
    /// First row of a data page, from the start of the row group.
    pub(crate) first_row: u32,
    /// Bytes of definition levels at the start of the body of a V2 page.
    pub(crate) level_bytes: u32,
    /// Whether the chunk's codec compressed the body, or what follows the levels in that of a V2 page. If not,
    /// the body has `plain_bytes` bytes.
    pub(crate) compressed: bool,
    /// Checksum of the body as it lies in the file.
    pub(crate) crc: Option<u32>,
}

const _: () = assert!(size_of::<Page>() <= 48, "a data set may have millions of pages");

/// The pages of one column chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkPages {
    /// The dictionary page.
    pub(crate) dictionary: Option<Page>,
    /// The data pages that have rows, in order.
    pub(crate) data: Vec<Page>,
    /// Why devices do not read the chunk, which may be in order all the same. There are no pages then.
    pub(crate) obstacle: Option<&'static str>,
}

impl ChunkPages {
    fn unreadable(why: &'static str) -> ChunkPages {
        ChunkPages { obstacle: Some(why), ..ChunkPages::default() }
    }
}

/// Whether a page's body, as it lies in the file, agrees with its checksum, if it has one.
pub(crate) fn crc_matches(page: &Page, body: &[u8]) -> bool {
    page.crc.is_none_or(|crc| crc32(body) == crc)
}

impl Table {
    /// The pages of a column in a row group. Their headers are read when first asked for, and kept.
    ///
    /// # Errors
    /// A file that cannot be read, and headers that are malformed or contradict themselves or the footer.
    pub(crate) fn pages(&self, column: usize, group: usize) -> Result<&ChunkPages, TableError> {
        let cache = &self.columns[column].pages[group];
        if let Some(pages) = cache.get() {
            return Ok(pages);
        }
        let pages = match self.columns[column].leaf {
            Some(leaf) => walk(self.file(group), self.groups[group].row_group, leaf)?,
            None => ChunkPages::unreadable("nested values"),
        };
        // Another thread may have been faster with the same pages.
        Ok(cache.get_or_init(|| pages))
    }

    /// Reads the page headers of all columns, on all cores.
    ///
    /// # Errors
    /// As [`Self::pages`].
    pub(crate) fn read_page_headers(&self) -> Result<(), TableError> {
        workers::for_each((0..self.groups.len()).collect(), |group| {
            (0..self.columns.len()).try_for_each(|column| self.pages(column, group).map(drop))
        })
    }
}

/// Goes from header to header through the chunk of a flat column.
fn walk(file: &ParquetFile, row_group: usize, leaf: usize) -> Result<ChunkPages, TableError> {
    let group = file.row_group(row_group);
    let chunk = group.column(leaf);
    match (chunk.column_type(), chunk.compression()) {
        (Type::INT96, _) => return Ok(ChunkPages::unreadable("INT96 values")),
        (_, Compression::LZO) => return Ok(ChunkPages::unreadable("codec LZO")),
        _ => {}
    }
    let Ok(rows) = u32::try_from(group.num_rows()) else {
        return Ok(ChunkPages::unreadable("more than 2^32 rows in a row group"));
    };
    let range = file.chunk_range(row_group, leaf)?;
    let mut window = Window { file, end: range.end, start: range.start, bytes: Vec::new() };
    let mut pages = ChunkPages::default();
    let (mut at, mut next_row) = (range.start, 0);
    while next_row < rows && at < range.end {
        let start = at;
        let damaged = |what: &str| file.damaged(row_group, leaf, format!("the page at byte {start}: {what}"));
        let (header, body_start) = window.header(start)?.ok_or_else(|| damaged("a malformed header"))?;
        if let Some(obstacle) = obstacle(&header, chunk) {
            return Ok(ChunkPages::unreadable(obstacle));
        }
        let mut page = page(&header, body_start..range.end, chunk).map_err(damaged)?;
        at = page.body.end;
        if page.kind == PageKind::Dictionary {
            if start > range.start {
                return Err(damaged("a dictionary behind other pages"));
            }
            pages.dictionary = Some(page);
        } else if is_dictionary(page.encoding) && pages.dictionary.is_none() {
            return Ok(ChunkPages::unreadable("codes without a dictionary page"));
        } else if page.values > rows - next_row {
            return Err(damaged("more rows than the footer says"));
        } else if page.values > 0 {
            page.first_row = next_row;
            next_row += page.values;
            pages.data.push(page);
        }
    }
    if next_row < rows {
        let what = format!("its pages have {next_row} rows, the row group {rows}");
        return Err(file.damaged(row_group, leaf, what));
    }
    if at < range.end {
        return Ok(ChunkPages::unreadable("bytes behind the last page"));
    }
    pages.data.shrink_to_fit();
    Ok(pages)
}

/// Why devices do not read a page that may be in order.
fn obstacle(header: &Header, chunk: &ColumnChunkMetaData) -> Option<&'static str> {
    let nullable = chunk.column_descr().max_def_level() > 0;
    let Some(kind) = kind(header) else { return Some("a page of unknown kind") };
    let Some(encoding) = encoding(header.encoding) else { return Some("an unknown encoding") };
    match kind {
        PageKind::Dictionary if !matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) => {
            Some("a dictionary that is not plain")
        }
        PageKind::V1 if nullable && self::encoding(header.level_encoding) != Some(Encoding::RLE) => {
            Some("levels that are not run-length encoded")
        }
        PageKind::V2 if header.repetition_bytes != 0 => Some("repetition levels in a flat column"),
        PageKind::V1 | PageKind::V2 if !fits(encoding, chunk.column_type()) => {
            Some("an encoding that the format does not have for its type")
        }
        _ => None,
    }
}

/// The page of a header whose body starts where `room` does, and ends before `room` does.
fn page(header: &Header, room: Range<u64>, chunk: &ColumnChunkMetaData) -> Result<Page, &'static str> {
    let (Some(kind), Some(encoding)) = (kind(header), encoding(header.encoding)) else {
        return Err("of unknown kind or encoding");
    };
    let body_bytes = u32::try_from(header.body_bytes).map_err(|_| "a body of negative size")?;
    let body = room.start..room.start + u64::from(body_bytes);
    if body.end > room.end {
        return Err("its body reaches past the column chunk");
    }
    let plain_bytes = u32::try_from(header.plain_bytes).ok().filter(|bytes| *bytes <= MAX_PAGE_BYTES);
    let plain_bytes = plain_bytes.ok_or("a size outside 0 to 2 GiB")?;
    let values = u32::try_from(header.values).map_err(|_| "a negative number of values")?;
    let level_bytes = u32::try_from(header.level_bytes).map_err(|_| "levels of negative size")?;
    if level_bytes > body_bytes.min(plain_bytes) {
        return Err("its levels are longer than its body");
    }
    // Nothing stays nothing, whatever the codec.
    let empty = level_bytes == body_bytes && level_bytes == plain_bytes;
    let compressed = chunk.compression() != Compression::UNCOMPRESSED && header.compressed && !empty;
    if !compressed && body_bytes != plain_bytes {
        return Err("two sizes though it is not compressed");
    }
    let value_bytes = match chunk.column_type() {
        Type::BOOLEAN => 0,
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
        Type::INT64 | Type::DOUBLE => 8,
        Type::INT96 => 12,
        Type::FIXED_LEN_BYTE_ARRAY => u64::try_from(chunk.column_descr().type_length()).unwrap_or(0),
    };
    if kind == PageKind::Dictionary && u64::from(values) * value_bytes > u64::from(plain_bytes) {
        return Err("more entries than there is room for");
    }
    let crc = header.crc.map(|crc| crc as u32);
    Ok(Page { kind, body, plain_bytes, values, encoding, first_row: 0, level_bytes, compressed, crc })
}

fn kind(header: &Header) -> Option<PageKind> {
    match header.kind {
        0 => Some(PageKind::V1),
        2 => Some(PageKind::Dictionary),
        3 => Some(PageKind::V2),
        _ => None,
    }
}

/// The encodings that devices read, by their numbers in the format.
fn encoding(number: i64) -> Option<Encoding> {
    Some(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return None,
    })
}

fn is_dictionary(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY)
}

/// Whether the format has data pages of this encoding for a type.
fn fits(encoding: Encoding, ty: Type) -> bool {
    match encoding {
        Encoding::PLAIN => true,
        Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => ty != Type::BOOLEAN,
        Encoding::RLE => ty == Type::BOOLEAN,
        Encoding::DELTA_BINARY_PACKED => matches!(ty, Type::INT32 | Type::INT64),
        Encoding::DELTA_LENGTH_BYTE_ARRAY => ty == Type::BYTE_ARRAY,
        Encoding::DELTA_BYTE_ARRAY => matches!(ty, Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY),
        Encoding::BYTE_STREAM_SPLIT => !matches!(ty, Type::BOOLEAN | Type::BYTE_ARRAY),
        _ => false,
    }
}

/// A part of a chunk in memory, which moves forward.
struct Window<'a> {
    file: &'a ParquetFile,
    /// Where the chunk ends.
    end: u64,
    /// Where `bytes` lie in the file.
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// The header at a byte that is not before those of the last call, and where it ends; None if there is none.
    fn header(&mut self, at: u64) -> Result<Option<(Header, u64)>, TableError> {
        let rest = self.end - at;
        let mut wanted = if rest <= SMALL_CHUNK_BYTES { rest } else { WINDOW_BYTES };
        loop {
            let known = self.bytes.get((at - self.start) as usize..).unwrap_or_default();
            match Header::parse(known) {
                Ok((header, length)) => return Ok(Some((header, at + length as u64))),
                Err(Bad::Malformed) => return Ok(None),
                Err(Bad::Truncated) if known.len() as u64 >= rest.min(MAX_HEADER_BYTES) => return Ok(None),
                Err(Bad::Truncated) => {}
            }
            while wanted <= known.len() as u64 {
                wanted *= 8;
            }
            wanted = wanted.min(rest);
            self.bytes.resize(wanted as usize, 0);
            self.start = at;
            self.file.read_at(&mut self.bytes, at)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::column::page::{Page as Reference, PageReader};
    use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
    use parquet::file::serialized_reader::SerializedPageReader;

    use super::super::{DataSet, decompress};
    use super::*;

    /// Table `t` of 5000 rows in two row groups: keys, numbers with NULLs, text that outgrows its dictionary.
    fn write(dir: &Path, properties: WriterPropertiesBuilder) {
        let numbers = (0..5000i64).map(|i| (i / 700 % 2 == 0).then_some(i * i));
        let texts = (0..5000).map(|i| format!("{:*>1$}", if i < 900 { i % 9 } else { i }, 8));
        let columns: [(&str, ArrayRef, bool); 3] = [
            ("k", Arc::new(Int64Array::from_iter_values(0..5000)), false),
            ("n", Arc::new(numbers.collect::<Int64Array>()), true),
            ("s", Arc::new(StringArray::from_iter_values(texts)), false),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let properties = properties
            .set_max_row_group_row_count(Some(3000))
            .set_data_page_row_count_limit(100)
            .set_write_batch_size(50)
            .set_dictionary_page_size_limit(2000);
        let file = File::create(dir.join("t.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    fn open(dir: &Path) -> Arc<Table> {
        Arc::clone(DataSet::open(dir).unwrap().table("t").unwrap())
    }

    #[test]
    fn pages_are_those_of_the_parquet_crate() {
        let codecs = [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(Default::default())];
        let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
        for (codec, version) in codecs.into_iter().flat_map(|c| versions.map(|v| (c, v))) {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), WriterProperties::builder().set_compression(codec).set_writer_version(version));
            let table = open(dir.path());
            table.read_page_headers().unwrap();
            let bytes = bytes::Bytes::from(fs::read(dir.path().join("t.parquet")).unwrap());
            for (column, group) in (0..3).flat_map(|column| (0..2).map(move |group| (column, group))) {
                let pages = table.pages(column, group).unwrap();
                assert_eq!(pages.obstacle, None);
                let metadata = table.file(group).row_group(group);
                let rows = metadata.num_rows() as usize;
                let source = Arc::new(bytes.clone());
                let mut reader =
                    SerializedPageReader::new(source, metadata.column(column), rows, None).unwrap();
                let mut first_row = 0;
                for page in pages.dictionary.iter().chain(&pages.data) {
                    let reference = reader.get_next_page().unwrap().unwrap();
                    assert_eq!(page.values, reference.num_values());
                    assert_eq!(page.plain_bytes as usize, reference.buffer().len());
                    assert_eq!(page.encoding, reference.encoding());
                    match (page.kind, &reference) {
                        (PageKind::Dictionary, Reference::DictionaryPage { .. }) => {}
                        (PageKind::V1, Reference::DataPage { .. }) => assert_eq!(page.level_bytes, 0),
                        (PageKind::V2, Reference::DataPageV2 { def_levels_byte_len, .. }) => {
                            assert_eq!(page.level_bytes, *def_levels_byte_len);
                        }
                        _ => panic!("{page:?} is {reference:?}"),
                    }
                    let body = &bytes[page.body.start as usize..page.body.end as usize];
                    let levels = page.level_bytes as usize;
                    match codec {
                        _ if !page.compressed => assert_eq!(body, &reference.buffer()[..]),
                        Compression::ZSTD(_) => {
                            let plain_bytes = page.plain_bytes as usize - levels;
                            let plain = decompress(codec, &body[levels..], plain_bytes).unwrap();
                            assert_eq!(plain, reference.buffer()[levels..]);
                        }
                        _ => {}
                    }
                    if page.kind != PageKind::Dictionary {
                        assert_eq!(page.first_row, first_row);
                        first_row += page.values;
                    }
                }
                assert!(reader.get_next_page().unwrap().is_none());
                assert_eq!(first_row as usize, rows);
                assert!(pages.data.len() >= rows / 100);
            }
        }
    }

    #[test]
    fn damaged_headers_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let version = WriterVersion::PARQUET_2_0;
        write(
            dir.path(),
            WriterProperties::builder().set_writer_version(version).set_dictionary_enabled(false),
        );
        let table = open(dir.path());
        let page = table.pages(1, 0).unwrap().data[3].clone();
        let header_end = page.body.start as usize;
        let header_start = table.pages(1, 0).unwrap().data[2].body.end as usize;
        let good = fs::read(dir.path().join("t.parquet")).unwrap();
        let (mut found, mut bits) = (0, 0);
        for bit in header_start * 8..header_end * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(dir.path().join("t.parquet"), bad).unwrap();
            bits += 1;
            match open(dir.path()).pages(1, 0) {
                Ok(_) => {}
                Err(error) => {
                    found += 1;
                    let text = error.to_string();
                    assert!(text.contains("t.parquet, row group 0, column `n`: "), "{text}");
                    assert!(text.contains("the page at byte") || text.contains("its pages have"), "{text}");
                }
            }
        }
        // The page's statistics may hold any value, and some encodings stand for others.
        assert!(found * 2 > bits, "{found} of {bits}");
    }

    #[test]
    fn files_cut_short_are_named() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), WriterProperties::builder());
        let table = open(dir.path());
        File::options().write(true).open(dir.path().join("t.parquet")).unwrap().set_len(100).unwrap();
        let error = table.read_page_headers().unwrap_err().to_string();
        assert!(error.contains("t.parquet: ") && error.contains("bytes at "), "{error}");
    }
}
