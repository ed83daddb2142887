//! The judge: whether a candidate plan keeps the rules, is right, and how much faster than the generated plan it is.
//!
//! Candidates run in fresh, caged worker processes; reference answers stay here. Every output of a candidate is
//! compared, timed ones too, and every run has other parameters, so that nothing kept from an earlier run helps.

mod process;
mod rules;
mod timing;
mod worker;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use arrow::record_batch::RecordBatch;
use dkb_kernels::text;
use dkb_runtime::cli::check::{Mismatch, Rule, compare};
use dkb_runtime::cli::reference::{Question, Reference, stored_answer};
use dkb_runtime::table::DataSet;
use dkb_runtime::tpch::workload::{self, Query};
use sha2::{Digest, Sha256};

pub use worker::{Machine, SUBCOMMAND as WORKER, main as worker_main};

use process::{Ended, Process, Ran};
use worker::{Kind, Open, Opened, Program};

use crate::prompt::{Facts, compose};
use crate::synthesize::{Block, Framework, Level};
use crate::verdict::{Environment, Outcome, PaperTiming, Timing, Verdict};

/// Values that are tried for a parameter until the answer changes.
const DRAWS: u64 = 20;

/// Beyond this ratio a candidate is slow, and measured no further.
const SLOW: f64 = 3.0;

/// Bytes that a candidate's buffers may take beside twice the baseline's.
const MORE_BUFFER_BYTES: u64 = 1 << 30;

/// Rows that any plan may leave to the host's ordering.
const FINISH_ROWS: u64 = 10_000;

/// How far baseline against baseline may be from 1 before a session's times are void.
const MOST_NOISE: f64 = 0.01;

/// A time that no generated plan needs.
const LONG: Duration = Duration::from_secs(600);

/// On what a candidate is judged.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data set on which it is timed; the baseline is planned for it.
    pub data: PathBuf,
    /// Stored answers `qNN.parquet` for `data`; without them DataFusion answers.
    pub answers: Option<PathBuf>,
    /// Other data sets on which it must be right.
    pub held_out: Vec<PathBuf>,
    /// Data sets on which it may also say that an assumption does not hold, or that the data does not fit.
    pub hostile: Vec<PathBuf>,
    /// Where it runs.
    pub machine: Machine,
    /// Whether it is timed; without, a right candidate is [`Outcome::NotFaster`].
    pub timed: bool,
    /// Seed of parameters; another one each time gives other parameters.
    pub seed: u64,
    /// The least time that a run which is not timed may take, preparing included.
    pub limit: Duration,
}

/// Judges candidates for the queries of TPC-H.
pub struct Judge {
    config: Config,
    /// The engine that shares nothing with ours, over each data set.
    references: HashMap<PathBuf, Reference>,
    /// Ratio of baseline to baseline, once it has been measured.
    noise: Option<f64>,
}

impl crate::synthesize::Judge for Judge {
    fn judge(&mut self, query: &str, plan_text: &str) -> Result<Verdict> {
        self.verdict(query, plan_text)
    }
}

/// A data set, and what is allowed on it.
struct Set<'a> {
    name: String,
    data: &'a Path,
    devices: Vec<usize>,
    chunk_bytes: Option<u64>,
    hostile: bool,
    timed: bool,
}

/// What ends a judgement early.
struct Rejected {
    outcome: Outcome,
    reason: String,
    more: String,
}

impl Rejected {
    fn new(outcome: Outcome, reason: impl Into<String>) -> Self {
        Rejected { outcome, reason: reason.into(), more: String::new() }
    }
}

/// Either a candidate's fault or the judge's.
enum Stop {
    Rejected(Rejected),
    Broken(anyhow::Error),
}

impl From<anyhow::Error> for Stop {
    fn from(e: anyhow::Error) -> Stop {
        Stop::Broken(e)
    }
}

impl From<Rejected> for Stop {
    fn from(r: Rejected) -> Stop {
        Stop::Rejected(r)
    }
}

/// What has been found so far.
#[derive(Default)]
struct Found {
    checks: BTreeMap<String, String>,
    timing: Option<Timing>,
    paper: Option<PaperTiming>,
}

