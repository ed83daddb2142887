//! TPC-H data as Parquet files, laid out as `tpchgen-cli` lays them out by default: Snappy, dictionaries, row
//! groups of about 7 MiB.
//!
//! Row groups are generated and encoded on all cores and written in order. The data appears under its final
//! name only when it is complete; whatever goes wrong before, no partial files stay behind.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, mpsc};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::table::workers::{cores, for_each, lock};
use crate::table::{DataSet, TableError};

/// Bytes of a row group that `tpchgen-cli` aims at.
const ROW_GROUP_BYTES: u64 = 7 << 20;
/// Most row groups of a Parquet file.
const MAX_ROW_GROUPS: u64 = 32_767;

/// Why data cannot be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// No such scale.
    #[error("scale {0} is not supported: it must lie between 0.001 and 100000")]
    Scale(f64),
    /// The disk is full, or the folder cannot be written.
    #[error("cannot write {}: {source}; free space or choose another folder with --data-root", .path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The folder of that scale exists and is unusable.
    #[error("{} exists but is not a complete data set ({reason}); remove it to generate it anew", .path.display())]
    Incomplete {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The generator or the encoder failed.
    #[error("cannot generate {table}: {source}")]
    Encode {
        /// The table.
        table: &'static str,
        /// The encoder's reason.
        source: ParquetError,
    },
}

/// How the files are laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerateOptions {
    /// Rows of a row group (for lineitem about four times as many as orders); None as `tpchgen-cli` does.
    pub row_group_rows: Option<usize>,
    /// Files per table, fewer where a table has fewer row groups. One file is `NAME.parquet`; several are
    /// `NAME/part-NNNNN.parquet`.
    pub files_per_table: usize,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions { row_group_rows: None, files_per_table: 1 }
    }
}

/// How far generation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The table of the row group written last.
    pub table: &'static str,
    /// Row groups written so far, over all tables.
    pub done: u64,
    /// Row groups in all.
    pub total: u64,
    /// Bytes written so far, over all tables.
    pub bytes: u64,
}

/// The folder name of a scale, such as `tpch-sf0.01`.
pub fn folder_name(scale: f64) -> String {
    format!("tpch-sf{scale}")
}

/// Generates the eight tables as `parent/tpch-sf{scale}` and returns that folder. If it is there already,
/// nothing is done. `progress` is called from this thread.
///
/// # Errors
/// See [`GenerateError`]. Nothing is left behind.
pub fn generate(scale: f64, parent: &Path, progress: &dyn Fn(Progress)) -> Result<PathBuf, GenerateError> {
    generate_with(scale, parent, &GenerateOptions::default(), progress)
}

/// Like [`generate`], with files laid out by `options`. A folder that exists keeps its layout.
///
/// # Errors
/// See [`GenerateError`]. Nothing is left behind.
pub fn generate_with(
    scale: f64,
    parent: &Path,
    options: &GenerateOptions,
    progress: &dyn Fn(Progress),
) -> Result<PathBuf, GenerateError> {
    if !(0.001..=100_000.0).contains(&scale) {
        return Err(GenerateError::Scale(scale));
    }
    let target = parent.join(folder_name(scale));
    if target.exists() {
        return complete(target);
    }
    fs::create_dir_all(parent).map_err(|source| cannot_write(parent, source))?;
    let lock = FolderLock::acquire(&target).map_err(|source| cannot_write(parent, source))?;
    remove_leftovers(parent, &target);
    if target.exists() {
        return complete(target);
    }
    let partial = PartialFolder::create(&target)?;
    write_tables(scale, &partial.path, options, progress)?;
    fs::rename(&partial.path, &target).map_err(|source| cannot_write(&target, source))?;
    drop(lock);
    Ok(target)
}

fn cannot_write(path: &Path, source: io::Error) -> GenerateError {
    GenerateError::Write { path: path.to_owned(), source }
}

/// The existing folder, if it holds all tables.
fn complete(path: PathBuf) -> Result<PathBuf, GenerateError> {
    let missing = |data: DataSet| TpchTable::ALL.iter().find(|t| data.table(t.name()).is_none()).copied();
    match DataSet::open(&path).map(missing) {
        Ok(None) => Ok(path),
        Ok(Some(table)) => {
            Err(GenerateError::Incomplete { path, reason: format!("there is no table {}", table.name()) })
        }
        Err(TableError::NoTables(_)) => {
            Err(GenerateError::Incomplete { path, reason: "no tables".to_owned() })
        }
        Err(error) => Err(GenerateError::Incomplete { path, reason: error.to_string() }),
    }
}

