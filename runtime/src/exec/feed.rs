//! Partitions on their way to the devices that run a phase over them.
//!
//! Threads of each device load ahead of its kernels, phase after phase, and stop when enough is ready. A phase's
//! partitions wait in one queue; each device takes the next one when it has room, first those that it already
//! holds. Steps that every device runs over whole tables have a queue a device.
//!
//! Partitions too large for the memory that is left are cut smaller. A load that finds no memory all the same
//! drops what is kept, then waits until it is alone, then halves its rows.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::Error;
use super::columns::{DeviceColumn, Pointers, Store};
use super::program::{ColumnUse, Program};
use crate::device::{Device, DeviceError};
use crate::load::{Loader, Want};
use crate::session::Mode;
use crate::table::split;

/// Partitions that wait for kernels on each device, beside those being loaded.
const READY: usize = 2;
/// Memory that loading a partition takes, at most, as a multiple of its uncompressed bytes.
const LOAD_FACTOR: u64 = 3;
/// Rows below which a piece is not cut any more.
const LEAST_ROWS: u64 = 256;
/// Rows from which on a chunk's dictionary is not much beside the rest of a piece.
const GOOD_ROWS: u64 = 1 << 16;

/// Columns of streamed partitions that are kept on devices, the least recently used dropped first.
pub(crate) struct Pieces {
    kept: Vec<Mutex<HashMap<PieceKey, Kept>>>,
    clock: AtomicU64,
}

#[derive(PartialEq, Eq, Hash)]
struct PieceKey {
    column: ColumnUse,
    start: u64,
    end: u64,
}

impl PieceKey {
    fn new(column: &ColumnUse, rows: &Range<u64>) -> PieceKey {
        PieceKey { column: column.clone(), start: rows.start, end: rows.end }
    }
}

struct Kept {
    column: Arc<DeviceColumn>,
    used: u64,
}

impl Pieces {
    pub(super) fn new(devices: usize) -> Pieces {
        Pieces { kept: (0..devices).map(|_| Mutex::default()).collect(), clock: AtomicU64::new(0) }
    }

    fn of(&self, device: usize) -> MutexGuard<'_, HashMap<PieceKey, Kept>> {
        self.kept[device].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, device: usize, column: &ColumnUse, rows: &Range<u64>) -> Option<Arc<DeviceColumn>> {
        let used = self.clock.fetch_add(1, Ordering::Relaxed);
        let mut kept = self.of(device);
        let found = kept.get_mut(&PieceKey::new(column, rows))?;
        found.used = used;
        Some(found.column.clone())
    }

    fn keep(&self, device: usize, column: &ColumnUse, rows: &Range<u64>, memory: Arc<DeviceColumn>) {
        let used = self.clock.fetch_add(1, Ordering::Relaxed);
        self.of(device).insert(PieceKey::new(column, rows), Kept { column: memory, used });
    }

    /// How many of the columns a device holds.
    fn count(&self, device: usize, columns: &[ColumnUse], rows: &Range<u64>) -> usize {
        let kept = self.of(device);
        if kept.is_empty() {
            return 0;
        }
        columns.iter().filter(|c| kept.contains_key(&PieceKey::new(c, rows))).count()
    }

    /// Drops the piece that was used longest ago and is not in use; whether there was one.
    pub(super) fn evict(&self, device: usize) -> bool {
        let mut kept = self.of(device);
        let unused = kept.iter().filter(|(_, k)| Arc::strong_count(&k.column) == 1);
        let Some(oldest) = unused.map(|(_, k)| k.used).min() else { return false };
        kept.retain(|_, k| k.used != oldest);
        true
    }

    /// Drops all pieces that are not in use; whether there were any.
    pub(super) fn evict_all(&self) -> bool {
        let mut any = false;
        for device in 0..self.kept.len() {
            let mut kept = self.of(device);
            let before = kept.len();
            kept.retain(|_, k| Arc::strong_count(&k.column) > 1);
            any |= kept.len() < before;
        }
        any
    }

    /// Bytes kept on a device.
    fn bytes(&self, device: usize) -> u64 {
        self.of(device).values().map(|k| k.column.bytes()).sum()
    }
}

