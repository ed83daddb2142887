//! The worker process: owns the devices, runs one query at a time, and ends when its parent does.
//!
//! Invariant: standard output carries nothing but the protocol; whatever a library prints there goes to
//! standard error instead.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;

use super::args::{Fallback, LoadMode, Target};
use super::fallback;
use super::protocol::{DeviceInfo, Failed, FailedKind, Measured, Open, Opened, Reply, Request, Run};
use crate::device::{DeviceError, DeviceKind, DeviceSpec, open_devices};
use crate::exec::Error;
use crate::nvtx;
use crate::session::{Mode, Session, SessionConfig};
use crate::trace::{Loaded, Timeline, stages};
use crate::wire::{encode_batch, read_message, take_stdout, write_message};

/// The hidden subcommand that makes the program a worker.
pub(super) const SUBCOMMAND: &str = "worker";

/// How often progress is told.
const TICK: Duration = Duration::from_millis(250);

/// Serves requests from standard input until it closes.
pub(super) fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    super::signals::restore();
    leave_parents_group();
    let out = Outlet(Mutex::new(BufWriter::new(take_stdout()?)));
    let requests = read_requests();
    let mut worker = Worker { opened: None };
    for request in requests {
        let reply = match request {
            Request::Open(open) => worker.open(open, &out).map(|opened| (Reply::Opened(opened), Vec::new())),
            Request::Run(run) => worker.run(&run, &out).and_then(|(run, batch)| {
                let bytes = encode_batch(&batch).map_err(|e| failed(FailedKind::Run, e.to_string()))?;
                Ok((Reply::Ran { run, arrow_bytes: bytes.len() }, bytes))
            }),
            Request::Bandwidth => worker.bandwidth().map(|reply| (reply, Vec::new())),
        };
        let (reply, bytes) = reply.unwrap_or_else(|failed| (Reply::Failed(failed), Vec::new()));
        out.send(&reply, &bytes)?;
        if matches!(reply, Reply::Failed(Failed { fatal: true, .. })) {
            break;
        }
    }
    Ok(())
}

/// Where replies go, from any thread.
struct Outlet(Mutex<BufWriter<File>>);

impl Outlet {
    /// Sends a reply and the bytes that belong to it.
    fn send(&self, reply: &Reply, bytes: &[u8]) -> io::Result<()> {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        write_message(&mut *out, reply)?;
        out.write_all(bytes)?;
        out.flush()
    }

    /// Says what the worker does now.
    fn phase(&self, name: &str) {
        // A parent that is gone shows when standard input closes.
        let _ = self.send(&Reply::Phase { name: name.to_owned() }, &[]);
    }

    /// Does `work` and tells meanwhile what is being loaded.
    fn telling<T>(&self, timeline: &Timeline, work: impl FnOnce() -> T) -> T {
        let (before, started) = (timeline.loaded(), Instant::now());
        std::thread::scope(|scope| {
            let (working, ended) = mpsc::channel::<()>();
            scope.spawn(move || {
                let mut told = Vec::new();
                while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
                    let loaded = since(timeline.loaded(), &before);
                    if loaded != told {
                        let elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
                        told = loaded.clone();
                        // As for phases.
                        let _ = self.send(&Reply::Progress { loaded, elapsed_ms }, &[]);
                    }
                }
            });
            let done = work();
            drop(working);
            done
        })
    }
}

/// What has been loaded since `before`.
fn since(mut loaded: Vec<Loaded>, before: &[Loaded]) -> Vec<Loaded> {
    for (now, before) in loaded.iter_mut().zip(before) {
        *now = Loaded { bytes: now.bytes - before.bytes, rows: now.rows - before.rows };
    }
    loaded
}

/// Makes this process a group of its own, so that the parent can end it together with its compilers, and
/// asks to be ended with the parent.
fn leave_parents_group() {
    // SAFETY: plain system calls without pointers. Failing is harmless: the parent has set the group already,
    // and standard input closes when the parent ends.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Reads requests on a thread of its own, so that the end of the parent is seen while a query runs.
fn read_requests() -> mpsc::Receiver<Request> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut input = BufReader::new(io::stdin());
        loop {
            match read_message(&mut input) {
                Ok(Some(request)) => {
                    if sender.send(request).is_err() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("worker: unreadable request: {error}");
                    break;
                }
            }
        }
        // SAFETY: plain system calls; the group is this process and what it started.
        unsafe {
            if libc::getpgrp() == libc::getpid() {
                libc::kill(0, libc::SIGKILL);
            }
        }
        std::process::exit(0);
    });
    receiver
}

