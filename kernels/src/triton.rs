//! Kernels in Triton: what a compiler gets for them, and what the checker asks of them.
//!
//! Invariant: types of arguments follow from the plan alone. Whether the source does anything but declare kernels
//! is decided where there is a parser of Python, before it is compiled.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plan::{Arg, Launch, Plan, launches};
use crate::repr::{Elem, Physical};
use crate::source::params_layout;

/// The name of a plan's source in Triton in messages about it.
pub const TRITON_SOURCE_NAME: &str = "plan.py";

/// A kernel in Triton, to be compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TritonKernel {
    /// Its name in the source.
    pub name: String,
    /// The types of its arguments in Triton's notation.
    pub types: Vec<&'static str>,
    /// Values of its `tl.constexpr` parameters. Sorted, so that equal kernels are written equally.
    pub constexprs: BTreeMap<String, i64>,
    /// Warps a program.
    pub num_warps: u32,
    /// Iterations of a loop that overlap.
    pub num_stages: u32,
    /// Positions of the arguments that are multiples of 16, in ascending order.
    pub divisible: Vec<usize>,
}

/// The type of an argument in Triton's notation: numbers are `i64`, `params` is `*i64` (see [`triton_constants`]),
/// columns and buffers are pointers to their elements. None for an argument that the plan does not declare, or
/// whose elements have 128 bits.
pub fn triton_type(plan: &Plan, arg: &Arg) -> Option<&'static str> {
    let elem = match arg {
        Arg::Rows | Arg::FirstRow | Arg::Part | Arg::Parts | Arg::Len(_) => return Some("i64"),
        Arg::Params => Elem::I64,
        Arg::Flags | Arg::Offsets(..) | Arg::DictOffsets(..) => Elem::U32,
        Arg::Valid(..) | Arg::Bytes(..) | Arg::DictBytes(..) => Elem::U8,
        Arg::Buffer(name) | Arg::Peer(name) => plan.buffer(name)?.ty,
        Arg::Column(table, column) => match plan.inputs.get(table)?.get(column)?.physical {
            Physical::Fixed(elem) | Physical::Dict(elem) => elem,
            Physical::Utf8 => return None,
        },
    };
    match elem {
        Elem::U8 => Some("*u8"),
        Elem::U16 => Some("*u16"),
        Elem::U32 => Some("*u32"),
        Elem::U64 => Some("*u64"),
        Elem::I8 => Some("*i8"),
        Elem::I16 => Some("*i16"),
        Elem::I32 => Some("*i32"),
        Elem::I64 => Some("*i64"),
        Elem::F64 => Some("*fp64"),
        Elem::I128 => None,
    }
}

/// What the source may use without declaring it: for each parameter `x` the constant `P_x`, its place in `params`
/// in words of 8 bytes. Floats are stored as their bits; decimals of more than 18 digits take two words, low one
/// first; texts an address and a length in bytes.
pub fn triton_constants(plan: &Plan) -> BTreeMap<String, i64> {
    let fields = params_layout(plan).fields.into_iter();
    fields.map(|field| (format!("P_{}", field.name), (field.offset / 8) as i64)).collect()
}

/// The kernels in Triton that a plan launches, each once; behind each the variant that relies on divisible arguments,
/// if its launches ask for one. Launches with an argument that has no type are left out: the checker refuses them.
pub fn triton_kernels(plan: &Plan) -> Vec<TritonKernel> {
    let mut kernels: BTreeMap<&str, TritonKernel> = BTreeMap::new();
    for launch in launches(plan) {
        if let Some(kernel) = triton_kernel(plan, launch) {
            kernels.entry(&launch.kernel).or_insert(kernel);
        }
    }
    kernels
        .into_values()
        .flat_map(|kernel| {
            let plain = (!kernel.divisible.is_empty())
                .then(|| TritonKernel { divisible: Vec::new(), ..kernel.clone() });
            plain.into_iter().chain([kernel])
        })
        .collect()
}

