//! `dkb-run` on bad input, when it is interrupted and when something fails: one clear line that names the thing,
//! the documented exit code, and nothing left behind. And what it says about its work: reports, traces, progress.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use dkb_tests::{dkb_run, program, run, tpch_data};
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding;
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

/// How long a test waits for something that must happen soon.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs to exit code 2 with one line on standard error that holds all of `words`.
fn refused(command: &mut Command, words: &[&str]) {
    let (code, out, err) = run(command);
    assert_eq!(code, 2, "exit code");
    assert_eq!(err.trim().lines().count(), 1, "one line on standard error");
    for word in words {
        assert!(err.contains(word), "`{word}` is not named");
    }
    assert!(out.is_empty(), "nothing on standard output");
}

fn on_tpch(args: &[&str]) -> Command {
    let mut command = dkb_run(["--device", "host", "--data"]);
    command.arg(tpch_data()).args(args);
    command
}

fn on_folder(data: &Path, args: &[&str]) -> Command {
    let mut command = dkb_run(["--device", "host", "--data"]);
    command.arg(data).args(args);
    command
}

fn folder() -> TempDir {
    tempdir().expect("a temporary folder")
}

fn table(name: &str) -> PathBuf {
    tpch_data().join(format!("{name}.parquet"))
}

#[test]
fn data_folders_that_cannot_serve() {
    let dir = folder();
    let missing = dir.path().join("missing");
    refused(&mut on_folder(&missing, &["select 1"]), &["missing"]);

    let empty = dir.path().join("empty");
    fs::create_dir(&empty).expect("a folder");
    refused(&mut on_folder(&empty, &["select count(*) from region"]), &["empty", "Parquet"]);

    let truncated = dir.path().join("truncated");
    fs::create_dir(&truncated).expect("a folder");
    let whole = fs::read(table("region")).expect("a table");
    fs::write(truncated.join("region.parquet"), &whole[..whole.len() / 2]).expect("a file");
    refused(&mut on_folder(&truncated, &["select count(*) from region"]), &["region.parquet"]);

    let other = dir.path().join("other");
    fs::create_dir(&other).expect("a folder");
    fs::write(other.join("region.parquet"), "id,name\n1,one\n").expect("a file");
    refused(&mut on_folder(&other, &["select count(*) from region"]), &["region.parquet"]);

    let file = dir.path().join("file");
    fs::write(&file, "").expect("a file");
    refused(&mut on_folder(&file, &["select 1"]), &["file"]);
}

#[test]
fn damage_within_a_file() {
    let dir = folder();
    let mut bytes = fs::read(table("nation")).expect("a table");
    for byte in &mut bytes[4..200] {
        *byte ^= 0xff;
    }
    fs::write(dir.path().join("nation.parquet"), bytes).expect("a file");
    let (code, _, err) = run(&mut on_folder(dir.path(), &["select sum(n_nationkey) from nation"]));
    assert_ne!(code, 0);
    assert!(err.contains("nation.parquet"), "the file is named");
}

#[test]
fn queries_that_are_wrong() {
    refused(&mut on_tpch(&["selec 1"]), &["selec"]);
    refused(&mut on_tpch(&["select count(*) from nowhere"]), &["dkb-run: no table `nowhere`"]);
    refused(&mut on_tpch(&["select n_nothing from nation"]), &["dkb-run: no column `n_nothing`", "n_name"]);
    refused(&mut on_tpch(&["select n_name + 1 from nation where"]), &[]);
    refused(&mut on_tpch(&["--query", "q99"]), &["q99"]);
    refused(&mut on_tpch(&["--file", "missing.sql"]), &["missing.sql"]);
    refused(&mut on_tpch(&["select count(*) from nation where n_name = :name"]), &["name"]);
}

#[test]
fn parameters_that_are_wrong() {
    refused(&mut on_tpch(&["--query", "q06", "--param", "nothing=1"]), &["nothing"]);
    refused(&mut on_tpch(&["--query", "q06", "--param", "date=tomorrow"]), &["date", "tomorrow"]);
    refused(&mut on_tpch(&["--query", "q06", "--param", "discount=high"]), &["discount", "high"]);
    refused(&mut on_tpch(&["--query", "q16", "--param", "size1=1.5"]), &["size1", "1.5"]);
    refused(&mut on_tpch(&["--query", "q06", "--param", "date"]), &["date"]);
    refused(&mut on_tpch(&["--query", "q06", "--param", "q01.date=1998-09-02"]), &["q01"]);
    refused(&mut on_tpch(&["select :class", "--param", "class=1"]), &["`class`", "keyword of C++"]);
}

