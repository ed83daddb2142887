//! What each launch of a candidate takes: a table for those who want it to be faster.

use std::time::Duration;

use comfy_table::{Table, presets};
use dkb_runtime::device::Resources;
use dkb_runtime::session::{Execution, Prepared};
use dkb_runtime::tpch::workload::Query;
use dkb_runtime::trace::Stage;
use serde::{Deserialize, Serialize};

use super::process::{Ended, Process};
use super::worker::{Program, Purpose};
use super::{Judge, words};

/// Runs that count, after one that does not.
const RUNS: usize = 3;

/// How long preparing and each run may take of a candidate that has been run before.
const LIMIT: Duration = Duration::from_secs(240);

/// A launch of the plan on the first device, over all partitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LaunchCost {
    /// Its phase and its kernel.
    name: String,
    /// Between the ends of the work before it and of its own, in milliseconds.
    ms: f64,
    /// What it is given, each counted once for each partition.
    bytes: u64,
    /// None on the host.
    resources: Option<Resources>,
}

/// The launches of a run whose spans were recorded, in the order of their first ones.
pub(super) fn launches(execution: &Execution, prepared: &Prepared) -> Vec<LaunchCost> {
    let mut costs: Vec<LaunchCost> = Vec::new();
    for span in execution.spans.iter().filter(|span| span.device == 0 && span.stage == Stage::Kernel) {
        let at = costs.iter().position(|cost| cost.name == span.name).unwrap_or_else(|| {
            let kernel = span.name.rsplit(": ").next().unwrap_or_default();
            let resources = prepared.resources(kernel);
            costs.push(LaunchCost { name: span.name.clone(), ms: 0.0, bytes: 0, resources });
            costs.len() - 1
        });
        costs[at].ms += span.end_ms - span.start_ms;
        costs[at].bytes += span.bytes;
    }
    costs
}

impl Judge {
    /// The launches of a right candidate on the data on which it is timed, with default parameters.
    pub(super) fn costs_table(&self, query: &Query, candidate: &str) -> String {
        match self.costs(query, candidate) {
            Ok(costs) => table(&costs),
            Err(ended) => format!("Its launches could not be measured: {}", words(&ended)),
        }
    }

    fn costs(&self, query: &Query, candidate: &str) -> Result<Vec<LaunchCost>, Ended> {
        let set = self.timed_set();
        let mut open = self.open(&set, Program::Written(candidate.to_owned()));
        open.purpose = Purpose::Costs;
        let params = self.fixed_params(query, set.data);
        let (mut process, _) = Process::start(&open, LIMIT)?;
        process.run(&params, LIMIT)?;
        let mut best = process.run(&params, LIMIT)?.launches;
        for _ in 1..RUNS {
            let again = process.run(&params, LIMIT)?.launches;
            best.iter_mut().zip(again).for_each(|(best, again)| best.ms = best.ms.min(again.ms));
        }
        Ok(best)
    }
}

fn table(costs: &[LaunchCost]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let on_gpu = costs.iter().any(|cost| cost.resources.is_some());
    let mut head = vec!["launch", "ms", "GB/s"];
    if on_gpu {
        head.extend(["registers", "local bytes", "shared bytes"]);
    }
    table.set_header(head);
    for LaunchCost { name, ms, bytes, resources } in costs {
        let gb_per_s = if *ms > 0.0 { format!("{:.1}", *bytes as f64 / ms / 1e6) } else { "-".to_owned() };
        let mut row = vec![name.clone(), format!("{ms:.3}"), gb_per_s];
        if on_gpu {
            let of = |get: fn(&Resources) -> u32| {
                resources.as_ref().map_or("-".to_owned(), |r| get(r).to_string())
            };
            row.extend([of(|r| r.registers), of(|r| r.local_bytes), of(|r| r.shared_bytes)]);
        }
        table.add_row(row);
    }
    format!(
        "Each launch, the least of {RUNS} runs. GB/s: the columns, buffers and dictionaries that it is given, touched \
         once{}.\n\n{table}",
        if on_gpu { "; local bytes: what a thread spills, and its arrays" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_launches() {
        let cost =
            |resources| LaunchCost { name: "scan: add".to_owned(), ms: 2.0, bytes: 8_000_000, resources };
        let resources = Resources { registers: 40, local_bytes: 16, shared_bytes: 0 };
        let gpu = table(&[cost(Some(resources))]);
        assert!(
            gpu.contains("| scan: add | 2.000 | 4.0  | 40        | 16          | 0            |"),
            "{gpu}"
        );
        let host = table(&[cost(None)]);
        assert!(host.contains("| scan: add | 2.000 | 4.0  |") && !host.contains("registers"), "{host}");
    }
}
