//! Aggregates: accumulators in registers, in arrays indexed by a dense group key, or in a hash table.

use std::collections::{BTreeMap, BTreeSet};

use dkb_kernels::{Arg, Elem, Launch, Over, Reduce, Start};

use crate::PlanError;
use crate::derive::{Derived, Scope};
use crate::divide::{Divisible, MOST_KEYS, PART_KEYS, Touch};
use crate::emit::{Emitter, Fault, Stored};
use crate::ir::{Acc, AccFn, Aggregate, ColId, Expr, Range, Rel};
use crate::keys::Domain;
use crate::pipe::{Form, Pipe, Value};

/// Direct arrays of up to this many slots need no justification.
const SMALL_SLOTS: u128 = 1 << 16;
/// Hash tables start with so many slots, where there can be so many groups: estimates of few groups are the
/// least reliable, and a rerun costs more than clearing a few megabytes.
const LEAST_SLOTS: f64 = (1 << 20) as f64;
/// Register sums: groups times accumulators times words at most.
const REGISTER_WORDS: u128 = 96;

/// How an aggregate finds a group's accumulators.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Groups {
    /// There is one.
    Scalar,
    /// By position: the mixed-radix number of the key's parts.
    Direct { slots: u128 },
    /// By a hash table of one-word keys: the same number plus one.
    Hash,
    /// By a hash table of keys of several words.
    Wide { words: usize },
}

/// A key column of an aggregate's state.
#[derive(Debug, Clone)]
pub(crate) enum KeyColumn {
    /// Part of the key with its domain, and the divisor that isolates it.
    Packed { domain: Domain, stride: u128, form: Form },
    /// Part of a key of several words: first word, and the bit of the last word that tells whether it is NULL.
    Words { at: usize, null_bit: Option<usize>, form: Form },
    /// Determined by the other keys: stored once a group.
    Determined(Stored),
    /// Determined by the key at this position: a build side holds it.
    Derived(usize, Derived),
}

/// The buffers of an aggregate, complete once its phase has ended.
#[derive(Debug, Clone)]
pub(crate) struct AggState {
    pub(crate) name: String,
    pub(crate) groups: Groups,
    /// In the order of the aggregate's keys.
    pub(crate) keys: Vec<KeyColumn>,
    /// In the order of its accumulators.
    pub(crate) accs: Vec<Stored>,
    /// What each accumulator's range is.
    pub(crate) ranges: Vec<Option<Range>>,
    /// The position of the key that may divide the state.
    pub(crate) by: Option<usize>,
    /// Whether slots are those of a part (Direct).
    part: bool,
    /// Buffer that has another value than this where a group exists (Direct).
    present: (String, &'static str),
    rows: f64,
    max_rows: Option<u128>,
}

impl AggState {
    /// The condition that `slot` holds a group, with its arguments.
    pub(crate) fn present(&self, slot: &str) -> (String, Vec<Arg>) {
        match &self.groups {
            Groups::Scalar => ("true".to_owned(), vec![]),
            Groups::Direct { .. } => {
                let (buffer, nothing) = &self.present;
                (format!("{buffer}[{slot}] != {nothing}"), vec![Arg::Buffer(buffer.clone())])
            }
            Groups::Hash => {
                (format!("{}_keys[{slot}] != 0", self.name), vec![Arg::Buffer(format!("{}_keys", self.name))])
            }
            Groups::Wide { .. } => {
                let state = format!("{}_state", self.name);
                (format!("{state}[{slot}] == 2"), vec![Arg::Buffer(state)])
            }
        }
    }

    fn key_value(&self, key: &KeyColumn, slot: &str) -> (Value, Vec<Arg>) {
        match key {
            KeyColumn::Determined(stored) => stored.at(slot),
            KeyColumn::Derived(..) => unreachable!("looked up by another key"),
            KeyColumn::Packed { domain, stride, form } => {
                let (number, needs) = match self.groups {
                    Groups::Direct { .. } if self.part => (
                        format!("({slot} + part * {PART_KEYS}_len)"),
                        vec![Arg::Part, Arg::Len(PART_KEYS.to_owned())],
                    ),
                    Groups::Hash => {
                        let keys = format!("{}_keys", self.name);
                        (format!("({keys}[{slot}] - 1)"), vec![Arg::Buffer(keys)])
                    }
                    _ => (slot.to_owned(), vec![]),
                };
                let shifted = if *stride == 1 { number } else { format!("{number} / {stride}") };
                let end = stride * domain.span;
                let above = |k: &KeyColumn| matches!(k, KeyColumn::Packed { stride, .. } if *stride >= end);
                let part = match self.keys.iter().any(above) {
                    true => format!("({shifted} % {})", domain.span),
                    false => format!("({shifted})"),
                };
                let null = domain.nullable.then(|| format!("({part} == 0)"));
                let base = domain.min - i128::from(domain.nullable);
                let code = match form {
                    Form::Dict(..) | Form::Fetch(..) if domain.nullable => {
                        format!("u32({part} == 0 ? 0 : {part} - 1)")
                    }
                    Form::Dict(..) | Form::Fetch(..) => format!("u32{part}"),
                    Form::Bool if domain.nullable => format!("({part} == 2)"),
                    Form::Bool => format!("({part} != 0)"),
                    _ if base == 0 => format!("i64{part}"),
                    _ => format!("(i64{part} + {base})"),
                };
                let form = match form {
                    Form::Int(_) => Form::Int(Elem::I64),
                    other => *other,
                };
                (Value { code, null, form }, needs)
            }
            KeyColumn::Words { at, null_bit, form } => {
                let Groups::Wide { words } = self.groups else { unreachable!("words belong to wide keys") };
                let keys = format!("{}_keys", self.name);
                let word = |k: usize| format!("{keys}[{slot} * {words} + {k}]");
                let code = match form {
                    Form::Int(Elem::I128) | Form::Packed => {
                        format!("i128(u128({}) << 64 | {})", word(at + 1), word(*at))
                    }
                    Form::Float => format!("word_f64({})", word(*at)),
                    Form::Bool => format!("({} != 0)", word(*at)),
                    Form::Dict(..) | Form::Fetch(..) => format!("u32({})", word(*at)),
                    _ => format!("i64({})", word(*at)),
                };
                let null = null_bit.map(|bit| format!("({} >> {bit} & 1)", word(words - 1)));
                let form = match form {
                    Form::Int(Elem::I128) => Form::Int(Elem::I128),
                    Form::Int(_) => Form::Int(Elem::I64),
                    other => *other,
                };
                (Value { code, null, form }, vec![Arg::Buffer(keys)])
            }
        }
    }
}

/// An accumulator's buffer and how values enter it.
struct Cell {
    func: AccFn,
    buffer: String,
    elem: Elem,
    arg: Option<Expr>,
}

impl Cell {
    fn combine(&self) -> &'static str {
        match self.func {
            AccFn::Sum | AccFn::Count => "atomic_add",
            AccFn::Min => "atomic_min",
            AccFn::Max => "atomic_max",
        }
    }
}

