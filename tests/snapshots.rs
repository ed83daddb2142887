//! Plans as text: they round-trip, and those of TPC-H match the stored ones.
//!
//! `DKB_UPDATE=1 cargo test --release -p dkb-tests --test snapshots` rewrites `snapshots/qNN.plan`. They hold
//! the headers of all plans and, for a few queries, the source too.

use std::path::Path;

use dkb_kernels::{Plan, SqlType, check, text};
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
    let update = std::env::var_os("DKB_UPDATE").is_some();
    let mut changed = Vec::new();
    for (name, mut plan) in plans() {
        if !WITH_SOURCE.contains(&name.as_str()) {
            plan.source.clear();
        }
        let path = root().join(format!("tests/snapshots/{name}.plan"));
        let (new, old) = (text::print(&plan), std::fs::read_to_string(&path).unwrap_or_default());
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
    assert!(changed.is_empty(), "plans changed; if they should, set DKB_UPDATE=1:\n{}", changed.join("\n"));
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
