//! Held-out data sets: the rows of a data set changed at random, on which a candidate plan must be right, too.
//!
//! What changes is [`Kind`]'s to say. Invariant: tables keep their names, columns their names and types, and a data
//! set appears under its name only when it is complete.

mod perturbed;
mod reshaped;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::util::display::FormatOptions;
use clap::ValueEnum;
use dkb_runtime::table::DataSet;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// Rows that are read at a time.
const BATCH_ROWS: usize = 1 << 16;

/// What changes.
///
/// A key is a column whose name ends in `key`, or an integer column whose name ends in `number`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Other values: numbers up to 30 % and dates up to 30 days off, text and numbers of few values drawn anew
    ///
    /// Few are at most 50; if each of them occurs once, as the names of nations do, they are permuted. Keys, other
    /// text, NULLs, the order of rows, files and row groups stay, and so do columns that are neither integers, decimals
    /// of up to 128 bits, floats, dates, timestamps nor text. Memory: a few batches of rows.
    Perturbed,
    /// Another shape: rows permuted, keys relabelled with gaps, uneven files and row groups, one file empty
    ///
    /// Integer keys of the same name behind the table's prefix (`l_partkey`, `p_partkey`) are relabelled alike, so
    /// that joins match as before, with labels from the least key on; other keys stay. Memory: the largest table, and
    /// the keys' distinct values; it is meant for scale factors up to 1.
    Reshaped,
    /// Another shape with NULLs: as `reshaped`, and 1 % of each column that is no key NULL
    ///
    /// All columns but keys are declared nullable.
    Hostile,
}

/// Writes the tables of `data`, changed, to the folder `output`. The same build, data and seed give the same bytes.
///
/// # Errors
/// `data` is no readable data set, `output` exists and is not empty or cannot be written, or the labels of a key do
/// not fit its type. Nothing is left behind.
pub fn perturb(data: &Path, kind: Kind, seed: u64, output: &Path) -> Result<()> {
    let set = DataSet::open(data)?;
    let tables = set.tables.iter().map(|table| {
        let files = table.paths().map(Source::open).collect::<Result<Vec<_>>>()?;
        Ok(Table { name: table.info.name.clone(), files })
    });
    let tables = tables.collect::<Result<Vec<_>>>()?;
    let partial = partial_folder(output)?;
    match kind {
        Kind::Perturbed => perturbed::write(&tables, data, seed, partial.path())?,
        Kind::Reshaped => reshaped::write(&tables, false, seed, partial.path())?,
        Kind::Hostile => reshaped::write(&tables, true, seed, partial.path())?,
    }
    fs::rename(partial.path(), output).with_context(|| cannot_write(output))
}

/// A hidden folder beside `output`, removed when dropped unless it was renamed.
fn partial_folder(output: &Path) -> Result<TempDir> {
    if let Ok(mut entries) = fs::read_dir(output) {
        ensure!(
            entries.next().is_none(),
            "{} is not empty: name a folder that does not exist",
            output.display()
        );
    } else if output.exists() {
        bail!("{} is no folder: name one that does not exist", output.display());
    }
    let name = output.file_name().with_context(|| format!("{} names no folder", output.display()))?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    prefix.push(".partial-");
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder.prefix(&prefix).tempdir_in(parent).with_context(|| {
        format!(
            "cannot write to {}: name a folder in one that exists and can be written to",
            parent.display()
        )
    })
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}: free space or name another folder", path.display())
}

/// A table's files, in order; there is at least one.
struct Table {
    name: String,
    files: Vec<Source>,
}

impl Table {
    /// Names and types of the columns; nullability may differ between files.
    fn schema(&self) -> &SchemaRef {
        self.files[0].metadata.schema()
    }

    /// Random numbers that depend on the seed, the table and `purpose` only.
    fn rng(&self, seed: u64, purpose: &str) -> SmallRng {
        rng(seed, &format!("{}.{purpose}", self.name))
    }
}

fn rng(seed: u64, purpose: &str) -> SmallRng {
    let digest = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(purpose).finalize();
    SmallRng::seed_from_u64(digest.iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

/// A file to read, opened anew for each row group: there may be more files than may be open.
struct Source {
    path: PathBuf,
    metadata: ArrowReaderMetadata,
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())
            .with_context(|| format!("{} is not a readable Parquet file", path.display()))?;
        Ok(Source { path: path.to_owned(), metadata })
    }

    fn row_groups(&self) -> usize {
        self.metadata.metadata().num_row_groups()
    }

    /// The rows of a row group, all columns.
    fn batches(&self, group: usize) -> Result<impl Iterator<Item = Result<RecordBatch>>> {
        self.read(group, ProjectionMask::all())
    }

    /// The rows of a row group, only these columns (ascending numbers).
    fn columns(&self, group: usize, columns: &[usize]) -> Result<impl Iterator<Item = Result<RecordBatch>>> {
        let columns = columns.iter().copied();
        self.read(group, ProjectionMask::roots(self.metadata.parquet_schema(), columns))
    }

    fn read(
        &self,
        group: usize,
        columns: ProjectionMask,
    ) -> Result<impl Iterator<Item = Result<RecordBatch>>> {
        let context = move || format!("cannot read row group {group} of {}", self.path.display());
        let file = File::open(&self.path).with_context(context)?;
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
            .with_row_groups(vec![group])
            .with_projection(columns)
            .with_batch_size(BATCH_ROWS)
            .build()
            .with_context(context)?;
        Ok(reader.map(move |batch| batch.with_context(context)))
    }
}

