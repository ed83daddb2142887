//! Text of single rows, for result columns that are fetched by row number.

use std::collections::BTreeSet;

use arrow::array::{Array, AsArray, StringArray, StringViewArray, StringViewBuilder};
use arrow::compute::concat;

use super::chunk::unreadable;
use super::{Table, TableError, workers};

impl Table {
    /// The text of rows of a column, in the given order. Row groups are decoded when one of their rows is
    /// first asked for, and kept while the session needs them.
    ///
    /// # Errors
    /// No such column or row, no text, or unreadable files.
    pub fn text(&self, column: &str, rows: &[u64]) -> Result<StringViewArray, TableError> {
        let index = self.index(column)?;
        self.check_rows(rows.iter().max().map_or(0, |row| row.saturating_add(1)))?;
        let group_of = |row: u64| self.groups.partition_point(|g| g.rows.end <= row);
        let groups: BTreeSet<usize> = rows.iter().map(|row| group_of(*row)).collect();
        self.decode_text(index, groups.into_iter().collect())?;
        let mut texts = StringViewBuilder::with_capacity(rows.len());
        for &row in rows {
            let group = group_of(row);
            let at = (row - self.groups[group].rows.start) as usize;
            let text = workers::lock(&self.columns[index].text[group]);
            texts.append_option(text.as_ref().and_then(|text| text.is_valid(at).then(|| text.value(at))));
        }
        Ok(texts.finish())
    }

    /// Decodes a whole column for [`Self::text`], so that later calls only gather.
    ///
    /// # Errors
    /// No such column, no text, or unreadable files.
    pub fn load_text(&self, column: &str) -> Result<(), TableError> {
        self.decode_text(self.index(column)?, (0..self.groups.len()).collect())
    }

    fn decode_text(&self, column: usize, mut groups: Vec<usize>) -> Result<(), TableError> {
        let leaf = self.text_leaf(column)?;
        let cache = &self.columns[column].text;
        groups.retain(|group| workers::lock(&cache[*group]).is_none());
        workers::for_each(groups, |group| {
            let file = self.file(group);
            let mut pieces = Vec::new();
            file.decode(self.whole(group, leaf), false, |array| {
                pieces.push(array.clone());
                Ok(())
            })?;
            let pieces: Vec<&dyn Array> = pieces.iter().map(|p| p.as_ref()).collect();
            let text: StringArray =
                concat(&pieces).map_err(|e| unreadable(&file.path, e.into()))?.as_string().clone();
            *workers::lock(&cache[group]) = Some(text);
            Ok(())
        })
    }

    /// Drops decoded text.
    pub(crate) fn drop_text(&self) {
        for text in self.columns.iter().flat_map(|column| &column.text) {
            *workers::lock(text) = None;
        }
    }
}
