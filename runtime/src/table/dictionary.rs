//! Table-wide dictionaries of text columns: sorted, so that codes compare as the texts do.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::datatypes::{DataType, Int32Type};
use parquet::basic::Encoding;
use parquet::file::metadata::ColumnChunkMetaData;

use super::chunk::dictionary_page_bytes;
use super::stats::{Bounds, Kind};
use super::workers::{self, lock};
use super::{Group, Table, TableError, split};

/// Entries of a dictionary that is offered without being asked for.
const MAX_ENTRIES: usize = 65_536;
/// Bytes in the file of a dictionary page of such a column.
const MAX_PAGE_BYTES: u64 = 256 << 10;
/// A column of few values is offered even where most rows differ.
const ALWAYS_ENTRIES: usize = 256;

/// Entries from which on another core is worth its start.
const PART_ENTRIES: u64 = 1 << 16;

/// The distinct values of a text column in bytewise order; a value's code is its position. NULL has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dictionary {
    /// `len() + 1` offsets into `bytes`.
    pub offsets: Vec<u32>,
    /// The entries' UTF-8, one after another.
    pub bytes: Vec<u8>,
}

impl Dictionary {
    /// Sorts distinct texts; None if they exceed 4 GiB.
    fn new<'a>(entries: impl Iterator<Item = &'a str>) -> Option<Dictionary> {
        let mut entries: Vec<&str> = entries.collect();
        u32::try_from(entries.iter().map(|e| e.len()).sum::<usize>()).ok()?;
        entries.sort_unstable();
        Some(Dictionary::of_sorted(&entries))
    }

    /// From distinct texts in order, which are no more than 4 GiB.
    fn of_sorted(entries: &[&str]) -> Dictionary {
        let total = entries.iter().map(|e| e.len()).sum();
        let mut offsets = Vec::with_capacity(entries.len() + 1);
        offsets.push(0);
        let mut bytes = Vec::with_capacity(total);
        for entry in entries {
            bytes.extend_from_slice(entry.as_bytes());
            offsets.push(bytes.len() as u32);
        }
        Dictionary { offsets, bytes }
    }

    /// From texts of at most 4 GiB in any order.
    fn of_any(mut entries: Vec<&str>) -> Dictionary {
        if !entries.is_sorted_by(|a, b| a < b) {
            entries.sort_unstable();
            entries.dedup();
        }
        Dictionary::of_sorted(&entries)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of entries for which `before` says yes, which it does up to some entry.
    fn partition_point(&self, before: impl Fn(&str) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if before(self.get(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The entry with code `code`, which is less than [`Self::len`]; otherwise the empty text.
    pub fn get(&self, code: usize) -> &str {
        let text = || {
            let (from, to) = (*self.offsets.get(code)? as usize, *self.offsets.get(code + 1)? as usize);
            std::str::from_utf8(self.bytes.get(from..to)?).ok()
        };
        text().unwrap_or_default()
    }

    /// The code of a text.
    pub fn code_of(&self, text: &str) -> Option<u32> {
        let entry = |code: usize| &self.bytes[self.offsets[code] as usize..self.offsets[code + 1] as usize];
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match entry(middle).cmp(text.as_bytes()) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some(middle as u32),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }
}

/// The distinct texts found so far.
type Entries = HashSet<Box<str>>;

fn add<'a>(entries: &mut Entries, texts: impl Iterator<Item = &'a str>) {
    for text in texts {
        if !entries.contains(text) {
            entries.insert(text.into());
        }
    }
}

/// Builds the dictionaries that the files' own dictionary pages give, for columns with few distinct values.
pub(crate) fn from_pages(table: &mut Table) -> Result<(), TableError> {
    struct Candidate {
        column: usize,
        entries: Mutex<Entries>,
        dropped: AtomicBool,
    }
    let candidates: Vec<Candidate> = (0..table.columns.len())
        .filter(|column| has_small_pages(table, *column))
        .map(|column| Candidate { column, entries: Mutex::default(), dropped: AtomicBool::new(false) })
        .collect();
    let items =
        candidates.iter().flat_map(|c| (0..table.groups.len()).map(move |group| (c, group))).collect();
    workers::for_each(items, |(candidate, group): (&Candidate, usize)| {
        let column = &table.columns[candidate.column];
        let (Some(leaf), false) = (column.leaf, candidate.dropped.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        if column.bounds[group] == Bounds::Empty {
            return Ok(());
        }
        let page = table.file(group).dictionary_page(table.groups[group].row_group, leaf)?;
        let small = match page.as_ref().and_then(|page| page.entries()) {
            Some(texts) => {
                let mut entries = lock(&candidate.entries);
                add(&mut entries, texts.into_iter());
                entries.len() <= MAX_ENTRIES
            }
            None => false,
        };
        if !small {
            candidate.dropped.store(true, Ordering::Relaxed);
        }
        Ok(())
    })?;
    for candidate in candidates {
        let entries = lock(&candidate.entries);
        let few = entries.len() <= ALWAYS_ENTRIES || entries.len() as u64 <= table.info.rows / 2;
        if candidate.dropped.load(Ordering::Relaxed) || !few {
            continue;
        }
        if let Some(dictionary) = Dictionary::new(entries.iter().map(|e| &**e)) {
            table.info.columns[candidate.column].dict_entries = Some(dictionary.len() as u64);
            *lock(&table.columns[candidate.column].dictionary) = Some(Arc::new(dictionary));
        }
    }
    Ok(())
}

/// Whether every chunk of a text column is dictionary-encoded throughout, with a small dictionary.
fn has_small_pages(table: &Table, column: usize) -> bool {
    let column = &table.columns[column];
    let Some(leaf) = column.leaf else { return false };
    column.kind == Kind::Text
        && table.groups.iter().zip(&column.bounds).all(|(group, bounds)| {
            let chunk = table.files[group.file].row_group(group.row_group).column(leaf);
            *bounds == Bounds::Empty
                || (dictionary_only(chunk)
                    && dictionary_page_bytes(chunk).is_some_and(|b| b < MAX_PAGE_BYTES))
        })
}

/// Whether the footer shows every data page of a chunk to be dictionary-encoded.
fn dictionary_only(chunk: &ColumnChunkMetaData) -> bool {
    let is_dictionary = |e: Encoding| matches!(e, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
    match chunk.page_encoding_stats_mask() {
        Some(mask) => mask.encodings().all(is_dictionary) && mask.encodings().next().is_some(),
        // The list mixes data, dictionary page and levels: only where nothing in it can be a plain data page.
        #[expect(deprecated, reason = "old writers encode levels so")]
        None => {
            chunk.encodings().any(is_dictionary)
                && chunk
                    .encodings()
                    .all(|e| is_dictionary(e) || matches!(e, Encoding::RLE | Encoding::BIT_PACKED))
        }
    }
}

impl Table {
    /// The table-wide dictionary of a text column. Where the table has none since it was opened, the first
    /// call reads the whole column and keeps the distinct values.
    ///
    /// # Errors
    /// No such column, no text, unreadable files, or more than 4 GiB of distinct text.
    pub fn dictionary(&self, column: &str) -> Result<Arc<Dictionary>, TableError> {
        let index = self.index(column)?;
        let leaf = self.text_leaf(index)?;
        let cached = &self.columns[index].dictionary;
        if let Some(dictionary) = &*lock(cached) {
            return Ok(Arc::clone(dictionary));
        }
        let too_much = |bytes: u64| TableError::TooMuchText {
            table: self.info.name.clone(),
            column: column.to_owned(),
            bytes,
        };
        let parts = workers::map((0..self.groups.len()).collect(), |group| {
            let Group { file, row_group, .. } = self.groups[group];
            let file = &self.files[file];
            if dictionary_only(file.row_group(row_group).column(leaf)) {
                let page = file.dictionary_page(row_group, leaf)?;
                if let Some(entries) = page.as_ref().and_then(|page| page.entries()) {
                    return Ok(Dictionary::of_any(entries));
                }
            }
            let mut batches = Vec::new();
            let mut last: Option<StringArray> = None;
            file.decode(self.whole(group, leaf), true, |array| {
                let texts = texts(array);
                // Batches of a chunk may share its dictionary.
                if last.as_ref().is_none_or(|last| !last.values().ptr_eq(texts.values())) {
                    batches.push(Dictionary::of_any(texts.iter().flatten().collect()));
                    last = Some(texts.clone());
                }
                Ok(())
            })?;
            merged(batches).map_err(too_much)
        })?;
        let dictionary = merged(parts).map_err(too_much)?;
        // Another thread may have been faster with the same one.
        Ok(Arc::clone(lock(cached).get_or_insert_with(|| Arc::new(dictionary))))
    }
}

/// The distinct entries of all parts.
///
/// # Errors
/// Their bytes, if those are more than 4 GiB.
fn merged(mut parts: Vec<Dictionary>) -> Result<Dictionary, u64> {
    if parts.len() < 2 {
        return Ok(parts.pop().unwrap_or_else(|| Dictionary::of_sorted(&[])));
    }
    let Some(longest) = parts.iter().max_by_key(|part| part.len()) else { return Ok(Dictionary::default()) };
    // Each core merges what lies between two entries of the longest part.
    let ranges = split(longest.len() as u64, PART_ENTRIES, 1);
    let borders = ranges.iter().map(|range| (range.start > 0).then(|| longest.get(range.start as usize)));
    let borders: Vec<Option<&str>> = borders.chain([None]).collect();
    let between = |at: usize| {
        let (low, high) = (borders[at], borders[at + 1]);
        let mut found: Vec<&str> = Vec::new();
        for part in &parts {
            let start = low.map_or(0, |low| part.partition_point(|entry| entry < low));
            let end = high.map_or(part.len(), |high| part.partition_point(|entry| entry < high));
            found.extend((start..end).map(|code| part.get(code)));
        }
        // A stable sort merges what is sorted already.
        found.sort();
        found.dedup();
        Ok::<_, Infallible>(found)
    };
    let Ok(found) = workers::map((0..ranges.len()).collect(), between);
    let bytes = found.iter().flatten().map(|entry| entry.len() as u64).sum();
    if u32::try_from(bytes).is_err() {
        return Err(bytes);
    }
    let Ok(found) = workers::map(found, |entries| Ok::<_, Infallible>(Dictionary::of_sorted(&entries)));
    let mut all = Dictionary { offsets: vec![0], bytes: Vec::with_capacity(bytes as usize) };
    for part in found {
        let before = all.bytes.len() as u32;
        all.offsets.extend(part.offsets[1..].iter().map(|end| before + end));
        all.bytes.extend(part.bytes);
    }
    Ok(all)
}

/// The texts that an array refers to: a dictionary's values, or all of a string array.
pub(crate) fn texts(array: &ArrayRef) -> &StringArray {
    match array.data_type() {
        DataType::Dictionary(..) => array.as_dictionary::<Int32Type>().values().as_string(),
        _ => array.as_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_bytewise_order() {
        let dictionary = Dictionary::new(["b", "", "é", "a", "B"].into_iter()).unwrap();
        let entries: Vec<&str> = (0..dictionary.len()).map(|i| dictionary.get(i)).collect();
        assert_eq!(entries, ["", "B", "a", "b", "é"]);
        for (code, entry) in entries.iter().enumerate() {
            assert_eq!(dictionary.code_of(entry), Some(code as u32));
        }
        assert_eq!(dictionary.code_of("c"), None);
        assert_eq!(Dictionary::new(std::iter::empty()).unwrap().code_of(""), None);
    }
}
