//! Columns in the representation that a plan asks for, decoded on the host's cores.
//!
//! Each (column, row group) is one work item; fixed-width values are written in place. Every value is checked
//! against the footer of its row group and against its element type.

use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, StringArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use dkb_kernels::{ColumnRepr, Elem, Physical, SqlType};

use super::chunk::ChunkPart;
use super::dictionary::{Dictionary, texts};
use super::stats::{Bounds, Factor, Kind};
use super::{Column, Table, TableError, workers};

/// Some rows of a column in host memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostColumn {
    /// Little-endian values or codes, one a row; 0 where NULL. For `utf8`, the bytes of all rows.
    pub values: Vec<u8>,
    /// For `utf8`, `rows + 1` offsets into `values`, the first 0.
    pub offsets: Option<Vec<u32>>,
    /// For nullable representations, one byte a row: 1 if it is not NULL.
    pub valid: Option<Vec<u8>>,
}

/// What becomes of one column's values.
pub(crate) struct Target {
    /// Position of the column.
    pub(crate) column: usize,
    leaf: usize,
    repr: ColumnRepr,
    /// How values are represented.
    pub(crate) encoding: Encoding,
}

/// How values are represented.
pub(crate) enum Encoding {
    /// As integers, after a change of unit.
    Integer { elem: Elem, factor: Factor },
    /// As doubles.
    Float,
    /// As codes of the table-wide dictionary.
    Codes { elem: Elem, dictionary: Arc<Dictionary> },
    /// As text.
    Text,
}

/// Part of one column, to be decoded from one row group.
struct Job<'a> {
    target: &'a Target,
    group: usize,
    part: ChunkPart,
    values: &'a mut [u8],
    valid: Option<&'a mut [u8]>,
    pieces: Option<&'a mut Vec<StringArray>>,
}

impl Table {
    /// Reads rows of one column; see [`Self::read_many`].
    ///
    /// # Errors
    /// As [`Self::read_many`].
    pub fn read(&self, column: &str, repr: ColumnRepr, rows: Range<u64>) -> Result<HostColumn, TableError> {
        Ok(self.read_many(&[(column, repr)], rows)?.pop().unwrap_or_default())
    }

    /// Reads the same rows of several columns, on all cores, in any representation that holds their values.
    ///
    /// # Errors
    /// No such column or rows; a representation that does not fit the column's type, one of its values or a
    /// NULL; a value outside the footer's range; unreadable files; text of more than 4 GiB.
    pub fn read_many(
        &self,
        columns: &[(&str, ColumnRepr)],
        rows: Range<u64>,
    ) -> Result<Vec<HostColumn>, TableError> {
        let rows = rows.start..rows.end.max(rows.start);
        self.check_rows(rows.end)?;
        let targets: Vec<Target> =
            columns.iter().map(|(c, r)| self.target(c, *r)).collect::<Result<_, _>>()?;
        let parts = self.parts(&rows);
        let count = (rows.end - rows.start) as usize;
        let mut outputs: Vec<HostColumn> = targets.iter().map(|t| t.allocate(count)).collect();
        let mut pieces: Vec<Vec<Vec<StringArray>>> =
            targets.iter().map(|t| vec![Vec::new(); if t.is_text() { parts.len() } else { 0 }]).collect();

        let mut jobs = Vec::with_capacity(targets.len() * parts.len());
        for ((target, output), pieces) in targets.iter().zip(&mut outputs).zip(&mut pieces) {
            let width = target.width();
            let (mut values, mut valid) = (output.values.as_mut_slice(), output.valid.as_deref_mut());
            let mut pieces = pieces.iter_mut();
            for (group, rows) in &parts {
                jobs.push(Job {
                    target,
                    group: *group,
                    part: ChunkPart { rows: rows.clone(), ..self.whole(*group, target.leaf) },
                    values: cut(&mut values, rows.len() * width),
                    valid: valid.as_mut().map(|valid| cut(valid, rows.len())),
                    pieces: pieces.next(),
                });
            }
        }
        // Text takes longest: it goes first.
        jobs.sort_by_key(|job| (job.pieces.is_none(), job.group));
        workers::for_each(jobs, |job| self.decode(job))?;

        for ((target, output), pieces) in targets.iter().zip(&mut outputs).zip(pieces) {
            if target.is_text() {
                self.join(target, output, count, pieces)?;
            }
        }
        Ok(outputs)
    }