/// A file that is being written; a row group ends where [`Sink::end_row_group`] is called.
struct Sink {
    path: PathBuf,
    schema: SchemaRef,
    writer: ArrowWriter<File>,
}

impl Sink {
    fn create(path: PathBuf, schema: &SchemaRef) -> Result<Sink> {
        let context = || cannot_write(&path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(context)?;
        }
        let file = File::create(&path).with_context(context)?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(None)
            .build();
        let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).with_context(context)?;
        Ok(Sink { path, schema: schema.clone(), writer })
    }

    fn write(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        self.writer.write(&batch).with_context(|| cannot_write(&self.path))
    }

    fn end_row_group(&mut self) -> Result<()> {
        self.writer.flush().with_context(|| cannot_write(&self.path))
    }

    fn close(self) -> Result<()> {
        self.writer.close().with_context(|| cannot_write(&self.path))?;
        Ok(())
    }
}

fn is_key(field: &Field) -> bool {
    let name = field.name().to_ascii_lowercase();
    name.ends_with("key") || name.ends_with("number") && field.data_type().is_integer()
}

/// Casts; what the type cannot hold is an error and not NULL.
fn cast(array: &ArrayRef, ty: &DataType) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, format_options: FormatOptions::default() };
    Ok(cast_with_options(array, ty, &options)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::compute::concat_batches;

    use super::*;

    /// Writes a table as `dir/name.parquet`, in row groups of `group` rows.
    pub(super) fn write_table(dir: &Path, name: &str, batch: &RecordBatch, group: usize) {
        let file = File::create(dir.join(format!("{name}.parquet"))).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group)).build();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
    }

    /// All rows of a table.
    pub(super) fn read_table(dir: &Path, name: &str) -> RecordBatch {
        let set = DataSet::open(dir).unwrap();
        let files: Vec<_> =
            set.table(name).unwrap().paths().map(|path| Source::open(path).unwrap()).collect();
        let batches: Vec<RecordBatch> = files
            .iter()
            .flat_map(|f| (0..f.row_groups()).flat_map(|g| f.batches(g).unwrap().map(Result::unwrap)))
            .collect();
        concat_batches(files[0].metadata.schema(), &batches).unwrap()
    }

    /// TPC-H at the smallest scale.
    pub(super) fn tpch(dir: &Path) -> PathBuf {
        dkb_runtime::tpch::generate::generate(0.001, dir, &|_| {}).unwrap()
    }

    /// Every file below a folder, by its path in it.
    fn bytes(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let set = DataSet::open(dir).unwrap();
        let paths = set.tables.iter().flat_map(|table| table.paths());
        let file = |path: &Path| (path.strip_prefix(dir).unwrap().to_owned(), fs::read(path).unwrap());
        paths.map(file).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_the_same_columns() {
        let dir = tempfile::tempdir().unwrap();
        let data = tpch(dir.path());
        for kind in [Kind::Perturbed, Kind::Reshaped, Kind::Hostile] {
            let made = [("a", 1), ("b", 1), ("c", 2)].map(|(name, seed)| {
                let output = dir.path().join(format!("{kind:?}-{name}"));
                perturb(&data, kind, seed, &output).unwrap();
                output
            });
            assert!(bytes(&made[0]) == bytes(&made[1]), "{kind:?}");
            assert!(bytes(&made[0]) != bytes(&made[2]), "{kind:?}");
            for table in &DataSet::open(&data).unwrap().tables {
                let columns = |dir: &Path| {
                    let schema = read_table(dir, &table.info.name).schema();
                    schema
                        .fields()
                        .iter()
                        .map(|f| (f.name().clone(), f.data_type().clone()))
                        .collect::<Vec<_>>()
                };
                assert_eq!(columns(&made[0]), columns(&data));
            }
        }
    }

    #[test]
    fn what_stands_in_the_way_is_kept_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let data = tpch(dir.path());
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let before = names();
        let refused =
            |output: &Path| format!("{:#}", perturb(&data, Kind::Perturbed, 0, output).unwrap_err());
        assert!(refused(&data).contains("is not empty"));
        assert!(refused(&data.join("region.parquet")).contains("is no folder"));
        assert!(refused(&dir.path().join("none/out")).contains("none: name a folder in one that exists"));
        let region = data.join("region.parquet");
        let mut damaged = fs::read(&region).unwrap();
        damaged[4..60].fill(0xff);
        fs::write(&region, damaged).unwrap();
        let output = dir.path().join("out");
        for kind in [Kind::Perturbed, Kind::Reshaped, Kind::Hostile] {
            let error = format!("{:#}", perturb(&data, kind, 0, &output).unwrap_err());
            assert!(error.contains("region.parquet"), "{error}");
        }
        assert_eq!(names(), before);
        fs::create_dir(&output).unwrap();
        fs::remove_file(&region).unwrap();
        perturb(&data, Kind::Perturbed, 0, &output).unwrap();
        assert!(output.join("nation.parquet").exists());
    }
}
