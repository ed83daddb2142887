//! Keys: columns that are joined with each other, told by their names.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use arrow::datatypes::Field;
use dkb_planner::catalog::TableInfo;

/// The name of a key behind its table's prefix, in lower case: `partkey` of `l_partkey` and `p_partkey`. Columns of one
/// name are joined with each other. None for columns that are no keys.
pub fn key_name(field: &Field) -> Option<String> {
    let name = field.name().to_ascii_lowercase();
    let name = name.split_once('_').map_or(name.as_str(), |(_, name)| name);
    name.ends_with("key").then(|| name.to_owned())
}

/// By key: the values that lie within what the footers state of every column of that name. None where there are not two
/// of them, where a footer does not say, and where a column holds no integers.
pub(crate) fn key_ranges(catalog: &[TableInfo]) -> BTreeMap<String, Option<RangeInclusive<i64>>> {
    let mut ranges = BTreeMap::new();
    for table in catalog.iter().filter(|table| table.rows > 0) {
        for (field, column) in table.schema.fields().iter().zip(&table.columns) {
            let Some(name) = key_name(field) else { continue };
            let range = ranges.entry(name).or_insert(Some(i64::MIN..=i64::MAX));
            let bounds = column.min.zip(column.max).filter(|_| field.data_type().is_integer());
            *range = range.take().zip(bounds).and_then(|(range, (min, max))| {
                let min = i64::try_from(min).ok()?.max(*range.start());
                let max = i64::try_from(max).ok()?.min(*range.end());
                (min < max).then_some(min..=max)
            });
        }
    }
    ranges
}
