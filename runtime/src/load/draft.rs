//! What one load does, worked out on the host: which bytes go where on the device, and what becomes of them.

use std::cmp::Reverse;
use std::ops::Range;

use dkb_kernels::parquet as decoder;
use dkb_kernels::parquet::{
    COPY_ALIGN, COPY_BEHIND, ChunkTask, ColumnTask, CopyTask, DeviceStruct, PageInput, PageTask,
};
use dkb_kernels::{ColumnRepr, Elem, Physical};
use parquet::basic::{Compression, Encoding as Stored, Type};

use super::Want;
use crate::table::{Bounds, Encoding, Factor, Kind, Page, PageKind, Table, TableError, Target};

/// Alignment of plain pages and of the parts of a load's memory.
const ALIGN: usize = 256;
/// Bytes left readable in front of and behind packed pages.
const SLACK: usize = 64;
/// Bytes that are copied rather than skipped, if they are no more than what follows: those of a page's header, say.
const NEAR_BYTES: u64 = 4 << 10;
/// Bytes that describe a page, at most.
const TASK_BYTES: u64 = 128;

/// A file's bytes that are copied to the device as they are.
pub(super) struct Piece {
    /// Position among the table's files.
    pub(super) file: usize,
    /// Where they lie in it.
    pub(super) range: Range<u64>,
    /// Where they go in the load's memory.
    pub(super) at: usize,
}

/// A page that the host looks into.
pub(super) struct HostPage {
    pub(super) column: usize,
    pub(super) group: usize,
    pub(super) page: Page,
    pub(super) codec: Compression,
    /// Where it goes among the plain pages.
    pub(super) at: usize,
}

/// Where the parts of a load lie in its memory, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parts {
    pub(super) plain: usize,
    entries: usize,
    pub(super) copies: usize,
    pub(super) inputs: usize,
    pub(super) chunks: usize,
    pub(super) columns: usize,
    pub(super) fixed: usize,
    pub(super) text: usize,
    /// Error cells of columns of fixed width and of text.
    pub(super) cells: usize,
    /// A total for each column of text.
    pub(super) totals: usize,
    pub(super) end: usize,
}

/// Until the load has memory, addresses in tasks are offsets into one of its parts, marked as such.
const PACKED: u64 = 1 << 62;
const PLAIN: u64 = 2 << 62;
const ENTRIES: u64 = 3 << 62;
const PART: u64 = 3 << 62;

/// See the module.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) pieces: Vec<Piece>,
    /// Pages that the host decompresses.
    pub(super) unpacks: Vec<HostPage>,
    /// Pages whose checksums the host compares.
    pub(super) sums: Vec<HostPage>,
    /// Wants that the host decodes, and why.
    pub(super) host: Vec<(usize, String)>,
    /// Bytes of packed pages.
    pub(super) packed_bytes: usize,
    plain_bytes: usize,
    entries: usize,
    /// How pieces get to the device, if it reads their files in place.
    pub(super) copies: Vec<CopyTask>,
    pub(super) inputs: Vec<PageInput>,
    pub(super) chunks: Vec<ChunkTask>,
    pub(super) columns: Vec<ColumnTask>,
    /// Data pages of columns of fixed width.
    pub(super) fixed: Vec<PageTask>,
    /// Data pages of columns of text.
    pub(super) text: Vec<PageTask>,
    /// By column task.
    pub(super) wants: Vec<usize>,
}

