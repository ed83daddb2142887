//! `dkb-run`: analytical SQL over Parquet on GPUs or logical host devices. See `dkb-run --help`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    dkb_runtime::cli::main()
}
