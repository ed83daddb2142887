//! The process in which one plan runs: it opens a data set, prepares the plan, and runs it when told.
//!
//! Invariant: it holds one plan and one data set, and no reference answer. A candidate's worker is caged before it
//! reads the candidate.

use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dkb_kernels::{SqlType, text};
use dkb_planner::ParamDecl;
use dkb_runtime::device::{DeviceError, DeviceKind, DeviceSpec, cuda};
use dkb_runtime::exec::Error;
use dkb_runtime::sandbox::Sandbox;
use dkb_runtime::session::{Execution, Prepared, Relabelled, Session, SessionConfig};
use dkb_runtime::wire::{encode_batch, read_message, take_stdout, write_message};
use serde::{Deserialize, Serialize};

use super::costs::{self, LaunchCost};
use super::diagnose;
use super::profile::Profile;

/// The hidden subcommand that makes the program a worker.
pub const SUBCOMMAND: &str = "worker";

/// What to open and what to prepare on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Open {
    /// The data set's folder.
    pub(super) data: PathBuf,
    /// On which devices.
    pub(super) machine: Machine,
    /// Uncompressed bytes of a partition; one partition a device where it is not given.
    pub(super) chunk_bytes: Option<u64>,
    /// What to prepare.
    pub(super) program: Program,
    /// What for.
    pub(super) purpose: Purpose,
}

impl Open {
    /// The program that watches the memory of the GPU.
    pub(super) fn checker(&self) -> Option<&Path> {
        match &self.purpose {
            Purpose::Diagnose { checker } => checker.as_deref(),
            Purpose::Answer | Purpose::Costs => None,
        }
    }
}

/// What a plan runs for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Purpose {
    /// Its answers and times.
    Answer,
    /// To find out why it faults.
    Diagnose {
        /// The program that watches a GPU's memory; on the host the worker does.
        checker: Option<PathBuf>,
    },
    /// Times of its launches.
    Costs,
}

/// On which devices plans run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// GPUs, and not the cores of the machine.
    pub gpu: bool,
    /// One logical device an entry, on the GPU of that number.
    pub devices: Vec<usize>,
    /// Bytes of each logical device.
    pub memory_bytes: Option<u64>,
    /// Whether candidates run in a sandbox.
    pub caged: bool,
}

/// What a worker runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Program {
    /// The plan that is generated for a query.
    Generated {
        /// SQL with placeholders.
        sql: String,
        /// Name, type and default of each.
        params: Vec<(String, SqlType, String)>,
    },
    /// The text of a plan file, a candidate's or an accepted one's, which runs in a cage.
    Written(String),
}

/// A request to the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first.
    Open(Open),
    /// Runs the plan with these parameters.
    Run(Vec<(String, String)>),
    /// Swaps rows of the plan's tables in place, or puts them back.
    SwapRows,
    /// Relabels keys that the plan reads in place, or puts them back.
    RelabelKeys,
    /// Runs the plan some times with these parameters and tells where the time goes.
    Profile(Vec<(String, String)>),
    /// Measures the bandwidth of the memory of the GPU, which nothing else should use meanwhile.
    Bandwidth,
}

/// The worker's answer: one a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The plan is loaded.
    Opened(Opened),
    /// The plan ran; its rows follow.
    Ran {
        /// From bound parameters to rows on the host, in milliseconds.
        exec_ms: f64,
        /// Rows that came to the host for order and limit.
        finish_rows: u64,
        /// What its launches took, where that was asked for.
        launches: Vec<LaunchCost>,
        /// Length of the Arrow IPC stream that follows.
        arrow_bytes: usize,
    },
    /// Rows are in another order, but for those of the named tables.
    Swapped(Vec<String>),
    /// Keys have other values.
    Relabelled(Relabelled),
    /// Where the plan's time goes.
    Profiled(Profile),
    /// Gigabytes a second; None on the host, or where too little memory is free.
    Bandwidth(Option<f64>),
    /// The request failed.
    Failed(Failed),
}

