//! How far each query's time is from what the hardware allows.
//!
//! A floor is bytes over bandwidth: those that the query must read over that of the devices' memory, as the report
//! measured it; or, where a run copied columns to the devices, the copied bytes over that of the links.

use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets};

use crate::report::{Query, Report};

/// How many queries the last line names.
const WORST: usize = 3;

/// A report's queries beside their floors.
#[derive(Debug)]
pub struct Floors<'a> {
    pub(crate) report: &'a Report,
    /// Gigabytes a second over all links together.
    links_gb_per_s: f64,
    /// In the order of the report.
    pub(crate) rows: Vec<Row<'a>>,
}

/// One query.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) query: &'a Query,
    /// Its times, or in one word why there are none.
    pub(crate) times: Result<Times, &'static str>,
}

/// What a query took, and what it had to take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) exec_ms: f64,
    pub(crate) floor_ms: f64,
    /// Whether the links set the floor.
    by_links: bool,
}

impl Times {
    fn over_ms(&self) -> f64 {
        self.exec_ms - self.floor_ms
    }

    /// How many times the floor, as text.
    pub(crate) fn ratio(&self) -> String {
        ratio(self.exec_ms, self.floor_ms)
    }
}

impl<'a> Floors<'a> {
    /// The floors of a report's queries, with `link_gb_per_s` gigabytes a second from the host to each device.
    ///
    /// # Errors
    /// The report lacks bytes or the bandwidth, and how to make one that has them.
    pub fn new(report: &'a Report, link_gb_per_s: f64) -> Result<Floors<'a>> {
        // Logical devices, such as `cuda:0/1`, share the link of their GPU.
        let mut links: Vec<&str> =
            report.devices.iter().filter_map(|device| device.name.split('/').next()).collect();
        links.sort_unstable();
        links.dedup();
        let links_gb_per_s = link_gb_per_s * links.len().max(1) as f64;
        let mut rows = Vec::new();
        for query in &report.queries {
            let times = match query.time_ms() {
                Ok(exec_ms) => Ok(times(report, query, exec_ms, links_gb_per_s)?),
                Err(word) => Err(word),
            };
            rows.push(Row { query, times });
        }
        Ok(Floors { report, links_gb_per_s, rows })
    }

    fn timed(&self) -> impl Iterator<Item = (&'a Query, Times)> + '_ {
        self.rows.iter().filter_map(|row| Some((row.query, row.times.ok()?)))
    }

    /// What the floors are, a line for each kind that occurs.
    pub(crate) fn kinds(&self) -> Vec<String> {
        let occurs = |by_links| self.timed().any(|(_, times)| times.by_links == by_links);
        let mut kinds = Vec::new();
        if let Some(gb_per_s) = self.report.device_gb_per_s.filter(|_| occurs(false)) {
            kinds.push(format!("must-read bytes at {gb_per_s:.1} GB/s, measured in device memory"));
        }
        if occurs(true) {
            kinds.push(format!("copied bytes at {:.1} GB/s, given for the links", self.links_gb_per_s));
        }
        kinds
    }

    /// The table, and which queries lose most over their floors.
    pub fn table(&self) -> String {
        let copies = self.timed().any(|(_, times)| times.by_links);
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let mut add = |cells: [String; 9]| {
            let shown = cells.into_iter().enumerate().filter(|(at, _)| copies || *at != COPIED);
            table.add_row(shown.map(|(_, cell)| cell));
        };
        let mut total = Sums::default();
        let mut counted = 0;
        for Row { query, times } in &self.rows {
            let name = query.query.clone();
            match times {
                Ok(times) => {
                    let sums = Sums::of(query, times);
                    add(sums.cells(name));
                    total.add(&sums);
                    counted += 1;
                }
                Err(word) => {
                    let none = || "-".to_owned();
                    add([name, (*word).to_owned(), none(), none(), none(), none(), none(), none(), none()]);
                }
            }
        }
        if counted > 0 {
            add(total.cells(format!("total of {counted}/{}", self.rows.len())));
        }
        let shown = HEADER.iter().enumerate().filter(|(at, _)| copies || *at != COPIED);
        table.set_header(shown.map(|(_, title)| *title));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let kinds = self.kinds().iter().map(|kind| format!("floor: {kind}\n")).collect::<String>();
        format!("{}\n{kinds}{table}\n{}", self.report.conditions(), self.worst())
    }

    fn worst(&self) -> String {
        let mut timed: Vec<(&Query, Times)> = self.timed().collect();
        timed.sort_by(|(_, a), (_, b)| b.over_ms().total_cmp(&a.over_ms()));
        let worst = timed.iter().take(WORST);
        let texts: Vec<String> =
            worst.map(|(query, times)| format!("{} {} ms", query.query, ms(times.over_ms()))).collect();
        match texts.is_empty() {
            true => "No query has a time.".to_owned(),
            false => format!("most over the floor: {}", texts.join(", ")),
        }
    }
}

fn times(report: &Report, query: &Query, exec_ms: f64, links_gb_per_s: f64) -> Result<Times> {
    const AGAIN: &str = "make the report again with `--report` of a dkb-run of this version";
    let Some(floor_bytes) = query.floor_bytes else {
        bail!("query {} has no `floor_bytes`: {AGAIN}", query.query);
    };
    // Where columns are resident, loading was before the clock started.
    let copied_bytes = query.copied_bytes.filter(|bytes| *bytes > 0 && report.mode != "resident");
    let (bytes, gb_per_s) = match (copied_bytes, report.device_gb_per_s) {
        (Some(bytes), _) => (bytes, links_gb_per_s),
        (None, Some(gb_per_s)) => (floor_bytes, gb_per_s),
        (None, None) => {
            bail!("there is no `device_gb_per_s`: {AGAIN}, and more --device-memory if it is null")
        }
    };
    Ok(Times { exec_ms, floor_ms: bytes as f64 / gb_per_s / 1e6, by_links: copied_bytes.is_some() })
}

const HEADER: [&str; 9] = [
    "query",
    "exec ms",
    "must-read MB",
    "did-read MB",
    "copied MB",
    "floor ms",
    "exec / floor",
    "launches",
    "finish ms",
];
/// The column that is shown only where something was copied.
const COPIED: usize = 4;

/// The figures of one query, or of several together.
#[derive(Default)]
struct Sums {
    exec_ms: f64,
    floor_ms: f64,
    finish_ms: f64,
    floor_bytes: u64,
    kernel_bytes: u64,
    copied_bytes: u64,
    launches: u64,
}

impl Sums {
    fn of(query: &Query, times: &Times) -> Sums {
        Sums {
            exec_ms: times.exec_ms,
            floor_ms: times.floor_ms,
            finish_ms: query.finish_ms.unwrap_or(0.0),
            floor_bytes: query.floor_bytes.unwrap_or(0),
            kernel_bytes: query.kernel_bytes.unwrap_or(0),
            copied_bytes: query.copied_bytes.filter(|_| times.by_links).unwrap_or(0),
            launches: query.kernel_launches.unwrap_or(0),
        }
    }

    fn add(&mut self, more: &Sums) {
        self.exec_ms += more.exec_ms;
        self.floor_ms += more.floor_ms;
        self.finish_ms += more.finish_ms;
        self.floor_bytes += more.floor_bytes;
        self.kernel_bytes += more.kernel_bytes;
        self.copied_bytes += more.copied_bytes;
        self.launches += more.launches;
    }

    fn cells(&self, name: String) -> [String; 9] {
        [
            name,
            ms(self.exec_ms),
            mb(self.floor_bytes),
            mb(self.kernel_bytes),
            mb(self.copied_bytes),
            ms(self.floor_ms),
            ratio(self.exec_ms, self.floor_ms),
            self.launches.to_string(),
            ms(self.finish_ms),
        ]
    }
}

/// Floors and small queries take microseconds.
fn ms(value: f64) -> String {
    if value < 1.0 { format!("{value:.3}") } else { format!("{value:.2}") }
}

fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn ratio(exec_ms: f64, floor_ms: f64) -> String {
    match floor_ms > 0.0 {
        true => format!("{:.1}", exec_ms / floor_ms),
        false => "-".to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const RESIDENT: &str = r#"{
        "devices": [{ "name": "cuda:0", "model": "a GPU" }],
        "data": "a<b", "scale_factor": 10.0, "mode": "resident", "repeat": 3, "device_gb_per_s": 4000.0,
        "queries": [
            { "query": "q01", "check": "passed", "exec_ms_median": 1.2, "finish_ms": 0.01, "copied_bytes": 5,
              "floor_bytes": 400000000, "kernel_bytes": 440000000, "kernel_launches": 2 },
            { "query": "q02", "check": "none", "exec_ms_median": 3.0, "finish_ms": 0.5, "copied_bytes": 0,
              "floor_bytes": 40000000, "kernel_bytes": 80000000, "kernel_launches": 9 },
            { "query": "q03", "check": "failed", "error": "out of memory" },
            { "query": "q04", "check": "none", "exec_ms_median": 0.02, "finish_ms": 0.0, "copied_bytes": 0,
              "floor_bytes": 0, "kernel_bytes": 0, "kernel_launches": 1 },
            { "query": "q05", "check": "none", "exec_ms_median": 0.2, "finish_ms": 0.0, "copied_bytes": 0,
              "floor_bytes": 400000000, "kernel_bytes": 400000000, "kernel_launches": 1 }
        ]
    }"#;

    pub(crate) fn report(text: &str) -> Report {
        serde_json::from_str(text).unwrap()
    }

    fn rows(table: &str) -> Vec<Vec<&str>> {
        let lines = table.lines().filter(|line| line.starts_with('│'));
        lines.map(|line| line.trim_matches('│').split('┆').map(str::trim).collect()).collect()
    }

    #[test]
    fn resident_queries_are_beside_the_memory_they_must_read() {
        let report = report(RESIDENT);
        let text = Floors::new(&report, 55.0).unwrap().table();
        assert_eq!(
            rows(&text),
            [
                [
                    "query",
                    "exec ms",
                    "must-read MB",
                    "did-read MB",
                    "floor ms",
                    "exec / floor",
                    "launches",
                    "finish ms"
                ],
                ["q01", "1.20", "400.0", "440.0", "0.100", "12.0", "2", "0.010"],
                ["q02", "3.00", "40.0", "80.0", "0.010", "300.0", "9", "0.500"],
                ["q03", "error", "-", "-", "-", "-", "-", "-"],
                ["q04", "0.020", "0.0", "0.0", "0.000", "-", "1", "0.000"],
                ["q05", "0.200", "400.0", "400.0", "0.100", "2.0", "1", "0.000"],
                ["total of 4/5", "4.42", "840.0", "920.0", "0.210", "21.0", "13", "0.510"],
            ]
        );
        assert!(
            text.contains("\nfloor: must-read bytes at 4000.0 GB/s, measured in device memory\n"),
            "{text}"
        );
        assert_eq!(text.lines().last(), Some("most over the floor: q02 2.99 ms, q01 1.10 ms, q05 0.100 ms"));
    }

    #[test]
    fn streamed_queries_are_beside_the_links() {
        let devices = r#"{ "name": "cuda:0/0", "model": "a GPU" }, { "name": "cuda:0/1", "model": "a GPU" },
            { "name": "cuda:1", "model": "a GPU" }"#;
        let text = RESIDENT.replace(r#"{ "name": "cuda:0", "model": "a GPU" }"#, devices);
        let text =
            text.replace("resident", "stream").replace("\"copied_bytes\": 5", "\"copied_bytes\": 50000000");
        let report = report(&text);
        let text = Floors::new(&report, 25.0).unwrap().table();
        let rows = rows(&text);
        assert_eq!(rows[0][4], "copied MB");
        // Two GPUs have a link each.
        assert_eq!(rows[1], ["q01", "1.20", "400.0", "440.0", "50.0", "1.00", "1.2", "2", "0.010"]);
        assert_eq!(rows[2][4..6], ["0.0", "0.010"]);
        assert!(text.contains("\nfloor: copied bytes at 50.0 GB/s, given for the links\n"), "{text}");
    }

    #[test]
    fn reports_that_lack_something_say_what_to_do() {
        let error = |text: &str| Floors::new(&report(text), 55.0).unwrap_err().to_string();
        let message = error(&RESIDENT.replace("floor_bytes", "other"));
        assert!(message.contains("q01") && message.contains("make the report again"), "{message}");
        let message = error(&RESIDENT.replace("4000.0", "null"));
        assert!(message.contains("device_gb_per_s") && message.contains("--device-memory"), "{message}");
    }
}
