//! The benchmark harness: reads the reports of `dkb-run`, and compares them with each other and with floors.
//!
//! Invariant: only times of right answers from kernels count. A query that failed, or ran in DataFusion, is shown
//! as such and is in no total.

mod chart;
mod compare;
mod file;
mod floor;
pub mod judge;
pub mod perturb;
pub mod prompt;
mod report;
pub mod results;
pub mod synthesize;
pub mod verdict;

pub use compare::compare;
pub use file::write_file;
pub use floor::Floors;
pub use report::{Device, Query, Report};
