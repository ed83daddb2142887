//! A worker process seen from the judge: started, asked, and ended when its time is over.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use dkb_runtime::device::nvrtc;
use dkb_runtime::session::Relabelled;
use dkb_runtime::wire::{how_it_ended, read_batch, read_message, write_message};
use tempfile::TempDir;

use super::Params;
use super::costs::LaunchCost;
use super::profile::Profile;
use super::worker::{Failed, Kind, Open, Opened, Program, Purpose, Reply, Request, SUBCOMMAND};

/// The file in its scratch folder to which a worker complains.
const LOG: &str = "log";

/// The file in its scratch folder to which a memory checker reports.
const CHECKED: &str = "checked";

/// How long a worker may take to end when nothing more is asked.
const END_LIMIT: Duration = Duration::from_secs(20);

/// A running worker.
pub(super) struct Process {
    child: Child,
    /// None once nothing more is asked.
    requests: Option<ChildStdin>,
    replies: Receiver<io::Result<(Reply, Option<RecordBatch>)>>,
    /// Where a caged worker writes; removed when it ends.
    scratch: TempDir,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Ended {
    /// The worker said so.
    Failed(Failed),
    /// It was stopped after so long.
    TimeOut(Duration),
    /// The process is gone.
    Died(String),
}

/// One run of a plan.
pub(super) struct Ran {
    /// In milliseconds.
    pub(super) exec_ms: f64,
    /// Rows that came to the host for order and limit.
    pub(super) finish_rows: u64,
    /// What its launches took, where that was asked for.
    pub(super) launches: Vec<LaunchCost>,
    /// The answer.
    pub(super) batch: RecordBatch,
}

impl Process {
    /// Starts a worker, caged if it is a candidate's, and has it prepare its plan within a time.
    ///
    /// # Errors
    /// See [`Ended`].
    pub(super) fn start(open: &Open, limit: Duration) -> Result<(Process, Opened), Ended> {
        let [started] = Process::start_all([(open, limit)]);
        started
    }

