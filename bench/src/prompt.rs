//! The prompt for a query: six blocks of Markdown in a fixed order, with what only this program knows filled in.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use dkb_kernels::{DKB_CUH, Framework, Level, Physical, Plan, text};
use dkb_planner::catalog::TableInfo;

/// The blocks, in order; those of levels and frameworks are chosen.
const BASE: &str = include_str!("../../prompts/base.md");
const CORE: &str = include_str!("../../prompts/level-core.md");
const FULL: &str = include_str!("../../prompts/level-full.md");
const CUDA: &str = include_str!("../../prompts/framework-cuda.md");
const TRITON: &str = include_str!("../../prompts/framework-triton.md");
const GPU: &str = include_str!("../../prompts/gpu.md");
const ENV: &str = include_str!("../../prompts/env.md");
const DATA: &str = include_str!("../../prompts/data.md");

/// How a plan with kernels in Triton is put together, by level.
const TRITON_CORE: &str = include_str!("../../prompts/triton-core.md");
const TRITON_FULL: &str = include_str!("../../prompts/triton-full.md");

/// The worked examples of the blocks of frameworks.
const CUDA_EXAMPLE: &str = include_str!("../../prompts/example-cuda.plan");
const TRITON_EXAMPLE: &str = include_str!("../../prompts/example-triton.plan");

/// What goes into a prompt.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The generated plan, of which one phase is marked `hot`.
    pub plan: &'a Plan,
    /// What may change.
    pub level: Level,
    /// What kernels are written in.
    pub framework: Framework,
    /// The tables, with statistics.
    pub tables: &'a [TableInfo],
    /// The GPU's model.
    pub gpu: String,
    /// Gigabytes a second of its memory, if measured.
    pub gb_per_s: Option<f64>,
    /// Driver and compiler.
    pub versions: String,
    /// Scale factor of the data; 0 for other data than TPC-H's.
    pub scale: f64,
    /// Share of the time that the hot phase takes, from 0 to 0.999, if it was measured.
    pub hot_share: Option<f64>,
    /// Blocks that are left out: `gpu`, `data`.
    pub without: &'a [String],
}

/// The prompt.
///
/// # Errors
/// A level without a block, or a block to leave out that does not exist.
pub fn compose(facts: &Facts<'_>) -> Result<String> {
    if let Some(other) = facts.without.iter().find(|w| !["gpu", "data"].contains(&w.as_str())) {
        bail!("--without {other}: only `gpu` and `data` can be left out");
    }
    let plan = facts.plan;
    let (level, form) = match facts.level {
        Level::Core => (CORE, TRITON_CORE),
        Level::Full => (FULL, TRITON_FULL),
        Level::Baseline => bail!("a prompt asks for a plan of level `core` or `full`"),
    };
    let hot = plan.phases.iter().find(|p| p.hot).context("the generated plan marks no hot phase")?;
    let (share, bound) = match facts.hot_share {
        Some(share) => {
            // As it is printed, so that the two figures agree.
            let h = (share * 1e3).round() / 1e3;
            (
                format!("As measured, it takes the share h = {h:.3} of the time."),
                format!(
                    "While all else takes as long as now, the query becomes at most 1/(1 - h) = {:.2} times as fast.",
                    1.0 / (1.0 - h)
                ),
            )
        }
        None => (
            "It is the slowest by an estimate from the bytes that phases move.".to_owned(),
            "What a faster one can gain was not measured.".to_owned(),
        ),
    };
    let bandwidth = match facts.gb_per_s {
        Some(gb) => format!("{gb:.0} GB/s, measured"),
        None => "up to 4,800 GB/s".to_owned(),
    };
    let (framework, example) = match facts.framework {
        Framework::Cuda => (CUDA, CUDA_EXAMPLE),
        Framework::Triton => (TRITON, TRITON_EXAMPLE),
    };
    let scale = if facts.scale > 0.0 { format!(", scale factor {}", facts.scale) } else { String::new() };
    let (printed, primitives, prototypes) = (text::print(plan), primitives(), prototypes(plan));
    let tables = tables(plan, facts.tables)?;
    let values: [(&str, &str); 14] = [
        ("sql", &plan.sql),
        ("plan", &printed),
        ("hot", &hot.name),
        ("share", &share),
        ("bound", &bound),
        ("primitives", &primitives),
        ("prototypes", &prototypes),
        ("form", form),
        ("example", example),
        ("gpu", &facts.gpu),
        ("bandwidth", &bandwidth),
        ("versions", &facts.versions),
        ("scale", &scale),
        ("tables", &tables),
    ];
    let with = |name: &str| !facts.without.iter().any(|w| w == name);
    let blocks = [
        Some(BASE),
        Some(level),
        Some(framework),
        with("gpu").then_some(GPU),
        Some(ENV),
        with("data").then_some(DATA),
    ];
    let filled = blocks.into_iter().flatten().map(|block| fill(block, &values));
    Ok(filled.collect::<Result<Vec<_>>>()?.join("\n"))
}

