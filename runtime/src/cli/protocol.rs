//! What parent and worker say to each other, in the form of [`crate::wire`].
//!
//! Invariant: every request has exactly one closing reply, which is any but [`Reply::Phase`] and
//! [`Reply::Progress`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use dkb_kernels::SqlType;
use dkb_planner::ParamDecl;
use serde::{Deserialize, Serialize};

use super::args::{Fallback, LoadMode, Target};
use crate::trace::{Loaded, Span, StageSum};

/// A request to the worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(super) enum Request {
    /// Open the data set on the devices; the first request.
    Open(Open),
    /// Run a query.
    Run(Run),
    /// Measure the bandwidth of the devices' memory.
    Bandwidth,
}

/// What to open.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Open {
    /// Folder of tables.
    pub(super) data: PathBuf,
    /// Kind of device.
    pub(super) device: Target,
    /// How many devices.
    pub(super) gpus: Option<usize>,
    /// Which devices.
    pub(super) devices: Option<Vec<usize>>,
    /// Whether the devices have been open before: then those that fail are left out, and the others opened.
    pub(super) again: bool,
    /// What stays on the devices.
    pub(super) mode: LoadMode,
    /// Partition size in bytes.
    pub(super) chunk_bytes: Option<u64>,
    /// Bytes that each logical device may take.
    pub(super) device_memory: Option<u64>,
    /// Forced number of shards.
    pub(super) shards: Option<u64>,
    /// Divisor of initial buffer sizes.
    pub(super) shrink: Option<u64>,
    /// Poison buffers between runs.
    pub(super) poison: bool,
    /// Record and report every span.
    pub(super) trace: bool,
    /// Whether somebody watches the progress.
    pub(super) watched: bool,
}

/// A query with its parameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Query {
    /// Name in messages.
    pub(super) name: String,
    /// SQL with placeholders.
    pub(super) sql: String,
    /// Declared parameters.
    pub(super) decls: Vec<Decl>,
    /// Values that differ from the defaults.
    pub(super) params: Vec<(String, String)>,
    /// The text of the plan that runs, and its file's name; the plan is generated without.
    pub(super) plan: Option<(String, String)>,
}

impl Query {
    /// The declarations as the planner takes them.
    pub(super) fn planner_decls(&self) -> Vec<ParamDecl> {
        let decl = |d: &Decl| ParamDecl { name: d.name.clone(), ty: d.ty, default: d.default.clone() };
        self.decls.iter().map(decl).collect()
    }
}

/// A declared parameter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Decl {
    /// Name without the colon.
    pub(super) name: String,
    /// SQL type.
    pub(super) ty: SqlType,
    /// Default value, as literal text.
    pub(super) default: String,
}

/// How to run a query.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Run {
    /// The query.
    pub(super) query: Query,
    /// Untimed runs.
    pub(super) warmup: u32,
    /// Timed runs.
    pub(super) repeat: u32,
    /// What to do without kernels for it.
    pub(super) fallback: Fallback,
}

/// The worker's word.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(super) enum Reply {
    /// What the worker does now: `open`, `prepare`, `load`, `warmup`, `execute`.
    Phase {
        /// The name.
        name: String,
    },
    /// What each device has loaded since the request, a few times a second where somebody watches.
    Progress {
        /// By device.
        loaded: Vec<Loaded>,
        /// Time since the request.
        elapsed_ms: f64,
    },
    /// The data set is open.
    Opened(Opened),
    /// The query ran; its rows follow.
    Ran {
        /// What was measured.
        run: Measured,
        /// Length of the Arrow IPC stream that follows.
        arrow_bytes: usize,
    },
    /// The bandwidth was measured.
    Bandwidth {
        /// Read and written by all devices together; None where too little memory is free.
        gb_per_s: Option<f64>,
    },
    /// The request failed.
    Failed(Failed),
}

/// The data set and the devices.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Opened {
    /// Time to open the data set, in milliseconds.
    pub(super) open_ms: f64,
    /// The devices in order.
    pub(super) devices: Vec<DeviceInfo>,
    /// How they exchange buffers, if there are several.
    pub(super) exchange: Option<String>,
    /// Ordinals of the devices, if some of those asked for are left out.
    pub(super) remaining: Option<Vec<usize>>,
    /// Why each that is left out is.
    pub(super) left_out: Vec<String>,
    /// Rows of each table.
    pub(super) table_rows: Vec<(String, u64)>,
}

/// One device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct DeviceInfo {
    /// Such as `cuda:0`.
    pub(super) name: String,
    /// The hardware.
    pub(super) model: String,
    /// Driver and compiler.
    pub(super) versions: String,
}

/// What a query's runs measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    /// `cuda`, `host` or `datafusion`.
    pub(super) engine: String,
    /// SQL to compiled kernels.
    pub(super) prepare_ms: f64,
    /// Parquet to columns on the devices.
    pub(super) load_ms: f64,
    /// Bound parameters to rows on the host, one sample a timed run.
    pub(super) exec_ms: Vec<f64>,
    /// The file of the plan that ran, where it was no generated one.
    pub(super) plan_file: Option<String>,
    /// Why DataFusion ran it instead, if it did.
    pub(super) fallback: Option<String>,
    /// Rows that came to the host for order and limit.
    pub(super) finish_rows: u64,
    /// Time for that.
    pub(super) finish_ms: f64,
    /// Rows each device streamed, over all phases.
    pub(super) rows_per_device: Vec<u64>,
    /// Rows of row groups that statistics excluded.
    pub(super) rows_pruned: u64,
    /// Memory in use on each device after the last run, in bytes.
    pub(super) used_bytes: Vec<u64>,
    /// The load and the last run by device and stage.
    pub(super) stages: Vec<StageSum>,
    /// Columns of the query that the host decoded, as `table.column`, and why.
    pub(super) host_columns: BTreeMap<String, String>,
    /// Everything that was recorded, if all of it is wanted.
    pub(super) spans: Vec<Span>,
    /// Launches of one run.
    pub(super) kernel_launches: u64,
    /// Bytes that the query must read at least.
    pub(super) floor_bytes: u64,
    /// Bytes that the launches of the last run were given.
    pub(super) kernel_bytes: u64,
    /// Repetitions because a buffer was too small, in the last run.
    pub(super) reruns: u64,
    /// Whether an assumption failed and the query was planned anew.
    pub(super) replanned: bool,
    /// The tables the query reads, where it ran as a kernel plan.
    pub(super) tables: Vec<String>,
}

/// Why a request failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Failed {
    /// Whose fault.
    pub(super) kind: FailedKind,
    /// One sentence.
    pub(super) message: String,
    /// Whether the worker ends itself, because its devices are lost.
    pub(super) fatal: bool,
}

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FailedKind {
    /// The input's: SQL, parameters, files, devices asked for.
    Input,
    /// Valid SQL without kernels, and no fallback allowed.
    Unsupported,
    /// Anything else, while running.
    Run,
}