impl Judge {
    /// A judge over data sets that exist.
    ///
    /// # Errors
    /// A folder that holds no tables.
    pub fn new(mut config: Config) -> Result<Judge> {
        // Workers run in folders of their own.
        for data in config.held_out.iter_mut().chain(&mut config.hostile).chain([&mut config.data]) {
            *data = data.canonicalize().with_context(|| data.display().to_string())?;
        }
        let mut references = HashMap::new();
        for data in config.held_out.iter().chain(&config.hostile).chain([&config.data]) {
            let reference = Reference::open(data).map_err(|e| anyhow!("{}: {e}", data.display()))?;
            references.insert(data.clone(), reference);
        }
        Ok(Judge { config, references, noise: None })
    }

    /// Where it judges. The scale factor is that of TPC-H data, by its suppliers.
    ///
    /// # Errors
    /// A device that cannot be opened.
    pub fn environment(&self) -> Result<Environment> {
        let (_, opened) = self.start_baseline(&find("q06")?, &self.timed_set())?;
        let scale = scale(&self.config.data)?;
        let commit = option_env!("DKB_COMMIT").unwrap_or(env!("CARGO_PKG_VERSION")).to_owned();
        Ok(Environment { commit, gpu: opened.model, versions: opened.versions, scale })
    }

    /// The prompt that asks for a faster plan of a query.
    ///
    /// # Errors
    /// No such query, a device that cannot be opened, or level `core` in Triton.
    pub fn prompt(
        &self,
        query: &str,
        level: Level,
        framework: Framework,
        without: &[Block],
    ) -> Result<String> {
        let (_, opened) = self.start_baseline(&find(query)?, &self.timed_set())?;
        let plan = text::parse(&opened.plan).context("the baseline's plan")?;
        let tables = DataSet::open(&self.config.data)?.catalog();
        let left_out = |block: &Block| match block {
            Block::Gpu => "gpu".to_owned(),
            Block::Data => "data".to_owned(),
        };
        compose(&Facts {
            plan: &plan,
            level: match level {
                Level::Core => dkb_kernels::Level::Core,
                Level::Full => dkb_kernels::Level::Full,
            },
            framework: match framework {
                Framework::Cuda => dkb_kernels::Framework::Cuda,
                Framework::Triton => dkb_kernels::Framework::Triton,
            },
            tables: &tables,
            gpu: opened.model,
            gb_per_s: opened.gb_per_s,
            versions: opened.versions,
            scale: scale(&self.config.data)?,
            hot_share: None,
            without: &without.iter().map(left_out).collect::<Vec<_>>(),
        })
    }

    /// Judges one candidate.
    ///
    /// # Errors
    /// What is no candidate's fault: no such query, unreadable data, a baseline that fails, a machine too noisy to
    /// time anything.
    pub fn verdict(&mut self, query: &str, candidate: &str) -> Result<Verdict> {
        let query = find(query)?;
        let mut found = Found::default();
        let (outcome, reason, more) = match self.examine(&query, candidate, &mut found) {
            Ok((outcome, reason)) => (outcome, reason, String::new()),
            Err(Stop::Rejected(Rejected { outcome, reason, more })) => (outcome, reason, more),
            Err(Stop::Broken(e)) => return Err(e),
        };
        let mut feedback = reason.clone();
        if !more.is_empty() {
            feedback = format!("{feedback}\n{more}");
        }
        let sha = Sha256::digest(candidate);
        Ok(Verdict {
            outcome,
            reason,
            feedback,
            timing: found.timing,
            paper: found.paper,
            plan_sha256: sha.iter().map(|byte| format!("{byte:02x}")).collect(),
            checks: found.checks,
        })
    }

