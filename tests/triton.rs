//! Plans in Triton: what the allow-list refuses, and that plans compile for sm_90, which needs no GPU.
//!
//! Without Python or Triton a test says that it is skipped; with DKB_REQUIRE_TRITON set, a lack fails.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use std::sync::LazyLock;

use dkb_kernels::{Framework, Plan, text};
use dkb_runtime::device::host::HostDevice;
use dkb_runtime::device::triton::{self, Compiled};
use dkb_runtime::device::{Device, DeviceError};
use dkb_tests::written_plans;

/// A filtered sum; `TOP` and `BODY` in the source are replaced.
const PLAN: &str = include_str!("plans/filtered-sum-triton.plan");

/// The source of [`PLAN`].
static SOURCE: LazyLock<String> = LazyLock::new(|| text::parse(PLAN).expect("the plan is one").source);

fn plan(source: &str) -> Plan {
    let plan = Plan { source: source.to_owned(), ..text::parse(PLAN).expect("the plan is one") };
    dkb_kernels::check(&plan).unwrap_or_else(|e| panic!("{e}\n{source}"));
    plan
}

/// The source with a statement in the kernel, in line 16.
fn with_body(body: &str) -> String {
    SOURCE.replace("# BODY", body)
}

/// The source with something at the top, in line 10.
fn with_top(top: &str) -> String {
    SOURCE.replace("# TOP", top)
}

fn message(plan: &Plan) -> Option<String> {
    triton::check(plan).err().map(|error| error.to_string())
}

fn lacks(error: &DeviceError) -> bool {
    let DeviceError::Unavailable(reason) = error else { return false };
    assert!(std::env::var_os("DKB_REQUIRE_TRITON").is_none(), "Triton is required here: {reason}");
    println!("skipped: {reason}");
    true
}

fn has_triton() -> bool {
    !triton::version().is_err_and(|error| lacks(&error))
}

