//! A folder of plugins: what the administrator put there, watched.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use notify::{RecursiveMode, Watcher};
use tokio::sync::Notify;

use super::Source;
use crate::plugin::limits::FILE_BYTES;
use crate::plugin::load::LoadError;
use crate::plugin::registry::Registry;

/// A folder is looked through at least this often, should the system's notice of a change be lost.
const RESCAN: Duration = Duration::from_secs(30);
/// Several notices in a row are one change.
const SETTLE: Duration = Duration::from_millis(50);

/// A folder of `NAME.wasm` files.
pub struct Directory {
    path: PathBuf,
    seen: HashMap<String, Stamp>,
}

/// Tells whether a file may have changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: Option<SystemTime>,
}

impl Directory {
    /// The folder at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), seen: HashMap::new() }
    }

    /// Offers every file that changed since the last look, and withdraws those that are gone.
    ///
    /// # Errors
    /// When the folder cannot be read; then nothing is withdrawn.
    pub async fn scan(&mut self, registry: &Registry) -> io::Result<()> {
        let found = list(&self.path)?;
        for (name, (path, stamp)) in &found {
            if self.seen.get(name) == Some(stamp) {
                continue;
            }
            let source = Source::File(path.clone());
            if stamp.len > FILE_BYTES as u64 {
                registry.refuse(name, &source, "unread".into(), &LoadError::TooLarge(stamp.len));
            } else {
                match fs::read(path) {
                    Ok(bytes) => registry.offer(name, &source, bytes).await,
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, "a plugin file cannot be read");
                        continue;
                    }
                }
            }
            self.seen.insert(name.clone(), *stamp);
        }
        let path = &self.path;
        self.seen.retain(|name, _| {
            let there = found.contains_key(name);
            if !there {
                registry.withdraw(name, &Source::File(path.join(format!("{name}.wasm"))));
            }
            there
        });
        Ok(())
    }

    /// Scans whenever the folder changes. Ends never.
    pub async fn watch(mut self, registry: Arc<Registry>) {
        let changed = Arc::new(Notify::new());
        let notice = changed.clone();
        let watcher = notify::recommended_watcher(move |_| notice.notify_one()).and_then(|mut watcher| {
            watcher.watch(&self.path, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            tracing::warn!(path = %self.path.display(), %error, "the folder cannot be watched; it is looked through every {RESCAN:?}");
        }
        loop {
            if let Err(error) = self.scan(&registry).await {
                tracing::warn!(path = %self.path.display(), %error, "the plugin folder cannot be read; what is loaded goes on");
            }
            let _ = tokio::time::timeout(RESCAN, changed.notified()).await;
            tokio::time::sleep(SETTLE).await;
        }
    }
}

fn list(dir: &Path) -> io::Result<HashMap<String, (PathBuf, Stamp)>> {
    use std::os::unix::fs::MetadataExt;
    let mut found = HashMap::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".wasm")) else {
            continue;
        };
        // Through links: a mounted ConfigMap is a folder of them.
        let Ok(meta) = fs::metadata(&path) else { continue };
        if meta.is_file() {
            let stamp = Stamp { inode: meta.ino(), len: meta.len(), modified: meta.modified().ok() };
            found.insert(name.to_owned(), (path.clone(), stamp));
        }
    }
    Ok(found)
}