/// A hidden name beside the target.
fn beside(target: &Path, suffix: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{suffix}"))
}

/// Held while a folder is generated, so that a second process waits for the first. The system releases it
/// when the process ends, however it ends.
struct FolderLock {
    path: PathBuf,
    _file: File,
}

impl FolderLock {
    fn acquire(target: &Path) -> io::Result<FolderLock> {
        let path = beside(target, "lock");
        loop {
            let file = File::create(&path)?;
            match file.lock() {
                Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
                _ => {}
            }
            // The holder before us may have removed the file that we waited for.
            if fs::metadata(&path).is_ok_and(|m| file.metadata().is_ok_and(|f| f.ino() == m.ino())) {
                return Ok(FolderLock { path, _file: file });
            }
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes partial folders whose process has died: those of this target, whose lock we hold, and those of
/// other scales whose lock nobody holds. What cannot be removed is left to the next start.
fn remove_leftovers(parent: &Path, target: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((owner, _)) = name.strip_prefix('.').and_then(|n| n.split_once(".partial-")) else {
            continue;
        };
        if !owner.starts_with("tpch-sf") {
            continue;
        }
        let owner = parent.join(owner);
        let held = owner != target
            && File::create(beside(&owner, "lock")).is_ok_and(|f| {
                let held = matches!(f.try_lock(), Err(TryLockError::WouldBlock));
                if !held {
                    let _ = fs::remove_file(beside(&owner, "lock"));
                }
                held
            });
        if !held {
            tracing::info!("removing {}, left behind by an interrupted run", entry.path().display());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The folder that is written to; removed when dropped, unless it was renamed.
struct PartialFolder {
    path: PathBuf,
}

impl PartialFolder {
    fn create(target: &Path) -> Result<PartialFolder, GenerateError> {
        let path = beside(target, &format!("partial-{}", std::process::id()));
        fs::create_dir(&path).map_err(|source| cannot_write(&path, source))?;
        Ok(PartialFolder { path })
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TpchTable {
    LineItem,
    Orders,
    PartSupp,
    Customer,
    Part,
    Supplier,
    Nation,
    Region,
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>>>;

impl TpchTable {
    /// Largest first, so that no core is idle at the end.
    const ALL: [TpchTable; 8] = [
        TpchTable::LineItem,
        TpchTable::Orders,
        TpchTable::PartSupp,
        TpchTable::Customer,
        TpchTable::Part,
        TpchTable::Supplier,
        TpchTable::Nation,
        TpchTable::Region,
    ];

    fn name(self) -> &'static str {
        match self {
            TpchTable::LineItem => "lineitem",
            TpchTable::Orders => "orders",
            TpchTable::PartSupp => "partsupp",
            TpchTable::Customer => "customer",
            TpchTable::Part => "part",
            TpchTable::Supplier => "supplier",
            TpchTable::Nation => "nation",
            TpchTable::Region => "region",
        }
    }

    fn schema(self) -> SchemaRef {
        match self {
            TpchTable::LineItem => LineItemArrow::schema_ref(),
            TpchTable::Orders => OrderArrow::schema_ref(),
            TpchTable::PartSupp => PartSuppArrow::schema_ref(),
            TpchTable::Customer => CustomerArrow::schema_ref(),
            TpchTable::Part => PartArrow::schema_ref(),
            TpchTable::Supplier => SupplierArrow::schema_ref(),
            TpchTable::Nation => NationArrow::schema_ref(),
            TpchTable::Region => RegionArrow::schema_ref(),
        }
    }

    /// Part `part` (from 1) of `parts`.
    fn batches(self, scale: f64, part: i32, parts: i32) -> Batches {
        match self {
            TpchTable::LineItem => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, part, parts))),
            TpchTable::Orders => Box::new(OrderArrow::new(OrderGenerator::new(scale, part, parts))),
            TpchTable::PartSupp => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, part, parts))),
            TpchTable::Customer => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, part, parts))),
            TpchTable::Part => Box::new(PartArrow::new(PartGenerator::new(scale, part, parts))),
            TpchTable::Supplier => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, part, parts))),
            TpchTable::Nation => Box::new(NationArrow::new(NationGenerator::new(scale, part, parts))),
            TpchTable::Region => Box::new(RegionArrow::new(RegionGenerator::new(scale, part, parts))),
        }
    }

    /// What the table's parts divide, how many rows come of each, and the bytes of a row as `tpchgen-cli`
    /// estimates them.
    fn size(self, scale: f64) -> (u64, u64, u64) {
        let (units, rows_per_unit, row_bytes) = match self {
            TpchTable::LineItem => (OrderGenerator::calculate_row_count(scale, 1, 1), 4, 64),
            TpchTable::Orders => (OrderGenerator::calculate_row_count(scale, 1, 1), 1, 75),
            TpchTable::PartSupp => (PartSuppGenerator::calculate_row_count(scale, 1, 1), 4, 141),
            TpchTable::Customer => (CustomerGenerator::calculate_row_count(scale, 1, 1), 1, 168),
            TpchTable::Part => (PartGenerator::calculate_row_count(scale, 1, 1), 1, 70),
            TpchTable::Supplier => (SupplierGenerator::calculate_row_count(scale, 1, 1), 1, 164),
            // Their generators know no parts.
            TpchTable::Nation | TpchTable::Region => (1, 1, 1),
        };
        (u64::try_from(units).unwrap_or(1).max(1), rows_per_unit, row_bytes)
    }

    /// Number of row groups.
    fn parts(self, scale: f64, options: &GenerateOptions) -> u64 {
        let (units, rows_per_unit, row_bytes) = self.size(scale);
        let rows = units * rows_per_unit;
        let parts = match options.row_group_rows {
            Some(limit) => rows.div_ceil(limit.max(1) as u64),
            None => rows * row_bytes / ROW_GROUP_BYTES + 1,
        };
        parts.clamp(1, MAX_ROW_GROUPS * options.files_per_table.max(1) as u64).min(units)
    }
}

