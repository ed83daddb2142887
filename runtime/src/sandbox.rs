//! A cage for code that nobody trusts yet: candidate plans, the compilers that read them, and the host code made of
//! them.
//!
//! Invariant: after [`Sandbox::enter`] the process and all that it starts read the toolchain, the data and nothing
//! of the user's; write to one scratch folder; start no program but the compilers' own; and reach no network. There is
//! no way back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::device::host::compiler_path;
use crate::device::triton;

/// The rights of the kernel's interface that must be there: those of Linux 6.2.
const LEAST: ABI = ABI::V3;

/// Folders of the system's programs, libraries and headers.
const SYSTEM: [&str; 8] =
    ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/proc", "/sys", "/dev/urandom", "/dev/null"];

/// What the caged process may still do, beside reading the system's folders.
#[derive(Debug, Clone, Default)]
pub struct Sandbox {
    /// Files and folders to read: the data, libraries outside the system's folders.
    pub read: Vec<PathBuf>,
    /// The folder to write to.
    pub scratch: PathBuf,
    /// Whether it drives a GPU, which needs the device files, and Triton if that is installed.
    pub gpu: bool,
}

impl Sandbox {
    /// Puts the calling thread, and all threads and processes that it starts from now on, into the cage.
    ///
    /// # Errors
    /// What this kernel lacks, or a path that cannot be opened.
    pub fn enter(&self) -> Result<(), String> {
        let lacks = |e: &dyn std::fmt::Display| {
            format!("no sandbox on this machine ({e}): Linux 6.2 or later with Landlock is needed")
        };
        let reads = AccessFs::from_read(LEAST) & !AccessFs::Execute;
        let all = AccessFs::from_all(LEAST);
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(all)
            .map_err(|e| lacks(&e))?
            .set_compatibility(CompatLevel::BestEffort)
            .scope(Scope::Signal)
            .and_then(|rules| rules.create())
            .map_err(|e| lacks(&e))?;
        let system = SYSTEM.iter().map(PathBuf::from).filter(|path| path.exists());
        let mut granted: Vec<(PathBuf, landlock::BitFlags<AccessFs>)> =
            system.chain(self.read.iter().cloned()).map(|path| (path, reads)).collect();
        granted.extend(compiler_programs()?.into_iter().map(|path| (path, reads | AccessFs::Execute)));
        granted.push((self.scratch.clone(), all & !AccessFs::Execute));
        granted.push(("/dev/null".into(), all & AccessFs::from_file(LEAST)));
        if self.gpu {
            let devices = std::fs::read_dir("/dev").into_iter().flatten().flatten();
            let nvidia = devices.filter(|e| e.file_name().to_string_lossy().starts_with("nvidia"));
            granted.extend(nvidia.map(|e| (e.path(), all & !AccessFs::Execute)));
            // The driver names its threads there.
            granted.push(("/proc/self".into(), all & !AccessFs::Execute));
            // Where there is no Triton, compiling a plan in it says so.
            if let Ok(triton) = triton::toolchain() {
                granted.extend(triton.read.iter().map(|path| (path.clone(), reads)));
                granted.extend(triton.programs.iter().map(|path| (path.clone(), reads | AccessFs::Execute)));
            }
        }
        for (path, mut access) in granted {
            let file = PathFd::new(&path).map_err(|e| format!("sandbox: {}: {e}", path.display()))?;
            if !path.is_dir() {
                access &= AccessFs::from_file(LEAST);
            }
            rules = rules.add_rule(PathBeneath::new(file, access)).map_err(|e| lacks(&e))?;
        }
        let status = rules.restrict_self().map_err(|e| lacks(&e))?;
        if status.ruleset == RulesetStatus::NotEnforced {
            return Err(lacks(&"Landlock is off"));
        }
        refuse_sockets().map_err(|e| lacks(&e))
    }
}

