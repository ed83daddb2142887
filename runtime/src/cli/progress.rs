//! The line on standard error that says what is going on; nothing where that is no terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::protocol::Reply;
use crate::trace::Loaded;

/// Whether anybody sees progress.
pub(super) fn is_watched() -> bool {
    std::io::stderr().is_terminal()
}

/// The line, for one query after another.
pub(super) struct Progress {
    bar: ProgressBar,
    query: String,
    phase: String,
    /// What was loaded when the worker last said so, and when that was, in milliseconds since the query began.
    last: (Vec<Loaded>, f64),
}

impl Progress {
    /// A line for so many queries; one by itself has no bar.
    pub(super) fn new(queries: usize) -> Progress {
        let bar = match queries {
            1 => ProgressBar::new_spinner(),
            _ => ProgressBar::new(queries as u64),
        };
        let template = match queries {
            1 => "{spinner} {wide_msg}",
            _ => "{bar:24} {pos}/{len} {elapsed} {wide_msg}",
        };
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress { bar, query: String::new(), phase: String::new(), last: Default::default() }
    }

    /// What is said next is about this query.
    pub(super) fn begin(&mut self, query: &str) {
        query.clone_into(&mut self.query);
        self.last = Default::default();
        self.bar.set_message(self.query.clone());
    }

    /// Shows what the worker says.
    pub(super) fn hear(&mut self, reply: &Reply) {
        match reply {
            Reply::Phase { name } => self.say(name),
            Reply::Progress { loaded, elapsed_ms } => {
                let rates = rates(loaded, *elapsed_ms, &self.last);
                self.last = (loaded.clone(), *elapsed_ms);
                self.bar.set_message(format!("{}: {}, {rates}", self.query, self.phase));
            }
            _ => {}
        }
    }

    /// Shows what is being done for the query.
    pub(super) fn say(&mut self, phase: &str) {
        phase.clone_into(&mut self.phase);
        self.bar.set_message(format!("{}: {phase}", self.query));
    }

    /// The query is done with.
    pub(super) fn end(&self) {
        self.bar.inc(1);
    }

    /// Removes the line.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// What each device has loaded, one after the other, and how fast since `last`.
fn rates(loaded: &[Loaded], elapsed_ms: f64, last: &(Vec<Loaded>, f64)) -> String {
    let of = |digits: usize, value: &dyn Fn(usize, &Loaded) -> f64| {
        let values = loaded.iter().enumerate().map(|(device, l)| format!("{:.digits$}", value(device, l)));
        values.collect::<Vec<_>>().join("+")
    };
    let (before, since_ms) = (&last.0, (elapsed_ms - last.1).max(1.0));
    let bytes_before = |device: usize| before.get(device).map_or(0, |l| l.bytes);
    format!(
        "GB {}, million rows {}, GB/s {}",
        of(2, &|_, l| l.bytes as f64 / 1e9),
        of(1, &|_, l| l.rows as f64 / 1e6),
        of(1, &|device, l| (l.bytes - bytes_before(device)) as f64 / 1e6 / since_ms),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_stand_side_by_side() {
        let loaded = |gigabytes: u64, rows| Loaded { bytes: gigabytes * 1_000_000_000, rows };
        let now = [loaded(12, 56_000_000), loaded(10, 0)];
        let text = rates(&now, 500.0, &(vec![loaded(2, 1)], 300.0));
        assert_eq!(text, "GB 12.00+10.00, million rows 56.0+0.0, GB/s 50.0+50.0");
    }
}
