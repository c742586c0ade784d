//! The plugin host as a suite uses it: real guests out of `bin/`, a Provider in one line, and what it talks to.

pub mod logs;
pub mod server;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use proxy_operator::model::clock::SystemClock;
use proxy_operator::model::instance::{Identity, Instance, Owner, Presence, Request};
use proxy_operator::model::login::Login;
use proxy_operator::model::provider::{ProviderSpec, Source};
use proxy_operator::model::secret::SecretBytes;
use proxy_operator::plugin::engine::Runtime;
use proxy_operator::plugin::grants::{Grants, SecretError, Secrets};
use proxy_operator::plugin::handle::{Handle, Shared};
use proxy_operator::plugin::load::{Loaded, Loader};
use proxy_operator::plugin::registry::Registry;
use proxy_operator::plugin::source::Source as Place;
use serde_json::{Map, Value, json};

pub use crate::process::PATIENCE;

/// The installation that instances are made for.
pub const INSTALLATION: &str = "installation-1";

/// `bin/` of this clone.
pub fn bin() -> PathBuf {
    crate::root().join("bin")
}

/// Where a plugin or test guest lies.
pub fn file_of(name: &str) -> PathBuf {
    let file = format!("{name}.wasm");
    [bin().join("plugins").join(&file), bin().join("guests").join(&file)]
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{file} is neither in bin/plugins nor in bin/guests; tests/run builds it"))
}

