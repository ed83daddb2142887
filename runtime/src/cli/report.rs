//! What a run measured: the JSON report, the table of all queries, and the line about one.
//!
//! Invariant: raw samples are kept, and every figure says its unit in its name.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::args::LoadMode;
use super::check::Mismatch;
use super::protocol::{Measured, Opened};
use crate::trace::{Stage, median};

/// The comparison with one reference.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Checked {
    /// Name and version of the reference.
    pub(super) reference: String,
    /// The rule of comparison.
    pub(super) rule: String,
    /// How the answer differs; None when it does not.
    pub(super) mismatch: Option<Mismatch>,
}

/// One query's outcome.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// The query's name.
    pub(super) query: String,
    /// What ran, or why it did not.
    pub(super) result: Result<Ran, String>,
}

/// A query that ran.
#[derive(Debug, Clone)]
pub(super) struct Ran {
    /// The worker's figures.
    pub(super) measured: Measured,
    /// Rows of the answer.
    pub(super) rows: usize,
    /// Comparisons, if any were asked for.
    pub(super) checks: Vec<Checked>,
    /// Further reasons why the check fails: a fallback, or an idle device.
    pub(super) objections: Vec<String>,
}

/// The verdict on a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// Every comparison holds.
    Passed,
    /// One does not, or something else forbids it.
    Failed,
    /// Nothing was compared.
    None,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::None => "-",
        }
    }
}

impl Ran {
    /// The verdict over all references.
    pub(super) fn verdict(&self) -> Verdict {
        if self.checks.is_empty() && self.objections.is_empty() {
            Verdict::None
        } else if self.objections.is_empty() && self.checks.iter().all(|c| c.mismatch.is_none()) {
            Verdict::Passed
        } else {
            Verdict::Failed
        }
    }

    /// What is wrong, one entry a reason.
    pub(super) fn complaints(&self) -> Vec<String> {
        let differs = |c: &Checked| Some(format!("differs from {}: {}", c.reference, c.mismatch.as_ref()?));
        self.checks.iter().filter_map(differs).chain(self.objections.iter().cloned()).collect()
    }

    /// Median of the timed runs, in milliseconds; 0 without any.
    pub(super) fn exec_ms_median(&self) -> f64 {
        median(&self.measured.exec_ms).unwrap_or(0.0)
    }
}

impl Outcome {
    /// Whether the query ran and no check failed.
    pub(super) fn is_good(&self) -> bool {
        self.result.as_ref().is_ok_and(|ran| ran.verdict() != Verdict::Failed)
    }
}

/// Everything a report says beside the queries.
pub(super) struct Context<'a> {
    /// The command as typed.
    pub(super) command: &'a [String],
    /// The data folder.
    pub(super) data: String,
    /// Scale factor of TPC-H data, where it is known.
    pub(super) scale: Option<f64>,
    /// What stayed on the devices.
    pub(super) mode: LoadMode,
    /// Untimed runs.
    pub(super) warmup: u32,
    /// Timed runs.
    pub(super) repeat: u32,
    /// Data set and devices.
    pub(super) opened: &'a Opened,
    /// Bandwidth of the memory of all devices together, where it was measured.
    pub(super) device_gb_per_s: Option<f64>,
    /// Why devices that were asked for were not used to the end.
    pub(super) left_out: &'a [String],
}

/// The report as JSON.
pub(super) fn json(context: &Context<'_>, outcomes: &[Outcome]) -> serde_json::Value {
    let opened = context.opened;
    let first = opened.devices.first();
    serde_json::json!({
        "command": context.command,
        "versions": {
            "dkb": env!("CARGO_PKG_VERSION"),
            "datafusion": datafusion::DATAFUSION_VERSION,
            "compiler": first.map(|d| d.versions.as_str()),
        },
        "machine": machine(),
        "driver": first.filter(|d| d.name.starts_with("cuda")).map(|d| d.versions.as_str()),
        "devices": opened.devices,
        "exchange": opened.exchange,
        "device_gb_per_s": context.device_gb_per_s,
        "left_out": context.left_out,
        "data": context.data,
        "scale_factor": context.scale,
        "mode": context.mode,
        "warmup": context.warmup,
        "repeat": context.repeat,
        "open_ms": opened.open_ms,
        "total_exec_ms_median": total_exec_ms_median(outcomes),
        "all_good": outcomes.iter().all(Outcome::is_good),
        "queries": outcomes.iter().map(query_json).collect::<Vec<_>>(),
    })
}