impl Draft {
    /// Plans the load of `rows` of a table. The host decodes wants with a reason in `forced`.
    ///
    /// # Errors
    /// No such column, a representation that cannot be, or pages that contradict themselves.
    pub(super) fn new(
        table: &Table,
        wants: &[Want<'_>],
        rows: &Range<u64>,
        forced: &[Option<String>],
    ) -> Result<Draft, TableError> {
        let mut draft = Draft { packed_bytes: SLACK, ..Draft::default() };
        let mut targets = Vec::new();
        for (at, want) in wants.iter().enumerate() {
            let target = table.target(want.column, want.repr)?;
            let why = match &forced[at] {
                Some(why) => Some(why.clone()),
                None => obstacle(table, &target, rows)?.map(str::to_owned),
            };
            match why {
                Some(why) => draft.host.push((at, why)),
                None => targets.push((at, target)),
            }
        }
        // In the order of the file, where neighbours are copied together.
        targets.sort_by_key(|(_, target)| table.leaf(target.column));
        for (group, part) in table.parts(rows) {
            for (at, target) in &targets {
                draft.part(table, *at, &wants[*at], target, rows, group, &part)?;
            }
        }
        // What takes longest goes first.
        draft.inputs.sort_by_key(|input| Reverse(input.plain_bytes));
        Ok(draft)
    }

    /// The rows `part` of a row group, of one want.
    #[expect(clippy::too_many_arguments, reason = "what, and where")]
    fn part(
        &mut self,
        table: &Table,
        at: usize,
        want: &Want<'_>,
        target: &Target,
        rows: &Range<u64>,
        group: usize,
        part: &Range<usize>,
    ) -> Result<(), TableError> {
        let Some(stored) = table.stored(target.column, group) else { return Ok(()) };
        let task = column_task(want, target, table.kind(target.column), stored.physical, stored.type_bytes);
        let task = ColumnTask { rows: rows.end - rows.start, ..task };
        // The files of a table may store a column in different ways.
        let known = self.columns.iter().zip(&self.wants).position(|(t, w)| *w == at && *t == task);
        let column = known.unwrap_or(self.columns.len());
        if known.is_none() {
            self.columns.push(task);
            self.wants.push(at);
        }
        self.chunk(table, target, column as u32, group, part, rows.start)
    }

    /// The pages of one chunk that hold the rows `part` of its row group. `first_row` of the table becomes the
    /// column's first.
    fn chunk(
        &mut self,
        table: &Table,
        target: &Target,
        column: u32,
        group: usize,
        part: &Range<usize>,
        first_row: u64,
    ) -> Result<(), TableError> {
        let Some(stored) = table.stored(target.column, group) else { return Ok(()) };
        let pages = table.pages(target.column, group)?;
        let data = selected(&pages.data, part);
        let mut chunk = Chunk {
            number: self.chunks.len() as u32,
            column: target.column,
            group,
            file: table.groups()[group].file,
            codec: stored.codec,
            pieces: Vec::new(),
        };
        let (bounds, min, max) = match table.bounds(target.column, group) {
            Bounds::Unknown => (decoder::bounds::UNKNOWN, 0, 0),
            Bounds::Empty => (decoder::bounds::EMPTY, 0, 0),
            Bounds::Within(min, max) => (decoder::bounds::WITHIN, min, max),
        };
        let mut task = ChunkTask { min, max, column, bounds, ..ChunkTask::default() };
        if let (Some(page), [first, .., last] | [first @ last]) = (&pages.dictionary, data) {
            // What lies between is a page's header, or pages that are not needed.
            let near = first.first_row == 0;
            chunk.copy(self, page.body.start..if near { last.body.end } else { page.body.end });
            let (_, dict) = chunk.page(self, page);
            task = ChunkTask { dict, dict_bytes: page.plain_bytes, dict_entries: page.values, ..task };
            if stored.physical == Type::BYTE_ARRAY {
                task.entries = self.entries_of(page.values);
                if self.columns[column as usize].kind != decoder::kind::CODES {
                    task.lengths = self.entries_of(page.values);
                }
            }
        }
        if let [first, .., last] | [first @ last] = data {
            chunk.copy(self, first.body.start..last.body.end);
        }
        for page in data {
            let (levels, values) = chunk.page(self, page);
            let (skip, end) =
                (part.start.saturating_sub(page.first_row as usize), part.end - page.first_row as usize);
            let (skip, take) = (skip as u32, end.min(page.values as usize) as u32 - skip as u32);
            let level_mode = match page.kind {
                _ if stored.max_def_level == 0 => decoder::levels::NONE,
                PageKind::V2 => decoder::levels::V2,
                _ => decoder::levels::V1,
            };
            let task = PageTask {
                levels,
                values,
                level_bytes: page.level_bytes,
                value_bytes: page.plain_bytes - page.level_bytes,
                rows: page.values,
                skip,
                take,
                chunk: chunk.number,
                out: table.groups()[group].rows.start + u64::from(page.first_row + skip) - first_row,
                encoding: number_of(page.encoding),
                level_mode,
            };
            let text = self.columns[column as usize].kind == decoder::kind::TEXT;
            if text { self.text.push(task) } else { self.fixed.push(task) }
        }
        self.chunks.push(task);
        Ok(())
    }

    fn entries_of(&mut self, count: u32) -> u64 {
        let at = self.entries;
        self.entries += count as usize * 4;
        ENTRIES | at as u64
    }

    fn plain(&mut self, bytes: u32) -> usize {
        let at = self.plain_bytes.next_multiple_of(16);
        self.plain_bytes = at + bytes as usize + SLACK;
        at
    }

    /// Where everything lies in the memory of the load.
    pub(super) fn parts(&self) -> Parts {
        let mut end = (self.packed_bytes + SLACK).next_multiple_of(ALIGN);
        let mut part = |bytes: usize| {
            let at = end;
            end = (end + bytes).next_multiple_of(ALIGN);
            at
        };
        let mut parts = Parts {
            plain: part(self.plain_bytes),
            entries: part(self.entries),
            copies: part(size_of_val(&*self.copies)),
            inputs: part(size_of_val(&*self.inputs)),
            chunks: part(size_of_val(&*self.chunks)),
            columns: part(size_of_val(&*self.columns)),
            fixed: part(size_of_val(&*self.fixed)),
            text: part(size_of_val(&*self.text)),
            cells: part(2 * 8),
            totals: part(self.columns.len() * 8),
            end: 0,
        };
        parts.end = end;
        parts
    }

    /// The tasks as the device reads them, from [`Parts::copies`] to the end, for memory at `base`.
    pub(super) fn tasks(&self, base: u64, parts: &Parts) -> Vec<u8> {
        let resolve = |address: u64| match address & PART {
            PACKED => base + (address ^ PACKED),
            PLAIN => base + parts.plain as u64 + (address ^ PLAIN),
            ENTRIES => base + parts.entries as u64 + (address ^ ENTRIES),
            _ => address,
        };
        let mut bytes = vec![0; parts.end - parts.copies];
        write_all(&mut bytes[..], &self.copies, |copy| CopyTask { to: resolve(copy.to), ..*copy });
        write_all(&mut bytes[parts.inputs - parts.copies..], &self.inputs, |input| PageInput {
            from: resolve(input.from),
            to: resolve(input.to),
            ..*input
        });
        write_all(&mut bytes[parts.chunks - parts.copies..], &self.chunks, |chunk| ChunkTask {
            dict: resolve(chunk.dict),
            entries: resolve(chunk.entries),
            lengths: resolve(chunk.lengths),
            ..*chunk
        });
        write_all(&mut bytes[parts.columns - parts.copies..], &self.columns, |column| *column);
        for (at, pages) in [(parts.fixed, &self.fixed), (parts.text, &self.text)] {
            write_all(&mut bytes[at - parts.copies..], pages, |page| PageTask {
                levels: resolve(page.levels),
                values: resolve(page.values),
                ..*page
            });
        }
        bytes
    }

    /// Has a piece copied from where the device reads it.
    pub(super) fn copy_from(&mut self, at: usize, from: &[u8]) {
        let (from, bytes) = (from.as_ptr() as u64, from.len() as u64);
        self.copies.push(CopyTask { from, to: PACKED | at as u64, bytes });
    }

    /// The want of a chunk task.
    pub(super) fn want_of(&self, chunk: usize) -> Option<usize> {
        self.wants.get(self.chunks.get(chunk)?.column as usize).copied()
    }
}

fn write_all<T: DeviceStruct + Copy>(to: &mut [u8], items: &[T], resolved: impl Fn(&T) -> T) {
    for (item, to) in items.iter().zip(to.chunks_exact_mut(size_of::<T>())) {
        resolved(item).put(to);
    }
}

/// A chunk whose pages are being placed.
struct Chunk {
    number: u32,
    column: usize,
    group: usize,
    file: usize,
    codec: Compression,
    /// What of it is copied, and where it goes.
    pieces: Vec<(Range<u64>, usize)>,
}

impl Chunk {
    /// Copies a stretch of the file, unless the host decompresses the chunk or it is copied already.
    fn copy(&mut self, draft: &mut Draft, range: Range<u64>) {
        let known = self.pieces.iter().any(|(known, _)| known.start <= range.start && range.end <= known.end);
        if known || host_codec(self.codec) {
            return;
        }
        let start = range.start as usize % COPY_ALIGN;
        let end = (draft.packed_bytes + COPY_BEHIND).next_multiple_of(COPY_ALIGN) + start;
        let near = NEAR_BYTES.min(range.end - range.start);
        let at = match draft.pieces.last_mut() {
            Some(last)
                if last.file == self.file
                    && (last.range.end..=last.range.end + near).contains(&range.start) =>
            {
                let at = last.at + (range.start - last.range.start) as usize;
                last.range.end = range.end;
                at
            }
            _ => {
                draft.pieces.push(Piece { file: self.file, range: range.clone(), at: end });
                end
            }
        };
        draft.packed_bytes = at + (range.end - range.start) as usize;
        self.pieces.push((range, at));
    }

