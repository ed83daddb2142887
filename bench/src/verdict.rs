//! What is kept of an attempt at a faster plan: the verdict on each candidate, and the run that it belongs to.
//!
//! A run's folder holds `run.json` ([`Run`]) and, per query and round, `qNN/NN/verdict.json` ([`Round`]) beside the
//! prompt, the raw reply and the candidate. Invariant: a folder is only ever added to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Rounds of a trajectory at most (the paper's R_max).
pub const MOST_ROUNDS: u32 = 10;

/// The least speed-up that is accepted (the paper's s_min).
pub const LEAST_SPEEDUP: f64 = 1.05;

/// One configuration over one or more queries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The model, as its provider names it; a person's name for plans written by hand.
    pub model: String,
    /// The provider, such as `anthropic` or `exec:CMD`.
    pub provider: String,
    /// `cuda` or `triton`.
    pub framework: String,
    /// `core` or `full`.
    pub level: String,
    /// Prompt blocks left out: `gpu`, `data`.
    pub without: Vec<String>,
    /// Who wrote the baseline plans: `dkb`, or the name of a folder or a plan file.
    pub baseline: String,
    /// Where it was judged.
    pub environment: Environment,
}

/// Where a verdict was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Commit of dkb.
    pub commit: String,
    /// The device, such as `NVIDIA H200`.
    pub gpu: String,
    /// Driver, compiler and library versions, in one line.
    pub versions: String,
    /// Scale factor of the data that was timed.
    pub scale: f64,
}

/// One round of a trajectory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Tokens of the prompt.
    pub tokens_in: u64,
    /// Tokens of the reply.
    pub tokens_out: u64,
    /// US dollars, where the provider's prices are known.
    pub cost_usd: Option<f64>,
    /// What the harness found.
    pub verdict: Verdict,
}

/// The harness's word on one candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// In one word.
    pub outcome: Outcome,
    /// Why, in a sentence; with line numbers, cells or buffers where there are such.
    pub reason: String,
    /// What the next round is told: the reason, and all that helps to mend it.
    pub feedback: String,
    /// The measurement; None where the candidate never got that far.
    pub timing: Option<Timing>,
    /// The paper's rule on the same samples; None without a timing.
    pub paper: Option<PaperTiming>,
    /// SHA-256 of the candidate's text, in hexadecimal.
    pub plan_sha256: String,
    /// Checks that were passed, by name, in order; with what was skipped, and why.
    pub checks: BTreeMap<String, String>,
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Right, and faster by at least [`LEAST_SPEEDUP`].
    Accepted,
    /// Right, and not faster by as much.
    NotFaster,
    /// Right, and slower than three times the baseline.
    Slow,
    /// Right, but the interval did not close.
    Noisy,
    /// Faster than the bytes it must read allow: a person must look at it.
    Held,
    /// There is no plan in the reply, or it breaks a rule.
    Refused,
    /// It does not compile.
    Compile,
    /// It crashed, or the device reported a fault.
    Fault,
    /// It was stopped after its time.
    TimeOut,
    /// It gave a wrong answer.
    Wrong,
}

impl Outcome {
    /// Whether every answer was right.
    pub fn is_correct(self) -> bool {
        matches!(self, Outcome::Accepted | Outcome::NotFaster | Outcome::Slow | Outcome::Noisy)
    }
}

/// Paired times of baseline and candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Median of the baseline, in milliseconds (T_base).
    pub base_ms: f64,
    /// Median of the candidate, in milliseconds (T_cand).
    pub candidate_ms: f64,
    /// Median of the pairs' ratios, baseline over candidate.
    pub speedup: f64,
    /// The ends of its 95 % order-statistic interval.
    pub interval: (f64, f64),
    /// All pairs that count, (baseline, candidate) in milliseconds, in order.
    pub pairs: Vec<(f64, f64)>,
}

/// The paper's measurement: medians of five runs after two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PaperTiming {
    /// Median of the baseline, in milliseconds.
    pub base_ms: f64,
    /// Median of the candidate, in milliseconds.
    pub candidate_ms: f64,
    /// Whether it would be accepted.
    pub accepted: bool,
}

/// A verdict's name for a candidate's text: [`Verdict::plan_sha256`].
pub(crate) fn plan_sha256(candidate: &str) -> String {
    Sha256::digest(candidate).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn specialised_plans_are_those_that_were_accepted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (folder, suffix, least) in
            [("", "", 21), ("triton", "-triton", 8), ("triton-core", "-core-triton", 1)]
        {
            let files = std::fs::read_dir(root.join("kernels/specialized").join(folder)).unwrap();
            let plans: Vec<_> = files
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension().is_some_and(|e| e == "plan"))
                .collect();
            assert!(plans.len() >= least, "{folder}: {plans:?}");
            for path in plans {
                let name = format!("{}{suffix}.json", path.file_stem().unwrap().to_str().unwrap());
                let kept =
                    std::fs::read(root.join("bench/results/2026-11-30-h200/judge").join(name)).unwrap();
                let verdict: Verdict = serde_json::from_slice(&kept).unwrap();
                let sha = plan_sha256(&std::fs::read_to_string(&path).unwrap());
                assert_eq!(
                    (verdict.outcome, verdict.plan_sha256),
                    (Outcome::Accepted, sha),
                    "{}",
                    path.display()
                );
            }
        }
    }
}
