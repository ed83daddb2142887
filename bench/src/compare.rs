//! Two reports side by side.

use comfy_table::{CellAlignment, Table, presets};

use crate::report::Report;

/// The table of two reports: the median time of each query in both, how often the second time goes into the
/// first, and totals over the queries that have a time in both.
pub fn compare(a: &Report, b: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["query", "A exec ms", "B exec ms", "A / B"]);
    let only_b = b.queries.iter().filter(|query| a.query(&query.query).is_none());
    let names: Vec<&str> = a.queries.iter().chain(only_b).map(|query| query.query.as_str()).collect();
    let (mut total_a, mut total_b, mut counted) = (0.0, 0.0, 0);
    for name in &names {
        let time = |report: &Report| report.query(name).map_or(Err("-"), |query| query.time_ms());
        let times = (time(a), time(b));
        if let (Ok(a), Ok(b)) = times {
            total_a += a;
            total_b += b;
            counted += 1;
        }
        table.add_row(row(name, times.0, times.1));
    }
    if counted > 0 {
        let total = format!("total of {counted}/{}", names.len());
        table.add_row(row(&total, Ok(total_a), Ok(total_b)));
    }
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let nothing = if counted == 0 { "\nNo query has a time in both reports." } else { "" };
    format!("A: {}\nB: {}\n{table}{nothing}", a.conditions(), b.conditions())
}

fn row(name: &str, a: Result<f64, &str>, b: Result<f64, &str>) -> [String; 4] {
    let text = |time: Result<f64, &str>| time.map_or_else(str::to_owned, |ms| format!("{ms:.2}"));
    let ratio = match (a, b) {
        (Ok(a), Ok(b)) if b > 0.0 => format!("{:.2}", a / b),
        _ => "-".to_owned(),
    };
    [name.to_owned(), text(a), text(b), ratio]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const A: &str = r#"{
        "devices": [{ "name": "host:0", "model": "a processor", "versions": "a compiler" }],
        "data": "sf1", "scale_factor": 1.0, "mode": "resident", "repeat": 3, "queries": [
            { "query": "q01", "check": "passed", "exec_ms_median": 30.0, "fallback": null },
            { "query": "q02", "check": "none", "exec_ms_median": 4.0, "fallback": null },
            { "query": "q03", "check": "failed", "error": "out of memory" },
            { "query": "q04", "check": "failed", "exec_ms_median": 5.0, "fallback": null }
        ]
    }"#;
    const B: &str = r#"{
        "devices": [{ "name": "cuda:0", "model": "a GPU" }, { "name": "cuda:1", "model": "a GPU" }],
        "data": "sf1", "scale_factor": null, "mode": "stream", "repeat": 1, "queries": [
            { "query": "q02", "check": "none", "exec_ms_median": 8.0, "fallback": null },
            { "query": "q01", "check": "passed", "exec_ms_median": 10.0, "fallback": null },
            { "query": "q05", "check": "none", "exec_ms_median": 1.0, "fallback": "window functions" }
        ]
    }"#;

    fn report(text: &str) -> Report {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn queries_are_matched_by_name_and_only_good_times_count() {
        let text = compare(&report(A), &report(B));
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with('│'))
            .map(|line| line.trim_matches('│').split('┆').map(str::trim).collect())
            .collect();
        assert_eq!(
            rows,
            [
                ["query", "A exec ms", "B exec ms", "A / B"],
                ["q01", "30.00", "10.00", "3.00"],
                ["q02", "4.00", "8.00", "0.50"],
                ["q03", "error", "-", "-"],
                ["q04", "wrong", "-", "-"],
                ["q05", "-", "fallback", "-"],
                ["total of 2/5", "34.00", "18.00", "1.89"],
            ]
        );
        let a = "A: sf1 (scale factor 1), host x1 (a processor), resident, 3 timed runs a query\n";
        assert!(text.starts_with(a), "{text}");
        assert!(text.contains("B: sf1, cuda x2 (a GPU), stream, 1 timed run a query\n"), "{text}");
    }

    #[test]
    fn bad_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = |name: &str, text: Option<&str>| {
            let path = dir.path().join(name);
            if let Some(text) = text {
                fs::write(&path, text).unwrap();
            }
            format!("{:#}", Report::read(&path).unwrap_err())
        };
        let none = B.split_once("\"queries\"").unwrap().0.to_owned() + "\"queries\": [] }";
        for (name, text, what) in [
            ("absent.json", None, "cannot read"),
            ("text.json", Some("query,ms\n"), "is no report of dkb-run: expected value"),
            ("other.json", Some("{}"), "is no report of dkb-run: missing field `devices`"),
            ("empty.json", Some(none.as_str()), "is a report without queries"),
        ] {
            let message = error(name, text);
            assert!(message.contains(name) && message.contains(what), "{message}");
        }
    }
}
