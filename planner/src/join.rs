//! Joins: what is built for the right side, and how the left side's pipelines probe it.
//!
//! Right sides take one of three shapes. An aggregate is probed in place, by its group key. A side with a unique,
//! dense integer key becomes a bitmap and payload arrays indexed by the key. Anything else becomes appended
//! rows, linked by key through an array (dense keys), a ranked bitmap (where such arrays would be large and few of
//! the keys occur) or a hash table.

use std::collections::{BTreeMap, BTreeSet};

use dkb_kernels::{Arg, Elem, Over, Reduce, Size, Start};

use crate::PlanError;
use crate::aggregate::{AggState, Groups, KeyColumn, key_words};
use crate::derive::{Derived, Scope};
use crate::divide::{Divisible, Touch};
use crate::emit::{Emitter, Fault, Stored};
use crate::ir::{Aggregate, ColId, Expr, Join, JoinKind, Kind, Rel};
use crate::keys::Domain;
use crate::pipe::{Form, Pipe, Value, any_null};

/// Room for rows, as a multiple of their estimate.
const ROOM: f64 = 1.5;
/// What a ranked row takes beside its payload: key and link.
const RANKED_ROW_BYTES: f64 = 12.0;

/// A built right side.
#[derive(Debug, Clone)]
pub(crate) enum Lookup {
    /// An aggregate with the filters and maps above it.
    Groups { agg: Aggregate, state: AggState, above: Vec<Above> },
    /// Bitmap and arrays indexed by the key.
    Direct { name: String, domain: Domain, payload: Payload },
    /// Appended rows, linked by key.
    Rows { name: String, index: Index, unique: bool, payload: Payload, matched: Option<String> },
}

/// The columns that a built side gives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Payload {
    /// Those that it holds.
    pub(crate) stored: BTreeMap<ColId, Stored>,
    /// Those that another build side holds, by one of the former or the key.
    pub(crate) derived: BTreeMap<ColId, Derived>,
}

impl Payload {
    /// The values of the stored columns of a row.
    fn at(&self, row: &str) -> Scope {
        self.stored.iter().map(|(id, stored)| (*id, stored.at(row))).collect()
    }
}

/// A step between an aggregate and the join that probes it.
#[derive(Debug, Clone)]
pub(crate) enum Above {
    Filter(Vec<Expr>),
    Map(Vec<(ColId, Expr)>),
}

/// How linked rows are found.
#[derive(Debug, Clone)]
pub(crate) enum Index {
    /// Array of row links by position of the key.
    Dense(Vec<Domain>, u128),
    /// Array of row links by the rank of the key among those that occur.
    Ranked(Vec<Domain>, u128),
    /// Hash table of one-word keys.
    Hash(Vec<Domain>),
    /// Hash table of keys of several words.
    Wide(usize),
}

/// A built side, and what the probing pipeline learns from it.
struct Built {
    lookup: Lookup,
    /// The equality that the lookup itself establishes; None if it covers all of them.
    by: Option<usize>,
    dependencies: Vec<crate::pipe::Dependency>,
    /// NOT IN: names the counters `{name}_nulls` and `{name}_seen` of the right side's NULL keys and rows.
    not_in: Option<String>,
}

