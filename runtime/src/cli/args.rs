//! The command line: arguments as typed, and as resolved ([`Options`]).
//!
//! Invariant: whatever conflicts or cannot be read is refused here, before a file or device is touched.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use super::CliError;

/// What `--help` says below the options.
const AFTER_HELP: &str = "\
Without SQL, --file and --query, all 22 TPC-H queries run.
Exit code: 0 when everything ran and every check passed, 1 when a query or check failed,
2 for bad input, 130 after Ctrl-C.

Environment:
  DKB_CACHE_DIR     folder for compiled code (default ~/.cache/dkb)
  DKB_CUDA_LIB_DIR  folder of NVRTC (libnvrtc), where the system does not find it
  CXX               C++ compiler for host devices (default: c++, g++ or clang++)
  DKB_LOG           log filter, such as debug (default warn)
  DKB_EXCHANGE      nccl, peer or host: how GPUs exchange buffers (default: the best there is)

Examples:
  dkb-run --tpch 1 --check
  dkb-run --tpch 10 --query q01,q06 --gpus 2 --repeat 5 --warmup 1 --report sf10.json
  dkb-run --data sales \"select count(*) from orders where day >= :from\" --param from=2026-01-01
  dkb-run --data sales --file report.sql --format csv --output report.csv
  dkb-run --tpch 100 --mode auto --device-memory 20GB --trace trace.json
  dkb-run --data sales --file report.sql --explain kernels";

#[derive(Debug, Parser)]
#[command(
    name = "dkb-run",
    version,
    about = "Analytical SQL over Parquet, compiled to kernels that run on GPUs or on logical host devices.",
    after_help = AFTER_HELP
)]
struct Args {
    /// A query; `:name` is a parameter, given by --param
    sql: Option<String>,
    /// A file with one query
    #[arg(long, value_name = "FILE", conflicts_with = "sql", help_heading = "Queries")]
    file: Option<PathBuf>,
    /// TPC-H queries, such as q06,q14, or all
    #[arg(
        long,
        visible_alias = "queries",
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with_all = ["sql", "file"],
        help_heading = "Queries"
    )]
    query: Vec<String>,
    /// A parameter, for every query that has it; q06.NAME=VALUE for one query
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Queries")]
    param: Vec<String>,
    /// Print how queries would run, or their kernel plans; run nothing
    #[arg(
        long,
        value_name = "plan|kernels",
        num_args = 0..=1,
        default_missing_value = "plan",
        help_heading = "Queries"
    )]
    explain: Option<String>,
    /// A folder of tables: NAME.parquet files, or NAME/ folders of Parquet files
    #[arg(long, value_name = "DIR", conflicts_with = "tpch", help_heading = "Data")]
    data: Option<PathBuf>,
    /// TPC-H data of this scale factor (1 is about 1 GB of text), generated on first use
    #[arg(long, value_name = "SF", allow_negative_numbers = true, help_heading = "Data")]
    tpch: Option<f64>,
    /// Where --tpch keeps its data
    #[arg(long, value_name = "DIR", default_value = "data", help_heading = "Data")]
    data_root: PathBuf,
    /// Where queries run; auto takes the GPU where there is one
    #[arg(
        long,
        value_enum,
        value_name = "auto|cuda|host",
        hide_possible_values = true,
        default_value_t = Target::Auto,
        help_heading = "Devices"
    )]
    device: Target,
    /// Number of GPUs, or of logical devices on the host [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "devices", help_heading = "Devices")]
    gpus: Option<usize>,
    /// Ordinals of the GPUs to use; 0,0 makes two logical devices on one GPU
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Devices")]
    devices: Option<Vec<usize>>,
    /// Columns that stay between runs: all, none, or what fits
    #[arg(
        long,
        value_enum,
        value_name = "resident|stream|auto",
        hide_possible_values = true,
        default_value_t = LoadMode::Resident,
        help_heading = "Devices"
    )]
    mode: LoadMode,
    /// Uncompressed bytes of a partition, such as 10GB or 64MiB [default: 1GiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Devices")]
    chunk_bytes: Option<u64>,
    /// Bytes that each logical device may take, such as 20GB [default: 90% of its share]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Devices")]
    device_memory: Option<u64>,
    /// For SQL without kernels: DataFusion on the CPU runs it, or nothing
    #[arg(
        long,
        value_enum,
        value_name = "cpu|error",
        hide_possible_values = true,
        default_value_t = Fallback::Cpu,
        help_heading = "Devices"
    )]
    fallback: Fallback,
    /// Plans that run: generated ones, or DIR/qNN.plan where it exists
    #[arg(long, value_name = "baseline|DIR", default_value = "baseline", help_heading = "Queries")]
    kernels: PathBuf,
    /// Timed runs of each query
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Measuring and checking")]
    repeat: u32,
    /// Untimed runs of each query before the timed ones
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Measuring and checking")]
    warmup: u32,
    /// Compare every answer with DataFusion's
    #[arg(long, help_heading = "Measuring and checking")]
    check: bool,
    /// Compare every answer with DIR/qNN.parquet
    #[arg(long, value_name = "DIR", help_heading = "Measuring and checking")]
    answers: Option<PathBuf>,
    /// Write everything measured as JSON, times in milliseconds
    #[arg(long, value_name = "FILE", help_heading = "Measuring and checking")]
    report: Option<PathBuf>,
    /// Write what ran when as a trace for Perfetto or chrome://tracing; costs a little time
    #[arg(long, value_name = "FILE", help_heading = "Measuring and checking")]
    trace: Option<PathBuf>,
    /// Format of results [default: by the extension of --output, else table]
    #[arg(
        long,
        value_enum,
        value_name = "table|csv|json|parquet",
        hide_possible_values = true,
        help_heading = "Results"
    )]
    format: Option<Format>,
    /// File for the result, or folder for those of several queries [default: standard output]
    #[arg(long, value_name = "PATH", help_heading = "Results")]
    output: Option<PathBuf>,
    /// Divide shardable state into this many parts.
    #[arg(long, value_name = "N", hide = true)]
    shards: Option<u64>,
    /// Divide every initial buffer size by this, to exercise overflow reruns.
    #[arg(long, value_name = "N", hide = true)]
    shrink: Option<u64>,
}

