//! The 22 TPC-H queries through `dkb-run` on logical host devices, against DataFusion and the stored answers.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use dkb_tests::{answers, dkb_run, kept, root, run, tpch_data, tpch_small_groups};
use serde_json::Value;

/// Runs all queries and returns the report; fails unless every check passed.
fn all_queries(data: &Path, options: &[&str]) -> Value {
    let report = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = dkb_run(["--device", "host", "--fallback", "error", "--check"]);
    command.arg("--data").arg(data).arg("--answers").arg(answers("sf0.01"));
    command.arg("--report").arg(report.path()).args(options);
    let (code, out, _) = run(&mut command);
    assert_eq!(code, 0, "{options:?}");
    assert!(out.contains("22/22"), "the table ends with the number of good queries");
    let text = std::fs::read_to_string(report.path()).expect("the report is written");
    serde_json::from_str(&text).expect("the report is JSON")
}

fn queries(report: &Value) -> &Vec<Value> {
    let queries = report["queries"].as_array().expect("queries");
    assert_eq!(queries.len(), 22);
    queries
}

#[test]
fn one_device() {
    let report = all_queries(&tpch_data(), &["--gpus", "1", "--repeat", "2", "--warmup", "1"]);
    for field in ["command", "versions", "machine", "devices", "open_ms", "total_exec_ms_median"] {
        assert!(!report[field].is_null(), "{field}");
    }
    assert!(report.get("driver").is_some());
    for query in queries(&report) {
        for field in [
            "query",
            "engine",
            "rows",
            "prepare_ms",
            "load_ms",
            "exec_ms",
            "exec_ms_median",
            "check",
            "finish_rows",
            "finish_ms",
            "rows_per_device",
            "kernel_launches",
        ] {
            assert!(!query[field].is_null(), "{field} of {query}");
        }
        assert_eq!(query["exec_ms"].as_array().map(Vec::len), Some(2), "{query}");
        assert!(query["fallback"].is_null(), "{query}");
        assert!(query["kernel_launches"].as_u64() > Some(0), "{query}");
    }
}

#[test]
fn two_and_four_devices() {
    for devices in ["2", "4"] {
        let report = all_queries(&tpch_data(), &["--gpus", devices]);
        for query in queries(&report) {
            let rows = query["rows_per_device"].as_array().expect("rows per device");
            assert_eq!(rows.len().to_string(), devices, "{query}");
            assert!(rows.iter().all(|rows| rows.as_u64() > Some(0)), "a device without rows: {query}");
        }
    }
}

#[test]
fn small_row_groups_in_several_files() {
    for devices in ["1", "4"] {
        all_queries(&tpch_small_groups(), &["--gpus", devices]);
    }
}

#[test]
fn streamed_in_small_chunks() {
    all_queries(&tpch_small_groups(), &["--gpus", "2", "--mode", "stream", "--chunk-bytes", "100KB"]);
}

#[test]
fn tables_larger_than_the_memory() {
    let root = kept("data-root");
    for (devices, memory) in [("1", "16MB"), ("2", "16MB"), ("4", "16MB")] {
        let mut command = dkb_run(["--device", "host", "--tpch", "0.1", "--mode", "stream", "--check"]);
        command.arg("--data-root").arg(&root).args(["--fallback", "error", "--gpus", devices]);
        let (code, out, _) = run(command.args(["--device-memory", memory]));
        assert_eq!(code, 0, "{devices} devices with {memory}");
        assert!(out.contains("22/22"), "{devices} devices with {memory}");
    }
}

#[test]
fn sharded_state() {
    all_queries(&tpch_data(), &["--gpus", "2", "--shards", "5"]);
}

#[test]
fn state_large_beside_the_memory() {
    // Build sides are ranked, and columns streamed where they do not fit.
    for (devices, memory) in [("1", "2MB"), ("2", "3MB"), ("4", "4MB")] {
        let options =
            ["--mode", "auto", "--chunk-bytes", "200KB", "--device-memory", memory, "--gpus", devices];
        all_queries(&tpch_small_groups(), &options);
    }
    all_queries(&tpch_data(), &["--gpus", "2", "--shards", "3", "--device-memory", "10MB"]);
}

#[test]
fn plans_written_by_hand() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for from in ["kernels/specialized", "kernels/specialized/candidates"] {
        for entry in std::fs::read_dir(root().join(from)).expect("the folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_owned();
            // A query without a plan of its own runs the generated one.
            if path.extension().is_some_and(|e| e == "plan") && name != "q06.plan" {
                std::fs::copy(&path, folder.path().join(name)).expect("the plan is copied");
            }
        }
    }
    let kernels = folder.path().to_string_lossy();
    let mut command =
        dkb_run(["--device", "host", "--gpus", "2", "--query", "q05,q06", "--kernels", &kernels]);
    let (code, table, _) = run(command.arg("--data").arg(tpch_data()));
    assert!(code == 0 && table.contains("host x2, q05.plan") && table.contains("host x2 "), "{table}");
    for options in [
        &["--gpus", "1", "--repeat", "2"][..],
        &["--devices", "0,0"],
        &["--gpus", "4", "--chunk-bytes", "100KB"],
        &["--gpus", "2", "--shards", "3"],
        &["--gpus", "1", "--mode", "stream", "--chunk-bytes", "50KB"],
        &["--devices", "0,0", "--mode", "stream", "--chunk-bytes", "50KB"],
    ] {
        let report = all_queries(&tpch_data(), &[&["--kernels", &kernels], options].concat());
        for query in queries(&report) {
            let file = format!("{}.plan", query["query"].as_str().expect("a name"));
            let expected = if folder.path().join(&file).exists() { &file } else { "baseline" };
            assert_eq!(query["kernels"], expected, "{query}");
        }
    }
}

/// Whether Python has the packages that write other Parquet; where they must be there, a lack is a failure.
fn has_python_writers() -> bool {
    let found = Command::new("python3").args(["-c", "import pyarrow.parquet, duckdb"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    let required = std::env::var_os("DKB_REQUIRE_PYTHON").is_some();
    assert!(found || !required, "python3 lacks pyarrow or duckdb, and DKB_REQUIRE_PYTHON is set");
    found
}

#[test]
fn files_of_other_writers() {
    if !has_python_writers() {
        println!("skipped: python3 with pyarrow and duckdb is not installed");
        return;
    }
    let out = kept("data-writers");
    let script = root().join("scripts/write_parquet_variants.py");
    let mut command = Command::new("python3");
    let (code, ..) = run(command.arg(script).arg(tpch_data()).arg(&out));
    assert_eq!(code, 0);
    let folders = std::fs::read_dir(&out).expect("the folder").map(|e| e.expect("an entry").path());
    let folders: BTreeSet<_> = folders.collect();
    assert_eq!(folders.len(), 2, "{folders:?}");
    for folder in folders {
        all_queries(&folder, &["--gpus", "2"]);
    }
}
