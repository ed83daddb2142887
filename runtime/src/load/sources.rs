//! Files that devices read in place.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::device::{Device, Registration};
use crate::exec::Error;
use crate::table::{Table, workers};

/// The files of a data set that lie in the page cache and that the system lets devices read in place.
pub(crate) struct Sources {
    /// Dropped before the mappings, which the tables own.
    _registrations: Vec<Registration>,
    registered: HashSet<PathBuf>,
    _tables: Vec<Arc<Table>>,
}

impl Sources {
    /// Maps and registers what can be; any device of the kind will do.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn open(tables: &[Arc<Table>], device: &dyn Device) -> Result<Sources, Error> {
        let mut files: Vec<_> = tables.iter().flat_map(|t| t.files()).collect();
        // The largest takes longest.
        files.sort_by_key(|file| std::cmp::Reverse(file.mapping().map_or(0, |m| m.len())));
        let started = Instant::now();
        let registered = workers::map(files, |file| {
            let Some(mapping) = file.mapping().filter(|m| m.is_cached()) else { return Ok(None) };
            // SAFETY: the table keeps the mapping, this value keeps the table, and a loader, which keeps this
            // value, waits for its copies before it returns.
            let registration = unsafe { device.register(mapping.as_ptr(), mapping.len()) }?;
            Ok::<_, Error>(registration.map(|r| (r, file.path.clone())))
        })?;
        tracing::info!("files were made known to the devices in {:?}", started.elapsed());
        let (registrations, registered) = registered.into_iter().flatten().unzip();
        Ok(Sources { _registrations: registrations, registered, _tables: tables.to_vec() })
    }

    /// Whether devices read this file in place.
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.registered.contains(path)
    }
}
