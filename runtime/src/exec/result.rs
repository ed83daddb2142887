//! From result buffers to an Arrow batch: download, [`finish`](super::finish), conversion.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array,
    Int16Array, Int32Array, Int64Array, StringArray, StringViewArray, TimestampMicrosecondArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Field, Schema};
use arrow::record_batch::RecordBatch;
use dkb_kernels::{Elem, Plan, ResultColumn, SqlType};

use super::Error;
use super::buffers::Use;
use super::columns::Store;
use super::finish::{Key, ranks, select};
use super::schedule::{Machine, Status, Worker};

/// A slab of result columns up to this size is downloaded at once.
const WHOLE_SLAB_BYTES: usize = 64 << 10;

/// A result column as the device left it.
pub(crate) struct RawColumn {
    pub(crate) elem: Elem,
    /// Little-endian values, codes or row numbers.
    pub(crate) data: Vec<u8>,
    /// A byte a row, zero for NULL.
    pub(crate) valid: Option<Vec<u8>>,
}

impl RawColumn {
    /// Whether a row is not NULL.
    pub(crate) fn is_valid(&self, row: usize) -> bool {
        self.valid.as_ref().is_none_or(|v| v[row] != 0)
    }

    fn bytes<const N: usize>(&self, row: usize) -> [u8; N] {
        self.data[row * N..].first_chunk().copied().unwrap_or([0; N])
    }

    /// The value as an integer; for f64 its bits.
    fn int(&self, row: usize) -> i128 {
        match self.elem {
            Elem::U8 => u8::from_le_bytes(self.bytes(row)).into(),
            Elem::U16 => u16::from_le_bytes(self.bytes(row)).into(),
            Elem::U32 => u32::from_le_bytes(self.bytes(row)).into(),
            Elem::U64 | Elem::F64 => u64::from_le_bytes(self.bytes(row)).into(),
            Elem::I8 => i8::from_le_bytes(self.bytes(row)).into(),
            Elem::I16 => i16::from_le_bytes(self.bytes(row)).into(),
            Elem::I32 => i32::from_le_bytes(self.bytes(row)).into(),
            Elem::I64 => i64::from_le_bytes(self.bytes(row)).into(),
            Elem::I128 => i128::from_le_bytes(self.bytes(row)),
        }
    }

    fn float(&self, row: usize) -> f64 {
        match self.elem {
            Elem::F64 => f64::from_le_bytes(self.bytes(row)),
            _ => self.int(row) as f64,
        }
    }

    /// An integer that orders as the value does, floats by IEEE 754's total order.
    pub(crate) fn order(&self, row: usize) -> i128 {
        if self.elem != Elem::F64 {
            return self.int(row);
        }
        let bits = i64::from_le_bytes(self.bytes(row));
        i128::from(bits ^ ((bits >> 63) as u64 >> 1) as i64)
    }
}

/// Downloads the rows of the result: the root's, or those of all devices one after another.
///
/// # Errors
/// A failed device call, or result buffers shorter than the result.
pub(crate) fn download(machine: &Machine, status: &[Status]) -> Result<(Vec<RawColumn>, usize), Error> {
    let program = machine.env.program;
    let size = program.result_size();
    let everywhere = program.rows_on_every_device(machine.env.parts);
    let pieces = machine.on_all(|device, worker| {
        if device > 0 && !everywhere {
            return Ok((Vec::new(), 0));
        }
        let rows = status[device].counters[size].unwrap_or(machine.env.sizes[size]) as usize;
        Ok((columns(machine, worker, rows)?, rows))
    })?;
    let rows = pieces.iter().map(|(_, rows)| rows).sum();
    let mut pieces = pieces.into_iter().map(|(columns, _)| columns);
    let mut all = pieces.next().unwrap_or_default();
    for more in pieces {
        for (column, more) in all.iter_mut().zip(more) {
            column.data.extend(more.data);
            if let (Some(valid), Some(more)) = (&mut column.valid, more.valid) {
                valid.extend(more);
            }
        }
    }
    Ok((all, rows))
}

