//! Spans of work on devices: marked while a run is issued, read when it has ended.

use std::sync::{Mutex, PoisonError};

use super::Error;
use super::program::Slot;
use super::schedule::Worker;
use super::traffic::Given;
use crate::device::Mark;
use crate::trace::{Span, Stage, Timeline};

/// The spans of one run.
#[derive(Default)]
pub(crate) struct Marks(Mutex<Vec<Marked>>);

struct Marked {
    device: usize,
    stage: Stage,
    name: String,
    moves: Moves,
    start: Box<dyn Mark>,
    end: Box<dyn Mark>,
}

/// What work moves, as far as it is known when it is issued.
#[derive(Clone, Default)]
pub(crate) struct Moves {
    /// Bytes of columns.
    pub(crate) column_bytes: u64,
    /// All arguments of a launch.
    pub(crate) slots: Vec<Slot>,
}

impl Marks {
    /// Does `work`, whose span on the devices of `workers` is marked under that name.
    ///
    /// # Errors
    /// A failed device call, and those of `work`.
    pub(crate) fn around<T>(
        &self,
        stage: Stage,
        name: &str,
        moves: Moves,
        workers: &[Worker],
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let starts = workers.iter().map(|w| w.device.mark()).collect::<Result<Vec<_>, _>>()?;
        let done = work()?;
        for (worker, start) in workers.iter().zip(starts) {
            let end = worker.device.mark()?;
            let (device, name, moves) = (worker.number, name.to_owned(), moves.clone());
            let marked = Marked { device, stage, name, moves, start, end };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(marked);
        }
        Ok(done)
    }

    /// Records the spans so far, which all devices have finished. `given` knows what is known only then.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn record(&self, timeline: &Timeline, given: &Given<'_>) -> Result<(), Error> {
        let marked = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for Marked { device, stage, name, moves, start, end } in marked {
            let (start_ms, end_ms) = (start.ms()?, end.ms()?);
            let bytes = moves.column_bytes + given.in_launch(&moves.slots);
            timeline.record(Span { device, stage, name, start_ms, end_ms, bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod unit_tests {
    use dkb_kernels::text;

    use super::super::tests::{data, plan};
    use crate::device::{DeviceKind, DeviceSpec};
    use crate::session::{Execution, Session, SessionConfig};
    use crate::trace::{Span, Stage};

    const HEADER: &str = r#"
[inputs.t]
k = "int64 as i16"
[sizes]
one = { value = "1" }
[[buffers]]
name = "total"
type = "i64"
len = "one"
start = "zero"
reduce = "sum"
[[phases]]
name = "scan"
over = "t"
on = "partitions"
writes = ["total"]
launches = [{ kernel = "add", threads = "rows", args = ["rows", "t.k", "total"] }]
[[phases]]
name = "look"
on = "each"
writes = []
launches = [{ kernel = "look", threads = "1", args = ["total"] }]
[result]
size = "one"
columns = [{ name = "total", type = "int64", from = "total" }]
"#;

    const SOURCE: &str = r#"
extern "C" __global__ void add(u64 rows, const i16* k, i64* total) {
  i64 sum = 0;
  DKB_ROWS(i, rows) sum += k[i];
  block_add(total, sum);
}
extern "C" __global__ void look(i64*) {}
"#;

    fn run(source: &str, trace: bool, apart: bool) -> Result<Execution, crate::exec::Error> {
        let dir = data();
        let spec = DeviceSpec { gpus: Some(2), ..DeviceSpec::default() };
        let config = SessionConfig { kind: DeviceKind::Host, spec, trace, ..SessionConfig::default() };
        let session = Session::open(dir.path(), config).unwrap();
        let mut prepared = session.prepare_plan(text::parse(&plan(HEADER, source)).unwrap()).unwrap();
        session.load(&mut prepared).unwrap();
        assert!(prepared.load_spans().iter().any(|span| span.stage == Stage::Decode && span.bytes > 0));
        if apart { session.execute_apart(&mut prepared, &[]) } else { session.execute(&mut prepared, &[]) }
    }

    #[test]
    fn kernels_and_exchanges_are_recorded_where_wanted() {
        for (trace, apart) in [(true, false), (false, true)] {
            are_recorded(run(SOURCE, trace, apart).unwrap());
        }
        let plain = run(SOURCE, false, false).unwrap().spans;
        assert!(plain.iter().all(|span| span.stage == Stage::Finish), "{plain:?}");
    }

    fn are_recorded(execution: Execution) {
        let Execution { mut spans, kernel_bytes, .. } = execution;
        spans.sort_by_key(|span| (span.device, span.stage));
        let found: Vec<_> = spans.iter().map(|s| (s.device, s.stage.name(), s.name.as_str())).collect();
        let of = |device| {
            [(device, "kernel", "scan: add"), (device, "kernel", "look: look"), (device, "exchange", "scan")]
        };
        let finish = [(0, "finish", "finish")];
        assert_eq!(found, [&of(0)[..], &finish, &of(1)].concat());
        assert!(spans.iter().all(|Span { start_ms, end_ms, .. }| start_ms <= end_ms));
        let kernels = spans.iter().filter(|s| s.stage == Stage::Kernel);
        assert_eq!(kernels.map(|s| s.bytes).sum::<u64>(), kernel_bytes);
    }

    #[test]
    fn errors_name_device_phase_and_kernel() {
        let source = SOURCE.replace("look(i64*)", "look(i64*, i64*)");
        let error = run(&source, false, false).map(drop).unwrap_err().to_string();
        for word in ["host:", "`look`", "in or before phase `look`", "1 arguments"] {
            assert!(error.contains(word), "{error}");
        }
    }
}
