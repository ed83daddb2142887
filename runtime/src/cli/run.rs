//! One invocation from options to exit code: data, worker, queries, checks, output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use dkb_planner::{PlanError, PlanOptions};

use super::args::{Data, Explain, Fallback, Format, LoadMode, Options, Queries};
use super::check::{Mismatch, Rule, compare};
use super::parent::Parent;
use super::progress::{self, Progress};
use super::protocol::{Failed, FailedKind, Measured, Open, Opened, Query, Run};
use super::reference::{self, Reference, stored_answer};
use super::report::{self, Checked, Context, Outcome, Ran};
use super::trace::{self, QuerySpans};
use super::{CliError, jobs, output};
use crate::table::DataSet;
use crate::tpch::workload;
use crate::trace::now_ms;

/// Does what `options` say; whether every query ran and every check passed.
///
/// # Errors
/// [`CliError::Input`] for bad input, [`CliError::Failed`] for anything that ended the run early.
pub(super) fn run(options: &Options) -> Result<bool, CliError> {
    let mut queries = jobs::resolve(options)?;
    let single = queries.len() == 1 && !matches!(options.queries, Queries::All);
    check_paths(options, &queries, single)?;
    let (data, scale) = match &options.data {
        Data::Folder(folder) => (folder.clone(), None),
        Data::Tpch { scale, root } => (super::generate::generate(*scale, root)?, Some(*scale)),
    };
    if let Some(explain) = options.explain {
        return explain_all(options, &data, &queries, explain).map(|()| true);
    }
    let parent = Parent::start(open(options, &data)).map_err(CliError::from)?;
    let opened = parent.opened().clone();
    let scale = scale.or_else(|| scale_of(&opened));
    jobs::scale(&mut queries, scale.unwrap_or_default());
    let mut runner = Runner { options, parent, traced: Vec::new() };
    let mut checker = Checker { options, data: &data, opened: &opened, datafusion: None };
    let outcomes = if single {
        vec![run_single(&mut runner, &mut checker, &queries[0])?]
    } else {
        run_many(&mut runner, &mut checker, &queries)?
    };
    for reason in runner.parent.left_out() {
        eprintln!("warning: {reason}; the other devices went on without it");
    }
    if let Some(path) = &options.trace {
        let events = trace::events(&runner.traced);
        output::write_file(path, |file| Ok(serde_json::to_writer(file, &events)?))?;
    }
    if let Some(path) = &options.report {
        let device_gb_per_s = runner.parent.device_gb_per_s().unwrap_or_else(|failed| {
            eprintln!("warning: the bandwidth of the devices' memory was not measured: {}", failed.message);
            None
        });
        let context = Context {
            command: &options.command,
            data: data.display().to_string(),
            scale,
            mode: options.mode,
            warmup: options.warmup,
            repeat: options.repeat,
            opened: &opened,
            device_gb_per_s,
            left_out: runner.parent.left_out(),
        };
        let json = report::json(&context, &outcomes);
        output::write_file(path, |file| {
            serde_json::to_writer_pretty(&mut *file, &json)?;
            writeln!(file)
        })?;
    }
    Ok(outcomes.iter().all(Outcome::is_good))
}

/// Refuses paths that could only fail after the queries have run.
fn check_paths(options: &Options, queries: &[Query], single: bool) -> Result<(), CliError> {
    let several = !single && options.explain.is_none();
    if several && options.output.is_none() && options.format != Format::Table {
        return Err(CliError::Input("--format: results of several queries need --output DIR".to_owned()));
    }
    let files = [("--report", &options.report), ("--trace", &options.trace), ("--output", &options.output)];
    for (option, path) in files {
        let folder = path.as_ref().and_then(|path| path.parent()).filter(|dir| !dir.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Err(CliError::Input(format!("{option}: no such folder {}", folder.display())));
        }
    }
    if let (true, Some(folder)) = (several, &options.output) {
        let made = std::fs::create_dir_all(folder);
        made.map_err(|e| CliError::Input(format!("--output {}: {e}", folder.display())))?;
    }
    for answer in options.answers.iter().flat_map(|dir| queries.iter().map(|query| answer_path(dir, query))) {
        if !answer.is_file() {
            return Err(CliError::Input(format!("--answers: no file {}", answer.display())));
        }
    }
    Ok(())
}

fn answer_path(dir: &Path, query: &Query) -> PathBuf {
    dir.join(format!("{}.parquet", query.name))
}

fn open(options: &Options, data: &Path) -> Open {
    Open {
        data: data.to_owned(),
        device: options.device,
        gpus: options.gpus,
        devices: options.devices.clone(),
        again: false,
        mode: options.mode,
        chunk_bytes: options.chunk_bytes,
        device_memory: options.device_memory,
        shards: options.shards,
        shrink: options.shrink,
        poison: options.checks(),
        trace: options.trace.is_some(),
        watched: progress::is_watched(),
    }
}

