//! A plugin as one Provider uses it: with its grants, its config and its limits.

use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::{Semaphore, broadcast};
use tracing::Instrument;

use super::bindings::crawl::provider::types as wit;
use super::bindings::exports::crawl::provider::provider::Guest;
use super::call::{Answer, Context, Export, call};
use super::convert::{self, Returned};
use super::grants::Grants;
pub use super::holding::Held;
use super::holding::{Holding, Reached};
use super::limits::{LIST_BYTES, LIST_INSTANCES, LIST_PAGES};
use super::load::Loaded;
use super::log_rate::LogRate;
use crate::model::clock::Clock;
use crate::model::error::{ByHost, CallError, ErrorKind, FieldError};
use crate::model::instance::{Deletion, Description, Finding, Identity, Instance, ONE_PER_PLACE, Presence, Request};
use crate::model::login::Login;
use crate::model::mandate::Mandate;
use crate::model::metrics::METRICS;
use crate::model::provider::Limits;
use crate::model::secret::SecretBytes;

/// Calls at once of all providers together; each holds a few MiB at most.
const GLOBAL_CALLS: usize = 64;
/// A replica that does not lead any more is about to end; until then it asks itself this often.
const NOT_LEADING: Duration = Duration::from_secs(5);

/// What the calls of all providers share.
#[derive(Clone)]
pub struct Shared {
    clock: Arc<dyn Clock>,
    calls: Arc<Semaphore>,
    turns: Option<broadcast::Sender<Arc<str>>>,
    mandate: Arc<Mandate>,
}

impl Shared {
    /// With the clock that guests see.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, calls: Arc::new(Semaphore::new(GLOBAL_CALLS)), turns: None, mandate: Arc::new(Mandate::always()) }
    }

    /// The same, where calls that keep failing are held back. Who only tries a plugin out wants to see each of them.
    pub fn holding_back(self) -> Self {
        Self { turns: Some(broadcast::channel(256).0), ..self }
    }

    /// The same, where backends are changed only while this holds.
    pub fn under(self, mandate: Arc<Mandate>) -> Self {
        Self { mandate, ..self }
    }

    /// Tells the name of each Provider of which more, or less, is held back from now on.
    pub fn turns(&self) -> broadcast::Receiver<Arc<str>> {
        // Without holding back there is nothing to tell, ever.
        self.turns.as_ref().map_or_else(|| broadcast::channel(1).1, broadcast::Sender::subscribe)
    }

    /// Tells this name as well.
    pub fn turn(&self, provider: &str) {
        // Nobody listens while the operator starts or ends.
        let _ = self.turns.as_ref().map(|turns| turns.send(provider.into()));
    }
}

/// A plugin in the service of one Provider.
pub struct Handle {
    plugin: Arc<Loaded>,
    config: String,
    installation: String,
    context: Context,
    holding: Option<Holding>,
    mandate: Arc<Mandate>,
}

/// Calls one export: its arguments are cloned into the call, which outlives a caller that gives up.
macro_rules! export {
    (|$guest:ident, $store:ident| $call:expr) => {
        Box::new(move |$store, plugin| {
            Box::pin(async move {
                let $guest: &Guest = plugin.crawl_provider_provider();
                $call.await
            })
        })
    };
}

fn yes<T>(_: &T) -> Reached {
    Reached::Yes
}

/// Of functions that need not ask the backend.
fn perhaps<T>(_: &T) -> Reached {
    Reached::Perhaps
}

/// Of findings: whether a target was reached.
fn usable(findings: &[Finding]) -> Reached {
    if findings.iter().any(|finding| finding.healthy) { Reached::Yes } else { Reached::Perhaps }
}

/// What every function but `create` is told: the contract gives the login to that one alone.
fn without_login(request: &Request) -> wit::Request {
    wit::Request { login: None, bootstrap: None, ..convert::request(request) }
}

impl Handle {
    /// Binds a plugin to the Provider `name`.
    pub fn new(
        plugin: Arc<Loaded>,
        name: &str,
        grants: Arc<Grants>,
        config: &Map<String, Value>,
        limits: &Limits,
        installation: &str,
        shared: &Shared,
    ) -> Self {
        let plugin_name: Arc<str> = plugin.description.name.as_str().into();
        let metrics = METRICS.provider(name, &plugin_name);
        let holding = shared.turns.clone().map(|turns| {
            Holding::new(plugin_name.clone(), name.into(), shared.clock.clone(), turns, metrics.hold_back())
        });
        let context = Context {
            grants,
            clock: shared.clock.clone(),
            provider: name.into(),
            plugin: plugin_name,
            log_rate: Arc::new(Mutex::new(LogRate::new(shared.clock.monotonic()))),
            metrics,
            timeout: limits.call_timeout.duration(),
            permits: [Arc::new(Semaphore::new(limits.concurrent_calls as usize)), shared.calls.clone()],
            memory: plugin.memory.clone(),
        };
        Self {
            plugin,
            config: Value::Object(config.clone()).to_string(),
            installation: installation.to_owned(),
            context,
            holding,
            mandate: shared.mandate.clone(),
        }
    }