/// A plan that is ready to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Opened {
    /// The plan as text.
    pub(super) plan: String,
    /// Bytes of its buffers on each device.
    pub(super) buffer_bytes: u64,
    /// Bytes that it must read.
    pub(super) floor_bytes: u64,
    /// Rows of the largest table that it reads.
    pub(super) rows: u64,
    /// The device's hardware.
    pub(super) model: String,
    /// Driver and compiler.
    pub(super) versions: String,
}

/// Why a request failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Failed {
    /// What kind of failure.
    pub(super) kind: Kind,
    /// One sentence, or a compiler's output.
    pub(super) message: String,
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// The machine's or the data's fault, not the plan's.
    Setup,
    /// The plan does not fit the data: a representation that does not hold the values.
    Fit,
    /// The source does not compile.
    Compile,
    /// The data violates what the plan assumes.
    Assumption,
    /// The plan writes where it has no buffer.
    Trespass,
    /// The plan fails while it runs.
    Fault,
}

/// A plan that is ready, and whether it is a generated one.
struct Loaded {
    session: Session,
    prepared: Prepared,
    generated: bool,
}

/// Serves requests from standard input until it closes. Of the arguments behind the subcommand, the first is the
/// scratch folder of a caged worker, the second `gpu`, `checked` (a GPU under a memory checker) or `host`, and the
/// others are what it may read.
pub fn main(args: &[String]) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &[String]) -> io::Result<()> {
    // SAFETY: a plain system call; failing is harmless, as standard input closes when the parent ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if let [scratch, device, read @ ..] = args {
        if device == "checked" {
            // The checker comes into the process with the driver, and talks to its other half by means that the cage
            // forbids. Where there is no driver, opening the device says so.
            let _ = cuda::availability();
        }
        let read = read.iter().map(PathBuf::from).collect();
        let sandbox = Sandbox { read, scratch: scratch.into(), gpu: device != "host" };
        sandbox.enter().map_err(io::Error::other)?;
    }
    let mut out = BufWriter::new(take_stdout()?);
    let mut input = BufReader::new(io::stdin());
    let mut opened: Option<Loaded> = None;
    while let Some(request) = read_message(&mut input)? {
        let mut bytes = Vec::new();
        let reply = match request {
            Request::Open(open) => self::open(&open).map(|(session, prepared, reply)| {
                opened = Some(Loaded {
                    session,
                    prepared,
                    generated: matches!(open.program, Program::Generated { .. }),
                });
                Reply::Opened(reply)
            }),
            Request::Profile(params) => profile(opened.as_mut(), &params).map(Reply::Profiled),
            Request::Run(params) => run(opened.as_mut(), &params).and_then(
                |(Execution { exec_ms, finish_rows, batch, .. }, launches)| {
                    bytes = encode_batch(&batch).map_err(|e| failed(Kind::Fault, e))?;
                    Ok(Reply::Ran { exec_ms, finish_rows, launches, arrow_bytes: bytes.len() })
                },
            ),
            Request::Bandwidth => bandwidth(opened.as_ref()).map(Reply::Bandwidth),
            Request::SwapRows => swap_rows(opened.as_mut()).map(Reply::Swapped),
            Request::RelabelKeys => relabel_keys(opened.as_mut()).map(Reply::Relabelled),
        };
        write_message(&mut out, &reply.unwrap_or_else(Reply::Failed))?;
        out.write_all(&bytes)?;
        out.flush()?;
    }
    Ok(())
}

fn failed(kind: Kind, message: impl ToString) -> Failed {
    Failed { kind, message: message.to_string() }
}

/// Sorts errors of preparing and loading.
fn while_opening(error: Error) -> Failed {
    let kind = match &error {
        Error::Device(DeviceError::Compile { .. } | DeviceError::NoKernel(_)) => Kind::Compile,
        Error::Device(DeviceError::Unavailable(_)) => Kind::Setup,
        Error::Plan(_) | Error::Table(_) | Error::Data(_) | Error::Execution(_) => Kind::Fit,
        _ => Kind::Fault,
    };
    failed(kind, error)
}