#[test]
fn options_that_are_wrong() {
    refused(&mut on_tpch(&["--gpus", "65", "--query", "q06"]), &["--gpus", "65"]);
    refused(&mut on_tpch(&["--gpus", "0", "--query", "q06"]), &["--gpus"]);
    refused(&mut on_tpch(&["--gpus", "many", "--query", "q06"]), &["--gpus", "many"]);
    refused(&mut on_tpch(&["--chunk-bytes", "lots", "--query", "q06"]), &["--chunk-bytes", "lots"]);
    refused(&mut on_tpch(&["--device-memory", "some", "--query", "q06"]), &["--device-memory", "some"]);
    refused(&mut on_tpch(&["--device-memory", "0", "--query", "q06"]), &["--device-memory"]);
    refused(&mut on_tpch(&["--mode", "lazy", "--query", "q06"]), &["--mode", "lazy"]);
    refused(&mut on_tpch(&["--trace", "no/such/trace.json", "--query", "q06"]), &["--trace", "no/such"]);
    refused(&mut on_tpch(&["--gpus", "2", "--devices", "0,0", "--query", "q06"]), &["--gpus", "--devices"]);
    refused(&mut on_tpch(&["--tpch", "1"]), &["--data", "--tpch"]);
    refused(&mut on_tpch(&["--query", "q06", "select 1"]), &["--query"]);
    refused(&mut on_tpch(&["--query", "q06", "--repeat", "0"]), &["--repeat"]);
    refused(&mut on_tpch(&["--no-such-option"]), &["--no-such-option"]);
    refused(&mut dkb_run(["--device", "host"]), &["--data"]);
    refused(&mut dkb_run(["--device", "host", "--tpch", "0"]), &["--tpch"]);
    refused(&mut on_tpch(&["--query", "q06", "--answers", "no/such/answers"]), &["no/such/answers"]);
}

#[test]
fn cuda_without_a_gpu() {
    if Path::new("/dev/nvidiactl").exists() {
        println!("skipped: this machine has a GPU");
        return;
    }
    let mut command = dkb_run(["--device", "cuda", "--query", "q06", "--data"]);
    refused(command.arg(tpch_data()), &["--device cuda"]);
}

#[test]
fn host_without_a_compiler() {
    let cache = folder();
    let mut command = on_tpch(&["--query", "q06"]);
    command.env("PATH", "").env_remove("CXX").env("DKB_CACHE_DIR", cache.path());
    refused(&mut command, &["C++ compiler"]);
}

#[test]
fn explaining_needs_no_device() {
    let explain = |args: &[&str]| {
        let mut command = dkb_run(["--device", "cuda", "--data"]);
        command.arg(tpch_data()).args(args).env("PATH", "").env_remove("CXX");
        run(&mut command)
    };
    let (code, out, _) = explain(&["--query", "q06", "--explain"]);
    assert!(code == 0 && out.contains("lineitem"), "the plan is shown");
    let (code, out, _) = explain(&["--query", "q06", "--explain", "kernels"]);
    assert!(code == 0 && out.starts_with("/*--- kernel plan 1"), "the kernel plan is shown");
    let (code, out, _) = explain(&["--queries", "q06,q01", "--explain"]);
    let named: Vec<&str> = out.lines().filter(|line| line.starts_with("-- ")).collect();
    assert!(code == 0 && named == ["-- q06", "-- q01"], "each plan follows its name: {named:?}");
}

#[test]
fn unsupported_sql_is_refused_or_falls_back() {
    let sql = "select n_name, row_number() over (order by n_name) as r from nation order by r limit 3";
    let (code, _, err) = run(&mut on_tpch(&["--fallback", "error", sql]));
    assert_eq!(code, 1);
    assert!(err.contains("not supported"), "it says so");
    let (code, out, _) = run(&mut on_tpch(&["--format", "csv", sql]));
    assert_eq!(code, 0);
    assert_eq!(out.trim(), "n_name,r\nALGERIA,1\nARGENTINA,2\nBRAZIL,3");
    // An answer that DataFusion gave in the first place proves nothing.
    assert_eq!(run(&mut on_tpch(&["--check", sql])).0, 1);
}

