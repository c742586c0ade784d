//! A whole operator in this process: what `run` and `demo` start.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::plugin_args::PluginArgs;
use crate::control::collect::Collector;
use crate::control::manager::Manager;
use crate::control::provider::Providers;
use crate::control::proxy::driver::Driver;
use crate::health::{engine::Engine, judge};
use crate::lease::allocator::Allocator;
use crate::lease::id::Signer;
use crate::lease::ledger::LocalLedger;
use crate::model::clock::{Clock, SystemClock};
use crate::plugin::load::Loader;
use crate::plugin::registry::Registry;
use crate::plugin::source::directory::Directory;
use crate::plugin::source::oci::Artifacts;
use crate::rest::auth::Tokens;
use crate::rest::{self, Api};
use crate::store::Store;
use crate::store::kubernetes::KubeStore;
use crate::store::local::LocalStore;
use crate::store::local::database::Database;

/// Where objects live.
pub(super) enum Place {
    /// In a folder of manifests; credentials also in files below the folders of `secret_files`.
    Standalone { manifests: PathBuf, secret_files: Vec<PathBuf> },
    /// In the API server; the operator's own namespace.
    Kubernetes { config: Box<kube::Config>, namespace: String },
}

/// What an operator is started with.
pub(super) struct Settings {
    pub place: Place,
    pub data: PathBuf,
    pub plugins: PluginArgs,
    pub token_dir: Option<PathBuf>,
    pub rest_addr: SocketAddr,
    pub health_addr: SocketAddr,
    pub judge_addr: SocketAddr,
    pub metrics_addr: SocketAddr,
    pub judge_url: Option<String>,
    pub gc_grace: Duration,
    pub gc_dry_run: bool,
}

/// A running operator.
pub(super) struct Fleet {
    pub store: Arc<dyn Store>,
    registry: Arc<Registry>,
    pub rest: SocketAddr,
    pub health: SocketAddr,
    pub judge: SocketAddr,
    pub metrics: SocketAddr,
    pub judge_url: String,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The socket of the commands, in the data folder.
pub(super) fn socket(data: &Path) -> PathBuf {
    data.join("operator.sock")
}

impl Fleet {
    /// Starts everything; on return all ports are open and every manifest was read once.
    pub async fn start(settings: Settings) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        // Ports first: one that is taken should fail before anything is touched.
        let [rest, health, judge_port, metrics] = [
            ("rest", settings.rest_addr),
            ("health", settings.health_addr),
            ("judge", settings.judge_addr),
            ("metrics", settings.metrics_addr),
        ]
        .map(|(name, addr)| (name, addr, std::net::TcpListener::bind(addr)))
        .map(|(name, addr, listener)| {
            listener.and_then(listening).with_context(|| format!("--{name}-addr {addr} cannot be listened on"))
        });
        let (rest, health, judge_port, metrics) = (rest?, health?, judge_port?, metrics?);
        let addresses = [rest.local_addr()?, health.local_addr()?, judge_port.local_addr()?, metrics.local_addr()?];
        let judge_url =
            settings.judge_url.unwrap_or_else(|| format!("http://{}{}", reachable(addresses[2]), judge::PATH));

