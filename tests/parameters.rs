//! TPC-H with drawn parameters: right answers, and the code compiled for the defaults serves them all.

use std::path::Path;

use dkb_runtime::tpch::workload::{draw, queries};
use dkb_tests::{dkb_run, run, tpch_data};

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

#[test]
fn three_seeds_without_recompiling() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let mut compiled = None;
    for seed in 0..=3 {
        let mut command = dkb_run(["--device", "host", "--gpus", "2", "--fallback", "error", "--check"]);
        command.arg("--data").arg(tpch_data()).env("DKB_CACHE_DIR", cache.path());
        // Seed 0 stands for the defaults.
        for query in queries().iter().filter(|_| seed > 0) {
            for (name, value) in draw(query, seed) {
                command.arg("--param").arg(format!("{}.{name}={value}", query.name));
            }
        }
        let (code, ..) = run(&mut command);
        assert_eq!(code, 0, "seed {seed}");
        let files = files(cache.path());
        assert!(files > 0, "the cache folder holds compiled code");
        assert_eq!(*compiled.get_or_insert(files), files, "seed {seed} compiled anew");
    }
}
