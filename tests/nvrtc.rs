//! The generated source of the 22 queries compiles for sm_90: NVRTC needs no GPU.
//!
//! Without NVRTC the test says that it is skipped; under CI or with DKB_REQUIRE_NVRTC set, a lack fails.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use dkb_kernels::cuda_translation_unit;
use dkb_planner::{PlanOptions, plan};
use dkb_runtime::device::nvrtc;
use dkb_runtime::table::DataSet;
use dkb_runtime::tpch::workload::queries;
use dkb_tests::tpch_data;

#[test]
fn all_queries_compile_to_cubins() {
    if let Err(error) = nvrtc::version() {
        let required = ["CI", "DKB_REQUIRE_NVRTC"].iter().any(|name| std::env::var_os(name).is_some());
        assert!(!required, "NVRTC is required here: {error}");
        println!("skipped: {error}");
        return;
    }
    let tables = DataSet::open(&tpch_data()).expect("the data opens").catalog();
    for query in queries() {
        let planned = plan(&query.sql, &query.decls(), &tables, &PlanOptions::default());
        let planned = planned.unwrap_or_else(|e| panic!("{}: {e}", query.name));
        let source = cuda_translation_unit(&planned.plan).unwrap_or_else(|e| panic!("{}: {e}", query.name));
        let cubin = nvrtc::compile_cubin(&source, "sm_90").unwrap_or_else(|e| panic!("{}: {e}", query.name));
        assert!(cubin.starts_with(b"\x7fELF"), "{}", query.name);
        println!("{}: {} bytes", query.name, cubin.len());
    }
}