/// The programs that compiling C++ starts, and the loader that starts them.
fn compiler_programs() -> Result<Vec<PathBuf>, String> {
    let Some(compiler) = compiler_path() else { return Ok(Vec::new()) };
    let mut found = vec![compiler.clone()];
    for program in ["cc1plus", "as", "ld", "collect2", "lto-wrapper"] {
        let asked = Command::new(&compiler).arg(format!("-print-prog-name={program}")).output();
        let asked = asked.map_err(|e| format!("sandbox: {}: {e}", compiler.display()))?;
        found.extend(program_path(String::from_utf8_lossy(&asked.stdout).trim()));
    }
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    found.extend(loaders.iter().map(PathBuf::from));
    Ok(found.iter().filter_map(|path| path.canonicalize().ok()).collect())
}

/// A program's path: as given, else the first on `$PATH`.
pub(crate) fn program_path(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_program(file))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Lets `socket` make local ones only.
fn refuse_sockets() -> Result<(), seccompiler::Error> {
    let local = libc::AF_UNIX as u64;
    let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, local)?;
    let rules = BTreeMap::from([(libc::SYS_socket, vec![SeccompRule::new(vec![other])?])]);
    let refused = SeccompAction::Errno(libc::EACCES as u32);
    let arch = std::env::consts::ARCH.try_into()?;
    let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch)?.try_into()?;
    seccompiler::apply_filter(&filter)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpStream;

    use super::*;

    /// What a caged thread can and cannot do; only the thread is caged, and the programs that it starts.
    #[test]
    fn a_caged_thread_reads_the_toolchain_and_writes_to_its_scratch_folder() {
        let (scratch, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("secret"), "x").unwrap();
        let sandbox = Sandbox { read: Vec::new(), scratch: scratch.path().to_owned(), gpu: false };
        let (scratch, outside) = (scratch.path().to_owned(), outside.path().to_owned());
        let caged = std::thread::spawn(move || {
            if let Err(reason) = sandbox.enter() {
                assert!(std::env::var_os("CI").is_none(), "{reason}");
                return;
            }
            fs::write(scratch.join("kept"), "y").unwrap();
            assert!(fs::read("/usr/bin/env").is_ok());
            assert!(fs::read(outside.join("secret")).is_err());
            assert!(fs::read("/etc/passwd").is_err());
            assert!(fs::write(outside.join("new"), "z").is_err());
            assert!(Command::new("/bin/sh").arg("-c").arg("true").status().is_err());
            let refused = TcpStream::connect("127.0.0.1:9").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
            let source = scratch.join("a.cpp");
            fs::write(&source, "#include <stdint.h>\nextern \"C\" int f() { return 1; }\n").unwrap();
            if let Some(compiler) = compiler_path() {
                let mut command = Command::new(compiler);
                command.env("TMPDIR", &scratch).args(["-shared", "-fPIC", "-o"]).arg(scratch.join("a.so"));
                assert!(command.arg(&source).status().unwrap().success());
            }
        });
        caged.join().unwrap();
    }

    /// The scratch folder is the one for temporary files.
    #[test]
    fn a_caged_thread_compiles_plans_in_triton() {
        if let Err(e) = triton::version() {
            assert!(std::env::var_os("DKB_REQUIRE_TRITON").is_none(), "{e}");
            eprintln!("skipped: {e}");
            return;
        }
        let plan = include_str!("../../prompts/example-triton.plan");
        let plan = dkb_kernels::text::parse(plan).unwrap();
        let sandbox = Sandbox { read: Vec::new(), scratch: std::env::temp_dir(), gpu: true };
        let caged = std::thread::spawn(move || {
            if let Err(reason) = sandbox.enter() {
                assert!(std::env::var_os("CI").is_none(), "{reason}");
                return;
            }
            assert!(fs::read("/etc/passwd").is_err());
            assert_eq!(triton::compile(&plan, "sm_90").unwrap().len(), 6);
        });
        caged.join().unwrap();
    }
}