/// The scale factor that the number of suppliers tells, if there is such a table.
fn scale_of(opened: &Opened) -> Option<f64> {
    let (_, rows) = opened.table_rows.iter().find(|(name, _)| name == "supplier")?;
    Some(workload::scale_factor(*rows))
}

/// Prints how the queries would run. Planning needs the footers only: no device and no compiler.
fn explain_all(options: &Options, data: &Path, queries: &[Query], explain: Explain) -> Result<(), CliError> {
    let tables = DataSet::open(data).map_err(|e| CliError::Input(e.to_string()))?.catalog();
    let several = queries.len() > 1;
    for query in queries {
        let name = &query.name;
        let named = |text: String| if several { format!("{name}: {text}") } else { text };
        let plan_options = PlanOptions { memory_bytes: options.device_memory, ..PlanOptions::default() };
        let planned = dkb_planner::plan(&query.sql, &query.planner_decls(), &tables, &plan_options);
        let text = match planned {
            Ok(planned) if explain == Explain::Kernels => dkb_kernels::text::print(&planned.plan),
            Ok(planned) => planned.explain,
            Err(PlanError::Unsupported(reason)) if options.fallback == Fallback::Cpu => {
                format!("runs in DataFusion on the CPU: {reason}\n")
            }
            Err(error @ PlanError::Unsupported(_)) => return Err(CliError::Failed(named(error.to_string()))),
            Err(error @ PlanError::Query(_)) => return Err(CliError::Input(named(error.to_string()))),
        };
        output::print(&if several { format!("-- {name}\n{text}") } else { text })?;
    }
    Ok(())
}

/// Runs queries in the worker and keeps their spans.
struct Runner<'a> {
    options: &'a Options,
    parent: Parent,
    /// Empty unless a trace was asked for.
    traced: Vec<QuerySpans>,
}

impl Runner<'_> {
    fn run(&mut self, query: &Query, progress: &mut Progress) -> Result<(Measured, RecordBatch), Failed> {
        let Options { warmup, repeat, fallback, .. } = *self.options;
        let run = Run { query: query.clone(), warmup, repeat, fallback };
        progress.begin(&query.name);
        let start_ms = now_ms();
        let mut ran = self.parent.run(run, &mut |reply| progress.hear(reply));
        if self.options.trace.is_some() {
            let spans = ran.as_mut().map_or_else(|_| Vec::new(), |(m, _)| std::mem::take(&mut m.spans));
            let devices = &self.parent.opened().devices;
            self.traced.push(QuerySpans::new(&query.name, start_ms, devices, spans));
        }
        ran
    }
}

/// Runs one query and prints its rows; a line about it goes to standard error.
fn run_single(
    runner: &mut Runner<'_>,
    checker: &mut Checker<'_>,
    query: &Query,
) -> Result<Outcome, CliError> {
    let options = runner.options;
    let mut progress = Progress::new(1);
    let ran = runner.run(query, &mut progress);
    progress.clear();
    let (measured, batch) = ran.map_err(CliError::from)?;
    output::write_result(&batch, options.format, options.output.as_deref())?;
    let ran = checker.check(query, measured, &batch)?;
    eprintln!("{}", report::line(&query.name, &ran));
    remarks(options, &query.name, &ran);
    let outcome = Outcome { query: query.name.clone(), result: Ok(ran) };
    name_host_columns(std::slice::from_ref(&outcome));
    Ok(outcome)
}

/// Runs queries one after another and prints the table of them.
fn run_many(
    runner: &mut Runner<'_>,
    checker: &mut Checker<'_>,
    queries: &[Query],
) -> Result<Vec<Outcome>, CliError> {
    let options = runner.options;
    let mut progress = Progress::new(queries.len());
    let mut outcomes = Vec::new();
    for query in queries {
        let name = &query.name;
        let result = match runner.run(query, &mut progress) {
            Ok((measured, batch)) => {
                if let Some(folder) = &options.output {
                    let path = folder.join(format!("{name}.{}", options.format.extension()));
                    output::write_result(&batch, options.format, Some(&path))?;
                }
                progress.say("check");
                Ok(checker.check(query, measured, &batch)?)
            }
            Err(failed) if failed.kind == FailedKind::Input => {
                progress.clear();
                return Err(CliError::Input(format!("{name}: {}", failed.message)));
            }
            Err(failed) => Err(failed.message),
        };
        outcomes.push(Outcome { query: name.clone(), result });
        progress.end();
    }
    progress.clear();
    output::print(&report::table(&outcomes))?;
    for outcome in &outcomes {
        match &outcome.result {
            Ok(ran) => remarks(options, &outcome.query, ran),
            Err(error) => eprintln!("{}: {error}", outcome.query),
        }
    }
    name_host_columns(&outcomes);
    name_specialised(options, &outcomes);
    Ok(outcomes)
}