    /// Where the page's levels and its values lie once they are plain.
    fn page(&mut self, draft: &mut Draft, page: &Page) -> (u64, u64) {
        let host_page = |at| HostPage {
            column: self.column,
            group: self.group,
            page: page.clone(),
            codec: self.codec,
            at,
        };
        if page.crc.is_some() {
            draft.sums.push(host_page(0));
        }
        let levels = u64::from(page.level_bytes);
        if host_codec(self.codec) {
            let at = draft.plain(page.plain_bytes);
            draft.unpacks.push(host_page(at));
            return (PLAIN | at as u64, PLAIN | (at as u64 + levels));
        }
        let piece = self
            .pieces
            .iter()
            .find(|(range, _)| range.start <= page.body.start && page.body.end <= range.end);
        let packed = piece.map_or(0, |(range, at)| *at as u64 + page.body.start - range.start);
        let packed_bytes = (page.body.end - page.body.start) - levels;
        let plain_bytes = page.plain_bytes - page.level_bytes;
        if !page.compressed || plain_bytes == 0 {
            return (PACKED | packed, PACKED | (packed + levels));
        }
        let at = draft.plain(plain_bytes);
        let to = PLAIN | at as u64;
        let codec = match self.codec {
            Compression::LZ4 => decoder::codec::LZ4,
            Compression::LZ4_RAW => decoder::codec::LZ4_RAW,
            _ => decoder::codec::SNAPPY,
        };
        let from = PACKED | (packed + levels);
        draft.inputs.push(PageInput {
            from,
            to,
            bytes: packed_bytes as u32,
            plain_bytes,
            codec,
            task: self.number,
        });
        (PACKED | packed, to)
    }
}

/// Whether the host decompresses.
fn host_codec(codec: Compression) -> bool {
    matches!(codec, Compression::ZSTD(_) | Compression::GZIP(_) | Compression::BROTLI(_))
}

/// The data pages that hold some of the rows.
fn selected<'a>(pages: &'a [Page], rows: &Range<usize>) -> &'a [Page] {
    let first = pages.partition_point(|p| (p.first_row + p.values) as usize <= rows.start);
    let end = pages.partition_point(|p| (p.first_row as usize) < rows.end);
    pages.get(first..end).unwrap_or_default()
}

