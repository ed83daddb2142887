//! `dkb-bench`: what to make of the reports of `dkb-run`. See `dkb-bench --help`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dkb_bench::{Report, compare};

/// Compares measurements of dkb-run
#[derive(Debug, Parser)]
#[command(name = "dkb-bench", version, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print two reports side by side: median times in milliseconds, ratios and totals
    Compare {
        /// A report of dkb-run --report
        a: PathBuf,
        /// The report to compare it with
        b: PathBuf,
    },
}

const EXAMPLES: &str = "\
A query that failed, gave a wrong answer or ran in DataFusion counts in no total.
Exit code: 0 when the comparison was printed, 2 for bad input.

Examples:
  dkb-run --tpch 1 --repeat 5 --report one.json
  dkb-run --tpch 1 --repeat 5 --gpus 2 --report two.json
  dkb-bench compare one.json two.json";

fn main() -> ExitCode {
    let Command::Compare { a, b } = Args::parse().command;
    match Report::read(&a).and_then(|a| Ok(compare(&a, &Report::read(&b)?))) {
        Ok(text) => {
            // Output that nobody reads is no failure.
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("dkb-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}
