//! Every capacity forced too small: the runs repeat with larger ones, and the answers stay the same.

use dkb_tests::{answers, dkb_run, run, tpch_data};
use serde_json::Value;

#[test]
fn tiny_sizes_cost_reruns_and_no_answers() {
    for devices in ["1", "4"] {
        let report = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut command = dkb_run(["--device", "host", "--fallback", "error", "--shrink", "1000000000"]);
        command.args(["--gpus", devices]).arg("--data").arg(tpch_data());
        command.arg("--answers").arg(answers("sf0.01")).arg("--report").arg(report.path());
        let (code, ..) = run(&mut command);
        assert_eq!(code, 0, "on {devices} devices");
        let text = std::fs::read_to_string(report.path()).expect("the report is written");
        let report: Value = serde_json::from_str(&text).expect("the report is JSON");
        let queries = report["queries"].as_array().expect("queries");
        let rerun = queries.iter().filter(|query| query["reruns"].as_u64() > Some(0)).count();
        assert!(rerun > queries.len() / 2, "only {rerun} queries ran again");
    }
}

#[test]
fn enough_room_costs_no_reruns() {
    let report = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = dkb_run(["--device", "host", "--fallback", "error", "--query", "q01,q03,q06"]);
    command.arg("--data").arg(tpch_data()).arg("--report").arg(report.path());
    assert_eq!(run(&mut command).0, 0);
    let text = std::fs::read_to_string(report.path()).expect("the report is written");
    let report: Value = serde_json::from_str(&text).expect("the report is JSON");
    for query in report["queries"].as_array().expect("queries") {
        assert_eq!(query["reruns"], 0, "{query}");
    }
}
