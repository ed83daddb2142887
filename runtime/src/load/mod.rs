//! Parquet chunks to columns on a device.
//!
//! Bytes go to the device as they lie in the file; pages are decompressed and decoded there, straight into the
//! representation that a plan asks for. The host reads page headers, decompresses what the device cannot, and
//! decodes the few columns that the device does not read.
//!
//! Invariant: what `Loader::load` has returned is complete and was checked: every value lies within what its
//! footer says and every code within its dictionary, so that kernels may index by them.

mod draft;
mod sources;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use dkb_kernels::ColumnRepr;
use dkb_kernels::parquet::{COPY_BEHIND, Failure, PARQUET, PLAIN_BEHIND, Reason, SCAN_TILE};

use crate::device::{Device, DeviceError, Mark, Memory, Module, Priority};
use crate::exec::Error;
use crate::exec::columns::{DeviceColumn, Pointers};
use crate::nvtx;
use crate::table::{HostColumn, Table, TableError, crc_matches, decompress, workers};
use crate::trace::{Span, Stage, Timeline, now_ms};

use self::draft::{Draft, HostPage, Parts, Piece};
pub(crate) use self::sources::Sources;

/// Threads that keep a link busy.
const COPY_THREADS: u64 = 32 * 256;
/// Defined bytes behind text: kernels read it in words of eight bytes.
const TEXT_PADDING: [u8; 8] = [0; 8];

/// A column that is to be loaded, and where its rows go.
pub(crate) struct Want<'a> {
    /// Name.
    pub(crate) column: &'a str,
    /// Representation.
    pub(crate) repr: ColumnRepr,
    /// Where the first row's value goes, as a byte offset; None for text.
    pub(crate) values: Option<(&'a dyn Memory, usize)>,
    /// Where the first row's validity goes, if the representation has NULLs.
    pub(crate) valid: Option<(&'a dyn Memory, usize)>,
    /// The table-wide dictionary on this device and its entries, for codes.
    pub(crate) dictionary: Option<(Pointers, u32)>,
}

/// The text of some rows, on a device.
pub(crate) struct Text {
    /// `rows + 1` offsets.
    pub(crate) offsets: Box<dyn Memory>,
    /// The texts, and padding.
    pub(crate) bytes: Box<dyn Memory>,
}

impl Text {
    /// Both allocations.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &dyn Memory> {
        [self.offsets.as_ref(), self.bytes.as_ref()].into_iter()
    }

    /// Where it lies.
    pub(crate) fn pointers(&self) -> Pointers {
        Pointers {
            offsets: self.offsets.address(),
            bytes: self.bytes.address(),
            text_bytes: (self.bytes.bytes() - TEXT_PADDING.len()) as u64,
            ..Pointers::default()
        }
    }

    /// From the host.
    ///
    /// # Errors
    /// Out of memory, or a failed device call.
    pub(crate) fn upload(device: &dyn Device, offsets: &[u32], bytes: &[u8]) -> Result<Text, DeviceError> {
        let offsets: Vec<u8> = offsets.iter().flat_map(|o| o.to_le_bytes()).collect();
        let text = Text {
            offsets: device.alloc(offsets.len().max(4))?,
            bytes: device.alloc(bytes.len() + TEXT_PADDING.len())?,
        };
        device.upload(text.offsets.as_ref(), 0, &offsets)?;
        device.upload(text.bytes.as_ref(), 0, bytes)?;
        device.upload(text.bytes.as_ref(), bytes.len(), &TEXT_PADDING)?;
        Ok(text)
    }
}

/// What all loads of a session have in common.
pub(crate) struct Shared {
    /// Files that devices read in place.
    pub(crate) sources: Sources,
    /// What ran when.
    pub(crate) timeline: Arc<Timeline>,
    /// Columns that the host decoded, as `table.column`, and why.
    pub(crate) by_host: Mutex<BTreeMap<String, String>>,
}

/// Loads pieces of tables to one device, one at a time, beside the device's other work.
pub(crate) struct Loader {
    device: Arc<dyn Device>,
    /// The device that uses what is loaded.
    home: Arc<dyn Device>,
    number: usize,
    decoder: Arc<dyn Module>,
    /// Brings the bytes of this loader and of its like, one load's after another's: beside each other all would
    /// come late, and the link would idle while all are being decoded.
    copier: Arc<Mutex<Arc<dyn Device>>>,
    shared: Arc<Shared>,
}