    fn timed_set(&self) -> Set<'_> {
        Set {
            name: set_name(&self.config.data),
            data: &self.config.data,
            devices: self.config.machine.devices.clone(),
            chunk_bytes: None,
            hostile: false,
            timed: true,
        }
    }

    /// All sets, the timed one last: a wrong plan should show on small data.
    fn sets(&self) -> Vec<Set<'_>> {
        let devices = &self.config.machine.devices;
        let mut sets = Vec::new();
        for data in &self.config.held_out {
            let (name, devices) = (set_name(data), devices.clone());
            sets.push(Set { name, data, devices, chunk_bytes: None, hostile: false, timed: false });
        }
        for data in &self.config.hostile {
            let name = format!("{} on two devices", set_name(data));
            let devices = if devices.len() > 1 { devices.clone() } else { vec![devices[0], devices[0]] };
            sets.push(Set { name, data, devices, chunk_bytes: Some(1 << 20), hostile: true, timed: false });
        }
        sets.push(self.timed_set());
        sets
    }

    fn open(&self, set: &Set<'_>, program: Program) -> Open {
        let machine = Machine { devices: set.devices.clone(), ..self.config.machine.clone() };
        Open { data: set.data.to_owned(), machine, chunk_bytes: set.chunk_bytes, program }
    }

    fn start_baseline(&self, query: &Query, set: &Set<'_>) -> Result<(Process, Opened)> {
        let params = query.decls().into_iter().map(|d| (d.name, d.ty, d.default)).collect();
        let program = Program::Baseline { sql: query.sql.clone(), params };
        Process::start(&self.open(set, program), LONG)
            .map_err(|e| anyhow!("{}: the baseline on {}: {}", query.name, set.name, words(&e)))
    }

    fn examine(
        &mut self,
        query: &Query,
        candidate: &str,
        found: &mut Found,
    ) -> Result<(Outcome, String), Stop> {
        let baseline = self.start_baseline(query, &self.timed_set())?;
        let plan = text::parse(&baseline.1.plan).context("the baseline's plan")?;
        rules::read(candidate, &plan).map_err(|reason| Rejected::new(Outcome::Refused, reason))?;
        found.checks.insert("rules".to_owned(), "kept".to_owned());
        drop(baseline);
        for set in self.sets() {
            let passed = self.is_right_on(&set, query, candidate)?;
            found.checks.insert(set.name.clone(), passed);
        }
        if !self.config.timed {
            return Ok((Outcome::NotFaster, "right on every data set; not timed".to_owned()));
        }
        self.is_quiet(query)?;
        let seed = self.config.seed;
        self.measure(query, candidate, seed.wrapping_add(1 << 32), found)?;
        let verdict = classify(found, self.within())?;
        if verdict.0 != Outcome::Accepted {
            return Ok(verdict);
        }
        // What is published comes from fresh workers.
        self.measure(query, candidate, seed.wrapping_add(2 << 32), found)?;
        classify(found, self.within())
    }

    /// Half the width of the interval that ends a measurement, as a share.
    fn within(&self) -> f64 {
        if self.config.machine.gpu { timing::WITHIN } else { timing::WITHIN_ON_HOST }
    }

    /// Whether the candidate answers rightly on a data set: with the default parameters, with each parameter changed
    /// alone until the answer changes, and with drawn ones.
    fn is_right_on(&self, set: &Set<'_>, query: &Query, candidate: &str) -> Result<String, Stop> {
        let reference = &self.references[set.data];
        let (mut base, opened) = self.start_baseline(query, set)?;
        let mut answer = |params: &[(String, String)]| {
            base.run(params, LONG)
                .map_err(|e| anyhow!("{}: the baseline on {}: {}", query.name, set.name, words(&e)))
        };
        let fixed = workload::scaled_params(&query.name, scale(set.data)?);
        let default = answer(&fixed)?;
        let question =
            reference.plan(&query_sql(query, &fixed)?).map_err(|e| anyhow!("{}: {e}", query.name))?;
        let order = question.visible_order();
        let limit = limit(self.config.limit, 20.0, default.exec_ms);
        let started = Process::start(&self.open(set, Program::Candidate(candidate.to_owned())), limit * 4);
        let (mut process, candidate_opened) = match started {
            Err(Ended::Failed(failed)) if set.hostile && failed.kind == Kind::Fit => {
                return Ok(format!("skipped: {}", failed.message));
            }
            other => other.map_err(|ended| self.rejected(ended, set))?,
        };
        let most = 2 * opened.buffer_bytes + MORE_BUFFER_BYTES;
        if candidate_opened.buffer_bytes > most {
            let reason =
                format!("buffers take {} bytes, at most {most} are allowed", candidate_opened.buffer_bytes);
            return Err(Rejected::new(Outcome::Refused, reason).into());
        }
        let rule = Rule::Exact { rows: opened.rows };
        let mut runs = 0;
        let mut run = |params: &[(String, String)], want: &Ran| -> Result<bool, Stop> {
            let got = match process.run(params, limit) {
                Err(Ended::Failed(failed)) if set.hostile && failed.kind == Kind::Assumption => {
                    return Ok(false);
                }
                other => other.map_err(|ended| self.rejected(ended, set))?,
            };
            let same = compare(&got.batch, &want.batch, want.batch.num_columns(), rule, &order, None);
            same.map_err(|mismatch| wrong(&mismatch, set, params))?;
            let most = FINISH_ROWS.max(2 * got.batch.num_rows() as u64).max(want.finish_rows);
            if got.finish_rows > most {
                let rows = got.finish_rows;
                let reason =
                    format!("`finish` gets {rows} rows, at most {most} are allowed: order on the device");
                return Err(Rejected::new(Outcome::Refused, reason).into());
            }
            runs += 1;
            Ok(true)
        };
        // The generated plan itself is held against an engine that shares nothing with it.
        self.anchor(set, query, &default.batch, reference, &question, rule)?;
        if !run(&fixed, &default)? {
            return Ok("an assumption does not hold, and the candidate said so".to_owned());
        }
        for declared in query.params.iter().filter(|p| p.domain.is_some()) {
            let name = &declared.decl.name;
            for draw in 0..DRAWS {
                let drawn = workload::draw(query, self.config.seed.wrapping_add(draw));
                let changed = |(n, v): &(String, String)| n == name && *v != declared.decl.default;
                let Some(value) = drawn.into_iter().find(changed) else { continue };
                let one: Vec<_> = fixed.iter().filter(|(n, _)| n != name).cloned().chain([value]).collect();
                // Values that depend on others may not go with their defaults.
                if query_sql(query, &one).is_err() {
                    continue;
                }
                let want = answer(&one)?;
                let changed =
                    compare(&want.batch, &default.batch, default.batch.num_columns(), rule, &order, None)
                        .is_err();
                if changed {
                    if !run(&one, &want)? {
                        return Ok("an assumption does not hold, and the candidate said so".to_owned());
                    }
                    break;
                }
            }
        }
        for draw in 0..3 {
            let drawn = drawn(query, &fixed, self.config.seed.wrapping_add(100 + draw));
            let want = answer(&drawn)?;
            run(&drawn, &want)?;
        }
        Ok(format!("right in {runs} runs"))
    }

    /// Compares the baseline's answer with stored ones, or with DataFusion's.
    fn anchor(
        &self,
        set: &Set<'_>,
        query: &Query,
        batch: &RecordBatch,
        reference: &Reference,
        question: &Question,
        rule: Rule,
    ) -> Result<()> {
        let compared = match &self.config.answers {
            Some(dir) if set.timed => {
                let path = dir.join(format!("{}.parquet", query.name));
                let (want, _) = stored_answer(&path).map_err(|e| anyhow!(e))?;
                let order = question.visible_order();
                compare(batch, &want, want.num_columns(), Rule::Stored, &order, None)
            }
            _ => {
                let want =
                    reference.answer(question).map_err(|e| anyhow!("{}: DataFusion: {e}", query.name))?;
                let unlimited = |each: &mut dyn FnMut(&RecordBatch)| reference.unlimited(question, each);
                compare(batch, &want, question.visible, rule, &question.order, Some(&unlimited))
            }
        };
        match compared {
            Ok(_) => Ok(()),
            Err(mismatch) => {
                bail!(
                    "{}: the generated plan is wrong on {}: {mismatch}; please report it",
                    query.name,
                    set.name
                )
            }
        }
    }

    /// Times baseline against baseline once, and refuses to time anything on a machine where they differ. Host devices
    /// share their cores with everything else: their times are shown and decide nothing.
    fn is_quiet(&mut self, query: &Query) -> Result<()> {
        if self.noise.is_some() || !self.config.machine.gpu {
            return Ok(());
        }
        let set = self.timed_set();
        let (mut first, opened) = self.start_baseline(query, &set)?;
        let (mut second, _) = self.start_baseline(query, &set)?;
        let fixed = workload::scaled_params(&query.name, scale(set.data)?);
        let mut pairs = Vec::new();
        for pair in 0..timing::WARMUP_PAIRS + timing::MOST_PAIRS {
            let params = drawn(query, &fixed, self.config.seed.wrapping_add(pair as u64));
            let broken = |e: Ended| Stop::Broken(anyhow!("{}: the baseline: {}", query.name, words(&e)));
            let mut one = || first.run(&params, LONG).map_err(broken);
            let mut other = || second.run(&params, LONG).map_err(broken);
            let pair_of = match in_lock_step(&mut one, &mut other) {
                Ok(pair_of) => pair_of,
                Err(Stop::Broken(e)) => return Err(e),
                Err(Stop::Rejected(r)) => bail!("{}: the baseline: {}", query.name, r.reason),
            };
            if pair >= timing::WARMUP_PAIRS {
                pairs.push(pair_of.times);
            }
            if timing::is_settled(&pairs, self.within()) {
                break;
            }
        }
        let ratio = timing::timing(&pairs).speedup;
        if (ratio - 1.0).abs() > MOST_NOISE {
            bail!(
                "{}: the baseline is {ratio:.4} times as fast as itself on {}: this session's times are void",
                query.name,
                opened.model
            );
        }
        self.noise = Some(ratio);
        Ok(())
    }

    /// Times baseline and candidate in lock-step, in the order A B B A, with the same fresh parameters for both.
    fn measure(&self, query: &Query, candidate: &str, seed: u64, found: &mut Found) -> Result<(), Stop> {
        let set = self.timed_set();
        let (mut base, opened) = self.start_baseline(query, &set)?;
        let open = self.open(&set, Program::Candidate(candidate.to_owned()));
        let started = Process::start(&open, Duration::from_secs(240));
        let (mut process, candidate_opened) = started.map_err(|ended| self.rejected(ended, &set))?;
        let rule = Rule::Exact { rows: opened.rows };
        let question = self.references[set.data].plan(&query_sql(query, &[])?).map_err(|e| anyhow!(e))?;
        let order = question.visible_order();
        let fixed = workload::scaled_params(&query.name, scale(set.data)?);
        let mut pairs: Vec<(f64, f64)> = Vec::new();
        let mut base_ms = 0.0;
        for pair in 0..timing::WARMUP_PAIRS + timing::MOST_PAIRS {
            let params = drawn(query, &fixed, seed.wrapping_add(pair as u64));
            let stop = limit(Duration::from_secs(10), SLOW, base_ms);
            let broken = |e: Ended| Stop::Broken(anyhow!("{}: the baseline: {}", query.name, words(&e)));
            let mut theirs = || base.run(&params, LONG).map_err(broken);
            let mut ours =
                || process.run(&params, stop).map_err(|ended| Stop::from(self.rejected(ended, &set)));
            let Pair { times, want, got } = in_lock_step(&mut theirs, &mut ours)?;
            for got in &got {
                let same = compare(got, &want, want.num_columns(), rule, &order, None);
                same.map_err(|mismatch| wrong(&mismatch, &set, &params))?;
            }
            base_ms = times.0;
            if pair >= timing::WARMUP_PAIRS {
                pairs.push(times);
            }
            let slow = pairs.len() == 5 && timing::timing(&pairs).speedup < 1.0 / SLOW;
            if slow || timing::is_settled(&pairs, self.within()) {
                break;
            }
        }
        let measured = timing::timing(&pairs);
        (found.timing, found.paper) = (Some(measured.clone()), Some(timing::paper(&pairs)));
        let bytes_a_ms = opened.gb_per_s.map(|gb| gb * 1e6);
        if let Some(bytes_a_ms) = bytes_a_ms
            && measured.candidate_ms * bytes_a_ms < candidate_opened.floor_bytes as f64
        {
            let least = candidate_opened.floor_bytes as f64 / bytes_a_ms;
            let reason = format!(
                "{:.3} ms is less than the {least:.3} ms that reading its columns takes: held for review",
                measured.candidate_ms
            );
            return Err(Rejected::new(Outcome::Held, reason).into());
        }
        Ok(())
    }

    /// A candidate's failure as an outcome.
    fn rejected(&self, ended: Ended, set: &Set<'_>) -> Rejected {
        let on = |text: &str| format!("on {}: {text}", set.name);
        match ended {
            Ended::Failed(failed) => {
                let outcome = match failed.kind {
                    Kind::Compile => Outcome::Compile,
                    Kind::Assumption | Kind::Fit => Outcome::Wrong,
                    Kind::Fault | Kind::Setup => Outcome::Fault,
                };
                let reason = failed.message.lines().next().unwrap_or_default().to_owned();
                Rejected { outcome, reason: on(&reason), more: first_errors(&failed.message) }
            }
            Ended::TimeOut(limit) => {
                Rejected::new(Outcome::TimeOut, on(&format!("stopped after {:.0} s", limit.as_secs_f64())))
            }
            Ended::Died(how) => Rejected::new(Outcome::Fault, on(&how)),
        }
    }
}