    /// The row groups that hold `rows`, and which of their rows.
    pub(crate) fn parts(&self, rows: &Range<u64>) -> Vec<(usize, Range<usize>)> {
        let first = self.groups.partition_point(|g| g.rows.end <= rows.start);
        let groups = self.groups.iter().enumerate().skip(first).take_while(|(_, g)| g.rows.start < rows.end);
        groups
            .map(|(index, g)| {
                let (from, to) = (rows.start.max(g.rows.start), rows.end.min(g.rows.end));
                (index, (from - g.rows.start) as usize..(to - g.rows.start) as usize)
            })
            .filter(|(_, rows)| !rows.is_empty())
            .collect()
    }

    /// How a column becomes a representation.
    ///
    /// # Errors
    /// No such column, or a representation that it cannot have.
    pub(crate) fn target(&self, name: &str, repr: ColumnRepr) -> Result<Target, TableError> {
        let column = self.index(name)?;
        let Column { kind, leaf, ref ty, .. } = self.columns[column];
        let unfit = || TableError::Representation {
            table: self.info.name.clone(),
            column: name.to_owned(),
            ty: ty.clone(),
            repr,
        };
        let encoding = match (kind, repr.physical, repr.sql) {
            (Kind::Text, Physical::Utf8, SqlType::Utf8) => Encoding::Text,
            (Kind::Text, Physical::Dict(elem), SqlType::Utf8) => {
                let dictionary = self.dictionary(name)?;
                let (_, largest) = range_of(elem);
                if dictionary.len() as i128 > largest + 1 {
                    let (table, column) = (self.info.name.clone(), name.to_owned());
                    let entries = dictionary.len() as u64;
                    return Err(TableError::DictionarySize { table, column, entries, repr });
                }
                Encoding::Codes { elem, dictionary }
            }
            (Kind::Float, Physical::Fixed(Elem::F64), SqlType::Float32 | SqlType::Float64) => Encoding::Float,
            (_, Physical::Fixed(elem), sql) if elem != Elem::F64 => {
                Encoding::Integer { elem, factor: kind.factor(sql).ok_or_else(unfit)? }
            }
            _ => return Err(unfit()),
        };
        Ok(Target { column, leaf: leaf.ok_or_else(unfit)?, repr, encoding })
    }

    fn decode(&self, job: Job<'_>) -> Result<(), TableError> {
        let Job { target, group, part, mut values, mut valid, mut pieces } = job;
        let mut codes = Codes::default();
        let dictionaries = matches!(target.encoding, Encoding::Codes { .. });
        self.file(group).decode(part, dictionaries, |array| {
            let nulls = array.nulls().filter(|n| n.null_count() > 0);
            match (&mut valid, nulls) {
                (Some(valid), _) => store_validity(nulls, cut(valid, array.len())),
                (None, None) => {}
                (None, Some(_)) => {
                    return Err(TableError::Null {
                        place: self.place(group, target.column),
                        repr: target.repr,
                    });
                }
            }
            let slice = cut(&mut values, array.len() * target.width());
            match &target.encoding {
                Encoding::Integer { elem, factor } => {
                    self.store_integers(target, group, array, nulls, (*elem, *factor), slice)
                }
                Encoding::Float => {
                    match array.as_primitive_opt::<Float32Type>() {
                        Some(narrow) => store(narrow.values(), nulls, slice, |v| f64::from(v).to_le_bytes()),
                        None => store(
                            array.as_primitive::<Float64Type>().values(),
                            nulls,
                            slice,
                            f64::to_le_bytes,
                        ),
                    }
                    Ok(())
                }
                Encoding::Codes { elem, dictionary } => {
                    codes.store(array, nulls, dictionary, *elem, slice).map_err(|value| {
                        TableError::DictionaryMiss { place: self.place(group, target.column), value }
                    })
                }
                Encoding::Text => {
                    if let Some(pieces) = &mut pieces {
                        pieces.push(array.as_string().clone());
                    }
                    Ok(())
                }
            }
        })
    }