/// Where queries run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// The GPU where there is one, else the host.
    Auto,
    /// GPUs.
    Cuda,
    /// Logical devices on the CPU.
    Host,
}

/// What stays on the devices between runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadMode {
    /// Columns stay.
    Resident,
    /// Nothing: columns are read again in every run.
    Stream,
    /// What there is room for.
    Auto,
}

/// Format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text with borders, for people.
    Table,
    /// Comma-separated values with a header line.
    Csv,
    /// An array of objects.
    Json,
    /// Parquet; needs --output.
    Parquet,
}

impl Format {
    /// Extension of files in this format.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Table => "txt",
            Format::Csv => "csv",
            Format::Json => "json",
            Format::Parquet => "parquet",
        }
    }
}

/// What happens to SQL without kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fallback {
    /// DataFusion runs it.
    Cpu,
    /// It is refused.
    Error,
}

/// What to explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Explain {
    /// Pipelines, estimates and choices.
    Plan,
    /// The kernel plan with its source.
    Kernels,
}

/// Which queries run.
#[derive(Debug, Clone, PartialEq)]
pub enum Queries {
    /// One SQL text and a name for it in messages.
    Sql {
        /// `query`, or the file's name.
        name: String,
        /// The text.
        text: String,
    },
    /// TPC-H queries by name.
    Named(Vec<String>),
    /// All of them.
    All,
}

/// Where the data comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// A folder.
    Folder(PathBuf),
    /// TPC-H of this scale factor under a root folder.
    Tpch {
        /// Scale factor.
        scale: f64,
        /// The root folder.
        root: PathBuf,
    },
}

