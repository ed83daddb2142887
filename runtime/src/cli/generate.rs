//! TPC-H data on first use, with a progress bar.
//!
//! Invariant: an interruption leaves nothing behind; the next run starts afresh.

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

use super::CliError;
use super::signals::Unfinished;
use crate::tpch::generate::{self, folder_name};

/// The folder of TPC-H data of a scale factor under `root`, generated unless it is there.
///
/// # Errors
/// [`CliError::Input`] names the folder that cannot be written, and why.
pub(super) fn generate(scale: f64, root: &Path) -> Result<PathBuf, CliError> {
    let name = folder_name(scale);
    let partial = root.join(format!(".{name}.partial-{}", std::process::id()));
    let lock = root.join(format!(".{name}.lock"));
    let _partial = Unfinished::new(&partial);
    // A lock that is there belongs to another process.
    let _lock = (!lock.exists()).then(|| Unfinished::new(&lock));
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("generating {prefix}: {bar:32} {percent}% {elapsed} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(name);
    let generated = generate::generate(scale, root, &|progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        bar.set_message(format!("{} MB", progress.bytes / 1_000_000));
    });
    bar.finish_and_clear();
    generated.map_err(|e| CliError::Input(e.to_string()))
}
