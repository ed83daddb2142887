//! What folders of runs say: what became of each query under each configuration, and the figures over queries.
//!
//! A folder of runs holds a folder a configuration, in the format of [`crate::verdict`]. Invariant: an unfinished
//! trajectory is in no figure; it is named instead.

mod page;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use dkb_runtime::trace::median;
use serde::de::DeserializeOwned;

use crate::verdict::{Environment, LEAST_SPEEDUP, Outcome, Round, Run};

pub use page::page;
pub use tables::{
    Cell, Column, Table, ablation, baselines, choke_points, json, leaderboard, markdown, preference, repair,
    scope,
};

/// Queries of the workload.
pub const QUERIES: usize = 22;

/// The speed-ups whose shares are shown.
pub const SHARES: [f64; 3] = [LEAST_SPEEDUP, 1.2, 2.0];

const HOUR_MS: f64 = 3_600_000.0;

/// Times of other engines in milliseconds, by engine and query.
pub type Peers = BTreeMap<String, BTreeMap<String, f64>>;

/// All configurations in a folder of runs.
#[derive(Debug, Clone)]
pub struct Results {
    /// In the order of their folders' names; no two are of the same model, framework, level, blocks and baseline.
    pub configurations: Vec<Configuration>,
    /// Median of all measured times of each query's baseline, in milliseconds.
    pub baselines: BTreeMap<Ground, BTreeMap<String, f64>>,
}

/// What baseline times depend on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ground {
    /// Who wrote the baseline plans.
    pub baseline: String,
    /// The device and the scale factor.
    pub place: String,
}

impl Ground {
    fn of(run: &Run) -> Ground {
        let Environment { gpu, scale, .. } = &run.environment;
        Ground { baseline: run.baseline.clone(), place: format!("{gpu}, scale factor {scale}") }
    }
}

/// A configuration and what became of its queries.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// The folder's name.
    pub folder: String,
    /// Its `run.json`.
    pub run: Run,
    /// The trajectories that have ended, by query.
    pub ended: BTreeMap<String, Ended>,
    /// Queries whose last round has no verdict yet.
    pub unfinished: Vec<String>,
}

/// What a trajectory came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// T_base in milliseconds: of the accepted round; else the median of the trajectory's rounds; else the median
    /// of all rounds of all configurations on the same [`Ground`].
    pub base_ms: f64,
    /// C in milliseconds: T_cand of the first accepted round, else T_base.
    pub credited_ms: f64,
    /// The number of the first accepted round, from 1.
    pub accepted: Option<u32>,
    /// Whether any round's candidate was right.
    pub correct: bool,
    /// Whether a candidate waits for a person to look at it.
    pub held: bool,
    /// What became of the first candidate.
    pub first: Outcome,
    /// Rounds up to the accepted one, or all.
    pub rounds: u32,
    /// Tokens of all prompts.
    pub tokens_in: u64,
    /// Tokens of all replies.
    pub tokens_out: u64,
    /// US dollars of all rounds; None where any round's are unknown.
    pub cost_usd: Option<f64>,
}

impl Ended {
    /// T_base / C: 1 where nothing was accepted.
    pub fn speedup(&self) -> f64 {
        self.base_ms / self.credited_ms
    }
}

/// Figures over n queries.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Trajectories that have ended.
    pub n: usize,
    /// Of them, those with any right candidate, over n, in percent.
    pub pass_percent: f64,
    /// Sum of T_base, in milliseconds.
    pub base_ms: f64,
    /// Sum of C, in milliseconds.
    pub credited_ms: f64,
    /// Those accepted with T_base / C of at least each of [`SHARES`], over n, in percent.
    pub share_percent: [f64; SHARES.len()],
    /// Mean rounds of accepted trajectories.
    pub accepted_rounds: Option<f64>,
    /// Mean rounds of all.
    pub rounds: f64,
    /// Tokens of prompts, summed over rounds, mean over queries.
    pub tokens_in: f64,
    /// Tokens of replies, likewise.
    pub tokens_out: f64,
    /// US dollars, likewise; None where any round's are unknown.
    pub cost_usd: Option<f64>,
}