fn query_json(outcome: &Outcome) -> serde_json::Value {
    let ran = match &outcome.result {
        Ok(ran) => ran,
        Err(error) => {
            return serde_json::json!({ "query": outcome.query, "check": Verdict::Failed, "error": error });
        }
    };
    let m = &ran.measured;
    let bytes = |stage| m.stages.iter().filter(|s| s.stage == stage).map(|s| s.bytes).sum::<u64>();
    serde_json::json!({
        "query": outcome.query,
        "engine": m.engine,
        "rows": ran.rows,
        "prepare_ms": m.prepare_ms,
        "load_ms": m.load_ms,
        "exec_ms": m.exec_ms,
        "exec_ms_median": ran.exec_ms_median(),
        "check": ran.verdict(),
        "checks": ran.checks,
        "complaints": ran.complaints(),
        "kernels": m.plan_file.as_deref().unwrap_or("baseline"),
        "fallback": m.fallback,
        "finish_rows": m.finish_rows,
        "finish_ms": m.finish_ms,
        "rows_per_device": m.rows_per_device,
        "rows_pruned": m.rows_pruned,
        "read_bytes": bytes(Stage::Read),
        "copied_bytes": bytes(Stage::Copy),
        "decompressed_bytes": bytes(Stage::Decompress),
        "decoded_bytes": bytes(Stage::Decode),
        "used_bytes": m.used_bytes,
        "stages": m.stages,
        "host_columns": m.host_columns,
        "kernel_launches": m.kernel_launches,
        "floor_bytes": m.floor_bytes,
        "kernel_bytes": m.kernel_bytes,
        "reruns": m.reruns,
        "replanned": m.replanned,
    })
}

fn ran(outcomes: &[Outcome]) -> impl Iterator<Item = &Ran> {
    outcomes.iter().filter_map(|o| o.result.as_ref().ok())
}

/// Sum of the queries' median times, in milliseconds.
pub(super) fn total_exec_ms_median(outcomes: &[Outcome]) -> f64 {
    ran(outcomes).map(Ran::exec_ms_median).sum()
}

/// The table of all queries.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["query", "engine", "rows", "prepare ms", "load ms", "exec ms", "check"]);
    for outcome in outcomes {
        table.add_row(match &outcome.result {
            Ok(ran) => [
                outcome.query.clone(),
                engine(&ran.measured),
                ran.rows.to_string(),
                ms(ran.measured.prepare_ms),
                ms(ran.measured.load_ms),
                ms(ran.exec_ms_median()),
                ran.verdict().text().to_owned(),
            ],
            Err(_) => [
                outcome.query.clone(),
                "-".into(),
                "-".into(),
                "-".into(),
                "-".into(),
                "-".into(),
                "ERROR".into(),
            ],
        });
    }
    let sum = |of: fn(&Ran) -> f64| ms(ran(outcomes).map(of).sum());
    let good = outcomes.iter().filter(|o| o.is_good()).count();
    table.add_row([
        "total".to_owned(),
        String::new(),
        String::new(),
        sum(|ran| ran.measured.prepare_ms),
        sum(|ran| ran.measured.load_ms),
        sum(Ran::exec_ms_median),
        format!("{good}/{} good", outcomes.len()),
    ]);
    for column in 2..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// One query in one line.
pub(super) fn line(query: &str, ran: &Ran) -> String {
    let m = &ran.measured;
    let rows = if ran.rows == 1 { "row" } else { "rows" };
    format!(
        "{query}: {} {rows}, {}, prepare {} ms, load {} ms, exec {} ms, check {}",
        ran.rows,
        engine(m),
        ms(m.prepare_ms),
        ms(m.load_ms),
        ms(ran.exec_ms_median()),
        ran.verdict().text()
    )
}

/// What answered: the engine, on how many devices, and the plan file that ran, if one did.
fn engine(measured: &Measured) -> String {
    let devices = match measured.rows_per_device.len() {
        0 | 1 => String::new(),
        n => format!(" x{n}"),
    };
    let file = measured.plan_file.as_ref().map(|file| format!(", {file}")).unwrap_or_default();
    format!("{}{devices}{file}", measured.engine)
}

