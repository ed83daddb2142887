//! Plans and prompts as text: plans round-trip, and those of TPC-H match the stored ones, as prompts do.
//!
//! `DKB_UPDATE=1 cargo test --release -p dkb-tests --test snapshots` rewrites `snapshots/qNN.plan` and
//! `snapshots/prompt-*.md`. Plans there hold the headers of all queries and, for a few, the source too.

use std::path::Path;

use dkb_bench::prompt::{Facts, compose};
use dkb_kernels::{Framework, Level, Plan, SqlType, check, text};
use dkb_planner::{PlanOptions, plan};
use dkb_runtime::table::DataSet;
use dkb_runtime::tpch::workload::{Query, queries};
use dkb_tests::{root, tpch_data};

/// Queries whose generated source is kept as well.
const WITH_SOURCE: [&str; 4] = ["q01", "q03", "q06", "q13"];

fn plans() -> Vec<(String, Plan)> {
    let tables = DataSet::open(&tpch_data()).expect("the data opens").catalog();
    let plan = |query: Query| {
        let planned = plan(&query.sql, &query.decls(), &tables, &PlanOptions::default());
        (query.name.clone(), planned.unwrap_or_else(|e| panic!("{}: {e}", query.name)).plan)
    };
    queries().into_iter().map(plan).collect()
}

#[test]
fn plans_are_valid_and_round_trip() {
    for (name, plan) in plans() {
        check(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let printed = text::print(&plan);
        let parsed = text::parse(&printed).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(parsed, plan, "{name}");
        assert_eq!(text::print(&parsed), printed, "{name}");
    }
}

#[test]
fn planning_is_deterministic() {
    assert_eq!(plans(), plans());
}

#[test]
fn plans_match_the_stored_ones() {
    let stored = plans().into_iter().map(|(name, mut plan)| {
        if !WITH_SOURCE.contains(&name.as_str()) {
            plan.source.clear();
        }
        (format!("{name}.plan"), text::print(&plan))
    });
    match_the_stored_ones(stored);
}

/// Compares texts with files of `snapshots`, by name, or writes them.
fn match_the_stored_ones(texts: impl IntoIterator<Item = (String, String)>) {
    let update = std::env::var_os("DKB_UPDATE").is_some();
    let mut changed = Vec::new();
    for (name, new) in texts {
        let path = root().join("tests/snapshots").join(name);
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        if new == old {
            continue;
        }
        if update {
            std::fs::write(&path, new).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        } else {
            let line = new.lines().zip(old.lines()).position(|(new, old)| new != old);
            let line = line.unwrap_or_else(|| new.lines().count().min(old.lines().count()));
            changed.push(format!("{}:{}", path.display(), line + 1));
        }
    }
    assert!(changed.is_empty(), "texts changed; if they should, set DKB_UPDATE=1:\n{}", changed.join("\n"));
}

/// The prompt for q06 as it is composed on a certain machine.
fn prompt(level: Level, framework: Framework, hot_share: Option<f64>, without: &[&str]) -> String {
    let (_, plan) = plans().into_iter().find(|(name, _)| name == "q06").expect("there is q06");
    let facts = Facts {
        plan: &plan,
        level,
        framework,
        tables: &DataSet::open(&tpch_data()).expect("the data opens").catalog(),
        gpu: "NVIDIA H200".to_owned(),
        gb_per_s: hot_share.map(|_| 4200.0),
        versions: "driver 580.95, NVRTC 13.0".to_owned(),
        scale: 0.01,
        hot_share,
        without: &without.iter().map(|block| (*block).to_owned()).collect::<Vec<_>>(),
    };
    compose(&facts).unwrap_or_else(|e| panic!("{e:#}"))
}

#[test]
fn prompts_match_the_stored_ones() {
    let (core, full, cuda, triton) = (Level::Core, Level::Full, Framework::Cuda, Framework::Triton);
    match_the_stored_ones([
        ("prompt-core-cuda.md".to_owned(), prompt(core, cuda, Some(0.9), &[])),
        ("prompt-core-triton.md".to_owned(), prompt(core, triton, Some(0.9), &[])),
        ("prompt-full-cuda-without-gpu-data.md".to_owned(), prompt(full, cuda, None, &["gpu", "data"])),
        ("prompt-full-triton.md".to_owned(), prompt(full, triton, Some(0.9), &[])),
    ]);
}

#[test]
fn prompts_hold_the_blocks_that_are_asked_for() {
    let blocks = |text: &str| {
        let heads = text.lines().filter(|line| line.starts_with("# ") || line.starts_with("## "));
        let known = ["Level", "Framework", "GPU", "Environment", "Data"];
        let block = |head: &str| known.into_iter().find(|k| head.trim_start_matches("## ").starts_with(k));
        heads.filter_map(block).collect::<Vec<_>>()
    };
    let levels = [Level::Core, Level::Full];
    for (level, framework) in levels.into_iter().flat_map(|level| Framework::ALL.map(|f| (level, f))) {
        for without in [&[][..], &["gpu"], &["data"], &["gpu", "data"]] {
            let text = prompt(level, framework, Some(0.5), without);
            let all = ["Level", "Framework", "GPU", "Environment", "Data"];
            let left: Vec<&str> =
                all.into_iter().filter(|block| !without.contains(&block.to_lowercase().as_str())).collect();
            assert_eq!(blocks(&text), left, "{level:?} {framework:?} {without:?}");
            assert!(!text.contains("{{"), "{level:?} {framework:?} {without:?}");
            assert_eq!(text.contains("NVIDIA H200"), !without.contains(&"gpu"));
            assert_eq!(text.contains("at most 1/(1 - h) = 2.00 times"), level == Level::Core);
        }
    }
}

#[test]
fn sources_hold_no_literals_of_the_query() {
    for ((name, plan), query) in plans().into_iter().zip(queries()) {
        for decl in query.decls() {
            let text = decl.ty == SqlType::Utf8 && decl.default.len() > 2;
            assert!(!text || !plan.source.contains(&decl.default), "{name}: {} is in the source", decl.name);
            assert!(plan.params.contains_key(&decl.name), "{name}: no parameter {}", decl.name);
        }
    }
}

#[test]
fn architecture_lists_every_crate() {
    let read =
        |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let workspace: toml::Table = read(&root().join("Cargo.toml")).parse().expect("TOML");
    let members = workspace["workspace"]["members"].as_array().expect("members");
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let (_, map) = architecture.split_once("## Code map").expect("the section `Code map`");
    let map = map.split("\n## ").next().unwrap_or_default();
    let listed: Vec<&str> =
        map.lines().filter_map(|line| line.strip_prefix("### `")?.split('`').next()).collect();
    let members: Vec<&str> = members.iter().filter_map(|m| m.as_str()).collect();
    assert_eq!(listed, members, "the crates under `Code map` against those of Cargo.toml");
}
