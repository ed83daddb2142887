//! From result buffers to an Arrow batch: download, [`finish`](super::finish), conversion.
//!
//! What orders the rows is downloaded first, if there are many only of those that [`narrow`] leaves, and of all else
//! only the rows that are kept.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array,
    Int16Array, Int32Array, Int64Array, StringArray, StringViewArray, TimestampMicrosecondArray,
};
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{Field, Schema};
use arrow::record_batch::RecordBatch;
use dkb_kernels::{Elem, ResultColumn, SortKey, SqlType};

use super::Error;
use super::buffers::{Slab, Use};
use super::columns::Store;
use super::finish::{Key, Ranks, leading, range, select};
use super::narrow;
use super::schedule::{Copies, Machine, Worker};
use crate::device::{Download, sanitizing};
use crate::table::workers;

/// A slab of result columns up to this size is downloaded before its rows are counted.
const WHOLE_SLAB_BYTES: usize = 64 << 10;
/// A result of up to this many bytes is downloaded at once, though its limit may drop rows.
const WHOLE_RESULT_BYTES: usize = 512 << 10;
/// Copying a row by itself takes as long as so many bytes of a longer copy.
const ROW_COPY_BYTES: usize = 16 << 10;

/// A result column as the device left it.
#[derive(Clone, Copy)]
pub(crate) struct RawColumn<'a> {
    pub(crate) elem: Elem,
    /// Little-endian values, codes or row numbers.
    pub(crate) data: &'a [u8],
    /// A byte a row, zero for NULL.
    pub(crate) valid: Option<&'a [u8]>,
}

impl RawColumn<'_> {
    /// Some of its rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Self {
        let width = self.elem.bytes();
        let data = &self.data[rows.start * width..rows.end * width];
        RawColumn { elem: self.elem, data, valid: self.valid.map(|valid| &valid[rows]) }
    }

    /// Whether a row is not NULL.
    pub(crate) fn is_valid(&self, row: usize) -> bool {
        self.valid.is_none_or(|v| v[row] != 0)
    }

    /// Calls `each` with rows and what `from` makes of their bytes.
    fn each<const N: usize, T>(
        &self,
        rows: Range<usize>,
        from: impl Fn([u8; N]) -> T,
        mut each: impl FnMut(usize, T),
    ) {
        for (row, bytes) in rows.clone().zip(&self.data.as_chunks().0[rows]) {
            each(row, from(*bytes));
        }
    }

    /// Calls `each` with rows and their values as integers; for f64 their bits.
    fn ints(&self, rows: Range<usize>, each: impl FnMut(usize, i128)) {
        match self.elem {
            Elem::U8 => self.each(rows, |b| u8::from_le_bytes(b).into(), each),
            Elem::U16 => self.each(rows, |b| u16::from_le_bytes(b).into(), each),
            Elem::U32 => self.each(rows, |b| u32::from_le_bytes(b).into(), each),
            Elem::U64 | Elem::F64 => self.each(rows, |b| u64::from_le_bytes(b).into(), each),
            Elem::I8 => self.each(rows, |b| i8::from_le_bytes(b).into(), each),
            Elem::I16 => self.each(rows, |b| i16::from_le_bytes(b).into(), each),
            Elem::I32 => self.each(rows, |b| i32::from_le_bytes(b).into(), each),
            Elem::I64 => self.each(rows, |b| i64::from_le_bytes(b).into(), each),
            Elem::I128 => self.each(rows, i128::from_le_bytes, each),
        }
    }

    /// Calls `each` with rows and integers that order as the values do, floats by IEEE 754's total order.
    pub(crate) fn orders(&self, rows: Range<usize>, mut each: impl FnMut(usize, i128)) {
        match self.elem {
            Elem::F64 => self.each(rows, float_order, |row, order| each(row, order.into())),
            _ => self.ints(rows, each),
        }
    }

    /// The smallest and the largest of [`Self::orders`] that are not NULL.
    pub(crate) fn bounds(&self) -> Option<(i128, i128)> {
        match self.elem {
            Elem::U8 => self.typed_bounds(u8::from_le_bytes),
            Elem::U16 => self.typed_bounds(u16::from_le_bytes),
            Elem::U32 => self.typed_bounds(u32::from_le_bytes),
            Elem::U64 => self.typed_bounds(u64::from_le_bytes),
            Elem::I8 => self.typed_bounds(i8::from_le_bytes),
            Elem::I16 => self.typed_bounds(i16::from_le_bytes),
            Elem::I32 => self.typed_bounds(i32::from_le_bytes),
            Elem::I64 => self.typed_bounds(i64::from_le_bytes),
            Elem::I128 => self.typed_bounds(i128::from_le_bytes),
            Elem::F64 => self.typed_bounds(float_order),
        }
    }

    fn typed_bounds<const N: usize, T: Ord + Copy + Into<i128>>(
        &self,
        from: impl Fn([u8; N]) -> T + Copy,
    ) -> Option<(i128, i128)> {
        // One pass: the first value stands in for NULLs.
        let values = self.data.as_chunks().0.iter().map(|bytes| from(*bytes));
        let widen = |(low, high): (T, T), value: T| (low.min(value), high.max(value));
        let (low, high) = match self.valid {
            None => {
                let first = values.clone().next()?;
                values.fold((first, first), widen)
            }
            Some(valid) => {
                let first = values.clone().zip(valid).find(|(_, valid)| **valid != 0)?.0;
                let given = values.zip(valid).map(|(value, valid)| if *valid != 0 { value } else { first });
                given.fold((first, first), widen)
            }
        };
        Some((low.into(), high.into()))
    }

    /// The integer that orders as the value of a row does.
    pub(crate) fn order(&self, row: usize) -> i128 {
        let mut found = 0;
        self.orders(row..row + 1, |_, order| found = order);
        found
    }

    fn floats(&self, rows: usize) -> Vec<f64> {
        let mut values = Vec::with_capacity(rows);
        match self.elem {
            Elem::F64 => self.each(0..rows, f64::from_le_bytes, |_, value| values.push(value)),
            _ => self.ints(0..rows, |_, value| values.push(value as f64)),
        }
        values
    }

    fn nulls(&self) -> Option<NullBuffer> {
        let valid = self.valid?;
        Some(NullBuffer::new(BooleanBuffer::collect_bool(valid.len(), |row| valid[row] != 0)))
    }
}

