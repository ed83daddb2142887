//! Phases, launches and reruns: one run of a program from bound parameters to its result's rows.
//!
//! One host thread a device issues its launches between two exchanges; device 0 is the root. Invariant:
//! nothing that a run learns, sizes included, is kept for the next.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use dkb_kernels::{On, Over, ParamWord, Plan};

use super::Error;
use super::buffers::{Env, Facts, Layout, Slab, Slabs, Use, capacities};
use super::columns::{DeviceColumn, DeviceDict, Pointers, Store};
use super::feed::{Feed, Visit};
use super::marks::{Marks, Moves};
use super::narrow::Narrower;
use super::program::{Call, ColumnUse, Program, Slot, Step};
use super::reduce;
use super::replay::Replay;
use super::result::{self, Answer};
use super::traffic::Given;
use super::watch::{Argument, Launching, Watch};
use crate::device::{Device, DeviceError, Download, Memory, Module, sanitizing};
use crate::nvtx;
use crate::trace::{Span, Stage, Timeline, now_ms};

/// A size that is still too small after so many reruns is a defect of the plan.
const MAX_RERUNS: u64 = 20;
/// State is divided into at most so many parts.
const MAX_PARTS: u64 = 1024;

/// One device's side of a prepared query.
pub(crate) struct Worker {
    pub(crate) number: usize,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) module: Arc<dyn Module>,
    /// What finds the first rows of an order, if the plan has a limit.
    pub(super) narrower: Option<Narrower>,
    pub(crate) slabs: Slabs,
    params: Option<Params>,
    /// By column of the program; empty until loaded, and where columns are streamed.
    pub(crate) columns: Vec<Arc<DeviceColumn>>,
    /// By dictionary of the program.
    pub(crate) dicts: Vec<Arc<DeviceDict>>,
}

/// Parameters on a device.
struct Params {
    memory: Box<dyn Memory>,
    /// What was uploaded last: all of the memory.
    bytes: Vec<u8>,
}

impl Worker {
    /// The device of that number with a plan's compiled source.
    ///
    /// # Errors
    /// A source that does not compile, no compiler, or a failed device call.
    pub(crate) fn new(number: usize, device: Arc<dyn Device>, plan: &Plan) -> Result<Worker, DeviceError> {
        let module = device.compile(plan)?;
        let narrower = plan.finish.limit.map(|_| Narrower::new(device.as_ref())).transpose()?;
        Ok(Worker {
            number,
            device,
            module,
            narrower,
            slabs: Slabs::default(),
            params: None,
            columns: Vec::new(),
            dicts: Vec::new(),
        })
    }

    /// Memory with room for parameters.
    fn params_memory(&mut self, program: &Program, values: &[ParamWord]) -> Result<Params, DeviceError> {
        let bytes = program.params.packed_bytes(values);
        match self.params.take() {
            Some(params) if params.memory.bytes() >= bytes => Ok(params),
            _ => {
                let memory = self.device.alloc(bytes.next_multiple_of(256))?;
                Ok(Params { memory, bytes: Vec::new() })
            }
        }
    }

    fn bind(&mut self, program: &Program, values: &[ParamWord]) -> Result<(), Error> {
        let Params { memory, .. } = self.params_memory(program, values)?;
        let mut bytes = program.params.pack(values, memory.address())?;
        bytes.resize(memory.bytes(), 0);
        self.device.upload(memory.as_ref(), 0, &bytes)?;
        self.params = Some(Params { memory, bytes });
        Ok(())
    }

    /// Gives back the memory that runs write.
    pub(crate) fn clear(&mut self) {
        self.params = None;
        self.slabs.clear();
    }

    /// Whether the parameters are those that were bound. Waits.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn has_params(&self) -> Result<bool, DeviceError> {
        let Some(Params { memory, bytes }) = &self.params else { return Ok(true) };
        let mut found = vec![0; bytes.len()];
        self.device.download(memory.as_ref(), 0, &mut found)?;
        Ok(found == *bytes)
    }

    /// The memory that runs write.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &dyn Memory> {
        let narrower = self.narrower.iter().map(|narrower| narrower.memory.as_ref());
        self.params.iter().map(|params| params.memory.as_ref()).chain(narrower).chain(self.slabs.all())
    }

    /// The addresses that change between runs of a loaded query if its memory does.
    pub(crate) fn addresses(&self) -> Vec<u64> {
        self.memory().map(|memory| memory.address()).collect()
    }
}

