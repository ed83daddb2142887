//! What is left for the host: order and limit, on raw values before any Arrow array exists.
//!
//! The sort keys of a row are packed into one integer, each in as many bits as its column's range needs, so
//! that comparing rows is comparing integers.

use std::cmp::Ordering;
use std::convert::Infallible;
use std::ops::Range;

use dkb_kernels::{Elem, SortKey};

use super::result::RawColumn;
use crate::table::{split, workers};

/// Rows that are packed at a time.
const BLOCK_ROWS: usize = 1024;
/// Rows from which on another core is worth its start.
const PART_ROWS: usize = 64 << 10;

/// One sort key over raw rows: every value as an integer that orders as the SQL value does.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) column: RawColumn<'a>,
    pub(crate) descending: bool,
    pub(crate) nulls_first: bool,
}

impl<'a> Key<'a> {
    /// A plan's sort key over its column, or over what stands in for that.
    pub(crate) fn new(key: &SortKey, column: RawColumn<'a>) -> Key<'a> {
        Key { column, descending: key.descending, nulls_first: key.nulls_first }
    }

    /// Compares two rows; smaller comes first.
    fn compare(&self, a: usize, b: usize) -> Ordering {
        let column = &self.column;
        let nulls = column.is_valid(b).cmp(&column.is_valid(a));
        let nulls = if self.nulls_first { nulls.reverse() } else { nulls };
        nulls.then_with(|| match (column.is_valid(a), self.descending) {
            (false, _) => Ordering::Equal,
            (true, false) => column.order(a).cmp(&column.order(b)),
            (true, true) => column.order(b).cmp(&column.order(a)),
        })
    }
}

/// A key as a number of bits.
struct Field<'a> {
    key: Key<'a>,
    /// The smallest and the largest value; equal where there is none.
    bounds: (i128, i128),
    /// Whether a bit says which rows are NULL.
    null_bit: bool,
    bits: u32,
}

/// An integer that keys are packed into.
trait Word: Copy + Default {
    /// The lower bits.
    fn of(bits: u128) -> Self;
    /// Puts `code` behind what is there, as its lowest `bits` bits.
    fn append(self, bits: u32, code: Self) -> Self;
}

macro_rules! word {
    ($ty:ty) => {
        impl Word for $ty {
            fn of(bits: u128) -> Self {
                bits as $ty
            }

            fn append(self, bits: u32, code: Self) -> Self {
                self.checked_shl(bits).unwrap_or(0) | code
            }
        }
    };
}

word!(u64);
word!(u128);

