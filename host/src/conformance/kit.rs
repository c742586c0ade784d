//! What the cases share: handles of the plugin, proxies that were never asked for before, and the steps of a life.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use serde_json::{Map, Value};

use super::Subject;
use super::observer::{Observer, Plan};
use super::script::{Server, ssh::Commands};
use crate::model::clock::SystemClock;
use crate::model::error::{CallError, ErrorKind, list_fields};
use crate::model::instance::{
    Deletion, Identity, Instance, ONE_PER_PLACE, Owner, Presence, Request, State, check_schema,
};
use crate::model::login::LoginKey;
use crate::model::provider::{Permit, ProviderSpec};
use crate::model::proxy::AuthMode;
use crate::model::secret::SecretBytes;
use crate::plugin::grants::Grants;
use crate::plugin::handle::{Handle, Shared};

/// Between two looks at a scripted backend, whose machines wait for nothing but requests.
const SCRIPTED_WAIT: Duration = Duration::from_millis(2);
/// Between two looks at a backend whose plugin gives no hint.
const WAIT: Duration = Duration::from_millis(500);
/// A hint is followed no longer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Looks at a scripted backend until it is told that nothing comes of it.
const SCRIPTED_LOOKS: u32 = 100;

/// Why a case ends before its end.
#[derive(Debug)]
pub(super) enum End {
    /// The rule is broken.
    Failed(String),
    /// The rule says nothing about this plugin.
    NotApplicable(String),
}

/// A step of a case.
pub(super) type Step<T = ()> = Result<T, End>;

/// Ends a case: the rule is broken, and this was seen.
macro_rules! fail {
    ($($text:tt)*) => { return Err($crate::conformance::kit::End::Failed(format!($($text)*))) };
}
/// Ends a case unless this holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => { if !$holds { fail!($($text)*); } };
}
/// Ends a case: the rule says nothing here.
macro_rules! not_applicable {
    ($($text:tt)*) => { return Err($crate::conformance::kit::End::NotApplicable(format!($($text)*))) };
}
pub(super) use {ensure, fail, not_applicable};

/// How a handle differs from the Provider as it is written.
#[derive(Default)]
pub(super) struct Otherwise<'a> {
    /// No connection and no secret is granted.
    pub nothing_granted: bool,
    /// Another config.
    pub config: Option<Map<String, Value>>,
    /// Another installation.
    pub installation: Option<&'a str>,
}

/// A plugin on the bench.
pub(super) struct Kit {
    pub subject: Subject,
    pub observer: Arc<Observer>,
    pub servers: Vec<Server>,
    pub installation: String,
    spec: ProviderSpec,
    shared: Shared,
    login_key: LoginKey,
    number: AtomicU32,
    asked: Mutex<Vec<Identity>>,
}

