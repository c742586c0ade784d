//! One call = one fresh instance in one fresh Store, since a trap or a dropped call poisons the whole Store.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use wasmtime::{Store, Trap, UpdateDeadline};

use super::bindings::{Plugin, PluginPre};
use super::grants::Grants;
use super::io::wasi::Wasi;
use super::limits::{HANDLES, HOSTCALL_BYTES, Limit, Limiter, Memory};
use super::log_rate::LogRate;
use crate::model::clock::Clock;
use crate::model::error::{ByHost, CallError, ErrorKind};
use crate::model::metrics::ProviderMetrics;
use crate::model::secret::{Known, SecretBytes};

/// What host functions see of the call that they serve.
pub(super) struct CallState {
    pub limiter: Limiter,
    pub grants: Arc<Grants>,
    pub clock: Arc<dyn Clock>,
    pub provider: Arc<str>,
    pub plugin: Arc<str>,
    pub function: &'static str,
    /// Values that must leave in no text: the proxy's login, and each credential that this call used.
    pub secrets: Known,
    pub log_records: u32,
    pub log_rate: Arc<Mutex<LogRate>>,
    pub metrics: Arc<ProviderMetrics>,
    pub panic_text: Option<String>,
    pub progress: Arc<Progress>,
    pub wasi: Wasi,
    deadline: Instant,
}

impl CallState {
    /// What is left of the call's time.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// What is known of a call even after it was dropped at its deadline.
#[derive(Default)]
pub(super) struct Progress {
    doing: Mutex<Doing>,
    /// How long it waited for other calls in all.
    queued: Mutex<Duration>,
    sent_change: AtomicBool,
}

/// What a call is at. Of whom it waits for depends whose fault its deadline is.
#[derive(Clone, Default)]
enum Doing {
    /// Its turn has not come, or other calls hold the memory that it needs.
    #[default]
    Queued,
    /// The guest runs.
    Computing,
    /// A host call waits for this.
    Waiting(String),
}

impl Progress {
    /// A host call begins that waits for `what`, and that may change the world. Answers whether a change had been sent
    /// before.
    pub fn begin(&self, what: String, change: bool) -> bool {
        self.turn(Doing::Waiting(what));
        self.sent_change.fetch_or(change, Ordering::SeqCst)
    }

    /// A change is about to leave.
    pub fn sent(&self) {
        self.sent_change.store(true, Ordering::SeqCst);
    }

    /// It ended; whether a change has been sent by now.
    pub fn end(&self, sent_change: bool) {
        self.sent_change.store(sent_change, Ordering::SeqCst);
        self.turn(Doing::Computing);
    }

    /// Waits for what other calls hold.
    pub async fn queued<T>(&self, work: impl Future<Output = T>) -> T {
        let (before, since) = (self.doing(), Instant::now());
        self.turn(Doing::Queued);
        let done = work.await;
        *self.queued.lock().unwrap_or_else(PoisonError::into_inner) += since.elapsed();
        self.turn(before);
        done
    }

    /// Whether it waited for other calls for most of this time.
    fn came_late(&self, time: Duration) -> bool {
        *self.queued.lock().unwrap_or_else(PoisonError::into_inner) > time / 2
    }