#[test]
fn sources_that_are_not_plain_kernels_are_refused() {
    if triton::check(&plan(&SOURCE)).is_err_and(|error| lacks(&error)) {
        return;
    }
    for (top, reason) in [
        ("import os", "plan.py:10: the only imports are"),
        ("import triton.language", "plan.py:10: the only imports are"),
        ("from triton import language as tl", "plan.py:10: the only imports are"),
        ("open('/etc/passwd')", "plan.py:10: at the top there are"),
        ("X = tl.load", "plan.py:10: at the top there are"),
        ("X = [n for n in range(3)]", "plan.py:10: at the top there are"),
        ("class K: pass", "plan.py:10: at the top there are"),
        ("X, Y = 1, 2", "plan.py:10: at the top there are"),
        ("tl = 3", "plan.py:10: `tl` is not a name"),
        ("range = 3", "plan.py:10: `range` is not a name"),
        ("__name__ = 3", "plan.py:10: `__name__` is not a name"),
        ("P_least = 3", "plan.py:10: `P_least` is taken"),
        ("def f(x): return x", "plan.py:10: `f` must be decorated"),
        ("@tl.constexpr\ndef f(x): return x", "plan.py:11: `f` must be decorated"),
        ("@triton.jit\n@triton.jit\ndef f(x): return x", "plan.py:12: `f` must be decorated"),
        ("@triton.jit(noinline=True)\ndef f(x): return x", "plan.py:11: `f` must be decorated"),
        ("@triton.jit\ndef f(x=print('x')): return x", "plan.py:11: parameters of `f`"),
        ("@triton.jit\ndef f(*x): return x", "plan.py:11: parameters of `f`"),
        ("@triton.jit\ndef f(x: open): return x", "plan.py:11: the only annotation"),
        ("@triton.jit\ndef f(x) -> open: return x", "plan.py:11: `f` has no annotation"),
        ("@triton.jit\nasync def f(x): return x", "plan.py:11: at the top"),
        ("@triton.jit\ndef helper(x): return x", "plan.py:11: `helper` is taken"),
        ("\x0c", "plan.py:10: control characters"),
        ("def (", "plan.py:10: "),
    ] {
        let found = message(&plan(&with_top(top)));
        assert!(found.as_ref().is_some_and(|text| text.contains(reason)), "{top}: {found:?}");
    }
    for (body, reason) in [
        ("import os", "`Import` is not allowed"),
        ("global v", "`Global` is not allowed"),
        ("x = lambda: 3", "`Lambda` is not allowed"),
        ("x = [j for j in range(3)]", "`ListComp` is not allowed"),
        ("def f(): pass", "`FunctionDef` is not allowed"),
        ("with v: pass", "`With` is not allowed"),
        ("try:\n        pass\n    finally:\n        pass", "`Try` is not allowed"),
        ("del v", "only names can be assigned|`Delete` is not allowed"),
        ("tl.store(total, f'{v}')", "`JoinedStr` is not allowed"),
        ("x = 'text'", "of constants other than numbers"),
        ("x = 2 ** 2", "the operator `Pow`"),
        ("x = (y := 3)", "`NamedExpr` is not allowed"),
        ("eval('1')", "`eval` cannot be called"),
        ("exec('1')", "`exec` cannot be called"),
        ("open('x')", "`open` cannot be called"),
        ("print(v)", "`print` cannot be called"),
        ("x = getattr(tl, 'core')", "`getattr` cannot be called"),
        ("x = tl", "`tl` is not allowed here"),
        ("x = rows.__class__", "`rows.__class__` is not allowed"),
        ("x = tl.core.os.getcwd()", "`tl.core.os.getcwd` is not allowed"),
        ("x = tl.math.core", "`tl.math.core` is not allowed"),
        (
            "x = tl.inline_asm_elementwise('', '', [v], tl.int32, True, 1)",
            "`tl.inline_asm_elementwise` is not",
        ),
        ("tl.device_print('v', v)", "`tl.device_print` is not"),
        ("x = triton.cdiv(rows, 3)", "`triton.cdiv` is not allowed"),
        ("tl.load = v", "only names can be assigned"),
        ("helper = v", "`helper` is taken"),
        ("x = v.to", "`v.to` is not allowed"),
        ("x = v.numpy()", "`v.numpy` is not allowed"),
        ("x = (helper)(v)(v)", "cannot be called"),
        ("x = tl.load(a, _semantic=v)", "keyword arguments"),
        ("x = tl.load(**v)", "keyword arguments"),
        ("x = helper(*v)", "`Starred` is not allowed"),
        ("x = undeclared", "`undeclared` is not allowed here"),
        ("a__b = 3", "`a__b` is not a name"),
        ("x: open = 3", "the only annotation"),
    ] {
        let found = message(&plan(&with_body(body)));
        let matches =
            |text: &String| text.contains("plan.py:16: ") && reason.split('|').any(|r| text.contains(r));
        assert!(found.as_ref().is_some_and(matches), "{body}: {found:?}");
    }
    for (source, reason) in [
        (SOURCE.replace("BLOCK", "WIDTH"), "plan.py:12: `scan` has the parameters"),
        (SOURCE.replace("total, BLOCK", "total, more, BLOCK"), "plan.py:12: `scan` has the parameters"),
        (format!("# coding: utf-7\n{}", *SOURCE), "plan.py:1: the source must be UTF-8"),
        (format!("\u{feff}{}", *SOURCE), "plan.py:1: the source must be UTF-8"),
        (format!("{}x = {}1\n", *SOURCE, "-".repeat(5000)), "plan.py:"),
    ] {
        let found = message(&plan(&source));
        assert!(found.as_ref().is_some_and(|text| text.contains(reason)), "{reason}: {found:?}");
    }
}

#[test]
fn the_section_in_triton_alone_is_checked_as_python() {
    let cuda = |source: &str| Plan { other_source: Some(source.to_owned()), ..plan(&SOURCE) };
    if triton::check(&cuda("int a;\n")).is_err_and(|error| lacks(&error)) {
        return;
    }
    assert_eq!(message(&cuda("#include \"dkb.cuh\"\nimport os;\n")), None);
    let first =
        Plan { framework: Framework::Cuda, source: "int a;\n".to_owned(), ..cuda(&with_top("import os")) };
    assert!(message(&first).is_some_and(|text| text.contains("plan.py:10: the only imports are")));
}

