//! Which plugins there are. One at a time is loaded, by name; a bad file never unseats a good one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::load::{LoadError, Loaded, Loader, digest_of};
use super::source::Source;

/// One name's plugin, as it is now.
#[derive(Clone, Default)]
pub struct Entry {
    /// The version that serves.
    pub current: Option<Arc<Loaded>>,
    /// Where it lies.
    pub source: Option<Source>,
    /// The newer file of that source, or the one of a source before it, that was refused.
    pub refused: Option<Refusal>,
    /// Sources that give the name too, and do not serve.
    pub shadowed: Vec<Source>,
}

/// A file that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `sha256:` and the digest of the refused file.
    pub digest: String,
    /// What is wrong and what to do, naming plugin and source.
    pub message: String,
    /// CamelCase.
    pub reason: &'static str,
}

/// What one source gives for a name.
#[derive(Clone, Default)]
struct Offer {
    current: Option<Arc<Loaded>>,
    refused: Option<Refusal>,
}

/// All plugins by name.
pub struct Registry {
    loader: Arc<Loader>,
    /// How to bring a plugin here, for those who miss one; `NAME` stands for its name.
    remedy: String,
    offers: Mutex<HashMap<String, BTreeMap<Source, Offer>>>,
    /// Whose turn it is to offer a file of a name: of two offers at once, the later one has the last word, however long
    /// the first one compiles.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    changed: watch::Sender<u64>,
}

impl Registry {
    /// An empty registry. `remedy`: how to bring a plugin here, with `NAME` for its name.
    pub fn new(loader: Arc<Loader>, remedy: impl Into<String>) -> Self {
        Self {
            loader,
            remedy: remedy.into(),
            offers: Mutex::default(),
            turns: Mutex::default(),
            changed: watch::channel(0).0,
        }
    }

    /// The plugin of this name; empty when there is none.
    pub fn get(&self, name: &str) -> Entry {
        self.lock().get(name).map(serving).unwrap_or_default()
    }

    /// The plugin of this name that a Provider takes from a registry.
    pub fn artifact(&self, name: &str, reference: &str) -> Entry {
        self.get(&slot(name, &Source::Artifact(reference.to_owned())))
    }

    /// How to bring this plugin here.
    pub fn remedy(&self, name: &str) -> String {
        self.remedy.replace("NAME", name)
    }

    /// Names of all plugins that serve every Provider.
    pub fn names(&self) -> Vec<String> {
        let offers = self.lock();
        let shared = offers.iter().filter(|(_, offers)| {
            offers.iter().any(|(source, offer)| offer.current.is_some() && !matches!(source, Source::Artifact(_)))
        });
        let mut names: Vec<_> = shared.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Tells of each change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Offers a file. Calls in flight end on the version that they began with.
    pub async fn offer(&self, name: &str, source: &Source, bytes: Vec<u8>) {
        let digest = digest_of(&bytes);
        let slot = slot(name, source);
        let turn = self.turns.lock().unwrap_or_else(PoisonError::into_inner).entry(slot).or_default().clone();
        let _turn = turn.lock().await;
        let known = self.offered(name, source);
        if known.refused.as_ref().is_some_and(|r| r.digest == digest) {
            return;
        }
        if known.current.as_ref().is_some_and(|c| c.digest == digest) {
            // The good file is back: the refusal of another is history.
            self.update(name, source, |offer| offer.refused = None);
            return;
        }
        match self.loader.load(name, bytes).await {
            Ok(loaded) => {
                let (origin, took) = loaded.loading;
                tracing::info!(plugin = name, version = %loaded.description.version, %digest, %source, ?origin, ms = took.as_millis() as u64, "plugin loaded");
                self.update(name, source, |offer| *offer = Offer { current: Some(loaded), refused: None });
            }
            Err(error) => self.refuse(name, source, digest, &error),
        }
    }

    /// Refuses a file; what serves goes on serving.
    pub fn refuse(&self, name: &str, source: &Source, digest: String, error: &LoadError) {
        let message = format!("plugin {name} from {source} is refused: {error}");
        let refusal = Refusal { digest, message, reason: error.reason() };
        if self.offered(name, source).refused.as_ref() != Some(&refusal) {
            tracing::warn!(plugin = name, digest = %refusal.digest, "{}", refusal.message);
            self.update(name, source, |offer| offer.refused = Some(refusal));
        }
    }

    /// The refusal of what a source gives for a name.
    pub fn refusal(&self, name: &str, source: &Source) -> Option<Refusal> {
        self.offered(name, source).refused
    }

    /// The source gives this name no more.
    pub fn withdraw(&self, name: &str, source: &Source) {
        let slot = slot(name, source);
        let mut offers = self.lock();
        let gone = offers.get_mut(&slot).is_some_and(|offers| offers.remove(source).is_some());
        offers.retain(|_, offers| !offers.is_empty());
        drop(offers);
        if gone {
            tracing::info!(plugin = name, %source, "plugin withdrawn");
            self.changed.send_modify(|n| *n += 1);
        }
    }

    fn offered(&self, name: &str, source: &Source) -> Offer {
        self.lock().get(&slot(name, source)).and_then(|offers| offers.get(source)).cloned().unwrap_or_default()
    }

    fn update(&self, name: &str, source: &Source, change: impl FnOnce(&mut Offer)) {
        change(self.lock().entry(slot(name, source)).or_default().entry(source.clone()).or_default());
        self.changed.send_modify(|n| *n += 1);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, BTreeMap<Source, Offer>>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Under which key a source's plugin is kept: an artifact's apart, since only some Providers use it.
fn slot(name: &str, source: &Source) -> String {
    match source {
        Source::Artifact(reference) => format!("{name}={reference}"),
        _ => name.to_owned(),
    }
}

/// Of all that sources give, what serves.
fn serving(offers: &BTreeMap<Source, Offer>) -> Entry {
    let first = offers.iter().find(|(_, offer)| offer.current.is_some());
    let source = first.map(|(source, _)| source.clone());
    // A refusal behind what serves is of no concern to those who use it.
    let mut before = offers.iter().take_while(|(at, _)| source.as_ref().is_none_or(|source| *at <= source));
    Entry {
        refused: before.find_map(|(_, offer)| offer.refused.clone()),
        shadowed: offers.keys().filter(|at| source.as_ref().is_some_and(|source| source != *at)).cloned().collect(),
        current: first.and_then(|(_, offer)| offer.current.clone()),
        source,
    }
}