    fn store_integers(
        &self,
        target: &Target,
        group: usize,
        array: &ArrayRef,
        nulls: Option<&NullBuffer>,
        (elem, factor): (Elem, Factor),
        out: &mut [u8],
    ) -> Result<(), TableError> {
        let bounds = self.columns[target.column].bounds[group];
        let check = Check { bounds, elem, factor };
        let result = match array.data_type() {
            DataType::Int32 => check.store(array.as_primitive::<Int32Type>().values(), nulls, out),
            DataType::Date32 => check.store(array.as_primitive::<Date32Type>().values(), nulls, out),
            DataType::Int64 => check.store(array.as_primitive::<Int64Type>().values(), nulls, out),
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                check.store(array.as_primitive::<TimestampMicrosecondType>().values(), nulls, out)
            }
            DataType::Decimal128(..) => {
                check.store(array.as_primitive::<Decimal128Type>().values(), nulls, out)
            }
            _ => check.store(&wide(array), nulls, out),
        };
        result.map_err(|value| {
            let place = self.place(group, target.column);
            match bounds {
                Bounds::Within(min, max) if value < min || value > max => {
                    TableError::OutsideFooter { place, value, min, max }
                }
                Bounds::Empty => TableError::NotNull { place, value },
                _ => TableError::TooWide { place, value, repr: target.repr },
            }
        })
    }

    /// Puts the pieces of a text column together.
    fn join(
        &self,
        target: &Target,
        output: &mut HostColumn,
        rows: usize,
        pieces: Vec<Vec<StringArray>>,
    ) -> Result<(), TableError> {
        let bytes_of =
            |piece: &StringArray| (piece.value_offsets()[piece.len()] - piece.value_offsets()[0]) as usize;
        let pieces: Vec<StringArray> = pieces.into_iter().flatten().collect();
        let bytes: usize = pieces.iter().map(bytes_of).sum();
        if u32::try_from(bytes).is_err() {
            return Err(TableError::TooMuchText {
                table: self.info.name.clone(),
                column: self.column_name(target.column).to_owned(),
                bytes: bytes as u64,
            });
        }
        let mut values = vec![0; bytes];
        let mut offsets = vec![0; rows + 1];
        let (mut rest_values, mut rest_offsets, mut start) = (values.as_mut_slice(), &mut offsets[1..], 0u32);
        let mut copies = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let size = bytes_of(piece);
            copies.push((piece, start, cut(&mut rest_values, size), cut(&mut rest_offsets, piece.len())));
            start += size as u32;
        }
        workers::for_each(copies, |(piece, start, values, offsets)| {
            let from = piece.value_offsets();
            values.copy_from_slice(&piece.value_data()[from[0] as usize..][..values.len()]);
            for (offset, end) in offsets.iter_mut().zip(&from[1..]) {
                *offset = start + (end - from[0]) as u32;
            }
            Ok::<_, TableError>(())
        })?;
        output.values = values;
        output.offsets = Some(offsets);
        Ok(())
    }
}

impl Target {
    fn is_text(&self) -> bool {
        matches!(self.encoding, Encoding::Text)
    }

    /// Bytes a row that are written in place.
    fn width(&self) -> usize {
        match self.encoding {
            Encoding::Integer { elem, .. } | Encoding::Codes { elem, .. } => elem.bytes(),
            Encoding::Float => Elem::F64.bytes(),
            Encoding::Text => 0,
        }
    }

    fn allocate(&self, rows: usize) -> HostColumn {
        let valid = self.repr.nullable.then(|| vec![0; rows]);
        HostColumn { values: vec![0; rows * self.width()], offsets: None, valid }
    }
}

/// Takes the first `length` elements off a slice.
fn cut<'a, T>(rest: &mut &'a mut [T], length: usize) -> &'a mut [T] {
    let (head, tail) = take(rest).split_at_mut(length);
    *rest = tail;
    head
}

fn store_validity(nulls: Option<&NullBuffer>, out: &mut [u8]) {
    match nulls {
        None => out.fill(1),
        Some(nulls) => out.iter_mut().zip(nulls.iter()).for_each(|(slot, valid)| *slot = u8::from(valid)),
    }
}

