//! Timing: workers on one machine run in lock-step, until the interval of their ratio is narrow enough.
//!
//! Baseline and candidate have four workers each: where a process's memory lies differs from process to process, and makes
//! up to some percent for as long as it lives. They run in the order A B B A, B A A B, in which neither side is behind the
//! other more often, or later. Queries may take longer with some parameters than with others, so that each pair is the mean
//! over several.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use dkb_runtime::cli::check::{OrderInfo, Rule, compare};
use dkb_runtime::tpch::workload::Query;

use super::correct::{Set, wrong};
use super::process::{Ended, Process, Ran};
use super::worker::Program;
use super::{
    Found, Judge, LONG, Opened, Params, Rejected, Stop, baseline_broke, drawn, limit, query_sql, rejected,
    rejected_run, timing,
};
use crate::verdict::{LEAST_SPEEDUP, Outcome};

/// Beyond this ratio a candidate is slow, and measured no further.
const SLOW: f64 = 3.0;

/// How far baseline against baseline may be from 1 before a session's times are void.
const MOST_NOISE: f64 = 0.01;

/// Times that baseline is timed against baseline, in fresh workers each, of which all count: one process may be slower
/// than another of the same plan by more than that.
const MOST_SESSIONS: usize = 3;

/// The least time that a timed run may take before it is stopped.
const LEAST_LIMIT: Duration = Duration::from_secs(10);

/// The most time that preparing and loading a candidate may take that has been run before.
const START_LIMIT: Duration = Duration::from_secs(240);

/// Whose plan a worker of a timing runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Base,
    Other,
}

/// The workers of a timing in the order in which they run.
const ORDER: [Side; 8] = {
    use Side::{Base, Other};
    [Base, Other, Other, Base, Other, Base, Base, Other]
};

/// Workers that run with the same parameters.
const TURN: usize = 4;

/// Parameter sets of a pair: of two, one is for the first workers and one for the last.
const SETS: usize = 4;

/// The workers of a timing, ready to run.
struct Workers {
    /// In the order of [`ORDER`].
    processes: Vec<(Side, Process)>,
    /// What the first of each side says.
    base: Opened,
    other: Opened,
}

/// What stays the same for all runs of a timing.
struct Race<'a> {
    query: &'a Query,
    set: &'a Set<'a>,
    order: OrderInfo,
    rule: Rule,
    /// What the failure of a run that is not the baseline's comes to.
    other_failed: &'a dyn Fn(Ended, &Params) -> Stop,
}

impl Race<'_> {
    /// Lets workers run one after another with the same parameters, and compares what they say with the baseline. Gives
    /// the summed times of the baseline's and of the others in milliseconds. `base_ms` is how long the baseline took
    /// before.
    fn turn(
        &self,
        workers: &mut [(Side, Process)],
        params: &Params,
        base_ms: f64,
    ) -> Result<(f64, f64), Stop> {
        let (mut base, mut other) = (Vec::new(), Vec::new());
        for (side, worker) in workers {
            match side {
                Side::Base => {
                    let ran = worker.run(params, LONG);
                    base.push(ran.map_err(|ended| baseline_broke(self.query, self.set, &ended))?);
                }
                Side::Other => {
                    let ran = worker.run(params, limit(LEAST_LIMIT, SLOW, base_ms));
                    other.push(ran.map_err(|ended| (self.other_failed)(ended, params))?);
                }
            }
        }
        let want = &base[0].batch;
        for got in &other {
            let same = compare(&got.batch, want, want.num_columns(), self.rule, &self.order, None);
            same.map_err(|mismatch| wrong(&mismatch, self.set, params))?;
        }
        let ms = |runs: &[Ran]| runs.iter().map(|ran| ran.exec_ms).sum();
        Ok((ms(&base), ms(&other)))
    }
}

impl Judge {
    /// Times baseline against baseline, and refuses to time anything on a machine where they differ. Host devices share
    /// their cores with everything else: their times are shown and decide nothing.
    pub(super) fn is_quiet(&mut self, query: &Query) -> Result<()> {
        if self.noise.is_some() || !self.config.machine.gpu {
            return Ok(());
        }
        let set = self.timed_set();
        let failed = |ended: Ended, _: &Params| baseline_broke(query, &set, &ended).into();
        let mut logs = Vec::new();
        loop {
            let seed = self.config.seed.wrapping_add((logs.len() as u64) << 20);
            let timed = self.start_workers(query, &set, self.baseline(query)?).and_then(|mut workers| {
                let pairs = self.pairs(query, &set, &mut workers, &failed, seed)?;
                Ok((pairs, workers.base.model))
            });
            let (pairs, model) = match timed {
                Ok(timed) => timed,
                Err(Stop::Broken(e)) => return Err(e),
                Err(Stop::Rejected(r)) => bail!("{}: the baseline: {}", query.name, r.reason),
            };
            logs.push(timing::timing(&pairs).speedup.ln());
            let ratio = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            if (ratio - 1.0).abs() <= MOST_NOISE {
                self.noise = Some(ratio);
                return Ok(());
            }
            if logs.len() == MOST_SESSIONS {
                bail!(
                    "{}: the baseline is {ratio:.4} times as fast as itself on {}: this session's times are void",
                    query.name,
                    model
                );
            }
        }
    }