/// The first `rows` rows of every result column on one device.
fn columns(machine: &Machine, worker: &Worker, rows: usize) -> Result<Vec<RawColumn>, Error> {
    let (program, layout) = (machine.env.program, machine.layout);
    let mut slabs: Vec<Option<Vec<u8>>> = vec![None; layout.slabs.len()];
    let mut read = |name: &str| -> Result<(Elem, Vec<u8>), Error> {
        let at = program.plan.buffers.iter().position(|b| b.name == name);
        let at = at.ok_or_else(|| Error::Execution(format!("the result names no buffer `{name}`")))?;
        let (elem, place) = (program.plan.buffers[at].ty, &layout.places[at]);
        if (rows as u64) > place.len {
            let message = format!("buffer `{name}`: {} elements for {rows} rows of the result", place.len);
            return Err(Error::Execution(message));
        }
        let (slab, memory, bytes) =
            (&layout.slabs[place.slab], worker.slabs.memory(place.slab), rows * elem.bytes());
        if slab.purpose == Use::Result && slab.bytes <= WHOLE_SLAB_BYTES {
            if slabs[place.slab].is_none() {
                let mut whole = vec![0; slab.bytes];
                worker.device.download(memory, 0, &mut whole)?;
                slabs[place.slab] = Some(whole);
            }
            let whole = slabs[place.slab].as_deref().unwrap_or_default();
            return Ok((elem, whole[place.offset..place.offset + bytes].to_vec()));
        }
        let mut data = vec![0; bytes];
        worker.device.download(memory, place.offset, &mut data)?;
        Ok((elem, data))
    };
    let column = |spec: &ResultColumn| {
        let (elem, data) = read(&spec.from)?;
        let valid = spec.valid.as_ref().map(|v| Ok::<_, Error>(read(v)?.1)).transpose()?;
        Ok(RawColumn { elem, data, valid })
    };
    program.plan.result.columns.iter().map(column).collect()
}

