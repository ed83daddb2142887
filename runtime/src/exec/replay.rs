//! Runs on a single device that issue the same fills and launches again: recorded once, then issued as one.
//!
//! What is recorded depends on sizes, layout and columns, which a [`Setup`](super::schedule::Setup) fixes, and
//! on addresses, which are compared. Parameters lie in device memory, so that a recording serves any values.

use super::Error;
use super::schedule::{Machine, Tally};
use crate::device::Recording;

/// What is known from earlier runs with the same setup.
#[derive(Default)]
pub(crate) struct Replay {
    /// Those of the last run.
    addresses: Vec<u64>,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Unrecorded,
    Recorded(Box<dyn Recording>, Vec<Tally>),
    /// The device cannot record.
    Refused,
}

impl Replay {
    /// Like [`Machine::run`], for a machine with one device to which the host gives nothing between phases:
    /// records what is issued the second time that the addresses are the same.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn run(&mut self, machine: &Machine, counts: &mut [u64]) -> Result<Vec<Tally>, Error> {
        let worker = &machine.workers[0];
        let addresses = worker.addresses();
        if self.addresses != addresses {
            *self = Replay { addresses, state: State::Unrecorded };
            return machine.run(counts);
        }
        if let State::Unrecorded = self.state {
            self.state = record(machine, counts)?;
        }
        match &self.state {
            State::Recorded(recording, tallies) => {
                // The pattern differs from run to run.
                machine.poison(worker, false)?;
                recording.launch()?;
                Ok(tallies.clone())
            }
            _ => machine.run(counts),
        }
    }
}

fn record(machine: &Machine, counts: &mut [u64]) -> Result<State, Error> {
    let unpoisoned = Machine { poison: None, ..*machine };
    let mut issued = None;
    let recording = machine.workers[0].device.record(&mut || issued = Some(unpoisoned.run(counts)));
    match (recording, issued.transpose()?) {
        (Ok(Some(recording)), Some(tallies)) => Ok(State::Recorded(recording, tallies)),
        (Ok(_), _) => Ok(State::Refused),
        (Err(e), _) => {
            tracing::debug!("launches are issued one by one: {e}");
            Ok(State::Refused)
        }
    }
}

#[cfg(test)]
mod unit_tests {
    use std::any::Any;
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard};

    use dkb_kernels::{Builtin, Elem, Plan, text};

    use super::super::tests::{data, ints, plan};
    use crate::device::host::HostDevice;
    use crate::device::{
        Device, DeviceError, Extent, Mark, Memory, Module, Priority, Recording, Registration,
    };
    use crate::session::{Session, SessionConfig};
    use crate::table::DataSet;

    type Command = Box<dyn Fn(&HostDevice) -> Result<(), DeviceError> + Send + Sync>;

    struct Tape {
        host: Arc<HostDevice>,
        commands: Vec<Command>,
        launched: Arc<AtomicUsize>,
    }

    impl Recording for Tape {
        fn launch(&self) -> Result<(), DeviceError> {
            self.launched.fetch_add(1, Ordering::Relaxed);
            self.commands.iter().try_for_each(|command| command(&self.host))
        }
    }

    /// Memory that another value owns.
    struct Borrowed(u64, usize);

    impl Memory for Borrowed {
        fn address(&self) -> u64 {
            self.0
        }

        fn bytes(&self) -> usize {
            self.1
        }

        fn span(&self) -> Range<u64> {
            self.0..self.0 + self.1 as u64
        }
    }

    /// A host device that records.
    struct Recorder {
        host: Arc<HostDevice>,
        module: Mutex<Option<Arc<dyn Module>>>,
        recording: Mutex<Option<Vec<Command>>>,
        recorded: AtomicUsize,
        launched: Arc<AtomicUsize>,
    }

    impl Recorder {
        fn recording(&self) -> MutexGuard<'_, Option<Vec<Command>>> {
            self.recording.lock().unwrap()
        }

        fn issue(&self, command: Command) -> Result<(), DeviceError> {
            match self.recording().as_mut() {
                Some(commands) => commands.push(command),
                None => command(&self.host)?,
            }
            Ok(())
        }
    }

    impl Device for Recorder {
        fn as_any(&self) -> &dyn Any {
            self
        }

        fn name(&self) -> String {
            self.host.name()
        }

        fn model(&self) -> String {
            self.host.model()
        }

        fn versions(&self) -> String {
            self.host.versions()
        }

        fn memory_bytes(&self) -> u64 {
            self.host.memory_bytes()
        }

        fn loads(&self) -> usize {
            self.host.loads()
        }

        fn free_bytes(&self) -> u64 {
            self.host.free_bytes()
        }

        fn extent(&self) -> Extent {
            self.host.extent()
        }

        fn fork(&self, priority: Priority) -> Result<Arc<dyn Device>, DeviceError> {
            self.host.fork(priority)
        }

        fn compile_builtin(&self, builtin: &Builtin) -> Result<Arc<dyn Module>, DeviceError> {
            self.host.compile_builtin(builtin)
        }

        fn upload_with(
            &self,
            memory: &dyn Memory,
            offset: usize,
            bytes: usize,
            write: &mut dyn FnMut(usize, &mut [u8]),
        ) -> Result<(), DeviceError> {
            self.host.upload_with(memory, offset, bytes, write)
        }

        unsafe fn register(
            &self,
            address: *const u8,
            bytes: usize,
        ) -> Result<Option<Registration>, DeviceError> {
            // SAFETY: the caller's promise is passed on.
            unsafe { self.host.register(address, bytes) }
        }

        fn mark(&self) -> Result<Box<dyn Mark>, DeviceError> {
            self.host.mark()
        }

        fn compile(&self, plan: &Plan) -> Result<Arc<dyn Module>, DeviceError> {
            let module = self.host.compile(plan)?;
            *self.module.lock().unwrap() = Some(module.clone());
            Ok(module)
        }

        fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, DeviceError> {
            assert!(self.recording().is_none());
            self.host.alloc(bytes)
        }

        fn upload(&self, memory: &dyn Memory, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
            assert!(self.recording().is_none());
            self.host.upload(memory, offset, bytes)
        }

        fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
            assert!(self.recording().is_none());
            self.host.download(memory, offset, bytes)
        }

        fn fill(
            &self,
            memory: &dyn Memory,
            elem: Elem,
            value: i128,
            count: usize,
        ) -> Result<(), DeviceError> {
            let (address, bytes) = (memory.address(), memory.bytes());
            self.issue(Box::new(move |host| host.fill(&Borrowed(address, bytes), elem, value, count)))
        }

        fn launch(
            &self,
            _: &dyn Module,
            kernel: &str,
            threads: u64,
            args: &[u64],
        ) -> Result<(), DeviceError> {
            let module = self.module.lock().unwrap().clone().unwrap();
            let (kernel, args) = (kernel.to_owned(), args.to_vec());
            self.issue(Box::new(move |host| host.launch(module.as_ref(), &kernel, threads, &args)))
        }

        fn record(&self, issue: &mut dyn FnMut()) -> Result<Option<Box<dyn Recording>>, DeviceError> {
            *self.recording() = Some(Vec::new());
            issue();
            let commands = self.recording().take().unwrap();
            self.recorded.fetch_add(1, Ordering::Relaxed);
            let (host, launched) = (self.host.clone(), self.launched.clone());
            Ok(Some(Box::new(Tape { host, commands, launched })))
        }

        fn synchronize(&self) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    const HEADER: &str = r#"