    /// Times baseline and candidate.
    pub(super) fn measure(
        &self,
        query: &Query,
        candidate: &str,
        seed: u64,
        found: &mut Found,
    ) -> Result<(), Stop> {
        let set = self.timed_set();
        let mut workers = self.start_workers(query, &set, Program::Written(candidate.to_owned()))?;
        let failed = |ended: Ended, params: &Params| Stop::from(rejected_run(ended, &set, params));
        let pairs = self.pairs(query, &set, &mut workers, &failed, seed)?;
        let measured = timing::timing(&pairs);
        (found.timing, found.paper) = (Some(measured.clone()), Some(timing::paper(&pairs)));
        let bandwidth = workers.processes[0].1.gb_per_s(LONG);
        let bandwidth = bandwidth.map_err(|ended| baseline_broke(query, &set, &ended))?;
        let floor_bytes = workers.other.floor_bytes as f64;
        if let Some(bytes_a_ms) = bandwidth.map(|gb| gb * 1e6)
            && measured.candidate_ms * bytes_a_ms < floor_bytes
        {
            let least = floor_bytes / bytes_a_ms;
            let reason = format!(
                "{:.3} ms is less than the {least:.3} ms that reading its columns takes: held for review",
                measured.candidate_ms
            );
            return Err(Rejected::new(Outcome::Held, reason).into());
        }
        Ok(())
    }

    /// Starts the workers of a timing, all at the same time.
    fn start_workers(&self, query: &Query, set: &Set<'_>, other: Program) -> Result<Workers, Stop> {
        let (base, other) = (self.open(set, self.baseline(query)?), self.open(set, other));
        let started = Process::start_all(ORDER.map(|side| match side {
            Side::Base => (&base, LONG),
            Side::Other => (&other, START_LIMIT),
        }));
        let (mut processes, mut base, mut other) = (Vec::new(), None, None);
        for (side, started) in ORDER.into_iter().zip(started) {
            let (process, opened) = started.map_err(|ended| match side {
                Side::Base => Stop::Broken(baseline_broke(query, set, &ended)),
                Side::Other => rejected(ended, set).into(),
            })?;
            processes.push((side, process));
            let first = if side == Side::Base { &mut base } else { &mut other };
            first.get_or_insert(opened);
        }
        let (Some(base), Some(other)) = (base, other) else { unreachable!("workers of both sides") };
        Ok(Workers { processes, base, other })
    }

    /// The times of pairs that count, until their interval closes, there are too many, or the other is far slower.
    fn pairs(
        &self,
        query: &Query,
        set: &Set<'_>,
        workers: &mut Workers,
        other_failed: &dyn Fn(Ended, &Params) -> Stop,
        seed: u64,
    ) -> Result<Vec<(f64, f64)>, Stop> {
        let question = self.references[set.data].plan(&query_sql(query, &[])?).map_err(|e| anyhow!(e))?;
        let rule = Rule::Exact { rows: workers.base.rows };
        let race = Race { query, set, order: question.visible_order(), rule, other_failed };
        let fixed = self.fixed_params(query, set.data);
        let mut pairs: Vec<(f64, f64)> = Vec::new();
        let mut base_ms = 0.0;
        for pair in 0..timing::WARMUP_PAIRS + timing::MOST_PAIRS {
            let (mut base_sum, mut other_sum) = (0.0, 0.0);
            for at in 0..SETS {
                let params = drawn(query, &fixed, seed.wrapping_add((pair * SETS + at) as u64));
                let turn = &mut workers.processes[at * TURN % ORDER.len()..][..TURN];
                let (base, other) = race.turn(turn, &params, base_ms)?;
                (base_sum, other_sum) = (base_sum + base, other_sum + other);
            }
            let runs = (SETS * TURN / 2) as f64;
            let times = (base_sum / runs, other_sum / runs);
            base_ms = times.0;
            if pair >= timing::WARMUP_PAIRS {
                pairs.push(times);
            }
            let slow = pairs.len() == 5 && timing::timing(&pairs).speedup < 1.0 / SLOW;
            if slow || timing::is_settled(&pairs, self.within()) {
                break;
            }
        }
        Ok(pairs)
    }

    /// Half the width of the interval that ends a measurement, as a share.
    fn within(&self) -> f64 {
        if self.config.machine.gpu { timing::WITHIN } else { timing::WITHIN_ON_HOST }
    }

    /// The verdict on what was measured.
    pub(super) fn classify(&self, found: &Found) -> Result<(Outcome, String), Stop> {
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
        } else if !timing::is_settled(&t.pairs, self.within()) {
            (Outcome::Noisy, format!("right, but the interval does not close: {figures}"))
        } else if t.interval.0 >= LEAST_SPEEDUP {
            (Outcome::Accepted, format!("right, and {figures}"))
        } else {
            (Outcome::NotFaster, format!("right, and not fast enough: {figures}"))
        })
    }
}
