//! Execution of a checked kernel plan on N devices.
//!
//! * `program`: the plan with names resolved to indices;
//! * `buffers`: sizes, and where buffers lie;
//! * `columns`: tables' columns on devices, resident or streamed;
//! * `feed`: streamed partitions on their way to the devices;
//! * `prune`: row groups that a phase may skip;
//! * `schedule`: phases, launches, reruns;
//! * `replay`: runs that issue what an earlier one did;
//! * `marks`: when devices did what, for traces;
//! * `reduce`: what happens between devices when a phase ends, and `exchange`, by which it happens;
//! * `guard`: whether a run has left alone what is none of its buffers;
//! * `result`, `narrow` and `finish`: from buffers to an Arrow batch;
//! * `traffic`: how many bytes a query must read, and how many its launches were given;
//! * `watch`: launches as they are about to happen.
//!
//! Invariant: a wrong size costs a rerun, never an answer; a rerun starts from freshly started buffers on
//! every device.

pub(crate) mod buffers;
pub(crate) mod columns;
mod exchange;
pub(crate) mod feed;
pub(crate) mod finish;
pub(crate) mod guard;
mod marks;
mod narrow;
pub(crate) mod program;
pub(crate) mod prune;
mod reduce;
mod replay;
pub(crate) mod result;
pub(crate) mod schedule;
#[cfg(test)]
mod tests;
pub(crate) mod traffic;
mod watch;

use dkb_kernels::{CheckError, PackError};
use dkb_planner::PlanError;

use crate::device::DeviceError;
use crate::table::TableError;

pub use watch::{Argument, Launching, Watch};

/// Why a query gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Parquet files that cannot be opened or read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A device, its compiler or its memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The query or its parameters are wrong; no engine can run it.
    #[error("{0}")]
    Query(String),
    /// A valid query that generated kernels do not cover; DataFusion can run it.
    #[error("not supported on the device: {0}")]
    Unsupported(String),
    /// The plan is malformed, or does not fit the data set.
    #[error("the plan is not valid: {0}")]
    Plan(#[from] CheckError),
    /// The data violates an assumption of the plan, and no other plan could be made.
    #[error("the data violates assumption {index} of the plan: {text}")]
    Assumption {
        /// Index in [`dkb_kernels::Plan::assumes`].
        index: usize,
        /// The assumption.
        text: String,
    },
    /// A kernel has written where the plan has no buffer.
    #[error("the plan has written outside its buffers: it changed {0}")]
    Trespass(String),
    /// The query fails on this data: decimal overflow, division by zero, a scalar subquery with more rows.
    #[error("{0}")]
    Data(String),
    /// The run cannot go on for another reason.
    #[error("{0}")]
    Execution(String),
}

impl Error {
    /// Says where a failed device call showed. What failed may have been issued before: a kernel's error shows in
    /// whatever its device is asked next.
    pub(crate) fn in_or_before(self, place: &str) -> Error {
        match self {
            Error::Device(DeviceError::Call { device, call, message }) => {
                let call = format!("{call} in or before {place}");
                Error::Device(DeviceError::Call { device, call, message })
            }
            other => other,
        }
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Query(message) => Error::Query(message),
            PlanError::Unsupported(message) => Error::Unsupported(message),
        }
    }
}

impl From<PackError> for Error {
    fn from(error: PackError) -> Self {
        Error::Query(error.to_string())
    }
}