    fn turn(&self, to: Doing) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    fn doing(&self) -> Doing {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// For whom and within what a call runs.
#[derive(Clone)]
pub(super) struct Context {
    pub grants: Arc<Grants>,
    pub clock: Arc<dyn Clock>,
    pub provider: Arc<str>,
    pub plugin: Arc<str>,
    pub timeout: Duration,
    pub log_rate: Arc<Mutex<LogRate>>,
    pub metrics: Arc<ProviderMetrics>,
    /// Calls at once of this provider, and of all.
    pub permits: [Arc<Semaphore>; 2],
    /// Of all calls.
    pub memory: Memory,
}

/// What an export answered, with the values to scrub from it.
pub(super) struct Answer<T> {
    pub value: T,
    pub state: CallState,
}

/// One call of an export.
pub(super) type Export<T> =
    Box<dyn for<'a> FnOnce(&'a mut Store<CallState>, &'a Plugin) -> BoxFuture<'a, wasmtime::Result<T>> + Send>;

/// Runs one export. The deadline counts from here: waiting for permits is included.
///
/// # Errors
/// A trap, a limit, the deadline and a panic of a host function all end this call alone, as `internal`, or as
/// `unknown-outcome` when a change had been sent.
pub(super) async fn call<T: Send + 'static>(
    pre: &PluginPre<CallState>,
    context: Context,
    function: &'static str,
    secrets: Vec<SecretBytes>,
    export: Export<T>,
) -> Result<Answer<T>, CallError> {
    let progress = Arc::new(Progress::default());
    let state = CallState {
        limiter: Limiter::new(context.memory, progress.clone()),
        grants: context.grants,
        clock: context.clock,
        provider: context.provider,
        plugin: context.plugin.clone(),
        function,
        secrets: secrets.into(),
        log_records: 0,
        log_rate: context.log_rate,
        metrics: context.metrics,
        panic_text: None,
        progress: progress.clone(),
        wasi: Wasi::default(),
        deadline: Instant::now() + context.timeout,
    };
    let at = format!("plugin {}, {function}", context.plugin);
    let failed = |kind: ErrorKind, by_host: Option<ByHost>, message: String| {
        let kind = if progress.sent_change.load(Ordering::SeqCst) { ErrorKind::UnknownOutcome } else { kind };
        CallError { by_host, ..CallError::new(kind, format!("{at}: {message}")) }
    };
    let trapped = |message: String| failed(ErrorKind::Internal, Some(ByHost::Trapped), message);
    let [own, global] = context.permits;
    let (pre, timeout, begun) = (pre.clone(), context.timeout, progress.clone());
    let work = tokio::time::timeout(timeout, async move {
        let _permits = begun.queued(async { (own.acquire_owned().await, global.acquire_owned().await) }).await;
        begun.turn(Doing::Computing);
        run(&pre, state, export).await
    });
    // A panic of a host function is this call's failure. Nothing that it may have left half done is seen again: the Store
    // goes with it. In the caller's own task, since waking another thread costs a third of a call.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(Ok(answer))) => Ok(answer),
        Ok(Ok(Err(cause))) => Err(trapped(cause)),
        Ok(Err(_elapsed)) => {
            let (kind, by_host, what) = match progress.doing() {
                Doing::Queued => {
                    let what = "it still waited for other calls to end".to_owned();
                    (ErrorKind::Transient, Some(ByHost::Queued), what)
                }
                // Not the plugin's fault: others had the time that it was to have.
                Doing::Computing if progress.came_late(timeout) => {
                    let what = "it had waited for other calls to end for most of its time, and was not done".to_owned();
                    (ErrorKind::Transient, Some(ByHost::Queued), what)
                }
                Doing::Computing => (ErrorKind::Internal, Some(ByHost::Trapped), "it was still computing".to_owned()),
                Doing::Waiting(what) => (ErrorKind::Transient, None, format!("it still waited for {what}")),
            };
            let whose = if function == "describe" { "its limit" } else { "the limit of one call (limits.callTimeout)" };
            let error = failed(kind, by_host, format!("{what} after {} s, {whose}", timeout.as_secs_f32()));
            Err(if error.kind == ErrorKind::Transient { error.with_reason("CallTimedOut") } else { error })
        }
        Err(panicked) => {
            let text = panicked.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panicked.downcast_ref::<String>().cloned()).unwrap_or_default();
            tracing::error!(%at, error = %text, "a host function panicked");
            Err(trapped("the operator failed while it served this call; please report it with the log".into()))
        }
    }
}

/// Instantiates and calls; the error is the cause in words.
async fn run<T>(pre: &PluginPre<CallState>, state: CallState, export: Export<T>) -> Result<Answer<T>, String> {
    let mut store = Store::new(pre.engine(), state);
    store.limiter_async(|state| &mut state.limiter);
    store.set_hostcall_fuel(HOSTCALL_BYTES);
    store.set_max_component_handles(HANDLES);
    // Before instantiation, which runs guest code too. A tick yields to the runtime, which is where the deadline strikes.
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|_| Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now()))));
    let outcome = match pre.instantiate_async(&mut store).await {
        Ok(plugin) => export(&mut store, &plugin).await,
        Err(e) => Err(e),
    };
    match outcome {
        Ok(value) => Ok(Answer { value, state: store.into_data() }),
        Err(error) => {
            let state = store.data();
            tracing::warn!(provider = %state.provider, plugin = %state.plugin, call = state.function, error = %state.clean(&format!("{error:#}"), 8 << 10), "a call trapped");
            Err(cause(&error, state))
        }
    }
}

fn cause(error: &wasmtime::Error, state: &CallState) -> String {
    if let Some(limit) = state.limiter.hit.or_else(|| Limit::of(error)) {
        return format!("it hit {limit}");
    }
    if let Some(text) = &state.panic_text {
        return format!("it panicked: {text}");
    }
    match error.downcast_ref::<Trap>() {
        Some(trap) => format!("it trapped: {trap}"),
        None => state.clean(&format!("{:#}", error.root_cause()), 1024),
    }
}