/// What a run is told.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunOptions {
    /// Fill unspecified buffers with a pattern that changes between runs.
    pub(crate) poison: bool,
    /// Divide every watched size by this.
    pub(crate) shrink: Option<u64>,
    /// Divide state into this many parts.
    pub(crate) shards: Option<u64>,
    /// Bytes a device may use for columns and buffers.
    pub(crate) budget_bytes: u64,
    /// Where spans are recorded.
    pub(crate) timeline: Arc<Timeline>,
    /// Issue every launch by itself, and record it and every exchange among the spans.
    pub(crate) apart: bool,
    /// What is told each launch.
    pub(crate) watch: Option<Watch>,
}

/// The outcome of a run.
pub(crate) enum Outcome {
    /// The result.
    Rows(Output),
    /// An assumption does not hold.
    Violated(usize),
    /// The buffers have outgrown the memory; more parts may help.
    TooLarge,
}

/// What a run gave.
pub(crate) struct Output {
    pub(crate) answer: Answer,
    pub(crate) tally: Tally,
    pub(crate) rows_per_device: Vec<u64>,
    /// Rows of row groups that no phase needed.
    pub(crate) rows_pruned: u64,
    pub(crate) reruns: u64,
    /// By size: its counter, where it has one.
    counts: Vec<u64>,
    /// Where buffers lay, if not as the setup says.
    layout: Option<Box<Layout>>,
    /// What buffers that start unspecified were filled with, if they were.
    pub(crate) poison: Option<u8>,
}

/// What was launched.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) launches: u64,
    /// Table rows streamed over.
    pub(crate) rows: u64,
    /// Bytes of the columns among each launch's arguments, over the rows that it ran on.
    pub(crate) column_bytes: u64,
}

/// What a run begins with; it depends on the data set, the plan and where memory lies, and on no literals.
pub(crate) struct Setup {
    /// Into how many parts sharded state is divided.
    pub(crate) parts: u64,
    /// The most that buffers may take, where more parts would help; in bytes.
    limit_bytes: Option<u64>,
    sizes: Vec<u64>,
    layout: Layout,
    replay: Replay,
}

impl Setup {
    /// Bytes of all buffers on one device.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// Takes the number of parts asked for, or `least` or more: as few as fit the budget beside the columns.
    /// `column_bytes` says how many bytes of columns a device holds, with whole tables on each or not.
    ///
    /// # Errors
    /// Lengths that cannot be evaluated.
    pub(crate) fn new(
        program: &Program,
        facts: &Facts,
        options: &RunOptions,
        devices: usize,
        least: u64,
        column_bytes: impl Fn(bool) -> Result<u64, Error>,
    ) -> Result<Setup, Error> {
        let learned = vec![0; program.counters.len()];
        let mut parts = match (&program.shard, options.shards) {
            (None, _) => 1,
            (Some(_), Some(parts)) => parts.clamp(1, MAX_PARTS),
            (Some(_), None) => least,
        };
        loop {
            let sizes = capacities(program, facts, parts, options.shrink, &learned)?;
            let layout = Layout::new(&Env { program, facts, sizes: &sizes, parts })?;
            let more_helps = program.shard.is_some() && options.shards.is_none() && parts < MAX_PARTS;
            let limit_bytes = match more_helps {
                true => Some(options.budget_bytes.saturating_sub(column_bytes(parts > 1)?)),
                false => None,
            };
            if limit_bytes.is_none_or(|limit| layout.bytes() <= limit) {
                return Ok(Setup { parts, limit_bytes, sizes, layout, replay: Replay::default() });
            }
            // No device is left without a part.
            parts = (parts * 2).max(devices as u64);
        }
    }

    /// Where the buffers of a run with this setup lay.
    pub(crate) fn layout_of<'a>(&'a self, output: &'a Output) -> &'a Layout {
        output.layout.as_deref().unwrap_or(&self.layout)
    }

    /// Bytes that the launches of a run with this setup were given: columns over the rows that they ran on, as well as
    /// buffers and dictionaries. Merges, exchanges and what starts buffers are not counted.
    pub(crate) fn kernel_bytes(&self, program: &Program, workers: &[Worker], output: &Output) -> u64 {
        let given = Given {
            program,
            layout: self.layout_of(output),
            counts: &output.counts,
            dicts: &workers[0].dicts,
        };
        output.tally.column_bytes + given.in_run(workers.len() as u64, self.parts)
    }
}