fn failed(kind: FailedKind, message: String) -> Failed {
    Failed { kind, message, fatal: false }
}

/// Sorts a session's errors by whose fault they are.
fn sort_error(error: Error, mode: LoadMode) -> Failed {
    let (kind, fatal) = match &error {
        Error::Query(_) | Error::Table(_) => (FailedKind::Input, false),
        Error::Unsupported(_) => (FailedKind::Unsupported, false),
        Error::Device(error) => match error {
            DeviceError::Unavailable(_) => (FailedKind::Input, false),
            DeviceError::Call { .. } => (FailedKind::Run, true),
            _ => (FailedKind::Run, false),
        },
        _ => (FailedKind::Run, false),
    };
    let mut message = error.to_string();
    if let (Error::Device(DeviceError::OutOfMemory { .. }), LoadMode::Resident) = (&error, mode) {
        message += "; with --mode auto or stream, columns are loaded while a query runs and need not fit";
    }
    Failed { kind, message, fatal }
}

/// For tests of faults, and for nothing else: `DKB_FAIL=q01,1` ends the worker in q01, and lets no device with
/// ordinal 1 open again.
fn is_to_fail(what: &str) -> bool {
    std::env::var("DKB_FAIL").is_ok_and(|list| list.split(',').any(|item| item == what))
}

fn kind(open: &Open) -> DeviceKind {
    match open.device {
        Target::Auto => DeviceKind::Auto,
        Target::Cuda => DeviceKind::Cuda,
        Target::Host => DeviceKind::Host,
    }
}

fn open_session(open: &Open) -> Result<Session, Error> {
    if open.again {
        ordinals(open).into_iter().try_for_each(refuse)?;
    }
    let config = SessionConfig {
        kind: kind(open),
        spec: DeviceSpec { gpus: open.gpus, devices: open.devices.clone(), memory_bytes: open.device_memory },
        mode: match open.mode {
            LoadMode::Resident => Mode::Resident,
            LoadMode::Stream => Mode::Stream,
            LoadMode::Auto => Mode::Auto,
        },
        chunk_bytes: open.chunk_bytes,
        shards: open.shards,
        shrink: open.shrink,
        poison: open.poison,
        guard: false,
        trace: open.trace,
        watch: None,
    };
    Session::open(&open.data, config)
}

fn ordinals(open: &Open) -> Vec<usize> {
    open.devices.clone().unwrap_or_else(|| (0..open.gpus.unwrap_or(1)).collect())
}

/// Refuses a device that is to fail.
fn refuse(ordinal: usize) -> Result<(), DeviceError> {
    match is_to_fail(&ordinal.to_string()) {
        true => Err(DeviceError::Unavailable("DKB_FAIL names it".to_owned())),
        false => Ok(()),
    }
}

/// Opens one device by itself, to see whether it can be.
fn opens_again(open: &Open, ordinal: usize) -> Result<(), DeviceError> {
    refuse(ordinal)?;
    let spec = DeviceSpec { devices: Some(vec![ordinal]), ..DeviceSpec::default() };
    open_devices(kind(open), &spec).map(drop)
}

/// The ordinals of the devices that open again, and why each of the others does not.
fn remaining(open: &Open) -> (Vec<usize>, Vec<String>) {
    let mut left_out = Vec::new();
    let mut remaining = ordinals(open);
    remaining.retain(|ordinal| match opens_again(open, *ordinal) {
        Ok(()) => true,
        Err(error) => {
            left_out.push(format!("device {ordinal} does not open again: {error}"));
            false
        }
    });
    left_out.dedup();
    (remaining, left_out)
}

struct Worker {
    /// The data set, and what was asked for.
    opened: Option<(Session, Open)>,
}

impl Worker {
    fn open(&mut self, mut open: Open, out: &Outlet) -> Result<Opened, Failed> {
        out.phase("open");
        let mut left_out = Vec::new();
        let session = match open_session(&open) {
            Err(Error::Device(error)) if open.again => {
                let (rest, failed) = remaining(&open);
                if rest.is_empty() || failed.is_empty() {
                    return Err(sort_error(Error::Device(error), open.mode));
                }
                (open.gpus, open.devices, left_out) = (None, Some(rest), failed);
                open_session(&open)
            }
            other => other,
        };
        let session = session.map_err(|e| sort_error(e, open.mode))?;
        let devices = session.devices().iter().map(|device| DeviceInfo {
            name: device.name(),
            model: device.model(),
            versions: device.versions(),
        });
        let table_rows = session.data().tables.iter().map(|table| (table.info.name.clone(), table.info.rows));
        let opened = Opened {
            open_ms: session.open_ms(),
            devices: devices.collect(),
            exchange: session.exchange(),
            remaining: open.devices.clone().filter(|_| !left_out.is_empty()),
            left_out,
            table_rows: table_rows.collect(),
        };
        self.opened = Some((session, open));
        Ok(opened)
    }