impl<'a> Field<'a> {
    fn new(mut key: Key<'a>, rows: usize) -> Field<'a> {
        let null_bit = key.column.valid.is_some_and(|v| v.contains(&0));
        key.column.valid = key.column.valid.filter(|_| null_bit);
        let bounds = in_parts(rows, |part| key.column.rows(part).bounds());
        let widen = |a: (i128, i128), b: (i128, i128)| (a.0.min(b.0), a.1.max(b.1));
        let bounds = bounds.into_iter().flatten().reduce(widen).unwrap_or_default();
        let bits = u128::BITS - (bounds.1.wrapping_sub(bounds.0) as u128).leading_zeros();
        Field { key, bounds, null_bit, bits: bits + u32::from(null_bit) }
    }

    /// Appends the key to the packed keys of these rows. There is room for it.
    fn append<T: Word>(&self, rows: Range<usize>, packed: &mut [T]) {
        let (column, first, bits, (low, high)) = (&self.key.column, rows.start, self.bits, self.bounds);
        let distance = |value: i128| match self.key.descending {
            true => high.wrapping_sub(value) as u128,
            false => value.wrapping_sub(low) as u128,
        };
        if !self.null_bit {
            return column.orders(rows, |row, value| {
                let packed = &mut packed[row - first];
                *packed = packed.append(bits, T::of(distance(value)));
            });
        }
        let top = 1 << (bits - 1);
        let (null, valid) = if self.key.nulls_first { (0, top) } else { (top, 0) };
        column.orders(rows, |row, value| {
            let code = if column.is_valid(row) { valid | distance(value) } else { null };
            let packed = &mut packed[row - first];
            *packed = packed.append(bits, T::of(code));
        });
    }
}

/// The rows to keep, in order: sorted by `keys` where there are any, without the first `offset`, `limit` at
/// most. The order of ties is unspecified.
pub(crate) fn select(rows: usize, keys: &[Key], offset: u64, limit: Option<u64>) -> Vec<u32> {
    let wanted = range(rows, offset, limit);
    if keys.is_empty() {
        return (wanted.start as u32..wanted.end as u32).collect();
    }
    let fields: Vec<Field> = keys.iter().map(|key| Field::new(*key, rows)).collect();
    let row_bits = usize::BITS - rows.leading_zeros();
    let bits = fields.iter().map(|f| f.bits).sum::<u32>();
    let sorted: Vec<u32> = if bits + row_bits <= u64::BITS {
        let item = |packed: u64, row: usize| packed << row_bits | row as u64;
        let items = smallest(rows, wanted.end, &fields, item, u64::cmp);
        items.into_iter().map(|item| (item & ((1 << row_bits) - 1)) as u32).collect()
    } else {
        // As many keys as fit, and the others looked up when those tie.
        let mut room = u128::BITS;
        let fit = fields.iter().take_while(|f| room.checked_sub(f.bits).map(|left| room = left).is_some());
        let (packed, rest) = keys.split_at(fit.count());
        let compare = |a: &(u128, u32), b: &(u128, u32)| {
            a.0.cmp(&b.0).then_with(|| compare(rest, a.1 as usize, b.1 as usize))
        };
        let item = |packed: u128, row: usize| (packed, row as u32);
        let items = smallest(rows, wanted.end, &fields[..packed.len()], item, compare);
        items.into_iter().map(|(_, row)| row).collect()
    };
    sorted[wanted.start..].to_vec()
}

/// The rows that can be among the first `wanted` whatever keys follow `keys`, in any order: those that are by these, and
/// all that tie with the last of them.
pub(crate) fn leading(rows: usize, keys: &[Key], wanted: usize) -> Vec<u32> {
    let first = select(rows, keys, 0, Some(wanted as u64));
    let Some(&last) = first.last() else { return first };
    (0..rows as u32).filter(|row| compare(keys, *row as usize, last as usize).is_le()).collect()
}

/// Compares two rows by several keys.
fn compare(keys: &[Key], a: usize, b: usize) -> Ordering {
    keys.iter().map(|key| key.compare(a, b)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

/// Which of the sorted rows are kept.
pub(crate) fn range(rows: usize, offset: u64, limit: Option<u64>) -> Range<usize> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(rows);
    let limit = limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX));
    start..start.saturating_add(limit).min(rows)
}

/// Does parts of the rows on several cores. Gives the results in order.
fn in_parts<T: Send>(rows: usize, work: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
    let parts = (rows / PART_ROWS).clamp(1, workers::cores());
    let parts = split(rows as u64, rows.div_ceil(parts) as u64, 1);
    let parts = parts.into_iter().map(|part| part.start as usize..part.end as usize).collect();
    let Ok(done) = workers::map(parts, |part| Ok::<T, Infallible>(work(part)));
    done
}

/// The `keep` smallest of the rows' items, sorted.
fn smallest<P: Word, T: Copy + Send>(
    rows: usize,
    keep: usize,
    fields: &[Field],
    item: impl Fn(P, usize) -> T + Sync,
    compare: impl Fn(&T, &T) -> Ordering + Sync,
) -> Vec<T> {
    let of_part = |part| smallest_of(part, keep, fields, &item, &compare);
    let mut best = in_parts(rows, of_part).concat();
    cut(&mut best, keep, &compare);
    best.sort_unstable_by(&compare);
    best
}

/// Drops all but the `keep` smallest.
fn cut<T>(items: &mut Vec<T>, keep: usize, compare: impl Fn(&T, &T) -> Ordering) {
    if keep < items.len() {
        items.select_nth_unstable_by(keep, compare);
        items.truncate(keep);
    }
}

