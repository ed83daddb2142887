//! What ran when: spans of work, for reports and traces.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Milliseconds by the machine's monotonic clock, which all processes share.
pub fn now_ms() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one local value. The clock exists on every Linux, so that the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

/// What a span of work was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The host's share of loading: file bytes into host memory, and what it decompresses and decodes.
    Read,
    /// Host memory to the device.
    Copy,
    /// Codecs on the device.
    Decompress,
    /// Pages to columns on the device.
    Decode,
    /// A plan's kernel.
    Kernel,
    /// Devices' buffers becoming one.
    Exchange,
    /// The host's share of the result.
    Finish,
}

impl Stage {
    /// All of them, in the order of the work.
    pub const ALL: [Stage; 7] = [
        Stage::Read,
        Stage::Copy,
        Stage::Decompress,
        Stage::Decode,
        Stage::Kernel,
        Stage::Exchange,
        Stage::Finish,
    ];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Read => "read",
            Stage::Copy => "copy",
            Stage::Decompress => "decompress",
            Stage::Decode => "decode",
            Stage::Kernel => "kernel",
            Stage::Exchange => "exchange",
            Stage::Finish => "finish",
        }
    }
}

/// One stretch of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Number of the device.
    pub device: usize,
    /// What it was.
    pub stage: Stage,
    /// Of what: a table, `PHASE: KERNEL`, a phase.
    pub name: String,
    /// When it began, by [`now_ms`].
    pub start_ms: f64,
    /// When it ended.
    pub end_ms: f64,
    /// Bytes moved or made; 0 if that means nothing here.
    pub bytes: u64,
}

/// What a device has loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Loaded {
    /// Bytes of files.
    pub bytes: u64,
    /// Rows, each counted as often as a load brought columns of it.
    pub rows: u64,
}

/// Spans as they are recorded.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    spans: Mutex<Vec<Span>>,
    /// By device, since the session began.
    loaded: Mutex<Vec<Loaded>>,
}

impl Timeline {
    pub(crate) fn record(&self, span: Span) {
        lock(&self.spans).push(span);
    }

    /// All spans recorded since the last call.
    pub(crate) fn take(&self) -> Vec<Span> {
        std::mem::take(&mut *lock(&self.spans))
    }

    /// Counts what a device has loaded.
    pub(crate) fn count(&self, device: usize, bytes: u64, rows: u64) {
        let mut loaded = lock(&self.loaded);
        if loaded.len() <= device {
            loaded.resize(device + 1, Loaded::default());
        }
        loaded[device].bytes += bytes;
        loaded[device].rows += rows;
    }

    /// What each device has loaded since the session began; devices without a load may be missing at the end.
    pub(crate) fn loaded(&self) -> Vec<Loaded> {
        lock(&self.loaded).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one device did in one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageSum {
    /// Number of the device.
    pub device: usize,
    /// The stage.
    pub stage: Stage,
    /// Milliseconds during which it was under way.
    pub busy_ms: f64,
    /// Bytes moved or made.
    pub bytes: u64,
    /// Gigabytes (1e9 bytes) a second while it was under way; 0 without bytes.
    pub gb_per_s: f64,
}

/// Sums by device and stage, in that order.
pub fn stages(spans: &[Span]) -> Vec<StageSum> {
    let mut groups: BTreeMap<(usize, Stage), Vec<&Span>> = BTreeMap::new();
    for span in spans {
        groups.entry((span.device, span.stage)).or_default().push(span);
    }
    let sum = |((device, stage), spans): ((usize, Stage), Vec<&Span>)| {
        let busy_ms = busy_ms(spans.iter().copied());
        let bytes = spans.iter().map(|s| s.bytes).sum();
        let gb_per_s = if busy_ms > 0.0 { bytes as f64 / busy_ms / 1e6 } else { 0.0 };
        StageSum { device, stage, busy_ms, bytes, gb_per_s }
    };
    groups.into_iter().map(sum).collect()
}

/// Milliseconds during which at least one of the spans was under way.
pub fn busy_ms<'a>(spans: impl Iterator<Item = &'a Span>) -> f64 {
    let mut ranges: Vec<(f64, f64)> = spans.map(|s| (s.start_ms, s.end_ms)).collect();
    ranges.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut busy, mut reached) = (0.0, f64::NEG_INFINITY);
    for (start, end) in ranges {
        busy += (end - start.max(reached)).max(0.0);
        reached = reached.max(end);
    }
    busy
}

