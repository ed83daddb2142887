//! Columns on devices: resident ones, shared by all queries of a session, and streamed ones.
//!
//! A table is cut into partitions once per session. Each device owns a run of neighbouring partitions, so
//! that a resident column of fixed width is one contiguous allocation a device. Text is kept per partition,
//! for its offsets are 32 bits wide.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use dkb_kernels::{ColumnRepr, Physical};

use super::Error;
use super::program::ColumnUse;
use crate::device::{Device, DeviceError, Memory};
use crate::table::{DataSet, Dictionary, HostColumn, Table, TableError};

/// Defined bytes behind text: kernels read it in words of eight bytes.
const TEXT_PADDING: [u8; 8] = [0; 8];

/// Partition borders are multiples of this many rows where tables are large enough.
const ROW_ALIGN: u64 = 256;

/// Where the columns of a partition lie on a device. Zero where a column has no such part.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pointers {
    pub(crate) values: u64,
    pub(crate) valid: u64,
    pub(crate) offsets: u64,
    pub(crate) bytes: u64,
}

/// The text of one partition.
struct Text {
    rows: Range<u64>,
    offsets: Box<dyn Memory>,
    bytes: Box<dyn Memory>,
}

/// A run of rows of one column on one device.
pub(crate) struct DeviceColumn {
    rows: Range<u64>,
    width: usize,
    values: Option<Box<dyn Memory>>,
    valid: Option<Box<dyn Memory>>,
    text: Vec<Text>,
}

impl DeviceColumn {
    /// Memory for `rows` of a column; text is allocated as it arrives.
    fn new(device: &dyn Device, repr: ColumnRepr, rows: Range<u64>) -> Result<DeviceColumn, DeviceError> {
        let count = (rows.end - rows.start) as usize;
        let width = match repr.physical {
            Physical::Fixed(elem) | Physical::Dict(elem) => elem.bytes(),
            Physical::Utf8 => 0,
        };
        let values = (width > 0).then(|| device.alloc((count * width).max(1))).transpose()?;
        let valid = repr.nullable.then(|| device.alloc(count.max(1))).transpose()?;
        Ok(DeviceColumn { rows, width, values, valid, text: Vec::new() })
    }

    /// Uploads the partition `rows`, which lies within the column's rows.
    fn put(&mut self, device: &dyn Device, rows: &Range<u64>, host: &HostColumn) -> Result<(), DeviceError> {
        let at = (rows.start - self.rows.start) as usize;
        if let Some(values) = &self.values {
            device.upload(values.as_ref(), at * self.width, &host.values)?;
        } else {
            let offsets: Vec<u8> = host.offsets.iter().flatten().flat_map(|o| o.to_le_bytes()).collect();
            let text = Text {
                rows: rows.clone(),
                offsets: device.alloc(offsets.len().max(4))?,
                bytes: device.alloc(host.values.len() + TEXT_PADDING.len())?,
            };
            device.upload(text.offsets.as_ref(), 0, &offsets)?;
            device.upload(text.bytes.as_ref(), 0, &host.values)?;
            device.upload(text.bytes.as_ref(), host.values.len(), &TEXT_PADDING)?;
            self.text.push(text);
        }
        if let (Some(valid), Some(bytes)) = (&self.valid, &host.valid) {
            device.upload(valid.as_ref(), at, bytes)?;
        }
        Ok(())
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
        if let Some(text) = self.text.iter().find(|t| t.rows.start == first_row) {
            (found.offsets, found.bytes) = (text.offsets.address(), text.bytes.address());
        }
        found
    }
}

/// A table-wide dictionary on one device.
pub(crate) struct DeviceDict {
    offsets: Box<dyn Memory>,
    bytes: Box<dyn Memory>,
}

impl DeviceDict {
    fn new(device: &dyn Device, dictionary: &Dictionary) -> Result<DeviceDict, DeviceError> {
        let offsets: Vec<u8> = dictionary.offsets.iter().flat_map(|o| o.to_le_bytes()).collect();
        let b = device.alloc(dictionary.bytes.len() + TEXT_PADDING.len())?;
        let o = device.alloc(offsets.len().max(4))?;
        device.upload(o.as_ref(), 0, &offsets)?;
        device.upload(b.as_ref(), 0, &dictionary.bytes)?;
        device.upload(b.as_ref(), dictionary.bytes.len(), &TEXT_PADDING)?;
        Ok(DeviceDict { offsets: o, bytes: b })
    }

