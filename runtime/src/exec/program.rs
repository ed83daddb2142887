//! A checked plan with every name resolved, so that launching looks up nothing by name but sizes.

use std::collections::HashMap;

use super::prune::Prune;
use dkb_kernels::{
    Arg, CheckError, ColumnRepr, Launch, On, Over, ParamsLayout, Physical, Plan, Reduce, check, params_layout,
};

/// A table's column in one representation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ColumnUse {
    pub(crate) table: String,
    pub(crate) column: String,
    pub(crate) repr: ColumnRepr,
}

/// A resolved kernel argument; numbers are indices into the program's lists.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slot {
    Rows,
    FirstRow,
    Params,
    Flags,
    Part,
    Parts,
    Values(usize),
    Valid(usize),
    Offsets(usize),
    Bytes(usize),
    DictOffsets(usize),
    DictBytes(usize),
    Len(usize),
    Buffer(usize),
    Peer(usize),
}

/// A resolved launch.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) kernel: String,
    /// The expression that gives its work items, or its programs if it is in Triton.
    pub(crate) grid: String,
    pub(crate) slots: Vec<Slot>,
}

/// A resolved phase.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) over: Over,
    pub(crate) on: On,
    pub(crate) calls: Vec<Call>,
    pub(crate) merge: Option<Call>,
    /// Indices of buffers.
    pub(crate) writes: Vec<usize>,
    /// Indices of the columns its launches read.
    pub(crate) columns: Vec<usize>,
    /// Row groups that matter, where not all do.
    pub(crate) prune: Option<Prune>,
}

/// The phases that run once a part, and the buffers that hold one part.
#[derive(Debug)]
pub(crate) struct ShardSteps {
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// By buffer.
    pub(crate) buffers: Vec<bool>,
}

/// A plan ready to run.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) plan: Plan,
    pub(crate) params: ParamsLayout,
    pub(crate) steps: Vec<Step>,
    /// Columns that some launch reads.
    pub(crate) columns: Vec<ColumnUse>,
    /// Dictionaries, as (table, column): of all inputs that are codes, and those that some launch reads.
    pub(crate) dicts: Vec<(String, String)>,
    /// By size: the buffer that counts its rows.
    pub(crate) counters: Vec<Option<usize>>,
    pub(crate) shard: Option<ShardSteps>,
    /// By column of the result: the buffers of its values and of their validity.
    pub(crate) result: Vec<(usize, Option<usize>)>,
    /// By buffer: whether the result or its row count is read from it.
    pub(crate) in_result: Vec<bool>,
    /// Whether the last phase appends to the result and nothing reduces it.
    rows_may_differ: bool,
}

impl Program {
    /// Checks and resolves a plan.
    ///
    /// # Errors
    /// The check's.
    pub(crate) fn new(plan: Plan) -> Result<Program, CheckError> {
        check(&plan)?;
        let mut lower =
            Lower { plan: &plan, buffers: HashMap::new(), columns: Vec::new(), dicts: Vec::new() };
        lower.buffers = plan.buffers.iter().enumerate().map(|(i, b)| (b.name.clone(), i)).collect();
        let steps = plan
            .phases
            .iter()
            .map(|phase| {
                let calls: Vec<Call> =
                    phase.launches.iter().map(|l| lower.call(l)).collect::<Result<_, _>>()?;
                let mut columns: Vec<usize> =
                    calls.iter().flat_map(|c| &c.slots).filter_map(Slot::column).collect();
                columns.sort_unstable();
                columns.dedup();
                Ok(Step {
                    name: phase.name.clone(),
                    prune: phase.prune.as_ref().map(|p| Prune::new(p, &plan)),
                    over: phase.over.clone(),
                    on: phase.on,
                    calls,
                    merge: phase.merge.as_ref().map(|l| lower.call(l)).transpose()?,
                    writes: phase.writes.iter().map(|b| lower.buffer(b)).collect::<Result<_, _>>()?,
                    columns,
                })
            })
            .collect::<Result<Vec<Step>, CheckError>>()?;
        let counters: Vec<Option<usize>> = plan
            .sizes
            .values()
            .map(|s| s.counter.as_ref().map(|c| lower.buffer(c)).transpose())
            .collect::<Result<_, _>>()?;

        let columns = plan.result.columns.iter();
        let result: Vec<(usize, Option<usize>)> = columns
            .map(|c| Ok((lower.buffer(&c.from)?, c.valid.as_ref().map(|v| lower.buffer(v)).transpose()?)))
            .collect::<Result<_, CheckError>>()?;
        let mut in_result = vec![false; plan.buffers.len()];
        let mut rows_may_differ = true;
        for at in result.iter().flat_map(|(values, valid)| std::iter::once(*values).chain(*valid)) {
            in_result[at] = true;
            rows_may_differ &= matches!(plan.buffers[at].reduce, Reduce::None | Reduce::Concat);
        }
        let counter = plan.sizes.get_index_of(&plan.result.size).and_then(|at| counters[at]);
        let slots = steps.last().into_iter().flat_map(|s| &s.calls).flat_map(|c| &c.slots);
        rows_may_differ &= slots.filter_map(Slot::buffer).any(|b| Some(b) == counter);
        if let Some(counter) = counter {
            in_result[counter] = true;
        }

        let shard = plan
            .shard
            .as_ref()
            .map(|shard| {
                let mut buffers = vec![false; plan.buffers.len()];
                for name in &shard.buffers {
                    buffers[lower.buffer(name)?] = true;
                }
                let find = |name: &str| plan.phases.iter().position(|p| p.name == name).unwrap_or_default();
                Ok::<_, CheckError>(ShardSteps {
                    first: find(&shard.first),
                    last: find(&shard.last),
                    buffers,
                })
            })
            .transpose()?;

        // Loading translates to codes by them.
        for (table, column, repr) in
            plan.inputs.iter().flat_map(|(t, cs)| cs.iter().map(move |(c, r)| (t, c, r)))
        {
            if matches!(repr.physical, Physical::Dict(_)) {
                lower.dict(table, column);
            }
        }
        let (columns, dicts) = (lower.columns, lower.dicts);
        let params = params_layout(&plan);
        Ok(Program {
            params,
            steps,
            columns,
            dicts,
            counters,
            shard,
            result,
            in_result,
            rows_may_differ,
            plan,
        })
    }

