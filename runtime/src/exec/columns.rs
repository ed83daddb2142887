//! Columns on devices: resident ones, shared by all queries of a session, and pieces of streamed ones.
//!
//! A table is cut into partitions once per session. Where columns are resident, each device owns a run of
//! neighbouring partitions, so that a column of fixed width is one contiguous allocation a device. Text is kept
//! per partition, for its offsets are 32 bits wide. Where they are streamed, [`Feed`](super::feed::Feed) hands
//! partitions to whichever device has room.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use dkb_kernels::{ColumnRepr, Physical};

use super::Error;
use super::exchange::Exchange;
use super::feed::Pieces;
use super::program::ColumnUse;
use crate::device::{Device, DeviceError, Memory};
use crate::load::{Loader, Shared, Text, Want};
use crate::session::Mode;
use crate::table::{DataSet, Dictionary, HostColumn, Table, TableError};

/// One part in this many of a device's memory is left for partitions on their way, whatever state needs.
const STREAM_SHARE: u64 = 4;

/// Partition borders are multiples of this many rows where tables are large enough.
const ROW_ALIGN: u64 = 256;

/// Where the columns of a partition lie on a device. Zero where a column has no such part.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pointers {
    pub(crate) values: u64,
    pub(crate) valid: u64,
    pub(crate) offsets: u64,
    pub(crate) bytes: u64,
    /// How many bytes lie at `bytes`.
    pub(crate) text_bytes: u64,
}

/// A run of rows of one column on one device.
pub(crate) struct DeviceColumn {
    rows: Range<u64>,
    width: usize,
    values: Option<Box<dyn Memory>>,
    valid: Option<Box<dyn Memory>>,
    text: Vec<(Range<u64>, Text)>,
}

impl DeviceColumn {
    /// Memory for `rows` of a column, which `alloc` gives by the byte; text is allocated as it arrives.
    pub(super) fn new(
        alloc: impl Fn(usize) -> Result<Box<dyn Memory>, DeviceError>,
        repr: ColumnRepr,
        rows: Range<u64>,
    ) -> Result<DeviceColumn, DeviceError> {
        let count = (rows.end - rows.start) as usize;
        let width = match repr.physical {
            Physical::Fixed(elem) | Physical::Dict(elem) => elem.bytes(),
            Physical::Utf8 => 0,
        };
        let values = (width > 0).then(|| alloc((count * width).max(1))).transpose()?;
        let valid = repr.nullable.then(|| alloc(count.max(1))).transpose()?;
        Ok(DeviceColumn { rows, width, values, valid, text: Vec::new() })
    }