/// A file that row groups are written to in order, by whichever core has the next one.
struct Output {
    table: TpchTable,
    path: PathBuf,
    factory: ArrowRowGroupWriterFactory,
    /// Which parts of the table the file holds, from 0, one a row group.
    part_range: Range<u64>,
    /// Parts of the table.
    parts: u64,
    state: Mutex<OutputState>,
    moved_on: Condvar,
}

struct OutputState {
    /// Taken while a core writes, and when the file is complete.
    writer: Option<SerializedFileWriter<File>>,
    /// Row groups that wait for their turn.
    waiting: BTreeMap<u64, Vec<ArrowColumnChunk>>,
    /// The row group to be written next.
    next: u64,
    failed: bool,
}

impl Output {
    fn create(
        table: TpchTable,
        path: PathBuf,
        part_range: Range<u64>,
        parts: u64,
    ) -> Result<Output, GenerateError> {
        let properties = Arc::new(WriterProperties::builder().set_compression(Compression::SNAPPY).build());
        let schema = ArrowSchemaConverter::new().convert(&table.schema());
        let schema = schema.map_err(|source| GenerateError::Encode { table: table.name(), source })?;
        let file = File::create(&path).map_err(|source| cannot_write(&path, source))?;
        let writer = SerializedFileWriter::new(file, schema.root_schema_ptr(), properties);
        let writer = writer.map_err(|source| failed(table, &path, source))?;
        let factory = ArrowRowGroupWriterFactory::new(&writer, table.schema());
        let state = OutputState { writer: Some(writer), waiting: BTreeMap::new(), next: 0, failed: false };
        Ok(Output {
            table,
            path,
            factory,
            part_range,
            parts,
            state: Mutex::new(state),
            moved_on: Condvar::new(),
        })
    }

    /// Row groups of the file.
    fn count(&self) -> u64 {
        self.part_range.end - self.part_range.start
    }