/// Orders and limits the rows as the plan's `finish` says, and makes Arrow arrays of them.
///
/// # Errors
/// Values outside their type or dictionary, text that cannot be read.
pub(crate) fn finish(
    plan: &Plan,
    store: &Store,
    columns: &[RawColumn],
    rows: usize,
) -> Result<RecordBatch, Error> {
    if u32::try_from(rows).is_err() {
        return Err(Error::Execution(format!(
            "the result has {rows} rows before its limit; at most 2^32 - 1 can be held"
        )));
    }
    let specs = &plan.result.columns;
    let key = |k: &dkb_kernels::SortKey| {
        let (column, spec) = (&columns[k.column], &specs[k.column]);
        let ranks = match &spec.fetch {
            Some(source) => {
                let all: Vec<u32> = (0..rows as u32).collect();
                let texts = Fetched::new(store, source, column, &all)?;
                Some(ranks(&all.iter().map(|row| texts.get(*row as usize)).collect::<Vec<_>>()))
            }
            None => None,
        };
        Ok(Key { column, ranks, descending: k.descending, nulls_first: k.nulls_first })
    };
    let keys = plan.finish.order_by.iter().map(key).collect::<Result<Vec<Key>, Error>>()?;
    let selected = select(rows, &keys, plan.finish.offset, plan.finish.limit);

    let keep = plan.finish.keep.map_or(specs.len(), |k| (k as usize).min(specs.len()));
    let mut fields = Vec::with_capacity(keep);
    let mut arrays = Vec::with_capacity(keep);
    for (spec, column) in specs.iter().zip(columns).take(keep) {
        let array = array(store, spec, column, &selected)?;
        fields.push(Field::new(&spec.name, array.data_type().clone(), spec.nullable));
        arrays.push(array);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
        .map_err(|e| Error::Execution(format!("the result does not fit its schema: {e}")))
}

fn array(
    store: &Store,
    spec: &ResultColumn,
    column: &RawColumn,
    selected: &[u32],
) -> Result<ArrayRef, Error> {
    let rows = || selected.iter().map(|row| *row as usize);
    let nulls = column.valid.is_some().then(|| NullBuffer::from_iter(rows().map(|row| column.is_valid(row))));
    macro_rules! integers {
        ($array:ident, $ty:ty) => {{
            let convert = |row: usize| match (column.is_valid(row), <$ty>::try_from(column.int(row))) {
                (true, Ok(value)) => Ok(value),
                (true, Err(_)) => {
                    let message =
                        format!("result column `{}`: {} is no {}", spec.name, column.int(row), spec.ty);
                    Err(Error::Execution(message))
                }
                (false, _) => Ok(0),
            };
            $array::new(rows().map(convert).collect::<Result<Vec<$ty>, Error>>()?.into(), nulls)
        }};
    }
    Ok(match spec.ty {
        SqlType::Bool => Arc::new(BooleanArray::new(rows().map(|row| column.int(row) != 0).collect(), nulls)),
        SqlType::Int8 => Arc::new(integers!(Int8Array, i8)),
        SqlType::Int16 => Arc::new(integers!(Int16Array, i16)),
        SqlType::Int32 => Arc::new(integers!(Int32Array, i32)),
        SqlType::Int64 => Arc::new(integers!(Int64Array, i64)),
        SqlType::Date => Arc::new(integers!(Date32Array, i32)),
        SqlType::Timestamp => Arc::new(integers!(TimestampMicrosecondArray, i64)),
        SqlType::Decimal(precision, scale) => Arc::new(
            integers!(Decimal128Array, i128)
                .with_precision_and_scale(precision, scale)
                .map_err(|e| Error::Execution(format!("result column `{}`: {e}", spec.name)))?,
        ),
        SqlType::Float32 => {
            let values: Vec<f32> = rows().map(|row| column.float(row) as f32).collect();
            Arc::new(Float32Array::new(values.into(), nulls))
        }
        SqlType::Float64 => {
            let values: Vec<f64> = rows().map(|row| column.float(row)).collect();
            Arc::new(Float64Array::new(values.into(), nulls))
        }
        SqlType::Utf8 => Arc::new(texts(store, spec, column, selected)?),
    })
}

fn texts(
    store: &Store,
    spec: &ResultColumn,
    column: &RawColumn,
    selected: &[u32],
) -> Result<StringArray, Error> {
    if let Some(source) = &spec.fetch {
        let fetched = Fetched::new(store, source, column, selected)?;
        return Ok((0..selected.len()).map(|at| fetched.get(at)).collect());
    }
    let Some((table, name)) = spec.dict.as_deref().and_then(|d| d.split_once('.')) else {
        let unpack = |row: &u32| column.is_valid(*row as usize).then(|| unpack_text(column.int(*row as usize)));
        return Ok(selected.iter().map(unpack).collect());
    };
    let dictionary = store.dictionary(table, name)?;
    let text = |row: &u32| {
        let row = *row as usize;
        if !column.is_valid(row) {
            return Ok(None);
        }
        match usize::try_from(column.int(row)) {
            Ok(code) if code < dictionary.len() => Ok(Some(dictionary.get(code))),
            _ => Err(Error::Execution(format!(
                "result column `{}`: {} is no code of the {} entries of `{table}.{name}`",
                spec.name,
                column.int(row),
                dictionary.len()
            ))),
        }
    };
    selected.iter().map(text).collect()
}

/// The text of `pack_text` in `dkb.cuh`: bytes from the top, the length in the lowest byte, the top bit flipped.
fn unpack_text(packed: i128) -> String {
    let bytes = (packed as u128 ^ 1 << 127).to_be_bytes();
    let len = usize::from(bytes[15]).min(15);
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// Text of a table's rows, gathered by row number.
struct Fetched {
    texts: StringViewArray,
    /// By selected row: index of its text; None for NULL.
    index: Vec<Option<usize>>,
}

impl Fetched {
    fn new(store: &Store, source: &str, column: &RawColumn, selected: &[u32]) -> Result<Fetched, Error> {
        let (table, name) = source.split_once('.').unwrap_or_default();
        let mut rows = Vec::with_capacity(selected.len());
        let mut index = Vec::with_capacity(selected.len());
        for row in selected.iter().map(|row| *row as usize) {
            if !column.is_valid(row) {
                index.push(None);
                continue;
            }
            let number = u64::try_from(column.int(row)).unwrap_or(u64::MAX);
            index.push(Some(rows.len()));
            rows.push(number);
        }
        let table = store.table(table)?;
        if let Some(row) = rows.iter().find(|row| **row >= table.info.rows) {
            let message =
                format!("the result fetches row {row} of `{source}`, which has {} rows", table.info.rows);
            return Err(Error::Execution(message));
        }
        let texts = if rows.is_empty() {
            StringViewArray::from_iter_values([""; 0])
        } else {
            table.text(name, &rows)?
        };
        Ok(Fetched { texts, index })
    }

    fn get(&self, selected: usize) -> Option<&str> {
        let at = self.index[selected]?;
        self.texts.is_valid(at).then(|| self.texts.value(at))
    }
}