fn float_order(bytes: [u8; 8]) -> i64 {
    let bits = i64::from_le_bytes(bytes);
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// Whether a slab is downloaded along with the status. Not under a memory checker, for a slab has bytes that
/// nobody wrote.
pub(crate) fn is_small(slab: &Slab) -> bool {
    slab.purpose == Use::Result && slab.bytes <= WHOLE_SLAB_BYTES && !sanitizing()
}

/// The content of the result's buffers, or of those of its rows that are kept.
struct Downloaded<'a> {
    machine: &'a Machine<'a>,
    /// The number of rows by device.
    rows: &'a [usize],
    /// By device, what has been downloaded along with the status.
    copies: &'a [Copies],
    /// By buffer.
    data: Vec<Option<Vec<u8>>>,
}

impl Downloaded<'_> {
    /// Downloads the buffers of result columns that are not here yet: all their rows, or those given.
    fn add(&mut self, columns: impl Iterator<Item = usize>, only: Option<&[u32]>) -> Result<(), Error> {
        let mut buffers = self.buffers(columns);
        buffers.retain(|buffer| self.data[*buffer].is_none());
        if buffers.is_empty() {
            return Ok(());
        }
        let only = only.map(|only| self.by_device(only));
        let mut pieces = self
            .machine
            .on_all(|device, worker| {
                let only = only.as_ref().map(|only| only.of_device[device].as_slice());
                self.read(device, worker, &buffers, only)
            })?
            .into_iter();
        let mut all = pieces.next().unwrap_or_default();
        for piece in pieces {
            all.iter_mut().zip(piece).for_each(|(all, more)| all.extend(more));
        }
        for (buffer, data) in buffers.into_iter().zip(all) {
            self.data[buffer] = Some(match &only {
                Some(only) => take(&data, self.width(buffer), &only.place),
                None => data,
            });
        }
        Ok(())
    }

    /// Where the given rows of the result lie.
    fn by_device(&self, rows: &[u32]) -> Picked {
        let mut of_device = vec![Vec::new(); self.rows.len()];
        let mut found = Vec::with_capacity(rows.len());
        for &row in rows {
            let (mut device, mut row) = (0, row as usize);
            while row >= self.rows[device] {
                row -= self.rows[device];
                device += 1;
            }
            found.push((device, of_device[device].len() as u32));
            of_device[device].push(row as u32);
        }
        let counts = of_device.iter().map(|rows| rows.len() as u32);
        let firsts: Vec<u32> =
            counts.scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect();
        Picked { place: found.into_iter().map(|(device, at)| firsts[device] + at).collect(), of_device }
    }

    /// The rows of some buffers on one device, or those given of them.
    fn read(
        &self,
        device: usize,
        worker: &Worker,
        buffers: &[usize],
        only: Option<&[u32]>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let (layout, rows) = (self.machine.layout, self.rows[device]);
        let mut data: Vec<Vec<u8>> = vec![Vec::new(); buffers.len()];
        let mut pick = vec![only; buffers.len()];
        let mut downloads = Vec::new();
        for ((buffer, data), pick) in buffers.iter().zip(&mut data).zip(&mut pick) {
            let (place, width) = (&layout.places[*buffer], self.width(*buffer));
            if rows as u64 > place.len {
                return Err(Error::Execution(format!(
                    "buffer `{}`: {} elements for {rows} rows of the result",
                    self.machine.env.program.plan.buffers[*buffer].name, place.len
                )));
            }
            let (memory, bytes) = (worker.slabs.memory(place.slab), rows * width);
            if let Some(Some(slab)) = self.copies[device].get(place.slab) {
                *data = slab[place.offset..place.offset + bytes].to_vec();
                continue;
            }
            match *pick {
                Some(only) if only.len() * ROW_COPY_BYTES < bytes => {
                    *data = vec![0; only.len() * width];
                    for (row, bytes) in only.iter().zip(data.chunks_exact_mut(width)) {
                        let offset = place.offset + *row as usize * width;
                        downloads.push(Download { memory, offset, bytes });
                    }
                    *pick = None;
                }
                _ => {
                    *data = vec![0; bytes];
                    downloads.push(Download { memory, offset: place.offset, bytes: data });
                }
            }
        }
        if !downloads.is_empty() {
            worker.device.download_all(&mut downloads)?;
        }
        for ((buffer, data), pick) in buffers.iter().zip(&mut data).zip(pick) {
            if let Some(only) = pick {
                *data = take(data, self.width(*buffer), only);
            }
        }
        Ok(data)
    }

    /// Orders and limits what has been downloaded: `near` of the result's `total` rows, or all of them. Gives the rows
    /// that are kept, and puts the text that the order needs in `fetched`, by result column.
    fn order(
        &mut self,
        mut near: Option<Vec<u32>>,
        total: usize,
        fetched: &mut [Option<Fetched>],
    ) -> Result<Vec<u32>, Error> {
        let plan = &self.machine.env.program.plan;
        let (specs, finish) = (&plan.result.columns, &plan.finish);
        let end = range(total, finish.offset, finish.limit).end;
        let mut count = near.as_ref().map_or(total, Vec::len);
        let place = |near: &Option<Vec<u32>>, rows: Vec<u32>| match near {
            Some(near) => rows.into_iter().map(|row| near[row as usize]).collect(),
            None => rows,
        };
        // Text is looked up only of rows that what orders before it leaves.
        let before = finish.order_by.iter().take_while(|key| specs[key.column].fetch.is_none()).count();
        if (1..finish.order_by.len()).contains(&before) && end < count {
            let keys = finish.order_by[..before].iter().map(|key| Key::new(key, self.column(key.column)));
            let rows = leading(count, &keys.collect::<Vec<_>>(), end);
            self.keep(&rows);
            count = rows.len();
            near = Some(place(&near, rows));
        }
        for SortKey { column, .. } in &finish.order_by {
            if let Some(source) = &specs[*column].fetch {
                fetched[*column] =
                    Some(Fetched::new(self.machine.store, source, self.column(*column), count)?);
            }
        }
        let ranks = |key: &SortKey| fetched[key.column].as_ref().map(|texts| Ranks::new(&texts.all()));
        let ranks: Vec<Option<Ranks>> = finish.order_by.iter().map(ranks).collect();
        let keys = finish.order_by.iter().zip(&ranks).map(|(key, ranks)| {
            Key::new(key, ranks.as_ref().map_or_else(|| self.column(key.column), Ranks::column))
        });
        let selected = select(count, &keys.collect::<Vec<_>>(), finish.offset, finish.limit);
        self.keep(&selected);
        fetched.iter_mut().flatten().for_each(|texts| texts.keep(&selected));
        Ok(place(&near, selected))
    }

    /// Drops all rows but the given ones of what has been downloaded.
    fn keep(&mut self, selected: &[u32]) {
        for buffer in 0..self.data.len() {
            if let Some(data) = &self.data[buffer] {
                self.data[buffer] = Some(take(data, self.width(buffer), selected));
            }
        }
    }

    /// The buffers of result columns, each once.
    fn buffers(&self, columns: impl Iterator<Item = usize>) -> Vec<usize> {
        let result = &self.machine.env.program.result;
        let mut buffers: Vec<usize> =
            columns.flat_map(|c| std::iter::once(result[c].0).chain(result[c].1)).collect();
        buffers.sort_unstable();
        buffers.dedup();
        buffers
    }

    fn width(&self, buffer: usize) -> usize {
        self.machine.env.program.plan.buffers[buffer].ty.bytes()
    }

    /// A result column that has been downloaded.
    fn column(&self, at: usize) -> RawColumn<'_> {
        let program = self.machine.env.program;
        let (values, valid) = program.result[at];
        let data = |buffer: usize| self.data[buffer].as_deref().unwrap_or_default();
        RawColumn { elem: program.plan.buffers[values].ty, data: data(values), valid: valid.map(data) }
    }
}

