//! The CPU fallback: a query without kernels runs in DataFusion, and says so.
//!
//! Invariant: what comes from here names its engine `datafusion` and its reason; it never passes a check.

use std::path::Path;
use std::time::Instant;

use arrow::array::RecordBatch;

use super::protocol::{Failed, FailedKind, Measured, Run};
use super::reference::Reference;
use crate::tpch::workload;

/// Engine name of the fallback.
pub(super) const ENGINE: &str = "datafusion";

/// Runs the query over the files of `data`.
///
/// # Errors
/// The query is wrong ([`FailedKind::Input`]) or fails.
pub(super) fn run(data: &Path, request: &Run, reason: String) -> Result<(Measured, RecordBatch), Failed> {
    let fail = |kind| move |message| Failed { kind, message, fatal: false };
    let start = Instant::now();
    let query = &request.query;
    let sql = workload::substitute(&query.sql, &query.planner_decls(), &query.params)
        .map_err(|e| fail(FailedKind::Input)(e.to_string()))?;
    let reference = Reference::open(data).map_err(fail(FailedKind::Input))?;
    reference.validate(&sql).map_err(fail(FailedKind::Input))?;
    let prepare_ms = ms(start);
    let mut exec_ms = Vec::new();
    let mut batch = None;
    for _ in 0..request.warmup + request.repeat {
        let start = Instant::now();
        batch = Some(reference.run(&sql).map_err(fail(FailedKind::Run))?);
        exec_ms.push(ms(start));
    }
    let batch = batch.ok_or_else(|| fail(FailedKind::Input)("no run was asked for".to_owned()))?;
    let measured = Measured {
        engine: ENGINE.to_owned(),
        prepare_ms,
        exec_ms: exec_ms.split_off(request.warmup as usize),
        fallback: Some(reason),
        ..Measured::default()
    };
    Ok((measured, batch))
}

/// Milliseconds since `start`.
fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