impl Emitter<'_> {
    /// The pipelines of a join: those of its left side, extended by the probe.
    pub(crate) fn join(&mut self, join: &Join, required: &BTreeSet<ColId>) -> Result<Vec<Pipe>, Fault> {
        let right_columns = join.right.outputs();
        let mut needed = required.clone();
        join.filter.iter().for_each(|f| f.collect(&mut needed));
        let payload: BTreeSet<ColId> = needed.intersection(&right_columns).copied().collect();
        let mut left: BTreeSet<ColId> = needed.difference(&right_columns).copied().collect();
        join.on.iter().for_each(|(l, _)| l.collect(&mut left));
        // The right side is complete before the left side's pipelines open.
        let built = self.build(join, payload)?;
        let mut pipes = self.produce(&join.left, &left)?;
        let mut unmatched = None;
        for pipe in &mut pipes {
            self.probe(pipe, join, &built)?;
        }
        if join.kind == JoinKind::Full {
            unmatched = Some(self.unmatched(&pipes[0], &built, &left)?);
        }
        pipes.extend(unmatched);
        Ok(pipes)
    }

    fn build(&mut self, join: &Join, mut payload: BTreeSet<ColId>) -> Result<Built, Fault> {
        let keys: Vec<Expr> = join.on.iter().map(|(_, r)| r.clone()).collect();
        if join.kind != JoinKind::Full
            && !join.null_aware
            && let Some(built) = self.groups_in_place(join, &keys)?
        {
            return Ok(built);
        }
        let key_columns: Option<Vec<ColId>> = keys.iter().map(Expr::as_column).collect();
        let key_columns = key_columns.unwrap_or_default();
        let exists = matches!(join.kind, JoinKind::Semi | JoinKind::Anti | JoinKind::Mark(_))
            && join.filter.is_empty()
            && keys.len() == 1;
        // One unique key of a dense domain decides; the other equalities are checked on the payload.
        let mut by = None;
        let mut by_unique = None;
        if join.kind != JoinKind::Full && key_columns.len() == keys.len() {
            for (k, id) in key_columns.iter().enumerate() {
                let dense = self.dense(join, *id, exists);
                let unique = self.estimate(|o| o.unique(&join.right, &BTreeSet::from([*id])));
                if dense && (exists || unique.is_some()) {
                    by = Some(k);
                    by_unique = unique;
                    break;
                }
            }
        }
        // A bitmap serves every join that needs no more of the same rows; one of unique keys inner joins, too.
        let bare = by.is_some() && keys.len() == 1 && payload.iter().all(|id| key_columns.contains(id));
        let identity = format!("{:?} {keys:?} {}", join.right, by_unique.is_some());
        if bare
            && !join.null_aware
            && let Some((lookup, dependencies)) = self.lookups.get(&identity)
        {
            let (lookup, dependencies) = (lookup.clone(), dependencies.clone());
            return Ok(Built { lookup, by, dependencies, not_in: None });
        }
        let mut required = payload.clone();
        keys.iter().for_each(|k| k.collect(&mut required));
        let pipes = self.produce(&join.right, &required)?;
        let Some(k) = by else { return self.build_rows(join, pipes, &keys, payload, None) };
        let key = key_columns[k];
        payload.extend(key_columns.iter().filter(|id| **id != key));
        payload.remove(&key);
        if self.ranks_better(&pipes, key, &payload) {
            return self.build_rows(join, pipes, &keys[k..=k], payload, Some(k));
        }
        let built = self.build_direct(join, pipes, k, key, payload, by_unique)?;
        if bare && !join.null_aware {
            self.lookups.insert(identity, (built.lookup.clone(), built.dependencies.clone()));
        }
        Ok(built)
    }

    /// Whether rows ranked by key take far less than arrays indexed by it.
    fn ranks_better(&self, pipes: &[Pipe], key: ColId, payload: &BTreeSet<ColId>) -> bool {
        let Some((min, max)) = self.columns[key].range else { return false };
        let mut stored = payload.clone();
        self.defer(pipes, &BTreeSet::from([key]), &mut stored, true);
        let width = stored.iter().map(|id| self.width(&pipes[0], *id)).sum::<usize>() as f64;
        let (keys, rows) = ((max - min) as f64 + 1.0, pipes.iter().map(|p| p.rows).sum::<f64>() * ROOM);
        let ranked = rows * (width + RANKED_ROW_BYTES) + keys / 4.0;
        keys * width >= self.large_bytes && ranked * 2.0 <= keys * width
    }

    /// Whether arrays indexed by the column are worth their size.
    fn dense(&self, join: &Join, id: ColId, exists: bool) -> bool {
        let Some((min, max)) = self.columns[id].range else { return false };
        let integral = !matches!(
            self.columns[id].ty,
            dkb_kernels::SqlType::Utf8 | dkb_kernels::SqlType::Float32 | dkb_kernels::SqlType::Float64
        );
        let Some(span) = max.checked_sub(min).and_then(|s| s.checked_add(1)) else { return false };
        let rows = self.estimate(|o| o.base_rows(&join.right));
        let per_row = if exists { 64.0 } else { 8.0 };
        integral && (span as f64) <= rows * per_row + 65_536.0
    }

    /// An aggregate on the right that is joined on exactly its group keys.
    fn groups_in_place(&mut self, join: &Join, keys: &[Expr]) -> Result<Option<Built>, Fault> {
        let mut above = Vec::new();
        let mut rel = &*join.right;
        let agg = loop {
            match rel {
                Rel::Filter { input, predicates } => {
                    above.push(Above::Filter(predicates.clone()));
                    rel = input;
                }
                Rel::Map { input, defs } => {
                    above.push(Above::Map(defs.clone()));
                    rel = input;
                }
                Rel::Aggregate(agg) => break agg,
                _ => return Ok(None),
            }
        };
        above.reverse();
        let on: Vec<Option<ColId>> = keys.iter().map(Expr::as_column).collect();
        let every_key = agg.keys.iter().all(|k| on.contains(&Some(*k)));
        if !every_key || (agg.keys.is_empty() && !on.is_empty() && on.iter().any(Option::is_none)) {
            return Ok(None);
        }
        // Text keys are codes of one dictionary: they cannot be looked up by text.
        if agg.keys.iter().any(|k| self.columns[*k].ty == dkb_kernels::SqlType::Utf8) {
            return Ok(None);
        }
        let state = self.aggregate(agg)?;
        // A row without a match in one part may have one in another, unless parts are ranges of one key.
        if !matches!(join.kind, JoinKind::Inner | JoinKind::Semi) {
            self.divisible.retain(|d| d.name != state.name || d.keys.is_some());
        }
        if state.keys.iter().any(|k| matches!(k, KeyColumn::Determined(_) | KeyColumn::Derived(..))) {
            return Err(PlanError::Unsupported(
                "a lookup by keys of which one determines another".to_owned(),
            )
            .into());
        }
        let keys: BTreeSet<ColId> = agg.keys.iter().copied().collect();
        let dependencies = vec![(keys, join.right.outputs())];
        let lookup = Lookup::Groups { agg: agg.clone(), state, above };
        Ok(Some(Built { lookup, by: None, dependencies, not_in: None }))
    }

    fn build_direct(
        &mut self,
        join: &Join,
        mut pipes: Vec<Pipe>,
        by: usize,
        key: ColId,
        mut payload: BTreeSet<ColId>,
        unique: Option<Vec<String>>,
    ) -> Result<Built, Fault> {
        let name = format!("b{}", self.next_serial());
        let derived = self.defer(&pipes, &BTreeSet::from([key]), &mut payload, true);
        let key_expr = Expr::col(key, self.columns[key].ty);
        let (min, max) = self.columns[key].range.expect("dense keys have ranges");
        let span = u128::try_from(max - min + 1).expect("dense keys have small domains");
        let part = self.part_domain(&name);
        let column = self.key_range(&key_expr).and_then(|keys| keys.column);
        let domain = part.unwrap_or(Domain { min, span, nullable: false, column });
        let keys_len = format!("{name}_keys");
        let value = self.keys_len(&name, &[domain]);
        self.sizes.insert(keys_len.clone(), Size { value, counter: None, pow2: false });
        let bits = self.declare(
            format!("{name}_bits"),
            Elem::U32,
            &format!("{keys_len} / 32 + 1"),
            Start::Zero,
            Reduce::Or,
        );
        let mut writes = vec![bits.clone()];
        let stored =
            self.payload(&mut pipes, &name, &payload, &keys_len, Start::Zero, Reduce::Or, &mut writes)?;
        let is_unique = unique.is_some();
        let assumes = unique.unwrap_or_default();
        let checked = !assumes.is_empty();
        let count = checked.then(|| {
            let count = self.declare(format!("{name}_count"), Elem::U64, "1", Start::Zero, Reduce::Sum);
            writes.push(count.clone());
            count
        });
        let not_in = self.not_in(join, &name, &mut writes);
        let last = pipes.len() - 1;
        let mut dependencies = Vec::new();
        for (k, mut pipe) in pipes.into_iter().enumerate() {
            let v = self.value(&mut pipe, &key_expr)?;
            count_not_in(&mut pipe, not_in.as_deref(), v.null.as_deref());
            if let Some(null) = &v.null {
                pipe.skip_if(null);
            }
            let v = Value { null: None, ..v };
            self.meet_state(&mut pipe, &name, &v, self.key_range(&key_expr));
            let place = self.local_in(&mut pipe, &name, Self::place(&v, domain));
            pipe.line(format!("const u64 {name}_key = {place};"));
            let (bits, len) = (pipe.buffer(&bits), pipe.arg(Arg::Len(keys_len.clone())));
            pipe.line(format!("bit_set({bits}, {len}, {name}_key);"));
            if let Some(count) = &count {
                let local = format!("{name}_here");
                pipe.head += &format!("  u64 {local} = 0;\n");
                pipe.line(format!("{local} += 1;"));
                let count = pipe.buffer(count);
                pipe.tail += &format!("  block_add({count}, {local});\n");
            }
            self.store_payload(&mut pipe, &stored, &format!("{name}_key"))?;
            let what = if stored.is_empty() { "bitmap" } else { "bitmap and arrays" };
            pipe.steps.push(format!("build {what} by {} ({span} keys) -> {name}", self.columns[key].name));
            dependencies.extend(pipe.dependencies.clone());
            let phase = if last == 0 { format!("{name}_build") } else { format!("{name}_build_{k}") };
            let writes = if k == last { writes.clone() } else { vec![] };
            self.close(pipe, &phase, writes, None);
        }
        if let Some(count) = count {
            // As many keys as rows: then no key occurred twice, on whichever device.
            let mut flags = Vec::new();
            for text in &assumes {
                flags.push(self.assume(text.clone())?);
            }
            let words = format!("{keys_len}_len / 32 + 1");
            let refutes: String = flags.iter().map(|k| format!(" refute(flags, {k});")).collect();
            let distinct =
                self.declare(format!("{name}_distinct"), Elem::U64, "1", Start::Zero, Reduce::None);
            let args = vec![
                Arg::Rows,
                Arg::Len(keys_len.clone()),
                Arg::Buffer(bits.clone()),
                Arg::Buffer(distinct.clone()),
            ];
            let body = format!(
                "  u64 set = 0;\n  DKB_ROWS(i, {words}) set += bit_count({bits}[i]);\n  block_add({distinct}, set);\n"
            );
            let count_keys = format!("{name}_count_keys");
            let launch = self.fixed(&count_keys, "rows", args, &body);
            self.each(&count_keys, &keys_len, vec![launch]);
            let args = vec![Arg::Rows, Arg::Flags, Arg::Buffer(count.clone()), Arg::Buffer(distinct.clone())];
            let body = format!("  DKB_ROWS(i, 1) if (*{count} != *{distinct}) {{{refutes} }}\n");
            let check_keys = format!("{name}_check_keys");
            let launch = self.fixed(&check_keys, "rows", args, &body);
            self.each(&check_keys, "once", vec![launch]);
            let once = Size { value: "1".to_owned(), counter: None, pow2: false };
            self.sizes.entry("once".to_owned()).or_insert(once);
        }
        if not_in.is_none() {
            let bytes = span as f64 * (self.element_bytes(&writes[1..]) + 0.125);
            let distinct = checked.then(|| format!("{name}_distinct"));
            let buffers = writes.into_iter().chain(distinct).collect();
            self.divisible.push(Divisible { name: name.clone(), bytes, keys: Some(span), buffers });
        }
        if is_unique {
            dependencies.push((BTreeSet::from([key]), join.right.outputs()));
        }
        let lookup = Lookup::Direct { name, domain, payload: Payload { stored, derived } };
        Ok(Built { lookup, by: Some(by), dependencies, not_in })
    }

    /// Declares the counters that NOT IN takes, unless neither side can be NULL.
    fn not_in(&mut self, join: &Join, name: &str, writes: &mut Vec<String>) -> Option<String> {
        let mut columns = BTreeSet::new();
        join.on.iter().for_each(|(l, r)| {
            l.collect(&mut columns);
            r.collect(&mut columns);
        });
        let never_null = |id: &ColId| {
            let origin = self.columns[*id].origin;
            origin.is_some_and(|(t, c)| !self.tables[t].columns[c].nullable)
        };
        let plain = !has_outer_join(&join.left) && !has_outer_join(&join.right);
        if !join.null_aware || (plain && columns.iter().all(never_null)) {
            return None;
        }
        for counter in ["nulls", "seen"] {
            let counter = format!("{name}_{counter}");
            writes.push(self.declare(counter, Elem::U64, "1", Start::Zero, Reduce::Sum));
        }
        Some(name.to_owned())
    }

    /// Declares the arrays of stored columns. Columns of the same value, such as the row number that stands for
    /// several texts, share one.
    #[expect(clippy::too_many_arguments, reason = "the buffers' common properties")]
    pub(crate) fn payload(
        &mut self,
        pipes: &mut [Pipe],
        name: &str,
        payload: &BTreeSet<ColId>,
        len: &str,
        start: Start,
        reduce: Reduce,
        writes: &mut Vec<String>,
    ) -> Result<BTreeMap<ColId, Stored>, Fault> {
        /// What each pipeline stores: value, NULL condition, type.
        type Values = Vec<(String, Option<String>, Elem)>;
        let mut all: BTreeMap<ColId, Stored> = BTreeMap::new();
        let mut known: Vec<(Values, ColId)> = Vec::new();
        for id in payload {
            let e = Expr::col(*id, self.columns[*id].ty);
            let mut values = Vec::new();
            let mut kind = None;
            for pipe in pipes.iter_mut() {
                let (v, elem) = self.storable(pipe, &e)?;
                kind = Some((Self::stored_form(v.form, elem), elem));
                values.push((v.code, v.null, elem));
            }
            let (form, elem) = kind.expect("a relation has pipelines");
            if let Some((_, same)) = known.iter().find(|(other, _)| *other == values) {
                let stored = Stored { form, ..all[same].clone() };
                all.insert(*id, stored);
                continue;
            }
            let part = crate::aggregate::safe(&self.columns[*id].name, *id);
            let mut buffer = format!("{name}_{part}");
            if self.buffers.iter().any(|b| b.name == buffer) {
                buffer = format!("{name}_{part}_{id}");
            }
            self.declare(buffer.clone(), elem, len, start, reduce);
            writes.push(buffer.clone());
            let valid = values.iter().any(|(_, null, _)| null.is_some()).then(|| {
                let valid = self.declare(format!("{buffer}_valid"), Elem::U8, len, start, reduce);
                writes.push(valid.clone());
                valid
            });
            known.push((values, *id));
            all.insert(*id, Stored { buffer, valid, form });
        }
        Ok(all)
    }

    /// Stores the columns at an index.
    pub(crate) fn store_payload(
        &mut self,
        pipe: &mut Pipe,
        payload: &BTreeMap<ColId, Stored>,
        index: &str,
    ) -> Result<(), Fault> {
        let mut done = BTreeSet::new();
        for (id, stored) in payload {
            if !done.insert(&stored.buffer) {
                continue;
            }
            let (v, _) = self.storable(pipe, &Expr::col(*id, self.columns[*id].ty))?;
            let target = pipe.buffer(&stored.buffer);
            pipe.line(format!("{target}[{index}] = {};", v.code));
            if let Some(valid) = &stored.valid {
                let target = pipe.buffer(valid);
                let null = v.null.unwrap_or_else(|| "false".to_owned());
                pipe.line(format!("{target}[{index}] = !{null};"));
            }
        }
        Ok(())
    }

    /// Appends the rows and links them by `keys`: all of the join's, or the one of the equality `by`.
    fn build_rows(
        &mut self,
        join: &Join,
        mut pipes: Vec<Pipe>,
        keys: &[Expr],
        mut payload: BTreeSet<ColId>,
        by: Option<usize>,
    ) -> Result<Built, Fault> {
        let name = format!("b{}", self.next_serial());
        let key_columns: BTreeSet<ColId> = keys.iter().filter_map(Expr::as_column).collect();
        let all_columns = keys.iter().all(|k| k.as_column().is_some()) && !keys.is_empty();
        let unique = all_columns
            .then(|| self.estimate(|o| o.unique(&join.right, &key_columns)))
            .flatten()
            .filter(|_| join.kind != JoinKind::Full);
        let known = if by.is_some() { key_columns.clone() } else { BTreeSet::new() };
        let derived = match join.kind {
            JoinKind::Full => BTreeMap::new(),
            _ => self.defer(&pipes, &known, &mut payload, true),
        };
        let rows: f64 = pipes.iter().map(|p| p.rows).sum();
        let most = pipes.iter().try_fold(0u128, |sum, p| Some(sum + p.max_rows?));
        let capacity = (rows * ROOM).max(65_536.0).min(most.map_or(f64::MAX, |m| m as f64)).max(1.0) as u64;
        let counter = self.declare_size(&name, capacity.to_string(), false, Reduce::Sum);
        // Key words in the rows: one packed word, biased by one (0 is a NULL key), or several.
        let mut domains = Vec::new();
        let mut wide_words = 0;
        for e in keys {
            let v = self.key_value(&mut pipes[0], e)?;
            domains.push(self.domain(e, &Value { null: None, ..v.clone() }));
            wide_words += key_words(&v).len();
        }
        let span = domains.iter().try_fold(1u128, |product, d| product.checked_mul((*d)?.span));
        let base_rows = self.estimate(|o| o.base_rows(&join.right));
        // One integer key may divide the rows.
        let part = self.part_domain(&name);
        if let Some(part) = part {
            domains = vec![Some(part)];
        }
        let index = match span {
            Some(span) if (span as f64) <= base_rows * 8.0 + 65_536.0 || by.is_some() => {
                let domains = domains.iter().map(|d| d.expect("bounded")).collect();
                let heads = span as f64 * 4.0;
                let ranked = capacity as f64 * 4.0 + span as f64 / 4.0;
                if by.is_some() || (heads >= self.large_bytes && ranked * 2.0 <= heads) {
                    Index::Ranked(domains, span)
                } else {
                    Index::Dense(domains, span)
                }
            }
            Some(span) if span < 1 << 63 => {
                Index::Hash(domains.iter().map(|d| d.expect("bounded")).collect())
            }
            _ => Index::Wide(wide_words),
        };
        let key_len = match index {
            Index::Wide(words) => format!("{name} * {words}"),
            _ => name.clone(),
        };
        let key_buffer =
            self.declare(format!("{name}_key"), Elem::U64, &key_len, Start::Poison, Reduce::Concat);
        let mut writes = vec![counter.clone(), key_buffer.clone()];
        let stored =
            self.payload(&mut pipes, &name, &payload, &name, Start::Poison, Reduce::Concat, &mut writes)?;
        let not_in = self.not_in(join, &name, &mut writes);
        let mut dependencies = Vec::new();
        let last = pipes.len() - 1;
        let divides = matches!(index, Index::Dense(..) | Index::Ranked(..))
            && keys.len() == 1
            && join.kind != JoinKind::Full
            && not_in.is_none();
        for (k, mut pipe) in pipes.into_iter().enumerate() {
            let mut values = Vec::new();
            for e in keys {
                values.push(self.key_value(&mut pipe, e)?);
            }
            let null = any_null(values.iter().map(|v| v.null.clone()));
            count_not_in(&mut pipe, not_in.as_deref(), null.as_deref());
            if let (Some(null), true) = (&null, join.kind != JoinKind::Full) {
                pipe.skip_if(null);
            }
            let (count, len) = (pipe.buffer(&counter), pipe.arg(Arg::Len(name.clone())));
            let values: Vec<Value> = values.into_iter().map(|v| Value { null: None, ..v }).collect();
            if divides {
                self.meet_state(&mut pipe, &name, &values[0], self.key_range(&keys[0]));
            }
            let words = match &index {
                Index::Dense(domains, _) | Index::Ranked(domains, _) | Index::Hash(domains) => {
                    let place = self.local_in(&mut pipe, &name, number(&values, domains));
                    vec![format!("{place} + 1")]
                }
                Index::Wide(_) => values.iter().flat_map(key_words).collect(),
            };
            pipe.line(format!("const u64 {name}_row = append({count});"));
            pipe.skip_if(format!("{name}_row >= {len}"));
            let target = pipe.buffer(&key_buffer);
            let many = words.len();
            for (w, word) in words.into_iter().enumerate() {
                let word = match (&null, join.kind == JoinKind::Full) {
                    (Some(null), true) if many == 1 => format!("{null} ? 0 : {word}"),
                    (Some(_), true) => {
                        return Err(PlanError::Unsupported(
                            "FULL JOIN on several nullable keys of unknown range".to_owned(),
                        )
                        .into());
                    }
                    _ => word,
                };
                let at = if matches!(index, Index::Wide(_)) {
                    format!("{name}_row * {many} + {w}")
                } else {
                    format!("{name}_row")
                };
                pipe.line(format!("{target}[{at}] = {word};"));
            }
            self.store_payload(&mut pipe, &stored, &format!("{name}_row"))?;
            pipe.steps.push(format!("append rows, about {:.0} -> {name}", pipe.rows));
            dependencies.extend(pipe.dependencies.clone());
            let phase = if last == 0 { format!("{name}_build") } else { format!("{name}_build_{k}") };
            let writes = if k == last { writes.clone() } else { vec![] };
            self.close(pipe, &phase, writes, None);
        }
        let mut buffers = writes;
        buffers.extend(self.link(&name, &index, unique.as_deref())?);
        if let (Index::Dense(_, span) | Index::Ranked(_, span), true) = (&index, divides) {
            let heads =
                if matches!(index, Index::Dense(..)) { *span as f64 * 4.0 } else { *span as f64 / 4.0 };
            let bytes = capacity as f64 * (self.element_bytes(&buffers)) + heads;
            self.divisible.push(Divisible { name: name.clone(), bytes, keys: Some(*span), buffers });
        }
        let matched = (join.kind == JoinKind::Full)
            .then(|| self.declare(format!("{name}_matched"), Elem::U8, &name, Start::Zero, Reduce::Or));
        if unique.is_some() {
            dependencies.push((key_columns, join.right.outputs()));
        }
        let unique = unique.is_some();
        let payload = Payload { stored, derived };
        let lookup = Lookup::Rows { name, index, unique, payload, matched };
        Ok(Built { lookup, by, dependencies, not_in })
    }

    /// The kernels that link appended rows by key, which every device runs for itself. Returns their buffers.
    fn link(&mut self, name: &str, index: &Index, unique: Option<&[String]>) -> Result<Vec<String>, Fault> {
        let rows = [
            Arg::Rows,
            Arg::Len(name.to_owned()),
            Arg::Buffer(format!("{name}_count")),
            Arg::Buffer(format!("{name}_key")),
        ];
        let mut args = rows.to_vec();
        args.push(Arg::Flags);
        let heads = format!("{name}_heads");
        let table = format!("{name}_slots");
        let every_row = format!("  DKB_ROWS(i, filled({name}_count, {name}_len)) {{\n");
        let one_key = format!("    if ({name}_key[i] == 0) continue;\n");
        let mut body = every_row.clone();
        let mut launches = Vec::new();
        let mut buffers = vec![heads.clone()];
        match index {
            Index::Dense(domains, _) => {
                let value = self.keys_len(name, domains);
                self.sizes.insert(table.clone(), Size { value, counter: None, pow2: false });
                self.declare(heads.clone(), Elem::U32, &table, Start::Zero, Reduce::None);
                body += &one_key;
                body += &format!("    const u64 slot = {name}_key[i] - 1;\n");
            }
            Index::Ranked(domains, _) => {
                let value = self.keys_len(name, domains);
                let value = if value.contains(' ') { format!("({value})") } else { value };
                let value = format!("{value} / 32 + 1");
                let size = format!("{name}_words");
                self.sizes.insert(size.clone(), Size { value, counter: None, pow2: false });
                let words = self.declare(size.clone(), Elem::U64, &size, Start::Zero, Reduce::None);
                let ranks = self.declare(format!("{name}_ranks"), Elem::U64, "1", Start::Zero, Reduce::None);
                self.declare(heads.clone(), Elem::U32, name, Start::Zero, Reduce::None);
                buffers.extend([words.clone(), ranks.clone()]);
                args.push(Arg::Buffer(words.clone()));
                let mut mark_args = rows.to_vec();
                mark_args.push(Arg::Buffer(words.clone()));
                let mark = format!("{every_row}{one_key}    rank_set({words}, {name}_key[i] - 1);\n  }}\n");
                launches.push(self.fixed(&format!("{name}_mark"), "rows", mark_args, &mark));
                let rank_args =
                    vec![Arg::Len(size.clone()), Arg::Buffer(words.clone()), Arg::Buffer(ranks.clone())];
                let rank = format!("  rank_words({words}, {size}_len, {ranks});\n");
                launches.push(self.fixed(&format!("{name}_rank"), &size, rank_args, &rank));
                body += &one_key;
                body += &format!("    const u64 slot = rank_of({words}, {name}_key[i] - 1);\n");
            }
            Index::Hash(_) | Index::Wide(_) => {
                let words = if let Index::Wide(words) = index { Some(*words) } else { None };
                let count = self.declare_size(&table, format!("2 * {name}"), true, Reduce::None);
                self.declare(heads.clone(), Elem::U32, &table, Start::Zero, Reduce::None);
                args.extend([Arg::Len(table.clone()), Arg::Buffer(count.clone())]);
                let len = words.map_or(table.clone(), |words| format!("{table} * {words}"));
                let keys = self.declare(format!("{table}_keys"), Elem::U64, &len, Start::Zero, Reduce::None);
                match words {
                    None => {
                        body += &one_key;
                        body += &format!(
                            "    const u64 slot = hash_insert({keys}, {table}_len, {count}, {name}_key[i]);\n"
                        );
                    }
                    Some(words) => {
                        let state = format!("{table}_state");
                        self.declare(state.clone(), Elem::U32, &table, Start::Zero, Reduce::None);
                        args.push(Arg::Buffer(state.clone()));
                        let list: Vec<String> =
                            (0..words).map(|w| format!("{name}_key[i * {words} + {w}]")).collect();
                        body += &format!("    const u64 key[{words}] = {{{}}};\n", list.join(", "));
                        body += &format!(
                            "    const u64 slot = hash_insert({state}, {keys}, {table}_len, {count}, key);\n"
                        );
                    }
                }
                args.push(Arg::Buffer(keys));
                body += "    if (slot == DKB_NONE) continue;\n";
            }
        }
        args.push(Arg::Buffer(heads.clone()));
        match unique {
            Some(texts) => {
                let mut refutes = String::new();
                for text in texts {
                    refutes += &format!(" refute(flags, {});", self.assume(text.clone())?);
                }
                body += &format!("    if (link_only({heads}, slot, i)) {{{refutes} }}\n");
            }
            None => {
                let next = self.declare(format!("{name}_next"), Elem::U32, name, Start::Poison, Reduce::None);
                args.push(Arg::Buffer(next.clone()));
                body += &format!("    link_row({heads}, slot, {next}, i);\n");
                buffers.push(next);
            }
        }
        body += "  }\n";
        launches.push(self.fixed(&format!("{name}_link"), "rows", args, &body));
        self.each(&format!("{name}_link"), name, launches);
        Ok(buffers)
    }

    /// A join key's value. Text is compared by content, as its codes belong to one column only.
    fn key_value(&mut self, pipe: &mut Pipe, e: &Expr) -> Result<Value, Fault> {
        let v = self.value(pipe, e)?;
        match v.form {
            Form::Text | Form::Dict(..) => self.packed(pipe, e),
            Form::Fetch(t, c) => Err(Fault::NeedDict(t, c)),
            _ => Ok(v),
        }
    }

    fn probe(&mut self, pipe: &mut Pipe, join: &Join, built: &Built) -> Result<(), Fault> {
        pipe.collect_rows();
        let serial = self.next_serial();
        let matched = format!("m{serial}");
        let mut conditions = join.filter.clone();
        let mut keys: Vec<&(Expr, Expr)> = join.on.iter().collect();
        if let Some(by) = built.by {
            let others = keys.iter().enumerate().filter(|(k, _)| *k != by);
            conditions.extend(others.map(|(_, (l, r))| Expr::eq(l.clone(), r.clone())));
            keys = vec![keys[by]];
        }
        if let Lookup::Groups { agg, .. } = &built.lookup {
            let is_key = |r: &Expr| matches!(r.kind, Kind::Col(id) if agg.keys.contains(&id));
            let (by_key, others): (Vec<_>, Vec<_>) = keys.into_iter().partition(|(_, r)| is_key(r));
            conditions.extend(others.into_iter().map(|(l, r)| Expr::eq(l.clone(), r.clone())));
            keys = by_key;
        }
        let mut values = Vec::new();
        for (l, _) in &keys {
            let text = l.ty == dkb_kernels::SqlType::Utf8;
            values.push(if text { self.key_value(pipe, l)? } else { self.value(pipe, l)? });
        }
        let null = any_null(values.iter().map(|v| v.null.clone()));
        if let Some(name) = &built.not_in {
            let nulls = pipe.buffer(&format!("{name}_nulls"));
            pipe.skip_if(format!("*{nulls} != 0 /* NOT IN: nothing differs from NULL */"));
            if let Some(null) = &null {
                let seen = pipe.buffer(&format!("{name}_seen"));
                pipe.skip_if(format!("{null} && *{seen} != 0"));
            }
        }
        let nullable = values.clone();
        let values: Vec<Value> = values.into_iter().map(|v| Value { null: None, ..v }).collect();
        let left_exprs: Vec<Expr> = keys.iter().map(|(l, _)| (*l).clone()).collect();
        match &built.lookup {
            Lookup::Direct { name, domain, payload } => {
                let key = format!("k{serial}");
                let inside = self.inside(&left_exprs, &values, std::slice::from_ref(domain));
                self.meet_state(pipe, name, &nullable[0], self.key_range(&left_exprs[0]));
                let place = self.local_in(pipe, name, Self::place(&values[0], *domain));
                pipe.bind(&key, format!("const u64 {key} = {place};  // probe {name}"));
                let (bits, len) =
                    (pipe.buffer(&format!("{name}_bits")), pipe.arg(Arg::Len(format!("{name}_keys"))));
                let test = format!("bit_test({bits}, {len}, {key})");
                let tests = conjunction([null.map(|n| format!("!{n}")), inside, Some(test)]);
                let mut scope = payload.at(&key);
                bring_key(pipe, &mut scope, keys[0], &values[0]);
                self.resolve(pipe, &payload.derived, &mut scope);
                self.meet(pipe, join, &matched, &tests, scope, &conditions, &[])?;
                pipe.steps.push(describe(join.kind, name, "bitmap"));
                self.derive(pipe, join.kind, keys[0], name, *domain, payload, false);
            }
            Lookup::Groups { agg, state, above } => {
                let slot = format!("k{serial}");
                let mut tests = vec![null.map(|n| format!("!{n}"))];
                self.group_place(pipe, agg, state, &keys, &nullable, &slot, &mut tests)?;
                let (present, args) = state.present(&slot);
                args.into_iter().for_each(|a| {
                    pipe.arg(a);
                });
                if state.groups != Groups::Scalar {
                    tests.push(Some(present));
                }
                let tests = conjunction(tests);
                let mut shadow = pipe.clone();
                self.bring(state, &mut shadow, agg, &slot);
                let mut scope = BTreeMap::new();
                for id in agg.keys.iter().copied().chain(agg.accs.iter().map(|a| a.id)) {
                    scope.insert(id, (shadow.env[&id].clone(), shadow.needs[&id].clone()));
                }
                self.meet(pipe, join, &matched, &tests, scope, &conditions, above)?;
                pipe.steps.push(describe(join.kind, &state.name, "groups in place"));
            }
            Lookup::Rows { name, index, unique, payload, matched: flags } => {
                let row = format!("r{serial}");
                if let (Index::Dense(..) | Index::Ranked(..), [v]) = (index, nullable.as_slice()) {
                    self.meet_state(pipe, name, v, self.key_range(&left_exprs[0]));
                }
                let first =
                    self.first_link(pipe, name, index, &left_exprs, &values, null.as_deref(), serial)?;
                let mut scope = payload.at(&format!("{row} - 1"));
                if built.by.is_some() {
                    bring_key(pipe, &mut scope, keys[0], &values[0]);
                }
                self.resolve(pipe, &payload.derived, &mut scope);
                let next = |pipe: &mut Pipe| format!("{}[{row} - 1]", pipe.buffer(&format!("{name}_next")));
                let one = *unique
                    || (conditions.is_empty()
                        && matches!(join.kind, JoinKind::Semi | JoinKind::Anti | JoinKind::Mark(_)));
                if one {
                    pipe.bind(&row, format!("const u32 {row} = {first};  // probe {name}"));
                    self.meet(pipe, join, &matched, &format!("{row} != 0"), scope, &conditions, &[])?;
                } else {
                    pipe.max_rows = None;
                    match join.kind {
                        JoinKind::Inner => {
                            let next = next(pipe);
                            pipe.open(format!(
                                "for (u32 {row} = {first}; {row}; {row} = {next}) {{  // probe {name}"
                            ));
                            enter(pipe, scope, None);
                            for c in &conditions {
                                let truth = self.truth(pipe, c)?;
                                pipe.keep_if(&truth);
                            }
                        }
                        JoinKind::Semi | JoinKind::Anti | JoinKind::Mark(_) => {
                            let saved = (pipe.env.clone(), pipe.needs.clone());
                            enter(pipe, scope, None);
                            let all = Expr::bool(Kind::And(conditions.clone()));
                            let truth = self.truth(pipe, &all)?;
                            (pipe.env, pipe.needs) = saved;
                            let next = next(pipe);
                            pipe.line(format!("bool {matched} = false;  // probe {name}"));
                            pipe.line(format!(
                                "for (u32 {row} = {first}; {row} && !{matched}; {row} = {next}) {matched} = {truth};"
                            ));
                            self.decide(pipe, join.kind, &matched);
                        }
                        JoinKind::Left | JoinKind::Full => {
                            let saved = (pipe.env.clone(), pipe.needs.clone());
                            enter(pipe, scope.clone(), None);
                            let all = Expr::bool(Kind::And(conditions.clone()));
                            let truth =
                                (!conditions.is_empty()).then(|| self.truth(pipe, &all)).transpose()?;
                            (pipe.env, pipe.needs) = saved;
                            let next = next(pipe);
                            pipe.line(format!("u32 {row}_next = {first};  // probe {name}"));
                            pipe.line(format!("bool {row}_any = false;"));
                            pipe.open(format!("for (bool {row}_more = true; {row}_more;) {{"));
                            pipe.line(format!("u32 {row} = {row}_next;"));
                            if let Some(truth) = truth {
                                pipe.line(format!("while ({row} && !{truth}) {row} = {next};"));
                            }
                            pipe.line(format!("if (!{row} && {row}_any) break;"));
                            pipe.line(format!("const bool {matched} = {row}_more = {row} != 0;"));
                            pipe.line(format!("{row}_any = true;"));
                            pipe.line(format!("{row}_next = {row} ? {next} : 0;"));
                            if let Some(flags) = flags {
                                pipe.writes.push(flags.clone());
                                let flags = pipe.buffer(flags);
                                pipe.line(format!("if ({matched}) {flags}[{row} - 1] = 1;"));
                            }
                            enter(pipe, scope, Some(&matched));
                        }
                    }
                }
                let how = match (index, unique) {
                    (Index::Ranked(..), _) => "ranked rows",
                    (_, true) => "unique rows",
                    (_, false) => "linked rows",
                };
                pipe.steps.push(describe(join.kind, name, how));
                if let (Index::Ranked(domains, _), Some(_)) = (index, built.by) {
                    self.derive(pipe, join.kind, keys[0], name, domains[0], payload, true);
                }
            }
        }
        if matches!(join.kind, JoinKind::Inner | JoinKind::Left) {
            pipe.dependencies.extend(built.dependencies.iter().cloned());
            let pairs: Vec<(ColId, ColId)> =
                join.on.iter().filter_map(|(l, r)| l.as_column().zip(r.as_column())).collect();
            if join.kind == JoinKind::Inner {
                for (l, r) in pairs {
                    pipe.dependencies.push((BTreeSet::from([l]), BTreeSet::from([r])));
                    pipe.dependencies.push((BTreeSet::from([r]), BTreeSet::from([l])));
                }
            } else if join.filter.is_empty() && pairs.len() == join.on.len() {
                // Whether a left row has a match depends on all of the condition.
                pipe.dependencies.push(pairs.into_iter().unzip());
            }
        }
        let rel = Rel::Join(join.clone());
        pipe.rows = self.estimate(|o| o.rows(&rel));
        Ok(())
    }

    /// Notes that the columns of a unique right row follow from its key.
    #[expect(clippy::too_many_arguments, reason = "one probe, described once")]
    fn derive(
        &self,
        pipe: &mut Pipe,
        kind: JoinKind,
        (left, right): &(Expr, Expr),
        lookup: &str,
        domain: Domain,
        payload: &Payload,
        ranked: bool,
    ) {
        if kind != JoinKind::Inner {
            return;
        }
        let keys: Vec<ColId> = right.as_column().into_iter().chain(left.as_column()).collect();
        let met = self.key_range(left);
        for (id, stored) in &payload.stored {
            let (keys, lookup, stored) = (keys.clone(), lookup.to_owned(), stored.clone());
            pipe.derived.insert(*id, Derived { keys, lookup, ranked, domain, met, stored });
        }
        pipe.derived.extend(payload.derived.iter().map(|(id, d)| (*id, d.clone())));
    }

    /// Meets at most one right row: decides by the tests, the steps above an aggregate, and the conditions.
    #[expect(clippy::too_many_arguments, reason = "one probe, described once")]
    fn meet(
        &mut self,
        pipe: &mut Pipe,
        join: &Join,
        matched: &str,
        tests: &str,
        scope: BTreeMap<ColId, (Value, Vec<Arg>)>,
        conditions: &[Expr],
        above: &[Above],
    ) -> Result<(), Fault> {
        if join.kind == JoinKind::Inner {
            if tests != "true" {
                pipe.keep_if(tests);
            }
            enter(pipe, scope, None);
            for step in above {
                match step {
                    Above::Filter(list) => {
                        for p in list {
                            let truth = self.truth(pipe, p)?;
                            pipe.keep_if(&truth);
                        }
                    }
                    Above::Map(defs) => {
                        for (id, e) in defs {
                            self.define(pipe, *id, e)?;
                        }
                    }
                }
            }
            for c in conditions {
                let truth = self.truth(pipe, c)?;
                pipe.keep_if(&truth);
            }
            return Ok(());
        }
        // The conditions see the right row as it is; what follows sees NULLs where there is none.
        let saved = (pipe.env.clone(), pipe.needs.clone());
        pipe.bind(matched, format!("bool {matched} = {tests};"));
        enter(pipe, scope.clone(), None);
        let mut maps: Vec<(ColId, Expr)> = Vec::new();
        let inline = |e: &Expr, maps: &[(ColId, Expr)]| {
            e.substitute(&|id| maps.iter().find(|(def, _)| *def == id).map(|(_, e)| e.clone()))
        };
        for step in above {
            match step {
                Above::Filter(list) => {
                    for p in list {
                        let truth = self.truth(pipe, &inline(p, &maps))?;
                        pipe.bind(matched, format!("{matched} = {matched} && {truth};"));
                    }
                }
                Above::Map(defs) => {
                    for (id, e) in defs {
                        self.columns[*id].range = self.range(e);
                        let e = inline(e, &maps);
                        maps.push((*id, e));
                    }
                }
            }
        }
        for c in conditions {
            let truth = self.truth(pipe, &inline(c, &maps))?;
            pipe.bind(matched, format!("{matched} = {matched} && {truth};"));
        }
        (pipe.env, pipe.needs) = saved;
        if join.kind == JoinKind::Left {
            enter(pipe, scope, Some(matched));
            for (id, e) in maps {
                let v = self.value(pipe, &e)?;
                let args: Vec<Arg> = e.columns().iter().flat_map(|c| pipe.needs[c].clone()).collect();
                enter(pipe, BTreeMap::from([(id, (Value { null: v.null, ..v }, args))]), Some(matched));
            }
        }
        self.decide(pipe, join.kind, matched);
        Ok(())
    }

    /// What a row's match means for semi, anti and mark joins.
    fn decide(&self, pipe: &mut Pipe, kind: JoinKind, matched: &str) {
        match kind {
            JoinKind::Semi => pipe.keep_if(matched),
            JoinKind::Anti => pipe.skip_if(matched),
            JoinKind::Mark(id) => {
                pipe.env.insert(id, Value::new(matched, Form::Bool));
                pipe.needs.insert(id, vec![]);
            }
            JoinKind::Inner | JoinKind::Left | JoinKind::Full => {}
        }
    }

    /// The condition that the values lie in the domains, unless statistics say that they do.
    fn inside(&self, exprs: &[Expr], values: &[Value], domains: &[Domain]) -> Option<String> {
        let mut tests = Vec::new();
        for ((e, v), d) in exprs.iter().zip(values).zip(domains) {
            let max = d.min + i128::try_from(d.span).expect("spans are below 2^63") - 1;
            let within = self.range(e).is_some_and(|(lo, hi)| lo >= d.min && hi <= max);
            if !within && matches!(v.form, Form::Int(_)) {
                tests.push(format!("{} >= {} && {} <= {max}", v.code, d.min, v.code));
            }
        }
        (!tests.is_empty()).then(|| tests.join(" && "))
    }

    #[expect(clippy::too_many_arguments, reason = "one probe, described once")]
    fn group_place(
        &mut self,
        pipe: &mut Pipe,
        agg: &Aggregate,
        state: &AggState,
        keys: &[&(Expr, Expr)],
        nullable: &[Value],
        slot: &str,
        tests: &mut Vec<Option<String>>,
    ) -> Result<(), Fault> {
        let name = &state.name;
        let values: Vec<Value> = nullable.iter().map(|v| Value { null: None, ..v.clone() }).collect();
        let mut exprs = Vec::new();
        let mut ordered = Vec::new();
        for id in &agg.keys {
            let k = keys.iter().position(|(_, r)| matches!(r.kind, Kind::Col(c) if c == *id));
            let k = k.expect("every group key is joined on");
            if state.by == Some(exprs.len()) {
                self.meet_state(pipe, name, &nullable[k], self.key_range(&keys[k].0));
            }
            exprs.push(keys[k].0.clone());
            ordered.push(values[k].clone());
        }
        if state.by.is_none() {
            let codes: Vec<&str> = ordered.iter().map(|v| v.code.as_str()).collect();
            pipe.touches.push(Touch { state: name.clone(), key: codes.join(", "), keys: None });
        }
        match &state.groups {
            Groups::Scalar => pipe.bind(slot, format!("const u64 {slot} = 0;")),
            Groups::Direct { .. } | Groups::Hash => {
                let domains: Vec<Domain> = state
                    .keys
                    .iter()
                    .map(|k| match k {
                        KeyColumn::Packed { domain, .. } => *domain,
                        _ => unreachable!("packed keys"),
                    })
                    .collect();
                // The first place of a nullable domain is NULL's, which never matches.
                let plain: Vec<Domain> = domains
                    .iter()
                    .map(|d| Domain { span: d.span - u128::from(d.nullable), nullable: false, ..*d })
                    .collect();
                let inside = self.inside(&exprs, &ordered, &plain);
                let mut code = String::new();
                for (v, (d, p)) in ordered.iter().zip(domains.iter().zip(&plain)) {
                    let mut place = Self::place(v, *p);
                    if d.nullable {
                        place = format!("({place} + 1)");
                    }
                    code = if code.is_empty() { place } else { format!("({code} * {} + {place})", d.span) };
                }
                let usable = conjunction(tests.drain(..).chain([inside]));
                if let Groups::Direct { .. } = state.groups {
                    let code = self.local_in(pipe, name, code);
                    pipe.bind(
                        slot,
                        format!("const u64 {slot} = {usable} ? {code} : DKB_NONE;  // probe {name}"),
                    );
                } else {
                    let (table, len) =
                        (pipe.buffer(&format!("{name}_keys")), pipe.arg(Arg::Len(name.clone())));
                    pipe.bind(slot, format!(
                        "const u64 {slot} = {usable} ? hash_find({table}, {len}, {code} + 1) : DKB_NONE;  // probe {name}"
                    ));
                }
                tests.push(Some(format!("{slot} != DKB_NONE")));
            }
            Groups::Wide { words } => {
                let mut list: Vec<String> = ordered.iter().flat_map(key_words).collect();
                list.resize(*words, "0".to_owned());
                let key = format!("{slot}_key");
                pipe.bind(&key, format!("const u64 {key}[{words}] = {{{}}};", list.join(", ")));
                let usable = conjunction(tests.drain(..));
                let (states, table) =
                    (pipe.buffer(&format!("{name}_state")), pipe.buffer(&format!("{name}_keys")));
                let len = pipe.arg(Arg::Len(name.clone()));
                pipe.bind(
                    slot,
                    format!(
                        "const u64 {slot} = {usable} ? hash_find({states}, {table}, {len}, {key}) : DKB_NONE;"
                    ),
                );
                tests.push(Some(format!("{slot} != DKB_NONE")));
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "one probe, described once")]
    fn first_link(
        &mut self,
        pipe: &mut Pipe,
        name: &str,
        index: &Index,
        exprs: &[Expr],
        values: &[Value],
        null: Option<&str>,
        serial: usize,
    ) -> Result<String, Fault> {
        let heads = pipe.buffer(&format!("{name}_heads"));
        let table = format!("{name}_slots");
        let ranked = matches!(index, Index::Ranked(..));
        let len = pipe.arg(Arg::Len(if ranked { name.to_owned() } else { table.clone() }));
        let not_null = null.map(|n| format!("!{n}"));
        let (usable, slot) = match index {
            Index::Dense(domains, _) | Index::Ranked(domains, _) => {
                let usable = conjunction([not_null, self.inside(exprs, values, domains)]);
                let place = self.local_in(pipe, name, number(values, domains));
                match index {
                    Index::Ranked(..) => {
                        let words = pipe.buffer(&format!("{name}_words"));
                        let keys = pipe.arg(Arg::Len(format!("{name}_words")));
                        (usable, format!("rank_find({words}, {keys}, {place})"))
                    }
                    _ => (usable, place),
                }
            }
            Index::Hash(domains) => {
                let usable = conjunction([not_null, self.inside(exprs, values, domains)]);
                let keys = pipe.buffer(&format!("{table}_keys"));
                (usable, format!("hash_find({keys}, {len}, {} + 1)", number(values, domains)))
            }
            Index::Wide(words) => {
                let list: Vec<String> = values.iter().flat_map(key_words).collect();
                if list.len() != *words {
                    return Err(PlanError::Unsupported("join keys of different width".to_owned()).into());
                }
                let key = format!("k{serial}");
                pipe.bind(&key, format!("const u64 {key}[{words}] = {{{}}};", list.join(", ")));
                let (state, keys) =
                    (pipe.buffer(&format!("{table}_state")), pipe.buffer(&format!("{table}_keys")));
                (conjunction([not_null]), format!("hash_find({state}, {keys}, {len}, {key})"))
            }
        };
        let link = format!("first_link({heads}, {len}, {slot})");
        Ok(if usable == "true" { link } else { format!("({usable} ? {link} : 0)") })
    }

    /// The right rows of a full join that nothing met, with NULLs for the left columns.
    fn unmatched(&mut self, met: &Pipe, built: &Built, left: &BTreeSet<ColId>) -> Result<Pipe, Fault> {
        let Lookup::Rows { name, payload, matched, .. } = &built.lookup else {
            unreachable!("full joins link rows")
        };
        let mut pipe = Pipe::new(Over::Size(name.clone()), "slot", None, 1.0);
        pipe.steps.push(format!("rows of {name} without a match"));
        let (count, len) = (pipe.buffer(&format!("{name}_count")), pipe.arg(Arg::Len(name.clone())));
        pipe.keep_if(&format!("slot < filled({count}, {len})"));
        let flags = pipe.buffer(matched.as_deref().expect("full joins mark matches"));
        pipe.skip_if(format!("{flags}[slot]"));
        for id in left {
            if let Some(v) = met.env.get(id) {
                let code = if v.form == Form::Text { "Str{nullptr, 0}" } else { "0" };
                pipe.env.insert(
                    *id,
                    Value { code: code.to_owned(), null: Some("true".to_owned()), form: v.form },
                );
                pipe.needs.insert(*id, vec![]);
            }
        }
        for (id, stored) in &payload.stored {
            let (value, args) = stored.at("slot");
            pipe.env.insert(*id, value);
            pipe.needs.insert(*id, args);
        }
        Ok(pipe)
    }
}

