//! `dkb-bench`: what to make of the reports of `dkb-run`. See `dkb-bench --help`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use dkb_bench::{Floors, Report, compare, write_file};

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
    /// Print how far each query's median time is from what the hardware allows
    ///
    /// A query's floor is the bytes that it must read over the bandwidth of device memory, which dkb-run measures.
    /// Where a run copied columns to the devices, it is the copied bytes over the bandwidth of the links.
    Floor {
        /// A report of dkb-run --report
        report: PathBuf,
        /// Also write a bar chart to this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Gigabytes a second from the host to each device
        #[arg(long, value_name = "N", default_value_t = 55.0, value_parser = above_zero)]
        link_gb_per_s: f64,
    },
}

const EXAMPLES: &str = "\
A query that failed, gave a wrong answer or ran in DataFusion counts in no total.
Exit code: 0 when the table was printed, 2 for bad input.

Examples:
  dkb-run --tpch 1 --repeat 5 --report one.json
  dkb-run --tpch 1 --repeat 5 --gpus 2 --report two.json
  dkb-bench compare one.json two.json
  dkb-bench floor one.json --svg one.svg";

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if value > 0.0 && f64::is_finite(value) => Ok(value),
        _ => Err("give a number above 0".to_owned()),
    }
}

/// What the command prints.
fn run(command: Command) -> Result<String> {
    match command {
        Command::Compare { a, b } => Ok(compare(&Report::read(&a)?, &Report::read(&b)?)),
        Command::Floor { report: path, svg, link_gb_per_s } => {
            let report = Report::read(&path)?;
            let floors = Floors::new(&report, link_gb_per_s).with_context(|| path.display().to_string())?;
            if let Some(svg) = svg {
                write_file(&svg, &floors.svg())?;
            }
            Ok(floors.table())
        }
    }
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
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
