//! Sessions: a data set and devices, on which queries are prepared once and executed many times.
//!
//! Invariant: what is kept between runs is columns, dictionaries, compiled code and recorded launches; nothing that
//! depends on literals, and no size that a run learned.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use arrow::record_batch::RecordBatch;
use dkb_kernels::parquet::PARQUET;
use dkb_kernels::{CheckError, ParamWord, Plan};
use dkb_planner::catalog::TableInfo;
use dkb_planner::{ParamDecl, ParamValue, PlanOptions};
use serde::{Deserialize, Serialize};

use crate::device::{Device, DeviceKind, DeviceSpec, Resources, memory_gb_per_s, open_devices};
use crate::exec::Watch;
use crate::exec::buffers::Facts;
use crate::exec::columns::Store;
use crate::exec::guard::Guard;
use crate::exec::program::{ColumnUse, Program};
use crate::exec::schedule::{Outcome, RunOptions, Setup, Worker, exchange_name, make_room, run};
use crate::exec::traffic::floor_bytes;
use crate::load::{Shared, Sources};
use crate::table::{DataSet, Kind, key_name, key_ranges};
use crate::trace::{Span, Timeline};

pub use crate::exec::Error;

/// Uncompressed bytes of a partition, unless a session says otherwise.
const DEFAULT_CHUNK_BYTES: u64 = 1 << 30;

const UNGUARDED: &str =
    "rows and keys change in place in sessions that guard resident columns, and this is none: set `guard`";

/// Where columns lie while queries run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// On the devices, loaded once and shared by the session's queries.
    #[default]
    Resident,
    /// Loaded per partition while a query runs, and dropped when it ends.
    Stream,
    /// Loaded per partition while a query runs, and kept as long as there is room.
    Auto,
}

/// How a session runs.
#[derive(Debug, Clone, Default)]
pub struct SessionConfig {
    /// Kind of device.
    pub kind: DeviceKind,
    /// Which devices of that kind.
    pub spec: DeviceSpec,
    /// Resident or streamed columns.
    pub mode: Mode,
    /// Uncompressed bytes of a partition, as the footers state them; 1 GiB by default. If given, launches
    /// cover single partitions even where columns are resident.
    pub chunk_bytes: Option<u64>,
    /// The number of parts into which a plan's sharded state is divided; as few as fit by default.
    pub shards: Option<u64>,
    /// Divide every watched size by this, so that tests force reruns.
    pub shrink: Option<u64>,
    /// Fill buffers that start unspecified with a pattern that changes between runs.
    pub poison: bool,
    /// Hold every run of a query with resident columns to its own buffers: what it finds elsewhere on a device is
    /// overwritten before, and what it leaves elsewhere is compared with what was there. Outside its time.
    pub guard: bool,
    /// Record each kernel and exchange among the spans of a run, which costs time: nothing is recorded and issued as
    /// one.
    pub trace: bool,
    /// Told each launch before it happens, and each is waited for.
    pub watch: Option<Watch>,
}

/// A data set opened on devices.
pub struct Session {
    store: Store,
    shared: Arc<Shared>,
    catalog: Vec<TableInfo>,
    options: RunOptions,
    guards: bool,
    open_ms: f64,
    /// Devices take calls of one query at a time.
    busy: Mutex<()>,
}

/// A query ready to run in the session that prepared it.
pub struct Prepared {
    sql: String,
    decls: Vec<ParamDecl>,
    denied: Vec<String>,
    program: Program,
    explain: String,
    /// None until loaded. Before the workers, whose memory and code it may refer to, so that it is dropped
    /// first.
    setup: Option<Setup>,
    pub(crate) workers: Vec<Worker>,
    /// None until loaded, and in a session that guards nothing.
    guard: Option<Guard>,
    facts: Facts,
    prepare_ms: f64,
    load_ms: f64,
    load_spans: Vec<Span>,
}