        let database = Database::open(&settings.data.join("state.redb"))?;
        let cache = settings.plugins.cache(&settings.data);
        let loader = Loader::new(settings.plugins.runtime(&cache)?, clock.clone());
        let loader = loader.map_err(|e| anyhow::anyhow!("{e:#}"))?.under(settings.plugins.policy());
        let remedy = match &settings.place {
            Place::Standalone { .. } => "put NAME.wasm into the plugin folder".to_owned(),
            Place::Kubernetes { namespace, .. } => {
                format!("apply what `proxy-operator plugin pack NAME.wasm` prints to namespace {namespace}")
            }
        };
        let registry = Arc::new(Registry::new(Arc::new(loader), remedy));
        let plain = settings.plugins.insecure_registry.clone();
        let artifacts = Artifacts::new(registry.clone(), clock.clone(), &cache, plain);
        let until = |task: BoxFuture<'static, ()>| {
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = task => {}
                    () = stop.cancelled() => {}
                }
            });
        };
        let store: Arc<dyn Store> = match settings.place {
            Place::Standalone { manifests, secret_files } => {
                let store = LocalStore::open(database.clone(), &manifests, secret_files, clock.clone()).await?;
                store.apply_manifests().await;
                until(Box::pin(store.clone().watch_manifests()));
                store
            }
            Place::Kubernetes { config, namespace } => {
                let store = KubeStore::connect(*config, &namespace).await?;
                store.load_plugins(&registry).await?;
                until(Box::pin(store.clone().watch_plugins(registry.clone())));
                until(Box::pin(store.clone().watch()));
                store
            }
        };
        let ledger = LocalLedger::open(database).await?;
        let signer = Signer::new(ledger.signing_key().await?.into());
        let allocator = Arc::new(Allocator::new(Arc::new(ledger), signer, clock.clone())?);

        if let Some(dir) = settings.plugins.plugin_dir {
            let mut plugins = Directory::new(&dir);
            plugins.scan(&registry).await.with_context(|| format!("--plugin-dir {} cannot be read", dir.display()))?;
            until(Box::pin(plugins.watch(registry.clone())));
        }
        let providers = Providers::new(store.clone(), registry.clone(), artifacts, clock.clone());
        let providers = Arc::new(providers.with_files(settings.plugins.plugin_files));
        let (engine, verdicts) = Engine::new();
        let driver = Arc::new(Driver::new(
            store.clone(),
            providers.clone(),
            engine.clone(),
            allocator.clone(),
            clock.clone(),
            judge_url.clone(),
        ));
        let collector = Collector::new(store.clone(), clock.clone(), settings.gc_grace, settings.gc_dry_run);
        let manager = Manager { store: store.clone(), registry: registry.clone(), providers, driver, collector };

        let ready = Arc::new(AtomicBool::new(false));
        let tokens = Arc::new(Tokens::new(store.clone(), settings.token_dir));
        let api = Api { allocator: allocator.clone(), store: store.clone(), tokens, clock };
        let door = door(&settings.data)?;

        until(Box::pin(engine.run()));
        until(Box::pin(async move { allocator.sweep().await }));
        tasks.spawn(manager.run(verdicts, ready.clone(), stop.clone()));
        for (listener, app) in
            [(rest, rest::routes(api)), (health, rest::service::health(ready)), (metrics, rest::service::metrics())]
        {
            let stop = stop.clone();
            tasks.spawn(async move { axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await });
        }
        let local = rest::local::routes(store.clone());
        let (at_door, at_judge) = (stop.clone(), stop.clone());
        tasks.spawn(async move { axum::serve(door, local).with_graceful_shutdown(at_door.cancelled_owned()).await });
        tasks.spawn(judge::serve(judge_port, at_judge));
        let [rest, health, judge, metrics] = addresses;
        Ok(Self { store, registry, rest, health, judge, metrics, judge_url, stop, tasks })
    }

    /// Bytes of a plugin's file.
    pub fn plugin_size(&self, name: &str) -> Option<usize> {
        self.registry.get(name).current.map(|plugin| plugin.size)
    }

    /// Ends everything: calls under way are finished, new ones are not begun.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(std::time::Duration::from_secs(30), self.tasks.wait()).await.is_err() {
            tracing::warn!("some calls did not end within 30 s; what they began is found again at the next start");
        }
    }
}

fn listening(listener: std::net::TcpListener) -> std::io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// An address under which a listener on all addresses is reached from this machine.
fn reachable(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => {
            SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), v4.port())
        }
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), v6.port())
        }
        other => other,
    }
}

/// The commands' socket, mode 0600. The database's lock says that nobody else listens there.
fn door(data: &Path) -> anyhow::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt;
    let path = socket(data);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| path.display().to_string());
        }
        _ => {}
    }
    let listener = UnixListener::bind(&path)
        .with_context(|| format!("{} (a path of at most 107 bytes is needed)", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
