//! Triton: the section of a plan's source in Python to machine code of one architecture. Needs `python3` with the package
//! `triton`, and no GPU.
//!
//! Invariant: `triton_compile.py` has checked a source against its allow-list before Python or Triton reads it. It
//! runs in a process of its own, with a clean environment, a folder of its own and a limit on its time.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::{fs, io};

use dkb_kernels::{Framework, Plan, TRITON_SOURCE_NAME, TritonKernel, triton_constants, triton_kernels};
use serde::{Deserialize, Serialize};

use super::cache::{self, DiskCache, SharedMap};
use super::{DeviceError, shorten};
use crate::sandbox::program_path;

const SCRIPT: &str = include_str!("triton_compile.py");
/// Seconds that compiling all kernels of a plan may take.
const LIMIT_S: u32 = 300;
/// What the script's exit status says.
const REFUSED: i32 = 3;
const NO_TRITON: i32 = 4;
/// Variables that Python needs for itself and its libraries; all others are kept from it.
const VARIABLES: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH"];

/// A compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Compiled {
    /// Its name in the plan.
    pub name: String,
    /// Its name in the cubin.
    pub symbol: String,
    /// Positions of the arguments that must be multiples of 16.
    pub divisible: Vec<usize>,
    /// Warps of 32 threads a block.
    pub num_warps: u32,
    /// Bytes of dynamic shared memory a block.
    pub shared_bytes: u32,
    cubin_bytes: usize,
    /// The cubin.
    #[serde(skip)]
    pub image: Vec<u8>,
}

/// A plan's kernels in Triton and the key of what they were made from.
pub(super) struct Kernels {
    pub(super) key: String,
    pub(super) compiled: Arc<Vec<Compiled>>,
}

/// What running Triton takes.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Toolchain {
    version: String,
    /// Folders to read.
    pub(crate) read: Vec<PathBuf>,
    /// Python, and the assembler that Triton starts.
    pub(crate) programs: Vec<PathBuf>,
}

/// Whether Triton can be used, and its version, such as `Triton 3.6.0`.
///
/// # Errors
/// [`DeviceError::Unavailable`] says what to install.
pub fn version() -> Result<String, DeviceError> {
    Ok(format!("Triton {}", toolchain()?.version))
}

/// Checks a plan's source in Triton against the allow-list. Needs Python without Triton.
///
/// # Errors
/// [`DeviceError::Compile`] with the line; [`DeviceError::Unavailable`] without Python.
pub fn check(plan: &Plan) -> Result<(), DeviceError> {
    let python = program_path("python3").ok_or_else(|| unavailable("there is no python3"))?;
    run(&python, "Triton", plan, &request(plan, 0), "check").map(drop)
}

/// Compiles a plan's kernels in Triton for `arch`, such as `sm_90`, without any cache.
///
/// # Errors
/// [`DeviceError::Unavailable`] without Triton; [`DeviceError::Compile`] with lines of the plan's source.
pub fn compile(plan: &Plan, arch: &str) -> Result<Vec<Compiled>, DeviceError> {
    let bundle = bundle(plan, &request(plan, capability(arch)?))?;
    parse(&bundle).ok_or_else(|| call_error("reading compiled kernels", "Triton's output is incomplete"))
}

/// [`compile`] through the disk cache; concurrent calls for one plan compile once.
///
/// # Errors
/// As [`compile`].
pub(super) fn cached(plan: &Plan, arch: &str) -> Result<Kernels, DeviceError> {
    static KERNELS: SharedMap<Vec<Compiled>> = SharedMap::new();
    let request = request(plan, capability(arch)?);
    let key = cache::key(&[SCRIPT, plan.source_in(Framework::Triton), &request, &toolchain()?.version]);
    let compiled = KERNELS.get_or_make(&key, || {
        let disk = DiskCache::from_env();
        let name = format!("{key}.triton");
        if let Some(compiled) = disk.get(&name).and_then(|bundle| parse(&bundle)) {
            return Ok(compiled);
        }
        let bundle = bundle(plan, &request)?;
        let compiled = parse(&bundle)
            .ok_or_else(|| call_error("reading compiled kernels", "Triton's output is incomplete"))?;
        if let Err(e) = disk.put(&name, &bundle) {
            tracing::warn!("cannot store compiled code in {}: {e}; set DKB_CACHE_DIR", disk.dir().display());
        }
        Ok(compiled)
    })?;
    Ok(Kernels { key, compiled })
}

