//! The folder of a run: `run.json`, and per query and round `qNN/RR/` with `prompt.md`, `reply.json`,
//! `candidate.plan` (where the reply holds one) and `verdict.json`, written in this order.
//!
//! Invariant: a file appears whole or not at all and is never written again, so that a run that was stopped at any
//! point goes on from what the folder holds.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::provider::Reply;
use crate::file::{PARTIAL, sync, write_file};
use crate::verdict::{Round, Run};

/// A run's folder, held by one process.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    /// The folder itself; locked until it is closed.
    _lock: File,
}

/// What `verdict.json` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Judged {
    #[serde(flatten)]
    pub(crate) round: Round,
    /// How long judging took, in seconds.
    pub(crate) seconds: f64,
}

impl Store {
    /// Opens the folder of a run, or makes it, and removes what a stopped process left half written.
    ///
    /// # Errors
    /// The folder belongs to another run or is in use, or cannot be written to.
    pub(crate) fn open(folder: &Path, run: &Run) -> Result<Store> {
        fs::create_dir_all(folder).with_context(|| cannot("make", folder))?;
        let lock = File::open(folder).with_context(|| cannot("open", folder))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "{} is in use by another process: wait for it, or name another folder",
                    folder.display()
                )
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| cannot("lock", folder)),
        }
        let store = Store { folder: folder.to_owned(), _lock: lock };
        remove_partial(folder)?;
        let path = folder.join("run.json");
        match read_json::<Run>(&path)? {
            Some(old) => {
                let same = Run { environment: run.environment.clone(), ..old };
                ensure!(
                    same == *run,
                    "{} describes another run: name another folder, or give the same options",
                    path.display()
                );
            }
            None => write_json(&path, run)?,
        }
        Ok(store)
    }

    pub(crate) fn prompt(&self, query: &str, round: u32) -> Result<Option<String>> {
        read(&self.round(query, round).join("prompt.md"))
    }

    pub(crate) fn reply(&self, query: &str, round: u32) -> Result<Option<Reply>> {
        read_reply(&self.folder, query, round)
    }

    pub(crate) fn candidate(&self, query: &str, round: u32) -> Result<Option<String>> {
        read(&self.round(query, round).join("candidate.plan"))
    }

    pub(crate) fn verdict(&self, query: &str, round: u32) -> Result<Option<Judged>> {
        read_json(&self.round(query, round).join("verdict.json"))
    }

    pub(crate) fn add_prompt(&self, query: &str, round: u32, prompt: &str) -> Result<()> {
        let folder = self.round(query, round);
        fs::create_dir_all(&folder).with_context(|| cannot("make", &folder))?;
        for folder in [&self.folder, &self.folder.join(query)] {
            sync(folder)?;
        }
        add(&folder.join("prompt.md"), prompt)
    }

    pub(crate) fn add_reply(&self, query: &str, round: u32, reply: &Reply) -> Result<()> {
        write_json(&self.round(query, round).join("reply.json"), reply)
    }

    pub(crate) fn add_candidate(&self, query: &str, round: u32, plan: &str) -> Result<()> {
        add(&self.round(query, round).join("candidate.plan"), plan)
    }

    pub(crate) fn add_verdict(&self, query: &str, round: u32, judged: &Judged) -> Result<()> {
        write_json(&self.round(query, round).join("verdict.json"), judged)
    }

    fn round(&self, query: &str, round: u32) -> PathBuf {
        round_folder(&self.folder, query, round)
    }
}

/// The reply of a round in a run's folder, which another process may hold.
pub(crate) fn read_reply(folder: &Path, query: &str, round: u32) -> Result<Option<Reply>> {
    read_json(&round_folder(folder, query, round).join("reply.json"))
}

/// A file's text; None where there is no file.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| cannot("read", path)),
    }
}

fn round_folder(folder: &Path, query: &str, round: u32) -> PathBuf {
    folder.join(query).join(format!("{round:02}"))
}

/// Adds a file to the folder; one that is there stays.
fn add(path: &Path, text: &str) -> Result<()> {
    if path.exists() { Ok(()) } else { write_file(path, text) }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).with_context(|| cannot("write", path))?;
    text.push('\n');
    add(path, &text)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(text) = read(path)? else { return Ok(None) };
    let value = serde_json::from_str(&text)
        .with_context(|| format!("{} is damaged: remove it to do its step again", path.display()))?;
    Ok(Some(value))
}

/// Removes files that were being written, in a run's folder and the two levels below it.
fn remove_partial(run: &Path) -> Result<()> {
    for query in partials_removed(run)? {
        for round in partials_removed(&query)? {
            partials_removed(&round)?;
        }
    }
    Ok(())
}

/// Removes a folder's own, and returns the folders in it.
fn partials_removed(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| cannot("read", folder))? {
        let entry = entry.with_context(|| cannot("read", folder))?;
        let path = entry.path();
        let name = entry.file_name();
        if entry.file_type().with_context(|| cannot("read", &path))?.is_dir() {
            folders.push(path);
        } else if name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(PARTIAL)) {
            fs::remove_file(&path).with_context(|| cannot("remove", &path))?;
        }
    }
    Ok(folders)
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}", path.display())
}
