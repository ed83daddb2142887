//! The judge: whether a candidate plan keeps the rules, is right, and how much faster than the generated plan it is.
//!
//! Candidates run in fresh, caged worker processes; reference answers stay here. Every output of a candidate is
//! compared, timed ones too, and every run has other parameters, so that nothing kept from an earlier run helps.

mod compile_errors;
mod correct;
mod costs;
mod diagnose;
mod measure;
mod process;
mod profile;
mod rules;
mod timing;
mod worker;

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use dkb_kernels::{Plan, text};
use dkb_runtime::cli::reference::Reference;
use dkb_runtime::table::DataSet;
use dkb_runtime::tpch::workload::{self, Query};

pub use worker::{Machine, SUBCOMMAND as WORKER, main as worker_main};

use compile_errors::{first_errors, with_file_lines};
use correct::Set;
use diagnose::Faulted;
use process::{Ended, Process};
use profile::Profile;
use worker::{Kind, Open, Opened, Program, Purpose};

use crate::prompt::{Facts, compose};
use crate::synthesize::{Block, Framework, Level};
use crate::verdict::{Environment, Outcome, PaperTiming, Timing, Verdict, plan_sha256};

/// A time that no generated plan needs.
const LONG: Duration = Duration::from_secs(600);

/// Parameters by name.
type Params = [(String, String)];

/// On what a candidate is judged.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data set on which it is timed; the baseline is planned for it.
    pub data: PathBuf,
    /// Stored answers `qNN.parquet` for `data`; without them DataFusion answers.
    pub answers: Option<PathBuf>,
    /// Other data sets on which it must be right.
    pub held_out: Vec<PathBuf>,
    /// Data sets on which it may also say that an assumption does not hold, or that it does not fit the data.
    pub hostile: Vec<PathBuf>,
    /// Plans accepted before that stand for the generated ones in prompts and where plans are timed: a plan file, or
    /// a folder with `qNN.plan` for some queries.
    pub baseline: Option<PathBuf>,
    /// Where it runs.
    pub machine: Machine,
    /// The level and the language that were asked for; None takes what the plan says.
    pub asked: Option<(Level, Framework)>,
    /// Whether it is timed; without, a right candidate is [`Outcome::NotFaster`].
    pub timed: bool,
    /// Seed of parameters; another one each time gives other parameters.
    pub seed: u64,
    /// The least time that a run which is not timed may take, preparing included.
    pub limit: Duration,
}

/// Judges candidates for queries: those of TPC-H by name, others as files `NAME.sql` with declared parameters.
pub struct Judge {
    config: Config,
    /// The engine that shares nothing with ours, over each data set.
    references: HashMap<PathBuf, Reference>,
    /// The scale factor of each data set, if it is TPC-H's.
    scales: HashMap<PathBuf, f64>,
    /// Ratio of baseline to baseline, once it has been measured.
    noise: Option<f64>,
}

impl crate::synthesize::Judge for Judge {
    fn judge(&mut self, query: &str, plan_text: &str) -> Result<Verdict> {
        self.verdict(query, plan_text)
    }
}

/// What ends a judgement early.
struct Rejected {
    outcome: Outcome,
    reason: String,
    more: String,
    /// The run to repeat if somebody wants to know more.
    faulted: Option<Faulted>,
}

impl Rejected {
    fn new(outcome: Outcome, reason: impl Into<String>) -> Self {
        Rejected { outcome, reason: reason.into(), more: String::new(), faulted: None }
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
        if let Some(path) = config.baseline.as_ref().filter(|path| !path.exists()) {
            bail!("the baseline {} does not exist: name a plan file, or a folder of them", path.display());
        }
        let (mut references, mut scales) = (HashMap::new(), HashMap::new());
        for data in config.held_out.iter().chain(&config.hostile).chain([&config.data]) {
            let reference = Reference::open(data).map_err(|e| anyhow!("{}: {e}", data.display()))?;
            references.insert(data.clone(), reference);
            scales.insert(data.clone(), scale(data)?);
        }
        Ok(Judge { config, references, scales, noise: None })
    }

    /// Where it judges. The scale factor is that of TPC-H data, by its suppliers.
    ///
    /// # Errors
    /// A device that cannot be opened.
    pub fn environment(&self) -> Result<Environment> {
        let query = find("q06")?;
        let (_, opened) = self.start(&query, &self.timed_set(), generated(&query))?;
        let scale = self.scales[&self.config.data];
        let commit = option_env!("DKB_COMMIT").unwrap_or(env!("CARGO_PKG_VERSION")).to_owned();
        Ok(Environment { commit, gpu: opened.model, versions: opened.versions, scale })
    }