/// Writes values as bytes into zeroed memory; NULL slots stay 0.
fn store<S: Copy, const N: usize>(
    values: &[S],
    nulls: Option<&NullBuffer>,
    out: &mut [u8],
    bytes: impl Fn(S) -> [u8; N],
) {
    let (slots, _) = out.as_chunks_mut::<N>();
    match nulls {
        None => slots.iter_mut().zip(values).for_each(|(slot, v)| *slot = bytes(*v)),
        Some(nulls) => nulls.valid_indices().for_each(|i| slots[i] = bytes(values[i])),
    }
}

/// Smallest and largest value of an integer element type.
fn range_of(elem: Elem) -> (i128, i128) {
    let bits = (elem.bytes() * 8) as u32;
    match elem {
        Elem::U8 | Elem::U16 | Elem::U32 | Elem::U64 => (0, (1 << bits) - 1),
        Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64 => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        Elem::I128 | Elem::F64 => (i128::MIN, i128::MAX),
    }
}

/// What integers are checked against, and what they become.
struct Check {
    bounds: Bounds,
    elem: Elem,
    factor: Factor,
}

impl Check {
    /// Checks and writes values; the error is the first that does not pass.
    fn store<S: Narrow>(&self, values: &[S], nulls: Option<&NullBuffer>, out: &mut [u8]) -> Result<(), i128> {
        let Some((min, max)) = extremes(values, nulls) else { return Ok(()) };
        if !(self.passes(min.into()) && self.passes(max.into())) {
            return Err(first(values, nulls, |v| !self.passes(v)).unwrap_or(min.into()));
        }
        if self.factor == Factor::ONE {
            narrow(values, nulls, self.elem, out);
            return Ok(());
        }
        let scaled = values.iter().enumerate().map(|(i, v)| {
            let valid = nulls.is_none_or(|n| n.is_valid(i));
            if valid { self.factor.apply((*v).into()).ok_or((*v).into()) } else { Ok(0) }
        });
        let scaled: Vec<i128> = scaled.collect::<Result<_, i128>>()?;
        narrow(&scaled, nulls, self.elem, out);
        Ok(())
    }

    /// Whether a value lies within the footer's bounds and fits the element; between two values that pass,
    /// all do, but for fractions.
    fn passes(&self, value: i128) -> bool {
        let (low, high) = range_of(self.elem);
        let stated = match self.bounds {
            Bounds::Unknown => true,
            Bounds::Empty => false,
            Bounds::Within(min, max) => min <= value && value <= max,
        };
        let fits = match self.factor {
            Factor::Times(by) => value.checked_mul(by).is_some_and(|v| low <= v && v <= high),
            Factor::Over(by) => low <= value / by && value / by <= high,
        };
        stated && fits
    }
}

fn extremes<S: Copy + Ord>(values: &[S], nulls: Option<&NullBuffer>) -> Option<(S, S)> {
    let start = match nulls {
        None => 0,
        Some(nulls) => nulls.valid_indices().next()?,
    };
    let first = *values.get(start)?;
    let widen = |(min, max): (S, S), v: S| (min.min(v), max.max(v));
    Some(match nulls {
        None => values.iter().copied().fold((first, first), widen),
        Some(nulls) => nulls.valid_indices().map(|i| values[i]).fold((first, first), widen),
    })
}

fn first<S: Copy + Into<i128>>(
    values: &[S],
    nulls: Option<&NullBuffer>,
    wanted: impl Fn(i128) -> bool,
) -> Option<i128> {
    let valid = |i: &usize| nulls.is_none_or(|n| n.is_valid(*i));
    (0..values.len()).filter(valid).map(|i| values[i].into()).find(|v| wanted(*v))
}

/// Stored integers, whose low bytes can be taken.
trait Narrow: Copy + Ord + Into<i128> {
    fn to_i8(self) -> i8;
    fn to_i16(self) -> i16;
    fn to_i32(self) -> i32;
    fn to_i64(self) -> i64;
    fn to_i128(self) -> i128;
}

macro_rules! narrow_integers {
    ($($ty:ty),*) => {$(
        impl Narrow for $ty {
            fn to_i8(self) -> i8 { self as i8 }
            fn to_i16(self) -> i16 { self as i16 }
            fn to_i32(self) -> i32 { self as i32 }
            fn to_i64(self) -> i64 { self as i64 }
            fn to_i128(self) -> i128 { self as i128 }
        }
    )*};
}
narrow_integers!(i32, i64, i128);

