//! Which plugins there are. One at a time is loaded, by name; a bad file never unseats a good one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::load::{LoadError, Loaded, Loader};
use crate::model::spec_hash::hex;

/// One name's plugin.
#[derive(Clone, Default)]
pub struct Entry {
    /// The version that serves.
    pub current: Option<Arc<Loaded>>,
    /// The file that was refused after it.
    pub refused: Option<Refusal>,
}

/// A file that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `sha256:` and the digest of the refused file.
    pub digest: String,
    /// What is wrong and what to do, naming plugin and source.
    pub message: String,
}

/// All plugins by name.
pub struct Registry {
    loader: Arc<Loader>,
    entries: Mutex<HashMap<String, Entry>>,
    /// Whose turn it is to offer a file of a name: of two offers at once, the later one has the last word, however long
    /// the first one compiles.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    changed: watch::Sender<u64>,
}

impl Registry {
    /// An empty registry.
    pub fn new(loader: Arc<Loader>) -> Self {
        Self { loader, entries: Mutex::default(), turns: Mutex::default(), changed: watch::channel(0).0 }
    }

    /// The plugin of this name; empty when there is none.
    pub fn get(&self, name: &str) -> Entry {
        self.lock().get(name).cloned().unwrap_or_default()
    }

    /// Names of all plugins that serve.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.lock().iter().filter(|(_, e)| e.current.is_some()).map(|(n, _)| n.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Tells of each change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Offers a file. `source` is where it lies, for people. Calls in flight end on the version that they began with.
    pub async fn offer(&self, name: &str, source: &str, bytes: Vec<u8>) {
        use sha2::{Digest, Sha256};
        let digest = format!("sha256:{}", hex(&Sha256::digest(&bytes)));
        let turn =
            self.turns.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default().clone();
        let _turn = turn.lock().await;
        let known = self.get(name);
        if known.refused.as_ref().is_some_and(|r| r.digest == digest) {
            return;
        }
        if known.current.as_ref().is_some_and(|c| c.digest == digest) {
            // The good file is back: the refusal of another is history.
            self.update(name, |entry| entry.refused = None);
            return;
        }
        match self.loader.load(name, bytes).await {
            Ok(loaded) => {
                let (origin, took) = loaded.loading;
                tracing::info!(plugin = name, version = %loaded.description.version, %digest, ?origin, ms = took.as_millis() as u64, "plugin loaded");
                self.update(name, |entry| *entry = Entry { current: Some(Arc::new(loaded)), refused: None });
            }
            Err(error) => self.refuse(name, source, digest, &error),
        }
    }

    /// Refuses a file; what serves goes on serving.
    pub fn refuse(&self, name: &str, source: &str, digest: String, error: &LoadError) {
        let message = format!("plugin {name} from {source} is refused: {error}");
        tracing::warn!(plugin = name, %digest, "{message}");
        self.update(name, |entry| entry.refused = Some(Refusal { digest, message }));
    }

    /// The file of this name is gone.
    pub fn withdraw(&self, name: &str) {
        if self.lock().contains_key(name) {
            tracing::info!(plugin = name, "plugin withdrawn");
            self.update(name, |entry| *entry = Entry::default());
        }
    }

    fn update(&self, name: &str, change: impl FnOnce(&mut Entry)) {
        change(self.lock().entry(name.to_owned()).or_default());
        self.changed.send_modify(|n| *n += 1);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
