//! Opening a folder of tables: which files are which table, footers, schemas, statistics.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use arrow::datatypes::{Field, Schema};
use dkb_planner::catalog::{ColumnInfo, TableInfo};
use parquet::errors::ParquetError;

use super::chunk::{ParquetFile, unreadable};
use super::stats::{Bounds, Kind, null_count};
use super::{Column, DataSet, Group, Table, TableError, dictionary, workers};

/// See [`DataSet::open`].
pub(crate) fn data_set(dir: &Path) -> Result<DataSet, TableError> {
    if !dir.is_dir() {
        return Err(TableError::NoFolder(dir.to_owned()));
    }
    let found = find_tables(dir)?;
    if found.is_empty() {
        return Err(TableError::NoTables(dir.to_owned()));
    }
    let paths: Vec<&PathBuf> = found.values().flat_map(|(_, files)| files).collect();
    let mut files = workers::map(paths, |path| ParquetFile::open(path))?.into_iter();
    let mut tables = Vec::new();
    for (name, (_, paths)) in &found {
        let mut table = table(name, files.by_ref().take(paths.len()).collect())?;
        dictionary::from_pages(&mut table)?;
        tables.push(Arc::new(table));
    }
    Ok(DataSet { path: dir.to_owned(), tables })
}

/// Per table, the entry of the folder that is the table, and its files.
fn find_tables(dir: &Path) -> Result<BTreeMap<String, (PathBuf, Vec<PathBuf>)>, TableError> {
    let mut found = BTreeMap::new();
    for path in entries(dir)? {
        let files = match path.is_dir() {
            true => entries(&path)?.into_iter().filter(|p| is_parquet(p) && p.is_file()).collect(),
            false if is_parquet(&path) => vec![path.clone()],
            false => continue,
        };
        let name = if is_parquet(&path) { path.file_stem() } else { path.file_name() };
        let name = name.unwrap_or_default().to_string_lossy().to_lowercase();
        if files.is_empty() {
            continue;
        }
        if let Some((first, _)) = found.insert(name.clone(), (path.clone(), files)) {
            return Err(TableError::Duplicate { table: name, first, second: path });
        }
    }
    Ok(found)
}

/// The visible entries of a folder, by name.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, TableError> {
    let io = |source| TableError::Io { path: dir.to_owned(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let entry = entry.map_err(io)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet"))
}

/// Puts files together as one table.
fn table(name: &str, files: Vec<ParquetFile>) -> Result<Table, TableError> {
    let (first, others) = files.split_first().ok_or_else(|| TableError::NoTables(PathBuf::from(name)))?;
    for file in others {
        if let Some(detail) = difference(first.read_schema(), file.read_schema()) {
            let (first, second) = (first.path.clone(), file.path.clone());
            return Err(TableError::Schemas { table: name.to_owned(), first, second, detail });
        }
    }
    let groups = row_groups(&files)?;
    let rows = groups.last().map_or(0, |g| g.rows.end);
    let schema = first.sql_schema();
    let leaves = leaves(first);
    let mut columns = Vec::new();
    let mut infos = Vec::new();
    let mut fields = Vec::new();
    for (index, field) in schema.fields().iter().enumerate() {
        let ty = first.read_schema().field(index).data_type().clone();
        let leaf = leaves[index];
        let kind = leaf.map_or(Kind::Other, |_| Kind::of(&ty));
        let chunks = |leaf| groups.iter().map(move |g| (leaf, g));
        let chunks: Vec<_> = leaf.into_iter().flat_map(chunks).collect();
        let chunks = || chunks.iter().map(|(leaf, g)| files[g.file].row_group(g.row_group).column(*leaf));
        let bounds: Vec<Bounds> = chunks().map(|c| Bounds::of(c, kind)).collect();
        let total = bounds.iter().fold(Bounds::Empty, |a, b| a.and(*b)).in_catalog(kind);
        let declared = files.iter().any(|f| f.read_schema().field(index).is_nullable());
        let nullable = declared && (leaf.is_none() || chunks().any(|c| null_count(c) != Some(0)));
        fields.push(Field::new(field.name(), field.data_type().clone(), declared));
        infos.push(ColumnInfo {
            min: total.map(|(lo, _)| lo),
            max: total.map(|(_, hi)| hi),
            nullable,
            dict_entries: None,
            text: kind == Kind::Text,
        });
        columns.push(Column {
            kind,
            ty,
            leaf,
            bytes: chunks().map(|c| u64::try_from(c.uncompressed_size()).unwrap_or(0)).sum(),
            dictionary: Mutex::new(None),
            text: bounds.iter().map(|_| Mutex::new(None)).collect(),
            pages: groups.iter().map(|_| OnceLock::new()).collect(),
            bounds,
        });
    }
    let info =
        TableInfo { name: name.to_owned(), schema: Arc::new(Schema::new(fields)), rows, columns: infos };
    Ok(Table { info, files, groups, columns })
}

fn row_groups(files: &[ParquetFile]) -> Result<Vec<Group>, TableError> {
    let mut groups = Vec::new();
    let mut start = 0u64;
    for (file, parquet) in files.iter().enumerate() {
        for (row_group, metadata) in parquet.metadata().row_groups().iter().enumerate() {
            let end = u64::try_from(metadata.num_rows()).ok().and_then(|rows| start.checked_add(rows));
            let bad =
                || ParquetError::General(format!("row group {row_group} has {} rows", metadata.num_rows()));
            let end = end.ok_or_else(|| unreadable(&parquet.path, bad()))?;
            if end > start {
                groups.push(Group { file, row_group, rows: start..end });
            }
            start = end;
        }
    }
    Ok(groups)
}

/// Per column, its leaf if it is a flat column.
fn leaves(file: &ParquetFile) -> Vec<Option<usize>> {
    let schema = file.metadata().file_metadata().schema_descr();
    let mut leaves = vec![None; schema.root_schema().get_fields().len()];
    for leaf in 0..schema.num_columns() {
        let column = schema.column(leaf);
        if column.path().parts().len() == 1 && column.max_rep_level() == 0 {
            leaves[schema.get_column_root_idx(leaf)] = Some(leaf);
        }
    }
    leaves
}

/// The first difference in names or types.
fn difference(a: &Schema, b: &Schema) -> Option<String> {
    if a.fields().len() != b.fields().len() {
        return Some(format!("{} and {} columns", a.fields().len(), b.fields().len()));
    }
    let (a, b) = a
        .fields()
        .iter()
        .zip(b.fields())
        .find(|(a, b)| (a.name(), a.data_type()) != (b.name(), b.data_type()))?;
    Some(format!("`{}` of type {} and `{}` of type {}", a.name(), a.data_type(), b.name(), b.data_type()))
}