fn ms(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

/// The machine, as far as Linux says.
fn machine() -> serde_json::Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str, separator: char| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(separator)?.1.trim().trim_matches('"').to_owned())
    };
    let memory_kib = field(&read("/proc/meminfo"), "MemTotal", ':');
    let memory_kib = memory_kib.and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
    serde_json::json!({
        "cpu": field(&read("/proc/cpuinfo"), "model name", ':'),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_bytes": memory_kib.map(|kib| kib * 1024),
        "os": field(&read("/etc/os-release"), "PRETTY_NAME", '='),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Span, stages};

    fn copy(device: usize) -> Span {
        let name = "lineitem".into();
        Span { device, stage: Stage::Copy, name, start_ms: 0.0, end_ms: 1.0, bytes: 3_000_000 }
    }

    fn outcome(checks: Vec<Checked>, objections: Vec<String>) -> Outcome {
        let measured = Measured {
            engine: "host".into(),
            prepare_ms: 12.3,
            load_ms: 4.0,
            exec_ms: vec![3.0, 1.0, 2.0],
            rows_per_device: vec![10, 12],
            stages: stages(&[copy(0), copy(1)]),
            ..Measured::default()
        };
        Outcome { query: "q01".into(), result: Ok(Ran { measured, rows: 4, checks, objections }) }
    }

    fn checked(mismatch: Option<Mismatch>) -> Checked {
        Checked { reference: "datafusion 1".into(), rule: "every cell equal".into(), mismatch }
    }

    #[test]
    fn verdicts() {
        let wrong = Mismatch { message: "3 rows, the reference has 4".into(), cells: vec![] };
        let verdict = |o: &Outcome| o.result.as_ref().unwrap().verdict();
        assert_eq!(verdict(&outcome(vec![], vec![])), Verdict::None);
        assert_eq!(verdict(&outcome(vec![checked(None)], vec![])), Verdict::Passed);
        assert_eq!(verdict(&outcome(vec![checked(None), checked(Some(wrong))], vec![])), Verdict::Failed);
        assert_eq!(verdict(&outcome(vec![checked(None)], vec!["ran in DataFusion".into()])), Verdict::Failed);
    }

    #[test]
    fn reports_name_what_they_measure() {
        let opened = Opened { open_ms: 1.5, exchange: Some("NCCL".into()), ..Opened::default() };
        let command = ["dkb-run".to_owned()];
        let context = Context {
            command: &command,
            data: "data".into(),
            scale: Some(1.0),
            mode: LoadMode::Auto,
            warmup: 0,
            repeat: 3,
            opened: &opened,
            device_gb_per_s: Some(3.5),
            left_out: &[],
        };
        let failed = Outcome { query: "q02".into(), result: Err("no".into()) };
        let outcomes = [outcome(vec![checked(None)], vec![]), failed];
        let report = json(&context, &outcomes);
        assert_eq!(report["total_exec_ms_median"], 2.0);
        assert_eq!(report["queries"][0]["check"], "passed");
        assert_eq!(report["queries"][0]["exec_ms"][2], 2.0);
        assert_eq!(report["queries"][1]["error"], "no");
        assert_eq!((&report["mode"], &report["exchange"]), (&"auto".into(), &"NCCL".into()));
        assert_eq!(report["device_gb_per_s"], 3.5);
        let query = &report["queries"][0];
        assert_eq!((&query["copied_bytes"], &query["read_bytes"]), (&6_000_000.into(), &0.into()));
        assert_eq!(
            (&query["stages"][1]["stage"], &query["stages"][1]["gb_per_s"]),
            (&"copy".into(), &3.0.into())
        );
        assert_eq!(report["all_good"], false);
        let text = table(&outcomes);
        assert!(text.contains("host x2") && text.contains("ERROR") && text.contains("1/2 good"), "{text}");
        let ran = outcomes[0].result.as_ref().unwrap();
        assert_eq!(
            line("q01", ran),
            "q01: 4 rows, host x2, prepare 12.3 ms, load 4.00 ms, exec 2.00 ms, check passed"
        );
    }
}