    /// As [`Process::start`], several workers at the same time.
    pub(super) fn start_all<const N: usize>(
        opens: [(&Open, Duration); N],
    ) -> [Result<(Process, Opened), Ended>; N] {
        // A worker ends with the thread that it comes from, which is therefore this one.
        let spawned = opens.map(|(open, limit)| (Process::spawn(open).map_err(does_not_start), open, limit));
        thread::scope(|scope| {
            let opening = spawned.map(|(process, open, limit)| {
                scope.spawn(move || {
                    let mut process = process?;
                    let opened = process.open(open, limit)?;
                    Ok((process, opened))
                })
            });
            opening.map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// Runs a plan once in a worker of its own. Gives what came of it, and what the worker and a memory checker have
    /// written.
    pub(super) fn once(
        open: &Open,
        params: &Params,
        start_limit: Duration,
        limit: Duration,
    ) -> (Result<Ran, Ended>, String) {
        let mut process = match Process::spawn(open).map_err(does_not_start) {
            Ok(process) => process,
            Err(ended) => return (Err(ended), String::new()),
        };
        let ran = process.open(open, start_limit).and_then(|_| process.run(params, limit));
        process.finish();
        let read = |name: &str| std::fs::read(process.scratch.path().join(name)).unwrap_or_default();
        let log = [read(LOG), read(CHECKED)].concat();
        (ran, String::from_utf8_lossy(&log).into_owned())
    }

    fn open(&mut self, open: &Open, limit: Duration) -> Result<Opened, Ended> {
        match self.ask(&Request::Open(open.clone()), limit)? {
            (Reply::Opened(opened), _) => Ok(opened),
            _ => Err(out_of_step()),
        }
    }

    /// Lets the worker end by itself, so that a memory checker completes its report.
    fn finish(&mut self) {
        self.requests = None;
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < END_LIMIT {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn spawn(open: &Open) -> io::Result<Process> {
        let scratch = tempfile::tempdir()?;
        let mut command = command(open, &scratch.path().join(CHECKED))?;
        command.arg(SUBCOMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(scratch.path().join(LOG))?);
        command.process_group(0).env("DKB_EXCHANGE", "peer");
        if matches!(open.program, Program::Written(_)) {
            if open.machine.caged {
                let device = match (open.machine.gpu, open.checker()) {
                    (false, _) => "host",
                    (true, None) => "gpu",
                    (true, Some(_)) => "checked",
                };
                command.arg(scratch.path()).arg(device).arg(&open.data);
                command.args(nvrtc::library_dirs().iter().filter(|dir| dir.is_dir()));
                // A memory checker's libraries lie beside its folder of programs.
                command.args(open.checker().and_then(|checker| checker.parent()?.parent()));
            }
            command.env("TMPDIR", scratch.path()).env("DKB_CACHE_DIR", scratch.path().join("cache"));
            command.env("CUDA_CACHE_DISABLE", "1").current_dir(scratch.path());
            let secret =
                |name: &str| name.contains("KEY") || name.contains("TOKEN") || name.contains("SECRET");
            for (name, _) in std::env::vars_os().filter(|(name, _)| secret(&name.to_string_lossy())) {
                command.env_remove(name);
            }
        }
        let mut child = command.spawn()?;
        let (Some(requests), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("its pipes are missing"));
        };
        let (sender, replies) = channel();
        thread::spawn(move || {
            let mut input = BufReader::new(output);
            loop {
                let reply = read_message(&mut input).and_then(|reply| match reply {
                    Some(reply @ Reply::Ran { arrow_bytes, .. }) => {
                        let batch = read_batch(&mut input, arrow_bytes)?;
                        Ok((reply, Some(batch)))
                    }
                    Some(reply) => Ok((reply, None)),
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                });
                let over = reply.is_err();
                if sender.send(reply).is_err() || over {
                    break;
                }
            }
        });
        Ok(Process { child, requests: Some(requests), replies, scratch })
    }

    /// Runs the plan.
    ///
    /// # Errors
    /// See [`Ended`].
    pub(super) fn run(&mut self, params: &Params, limit: Duration) -> Result<Ran, Ended> {
        match self.ask(&Request::Run(params.to_vec()), limit)? {
            (Reply::Ran { exec_ms, finish_rows, launches, .. }, Some(batch)) => {
                Ok(Ran { exec_ms, finish_rows, launches, batch })
            }
            _ => Err(out_of_step()),
        }
    }

    /// Swaps rows of the plan's tables in place, or puts them back; names the tables that it leaves alone.
    ///
    /// # Errors
    /// See [`Ended`].
    pub(super) fn swap_rows(&mut self, limit: Duration) -> Result<Vec<String>, Ended> {
        match self.ask(&Request::SwapRows, limit)? {
            (Reply::Swapped(left), _) => Ok(left),
            _ => Err(out_of_step()),
        }
    }

    /// Relabels keys that the plan reads in place, or puts them back.
    ///
    /// # Errors
    /// See [`Ended`].
    pub(super) fn relabel_keys(&mut self, limit: Duration) -> Result<Relabelled, Ended> {
        match self.ask(&Request::RelabelKeys, limit)? {
            (Reply::Relabelled(relabelled), _) => Ok(relabelled),
            _ => Err(out_of_step()),
        }
    }

    /// Runs the plan some times and tells where the time goes.
    ///
    /// # Errors
    /// See [`Ended`].
    pub(super) fn profile(&mut self, params: &[(String, String)], limit: Duration) -> Result<Profile, Ended> {
        match self.ask(&Request::Profile(params.to_vec()), limit)? {
            (Reply::Profiled(profile), _) => Ok(profile),
            _ => Err(out_of_step()),
        }
    }

    /// Bandwidth of the memory of the GPU in gigabytes a second; None on the host, or where too little memory is free.
    ///
    /// # Errors
    /// See [`Ended`].
    pub(super) fn gb_per_s(&mut self, limit: Duration) -> Result<Option<f64>, Ended> {
        match self.ask(&Request::Bandwidth, limit)? {
            (Reply::Bandwidth(gb_per_s), _) => Ok(gb_per_s),
            _ => Err(out_of_step()),
        }
    }

    fn ask(&mut self, request: &Request, limit: Duration) -> Result<(Reply, Option<RecordBatch>), Ended> {
        let sent = self.requests.as_mut().map(|to| write_message(to, request).and_then(|()| to.flush()));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.died());
        }
        match self.replies.recv_timeout(limit) {
            Ok(Ok((Reply::Failed(failed), _))) => Err(Ended::Failed(failed)),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(self.died()),
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                Err(Ended::TimeOut(limit))
            }
        }
    }

    fn died(&mut self) -> Ended {
        self.kill();
        let how = self.child.wait().map_or_else(|e| format!("is gone ({e})"), how_it_ended);
        let log = std::fs::read_to_string(self.scratch.path().join(LOG)).unwrap_or_default();
        let last = log.lines().last().map(|line| format!(": {line}")).unwrap_or_default();
        Ended::Died(format!("the worker process {how}{last}"))
    }

    /// Ends the worker, and the compilers that it may have started.
    fn kill(&self) {
        // SAFETY: a plain system call; the group is the worker's own.
        unsafe { libc::kill(-self.child.id().cast_signed(), libc::SIGKILL) };
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // It has been killed: what is left is to take its exit status, whatever it is.
        let _ = self.child.wait();
    }
}

/// The program that is a worker, or that starts one and reports to a file.
fn command(open: &Open, report: &Path) -> io::Result<Command> {
    let program = std::env::current_exe()?;
    let mut command = match open.checker() {
        None => Command::new(program),
        Some(checker) => {
            let mut command = Command::new(checker);
            command.args([
                "--tool",
                "memcheck",
                "--target-processes",
                "application-only",
                "--print-limit",
                "10",
            ]);
            command.arg("--log-file").arg(report).arg(program);
            command
        }
    };
    if matches!(open.purpose, Purpose::Diagnose { .. }) {
        command.env("DKB_SANITIZE", "1");
    }
    Ok(command)
}

fn does_not_start(e: io::Error) -> Ended {
    Ended::Died(format!("the worker process does not start: {e}"))
}

fn out_of_step() -> Ended {
    Ended::Failed(Failed { kind: Kind::Setup, message: "the worker answered another question".to_owned() })
}