impl Emitter<'_> {
    /// Puts the group at `slot` into the pipeline's scope, for the aggregate `agg`.
    pub(crate) fn bring(&self, state: &AggState, pipe: &mut Pipe, agg: &Aggregate, slot: &str) {
        let mut scope = Scope::new();
        let mut derived = BTreeMap::new();
        for (id, key) in agg.keys.iter().zip(&state.keys) {
            match key {
                KeyColumn::Derived(by, from) => {
                    derived.insert(*id, Derived { keys: vec![agg.keys[*by]], ..from.clone() });
                }
                _ => {
                    scope.insert(*id, state.key_value(key, slot));
                }
            }
        }
        scope.extend(agg.accs.iter().zip(&state.accs).map(|(acc, stored)| (acc.id, stored.at(slot))));
        self.resolve(pipe, &derived, &mut scope);
        for (id, (value, needs)) in scope {
            pipe.env.insert(id, value);
            pipe.needs.insert(id, needs);
        }
        pipe.derived.extend(derived);
    }

    /// Builds the aggregate's state, or finds that it exists.
    pub(crate) fn aggregate(&mut self, agg: &Aggregate) -> Result<AggState, Fault> {
        let identity = canonical(&Rel::Aggregate(agg.clone()));
        if let Some(state) = self.states.get(&identity).cloned() {
            self.explain.push(format!("{}: shared by a second use", state.name));
            self.set_ranges(agg, &state);
            return Ok(state);
        }
        let mut required: BTreeSet<ColId> = agg.keys.iter().copied().collect();
        agg.accs.iter().filter_map(|a| a.arg.as_ref()).for_each(|a| a.collect(&mut required));
        let pipes = self.produce(&agg.input, &required)?;
        let state = self.aggregate_pipes(agg, pipes)?;
        self.set_ranges(agg, &state);
        self.states.insert(identity, state.clone());
        Ok(state)
    }

    fn set_ranges(&mut self, agg: &Aggregate, state: &AggState) {
        for (acc, range) in agg.accs.iter().zip(&state.ranges) {
            self.columns[acc.id].range = *range;
        }
    }

    fn aggregate_pipes(&mut self, agg: &Aggregate, mut pipes: Vec<Pipe>) -> Result<AggState, Fault> {
        let name = format!("a{}", self.next_serial());
        let rows: f64 = pipes.iter().map(|p| p.rows).sum();
        let max_rows = pipes.iter().try_fold(0u128, |sum, p| Some(sum + p.max_rows?));
        // Keys that the others determine are stored, not compared.
        let (keys, determined) = self.minimal_keys(agg, &pipes);
        let key_expr = |this: &Self, id: ColId| Expr::col(id, this.columns[id].ty);
        // Across pipelines a key is nullable if any of them may supply a NULL.
        let mut nullable = BTreeMap::new();
        let mut forms = BTreeMap::new();
        for id in &keys {
            let e = key_expr(self, *id);
            for pipe in &mut pipes {
                let v = self.group_value(pipe, &e)?;
                *nullable.entry(*id).or_insert(false) |= v.null.is_some();
                forms.insert(*id, v);
            }
        }
        let mut domains = Vec::new();
        for id in &keys {
            let mut v = forms[id].clone();
            v.null = nullable[id].then(|| "true".to_owned());
            domains.push(self.domain(&key_expr(self, *id), &v));
        }
        // One integer key may divide the state: the one of the most values.
        let spans = keys.iter().zip(&domains).enumerate().filter_map(|(k, (id, d))| Some((k, id, (*d)?)));
        let by = spans
            .filter(|(_, id, d)| {
                matches!(forms[*id].form, Form::Int(_)) && !d.nullable && d.span <= MOST_KEYS
            })
            .max_by_key(|(.., d)| d.span)
            .map(|(k, _, d)| (k, d.span));
        let part = self.part_domain(&name);
        if let (Some((k, _)), Some(part)) = (by, part) {
            domains[k] = Some(part);
        }
        let slots = domains.iter().try_fold(1u128, |product, d| product.checked_mul((*d)?.span));
        let groups_estimate = self
            .estimate(|o| agg.keys.iter().map(|k| o.columns[*k].distinct).product::<f64>())
            .min(rows)
            .max(1.0);
        let groups = match slots {
            _ if agg.keys.is_empty() => Groups::Scalar,
            Some(slots) if slots <= SMALL_SLOTS || (slots as f64) <= groups_estimate * 8.0 => {
                Groups::Direct { slots }
            }
            Some(slots) if slots < 1 << 63 => Groups::Hash,
            _ => Groups::Wide { words: 0 },
        };
        let len = match &groups {
            Groups::Scalar => "1".to_owned(),
            Groups::Direct { slots } => {
                u64::try_from(*slots)
                    .map_err(|_| PlanError::Unsupported("more groups than can be numbered".to_owned()))?;
                let parts: Vec<Domain> = domains.iter().flatten().copied().collect();
                let value = self.keys_len(&name, &parts);
                self.sizes.insert(name.clone(), dkb_kernels::Size { value, counter: None, pow2: false });
                name.clone()
            }
            Groups::Hash | Groups::Wide { .. } => {
                let most = max_rows.map_or(f64::MAX, |m| m as f64);
                let value = (groups_estimate * 2.0).max(LEAST_SLOTS).min(most * 2.0).max(16.0) as u64;
                self.declare_size(&name, value.to_string(), true, Reduce::Merge);
                name.clone()
            }
        };
        let hashed = matches!(groups, Groups::Hash | Groups::Wide { .. });
        let reduce = |plain: Reduce| if hashed { Reduce::Merge } else { plain };
        // Accumulators.
        let mut cells = Vec::new();
        let mut ranges = Vec::new();
        let mut accs = Vec::new();
        for (index, acc) in agg.accs.iter().enumerate() {
            let (cell, range, form) = self.cell(&name, index, acc, &mut pipes[0], max_rows)?;
            let start = match acc.func {
                AccFn::Sum | AccFn::Count => Start::Zero,
                AccFn::Min => Start::Max,
                AccFn::Max => Start::Min,
            };
            let how = match acc.func {
                AccFn::Sum | AccFn::Count => Reduce::Sum,
                AccFn::Min => Reduce::Min,
                AccFn::Max => Reduce::Max,
            };
            self.declare(cell.buffer.clone(), cell.elem, &len, start, reduce(how));
            accs.push(Stored { buffer: cell.buffer.clone(), valid: None, form });
            ranges.push(range);
            cells.push(cell);
        }
        // Where groups are positions, something must tell which of them exist.
        let mut present = (String::new(), "0");
        let mut mark_present = false;
        let few = self.few(&groups, &cells);
        if let Groups::Direct { .. } = groups {
            let mut telling = None;
            for cell in &cells {
                telling =
                    telling.or(self.tells_groups(cell, &mut pipes)?.map(|none| (cell.buffer.clone(), none)));
            }
            present = match telling {
                Some(telling) => telling,
                None if few => {
                    let buffer = format!("{name}_rows");
                    self.declare(buffer.clone(), Elem::I64, &len, Start::Zero, Reduce::Sum);
                    let cell =
                        Cell { func: AccFn::Count, buffer: buffer.clone(), elem: Elem::I64, arg: None };
                    cells.push(cell);
                    (buffer, "0")
                }
                None => {
                    mark_present = true;
                    (self.declare(format!("{name}_seen"), Elem::U8, &len, Start::Zero, Reduce::Max), "0")
                }
            };
        }
        // Determined keys.
        let mut determined: BTreeSet<ColId> = determined.into_iter().collect();
        let deferred = self.defer(&pipes, &keys.iter().copied().collect(), &mut determined, false);
        let mut determined_writes = Vec::new();
        let determined_stores = self.payload(
            &mut pipes,
            &name,
            &determined,
            &len,
            Start::Zero,
            reduce(Reduce::Or),
            &mut determined_writes,
        )?;
        // The key columns' places.
        let mut key_columns = BTreeMap::new();
        let mut words = 0;
        let mut null_bits = 0;
        match &groups {
            Groups::Scalar => {}
            Groups::Direct { .. } | Groups::Hash => {
                let mut stride = 1u128;
                for (id, d) in keys.iter().zip(&domains).rev() {
                    let domain = d.expect("every part has a domain");
                    key_columns.insert(*id, KeyColumn::Packed { domain, stride, form: forms[id].form });
                    stride *= domain.span;
                }
            }
            Groups::Wide { .. } => {
                for id in &keys {
                    let null_bit = nullable[id].then(|| {
                        null_bits += 1;
                        null_bits - 1
                    });
                    let form = forms[id].form;
                    key_columns.insert(*id, KeyColumn::Words { at: words, null_bit, form });
                    words += if matches!(form, Form::Int(Elem::I128) | Form::Packed) { 2 } else { 1 };
                }
                words += usize::from(null_bits > 0);
            }
        }
        let groups = if let Groups::Wide { .. } = groups { Groups::Wide { words } } else { groups };
        let mut group_buffers = Vec::new();
        match &groups {
            Groups::Hash => {
                group_buffers.push(self.declare(
                    format!("{name}_keys"),
                    Elem::U64,
                    &len,
                    Start::Zero,
                    Reduce::Merge,
                ));
            }
            Groups::Wide { words } => {
                group_buffers.push(self.declare(
                    format!("{name}_state"),
                    Elem::U32,
                    &len,
                    Start::Zero,
                    Reduce::Merge,
                ));
                let keys_len = format!("{len} * {words}");
                group_buffers.push(self.declare(
                    format!("{name}_keys"),
                    Elem::U64,
                    &keys_len,
                    Start::Zero,
                    Reduce::Merge,
                ));
            }
            _ => {}
        }
        let merge = hashed.then(|| self.merge_kernel(&name, &groups, &cells, &determined_stores));
        let mut writes: Vec<String> = group_buffers;
        if hashed {
            writes.push(format!("{name}_count"));
        }
        writes.extend(cells.iter().map(|c| c.buffer.clone()));
        if mark_present {
            writes.push(present.0.clone());
        }
        writes.extend(determined_writes);
        let division_key = by.map(|(k, _)| keys[k]);
        let direct = matches!(groups, Groups::Direct { .. });
        if hashed || (direct && keys.len() == 1 && division_key.is_some() && !few) {
            let rows = match &groups {
                Groups::Direct { slots } => *slots as f64,
                _ => (groups_estimate * 2.0).max(1.0),
            };
            let bytes = rows * self.element_bytes(&writes);
            let keys = by.map(|(_, span)| span);
            self.divisible.push(Divisible { name: name.clone(), bytes, keys, buffers: writes.clone() });
        }
        let last = pipes.len() - 1;
        for (k, mut pipe) in pipes.into_iter().enumerate() {
            if let Some(id) = division_key {
                let e = key_expr(self, id);
                let v = self.group_value(&mut pipe, &e)?;
                self.meet_state(&mut pipe, &name, &v, self.key_range(&e));
            }
            let slot = self.group_slot(&mut pipe, &name, &groups, &keys, &key_columns)?;
            match (&groups, few) {
                (Groups::Scalar, _) => self.sum_in_registers(&mut pipe, &cells)?,
                (Groups::Direct { slots }, true) => self.sum_in_few(&mut pipe, &cells, *slots, &slot)?,
                _ => {
                    if mark_present {
                        let seen = pipe.buffer(&present.0);
                        pipe.line(format!("{seen}[{slot}] = 1;"));
                    }
                    self.sum_in_cells(&mut pipe, &cells, &slot)?;
                }
            }
            self.store_payload(&mut pipe, &determined_stores, &slot)?;
            let how = match (&groups, few) {
                (Groups::Scalar, _) => "sum in registers".to_owned(),
                (Groups::Direct { slots }, true) => format!("group in registers, {slots} slots"),
                (Groups::Direct { slots }, _) => format!("group by position, {slots} slots"),
                (Groups::Hash, _) => format!("group by hash, about {groups_estimate:.0} groups"),
                (Groups::Wide { words }, _) => format!("group by hash of {words} words"),
            };
            pipe.steps.push(format!("{how} -> {name}"));
            let phase = if last == 0 { format!("{name}_group") } else { format!("{name}_group_{k}") };
            let (writes, merge) = if k == last { (writes.clone(), merge.clone()) } else { (vec![], None) };
            self.close(pipe, &phase, writes, merge);
        }
        let position = |id: ColId| agg.keys.iter().position(|k| *k == id);
        let keys = agg
            .keys
            .iter()
            .map(|id| match (determined_stores.get(id), deferred.get(id)) {
                (Some(stored), _) => KeyColumn::Determined(stored.clone()),
                (_, Some(derived)) => {
                    let by = position(derived.keys[0]).expect("a key of the aggregate");
                    KeyColumn::Derived(by, derived.clone())
                }
                (None, None) => key_columns[id].clone(),
            })
            .collect();
        let by = division_key.and_then(position);
        let max_rows = match &groups {
            Groups::Scalar => Some(1),
            Groups::Direct { slots } => Some(max_rows.map_or(*slots, |m| m.min(*slots))),
            _ => max_rows,
        };
        let rows = if agg.keys.is_empty() { 1.0 } else { groups_estimate };
        Ok(AggState { name, groups, keys, accs, ranges, by, part: part.is_some(), present, rows, max_rows })
    }

    /// A group key's value: text of scans must be codes to be compared.
    fn group_value(&mut self, pipe: &mut Pipe, e: &Expr) -> Result<Value, Fault> {
        let v = self.value(pipe, e)?;
        match (v.form, &e.kind) {
            (Form::Text, crate::ir::Kind::Col(id)) => match self.columns[*id].origin {
                Some((t, c)) => Err(Fault::NeedDict(t, c)),
                None => self.packed(pipe, e),
            },
            (Form::Text, _) => self.packed(pipe, e),
            (Form::Fetch(t, c), _) => Err(Fault::NeedDict(t, c)),
            _ => Ok(v),
        }
    }

    /// Splits the keys into those that identify a group and those that the former determine. Text goes first.
    fn minimal_keys(&self, agg: &Aggregate, pipes: &[Pipe]) -> (Vec<ColId>, Vec<ColId>) {
        let mut keys = agg.keys.clone();
        let mut determined = Vec::new();
        let mut candidates = keys.clone();
        let is_text = |id: &ColId| self.columns[*id].ty == dkb_kernels::SqlType::Utf8;
        candidates.sort_by_key(|id| (!is_text(id), std::cmp::Reverse(agg.keys.iter().position(|k| k == id))));
        for id in candidates {
            let rest: BTreeSet<ColId> = keys.iter().copied().filter(|k| *k != id).collect();
            let follows = |pipe: &Pipe| {
                let mut closure = rest.clone();
                loop {
                    let before = closure.len();
                    for (from, to) in &pipe.dependencies {
                        if from.is_subset(&closure) {
                            closure.extend(to);
                        }
                    }
                    if closure.len() == before {
                        return closure.contains(&id);
                    }
                }
            };
            if !rest.is_empty() && pipes.iter().all(follows) {
                keys.retain(|k| *k != id);
                determined.push(id);
            }
        }
        (keys, determined)
    }

    fn cell(
        &mut self,
        name: &str,
        index: usize,
        acc: &Acc,
        pipe: &mut Pipe,
        max_rows: Option<u128>,
    ) -> Result<(Cell, Option<Range>, Form), Fault> {
        let readable = safe(&self.columns[acc.id].name, index);
        let buffer = format!("{name}_{readable}_{index}");
        let arg = acc.arg.clone();
        let rows = max_rows.and_then(|m| i128::try_from(m).ok());
        let (elem, range, form) = match (acc.func, &arg) {
            (AccFn::Count, _) => {
                (Elem::I64, Some((0, rows.unwrap_or(i64::MAX.into()))), Form::Int(Elem::I64))
            }
            (func, Some(e)) => {
                let mut v = self.value(pipe, e)?;
                if v.form == Form::Text {
                    v = self.group_value(pipe, e)?;
                }
                let bounds = self.range(e);
                match (func, v.form) {
                    (AccFn::Sum, Form::Float) | (_, Form::Float) => (Elem::F64, None, Form::Float),
                    (AccFn::Sum, _) if crate::codegen::is_float(self.columns[acc.id].ty) => {
                        (Elem::F64, None, Form::Float)
                    }
                    (AccFn::Sum, Form::Int(_)) => {
                        let total = bounds.zip(rows).and_then(|((lo, hi), n)| {
                            Some((lo.min(0).checked_mul(n)?, hi.max(0).checked_mul(n)?))
                        });
                        let narrow =
                            total.is_some_and(|(lo, hi)| lo >= i64::MIN.into() && hi <= i64::MAX.into());
                        let elem = if narrow { Elem::I64 } else { Elem::I128 };
                        (elem, total, Form::Int(elem))
                    }
                    (_, Form::Int(_)) => match bounds {
                        Some((lo, hi)) if lo > i32::MIN.into() && hi < i32::MAX.into() => {
                            (Elem::I32, bounds, Form::Int(Elem::I32))
                        }
                        Some((lo, hi)) if lo >= i64::MIN.into() && hi <= i64::MAX.into() => {
                            (Elem::I64, bounds, Form::Int(Elem::I64))
                        }
                        _ => return wide_minimum(),
                    },
                    (_, Form::Dict(t, c)) => (Elem::I32, None, Form::Dict(t, c)),
                    (_, Form::Fetch(t, c)) => return Err(Fault::NeedDict(t, c)),
                    (_, Form::Bool) => (Elem::I32, Some((0, 1)), Form::Bool),
                    _ => return wide_minimum(),
                }
            }
            (_, None) => unreachable!("only count has no argument"),
        };
        Ok((Cell { func: acc.func, buffer, elem, arg }, range, form))
    }

    /// The value that an accumulator has only where there is no group, if there is such a value.
    fn tells_groups(&mut self, cell: &Cell, pipes: &mut [Pipe]) -> Result<Option<&'static str>, Fault> {
        let Some(arg) = &cell.arg else { return Ok((cell.func == AccFn::Count).then_some("0")) };
        for pipe in pipes {
            if self.value(pipe, arg)?.null.is_some() {
                return Ok(None);
            }
        }
        // Minima and maxima in 32 bits start beyond all values, and sums of positive numbers are positive.
        Ok(match (cell.func, cell.elem) {
            (AccFn::Count, _) => Some("0"),
            (AccFn::Min, Elem::I32) => Some("largest<i32>()"),
            (AccFn::Max, Elem::I32) => Some("smallest<i32>()"),
            (AccFn::Sum, Elem::I64 | Elem::I128) => self.range(arg).filter(|(lo, _)| *lo > 0).map(|_| "0"),
            _ => None,
        })
    }

    fn few(&self, groups: &Groups, cells: &[Cell]) -> bool {
        let Groups::Direct { slots } = groups else { return false };
        let bytes = |c: &Cell| if self.narrow_partial(c).is_some() { 8 } else { c.elem.bytes() };
        let words: u128 = cells.iter().map(|c| bytes(c) as u128 / 4).sum::<u128>() + 2;
        let sums = cells.iter().all(|c| matches!(c.func, AccFn::Sum | AccFn::Count));
        sums && *slots <= 16 && slots * words <= REGISTER_WORDS
    }

    /// Computes the group's slot; a row whose group finds no place is skipped.
    fn group_slot(
        &mut self,
        pipe: &mut Pipe,
        name: &str,
        groups: &Groups,
        keys: &[ColId],
        places: &BTreeMap<ColId, KeyColumn>,
    ) -> Result<String, Fault> {
        let number = |this: &mut Self, pipe: &mut Pipe| -> Result<String, Fault> {
            let mut code = String::new();
            for id in keys {
                let KeyColumn::Packed { domain, .. } = places[id] else { unreachable!("packed keys") };
                let e = Expr::col(*id, this.columns[*id].ty);
                let v = this.group_value(pipe, &e)?;
                let place = match (&v.null, domain.nullable) {
                    (None, true) => {
                        format!("({} + 1)", Self::place(&v, Domain { nullable: false, ..domain }))
                    }
                    _ => Self::place(&v, domain),
                };
                code = if code.is_empty() { place } else { format!("({code} * {} + {place})", domain.span) };
            }
            Ok(code)
        };
        if *groups != Groups::Scalar {
            pipe.collect_rows();
        }
        match groups {
            Groups::Scalar => Ok("0".to_owned()),
            Groups::Direct { .. } => {
                let code = number(self, pipe)?;
                let code = self.local_in(pipe, name, code);
                pipe.line(format!("const u64 {name}_slot = {code};"));
                Ok(format!("{name}_slot"))
            }
            Groups::Hash => {
                let code = number(self, pipe)?;
                pipe.line(format!("const u64 {name}_key = {code} + 1;"));
                self.skip_other_parts(pipe, name, "hash64");
                let (table, len) =
                    (pipe.buffer(&format!("{name}_keys")), pipe.arg(Arg::Len(name.to_owned())));
                let count = pipe.buffer(&format!("{name}_count"));
                pipe.line(format!(
                    "const u64 {name}_slot = hash_insert({table}, {len}, {count}, {name}_key);"
                ));
                pipe.skip_if(format!("{name}_slot == DKB_NONE"));
                Ok(format!("{name}_slot"))
            }
            Groups::Wide { words } => {
                let mut code = Vec::new();
                let mut nulls = Vec::new();
                for id in keys {
                    let KeyColumn::Words { null_bit, .. } = places[id] else { unreachable!("wide keys") };
                    let e = Expr::col(*id, self.columns[*id].ty);
                    let v = self.group_value(pipe, &e)?;
                    code.extend(key_words(&v));
                    if let (Some(bit), Some(null)) = (null_bit, &v.null) {
                        nulls.push(format!("u64({null}) << {bit}"));
                    }
                }
                if code.len() < *words {
                    code.push(if nulls.is_empty() { "0".to_owned() } else { nulls.join(" | ") });
                }
                pipe.line(format!("const u64 {name}_key[{words}] = {{{}}};", code.join(", ")));
                self.skip_other_parts(pipe, name, "hash_words");
                let (state, table) =
                    (pipe.buffer(&format!("{name}_state")), pipe.buffer(&format!("{name}_keys")));
                let (len, count) =
                    (pipe.arg(Arg::Len(name.to_owned())), pipe.buffer(&format!("{name}_count")));
                pipe.line(format!(
                    "const u64 {name}_slot = hash_insert({state}, {table}, {len}, {count}, {name}_key);"
                ));
                pipe.skip_if(format!("{name}_slot == DKB_NONE"));
                Ok(format!("{name}_slot"))
            }
        }
    }

    /// Notes that the pipeline fills a state which no single key divides.
    fn skip_other_parts(&self, pipe: &mut Pipe, name: &str, hash: &str) {
        if pipe.touches.iter().any(|t| t.state == name) {
            return;
        }
        pipe.touches.push(Touch { state: name.to_owned(), key: format!("{name}_key"), keys: None });
        if self.is_divided_by_hash(name) {
            let (part, parts) = (pipe.arg(Arg::Part), pipe.arg(Arg::Parts));
            pipe.skip_if(format!("!in_part({hash}({name}_key), {part}, {parts})"));
        }
    }

    /// Bytes of one element of each of the buffers.
    pub(crate) fn element_bytes(&self, buffers: &[String]) -> f64 {
        let listed = self.buffers.iter().filter(|b| b.len != "1" && buffers.contains(&b.name));
        listed.map(|b| b.ty.bytes() as f64).sum()
    }

    /// The statement's guard and value for one accumulator.
    fn entering(&mut self, pipe: &mut Pipe, cell: &Cell) -> Result<(String, String), Fault> {
        let Some(arg) = &cell.arg else { return Ok((String::new(), "1".to_owned())) };
        let mut v = self.value(pipe, arg)?;
        if v.form == Form::Text && cell.func != AccFn::Count {
            v = self.group_value(pipe, arg)?;
        }
        let guard = v.null.as_ref().map_or(String::new(), |null| format!("if (!{null}) "));
        let code = match cell.func {
            AccFn::Count => "1".to_owned(),
            _ if cell.elem == Elem::F64 && v.form != Form::Float => {
                let float =
                    Expr::new(crate::ir::Kind::Cast(Box::new(arg.clone())), dkb_kernels::SqlType::Float64);
                self.value(pipe, &float)?.code
            }
            _ => v.code,
        };
        Ok((guard, code))
    }

    fn sum_in_cells(&mut self, pipe: &mut Pipe, cells: &[Cell], slot: &str) -> Result<(), Fault> {
        for cell in cells {
            let (guard, code) = self.entering(pipe, cell)?;
            let target = pipe.buffer(&cell.buffer);
            pipe.line(format!("{guard}{}({target} + {slot}, {}({code}));", cell.combine(), cell.elem));
        }
        Ok(())
    }

    fn sum_in_few(&mut self, pipe: &mut Pipe, cells: &[Cell], slots: u128, slot: &str) -> Result<(), Fault> {
        let mut spills = Vec::new();
        let mut rows_held = u128::from(u32::MAX);
        for cell in cells {
            let (guard, code) = self.entering(pipe, cell)?;
            let target = pipe.buffer(&cell.buffer);
            let local = format!("{}_here", cell.buffer);
            let held = match self.narrow_partial(cell) {
                Some(rows) => {
                    rows_held = rows_held.min(rows);
                    spills.push(format!("{local}.spill({target});"));
                    Elem::I64
                }
                None => cell.elem,
            };
            pipe.head += &format!("  FewSums<{slots}, {held}> {local};\n");
            pipe.line(format!("{guard}{local}.add({slot}, {held}({code}));"));
            pipe.tail += &format!("  {local}.flush({target});\n");
        }
        if !spills.is_empty() {
            pipe.head += "  u32 held = 0;\n";
            pipe.line(format!("if (++held == {rows_held}u) {{ held = 0; {} }}", spills.join(" ")));
        }
        Ok(())
    }

    /// For a sum in 128 bits whose terms have 64: how many of them 64 bits can hold, if enough to be worth it.
    fn narrow_partial(&self, cell: &Cell) -> Option<u128> {
        let (Elem::I128, Some(arg)) = (cell.elem, &cell.arg) else { return None };
        let (lo, hi) = self.range(arg)?;
        let largest = lo.unsigned_abs().max(hi.unsigned_abs()).max(1);
        let rows = (1u128 << 62) / largest;
        (rows >= 1024).then(|| rows.min(u32::MAX.into()))
    }

    fn sum_in_registers(&mut self, pipe: &mut Pipe, cells: &[Cell]) -> Result<(), Fault> {
        for cell in cells {
            let (guard, code) = self.entering(pipe, cell)?;
            let target = pipe.buffer(&cell.buffer);
            let local = format!("{}_here", cell.buffer);
            let elem = cell.elem;
            match cell.func {
                AccFn::Sum | AccFn::Count => {
                    pipe.head += &format!("  {elem} {local} = 0;\n");
                    pipe.line(format!("{guard}{local} += {elem}({code});"));
                    pipe.tail += &format!("  block_add({target}, {local});\n");
                }
                AccFn::Min | AccFn::Max => {
                    let (than, fold) =
                        if cell.func == AccFn::Min { ("<", "block_min") } else { (">", "block_max") };
                    let start = if cell.func == AccFn::Min { "largest" } else { "smallest" };
                    pipe.head += &format!("  {elem} {local} = {start}<{elem}>();\n");
                    pipe.line(format!("{guard}if ({elem}({code}) {than} {local}) {local} = {elem}({code});"));
                    pipe.tail += &format!("  {fold}({target}, {local});\n");
                }
            }
        }
        Ok(())
    }

    /// The kernel that folds a peer's hash table into ours.
    fn merge_kernel(
        &mut self,
        name: &str,
        groups: &Groups,
        cells: &[Cell],
        determined: &BTreeMap<ColId, Stored>,
    ) -> Launch {
        let mut args = vec![Arg::Len(name.to_owned()), Arg::Buffer(format!("{name}_count"))];
        let mut both = |buffer: &str| {
            args.push(Arg::Buffer(buffer.to_owned()));
            args.push(Arg::Peer(buffer.to_owned()));
        };
        let keys = format!("{name}_keys");
        let mut body = format!("  DKB_ROWS(i, {name}_len) {{\n");
        match groups {
            Groups::Wide { words } => {
                let state = format!("{name}_state");
                both(&state);
                both(&keys);
                let list: Vec<String> =
                    (0..*words).map(|w| format!("peer_{keys}[i * {words} + {w}]")).collect();
                body += &format!("    if (peer_{state}[i] != 2) continue;\n");
                body += &format!("    const u64 key[{words}] = {{{}}};\n", list.join(", "));
                body += &format!(
                    "    const u64 slot = hash_insert({state}, {keys}, {name}_len, {name}_count, key);\n"
                );
            }
            _ => {
                both(&keys);
                body += &format!("    if (peer_{keys}[i] == 0) continue;\n");
                body += &format!(
                    "    const u64 slot = hash_insert({keys}, {name}_len, {name}_count, peer_{keys}[i]);\n"
                );
            }
        }
        body += "    if (slot == DKB_NONE) continue;\n";
        for cell in cells {
            both(&cell.buffer);
            body += &format!("    {}({b} + slot, peer_{b}[i]);\n", cell.combine(), b = cell.buffer);
        }
        let stored = determined.values().flat_map(|s| [Some(&s.buffer), s.valid.as_ref()]).flatten();
        for buffer in stored.collect::<BTreeSet<_>>() {
            both(buffer);
            body += &format!("    {buffer}[slot] = peer_{buffer}[i];\n");
        }
        body += "  }\n";
        let kernel = format!("{name}_merge");
        let text =
            format!("// fold a peer's groups into ours\n{} {{\n{body}}}\n", self.signature(&kernel, &args));
        self.kernels.push(text);
        Launch { kernel, threads: name.to_owned(), args, triton: None }
    }

    /// A pipeline over the groups of an aggregate.
    pub(crate) fn scan_groups(&mut self, agg: &Aggregate, state: &AggState) -> Pipe {
        let (over, slot) = match state.groups {
            Groups::Scalar => {
                let once = dkb_kernels::Size { value: "1".to_owned(), counter: None, pow2: false };
                self.sizes.entry("once".to_owned()).or_insert(once);
                ("once".to_owned(), "0")
            }
            _ => (state.name.clone(), "slot"),
        };
        let mut pipe = Pipe::new(Over::Size(over), "slot", state.max_rows, state.rows);
        pipe.steps.push(format!("groups of {}", state.name));
        if state.groups != Groups::Scalar {
            let (present, args) = state.present("slot");
            args.into_iter().for_each(|a| {
                pipe.arg(a);
            });
            pipe.keep_if(&present);
        }
        self.bring(state, &mut pipe, agg, slot);
        if let Some(by) = state.by {
            // The groups of a part are those of its keys.
            let id = agg.keys[by];
            let keys = self.key_range(&Expr::col(id, self.columns[id].ty));
            let touch = Touch { state: state.name.clone(), key: pipe.env[&id].code.clone(), keys };
            pipe.in_part.insert(touch.key.clone());
            pipe.touches.push(touch);
        } else {
            pipe.touches.push(Touch { state: state.name.clone(), key: "slot".to_owned(), keys: None });
        }
        let keys: BTreeSet<ColId> = agg.keys.iter().copied().collect();
        pipe.dependencies.push((keys, agg.accs.iter().map(|a| a.id).collect()));
        pipe
    }
}

