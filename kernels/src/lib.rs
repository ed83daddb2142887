//! The kernel plan: the only thing the runtime executes.
//!
//! A plan is a value ([`Plan`]) and a single text file (a TOML header followed by device source, see
//! [`text`]). This crate holds both, the checker, and the device primitives as source text. It links
//! no CUDA and compiles nothing.

mod check;
mod copy;
mod exchange;
pub mod expr;
mod guard;
mod narrow;
pub mod parquet;
mod plan;
mod prune;
mod repr;
mod source;
pub mod text;
mod triton;

pub use check::{CheckError, check, check_name};
pub use copy::COPY;
pub use exchange::{EXCHANGE, EXCHANGE_BLOCK, ExchangeTask, MarkTask};
pub use guard::{GUARD, SCRUB};
pub use narrow::NARROW;
pub use plan::{
    Arg, Buffer, Finish, Framework, Launch, Level, On, Over, Param, Phase, Plan, Reduce, ResultColumn,
    ResultSpec, Shard, Size, SortKey, Start, TritonLaunch,
};
pub use prune::{Comparison, ParsePredicateError, Predicate, comparable};
pub use repr::{ColumnRepr, Elem, ParseReprError, Physical, SqlType};
pub use source::{
    Builtin, DKB_CUH, HOST_SHIM, PackError, ParamField, ParamKind, ParamWord, ParamsLayout, SOURCE_NAME,
    SourceError, cuda_builtin_unit, cuda_translation_unit, host_builtin_unit, host_translation_unit, kernels,
    params_layout, params_struct,
};
pub use triton::{TRITON_SOURCE_NAME, TritonKernel, triton_constants, triton_kernels, triton_type};