    /// The prompt that asks for a faster plan of a query. The generated plan in it is run some times, so that it is
    /// known which of its phases is hot.
    ///
    /// # Errors
    /// No such query, or a device that cannot be opened.
    pub fn prompt(
        &self,
        query: &str,
        level: Level,
        framework: Framework,
        without: &[Block],
    ) -> Result<String> {
        let query = find(query)?;
        let (mut baseline, opened) = self.start_baseline(&query, &self.timed_set())?;
        let mut plan = text::parse(&opened.plan).context("the baseline's plan")?;
        let hot_share = self.profile(&query, &mut baseline)?.mark(&mut plan, None);
        let bandwidth = baseline.gb_per_s(LONG);
        let gb_per_s = bandwidth.map_err(|ended| baseline_broke(&query, &self.timed_set(), &ended))?;
        let tables = DataSet::open(&self.config.data)?.catalog();
        let left_out = |block: &Block| match block {
            Block::Gpu => "gpu".to_owned(),
            Block::Data => "data".to_owned(),
        };
        compose(&Facts {
            plan: &plan,
            level: level.into(),
            framework: framework.into(),
            tables: &tables,
            gpu: opened.model,
            gb_per_s,
            versions: opened.versions,
            scale: self.scales[&self.config.data],
            hot_share,
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
            Ok((outcome, reason)) => {
                let slow = outcome != Outcome::Accepted;
                (outcome, reason, if slow { self.costs_table(&query, candidate) } else { String::new() })
            }
            Err(Stop::Rejected(Rejected { outcome, reason, more, faulted })) => {
                let more = match faulted {
                    Some(faulted) => with_file_lines(&self.diagnose(candidate, &faulted), candidate),
                    None if outcome == Outcome::Compile => first_errors(&more, candidate),
                    None => more,
                };
                (outcome, reason, more)
            }
            Err(Stop::Broken(e)) => return Err(e),
        };
        let mut feedback = reason.clone();
        if !more.is_empty() {
            feedback = format!("{feedback}\n{more}");
        }
        Ok(Verdict {
            outcome,
            reason,
            feedback,
            timing: found.timing,
            paper: found.paper,
            plan_sha256: plan_sha256(candidate),
            checks: found.checks,
        })
    }

    fn open(&self, set: &Set<'_>, program: Program) -> Open {
        let machine = Machine { devices: set.devices.clone(), ..self.config.machine.clone() };
        let (data, chunk_bytes, purpose) = (set.data.to_owned(), set.chunk_bytes, Purpose::Answer);
        Open { data, machine, chunk_bytes, program, purpose }
    }

    /// The plan that candidates are timed against.
    fn baseline(&self, query: &Query) -> Result<Program> {
        let written = self.written_baseline(query)?;
        Ok(written.map_or_else(|| generated(query), Program::Written))
    }

    fn start_baseline(&self, query: &Query, set: &Set<'_>) -> Result<(Process, Opened)> {
        self.start(query, set, self.baseline(query)?)
    }

    fn start(&self, query: &Query, set: &Set<'_>, program: Program) -> Result<(Process, Opened)> {
        Process::start(&self.open(set, program), LONG).map_err(|ended| baseline_broke(query, set, &ended))
    }

    /// Parameters that depend on the scale of a data set.
    fn fixed_params(&self, query: &Query, data: &Path) -> Vec<(String, String)> {
        workload::scaled_params(&query.name, self.scales[data])
    }

    /// Where the baseline's time goes on the data on which plans are timed.
    fn profile(&self, query: &Query, baseline: &mut Process) -> Result<Profile> {
        let params = self.fixed_params(query, &self.config.data);
        baseline.profile(&params, LONG).map_err(|ended| baseline_broke(query, &self.timed_set(), &ended))
    }

    /// The text of the plan that stands for a query's generated one, if there is such.
    fn written_baseline(&self, query: &Query) -> Result<Option<String>> {
        let Some(path) = &self.config.baseline else { return Ok(None) };
        let in_folder = path.is_dir();
        let file = if in_folder { path.join(format!("{}.plan", query.name)) } else { path.clone() };
        match std::fs::read_to_string(&file) {
            Ok(text) => Ok(Some(text)),
            Err(e) if in_folder && e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| file.display().to_string()),
        }
    }

    /// The generated plan, against which a written baseline is held, too.
    fn generated_plan(&self, query: &Query, baseline: &Plan) -> Result<Plan> {
        if self.written_baseline(query)?.is_none() {
            return Ok(baseline.clone());
        }
        let (_, opened) = self.start(query, &self.timed_set(), generated(query))?;
        let generated = text::parse(&opened.plan).context("the generated plan")?;
        let broken = |reason| anyhow!("{}: the baseline: {reason} (of the generated plan)", query.name);
        rules::keeps(baseline, &generated).map_err(broken)?;
        Ok(generated)
    }