/// The value of one `--param`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamArg {
    /// The query it is for; all that have it when None.
    pub query: Option<String>,
    /// The parameter.
    pub name: String,
    /// The literal text.
    pub value: String,
}

/// The command line, resolved.
#[derive(Debug, Clone)]
pub struct Options {
    /// What runs.
    pub queries: Queries,
    /// On what data.
    pub data: Data,
    /// On which kind of device.
    pub device: Target,
    /// On how many.
    pub gpus: Option<usize>,
    /// On which.
    pub devices: Option<Vec<usize>>,
    /// With which parameters.
    pub params: Vec<ParamArg>,
    /// What stays on the devices.
    pub mode: LoadMode,
    /// Partition size in bytes.
    pub chunk_bytes: Option<u64>,
    /// Bytes that each logical device may take.
    pub device_memory: Option<u64>,
    /// Timed runs.
    pub repeat: u32,
    /// Untimed runs before.
    pub warmup: u32,
    /// Whether DataFusion is a reference.
    pub check_datafusion: bool,
    /// Folder of stored answers, if they are a reference.
    pub answers: Option<PathBuf>,
    /// Result format.
    pub format: Format,
    /// Where results go; standard output when None.
    pub output: Option<PathBuf>,
    /// Where the report goes.
    pub report: Option<PathBuf>,
    /// Where the trace goes.
    pub trace: Option<PathBuf>,
    /// What happens to SQL without kernels.
    pub fallback: Fallback,
    /// Folder of specialised plans, if any are to run.
    pub kernels: Option<PathBuf>,
    /// Explain instead of running.
    pub explain: Option<Explain>,
    /// Forced number of shards.
    pub shards: Option<u64>,
    /// Divisor of initial buffer sizes.
    pub shrink: Option<u64>,
    /// The command as typed, for the report.
    pub command: Vec<String>,
}

impl Options {
    /// Whether answers are compared with anything.
    pub fn checks(&self) -> bool {
        self.check_datafusion || self.answers.is_some()
    }
}

/// Reads the process's arguments.
///
/// # Errors
/// [`CliError::Input`] with one line naming the option and what is wrong with it; [`CliError::Help`] when
/// help or version was asked for.
pub fn parse(command: Vec<String>) -> Result<Options, CliError> {
    let args = Args::try_parse_from(&command).map_err(|error| match error.kind() {
        clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion => {
            CliError::Help(error.to_string())
        }
        _ => CliError::Input(first_paragraph(&error.to_string())),
    })?;
    resolve(args, command)
}

