//! `dkb-bench`: what to make of the reports of `dkb-run`, and data for more of them. See `dkb-bench --help`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use dkb_bench::judge::{self, Judge, Machine};
use dkb_bench::perturb::{Kind, perturb};
use dkb_bench::results::{self, Peers, Results, Table};
use dkb_bench::synthesize::{Block, Framework, Level, Prompts, SynthesizeArgs, Trajectory, synthesize};
use dkb_bench::verdict::Outcome;
use dkb_bench::{Floors, Report, compare, write_file};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Judges kernel plans and compares measurements of dkb-run
#[derive(Debug, Parser)]
#[command(name = "dkb-bench", version, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Judge one plan file: whether it keeps the rules, is right, and how much faster than the generated plan it is
    Judge {
        /// The plan file
        file: PathBuf,
        /// The query that it answers, or a file NAME.sql with it; by default the plan file's name up to the first dot
        #[arg(long, value_name = "NAME")]
        query: Option<String>,
        #[command(flatten)]
        judging: Judging,
        /// Also write the verdict to this file
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
    /// Print the prompt that asks a person or a model for a faster plan of a query
    Prompt {
        /// The query: q01 to q22, or a file NAME.sql whose parameters are declared as in runtime/tpch/queries
        query: String,
        #[command(flatten)]
        judging: Judging,
        /// What of the generated plan may change
        #[arg(long, value_enum, default_value_t = Level::Full)]
        level: Level,
        /// What the plan's source is written in
        #[arg(long, value_enum, default_value_t = Framework::Cuda)]
        framework: Framework,
        /// Blocks to leave out
        #[arg(long, value_enum, value_name = "BLOCKS", value_delimiter = ',')]
        without: Vec<Block>,
    },
    /// Ask a model for plans, judge them, and tell it what is wrong, round after round
    Synthesize {
        #[command(flatten)]
        args: SynthesizeArgs,
        #[command(flatten)]
        judging: Judging,
    },
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
    /// Write the tables of a folder, changed at random, to another: data on which a plan must be right, too
    Perturb {
        /// A folder of tables: NAME.parquet files, or NAME/ folders of Parquet files
        data: PathBuf,
        /// What changes
        #[arg(long)]
        kind: Kind,
        /// Another seed gives other data
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,
        /// A folder that does not exist, or an empty one
        #[arg(long, value_name = "DIR")]
        output: PathBuf,
    },
    #[command(flatten)]
    Results(ResultsCommand),
}