/// One execution.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The answer.
    pub batch: RecordBatch,
    /// From a prepared plan with bound parameters to the Arrow batch on the host, reruns included, and runs
    /// that ended in planning anew; planning and loading themselves are not.
    pub exec_ms: f64,
    /// Rows that the host's ordering and limiting began with.
    pub finish_rows: u64,
    /// The part of `exec_ms` after what orders the rows has come to the host.
    pub finish_ms: f64,
    /// Table rows that each device streamed over, all phases together.
    pub rows_per_device: Vec<u64>,
    /// Rows of row groups that statistics excluded, all phases together; 0 where columns are resident.
    pub rows_pruned: u64,
    /// What ran when, on devices and beside them; kernels and exchanges only where the session records them.
    pub spans: Vec<Span>,
    /// Kernels launched, merges not counted.
    pub launches: u64,
    /// Bytes that the launches read and write if each touches all that it is given once: the columns among its
    /// arguments over all rows of the partitions that it ran on; and once a launch of the plan, whatever the number of
    /// partitions, its buffers, of which those appended to count the rows that their counter says, and dictionaries.
    /// Merges, exchanges, what starts buffers, and runs that were repeated are not counted.
    pub kernel_bytes: u64,
    /// Repetitions because a size was too small.
    pub reruns: u64,
    /// Parts into which sharded state was divided.
    pub parts: u64,
    /// Whether the plan in force is not the first one, because the data violated an assumption.
    pub replanned: bool,
}

/// Keys that a query reads, by their names behind tables' prefixes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relabelled {
    /// Those with other values.
    pub keys: BTreeSet<String>,
    /// Those left alone: not all columns of the name hold integers within bounds that the footers state, or fewer than two
    /// values are within all of these.
    pub left: BTreeSet<String>,
}

impl Session {
    /// Opens the Parquet tables in `data` on the devices that `config` names.
    ///
    /// # Errors
    /// No readable tables, no such devices.
    pub fn open(data: &Path, config: SessionConfig) -> Result<Session, Error> {
        let devices = open_devices(config.kind, &config.spec)?;
        let started = Instant::now();
        let data = DataSet::open(data)?;
        let mut session = Session::new(data, devices, &config)?;
        session.open_ms = ms(started);
        Ok(session)
    }

    /// A session over an open data set and open devices, of which the first is the root.
    ///
    /// # Errors
    /// No devices.
    pub fn new(
        data: DataSet,
        devices: Vec<Arc<dyn Device>>,
        config: &SessionConfig,
    ) -> Result<Session, Error> {
        let Some(budget_bytes) = devices.iter().map(|d| d.memory_bytes()).min() else {
            return Err(Error::Execution("a session needs at least one device".to_owned()));
        };
        let options = RunOptions {
            poison: config.poison,
            shrink: config.shrink,
            shards: config.shards,
            budget_bytes,
            timeline: Arc::new(Timeline::default()),
            apart: config.trace,
            watch: config.watch,
        };
        let catalog = data.catalog();
        let chunk_bytes = config.chunk_bytes.unwrap_or(DEFAULT_CHUNK_BYTES);
        let sources = thread::scope(|scope| {
            // Errors come up again when a column is used: a damaged one that is not must not stop all else.
            scope.spawn(|| data.tables.iter().for_each(|table| drop(table.read_page_headers())));
            scope.spawn(|| drop(devices[0].compile_builtin(&PARQUET)));
            Sources::open(&data.tables, devices[0].as_ref())
        })?;
        let shared =
            Arc::new(Shared { sources, timeline: options.timeline.clone(), by_host: Mutex::default() });
        let keep = config.chunk_bytes.is_some();
        let store = Store::new(data, devices, chunk_bytes, config.mode, keep, shared.clone())?;
        store.warm_up()?;
        let guards = config.guard && !store.streams();
        Ok(Session { store, shared, catalog, options, guards, open_ms: 0.0, busy: Mutex::default() })
    }

    /// Time spent on opening the data set: footers, page headers, dictionary pages, and making files known to the
    /// devices.
    pub fn open_ms(&self) -> f64 {
        self.open_ms
    }