/// The kernel that a launch asks for.
pub(crate) fn triton_kernel(plan: &Plan, launch: &Launch) -> Option<TritonKernel> {
    let table = launch.triton.as_ref()?;
    let mut divisible = table.divisible.clone();
    divisible.sort_unstable();
    divisible.dedup();
    Some(TritonKernel {
        name: launch.kernel.clone(),
        types: launch.args.iter().map(|arg| triton_type(plan, arg)).collect::<Option<_>>()?,
        constexprs: table.constexprs.iter().map(|(name, value)| (name.clone(), *value)).collect(),
        num_warps: table.num_warps,
        num_stages: table.num_stages,
        divisible,
    })
}

/// Whether the source has `def name(` under `@triton.jit`, comments and blank lines between them aside.
pub(crate) fn has_kernel(source: &str, name: &str) -> bool {
    let code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let mut above = "";
    for line in source.lines().filter(code) {
        let rest = line.strip_prefix("def").filter(|rest| rest.starts_with([' ', '\t']));
        let rest = rest.and_then(|rest| rest.trim_start().strip_prefix(name));
        let here = rest.is_some_and(|rest| rest.trim_start().starts_with('('));
        if here && above.split('#').next().unwrap_or_default().trim_end() == "@triton.jit" {
            return true;
        }
        above = line;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, text};

    const PLAN: &str = r#"/*--- kernel plan 1
sql = "select 1"
framework = "triton"
level = "full"
[params]
who = { type = "utf8", default = "x" }
least = { type = "int32", default = "0" }
[inputs.t]
a = "int32 as i32"
d = "dict<u16>"
w = "decimal(38,2) as i128"
[sizes]
one = { value = "1", counter = "n" }
[[buffers]]
name = "n"
type = "u64"
len = "1"
start = "zero"
[[buffers]]
name = "total"
type = "f64"
len = "1"
start = "zero"
reduce = "sum"
[[buffers]]
name = "wide"
type = "i128"
len = "1"
start = "zero"
[[phases]]
name = "scan"
over = "t"
on = "partitions"
writes = ["total"]
[[phases.launches]]
kernel = "scan"
args = ["rows", "params", "t.a", "t.d", "dict(t.d).bytes", "flags", "total", "n", "len(one)"]
triton = { programs = "(rows + 1023) / 1024", constexprs = { BLOCK = 1024 }, num_warps = 8, divisible = [3, 2] }
[[phases]]
name = "again"
over = "t"
on = "partitions"
[[phases.launches]]
kernel = "again"
args = ["t.a", "total"]
triton = { programs = "1" }
[result]
size = "one"
columns = [{ name = "total", type = "float64", from = "total" }]
---*/
import triton
import triton.language as tl

@triton.jit  # the first
# of them
def scan (rows, params, a, d, bytes, flags, total, n, one, BLOCK: tl.constexpr):
    pass

@triton.jit
def again(a, total):
    pass

def plain(a):
    pass
"#;

    #[test]
    fn kernels_follow_from_launches() {
        let plan = text::parse(PLAN).unwrap();
        check(&plan).unwrap();
        assert_eq!(text::parse(&text::print(&plan)).unwrap(), plan);
        assert_eq!(triton_constants(&plan), [("P_who".into(), 0), ("P_least".into(), 2)].into());
        let [again, scan, aligned] = &triton_kernels(&plan)[..] else { panic!("three kernels") };
        assert_eq!((again.num_warps, again.num_stages, &again.divisible[..]), (4, 3, &[][..]));
        assert_eq!(again.types, ["*i32", "*fp64"]);
        assert_eq!(scan.types, ["i64", "*i64", "*i32", "*u16", "*u8", "*u32", "*fp64", "*u64", "i64"]);
        assert_eq!((scan.constexprs["BLOCK"], &scan.divisible[..]), (1024, &[][..]));
        assert_eq!(aligned, &TritonKernel { divisible: vec![2, 3], ..scan.clone() });
    }

    #[test]
    fn the_checker_names_the_wrong_field() {
        for (from, to, expected) in [
            (
                "kernel = \"scan\"",
                "kernel = \"plain\"",
                "phases[0].launches[0].kernel: the source has no kernel `def",
            ),
            ("kernel = \"scan\"", "kernel = \"sca\"", "phases[0].launches[0].kernel: the source has no"),
            (
                "kernel = \"again\"",
                "kernel = \"scan\"",
                "phases[0].launches[0].triton: another launch of `scan`",
            ),
            ("triton = { programs = \"1\" }", "", "phases[1].launches[0].triton: a launch of a kernel in"),
            (
                "triton = { programs = \"1\" }",
                "threads = \"1\"\ntriton = { programs = \"1\" }",
                "phases[1].launches[0].threads:",
            ),
            ("programs = \"1\"", "programs = \"none\"", "phases[1].launches[0].triton.programs: `none`"),
            (
                "[\"t.a\", \"total\"]",
                "[\"t.w\", \"total\"]",
                "phases[1].launches[0].args[0]: `t.w` has elements",
            ),
            (
                "[\"t.a\", \"total\"]",
                "[\"t.a\", \"wide\"]",
                "phases[1].launches[0].args[1]: `wide` has elements",
            ),
            ("num_warps = 8", "num_warps = 6", "phases[0].launches[0].triton.num_warps:"),
            ("num_warps = 8", "num_warps = 64", "phases[0].launches[0].triton.num_warps:"),
            ("num_warps = 8", "num_stages = 0", "phases[0].launches[0].triton.num_stages:"),
            ("[3, 2]", "[9]", "phases[0].launches[0].triton.divisible: there is no argument 9"),
            ("BLOCK = 1024", "\"a b\" = 1024", "phases[0].launches[0].triton.constexprs:"),
            ("framework = \"triton\"", "framework = \"cuda\"", "phases[0].launches[0].triton: only launches"),
        ] {
            assert!(PLAN.contains(from), "{from}");
            let error = check(&text::parse(&PLAN.replacen(from, to, 1)).unwrap()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{from} -> {to}: {error}");
        }
    }

    #[test]
    fn a_plan_with_both_languages_is_checked_by_the_rules_of_both() {
        let kernel =
            "#include \"dkb.cuh\"\nextern \"C\" __global__ void again(const i32* a, f64* total) {}\n";
        let text = PLAN.replacen("triton = { programs = \"1\" }", "threads = \"1\"", 1);
        let mixed = format!("{text}/*--- cuda ---*/\n{kernel}");
        let plan = text::parse(&mixed).unwrap();
        check(&plan).unwrap();
        assert_eq!(text::parse(&text::print(&plan)).unwrap(), plan);
        let in_triton: Vec<String> = triton_kernels(&plan).into_iter().map(|kernel| kernel.name).collect();
        assert_eq!(in_triton, ["scan", "scan"]);
        assert_eq!(crate::kernels(&plan).into_iter().collect::<Vec<_>>(), ["again"]);
        let unit = crate::cuda_translation_unit(&plan).unwrap();
        assert!(unit.contains("void again(") && !unit.contains("import triton"), "{unit}");
        for (from, to, expected) in [
            (
                "void again(",
                "void other(",
                "phases[1].launches[0].triton: a launch of a kernel in Triton needs",
            ),
            (
                "kernel = \"again\"",
                "kernel = \"absent\"",
                "phases[1].launches[0].kernel: the source has no kernel",
            ),
            (
                "threads = \"1\"",
                "triton = { programs = \"1\" }",
                "source: no launch has a kernel of the section `cuda`",
            ),
            ("#include \"dkb.cuh\"", "#include <stdio.h>", "source: "),
        ] {
            assert!(mixed.contains(from), "{from}");
            let error = check(&text::parse(&mixed.replacen(from, to, 1)).unwrap()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{from} -> {to}: {error}");
        }
    }
}