fn wide_minimum<T>() -> Result<T, Fault> {
    Err(PlanError::Unsupported("minimum or maximum of values wider than 64 bits".to_owned()).into())
}

/// The words by which a value is compared in a key of several words; zero where it is NULL.
pub(crate) fn key_words(v: &Value) -> Vec<String> {
    let guarded = |code: String| match &v.null {
        Some(null) => format!("({null} ? 0 : {code})"),
        None => code,
    };
    match v.form {
        Form::Int(Elem::I128) | Form::Packed => {
            vec![guarded(format!("u64({})", v.code)), guarded(format!("u64(u128({}) >> 64)", v.code))]
        }
        Form::Float => vec![guarded(format!("f64_word({})", v.code))],
        Form::Int(_) => vec![guarded(format!("u64(i64({}))", v.code))],
        _ => vec![guarded(format!("u64({})", v.code))],
    }
}

/// A part of a buffer's name.
pub(crate) fn safe(name: &str, unique: usize) -> String {
    let plain: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    if plain.is_empty() { format!("c{unique}") } else { plain.to_lowercase() }
}

/// A text that is equal for relations that compute the same, whatever their column ids.
fn canonical(rel: &Rel) -> String {
    fn name(ids: &mut BTreeMap<ColId, usize>, id: ColId) -> usize {
        let next = ids.len();
        *ids.entry(id).or_insert(next)
    }
    fn expr(e: &Expr, ids: &BTreeMap<ColId, usize>) -> String {
        let renamed = e.substitute(&|id| Some(Expr::col(ids.get(&id).copied().unwrap_or(usize::MAX), e.ty)));
        format!("{renamed:?}")
    }
    fn go(rel: &Rel, ids: &mut BTreeMap<ColId, usize>) -> String {
        match rel {
            Rel::Once => "once".to_owned(),
            Rel::Scan { table, columns } => {
                let columns: Vec<String> =
                    columns.iter().map(|(id, c)| format!("{}:{c}", name(ids, *id))).collect();
                format!("scan {table} {columns:?}")
            }
            Rel::Filter { input, predicates } => {
                let input = go(input, ids);
                let list: Vec<String> = predicates.iter().map(|p| expr(p, ids)).collect();
                format!("filter {list:?} ({input})")
            }
            Rel::Map { input, defs } => {
                let input = go(input, ids);
                let list: Vec<String> =
                    defs.iter().map(|(id, e)| format!("{} = {}", expr(e, ids), name(ids, *id))).collect();
                format!("map {list:?} ({input})")
            }
            Rel::Join(join) => {
                let (left, right) = (go(&join.left, ids), go(&join.right, ids));
                let kind = match join.kind {
                    crate::ir::JoinKind::Mark(id) => format!("mark {}", name(ids, id)),
                    other => format!("{other:?}"),
                };
                let on: Vec<String> =
                    join.on.iter().map(|(l, r)| format!("{} = {}", expr(l, ids), expr(r, ids))).collect();
                let filter: Vec<String> = join.filter.iter().map(|f| expr(f, ids)).collect();
                format!("{kind} {} {on:?} {filter:?} ({left}) ({right})", join.null_aware)
            }
            Rel::Aggregate(agg) => {
                let input = go(&agg.input, ids);
                let keys: Vec<usize> = agg.keys.iter().map(|k| name(ids, *k)).collect();
                let accs: Vec<String> = agg
                    .accs
                    .iter()
                    .map(|a| {
                        format!("{:?} {:?} {}", a.func, a.arg.as_ref().map(|e| expr(e, ids)), name(ids, a.id))
                    })
                    .collect();
                format!("aggregate {keys:?} {accs:?} ({input})")
            }
        }
    }
    go(rel, &mut BTreeMap::new())
}