/// One pair of times in milliseconds, the baseline's answer, and all of the candidate's.
struct Pair {
    times: (f64, f64),
    want: RecordBatch,
    got: Vec<RecordBatch>,
}

/// Runs A B B A. A process to which the GPU has to switch first runs once untimed: switching takes a fraction of a
/// millisecond, and would otherwise fall on one or the other.
fn in_lock_step(
    theirs: &mut dyn FnMut() -> Result<Ran, Stop>,
    ours: &mut dyn FnMut() -> Result<Ran, Stop>,
) -> Result<Pair, Stop> {
    theirs()?;
    let a = theirs()?;
    let untimed = ours()?;
    let (b, c) = (ours()?, ours()?);
    theirs()?;
    let d = theirs()?;
    let times = ((a.exec_ms + d.exec_ms) / 2.0, (b.exec_ms + c.exec_ms) / 2.0);
    Ok(Pair { times, want: a.batch, got: vec![untimed.batch, b.batch, c.batch] })
}

/// The verdict on what was measured.
fn classify(found: &Found, within: f64) -> Result<(Outcome, String), Stop> {
    let Some(t) = &found.timing else {
        return Err(Stop::Broken(anyhow!("a candidate that was timed has no times")));
    };
    let figures = format!(
        "{:.3} times as fast ({:.3} to {:.3}; {:.3} ms against {:.3} ms over {} pairs)",
        t.speedup,
        t.interval.0,
        t.interval.1,
        t.candidate_ms,
        t.base_ms,
        t.pairs.len()
    );
    Ok(if t.speedup < 1.0 / SLOW {
        (Outcome::Slow, format!("right, and slower than three times the baseline: {figures}"))
    } else if !timing::is_settled(&t.pairs, within) {
        (Outcome::Noisy, format!("right, but the interval does not close: {figures}"))
    } else if t.interval.0 >= crate::verdict::LEAST_SPEEDUP {
        (Outcome::Accepted, format!("right, and {figures}"))
    } else {
        (Outcome::NotFaster, format!("right, and not fast enough: {figures}"))
    })
}