fn open(open: &Open) -> Result<(Session, Prepared, Opened), Failed> {
    let setup = |e: Error| failed(Kind::Setup, e);
    let Machine { gpu, devices, memory_bytes, .. } = &open.machine;
    let diagnoses = matches!(open.purpose, Purpose::Diagnose { .. });
    if diagnoses && !gpu {
        diagnose::note_faults();
    }
    let config = SessionConfig {
        kind: if *gpu { DeviceKind::Cuda } else { DeviceKind::Host },
        spec: DeviceSpec { gpus: None, devices: Some(devices.clone()), memory_bytes: *memory_bytes },
        chunk_bytes: open.chunk_bytes,
        poison: true,
        guard: open.purpose == Purpose::Answer,
        trace: open.purpose == Purpose::Costs,
        watch: diagnoses.then_some(diagnose::note),
        ..SessionConfig::default()
    };
    let session = Session::open(&open.data, config).map_err(setup)?;
    let prepared = match &open.program {
        Program::Generated { sql, params } => {
            let decl = |(name, ty, default): &(String, SqlType, String)| ParamDecl {
                name: name.clone(),
                ty: *ty,
                default: default.clone(),
            };
            session.prepare(sql, &params.iter().map(decl).collect::<Vec<_>>())
        }
        Program::Written(text) => {
            let plan = text::parse(text).map_err(|e| failed(Kind::Compile, e))?;
            session.prepare_plan(plan)
        }
    };
    let mut prepared = prepared.map_err(while_opening)?;
    session.load(&mut prepared).map_err(while_opening)?;
    let reads = |name: &str| prepared.plan().inputs.contains_key(name);
    let tables = session.data().tables.iter().filter(|t| reads(&t.info.name));
    let device = session.devices().first();
    let opened = Opened {
        plan: text::print(prepared.plan()),
        buffer_bytes: prepared.buffer_bytes().unwrap_or(0),
        floor_bytes: session.floor_bytes(&prepared).map_err(setup)?,
        rows: tables.map(|t| t.info.rows).max().unwrap_or(0),
        model: device.map(|d| d.model()).unwrap_or_default(),
        versions: device.map(|d| d.versions()).unwrap_or_default(),
    };
    Ok((session, prepared, opened))
}

fn profile(opened: Option<&mut Loaded>, params: &[(String, String)]) -> Result<Profile, Failed> {
    let Loaded { session, prepared, .. } = opened.ok_or_else(nothing_open)?;
    Profile::measure(session, prepared, params).map_err(|e| failed(Kind::Fault, e))
}

fn run(
    opened: Option<&mut Loaded>,
    params: &[(String, String)],
) -> Result<(Execution, Vec<LaunchCost>), Failed> {
    let Loaded { session, prepared, generated } = opened.ok_or_else(nothing_open)?;
    let execution = session.execute(prepared, params).map_err(|e| match e {
        Error::Assumption { .. } => failed(Kind::Assumption, e),
        Error::Trespass(_) => failed(Kind::Trespass, e),
        _ => failed(Kind::Fault, e),
    })?;
    // What runs from then on is a generated plan.
    if execution.replanned && !*generated {
        return Err(failed(Kind::Assumption, format!("the data violates {}", prepared.denied().join(", "))));
    }
    let launches = costs::launches(&execution, prepared);
    Ok((execution, launches))
}

fn bandwidth(opened: Option<&Loaded>) -> Result<Option<f64>, Failed> {
    let Loaded { session, .. } = opened.ok_or_else(nothing_open)?;
    session.device_gb_per_s().map_err(|e| failed(Kind::Fault, e))
}

fn swap_rows(opened: Option<&mut Loaded>) -> Result<Vec<String>, Failed> {
    let Loaded { session, prepared, .. } = opened.ok_or_else(nothing_open)?;
    session.swap_rows(prepared).map_err(|e| failed(Kind::Fault, e))
}

fn relabel_keys(opened: Option<&mut Loaded>) -> Result<Relabelled, Failed> {
    let Loaded { session, prepared, .. } = opened.ok_or_else(nothing_open)?;
    session.relabel_keys(prepared).map_err(|e| failed(Kind::Fault, e))
}

fn nothing_open() -> Failed {
    failed(Kind::Setup, "no data set is open")
}
