//! A worker process seen from the judge: started, asked, and ended when its time is over.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use dkb_runtime::device::nvrtc;
use dkb_runtime::wire::{how_it_ended, read_batch, read_message, write_message};
use tempfile::TempDir;

use super::Params;
use super::profile::Profile;
use super::worker::{Failed, Kind, Open, Opened, Program, Reply, Request, SUBCOMMAND};

/// The file in its scratch folder to which a worker complains.
const LOG: &str = "log";

/// A running worker.
pub(super) struct Process {
    child: Child,
    requests: ChildStdin,
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
    /// The answer.
    pub(super) batch: RecordBatch,
}

impl Process {
    /// Starts a worker, caged if it is a candidate's, and has it prepare its plan.
    ///
    /// # Errors
    /// See [`Ended`].
    pub(super) fn start(open: &Open, limit: Duration) -> Result<(Process, Opened), Ended> {
        let mut process = Process::spawn(open).map_err(|e| Ended::Died(format!("does not start: {e}")))?;
        match process.ask(&Request::Open(open.clone()), limit)? {
            (Reply::Opened(opened), _) => Ok((process, opened)),
            _ => Err(out_of_step()),
        }
    }

    fn spawn(open: &Open) -> io::Result<Process> {
        let scratch = tempfile::tempdir()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(SUBCOMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(scratch.path().join(LOG))?);
        command.process_group(0).env("DKB_EXCHANGE", "peer");
        if matches!(open.program, Program::Candidate(_)) {
            if open.machine.caged {
                command
                    .arg(scratch.path())
                    .arg(if open.machine.gpu { "gpu" } else { "host" })
                    .arg(&open.data);
                command.args(nvrtc::library_dirs().iter().filter(|dir| dir.is_dir()));
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
        std::thread::spawn(move || {
            let mut input = BufReader::new(output);
            loop {
                let reply = read_message(&mut input).and_then(|reply| match reply {
                    Some(Reply::Ran { exec_ms, finish_rows, arrow_bytes }) => {
                        let batch = read_batch(&mut input, arrow_bytes)?;
                        Ok((Reply::Ran { exec_ms, finish_rows, arrow_bytes }, Some(batch)))
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
        Ok(Process { child, requests, replies, scratch })
    }

    /// Runs the plan.
    ///
    /// # Errors
    /// See [`Ended`].
    pub(super) fn run(&mut self, params: &Params, limit: Duration) -> Result<Ran, Ended> {
        match self.ask(&Request::Run(params.to_vec()), limit)? {
            (Reply::Ran { exec_ms, finish_rows, .. }, Some(batch)) => Ok(Ran { exec_ms, finish_rows, batch }),
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

    fn ask(&mut self, request: &Request, limit: Duration) -> Result<(Reply, Option<RecordBatch>), Ended> {
        let sent = write_message(&mut self.requests, request).and_then(|()| self.requests.flush());
        if sent.is_err() {
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

fn out_of_step() -> Ended {
    Ended::Failed(Failed { kind: Kind::Setup, message: "the worker answered another question".to_owned() })
}
