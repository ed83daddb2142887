//! The generated source of the 22 queries and the runtime's own compile for sm_90: NVRTC needs no GPU.
//!
//! Without NVRTC a test says that it is skipped; under CI or with DKB_REQUIRE_NVRTC set, a lack fails.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use dkb_kernels::parquet::PARQUET;
use dkb_kernels::{cuda_builtin_unit, cuda_translation_unit};
use dkb_planner::{PlanOptions, plan};
use dkb_runtime::device::nvrtc;
use dkb_runtime::table::DataSet;
use dkb_runtime::tpch::workload::queries;
use dkb_tests::{tpch_data, written_plans};

fn has_nvrtc() -> bool {
    let Err(error) = nvrtc::version() else { return true };
    let required = ["CI", "DKB_REQUIRE_NVRTC"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(!required, "NVRTC is required here: {error}");
    println!("skipped: {error}");
    false
}

#[test]
fn the_page_decoder_compiles_to_a_cubin() {
    if has_nvrtc() {
        let cubin = nvrtc::compile_cubin(&cuda_builtin_unit(&PARQUET), "sm_90").expect("it compiles");
        assert!(cubin.starts_with(b"\x7fELF"));
        println!("{}: {} bytes", PARQUET.name, cubin.len());
    }
}

#[test]
fn specialised_plans_and_the_example_compile_to_cubins() {
    if !has_nvrtc() {
        return;
    }
    for (path, plan) in written_plans() {
        if plan.section(dkb_kernels::Framework::Cuda).is_some() {
            let source = cuda_translation_unit(&plan).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            nvrtc::compile_cubin(&source, "sm_90").unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            println!("{}", path.display());
        }
    }
}

#[test]
fn all_queries_compile_to_cubins() {
    if !has_nvrtc() {
        return;
    }
    let tables = DataSet::open(&tpch_data()).expect("the data opens").catalog();
    // In little memory, build sides are ranked.
    let little = PlanOptions { memory_bytes: Some(1 << 20), ..PlanOptions::default() };
    for (query, options) in
        queries().into_iter().flat_map(|q| [(q.clone(), PlanOptions::default()), (q, little.clone())])
    {
        let planned = plan(&query.sql, &query.decls(), &tables, &options);
        let planned = planned.unwrap_or_else(|e| panic!("{}: {e}", query.name));
        let source = cuda_translation_unit(&planned.plan).unwrap_or_else(|e| panic!("{}: {e}", query.name));
        let start = std::time::Instant::now();
        let cubin = nvrtc::compile_cubin(&source, "sm_90").unwrap_or_else(|e| panic!("{}: {e}", query.name));
        assert!(cubin.starts_with(b"\x7fELF"), "{}", query.name);
        println!("{}: {} bytes in {:.0?}", query.name, cubin.len(), start.elapsed());
    }
}