#[test]
fn wrong_answers_are_found() {
    let dir = folder();
    let q = |n: u32| dkb_tests::answers("sf0.01").join(format!("q{n:02}.parquet"));
    fs::copy(q(6), dir.path().join("q06.parquet")).expect("an answer");
    fs::copy(q(1), dir.path().join("q14.parquet")).expect("an answer");
    let answers = dir.path().to_str().expect("a plain path");
    assert_eq!(run(&mut on_tpch(&["--query", "q06", "--answers", answers])).0, 0);
    let (code, out, err) = run(&mut on_tpch(&["--query", "q06,q14", "--answers", answers]));
    assert_eq!(code, 1);
    assert!(out.contains("q14") && (out + &err).contains("column"), "it says what differs");
    let shifted = ["--query", "q06", "--param", "quantity=25", "--answers", answers];
    assert_eq!(run(&mut on_tpch(&shifted)).0, 1);
}

#[test]
fn formats() {
    let sql = "select r_regionkey, r_name from region where r_regionkey < 2 order by r_regionkey";
    let (code, out, _) = run(&mut on_tpch(&["--format", "csv", sql]));
    assert_eq!((code, out.trim()), (0, "r_regionkey,r_name\n0,AFRICA\n1,AMERICA"));
    let (code, out, _) = run(&mut on_tpch(&["--format", "json", sql]));
    let json: Value = serde_json::from_str(&out).expect("JSON on standard output");
    assert_eq!((code, json[1]["r_name"].as_str()), (0, Some("AMERICA")));
    let dir = folder();
    let file = dir.path().join("regions.parquet");
    let path = file.to_str().expect("a plain path");
    assert_eq!(run(&mut on_tpch(&["--format", "parquet", "--output", path, sql])).0, 0);
    assert_eq!(fs::read(&file).expect("the file")[..4], *b"PAR1");
}

#[test]
fn parameters_of_own_sql() {
    let sql = "select count(*) as n from lineitem
               where l_shipdate >= :from and l_discount < :most and l_shipmode = :mode";
    let params = ["--param", "from=1995-01-01", "--param", "most=0.05", "--param", "mode=AIR"];
    let (code, out, _) = run(&mut on_tpch(&[&["--check", "--format", "csv", sql][..], &params].concat()));
    assert_eq!(code, 0);
    assert!(out.lines().nth(1).and_then(|n| n.parse::<u64>().ok()) > Some(0), "rows are counted");
}

#[test]
fn data_that_does_not_fit_the_devices() {
    let query = ["--query", "q06", "--device-memory"];
    let (code, _, err) = run(&mut on_tpch(&[&query[..], &["300KB"]].concat()));
    assert_eq!(code, 1);
    assert!(err.contains("out of memory") && err.contains("--mode auto"), "it says what to do");
    let (code, _, err) = run(&mut on_tpch(&[&query[..], &["10KB", "--mode", "auto"]].concat()));
    assert_eq!(code, 1);
    assert!(err.contains("give --device-memory at least"), "it says what is needed");
    for mode in ["auto", "stream"] {
        let arguments = [&query[..], &["3MB", "--mode", mode, "--check", "--repeat", "2"]].concat();
        assert_eq!(run(&mut on_tpch(&arguments)).0, 0);
    }
}

/// Runs on two devices with further arguments, and reads the report and the trace.
fn observed(args: &[&str]) -> (i32, Value, Vec<Value>, String) {
    let dir = folder();
    let mut command = on_tpch(&[&["--gpus", "2"], args].concat());
    let path = |name| dir.path().join(name);
    command.arg("--report").arg(path("report.json")).arg("--trace").arg(path("trace.json"));
    let (code, _, err) = run(&mut command);
    let json = |name| serde_json::from_slice(&fs::read(path(name)).expect("a file")).expect("JSON");
    let Value::Array(events) = json("trace.json") else { panic!("a trace is an array") };
    assert_eq!(fs::read_dir(dir.path()).expect("the folder").count(), 2, "nothing else is left");
    (code, json("report.json"), events, err)
}

/// Gives the strings that a JSON pointer finds in each of some values.
fn texts<'a>(values: impl IntoIterator<Item = &'a Value>, pointer: &str) -> Vec<&'a str> {
    values.into_iter().filter_map(|value| value.pointer(pointer)?.as_str()).collect()
}