    /// What the loader is to bring for rows from `first_row`.
    pub(super) fn want<'a>(
        &'a self,
        column: &'a ColumnUse,
        dictionary: Option<&'a DeviceDict>,
        first_row: u64,
    ) -> Want<'a> {
        let at = (first_row - self.rows.start) as usize;
        Want {
            column: &column.column,
            repr: column.repr,
            values: self.values.as_deref().map(|memory| (memory, at * self.width)),
            valid: self.valid.as_deref().map(|memory| (memory, at)),
            dictionary: dictionary.map(|d| (d.pointers(), d.entries())),
        }
    }

    /// Bytes of its memory.
    pub(super) fn bytes(&self) -> u64 {
        self.memory().map(|memory| memory.bytes() as u64).sum()
    }

    /// Every allocation.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &dyn Memory> {
        let text = self.text.iter().flat_map(|(_, text)| text.memory());
        self.values.iter().chain(&self.valid).map(|memory| memory.as_ref()).chain(text)
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.end - self.rows.start
    }

    /// Whether values differ in width.
    pub(crate) fn has_text(&self) -> bool {
        self.width == 0
    }

    /// Width in bytes and address of each array that has an element a row.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = (u64, u64)> {
        let values = self.values.iter().map(|memory| (self.width as u64, memory.address()));
        values.chain(self.valid.iter().map(|memory| (1, memory.address())))
    }

    /// Takes the text of some of its rows.
    pub(super) fn take(&mut self, rows: Range<u64>, text: Option<Text>) {
        self.text.extend(text.map(|text| (rows, text)));
    }

    /// Loads rows of a table and brings them back to the host.
    ///
    /// # Errors
    /// Those of loading.
    pub(crate) fn round_trip(
        loader: &Loader,
        table: &Table,
        columns: &[(&str, ColumnRepr)],
        rows: Range<u64>,
    ) -> Result<Vec<HostColumn>, Error> {
        let device = loader.device();
        let mut loaded = Vec::new();
        for (name, repr) in columns {
            let used = ColumnUse { table: table.info.name.clone(), column: (*name).to_owned(), repr: *repr };
            let dictionary = match repr.physical {
                Physical::Dict(_) => Some(DeviceDict::new(device, table.dictionary(name)?.as_ref())?),
                _ => None,
            };
            let memory = DeviceColumn::new(|bytes| loader.alloc(bytes), *repr, rows.clone())?;
            loaded.push((memory, used, dictionary));
        }
        let wants: Vec<Want> =
            loaded.iter().map(|(memory, used, dict)| memory.want(used, dict.as_ref(), rows.start)).collect();
        let texts = loader.load(table, &wants, rows.clone())?;
        for ((column, ..), text) in loaded.iter_mut().zip(texts) {
            column.take(rows.clone(), text);
        }
        let count = (rows.end - rows.start) as usize;
        loaded.iter().map(|(column, ..)| column.download(device, count)).collect()
    }

    fn download(&self, device: &dyn Device, rows: usize) -> Result<HostColumn, Error> {
        let get = |memory: &dyn Memory, bytes: usize| {
            let mut to = vec![0; bytes];
            device.download(memory, 0, &mut to).map(|()| to)
        };
        let valid = self.valid.as_deref().map(|memory| get(memory, rows)).transpose()?;
        let Some((_, text)) = self.text.first() else {
            let values = self.values.as_deref().map(|memory| get(memory, rows * self.width)).transpose()?;
            return Ok(HostColumn { values: values.unwrap_or_default(), offsets: None, valid });
        };
        let offsets = get(text.offsets.as_ref(), (rows + 1) * 4)?;
        let offsets: Vec<u32> = offsets.as_chunks().0.iter().map(|o| u32::from_le_bytes(*o)).collect();
        let values = get(text.bytes.as_ref(), offsets.last().map_or(0, |o| *o as usize))?;
        Ok(HostColumn { values, offsets: Some(offsets), valid })
    }

    /// Where rows from `first_row` lie: any row for columns of fixed width, the first of a partition for
    /// text.
    pub(crate) fn pointers(&self, first_row: u64) -> Pointers {
        let at = first_row.saturating_sub(self.rows.start);
        let mut found = Pointers::default();
        if let Some(values) = &self.values {
            found.values = values.address() + at * self.width as u64;
        }
        if let Some(valid) = &self.valid {
            found.valid = valid.address() + at;
        }
        if let Some((_, text)) = self.text.iter().find(|(rows, _)| rows.start == first_row) {
            let text = text.pointers();
            (found.offsets, found.bytes, found.text_bytes) = (text.offsets, text.bytes, text.text_bytes);
        }
        found
    }
}

/// A table-wide dictionary on one device.
pub(crate) struct DeviceDict {
    text: Text,
    entries: u32,
}

impl DeviceDict {
    fn new(device: &dyn Device, dictionary: &Dictionary) -> Result<DeviceDict, DeviceError> {
        let text = Text::upload(device, &dictionary.offsets, &dictionary.bytes)?;
        // For loads, which have an order of work of their own.
        device.synchronize()?;
        Ok(DeviceDict { text, entries: dictionary.len() as u32 })
    }

    /// Number of entries.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Every allocation.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &dyn Memory> {
        self.text.memory()
    }

    /// Where the dictionary lies.
    pub(crate) fn pointers(&self) -> Pointers {
        self.text.pointers()
    }
}

/// How a table is cut and shared out.
#[derive(Debug)]
pub(crate) struct Cut {
    /// Contiguous and in order.
    pub(crate) partitions: Vec<Range<u64>>,
    /// By device: the partitions it owns.
    owners: Vec<Range<usize>>,
}

impl Cut {
    fn new(table: &Table, chunk_bytes: u64, devices: usize) -> Result<Cut, TableError> {
        let chunk_rows = (chunk_bytes as f64 / table.bytes_per_row(&[])?.max(1.0)) as u64;
        let columns: Vec<&str> = table.info.schema.fields().iter().map(|f| f.name().as_str()).collect();
        let partitions = aligned(table.partitions(&columns, chunk_rows, devices)?);
        let border = |d: usize| partitions.len() * d / devices;
        let owners = (0..devices).map(|d| border(d)..border(d + 1)).collect();
        Ok(Cut { partitions, owners })
    }