/// What is computed from folders of runs.
#[derive(Debug, Subcommand)]
enum ResultsCommand {
    /// Print the best configuration of each model, and totals of baselines and other engines
    Leaderboard {
        #[command(flatten)]
        runs: Runs,
        #[command(flatten)]
        others: Others,
    },
    /// Print the gain of level full over core
    Scope(#[command(flatten)] Runs),
    /// Print what prompt blocks are worth: configurations without one against the same with all
    Ablation(#[command(flatten)] Runs),
    /// Print totals of each generator's baseline plans, and of the optimised plans on each
    Baselines(#[command(flatten)] Runs),
    /// Print which framework is worth its tokens, by model
    Preference(#[command(flatten)] Runs),
    /// Print whether queries with more choke points gain more
    Chokepoints {
        #[command(flatten)]
        runs: Runs,
        #[command(flatten)]
        others: Others,
    },
    /// Print how rounds add up, how first rounds fail, and which queries are hard
    Repair(#[command(flatten)] Runs),
    /// Write all tables and charts to one HTML page
    Page {
        /// The folder of runs: RUNS/CONFIG/run.json, RUNS/CONFIG/qNN/NN/verdict.json
        runs: PathBuf,
        #[command(flatten)]
        others: Others,
        /// The page
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
    },
}

/// On what plans are judged.
#[derive(Debug, clap::Args)]
struct Judging {
    /// Data on which plans are timed
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Stored answers for it, qNN.parquet; else DataFusion answers
    #[arg(long, value_name = "DIR")]
    answers: Option<PathBuf>,
    /// Other data on which plans must be right; may be repeated
    #[arg(long, value_name = "DIR")]
    held_out: Vec<PathBuf>,
    /// Data on which plans may also say that an assumption does not hold or that they do not fit, and run on two
    /// devices; may be repeated
    #[arg(long, value_name = "DIR")]
    hostile: Vec<PathBuf>,
    /// Accepted plans in the place of generated ones, to be shown in prompts and timed against: a folder of qNN.plan,
    /// of which some may be missing, or a plan file
    #[arg(long, value_name = "DIR|FILE")]
    baseline: Option<PathBuf>,
    /// Where plans run
    #[arg(long, value_enum, default_value = "cuda")]
    device: Device,
    /// Bytes of device memory for each worker: eight are timed in turn, four of each plan
    #[arg(long, value_name = "BYTES", value_parser = dkb_runtime::cli::args::parse_bytes)]
    device_memory: Option<u64>,
    /// Run plans outside the sandbox, on a machine that has none: only plans that you trust
    #[arg(long)]
    no_sandbox: bool,
    /// Only whether plans are right
    #[arg(long)]
    no_timing: bool,
    /// Seconds that a plan may take at least, if twenty times the generated plan's time is less
    #[arg(long, value_name = "N", default_value_t = 60)]
    time_limit: u64,
    /// Seed of the parameters that are drawn; by default another one each time
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Device {
    /// An NVIDIA GPU
    Cuda,
    /// The cores of this machine, to see whether plans are right
    Host,
}

/// Device memory of each worker where nothing is said: the eight of a timing fit beside each other on the GPUs this is
/// made for.
const DEVICE_MEMORY: u64 = 8 << 30;

impl Judging {
    /// Who wrote the plans that others are timed against.
    fn baseline_name(&self) -> String {
        let name =
            |path: &PathBuf| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        self.baseline.as_ref().map_or_else(|| "dkb".to_owned(), name)
    }

    /// A judge of plans of the level and in the language that were asked for, or of any.
    fn judge(&self, asked: Option<(Level, Framework)>) -> Result<Judge> {
        let gpu = matches!(self.device, Device::Cuda);
        let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = self.seed.unwrap_or_else(|| clock().map_or(0, |since| since.as_nanos() as u64));
        Judge::new(judge::Config {
            data: self.data.clone(),
            answers: self.answers.clone(),
            held_out: self.held_out.clone(),
            hostile: self.hostile.clone(),
            baseline: self.baseline.clone(),
            machine: Machine {
                gpu,
                devices: vec![0],
                memory_bytes: self.device_memory.or(gpu.then_some(DEVICE_MEMORY)),
                caged: !self.no_sandbox,
            },
            asked,
            timed: !self.no_timing,
            seed,
            limit: Duration::from_secs(self.time_limit),
        })
    }
}

#[derive(Debug, clap::Args)]
struct Runs {
    /// The folder of runs: RUNS/CONFIG/run.json, RUNS/CONFIG/qNN/NN/verdict.json
    runs: PathBuf,
    /// How to print tables
    #[arg(long, value_enum, default_value_t = Format::Markdown)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Markdown,
    Json,
}

#[derive(Debug, clap::Args)]
struct Others {
    /// Times of other engines in milliseconds, in JSON: {"engine": {"q01": 1.5, ...}, ...}
    #[arg(long, value_name = "FILE")]
    engine_times: Option<PathBuf>,
}

impl Runs {
    fn print(&self, tables: impl FnOnce(&Results) -> Vec<Table>) -> Result<String> {
        let tables = tables(&Results::read(&self.runs)?);
        Ok(match self.format {
            Format::Markdown => results::markdown(&tables),
            Format::Json => results::json(&tables),
        })
    }
}

impl Others {
    fn read(&self) -> Result<Peers> {
        self.engine_times.as_deref().map_or_else(|| Ok(Peers::new()), results::read_peers)
    }
}

const EXAMPLES: &str = "\
A query that failed, gave a wrong answer or ran in DataFusion counts in no total.
Exit code: 0 when all went well, 1 when a plan was not accepted, 2 for bad input.

Examples:
  dkb-run --tpch 1 --repeat 5 --report one.json
  dkb-run --tpch 1 --repeat 5 --gpus 2 --report two.json
  dkb-bench compare one.json two.json
  dkb-bench floor one.json --svg one.svg
  dkb-bench perturb data/tpch-sf1 --kind reshaped --seed 1 --output data/reshaped-sf1
  dkb-bench perturb data/tpch-sf1 --kind hostile --seed 1 --output data/hostile-sf1
  dkb-bench leaderboard runs --engine-times engines.json
  dkb-bench page runs --output results.html";

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if value > 0.0 && f64::is_finite(value) => Ok(value),
        _ => Err("give a number above 0".to_owned()),
    }
}

/// Writes prompts with what a judge knows.
struct Composer<'a> {
    judge: &'a Judge,
    level: Level,
    framework: Framework,
    without: Vec<Block>,
}

impl Prompts for Composer<'_> {
    fn first(&self, query: &str) -> Result<String> {
        self.judge.prompt(query, self.level, self.framework, &self.without)
    }
}

/// How a query's rounds ended, in one line.
fn outcome_line(trajectory: &Trajectory) -> String {
    let Trajectory { query, rounds, end } = trajectory;
    let last = rounds.last().map_or("no round", |round| round.verdict.reason.as_str());
    format!("{query}: {} rounds, {end:?}: {last}", rounds.len())
}

/// What the command prints, and whether it ends well.
fn run(command: Command) -> Result<(String, bool)> {
    match command {
        Command::Judge { file, query, judging, report } => {
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let query = query.unwrap_or_else(|| name.split('.').next().unwrap_or_default().to_owned());
            let verdict = judging.judge(None)?.verdict(&query, &text)?;
            if let Some(report) = report {
                write_file(&report, &(serde_json::to_string_pretty(&verdict)? + "\n"))?;
            }
            let mut lines: Vec<String> = verdict.checks.iter().map(|(k, v)| format!("{k}: {v}")).collect();
            lines.push(format!("{query}: {:?}: {}", verdict.outcome, verdict.feedback));
            Ok((lines.join("\n"), verdict.outcome == Outcome::Accepted))
        }
        Command::Prompt { query, judging, level, framework, without } => {
            let judge = judging.judge(None)?;
            let prompts = Composer { judge: &judge, level, framework, without };
            Ok((prompts.first(&query)?, true))
        }
        Command::Synthesize { args, judging } => {
            let mut judge = judging.judge(Some((args.level, args.framework)))?;
            // Prompts are written while plans are judged.
            let composed = judging.judge(None)?;
            let config = args.config(judging.baseline_name(), composed.environment()?)?;
            let prompts = Composer {
                judge: &composed,
                level: args.level,
                framework: args.framework,
                without: args.without.clone(),
            };
            let done = synthesize(&config, &prompts, &mut judge, &*args.provider()?, &args.output)?;
            let lines: Vec<String> = done.iter().map(outcome_line).collect();
            Ok((lines.join("\n"), true))
        }
        Command::Compare { a, b } => Ok((compare(&Report::read(&a)?, &Report::read(&b)?), true)),
        Command::Floor { report: path, svg, link_gb_per_s } => {
            let report = Report::read(&path)?;
            let floors = Floors::new(&report, link_gb_per_s).with_context(|| path.display().to_string())?;
            if let Some(svg) = svg {
                write_file(&svg, &floors.svg())?;
            }
            Ok((floors.table(), true))
        }
        Command::Perturb { data, kind, seed, output } => {
            perturb(&data, kind, seed, &output)?;
            Ok((format!("wrote {}", output.display()), true))
        }
        Command::Results(command) => Ok((run_results(command)?, true)),
    }
}

/// What the command prints.
fn run_results(command: ResultsCommand) -> Result<String> {
    match command {
        ResultsCommand::Leaderboard { runs, others } => {
            let peers = others.read()?;
            runs.print(|all| results::leaderboard(all, &peers))
        }
        ResultsCommand::Scope(runs) => runs.print(results::scope),
        ResultsCommand::Ablation(runs) => runs.print(results::ablation),
        ResultsCommand::Baselines(runs) => runs.print(results::baselines),
        ResultsCommand::Preference(runs) => runs.print(results::preference),
        ResultsCommand::Chokepoints { runs, others } => {
            let peers = others.read()?;
            runs.print(|all| results::choke_points(all, &peers))
        }
        ResultsCommand::Repair(runs) => runs.print(results::repair),
        ResultsCommand::Page { runs, others, output } => {
            write_file(&output, &results::page(&Results::read(&runs)?, &others.read()?))?;
            Ok(format!("wrote {}", output.display()))
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    if let [_, first, rest @ ..] = words.as_slice()
        && first == judge::WORKER
    {
        return judge::worker_main(rest);
    }
    match run(Args::parse().command) {
        Ok((text, good)) => {
            // Output that nobody reads is no failure.
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::from(u8::from(!good))
        }
        Err(error) => {
            eprintln!("dkb-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}