    /// Where the dictionary lies.
    pub(crate) fn pointers(&self) -> Pointers {
        Pointers { offsets: self.offsets.address(), bytes: self.bytes.address(), ..Pointers::default() }
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
    pub(crate) data: DataSet,
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// Whether columns are loaded per partition while a query runs.
    pub(crate) streams: bool,
    /// Whether a launch may cover neighbouring partitions.
    joins_partitions: bool,
    cuts: HashMap<String, Cut>,
    cache: Mutex<Cache>,
}

impl Store {
    /// Cuts all tables into partitions of at most `chunk_bytes` uncompressed bytes, one a device at least.
    /// Launches cover neighbouring resident partitions at once unless `keep_partitions`.
    ///
    /// # Errors
    /// Footers that contradict themselves.
    pub(crate) fn new(
        data: DataSet,
        devices: Vec<Arc<dyn Device>>,
        chunk_bytes: u64,
        streams: bool,
        keep_partitions: bool,
    ) -> Result<Store, TableError> {
        let cut = |t: &Arc<Table>| Ok((t.info.name.clone(), Cut::new(t, chunk_bytes, devices.len())?));
        let cuts = data.tables.iter().map(cut).collect::<Result<_, TableError>>()?;
        Ok(Store {
            data,
            devices,
            streams,
            joins_partitions: !keep_partitions,
            cuts,
            cache: Mutex::default(),
        })
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
        if self.joins_partitions && !text && (!self.streams || columns.is_empty()) {
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
        let mut found = vec![HashMap::new(); self.devices.len()];
        for (at, first) in wanted.iter().enumerate() {
            if wanted[..at].iter().any(|c| c.table == first.table) {
                continue;
            }
            let columns: Vec<&ColumnUse> = wanted.iter().filter(|c| c.table == first.table).collect();
            match self.load(&first.table, &columns, all) {
                Err(Error::Device(DeviceError::OutOfMemory { .. })) if self.evict() => {
                    self.load(&first.table, &columns, all)?;
                }
                other => other?,
            }
            // Taken table by table, so that making room for the next does not drop this one's.
            let cache = self.cache();
            for (device, found) in found.iter_mut().enumerate() {
                for column in &columns {
                    let key = Key { column: (*column).clone(), device, all };
                    let column = cache.columns.get(&key).cloned();
                    found.insert(key.column, column.ok_or_else(|| dropped(&first.table))?);
                }
            }
        }
        let in_order = |found: HashMap<ColumnUse, Arc<DeviceColumn>>| {
            wanted.iter().map(|c| found.get(c).cloned().ok_or_else(|| dropped(&c.table))).collect()
        };
        found.into_iter().map(in_order).collect()
    }

    /// Drops what no prepared query holds; whether there was anything.
    pub(crate) fn evict(&self) -> bool {
        let mut cache = self.cache();
        let before = cache.columns.len() + cache.dicts.len();
        cache.columns.retain(|_, c| Arc::strong_count(c) > 1);
        cache.dicts.retain(|_, d| Arc::strong_count(d) > 1);
        cache.columns.len() + cache.dicts.len() < before
    }

    /// About how many bytes these columns take on the fullest device; a chunk of them if they are streamed.
    ///
    /// # Errors
    /// No such table or column.
    pub(crate) fn estimate_bytes(&self, columns: &[ColumnUse], all: bool) -> Result<u64, Error> {
        let mut bytes = 0.0;
        for column in columns {
            let table = self.table(&column.table)?;
            let cut = self.cut(&column.table)?;
            let row_bytes = match column.repr.physical {
                Physical::Fixed(elem) | Physical::Dict(elem) => elem.bytes() as f64,
                Physical::Utf8 => 4.0 + table.bytes_per_row(&[&column.column])?,
            };
            let length = |rows: &Range<u64>| rows.end - rows.start;
            let rows = match self.streams {
                true => cut.partitions.iter().map(length).max(),
                false => (0..self.devices.len()).map(|d| length(&cut.rows(&cut.of(d, all)))).max(),
            };
            bytes += rows.unwrap_or(0) as f64 * (row_bytes + f64::from(u8::from(column.repr.nullable)));
        }
        Ok(bytes as u64)
    }

    /// Loads what is missing of one table's columns: reading one partition while another is uploaded.
    fn load(&self, table: &str, columns: &[&ColumnUse], all: bool) -> Result<(), Error> {
        let cut = self.cut(table)?;
        let mut missing: Vec<(Key, DeviceColumn)> = Vec::new();
        for device in 0..self.devices.len() {
            for column in columns {
                let key = Key { column: (*column).clone(), device, all };
                if !self.cache().columns.contains_key(&key) {
                    let rows = cut.rows(&cut.of(device, all));
                    let memory = DeviceColumn::new(self.devices[device].as_ref(), column.repr, rows)?;
                    missing.push((key, memory));
                }
            }
        }
        let needs = |p: usize, key: &Key| cut.of(key.device, all).contains(&p);
        let items: Vec<(Range<u64>, Vec<ColumnUse>)> = (0..cut.partitions.len())
            .map(|p| {
                let mut needed: Vec<ColumnUse> = Vec::new();
                for (key, _) in missing.iter().filter(|(key, _)| needs(p, key)) {
                    if !needed.contains(&key.column) {
                        needed.push(key.column.clone());
                    }
                }
                (cut.partitions[p].clone(), needed)
            })
            .collect();
        let mut p = 0;
        self.read_ahead(table, &items, |(rows, needed), host| {
            for (key, memory) in missing.iter_mut().filter(|(key, _)| needs(p, key)) {
                if let Some(at) = needed.iter().position(|c| *c == key.column) {
                    memory.put(self.devices[key.device].as_ref(), rows, &host[at])?;
                }
            }
            p += 1;
            Ok(())
        })?;
        let loaded = missing.into_iter().map(|(key, column)| (key, Arc::new(column)));
        self.cache().columns.extend(loaded);
        Ok(())
    }

    /// Runs `each` over the given rows and columns of a table, in order, while the next are being read.
    fn read_ahead(
        &self,
        table: &str,
        items: &[(Range<u64>, Vec<ColumnUse>)],
        mut each: impl FnMut(&(Range<u64>, Vec<ColumnUse>), Vec<HostColumn>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let table = self.table(table)?;
        let read = |(rows, columns): &(Range<u64>, Vec<ColumnUse>)| -> Result<Vec<HostColumn>, TableError> {
            if columns.is_empty() {
                return Ok(Vec::new());
            }
            let columns: Vec<(&str, ColumnRepr)> =
                columns.iter().map(|c| (c.column.as_str(), c.repr)).collect();
            table.read_many(&columns, rows.clone())
        };
        thread::scope(|scope| {
            let (sender, receiver) = sync_channel(1);
            scope.spawn(move || items.iter().all(|item| sender.send(read(item)).is_ok()));
            for item in items {
                let host =
                    receiver.recv().map_err(|_| Error::Execution("a reader thread died".to_owned()))??;
                each(item, host)?;
            }
            Ok(())
        })
    }

    /// Loads each of `ranges` to a device, calls `run` with the columns, and drops them.
    ///
    /// # Errors
    /// Those of reading, uploading and `run`.
    pub(crate) fn stream(
        &self,
        device: usize,
        table: &str,
        columns: &[&ColumnUse],
        ranges: Vec<Range<u64>>,
        mut run: impl FnMut(&Range<u64>, &[DeviceColumn]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let device = self.devices[device].as_ref();
        let columns: Vec<ColumnUse> = columns.iter().map(|c| (*c).clone()).collect();
        let items: Vec<_> = ranges.into_iter().map(|rows| (rows, columns.clone())).collect();
        self.read_ahead(table, &items, |(rows, columns), host| {
            let mut loaded = Vec::with_capacity(columns.len());
            for (column, host) in columns.iter().zip(&host) {
                let mut memory = DeviceColumn::new(device, column.repr, rows.clone())?;
                memory.put(device, rows, host)?;
                loaded.push(memory);
            }
            run(rows, &loaded)?;
            // Kernels must be done with the columns before their memory is given back.
            Ok(device.synchronize()?)
        })
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
