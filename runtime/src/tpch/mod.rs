//! TPC-H: the queries and their parameters, and the data.

pub mod generate;
pub mod workload;
