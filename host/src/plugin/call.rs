//! One call = one fresh instance in one fresh Store, since a trap or a dropped call poisons the whole Store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;
use wasmtime::{Store, Trap, UpdateDeadline};

use super::bindings::{Plugin, PluginPre};
use super::grants::Grants;
use super::limits::{HANDLES, HOSTCALL_BYTES, Limiter};
use crate::model::clock::Clock;
use crate::model::error::{CallError, ErrorKind};
use crate::model::secret::SecretBytes;

/// What host functions see of the call that they serve.
pub(super) struct CallState {
    pub limiter: Limiter,
    pub grants: Arc<Grants>,
    pub clock: Arc<dyn Clock>,
    pub provider: Arc<str>,
    pub plugin: Arc<str>,
    pub function: &'static str,
    /// Values that must leave in no text: the proxy's login, and each credential that this call used.
    pub secrets: Vec<SecretBytes>,
    pub log_records: u32,
    pub panic_text: Option<String>,
    pub progress: Arc<Progress>,
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
    in_host_call: AtomicBool,
    sent_change: AtomicBool,
}

impl Progress {
    /// A host call begins that may change the world. Answers whether one had been sent before.
    pub fn begin(&self, change: bool) -> bool {
        self.in_host_call.store(true, Ordering::SeqCst);
        self.sent_change.fetch_or(change, Ordering::SeqCst)
    }

    /// It ended; whether a change has been sent by now.
    pub fn end(&self, sent_change: bool) {
        self.sent_change.store(sent_change, Ordering::SeqCst);
        self.in_host_call.store(false, Ordering::SeqCst);
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
    /// Calls at once of this provider, and of all.
    pub permits: [Arc<Semaphore>; 2],
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
        limiter: Limiter::default(),
        grants: context.grants,
        clock: context.clock,
        provider: context.provider,
        plugin: context.plugin.clone(),
        function,
        secrets,
        log_records: 0,
        panic_text: None,
        progress: progress.clone(),
        deadline: Instant::now() + context.timeout,
    };
    let at = format!("plugin {}, {function}", context.plugin);
    let failed = |message: String, waiting: bool| {
        let kind = match (progress.sent_change.load(Ordering::SeqCst), waiting) {
            (true, _) => ErrorKind::UnknownOutcome,
            (false, true) => ErrorKind::Transient,
            (false, false) => ErrorKind::Internal,
        };
        CallError::new(kind, format!("{at}: {message}"))
    };
    let [own, global] = context.permits;
    let (pre, timeout) = (pre.clone(), context.timeout);
    // A task of its own: a panic of a host function is this call's failure, and a dropped caller ends the call.
    let task = tokio::spawn(async move {
        tokio::time::timeout(timeout, async move {
            let _permits = (own.acquire_owned().await, global.acquire_owned().await);
            run(&pre, state, export).await
        })
        .await
    });
    match AbortOnDropHandle::new(task).await {
        Ok(Ok(Ok(answer))) => Ok(answer),
        Ok(Ok(Err(cause))) => Err(failed(cause, false)),
        Ok(Err(_elapsed)) => {
            let waiting = progress.in_host_call.load(Ordering::SeqCst);
            let what = if waiting { "the backend did not answer" } else { "it was still computing" };
            let mut error = failed(
                format!("{what} after {} s, the limit of one call (limits.callTimeout)", timeout.as_secs_f32()),
                waiting,
            );
            if waiting && error.kind == ErrorKind::Transient {
                error = error.with_reason("CallTimedOut");
            }
            Err(error)
        }
        Err(panicked) => {
            tracing::error!(%at, error = %panicked, "a host function panicked");
            Err(failed("the operator failed while it served this call; please report it with the log".into(), false))
        }
    }
}

/// Instantiates and calls; the error is the cause in words.
async fn run<T>(pre: &PluginPre<CallState>, state: CallState, export: Export<T>) -> Result<Answer<T>, String> {
    let mut store = Store::new(pre.engine(), state);
    store.limiter(|state| &mut state.limiter);
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
    if let Some(limit) = &state.limiter.hit {
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