/// The `keep` smallest items of some rows.
fn smallest_of<P: Word, T: Copy>(
    rows: Range<usize>,
    keep: usize,
    fields: &[Field],
    item: impl Fn(P, usize) -> T,
    compare: impl Fn(&T, &T) -> Ordering,
) -> Vec<T> {
    // Rows not yet known to be beyond the end: never more than twice as many as are wanted.
    let room = keep.saturating_mul(2).max(64);
    let mut best: Vec<T> = Vec::with_capacity(room.min(rows.len()));
    let mut worst: Option<T> = None;
    for start in rows.clone().step_by(BLOCK_ROWS) {
        let block = start..(start + BLOCK_ROWS).min(rows.end);
        let mut packed = [P::default(); BLOCK_ROWS];
        fields.iter().for_each(|field| field.append(block.clone(), &mut packed));
        for (row, packed) in block.zip(packed) {
            let item = item(packed, row);
            if worst.is_some_and(|worst| compare(&item, &worst).is_ge()) {
                continue;
            }
            best.push(item);
            if best.len() == room && room < rows.len() {
                cut(&mut best, keep, &compare);
                worst = best.iter().copied().max_by(&compare);
            }
        }
    }
    cut(&mut best, keep, &compare);
    best
}

/// Dense ranks of texts, as a column that orders as the texts do.
pub(crate) struct Ranks {
    data: Vec<u8>,
    valid: Vec<u8>,
}