/// Rows of a result by the devices that hold them.
struct Picked {
    /// By device, the numbers of its rows.
    of_device: Vec<Vec<u32>>,
    /// By row, its place where one device's rows follow another's.
    place: Vec<u32>,
}

/// The elements of the given rows.
fn take(data: &[u8], width: usize, rows: &[u32]) -> Vec<u8> {
    fn typed<const N: usize>(data: &[u8], rows: &[u32]) -> Vec<u8> {
        let (from, mut to) = (data.as_chunks::<N>().0, vec![0; rows.len() * N]);
        for (to, row) in to.as_chunks_mut().0.iter_mut().zip(rows) {
            *to = from[*row as usize];
        }
        to
    }
    match width {
        1 => typed::<1>(data, rows),
        2 => typed::<2>(data, rows),
        4 => typed::<4>(data, rows),
        8 => typed::<8>(data, rows),
        _ => typed::<16>(data, rows),
    }
}

/// A finished run's result.
pub(crate) struct Answer {
    pub(crate) batch: RecordBatch,
    /// Rows before the limit.
    pub(crate) rows: usize,
    /// Time spent on ordering, limiting and converting, and on downloading what the order needs not.
    pub(crate) finish_ms: f64,
}

/// Downloads the result, of which every device has so many `rows`; orders and limits it as the plan's
/// `finish` says, and makes Arrow arrays of it. `copies` are slabs that are downloaded already.
///
/// # Errors
/// A failed device call, buffers shorter than the result, values outside their type or dictionary, text that
/// cannot be read.
pub(crate) fn answer(machine: &Machine, rows: &[usize], copies: &[Copies]) -> Result<Answer, Error> {
    let (program, store) = (machine.env.program, machine.store);
    let (specs, finish) = (&program.plan.result.columns, &program.plan.finish);
    let total: usize = rows.iter().sum();
    if u32::try_from(total).is_err() {
        return Err(Error::Execution(format!(
            "the result has {total} rows before its limit; at most 2^32 - 1 can be held"
        )));
    }
    let mut result = Downloaded { machine, rows, copies, data: vec![None; program.plan.buffers.len()] };
    let kept = 0..finish.keep.map_or(specs.len(), |k| (k as usize).min(specs.len()));
    let ordering = || finish.order_by.iter().map(|key| key.column);
    let wanted = range(total, finish.offset, finish.limit);
    let row_bytes: usize = result.buffers(kept.clone()).into_iter().map(|b| result.width(b)).sum();
    let narrowed = narrow::candidates(machine, rows, wanted.end)?;
    result.add(ordering(), narrowed.as_deref())?;
    if narrowed.is_none() && (wanted.len() > total / 2 || total * row_bytes <= WHOLE_RESULT_BYTES) {
        result.add(kept.clone(), None)?;
    }

    let started = Instant::now();
    let mut fetched: Vec<Option<Fetched>> = specs.iter().map(|_| None).collect();
    if !finish.order_by.is_empty() || wanted != (0..total) {
        let selected = result.order(narrowed, total, &mut fetched)?;
        result.add(kept.clone(), Some(&selected))?;
    }
    let build = |at: usize| array(store, &specs[at], result.column(at), fetched[at].as_ref(), wanted.len());
    // Text in files is decoded when it is asked for: that of all columns beside each other.
    let arrays = match store.streams() && specs[kept.clone()].iter().any(|spec| spec.fetch.is_some()) {
        true => workers::map(kept.clone().collect(), build)?,
        false => kept.clone().map(build).collect::<Result<Vec<ArrayRef>, Error>>()?,
    };
    let field = |(spec, array): (&ResultColumn, &ArrayRef)| {
        Field::new(&spec.name, array.data_type().clone(), spec.nullable)
    };
    let fields: Vec<Field> = specs[kept].iter().zip(&arrays).map(field).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
        .map_err(|e| Error::Execution(format!("the result does not fit its schema: {e}")))?;
    Ok(Answer { batch, rows: total, finish_ms: started.elapsed().as_secs_f64() * 1e3 })
}