/// What is there of Triton; asked once a process.
///
/// # Errors
/// [`DeviceError::Unavailable`] says what to install.
pub(crate) fn toolchain() -> Result<&'static Toolchain, DeviceError> {
    static TOOLCHAIN: OnceLock<Result<Toolchain, String>> = OnceLock::new();
    let found = TOOLCHAIN.get_or_init(|| {
        let python = program_path("python3").ok_or("there is no python3")?;
        let scratch = tempfile::tempdir().map_err(|e| format!("no folder for temporary files: {e}"))?;
        let output = python3(&python, scratch.path(), &["probe"]);
        let output = output.map_err(|e| format!("{}: {e}", python.display()))?;
        match output.status.code() {
            Some(0) => serde_json::from_slice(&output.stdout).map_err(|e| e.to_string()),
            Some(NO_TRITON) => Err(format!("{} has no package `triton`", python.display())),
            _ => Err(format!("{}: {}", python.display(), shorten(&String::from_utf8_lossy(&output.stderr)))),
        }
    });
    found.as_ref().map_err(|reason| unavailable(reason))
}

fn unavailable(reason: &str) -> DeviceError {
    DeviceError::Unavailable(format!(
        "plans in Triton cannot be compiled: {reason}: install Python 3.10 or later and `pip install triton==3.6.0`, \
         or set PYTHONPATH to the folder that holds the package"
    ))
}

fn call_error(call: &str, message: impl ToString) -> DeviceError {
    DeviceError::Call { device: "Triton".to_owned(), call: call.to_owned(), message: message.to_string() }
}

/// The number in an architecture's name.
fn capability(arch: &str) -> Result<u32, DeviceError> {
    let number = arch.strip_prefix("sm_").and_then(|n| n.parse().ok());
    number.ok_or_else(|| call_error("compiling", format!("`{arch}` is not an architecture like sm_90")))
}

/// What the script is asked for, see there.
fn request(plan: &Plan, arch: u32) -> String {
    #[derive(Serialize)]
    struct Request {
        arch: u32,
        limit_s: u32,
        constants: std::collections::BTreeMap<String, i64>,
        kernels: Vec<TritonKernel>,
    }
    let request =
        Request { arch, limit_s: LIMIT_S, constants: triton_constants(plan), kernels: triton_kernels(plan) };
    serde_json::to_string(&request).expect("string keys, numbers and lists have a form in JSON")
}

/// Compiled kernels as the script writes them and the disk cache keeps them.
fn bundle(plan: &Plan, request: &str) -> Result<Vec<u8>, DeviceError> {
    let Toolchain { version, programs, .. } = toolchain()?;
    let python = programs.first().ok_or_else(|| unavailable("Python does not tell where it is"))?;
    run(python, &format!("Triton {version}"), plan, request, "compile")
}

/// Runs the script on a plan; gives the content of the file that it writes.
fn run(
    python: &Path,
    compiler: &str,
    plan: &Plan,
    request: &str,
    mode: &str,
) -> Result<Vec<u8>, DeviceError> {
    let files = |e: io::Error| call_error("compiling in a folder for temporary files", e);
    let scratch = tempfile::tempdir().map_err(files)?;
    fs::write(scratch.path().join(TRITON_SOURCE_NAME), plan.source_in(Framework::Triton)).map_err(files)?;
    fs::write(scratch.path().join("request"), request).map_err(files)?;
    fs::write(scratch.path().join("kernels"), "").map_err(files)?;
    let output = python3(python, scratch.path(), &[mode, "request", "kernels"])
        .map_err(|e| call_error(&format!("running {}", python.display()), e))?;
    let failed = |log: String| DeviceError::Compile { compiler: compiler.to_owned(), log: shorten(&log) };
    let log = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => fs::read(scratch.path().join("kernels")).map_err(files),
        Some(REFUSED) => Err(failed(log.into_owned())),
        Some(NO_TRITON) => Err(unavailable("Python has no package `triton`")),
        None if output.status.signal() == Some(libc::SIGALRM) => {
            Err(failed(format!("not done after {LIMIT_S} s")))
        }
        _ => Err(failed(format!("{log}\nthe compiler ended with {}", output.status))),
    }
}

/// Runs the script in `dir`.
fn python3(python: &Path, dir: &Path, args: &[&str]) -> io::Result<Output> {
    let kept = VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut child = Command::new(python)
        .args(["-I", "-B", "-"])
        .args(args.iter().map(OsStr::new))
        .env_clear()
        .envs(kept)
        // Triton keeps a cache of its own below the former, and has temporary files in the latter.
        .env("HOME", dir)
        .env("TMPDIR", dir)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // Python that ends without reading says why on its standard error.
        let _ = stdin.write_all(SCRIPT.as_bytes());
    }
    child.wait_with_output()
}

/// The kernels in a bundle, if it is complete.
fn parse(bundle: &[u8]) -> Option<Vec<Compiled>> {
    let end = bundle.iter().position(|byte| *byte == b'\n')?;
    let mut compiled: Vec<Compiled> = serde_json::from_slice(&bundle[..end]).ok()?;
    let mut rest = &bundle[end + 1..];
    for kernel in &mut compiled {
        let (image, behind) = rest.split_at_checked(kernel.cubin_bytes)?;
        if !image.starts_with(b"\x7fELF") {
            return None;
        }
        kernel.image = image.to_vec();
        rest = behind;
    }
    rest.is_empty().then_some(compiled)
}
