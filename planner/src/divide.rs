//! State divided by key: which aggregates and build sides may be computed part by part, and together.
//!
//! A part is a range of the values of one key. Every pipeline that meets divided state skips the rows whose key
//! lies in another part, so that each row takes effect in exactly one. Arrays indexed by the key then hold a
//! part's range only. State without an integer key is divided alone, by a hash of its whole key.

use std::collections::{BTreeSet, HashMap};

use dkb_kernels::{Arg, On, Phase, Shard, Size};

use crate::emit::{Emitter, Fault};
use crate::ir::Range;
use crate::keys::{Domain, KeyRange};
use crate::pipe::{Form, Pipe, Value};

/// The size that holds the number of key values in a part.
pub(crate) const PART_KEYS: &str = "part_keys";

/// Keys of more values than this are divided by their hash: lengths have 64 bits.
pub(crate) const MOST_KEYS: u128 = 1 << 62;

/// An aggregate or build side that may be divided.
#[derive(Debug)]
pub(crate) struct Divisible {
    pub(crate) name: String,
    /// Bytes of its buffers, as estimated.
    pub(crate) bytes: f64,
    /// The values of the key that divides it; None where only a hash of the whole key can.
    pub(crate) keys: Option<u128>,
    pub(crate) buffers: Vec<String>,
}

/// States that are divided together.
#[derive(Debug, Clone)]
pub(crate) struct Division {
    states: BTreeSet<String>,
    /// The key's values, of which each part has a range; None where a hash decides.
    keys: Option<Domain>,
}

/// A pipeline's use of a state: the key by which it fills or reads it.
#[derive(Debug, Clone)]
pub(crate) struct Touch {
    pub(crate) state: String,
    /// The key's value, as C++.
    pub(crate) key: String,
    /// The values that it can take; None where they are unknown or no integers.
    pub(crate) keys: Option<KeyRange>,
}

/// What the phases do with buffers and states. Buffers are numbers here: schedules are tried by the hundred.
struct Uses<'a> {
    /// By name of a buffer.
    numbers: HashMap<&'a str, usize>,
    /// By phase, the buffers that its kernels refer to.
    mentions: Vec<BTreeSet<usize>>,
    /// By phase, the buffers that it writes.
    writes: Vec<BTreeSet<usize>>,
    /// By phase, how its pipelines meet states.
    touches: Vec<Vec<&'a Touch>>,
    /// By buffer, the first phase that refers to it.
    makers: Vec<Option<usize>>,
}

/// Phases that run once a part, and those before the last of them that are moved in front.
struct Schedule {
    inside: Vec<usize>,
    moved: Vec<usize>,
    buffers: Vec<String>,
}

impl Uses<'_> {
    /// The numbers of buffers.
    fn buffers<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> impl Iterator<Item = usize> {
        names.into_iter().filter_map(|name| self.numbers.get(name.as_str()).copied())
    }
}