/// A result column as an Arrow array. `fetched` is its text, where the order needed that.
fn array(
    store: &Store,
    spec: &ResultColumn,
    column: RawColumn,
    fetched: Option<&Fetched>,
    rows: usize,
) -> Result<ArrayRef, Error> {
    let wrong = |value: i128| {
        Err(Error::Execution(format!("result column `{}`: {value} is no {}", spec.name, spec.ty)))
    };
    let nulls = column.nulls();
    macro_rules! integers {
        ($array:ident, $ty:ty) => {{
            let (mut values, mut misfit) = (Vec::with_capacity(rows), None);
            column.ints(0..rows, |row, value| {
                let fits = <$ty>::try_from(value);
                if fits.is_err() && column.is_valid(row) {
                    misfit = Some(value);
                }
                values.push(fits.unwrap_or(0));
            });
            if let Some(value) = misfit {
                return wrong(value);
            }
            $array::new(values.into(), nulls)
        }};
    }
    Ok(match spec.ty {
        SqlType::Bool => {
            let mut values = Vec::with_capacity(rows);
            column.ints(0..rows, |_, value| values.push(value != 0));
            Arc::new(BooleanArray::new(values.into(), nulls))
        }
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
            let values: Vec<f32> = column.floats(rows).into_iter().map(|value| value as f32).collect();
            Arc::new(Float32Array::new(values.into(), nulls))
        }
        SqlType::Float64 => Arc::new(Float64Array::new(column.floats(rows).into(), nulls)),
        SqlType::Utf8 => Arc::new(match (&spec.fetch, fetched) {
            (_, Some(fetched)) => fetched.all().into_iter().collect(),
            (Some(source), None) => Fetched::new(store, source, column, rows)?.all().into_iter().collect(),
            (None, None) => texts(store, spec, column, rows)?,
        }),
    })
}