/// Why the device cannot read these rows of a column, if it cannot.
fn obstacle(table: &Table, target: &Target, rows: &Range<u64>) -> Result<Option<&'static str>, TableError> {
    let codes = matches!(target.encoding, Encoding::Codes { .. });
    for (group, part) in table.parts(rows) {
        let pages = table.pages(target.column, group)?;
        if pages.obstacle.is_some() {
            return Ok(pages.obstacle);
        }
        let whole =
            |p: &Page| part.start <= p.first_row as usize && (p.first_row + p.values) as usize <= part.end;
        let bad = |p: &&Page| p.encoding == Stored::DELTA_BYTE_ARRAY && (codes || !whole(p));
        if selected(&pages.data, &part).iter().any(|p| bad(&p)) {
            return Ok(Some("part of a DELTA_BYTE_ARRAY page"));
        }
    }
    Ok(None)
}

fn column_task(
    want: &Want<'_>,
    target: &Target,
    stored: Kind,
    physical: Type,
    type_bytes: u32,
) -> ColumnTask {
    let (kind, elem, factor) = match &target.encoding {
        Encoding::Integer { elem, factor } => (decoder::kind::INTEGER, *elem, *factor),
        Encoding::Float => (decoder::kind::FLOAT, Elem::F64, Factor::ONE),
        Encoding::Codes { elem, .. } => (decoder::kind::CODES, *elem, Factor::ONE),
        Encoding::Text => (decoder::kind::TEXT, Elem::U8, Factor::ONE),
    };
    let (times, over) = match factor {
        Factor::Times(by) => (by, 1),
        Factor::Over(by) => (1, by),
    };
    let unsigned = matches!(elem, Elem::U8 | Elem::U16 | Elem::U32 | Elem::U64);
    let address = |place: Option<(&dyn crate::device::Memory, usize)>| {
        place.map_or(0, |(memory, offset)| memory.address() + offset as u64)
    };
    let (dictionary, dict_entries) = want.dictionary.unwrap_or_default();
    ColumnTask {
        times,
        over,
        values: address(want.values),
        valid: address(want.valid),
        dict_offsets: dictionary.offsets,
        dict_bytes: dictionary.bytes,
        dict_entries,
        kind,
        physical: match physical {
            Type::BOOLEAN => decoder::physical::BOOLEAN,
            Type::INT32 => decoder::physical::INT32,
            Type::FLOAT => decoder::physical::FLOAT,
            Type::DOUBLE => decoder::physical::DOUBLE,
            Type::BYTE_ARRAY => decoder::physical::BYTE_ARRAY,
            Type::FIXED_LEN_BYTE_ARRAY => decoder::physical::FIXED_LEN_BYTE_ARRAY,
            // INT96 is an obstacle.
            Type::INT64 | Type::INT96 => decoder::physical::INT64,
        },
        type_length: type_bytes,
        elem_bytes: elem.bytes() as u32,
        flags: if stored == Kind::Int(true) { decoder::flags::STORED_UNSIGNED } else { 0 }
            | if unsigned { decoder::flags::ELEM_UNSIGNED } else { 0 },
        ..ColumnTask::default()
    }
}