impl Loader {
    /// Loaders for the device of that number, which may be at work beside each other.
    ///
    /// # Errors
    /// The decoder does not compile, or a device call fails.
    pub(crate) fn several(
        count: usize,
        home: &Arc<dyn Device>,
        number: usize,
        shared: &Arc<Shared>,
    ) -> Result<Vec<Loader>, Error> {
        let copier = Arc::new(Mutex::new(home.fork(Priority::High)?));
        let decoder = home.compile_builtin(&PARQUET)?;
        let loader = |_| {
            Ok(Loader {
                device: home.fork(Priority::Low)?,
                home: home.clone(),
                number,
                decoder: decoder.clone(),
                copier: copier.clone(),
                shared: shared.clone(),
            })
        };
        (0..count).map(loader).collect()
    }

    /// Memory to be filled here.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, DeviceError> {
        self.device.alloc_for(self.home.as_ref(), bytes)
    }

    /// The device, for memory that is filled here.
    pub(crate) fn device(&self) -> &dyn Device {
        self.device.as_ref()
    }

    /// About how many bytes of device memory a load takes while it is under way, its columns included.
    ///
    /// # Errors
    /// No such column.
    pub(crate) fn estimate(
        table: &Table,
        columns: &[(&str, ColumnRepr)],
        rows: &Range<u64>,
    ) -> Result<u64, TableError> {
        draft::estimate(table, columns, rows)
    }

    /// Loads rows of a table. Gives the text of columns that are text.
    ///
    /// # Errors
    /// Unreadable or malformed files, values that the footer or the representation excludes; out of memory.
    pub(crate) fn load(
        &self,
        table: &Table,
        wants: &[Want<'_>],
        rows: Range<u64>,
    ) -> Result<Vec<Option<Text>>, Error> {
        let _range = nvtx::range("load", &table.info.name);
        let mut forced: Vec<Option<String>> = wants.iter().map(|_| None).collect();
        loop {
            let mut draft = Draft::new(table, wants, &rows, &forced)?;
            let mut texts: Vec<Option<Text>> = wants.iter().map(|_| None).collect();
            // The host has the last word on what the device refuses: its error, or its columns.
            let refused = self.on_device(table, &mut draft, &mut texts, &rows);
            let place = format!("loading table `{}`", table.info.name);
            let refused = refused.map_err(|e| e.in_or_before(&place))?;
            if let Some((want, reason)) = refused {
                forced[want] = Some(reason.to_string());
                continue;
            }
            let mut file_bytes = piece_bytes(&draft.pieces) + page_bytes(&draft.unpacks);
            for (at, why) in &draft.host {
                let started = now_ms();
                let column = table.read(wants[*at].column, wants[*at].repr, rows.clone())?;
                texts[*at] = self.upload(&wants[*at], &column)?;
                let bytes = column.values.len() as u64;
                self.span(Stage::Read, table, started, now_ms(), bytes);
                file_bytes += bytes;
                let name = format!("{}.{}", table.info.name, wants[*at].column);
                let mut by_host = self.shared.by_host.lock().unwrap_or_else(PoisonError::into_inner);
                by_host.entry(name).or_insert_with(|| why.clone());
            }
            for (want, text) in wants.iter().zip(&mut texts) {
                if want.values.is_none() && text.is_none() {
                    // No rows at all.
                    *text = Some(Text::upload(self.device.as_ref(), &[0], &[])?);
                }
            }
            self.device.synchronize()?;
            self.shared.timeline.count(self.number, file_bytes, rows.end - rows.start);
            return Ok(texts);
        }
    }

    fn upload(&self, want: &Want<'_>, column: &HostColumn) -> Result<Option<Text>, Error> {
        if let (Some((memory, offset)), Some(valid)) = (want.valid, &column.valid) {
            self.device.upload(memory, offset, valid)?;
        }
        match want.values {
            Some((memory, offset)) => {
                self.device.upload(memory, offset, &column.values)?;
                Ok(None)
            }
            None => {
                let offsets = column.offsets.as_deref().unwrap_or_default();
                Ok(Some(Text::upload(self.device.as_ref(), offsets, &column.values)?))
            }
        }
    }

    /// Copies and decodes what a draft says. The want that the device refuses, and why, if there is one.
    fn on_device(
        &self,
        table: &Table,
        draft: &mut Draft,
        texts: &mut [Option<Text>],
        rows: &Range<u64>,
    ) -> Result<Option<(usize, Reason)>, Error> {
        if draft.columns.is_empty() {
            return Ok(None);
        }
        let started = now_ms();
        let count = rows.end - rows.start;
        let device = self.device.as_ref();
        let in_place = self.find_in_place(table, draft);
        let parts = draft.parts();
        let work = device.alloc(parts.end)?;
        let base = work.address();
        // Where each text starts in its page, kept until it is copied.
        let mut scratch = Vec::new();
        let mut offsets: Vec<(usize, Box<dyn Memory>)> = Vec::new();
        for (at, column) in draft.columns.iter_mut().enumerate().filter(|(_, c)| c.values == 0) {
            let memory = self.alloc((count as usize + 1) * 4)?;
            device.upload(memory.as_ref(), 0, &[0; 4])?;
            let sources = device.alloc(count as usize * 4)?;
            (column.offsets, column.sources) = (memory.address(), sources.address());
            offsets.push((at, memory));
            scratch.push(sources);
        }
        self.compare_sums(table, draft)?;
        let plain = unpack(table, &draft.unpacks)?;
        for (page, plain) in draft.unpacks.iter().zip(&plain) {
            device.upload(work.as_ref(), parts.plain + page.at, plain)?;
        }
        device.upload(work.as_ref(), parts.copies, &draft.tasks(base, &parts))?;
        let (before, read_bytes) = if in_place {
            (self.copy_in_turn(&[draft.copies.len() as u64, base + parts.copies as u64])?, 0)
        } else {
            let begun = device.mark()?;
            let mut result = Ok(());
            // What is copied along is defined: it may be read as part of words.
            device.upload_with(work.as_ref(), 0, draft.packed_bytes + COPY_BEHIND, &mut |at, to| {
                if result.is_ok() {
                    result = read_pieces(table, &draft.pieces, at, to);
                }
            })?;
            result?;
            (begun, piece_bytes(&draft.pieces))
        };
        let read_bytes = read_bytes + page_bytes(&draft.unpacks);
        let copied = device.mark()?;
        self.span(Stage::Read, table, started, now_ms(), read_bytes);
        let address = |part: usize| base + part as u64;
        let launch = |kernel: &str, threads: u64, args: &[u64]| match threads {
            0 => Ok(()),
            _ => device.launch(self.decoder.as_ref(), kernel, threads, args),
        };
        let (inputs, chunks) = (draft.inputs.len() as u64, draft.chunks.len() as u64);
        let (fixed, text) = (draft.fixed.len() as u64, draft.text.len() as u64);
        let [fixed_error, text_error] = [0, 8].map(|at| address(parts.cells + at));
        let (chunk_tasks, column_tasks) = (address(parts.chunks), address(parts.columns));
        launch("dkb_decompress", inputs * 64, &[inputs, address(parts.inputs), fixed_error])?;
        let decompressed = device.mark()?;
        launch("dkb_dictionaries", chunks * 256, &[chunks, chunk_tasks, column_tasks, fixed_error])?;
        launch(
            "dkb_decode",
            fixed * 256,
            &[fixed, address(parts.fixed), chunk_tasks, column_tasks, fixed_error],
        )?;
        let text_args = [text, address(parts.text), chunk_tasks, column_tasks, text_error];
        if text > 0 {
            launch("dkb_text_lengths", text * 256, &text_args)?;
            self.scan(&offsets, count, &parts, base, text_error)?;
            let mut totals = vec![0; draft.columns.len() * 8];
            device.download(work.as_ref(), parts.totals, &mut totals)?;
            for (at, offsets) in offsets {
                let total = u64::from_le_bytes(totals[at * 8..][..8].try_into().unwrap_or_default()) as usize;
                let bytes = self.alloc(total + TEXT_PADDING.len())?;
                device.upload(bytes.as_ref(), total, &TEXT_PADDING)?;
                (draft.columns[at].values, draft.columns[at].capacity) = (bytes.address(), total as u64);
                texts[draft.wants[at]] = Some(Text { offsets, bytes });
            }
            device.upload(work.as_ref(), parts.columns, &dkb_kernels::parquet::bytes_of(&draft.columns))?;
            launch("dkb_text_copy", text * 256, &text_args)?;
        }
        let decoded = device.mark()?;
        let mut cells = [0; 16];
        device.download(work.as_ref(), parts.cells, &mut cells)?;
        let stages = [(Stage::Copy, &before, &copied), (Stage::Decompress, &copied, &decompressed)];
        for (stage, from, to) in stages.into_iter().chain([(Stage::Decode, &decompressed, &decoded)]) {
            let bytes = match stage {
                Stage::Copy => piece_bytes(&draft.pieces),
                Stage::Decompress => draft.inputs.iter().map(|i| u64::from(i.plain_bytes)).sum(),
                _ => draft.columns.iter().map(|c| c.rows * u64::from(c.elem_bytes) + c.capacity).sum(),
            };
            self.span(stage, table, from.ms()?, to.ms()?, bytes);
        }
        let (fixed, text) = cells.split_at(8);
        let failure = |cell: &[u8]| Failure::of(u64::from_le_bytes(cell.try_into().unwrap_or_default()));
        let pages = [(failure(fixed), &draft.fixed), (failure(text), &draft.text)];
        let failed = pages.into_iter().find_map(|(failure, pages)| Some((failure?, pages)));
        let Some((failure, pages)) = failed else { return Ok(None) };
        let task = failure.task as usize;
        let chunk = match failure.reason {
            Reason::Compressed | Reason::Dictionary => Some(task),
            Reason::TooMuchText => draft.chunks.iter().position(|c| c.column as usize == task),
            _ => pages.get(task).map(|p| p.chunk as usize),
        };
        match chunk.and_then(|chunk| draft.want_of(chunk)) {
            Some(want) => Ok(Some((want, failure.reason))),
            None => Err(Error::Execution(format!("table `{}`: {}", table.info.name, failure.reason))),
        }
    }

    /// Lengths to offsets, for each column of text.
    fn scan(
        &self,
        offsets: &[(usize, Box<dyn Memory>)],
        rows: u64,
        parts: &Parts,
        base: u64,
        error: u64,
    ) -> Result<(), Error> {
        let device = self.device.as_ref();
        let tiles = rows.div_ceil(SCAN_TILE);
        let sums = device.alloc(tiles as usize * 8)?;
        for (at, memory) in offsets {
            let (lengths, sums) = (memory.address(), sums.address());
            let total = base + (parts.totals + at * 8) as u64;
            let decoder = self.decoder.as_ref();
            device.launch(decoder, "dkb_scan_tiles", tiles * 256, &[rows, lengths, sums])?;
            device.launch(decoder, "dkb_scan_sums", 256, &[tiles, sums, total, *at as u64, error])?;
            device.launch(decoder, "dkb_scan_add", tiles * 256, &[rows, lengths, sums])?;
        }
        Ok(())
    }

    /// Whether the device reads all files of a draft in place; its copies are then complete.
    fn find_in_place(&self, table: &Table, draft: &mut Draft) -> bool {
        let files = table.files();
        let bytes = |piece: &Piece| {
            let file = &files[piece.file];
            let mapping = file.mapping().filter(|_| self.shared.sources.has(&file.path))?;
            let (start, end) = (piece.range.start as usize, piece.range.end as usize);
            if end + COPY_BEHIND > mapping.len() {
                return None;
            }
            // SAFETY: the range lies within the mapping, which is read-only and outlives the table.
            Some((piece.at, unsafe { std::slice::from_raw_parts(mapping.as_ptr().add(start), end - start) }))
        };
        let found: Option<Vec<_>> = draft.pieces.iter().map(bytes).collect();
        let Some(found) = found else { return false };
        found.into_iter().for_each(|(at, from)| draft.copy_from(at, from));
        true
    }

    /// Has the copies made that lie ready on the device, in turn. Gives when that begins.
    fn copy_in_turn(&self, args: &[u64]) -> Result<Box<dyn Mark>, DeviceError> {
        let copier = self.copier.lock().unwrap_or_else(PoisonError::into_inner);
        copier.follow(self.device.as_ref())?;
        let begun = copier.mark()?;
        copier.launch(self.decoder.as_ref(), "dkb_gather", COPY_THREADS, args)?;
        self.device.follow(copier.as_ref())?;
        Ok(begun)
    }

    fn compare_sums(&self, table: &Table, draft: &Draft) -> Result<(), TableError> {
        workers::for_each(draft.sums.iter().collect(), |page| {
            let body = body_of(table, page)?;
            if crc_matches(&page.page, &body) {
                Ok(())
            } else {
                Err(damaged(table, page, "a page's checksum differs"))
            }
        })
    }

    fn span(&self, stage: Stage, table: &Table, start_ms: f64, end_ms: f64, bytes: u64) {
        let name = table.info.name.clone();
        self.shared.timeline.record(Span { device: self.number, stage, name, start_ms, end_ms, bytes });
    }
}

