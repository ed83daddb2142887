//! Partitions: contiguous row ranges of a table.

use std::ops::Range;

use super::{Table, TableError};

/// Text a partition should not exceed, in bytes: half of what 32-bit offsets reach.
const MAX_TEXT_BYTES: f64 = (2u64 << 30) as f64;

/// Splits `rows` rows into contiguous ranges of nearly equal size: none longer than `max_rows`, and at least
/// `at_least` of them where there are as many rows. No rows give no ranges.
pub fn split(rows: u64, max_rows: u64, at_least: usize) -> Vec<Range<u64>> {
    let parts = rows.div_ceil(max_rows.max(1)).max(at_least as u64).min(rows);
    let border = |part: u64| (u128::from(rows) * u128::from(part) / u128::from(parts.max(1))) as u64;
    (0..parts).map(|part| border(part)..border(part + 1)).collect()
}

impl Table {
    /// Splits the table like [`split`], with borders moved to those of row groups where one is near, and
    /// short enough for the text of `columns` (others than text are ignored) to stay below 2 GiB.
    ///
    /// # Errors
    /// No such column.
    pub fn partitions(
        &self,
        columns: &[&str],
        max_rows: u64,
        at_least: usize,
    ) -> Result<Vec<Range<u64>>, TableError> {
        let mut max_rows = max_rows.max(1);
        for column in columns {
            max_rows = max_rows.min(self.max_text_rows(self.index(column)?));
        }
        let mut ranges = split(self.info.rows, max_rows, at_least);
        for i in 1..ranges.len() {
            let (before, border, after) = (ranges[i - 1].start, ranges[i].start, ranges[i].end);
            let near = self.nearest_group(border);
            let close = near.abs_diff(border) <= (after - border) / 8;
            if close && near > before && near - before <= max_rows && after - near <= max_rows {
                ranges[i - 1].end = near;
                ranges[i].start = near;
            }
        }
        Ok(ranges)
    }

    /// The row group border nearest to a row.
    fn nearest_group(&self, row: u64) -> u64 {
        let next = self.groups.partition_point(|g| g.rows.start < row);
        let after = self.groups.get(next).map_or(self.info.rows, |g| g.rows.start);
        let before = self.groups[..next].last().map_or(0, |g| g.rows.start);
        if after - row < row - before { after } else { before }
    }

    /// Rows whose text surely stays below [`MAX_TEXT_BYTES`], going by the largest mean of any row group.
    fn max_text_rows(&self, column: usize) -> u64 {
        let Ok(leaf) = self.text_leaf(column) else { return u64::MAX };
        let mean = |group: usize| {
            let place = &self.groups[group];
            let chunk = self.file(group).row_group(place.row_group).column(leaf);
            // Without a stated size: what is encoded plainly is about as large as the text.
            let bytes = chunk.unencoded_byte_array_data_bytes().unwrap_or(chunk.uncompressed_size());
            bytes.max(0) as f64 / (place.rows.end - place.rows.start) as f64
        };
        let largest = (0..self.groups.len()).map(mean).fold(0.0, f64::max);
        if largest > 0.0 { ((MAX_TEXT_BYTES / largest) as u64).max(1) } else { u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_cover_all_rows_in_order() {
        for (rows, max_rows, at_least) in
            [(10, 3, 1), (10, 100, 4), (1, 1, 8), (7, 7, 1), (1000, 1, 3), (5, 0, 0)]
        {
            let ranges = split(rows, max_rows, at_least);
            assert!(ranges.len() >= at_least.min(rows as usize));
            assert_eq!(ranges.first().map(|r| r.start), Some(0));
            assert_eq!(ranges.last().map(|r| r.end), Some(rows));
            assert!(ranges.windows(2).all(|w| w[0].end == w[1].start));
            assert!(ranges.iter().all(|r| !r.is_empty() && r.end - r.start <= max_rows.max(1)), "{ranges:?}");
        }
        assert_eq!(split(0, 10, 4), []);
    }
}