impl Kit {
    pub async fn new(subject: Subject) -> Result<Self, String> {
        let mut spec = subject.provider.spec.clone();
        let script = subject.script.clone().unwrap_or_default();
        let mut servers = vec![];
        for backend in script.http {
            let name = backend.connection.clone();
            let server = Server::start(backend).await.map_err(|e| format!("the scripted backend cannot start: {e}"))?;
            redirect(&mut spec, &name, &server)?;
            servers.push(server);
        }
        for host in &script.ssh {
            if spec.connections.get(&host.connection).is_none_or(|granted| granted.ssh.is_none()) {
                return Err(format!(
                    "the script has a host for the ssh connection {0:?}, which the Provider does not grant",
                    host.connection
                ));
            }
        }
        let kit = Self {
            observer: Arc::new(Observer::new(Commands::new(&script.ssh))),
            servers,
            installation: format!("kit-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]),
            spec,
            shared: Shared::new(Arc::new(SystemClock::default())),
            login_key: LoginKey::new(rand::random::<[u8; 32]>().to_vec().into()),
            number: AtomicU32::new(0),
            asked: Mutex::default(),
            subject,
        };
        kit.usable().await?;
        Ok(kit)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Identity>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the operator looks at before it calls a plugin.
    async fn usable(&self) -> Result<(), String> {
        let grants = Grants::new(&self.spec, self.subject.secrets.clone()).map_err(|e| e.to_string())?;
        let plugin = &self.subject.plugin.description;
        grants.serve(plugin)?;
        grants.probe().await.map_err(|e| e.to_string())?;
        let config = Value::Object(self.spec.config.clone());
        check_schema(&plugin.config_schema, &config, "/config")
            .map_err(|e| format!("the Provider: {}", list_fields(&e)))?;
        let parameters = Value::Object(self.subject.proxy.parameters.clone());
        check_schema(&plugin.parameters_schema, &parameters, "/parameters")
            .map_err(|e| format!("the Proxy: {}", list_fields(&e)))
    }

    /// Before a case: nothing goes wrong, and a scripted backend is empty.
    pub fn begin(&self) {
        self.observer.reset();
        self.servers.iter().for_each(Server::reset);
        self.lock().clear();
    }

    /// After a case: what it made goes. Names what does not.
    pub async fn tidy(&self, case: &str) -> Vec<String> {
        self.observer.plan(Plan::Nothing);
        let asked = std::mem::take(&mut *self.lock());
        // A script is emptied before the next case.
        if self.scripted() || self.makes().is_err() {
            return vec![];
        }
        let Ok(handle) = self.handle() else { return vec![] };
        let mut left = vec![];
        for identity in asked {
            if let Err(End::Failed(why)) = self.gone(&handle, &identity).await {
                left.push(format!("{case}: {} at {}: {why}", identity.owner.proxy_uid, identity.placement));
            }
        }
        left
    }

    /// Whether every backend is a script.
    pub fn scripted(&self) -> bool {
        self.subject.script.is_some()
    }

    /// Whether the plugin makes anything at a backend.
    pub fn makes(&self) -> Step {
        let plugin = &self.subject.plugin.description;
        if plugin.connections.is_empty() && plugin.connection_pointers.is_empty() {
            not_applicable!("it declares no connection, so it makes and removes nothing at a backend");
        }
        Ok(())
    }

    /// Whether it reaches its backend over HTTP.
    pub fn over_http(&self) -> Step {
        self.makes()?;
        if !self.spec.connections.values().any(|granted| granted.http.is_some()) {
            not_applicable!("it is granted no http connection");
        }
        Ok(())
    }

    pub fn handle(&self) -> Step<Handle> {
        self.handle_otherwise(Otherwise::default())
    }

    pub fn handle_otherwise(&self, otherwise: Otherwise<'_>) -> Step<Handle> {
        let mut spec = self.spec.clone();
        if otherwise.nothing_granted {
            spec.connections.clear();
            spec.secrets.clear();
        }
        let config = otherwise.config.unwrap_or(spec.config.clone());
        let grants = Grants::new(&spec, self.subject.secrets.clone()).map_err(|e| End::Failed(e.to_string()))?;
        Ok(Handle::new(
            self.subject.plugin.clone(),
            &self.subject.provider.name_any(),
            Arc::new(grants.watched(self.observer.clone())),
            &config,
            &spec.limits,
            otherwise.installation.unwrap_or(&self.installation),
            &self.shared,
        ))
    }

    /// The config without what its schema lets out, but for what leads to connections; none when nothing can go.
    pub fn smaller_config(&self) -> Option<Map<String, Value>> {
        let plugin = &self.subject.plugin.description;
        let required = plugin.config_schema["required"].as_array();
        let needed = |name: &str| {
            required.is_some_and(|names| names.iter().any(|n| n == name))
                || plugin.connection_pointers.iter().any(|pointer| pointer.split('/').nth(1) == Some(name))
        };
        let mut config = self.spec.config.clone();
        config.retain(|name, _| needed(name));
        (config.len() < self.spec.config.len()).then_some(config)
    }

    /// Every value that must show nowhere, but for logins.
    pub async fn credentials(&self) -> Vec<SecretBytes> {
        match Grants::new(&self.spec, self.subject.secrets.clone()) {
            Ok(grants) => grants.credentials().await,
            Err(_) => vec![],
        }
    }

    /// A proxy that nobody asked for before.
    pub fn proxy(&self) -> Request {
        let spec = &self.subject.proxy;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let proxy_uid = uuid::Uuid::new_v4().to_string();
        let login = (spec.auth.mode != AuthMode::None).then(|| self.login_key.derive(&proxy_uid, 0));
        let owner = Owner {
            installation: self.installation.clone(),
            proxy_uid,
            namespace: "conformance".into(),
            name: format!("proxy-{number}"),
        };
        Request::new(spec, Identity::new(owner, 0), login, vec![], None)
            .with_bootstrap(self.subject.provider.spec.bootstrap.as_deref())
    }

    /// The same with a place.
    pub async fn placed(&self, handle: &Handle) -> Step<Request> {
        let mut request = self.proxy();
        self.place(handle, &mut request).await?;
        Ok(request)
    }

    /// Chooses a place. As the operator does it, none that holds an instance where a place holds one.
    pub async fn place(&self, handle: &Handle, request: &mut Request) -> Step {
        let held: Vec<_> = match self.subject.plugin.description.has(ONE_PER_PLACE) {
            true => self.lock().iter().map(|identity| identity.placement.clone()).collect(),
            false => vec![],
        };
        request.identity.placement = match handle.place(request, &held).await {
            Err(error) if error.kind == ErrorKind::Exhausted && !held.is_empty() => {
                not_applicable!("a place holds one instance, and there are {} places; configure more", held.len())
            }
            answer => answer.map_err(failed("place"))?,
        };
        self.remember(&request.identity);
        Ok(())
    }

    /// Has it removed after the case.
    pub fn remember(&self, identity: &Identity) {
        self.lock().push(identity.clone());
    }

    /// A proxy that runs.
    pub async fn running(&self, handle: &Handle) -> Step<(Request, Instance)> {
        let mut request = self.placed(handle).await?;
        let made = self.drive(handle, &mut request).await?;
        Ok((request, made))
    }

    /// Calls `create` until the instance runs, as the operator does, with what the answers leave for the next call.
    pub async fn drive(&self, handle: &Handle, request: &mut Request) -> Step<Instance> {
        let mut waiting = self.waiting();
        loop {
            let hint = match handle.create(request).await {
                Ok(made) => {
                    learn(&mut request.identity, &made);
                    match &made.state {
                        State::Running => return Ok(made),
                        State::Failed(why) => fail!("create answers failed: {why}"),
                        _ => made.poll_after,
                    }
                }
                Err(error) if passes(&error) => None,
                Err(error) => return Err(failed("create")(error)),
            };
            if !waiting.wait(hint).await {
                fail!("create was called for {} and never answered running", waiting.over());
            }
        }
    }

    /// Calls `delete` until it is gone.
    pub async fn gone(&self, handle: &Handle, identity: &Identity) -> Step {
        let mut identity = identity.clone();
        let mut waiting = self.waiting();
        loop {
            let hint = match handle.delete(&identity).await {
                Ok(Deletion::Gone) => {
                    self.lock().retain(|one| one.owner != identity.owner || one.incarnation != identity.incarnation);
                    return Ok(());
                }
                Ok(Deletion::InProgress { poll_after, continuation, .. }) => {
                    identity.continuation = continuation;
                    poll_after
                }
                Err(error) if passes(&error) => None,
                Err(error) => return Err(failed("delete")(error)),
            };
            if !waiting.wait(hint).await {
                fail!("delete was called for {} and never answered gone", waiting.over());
            }
        }
    }

    /// What `list-instances` shows of this proxy.
    pub async fn listed(&self, handle: &Handle, identity: &Identity) -> Step<Vec<Instance>> {
        let all = handle.list().await.map_err(failed("list-instances"))?;
        let ours = |one: &Instance| one.owner.as_ref().is_some_and(|owner| owner.proxy_uid == identity.owner.proxy_uid);
        Ok(all.into_iter().filter(ours).collect())
    }

    /// How many things a scripted backend holds.
    pub fn held(&self) -> Option<usize> {
        (!self.servers.is_empty()).then(|| self.servers.iter().map(Server::count).sum())
    }

    fn waiting(&self) -> Waiting {
        let limit = self.spec.limits.create_deadline.duration();
        Waiting { scripted: self.scripted(), looks: 0, since: Instant::now(), limit }
    }
}

struct Waiting {
    scripted: bool,
    looks: u32,
    since: Instant,
    limit: Duration,
}

impl Waiting {
    /// Waits for the next look; false when there were enough.
    async fn wait(&mut self, hint: Option<Duration>) -> bool {
        self.looks += 1;
        if self.scripted {
            tokio::time::sleep(SCRIPTED_WAIT).await;
            return self.looks < SCRIPTED_LOOKS;
        }
        tokio::time::sleep(hint.unwrap_or(WAIT).min(LONGEST_WAIT)).await;
        self.since.elapsed() < self.limit
    }

    fn over(&self) -> String {
        if self.scripted { format!("{} times", self.looks) } else { format!("{} s", self.limit.as_secs()) }
    }
}

/// Points a connection at a scripted backend.
fn redirect(spec: &mut ProviderSpec, name: &str, server: &Server) -> Result<(), String> {
    let Some(http) = spec.connections.get_mut(name).and_then(|granted| granted.http.as_mut()) else {
        return Err(format!(
            "the script stands in for the http connection {name:?}, which the Provider does not grant; it grants: {}",
            spec.connections.keys().cloned().collect::<Vec<_>>().join(", ")
        ));
    };
    let path = http.base_url.as_deref().and_then(|url| url::Url::parse(url).ok()).map(|url| url.path().to_owned());
    http.base_url = Some(format!("http://{}{}", server.address, path.as_deref().unwrap_or("/").trim_end_matches('/')));
    http.ca = None;
    if !http.permit.contains(&Permit::Loopback) {
        http.permit.push(Permit::Loopback);
    }
    Ok(())
}

/// What the operator stores of an answer.
pub(super) fn learn(identity: &mut Identity, made: &Instance) {
    identity.provider_id = Some(made.provider_id.clone());
    identity.backend_id = made.backend_id.clone();
    identity.continuation = made.continuation.clone();
}

/// What was stored of an identity is lost.
pub(super) fn forgotten(identity: &Identity) -> Identity {
    Identity { provider_id: None, backend_id: None, continuation: None, ..identity.clone() }
}

/// An error that is asked again about.
fn passes(error: &CallError) -> bool {
    matches!(error.kind, ErrorKind::Transient | ErrorKind::RateLimited(_) | ErrorKind::UnknownOutcome)
        && error.reason != "CallTimedOut"
}

/// An error where an answer is due.
pub(super) fn failed(function: &'static str) -> impl Fn(CallError) -> End {
    move |error| End::Failed(format!("{function} failed with {}", told(&error)))
}

/// An error on one line.
pub(super) fn told(error: &CallError) -> String {
    format!("{} ({}): {}", error.kind.label(), error.reason, error.message)
}

/// An answer about presence in a word.
pub(super) fn word(presence: &Presence) -> String {
    match presence {
        Presence::Present(instance) => format!("present, {}", instance.state),
        Presence::Absent => "absent".into(),
    }
}
