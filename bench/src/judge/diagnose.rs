//! Why a candidate faults: it runs again on small data, in a worker in which each buffer is an allocation whose ends
//! are watched. The worker writes each launch to its log before it happens, so that an address is a buffer and an index.
//!
//! On the host, pages around an allocation cannot be touched, and a handler writes the address of a fault. On GPUs the
//! worker is a child of `compute-sanitizer`, which reports the address.

use std::io::Write;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::time::Duration;

use anyhow::Result;
use dkb_runtime::device::cache::DiskCache;
use dkb_runtime::exec::{Argument, Launching};
use dkb_runtime::tpch::generate::{folder_name, generate};
use libc::{c_int, c_void, siginfo_t};

use super::process::{Ended, Process};
use super::worker::{Open, Program, Purpose};
use super::{Judge, words};

/// Scale factor of the small data.
const SCALE: f64 = 0.01;

/// How long preparing may take, under a memory checker and with nothing compiled yet.
const START_LIMIT: Duration = Duration::from_secs(240);

/// How long the run may take on the host, and under a memory checker.
const RUN_LIMIT: Duration = Duration::from_secs(10);
const CHECKED_LIMIT: Duration = Duration::from_secs(60);

/// What a worker's log has in front of a launch and of a fault, and a memory checker's in front of every line.
const LAUNCH: &str = "launch ";
const FAULT: &str = "fault ";
const CHECKED: &str = "========= ";

/// Addresses below are null, or numbers taken for addresses.
const FIRST_ADDRESS: u64 = 1 << 20;

/// An access farther from an argument than this may have been meant for another one.
const FAR_BYTES: u64 = 16 << 30;

/// A run that faulted.
#[derive(Debug, Clone)]
pub(super) struct Faulted {
    pub(super) chunk_bytes: Option<u64>,
    pub(super) params: Vec<(String, String)>,
}

impl Judge {
    /// What a run that faulted does on small data, in sentences.
    pub(super) fn diagnose(&self, candidate: &str, faulted: &Faulted) -> String {
        let name = folder_name(SCALE);
        match self.run_again(candidate, faulted) {
            Ok(found) => format!("Run again on {name} to find out why: {found}"),
            Err(e) => format!("It could not be run again on {name} to find out why: {e:#}"),
        }
    }

    fn run_again(&self, candidate: &str, Faulted { chunk_bytes, params }: &Faulted) -> Result<String> {
        let data = generate(SCALE, &DiskCache::from_env().dir().join("data"), &|_| ())?.canonicalize()?;
        let mut machine = self.config.machine.clone();
        machine.devices.truncate(1);
        let checker = if machine.gpu { memory_checker() } else { None };
        let blind = machine.gpu && checker.is_none();
        let open = Open {
            data,
            machine,
            chunk_bytes: *chunk_bytes,
            program: Program::Written(candidate.to_owned()),
            purpose: Purpose::Diagnose { checker: checker.clone() },
        };
        let limit = if checker.is_some() { CHECKED_LIMIT } else { RUN_LIMIT.min(self.config.limit) };
        let (ran, log) = Process::once(&open, params, START_LIMIT, limit);
        let mut found = explain(&log, ran.err().as_ref());
        if blind {
            found += " Accesses out of bounds could not be looked for: there is no `compute-sanitizer` on PATH or \
                      below /usr/local/cuda.";
        }
        Ok(found)
    }
}

/// `compute-sanitizer`: on `$PATH`, else of a CUDA installation.
fn memory_checker() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let homes = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let installed = homes.chain([PathBuf::from("/usr/local/cuda")]).map(|home| home.join("bin"));
    let mut files = std::env::split_paths(&path).chain(installed).map(|dir| dir.join("compute-sanitizer"));
    files.find(|file| file.is_file())
}

/// Writes a launch to a worker's log.
pub(super) fn note(launching: &Launching) {
    // A launch is made of names and numbers, which have a form in JSON.
    let launching = serde_json::to_string(launching).unwrap_or_default();
    eprintln!("{LAUNCH}{launching}");
}

/// Makes faults of this process end it with a line in its log.
pub(super) fn note_faults() {
    // SAFETY: an all-zero sigaction is a valid one; the handler calls nothing that a signal handler must not.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigaction(signal, &action, null_mut());
        }
    }
}

