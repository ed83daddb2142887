//! Column kinds, the units of stored values, and the statistics of Parquet footers.

use arrow::datatypes::{DataType, TimeUnit};
use dkb_kernels::SqlType;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;

/// What the stored values of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Truth values.
    Bool,
    /// Integers; true if unsigned.
    Int(bool),
    /// Days since 1970-01-01.
    Date,
    /// Time since 1970-01-01 in some unit.
    Timestamp(TimeUnit),
    /// Integers scaled by this power of ten.
    Decimal(i8),
    /// Floating point.
    Float,
    /// UTF-8 text.
    Text,
    /// Anything else: kept in the schema, and an error when read.
    Other,
}

impl Kind {
    /// The kind of a column that the Parquet reader returns as `ty`.
    pub(crate) fn of(ty: &DataType) -> Kind {
        match ty {
            DataType::Boolean => Kind::Bool,
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Kind::Int(false),
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => Kind::Int(true),
            DataType::Date32 => Kind::Date,
            DataType::Timestamp(unit, _) => Kind::Timestamp(*unit),
            DataType::Decimal128(_, scale) => Kind::Decimal(*scale),
            DataType::Float32 | DataType::Float64 => Kind::Float,
            DataType::Utf8 => Kind::Text,
            _ => Kind::Other,
        }
    }

    /// How stored integers become integers of `sql`; None if they cannot.
    pub(crate) fn factor(self, sql: SqlType) -> Option<Factor> {
        let integer = matches!(sql, SqlType::Int8 | SqlType::Int16 | SqlType::Int32 | SqlType::Int64);
        match (self, sql) {
            (Kind::Bool, SqlType::Bool) | (Kind::Date, SqlType::Date) => Some(Factor::ONE),
            (Kind::Int(_), _) if integer => Some(Factor::ONE),
            (Kind::Decimal(scale), _) if integer => Factor::power_of_ten(-i32::from(scale)),
            (Kind::Int(_), SqlType::Decimal(_, to)) => Factor::power_of_ten(i32::from(to)),
            (Kind::Decimal(from), SqlType::Decimal(_, to)) => {
                Factor::power_of_ten(i32::from(to) - i32::from(from))
            }
            (Kind::Timestamp(_), SqlType::Timestamp) => Some(self.catalog_factor()),
            _ => None,
        }
    }

    /// How stored integers become those of the catalog, where timestamps are in microseconds.
    pub(crate) fn catalog_factor(self) -> Factor {
        match self {
            Kind::Timestamp(TimeUnit::Second) => Factor::Times(1_000_000),
            Kind::Timestamp(TimeUnit::Millisecond) => Factor::Times(1_000),
            Kind::Timestamp(TimeUnit::Nanosecond) => Factor::Over(1_000),
            _ => Factor::ONE,
        }
    }
}

/// An exact change of unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Factor {
    /// Multiplication.
    Times(i128),
    /// Division, of multiples only.
    Over(i128),
}

impl Factor {
    pub(crate) const ONE: Factor = Factor::Times(1);

    fn power_of_ten(exponent: i32) -> Option<Factor> {
        let power = 10i128.checked_pow(exponent.unsigned_abs())?;
        Some(if exponent >= 0 { Factor::Times(power) } else { Factor::Over(power) })
    }

    /// The value in the new unit, if it is exact.
    pub(crate) fn apply(self, value: i128) -> Option<i128> {
        match self {
            Factor::Times(by) => value.checked_mul(by),
            Factor::Over(by) => (value % by == 0).then(|| value / by),
        }
    }

    /// A lower bound of the value in the new unit.
    fn floor(self, value: i128) -> Option<i128> {
        match self {
            Factor::Times(by) => value.checked_mul(by),
            Factor::Over(by) => Some(value.div_euclid(by)),
        }
    }
}

/// What a footer says about the integers of one column of one row group, in stored units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bounds {
    /// Nothing.
    Unknown,
    /// There is no value that is not NULL.
    Empty,
    /// All lie between these, inclusive.
    Within(i128, i128),
}

impl Bounds {
    /// Reads a chunk's statistics.
    pub(crate) fn of(chunk: &ColumnChunkMetaData, kind: Kind) -> Bounds {
        if chunk.num_values() == 0 || null_count(chunk).is_some_and(|n| n == chunk.num_values() as u64) {
            return Bounds::Empty;
        }
        chunk
            .statistics()
            .and_then(|s| min_max(s, kind))
            .map_or(Bounds::Unknown, |(lo, hi)| Bounds::Within(lo, hi))
    }

