//! The runtime: devices, memory, Parquet to columns, the partition scheduler, sessions, the TPC-H workload.

pub mod cli;
pub mod device;
pub mod exec;
pub mod load;
mod nvtx;
pub mod sandbox;
pub mod session;
pub mod table;
pub mod tpch;
pub mod trace;
pub mod wire;