/// Parameters that depend on the scale of the data, and drawn ones.
fn drawn(query: &Query, fixed: &[(String, String)], seed: u64) -> Vec<(String, String)> {
    fixed.iter().cloned().chain(workload::draw(query, seed)).collect()
}

/// The scale factor of TPC-H data, by its suppliers.
fn scale(data: &Path) -> Result<f64> {
    let tables = DataSet::open(data)?.catalog();
    let suppliers = tables.iter().find(|t| t.name == "supplier").map_or(0, |t| t.rows);
    Ok(workload::scale_factor(suppliers))
}

fn find(name: &str) -> Result<Query> {
    let query = workload::queries().into_iter().find(|q| q.name == name);
    query.with_context(|| format!("no query `{name}`: there are q01 to q22"))
}

fn query_sql(query: &Query, params: &[(String, String)]) -> Result<String> {
    let name = || query.name.clone();
    workload::substitute(&query.sql, &query.decls(), params).with_context(name)
}

fn set_name(data: &Path) -> String {
    data.file_name().unwrap_or(data.as_os_str()).to_string_lossy().into_owned()
}

/// The larger of a fixed time and a multiple of the baseline's.
fn limit(least: Duration, times: f64, base_ms: f64) -> Duration {
    least.max(Duration::from_secs_f64(times * base_ms / 1e3))
}

fn wrong(mismatch: &Mismatch, set: &Set<'_>, params: &[(String, String)]) -> Rejected {
    let given: Vec<String> = params.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let given = if given.is_empty() { "default parameters".to_owned() } else { given.join(", ") };
    let mut more = String::new();
    for cell in &mismatch.cells {
        // Infallible: writing to a String.
        let _ = writeln!(more, "row {}, {}: got {}, want {}", cell.row, cell.column, cell.got, cell.want);
    }
    let reason = format!("wrong on {} with {given}: {}", set.name, mismatch.message);
    Rejected { outcome: Outcome::Wrong, reason, more }
}

/// The first five errors of a compiler's output, with what it shows of the source.
fn first_errors(log: &str) -> String {
    let mut errors = 0;
    let shown = log.lines().take_while(|line| {
        errors += usize::from(line.contains("error"));
        errors <= 5
    });
    shown.collect::<Vec<_>>().join("\n")
}

fn words(ended: &Ended) -> String {
    match ended {
        Ended::Failed(failed) => failed.message.clone(),
        Ended::TimeOut(limit) => format!("no answer within {:.0} s", limit.as_secs_f64()),
        Ended::Died(how) => how.clone(),
    }
}
