//! Files that appear whole, on the disk, or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

/// How the names of files end that are being written.
pub(crate) const PARTIAL: &str = ".partial";

/// Writes a file as a whole, in place of one that is there. What a process leaves half written has a name that begins
/// with a dot and ends with `.partial`.
///
/// # Errors
/// Names the file.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}{PARTIAL}", std::process::id()));
    let partial = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().with_context(|| {
        // The write has failed: whether its remains can be removed changes nothing.
        let _ = fs::remove_file(&partial);
        format!("cannot write {}: name a file in a folder that exists and can be written to", path.display())
    })?;
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => sync(Path::new(".")),
        Some(folder) => sync(folder),
        None => Ok(()),
    }
}

/// Makes the names in a folder last.
///
/// # Errors
/// Names the folder.
pub(crate) fn sync(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot write {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_or_absent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chart.svg");
        write_file(&path, "one").unwrap();
        write_file(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = write_file(&dir.path().join("none/chart.svg"), "").unwrap_err();
        assert!(format!("{error:#}").contains("none/chart.svg: name a file"), "{error:#}");
    }
}
