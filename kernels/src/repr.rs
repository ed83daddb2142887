//! SQL types, element types of buffers, and the device representation of columns.
//!
//! Every type here has one textual form, used in plan files and error messages; `FromStr` and
//! `Display` are inverses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that names no type or representation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}")]
pub struct ParseReprError {
    text: String,
    what: &'static str,
}

fn bad(text: &str, what: &'static str) -> ParseReprError {
    ParseReprError { text: text.to_owned(), what }
}

/// The SQL type of a column, parameter or result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SqlType {
    /// `bool`
    Bool,
    /// `int8`
    Int8,
    /// `int16`
    Int16,
    /// `int32`
    Int32,
    /// `int64`
    Int64,
    /// `float32`
    Float32,
    /// `float64`
    Float64,
    /// `date`: days since 1970-01-01
    Date,
    /// `timestamp`: microseconds since 1970-01-01, no time zone
    Timestamp,
    /// `decimal(p,s)`: an integer scaled by 10^s
    Decimal(u8, i8),
    /// `utf8`
    Utf8,
}

impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SqlType::Bool => f.write_str("bool"),
            SqlType::Int8 => f.write_str("int8"),
            SqlType::Int16 => f.write_str("int16"),
            SqlType::Int32 => f.write_str("int32"),
            SqlType::Int64 => f.write_str("int64"),
            SqlType::Float32 => f.write_str("float32"),
            SqlType::Float64 => f.write_str("float64"),
            SqlType::Date => f.write_str("date"),
            SqlType::Timestamp => f.write_str("timestamp"),
            SqlType::Decimal(p, s) => write!(f, "decimal({p},{s})"),
            SqlType::Utf8 => f.write_str("utf8"),
        }
    }
}

impl FromStr for SqlType {
    type Err = ParseReprError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "bool" => SqlType::Bool,
            "int8" => SqlType::Int8,
            "int16" => SqlType::Int16,
            "int32" => SqlType::Int32,
            "int64" => SqlType::Int64,
            "float32" => SqlType::Float32,
            "float64" => SqlType::Float64,
            "date" => SqlType::Date,
            "timestamp" => SqlType::Timestamp,
            "utf8" => SqlType::Utf8,
            _ => {
                let inner = text
                    .strip_prefix("decimal(")
                    .and_then(|t| t.strip_suffix(')'))
                    .ok_or_else(|| bad(text, "SQL type"))?;
                let (p, s) = inner.split_once(',').ok_or_else(|| bad(text, "SQL type"))?;
                let p = p.trim().parse().map_err(|_| bad(text, "SQL type"))?;
                let s = s.trim().parse().map_err(|_| bad(text, "SQL type"))?;
                if !(1..=38).contains(&p) {
                    return Err(bad(text, "SQL type"));
                }
                SqlType::Decimal(p, s)
            }
        })
    }
}

/// The element type of a buffer or of a column's array on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Elem {
    /// 8-bit unsigned; also booleans and validity (1 = valid)
    U8,
    /// 16-bit unsigned
    U16,
    /// 32-bit unsigned
    U32,
    /// 64-bit unsigned
    U64,
    /// 8-bit signed
    I8,
    /// 16-bit signed
    I16,
    /// 32-bit signed
    I32,
    /// 64-bit signed
    I64,
    /// 128-bit signed
    I128,
    /// 64-bit floating point
    F64,
}

impl Elem {
    const ALL: [(Elem, &'static str, usize); 10] = [
        (Elem::U8, "u8", 1),
        (Elem::U16, "u16", 2),
        (Elem::U32, "u32", 4),
        (Elem::U64, "u64", 8),
        (Elem::I8, "i8", 1),
        (Elem::I16, "i16", 2),
        (Elem::I32, "i32", 4),
        (Elem::I64, "i64", 8),
        (Elem::I128, "i128", 16),
        (Elem::F64, "f64", 8),
    ];

    fn row(self) -> &'static (Elem, &'static str, usize) {
        let found = Elem::ALL.iter().find(|(e, _, _)| *e == self);
        found.expect("every element type is listed")
    }