    fn run(&self, run: &Run, out: &Outlet) -> Result<(Measured, RecordBatch), Failed> {
        let Some((session, open)) = &self.opened else {
            return Err(not_open());
        };
        if is_to_fail(&run.query.name) {
            std::process::abort();
        }
        let work = || run_on_devices(session, open, run, out);
        let ran = if open.watched { out.telling(session.timeline(), work) } else { work() };
        match ran {
            Err(Failed { kind: FailedKind::Unsupported, message, .. }) if run.fallback == Fallback::Cpu => {
                out.phase("fallback");
                fallback::run(&open.data, run, message)
            }
            other => other,
        }
    }

    fn bandwidth(&self) -> Result<Reply, Failed> {
        let (session, open) = self.opened.as_ref().ok_or_else(not_open)?;
        let gb_per_s = session.device_gb_per_s().map_err(|e| sort_error(e, open.mode))?;
        Ok(Reply::Bandwidth { gb_per_s })
    }
}

fn not_open() -> Failed {
    failed(FailedKind::Run, "no data set is open".to_owned())
}

fn run_on_devices(
    session: &Session,
    open: &Open,
    run: &Run,
    out: &Outlet,
) -> Result<(Measured, RecordBatch), Failed> {
    let query = &run.query;
    let _range = nvtx::range("query", &query.name);
    let sorted = |error| sort_error(error, open.mode);
    out.phase("prepare");
    let prepared = match &query.plan {
        Some((text, file)) => {
            let plan = dkb_kernels::text::parse(text);
            session.prepare_plan(plan.map_err(|e| failed(FailedKind::Input, format!("{file}: {e}")))?)
        }
        None => session.prepare(&query.sql, &query.planner_decls()),
    };
    let mut prepared = prepared.map_err(sorted)?;
    out.phase("load");
    session.load(&mut prepared).map_err(sorted)?;
    let (prepare_ms, load_ms) = (prepared.prepare_ms(), prepared.load_ms());
    let load_spans = prepared.load_spans().to_vec();
    let mut spans = if open.trace { load_spans.clone() } else { Vec::new() };
    let mut execute = || {
        let execution = session.execute(&mut prepared, &query.params).map_err(sorted)?;
        if open.trace {
            spans.extend_from_slice(&execution.spans);
        }
        Ok(execution)
    };
    out.phase("warmup");
    for _ in 0..run.warmup {
        execute()?;
    }
    out.phase("execute");
    let mut exec_ms = Vec::new();
    let mut last = None;
    let mut replanned = false;
    for _ in 0..run.repeat {
        let execution = execute()?;
        exec_ms.push(execution.exec_ms);
        replanned |= execution.replanned;
        last = Some(execution);
    }
    let last = last.ok_or_else(|| failed(FailedKind::Input, "no run was asked for".to_owned()))?;
    let name = session.devices().first().map(|device| device.name()).unwrap_or_default();
    let floor_bytes = session.floor_bytes(&prepared).map_err(sorted)?;
    let inputs = &prepared.plan().inputs;
    let reads = |column: &str| {
        let (table, column) = column.split_once('.').unwrap_or_default();
        inputs.get(table).is_some_and(|columns| columns.contains_key(column))
    };
    let measured = Measured {
        engine: name.split(':').next().unwrap_or_default().to_owned(),
        prepare_ms,
        load_ms,
        exec_ms,
        plan_file: query.plan.as_ref().filter(|_| !replanned).map(|(_, file)| file.clone()),
        fallback: None,
        finish_rows: last.finish_rows,
        finish_ms: last.finish_ms,
        rows_per_device: last.rows_per_device,
        rows_pruned: last.rows_pruned,
        used_bytes: session.devices().iter().map(|d| d.memory_bytes() - d.free_bytes()).collect(),
        stages: stages(&[load_spans, last.spans].concat()),
        host_columns: session.host_columns().into_iter().filter(|(column, _)| reads(column)).collect(),
        spans,
        kernel_launches: last.launches,
        floor_bytes,
        kernel_bytes: last.kernel_bytes,
        reruns: last.reruns,
        replanned,
        tables: inputs.keys().cloned().collect(),
    };
    Ok((measured, last.batch))
}