    /// Whether the result is the rows of all devices, one after another, rather than the root's.
    pub(crate) fn rows_on_every_device(&self, parts: u64) -> bool {
        let last = self.steps.len() - 1;
        let per_part = parts > 1 && self.shard.as_ref().is_some_and(|s| s.last == last);
        self.rows_may_differ && (self.steps[last].on == On::Partitions || per_part)
    }

    /// Index of the result's size.
    pub(crate) fn result_size(&self) -> usize {
        self.plan.sizes.get_index_of(&self.plan.result.size).unwrap_or_default()
    }

    /// Whether a buffer holds one part at a time.
    pub(crate) fn is_sharded(&self, buffer: usize) -> bool {
        self.shard.as_ref().is_some_and(|s| s.buffers[buffer])
    }
}

impl Slot {
    fn buffer(&self) -> Option<usize> {
        match self {
            Slot::Buffer(b) => Some(*b),
            _ => None,
        }
    }

    fn column(&self) -> Option<usize> {
        match self {
            Slot::Values(c) | Slot::Valid(c) | Slot::Offsets(c) | Slot::Bytes(c) => Some(*c),
            _ => None,
        }
    }
}

struct Lower<'a> {
    plan: &'a Plan,
    buffers: HashMap<String, usize>,
    columns: Vec<ColumnUse>,
    dicts: Vec<(String, String)>,
}

impl Lower<'_> {
    fn buffer(&self, name: &str) -> Result<usize, CheckError> {
        self.buffers.get(name).copied().ok_or_else(|| missing("buffers", name))
    }

    fn call(&mut self, launch: &Launch) -> Result<Call, CheckError> {
        let slots = launch.args.iter().map(|arg| self.slot(arg)).collect::<Result<_, _>>()?;
        Ok(Call { kernel: launch.kernel.clone(), grid: launch.grid().to_owned(), slots })
    }

    fn slot(&mut self, arg: &Arg) -> Result<Slot, CheckError> {
        Ok(match arg {
            Arg::Rows => Slot::Rows,
            Arg::FirstRow => Slot::FirstRow,
            Arg::Params => Slot::Params,
            Arg::Flags => Slot::Flags,
            Arg::Part => Slot::Part,
            Arg::Parts => Slot::Parts,
            Arg::Column(t, c) => Slot::Values(self.column(t, c)?),
            Arg::Valid(t, c) => Slot::Valid(self.column(t, c)?),
            Arg::Offsets(t, c) => Slot::Offsets(self.column(t, c)?),
            Arg::Bytes(t, c) => Slot::Bytes(self.column(t, c)?),
            Arg::DictOffsets(t, c) => Slot::DictOffsets(self.dict(t, c)),
            Arg::DictBytes(t, c) => Slot::DictBytes(self.dict(t, c)),
            Arg::Len(s) => Slot::Len(self.plan.sizes.get_index_of(s).ok_or_else(|| missing("sizes", s))?),
            Arg::Buffer(b) => Slot::Buffer(self.buffer(b)?),
            Arg::Peer(b) => Slot::Peer(self.buffer(b)?),
        })
    }

    fn column(&mut self, table: &str, column: &str) -> Result<usize, CheckError> {
        let repr = self.plan.inputs.get(table).and_then(|t| t.get(column));
        let repr = *repr.ok_or_else(|| missing("inputs", &format!("{table}.{column}")))?;
        let wanted = ColumnUse { table: table.to_owned(), column: column.to_owned(), repr };
        Ok(index_of(&mut self.columns, wanted))
    }

    fn dict(&mut self, table: &str, column: &str) -> usize {
        index_of(&mut self.dicts, (table.to_owned(), column.to_owned()))
    }
}

fn index_of<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|i| *i == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

fn missing(field: &str, name: &str) -> CheckError {
    CheckError { field: field.to_owned(), message: format!("no `{name}`") }
}