/// Writes `fault SIGNAL ACCESS ADDRESS` and ends the process. Nothing here allocates or locks.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    /// What the kernel says where an address is none of the machine's.
    const SI_KERNEL: c_int = 0x80;
    // SAFETY: the system hands over valid records.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as u64) };
    let address = if code == SI_KERNEL { u64::MAX } else { address };
    let mut line = [0; 96];
    let mut rest = &mut line[..];
    // The line has room for two numbers.
    let _ = writeln!(rest, "{FAULT}{signal} {} {address}", access(context));
    let bytes = 96 - rest.len();
    // SAFETY: plain system calls; the line has so many bytes.
    unsafe {
        libc::write(2, line.as_ptr().cast(), bytes);
        libc::_exit(128 + signal);
    }
}

/// How the instruction that faulted touched memory, in one word.
#[cfg(target_arch = "x86_64")]
fn access(context: *mut c_void) -> &'static str {
    /// The bit of a page fault's error code that is set for writes.
    const WRITE: i64 = 2;
    // SAFETY: the third argument of a handler with SA_SIGINFO.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    if registers[libc::REG_ERR as usize] & WRITE != 0 { "writes" } else { "reads" }
}

#[cfg(not(target_arch = "x86_64"))]
fn access(_: *mut c_void) -> &'static str {
    "touches"
}

/// What a run was ended by, from its log: a memory checker's report, the handler's line, or the launch under way.
fn explain(log: &str, ended: Option<&Ended>) -> String {
    let last = |mark: &str| log.lines().filter_map(|line| line.strip_prefix(mark)).next_back();
    let launch: Option<Launching> = last(LAUNCH).and_then(|line| serde_json::from_str(line).ok());
    let places = launch.as_ref().map_or(&[][..], |launch| &launch.places);
    let kernel = match &launch {
        Some(Launching { kernel, phase, .. }) => format!("kernel `{kernel}` of phase `{phase}`"),
        None => "the plan, before its first launch,".to_owned(),
    };
    if let Some(report) = Report::find(log) {
        return format!("{kernel} {}.", report.words(places));
    }
    if let Some(fault) = last(FAULT) {
        return format!("{kernel} {}.", fault_words(fault, places));
    }
    match ended {
        None => "it ended without a fault there, on one device: the size of the data matters, or the number of devices.".to_owned(),
        Some(Ended::TimeOut(limit)) => {
            format!("{kernel} was still running after {:.0} s.", limit.as_secs_f64())
        }
        Some(other) => {
            // A worker that is gone is described with its log's last line, which may be a launch.
            let words = words(other);
            let how = words.split(&format!(": {LAUNCH}")).next().unwrap_or_default();
            format!("{how}; the last launch was that of {kernel}.")
        }
    }
}

/// The handler's line in words.
fn fault_words(fault: &str, places: &[Argument]) -> String {
    let mut words = fault.split(' ');
    let signal: c_int = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
    let access = words.next().unwrap_or("touches");
    let address = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
    match signal {
        libc::SIGILL => {
            "comes to where the compiler left off, because what is written there is undefined".to_owned()
        }
        libc::SIGFPE => "divides an integer by zero, or the smallest one by -1".to_owned(),
        _ if address == u64::MAX => {
            "uses an address beyond all memory: an index is far off, or was never set".to_owned()
        }
        _ => format!("{access} at {}", place(address, places)),
    }
}

/// What a memory checker reports first.
struct Report<'l> {
    /// Such as `Invalid __global__ write of size 8 bytes`.
    what: &'l str,
    /// The lines below it.
    more: Vec<&'l str>,
}

impl<'l> Report<'l> {
    fn find(log: &'l str) -> Option<Report<'l>> {
        let is_head = |line: &&str| line.starts_with("Invalid ") || line.starts_with("Misaligned ");
        let mut lines =
            log.lines().filter_map(|line| line.strip_prefix(CHECKED)).skip_while(|line| !is_head(line));
        let what = lines.next()?;
        let more = lines.take_while(|line| line.starts_with(' ')).map(str::trim).collect();
        Some(Report { what, more })
    }

    fn words(&self, places: &[Argument]) -> String {
        let behind = |mark: &str| self.more.iter().find_map(|line| Some(line.split_once(mark)?.1));
        let number = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(text.len());
            u64::from_str_radix(&text[..end], 16).ok()
        };
        let address =
            ["Address 0x", "Access at 0x", "Access to 0x"].iter().find_map(|m| behind(m)).and_then(number);
        let mut words = format!("makes an access that is refused: {}", self.what);
        if let Some(address) = address {
            // Shared and local memory have addresses of their own.
            let global = self.what.contains("__global__");
            let place = if global { place(address, places) } else { format!("address {address:#x}") };
            words += &format!(" at {place}");
        }
        if let Some(thread) = behind("by thread ") {
            words += &format!(", by thread {thread}");
        }
        let source = dkb_kernels::SOURCE_NAME;
        if let Some(line) = behind(&format!("{source}:")) {
            words += &format!(
                ", in {source}:{}",
                line.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default()
            );
        }
        words
    }
}