/// One step's run over a table.
struct Stage {
    table: String,
    columns: Vec<ColumnUse>,
    /// By column: whether what was loaded is kept for later.
    keeps: Vec<bool>,
    pieces: Vec<Range<u64>>,
}

/// Some rows on a device.
struct Piece {
    stage: usize,
    rows: Range<u64>,
    columns: Vec<Arc<DeviceColumn>>,
    /// Whether all of it stays on the device.
    kept: bool,
}

/// One device's side.
#[derive(Default)]
struct Lane {
    ready: VecDeque<Piece>,
    /// Threads that load.
    loaders: usize,
    /// The stages of the loads under way.
    loading: Vec<usize>,
    /// By stage: pieces that this device has taken.
    taken: Vec<usize>,
    /// The stages of those among them that found no memory. While there are any, no other load begins.
    waiting: Vec<usize>,
    /// Whether one of these has its turn.
    alone: bool,
    /// Pieces that kernels may be using.
    held: usize,
}

impl Lane {
    /// Whether another piece may be loaded, and a thread is there to do it.
    fn has_room(&self) -> bool {
        self.waiting.is_empty() && self.ready.len() < READY && self.loading.len() < self.loaders
    }

    fn is_quiet(&self) -> bool {
        self.ready.is_empty() && self.held == 0 && self.loading.len() == self.waiting.len()
    }
}

struct State {
    /// By stage and queue: positions of the pieces that nobody has taken.
    left: Vec<Vec<VecDeque<usize>>>,
    lanes: Vec<Lane>,
    failed: Option<Error>,
    closed: bool,
}

/// A run's partitions.
pub(super) struct Feed<'a> {
    store: &'a Store,
    /// Loads beside each other on each device.
    loads: u64,
    stages: Vec<Stage>,
    /// The stage of a step in a pass.
    numbers: HashMap<(usize, u64), usize>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A step that streams over a table.
pub(super) struct Visit {
    /// Position of the step.
    pub(super) step: usize,
    /// Pass over parts of sharded state.
    pub(super) pass: u64,
    /// The table.
    pub(super) table: String,
    /// Rows that matter, where not all do.
    pub(super) kept: Option<Vec<Range<u64>>>,
    /// If devices do not share the table: those that run over all of it.
    pub(super) whole: Option<Vec<bool>>,
}

/// What a device that could load another piece does about a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// Takes the piece at this position in its queue.
    Take(usize),
    /// Lets another device take one first.
    Wait,
    /// Goes on to the next stage, for other devices hold more of what is left.
    Leave,
}

enum Next {
    Piece(Piece),
    /// Memory is short: what is held should be given back.
    Release,
    End,
}