/// Clap's message without usage and hints, in one line.
fn first_paragraph(text: &str) -> String {
    let lines = text.trim_start_matches("error: ").lines().map(str::trim).take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

fn resolve(args: Args, command: Vec<String>) -> Result<Options, CliError> {
    let bad = |message: &str| Err(CliError::Input(message.to_owned()));
    let (explain, explained_sql) = match args.explain.as_deref() {
        None => (None, None),
        Some("plan") => (Some(Explain::Plan), None),
        Some("kernels") => (Some(Explain::Kernels), None),
        Some(_) if args.sql.is_none() && args.query.is_empty() && args.file.is_none() => {
            (Some(Explain::Plan), args.explain.clone())
        }
        Some(other) => return bad(&format!("--explain {other}: expected `plan` or `kernels`")),
    };
    let queries = match (args.sql.or(explained_sql), args.file, args.query) {
        (Some(text), ..) => Queries::Sql { name: "query".to_owned(), text },
        (_, Some(path), _) => {
            let text = std::fs::read_to_string(&path);
            let text = text.map_err(|e| CliError::Input(format!("--file {}: {e}", path.display())))?;
            let name = path.file_stem().map_or_else(|| "query".into(), |s| s.to_string_lossy().into_owned());
            Queries::Sql { name, text }
        }
        (.., names) if names.is_empty() || names.iter().any(|name| name == "all") => Queries::All,
        (.., names) => Queries::Named(names),
    };
    let data = match (args.data, args.tpch) {
        (Some(folder), _) => Data::Folder(folder),
        (None, Some(scale)) if scale.is_finite() && scale > 0.0 => Data::Tpch { scale, root: args.data_root },
        (None, Some(scale)) => return bad(&format!("--tpch {scale}: the scale factor must be above 0")),
        (None, None) => return bad("no data: give --data DIR, or --tpch SF to generate TPC-H"),
    };
    let mut params = Vec::new();
    for text in &args.param {
        let Some((name, value)) = text.split_once('=') else {
            return bad(&format!("--param {text}: expected name=value"));
        };
        let (query, name) = match name.split_once('.') {
            Some((query, name)) => (Some(query.to_owned()), name),
            None => (None, name),
        };
        params.push(ParamArg {
            query,
            name: name.trim_start_matches(':').to_owned(),
            value: value.to_owned(),
        });
    }
    if args.gpus == Some(0) || args.devices.as_ref().is_some_and(Vec::is_empty) {
        return bad("--gpus 0: at least one device is needed");
    }
    if args.repeat == 0 {
        return bad("--repeat 0: at least one run is needed");
    }
    if args.chunk_bytes == Some(0) {
        return bad("--chunk-bytes 0: must be above 0");
    }
    if args.device_memory == Some(0) {
        return bad("--device-memory 0: must be above 0");
    }
    if args.shards == Some(0) || args.shrink == Some(0) {
        return bad("--shards and --shrink must be above 0");
    }
    if args.answers.is_some() && matches!(queries, Queries::Sql { .. }) {
        return bad("--answers holds answers of the TPC-H queries: use --query, or --check for your own SQL");
    }
    if let Some(dir) = args.answers.as_ref().filter(|dir| !dir.is_dir()) {
        return bad(&format!("--answers {}: no such folder", dir.display()));
    }
    let kernels = Some(args.kernels).filter(|dir| dir.as_os_str() != "baseline");
    if let Some(dir) = kernels.as_ref().filter(|dir| !dir.is_dir()) {
        return bad(&format!("--kernels {}: no such folder; or say `baseline`", dir.display()));
    }
    if kernels.is_some() && matches!(queries, Queries::Sql { .. }) {
        return bad("--kernels DIR holds plans of the TPC-H queries: use --query");
    }
    let files = [&args.answers, &args.output, &args.report, &args.trace];
    if explain.is_some() && (args.check || files.iter().any(|file| file.is_some())) {
        return bad("--explain runs nothing: drop --check, --answers, --output, --report and --trace");
    }
    let format = args.format.unwrap_or(match args.output.as_deref().and_then(|p| p.extension()?.to_str()) {
        Some("parquet") => Format::Parquet,
        Some("csv") => Format::Csv,
        Some("json") => Format::Json,
        _ => Format::Table,
    });
    if format == Format::Parquet && args.output.is_none() {
        return bad("--format parquet: needs --output FILE");
    }
    Ok(Options {
        queries,
        data,
        device: args.device,
        gpus: args.gpus,
        devices: args.devices,
        params,
        mode: args.mode,
        chunk_bytes: args.chunk_bytes,
        device_memory: args.device_memory,
        repeat: args.repeat,
        warmup: args.warmup,
        check_datafusion: args.check,
        answers: args.answers,
        format,
        output: args.output,
        report: args.report,
        trace: args.trace,
        fallback: args.fallback,
        kernels,
        explain,
        shards: args.shards,
        shrink: args.shrink,
        command,
    })
}

/// Reads a size such as `10GB` (decimal), `64MiB` (binary) or `4096`.
///
/// # Errors
/// A text that is no number with an optional unit, or too large for 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => {
            return Err(format!(
                "unknown unit `{}`: use B, KB, MB, GB, TB, KiB, MiB, GiB or TiB",
                unit.trim()
            ));
        }
    };
    let value: f64 = number.parse().map_err(|_| "expected a size such as 10GB or 64MB".to_owned())?;
    let bytes = value * scale as f64;
    if bytes >= u64::MAX as f64 { Err("too large".to_owned()) } else { Ok(bytes as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Result<Options, String> {
        let command = std::iter::once("dkb-run").chain(args.iter().copied()).map(str::to_owned).collect();
        parse(command).map_err(|e| e.to_string())
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("10GB"), Ok(10_000_000_000));
        assert_eq!(parse_bytes("64 MiB"), Ok(64 << 20));
        assert_eq!(parse_bytes("1.5k"), Ok(1500));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        for text in ["", "GB", "10XB", "1e30TB", "-1"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_main_job() {
        let options = options(&["--tpch", "1", "--check"]).unwrap();
        assert_eq!(options.queries, Queries::All);
        assert_eq!(options.data, Data::Tpch { scale: 1.0, root: "data".into() });
        assert!(options.checks() && options.answers.is_none());
    }

    #[test]
    fn queries_by_either_name() {
        let run = |args: &[&str]| options(&[&["--tpch", "1"], args].concat()).map(|o| o.queries);
        let two = Queries::Named(vec!["q01".into(), "q06".into()]);
        for option in ["--query", "--queries"] {
            assert_eq!(run(&[option, "all"]), Ok(Queries::All));
            assert_eq!(run(&[option, "q01,q06"]), Ok(two.clone()));
            assert_eq!(run(&[option, "q01", option, "q06"]), Ok(two.clone()));
        }
    }

    #[test]
    fn help_is_short_and_narrow() {
        let command = ["dkb-run", "--help"].map(str::to_owned).to_vec();
        let Err(CliError::Help(text)) = parse(command) else { panic!("help is shown") };
        assert!(text.contains("Examples:") && text.lines().count() < 80, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }

    #[test]
    fn explain_takes_an_optional_word() {
        let data = ["--data", "d"];
        let run = |args: &[&str]| options(&[&data[..], args].concat()).map(|o| (o.queries, o.explain));
        let sql = Queries::Sql { name: "query".into(), text: "select 1".into() };
        assert_eq!(run(&["--explain", "select 1"]), Ok((sql.clone(), Some(Explain::Plan))));
        assert_eq!(run(&["select 1", "--explain"]), Ok((sql.clone(), Some(Explain::Plan))));
        assert_eq!(run(&["--explain", "kernels", "select 1"]), Ok((sql, Some(Explain::Kernels))));
        assert!(run(&["--explain", "nonsense", "--query", "q01"]).unwrap_err().contains("nonsense"));
    }

    #[test]
    fn bad_input_is_one_line_that_names_the_option() {
        for (args, word) in [
            (&["--tpch", "1", "--gpus", "0"][..], "--gpus"),
            (&["--tpch", "1", "--gpus", "1", "--devices", "0"], "--devices"),
            (&["--tpch", "1", "--data", "d"], "--tpch"),
            (&["--tpch", "-1"], "--tpch"),
            (&["--query", "q01"], "--data"),
            (&["--query", "q01", "--tpch", "1", "select 1"], "--query"),
            (&["--tpch", "1", "--repeat", "0"], "--repeat"),
            (&["--tpch", "1", "--param", "date"], "--param"),
            (&["--tpch", "1", "--chunk-bytes", "x"], "--chunk-bytes"),
            (&["--tpch", "1", "--device-memory", "0"], "--device-memory"),
            (&["--tpch", "1", "--device-memory", "20XB"], "--device-memory"),
            (&["--tpch", "1", "--mode", "lazy"], "--mode"),
            (&["--tpch", "1", "--explain", "--trace", "t"], "--trace"),
            (&["--tpch", "1", "--format", "parquet"], "--output"),
            (&["--tpch", "1", "--format", "xml"], "xml"),
            (&["--tpch", "1", "--answers", "/nowhere"], "/nowhere"),
            (&["--nonsense"], "--nonsense"),
        ] {
            let message = options(args).unwrap_err();
            assert!(message.contains(word), "{args:?}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}