/// Milliseconds during which the kernels and the exchange of each phase were under way, by the phase's name: those of
/// the device on which it took longest.
pub fn phases(spans: &[Span]) -> BTreeMap<String, f64> {
    let mut groups: BTreeMap<(&str, usize), Vec<&Span>> = BTreeMap::new();
    for span in spans.iter().filter(|s| matches!(s.stage, Stage::Kernel | Stage::Exchange)) {
        let phase = span.name.split(": ").next().unwrap_or_default();
        groups.entry((phase, span.device)).or_default().push(span);
    }
    let mut phases: BTreeMap<String, f64> = BTreeMap::new();
    for ((phase, _), spans) in groups {
        let longest = phases.entry(phase.to_owned()).or_default();
        *longest = longest.max(busy_ms(spans.into_iter()));
    }
    phases
}

/// The middle sample, or the mean of the two in the middle; None without any.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[sorted.len() / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(stage: Stage, start_ms: f64, end_ms: f64, bytes: u64) -> Span {
        Span { device: 0, stage, name: String::new(), start_ms, end_ms, bytes }
    }

    #[test]
    fn overlapping_spans_count_once() {
        let span = |start_ms, end_ms| span(Stage::Copy, start_ms, end_ms, 0);
        let spans = [span(5.0, 6.0), span(0.0, 2.0), span(1.0, 3.0), span(1.5, 2.5)];
        assert_eq!(busy_ms(spans.iter()), 4.0);
        assert_eq!(busy_ms([].iter()), 0.0);
    }

    #[test]
    fn phases_are_those_of_their_slowest_device() {
        let span = |device, stage, name: &str, end_ms| Span {
            device,
            name: name.to_owned(),
            ..span(stage, 1.0, end_ms, 0)
        };
        let spans = [
            span(0, Stage::Kernel, "scan: add", 3.0),
            span(1, Stage::Kernel, "scan: add", 4.0),
            span(0, Stage::Exchange, "scan", 6.0),
            span(0, Stage::Kernel, "look: look", 2.0),
            span(0, Stage::Finish, "finish", 9.0),
        ];
        assert_eq!(phases(&spans), [("look".to_owned(), 1.0), ("scan".to_owned(), 5.0)].into());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn stages_are_summed_by_device() {
        let other = Span { device: 1, ..span(Stage::Read, 0.0, 1.0, 0) };
        let spans = [
            other,
            span(Stage::Copy, 0.0, 2.0, 4_000_000),
            span(Stage::Copy, 1.0, 2.0, 4_000_000),
            span(Stage::Read, 0.0, 1.0, 7),
        ];
        let sums = stages(&spans);
        let keys: Vec<_> = sums.iter().map(|s| (s.device, s.stage)).collect();
        assert_eq!(keys, [(0, Stage::Read), (0, Stage::Copy), (1, Stage::Read)]);
        assert_eq!((sums[1].busy_ms, sums[1].bytes, sums[1].gb_per_s), (2.0, 8_000_000, 4.0));
    }

    #[test]
    fn timelines_are_emptied_and_counters_kept() {
        let timeline = Timeline::default();
        timeline.record(span(Stage::Read, 0.0, 1.0, 0));
        assert_eq!((timeline.take().len(), timeline.take().len()), (1, 0));
        timeline.count(1, 10, 2);
        timeline.count(1, 10, 2);
        assert_eq!(timeline.loaded(), [Loaded::default(), Loaded { bytes: 20, rows: 4 }]);
    }
}
