//! What is left for the host: order and limit, on raw values before any Arrow array exists.

use super::result::RawColumn;

/// One sort key over raw rows: every value as an integer that orders as the SQL value does.
pub(crate) struct Key<'a> {
    pub(crate) column: &'a RawColumn,
    /// Ranks of the texts, None for NULL, for columns whose raw values are row numbers.
    pub(crate) ranks: Option<Vec<Option<u32>>>,
    pub(crate) descending: bool,
    pub(crate) nulls_first: bool,
}

impl Key<'_> {
    /// Smaller comes first. No value takes either end of the range; NULL does.
    fn at(&self, row: usize) -> i128 {
        let value = match &self.ranks {
            Some(ranks) => ranks[row].map(i128::from),
            None => self.column.is_valid(row).then(|| self.column.order(row)),
        };
        match value {
            Some(value) if self.descending => !value,
            Some(value) => value,
            None if self.nulls_first => i128::MIN,
            None => i128::MAX,
        }
    }
}

/// The rows to keep, in order: sorted by `keys` where there are any, without the first `offset`, `limit` at
/// most. The order of ties is unspecified.
pub(crate) fn select(rows: usize, keys: &[Key], offset: u64, limit: Option<u64>) -> Vec<u32> {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(rows);
    let limit = limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX));
    let end = offset.saturating_add(limit).min(rows);
    let Some((first, rest)) = keys.split_first() else {
        return (offset as u32..end as u32).collect();
    };
    let smallest = |sorted: &mut Vec<(i128, u32)>, keep: usize| {
        if keep < sorted.len() {
            sorted.select_nth_unstable_by(keep, |a, b| compare(rest, *a, *b));
            sorted.truncate(keep);
        }
    };
    // Rows not yet known to be beyond the end: never more than twice as many as are wanted.
    let room = end.saturating_mul(2).max(64);
    let mut best: Vec<(i128, u32)> = Vec::with_capacity(room.min(rows));
    let mut worst: Option<(i128, u32)> = None;
    for row in 0..rows {
        let item = (first.at(row), row as u32);
        if worst.is_some_and(|worst| compare(rest, item, worst).is_ge()) {
            continue;
        }
        best.push(item);
        if best.len() == room && room < rows {
            smallest(&mut best, end);
            worst = best.iter().copied().max_by(|a, b| compare(rest, *a, *b));
        }
    }
    smallest(&mut best, end);
    best.sort_unstable_by(|a, b| compare(rest, *a, *b));
    best.into_iter().skip(offset).map(|(_, row)| row).collect()
}

fn compare(rest: &[Key], a: (i128, u32), b: (i128, u32)) -> std::cmp::Ordering {
    let (i, j) = (a.1 as usize, b.1 as usize);
    rest.iter().fold(a.0.cmp(&b.0), |order, key| order.then_with(|| key.at(i).cmp(&key.at(j))))
}

/// Dense ranks of texts.
pub(crate) fn ranks(texts: &[Option<&str>]) -> Vec<Option<u32>> {
    let mut order: Vec<u32> = (0..texts.len() as u32).filter(|row| texts[*row as usize].is_some()).collect();
    order.sort_unstable_by_key(|row| texts[*row as usize]);
    let mut ranks = vec![None; texts.len()];
    let mut rank = 0u32;
    for (at, row) in order.iter().enumerate() {
        let before = at.checked_sub(1).map(|b| texts[order[b] as usize]);
        rank += u32::from(before.is_some_and(|text| text != texts[*row as usize]));
        ranks[*row as usize] = Some(rank);
    }
    ranks
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use dkb_kernels::Elem;

    fn column(values: &[i32], valid: Option<Vec<u8>>) -> RawColumn {
        RawColumn { elem: Elem::I32, data: values.iter().flat_map(|v| v.to_le_bytes()).collect(), valid }
    }

    fn key(column: &RawColumn, descending: bool, nulls_first: bool) -> Key<'_> {
        Key { column, ranks: None, descending, nulls_first }
    }

    #[test]
    fn sorts_with_nulls_and_ties() {
        let a = column(&[2, 1, 2, 0], Some(vec![1, 1, 1, 0]));
        let b = column(&[7, 8, 9, 0], None);
        assert_eq!(select(4, &[key(&a, false, false), key(&b, true, false)], 0, None), [1, 2, 0, 3]);
        assert_eq!(select(4, &[key(&a, true, true), key(&b, false, false)], 0, None), [3, 0, 2, 1]);
        assert_eq!(select(4, &[key(&a, false, true), key(&b, false, false)], 1, Some(2)), [1, 0]);
        assert_eq!(select(4, &[], 1, Some(2)), [1, 2]);
        assert!(select(4, &[], 9, Some(2)).is_empty());
        assert!(select(4, &[key(&b, false, false)], 0, Some(0)).is_empty());
    }

    #[test]
    fn partial_selection_agrees_with_a_full_sort() {
        let values: Vec<i32> = (0..5000).map(|i| (i * 7919) % 5003).collect();
        let a = column(&values, None);
        let all = select(5000, &[key(&a, true, false)], 0, None);
        assert!(all.windows(2).all(|w| values[w[0] as usize] > values[w[1] as usize]));
        for (offset, limit) in [(0, 1), (0, 20), (13, 40), (0, 3000), (4990, 20)] {
            let some = select(5000, &[key(&a, true, false)], offset, Some(limit));
            let end = (offset + limit).min(5000) as usize;
            assert_eq!(some, all[offset as usize..end], "{offset} {limit}");
        }
    }

    #[test]
    fn ranks_follow_text_order() {
        assert_eq!(ranks(&[Some("b"), Some("a"), None, Some("b")]), [Some(1), Some(0), None, Some(1)]);
    }
}