[params.least]
type = "int64"
default = "9990"
[inputs.t]
k = "int64 as i16"
[sizes]
out = { value = "rows(t) / 100", counter = "n" }
[[buffers]]
name = "n"
type = "u64"
len = "1"
start = "zero"
[[buffers]]
name = "out_k"
type = "i64"
len = "out"
start = "poison"
[[phases]]
name = "scan"
over = "t"
on = "partitions"
launches = [{ kernel = "scan", threads = "rows", args = ["rows", "t.k", "params", "len(out)", "n", "out_k"] }]
[result]
size = "out"
columns = [{ name = "k", type = "int64", from = "out_k" }]
[finish]
order_by = [{ column = 0 }]
"#;

    const SOURCE: &str = r#"
extern "C" __global__ void scan(u64 rows, const i16* k, const Params* p, u64 room, u64* n, i64* out) {
  DKB_ROWS(i, rows) if (k[i] >= p->least) {
    u64 at = atomic_add(n, u64(1));
    if (at < room) out[at] = k[i];
  }
}
"#;

    #[test]
    fn a_recording_serves_other_parameters_until_memory_moves() {
        let dir = data();
        let device = Arc::new(Recorder {
            host: Arc::new(HostDevice::open(1, None).remove(0)),
            module: Mutex::default(),
            recording: Mutex::default(),
            recorded: AtomicUsize::default(),
            launched: Arc::default(),
        });
        let config = SessionConfig { poison: true, ..SessionConfig::default() };
        let tables = DataSet::open(dir.path()).unwrap();
        let session = Session::new(tables, vec![device.clone() as Arc<dyn Device>], &config).unwrap();
        let mut prepared = session.prepare_plan(text::parse(&plan(HEADER, SOURCE)).unwrap()).unwrap();
        let mut run = |least: i64| {
            let params = [("least".to_owned(), least.to_string())];
            let execution = session.execute(&mut prepared, &params).unwrap();
            assert_eq!(ints(&execution.batch, 0), (least..10_000).collect::<Vec<_>>());
            assert_eq!((execution.launches, execution.rows_per_device), (1, vec![10_000]));
            let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
            (execution.reruns, count(&device.recorded), count(&device.launched))
        };
        assert_eq!(run(9990), (0, 0, 0));
        assert_eq!(run(9990), (0, 1, 1));
        assert_eq!(run(9950), (0, 1, 2));
        // More rows than there is room for: the rerun has other memory.
        assert_eq!(run(0), (1, 1, 3));
        for least in [9950, 9960, 9970] {
            assert_eq!(run(least).0, 0);
        }
        assert!(run(9980).2 > 3);
    }
}
