//! Ctrl-C and its kin: ends the worker, removes unfinished files, exits.
//!
//! Invariant: the signals are blocked in every thread and taken by one, which may therefore do ordinary
//! work (locks, file system) before it exits the process.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WORKER_GROUP: AtomicI32 = AtomicI32::new(0);
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Signals that end the program, and their numbers for the exit code `128 + n`.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Starts to handle signals. Call once, before any other thread starts.
pub(super) fn install() {
    // SAFETY: `set` is initialised by sigemptyset before use, and all calls only read or write locals.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in ENDING {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            // What nohup has set stays.
            if signal != libc::SIGHUP || action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut set, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both pointers are to live locals; the signals in `set` are blocked, as sigwait requires.
        while unsafe { libc::sigwait(&set, &mut signal) } != 0 {}
        INTERRUPTED.store(true, Ordering::SeqCst);
        end_worker_group();
        reap_worker();
        remove_unfinished();
        // SAFETY: ends the process at once; the other threads must not see destructors run beside them.
        unsafe { libc::_exit(128 + signal) };
    });
}

/// Unblocks what [`install`] blocked in the process that started this one.
pub(super) fn restore() {
    // SAFETY: `set` is initialised by sigemptyset before use and both calls only read or write it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}

/// Returns, unless the program is being interrupted: then it waits for the exit. Call before reporting an
/// error or exiting, so that the consequences of an interruption are not reported as failures.
pub(super) fn settle() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Names the process group that an interruption kills; 0 for none.
pub(super) fn set_worker_group(group: i32) {
    WORKER_GROUP.store(group, Ordering::SeqCst);
}

/// Kills the worker and the compilers it started, if any run.
pub(super) fn end_worker_group() {
    let group = WORKER_GROUP.load(Ordering::SeqCst);
    if group > 0 {
        // SAFETY: a plain system call; a group that is gone gives an error, which is as well.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}

/// Takes the killed worker's exit status, so that it is gone when this process is.
fn reap_worker() {
    let worker = WORKER_GROUP.load(Ordering::SeqCst);
    if worker > 0 {
        // SAFETY: a plain system call without a pointer; the worker leads the group, so their ids are equal.
        unsafe { libc::waitpid(worker, std::ptr::null_mut(), 0) };
    }
}

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file or folder that must not survive an interruption. Dropping the guard withdraws that.
#[derive(Debug)]
pub(super) struct Unfinished(PathBuf);

impl Unfinished {
    /// Registers `path`, which need not exist yet.
    pub(super) fn new(path: &Path) -> Unfinished {
        unfinished().push(path.to_owned());
        Unfinished(path.to_owned())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        unfinished().retain(|path| *path != self.0);
    }
}

fn remove_unfinished() {
    for path in unfinished().iter() {
        // Other threads may still be writing into a folder: try again until it is gone.
        for _ in 0..50 {
            let gone = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            if gone.is_ok() || !path.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
