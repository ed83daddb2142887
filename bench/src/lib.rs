//! The benchmark harness: reads the reports of `dkb-run` and compares them.
//!
//! Invariant: only times of right answers from kernels count. A query that failed, or ran in DataFusion, is shown
//! as such and is in no total.

mod compare;
mod report;

pub use compare::compare;
pub use report::{Device, Query, Report};
