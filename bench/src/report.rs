//! A report of `dkb-run --report`, as far as it is used here. Older ones lack some fields.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// A report.
#[derive(Debug, Clone, Deserialize)]
pub struct Report {
    /// The devices in order.
    pub devices: Vec<Device>,
    /// The data folder.
    pub data: String,
    /// Scale factor of TPC-H data, where it is known.
    pub scale_factor: Option<f64>,
    /// `resident` or `stream`.
    pub mode: String,
    /// Timed runs of each query.
    pub repeat: u32,
    /// Gigabytes a second that the memory of all devices together reads and writes, where it was measured.
    pub device_gb_per_s: Option<f64>,
    /// The queries in the order in which they ran.
    pub queries: Vec<Query>,
}

/// A device.
#[derive(Debug, Clone, Deserialize)]
pub struct Device {
    /// Kind and number, such as `cuda:0`.
    pub name: String,
    /// The hardware.
    pub model: String,
}

/// A query's outcome.
#[derive(Debug, Clone, Deserialize)]
pub struct Query {
    /// Its name.
    pub query: String,
    /// `passed`, `failed`, or `none` where nothing was compared.
    pub check: String,
    /// Median of the timed runs in milliseconds; None where none ran to its end.
    pub exec_ms_median: Option<f64>,
    /// The part of a run after what orders the rows has come to the host, in milliseconds.
    pub finish_ms: Option<f64>,
    /// Bytes that the query must read at least.
    pub floor_bytes: Option<u64>,
    /// Bytes that its launches were given.
    pub kernel_bytes: Option<u64>,
    /// Bytes copied to the devices by the load and the last run.
    pub copied_bytes: Option<u64>,
    /// Launches of one run.
    pub kernel_launches: Option<u64>,
    /// Why the query failed.
    pub error: Option<String>,
    /// Why it ran in DataFusion.
    pub fallback: Option<String>,
}

impl Report {
    /// Reads a report.
    ///
    /// # Errors
    /// A file that cannot be read or is no report, or a report without queries.
    pub fn read(path: &Path) -> Result<Report> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let report: Report = serde_json::from_reader(BufReader::new(file))
            .with_context(|| format!("{} is no report of dkb-run", path.display()))?;
        ensure!(!report.queries.is_empty(), "{} is a report without queries", path.display());
        Ok(report)
    }

    /// The query of that name.
    pub fn query(&self, name: &str) -> Option<&Query> {
        self.queries.iter().find(|query| query.query == name)
    }

    /// What was measured, in one line: data, devices, mode and number of runs.
    pub fn conditions(&self) -> String {
        let scale = self.scale_factor.map(|scale| format!(" (scale factor {scale})")).unwrap_or_default();
        let devices = self.devices.first().map_or_else(
            || "no device".to_owned(),
            |Device { name, model }| {
                let kind = name.split(':').next().unwrap_or_default();
                format!("{kind} x{} ({model})", self.devices.len())
            },
        );
        let runs = if self.repeat == 1 { "run" } else { "runs" };
        let Report { data, mode, repeat, .. } = self;
        format!("{data}{scale}, {devices}, {mode}, {repeat} timed {runs} a query")
    }
}

impl Query {
    /// The time that counts in milliseconds, or in one word why there is none.
    ///
    /// # Errors
    /// The word: the query failed, its answer is wrong, or it ran in DataFusion.
    pub fn time_ms(&self) -> Result<f64, &'static str> {
        match (self.exec_ms_median, &self.error) {
            _ if self.fallback.is_some() => Err("fallback"),
            (Some(_), None) if self.check == "failed" => Err("wrong"),
            (Some(ms), None) => Ok(ms),
            _ => Err("error"),
        }
    }
}