fn texts(store: &Store, spec: &ResultColumn, column: RawColumn, rows: usize) -> Result<StringArray, Error> {
    // Texts are put one after another as bytes, and checked to be UTF-8 in one go.
    let (mut bytes, mut ends) = (Vec::with_capacity(rows * 16), Vec::with_capacity(rows + 1));
    ends.push(0usize);
    if let Some((table, name)) = spec.dict.as_deref().and_then(|d| d.split_once('.')) {
        let dictionary = store.dictionary(table, name)?;
        let mut misfit = None;
        column.ints(0..rows, |row, code| {
            if column.is_valid(row) {
                match usize::try_from(code).ok().filter(|code| *code < dictionary.len()) {
                    Some(at) => {
                        let (from, to) = (dictionary.offsets[at], dictionary.offsets[at + 1]);
                        bytes.extend_from_slice(&dictionary.bytes[from as usize..to as usize]);
                    }
                    None => misfit = Some(code),
                }
            }
            ends.push(bytes.len());
        });
        if let Some(code) = misfit {
            return Err(Error::Execution(format!(
                "result column `{}`: {code} is no code of the {} entries of `{table}.{name}`",
                spec.name,
                dictionary.len()
            )));
        }
    } else {
        column.ints(0..rows, |row, packed| {
            if column.is_valid(row) {
                let (text, len) = unpack_text(packed);
                bytes.extend_from_slice(&text[..len]);
            }
            ends.push(bytes.len());
        });
    }
    let failed = |why: String| Error::Execution(format!("result column `{}`: {why}", spec.name));
    if i32::try_from(bytes.len()).is_err() {
        return Err(failed(format!("{} bytes of text; at most 2 GiB can be held", bytes.len())));
    }
    let ends: Vec<i32> = ends.into_iter().map(|end| end as i32).collect();
    StringArray::try_new(OffsetBuffer::new(ends.into()), bytes.into(), column.nulls())
        .map_err(|e| failed(e.to_string()))
}