/// The number of an encoding in the Parquet format.
fn number_of(encoding: Stored) -> u32 {
    match encoding {
        Stored::PLAIN_DICTIONARY => decoder::encoding::PLAIN_DICTIONARY,
        Stored::RLE => decoder::encoding::RLE,
        Stored::DELTA_BINARY_PACKED => decoder::encoding::DELTA_BINARY_PACKED,
        Stored::DELTA_LENGTH_BYTE_ARRAY => decoder::encoding::DELTA_LENGTH_BYTE_ARRAY,
        Stored::DELTA_BYTE_ARRAY => decoder::encoding::DELTA_BYTE_ARRAY,
        Stored::RLE_DICTIONARY => decoder::encoding::RLE_DICTIONARY,
        Stored::BYTE_STREAM_SPLIT => decoder::encoding::BYTE_STREAM_SPLIT,
        _ => decoder::encoding::PLAIN,
    }
}

/// See [`super::Loader::estimate`].
pub(super) fn estimate(
    table: &Table,
    columns: &[(&str, ColumnRepr)],
    rows: &Range<u64>,
) -> Result<u64, TableError> {
    let mut bytes = 0;
    for (name, repr) in columns {
        let target = table.target(name, *repr)?;
        let text = repr.physical == Physical::Utf8;
        // Text has places beside its offsets; the text itself is about as large as its pages.
        let row_bytes = repr.physical.row_bytes() * if text { 2 } else { 1 };
        bytes += (rows.end - rows.start) * (row_bytes + u64::from(repr.nullable));
        for (group, part) in table.parts(rows) {
            let whole = table.groups()[group].rows.end - table.groups()[group].rows.start;
            let Some((packed, plain)) = table.chunk_bytes(target.column, group) else { continue };
            let pages = table.pages(target.column, group)?;
            // A part of a chunk comes with its dictionary.
            let dictionary = pages.dictionary.as_ref().map_or(0, |p| u64::from(p.plain_bytes));
            let texts = if text { 2 } else { 1 };
            let all = packed + plain * texts;
            let share = (u128::from(all) * part.len() as u128 / u128::from(whole)) as u64;
            let largest = pages.data.iter().map(|p| u64::from(p.plain_bytes)).max().unwrap_or(0);
            bytes += (share + 2 * largest + 2 * dictionary).min(all) + 2 * COPY_ALIGN as u64;
            bytes += (pages.data.len() as u64 + 2) * TASK_BYTES;
        }
    }
    Ok(bytes)
}
