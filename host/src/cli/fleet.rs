//! A whole operator in this process: what `run` and `demo` start.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
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
use crate::model::mandate::Mandate;
use crate::model::pulse::PULSE;
use crate::plugin::load::Loader;
use crate::plugin::registry::Registry;
use crate::plugin::source::directory::Directory;
use crate::plugin::source::oci::Artifacts;
use crate::rest::auth::Tokens;
use crate::rest::local::{Leading, Logging};
use crate::rest::{self, Api};
use crate::store::Store;
use crate::store::kubernetes::KubeStore;
use crate::store::kubernetes::election::{Election, Times};
use crate::store::local::LocalStore;
use crate::store::local::database::Database;

/// Where objects live.
pub(super) enum Place {
    /// In a folder of manifests.
    Standalone { manifests: PathBuf },
    /// In the API server; the operator's own namespace. With `election`, only while this replica leads.
    Kubernetes { config: Box<kube::Config>, namespace: String, installation: Option<String>, election: Option<Times> },
}

/// What an operator is started with.
pub(super) struct Settings {
    pub place: Place,
    pub data: PathBuf,
    /// Folders below which `file` references of Providers may point.
    pub secret_files: Vec<PathBuf>,
    pub plugins: PluginArgs,
    pub token_dir: Option<PathBuf>,
    pub rest_addr: SocketAddr,
    pub health_addr: SocketAddr,
    pub judge_addr: SocketAddr,
    pub metrics_addr: SocketAddr,
    pub judge_url: Option<String>,
    pub gc_grace: Duration,
    pub gc_dry_run: bool,
    pub logging: Logging,
}

/// A running operator, or one that stands by until it leads.
pub(super) struct Fleet {
    pub store: Arc<dyn Store>,
    registry: Arc<Registry>,
    pub rest: SocketAddr,
    pub health: SocketAddr,
    pub judge: SocketAddr,
    pub metrics: SocketAddr,
    pub judge_url: String,
    /// The election, and the task that has a part in it.
    election: Option<(Arc<Election>, JoinHandle<()>)>,
    /// Told when it cannot go on.
    failed: oneshot::Receiver<anyhow::Error>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The socket of the commands, in the data folder.
pub(super) fn socket(data: &Path) -> PathBuf {
    data.join("operator.sock")
}

impl Fleet {
    /// Starts everything; on return all ports are open and every object was read once. With an election, what only the leader
    /// does begins when this replica leads.
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
        let until = Until { stop: stop.clone(), tasks: tasks.clone() };
        let files = settings.secret_files;
        let mut mandate = Arc::new(Mandate::always());
        let (store, candidate): (Arc<dyn Store>, _) = match settings.place {
            Place::Standalone { manifests } => {
                let store = LocalStore::open(database.clone(), &manifests, files, clock.clone()).await?;
                store.apply_manifests().await;
                until.spawn(store.clone().watch_manifests());
                (store, None)
            }
            Place::Kubernetes { config, namespace, installation, election } => {
                if election.is_some() {
                    mandate = Arc::new(Mandate::not_yet());
                }
                let store =
                    KubeStore::connect(*config, &namespace, installation, files, clock.clone(), mandate.clone())
                        .await?;
                store.load_plugins(&registry).await?;
                until.spawn(store.clone().watch_plugins(registry.clone()));
                until.spawn(store.clone().watch());
                let candidate = election.map(|times| {
                    let election = Arc::new(Election::new(&store, times, clock.clone(), mandate.clone()));
                    Candidate { election, store: store.clone() }
                });
                (store, candidate)
            }
        };
        if let Some(dir) = settings.plugins.plugin_dir {
            let mut plugins = Directory::new(&dir);
            plugins.scan(&registry).await.with_context(|| format!("--plugin-dir {} cannot be read", dir.display()))?;
            until.spawn(plugins.watch(registry.clone()));
        }

        let ready = Arc::new(AtomicBool::new(false));
        let api = Arc::new(OnceLock::new());
        let door = door(&settings.data)?;
        for (listener, app) in [
            (rest, rest::service::standby(api.clone())),
            (health, rest::service::health(ready.clone(), &PULSE)),
            (metrics, rest::service::metrics()),
        ] {
            let stop = stop.clone();
            tasks.spawn(async move { axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await });
        }
        let leading = Arc::new(OnceLock::new());
        let local =
            rest::local::routes(store.clone(), settings.logging, leading.clone(), clock.clone(), database.clone());
        let (at_door, at_judge) = (stop.clone(), stop.clone());
        tasks.spawn(async move { axum::serve(door, local).with_graceful_shutdown(at_door.cancelled_owned()).await });
        tasks.spawn(judge::serve(judge_port, at_judge));