/// Puts values in the place of `{{name}}`. Values are not looked at again.
fn fill(block: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut out = String::new();
    let mut rest = block;
    while let Some((before, behind)) = rest.split_once("{{") {
        let (name, after) = behind.split_once("}}").context("a prompt block has an open placeholder")?;
        let value = values.iter().find(|(n, _)| *n == name);
        let (_, value) =
            value.with_context(|| format!("a prompt block names `{name}`, which nothing fills"))?;
        out.push_str(before);
        out.push_str(value.trim_end());
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// What `dkb.cuh` offers: comments and signatures, no bodies, of its part for GPUs.
fn primitives() -> String {
    let mut out = String::new();
    let mut comment = String::new();
    let mut host = false;
    for line in DKB_CUH.lines() {
        match line {
            "#ifdef DKB_HOST" => host = true,
            "#else" | "#endif" => host = false,
            _ => {}
        }
        if host || line.starts_with("// ------") {
            comment.clear();
        } else if line.starts_with("//") {
            comment += line;
            comment.push('\n');
        } else {
            let head = line.split(" {").next().unwrap_or_default();
            let offered =
                line.starts_with("DKB_FN ") || line.starts_with("template <") || line.starts_with("typedef ");
            let is_loop = line.starts_with("#define DKB_ROWS") || line.starts_with("#define DKB_TILES");
            if offered || is_loop {
                let head =
                    head.trim_end_matches(['\\', ' ']).trim_start_matches("DKB_FN ").replace("DKB_FN ", "");
                // Infallible: writing to a String.
                let _ = writeln!(out, "{comment}{head}");
            }
            comment.clear();
        }
    }
    out
}

/// What can be called of `dkb.cuh`, by name: functions with several signatures occur several times.
pub(crate) fn signatures() -> Vec<(String, String)> {
    let named = |line: &str| {
        let (head, _) = line.trim_start_matches("#define ").split_once('(')?;
        let name = head.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
        Some((name.to_owned(), line.to_owned()))
    };
    primitives().lines().filter(|line| !line.starts_with("//")).filter_map(named).collect()
}

/// The prototypes of a plan's kernels in CUDA C++.
fn prototypes(plan: &Plan) -> String {
    let source = plan.source_in(Framework::Cuda);
    let kernels = source.match_indices("extern \"C\" __global__ void ").map(|(at, _)| &source[at..]);
    let heads = kernels.filter_map(|text| text.split(" {").next()).map(|head| format!("{head};\n"));
    heads.collect()
}

/// The inputs of the plan: a table each.
fn tables(plan: &Plan, tables: &[TableInfo]) -> Result<String> {
    let mut out = String::new();
    for (name, columns) in &plan.inputs {
        let info = tables.iter().find(|t| t.name == *name).with_context(|| format!("no table `{name}`"))?;
        let mut total = 0u64;
        let mut rows = String::new();
        for (column, repr) in columns {
            let stats = &info.columns[info.schema.index_of(column)?];
            let bound = |v: Option<i128>| v.map_or("-".to_owned(), |v| v.to_string());
            let distinct = match (stats.dict_entries, stats.min.zip(stats.max)) {
                (Some(n), _) => format!("{n}"),
                (None, Some((lo, hi))) => format!("at most {}", (hi - lo + 1).min(i128::from(info.rows))),
                (None, None) => "-".to_owned(),
            };
            let bytes = match repr.physical {
                Physical::Fixed(elem) | Physical::Dict(elem) => {
                    total += info.rows * elem.bytes() as u64;
                    format!("{}", info.rows * elem.bytes() as u64)
                }
                Physical::Utf8 => "text".to_owned(),
            };
            let (min, max) = (bound(stats.min), bound(stats.max));
            let nullable = if stats.nullable { "yes" } else { "no" };
            // Infallible: writing to a String.
            let _ =
                writeln!(rows, "| {column} | {repr} | {min} | {max} | {distinct} | {nullable} | {bytes} |");
        }
        let _ = write!(
            out,
            "`{name}`: {} rows, {total} bytes in fixed-width columns\n\n\
             | column | representation | min | max | distinct | NULLs | bytes |\n|---|---|---|---|---|---|---|\n{rows}\n",
            info.rows
        );
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_of_every_block_is_filled() {
        let names = [
            "sql",
            "plan",
            "hot",
            "share",
            "bound",
            "primitives",
            "prototypes",
            "form",
            "example",
            "gpu",
            "bandwidth",
            "versions",
            "scale",
            "tables",
        ];
        let values: Vec<(&str, &str)> = names.iter().map(|name| (*name, "VALUE")).collect();
        let mut used = String::new();
        for block in [BASE, CORE, FULL, CUDA, TRITON, GPU, ENV, DATA] {
            assert!(!fill(block, &values).unwrap().contains("{{"));
            used += block;
        }
        for name in names {
            assert!(used.contains(&format!("{{{{{name}}}}}")), "no block uses `{name}`");
        }
        assert!(fill("{{other}}", &values).unwrap_err().to_string().contains("other"));
    }

    #[test]
    fn primitives_are_signatures() {
        let text = primitives();
        for wanted in ["#define DKB_ROWS(i, n)", "u64 append(u64* counter)", "bool like(Str s, Str pattern)"]
        {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        assert!(!text.contains("__atomic_load_n"), "{text}");
    }

    #[test]
    fn the_examples_answer_one_query_and_show_what_they_should() {
        let sql = include_str!("../../prompts/example.sql");
        let query = dkb_runtime::tpch::workload::parse_query("example", sql).unwrap();
        assert!(query.sql.contains("JOIN") && query.sql.contains("GROUP BY"));
        for (example, framework) in [(CUDA_EXAMPLE, Framework::Cuda), (TRITON_EXAMPLE, Framework::Triton)] {
            let plan = text::parse(example).unwrap();
            dkb_kernels::check(&plan).unwrap();
            assert_eq!((plan.level, plan.framework, &plan.sql), (Level::Full, framework, &query.sql));
            assert!(plan.inputs.values().flat_map(|columns| columns.values()).any(|repr| repr.nullable));
            assert!(plan.result.columns.iter().any(|column| column.nullable));
        }
    }
}