    /// Hands in row group `index`, and writes all whose turn it is unless another core is at it. Waits while
    /// too many are ahead of the next, so that memory stays bounded. Calls `written` with the size of each.
    fn hand_in(
        &self,
        index: u64,
        chunks: Vec<ArrowColumnChunk>,
        written: impl Fn(u64),
    ) -> Result<(), GenerateError> {
        let mut state = lock(&self.state);
        let window = 2 * cores() as u64;
        while index > state.next + window && !state.failed {
            state = self.moved_on.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if state.failed {
            return Ok(());
        }
        state.waiting.insert(index, chunks);
        let Some(mut writer) = state.writer.take() else { return Ok(()) };
        loop {
            let next = state.next;
            let Some(chunks) = state.waiting.remove(&next) else {
                state.writer = Some(writer);
                return Ok(());
            };
            drop(state);
            let result = self.append(&mut writer, chunks, next);
            state = lock(&self.state);
            state.next += 1;
            state.failed = result.is_err();
            self.moved_on.notify_all();
            written(result.map_err(|source| failed(self.table, &self.path, source))?);
            if state.next == self.count() {
                return Ok(());
            }
        }
    }

    /// Appends a row group, and the footer after the last. Returns the bytes written.
    fn append(
        &self,
        writer: &mut SerializedFileWriter<File>,
        chunks: Vec<ArrowColumnChunk>,
        index: u64,
    ) -> Result<u64, ParquetError> {
        let before = writer.bytes_written();
        let mut group = writer.next_row_group()?;
        for chunk in chunks {
            chunk.append_to_row_group(&mut group)?;
        }
        group.close()?;
        if index + 1 == self.count() {
            writer.finish()?;
        }
        Ok((writer.bytes_written() - before) as u64)
    }

    /// Wakes cores that wait for a row group that will not come.
    fn abandon(&self) {
        lock(&self.state).failed = true;
        self.moved_on.notify_all();
    }
}

/// An error while writing: the system's, if it is behind it.
fn failed(table: TpchTable, path: &Path, error: ParquetError) -> GenerateError {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => cannot_write(path, *source),
            Err(source) => {
                GenerateError::Encode { table: table.name(), source: ParquetError::External(source) }
            }
        },
        source => GenerateError::Encode { table: table.name(), source },
    }
}

/// Wakes the cores that wait for a row group, unless it is `done`, if only by a panic.
struct Watch<'a> {
    outputs: &'a [Output],
    done: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.outputs.iter().for_each(Output::abandon);
        }
    }
}

/// A row group to be generated, the `index`th of its file.
struct Item<'a> {
    output: &'a Output,
    index: u64,
}

