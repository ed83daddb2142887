//! Text of single rows, for result columns that are fetched by row number.

use std::ops::Range;

use arrow::array::{Array, AsArray, StringArray, StringViewArray, StringViewBuilder};
use arrow::compute::concat;

use super::chunk::{ChunkPart, unreadable};
use super::{ChunkPages, Page, Table, TableError, workers};

/// Neighbouring pages of one row group that are decoded together.
struct Part {
    group: usize,
    /// The number of pages before it in the row group.
    first_page: usize,
    /// Numbered from the start of the row group.
    rows: Range<usize>,
}

impl Table {
    /// The text of rows of a column, in the given order. Only the pages that hold them are decoded, on all cores,
    /// unless [`Self::load_text`] has decoded the column.
    ///
    /// # Errors
    /// No such column or row, no text, or unreadable files.
    pub fn text(&self, column: &str, rows: &[u64]) -> Result<StringViewArray, TableError> {
        let index = self.index(column)?;
        let leaf = self.text_leaf(index)?;
        self.check_rows(rows.iter().max().map_or(0, |row| row.saturating_add(1)))?;
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|at| rows[*at]);
        let mut parts: Vec<Part> = Vec::new();
        // By row asked for: the part, and the row in it.
        let mut places = vec![(0, 0); rows.len()];
        for at in order {
            let group = self.groups.partition_point(|g| g.rows.end <= rows[at]);
            let row = (rows[at] - self.groups[group].rows.start) as usize;
            match parts.last_mut() {
                Some(last) if last.group == group && last.rows.contains(&row) => {}
                last => {
                    let (page, page_rows, together) = self.page_of(index, group, row)?;
                    match last.filter(|l| l.group == group && page < l.first_page + together) {
                        Some(last) => last.rows.end = page_rows.end,
                        None => parts.push(Part { group, first_page: page, rows: page_rows }),
                    }
                }
            }
            places[at] = (parts.len() - 1, row - parts[parts.len() - 1].rows.start);
        }
        let cached = |part: &Part| {
            let text = workers::lock(&self.columns[index].text[part.group]);
            text.as_ref().map(|text| text.slice(part.rows.start, part.rows.len()))
        };
        let mut decoded: Vec<Option<StringArray>> = parts.iter().map(cached).collect();
        let missing = parts.into_iter().zip(&mut decoded).filter(|(_, text)| text.is_none()).collect();
        workers::for_each(missing, |(Part { group, rows, .. }, text)| {
            *text = Some(self.decode_text(group, leaf, rows)?);
            Ok(())
        })?;
        let mut texts = StringViewBuilder::with_capacity(rows.len());
        for (part, row) in places {
            let text = decoded[part].as_ref().filter(|text| text.is_valid(row));
            texts.append_option(text.map(|text| text.value(row)));
        }
        Ok(texts.finish())
    }

    /// Decodes a whole column for [`Self::text`], so that later calls only gather.
    ///
    /// # Errors
    /// No such column, no text, or unreadable files.
    pub fn load_text(&self, column: &str) -> Result<(), TableError> {
        let index = self.index(column)?;
        let leaf = self.text_leaf(index)?;
        workers::for_each((0..self.groups.len()).collect(), |group| {
            let mut cached = workers::lock(&self.columns[index].text[group]);
            if cached.is_none() {
                let rows = self.whole(group, leaf).rows;
                *cached = Some(self.decode_text(group, leaf, rows)?);
            }
            Ok(())
        })
    }

    /// The page that holds a row: its number, its rows, and how many pages are decoded together. That is all of them
    /// where they share a dictionary, which may be most of the chunk. Else there are no more parts than cores, for to come
    /// to a page takes reading the headers before it.
    fn page_of(
        &self,
        column: usize,
        group: usize,
        row: usize,
    ) -> Result<(usize, Range<usize>, usize), TableError> {
        let ChunkPages { dictionary, data: pages, .. } = self.pages(column, group)?;
        let rows = |page: &Page| page.first_row as usize..(page.first_row + page.values) as usize;
        let parts = if dictionary.is_some() { 1 } else { workers::cores() };
        let at = pages.partition_point(|page| rows(page).end <= row);
        match pages.get(at) {
            Some(page) => Ok((at, rows(page), pages.len().div_ceil(parts))),
            // Devices do not read it; there are no pages to tell apart.
            None => Ok((0, self.whole(group, 0).rows, 1)),
        }
    }

    fn decode_text(&self, group: usize, leaf: usize, rows: Range<usize>) -> Result<StringArray, TableError> {
        let file = self.file(group);
        let mut pieces = Vec::new();
        file.decode(ChunkPart { rows, ..self.whole(group, leaf) }, false, |array| {
            pieces.push(array.clone());
            Ok(())
        })?;
        let pieces: Vec<&dyn Array> = pieces.iter().map(|p| p.as_ref()).collect();
        let text = concat(&pieces).map_err(|e| unreadable(&file.path, e.into()))?;
        Ok(text.as_string().clone())
    }
}
