//! Timing: workers on one machine run in lock-step, until the interval of their ratio is narrow enough.
//!
//! Baseline and candidate have two workers each, started in the order in which they then run: A B B A. Where a process's
//! memory lies, and how it runs behind another one, differs from process to process by up to some percent; what grows
//! with the order is the same for both sides.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use dkb_runtime::cli::check::{Rule, compare};
use dkb_runtime::tpch::workload::Query;

use super::correct::{Set, wrong};
use super::process::{Ended, Process};
use super::worker::Program;
use super::{
    Found, Judge, LONG, Params, Rejected, Stop, baseline_broke, drawn, limit, query_sql, rejected,
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

/// The workers of a timing: A B B A.
type Workers = [Process; 4];

impl Judge {
    /// Times baseline against baseline, and refuses to time anything on a machine where they differ. Host devices share
    /// their cores with everything else: their times are shown and decide nothing.
    pub(super) fn is_quiet(&mut self, query: &Query) -> Result<()> {
        if self.noise.is_some() || !self.config.machine.gpu {
            return Ok(());
        }
        let set = self.timed_set();
        let start = || self.start_baseline(query, &set);
        let failed = |ended: Ended, _: &Params| baseline_broke(query, &set, &ended).into();
        let mut logs = Vec::new();
        loop {
            let (first, opened) = start()?;
            let mut workers = [first, start()?.0, start()?.0, start()?.0];
            let seed = self.config.seed.wrapping_add(logs.len() as u64);
            let pairs = match self.pairs(query, &set, &mut workers, opened.rows, &failed, seed) {
                Ok(pairs) => pairs,
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
                    opened.model
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
        let open = self.open(&set, Program::Written(candidate.to_owned()));
        let start = || Process::start(&open, START_LIMIT).map_err(|ended| rejected(ended, &set));
        let (base, opened) = self.start_baseline(query, &set)?;
        let (other, candidate_opened) = start()?;
        let mut workers = [base, other, start()?.0, self.start_baseline(query, &set)?.0];
        let failed = |ended: Ended, params: &Params| Stop::from(rejected_run(ended, &set, params));
        let pairs = self.pairs(query, &set, &mut workers, opened.rows, &failed, seed)?;
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

    /// The times of pairs that count, with the same fresh parameters for both of a pair, until their interval closes,
    /// there are too many, or the other is far slower. Every output is compared.
    fn pairs(
        &self,
        query: &Query,
        set: &Set<'_>,
        workers: &mut Workers,
        rows: u64,
        other_failed: &dyn Fn(Ended, &Params) -> Stop,
        seed: u64,
    ) -> Result<Vec<(f64, f64)>, Stop> {
        let question = self.references[set.data].plan(&query_sql(query, &[])?).map_err(|e| anyhow!(e))?;
        let order = question.visible_order();
        let fixed = self.fixed_params(query, set.data);
        let mut pairs: Vec<(f64, f64)> = Vec::new();
        let mut base_ms = 0.0;
        for pair in 0..timing::WARMUP_PAIRS + timing::MOST_PAIRS {
            let params = drawn(query, &fixed, seed.wrapping_add(pair as u64));
            let stop = limit(LEAST_LIMIT, SLOW, base_ms);
            let [first, second, third, fourth] = workers;
            let base = |worker: &mut Process| {
                worker.run(&params, LONG).map_err(|ended| Stop::from(baseline_broke(query, set, &ended)))
            };
            let other = |worker: &mut Process| {
                worker.run(&params, stop).map_err(|ended| other_failed(ended, &params))
            };
            let (a, b, c, d) = (base(first)?, other(second)?, other(third)?, base(fourth)?);
            for got in [&b.batch, &c.batch] {
                let want = &a.batch;
                let same = compare(got, want, want.num_columns(), Rule::Exact { rows }, &order, None);
                same.map_err(|mismatch| wrong(&mismatch, set, &params))?;
            }
            let times = ((a.exec_ms + d.exec_ms) / 2.0, (b.exec_ms + c.exec_ms) / 2.0);
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