    /// The bounds of both.
    pub(crate) fn and(self, other: Bounds) -> Bounds {
        match (self, other) {
            (Bounds::Unknown, _) | (_, Bounds::Unknown) => Bounds::Unknown,
            (Bounds::Empty, bounds) | (bounds, Bounds::Empty) => bounds,
            (Bounds::Within(a, b), Bounds::Within(c, d)) => Bounds::Within(a.min(c), b.max(d)),
        }
    }

    /// The bounds in the catalog's units, where there are any.
    pub(crate) fn in_catalog(self, kind: Kind) -> Option<(i128, i128)> {
        let Bounds::Within(lo, hi) = self else { return None };
        let factor = kind.catalog_factor();
        Some((factor.floor(lo)?, factor.floor(hi)?))
    }
}

/// NULLs of a chunk, where the footer says.
pub(crate) fn null_count(chunk: &ColumnChunkMetaData) -> Option<u64> {
    chunk.statistics()?.null_count_opt()
}

fn min_max(stats: &Statistics, kind: Kind) -> Option<(i128, i128)> {
    // Writers before column orders were defined compared everything as signed.
    if stats.is_min_max_deprecated() && kind == Kind::Int(true) {
        return None;
    }
    let (lo, hi) = match (stats, kind) {
        (Statistics::Boolean(s), Kind::Bool) => (i128::from(*s.min_opt()?), i128::from(*s.max_opt()?)),
        (Statistics::Int32(s), Kind::Int(true)) => {
            (i128::from(s.min_opt()?.cast_unsigned()), i128::from(s.max_opt()?.cast_unsigned()))
        }
        (Statistics::Int64(s), Kind::Int(true)) => {
            (i128::from(s.min_opt()?.cast_unsigned()), i128::from(s.max_opt()?.cast_unsigned()))
        }
        (Statistics::Int32(s), Kind::Int(_) | Kind::Date | Kind::Decimal(_)) => {
            (i128::from(*s.min_opt()?), i128::from(*s.max_opt()?))
        }
        (Statistics::Int64(s), Kind::Int(_) | Kind::Timestamp(_) | Kind::Decimal(_)) => {
            (i128::from(*s.min_opt()?), i128::from(*s.max_opt()?))
        }
        (Statistics::ByteArray(_) | Statistics::FixedLenByteArray(_), Kind::Decimal(_))
            if !stats.is_min_max_deprecated() =>
        {
            (big_endian(stats.min_bytes_opt()?)?, big_endian(stats.max_bytes_opt()?)?)
        }
        _ => return None,
    };
    (lo <= hi).then_some((lo, hi))
}

/// A two's complement integer, most significant byte first, of any length whose value fits.
fn big_endian(bytes: &[u8]) -> Option<i128> {
    let (&first, _) = bytes.split_first()?;
    let fill = if first & 0x80 == 0 { 0 } else { 0xff };
    let extra = bytes.len().saturating_sub(16);
    let (high, low) = bytes.split_at(extra);
    let mut wide = [fill; 16];
    wide[16 - low.len()..].copy_from_slice(low);
    let value = i128::from_be_bytes(wide);
    (high.iter().all(|b| *b == fill) && (value < 0) == (fill != 0)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_endian_integers_of_any_length() {
        assert_eq!(big_endian(&[0x01, 0x00]), Some(256));
        assert_eq!(big_endian(&[0xff]), Some(-1));
        assert_eq!(big_endian(&[0xff; 20]), Some(-1));
        assert_eq!(big_endian(&[0x7f; 20]), None);
        assert_eq!(big_endian(&[]), None);
    }

    #[test]
    fn units_change_exactly_or_not_at_all() {
        let cents = Kind::Decimal(2);
        assert_eq!(cents.factor(SqlType::Decimal(15, 4)).unwrap().apply(5), Some(500));
        assert_eq!(cents.factor(SqlType::Int32).unwrap().apply(500), Some(5));
        assert_eq!(cents.factor(SqlType::Int32).unwrap().apply(501), None);
        assert_eq!(Kind::Date.factor(SqlType::Int32), None);
        let nanos = Kind::Timestamp(TimeUnit::Nanosecond);
        assert_eq!(Bounds::Within(-1, 1999).in_catalog(nanos), Some((-1, 1)));
    }

    #[test]
    fn unknown_bounds_win_over_known_ones() {
        let some = Bounds::Within(1, 2);
        assert_eq!(some.and(Bounds::Empty).and(Bounds::Within(-3, 0)), Bounds::Within(-3, 2));
        assert_eq!(some.and(Bounds::Unknown), Bounds::Unknown);
    }
}