#[test]
fn reports_and_traces_say_what_ran() {
    let (code, report, events, _) = observed(&["--query", "q01,q06", "--mode", "stream", "--check"]);
    assert_eq!(code, 0);
    assert_eq!((&report["mode"], &report["exchange"]), (&"stream".into(), &"shared memory".into()));
    let queries = report["queries"].as_array().expect("queries");
    for query in queries {
        let number = |field: &str| query[field].as_u64().unwrap_or_else(|| panic!("no {field}"));
        assert!(number("read_bytes") + number("copied_bytes") > 0 && number("rows_pruned") < 60_175 * 2);
        assert_eq!(query["used_bytes"].as_array().map(Vec::len), Some(2));
        assert!(number("kernel_bytes") >= number("floor_bytes") && number("floor_bytes") > 0);
        let stages = query["stages"].as_array().expect("stages");
        let names = texts(stages, "/stage");
        for stage in ["read", "copy", "decode", "kernel", "exchange", "finish"] {
            assert!(names.contains(&stage), "no {stage} in {names:?}");
        }
        for stage in stages {
            let fields = ["device", "busy_ms", "bytes", "gb_per_s"];
            assert!(fields.iter().all(|field| stage[field].is_number()), "{stage}");
        }
    }
    assert!(report["device_gb_per_s"].as_f64() > Some(0.0));
    let named = |phase: &str| -> Vec<&Value> { events.iter().filter(|e| e["ph"] == phase).collect() };
    let names = texts(named("M"), "/args/name");
    for name in ["queries", "host:0", "host:1", "read", "copy", "kernel", "exchange", "finish"] {
        assert!(names.contains(&name), "no {name} in {names:?}");
    }
    let spans = named("X");
    assert!(spans.iter().all(|e| e["ts"].as_f64() >= Some(0.0) && e["dur"].as_f64() >= Some(0.0)));
    let queries = spans.iter().filter(|e| e["pid"] == 0).copied();
    assert_eq!(texts(queries, "/name"), ["q01", "q06"]);
    assert!(spans.iter().any(|e| e["name"] == "lineitem" && e["args"]["query"] == "q06"));
}

#[test]
fn failed_queries_leave_no_trace_file() {
    let dir = folder();
    let mut command = on_tpch(&["select n_nothing from nation", "--trace"]);
    refused(command.arg(dir.path().join("trace.json")), &["n_nothing"]);
    assert!(is_empty(dir.path()));
}

#[test]
fn columns_that_the_host_decodes_are_named() {
    let dir = folder();
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..5000).map(|i| format!("name {i}"))));
    let batch = RecordBatch::try_from_iter([("name", names)]).expect("a batch");
    let properties = WriterProperties::builder().set_dictionary_enabled(false);
    let properties = properties.set_encoding(Encoding::DELTA_BYTE_ARRAY).build();
    let file = fs::File::create(dir.path().join("t.parquet")).expect("a file");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("a writer");
    writer.write(&batch).expect("rows");
    writer.close().expect("a footer");
    let sql = "select count(*) as n from t where name like '%99%'";
    let (code, _, err) = run(&mut on_folder(dir.path(), &["--gpus", "2", "--check", sql]));
    assert_eq!(code, 0);
    let line = err.lines().find(|line| line.starts_with("decoded on the host: "));
    assert!(line.is_some_and(|line| line.contains("t.name (") && line.contains("DELTA_BYTE_ARRAY")), "{err}");
}