    /// The partitions that a device has: its own, or all.
    fn of(&self, device: usize, all: bool) -> Range<usize> {
        if all { 0..self.partitions.len() } else { self.owners[device].clone() }
    }

    fn rows(&self, partitions: &Range<usize>) -> Range<u64> {
        match self.partitions.get(partitions.clone()) {
            Some([first, .., last]) => first.start..last.end,
            Some([only]) => only.clone(),
            _ => 0..0,
        }
    }
}

/// Moves borders to multiples of [`ROW_ALIGN`], if no partition becomes empty by that.
fn aligned(partitions: Vec<Range<u64>>) -> Vec<Range<u64>> {
    if partitions.iter().any(|p| p.end - p.start < 2 * ROW_ALIGN) {
        return partitions;
    }
    let last = partitions.last().map_or(0, |p| p.end);
    let down = |row: u64| if row == last { row } else { row / ROW_ALIGN * ROW_ALIGN };
    partitions.into_iter().map(|p| down(p.start)..down(p.end)).collect()
}

pub(super) fn died() -> Error {
    Error::Execution("a loading thread died".to_owned())
}

fn dropped(table: &str) -> Error {
    Error::Execution(format!("a column of `{table}` was dropped while the query was being loaded"))
}

#[derive(PartialEq, Eq, Hash, Clone)]
struct Key {
    column: ColumnUse,
    device: usize,
    all: bool,
}

#[derive(Default)]
struct Cache {
    columns: HashMap<Key, Arc<DeviceColumn>>,
    dicts: HashMap<(String, String, usize), Arc<DeviceDict>>,
}

/// All tables of a session, and what of them lies on its devices.
pub(crate) struct Store {
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) mode: Mode,
    /// Streamed partitions that are kept.
    pub(crate) pieces: Pieces,
    /// Whether a launch may cover neighbouring partitions.
    joins_partitions: bool,
    cuts: HashMap<String, Cut>,
    cache: Mutex<Cache>,
    /// By device.
    loaders: Vec<Vec<Loader>>,
    /// None for a single device.
    pub(super) exchange: Option<Exchange>,
    pub(crate) data: DataSet,
}

impl Store {
    /// Cuts all tables into partitions of at most `chunk_bytes` uncompressed bytes, one a device at least.
    /// Launches cover neighbouring resident partitions at once unless `keep_partitions`.
    ///
    /// # Errors
    /// Footers that contradict themselves, or devices that fail.
    pub(crate) fn new(
        data: DataSet,
        devices: Vec<Arc<dyn Device>>,
        chunk_bytes: u64,
        mode: Mode,
        keep_partitions: bool,
        shared: Arc<Shared>,
    ) -> Result<Store, Error> {
        let cut = |t: &Arc<Table>| Ok((t.info.name.clone(), Cut::new(t, chunk_bytes, devices.len())?));
        let cuts = data.tables.iter().map(cut).collect::<Result<_, TableError>>()?;
        let loaders = |(number, device): (usize, &Arc<dyn Device>)| {
            Loader::several(device.loads(), device, number, &shared)
        };
        let loaders = devices.iter().enumerate().map(loaders).collect::<Result<_, Error>>()?;
        Ok(Store {
            pieces: Pieces::new(devices.len()),
            mode,
            joins_partitions: !keep_partitions,
            cuts,
            cache: Mutex::default(),
            loaders,
            exchange: Exchange::new(&devices)?,
            devices,
            data,
        })
    }

    /// Has devices and loaders take what they work with from the driver, so that no query waits for that.
    ///
    /// # Errors
    /// Out of memory, or a failed device call.
    pub(crate) fn warm_up(&self) -> Result<(), DeviceError> {
        let loaders = self.loaders.iter().flatten().map(Loader::device);
        for device in self.devices.iter().map(AsRef::as_ref).chain(loaders) {
            let mut byte = [0];
            let memory = device.alloc(byte.len())?;
            device.upload(memory.as_ref(), 0, &byte)?;
            device.download(memory.as_ref(), 0, &mut byte)?;
        }
        Ok(())
    }