impl Ranks {
    /// Ranks texts; None is NULL.
    pub(crate) fn new(texts: &[Option<&str>]) -> Ranks {
        let mut given = texts.iter().flatten();
        let first = given.next().map_or("", |text| text).as_bytes();
        let shared = given.fold(first.len(), |shared, text| {
            first[..shared].iter().zip(text.as_bytes()).take_while(|(a, b)| a == b).count()
        });
        // Most texts differ within 8 bytes behind what they all begin with.
        let prefix = |text: &str| {
            let mut prefix = [0; 8];
            prefix.iter_mut().zip(&text.as_bytes()[shared..]).for_each(|(to, from)| *to = *from);
            u64::from_be_bytes(prefix)
        };
        let given = texts.iter().enumerate().filter_map(|(row, text)| Some((row as u32, (*text)?)));
        let mut order: Vec<(u64, u32)> = given.map(|(row, text)| (prefix(text), row)).collect();
        let text = |item: &(u64, u32)| texts[item.1 as usize];
        order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| text(a).cmp(&text(b))));

        let mut ranks = Ranks { data: vec![0; texts.len() * 4], valid: vec![0; texts.len()] };
        let (slots, mut rank) = (ranks.data.as_chunks_mut().0, 0u32);
        for (at, item) in order.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| text(&order[before]));
            rank += u32::from(before.is_some_and(|before| before != text(item)));
            slots[item.1 as usize] = rank.to_le_bytes();
            ranks.valid[item.1 as usize] = 1;
        }
        ranks
    }

    /// The ranks; NULL where the text was.
    pub(crate) fn column(&self) -> RawColumn<'_> {
        RawColumn { elem: Elem::U32, data: &self.data, valid: Some(&self.valid) }
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    struct Column {
        elem: Elem,
        data: Vec<u8>,
        valid: Option<Vec<u8>>,
    }

    impl Column {
        fn ints(values: &[i32], valid: Option<Vec<u8>>) -> Column {
            Column { elem: Elem::I32, data: values.iter().flat_map(|v| v.to_le_bytes()).collect(), valid }
        }

        fn wide(values: &[i128]) -> Column {
            let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            Column { elem: Elem::I128, data, valid: None }
        }

        fn key(&self, descending: bool, nulls_first: bool) -> Key<'_> {
            let column = RawColumn { elem: self.elem, data: &self.data, valid: self.valid.as_deref() };
            Key { column, descending, nulls_first }
        }
    }

    #[test]
    fn sorts_with_nulls_and_ties() {
        let a = Column::ints(&[2, 1, 2, 0], Some(vec![1, 1, 1, 0]));
        let b = Column::ints(&[7, 8, 9, 0], None);
        assert_eq!(select(4, &[a.key(false, false), b.key(true, false)], 0, None), [1, 2, 0, 3]);
        assert_eq!(select(4, &[a.key(true, true), b.key(false, false)], 0, None), [3, 0, 2, 1]);
        assert_eq!(select(4, &[a.key(false, true), b.key(false, false)], 1, Some(2)), [1, 0]);
        assert_eq!(select(4, &[], 1, Some(2)), [1, 2]);
        assert!(select(4, &[], 9, Some(2)).is_empty());
        assert!(select(4, &[b.key(false, false)], 0, Some(0)).is_empty());
        assert!(select(0, &[b.key(false, false)], 0, None).is_empty());
    }

    #[test]
    fn keys_too_wide_for_one_integer_sort_alike() {
        let wide = Column::wide(&[i128::MAX, i128::MIN, 0, i128::MIN]);
        let nulls = Column::ints(&[1, 2, 3, i32::MIN], Some(vec![1, 0, 1, 1]));
        let all = |keys: &[Key]| select(4, keys, 0, None);
        assert_eq!(all(&[wide.key(false, false), nulls.key(false, false)]), [3, 1, 2, 0]);
        assert_eq!(all(&[wide.key(false, false), nulls.key(true, true)]), [1, 3, 2, 0]);
        assert_eq!(all(&[nulls.key(false, true), wide.key(true, false)]), [1, 3, 0, 2]);
        assert_eq!(
            all(&[wide.key(true, false), wide.key(false, false), nulls.key(false, true)]),
            [0, 2, 1, 3]
        );
        let valid = Column { valid: Some(vec![1, 1, 0, 1]), ..Column::wide(&[i128::MAX, i128::MIN, 0, 1]) };
        assert_eq!(all(&[valid.key(true, true)]), [2, 0, 3, 1]);
        assert_eq!(all(&[valid.key(false, false)]), [1, 3, 0, 2]);
    }

    #[test]
    fn floats_sort_by_total_order() {
        let values = [1.5, f64::NEG_INFINITY, -0.0, 0.0, f64::NAN];
        let data = values.iter().flat_map(|v: &f64| v.to_le_bytes()).collect();
        let column = Column { elem: Elem::F64, data, valid: None };
        assert_eq!(select(5, &[column.key(false, false)], 0, None), [1, 2, 3, 0, 4]);
        assert_eq!(select(5, &[column.key(true, false)], 0, None), [4, 0, 3, 2, 1]);
    }

    #[test]
    fn partial_selection_agrees_with_a_full_sort() {
        let values: Vec<i32> = (0..5000).map(|i| (i * 7919) % 5003).collect();
        let narrow = Column::ints(&values, None);
        let wide = Column::wide(&values.iter().map(|v| i128::from(*v) << 110).collect::<Vec<_>>());
        for column in [narrow, wide] {
            let all = select(5000, &[column.key(true, false)], 0, None);
            assert!(all.windows(2).all(|w| values[w[0] as usize] > values[w[1] as usize]));
            for (offset, limit) in [(0, 1), (0, 20), (13, 40), (0, 3000), (4990, 20)] {
                let some = select(5000, &[column.key(true, false)], offset, Some(limit));
                let end = (offset + limit).min(5000) as usize;
                assert_eq!(some, all[offset as usize..end], "{offset} {limit}");
            }
        }
    }

    #[test]
    fn leading_rows_are_the_first_and_their_ties() {
        let column = Column::ints(&[3, 1, 2, 2, 9, 2, 0], Some(vec![1, 1, 1, 1, 0, 1, 1]));
        let key = [column.key(false, true)];
        assert_eq!(leading(7, &key, 4), [1, 2, 3, 4, 5, 6]);
        assert_eq!(leading(7, &key, 1), [4]);
        assert!(leading(7, &key, 0).is_empty());
        assert_eq!(leading(7, &key, 9).len(), 7);
    }

    #[test]
    fn ranks_follow_text_order() {
        let texts =
            [Some("same b"), Some("same a, long"), None, Some("same b"), Some("same"), Some("same a, lo")];
        let ranks = Ranks::new(&texts);
        let column = ranks.column();
        let got: Vec<_> = (0..texts.len()).map(|r| column.is_valid(r).then(|| column.order(r))).collect();
        assert_eq!(got, [Some(3), Some(2), None, Some(3), Some(0), Some(1)]);
        assert!(Ranks::new(&[]).data.is_empty());
    }
}