    /// The devices; the first is the root.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.store.devices
    }

    /// The data set.
    pub fn data(&self) -> &DataSet {
        &self.store.data
    }

    /// How the devices exchange buffers, in words; None for a single device.
    pub fn exchange(&self) -> Option<String> {
        exchange_name(&self.store)
    }

    /// Columns that the host has decoded since the session began, as `table.column`, and why.
    pub fn host_columns(&self) -> BTreeMap<String, String> {
        self.shared.by_host.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the session's work is recorded in.
    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.shared.timeline
    }

    /// Plans a query and compiles it on every device.
    ///
    /// # Errors
    /// [`Error::Query`], [`Error::Unsupported`], or no compiler.
    pub fn prepare(&self, sql: &str, decls: &[ParamDecl]) -> Result<Prepared, Error> {
        let started = Instant::now();
        self.planned(sql.to_owned(), decls.to_vec(), Vec::new(), started)
    }

    /// Checks a plan, such as one read from a file, and compiles it on every device.
    ///
    /// # Errors
    /// [`Error::Plan`], or a source that does not compile.
    pub fn prepare_plan(&self, plan: Plan) -> Result<Prepared, Error> {
        let started = Instant::now();
        let decls = plan.params.iter().filter_map(|(name, param)| {
            let default = param.default.clone()?;
            Some(ParamDecl { name: name.clone(), ty: param.ty, default })
        });
        let (sql, decls) = (plan.sql.clone(), decls.collect());
        self.compiled(sql, decls, Vec::new(), plan, String::new(), started)
    }

    fn planned(
        &self,
        sql: String,
        decls: Vec<ParamDecl>,
        denied: Vec<String>,
        started: Instant,
    ) -> Result<Prepared, Error> {
        let options = PlanOptions { denied: denied.clone(), memory_bytes: Some(self.options.budget_bytes) };
        let planned = dkb_planner::plan(&sql, &decls, &self.catalog, &options)?;
        self.compiled(sql, decls, denied, planned.plan, planned.explain, started)
    }

    fn compiled(
        &self,
        sql: String,
        decls: Vec<ParamDecl>,
        denied: Vec<String>,
        plan: Plan,
        explain: String,
        started: Instant,
    ) -> Result<Prepared, Error> {
        let program = Program::new(plan)?;
        self.fits(&program.plan)?;
        let worker = |(number, device): (usize, &Arc<dyn Device>)| {
            Ok(Worker::new(number, device.clone(), &program.plan)?)
        };
        let devices = self.store.devices.iter().enumerate();
        let workers = devices.map(worker).collect::<Result<Vec<Worker>, Error>>()?;
        let facts = facts(&self.catalog);
        let prepare_ms = ms(started);
        Ok(Prepared {
            sql,
            decls,
            denied,
            program,
            explain,
            workers,
            guard: None,
            facts,
            setup: None,
            prepare_ms,
            load_ms: 0.0,
            load_spans: Vec::new(),
        })
    }

    /// Whether the data set has the tables and columns that a plan names.
    fn fits(&self, plan: &Plan) -> Result<(), CheckError> {
        let inputs = plan.inputs.iter().flat_map(|(table, columns)| {
            columns.keys().map(move |c| (format!("inputs.{table}.{c}"), table.as_str(), c.as_str()))
        });
        let fetches = plan.result.columns.iter().enumerate().filter_map(|(i, c)| {
            let (table, column) = c.fetch.as_deref()?.split_once('.')?;
            Some((format!("result.columns[{i}].fetch"), table, column))
        });
        let empty = plan.inputs.keys().map(|t| (format!("inputs.{t}"), t.as_str(), ""));
        for (field, table, column) in inputs.chain(fetches).chain(empty) {
            let Some(info) = self.catalog.iter().find(|t| t.name == table) else {
                return Err(CheckError { field, message: format!("the data set has no table `{table}`") });
            };
            if !column.is_empty() && info.schema.index_of(column).is_err() {
                return Err(CheckError {
                    field,
                    message: format!("table `{table}` has no column `{column}`"),
                });
            }
        }
        Ok(())
    }

    /// Brings the query's dictionaries and columns to the devices, where columns are resident. Does nothing for a
    /// query that is loaded; where columns are streamed, loading is part of running.
    ///
    /// # Errors
    /// Unreadable files, or not enough memory.
    pub fn load(&self, prepared: &mut Prepared) -> Result<(), Error> {
        if self.store.streams() {
            return Ok(());
        }
        let _busy = self.lock();
        // What a failed run recorded.
        self.shared.timeline.take();
        self.load_in_parts(prepared, 1)?;
        prepared.load_spans.extend(self.shared.timeline.take());
        Ok(())
    }

    fn load_in_parts(&self, prepared: &mut Prepared, least: u64) -> Result<(), Error> {
        if prepared.setup.is_some() {
            return Ok(());
        }
        let started = Instant::now();
        let (program, store) = (&prepared.program, &self.store);
        for (table, column) in &program.dicts {
            let entries = store.dictionary(table, column)?.len() as u64;
            prepared.facts.insert(format!("dict({table}.{column})"), entries);
        }
        let column_bytes = |all| store.estimate_bytes(&program.columns, all);
        let setup =
            Setup::new(program, &prepared.facts, &self.options, store.devices.len(), least, column_bytes)?;
        for (device, worker) in prepared.workers.iter_mut().enumerate() {
            let dicts = program.dicts.iter().map(|(table, column)| store.device_dict(device, table, column));
            worker.dicts = dicts.collect::<Result<_, Error>>()?;
        }
        if !store.streams() {
            let columns = store.resident(&program.columns, setup.parts > 1)?;
            for (worker, columns) in prepared.workers.iter_mut().zip(columns) {
                worker.columns = columns;
            }
            for source in program.plan.result.columns.iter().filter_map(|c| c.fetch.as_deref()) {
                let (table, column) = source.split_once('.').unwrap_or_default();
                store.table(table)?.load_text(column)?;
            }
        }
        for worker in &prepared.workers {
            worker.device.synchronize()?;
        }
        prepared.setup = Some(setup);
        prepared.load_ms = ms(started);
        // On one device, with more parts, the columns are the same ones, and what was changed is still to be put back.
        if self.guards && !prepared.guard.as_ref().is_some_and(Guard::has_changed_columns) {
            prepared.guard = Some(Guard::new(program, &mut prepared.workers)?);
        }
        Ok(())
    }

    /// Runs a prepared query with parameters by name; the others have their defaults. Loads it first if it is
    /// not loaded. When the data violates an assumption of the plan, the query is planned anew without it.
    ///
    /// # Errors
    /// Wrong parameters, a query that fails on this data, device failures.
    pub fn execute(&self, prepared: &mut Prepared, params: &[(String, String)]) -> Result<Execution, Error> {
        self.execute_with(prepared, params, &self.options)
    }

    /// Runs a prepared query as [`Session::execute`] does, but issues each launch by itself, and records it and each
    /// exchange among the spans. That takes more time than an ordinary run.
    ///
    /// # Errors
    /// As [`Session::execute`].
    pub fn execute_apart(
        &self,
        prepared: &mut Prepared,
        params: &[(String, String)],
    ) -> Result<Execution, Error> {
        self.execute_with(prepared, params, &RunOptions { apart: true, ..self.options.clone() })
    }

    fn execute_with(
        &self,
        prepared: &mut Prepared,
        params: &[(String, String)],
        options: &RunOptions,
    ) -> Result<Execution, Error> {
        let _busy = self.lock();
        let execution = self.execute_kept(prepared, params, options);
        if self.store.mode == Mode::Stream {
            self.store.forget();
        }
        execution
    }

    fn execute_kept(
        &self,
        prepared: &mut Prepared,
        params: &[(String, String)],
        options: &RunOptions,
    ) -> Result<Execution, Error> {
        let (mut least, mut spent_ms) = (1, 0.0);
        // What a failed run recorded.
        self.shared.timeline.take();
        loop {
            let loading = Instant::now();
            self.load_in_parts(prepared, least)?;
            if self.store.streams() {
                spent_ms += ms(loading);
            }
            let program = &prepared.program;
            let values: Vec<ParamWord> =
                dkb_planner::bind(&program.plan, params)?.into_iter().map(word).collect();
            let Some(setup) = &mut prepared.setup else {
                return Err(Error::Execution("a query that was loaded has no sizes".to_owned()));
            };
            let parts = setup.parts;
            let (store, facts) = (&self.store, &prepared.facts);
            if let Some(guard) = &mut prepared.guard {
                make_room(program, store, &mut prepared.workers, &values, setup)?;
                guard.before(program, &prepared.workers)?;
            }
            let started = Instant::now();
            let output = match run(program, store, facts, &mut prepared.workers, &values, setup, options)? {
                Outcome::Rows(output) => output,
                Outcome::Violated(index) => {
                    spent_ms += ms(started);
                    self.replan(prepared, index)?;
                    continue;
                }
                Outcome::TooLarge => {
                    spent_ms += ms(started);
                    least = parts * 2;
                    prepared.setup = None;
                    continue;
                }
            };
            let exec_ms = spent_ms + ms(started);
            if let Some(guard) = &mut prepared.guard {
                let layout = setup.layout_of(&output);
                guard.after(program, &mut prepared.workers, layout, output.poison)?;
            }
            let kernel_bytes = setup.kernel_bytes(program, &prepared.workers, &output);
            if least > 1 {
                // The next run may need fewer parts: what this one learned is not kept.
                prepared.setup = None;
            }
            return Ok(Execution {
                batch: output.answer.batch,
                exec_ms,
                finish_rows: output.answer.rows as u64,
                finish_ms: output.answer.finish_ms,
                rows_per_device: output.rows_per_device,
                rows_pruned: output.rows_pruned,
                spans: self.shared.timeline.take(),
                launches: output.tally.launches,
                kernel_bytes,
                reruns: output.reruns,
                parts,
                replanned: !prepared.denied.is_empty(),
            });
        }
    }

    /// Swaps rows of a loaded query's tables in place, in pairs drawn at random, the same ones in all columns of a
    /// table; called again, puts them back. The answer stays the same relation. Tables of which the query reads text, on
    /// the devices or for its result, are left alone; gives their names.
    ///
    /// # Errors
    /// A session without [`SessionConfig::guard`], or columns that are streamed; a failed device call.
    pub fn swap_rows(&self, prepared: &mut Prepared) -> Result<Vec<String>, Error> {
        let _busy = self.lock();
        self.load_in_parts(prepared, 1)?;
        let Some(guard) = &mut prepared.guard else {
            return Err(Error::Execution(UNGUARDED.to_owned()));
        };
        guard.swap_rows(&prepared.program, &prepared.workers)
    }

    /// Relabels keys of a loaded query in place: of the values that footers allow in all columns of a key's name, those of
    /// the whole data set, the least becomes the greatest, the next one the last but one, and so on. So joins match as
    /// before, no value leaves the range of its column, and other queries on the data set may be asked over the same keys.
    /// NULLs stay. Called again, puts them back.
    ///
    /// # Errors
    /// As [`Session::swap_rows`]; a representation in which keys take more than 64 bits.
    pub fn relabel_keys(&self, prepared: &mut Prepared) -> Result<Relabelled, Error> {
        let _busy = self.lock();
        self.load_in_parts(prepared, 1)?;
        let known = key_ranges(&self.catalog);
        let mut relabelled = Relabelled::default();
        let columns = prepared.program.columns.iter();
        let ranges = columns.map(|used| self.key_range(used, &known, &mut relabelled));
        let ranges = ranges.collect::<Result<Vec<_>, Error>>()?;
        let Some(guard) = &mut prepared.guard else {
            return Err(Error::Execution(UNGUARDED.to_owned()));
        };
        guard.relabel_keys(&prepared.program, &prepared.workers, &ranges)?;
        Ok(relabelled)
    }

    /// The range within which a column is relabelled, in the units of its representation; notes its key.
    fn key_range(
        &self,
        used: &ColumnUse,
        known: &BTreeMap<String, Option<RangeInclusive<i64>>>,
        relabelled: &mut Relabelled,
    ) -> Result<Option<RangeInclusive<i64>>, Error> {
        let ColumnUse { table, column, repr } = used;
        let schema = &self.store.table(table)?.info.schema;
        let field = schema.field_with_name(column).ok();
        let Some((field, name)) = field.and_then(|field| Some((field, key_name(field)?))) else {
            return Ok(None);
        };
        let Some(Some(range)) = known.get(&name) else {
            relabelled.left.insert(name);
            return Ok(None);
        };
        let factor = Kind::of(field.data_type()).factor(repr.sql);
        let stored = |key: i64| i64::try_from(factor?.apply(key.into())?).ok();
        let Some((least, most)) = stored(*range.start()).zip(stored(*range.end())) else {
            let message = format!("keys of column {table}.{column} read as `{repr}` take more than 64 bits");
            return Err(Error::Execution(message));
        };
        relabelled.keys.insert(name);
        Ok(Some(least..=most))
    }

    /// Plans a query anew without the assumption of that index. What the new plan reads would be loaded as it is in the
    /// files, so there is none over columns that were changed in place.
    fn replan(&self, prepared: &mut Prepared, index: usize) -> Result<(), Error> {
        let Some(text) = prepared.program.plan.assumes.get(index).cloned() else {
            let message =
                format!("a kernel reports that assumption {index} is violated, but the plan has none such");
            return Err(Error::Execution(message));
        };
        let changed = prepared.guard.as_ref().is_some_and(Guard::has_changed_columns);
        if changed || prepared.denied.contains(&text) {
            return Err(Error::Assumption { index, text });
        }
        let mut denied = prepared.denied.clone();
        denied.push(text);
        *prepared = self.planned(prepared.sql.clone(), prepared.decls.clone(), denied, Instant::now())?;
        Ok(())
    }

    /// Bytes that a query must read at least: every column among the inputs of the plan in force once, in the
    /// representation that the plan gives it. Text counts its offsets, and its bytes where the footers state them.
    ///
    /// # Errors
    /// No such table or column.
    pub fn floor_bytes(&self, prepared: &Prepared) -> Result<u64, Error> {
        floor_bytes(&prepared.program, &self.store)
    }

    /// Gigabytes (1e9 bytes) a second that the devices' memory reads and writes, all devices together, measured with a
    /// plain copy on all of them at once. None where too little memory is free, without columns and dictionaries that
    /// no prepared query holds.
    ///
    /// # Errors
    /// No compiler, or a failed device call.
    pub fn device_gb_per_s(&self) -> Result<Option<f64>, Error> {
        let _busy = self.lock();
        self.store.evict();
        Ok(memory_gb_per_s(&self.store.devices)?)
    }

    /// Drops columns and dictionaries that no prepared query holds.
    pub fn evict(&self) {
        let _busy = self.lock();
        self.store.evict();
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prepared {
    /// The plan in force.
    pub fn plan(&self) -> &Plan {
        &self.program.plan
    }

    /// Why the plan looks as it does; empty for a plan from a file.
    pub fn explain(&self) -> &str {
        &self.explain
    }

    /// Bytes of the plan's buffers on each device, before any rerun; None until it is loaded.
    pub fn buffer_bytes(&self) -> Option<u64> {
        self.setup.as_ref().map(Setup::buffer_bytes)
    }

    /// What a kernel of the plan takes of the root's multiprocessors; None where nothing tells.
    pub fn resources(&self, kernel: &str) -> Option<Resources> {
        let worker = self.workers.first()?;
        worker.device.resources(worker.module.as_ref(), kernel)
    }

    /// Assumptions that the data was found to violate.
    pub fn denied(&self) -> &[String] {
        &self.denied
    }

    /// Time spent on planning, checking and compiling.
    pub fn prepare_ms(&self) -> f64 {
        self.prepare_ms
    }

    /// Time spent on loading.
    pub fn load_ms(&self) -> f64 {
        self.load_ms
    }

    /// What ran when while [`Session::load`] loaded the query.
    pub fn load_spans(&self) -> &[Span] {
        &self.load_spans
    }
}

/// What length expressions may ask of tables: rows, and the largest values that footers state.
fn facts(catalog: &[TableInfo]) -> Facts {
    let mut facts = Facts::new();
    for table in catalog {
        facts.insert(format!("rows({})", table.name), table.rows);
        for (field, column) in table.schema.fields().iter().zip(&table.columns) {
            let most = column.max.or_else(|| (table.rows == 0).then_some(0));
            if let Some(most) = most {
                let most = u64::try_from(most.max(0)).unwrap_or(u64::MAX);
                facts.insert(format!("max({}.{})", table.name, field.name()), most);
            }
        }
    }
    facts
}

fn word(value: ParamValue) -> ParamWord {
    match value {
        ParamValue::Int(v) => ParamWord::Int(v),
        ParamValue::Float(v) => ParamWord::Float(v),
        ParamValue::Text(v) => ParamWord::Text(v.into_bytes()),
    }
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