    /// The name in plan files and in device source.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        self.row().2
    }

    /// The narrowest signed type that holds every value of `min..=max`.
    pub fn narrowest(min: i128, max: i128) -> Elem {
        for (elem, bits) in [(Elem::I8, 8), (Elem::I16, 16), (Elem::I32, 32), (Elem::I64, 64)] {
            let bound = 1i128 << (bits - 1);
            if min >= -bound && max < bound {
                return elem;
            }
        }
        Elem::I128
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Elem {
    type Err = ParseReprError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Elem::ALL.iter().find(|(_, name, _)| *name == text);
        found.map(|(e, _, _)| *e).ok_or_else(|| bad(text, "element type"))
    }
}

/// How a column's values lie on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Physical {
    /// One array of fixed-width values: integers, scaled decimals, days, microseconds, f64, or u8 for bool.
    Fixed(Elem),
    /// One array of codes (u8, u16 or u32) into the column's sorted table-wide dictionary.
    Dict(Elem),
    /// `rows + 1` u32 offsets, relative to the partition, and the bytes.
    Utf8,
}

impl Physical {
    /// Bytes a row: of a value, a code, or an offset of text, whose bytes come on top.
    pub fn row_bytes(self) -> u64 {
        match self {
            Physical::Fixed(elem) | Physical::Dict(elem) => elem.bytes() as u64,
            Physical::Utf8 => 4,
        }
    }
}

/// The device representation of one input column: its SQL type, its physical layout, and whether a
/// validity array (u8 a row, 1 = valid) comes with it.
///
/// Text: `decimal(15,2) as i32`, `date as i16 null`, `dict<u8>`, `utf8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ColumnRepr {
    /// The SQL type.
    pub sql: SqlType,
    /// The layout.
    pub physical: Physical,
    /// Whether NULLs can occur.
    pub nullable: bool,
}

impl fmt::Display for ColumnRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.physical {
            Physical::Fixed(e) => write!(f, "{} as {e}", self.sql)?,
            Physical::Dict(e) => write!(f, "dict<{e}>")?,
            Physical::Utf8 => f.write_str("utf8")?,
        }
        if self.nullable { f.write_str(" null") } else { Ok(()) }
    }
}

impl FromStr for ColumnRepr {
    type Err = ParseReprError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WHAT: &str = "column representation";
        let (body, nullable) = match text.strip_suffix(" null") {
            Some(body) => (body, true),
            None => (text, false),
        };
        let (sql, physical) = if body == "utf8" {
            (SqlType::Utf8, Physical::Utf8)
        } else if let Some(code) = body.strip_prefix("dict<").and_then(|t| t.strip_suffix('>')) {
            let code: Elem = code.parse()?;
            if !matches!(code, Elem::U8 | Elem::U16 | Elem::U32) {
                return Err(bad(text, WHAT));
            }
            (SqlType::Utf8, Physical::Dict(code))
        } else {
            let (sql, elem) = body.split_once(" as ").ok_or_else(|| bad(text, WHAT))?;
            (sql.parse()?, Physical::Fixed(elem.parse()?))
        };
        Ok(ColumnRepr { sql, physical, nullable })
    }
}

macro_rules! serde_as_text {
    ($($ty:ty),*) => {$(
        impl Serialize for $ty {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $ty {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
pub(crate) use serde_as_text;
serde_as_text!(SqlType, Elem, ColumnRepr);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in ["decimal(15,2) as i32", "date as i16 null", "dict<u8>", "utf8 null", "bool as u8"] {
            assert_eq!(text.parse::<ColumnRepr>().unwrap().to_string(), text);
        }
        for text in ["dict<i8>", "int32", "decimal(39,2) as i32", ""] {
            assert!(text.parse::<ColumnRepr>().is_err(), "{text}");
        }
    }

    #[test]
    fn narrowest_holds_both_ends() {
        assert_eq!(Elem::narrowest(-128, 127), Elem::I8);
        assert_eq!(Elem::narrowest(0, 128), Elem::I16);
        assert_eq!(Elem::narrowest(i64::MIN.into(), i64::MAX.into()), Elem::I64);
        assert_eq!(Elem::narrowest(0, i128::from(i64::MAX) + 1), Elem::I128);
    }
}
