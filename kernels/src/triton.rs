//! Plans in Triton: what a compiler gets for them, and what the checker asks of them.
//!
//! Invariant: types of arguments follow from the plan alone. Whether the source does anything but declare kernels
//! is decided where there is a parser of Python, before it is compiled.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plan::{Arg, Launch, Plan};
use crate::repr::{Elem, Physical};
use crate::source::params_layout;

/// The name of a plan's source in messages about it.
pub const TRITON_SOURCE_NAME: &str = "plan.py";

/// A kernel of a plan in Triton, to be compiled.
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

/// The kernels that a plan launches, each once; behind each the variant that relies on divisible arguments, if its
/// launches ask for one. Launches without a table, or with an argument that has no type, are left out: the checker
/// refuses them.
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

pub(crate) fn launches(plan: &Plan) -> impl Iterator<Item = &Launch> {
    plan.phases.iter().flat_map(|phase| phase.launches.iter().chain(&phase.merge))
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
