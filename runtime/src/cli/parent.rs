//! The worker seen from its parent: starts it, asks it, and survives its death.
//!
//! Invariant: at most one worker lives; a dead one costs only the query it was running.

use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use arrow::array::RecordBatch;

use super::args::Target;
use super::protocol::{Failed, FailedKind, Measured, Open, Opened, Reply, Request, Run};
use super::{signals, worker};
use crate::wire::{how_it_ended, read_batch, read_message, write_message};

/// A worker process that is started when needed and again after it died.
pub(super) struct Parent {
    open: Open,
    opened: Opened,
    left_out: Vec<String>,
    worker: Option<Worker>,
}

struct Worker {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Parent {
    /// Starts a worker and opens the data set in it.
    ///
    /// # Errors
    /// The worker's reason, or its death.
    pub(super) fn start(open: Open) -> Result<Parent, Failed> {
        let opened = Opened::default();
        let mut parent = Parent { open, opened, left_out: Vec::new(), worker: None };
        parent.restart()?;
        Ok(parent)
    }

    /// What the worker has opened.
    pub(super) fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Why devices that were asked for are not used any more.
    pub(super) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Runs a query; `hear` gets what the worker says meanwhile.
    ///
    /// # Errors
    /// The worker's reason, or its death.
    pub(super) fn run(
        &mut self,
        run: Run,
        hear: &mut dyn FnMut(&Reply),
    ) -> Result<(Measured, RecordBatch), Failed> {
        if self.worker.is_none() {
            // What has been open before is no bad input.
            let again =
                |f: Failed| run_failure(format!("the worker process does not start again: {}", f.message));
            self.restart().map_err(again)?;
        }
        match self.ask(&Request::Run(run), hear)? {
            (Reply::Ran { run, .. }, Some(batch)) => Ok((run, batch)),
            _ => Err(out_of_step()),
        }
    }

    /// Measures the bandwidth of the devices' memory; None without a worker, or where too little memory is free.
    ///
    /// # Errors
    /// The worker's reason, or its death.
    pub(super) fn device_gb_per_s(&mut self) -> Result<Option<f64>, Failed> {
        if self.worker.is_none() {
            return Ok(None);
        }
        match self.ask(&Request::Bandwidth, &mut |_| {})? {
            (Reply::Bandwidth { gb_per_s }, _) => Ok(gb_per_s),
            _ => Err(out_of_step()),
        }
    }

    fn restart(&mut self) -> Result<(), Failed> {
        self.worker =
            Some(Worker::spawn().map_err(|e| run_failure(format!("cannot start a worker process: {e}")))?);
        let request = Request::Open(self.open.clone());
        match self.ask(&request, &mut |_| {})? {
            (Reply::Opened(opened), _) => {
                if let Some(remaining) = &opened.remaining {
                    (self.open.gpus, self.open.devices) = (None, Some(remaining.clone()));
                }
                self.left_out.extend_from_slice(&opened.left_out);
                // Devices of the same kind, whatever became of them meanwhile.
                if opened.devices.iter().any(|device| device.name.starts_with("cuda")) {
                    self.open.device = Target::Cuda;
                }
                self.open.again = true;
                self.opened = opened;
                Ok(())
            }
            _ => Err(out_of_step()),
        }
    }

    fn ask(
        &mut self,
        request: &Request,
        hear: &mut dyn FnMut(&Reply),
    ) -> Result<(Reply, Option<RecordBatch>), Failed> {
        let Some(worker) = self.worker.as_mut() else { return Err(out_of_step()) };
        let mut last_phase = String::new();
        let answer = worker.ask(request, &mut |reply| {
            if let Reply::Phase { name } = reply {
                last_phase.clone_from(name);
            }
            hear(reply);
        });
        match answer {
            Ok((Reply::Failed(failed), _)) => {
                if failed.fatal {
                    self.worker = None;
                }
                Err(failed)
            }
            Ok(reply) => Ok(reply),
            Err(error) => {
                signals::settle();
                let how = self.worker.take().map_or_else(|| error.to_string(), |worker| worker.end(&error));
                let during =
                    if last_phase.is_empty() { String::new() } else { format!(" in phase {last_phase}") };
                Err(run_failure(format!("the worker process {how}{during}")))
            }
        }
    }
}

fn run_failure(message: String) -> Failed {
    Failed { kind: FailedKind::Run, message, fatal: false }
}

fn out_of_step() -> Failed {
    run_failure("the worker process gave an answer to another question".to_owned())
}

impl Worker {
    fn spawn() -> std::io::Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(worker::SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        signals::set_worker_group(child.id().cast_signed());
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::other("its pipes are missing"));
        };
        Ok(Worker { child, requests, replies: BufReader::new(replies) })
    }

    fn ask(
        &mut self,
        request: &Request,
        hear: &mut dyn FnMut(&Reply),
    ) -> std::io::Result<(Reply, Option<RecordBatch>)> {
        write_message(&mut self.requests, request)?;
        loop {
            let reply = read_message(&mut self.replies)?;
            match reply.ok_or(std::io::ErrorKind::UnexpectedEof)? {
                reply @ (Reply::Phase { .. } | Reply::Progress { .. }) => hear(&reply),
                Reply::Ran { run, arrow_bytes } => {
                    let batch = read_batch(&mut self.replies, arrow_bytes)?;
                    return Ok((Reply::Ran { run, arrow_bytes }, Some(batch)));
                }
                reply => return Ok((reply, None)),
            }
        }
    }

    /// Waits for a worker whose pipe broke and says how it ended.
    fn end(mut self, error: &std::io::Error) -> String {
        let broken =
            matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::BrokenPipe);
        if !broken {
            signals::end_worker_group();
            return format!("sent an unreadable reply ({error})");
        }
        self.child.wait().map_or_else(|e| format!("is gone ({e})"), how_it_ended)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        signals::end_worker_group();
        signals::set_worker_group(0);
        // It has been killed: what is left is to take its exit status, whatever it is.
        let _ = self.child.wait();
    }
}