/// The bytes of a plugin or test guest.
pub fn bytes_of(name: &str) -> Vec<u8> {
    std::fs::read(file_of(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A loader without a cache.
pub fn loader() -> Arc<Loader> {
    loader_with(None)
}

/// A loader with its code kept in `cache`.
pub fn loader_with(cache: Option<PathBuf>) -> Arc<Loader> {
    let runtime = Runtime::new(cache).expect("wasmtime knows this machine");
    Arc::new(Loader::new(runtime, Arc::new(SystemClock::default())).expect("the host functions fit the contract"))
}

/// A registry that nothing was offered to yet.
pub fn registry() -> Arc<Registry> {
    Arc::new(Registry::new(loader(), "put NAME.wasm there"))
}

/// A file of a plugin folder, for the sake of its name.
pub fn file(path: &str) -> Place {
    Place::File(path.into())
}

/// A plugin or test guest, loaded once per process.
pub async fn loaded(name: &str) -> Arc<Loaded> {
    static LOADER: LazyLock<Arc<Loader>> = LazyLock::new(loader);
    static ALL: LazyLock<tokio::sync::Mutex<HashMap<String, Arc<Loaded>>>> = LazyLock::new(Default::default);
    let mut all = ALL.lock().await;
    if let Some(found) = all.get(name) {
        return found.clone();
    }
    let new = LOADER.load(name, bytes_of(name)).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    all.entry(name.to_owned()).or_insert(new).clone()
}

/// A secret of this value makes the store panic that is asked for it, as a fault of the host would.
pub const PANICS: &str = "of-a-store-that-panics";

/// Secrets by name, each with the one key `value`; they can be changed while they are used.
#[derive(Clone, Default)]
pub struct Vault(Arc<Mutex<BTreeMap<String, String>>>);

impl Vault {
    /// Sets a secret's value.
    pub fn set(&self, name: &str, value: &str) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(name.into(), value.into());
    }
}

#[async_trait]
impl Secrets for Vault {
    async fn resolve(&self, source: &Source) -> Result<SecretBytes, SecretError> {
        let name = source.secret_ref.as_ref().map(|r| r.name.clone()).unwrap_or_default();
        let all = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let value =
            all.get(&name).cloned().ok_or_else(|| SecretError::Missing(format!("Secret {name:?} is missing")))?;
        assert!(value != PANICS, "the store falls over secret {name}");
        Ok(value.into())
    }
}

/// A Provider in the making.
pub struct Setup {
    spec: Value,
    /// What its grants resolve to.
    pub vault: Vault,
    files: Option<PathBuf>,
    shared: Shared,
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

impl Setup {
    /// With nothing granted.
    pub fn new() -> Self {
        // As the program does first of all.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let spec = json!({"plugin": {"name": "any"}, "connections": {}, "secrets": {}, "config": {}, "limits": {}});
        Self { spec, vault: Vault::default(), files: None, shared: Shared::new(Arc::new(SystemClock::default())) }
    }

    /// With what its calls share with those of others.
    pub fn shared(self, shared: Shared) -> Self {
        Self { shared, ..self }
    }

    /// Grants an HTTP connection to this address, with loopback permitted.
    pub fn http(self, name: &str, to: SocketAddr) -> Self {
        self.connection(name, json!({"http": {"baseUrl": format!("http://{to}"), "permit": ["loopback"]}}))
    }

    /// The same, with a bearer token from a Secret of the same name.
    pub fn bearer(mut self, name: &str, to: SocketAddr, token: &str) -> Self {
        self = self.http(name, to);
        self.spec["connections"][name]["http"]["auth"] =
            json!({"bearer": {"secretRef": {"name": name, "key": "value"}}});
        self.vault.set(name, token);
        self
    }

    /// Grants a connection as a manifest writes it.
    pub fn connection(mut self, name: &str, connection: Value) -> Self {
        self.spec["connections"][name] = connection;
        self
    }

    /// Grants a secret that has this value.
    pub fn secret(mut self, name: &str, value: &str) -> Self {
        self.spec["secrets"][name] = json!({"secretRef": {"name": name, "key": "value"}});
        self.vault.set(name, value);
        self
    }

    /// A folder that a WASI guest may read.
    pub fn files(self, folder: &Path) -> Self {
        Self { files: Some(folder.to_owned()), ..self }
    }

    /// The Provider's config.
    pub fn config(mut self, config: Value) -> Self {
        self.spec["config"] = config;
        self
    }

    /// `limits.callTimeout`.
    pub fn call_timeout(mut self, secs: u64) -> Self {
        self.spec["limits"]["callTimeout"] = json!(format!("{secs}s"));
        self
    }

    /// `limits.concurrentCalls`.
    pub fn concurrent_calls(mut self, calls: u32) -> Self {
        self.spec["limits"]["concurrentCalls"] = json!(calls);
        self
    }

    /// The spec so far.
    pub fn spec(&self) -> ProviderSpec {
        serde_json::from_value(self.spec.clone()).unwrap_or_else(|e| panic!("{}: {e}", self.spec))
    }

    /// A plugin or test guest in the service of this Provider.
    pub async fn handle(&self, plugin: &str) -> Handle {
        self.bind(loaded(plugin).await)
    }

    /// The same with a plugin that is loaded already.
    pub fn bind(&self, plugin: Arc<Loaded>) -> Handle {
        self.bind_to(plugin, Arc::new(self.vault.clone()))
    }

    /// The same with credentials from there instead of the vault.
    pub fn bind_to(&self, plugin: Arc<Loaded>, secrets: Arc<dyn Secrets>) -> Handle {
        let spec = self.spec();
        let grants = Grants::new(&spec, secrets).unwrap_or_else(|e| panic!("{e}"));
        let grants = match &self.files {
            Some(folder) => grants.with_files(folder.clone()),
            None => grants,
        };
        let config: &Map<_, _> = &spec.config;
        Handle::new(plugin, "provider-1", Arc::new(grants), config, &spec.limits, INSTALLATION, &self.shared)
    }
}

/// The identity of a Proxy of this name, placed at `placement`.
pub fn identity(name: &str, placement: &str) -> Identity {
    Identity {
        owner: Owner {
            installation: INSTALLATION.into(),
            proxy_uid: format!("uid-{name}"),
            namespace: "crawlers".into(),
            name: name.into(),
        },
        incarnation: 0,
        attempt: 0,
        placement: placement.into(),
        provider_id: None,
        backend_id: None,
        continuation: None,
    }
}

/// A request for a plain HTTP proxy of this name.
pub fn request(name: &str, placement: &str) -> Request {
    Request {
        identity: identity(name, placement),
        image: None,
        size: None,
        location: None,
        parameters: json!({}),
        port: 3128,
        protocol: "http",
        login: None,
        bootstrap: None,
        must_reach: vec![],
        spec_hash: "hash-1".into(),
    }
}

/// A login.
pub fn login(username: &str, password: &str) -> Login {
    Login { username: username.into(), password: password.to_owned().into() }
}

/// The instance that is there.
pub fn present(presence: Presence) -> Instance {
    match presence {
        Presence::Present(instance) => *instance,
        Presence::Absent => panic!("it is absent"),
    }
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    assert!(holds(condition).await, "after {PATIENCE:?} it still does not hold that {what}");
}

/// Waits until `condition` holds; false when it does not in time.
pub async fn holds(mut condition: impl AsyncFnMut() -> bool) -> bool {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.is_ok()
}

/// What a future comes to, which must be soon.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} took over {PATIENCE:?}"))
}