fn piece_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|p| p.range.end - p.range.start).sum()
}

fn page_bytes(pages: &[HostPage]) -> u64 {
    pages.iter().map(|p| p.page.body.end - p.page.body.start).sum()
}

/// Decompresses pages on all cores, and puts defined bytes behind them.
fn unpack(table: &Table, pages: &[HostPage]) -> Result<Vec<Vec<u8>>, TableError> {
    workers::map(pages.iter().collect(), |page| {
        let mut body = body_of(table, page)?;
        if page.page.compressed {
            let levels = page.page.level_bytes as usize;
            let plain = decompress(page.codec, &body[levels..], page.page.plain_bytes as usize - levels);
            body.truncate(levels);
            body.extend(
                plain.map_err(|e| damaged(table, page, &format!("a page does not decompress: {e}")))?,
            );
        }
        body.extend([0; PLAIN_BEHIND]);
        Ok(body)
    })
}

fn body_of(table: &Table, page: &HostPage) -> Result<Vec<u8>, TableError> {
    let mut body = vec![0; (page.page.body.end - page.page.body.start) as usize];
    table.file(page.group).read_at(&mut body, page.page.body.start)?;
    Ok(body)
}

fn damaged(table: &Table, page: &HostPage, what: &str) -> TableError {
    TableError::Damaged { place: table.place(page.group, page.column), what: what.to_owned() }
}