#[test]
fn plain_kernels_are_allowed() {
    if triton::check(&plan(&SOURCE)).is_err_and(|error| lacks(&error)) {
        return;
    }
    for source in [
        with_top("\"\"\"About é.\"\"\"\nHALF = -0.5\nNONE = tl.constexpr(-1)"),
        with_top("@triton.jit\ndef add(x, y):\n    \"\"\"For scans.\"\"\"\n    return x + y"),
        with_body("x: tl.constexpr = BLOCK * 2"),
        with_body(
            "for j in range(0, 4):\n        v += tl.math.exp(v.to(tl.float64)).to(tl.int32) if j else 0",
        ),
        with_body("for _ in tl.static_range(min(BLOCK, 2)):\n        v = max(v, ONE) << 1"),
        with_body("while rows > 3 and not rows == 4:\n        rows -= 1"),
        with_body("x, y = tl.split(tl.reshape(v, [BLOCK // 2, 2]))\n    z = x[:, None] + y[None, :]"),
        with_body("tl.static_assert(BLOCK == 1024, \"a block\")"),
    ] {
        assert_eq!(message(&plan(&source)), None, "{source}");
    }
}

fn cubins(plan: &Plan) -> Vec<Compiled> {
    let compiled = triton::compile(plan, "sm_90").unwrap_or_else(|e| panic!("{e}"));
    for Compiled { name, divisible, num_warps, shared_bytes, image, .. } in &compiled {
        assert!(image.starts_with(b"\x7fELF"), "{name}");
        println!(
            "{name} {divisible:?}: {num_warps} warps, {shared_bytes} bytes shared, {} bytes",
            image.len()
        );
    }
    compiled
}

#[test]
fn plans_compile_to_cubins() {
    if !has_triton() {
        return;
    }
    let variants: Vec<Vec<usize>> = cubins(&plan(&SOURCE)).into_iter().map(|k| k.divisible).collect();
    assert_eq!(variants, [vec![], vec![2]]);
    let example = include_str!("../prompts/example-triton.plan");
    let example = text::parse(example).expect("the example is a plan");
    dkb_kernels::check(&example).expect("the example is a right one");
    // One kernel has two variants.
    assert_eq!(cubins(&example).len(), 6);
}

#[test]
fn written_plans_compile_to_cubins() {
    if !has_triton() {
        return;
    }
    for (path, plan) in written_plans() {
        if plan.section(Framework::Triton).is_some() {
            println!("{}", path.display());
            cubins(&plan);
        }
    }
}

#[test]
fn compile_errors_give_the_line_of_the_source() {
    if !has_triton() {
        return;
    }
    for (source, expected) in [
        (with_body("x = tl.arange(0, 1000)"), "plan.py:16: arange's range must be a power of 2"),
        (with_body("x = helper()"), "plan.py:16: "),
        (with_body("x = tl.load(a + i, mask=i)"), "plan.py:16:"),
        (SOURCE.replace("tl.sum(x", "tl.sum(tl.load(3)"), "plan.py:8: "),
        (with_body("d = tl.make_block_ptr(a, [rows], [1], [0], [1000], [0])"), "plan.py:16: "),
    ] {
        let error = triton::compile(&plan(&source), "sm_90").expect_err("it does not compile");
        assert!(matches!(error, DeviceError::Compile { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn host_devices_refuse_triton() {
    let core = include_str!("../kernels/specialized/triton-core/q06.plan");
    for plan in [plan(&SOURCE), text::parse(core).expect("the plan is one")] {
        let refused = HostDevice::new(0, 1, 1 << 20).compile(&plan).err().map(|e| e.to_string());
        assert_eq!(refused.as_deref(), Some("kernels in Triton run on GPUs only: use --device cuda"));
    }
}