/// An address as an index of the argument that it is nearest to.
fn place(address: u64, places: &[Argument]) -> String {
    if address < FIRST_ADDRESS {
        return format!("address {address:#x}, which is a null pointer or a number taken for one");
    }
    let nearest = places.iter().filter_map(|argument| {
        let end = argument.address + argument.elements? * argument.element_bytes;
        Some((argument.address.saturating_sub(address).max((address + 1).saturating_sub(end)), argument))
    });
    let Some((distance, argument)) = nearest.min_by_key(|(distance, _)| *distance) else {
        return format!("address {address:#x}");
    };
    let Argument { name, elements, element_bytes, .. } = argument;
    let index =
        (i128::from(address) - i128::from(argument.address)).div_euclid(i128::from(*element_bytes).max(1));
    let elements = elements.unwrap_or_default();
    let at = format!("index {index} of `{name}`, which has {elements} elements of {element_bytes} bytes");
    match distance {
        0..=FAR_BYTES => at,
        _ => format!("an address far from all that it is given; of that, {at}, is the nearest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(more: &str) -> String {
        let place = |name: &str, address, elements, element_bytes| Argument {
            name: name.to_owned(),
            address,
            elements: Some(elements),
            element_bytes,
        };
        let places = vec![place("sums", 0x7000_0000, 1000, 4), place("t.k", 0x7fff_0000, 7, 2)];
        let launch = Launching { device: 0, phase: "scan".to_owned(), kernel: "add".to_owned(), places };
        format!("{LAUNCH}{}\n{more}", serde_json::to_string(&launch).unwrap())
    }

    #[test]
    fn a_memory_checkers_report_names_buffer_and_index() {
        let report = "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n\
            =========     at add(unsigned long long, int *)+0x150 in plan.cu:12\n\
            =========     by thread (1,0,0) in block (2,0,0)\n\
            =========     Address 0x70001348 is out of bounds\n\
            =========     and is 937 bytes after the nearest allocation at 0x70000000 of size 4,000 bytes\n\
            ========= \n========= ERROR SUMMARY: 1 error\n";
        let said = explain(&log(report), None);
        let wanted = "kernel `add` of phase `scan` makes an access that is refused: Invalid __global__ write of size 4 \
            bytes at index 1234 of `sums`, which has 1000 elements of 4 bytes, by thread (1,0,0) in block (2,0,0), in \
            plan.cu:12.";
        assert_eq!(said, wanted);
    }

    #[test]
    fn faults_and_hangs_on_the_host() {
        let said = explain(&log(&format!("{FAULT}11 writes {}\n", 0x7000_0000u64 + 4000)), None);
        let wanted = "writes at index 1000 of `sums`, which has 1000 elements of 4 bytes.";
        assert!(said.starts_with("kernel `add` of phase `scan`") && said.ends_with(wanted), "{said}");
        let said = explain(&log(&format!("{FAULT}11 reads {}\n", 0x7fff_0000u64 - 1)), None);
        assert!(said.contains("reads at index -1 of `t.k`"), "{said}");
        assert!(explain(&log("fault 11 reads 8\n"), None).contains("null pointer"));
        assert!(explain(&log("fault 8 reads 0\n"), None).contains("by zero"));
        let hung = Ended::TimeOut(Duration::from_secs(10));
        assert_eq!(
            explain(&log(""), Some(&hung)),
            "kernel `add` of phase `scan` was still running after 10 s."
        );
        let gone = Ended::Died(format!("it was ended by signal 9: {LAUNCH}{{}}"));
        let wanted = "it was ended by signal 9; the last launch was that of kernel `add` of phase `scan`.";
        assert_eq!(explain(&log(""), Some(&gone)), wanted);
        assert!(explain("", None).contains("without a fault"));
    }
}