impl Summary {
    /// Over these; None over nothing.
    pub fn of<'a>(ended: impl IntoIterator<Item = &'a Ended>) -> Option<Summary> {
        let all: Vec<&Ended> = ended.into_iter().collect();
        let sum = |value: &dyn Fn(&Ended) -> f64| all.iter().map(|ended| value(ended)).sum::<f64>();
        let mean = |value: &dyn Fn(&Ended) -> f64| sum(value) / all.len() as f64;
        let percent = |holds: &dyn Fn(&Ended) -> bool| mean(&|ended| if holds(ended) { 100.0 } else { 0.0 });
        let rounds: Vec<f64> = all.iter().filter_map(|ended| ended.accepted).map(f64::from).collect();
        let costs: Option<Vec<f64>> = all.iter().map(|ended| ended.cost_usd).collect();
        (!all.is_empty()).then(|| Summary {
            n: all.len(),
            pass_percent: percent(&|ended| ended.correct),
            base_ms: sum(&|ended| ended.base_ms),
            credited_ms: sum(&|ended| ended.credited_ms),
            share_percent: SHARES
                .map(|least| percent(&|ended| ended.accepted.is_some() && ended.speedup() >= least)),
            accepted_rounds: self::mean(&rounds),
            rounds: mean(&|ended| f64::from(ended.rounds)),
            tokens_in: mean(&|ended| ended.tokens_in as f64),
            tokens_out: mean(&|ended| ended.tokens_out as f64),
            cost_usd: costs.and_then(|costs| self::mean(&costs)),
        })
    }

    /// Sum of T_base over sum of C.
    pub fn overall(&self) -> f64 {
        self.base_ms / self.credited_ms
    }

    /// N_save1h: runs of all queries that save an hour, ceil(3,600,000 ms / (sum T_base - sum C)); None where
    /// nothing is saved.
    pub fn runs_to_save_an_hour(&self) -> Option<u64> {
        let saved_ms = self.base_ms - self.credited_ms;
        (saved_ms > 0.0).then(|| (HOUR_MS / saved_ms).ceil() as u64)
    }

    /// Thousand tokens of prompts and replies a query.
    pub fn kilotokens(&self) -> f64 {
        (self.tokens_in + self.tokens_out) / 1000.0
    }
}

impl Configuration {
    /// Figures over all of its queries that have ended.
    pub fn summary(&self) -> Option<Summary> {
        Summary::of(self.ended.values())
    }

    /// Framework and level, such as `CUDA-full`.
    pub fn label(&self) -> String {
        format!("{}-{}", framework(&self.run.framework), self.run.level)
    }

    /// Both configurations' figures over the queries that have ended in both.
    fn beside(&self, other: &Configuration) -> Option<(Summary, Summary)> {
        let shared = |of: &Configuration, with: &Configuration| {
            Summary::of(
                of.ended.iter().filter(|(query, _)| with.ended.contains_key(*query)).map(|(_, ended)| ended),
            )
        };
        shared(self, other).zip(shared(other, self))
    }
}

impl Results {
    /// Reads a folder of runs.
    ///
    /// # Errors
    /// Names the file or folder: unreadable, not in the format, a round missing in between, the same configuration
    /// twice; or the query whose baseline was never timed.
    pub fn read(runs: &Path) -> Result<Results> {
        let mut read = Vec::new();
        for (folder, path) in folders(runs)? {
            let run = read_run(&path.join("run.json"))?;
            let mut trajectories = BTreeMap::new();
            for (query, path) in folders(&path)? {
                if is_query(&query) {
                    trajectories.insert(query, Trajectory::read(&path)?);
                }
            }
            read.push((folder, run, trajectories));
        }
        ensure!(
            !read.is_empty(),
            "{} holds no configuration: name the folder whose folders hold a run.json each",
            runs.display()
        );
        let mut seen = BTreeMap::new();
        let mut times: BTreeMap<Ground, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
        for (folder, run, trajectories) in &read {
            let blocks: BTreeSet<&String> = run.without.iter().collect();
            if let Some(other) =
                seen.insert((&run.model, &run.framework, &run.level, blocks, &run.baseline), folder)
            {
                bail!(
                    "{} and {folder} in {} are of one configuration: keep one of them there",
                    other,
                    runs.display()
                );
            }
            let ground = times.entry(Ground::of(run)).or_default();
            for (query, trajectory) in trajectories {
                ground.entry(query.clone()).or_default().extend(trajectory.base_ms());
            }
        }
        let baselines: BTreeMap<Ground, BTreeMap<String, f64>> = times
            .into_iter()
            .map(|(ground, times)| {
                let medians = times.into_iter().filter_map(|(query, times)| Some((query, median(&times)?)));
                (ground, medians.collect())
            })
            .collect();
        let mut configurations = Vec::new();
        for (folder, run, trajectories) in read {
            let known = &baselines[&Ground::of(&run)];
            let (mut ended, mut unfinished) = (BTreeMap::new(), Vec::new());
            for (query, trajectory) in trajectories {
                if trajectory.is_unfinished() {
                    unfinished.push(query);
                    continue;
                }
                let base_ms = median(&trajectory.base_ms()).or_else(|| known.get(&query).copied());
                let base_ms = base_ms.with_context(|| {
                    format!(
                        "{}: nothing tells the time of {query} of the baseline {}: judge a right candidate for it \
                         in any configuration, or move the query's folder away",
                        runs.join(&folder).display(),
                        run.baseline
                    )
                })?;
                let result = trajectory.ended(base_ms);
                ended.insert(query, result);
            }
            configurations.push(Configuration { folder, run, ended, unfinished });
        }
        Ok(Results { configurations, baselines })
    }

