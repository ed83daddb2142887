//! Whether a candidate answers rightly: the data sets, and what it is asked on each.
//!
//! Invariant: the baseline's answers, with which the candidate's are compared, are themselves held against an engine
//! that shares nothing with them.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use arrow::record_batch::RecordBatch;
use dkb_runtime::cli::check::{Mismatch, OrderInfo, Rule, compare};
use dkb_runtime::cli::reference::{Question, stored_answer};
use dkb_runtime::tpch::workload::{self, Query};

use super::process::{Ended, Process, Ran};
use super::worker::{Kind, Program};
use super::{
    Judge, LONG, Params, Rejected, Stop, baseline_broke, drawn, generated, limit, query_sql, rejected,
    rejected_run,
};
use crate::verdict::Outcome;

/// Values that are tried for a parameter until the answer changes.
const DRAWS: u64 = 20;

/// Bytes that a candidate's buffers may take beside twice the baseline's.
const MORE_BUFFER_BYTES: u64 = 1 << 30;

/// Rows that any plan may leave to the host's ordering.
const FINISH_ROWS: u64 = 10_000;

/// A data set, and what is allowed on it.
pub(super) struct Set<'a> {
    pub(super) name: String,
    pub(super) data: &'a Path,
    pub(super) devices: Vec<usize>,
    pub(super) chunk_bytes: Option<u64>,
    hostile: bool,
    timed: bool,
}

/// Baseline and candidate on one data set.
struct Trial<'a> {
    query: &'a Query,
    set: &'a Set<'a>,
    base: Process,
    candidate: Process,
    rule: Rule,
    order: OrderInfo,
    /// The most time that one run of the candidate may take.
    limit: Duration,
    /// Runs of the candidate that were right.
    runs: usize,
}

/// An answer of the candidate, or its word that the data violates what it assumes.
enum Answered {
    Right,
    Declined(String),
}

impl Judge {
    /// The set on which candidates are timed.
    pub(super) fn timed_set(&self) -> Set<'_> {
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
    pub(super) fn sets(&self) -> Vec<Set<'_>> {
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

    /// Whether the candidate answers rightly on a data set: with the default parameters, with each parameter changed
    /// alone until the answer changes, with drawn ones, and on one device over rows in another order and over other keys.
    pub(super) fn is_right_on(&self, set: &Set<'_>, query: &Query, candidate: &str) -> Result<String, Stop> {
        let reference = &self.references[set.data];
        let generated = self.open(set, generated(query));
        let written = self.open(set, Program::Written(candidate.to_owned()));
        let [base, started] = Process::start_all([(&generated, LONG), (&written, self.config.limit * 4)]);
        let (mut base, opened) = base.map_err(|ended| baseline_broke(query, set, &ended))?;
        let fixed = self.fixed_params(query, set.data);
        let default = base.run(&fixed, LONG).map_err(|ended| baseline_broke(query, set, &ended))?;
        let question =
            reference.plan(&query_sql(query, &fixed)?).map_err(|e| anyhow!("{}: {e}", query.name))?;
        let limit = limit(self.config.limit, 20.0, default.exec_ms);
        let (candidate, candidate_opened) = match started {
            Err(Ended::Failed(failed)) if set.hostile && failed.kind == Kind::Fit => {
                let folder = format!("{}/", set.data.display());
                return Ok(format!("does not fit: {}", failed.message.replace(&folder, "")));
            }
            other => other.map_err(|ended| rejected(ended, set))?,
        };
        let most = 2 * opened.buffer_bytes + MORE_BUFFER_BYTES;
        if candidate_opened.buffer_bytes > most {
            let reason =
                format!("buffers take {} bytes, at most {most} are allowed", candidate_opened.buffer_bytes);
            return Err(Rejected::new(Outcome::Refused, reason).into());
        }
        let (rule, order) = (Rule::Exact { rows: opened.rows }, question.visible_order());
        self.anchor(set, query, &default.batch, &question, rule)?;
        let mut trial = Trial { query, set, base, candidate, rule, order, limit, runs: 0 };
        if let Answered::Declined(why) = self.ask_all(&mut trial, &fixed, &default)? {
            return Ok(format!("assumption raised: {why}"));
        }
        let mut asked = Vec::new();
        if set.devices.len() == 1 {
            asked.push(trial.ask_over_swapped_rows(&fixed, &default)?);
            asked.extend(trial.ask_over_relabelled_keys(&fixed, &default)?);
        } else {
            asked.push("rows and keys as they are".to_owned());
        }
        Ok(format!("passed: right in {} runs, {}", trial.runs, asked.join(", ")))
    }

    /// Asks the candidate with all parameters of a trial; `default` is the baseline's answer with `fixed` ones.
    fn ask_all(&self, trial: &mut Trial<'_>, fixed: &Params, default: &Ran) -> Result<Answered, Stop> {
        let query = trial.query;
        if let Answered::Declined(why) = trial.ask(fixed, default)? {
            return Ok(Answered::Declined(why));
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
                let want = trial.answer(&one)?;
                if trial.compare(&want.batch, &default.batch).is_err() {
                    if let Answered::Declined(why) = trial.ask(&one, &want)? {
                        return Ok(Answered::Declined(why));
                    }
                    break;
                }
            }
        }
        for draw in 0..3 {
            let drawn = drawn(query, fixed, self.config.seed.wrapping_add(100 + draw));
            let want = trial.answer(&drawn)?;
            if let Answered::Declined(why) = trial.ask(&drawn, &want)? {
                return Ok(Answered::Declined(why));
            }
        }
        Ok(Answered::Right)
    }

    /// Compares the baseline's answer with stored ones, or with DataFusion's.
    fn anchor(
        &self,
        set: &Set<'_>,
        query: &Query,
        batch: &RecordBatch,
        question: &Question,
        rule: Rule,
    ) -> Result<()> {
        let reference = &self.references[set.data];
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
}