/// Takes the memory of a run ahead of it, as far as there is room.
///
/// # Errors
/// A failed device call.
pub(crate) fn make_room(
    program: &Program,
    store: &Store,
    workers: &mut [Worker],
    values: &[ParamWord],
    setup: &Setup,
) -> Result<(), Error> {
    for worker in workers {
        worker.params = Some(worker.params_memory(program, values)?);
        match fit(worker, store, &setup.layout) {
            Err(DeviceError::OutOfMemory { .. }) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Runs a program whose columns are loaded, repeating it while a size is too small.
///
/// # Errors
/// Device failures, a failing query, or a size that never suffices.
pub(crate) fn run(
    program: &Program,
    store: &Store,
    facts: &Facts,
    workers: &mut [Worker],
    values: &[ParamWord],
    setup: &mut Setup,
    options: &RunOptions,
) -> Result<Outcome, Error> {
    for worker in workers.iter_mut() {
        worker.bind(program, values)?;
    }
    let Setup { parts, limit_bytes, sizes: first_sizes, layout: first_layout, replay } = setup;
    let (parts, limit_bytes) = (*parts, *limit_bytes);
    let one_by_one = sanitizing() || options.watch.is_some() || options.apart;
    let can_replay = workers.len() == 1 && parts == 1 && !store.streams() && !one_by_one;
    let mut learned = vec![0; program.counters.len()];
    let mut grown: Option<(Vec<u64>, Layout)> = None;
    let mut reruns = 0;
    loop {
        let (sizes, layout) = grown.as_ref().map_or((&*first_sizes, &*first_layout), |(s, l)| (s, l));
        if limit_bytes.is_some_and(|limit| layout.bytes() > limit) {
            return Ok(Outcome::TooLarge);
        }
        for worker in workers.iter_mut() {
            match fit(worker, store, layout) {
                Err(DeviceError::OutOfMemory { .. }) if limit_bytes.is_some() => {
                    return Ok(Outcome::TooLarge);
                }
                other => other?,
            }
        }
        let poison = (options.poison && (!sanitizing() || options.watch.is_some())).then(next_pattern);
        let visits = if store.streams() { visits(program, store, values, parts)? } else { Vec::new() };
        let rows_pruned = rows_pruned(store, &visits)?;
        let feed = (!visits.is_empty()).then(|| Feed::new(store, program, visits)).transpose()?;
        let env = Env { program, facts, sizes, parts };
        let marks = options.apart.then(Marks::default);
        let (feed, marks, watch) = (feed.as_ref(), marks.as_ref(), options.watch);
        let machine = Machine { env, store, feed, layout, workers, poison, marks, watch };
        let mut counts = vec![0; sizes.len()];
        let tallies = match feed {
            Some(feed) => feed.during(|| machine.run(&mut counts))?,
            None if can_replay && grown.is_none() => replay.run(&machine, &mut counts)?,
            None => machine.run(&mut counts)?,
        };
        let everywhere = program.rows_on_every_device(parts);
        let copies = machine.on_all(|device, worker| {
            let has_rows = device == 0 || everywhere;
            machine.copies(worker, |slab| slab.purpose == Use::Status || has_rows && result::is_small(slab))
        });
        let copies = copies.map_err(|e| in_step(&program.steps, e))?;
        let status: Vec<Status> = copies.iter().map(|c| machine.status_of(c, Use::Status)).collect();
        status.iter().for_each(|s| raise(&mut counts, &s.counters));
        let given = Given { program, layout, counts: &counts, dicts: &workers[0].dicts };
        marks.iter().try_for_each(|marks| marks.record(&options.timeline, &given))?;

        let too_small: Vec<usize> = (0..sizes.len()).filter(|s| counts[*s] > sizes[*s]).collect();
        if !too_small.is_empty() && reruns < MAX_RERUNS {
            for size in too_small {
                let pow2 = program.plan.sizes[size].pow2;
                let wanted = if pow2 { counts[size].saturating_mul(2) } else { counts[size] };
                learned[size] = wanted.max(sizes[size].saturating_mul(2));
            }
            let sizes = capacities(program, facts, parts, options.shrink, &learned)?;
            let layout = Layout::new(&Env { program, facts, sizes: &sizes, parts })?;
            grown = Some((sizes, layout));
            reruns += 1;
            continue;
        }
        // Flags count only when nothing was cut short; else they may come from incomplete input.
        let violated = status.iter().fold(0, |all, s| all | s.flags[0]);
        if violated != 0 {
            return Ok(Outcome::Violated(violated.trailing_zeros() as usize));
        }
        if let Some(size) = too_small.first() {
            let (name, _) = program.plan.sizes.get_index(*size).unzip();
            return Err(Error::Execution(format!(
                "size `{}` is still too small after {reruns} reruns: {} rows for a capacity of {}",
                name.map_or("", String::as_str),
                counts[*size],
                sizes[*size]
            )));
        }
        if let Some(code) = status.iter().map(|s| s.flags[1]).find(|code| *code != 0) {
            return Err(Error::Data(data_error(code)));
        }
        let size = program.result_size();
        let rows = status.iter().enumerate().map(|(device, status)| match device {
            1.. if !everywhere => 0,
            _ => status.counters[size].unwrap_or(sizes[size]) as usize,
        });
        let answer = result::answer(&machine, &rows.collect::<Vec<_>>(), &copies)?;
        let (end_ms, name) = (now_ms(), "finish".to_owned());
        let start_ms = end_ms - answer.finish_ms;
        let finish = Span { device: 0, stage: Stage::Finish, name, start_ms, end_ms, bytes: 0 };
        options.timeline.record(finish);
        let tally = tallies.iter().fold(Tally::default(), |a, b| a.plus(*b));
        let rows_per_device = tallies.iter().map(|t| t.rows).collect();
        let layout = grown.map(|(_, layout)| Box::new(layout));
        let output = Output { answer, tally, rows_per_device, rows_pruned, reruns, counts, layout, poison };
        return Ok(Outcome::Rows(output));
    }
}

/// The steps that stream over tables, in the order in which they run.
fn visits(program: &Program, store: &Store, values: &[ParamWord], parts: u64) -> Result<Vec<Visit>, Error> {
    let devices = store.devices.len() as u64;
    let sharded = program.shard.as_ref().filter(|_| parts > 1).map(|s| (s.first, s.last));
    let mut visits = Vec::new();
    let mut visit = |step: usize, pass: u64, whole: Option<Vec<bool>>| {
        let Step { over: Over::Table(table), columns, prune, .. } = &program.steps[step] else {
            return Ok(());
        };
        if columns.is_empty() {
            return Ok(());
        }
        let kept = prune.as_ref().map(|p| p.keeps(values, store.table(table)?)).transpose()?;
        visits.push(Visit { step, pass, table: table.clone(), kept, whole });
        Ok::<_, Error>(())
    };
    let mut step = 0;
    while step < program.steps.len() {
        match sharded {
            Some((first, last)) if first == step => {
                for pass in 0..parts.div_ceil(devices) {
                    let runs: Vec<bool> = (0..devices).map(|d| pass * devices + d < parts).collect();
                    (first..=last).try_for_each(|step| visit(step, pass, Some(runs.clone())))?;
                }
                step = last + 1;
            }
            _ => {
                visit(step, 0, None)?;
                step += 1;
            }
        }
    }
    Ok(visits)
}

/// Rows of the visited tables that lie in row groups without a row that matters, by their statistics.
fn rows_pruned(store: &Store, visits: &[Visit]) -> Result<u64, Error> {
    let mut pruned = 0;
    for visit in visits {
        if let Some(kept) = &visit.kept {
            let kept: u64 = kept.iter().map(|rows| rows.end - rows.start).sum();
            pruned += store.table(&visit.table)?.info.rows - kept;
        }
    }
    Ok(pruned)
}

fn fit(worker: &mut Worker, store: &Store, layout: &Layout) -> Result<(), DeviceError> {
    loop {
        match worker.slabs.fit(worker.device.as_ref(), layout) {
            Err(DeviceError::OutOfMemory { .. }) => {
                worker.slabs.clear();
                if !store.evict() {
                    return worker.slabs.fit(worker.device.as_ref(), layout);
                }
            }
            other => return other,
        }
    }
}

/// How the devices of a session exchange buffers, in words; None for a single device.
pub(crate) fn exchange_name(store: &Store) -> Option<String> {
    store.exchange.as_ref().map(|exchange| exchange.name())
}

/// A byte that differs from run to run, and from process to process.
fn next_pattern() -> u8 {
    static PATTERN: LazyLock<AtomicU8> =
        LazyLock::new(|| AtomicU8::new(RandomState::new().build_hasher().finish() as u8));
    PATTERN.fetch_add(37, Ordering::Relaxed)
}

/// The meaning of `flags[1]`.
fn data_error(code: u32) -> String {
    match code {
        1 => "decimal overflow".to_owned(),
        2 => "division by zero".to_owned(),
        3 => "a scalar subquery returned more than one row".to_owned(),
        other => format!("a kernel reported error code {other}"),
    }
}

impl Tally {
    fn plus(self, other: Tally) -> Tally {
        Tally {
            launches: self.launches + other.launches,
            rows: self.rows + other.rows,
            column_bytes: self.column_bytes + other.column_bytes,
        }
    }
}

/// One attempt: everything that launches and exchanges need.
#[derive(Clone, Copy)]
pub(crate) struct Machine<'a> {
    pub(crate) env: Env<'a>,
    pub(crate) store: &'a Store,
    /// Streamed columns; None where they are resident.
    pub(super) feed: Option<&'a Feed<'a>>,
    pub(crate) layout: &'a Layout,
    pub(crate) workers: &'a [Worker],
    /// What buffers that start unspecified are filled with, if they are.
    pub(crate) poison: Option<u8>,
    /// Spans of kernels and exchanges, if they are recorded.
    pub(crate) marks: Option<&'a Marks>,
    /// What is told each launch, if anything is.
    pub(crate) watch: Option<Watch>,
}

/// What one launch's arguments refer to.
#[derive(Clone, Copy)]
struct Frame<'a> {
    rows: Option<u64>,
    first_row: u64,
    part: u64,
    /// By column of the program.
    columns: &'a [Pointers],
    /// By buffer: a peer's staged copies.
    peers: &'a [u64],
}

impl Machine<'_> {
    /// Calls `work` for every device, concurrently.
    ///
    /// # Errors
    /// The first device's that fails.
    pub(crate) fn on_all<T: Send>(
        &self,
        work: impl Fn(usize, &Worker) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        if let [only] = self.workers {
            return Ok(vec![work(0, only)?]);
        }
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> =
                self.workers.iter().enumerate().map(|(d, w)| scope.spawn(move || work(d, w))).collect();
            let results: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            let died = |_| Error::Execution("a device's thread died".to_owned());
            results.into_iter().map(|r| r.map_err(died)?).collect()
        })
    }

    /// All phases from freshly started buffers. `counts` receives the largest value of every counter that the
    /// host looks at before the last phase ends.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn run(&self, counts: &mut [u64]) -> Result<Vec<Tally>, Error> {
        let program = self.env.program;
        let mut tallies = vec![Tally::default(); self.workers.len()];
        let mut add = |more: Vec<Tally>| {
            for (sum, more) in tallies.iter_mut().zip(more) {
                *sum = sum.plus(more);
            }
        };
        let sharded = program.shard.as_ref().filter(|_| self.env.parts > 1);
        let mut started = false;
        let mut at = 0;
        while at < program.steps.len() {
            let end = match sharded {
                Some(shard) if shard.first == at => {
                    add(self.sharded(shard.first, shard.last, started, counts)?);
                    shard.last + 1
                }
                _ => {
                    let stop = sharded.map(|s| s.first).filter(|first| *first > at);
                    let stop = stop.unwrap_or(program.steps.len());
                    let breaker = (at..stop).find(|s| self.exchanges(*s)).map_or(stop, |s| s + 1);
                    add(self.on_all(|device, worker| {
                        if !started {
                            self.start(worker, false)?;
                        }
                        (at..breaker).try_fold(Tally::default(), |tally, step| {
                            Ok(tally.plus(self.step(device, worker, step, 0, false)?))
                        })
                    })?);
                    if self.exchanges(breaker - 1) {
                        self.reduce(breaker - 1..breaker, counts)?;
                    }
                    breaker
                }
            };
            started = true;
            at = end;
        }
        Ok(tallies)
    }

    /// Does `work`, whose span on the devices of `workers` is marked under that name if spans are recorded.
    ///
    /// # Errors
    /// A failed device call, and those of `work`.
    pub(crate) fn marked<T>(
        &self,
        stage: Stage,
        name: &str,
        moves: Moves,
        workers: &[Worker],
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.marks {
            Some(marks) => marks.around(stage, name, moves, workers, work),
            None => work(),
        }
    }

    /// Reduces what some steps have written.
    fn reduce(&self, steps: Range<usize>, counts: &mut [u64]) -> Result<(), Error> {
        let done = &self.env.program.steps[steps.clone()];
        let name = done.last().map_or("", |step| &step.name);
        let _range = nvtx::range("exchange", name);
        let reduce = || reduce::reduce(self, steps, counts);
        let reduced = self.marked(Stage::Exchange, name, Moves::default(), self.workers, reduce);
        reduced.map_err(|e| in_step(done, e))
    }

    fn start(&self, worker: &Worker, only_parts: bool) -> Result<(), Error> {
        self.poison(worker, only_parts)?;
        Ok(worker.slabs.start(worker.device.as_ref(), self.layout, only_parts)?)
    }

    /// Fills buffers that start unspecified, if a pattern is set.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn poison(&self, worker: &Worker, only_parts: bool) -> Result<(), Error> {
        let Some(pattern) = self.poison else { return Ok(()) };
        Ok(worker.slabs.poison(worker.device.as_ref(), self.layout, only_parts, pattern)?)
    }

    /// Whether the devices' buffers become one when a step ends. Where every device does the same work,
    /// nothing need be exchanged.
    fn exchanges(&self, step: usize) -> bool {
        let step = &self.env.program.steps[step];
        self.workers.len() > 1
            && step.on != On::Each
            && step.writes.iter().any(|b| reduce::is_reduced(self, *b))
    }

    /// Runs steps `first..=last` once a part, part p on device p modulo the number of devices.
    fn sharded(
        &self,
        first: usize,
        last: usize,
        started: bool,
        counts: &mut [u64],
    ) -> Result<Vec<Tally>, Error> {
        let devices = self.workers.len() as u64;
        let mut tallies = vec![Tally::default(); self.workers.len()];
        for pass in 0..self.env.parts.div_ceil(devices) {
            let more = self.on_all(|device, worker| {
                if pass == 0 && !started {
                    self.start(worker, false)?;
                } else if pass > 0 {
                    self.start(worker, true)?;
                }
                let part = pass * devices + device as u64;
                if part >= self.env.parts {
                    return Ok(Tally::default());
                }
                (first..=last).try_fold(Tally::default(), |tally, step| {
                    Ok(tally.plus(self.step(device, worker, step, part, true)?))
                })
            })?;
            for (sum, more) in tallies.iter_mut().zip(more) {
                *sum = sum.plus(more);
            }
            let status = self.on_all(|_, worker| self.status_in(worker, Use::PartStatus));
            let status = status.map_err(|e| in_step(&self.env.program.steps[first..=last], e))?;
            status.iter().for_each(|s| raise(counts, &s.counters));
        }
        if devices > 1 {
            self.reduce(first..last + 1, counts)?;
        }
        Ok(tallies)
    }

    /// Runs one step on one device. In a part, every device runs whole tables, and there is no root.
    fn step(
        &self,
        device: usize,
        worker: &Worker,
        at: usize,
        part: u64,
        whole: bool,
    ) -> Result<Tally, Error> {
        let step = &self.env.program.steps[at];
        let _range = nvtx::range("phase", &step.name);
        let tally = self.issue(device, worker, at, part, whole);
        tally.map_err(|e| in_step(std::slice::from_ref(step), e))
    }

    fn issue(
        &self,
        device: usize,
        worker: &Worker,
        at: usize,
        part: u64,
        whole: bool,
    ) -> Result<Tally, Error> {
        let step = &self.env.program.steps[at];
        if step.on == On::Root && device != 0 && !whole {
            return Ok(Tally::default());
        }
        let program = self.env.program;
        let once = |rows: Option<u64>| {
            self.launches(worker, step, Frame { rows, first_row: 0, part, columns: &[], peers: &[] })
        };
        let table = match &step.over {
            Over::Nothing => return once(None),
            Over::Size(size) => {
                let capacity = program.plan.sizes.get_index_of(size).map_or(0, |s| self.env.sizes[s]);
                if step.on != On::Partitions || whole {
                    return once(Some(capacity));
                }
                let border = |d: usize| {
                    let share = u128::from(capacity) * d as u128 / self.workers.len() as u128;
                    share as u64
                };
                let share = border(device)..border(device + 1);
                if share.is_empty() {
                    return Ok(Tally::default());
                }
                return self.launches(worker, step, frame(&share, part, &[]));
            }
            Over::Dict(table, column) => {
                return once(Some(self.env.eval(&format!("dict({table}.{column})"), None)?));
            }
            Over::Table(table) => table,
        };
        let columns: Vec<&ColumnUse> = step.columns.iter().map(|c| &program.columns[*c]).collect();
        let mut pointers = vec![Pointers::default(); program.columns.len()];
        let mut tally = Tally::default();
        if let Some(feed) = self.feed.filter(|_| !columns.is_empty()) {
            let pass = if whole { part / self.workers.len() as u64 } else { 0 };
            feed.each(device, (at, pass), worker.device.as_ref(), |range, loaded| {
                for (at, column) in step.columns.iter().zip(loaded) {
                    pointers[*at] = *column;
                }
                let frame = frame(range, part, &pointers);
                tally = tally.plus(self.launches(worker, step, frame)?);
                Ok(())
            })?;
            return Ok(tally);
        }
        for range in self.store.ranges(table, device, whole, &columns)? {
            for at in &step.columns {
                pointers[*at] = worker.columns[*at].pointers(range.start);
            }
            tally = tally.plus(self.launches(worker, step, frame(&range, part, &pointers))?);
        }
        Ok(tally)
    }

    fn launches(&self, worker: &Worker, step: &Step, frame: Frame) -> Result<Tally, Error> {
        for call in &step.calls {
            self.launch(worker, step, call, frame)?;
        }
        let rows = if matches!(step.over, Over::Table(_)) { frame.rows.unwrap_or(0) } else { 0 };
        let column_bytes = step.calls.iter().map(|call| self.column_bytes(call, &frame)).sum();
        Ok(Tally { launches: step.calls.len() as u64, rows, column_bytes })
    }

    /// Bytes of the columns among a launch's arguments, over the rows that it runs on.
    fn column_bytes(&self, call: &Call, frame: &Frame) -> u64 {
        let rows = frame.rows.unwrap_or(0);
        let bytes = |slot: &Slot| match *slot {
            Slot::Values(c) | Slot::Offsets(c) => {
                rows * self.env.program.columns[c].repr.physical.row_bytes()
            }
            Slot::Valid(_) => rows,
            Slot::Bytes(c) => frame.columns[c].text_bytes,
            _ => 0,
        };
        call.slots.iter().map(bytes).sum()
    }

    fn launch(&self, worker: &Worker, step: &Step, call: &Call, frame: Frame) -> Result<(), Error> {
        let work = self.env.eval(&call.grid, frame.rows)?;
        let args: Vec<u64> = call.slots.iter().map(|slot| self.argument(worker, *slot, &frame)).collect();
        let launch = || Ok(worker.device.launch(worker.module.as_ref(), &call.kernel, work, &args)?);
        if let Some(watch) = self.watch {
            watch(&self.launching(worker, step, call, &frame, &args));
            launch()?;
            return Ok(worker.device.synchronize()?);
        }
        if self.marks.is_none() {
            return launch();
        }
        let name = format!("{}: {}", step.name, call.kernel);
        let moves = Moves { column_bytes: self.column_bytes(call, &frame), slots: call.slots.clone() };
        self.marked(Stage::Kernel, &name, moves, std::slice::from_ref(worker), launch)
    }

    fn launching(&self, worker: &Worker, step: &Step, call: &Call, frame: &Frame, args: &[u64]) -> Launching {
        let argument = |(slot, address): (&Slot, &u64)| {
            let entries = |d: usize| u64::from(worker.dicts[d].entries());
            let elements = match *slot {
                Slot::Values(_) | Slot::Valid(_) => frame.rows,
                Slot::Offsets(_) => frame.rows.map(|rows| rows + 1),
                Slot::Bytes(c) => Some(frame.columns[c].text_bytes),
                Slot::DictOffsets(d) => Some(entries(d) + 1),
                Slot::DictBytes(d) => Some(worker.dicts[d].pointers().text_bytes),
                Slot::Buffer(b) | Slot::Peer(b) => Some(self.layout.places[b].len),
                Slot::Flags => Some(2),
                _ => None,
            };
            Argument::new(self.env.program, *slot, *address, elements)
        };
        let places = call.slots.iter().zip(args).filter_map(argument).collect();
        Launching { device: worker.number, phase: step.name.clone(), kernel: call.kernel.clone(), places }
    }

    fn argument(&self, worker: &Worker, slot: Slot, frame: &Frame) -> u64 {
        match slot {
            Slot::Rows => frame.rows.unwrap_or(0),
            Slot::FirstRow => frame.first_row,
            Slot::Params => worker.params.as_ref().map_or(0, |p| p.memory.address()),
            Slot::Flags => worker.slabs.address(&self.layout.flags),
            Slot::Part => frame.part,
            Slot::Parts => self.env.parts,
            Slot::Values(c) => frame.columns[c].values,
            Slot::Valid(c) => frame.columns[c].valid,
            Slot::Offsets(c) => frame.columns[c].offsets,
            Slot::Bytes(c) => frame.columns[c].bytes,
            Slot::DictOffsets(d) => worker.dicts[d].pointers().offsets,
            Slot::DictBytes(d) => worker.dicts[d].pointers().bytes,
            Slot::Len(s) => self.env.sizes[s],
            Slot::Buffer(b) => worker.slabs.address(&self.layout.places[b]),
            Slot::Peer(b) => frame.peers[b],
        }
    }

    /// Launches a step's merge on a device, with copies of a peer's buffers (by buffer: address).
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn merge(&self, worker: &Worker, step: &Step, peers: &[u64]) -> Result<(), Error> {
        let Some(call) = &step.merge else { return Ok(()) };
        let rows = match &step.over {
            Over::Size(size) => self.env.program.plan.sizes.get_index_of(size).map(|s| self.env.sizes[s]),
            Over::Dict(table, column) => Some(self.env.eval(&format!("dict({table}.{column})"), None)?),
            Over::Nothing | Over::Table(_) => None,
        };
        let frame = Frame { rows, first_row: 0, part: 0, columns: &[], peers };
        self.launch(worker, step, call, frame)
    }

    /// Flags and counters of one device, those of single parts left out. Waits for its work.
    ///
    /// # Errors
    /// A failed device call, now or from earlier work.
    pub(crate) fn status(&self, worker: &Worker) -> Result<Status, Error> {
        self.status_in(worker, Use::Status)
    }

    fn status_in(&self, worker: &Worker, purpose: Use) -> Result<Status, Error> {
        let copies = self.copies(worker, |slab| slab.purpose == purpose)?;
        Ok(self.status_of(&copies, purpose))
    }

    /// Downloads the slabs that `wanted` says. If there are any, waits for the device's work.
    fn copies(&self, worker: &Worker, wanted: impl Fn(&Slab) -> bool) -> Result<Copies, Error> {
        let slabs = self.layout.slabs.iter();
        let mut copies: Copies = slabs.map(|slab| wanted(slab).then(|| vec![0; slab.bytes])).collect();
        let mut downloads: Vec<Download> = Vec::new();
        for (slab, bytes) in copies.iter_mut().enumerate() {
            if let Some(bytes) = bytes {
                downloads.push(Download { memory: worker.slabs.memory(slab), offset: 0, bytes });
            }
        }
        if !downloads.is_empty() {
            worker.device.download_all(&mut downloads)?;
        }
        Ok(copies)
    }

    fn status_of(&self, copies: &Copies, purpose: Use) -> Status {
        let slab = self.layout.slabs.iter().position(|s| s.purpose == purpose);
        let bytes = slab.and_then(|slab| copies[slab].as_deref()).unwrap_or_default();
        let read = |counter: &Option<usize>| {
            let place = self.layout.places[(*counter)?];
            (Some(place.slab) == slab).then(|| u64_at(bytes, place.offset))
        };
        let counters = self.env.program.counters.iter().map(read).collect();
        let word = if purpose == Use::Status { u64_at(bytes, self.layout.flags.offset) } else { 0 };
        Status { flags: [word as u32, (word >> 32) as u32], counters }
    }
}

/// Slabs of one device that have been downloaded, by slab.
pub(crate) type Copies = Vec<Option<Vec<u8>>>;

/// What one device reports.
pub(crate) struct Status {
    /// Violated assumptions as bits, and an error code.
    flags: [u32; 2],
    /// By size, where a counter watches it.
    pub(crate) counters: Vec<Option<u64>>,
}

/// Raises counts to what one device reports.
pub(crate) fn raise(counts: &mut [u64], reported: &[Option<u64>]) {
    for (count, value) in counts.iter_mut().zip(reported) {
        *count = (*count).max(value.unwrap_or(0));
    }
}

fn frame<'a>(range: &Range<u64>, part: u64, columns: &'a [Pointers]) -> Frame<'a> {
    Frame { rows: Some(range.end - range.start), first_row: range.start, part, columns, peers: &[] }
}

/// Says after which steps an error showed.
fn in_step(steps: &[Step], error: Error) -> Error {
    let Some(Step { name, .. }) = steps.last() else { return error };
    match error {
        Error::Execution(message) => Error::Execution(format!("phase `{name}`: {message}")),
        other => other.in_or_before(&format!("phase `{name}`")),
    }
}

/// The little-endian u64 at a byte offset; zero past the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}