    /// Commits, devices, versions and scale factors of all configurations, in one line; several values of one are
    /// called a mixture.
    pub fn environment(&self) -> String {
        let values = |name: &str, value: &dyn Fn(&Environment) -> String| {
            let all: BTreeSet<String> =
                self.configurations.iter().map(|each| value(&each.run.environment)).collect();
            let joined = all.iter().map(String::as_str).collect::<Vec<_>>().join(" / ");
            if all.len() == 1 { format!("{name} {joined}") } else { format!("{name} MIXED: {joined}") }
        };
        [
            values("commit", &|at| at.commit.clone()),
            values("GPU", &|at| at.gpu.clone()),
            values("versions", &|at| at.versions.clone()),
            values("scale factor", &|at| at.scale.to_string()),
        ]
        .join("; ")
    }

    /// Configurations with every prompt block.
    fn complete(&self) -> impl Iterator<Item = &Configuration> {
        self.configurations.iter().filter(|each| each.run.without.is_empty())
    }

    /// The best configuration (the largest overall speed-up, every prompt block) of each model on each baseline,
    /// best first. Speed-ups over different baselines do not compare, so a model has a row on each.
    pub fn best(&self) -> Vec<(&Configuration, Summary)> {
        let mut best: BTreeMap<(&str, Ground), (&Configuration, Summary)> = BTreeMap::new();
        for each in self.complete() {
            let Some(summary) = each.summary() else { continue };
            let key = (each.run.model.as_str(), Ground::of(&each.run));
            if best.get(&key).is_none_or(|(_, other)| summary.overall() > other.overall()) {
                best.insert(key, (each, summary));
            }
        }
        let mut best: Vec<_> = best.into_values().collect();
        best.sort_by(|(_, a), (_, b)| b.overall().total_cmp(&a.overall()));
        best
    }

    /// Models by their best overall speed-up, best first.
    fn models(&self) -> Vec<&str> {
        let mut models = Vec::new();
        for (each, _) in self.best() {
            if !models.contains(&each.run.model.as_str()) {
                models.push(each.run.model.as_str());
            }
        }
        models
    }

    /// The configuration with every prompt block that differs from `like` in framework and level only.
    fn sibling(&self, like: &Configuration, framework: &str, level: &str) -> Option<&Configuration> {
        self.complete().find(|each| {
            (each.run.framework.as_str(), each.run.level.as_str()) == (framework, level)
                && each.run.model == like.run.model
                && Ground::of(&each.run) == Ground::of(&like.run)
        })
    }

    /// The ground's name: the baseline, and where it ran if that differs between configurations.
    fn name_of(&self, ground: &Ground) -> String {
        if self.baselines.keys().any(|other| other.place != ground.place) {
            format!("{} on {}", ground.baseline, ground.place)
        } else {
            ground.baseline.clone()
        }
    }
}

/// Reads times of other engines: `{"engine": {"q01": ms, ...}, ...}`.
///
/// # Errors
/// Names the file, and the engine and query with a time that is none.
pub fn read_peers(path: &Path) -> Result<Peers> {
    let peers: Peers = read_json(path, "file of engine times, {\"engine\": {\"q01\": ms}}")?;
    for (engine, times) in &peers {
        for (query, ms) in times {
            ensure!(is_query(query), "{}: {engine} names {query}: queries are q01 to q22", path.display());
            ensure!(
                is_time(*ms),
                "{}: {engine} has {ms} for {query}: give milliseconds above 0, or leave it out",
                path.display()
            );
        }
    }
    Ok(peers)
}

/// The rounds of one query that have a verdict.
struct Trajectory {
    rounds: Vec<Round>,
    /// Whether a round follows that has none.
    open: bool,
}

