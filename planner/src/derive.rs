//! Columns that need not be carried: a unique key determines them, and the build side that gave them still has them.
//!
//! A sink then stores the key alone, and whoever reads the state looks the columns up by it.

use std::collections::{BTreeMap, BTreeSet};

use dkb_kernels::{Arg, Elem};

use crate::divide::Touch;
use crate::emit::{Emitter, Stored};
use crate::ir::ColId;
use crate::keys::{Domain, KeyRange};
use crate::pipe::{Form, Pipe, Value};

/// A column that a build side holds for the value of a unique key.
#[derive(Debug, Clone)]
pub(crate) struct Derived {
    /// Columns that have the key's value; any serves.
    pub(crate) keys: Vec<ColId>,
    /// The build side.
    pub(crate) lookup: String,
    pub(crate) ranked: bool,
    pub(crate) domain: Domain,
    /// The values by which it is looked up.
    pub(crate) met: Option<KeyRange>,
    pub(crate) stored: Stored,
}

/// Values in scope by column, each with the arguments that reading it takes.
pub(crate) type Scope = BTreeMap<ColId, (Value, Vec<Arg>)>;

impl Emitter<'_> {
    /// Takes the columns that need not be stored out of `columns`, which a sink is to hold beside the `known` ones.
    /// Their key is added where it is smaller than they are, if it `may_add`.
    pub(crate) fn defer(
        &self,
        pipes: &[Pipe],
        known: &BTreeSet<ColId>,
        columns: &mut BTreeSet<ColId>,
        may_add: bool,
    ) -> BTreeMap<ColId, Derived> {
        let mut deferred = BTreeMap::new();
        let [pipe] = pipes else { return deferred };
        loop {
            let held = |id: &ColId| known.contains(id) || columns.contains(id);
            let mut by_key: BTreeMap<ColId, Vec<ColId>> = BTreeMap::new();
            for (id, derived) in columns.iter().filter_map(|id| Some((*id, pipe.derived.get(id)?))) {
                let key = derived.keys.iter().find(|k| held(k)).unwrap_or(&derived.keys[0]);
                by_key.entry(*key).or_default().push(id);
            }
            let bytes = |ids: &[ColId]| ids.iter().map(|id| self.width(pipe, *id)).sum::<usize>();
            let found = by_key
                .into_iter()
                .find(|(key, ids)| held(key) || (may_add && bytes(ids) > self.width(pipe, *key)));
            let Some((key, ids)) = found else { return deferred };
            if !known.contains(&key) {
                columns.insert(key);
            }
            for id in ids {
                columns.remove(&id);
                deferred.insert(id, Derived { keys: vec![key], ..pipe.derived[&id].clone() });
            }
        }
    }

    /// Bytes in which a sink stores a column.
    pub(crate) fn width(&self, pipe: &Pipe, id: ColId) -> usize {
        let form = pipe.env.get(&id).map_or(Form::Text, |v| v.form);
        match form {
            Form::Int(elem) => {
                self.columns[id].range.map_or(elem, |(lo, hi)| Elem::narrowest(lo, hi)).bytes()
            }
            Form::Bool => 1,
            Form::Float => 8,
            Form::Packed => 16,
            Form::Text | Form::Fetch(..) => 4,
            Form::Dict(t, c) => self.code_elem(t, c).bytes(),
        }
    }

    /// Adds the deferred columns to a scope that holds what they are derived from.
    pub(crate) fn resolve(&self, pipe: &mut Pipe, derived: &BTreeMap<ColId, Derived>, scope: &mut Scope) {
        let mut pending: Vec<(&ColId, &Derived)> = derived.iter().collect();
        while let Some(at) = pending.iter().position(|(_, d)| scope.contains_key(&d.keys[0])) {
            let (id, derived) = pending.swap_remove(at);
            let found = self.look_up(pipe, derived, &scope[&derived.keys[0]].clone());
            scope.insert(*id, found);
        }
    }

    /// The value of a deferred column for a key that is known to have one.
    pub(crate) fn look_up(
        &self,
        pipe: &mut Pipe,
        derived: &Derived,
        (key, needs): &(Value, Vec<Arg>),
    ) -> (Value, Vec<Arg>) {
        let name = &derived.lookup;
        pipe.touches.push(Touch { state: name.clone(), key: key.code.clone(), keys: derived.met });
        let place = Self::place(&Value { null: None, ..key.clone() }, derived.domain);
        let (place, mut args) = self.local(name, place);
        let row = match derived.ranked {
            true => {
                args.extend([Arg::Buffer(format!("{name}_words")), Arg::Buffer(format!("{name}_heads"))]);
                format!("{name}_heads[rank_of({name}_words, {place})] - 1")
            }
            false => place,
        };
        let (value, stored) = derived.stored.at(&row);
        args.extend(stored);
        args.extend(needs.iter().cloned());
        (value, args)
    }
}