        let artifacts = Artifacts::new(registry.clone(), clock.clone(), &cache, settings.plugins.insecure_registry);
        let lead = Lead {
            store: store.clone(),
            registry: registry.clone(),
            database,
            artifacts,
            plugin_files: settings.plugins.plugin_files,
            token_dir: settings.token_dir,
            judge_url: judge_url.clone(),
            gc_grace: settings.gc_grace,
            gc_dry_run: settings.gc_dry_run,
            clock,
            mandate,
            ready: ready.clone(),
            api,
            leading,
            until: until.clone(),
        };
        let (fail, failed) = oneshot::channel();
        let election = match candidate {
            None => {
                lead.begin().await?;
                None
            }
            Some(candidate) => {
                // Whoever stands by is ready to: a rollout goes on.
                ready.store(true, Ordering::Release);
                let election = candidate.election.clone();
                // None of the tasks that are waited for at the end: it renews the lease for as long as they take.
                let task = tokio::spawn(async move {
                    if let Some(error) = candidate.run(lead).await {
                        // Nobody listens when the operator stops meanwhile.
                        let _ = fail.send(error);
                    }
                });
                Some((election, task))
            }
        };
        let [rest, health, judge, metrics] = addresses;
        Ok(Self { store, registry, rest, health, judge, metrics, judge_url, election, failed, stop, tasks })
    }

    /// Bytes of a plugin's file.
    pub fn plugin_size(&self, name: &str) -> Option<usize> {
        self.registry.get(name).current.map(|plugin| plugin.size)
    }

    /// Ends when it cannot go on, with the reason.
    pub async fn failed(&mut self) -> anyhow::Error {
        match (&mut self.failed).await {
            Ok(error) => error,
            // Nothing that could fail.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends everything: calls under way are finished, new ones are not begun.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(std::time::Duration::from_secs(30), self.tasks.wait()).await.is_err() {
            tracing::warn!("some calls did not end within 30 s; what they began is found again at the next start");
            // The next leader waits until nothing of this one can land.
            return;
        }
        if let Some((election, task)) = self.election {
            task.abort();
            election.release().await;
        }
    }
}

/// Tasks that end when the operator stops.
#[derive(Clone)]
struct Until {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Until {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// A replica that may come to lead.
struct Candidate {
    election: Arc<Election>,
    store: Arc<KubeStore>,
}

impl Candidate {
    /// Leads when it is its turn; answers why no more, or none when the operator stops before it leads.
    async fn run(self, lead: Lead) -> Option<anyhow::Error> {
        let stop = lead.until.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            () = self.election.campaign() => {}
        }
        let led = async {
            // What its predecessor changed since is to be known before anything is decided.
            self.store.refresh().await?;
            if !stop.is_cancelled() {
                lead.begin().await?;
            }
            std::future::pending::<anyhow::Result<()>>().await
        };
        tokio::select! {
            lost = self.election.hold() => Some(lost.into()),
            Err(error) = led => Some(error),
        }
    }
}

/// What only one process does at a time.
struct Lead {
    store: Arc<dyn Store>,
    registry: Arc<Registry>,
    database: Database,
    artifacts: Artifacts,
    plugin_files: Option<PathBuf>,
    token_dir: Option<PathBuf>,
    judge_url: String,
    gc_grace: Duration,
    gc_dry_run: bool,
    clock: Arc<dyn Clock>,
    mandate: Arc<Mandate>,
    ready: Arc<AtomicBool>,
    api: Arc<OnceLock<Router>>,
    leading: Arc<OnceLock<Leading>>,
    until: Until,
}

impl Lead {
    /// Begins to reconcile, to probe and to lend.
    async fn begin(self) -> anyhow::Result<()> {
        let Self { store, registry, clock, until, .. } = self;
        let ledger = LocalLedger::open(self.database).await?;
        let signer = Signer::new(ledger.signing_key().await?.into());
        let allocator = Arc::new(Allocator::new(Arc::new(ledger), signer, clock.clone())?);
        let providers = Providers::new(store.clone(), registry.clone(), self.artifacts, clock.clone(), self.mandate);
        let providers = Arc::new(providers.with_files(self.plugin_files).with_dry_run(self.gc_dry_run));
        let (engine, verdicts) = Engine::new();
        let driver = Arc::new(Driver::new(
            store.clone(),
            providers.clone(),
            engine.clone(),
            allocator.clone(),
            clock.clone(),
            self.judge_url,
        ));
        let collector = Collector::new(store.clone(), clock.clone(), self.gc_grace, self.gc_dry_run);
        let (plugins_used, checked) = (Notify::new(), providers.clone());
        let manager = Manager { store: store.clone(), registry, providers, driver, collector, plugins_used };
        let tokens = Arc::new(Tokens::new(store.clone(), self.token_dir));
        let api = Api { allocator: allocator.clone(), store, tokens, clock };
        until.spawn(engine.run());
        until.spawn(async move { allocator.sweep().await });
        // Ends by itself, when what is under way is done.
        until.tasks.spawn(manager.run(verdicts, self.ready, until.stop.clone()));
        // Each is set once.
        let _ = self.leading.set(Leading { allocator: api.allocator.clone(), providers: checked });
        let _ = self.api.set(rest::routes(api));
        Ok(())
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
