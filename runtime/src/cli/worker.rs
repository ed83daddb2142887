//! The worker process: owns the devices, runs one query at a time, and ends when its parent does.
//!
//! Invariant: standard output carries nothing but the protocol; whatever a library prints there goes to
//! standard error instead.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::FromRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;

use arrow::array::RecordBatch;

use super::args::{Fallback, LoadMode, Target};
use super::fallback;
use super::protocol::{
    DeviceInfo, Failed, FailedKind, Measured, Open, Opened, Reply, Request, Run, encode_batch, read_message,
    write_message,
};
use crate::device::{DeviceError, DeviceKind, DeviceSpec};
use crate::exec::Error;
use crate::session::{Mode, Session, SessionConfig};

/// The hidden subcommand that makes the program a worker.
pub(super) const SUBCOMMAND: &str = "worker";

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
    let mut out = BufWriter::new(take_stdout()?);
    let requests = read_requests();
    let mut worker = Worker { session: None, data: PathBuf::new() };
    for request in requests {
        let mut phase = |name: &str| {
            // A parent that is gone shows when standard input closes.
            let _ = write_message(&mut out, &Reply::Phase { name: name.to_owned() });
        };
        let reply = match request {
            Request::Open(open) => {
                worker.open(&open, &mut phase).map(|opened| (Reply::Opened(opened), Vec::new()))
            }
            Request::Run(run) => worker.run(&run, &mut phase).and_then(|(run, batch)| {
                let bytes = encode_batch(&batch).map_err(|e| failed(FailedKind::Run, e.to_string()))?;
                Ok((Reply::Ran { run, arrow_bytes: bytes.len() }, bytes))
            }),
        };
        let (reply, bytes) = reply.unwrap_or_else(|failed| (Reply::Failed(failed), Vec::new()));
        write_message(&mut out, &reply)?;
        out.write_all(&bytes)?;
        out.flush()?;
        if matches!(reply, Reply::Failed(Failed { fatal: true, .. })) {
            break;
        }
    }
    Ok(())
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

/// Standard output as a file of its own; descriptor 1 becomes standard error.
fn take_stdout() -> io::Result<File> {
    // SAFETY: dup and dup2 take descriptors only; the new descriptor is owned by the file alone.
    unsafe {
        let own = libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 3);
        if own < 0 || libc::dup2(2, 1) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(File::from_raw_fd(own))
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
fn sort_error(error: Error) -> Failed {
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
    Failed { kind, message: error.to_string(), fatal }
}

struct Worker {
    session: Option<Session>,
    data: PathBuf,
}

impl Worker {
    fn open(&mut self, open: &Open, phase: &mut dyn FnMut(&str)) -> Result<Opened, Failed> {
        phase("open");
        let config = SessionConfig {
            kind: match open.device {
                Target::Auto => DeviceKind::Auto,
                Target::Cuda => DeviceKind::Cuda,
                Target::Host => DeviceKind::Host,
            },
            spec: DeviceSpec { gpus: open.gpus, devices: open.devices.clone() },
            mode: match open.mode {
                LoadMode::Resident => Mode::Resident,
                LoadMode::Stream => Mode::Stream,
            },
            chunk_bytes: open.chunk_bytes,
            shards: open.shards,
            shrink: open.shrink,
            poison: open.poison,
            ..SessionConfig::default()
        };
        self.data = open.data.clone();
        let session = Session::open(&open.data, config).map_err(sort_error)?;
        let devices = session.devices().iter().map(|device| DeviceInfo {
            name: device.name(),
            model: device.model(),
            versions: device.versions(),
        });
        let table_rows = session.data().tables.iter().map(|table| (table.info.name.clone(), table.info.rows));
        let opened = Opened {
            open_ms: session.open_ms(),
            devices: devices.collect(),
            table_rows: table_rows.collect(),
        };
        self.session = Some(session);
        Ok(opened)
    }

    fn session(&mut self) -> Result<&mut Session, Failed> {
        self.session.as_mut().ok_or_else(|| failed(FailedKind::Run, "no data set is open".to_owned()))
    }

    fn run(&mut self, run: &Run, phase: &mut dyn FnMut(&str)) -> Result<(Measured, RecordBatch), Failed> {
        match self.run_on_devices(run, phase) {
            Err(Failed { kind: FailedKind::Unsupported, message, .. }) if run.fallback == Fallback::Cpu => {
                phase("fallback");
                fallback::run(&self.data, run, message)
            }
            other => other,
        }
    }

    fn run_on_devices(
        &mut self,
        run: &Run,
        phase: &mut dyn FnMut(&str),
    ) -> Result<(Measured, RecordBatch), Failed> {
        let query = &run.query;
        let session = self.session()?;
        phase("prepare");
        let mut prepared = session.prepare(&query.sql, &query.planner_decls()).map_err(sort_error)?;
        phase("load");
        session.load(&mut prepared).map_err(sort_error)?;
        let (prepare_ms, load_ms) = (prepared.prepare_ms(), prepared.load_ms());
        phase("warmup");
        for _ in 0..run.warmup {
            session.execute(&mut prepared, &query.params).map_err(sort_error)?;
        }
        phase("execute");
        let mut exec_ms = Vec::new();
        let mut last = None;
        let mut replanned = false;
        for _ in 0..run.repeat {
            let execution = session.execute(&mut prepared, &query.params).map_err(sort_error)?;
            exec_ms.push(execution.exec_ms);
            replanned |= execution.replanned;
            last = Some(execution);
        }
        let last = last.ok_or_else(|| failed(FailedKind::Input, "no run was asked for".to_owned()))?;
        let name = session.devices().first().map(|device| device.name()).unwrap_or_default();
        let measured = Measured {
            engine: name.split(':').next().unwrap_or_default().to_owned(),
            prepare_ms,
            load_ms,
            exec_ms,
            fallback: None,
            finish_rows: last.finish_rows,
            finish_ms: last.finish_ms,
            rows_per_device: last.rows_per_device,
            kernel_launches: last.launches,
            reruns: last.reruns,
            replanned,
            tables: prepared.plan().inputs.keys().cloned().collect(),
        };
        Ok((measured, last.batch))
    }
}