impl Emitter<'_> {
    /// The size of the key ranges, if state is divided by such.
    pub(crate) fn declare_part(&mut self) {
        if let Some(keys) = self.divided.and_then(|d| d.keys) {
            let value = format!("({} + parts - 1) / parts", self.span_len(keys));
            self.sizes.insert(PART_KEYS.to_owned(), Size { value, counter: None, pow2: false });
        }
    }

    /// The key values among which a state is divided, if it is divided by ranges of them.
    pub(crate) fn part_domain(&self, state: &str) -> Option<Domain> {
        self.divided.filter(|d| d.states.contains(state))?.keys
    }

    /// Whether a state is divided by a hash of its key.
    pub(crate) fn is_divided_by_hash(&self, state: &str) -> bool {
        self.divided.is_some_and(|d| d.states.contains(state) && d.keys.is_none())
    }

    /// Notes that the pipeline fills or reads a state by a key. Skips the row if that is a key of another part.
    pub(crate) fn meet_state(&self, pipe: &mut Pipe, state: &str, key: &Value, keys: Option<KeyRange>) {
        let keys = keys.filter(|_| matches!(key.form, Form::Int(_)));
        pipe.touches.push(Touch { state: state.to_owned(), key: key.code.clone(), keys });
        let Some(keys) = self.part_domain(state) else { return };
        if !pipe.in_part.insert(key.code.clone()) {
            return;
        }
        let place = Self::place(&Value { null: None, ..key.clone() }, keys);
        // A row without a key belongs to the first part.
        let place = key.null.iter().fold(place, |place, null| format!("({null} ? 0 : {place})"));
        let place = self.local_in(pipe, state, place);
        pipe.skip_if(format!("{place} >= {PART_KEYS}_len /* a key of another part */"));
    }

    /// A key's place within its part, with the arguments that this takes.
    pub(crate) fn local(&self, state: &str, place: String) -> (String, Vec<Arg>) {
        match self.part_domain(state) {
            Some(_) => (
                format!("({place} - part * {PART_KEYS}_len)"),
                vec![Arg::Part, Arg::Len(PART_KEYS.to_owned())],
            ),
            None => (place, vec![]),
        }
    }

    /// A key's place within its part, in the pipeline's kernel.
    pub(crate) fn local_in(&self, pipe: &mut Pipe, state: &str, place: String) -> String {
        let (place, args) = self.local(state, place);
        pipe.args.extend(args);
        place
    }

    /// Chooses the states that are divided: the largest that can be, and what goes with it. Planning then starts
    /// over with kernels that skip keys of other parts.
    pub(crate) fn divide(&mut self) -> Result<Option<Shard>, Fault> {
        let mut candidates = std::mem::take(&mut self.divisible);
        candidates.sort_by(|a, b| b.bytes.total_cmp(&a.bytes));
        let uses = self.uses();
        if let Some(division) = self.divided {
            let states: Vec<&Divisible> =
                candidates.iter().filter(|c| division.states.contains(&c.name)).collect();
            let schedule = self.schedule(&states, &uses).ok();
            return Ok(schedule.map(|schedule| self.reorder(schedule)));
        }
        let mut best: Option<(f64, Vec<&Divisible>)> = None;
        for seed in &candidates {
            let Some(mut group) = self.grow(vec![seed], &candidates, &uses) else { continue };
            for other in candidates.iter().filter(|c| seed.keys.is_some() && c.keys.is_some()) {
                if !group.iter().any(|c| c.name == other.name) {
                    let larger = group.iter().copied().chain([other]).collect();
                    group = self.grow(larger, &candidates, &uses).unwrap_or(group);
                }
            }
            let bytes = group.iter().map(|c| c.bytes).sum();
            if best.as_ref().is_none_or(|(most, _)| bytes > *most) {
                best = Some((bytes, group));
            }
        }
        let Some((_, group)) = best else { return Ok(None) };
        let keys = group[0].keys.and_then(|_| self.common_keys(&group));
        Err(Fault::Divide(Division { states: group.iter().map(|c| c.name.clone()).collect(), keys }))
    }

    /// Adds the states without which these cannot be divided.
    fn grow<'a>(
        &self,
        mut group: Vec<&'a Divisible>,
        all: &'a [Divisible],
        uses: &Uses,
    ) -> Option<Vec<&'a Divisible>> {
        loop {
            let Err(needed) = self.schedule(&group, uses) else { return Some(group) };
            let by_range = |c: &&Divisible| c.keys.is_some() && group[0].keys.is_some();
            let is_new = |c: &&Divisible| by_range(c) && !group.iter().any(|g| g.name == c.name);
            let owner = |c: &&Divisible| uses.buffers(&c.buffers).any(|b| needed.contains(&b));
            group.push(all.iter().filter(is_new).find(owner)?);
        }
    }

    /// All values by which the states are met.
    fn common_keys(&self, states: &[&Divisible]) -> Option<Domain> {
        let met = |t: &&Touch| states.iter().any(|s| s.name == t.state);
        let touches = self.touches.iter().flat_map(|(_, list)| list).filter(met);
        let mut all: Option<Range> = None;
        for touch in touches.clone() {
            let (lo, hi) = touch.keys?.range;
            all = Some(all.map_or((lo, hi), |(a, b)| (a.min(lo), b.max(hi))));
        }
        let (min, max) = all?;
        let whole = touches.filter_map(|t| t.keys).filter(|keys| keys.range == (min, max));
        // The keys of the smallest table are those to which the others' refer.
        let column = whole.filter_map(|keys| keys.column).min_by_key(|(t, _)| self.tables[*t].rows);
        let span = u128::try_from(max.checked_sub(min)?.checked_add(1)?).ok()?;
        let largest = states.iter().filter_map(|s| s.keys).max()?;
        // Arrays must not grow by much to serve all.
        (span <= MOST_KEYS.min(largest * 2)).then_some(Domain { min, span, nullable: false, column })
    }

    fn uses(&self) -> Uses<'_> {
        let numbers: HashMap<&str, usize> =
            self.buffers.iter().enumerate().map(|(k, b)| (b.name.as_str(), k)).collect();
        let mut touches: HashMap<&str, Vec<&Touch>> = HashMap::new();
        for (phase, list) in &self.touches {
            touches.entry(phase).or_default().extend(list);
        }
        let mut uses = Uses {
            mentions: Vec::new(),
            writes: Vec::new(),
            touches: self
                .phases
                .iter()
                .map(|p| touches.get(p.name.as_str()).cloned().unwrap_or_default())
                .collect(),
            makers: vec![None; self.buffers.len()],
            numbers,
        };
        for (k, phase) in self.phases.iter().enumerate() {
            let args = phase.launches.iter().chain(&phase.merge).flat_map(|l| &l.args);
            let mentioned = args.filter_map(|a| if let Arg::Buffer(b) = a { Some(b) } else { None });
            let mentioned: BTreeSet<usize> = uses.buffers(mentioned).collect();
            mentioned.iter().for_each(|b| uses.makers[*b] = uses.makers[*b].or(Some(k)));
            uses.mentions.push(mentioned);
            uses.writes.push(uses.buffers(&phase.writes).collect());
        }
        uses
    }

    /// How the phases run once a part, if they can: all from the first that touches the states to the last do, or can be
    /// moved in front; each meets the states by one key; and none needs what another has only begun.
    ///
    /// # Errors
    /// Buffers that would have to be divided, too; none if that would not help.
    fn schedule(&self, states: &[&Divisible], uses: &Uses) -> Result<Schedule, BTreeSet<usize>> {
        let never = BTreeSet::new;
        if states.iter().any(|s| s.keys.is_some()) && self.common_keys(states).is_none() {
            return Err(never());
        }
        // By buffer, the state that it belongs to.
        let mut owner: Vec<Option<usize>> = vec![None; uses.makers.len()];
        for (state, divisible) in states.iter().enumerate() {
            uses.buffers(&divisible.buffers).for_each(|b| owner[b] = Some(state));
        }
        let touching: Vec<bool> =
            uses.mentions.iter().map(|m| m.iter().any(|b| owner[*b].is_some())).collect();
        let first = touching.iter().position(|touches| *touches).ok_or_else(never)?;
        let last = touching.iter().rposition(|touches| *touches).ok_or_else(never)?;
        let (inside, moved): (Vec<usize>, Vec<usize>) = (first..=last).partition(|k| touching[*k]);
        let waits_for = |b: &usize| uses.makers[*b].is_some_and(|maker| maker >= first && touching[maker]);
        if let Some(k) = moved.iter().find(|k| uses.mentions[**k].iter().any(waits_for)) {
            return Err(uses.mentions[*k].clone());
        }
        for &k in &inside {
            let met: BTreeSet<usize> = uses.mentions[k].iter().filter_map(|b| owner[*b]).collect();
            let keys = |state: usize| {
                let list = uses.touches[k].iter().filter(move |t| t.state == states[state].name);
                list.map(|t| t.key.as_str())
            };
            let all_met = met.iter().all(|state| keys(*state).next().is_some());
            let one_key = met.iter().flat_map(|state| keys(*state)).collect::<BTreeSet<_>>().len() <= 1;
            if self.phases[k].on != On::Each && !(one_key && all_met) {
                return Err(never());
            }
            let elsewhere = |b: usize| inside.iter().any(|&j| j != k && uses.mentions[j].contains(&b));
            let begun = uses.writes[k].iter().copied().filter(|b| owner[*b].is_none() && elsewhere(*b));
            let begun: BTreeSet<usize> = begun.collect();
            if !begun.is_empty() {
                return Err(begun);
            }
        }
        let owned = (0..owner.len()).filter(|b| owner[*b].is_some());
        let mut buffers: Vec<String> = owned.map(|b| self.buffers[b].name.clone()).collect();
        buffers.sort_unstable();
        Ok(Schedule { inside, moved, buffers })
    }

    fn reorder(&mut self, Schedule { inside, moved, buffers }: Schedule) -> Shard {
        let name = |k: usize| self.phases[k].name.clone();
        let shard = Shard { first: name(inside[0]), last: name(inside[inside.len() - 1]), buffers };
        let start = inside[0];
        let count = inside.len() + moved.len();
        let mut run: Vec<Option<Phase>> = self.phases.drain(start..start + count).map(Some).collect();
        let order = moved.into_iter().chain(inside);
        let phases: Vec<Phase> = order.filter_map(|k| run[k - start].take()).collect();
        self.phases.splice(start..start, phases);
        shard
    }
}
