//! Cheating and broken plans: the judge rejects each with the right reason, and takes the honest one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dkb_tests::tables::write_shop;
use dkb_tests::{cache_dir, dkb_run, kept, program, root, run, tpch_data};
use tempfile::TempDir;

/// The generated plan of a query as a candidate.
fn honest(query: &str) -> String {
    let mut command = dkb_run(["--query", query, "--explain", "kernels"]);
    let (code, plan, _) = run(command.arg("--data").arg(tpch_data()));
    assert_eq!(code, 0);
    plan.replacen("level = \"baseline\"", "level = \"full\"", 1)
}

/// The data in another shape, without and with NULLs.
fn shapes() -> [PathBuf; 2] {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for kind in ["reshaped", "hostile"] {
            let mut command = Command::new(program("dkb-bench"));
            command.arg("perturb").arg(tpch_data()).args(["--kind", kind, "--output"]);
            assert_eq!(run(command.arg(folder.path().join(kind))).0, 0);
        }
        folder
    });
    ["reshaped", "hostile"].map(|kind| folder.path().join(kind))
}

/// Judges a plan: the verdict's outcome, and what was said.
fn judged(query: &str, plan: &str, more: &[&str]) -> (String, String) {
    let (verdict, said) = verdict(query, plan, more);
    (verdict["outcome"].as_str().expect("an outcome").to_owned(), said)
}

/// Judges a plan of a query of TPC-H: the verdict, and what was said.
fn verdict(query: &str, plan: &str, more: &[&str]) -> (serde_json::Value, String) {
    verdict_on(&tpch_data(), &shapes(), query, plan, more)
}

/// Judges a plan for a query, by name or by file, on a data set and on others that are hostile.
fn verdict_on(
    data: &Path,
    hostile: &[PathBuf],
    query: &str,
    plan: &str,
    more: &[&str],
) -> (serde_json::Value, String) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (file, report) = (dir.path().join("candidate.plan"), dir.path().join("verdict.json"));
    std::fs::write(&file, plan).expect("the plan is written");
    let mut command = Command::new(program("dkb-bench"));
    command.arg("judge").arg(&file).args(["--query", query, "--device", "host", "--seed", "7"]);
    command.arg("--data").arg(data);
    // On two devices and in several partitions.
    for shape in hostile {
        command.arg("--hostile").arg(shape);
    }
    command.arg("--report").arg(&report).args(more);
    let (code, out, err) = run(command.env("DKB_CACHE_DIR", cache_dir()));
    assert!(code < 2, "{err}");
    (read(&report), out)
}

fn read(path: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("the report is there")).expect("JSON")
}

#[test]
fn the_generated_plan_is_right_at_both_levels() {
    let plan = honest("q06");
    for plan in [plan.clone(), plan.replacen("\"full\"", "\"core\"", 1)] {
        let (outcome, said) = judged("q06", &plan, &["--no-timing"]);
        assert_eq!(outcome, "not_faster", "{said}");
        assert!(said.contains("right in"), "{said}");
        assert!(said.contains("one over rows swapped in place"), "{said}");
        assert!(
            said.contains("| launch") && said.contains("| a1_group: ") && said.contains("GB/s"),
            "{said}"
        );
    }
}

