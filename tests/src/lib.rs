//! What the test suites share: data sets, the program, the reference, and the comparison of answers.
//!
//! Generated data, compiled host code and the program lie in the target folder and are reused. Helpers panic:
//! a panic is how a test fails.

#![expect(clippy::print_stdout, reason = "tests show what they ran")]

pub mod answer;
pub mod reference;
pub mod tables;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use dkb_kernels::Plan;
use dkb_runtime::device::{DeviceKind, DeviceSpec};
use dkb_runtime::session::{Session, SessionConfig};
use dkb_runtime::tpch::generate::{GenerateOptions, generate_with};

/// The scale factor of the TPC-H data of the tests.
pub const SCALE: f64 = 0.01;

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace")
}

/// The plans that are written by hand and the prompts' examples, each with its file; all pass the checker.
pub fn written_plans() -> Vec<(PathBuf, Plan)> {
    let files = |dir: &str| {
        let files = std::fs::read_dir(root().join(dir)).unwrap_or_else(|e| panic!("{dir}: {e}"));
        files.map(|e| e.expect("an entry").path()).filter(|p| p.extension().is_some_and(|e| e == "plan"))
    };
    let specialized =
        ["", "triton", "triton-core", "candidates"].map(|folder| format!("kernels/specialized/{folder}"));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("the plan is readable");
        let plan = dkb_kernels::text::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        dkb_kernels::check(&plan).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path, plan)
    };
    specialized.iter().map(String::as_str).chain(["prompts"]).flat_map(files).map(read).collect()
}

/// `target/release` or `target/debug`, whichever the running test was built into.
fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a running test has a path");
    exe.ancestors().nth(2).expect("tests lie in PROFILE/deps").to_owned()
}

/// A folder under the target folder for things that tests make and keep.
pub fn kept(name: &str) -> PathBuf {
    let target = profile_dir().parent().expect("the profile's folder lies in the target folder").to_owned();
    let dir = target.join("tests").join(name);
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    dir
}

/// The folder of host libraries that the tests share.
pub fn cache_dir() -> PathBuf {
    kept("cache")
}

/// `dkb-run` or `dkb-bench`, built once in the profile of the running test.
pub fn program(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        let dir = profile_dir();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root()).args(["build", "--quiet", "--workspace", "--bins"]);
        cargo.arg("--target-dir").arg(dir.parent().expect("the profile's folder has a parent"));
        if dir.ends_with("release") {
            cargo.arg("--release");
        }
        let status = cargo.status().expect("cargo runs");
        assert!(status.success(), "the programs do not build");
        dir
    });
    dir.join(name)
}

/// `dkb-run` with arguments, on the tests' own cache of host libraries.
pub fn dkb_run<I: IntoIterator<Item = S>, S: AsRef<std::ffi::OsStr>>(args: I) -> Command {
    let mut command = Command::new(program("dkb-run"));
    command.args(args).env("DKB_CACHE_DIR", cache_dir()).env_remove("DKB_LOG");
    command
}

/// Exit code, standard output and standard error of a finished program; both texts are shown if a test fails.
pub fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the program starts");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    println!("{command:?}\n-> {status}\n{out}\n{err}");
    (status.code().unwrap_or(-1), out.into_owned(), err.into_owned())
}

/// TPC-H at [`SCALE`] as the program itself generates it.
pub fn tpch_data() -> PathBuf {
    static DATA: OnceLock<PathBuf> = OnceLock::new();
    DATA.get_or_init(|| generated("data", &GenerateOptions::default())).clone()
}

/// The same rows in row groups of about 500 rows, and in several files a table.
pub fn tpch_small_groups() -> PathBuf {
    static DATA: OnceLock<PathBuf> = OnceLock::new();
    let options = GenerateOptions { row_group_rows: Some(500), files_per_table: 3 };
    DATA.get_or_init(|| generated("data-small-groups", &options)).clone()
}

fn generated(name: &str, options: &GenerateOptions) -> PathBuf {
    generate_with(SCALE, &kept(name), options, &|_| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// Stored answers at a scale, such as `sf0.01`.
pub fn answers(scale: &str) -> PathBuf {
    root().join("tests/answers").join(scale)
}

/// A session with logical host devices over a data folder.
pub fn host_session(data: &Path, devices: usize, config: SessionConfig) -> Session {
    // Tests of one process all set the same value, before they open a device.
    static CACHE: OnceLock<()> = OnceLock::new();
    CACHE.get_or_init(|| {
        // SAFETY: the tests read and write the environment through the standard library only, which locks it.
        unsafe { std::env::set_var("DKB_CACHE_DIR", cache_dir()) }
    });
    let spec = DeviceSpec { gpus: Some(devices), ..DeviceSpec::default() };
    Session::open(data, SessionConfig { kind: DeviceKind::Host, spec, ..config })
        .unwrap_or_else(|e| panic!("{}: {e}", data.display()))
}