/// Counts the rows of a NOT IN's right side, and those whose key is NULL.
fn count_not_in(pipe: &mut Pipe, name: Option<&str>, null: Option<&str>) {
    let Some(name) = name else { return };
    for (counter, condition) in [("nulls", null.unwrap_or("false")), ("seen", "true")] {
        let local = format!("{name}_{counter}_here");
        pipe.head += &format!("  u64 {local} = 0;\n");
        pipe.line(format!("{local} += {condition} ? 1 : 0;"));
        let cell = pipe.buffer(&format!("{name}_{counter}"));
        pipe.tail += &format!("  block_add({cell}, {local});\n");
    }
}

fn has_outer_join(rel: &Rel) -> bool {
    match rel {
        Rel::Join(join) => {
            matches!(join.kind, JoinKind::Left | JoinKind::Full)
                || has_outer_join(&join.left)
                || has_outer_join(&join.right)
        }
        Rel::Filter { input, .. } | Rel::Map { input, .. } => has_outer_join(input),
        Rel::Aggregate(agg) => has_outer_join(&agg.input),
        Rel::Scan { .. } | Rel::Once => false,
    }
}

/// The mixed-radix number of values in their domains.
fn number(values: &[Value], domains: &[Domain]) -> String {
    let mut code = String::new();
    for (v, d) in values.iter().zip(domains) {
        let place = Emitter::place(v, *d);
        code = if code.is_empty() { place } else { format!("({code} * {} + {place})", d.span) };
    }
    if code.is_empty() { "0".to_owned() } else { code }
}