impl<'a> Feed<'a> {
    /// The partitions for `visits`, in that order.
    ///
    /// # Errors
    /// No such tables or columns.
    pub(super) fn new(store: &'a Store, program: &Program, visits: Vec<Visit>) -> Result<Feed<'a>, Error> {
        let columns_of = |visit: &Visit| -> Vec<ColumnUse> {
            program.steps[visit.step].columns.iter().map(|c| program.columns[*c].clone()).collect()
        };
        let columns: Vec<Vec<ColumnUse>> = visits.iter().map(columns_of).collect();
        let loads = loads(store, &visits, &columns)?;
        let mut cuts: HashMap<String, u64> = HashMap::new();
        for Visit { table, .. } in &visits {
            if !cuts.contains_key(table) {
                cuts.insert(table.clone(), cut(store, table, &of_table(&visits, &columns, table), loads)?);
            }
        }
        let mut stages: Vec<Stage> = Vec::new();
        let mut left = Vec::new();
        let mut numbers = HashMap::new();
        for (at, visit) in visits.iter().enumerate() {
            let later = |c: &ColumnUse| columns[at + 1..].iter().any(|columns| columns.contains(c));
            let keeps = columns[at].iter().map(|c| store.mode == Mode::Auto || later(c)).collect();
            let pieces = pieces(store, visit, cuts.get(&visit.table).copied().unwrap_or(1))?;
            let all: VecDeque<usize> = (0..pieces.len()).collect();
            left.push(match &visit.whole {
                None => vec![all],
                Some(runs) => runs.iter().map(|r| if *r { all.clone() } else { VecDeque::new() }).collect(),
            });
            numbers.insert((visit.step, visit.pass), stages.len());
            stages.push(Stage { table: visit.table.clone(), columns: columns[at].clone(), keeps, pieces });
        }
        let (loaders, taken) = (loads as usize, vec![0; stages.len()]);
        let lane = |_| Lane { loaders, taken: taken.clone(), ..Lane::default() };
        let lanes = store.devices.iter().map(lane).collect();
        let state = State { left, lanes, failed: None, closed: false };
        Ok(Feed { store, loads, stages, numbers, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Runs `work` while partitions are being loaded for it.
    ///
    /// # Errors
    /// Those of loading and of `work`.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        thread::scope(|scope| {
            for device in 0..self.store.devices.len() {
                for loader in self.store.loaders(device).iter().take(self.loads as usize) {
                    scope.spawn(move || self.serve(device, loader));
                }
            }
            let done = {
                let _close = Close(self);
                work()
            };
            // What loading failed on is why the work did.
            self.lock().failed.take().map_or(done, Err)
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `run` with the rows and columns of every piece of a step that falls to a device, whose work `queue`
    /// takes.
    ///
    /// # Errors
    /// Those of loading and of `run`.
    pub(super) fn each(
        &self,
        device: usize,
        (step, pass): (usize, u64),
        queue: &dyn Device,
        mut run: impl FnMut(&Range<u64>, &[Pointers]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(&stage) = self.numbers.get(&(step, pass)) else {
            return Err(Error::Execution(format!("step {step} was not expected to stream")));
        };
        let mut held: Vec<Piece> = Vec::new();
        let release = |held: &mut Vec<Piece>| {
            // Kernels must be done with the columns before their memory is given back.
            queue.synchronize()?;
            let count = held.len();
            held.clear();
            self.lock().lanes[device].held -= count;
            self.changed.notify_all();
            Ok::<_, Error>(())
        };
        loop {
            match self.next(device, stage, !held.is_empty())? {
                Next::Piece(piece) => {
                    let pointers: Vec<Pointers> =
                        piece.columns.iter().map(|c| c.pointers(piece.rows.start)).collect();
                    let (rows, kept) = (piece.rows.clone(), piece.kept);
                    held.push(piece);
                    run(&rows, &pointers)?;
                    if !kept {
                        release(&mut held)?;
                    }
                }
                Next::Release => release(&mut held)?,
                Next::End => return if held.is_empty() { Ok(()) } else { release(&mut held) },
            }
        }
    }

    fn next(&self, device: usize, stage: usize, holds: bool) -> Result<Next, Error> {
        let mut state = self.lock();
        loop {
            if state.closed || state.failed.is_some() {
                return Err(Error::Execution("loading has ended".to_owned()));
            }
            let lane = &mut state.lanes[device];
            if let Some(at) = lane.ready.iter().position(|p| p.stage == stage)
                && let Some(piece) = lane.ready.remove(at)
            {
                lane.held += 1;
                self.changed.notify_all();
                return Ok(Next::Piece(piece));
            }
            if !lane.waiting.is_empty() && holds {
                return Ok(Next::Release);
            }
            let loading = lane.loading.contains(&stage);
            if !loading && self.queue(&state.left[stage], device).is_empty() {
                return Ok(Next::End);
            }
            state = self.wait(state);
        }
    }

    fn queue<'q>(&self, queues: &'q [VecDeque<usize>], device: usize) -> &'q VecDeque<usize> {
        &queues[queue_of(queues, device)]
    }

    /// What a loading thread does.
    fn serve(&self, device: usize, loader: &Loader) {
        while let Some((stage, rows)) = self.take(device) {
            let brought = self.bring(device, loader, stage, rows);
            let mut state = self.lock();
            let loading = &mut state.lanes[device].loading;
            if let Some(at) = loading.iter().position(|s| *s == stage) {
                loading.swap_remove(at);
            }
            if let Err(error) = brought {
                state.failed.get_or_insert(error);
            }
            self.changed.notify_all();
        }
        self.lock().lanes[device].loaders -= 1;
        self.changed.notify_all();
    }

    /// The next piece that a device should load; None if nothing is left.
    fn take(&self, device: usize) -> Option<(usize, Range<u64>)> {
        let mut state = self.lock();
        loop {
            if state.closed || state.failed.is_some() {
                return None;
            }
            if state.lanes[device].has_room() {
                let left = |s: &usize| !self.queue(&state.left[*s], device).is_empty();
                let mut stages = (0..self.stages.len()).filter(left).peekable();
                stages.peek()?;
                let mut choices = stages.map(|stage| (stage, self.choose(&state, device, stage)));
                let found = choices.find(|(_, choice)| *choice != Choice::Leave);
                if let Some((stage, Choice::Take(at))) = found {
                    let queues = &mut state.left[stage];
                    let own = queue_of(queues, device);
                    let piece = queues[own].remove(at)?;
                    let lane = &mut state.lanes[device];
                    lane.loading.push(stage);
                    lane.taken[stage] += 1;
                    self.changed.notify_all();
                    return Some((stage, self.stages[stage].pieces[piece].clone()));
                }
            }
            state = self.wait(state);
        }
    }

    /// What a device should do about a stage of which pieces are left for it.
    fn choose(&self, state: &State, device: usize, stage: usize) -> Choice {
        let Stage { columns, pieces, .. } = &self.stages[stage];
        let queue = self.queue(&state.left[stage], device);
        let held = |d: usize, at: usize| self.store.pieces.count(d, columns, &pieces[queue[at]]);
        let shared = state.left[stage].len() == 1;
        let takes = |d: &usize| shared && *d != device && state.lanes[*d].loaders > 0;
        let others: Vec<usize> = (0..state.lanes.len()).filter(takes).collect();
        let own = (0..queue.len()).filter(|at| others.iter().all(|d| held(*d, *at) <= held(device, *at)));
        // The first of several that are as good.
        let Some(best) = own.rev().max_by_key(|at| held(device, *at)) else { return Choice::Leave };
        // A few large pieces would otherwise all go to the device that asks first.
        let taken = |d: usize| state.lanes[d].taken[stage];
        let behind = |d: &usize| state.lanes[*d].has_room() && taken(*d) < taken(device);
        match held(device, best) == 0 && others.iter().any(behind) {
            true => Choice::Wait,
            false => Choice::Take(best),
        }
    }

    fn bring(&self, device: usize, loader: &Loader, stage: usize, rows: Range<u64>) -> Result<(), Error> {
        loop {
            match self.load(device, loader, stage, &rows) {
                Err(Error::Device(DeviceError::OutOfMemory { .. })) => {
                    if !self.store.pieces.evict(device) {
                        return self.alone(device, loader, stage, rows);
                    }
                }
                Ok(piece) => {
                    self.lock().lanes[device].ready.push_back(piece);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Loads rows once nothing else is under way on a device. Loads that wait have their turns in the order of
    /// their stages, for kernels come to a later stage only when they are through with the earlier ones.
    fn alone(&self, device: usize, loader: &Loader, stage: usize, rows: Range<u64>) -> Result<(), Error> {
        let mut state = self.lock();
        state.lanes[device].waiting.push(stage);
        self.changed.notify_all();
        loop {
            if state.closed || state.failed.is_some() {
                return Err(Error::Execution("another load failed".to_owned()));
            }
            let State { left, lanes, .. } = &mut *state;
            let lane = &mut lanes[device];
            if !lane.alone && lane.waiting.iter().all(|other| stage <= *other) {
                self.put_back(left, lane, device, stage);
                if lane.is_quiet() {
                    lane.alone = true;
                    break;
                }
            }
            state = self.wait(state);
        }
        drop(state);
        let brought = self.halve(device, loader, stage, rows);
        let lane = &mut self.lock().lanes[device];
        lane.alone = false;
        if let Some(at) = lane.waiting.iter().position(|other| *other == stage) {
            lane.waiting.swap_remove(at);
        }
        self.changed.notify_all();
        brought
    }

    /// Drops pieces of stages behind `stage` that are ready, for later.
    fn put_back(&self, left: &mut [Vec<VecDeque<usize>>], lane: &mut Lane, device: usize, stage: usize) {
        lane.ready.retain(|piece| {
            let pieces = &self.stages[piece.stage].pieces;
            let place = pieces.iter().position(|rows| piece.stage > stage && *rows == piece.rows);
            if let Some(place) = place {
                let queues = &mut left[piece.stage];
                let at = queue_of(queues, device);
                queues[at].push_front(place);
            }
            place.is_none()
        });
    }

    /// Waits until kernels are through with what was loaded alone.
    fn quiet(&self, device: usize) -> Result<(), Error> {
        let mut state = self.lock();
        while !state.lanes[device].is_quiet() {
            if state.closed || state.failed.is_some() {
                return Err(Error::Execution("another load failed".to_owned()));
            }
            state = self.wait(state);
        }
        Ok(())
    }

    fn halve(&self, device: usize, loader: &Loader, stage: usize, rows: Range<u64>) -> Result<(), Error> {
        match self.load(device, loader, stage, &rows) {
            Err(Error::Device(DeviceError::OutOfMemory { .. })) => {
                if self.store.pieces.evict(device) {
                    return self.halve(device, loader, stage, rows);
                }
                if rows.end - rows.start < 2 * LEAST_ROWS {
                    return Err(self.too_little(device, stage, &rows));
                }
                let middle = rows.start.midpoint(rows.end);
                self.halve(device, loader, stage, rows.start..middle)?;
                self.halve(device, loader, stage, middle..rows.end)
            }
            Ok(piece) => {
                self.lock().lanes[device].ready.push_back(piece);
                self.changed.notify_all();
                self.quiet(device)
            }
            Err(error) => Err(error),
        }
    }

    fn too_little(&self, device: usize, stage: usize, rows: &Range<u64>) -> Error {
        let Stage { table, columns, .. } = &self.stages[stage];
        let queue = &self.store.devices[device];
        let needs = self.store.table(table).and_then(|table| {
            let columns: Vec<_> = columns.iter().map(|c| (c.column.as_str(), c.repr)).collect();
            Ok(Loader::estimate(table, &columns, rows)?)
        });
        let taken = queue.memory_bytes() - queue.free_bytes();
        Error::Execution(format!(
            "{}: a budget of {} bytes is too small for table `{table}`: {taken} bytes hold other state, and a page \
             of each of its {} columns needs about {} bytes; give --device-memory at least {}",
            queue.name(),
            queue.memory_bytes(),
            columns.len(),
            needs.as_ref().map_or(0, |n| *n),
            taken + needs.map_or(0, |n| n * 5 / 4),
        ))
    }

    fn load(&self, device: usize, loader: &Loader, stage: usize, rows: &Range<u64>) -> Result<Piece, Error> {
        let Stage { table, columns, keeps, .. } = &self.stages[stage];
        let kept = &self.store.pieces;
        let mut found: Vec<Option<Arc<DeviceColumn>>> =
            columns.iter().map(|c| kept.get(device, c, rows)).collect();
        let missing: Vec<usize> = (0..columns.len()).filter(|c| found[*c].is_none()).collect();
        if !missing.is_empty() {
            let dictionaries = missing.iter().map(|c| self.store.dictionary_of(device, &columns[*c]));
            let dictionaries: Vec<_> = dictionaries.collect::<Result<_, Error>>()?;
            let memory = missing
                .iter()
                .map(|c| DeviceColumn::new(|bytes| loader.alloc(bytes), columns[*c].repr, rows.clone()));
            let mut memory: Vec<DeviceColumn> = memory.collect::<Result<_, DeviceError>>()?;
            let wants = memory.iter().zip(&missing).zip(&dictionaries);
            let wants: Vec<Want> = wants
                .map(|((memory, c), dictionary)| memory.want(&columns[*c], dictionary.as_deref(), rows.start))
                .collect();
            let texts = loader.load(self.store.table(table)?, &wants, rows.clone())?;
            for (memory, text) in memory.iter_mut().zip(texts) {
                memory.take(rows.clone(), text);
            }
            for (c, memory) in missing.into_iter().zip(memory) {
                let memory = Arc::new(memory);
                if keeps[c] {
                    kept.keep(device, &columns[c], rows, memory.clone());
                }
                found[c] = Some(memory);
            }
        }
        let columns: Vec<Arc<DeviceColumn>> = found.into_iter().flatten().collect();
        Ok(Piece { stage, rows: rows.clone(), columns, kept: keeps.iter().all(|k| *k) })
    }
}

/// Ends the loading threads, however the work ends.
struct Close<'f, 'a>(&'f Feed<'a>);

impl Drop for Close<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

/// Which of a stage's queues a device takes from: all share one, or each has its own.
fn queue_of(queues: &[VecDeque<usize>], device: usize) -> usize {
    device.min(queues.len() - 1)
}

/// How many loads may be under way beside each other: as many as there are loaders, fewer where pieces would
/// become small, for each piece of a chunk comes with the chunk's dictionary.
fn loads(store: &Store, visits: &[Visit], columns: &[Vec<ColumnUse>]) -> Result<u64, Error> {
    let mut loads = store.devices.iter().map(|d| d.loads()).min().unwrap_or(1) as u64;
    'fewer: while loads > 1 {
        for visit in visits {
            let longest = longest(store.partitions(&visit.table)?);
            if longest.div_ceil(cut(store, &visit.table, &of_table(visits, columns, &visit.table), loads)?)
                < longest.min(GOOD_ROWS)
            {
                loads /= 2;
                continue 'fewer;
            }
        }
        break;
    }
    Ok(loads)
}

/// The columns of each visit to a table: all of them cut it alike, so that they can share pieces.
fn of_table<'c>(visits: &[Visit], columns: &'c [Vec<ColumnUse>], table: &str) -> Vec<&'c [ColumnUse]> {
    visits.iter().zip(columns).filter(|(v, _)| v.table == table).map(|(_, c)| c.as_slice()).collect()
}

fn longest(partitions: &[Range<u64>]) -> u64 {
    partitions.iter().map(|p| p.end - p.start).max().unwrap_or(0)
}

/// Into how many pieces a table's partitions are cut, so that so many loads fit beside each other.
fn cut(store: &Store, table: &str, visits: &[&[ColumnUse]], loads: u64) -> Result<u64, Error> {
    let partitions = store.partitions(table)?;
    let table = store.table(table)?;
    let room = |d: usize| (store.devices[d].free_bytes() + store.pieces.bytes(d)) / (loads + READY as u64);
    let room = (0..store.devices.len()).map(room).min().unwrap_or(0);
    let longest = longest(partitions);
    if (longest as f64 * table.bytes_per_row(&[])?) as u64 <= room / LOAD_FACTOR {
        return Ok(1);
    }
    let fits = |cut: u64| -> Result<bool, Error> {
        let Some(first) = partitions.first() else { return Ok(true) };
        let rows = first.start..first.start + (first.end - first.start).div_ceil(cut);
        for columns in visits {
            let columns: Vec<_> = columns.iter().map(|c| (c.column.as_str(), c.repr)).collect();
            if Loader::estimate(table, &columns, &rows)? > room {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let mut cut = 1;
    while cut < longest.div_ceil(LEAST_ROWS) && !fits(cut)? {
        cut *= 2;
    }
    Ok(cut)
}

/// The rows that a visit loads, cut into pieces.
fn pieces(store: &Store, visit: &Visit, cut: u64) -> Result<Vec<Range<u64>>, Error> {
    let mut pieces = Vec::new();
    for partition in store.partitions(&visit.table)? {
        let rows = partition.end - partition.start;
        for piece in split(rows, rows.div_ceil(cut), 1) {
            let piece = partition.start + piece.start..partition.start + piece.end;
            let Some(kept) = &visit.kept else {
                pieces.push(piece);
                continue;
            };
            let inside = kept.iter().filter(|k| k.start < piece.end && piece.start < k.end);
            let (mut first, mut last) = (u64::MAX, 0);
            inside.for_each(|k| (first, last) = (first.min(k.start), last.max(k.end)));
            if first < last {
                pieces.push(piece.start.max(first)..piece.end.min(last));
            }
        }
    }
    Ok(pieces)
}
