//! The trace of a whole invocation, for Perfetto and chrome://tracing: an array of events, times in
//! microseconds. A process is a device, a thread one of its stages; queries are in a process before them.
//!
//! Invariant: spans of one thread never overlap. A stage with several loads under way has as many threads.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::protocol::DeviceInfo;
use crate::trace::{Span, Stage};

/// One query, as the trace shows it.
pub(super) struct QuerySpans {
    /// The query's name.
    pub(super) query: String,
    /// When the parent asked for it, by [`now_ms`](crate::trace::now_ms).
    pub(super) start_ms: f64,
    /// When it had the answer, or the failure.
    pub(super) end_ms: f64,
    /// Names of the devices by number.
    pub(super) devices: Vec<String>,
    /// What ran on them.
    pub(super) spans: Vec<Span>,
}

impl QuerySpans {
    /// A query that ended just now.
    pub(super) fn new(query: &str, start_ms: f64, devices: &[DeviceInfo], spans: Vec<Span>) -> QuerySpans {
        let devices = devices.iter().map(|device| device.name.clone()).collect();
        QuerySpans { query: query.to_owned(), start_ms, end_ms: crate::trace::now_ms(), devices, spans }
    }
}

/// Threads of a stage, at most, for their numbers.
const LANES: usize = 1000;

/// The events of all queries.
pub(super) fn events(queries: &[QuerySpans]) -> Vec<Value> {
    let starts = queries.iter().flat_map(|q| q.spans.iter().map(|s| s.start_ms).chain([q.start_ms]));
    let origin_ms = starts.fold(f64::INFINITY, f64::min);
    let mut devices: Vec<&String> = Vec::new();
    let mut lanes: BTreeMap<(usize, Stage), Vec<(&str, &Span)>> = BTreeMap::new();
    for query in queries {
        for span in &query.spans {
            let Some(name) = query.devices.get(span.device) else { continue };
            let known = devices.iter().position(|device| *device == name);
            let device = known.unwrap_or(devices.len());
            if known.is_none() {
                devices.push(name);
            }
            lanes.entry((device, span.stage)).or_default().push((&query.query, span));
        }
    }
    let event = |name: &str, process: usize, thread: usize, start_ms: f64, end_ms: f64, args: Value| {
        let (ts, dur) = ((start_ms - origin_ms) * 1e3, (end_ms - start_ms).max(0.0) * 1e3);
        json!({ "name": name, "ph": "X", "pid": process, "tid": thread, "ts": ts, "dur": dur, "args": args })
    };
    let mut events = vec![named("process_name", 0, 0, "queries")];
    events.extend(queries.iter().map(|q| event(&q.query, 0, 0, q.start_ms, q.end_ms, json!({}))));
    for (device, name) in devices.iter().enumerate() {
        events.push(named("process_name", device + 1, 0, name));
    }
    for ((device, stage), mut spans) in lanes {
        spans.sort_by(|(_, a), (_, b)| a.start_ms.total_cmp(&b.start_ms));
        let mut ends: Vec<f64> = Vec::new();
        for (query, span) in spans {
            let free = ends.iter().position(|end| *end <= span.start_ms);
            let lane = free.unwrap_or(ends.len());
            let thread = stage as usize * LANES + lane;
            match free {
                Some(lane) => ends[lane] = span.end_ms,
                None => {
                    ends.push(span.end_ms);
                    let nth = if lane == 0 { String::new() } else { format!(" {}", lane + 1) };
                    let name = format!("{}{nth}", stage.name());
                    events.push(named("thread_name", device + 1, thread, &name));
                }
            }
            let args = json!({ "query": query, "bytes": span.bytes });
            events.push(event(&span.name, device + 1, thread, span.start_ms, span.end_ms, args));
        }
    }
    events
}

/// The name of a process or thread.
fn named(what: &str, process: usize, thread: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": process, "tid": thread, "args": { "name": name } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_spans_have_lanes_of_their_own() {
        let span = |device, start_ms, end_ms| Span {
            device,
            stage: Stage::Copy,
            name: "lineitem".into(),
            start_ms,
            end_ms,
            bytes: 5,
        };
        let query = QuerySpans {
            query: "q01".into(),
            start_ms: 1000.0,
            end_ms: 1010.0,
            devices: vec!["host:0".into(), "host:1".into()],
            spans: vec![span(1, 1001.0, 1004.0), span(1, 1002.0, 1003.0), span(1, 1004.0, 1005.0)],
        };
        let events = events(&[query]);
        let of = |phase: &str| events.iter().filter(|e| e["ph"] == phase).collect::<Vec<_>>();
        let names: Vec<&Value> = of("M").iter().map(|e| &e["args"]["name"]).collect();
        assert_eq!(names, ["queries", "host:1", "copy", "copy 2"]);
        let spans = of("X");
        assert_eq!(
            (&spans[0]["name"], &spans[0]["pid"], &spans[0]["dur"]),
            (&json!("q01"), &json!(0), &json!(10e3))
        );
        let lanes: Vec<u64> = spans[1..].iter().filter_map(|e| e["tid"].as_u64()).collect();
        assert_eq!(lanes, [1000, 1001, 1000]);
        assert_eq!((&spans[1]["ts"], &spans[1]["args"]["bytes"]), (&json!(1e3), &json!(5)));
    }
}
