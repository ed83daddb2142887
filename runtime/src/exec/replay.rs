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