/// The text of `pack_text` in `dkb.cuh`, and its length: bytes from the top, the length in the lowest byte,
/// the top bit flipped.
fn unpack_text(packed: i128) -> ([u8; 16], usize) {
    let bytes = (packed as u128 ^ 1 << 127).to_be_bytes();
    (bytes, usize::from(bytes[15]).min(15))
}

/// Text of a table's rows, gathered by row number.
struct Fetched {
    texts: StringViewArray,
    /// By row of the result: index of its text; None for NULL.
    index: Vec<Option<usize>>,
}

impl Fetched {
    fn new(store: &Store, source: &str, column: RawColumn, rows: usize) -> Result<Fetched, Error> {
        let (table, name) = source.split_once('.').unwrap_or_default();
        let mut numbers = Vec::with_capacity(rows);
        let mut index = Vec::with_capacity(rows);
        column.ints(0..rows, |row, number| {
            let valid = column.is_valid(row);
            index.push(valid.then_some(numbers.len()));
            if valid {
                numbers.push(u64::try_from(number).unwrap_or(u64::MAX));
            }
        });
        let table = store.table(table)?;
        if let Some(row) = numbers.iter().find(|row| **row >= table.info.rows) {
            let message =
                format!("the result fetches row {row} of `{source}`, which has {} rows", table.info.rows);
            return Err(Error::Execution(message));
        }
        let texts = if numbers.is_empty() {
            StringViewArray::from_iter_values([""; 0])
        } else {
            table.text(name, &numbers)?
        };
        Ok(Fetched { texts, index })
    }

    /// The texts of all rows.
    fn all(&self) -> Vec<Option<&str>> {
        let text = |at: usize| self.texts.is_valid(at).then(|| self.texts.value(at));
        self.index.iter().map(|at| at.and_then(text)).collect()
    }

    /// Drops all rows but the given ones.
    fn keep(&mut self, rows: &[u32]) {
        self.index = rows.iter().map(|row| self.index[*row as usize]).collect();
    }
}