fn conjunction(tests: impl IntoIterator<Item = Option<String>>) -> String {
    let tests: Vec<String> = tests.into_iter().flatten().filter(|t| t != "true").collect();
    match tests.len() {
        0 => "true".to_owned(),
        1 => tests.into_iter().next().expect("one test"),
        _ => format!("({})", tests.join(" && ")),
    }
}

/// Gives the right side's key the value of the left side's.
fn bring_key(pipe: &Pipe, scope: &mut Scope, (left, right): &(Expr, Expr), value: &Value) {
    if let Kind::Col(id) = right.kind {
        let v = Value::new(value.code.clone(), value.form);
        scope.insert(id, (v, pipe_needs(pipe, left)));
    }
}

fn pipe_needs(pipe: &Pipe, e: &Expr) -> Vec<Arg> {
    e.columns().iter().flat_map(|c| pipe.needs.get(c).cloned().unwrap_or_default()).collect()
}

/// Brings right columns into scope: as they are, or NULL (and not read) where `matched` is false.
fn enter(pipe: &mut Pipe, scope: BTreeMap<ColId, (Value, Vec<Arg>)>, matched: Option<&str>) {
    for (id, (mut value, args)) in scope {
        if let Some(m) = matched {
            let zero = if value.form == Form::Text { "Str{nullptr, 0}" } else { "0" };
            value.code = match value.form {
                Form::Int(Elem::I128) | Form::Packed => format!("({m} ? {} : i128(0))", value.code),
                Form::Bool => format!("({m} && {})", value.code),
                _ => format!("({m} ? {} : {zero})", value.code),
            };
            let missing = format!("!{m}");
            value.null = Some(match value.null {
                Some(null) => format!("({missing} || {null})"),
                None => missing,
            });
        }
        pipe.env.insert(id, value);
        pipe.needs.insert(id, args);
    }
}

fn describe(kind: JoinKind, name: &str, how: &str) -> String {
    let kind = match kind {
        JoinKind::Inner => "inner",
        JoinKind::Left => "left",
        JoinKind::Full => "full",
        JoinKind::Semi => "semi",
        JoinKind::Anti => "anti",
        JoinKind::Mark(_) => "mark",
    };
    format!("{kind} probe of {name} ({how})")
}