impl Trial<'_> {
    /// The baseline's answer.
    fn answer(&mut self, params: &Params) -> Result<Ran> {
        self.base.run(params, LONG).map_err(|ended| baseline_broke(self.query, self.set, &ended))
    }

    fn compare(&self, got: &RecordBatch, want: &RecordBatch) -> Result<(), Mismatch> {
        compare(got, want, want.num_columns(), self.rule, &self.order, None).map(|_| ())
    }

    /// Runs the candidate in the same worker over the same memory, whose rows are in another order, and once more after
    /// they are put back. Gives words about it.
    fn ask_over_swapped_rows(&mut self, params: &Params, want: &Ran) -> Result<String, Stop> {
        const OVER: &str = "over rows swapped in place";
        let set = self.set;
        let left = self.candidate.swap_rows(self.limit).map_err(|ended| rejected(ended, set))?;
        // The order of rows may be assumed, if the plan says when it does not hold.
        let answered = self.ask_or(params, want, true).map_err(|stop| said(stop, OVER))?;
        self.candidate.swap_rows(self.limit).map_err(|ended| rejected(ended, set))?;
        self.ask(params, want)?;
        Ok(match answered {
            Answered::Declined(_) => format!("not {OVER}, as an assumption does not hold"),
            Answered::Right if left.is_empty() => format!("one {OVER}"),
            Answered::Right => format!("one {OVER} but for {}, read with text", left.join(", ")),
        })
    }

    /// Runs baseline and candidate in the same workers over the same memory, whose keys are relabelled, and the candidate
    /// once more after they are put back. Answers may show keys, so that they are compared with each other. Gives words
    /// about it; none where no keys are read.
    fn ask_over_relabelled_keys(&mut self, params: &Params, want: &Ran) -> Result<Option<String>, Stop> {
        const OVER: &str = "over keys relabelled in place";
        let (query, set) = (self.query, self.set);
        let asked = self.candidate.relabel_keys(self.limit).map_err(|ended| rejected(ended, set))?;
        let told = self.base.relabel_keys(LONG).map_err(|ended| baseline_broke(query, set, &ended))?;
        let left: Vec<String> = asked.left.union(&told.left).cloned().collect();
        if asked.keys.is_empty() && told.keys.is_empty() {
            return Ok((!left.is_empty()).then(|| format!("not {OVER}: {} cannot be", left.join(", "))));
        }
        let relabelled = match self.base.run(params, LONG) {
            Err(Ended::Failed(failed)) if failed.kind == Kind::Assumption => {
                return Ok(Some(format!("not {OVER}, as an assumption of the generated plan does not hold")));
            }
            other => other.map_err(|ended| baseline_broke(query, set, &ended))?,
        };
        // As for rows: dense keys may be assumed.
        let answered = self.ask_or(params, &relabelled, true).map_err(|stop| said(stop, OVER))?;
        self.candidate.relabel_keys(self.limit).map_err(|ended| rejected(ended, set))?;
        self.ask(params, want)?;
        Ok(Some(match answered {
            Answered::Declined(_) => format!("not {OVER}, as an assumption does not hold"),
            Answered::Right if left.is_empty() => format!("one {OVER}"),
            Answered::Right => format!("one {OVER} but for {}", left.join(", ")),
        }))
    }

    /// Runs the candidate, whose answer must be the baseline's.
    fn ask(&mut self, params: &Params, want: &Ran) -> Result<Answered, Stop> {
        self.ask_or(params, want, self.set.hostile)
    }

    /// As [`Trial::ask`], where the candidate may say that an assumption does not hold if it `may_decline`.
    fn ask_or(&mut self, params: &Params, want: &Ran, may_decline: bool) -> Result<Answered, Stop> {
        let set = self.set;
        let got = match self.candidate.run(params, self.limit) {
            Err(Ended::Failed(failed)) if may_decline && failed.kind == Kind::Assumption => {
                return Ok(Answered::Declined(failed.message));
            }
            other => other.map_err(|ended| rejected_run(ended, set, params))?,
        };
        self.compare(&got.batch, &want.batch).map_err(|mismatch| wrong(&mismatch, set, params))?;
        let most = FINISH_ROWS.max(2 * got.batch.num_rows() as u64).max(want.finish_rows);
        if got.finish_rows > most {
            let rows = got.finish_rows;
            let reason =
                format!("`finish` gets {rows} rows, at most {most} are allowed: order on the device");
            return Err(Rejected::new(Outcome::Refused, reason).into());
        }
        self.runs += 1;
        Ok(Answered::Right)
    }
}

/// A rejection with more words about what was asked.
fn said(stop: Stop, over: &str) -> Stop {
    match stop {
        Stop::Rejected(r) => Stop::Rejected(Rejected { reason: format!("{}, {over}", r.reason), ..r }),
        broken => broken,
    }
}

fn set_name(data: &Path) -> String {
    data.file_name().unwrap_or(data.as_os_str()).to_string_lossy().into_owned()
}

/// An answer that differs from the baseline's.
pub(super) fn wrong(mismatch: &Mismatch, set: &Set<'_>, params: &Params) -> Rejected {
    let given: Vec<String> = params.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let given = if given.is_empty() { "default parameters".to_owned() } else { given.join(", ") };
    let mut more = String::new();
    for cell in &mismatch.cells {
        // Infallible: writing to a String.
        let _ = writeln!(more, "row {}, {}: got {}, want {}", cell.row, cell.column, cell.got, cell.want);
    }
    let reason = format!("wrong on {} with {given}: {}", set.name, mismatch.message);
    Rejected { more, ..Rejected::new(Outcome::Wrong, reason) }
}