/// Says in one line which queries ran a plan of the folder that was given.
fn name_specialised(options: &Options, outcomes: &[Outcome]) {
    let Some(dir) = &options.kernels else { return };
    let special = |o: &&Outcome| o.result.as_ref().is_ok_and(|ran| ran.measured.plan_file.is_some());
    let names: Vec<&str> = outcomes.iter().filter(special).map(|o| o.query.as_str()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    eprintln!("plans of {}: {names}; the others are generated", dir.display());
}

/// Says in one line which columns the host decoded, and why.
fn name_host_columns(outcomes: &[Outcome]) {
    let ran = outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok());
    let columns: BTreeMap<&String, &String> = ran.flat_map(|ran| &ran.measured.host_columns).collect();
    if !columns.is_empty() {
        let columns = columns.iter().map(|(column, why)| format!("{column} ({why})"));
        eprintln!("decoded on the host: {}", columns.collect::<Vec<_>>().join(", "));
    }
}

/// Says on standard error what is wrong with a query's outcome, and that it was a fallback.
fn remarks(options: &Options, query: &str, ran: &Ran) {
    if let (Some(reason), false) = (&ran.measured.fallback, options.checks()) {
        eprintln!("{query}: ran in DataFusion: {reason}");
    }
    for complaint in ran.complaints() {
        eprintln!("{query}: {complaint}");
    }
}

/// Compares answers with the references that were asked for.
struct Checker<'a> {
    options: &'a Options,
    data: &'a Path,
    opened: &'a Opened,
    datafusion: Option<Reference>,
}

impl Checker<'_> {
    fn check(&mut self, query: &Query, measured: Measured, batch: &RecordBatch) -> Result<Ran, CliError> {
        let mut ran = Ran { measured, rows: batch.num_rows(), checks: Vec::new(), objections: Vec::new() };
        if !self.options.checks() {
            return Ok(ran);
        }
        if let Some(reason) = &ran.measured.fallback {
            ran.objections.push(format!("ran in DataFusion, which passes no check: {reason}"));
        }
        ran.objections.extend(self.idle_devices(&ran.measured));
        match self.compare_all(query, &ran.measured, batch) {
            Ok(checks) => ran.checks = checks,
            Err(reason) => ran.objections.push(format!("the reference fails: {reason}")),
        }
        Ok(ran)
    }

    /// Rows of the tables that the query reads; of all tables where that is not known.
    fn rows_read(&self, measured: &Measured) -> u64 {
        let reads = |name: &String| measured.tables.is_empty() || measured.tables.contains(name);
        let rows = self.opened.table_rows.iter().filter(|(name, _)| reads(name)).map(|(_, rows)| *rows);
        rows.max().unwrap_or(0)
    }

    /// Devices that streamed no row though there were enough. Where partitions wait in a queue, one device may be
    /// fast enough to take all of them.
    fn idle_devices(&self, measured: &Measured) -> Option<String> {
        if self.options.mode != LoadMode::Resident {
            return None;
        }
        let rows = &measured.rows_per_device;
        let enough = self.rows_read(measured) >= rows.len() as u64;
        let idle = rows.iter().position(|rows| *rows == 0).filter(|_| enough && rows.len() > 1)?;
        Some(format!("device {idle} had no rows: {rows:?}"))
    }

    fn compare_all(
        &mut self,
        query: &Query,
        measured: &Measured,
        batch: &RecordBatch,
    ) -> Result<Vec<Checked>, String> {
        let rows = self.rows_read(measured);
        let datafusion = match self.datafusion.take() {
            Some(open) => open,
            None => Reference::open(self.data)?,
        };
        let datafusion = self.datafusion.insert(datafusion);
        let sql = workload::substitute(&query.sql, &query.planner_decls(), &query.params)
            .map_err(|e| e.to_string())?;
        let question = datafusion.plan(&sql)?;
        let mut checks = Vec::new();
        let mut add = |reference: String, rule: Rule, mismatch: Option<Mismatch>| {
            checks.push(Checked { reference, rule: rule.to_string(), mismatch });
        };
        if self.options.check_datafusion {
            let rule = Rule::Exact { rows };
            let answer = datafusion.answer(&question)?;
            let unlimited = |each: &mut dyn FnMut(&RecordBatch)| datafusion.unlimited(&question, each);
            let compared = compare(batch, &answer, question.visible, rule, &question.order, Some(&unlimited));
            add(reference::version(), rule, compared.err());
        }
        if let Some(dir) = &self.options.answers {
            let (answer, writer) = stored_answer(&answer_path(dir, query))?;
            let order = question.visible_order();
            let compared = compare(batch, &answer, answer.num_columns(), Rule::Stored, &order, None);
            add(format!("stored answers in {} ({writer})", dir.display()), Rule::Stored, compared.err());
        }
        Ok(checks)
    }
}
