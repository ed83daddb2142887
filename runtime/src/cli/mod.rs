//! The program `dkb-run`: a parent that takes options, generates data, checks and prints, and a worker
//! process in which queries run.
//!
//! Invariant: the parent touches no device; a query can cost the worker its life, never the parent.

pub mod args;
pub mod check;
mod fallback;
mod generate;
mod jobs;
mod output;
mod parent;
mod progress;
mod protocol;
pub mod reference;
mod report;
mod run;
mod signals;
mod trace;
mod worker;

use std::process::ExitCode;

use protocol::{Failed, FailedKind};

/// Why the program ends without having done what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Help or version was asked for.
    #[error("{0}")]
    Help(String),
    /// Bad input; exit code 2.
    #[error("{0}")]
    Input(String),
    /// A failure while running; exit code 1.
    #[error("{0}")]
    Failed(String),
    /// Nobody reads standard output any more.
    #[error("standard output is closed")]
    Closed,
}

impl From<Failed> for CliError {
    fn from(failed: Failed) -> CliError {
        match failed.kind {
            FailedKind::Input => CliError::Input(failed.message),
            FailedKind::Unsupported | FailedKind::Run => CliError::Failed(failed.message),
        }
    }
}

/// The program: reads the process's arguments and returns its exit code.
pub fn main() -> ExitCode {
    let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let filter = tracing_subscriber::EnvFilter::try_from_env("DKB_LOG");
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    if command.get(1).is_some_and(|word| word == worker::SUBCOMMAND) {
        return worker::main();
    }
    signals::install();
    let result = args::parse(command).and_then(|options| run::run(&options));
    signals::settle();
    match result {
        Ok(true) | Err(CliError::Closed) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(CliError::Help(text)) => {
            // Help that nobody reads is no failure.
            let _ = output::print(&text);
            ExitCode::SUCCESS
        }
        Err(CliError::Input(message)) => {
            eprintln!("dkb-run: {}", message.lines().map(str::trim).collect::<Vec<_>>().join(" "));
            ExitCode::from(2)
        }
        Err(error @ CliError::Failed(_)) => {
            eprintln!("dkb-run: {error}");
            ExitCode::from(1)
        }
    }
}
