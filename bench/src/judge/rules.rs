//! What a candidate may change of the baseline plan, judged on the texts alone.

use dkb_kernels::{Arg, Finish, Framework, Launch, Level, Phase, Plan, check, text};

/// Reads a candidate and checks it by itself, against the generated plan, and at level `core` against the baseline.
///
/// # Errors
/// One sentence: what is wrong with the file, or which rule it breaks.
pub(super) fn read(candidate: &str, generated: &Plan, baseline: &Plan) -> Result<Plan, String> {
    let plan = text::parse(candidate).map_err(|e| e.to_string())?;
    check(&plan).map_err(|e| e.to_string())?;
    keeps(&plan, generated)?;
    match plan.level {
        Level::Baseline => Err("level: a candidate is `core` or `full`".to_owned()),
        Level::Core => is_core(&plan, baseline),
        Level::Full => Ok(()),
    }?;
    Ok(plan)
}

/// Whether a plan is of the level and in the language that were asked for: in the phases that it may change, what reads
/// columns of tables.
///
/// # Errors
/// One sentence: what is not.
pub(super) fn is_asked_for(plan: &Plan, level: Level, framework: Framework) -> Result<(), String> {
    if plan.level != level {
        return Err(format!("level: `{level}` was asked for, and this is `{}`", plan.level));
    }
    let reads =
        |arg: &Arg| matches!(arg, Arg::Column(..) | Arg::Valid(..) | Arg::Offsets(..) | Arg::Bytes(..));
    let open = plan.phases.iter().filter(|phase| level == Level::Full || phase.hot);
    let other = open.flat_map(launches).find(|l| l.framework() != framework && l.args.iter().any(reads));
    match other {
        Some(launch) => Err(format!("kernel `{}` reads columns and is not in {framework}", launch.kernel)),
        None => Ok(()),
    }
}

/// The phase that a candidate of level `core` marks as the one it replaces.
pub(super) fn claimed_hot(candidate: &str) -> Option<String> {
    let plan = text::parse(candidate).ok().filter(|plan| plan.level == Level::Core)?;
    plan.phases.into_iter().find(|phase| phase.hot).map(|phase| phase.name)
}

/// The parts that are the planner's at any level.
///
/// # Errors
/// One sentence: what differs.
pub(super) fn keeps(plan: &Plan, baseline: &Plan) -> Result<(), String> {
    let differs = |what: &str| Err(format!("{what}: must be the baseline's"));
    if plan.sql != baseline.sql {
        return differs("sql");
    }
    if plan.params != baseline.params {
        return differs("params");
    }
    finish(&plan.finish, &baseline.finish)?;
    let visible = |p: &Plan| {
        let keep = p.finish.keep.map_or(p.result.columns.len(), |k| k as usize);
        p.result.columns.iter().take(keep).map(|c| (c.name.clone(), c.ty, c.nullable)).collect::<Vec<_>>()
    };
    if visible(plan) != visible(baseline) {
        return Err("result.columns: names, types and `nullable` must be the baseline's".to_owned());
    }
    for phase in plan.phases.iter().filter(|p| p.prune.is_some()) {
        let same = |b: &Phase| b.over == phase.over && b.prune == phase.prune;
        if !baseline.phases.iter().any(same) {
            return Err(format!("phase `{}`: prune is the planner's: copy it or leave it out", phase.name));
        }
    }
    Ok(())
}

/// Steps may be dropped, not changed.
fn finish(plan: &Finish, baseline: &Finish) -> Result<(), String> {
    let kept = |same: bool, dropped: bool| same || dropped;
    let fine = kept(plan.order_by == baseline.order_by, plan.order_by.is_empty())
        && kept(plan.offset == baseline.offset, plan.offset == 0)
        && kept(plan.limit == baseline.limit, plan.limit.is_none())
        && kept(plan.keep == baseline.keep, plan.keep.is_none());
    if fine { Ok(()) } else { Err("finish: a step may be dropped and not changed".to_owned()) }
}

/// `core`: everything but the hot phase's kernels, launches and scratch buffers is the baseline's.
fn is_core(plan: &Plan, baseline: &Plan) -> Result<(), String> {
    let differs = |what: String| Err(format!("{what}: at level `core` it must be the baseline's"));
    if plan.inputs != baseline.inputs {
        return differs("inputs".to_owned());
    }
    if plan.assumes != baseline.assumes || plan.shard != baseline.shard || plan.result != baseline.result {
        return differs("assumes, shard and result".to_owned());
    }
    if plan.phases.len() != baseline.phases.len() {
        return differs("the number of phases".to_owned());
    }
    if hot_phases(plan) != hot_phases(baseline) {
        return Err(format!(
            "level `core` replaces the slowest phase of the generated plan, and keeps the mark: `hot = true` belongs to \
             phase `{}` alone",
            hot_phases(baseline).join("`, `")
        ));
    }
    for (ours, theirs) in plan.phases.iter().zip(&baseline.phases) {
        let launches = if theirs.hot { theirs.launches.clone() } else { ours.launches.clone() };
        let merge = if theirs.hot { theirs.merge.clone() } else { ours.merge.clone() };
        if (Phase { launches, merge, ..ours.clone() }) != *theirs {
            return differs(format!("phase `{}`", theirs.name));
        }
    }
    for (name, size) in &baseline.sizes {
        if plan.sizes.get(name) != Some(size) {
            return differs(format!("size `{name}`"));
        }
    }
    for buffer in &baseline.buffers {
        if plan.buffer(&buffer.name) != Some(buffer) {
            return differs(format!("buffer `{}`", buffer.name));
        }
    }
    is_core_source(plan, baseline)
}