impl Trajectory {
    fn read(folder: &Path) -> Result<Trajectory> {
        let mut rounds = Vec::new();
        let mut open: Option<PathBuf> = None;
        for (at, (_, path)) in folders(folder)?.into_iter().filter(|(name, _)| is_number(name)).enumerate() {
            let expected = format!("{:02}", at + 1);
            ensure!(
                path.ends_with(&expected),
                "{} has no round {expected} before {}: rounds are numbered from 01 without gaps",
                folder.display(),
                path.display()
            );
            let file = path.join("verdict.json");
            if !file.try_exists().with_context(|| format!("cannot read {}", file.display()))? {
                open = open.or(Some(path));
                continue;
            }
            if let Some(open) = open {
                bail!("{} has no verdict.json, but a later round has one: judge it again", open.display());
            }
            rounds.push(read_round(&file)?);
        }
        Ok(Trajectory { rounds, open: open.is_some() })
    }

    fn accepted(&self) -> Option<usize> {
        self.rounds.iter().position(|round| round.verdict.outcome == Outcome::Accepted)
    }

    fn is_unfinished(&self) -> bool {
        self.accepted().is_none() && (self.open || self.rounds.is_empty())
    }

    /// All measured times of the baseline, in milliseconds.
    fn base_ms(&self) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| Some(round.verdict.timing.as_ref()?.base_ms)).collect()
    }

    /// What it came to, with the baseline's time where no round is accepted. There is a round.
    fn ended(&self, base_ms: f64) -> Ended {
        let accepted = self.accepted();
        let timing = accepted.and_then(|at| self.rounds[at].verdict.timing.as_ref());
        let outcomes = || self.rounds.iter().map(|round| round.verdict.outcome);
        Ended {
            base_ms: timing.map_or(base_ms, |timing| timing.base_ms),
            credited_ms: timing.map_or(base_ms, |timing| timing.candidate_ms),
            accepted: accepted.map(|at| at as u32 + 1),
            correct: outcomes().any(Outcome::is_correct),
            held: outcomes().any(|outcome| outcome == Outcome::Held),
            first: self.rounds[0].verdict.outcome,
            rounds: accepted.map_or(self.rounds.len(), |at| at + 1) as u32,
            tokens_in: self.rounds.iter().map(|round| round.tokens_in).sum(),
            tokens_out: self.rounds.iter().map(|round| round.tokens_out).sum(),
            cost_usd: self.rounds.iter().map(|round| round.cost_usd).sum(),
        }
    }
}

fn read_run(path: &Path) -> Result<Run> {
    let run: Run = read_json(path, "description of a run")?;
    for (field, value, allowed) in
        [("framework", &run.framework, ["cuda", "triton"]), ("level", &run.level, ["core", "full"])]
    {
        ensure!(
            allowed.contains(&value.as_str()),
            "{}: {field} is {value:?}: write {}",
            path.display(),
            allowed.join(" or ")
        );
    }
    Ok(run)
}

fn read_round(path: &Path) -> Result<Round> {
    let round: Round = read_json(path, "verdict on a round")?;
    let timing = &round.verdict.timing;
    ensure!(
        round.verdict.outcome != Outcome::Accepted || timing.is_some(),
        "{}: accepted without a timing: judge it again",
        path.display()
    );
    ensure!(
        timing.as_ref().is_none_or(|timing| is_time(timing.base_ms) && is_time(timing.candidate_ms)),
        "{}: a time is not above 0: judge it again",
        path.display()
    );
    Ok(round)
}

fn read_json<T: DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no {what}", path.display()))
}

/// The folders in a folder by name; hidden ones are someone's work in progress.
fn folders(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let context = || format!("cannot read the folder {}", folder.display());
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).with_context(context)? {
        let entry = entry.with_context(context)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.path().is_dir() {
            all.push((name, entry.path()));
        }
    }
    all.sort();
    Ok(all)
}

fn is_number(name: &str) -> bool {
    name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_query(name: &str) -> bool {
    name.strip_prefix('q')
        .filter(|number| is_number(number))
        .and_then(|number| number.parse().ok())
        .is_some_and(|number| (1..=QUERIES).contains(&number))
}

fn is_time(ms: f64) -> bool {
    ms.is_finite() && ms > 0.0
}

fn framework(name: &str) -> &'static str {
    if name == "cuda" { "CUDA" } else { "Triton" }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Spearman's rank correlation: Pearson's of the ranks, where equal values share the mean of their ranks. None for
/// fewer than two pairs, and where either side is constant.
fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let x = ranks(pairs.iter().map(|pair| pair.0).collect());
    let y = ranks(pairs.iter().map(|pair| pair.1).collect());
    let (mean_x, mean_y) = (mean(&x)?, mean(&y)?);
    let product = |a: &[f64], mean_a: f64, b: &[f64], mean_b: f64| {
        a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b)).sum::<f64>()
    };
    let spread = (product(&x, mean_x, &x, mean_x) * product(&y, mean_y, &y, mean_y)).sqrt();
    (spread > 0.0).then(|| product(&x, mean_x, &y, mean_y) / spread)
}