#[test]
fn a_plan_that_relies_on_the_order_of_rows_says_so() {
    let plan = honest("q12");
    let test = "    if (!((l_shipdate[i] < l_commitdate[i]))) continue;\n";
    let (head, assumes) =
        ("u64 rows, u64 part, const Params* p,", "u64 rows, u64 part, u32* flags, const Params* p,");
    let falls = "i > 0 && l_orderkey[i] < l_orderkey[i - 1]";
    let silent = plan.replacen(test, &format!("{test}    if ({falls}) continue;\n"), 1);
    let honest = plan
        .replacen(test, &format!("{test}    if ({falls}) refute(flags, 1);\n"), 1)
        .replacen(head, assumes, 1)
        .replacen("[\"rows\", \"part\", \"params\",", "[\"rows\", \"part\", \"flags\", \"params\",", 1)
        .replacen("orders.o_orderkey)\"]", "orders.o_orderkey)\", \"sorted(lineitem.l_orderkey)\"]", 1);
    for (plan, outcome, words) in [
        (silent, "wrong", "over rows swapped in place"),
        (honest, "not_faster", "not over rows swapped in place"),
    ] {
        let (verdict, said) = verdict_on(&tpch_data(), &[], "q12", &plan, &["--no-timing"]);
        assert_eq!(verdict["outcome"], outcome, "{said}");
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_plan_that_takes_row_numbers_for_keys_says_so() {
    // Rows of `part` stay in order, for its names are text; and there its keys count them.
    let plan = honest("q09");
    let key = "u64((i64)p_partkey[i] - 1);";
    let silent = plan.replacen(key, "i;", 1);
    let honest = plan
        .replacen(key, "i; if (p_partkey[i] != i64(i + 1)) refute(flags, 3);", 1)
        .replacen("b5_build(u64 rows, const Params* p,", "b5_build(u64 rows, u32* flags, const Params* p,", 1)
        .replacen(
            "[\"rows\", \"params\", \"part.p_name",
            "[\"rows\", \"flags\", \"params\", \"part.p_name",
            1,
        );
    for (plan, outcome, words) in [
        (plan, "not_faster", "but for part, read with text, one over keys relabelled in place"),
        (silent, "wrong", "rows differ, over keys relabelled in place"),
        (honest, "not_faster", "not over keys relabelled in place, as an assumption does not hold"),
    ] {
        let (verdict, said) = verdict_on(&tpch_data(), &[], "q09", &plan, &["--no-timing"]);
        assert_eq!(verdict["outcome"], outcome, "{said}");
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn the_worked_examples_keep_the_rules_and_the_one_that_runs_here_is_right() {
    let (shop, other) = (kept("shop"), kept("shop-other"));
    write_shop(&shop, 50_000, 1);
    write_shop(&other, 20_000, 2);
    let query = root().join("prompts/example.sql");
    let query = query.to_str().expect("a plain path");
    let judged = |plan: &str| {
        let more = ["--no-timing", "--held-out", other.to_str().expect("a plain path")];
        let (verdict, said) = verdict_on(&shop, std::slice::from_ref(&shop), query, plan, &more);
        (verdict["outcome"].as_str().expect("an outcome").to_owned(), said)
    };
    let cuda = include_str!("../prompts/example-cuda.plan");
    let (outcome, said) = judged(cuda);
    assert_eq!(outcome, "not_faster", "{said}");
    assert!(
        said.contains("shop: passed: right in") && said.contains("shop-other: passed: right in"),
        "{said}"
    );
    // NULLs are not zeros.
    let changed = cuda.replacen("discounts_here.add(code - 1, valid)", "discounts_here.add(code - 1, 1)", 1);
    assert_ne!(changed, cuda);
    let (outcome, said) = judged(&changed);
    assert!(outcome == "wrong" && said.contains("discount"), "{said}");
    let triton = include_str!("../prompts/example-triton.plan");
    let (outcome, said) = judged(triton);
    assert!(outcome != "refused" && said.contains("rules: kept") && said.contains("GPUs only"), "{said}");
}

#[test]
fn a_core_in_triton_keeps_the_rules() {
    let written = include_str!("../kernels/specialized/triton-core/q06.plan");
    let (_, hot) = written.split_once("/*--- triton ---*/\n").expect("two sections");
    let launch = "kernel = \"a1_group\"\nthreads = \"rows\"\n";
    let programs = "kernel = \"a1_group\"\ntriton = { programs = \"(rows + 16383) / 16384\", \
                    constexprs = { ROWS = 16384, BLOCK = 2048 } }\n";
    let generated = honest("q06").replacen("level = \"full\"", "level = \"core\"", 1);
    assert!(generated.contains(launch));
    let plan = format!("{}/*--- triton ---*/\n{hot}", generated.replacen(launch, programs, 1));
    let (outcome, said) = judged("q06", &plan, &["--no-timing"]);
    assert!(outcome != "refused" && said.contains("rules: kept") && said.contains("GPUs only"), "{said}");
}

#[test]
fn cheating_and_broken_plans_are_rejected() {
    let plan = honest("q06");
    let add = "  block_add(a1_sum_0, a1_sum_0_here);";
    let head = "#include \"dkb.cuh\"\n";
    let test = "if (!((l_shipdate[i] >= p->date))) return false;";
    for (what, from, to, outcome, word) in [
        (
            "a constant answer",
            add,
            "  if (block_leader()) atomic_max(a1_sum_0, i64(1193053225));",
            "wrong",
            "wrong on",
        ),
        ("an ignored parameter", test, "if (!(l_shipdate[i] >= 8766)) return false;", "wrong", "date ="),
        (
            "rows left out",
            test,
            "if (i % 64 == 1 || !(l_shipdate[i] >= p->date)) return false;",
            "wrong",
            "wrong on",
        ),
        (
            "one partition left out",
            "DKB_ROWS_AHEAD(i, rows, passes) {",
            "DKB_ROWS_AHEAD(i, rows < 60000 ? 0 : rows, passes) {",
            "wrong",
            "two devices",
        ),
        (
            "right on one device",
            "reduce = \"sum\"\n\n[[buffers]]\nname = \"a1_count_1\"",
            "\n[[buffers]]\nname = \"a1_count_1\"",
            "wrong",
            "two devices",
        ),
        (
            "leftovers",
            "len = \"1\"\nstart = \"zero\"\nreduce = \"sum\"\n\n[[buffers]]\nname = \"a1_count_1\"",
            "len = \"1\"\nstart = \"poison\"\nreduce = \"sum\"\n\n[[buffers]]\nname = \"a1_count_1\"",
            "wrong",
            "wrong on",
        ),
        (
            "a value kept between runs",
            add,
            "  static i64 kept = 0;\n  if (kept == 0) kept = a1_sum_0_here;\n  block_add(a1_sum_0, kept);",
            "compile",
            "keeps its value",
        ),
        ("a global", head, "#include \"dkb.cuh\"\ni64 kept[4];\n", "compile", "keeps its value"),
        ("work in finish", "[finish]", "[finish]\nlimit = 1", "refused", "finish"),
        ("another query", "l_quantity < :quantity\"\"\"", "l_quantity <= :quantity\"\"\"", "refused", "sql"),
        ("another default", "default = \"24\"", "default = \"25\"", "refused", "params"),
        ("another name", "name = \"revenue\"", "name = \"sales\"", "refused", "result.columns"),
        ("no level", "level = \"full\"", "level = \"baseline\"", "refused", "level"),
        (
            "a file of the system",
            head,
            "#include \"dkb.cuh\"\n#include </etc/passwd>\n",
            "refused",
            "include",
        ),
        (
            "an assembled file",
            head,
            "#include \"dkb.cuh\"\nasm(\".incbin \\\"/etc/passwd\\\"\");\n",
            "refused",
            "asm",
        ),
        (
            "a large buffer",
            "len = \"1\"\nstart = \"zero\"\nreduce = \"sum\"\n\n[[buffers]]\nname = \"a1_count_1\"",
            "len = \"300000000\"\nstart = \"zero\"\nreduce = \"sum\"\n\n[[buffers]]\nname = \"a1_count_1\"",
            "refused",
            "buffers take",
        ),
        (
            "a value kept in a column",
            add,
            "  block_add(a1_sum_0, a1_sum_0_here);\n  if (rows > 1) *(i64*)l_extendedprice = a1_sum_0_here;",
            "refused",
            "column lineitem.l_extendedprice",
        ),
        (
            "a value kept behind a column",
            add,
            "  block_add(a1_sum_0, a1_sum_0_here);\n  *(i16*)(l_shipdate + rows) = 1;",
            "refused",
            "column lineitem.l_shipdate",
        ),
        (
            "a value kept behind a buffer",
            add,
            "  block_add(a1_sum_0, a1_sum_0_here);\n  a1_sum_0[1] = a1_sum_0_here + 1;",
            "refused",
            "the padding behind buffer `a1_sum_0`",
        ),
        (
            "a value kept outside all buffers",
            add,
            "  block_add(a1_sum_0, a1_sum_0_here);\n  a1_sum_0[64] = a1_sum_0_here + 1;",
            "refused",
            "memory outside the declared buffers",
        ),
        (
            "other parameters",
            add,
            "  block_add(a1_sum_0, a1_sum_0_here);\n  *(i64*)p = 0;",
            "refused",
            "the parameters",
        ),
        ("no C++", add, "  block_add(a1_sum_0, );", "compile", "error"),
        (
            "a write out of bounds",
            add,
            "  a1_sum_0[i64(1) << 30] = 1;",
            "fault",
            "writes at index 1073741824 of `a1_sum_0`, which has 1 elements of 8 bytes",
        ),
        ("a null pointer", add, "  *(i64*)8 = 1;", "fault", "writes at address 0x8, which is a null pointer"),
        (
            "an endless loop",
            add,
            "  while (load(a1_sum_0) < 1) {}",
            "time_out",
            "was still running after 2 s",
        ),
        (
            "a program at load",
            head,
            "#include \"dkb.cuh\"\nextern \"C\" int system(const char*);\nstruct Load { Load() { system(\"true\"); } };\nconst Load at_load;\n",
            "compile",
            "",
        ),
    ] {
        let changed = plan.replacen(from, to, 1);
        assert_ne!(changed, plan, "{what}: the generated plan does not contain `{from}`");
        let limit = if outcome == "time_out" { "2" } else { "60" };
        let (got, said) = judged("q06", &changed, &["--no-timing", "--time-limit", limit]);
        assert_eq!(got, outcome, "{what}: {said}");
        assert!(said.contains(word), "{what}: {said}");
    }
}

#[test]
fn compile_errors_give_the_line_of_the_file_and_the_signature() {
    let plan = honest("q06");
    let call = "block_add(a1_sum_0, a1_sum_0_here)";
    let line = plan.lines().position(|line| line.contains(call)).expect("a call") + 1;
    for (what, changed, words) in [
        ("an unknown name", "block_ad(a1_sum_0, a1_sum_0_here)", "void block_add("),
        ("too few arguments", "block_add(a1_sum_0)", "void block_add("),
    ] {
        let (outcome, said) = judged("q06", &plan.replacen(call, changed, 1), &["--no-timing"]);
        assert_eq!(outcome, "compile", "{what}: {said}");
        let shown = format!("{line:>6} |   {changed};");
        for word in [&format!("line {line}: error: "), &shown, "dkb.cuh has: ", words] {
            assert!(said.contains(word), "{what}: no `{word}`\n{said}");
        }
    }
}

#[test]
fn level_core_keeps_all_but_the_hot_phase() {
    let plan = honest("q06").replacen("\"full\"", "\"core\"", 1);
    for (what, from, to, word) in [
        ("another phase", "name = \"a1_group\"\nover", "name = \"scan\"\nover", "phase `a1_group`"),
        ("another kernel", "result_0[r] = v6;", "result_0[r] = v6 + 0;", "kernel `result_rows`"),
        (
            "another input",
            "l_discount = \"decimal(15,2) as i8\"",
            "l_discount = \"decimal(15,2) as i16\"",
            "inputs",
        ),
        ("another mark", "hot = true", "", "the slowest phase"),
        ("a macro", "#include \"dkb.cuh\"\n", "#include \"dkb.cuh\"\n#define v6 0\n", "directives"),
    ] {
        let changed = plan.replacen(from, to, 1);
        assert_ne!(changed, plan, "{what}: the generated plan does not contain `{from}`");
        let (outcome, said) = judged("q06", &changed, &["--no-timing"]);
        assert_eq!(outcome, "refused", "{what}: {said}");
        assert!(said.contains(word), "{what}: {said}");
    }
}

/// A plan that was written by hand, of `kernels/specialized`.
fn specialised(query: &str) -> String {
    let path = root().join("kernels/specialized").join(format!("{query}.plan"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn plans_without_nulls_are_tested_on_another_shape() {
    let plan = specialised("q05");
    let (outcome, said) = judged("q05", &plan, &["--no-timing"]);
    assert_eq!(outcome, "not_faster", "{said}");
    assert!(said.contains("reshaped on two devices: passed"), "{said}");
    let misfit = said.lines().find(|line| line.starts_with("hostile on two devices: does not fit: "));
    let misfit = misfit.unwrap_or_else(|| panic!("{said}"));
    assert!(misfit.contains("column `") && misfit.contains("NULL") && !misfit.contains(": /"), "{misfit}");

    // Keys without gaps are nothing to rely on.
    let dense = plan.replacen("max(nation.n_nationkey) + 1", "25", 1);
    assert_ne!(dense, plan);
    let (outcome, said) = judged("q05", &dense, &["--no-timing"]);
    assert_eq!(outcome, "wrong", "{said}");
    assert!(said.contains("wrong on reshaped"), "{said}");
    // Unless the plan notices.
    let read = "region = u64(i64(n_regionkey[i])), key = u64(i64(n_nationkey[i]));";
    let refuted = dense.replacen(read, &format!("{read} if (key > 24) refute(flags, 3);"), 1);
    assert_ne!(refuted, dense);
    let (outcome, said) = judged("q05", &refuted, &["--no-timing"]);
    assert_eq!(outcome, "not_faster", "{said}");
    assert!(
        said.contains(
            "reshaped on two devices: assumption raised: the data violates unique(nation.n_nationkey)"
        ),
        "{said}"
    );
}

#[test]
fn nulls_are_tested_where_a_plan_takes_them() {
    let [_, hostile] = shapes();
    let mut command = dkb_run(["--query", "q06", "--explain", "kernels"]);
    let (code, plan, _) = run(command.arg("--data").arg(&hostile));
    assert_eq!(code, 0);
    let plan = plan.replacen("level = \"baseline\"", "level = \"full\"", 1);
    let (outcome, said) = judged("q06", &plan, &["--no-timing"]);
    assert_eq!(outcome, "not_faster", "{said}");
    assert!(said.contains("hostile on two devices: passed"), "{said}");
}

#[test]
fn an_accepted_plan_stands_for_the_generated_one() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plan = honest("q06");
    let add = "  block_add(a1_sum_0, a1_sum_0_here);";
    let slow =
        "  DKB_ROWS(i, rows) for (u64 j = 0; j < 300; ++j) if (hash64(i ^ j) == 1) a1_sum_0_here += 1;\n";
    let file = dir.path().join("q06.plan");
    std::fs::write(&file, plan.replacen(add, &format!("{slow}{add}"), 1)).expect("the plan is written");
    let (folder, path) = (dir.path().to_string_lossy(), file.to_string_lossy());
    for baseline in [&folder, &path] {
        let (verdict, said) = verdict("q06", &plan, &["--baseline", baseline]);
        assert!(verdict["timing"]["speedup"].as_f64().is_some_and(|ratio| ratio > 2.0), "{said}");
    }
    let prompt = |query: &str| {
        let mut command = Command::new(program("dkb-bench"));
        command.args(["prompt", query, "--device", "host", "--baseline", &folder, "--data"]).arg(tpch_data());
        run(command.env("DKB_CACHE_DIR", cache_dir()))
    };
    let ((code, shown, _), (other, ..)) = (prompt("q06"), prompt("q14"));
    assert_eq!((code, other), (0, 0));
    assert!(shown.contains(slow.trim_end()), "the baseline is shown");

    // What is the planner's is the generated plan's.
    std::fs::write(&file, plan.replacen("[finish]", "[finish]\nlimit = 1", 1)).expect("the plan is written");
    let mut command = Command::new(program("dkb-bench"));
    command.args(["judge", &path, "--device", "host", "--no-timing", "--baseline", &folder, "--data"]);
    let (code, _, error) = run(command.arg(tpch_data()).env("DKB_CACHE_DIR", cache_dir()));
    assert_eq!(code, 2);
    assert!(error.contains("baseline: finish"), "{error}");
}
