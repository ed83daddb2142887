//! Compiled code kept between processes (on disk) and between the devices of one process (in memory).
//!
//! Invariant: an entry on disk is complete or ignored. It is renamed into place, and ends with the SHA-256 of
//! what precedes it; trailing bytes do not disturb an ELF file, so entries load as they are.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest, Sha256};

const DIGEST_BYTES: usize = 32;

/// The disk cache of compiled plans.
#[derive(Debug, Clone)]
pub struct DiskCache {
    dir: PathBuf,
}

impl DiskCache {
    /// The cache in `$DKB_CACHE_DIR`, else `$XDG_CACHE_HOME/dkb`, else `$HOME/.cache/dkb`, else `dkb` in the
    /// folder for temporary files.
    pub fn from_env() -> Self {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let dir = var("DKB_CACHE_DIR")
            .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("dkb")))
            .or_else(|| var("HOME").map(|d| d.join(".cache/dkb")))
            .unwrap_or_else(|| std::env::temp_dir().join("dkb"));
        DiskCache { dir }
    }

    /// The cache in `dir`, which need not exist yet.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        DiskCache { dir: dir.into() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the complete entry `name`, if there is one.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(|_| self.dir.join(name))
    }

    /// Content of the entry `name`, if it is there, complete, and nobody else could have written it.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.dir.join(name);
        if !is_ours(&self.dir) || !is_ours(&path) {
            return None;
        }
        let mut bytes = fs::read(path).ok()?;
        let content = bytes.len().checked_sub(DIGEST_BYTES)?;
        let valid = Sha256::digest(&bytes[..content])[..] == bytes[content..];
        bytes.truncate(content);
        valid.then_some(bytes)
    }

    /// Stores the entry `name` and gives its path.
    ///
    /// # Errors
    /// The folder cannot be made or written.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
        file.write_all(content)?;
        file.write_all(&Sha256::digest(content))?;
        let path = self.dir.join(name);
        file.persist(&path)?;
        Ok(path)
    }
}

/// Whether `path` belongs to this process's user and others cannot write it: code is loaded from there.
fn is_ours(path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let user = fs::metadata("/proc/self").map(|m| m.uid());
    meta.mode() & 0o002 == 0 && user.is_ok_and(|uid| uid == meta.uid())
}

/// A key made of all `parts`: SHA-256 in hexadecimal.
pub fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Values made once per key, by one thread while others wait, and kept while somebody uses them.
pub(super) struct SharedMap<T> {
    slots: Mutex<Option<HashMap<String, Slot<T>>>>,
}

type Slot<T> = Arc<Mutex<Weak<T>>>;

impl<T> SharedMap<T> {
    pub(super) const fn new() -> Self {
        SharedMap { slots: Mutex::new(None) }
    }

    /// The value of `key`, made by `make` if nobody holds it.
    pub(super) fn get_or_make<E>(&self, key: &str, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            let slots = slots.get_or_insert_with(HashMap::new);
            slots.retain(|_, slot| Arc::strong_count(slot) > 1 || is_alive(slot));
            slots.entry(key.to_owned()).or_default().clone()
        };
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = held.upgrade() {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        *held = Arc::downgrade(&value);
        Ok(value)
    }
}

fn is_alive<T>(slot: &Slot<T>) -> bool {
    slot.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_damaged_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::at(dir.path().join("a/b"));
        assert_eq!(cache.get("x.cubin"), None);
        let path = cache.put("x.cubin", b"code").unwrap();
        assert_eq!(cache.get("x.cubin").as_deref(), Some(&b"code"[..]));
        assert_eq!(cache.path("x.cubin").as_deref(), Some(path.as_path()));
        for damaged in [&b""[..], b"short", &fs::read(&path).unwrap()[1..]] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.get("x.cubin"), None);
        }
        cache.put("x.cubin", b"again").unwrap();
        assert_eq!(cache.get("x.cubin").as_deref(), Some(&b"again"[..]));
    }

    #[test]
    fn keys_keep_parts_apart() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["a"]).len(), 64);
    }

    #[test]
    fn shared_values_are_made_once_and_dropped() {
        let map = SharedMap::new();
        let made = |n: i32| move || Ok::<_, ()>(n);
        let first = map.get_or_make("k", made(1)).unwrap();
        assert_eq!(*map.get_or_make("k", made(2)).unwrap(), 1);
        drop(first);
        assert_eq!(*map.get_or_make("k", made(3)).unwrap(), 3);
        assert_eq!(map.get_or_make("k", || Err::<i32, _>("no")), Err("no"));
    }
}