/// Ranks from 1.
fn ranks(values: Vec<f64>) -> Vec<f64> {
    let rank = |value: &f64| {
        let less = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        less as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Timing, Verdict};
    use Outcome::{Accepted, Compile, Fault, Held, Noisy, NotFaster, Refused, Slow, TimeOut, Wrong};

    type Rounds<'a> = &'a [(Outcome, Option<(f64, f64)>)];

    fn run(model: &str, framework: &str, level: &str, baseline: &str, without: &[&str]) -> Run {
        Run {
            model: model.to_owned(),
            provider: "none".to_owned(),
            framework: framework.to_owned(),
            level: level.to_owned(),
            without: without.iter().map(|&block| block.to_owned()).collect(),
            baseline: baseline.to_owned(),
            environment: Environment {
                commit: "abc".to_owned(),
                gpu: "a GPU".to_owned(),
                versions: "a driver".to_owned(),
                scale: 10.0,
            },
        }
    }

    fn put(folder: &Path, run: &Run, queries: &[(&str, Rounds<'_>)]) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("run.json"), serde_json::to_string(run).unwrap()).unwrap();
        for (query, rounds) in queries {
            fs::create_dir_all(folder.join(query)).unwrap();
            for (at, &(outcome, times)) in rounds.iter().enumerate() {
                let round = Round {
                    tokens_in: 1000,
                    tokens_out: 500,
                    cost_usd: (run.model == "alpha").then_some(0.1),
                    verdict: Verdict {
                        outcome,
                        reason: String::new(),
                        feedback: String::new(),
                        timing: times.map(|(base_ms, candidate_ms)| Timing {
                            base_ms,
                            candidate_ms,
                            speedup: base_ms / candidate_ms,
                            interval: (1.0, 1.0),
                            pairs: Vec::new(),
                        }),
                        paper: None,
                        plan_sha256: String::new(),
                        checks: BTreeMap::new(),
                    },
                };
                let folder = folder.join(query).join(format!("{:02}", at + 1));
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("verdict.json"), serde_json::to_string(&round).unwrap()).unwrap();
            }
        }
    }

    /// Two models, frameworks and levels, and one ablation; 1500 tokens a round. Medians of the baseline: 10 ms for
    /// q01, 20 for q05, 30 for q20.
    pub(super) fn tree(runs: &Path) {
        let put = |folder: &str, model, framework, level, queries: &[(&str, Rounds<'_>)]| {
            put(&runs.join(folder), &run(model, framework, level, "dkb", &[]), queries);
        };
        put(
            "a-cf",
            "alpha",
            "cuda",
            "full",
            &[
                ("q01", &[(Compile, None), (Accepted, Some((10.0, 4.0)))]),
                ("q05", &[(Accepted, Some((20.0, 10.0)))]),
                ("q20", &[(Wrong, None), (NotFaster, Some((30.0, 30.0)))]),
            ],
        );
        fs::create_dir_all(runs.join("a-cf/q22/01")).unwrap();
        put(
            "a-cc",
            "alpha",
            "cuda",
            "core",
            &[
                ("q01", &[(Accepted, Some((10.0, 8.0)))]),
                ("q05", &[(Fault, None)]),
                ("q20", &[(NotFaster, Some((32.0, 31.0)))]),
            ],
        );
        put(
            "a-tf",
            "alpha",
            "triton",
            "full",
            &[
                ("q01", &[(Accepted, Some((12.0, 8.0)))]),
                ("q05", &[(TimeOut, None), (Accepted, Some((20.0, 16.0)))]),
                ("q20", &[(Refused, None)]),
            ],
        );
        put(
            "a-tc",
            "alpha",
            "triton",
            "core",
            &[
                ("q01", &[(Wrong, None)]),
                ("q05", &[(NotFaster, Some((22.0, 22.0)))]),
                ("q20", &[(Held, Some((30.0, 1.0)))]),
            ],
        );
        put(
            "b-cf",
            "beta",
            "cuda",
            "full",
            &[
                ("q01", &[(Accepted, Some((10.0, 9.0)))]),
                ("q05", &[(Slow, Some((24.0, 100.0)))]),
                ("q20", &[(Wrong, None)]),
            ],
        );
        put("b-cc", "beta", "cuda", "core", &[("q01", &[(Noisy, Some((10.0, 9.0)))])]);
        put(
            "b-tf",
            "beta",
            "triton",
            "full",
            &[
                ("q01", &[(Accepted, Some((10.0, 5.0)))]),
                ("q05", &[(Fault, None)]),
                ("q20", &[(Compile, None)]),
            ],
        );
        put(
            "b-tc",
            "beta",
            "triton",
            "core",
            &[("q01", &[(Fault, None)]), ("q05", &[(Fault, None)]), ("q20", &[(Fault, None)])],
        );
        self::put(
            &runs.join("a-cf-gpu"),
            &run("alpha", "cuda", "full", "dkb", &["gpu"]),
            &[("q01", &[(Accepted, Some((10.0, 5.0)))]), ("q05", &[(NotFaster, Some((20.0, 20.0)))])],
        );
    }

    pub(super) fn peers() -> Peers {
        serde_json::from_str(r#"{ "peer <1>": { "q01": 5.0, "q05": 40.0, "q20": 10.0 } }"#).unwrap()
    }

    pub(super) fn results() -> Results {
        let runs = tempfile::tempdir().unwrap();
        tree(runs.path());
        Results::read(runs.path()).unwrap()
    }

    /// The rows as printed; the notes are as every table's.
    fn rows(table: &Table) -> Vec<String> {
        let line = |row: &Vec<Cell>| {
            row.iter().enumerate().map(|(at, cell)| table.text(at, cell)).collect::<Vec<_>>().join(" ")
        };
        assert!(
            table
                .notes
                .last()
                .unwrap()
                .contains("Measured with commit abc; GPU a GPU; versions a driver; scale factor 10.")
        );
        assert!(table.notes.iter().any(|note| note == "Unfinished and not counted: a-cf q22."));
        table.rows.iter().map(line).collect()
    }

    #[test]
    fn formulas() {
        let results = results();
        let of = |folder: &str| {
            results.configurations.iter().find(|each| each.folder == folder).unwrap().summary().unwrap()
        };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        // Bases 10, 20, 30; credited 4, 10, 30; two of three twice as fast; rounds 2, 1, 2.
        let full = of("a-cf");
        assert_eq!((full.n, full.runs_to_save_an_hour()), (3, Some(225_000)));
        near(full.overall(), 60.0 / 44.0);
        near(full.pass_percent, 100.0);
        full.share_percent.iter().for_each(|&share| near(share, 200.0 / 3.0));
        near(full.accepted_rounds.unwrap(), 1.5);
        near(full.rounds, 5.0 / 3.0);
        near(full.tokens_in, 5000.0 / 3.0);
        near(full.tokens_out, 2500.0 / 3.0);
        near(full.kilotokens(), 2.5);
        near(full.cost_usd.unwrap(), 0.5 / 3.0);
        // q05 has no timing: 20, the median of 20, 20, 20, 22 and 24.
        near(of("a-cc").base_ms, 10.0 + 20.0 + 32.0);
        near(of("a-cc").credited_ms, 8.0 + 20.0 + 32.0);
        near(of("a-cc").share_percent[1], 100.0 / 3.0);
        // A held candidate is neither right nor credited; its baseline's time counts.
        near(of("a-tc").pass_percent, 100.0 / 3.0);
        near(of("a-tc").credited_ms, 10.0 + 22.0 + 30.0);
        // Nothing saved, nothing accepted, no prices.
        let none = of("b-tc");
        assert_eq!((none.runs_to_save_an_hour(), none.accepted_rounds, none.cost_usd), (None, None, None));
        // 3,600,000 / 2 ms a run, and rounded up: 3,600,000 / 7 = 514,285.7.
        assert_eq!(of("a-cc").runs_to_save_an_hour(), Some(1_800_000));
        assert_eq!(Summary { base_ms: 8.0, credited_ms: 1.0, ..none }.runs_to_save_an_hour(), Some(514_286));
    }

    #[test]
    fn correlation_of_ranks() {
        // Ranks 1, 2.5, 2.5, 4 and 2, 4, 3, 1: -1.5 / sqrt(4.5 * 5).
        let rho = spearman(&[(1.0, 10.0), (2.0, 20.0), (2.0, 15.0), (3.0, 5.0)]).unwrap();
        assert!((rho + 1.5 / 22.5f64.sqrt()).abs() < 1e-12, "{rho}");
        assert_eq!(spearman(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(spearman(&[]), None);
    }

    #[test]
    fn leaderboard_has_the_best_of_each_model() {
        let tables = leaderboard(&results(), &peers());
        assert_eq!(
            rows(&tables[0]),
            [
                "alpha CUDA-full dkb 3 100.0 1.36 66.7 66.7 66.7 0.044 225000 1.5 1.7 1.7 0.8 0.17",
                "beta Triton-full dkb 3 33.3 1.09 33.3 33.3 33.3 0.055 720000 1.0 1.0 1.0 0.5 -",
            ]
        );
        assert_eq!(rows(&tables[1]), ["dkb 3 0.060", "peer <1> 3 0.055"]);
    }

    #[test]
    fn gains_of_scope_and_blocks() {
        let results = results();
        // alpha: 60/44 - 62/60 and 62/54 - 1; beta: 10/9 - 1 over q01, which alone has ended in both, and 60/55 - 1.
        let tables = scope(&results);
        assert_eq!(rows(&tables[1]), ["alpha 0.33 0.15 0.24", "beta 0.11 0.09 0.10"]);
        assert_eq!(rows(&tables[0]), ["all 2 0.22 0.12 0.17", "top 2 0.22 0.12 0.17"]);
        // Over q01 and q05: 30/25 and 30/14.
        assert_eq!(rows(&ablation(&results)[0]), ["alpha CUDA-full dkb gpu 2 1.20 2.14 -0.94"]);
    }

    #[test]
    fn preferences_and_correlations() {
        let results = results();
        // 1000 * (60/44 - 62/54) - (2.5 - 2), and 1000 * (64/63 - 60/55).
        assert_eq!(
            rows(&preference(&results)[0]),
            ["alpha dkb 3 1.36 1.15 2.5 2.0 215.0", "beta dkb 3 1.02 1.09 1.5 1.5 -75.0"]
        );
        // Categories of q01, q05, q20: 2, 1, 3. alpha's mean speed-ups 1.56, 1.31, 1; beta's 1.28, 1, 1; pooled
        // -6 / sqrt(16 * 15.5); the peer's 10/5, 20/40, 30/10.
        let tables = choke_points(&results, &peers());
        assert_eq!(
            rows(&tables[0]),
            ["alpha 3 -0.500", "beta 3 0.000", "all models, pooled 6 -0.381", "peer <1> over dkb 3 1.000"]
        );
        assert_eq!(rows(&tables[1])[19], "q20 3");
    }

    #[test]
    fn repair_counts_trajectories() {
        let tables = repair(&results());
        // 22 trajectories: 5 accepted in the first round, 2 in the second.
        assert_eq!(rows(&tables[0])[..3], ["1 5 22.7", "2 7 31.8", "3 7 31.8"]);
        assert_eq!(tables[0].rows.len(), 10);
        assert_eq!(
            rows(&tables[1]),
            ["accepted 7 31.8", "right, not faster 5 22.7", "held for a person 1 4.5", "never right 9 40.9"]
        );
        assert_eq!(
            rows(&tables[2]),
            [
                "compile or import 3 25.0 1 25.0 2 25.0",
                "execution 6 50.0 1 25.0 5 62.5",
                "output 3 25.0 2 50.0 1 12.5"
            ]
        );
        assert_eq!(rows(&tables[3]), ["q20 0 7 0.0", "q05 2 7 28.6", "q01 5 8 62.5"]);
    }

    #[test]
    fn baselines_stand_beside_each_other() {
        let runs = tempfile::tempdir().unwrap();
        tree(runs.path());
        let mut other = run("alpha", "cuda", "full", "other", &[]);
        other.environment.commit = "def".to_owned();
        put(&runs.path().join("c"), &other, &[("q01", &[(Accepted, Some((14.0, 7.0)))])]);
        let results = Results::read(runs.path()).unwrap();
        let table = &baselines(&results)[0];
        assert_eq!(table.columns[3].name, "other, total s");
        let text = markdown(std::slice::from_ref(table));
        assert!(text.contains("| baseline | 0.060 | 3 | 0.014 | 1 |\n"), "{text}");
        assert!(text.contains("| alpha CUDA-full | 0.044 | 3 | 0.007 | 1 |\n"), "{text}");
        assert!(text.contains("| beta CUDA-core | 0.010 | 1 | - | - |\n"), "{text}");
        assert!(text.contains("commit MIXED: abc / def; GPU a GPU;"), "{text}");
        // Each baseline has its own best.
        assert_eq!(leaderboard(&results, &Peers::new())[0].rows.len(), 3);
        let value: serde_json::Value = serde_json::from_str(&json(std::slice::from_ref(table))).unwrap();
        assert_eq!(value[0]["rows"][0]["other, total s"], 0.014);
        // alpha CUDA-core was never run on the other.
        assert!(value[0]["rows"][1]["other, n"].is_null(), "{value}");
    }

    #[test]
    fn bad_runs_are_named() {
        let timed: Rounds<'_> = &[(NotFaster, Some((10.0, 10.0)))];
        let error = |spoil: &dyn Fn(&Path)| {
            let runs = tempfile::tempdir().unwrap();
            put(&runs.path().join("one"), &run("m", "cuda", "core", "dkb", &[]), &[("q01", timed)]);
            spoil(runs.path());
            format!("{:#}", Results::read(runs.path()).unwrap_err())
        };
        let write = |file: &'static str, text: &'static str| {
            move |runs: &Path| {
                fs::create_dir_all(runs.join(file).parent().unwrap()).unwrap();
                fs::write(runs.join(file), text).unwrap();
            }
        };
        let spoiled = |spoil: &dyn Fn(&mut Run)| {
            let mut run = run("m", "cuda", "core", "dkb", &[]);
            spoil(&mut run);
            move |runs: &Path| put(&runs.join("two"), &run, &[("q07", &[(Wrong, None)])])
        };
        for (message, parts) in [
            (
                error(&|runs| fs::remove_dir_all(runs.join("one")).unwrap()),
                ["holds no configuration", "run.json"],
            ),
            (error(&|runs| fs::remove_dir_all(runs).unwrap()), ["cannot read the folder", ""]),
            (error(&|runs| fs::create_dir(runs.join("two")).unwrap()), ["cannot read", "two/run.json"]),
            (
                error(&write("one/run.json", "{}")),
                ["one/run.json is no description of a run", "missing field"],
            ),
            (error(&write("one/q01/01/verdict.json", "{")), ["q01/01/verdict.json is no verdict", "EOF"]),
            (error(&write("one/q01/03/verdict.json", "{")), ["one/q01 has no round 02", "without gaps"]),
            (
                error(&spoiled(&|run| run.framework = "hip".to_owned())),
                ["two/run.json: framework is \"hip\"", "cuda"],
            ),
            (error(&spoiled(&|_| ())), ["one and two", "are of one configuration"]),
            (
                error(&spoiled(&|run| run.model = "n".to_owned())),
                ["two: nothing tells the time of q07", "dkb"],
            ),
            (
                error(&|runs| {
                    put(
                        &runs.join("one"),
                        &run("m", "cuda", "core", "dkb", &[]),
                        &[("q02", &[(Accepted, None)])],
                    )
                }),
                ["q02/01/verdict.json", "without a timing"],
            ),
            (
                error(&|runs| {
                    put(
                        &runs.join("one"),
                        &run("m", "cuda", "core", "dkb", &[]),
                        &[("q02", &[timed[0], timed[0]])],
                    );
                    fs::remove_file(runs.join("one/q02/01/verdict.json")).unwrap();
                }),
                ["q02/01 has no verdict.json", "judge it again"],
            ),
        ] {
            assert!(parts.iter().all(|part| message.contains(part)), "{message} has not {parts:?}");
        }
    }

    #[test]
    fn bad_engine_times_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engines.json");
        for (text, expected) in [
            ("[]", "engines.json is no file of engine times"),
            (r#"{ "e": { "q23": 1.0 } }"#, "engines.json: e names q23: queries are q01 to q22"),
            (r#"{ "e": { "q22": 0.0 } }"#, "engines.json: e has 0 for q22: give milliseconds above 0"),
        ] {
            fs::write(&path, text).unwrap();
            let message = format!("{:#}", read_peers(&path).unwrap_err());
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn choke_points_name_queries() {
        let value: serde_json::Value = serde_json::from_str(include_str!("chokepoints.json")).unwrap();
        for point in value["choke_points"].as_array().unwrap() {
            let category = point["category"].as_str().unwrap();
            assert!(value["categories"][category].is_string(), "{point}");
            assert!(point["id"].as_str().unwrap().starts_with(category), "{point}");
            let evidence = point["evidence"].as_str().unwrap();
            assert!(["quotation", "citation", "description", "recollection"].contains(&evidence), "{point}");
            assert!(
                point["queries"].as_array().unwrap().iter().all(|query| is_query(query.as_str().unwrap()))
            );
        }
    }
}