fn write_tables(
    scale: f64,
    folder: &Path,
    options: &GenerateOptions,
    progress: &dyn Fn(Progress),
) -> Result<(), GenerateError> {
    let mut outputs = Vec::new();
    for table in TpchTable::ALL {
        let parts = table.parts(scale, options);
        let files = (options.files_per_table.max(1) as u64).min(parts);
        let mut first = 0;
        for file in 0..files {
            let end = parts * (file + 1) / files;
            let path = match files {
                1 => folder.join(format!("{}.parquet", table.name())),
                _ => {
                    let folder = folder.join(table.name());
                    fs::create_dir_all(&folder).map_err(|source| cannot_write(&folder, source))?;
                    folder.join(format!("part-{file:05}.parquet"))
                }
            };
            outputs.push(Output::create(table, path, first..end, parts)?);
            first = end;
        }
    }
    let items: Vec<Item<'_>> = outputs
        .iter()
        .flat_map(|output| (0..output.count()).map(move |index| Item { output, index }))
        .collect();
    let total = items.len() as u64;
    let (sender, written) = mpsc::channel::<(&'static str, u64)>();
    let sender = Mutex::new(sender);
    std::thread::scope(|scope| {
        let outputs = &outputs;
        let encoding = scope.spawn(move || {
            for_each(items, |item| {
                let sender = lock(&sender).clone();
                let mut watch = Watch { outputs, done: false };
                write_row_group(scale, &item, |bytes| {
                    let _ = sender.send((item.output.table.name(), bytes));
                })?;
                watch.done = true;
                Ok(())
            })
        });
        let (mut done, mut bytes) = (0, 0);
        for (table, size) in written {
            done += 1;
            bytes += size;
            progress(Progress { table, done, total, bytes });
        }
        encoding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Generates, encodes and hands in one row group.
fn write_row_group(scale: f64, item: &Item<'_>, written: impl Fn(u64)) -> Result<(), GenerateError> {
    let Item { output, index } = *item;
    let table = output.table;
    let part = output.part_range.start + index + 1;
    let encode = || {
        let mut writers = output.factory.create_column_writers(index as usize)?;
        let schema = table.schema();
        for batch in table.batches(scale, part as i32, output.parts as i32) {
            let batch = batch?;
            let leaves = schema.fields().iter().zip(batch.columns());
            for (writer, (field, array)) in writers.iter_mut().zip(leaves) {
                for leaf in compute_leaves(field, array)? {
                    writer.write(&leaf)?;
                }
            }
        }
        writers.into_iter().map(|writer| writer.close()).collect::<Result<Vec<_>, ParquetError>>()
    };
    let chunks = encode().map_err(|source| GenerateError::Encode { table: table.name(), source })?;
    output.hand_in(index, chunks, written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent(_: Progress) {}

    #[test]
    fn layout_matches_tpchgen_cli() {
        let default = GenerateOptions::default();
        let parts = |table: TpchTable, scale| table.parts(scale, &default);
        assert_eq!(parts(TpchTable::LineItem, 1.0), 53);
        assert_eq!(parts(TpchTable::Orders, 1.0), 16);
        assert_eq!(parts(TpchTable::PartSupp, 1.0), 16);
        assert_eq!(parts(TpchTable::Customer, 1.0), 4);
        assert_eq!(parts(TpchTable::Part, 1.0), 2);
        assert_eq!(parts(TpchTable::Nation, 1000.0), 1);
        assert_eq!(parts(TpchTable::LineItem, 1000.0), 32_767);
    }

    #[test]
    fn folder_is_complete_and_reused() {
        let root = tempfile::tempdir().unwrap();
        let leftover = root.path().join(".tpch-sf0.01.partial-1");
        let other = root.path().join(".tpch-sf3.partial-1");
        fs::create_dir(&leftover).unwrap();
        fs::create_dir(&other).unwrap();
        let last = std::cell::Cell::new(None);
        let folder = generate(0.01, root.path(), &|p| last.set(Some(p))).unwrap();
        assert_eq!(folder, root.path().join("tpch-sf0.01"));
        let last = last.get().unwrap();
        assert_eq!((last.done, last.total), (8, 8));
        let names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["tpch-sf0.01"]);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 8);
        generate(0.01, root.path(), &|_| panic!("generated twice")).unwrap();

        fs::remove_file(folder.join("orders.parquet")).unwrap();
        let error = generate(0.01, root.path(), &silent).unwrap_err().to_string();
        assert!(error.contains("there is no table orders"), "{error}");
    }

    #[test]
    fn concurrent_calls_give_one_folder() {
        let root = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = std::thread::scope(|scope| {
            let calls: Vec<_> =
                (0..3).map(|_| scope.spawn(|| generate(0.001, root.path(), &silent).unwrap())).collect();
            calls.into_iter().map(|c| c.join().unwrap()).collect()
        });
        assert!(paths.iter().all(|p| *p == paths[0]));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn layout_does_not_change_rows() {
        let root = tempfile::tempdir().unwrap();
        let whole = generate(0.01, root.path(), &silent).unwrap();
        let options = GenerateOptions { row_group_rows: Some(1000), files_per_table: 3 };
        let small = generate_with(0.01, &root.path().join("small"), &options, &silent).unwrap();
        let (whole, small) = (DataSet::open(&whole).unwrap(), DataSet::open(&small).unwrap());
        assert_eq!(small.table("lineitem").unwrap().paths().count(), 3);
        assert_eq!(small.table("region").unwrap().paths().count(), 1);
        for table in &whole.tables {
            let other = small.table(&table.info.name).unwrap();
            assert_eq!(table.info.rows, other.info.rows);
            let bounds =
                |t: &crate::table::Table| t.info.columns.iter().map(|c| (c.min, c.max)).collect::<Vec<_>>();
            assert_eq!(bounds(table), bounds(other));
        }
        assert_eq!(whole.table("lineitem").unwrap().info.rows, 60_175);
    }

    #[test]
    fn unwritable_folder_is_named_and_nothing_is_left() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = generate(0.01, &file.join("data"), &silent).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("--data-root"), "{error}");
        assert!(matches!(generate(0.0, root.path(), &silent), Err(GenerateError::Scale(_))));
        assert!(matches!(generate(f64::NAN, root.path(), &silent), Err(GenerateError::Scale(_))));
    }

    #[test]
    fn full_disk_is_reported() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            eprintln!("skipped: there is no /dev/full");
            return;
        }
        let output = Output::create(TpchTable::Region, full.to_owned(), 0..1, 1);
        let result =
            output.and_then(|output| write_row_group(0.01, &Item { output: &output, index: 0 }, |_| {}));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("cannot write /dev/full: No space left on device"), "{error}");
    }
}