/// Writes the low bytes of values that are known to fit.
fn narrow<S: Narrow>(values: &[S], nulls: Option<&NullBuffer>, elem: Elem, out: &mut [u8]) {
    match elem.bytes() {
        1 => store(values, nulls, out, |v| v.to_i8().to_le_bytes()),
        2 => store(values, nulls, out, |v| v.to_i16().to_le_bytes()),
        4 => store(values, nulls, out, |v| v.to_i32().to_le_bytes()),
        8 => store(values, nulls, out, |v| v.to_i64().to_le_bytes()),
        _ => store(values, nulls, out, |v| v.to_i128().to_le_bytes()),
    }
}

/// Integers of the less common types.
fn wide(array: &ArrayRef) -> Vec<i128> {
    fn all<T: ArrowPrimitiveType<Native: Into<i128>>>(array: &PrimitiveArray<T>) -> Vec<i128> {
        array.values().iter().map(|v| (*v).into()).collect()
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().values().iter().map(i128::from).collect(),
        DataType::Int8 => all(array.as_primitive::<Int8Type>()),
        DataType::Int16 => all(array.as_primitive::<Int16Type>()),
        DataType::UInt8 => all(array.as_primitive::<UInt8Type>()),
        DataType::UInt16 => all(array.as_primitive::<UInt16Type>()),
        DataType::UInt32 => all(array.as_primitive::<UInt32Type>()),
        DataType::UInt64 => all(array.as_primitive::<UInt64Type>()),
        DataType::Timestamp(TimeUnit::Second, _) => all(array.as_primitive::<TimestampSecondType>()),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            all(array.as_primitive::<TimestampMillisecondType>())
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => all(array.as_primitive::<TimestampNanosecondType>()),
        other => unreachable!("{other} is not an integer kind"),
    }
}

/// Translates a chunk's own dictionary to table-wide codes, once for each dictionary that comes along.
#[derive(Default)]
struct Codes {
    values: Option<ArrayRef>,
    table: Vec<u32>,
}

/// Stands for an entry that the table-wide dictionary lacks.
const MISSING: u32 = u32::MAX;

impl Codes {
    /// Writes codes; the error is a text that the dictionary lacks.
    fn store(
        &mut self,
        array: &ArrayRef,
        nulls: Option<&NullBuffer>,
        dictionary: &Dictionary,
        elem: Elem,
        out: &mut [u8],
    ) -> Result<(), String> {
        let code = |text: &str| dictionary.code_of(text).unwrap_or(MISSING);
        let strings = texts(array);
        let codes: Vec<u32> = if let DataType::Dictionary(..) = array.data_type() {
            let array = array.as_dictionary::<Int32Type>();
            let known = self.values.as_ref().is_some_and(|v| v.to_data().ptr_eq(&array.values().to_data()));
            if !known {
                self.table = strings.iter().map(|text| text.map_or(MISSING, code)).collect();
                self.values = Some(Arc::clone(array.values()));
            }
            let look_up = |key: &i32| self.table.get(*key as usize).copied().unwrap_or(MISSING);
            array.keys().values().iter().map(look_up).collect()
        } else {
            strings.iter().map(|text| text.map_or(MISSING, code)).collect()
        };
        let missing =
            codes.iter().enumerate().find(|(i, c)| **c == MISSING && nulls.is_none_or(|n| n.is_valid(*i)));
        if let Some((row, _)) = missing {
            let position = match array.as_any_dictionary_opt() {
                Some(array) => array.normalized_keys().get(row).copied(),
                None => Some(row),
            };
            return Err(position.filter(|p| *p < strings.len()).map_or("?", |p| strings.value(p)).to_owned());
        }
        match elem {
            Elem::U8 => store(&codes, nulls, out, |c| (c as u8).to_le_bytes()),
            Elem::U16 => store(&codes, nulls, out, |c| (c as u16).to_le_bytes()),
            _ => store(&codes, nulls, out, u32::to_le_bytes),
        }
        Ok(())
    }
}