#[test]
fn a_lost_device_is_left_out() {
    // What a fault leaves behind, without a fault: q01 ends the worker, and device 1 does not open again.
    let dir = folder();
    let report = dir.path().join("report.json");
    let mut command = on_tpch(&["--gpus", "2", "--query", "q01,q06,q14", "--check", "--report"]);
    let (code, out, err) = run(command.arg(&report).env("DKB_FAIL", "q01,1"));
    assert_eq!(code, 1);
    assert!(out.contains("2/3 good"), "the other queries run");
    assert!(err.contains("q01: the worker process was ended by signal 6"), "the fault is named");
    assert!(err.contains("warning: device 1 does not open again"), "the device is named");
    let report: Value = serde_json::from_slice(&fs::read(report).expect("a report")).expect("JSON");
    assert_eq!(report["left_out"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["queries"][1]["rows_per_device"].as_array().map(Vec::len), Some(1));

    // Without any device that opens, the other queries fail, too.
    let mut command = on_tpch(&["--gpus", "2", "--query", "q01,q06"]);
    let (code, out, err) = run(command.env("DKB_FAIL", "q01,0,1"));
    assert_eq!(code, 1);
    assert!(out.contains("0/2 good") && err.contains("q06: "), "both are named");
}

#[test]
fn progress_on_a_terminal() {
    let program = program("dkb-run").display().to_string();
    let data = tpch_data();
    let arguments =
        format!("--device host --gpus 2 --mode stream --query q01 --repeat 50 --data {}", data.display());
    // Both outputs of what `script` runs are a terminal.
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &format!("{program} {arguments}"), "/dev/null"]);
    command.env("DKB_CACHE_DIR", dkb_tests::cache_dir()).env("TERM", "xterm").stdin(Stdio::null());
    let Ok(output) = command.output() else {
        println!("skipped: the program `script` is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("q01: execute, GB ") && text.contains("GB/s"), "{text}");
    // Elsewhere nothing of it is seen.
    let (_, _, err) = run(&mut on_tpch(&["--query", "q01", "--mode", "stream", "--repeat", "50"]));
    assert!(!err.contains("GB/s") && !err.contains("execute"));
}

/// The processes whose parent is `pid`.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Whether a process is there and is no zombie.
fn lives(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
    assert!(status.expect("kill runs").success());
}

fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

#[test]
fn interrupted_generation_leaves_nothing() {
    let dir = folder();
    let mut command = dkb_run(["--device", "host", "--tpch", "3", "--query", "q06", "--data-root"]);
    let child = spawn(command.arg(dir.path()));
    wait_until("generation begins", || {
        let entries = fs::read_dir(dir.path()).into_iter().flatten().flatten();
        entries.filter(|e| e.path().is_dir()).any(|e| !is_empty(&e.path()))
    });
    signal(&child, "INT");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let left: Vec<_> = fs::read_dir(dir.path()).expect("the folder").flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "{left:?} is left behind");
}

#[test]
fn interrupted_queries_leave_no_processes() {
    let mut command = on_tpch(&["--query", "q01", "--repeat", "1000000"]);
    let child = spawn(&mut command);
    let mut workers = Vec::new();
    wait_until("the worker starts", || {
        workers = children(child.id());
        !workers.is_empty()
    });
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, "INT");
    assert_eq!(child.wait_with_output().expect("it ends").status.code(), Some(130));
    wait_until("the worker ends", || workers.iter().all(|pid| !lives(*pid)));
}

#[test]
fn a_killed_parent_takes_its_worker_along() {
    let mut child = spawn(&mut on_tpch(&["--query", "q01", "--repeat", "1000000"]));
    let mut workers = Vec::new();
    wait_until("the worker starts", || {
        workers = children(child.id());
        !workers.is_empty()
    });
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, "KILL");
    child.wait().expect("it ends");
    wait_until("the worker ends", || workers.iter().all(|pid| !lives(*pid)));
}

#[test]
fn a_killed_worker_ends_its_query_only() {
    // Once compiled, the query soon runs.
    assert_eq!(run(&mut on_tpch(&["--query", "q01,q06"])).0, 0);
    let child = spawn(&mut on_tpch(&["--query", "q01,q06", "--repeat", "1000000"]));
    let mut workers = Vec::new();
    wait_until("the worker starts", || {
        workers = children(child.id());
        !workers.is_empty()
    });
    std::thread::sleep(Duration::from_millis(500));
    for pid in &workers {
        let status = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        assert!(status.expect("kill runs").success());
    }
    wait_until("another worker starts", || children(child.id()).iter().any(|pid| !workers.contains(pid)));
    signal(&child, "INT");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
}

#[test]
fn a_folder_that_cannot_be_written() {
    let dir = folder();
    let file = dir.path().join("file");
    fs::write(&file, "").expect("a file");
    let mut command = dkb_run(["--device", "host", "--tpch", "0.01", "--query", "q06", "--data-root"]);
    refused(command.arg(file.join("data")), &["file/data"]);
}

#[test]
fn a_full_disk() {
    // A file system of its own in a mount namespace of its own; what is left on it is listed afterwards.
    let script = r#"mount -t tmpfs -o size=200k tmpfs "$2" || exit 99
        "$1" --device host --tpch 0.01 --query q06 --data-root "$2"; code=$?
        ls -A "$2"; exit $code"#;
    let dir = folder();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    command.arg(program("dkb-run")).arg(dir.path());
    let output = command.output();
    if !output.as_ref().is_ok_and(|output| ![Some(1), Some(99)].contains(&output.status.code())) {
        println!("skipped: no file system can be mounted here: {output:?}");
        return;
    }
    refused(&mut command, &["No space left", dir.path().to_str().expect("a plain path")]);
}