/// `core`: the kernels of all phases but the hot one are the baseline's.
fn is_core_source(plan: &Plan, baseline: &Plan) -> Result<(), String> {
    let differs = |what: String| Err(format!("{what}: at level `core` it must be the baseline's"));
    let [theirs, ours] = [baseline, plan].map(|plan| plan.source_in(Framework::Cuda));
    let hot: Vec<&str> = baseline.phases.iter().filter(|p| p.hot).flat_map(launches).map(kernel).collect();
    for launch in baseline.phases.iter().flat_map(launches).filter(|launch| !hot.contains(&kernel(launch))) {
        let kernel = kernel(launch);
        match launch.framework() {
            Framework::Cuda => {
                let text = definition(theirs, kernel)
                    .ok_or_else(|| format!("the baseline's source has no kernel `{kernel}`"))?;
                if definition(ours, kernel) != Some(text) {
                    return differs(format!("kernel `{kernel}`"));
                }
            }
            // What a kernel calls may stand anywhere in its section.
            Framework::Triton if plan.section(Framework::Triton) != baseline.section(Framework::Triton) => {
                return differs(format!("the section in Triton, which has kernel `{kernel}`"));
            }
            Framework::Triton => {}
        }
    }
    let directive = ours.lines().map(str::trim_start).find(|line| {
        line.starts_with('#') && *line != "#include \"dkb.cuh\"" && !line.starts_with("#pragma unroll")
    });
    match directive {
        Some(line) => {
            Err(format!("`{line}`: at level `core` the only directives are the include and unroll"))
        }
        None => Ok(()),
    }
}

fn hot_phases(plan: &Plan) -> Vec<&str> {
    plan.phases.iter().filter(|p| p.hot).map(|p| p.name.as_str()).collect()
}

fn launches(phase: &Phase) -> impl Iterator<Item = &Launch> {
    phase.launches.iter().chain(&phase.merge)
}

fn kernel(launch: &Launch) -> &str {
    &launch.kernel
}

/// The text of the definition of a kernel in CUDA C++: from its `extern "C"` to the brace that closes it.
fn definition<'s>(source: &'s str, kernel: &str) -> Option<&'s str> {
    let start = source.find(&format!("extern \"C\" __global__ void {kernel}("))?;
    let mut depth = 0usize;
    for (at, c) in source[start..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(&source[start..=start + at]),
            '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_in_triton_keeps_all_but_the_hot_phase() {
        let generated = include_str!("../../../tests/snapshots/q06.plan");
        let baseline = text::parse(generated).unwrap();
        let written = include_str!("../../../kernels/specialized/triton-core/q06.plan");
        let (_, hot) = written.split_once("/*--- triton ---*/\n").unwrap();
        let plan = generated.replacen("level = \"baseline\"", "level = \"core\"", 1).replacen(
            "\nthreads = \"rows\"",
            "\ntriton = { programs = \"1\", constexprs = { ROWS = 16, BLOCK = 16 } }",
            1,
        ) + "/*--- triton ---*/\n"
            + hot;
        let judged = |plan: &str| read(plan, &baseline, &baseline).map(drop);
        assert_eq!(judged(&plan), Ok(()));
        let read_plan = text::parse(&plan).unwrap();
        assert_eq!(is_asked_for(&read_plan, Level::Core, Framework::Triton), Ok(()));
        let other = is_asked_for(&read_plan, Level::Core, Framework::Cuda).unwrap_err();
        assert!(other.contains("reads columns and is not in cuda"), "{other}");
        let other = is_asked_for(&read_plan, Level::Full, Framework::Triton).unwrap_err();
        assert!(other.contains("`full` was asked for"), "{other}");
        for (from, to, word) in [
            ("const i64 v6 = a1_sum_0[0];", "const i64 v6 = a1_sum_0[0] + 0;", "kernel `result_rows`"),
            ("void result_rows(", "void results(", "kernel `result_rows`"),
            ("#include \"dkb.cuh\"\n", "#include \"dkb.cuh\"\n#define append(x) 0\n", "the only directives"),
            ("threads = \"rows\"", "threads = \"2 * rows\"", "phase `result_rows`"),
            ("import triton\n", "import triton\n/*--- triton ---*/\n", "a second section `triton`"),
        ] {
            assert!(plan.contains(from), "{from}");
            let reason = judged(&plan.replacen(from, to, 1)).unwrap_err();
            assert!(reason.contains(word), "{from} -> {to}: {reason}");
        }
        // A baseline may have kernels in Triton in other phases.
        let other = plan.replacen("level = \"core\"", "level = \"full\"", 1);
        let swapped = other.replacen("\nhot = true", "", 1).replacen(
            "on = \"partitions\"\n\n[[phases.launches]]\nkernel = \"result_rows\"",
            "on = \"partitions\"\nhot = true\n\n[[phases.launches]]\nkernel = \"result_rows\"",
            1,
        );
        let baseline = text::parse(&swapped).unwrap();
        let plan = swapped.replacen("level = \"full\"", "level = \"core\"", 1);
        assert_eq!(read(&plan, &baseline, &baseline).map(drop), Ok(()));
        let reason =
            read(&plan.replacen("sem=\"relaxed\"", "sem=\"acq_rel\"", 1), &baseline, &baseline).unwrap_err();
        assert!(reason.contains("the section in Triton"), "{reason}");
    }
}