/// Reads the part of the packed pages that begins at `at`, on all cores.
fn read_pieces(table: &Table, pieces: &[Piece], at: usize, to: &mut [u8]) -> Result<(), TableError> {
    let (end, mut rest, mut reached) = (at + to.len(), to, at);
    let first = pieces.partition_point(|p| p.at + (p.range.end - p.range.start) as usize <= at);
    let mut reads = Vec::new();
    for piece in pieces[first..].iter().take_while(|p| p.at < end) {
        let from = piece.at.max(at);
        let stop = (piece.at + (piece.range.end - piece.range.start) as usize).min(end);
        let (_, tail) = rest.split_at_mut(from - reached);
        let (bytes, tail) = tail.split_at_mut(stop - from);
        reads.push((piece.file, piece.range.start + (from - piece.at) as u64, bytes));
        (rest, reached) = (tail, stop);
    }
    workers::for_each(reads, |(file, offset, bytes)| table.files()[file].read_at(bytes, offset))
}

/// Reads rows of a table on a device and brings them back: what a device sees, for tests. Also gives the
/// columns that the host decoded, and why.
///
/// # Errors
/// Those of loading, and no such column.
pub fn read_on_device(
    device: &Arc<dyn Device>,
    table: &Arc<Table>,
    columns: &[(&str, ColumnRepr)],
    rows: Range<u64>,
) -> Result<(Vec<HostColumn>, Vec<String>), Error> {
    let shared = Arc::new(Shared {
        sources: Sources::open(std::slice::from_ref(table), device.as_ref())?,
        timeline: Arc::default(),
        by_host: Mutex::default(),
    });
    let loaders = Loader::several(1, device, 0, &shared)?;
    DeviceColumn::round_trip(&loaders[0], table, columns, rows).map(|found| {
        let by_host = shared.by_host.lock().unwrap_or_else(PoisonError::into_inner);
        (found, by_host.iter().map(|(column, why)| format!("{column}: {why}")).collect())
    })
}