    /// The plugin.
    pub fn plugin(&self) -> &Arc<Loaded> {
        &self.plugin
    }

    /// What the Provider grants it.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.context.grants
    }

    /// The time limit of one call.
    pub fn call_timeout(&self) -> Duration {
        self.context.timeout
    }

    /// Why calls of this function about an instance at this placement are held back, if they are.
    pub fn held(&self, function: &str, placement: Option<&str>) -> Option<Held> {
        self.holding.as_ref()?.held(function, placement.and_then(|placement| self.target(function, placement)))
    }

    /// Why calls are held back whomever they ask, if some are.
    pub fn holds_back(&self) -> Option<Held> {
        self.holding.as_ref()?.any()
    }

    /// The targets that are out of reach, so that calls about what is there are held back.
    pub fn targets_held(&self) -> Vec<(String, Held)> {
        self.holding.as_ref().map(Holding::targets).unwrap_or_default()
    }

    /// Which host, zone or cluster a call asks: what a placement has before its `@`. A place that holds one instance is no
    /// target of its own, but one of many at the same backend.
    pub fn target<'p>(&self, function: &str, placement: &'p str) -> Option<&'p str> {
        let asks_it = matches!(function, "create" | "get" | "delete") && !placement.is_empty();
        let target = placement.split_once('@').map_or(placement, |(target, _)| target);
        Some(target).filter(|_| asks_it && !self.plugin.description.has(ONE_PER_PLACE))
    }

    /// Something changed for which calls are worth another try at once.
    pub fn let_go(&self) {
        self.holding.iter().for_each(Holding::reset);
    }

    /// The login that a granted secret holds as `user:password`.
    ///
    /// # Errors
    /// `config-missing` when it is not granted, missing or malformed.
    pub async fn granted_login(&self, name: &str) -> Result<Login, CallError> {
        let missing =
            |message: String, reason: &str| CallError::new(ErrorKind::ConfigMissing, message).with_reason(reason);
        let value = match self.context.grants.secret(name).await {
            None => {
                return Err(missing(
                    format!("the Provider grants no secret {name:?}: add it under spec.secrets"),
                    "SecretMissing",
                ));
            }
            Some(Err(e)) => return Err(missing(e.to_string(), e.reason())),
            Some(Ok(value)) => value,
        };
        let pair = value.expose_line().and_then(|text| text.split_once(':')).map(|(u, p)| (u.to_owned(), p.to_owned()));
        let (username, password) =
            pair.ok_or_else(|| missing(format!("the secret {name:?} must hold user:password"), "SecretMalformed"))?;
        Ok(Login { username, password: password.into() })
    }

    async fn run<T: Send + 'static>(
        &self,
        function: &'static str,
        secrets: Vec<SecretBytes>,
        export: Export<T>,
    ) -> Result<Answer<T>, CallError> {
        call(&self.plugin.pre, self.context.clone(), function, secrets, export).await
    }

    /// Makes a call unless it is held back; counts it and logs it, with what it came to. `about`: the object that it is
    /// about. `reached`: what an answer tells of the backend.
    async fn made<T>(
        &self,
        function: &'static str,
        about: Option<&Identity>,
        reached: impl Fn(&T) -> Reached,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let Context { provider, plugin, metrics, .. } = &self.context;
        let version = &self.plugin.description.version;
        // Looked at before the call, and each time that it goes on: a process may have been frozen anywhere.
        let may_go_on =
            || !matches!(function, "create" | "delete") || self.mandate.holds(self.context.clock.monotonic());
        if !may_go_on() {
            return Err(not_leading());
        }
        let target = about.and_then(|identity| self.target(function, &identity.placement));
        let turn = match self.holding.as_ref().map(|holding| holding.admit(function, target)).transpose() {
            Ok(turn) => turn,
            Err(held) => {
                metrics.called(function, "held-back", None);
                return Err(held);
            }
        };
        let span =
            tracing::debug_span!("call", %provider, %plugin, %version, function, outcome = tracing::field::Empty);
        let started = Instant::now();
        let mut work = std::pin::pin!(work.instrument(span.clone()));
        let ended = std::future::poll_fn(|cx| match may_go_on() {
            true => work.as_mut().poll(cx).map(Some),
            false => Poll::Ready(None),
        });
        let Some(outcome) = ended.await else {
            metrics.called(function, "held-back", None);
            return Err(not_leading());
        };
        let word = outcome.as_ref().map_or_else(|e| e.kind.label(), |_| "ok");
        span.record("outcome", word);
        metrics.called(function, word, Some(started.elapsed()));
        span.in_scope(|| tracing::debug!(ms = started.elapsed().as_millis() as u64, "called"));
        if let Some(turn) = turn {
            let reached = outcome.as_ref().map_or(Reached::Perhaps, reached);
            turn.came_to(about.map(|identity| identity.owner.proxy_uid.as_str()), reached, outcome.as_ref().map(drop));
        }
        outcome
    }

    /// What the plugin says of itself, asked anew.
    ///
    /// # Errors
    /// When the call failed, or the answer is none.
    pub async fn describe(&self) -> Result<Description, CallError> {
        let work = async {
            let answer = self.run("describe", vec![], export!(|guest, store| guest.call_describe(store))).await?;
            Returned(&answer.state).description(answer.value)
        };
        self.made("describe", None, perhaps, work).await
    }

    /// Would this config, and this request, be accepted?
    ///
    /// # Errors
    /// The outer one when the call failed, the inner one when the answer is no.
    pub async fn validate(&self, request: Option<&Request>) -> Result<Result<(), Vec<FieldError>>, CallError> {
        let work = async {
            let (config, request) = (self.config.clone(), request.map(without_login));
            let answer = self
                .run("validate", vec![], export!(|guest, store| guest.call_validate(store, &config, request.as_ref())))
                .await?;
            Ok(answer.value.map_err(|invalid| Returned(&answer.state).fields(invalid.errors)))
        };
        self.made("validate", request.map(|request| &request.identity), perhaps, work).await
    }

    /// Where to make it.
    ///
    /// # Errors
    /// By kind.
    pub async fn place(&self, request: &Request, avoid: &[String]) -> Result<String, CallError> {
        let work = async {
            let (config, request, avoid) = (self.config.clone(), without_login(request), avoid.to_vec());
            let answer = self
                .run("place", vec![], export!(|guest, store| guest.call_place(store, &config, &request, &avoid)))
                .await?;
            let returned = Returned(&answer.state);
            answer.value.map_err(|e| returned.error(e)).and_then(|placement| returned.placement(placement))
        };
        self.made("place", Some(&request.identity), perhaps, work).await
    }

    /// Makes it, or drives it on.
    ///
    /// # Errors
    /// By kind.
    pub async fn create(&self, request: &Request) -> Result<Instance, CallError> {
        let work = async {
            let asked = request.identity.placement.clone();
            let secrets = passwords(request.login.as_ref());
            let (config, request) = (self.config.clone(), convert::request(request));
            let answer = self
                .run("create", secrets, export!(|guest, store| guest.call_create(store, &config, &request)))
                .await?;
            let returned = Returned(&answer.state);
            let instance = returned.instance(answer.value.map_err(|e| returned.error(e))?)?;
            self.at(&asked, "create", instance)
        };
        self.made("create", Some(&request.identity), yes, work).await
    }

    /// Whether it is there.
    ///
    /// # Errors
    /// By kind.
    pub async fn get(&self, identity: &Identity) -> Result<Presence, CallError> {
        self.get_knowing(identity, None).await
    }

    /// The same. The plugin is not told of the login, but its backend may, and no text may hold it.
    ///
    /// # Errors
    /// By kind.
    pub async fn get_knowing(&self, identity: &Identity, login: Option<&Login>) -> Result<Presence, CallError> {
        let work = async {
            let asked = identity.placement.clone();
            let (config, identity) = (self.config.clone(), convert::identity(identity));
            let secrets = passwords(login);
            let answer =
                self.run("get", secrets, export!(|guest, store| guest.call_get(store, &config, &identity))).await?;
            let returned = Returned(&answer.state);
            match returned.presence(answer.value.map_err(|e| returned.error(e))?)? {
                Presence::Present(instance) => Ok(Presence::Present(Box::new(self.at(&asked, "get", *instance)?))),
                Presence::Absent => Ok(Presence::Absent),
            }
        };
        self.made("get", Some(identity), yes, work).await
    }

    /// Deletes it.
    ///
    /// # Errors
    /// By kind.
    pub async fn delete(&self, identity: &Identity) -> Result<Deletion, CallError> {
        self.delete_knowing(identity, None).await
    }

    /// The same; of the login as with [`Handle::get_knowing`].
    ///
    /// # Errors
    /// By kind.
    pub async fn delete_knowing(&self, identity: &Identity, login: Option<&Login>) -> Result<Deletion, CallError> {
        let work = async {
            let (config, identity) = (self.config.clone(), convert::identity(identity));
            let secrets = passwords(login);
            let answer = self
                .run("delete", secrets, export!(|guest, store| guest.call_delete(store, &config, &identity)))
                .await?;
            let returned = Returned(&answer.state);
            returned.deletion(answer.value.map_err(|e| returned.error(e))?)
        };
        self.made("delete", Some(identity), yes, work).await
    }

    /// Everything that this installation owns: all pages, or an error.
    ///
    /// # Errors
    /// By kind; a failed page fails the whole.
    pub async fn list(&self) -> Result<Vec<Instance>, CallError> {
        let work = async {
            let mut all = Vec::new();
            let (mut token, mut bytes): (Option<String>, usize) = (None, 0);
            for _ in 0..LIST_PAGES {
                let (config, installation, page) = (self.config.clone(), self.installation.clone(), token.clone());
                let answer = self
                    .run(
                        "list-instances",
                        vec![],
                        export!(|guest, store| guest.call_list_instances(
                            store,
                            &config,
                            &installation,
                            page.as_deref()
                        )),
                    )
                    .await?;
                let returned = Returned(&answer.state);
                let page = answer.value.map_err(|e| returned.error(e))?;
                if all.len() + page.instances.len() > LIST_INSTANCES {
                    return Err(self.bad_list(format!("over {LIST_INSTANCES} instances")));
                }
                for instance in page.instances {
                    let instance = returned.instance(instance)?;
                    bytes += convert::texts(&instance);
                    if bytes > LIST_BYTES {
                        return Err(self.bad_list(format!("over {} MiB in all", LIST_BYTES >> 20)));
                    }
                    all.push(instance);
                }
                match page.next {
                    None => return Ok(all),
                    Some(next) if token.as_ref() == Some(&next) => {
                        return Err(self.bad_list("the same page token twice".into()));
                    }
                    Some(next) => token = Some(next),
                }
            }
            // Empty pages with ever new tokens would go on for ever.
            Err(self.bad_list(format!("over {LIST_PAGES} pages")))
        };
        self.made("list-instances", None, yes, work).await
    }

    fn bad_list(&self, what: String) -> CallError {
        CallError::new(ErrorKind::Internal, format!("plugin {}, list-instances: {what}", self.context.plugin))
    }

    /// How its targets are.
    ///
    /// # Errors
    /// By kind.
    pub async fn check(&self) -> Result<Vec<Finding>, CallError> {
        let work = async {
            let config = self.config.clone();
            let answer = self.run("check", vec![], export!(|guest, store| guest.call_check(store, &config))).await?;
            let returned = Returned(&answer.state);
            answer.value.map(|findings| returned.findings(findings)).map_err(|e| returned.error(e))
        };
        let findings = self.made("check", None, |findings: &Vec<Finding>| usable(findings), work).await?;
        if let Some(holding) = &self.holding {
            holding.reached(findings.iter().filter(|finding| finding.healthy).map(|finding| finding.target.as_str()));
        }
        Ok(findings)
    }

    /// An answer about another place than the one asked for is a fault of the plugin.
    fn at(&self, asked: &str, function: &str, instance: Instance) -> Result<Instance, CallError> {
        if instance.placement == asked {
            return Ok(instance);
        }
        Err(CallError::new(
            ErrorKind::Internal,
            format!(
                "plugin {}, {function}: bad answer: asked about {asked:?}, answered about {:?}",
                self.context.plugin, instance.placement
            ),
        ))
    }
}

fn not_leading() -> CallError {
    let error = CallError::new(ErrorKind::Transient, "another replica of the operator leads");
    CallError { by_host: Some(ByHost::HeldBack(NOT_LEADING)), ..error.with_reason("NotLeading") }
}

fn passwords(login: Option<&Login>) -> Vec<SecretBytes> {
    login.iter().map(|login| login.password.clone()).collect()
}