    /// Whether columns are loaded per partition while a query runs.
    pub(crate) fn streams(&self) -> bool {
        self.mode != Mode::Resident
    }

    /// What brings columns to a device; each loads one piece at a time.
    pub(super) fn loaders(&self, device: usize) -> &[Loader] {
        &self.loaders[device]
    }

    /// All partitions of a table.
    ///
    /// # Errors
    /// No such table.
    pub(super) fn partitions(&self, table: &str) -> Result<&[Range<u64>], Error> {
        Ok(&self.cut(table)?.partitions)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table of that name.
    ///
    /// # Errors
    /// No such table.
    pub(crate) fn table(&self, name: &str) -> Result<&Arc<Table>, Error> {
        self.data.table(name).ok_or_else(|| Error::Query(format!("the data set has no table `{name}`")))
    }

    fn cut(&self, table: &str) -> Result<&Cut, Error> {
        self.cuts.get(table).ok_or_else(|| Error::Query(format!("the data set has no table `{table}`")))
    }

    /// The row ranges that a device runs a phase on; `columns` are those it reads.
    pub(crate) fn ranges(
        &self,
        table: &str,
        device: usize,
        all: bool,
        columns: &[&ColumnUse],
    ) -> Result<Vec<Range<u64>>, Error> {
        let cut = self.cut(table)?;
        let own = cut.of(device, all);
        let text = columns.iter().any(|c| c.repr.physical == Physical::Utf8);
        if self.joins_partitions && !text && (!self.streams() || columns.is_empty()) {
            let rows = cut.rows(&own);
            return Ok(if rows.is_empty() { Vec::new() } else { vec![rows] });
        }
        Ok(cut.partitions[own].to_vec())
    }

    /// Makes columns resident on every device and returns them by device and column. `all` puts the whole
    /// table on each device.
    ///
    /// # Errors
    /// Unreadable files, values outside the footers' ranges, out of memory.
    pub(crate) fn resident(
        &self,
        wanted: &[ColumnUse],
        all: bool,
    ) -> Result<Vec<Vec<Arc<DeviceColumn>>>, Error> {
        let all = all && self.devices.len() > 1;
        let load = |device: usize| {
            let mut found = HashMap::new();
            for (at, first) in wanted.iter().enumerate() {
                if wanted[..at].iter().any(|c| c.table == first.table) {
                    continue;
                }
                let columns: Vec<&ColumnUse> = wanted.iter().filter(|c| c.table == first.table).collect();
                match self.load(device, &first.table, &columns, all) {
                    Err(Error::Device(DeviceError::OutOfMemory { .. })) if self.evict() => {
                        self.load(device, &first.table, &columns, all)?;
                    }
                    other => other?,
                }
                // Taken table by table, so that making room for the next does not drop this one's.
                let cache = self.cache();
                for column in columns {
                    let key = Key { column: column.clone(), device, all };
                    let column = cache.columns.get(&key).cloned();
                    found.insert(key.column, column.ok_or_else(|| dropped(&first.table))?);
                }
            }
            wanted.iter().map(|c| found.get(c).cloned().ok_or_else(|| dropped(&c.table))).collect()
        };
        thread::scope(|scope| {
            let load = &load;
            let threads: Vec<_> = (0..self.devices.len()).map(|d| scope.spawn(move || load(d))).collect();
            threads.into_iter().map(|t| t.join().map_err(|_| died())?).collect()
        })
    }

    /// Drops what no prepared query holds; whether there was anything.
    pub(crate) fn evict(&self) -> bool {
        let mut cache = self.cache();
        let before = cache.columns.len() + cache.dicts.len();
        cache.columns.retain(|_, c| Arc::strong_count(c) > 1);
        cache.dicts.retain(|_, d| Arc::strong_count(d) > 1);
        let dropped = cache.columns.len() + cache.dicts.len() < before;
        self.pieces.evict_all() || dropped
    }

    /// Drops what streaming has kept.
    pub(crate) fn forget(&self) {
        self.pieces.evict_all();
    }

    /// About how many bytes these columns take on the fullest device, or the share of its memory that is left
    /// for streaming them.
    ///
    /// # Errors
    /// No such table or column.
    pub(crate) fn estimate_bytes(&self, columns: &[ColumnUse], all: bool) -> Result<u64, Error> {
        if self.streams() {
            return Ok(self.devices.iter().map(|d| d.memory_bytes()).min().unwrap_or(0) / STREAM_SHARE);
        }
        let mut bytes = 0.0;
        for column in columns {
            let table = self.table(&column.table)?;
            let cut = self.cut(&column.table)?;
            let row_bytes = match column.repr.physical {
                Physical::Fixed(elem) | Physical::Dict(elem) => elem.bytes() as f64,
                Physical::Utf8 => 4.0 + table.bytes_per_row(&[&column.column])?,
            };
            let length = |rows: &Range<u64>| rows.end - rows.start;
            let rows = (0..self.devices.len()).map(|d| length(&cut.rows(&cut.of(d, all)))).max();
            bytes += rows.unwrap_or(0) as f64 * (row_bytes + f64::from(u8::from(column.repr.nullable)));
        }
        Ok(bytes as u64)
    }

    /// Loads what is missing of one table's columns on one device, several partitions at a time.
    fn load(&self, device: usize, table: &str, columns: &[&ColumnUse], all: bool) -> Result<(), Error> {
        let (table, cut) = (self.table(table)?, self.cut(table)?);
        let own = cut.of(device, all);
        let mut missing: Vec<(Key, DeviceColumn, Option<Arc<DeviceDict>>)> = Vec::new();
        for column in columns {
            let key = Key { column: (*column).clone(), device, all };
            if !self.cache().columns.contains_key(&key) {
                let rows = cut.rows(&own);
                let memory = DeviceColumn::new(|bytes| self.devices[device].alloc(bytes), column.repr, rows)?;
                missing.push((key, memory, self.dictionary_of(device, column)?));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        // Several loaders fill the memory, and none of them waits for what still uses it.
        self.devices[device].synchronize()?;
        let queue = Mutex::new(cut.partitions[own].iter().cloned().collect::<VecDeque<_>>());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let texts = Mutex::new(Vec::new());
        let work = |loader: &Loader| {
            while let Some(rows) = next() {
                let wants = missing.iter().map(|(key, memory, dictionary)| {
                    memory.want(&key.column, dictionary.as_deref(), rows.start)
                });
                let wants: Vec<Want> = wants.collect();
                let text = loader.load(table, &wants, rows.clone())?;
                texts.lock().unwrap_or_else(PoisonError::into_inner).push((rows, text));
            }
            Ok::<_, Error>(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                self.loaders[device].iter().map(|loader| scope.spawn(|| work(loader))).collect();
            threads.into_iter().try_for_each(|t| t.join().map_err(|_| died())?)
        })?;
        for (rows, text) in texts.into_inner().unwrap_or_else(PoisonError::into_inner) {
            for ((_, column, _), text) in missing.iter_mut().zip(text) {
                column.take(rows.clone(), text);
            }
        }
        let loaded = missing.into_iter().map(|(key, column, _)| (key, Arc::new(column)));
        self.cache().columns.extend(loaded);
        Ok(())
    }

    /// The table-wide dictionary of a column that is read as codes, on a device.
    ///
    /// # Errors
    /// Those of [`Store::device_dict`].
    pub(super) fn dictionary_of(
        &self,
        device: usize,
        column: &ColumnUse,
    ) -> Result<Option<Arc<DeviceDict>>, Error> {
        match column.repr.physical {
            Physical::Dict(_) => self.device_dict(device, &column.table, &column.column).map(Some),
            _ => Ok(None),
        }
    }

    /// A table-wide dictionary on the host.
    ///
    /// # Errors
    /// No such table, or unreadable files.
    pub(crate) fn dictionary(&self, table: &str, column: &str) -> Result<Arc<Dictionary>, Error> {
        Ok(self.table(table)?.dictionary(column)?)
    }

    /// A table-wide dictionary on a device.
    ///
    /// # Errors
    /// Those of [`Store::dictionary`], and out of memory.
    pub(crate) fn device_dict(
        &self,
        device: usize,
        table: &str,
        column: &str,
    ) -> Result<Arc<DeviceDict>, Error> {
        let key = (table.to_owned(), column.to_owned(), device);
        if let Some(found) = self.cache().dicts.get(&key) {
            return Ok(found.clone());
        }
        let dictionary = self.dictionary(table, column)?;
        let made = Arc::new(DeviceDict::new(self.devices[device].as_ref(), &dictionary)?);
        self.cache().dicts.insert(key, made.clone());
        Ok(made)
    }
}
