//! The device's Parquet decoder on mutated pages, built for the host with sanitizers: `fuzz/page_decoder.cc` says
//! what must hold.
//!
//! Runs for DKB_FUZZ_SECONDS (20) from a fixed seed, or from DKB_FUZZ_SEED. An input that fails is kept under
//! `target/tests`; copied to `fuzz/corpus`, it is tried first from then on. Without a compiler that has the
//! sanitizers the test says that it is skipped; under CI a lack fails.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use dkb_kernels::host_builtin_unit;
use dkb_kernels::parquet::PARQUET;

const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    // As the runtime compiles for host devices.
    "-fwrapv",
    "-fno-strict-aliasing",
    "-Wno-attributes",
];

fn number(variable: &str, default: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is `{text}`: give a whole number")),
        Err(_) => default,
    }
}

fn compiler() -> Command {
    let cxx = env::var("CXX").unwrap_or_default();
    let mut words = cxx.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("c++"));
    command.args(words);
    command
}

/// Whether the compiler builds and runs a program with the sanitizers.
fn has_sanitizers(dir: &Path) -> bool {
    let (source, program) = (dir.join("probe.cc"), dir.join("probe"));
    fs::write(&source, "int main() { return 0; }\n").expect("the folder can be written");
    let built = compiler().arg("-fsanitize=address,undefined").arg("-o").arg(&program).arg(&source).output();
    built.is_ok_and(|out| out.status.success())
        && Command::new(&program).status().is_ok_and(|status| status.success())
}

fn corpus() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let entries = fs::read_dir(&folder).expect("the corpus is there");
    let mut cases: Vec<PathBuf> = entries.map(|e| e.expect("a readable folder").path()).collect();
    cases.sort();
    assert!(cases.len() >= 30, "the corpus in {} lacks files", folder.display());
    cases
}

#[test]
fn mutated_pages_do_no_harm() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    if !has_sanitizers(dir.path()) {
        assert!(
            env::var_os("CI").is_none(),
            "a C++ compiler with address and undefined sanitizers is required"
        );
        println!("skipped: no C++ compiler with address and undefined sanitizers");
        return;
    }
    fs::write(dir.path().join("unit.cc"), host_builtin_unit(&PARQUET)).expect("the folder can be written");
    let program = dir.path().join("page_decoder");
    let harness = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/page_decoder.cc");
    let mut build = compiler();
    build.args(FLAGS).arg("-I").arg(dir.path()).arg("-o").arg(&program).arg(harness);
    let built = build.output().expect("the compiler runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let (seconds, seed) = (number("DKB_FUZZ_SECONDS", 20), number("DKB_FUZZ_SEED", 1));
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tests");
    fs::create_dir_all(&kept).expect("target can be written");
    let crash = kept.join(format!("page-decoder-{seed}.page"));
    let mut fuzz = Command::new(&program);
    fuzz.arg(seconds.to_string()).arg(seed.to_string()).arg(&crash).args(corpus());
    // Leaks cannot be told where a debugger may not attach.
    let ran = fuzz.env("ASAN_OPTIONS", "detect_leaks=0").output().expect("the fuzzer runs");
    assert!(
        ran.status.success(),
        "seed {seed}: the page decoder fails ({}); the input is {}\n{}",
        ran.status,
        crash.display(),
        String::from_utf8_lossy(&ran.stderr)
    );
    println!("seed {seed}, {seconds} s: {}", String::from_utf8_lossy(&ran.stdout).trim());
}