    fn examine(
        &mut self,
        query: &Query,
        candidate: &str,
        found: &mut Found,
    ) -> Result<(Outcome, String), Stop> {
        let (mut baseline, opened) = self.start_baseline(query, &self.timed_set())?;
        let mut plan = text::parse(&opened.plan).context("the baseline's plan")?;
        let generated = self.generated_plan(query, &plan)?;
        if let Some(claimed) = rules::claimed_hot(candidate) {
            self.profile(query, &mut baseline)?.mark(&mut plan, Some(&claimed));
        }
        let refused = |reason: String| Rejected::new(Outcome::Refused, with_file_lines(&reason, candidate));
        let read = rules::read(candidate, &generated, &plan).map_err(refused)?;
        if let Some((level, framework)) = self.config.asked {
            rules::is_asked_for(&read, level.into(), framework.into()).map_err(refused)?;
        }
        found.checks.insert("rules".to_owned(), "kept".to_owned());
        drop(baseline);
        for set in self.sets() {
            let passed = self.is_right_on(&set, query, candidate)?;
            found.checks.insert(set.name.clone(), passed);
        }
        let scrubbed =
            if self.config.machine.gpu { "scrubbed before each" } else { "nothing to scrub on a host" };
        let memory = format!("unchanged outside the buffers after every run, {scrubbed}");
        found.checks.insert("memory".to_owned(), memory);
        if !self.config.timed {
            return Ok((Outcome::NotFaster, "right on every data set; not timed".to_owned()));
        }
        self.is_quiet(query)?;
        let seed = self.config.seed;
        self.measure(query, candidate, seed.wrapping_add(1 << 32), found)?;
        let verdict = self.classify(found)?;
        if verdict.0 != Outcome::Accepted {
            return Ok(verdict);
        }
        // What is published comes from fresh workers.
        self.measure(query, candidate, seed.wrapping_add(2 << 32), found)?;
        self.classify(found)
    }
}

/// The plan that the planner makes for a query, whose answers are right.
fn generated(query: &Query) -> Program {
    let params = query.decls().into_iter().map(|d| (d.name, d.ty, d.default)).collect();
    Program::Generated { sql: query.sql.clone(), params }
}

/// A candidate's failure as an outcome.
fn rejected(ended: Ended, set: &Set<'_>) -> Rejected {
    let on = |text: &str| format!("on {}: {text}", set.name);
    match ended {
        Ended::Failed(failed) => {
            let outcome = match failed.kind {
                Kind::Compile => Outcome::Compile,
                Kind::Assumption | Kind::Fit => Outcome::Wrong,
                Kind::Trespass => Outcome::Refused,
                Kind::Fault | Kind::Setup => Outcome::Fault,
            };
            let reason = failed.message.lines().next().unwrap_or_default().to_owned();
            let more = failed.message.lines().skip(1).collect::<Vec<_>>().join("\n");
            Rejected { more, ..Rejected::new(outcome, on(&reason)) }
        }
        Ended::TimeOut(limit) => {
            Rejected::new(Outcome::TimeOut, on(&format!("stopped after {:.0} s", limit.as_secs_f64())))
        }
        Ended::Died(how) => Rejected::new(Outcome::Fault, on(&how)),
    }
}

/// The failure of a run as an outcome.
fn rejected_run(ended: Ended, set: &Set<'_>, params: &Params) -> Rejected {
    let rejected = rejected(ended, set);
    let repeat = matches!(rejected.outcome, Outcome::Fault | Outcome::TimeOut);
    let faulted = Faulted { chunk_bytes: set.chunk_bytes, params: params.to_vec() };
    Rejected { faulted: repeat.then_some(faulted), ..rejected }
}

/// The baseline's failure, which is no candidate's fault.
fn baseline_broke(query: &Query, set: &Set<'_>, ended: &Ended) -> anyhow::Error {
    anyhow!("{}: the baseline on {}: {}", query.name, set.name, words(ended))
}

/// Parameters that depend on the scale of the data, and drawn ones.
fn drawn(query: &Query, fixed: &Params, seed: u64) -> Vec<(String, String)> {
    fixed.iter().cloned().chain(workload::draw(query, seed)).collect()
}

/// The scale factor of TPC-H data, by its suppliers.
fn scale(data: &Path) -> Result<f64> {
    let tables = DataSet::open(data)?.catalog();
    let suppliers = tables.iter().find(|t| t.name == "supplier").map_or(0, |t| t.rows);
    Ok(workload::scale_factor(suppliers))
}

/// A query of TPC-H, or that of a file.
fn find(name: &str) -> Result<Query> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "sql") {
        let text = std::fs::read_to_string(path).with_context(|| name.to_owned())?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        return Ok(Query { name: stem, ..workload::parse_query(name, &text)? });
    }
    let query = workload::queries().into_iter().find(|q| q.name == name);
    query.with_context(|| format!("no query `{name}`: there are q01 to q22, and files NAME.sql"))
}

fn query_sql(query: &Query, params: &Params) -> Result<String> {
    let name = || query.name.clone();
    workload::substitute(&query.sql, &query.decls(), params).with_context(name)
}

/// The larger of a fixed time and a multiple of the baseline's.
fn limit(least: Duration, times: f64, base_ms: f64) -> Duration {
    least.max(Duration::from_secs_f64(times * base_ms / 1e3))
}

fn words(ended: &Ended) -> String {
    match ended {
        Ended::Failed(failed) => failed.message.clone(),
        Ended::TimeOut(limit) => format!("no answer within {:.0} s", limit.as_secs_f64()),
        Ended::Died(how) => how.clone(),
    }
}
