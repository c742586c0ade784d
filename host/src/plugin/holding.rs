//! Holding back the calls of one Provider: those of a function with which its plugin keeps failing, and all that ask a
//! backend which is out of reach.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;

use super::breaker::{Breaker, FAILURES, Ticket};
use crate::model::clock::Clock;
use crate::model::error::{ByHost, CallError, ErrorKind};
use crate::model::metrics::HeldBack;

/// Reasons of a Provider whose calls are held back.
const FAILING: &str = "PluginFailing";
const UNREACHABLE: &str = "BackendUnavailable";

/// Why calls are held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// CamelCase.
    pub reason: &'static str,
    /// For people: plugin, function, cause, remedy.
    pub message: String,
}

/// What a call tells of the backend when it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// It was there.
    Yes,
    /// Perhaps it was not asked.
    Perhaps,
}

/// The calls of one Provider's plugin.
pub(super) struct Holding {
    plugin: Arc<str>,
    provider: Arc<str>,
    clock: Arc<dyn Clock>,
    /// Told of each turn to or from holding back.
    turns: broadcast::Sender<Arc<str>>,
    shown: Arc<HeldBack>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    functions: BTreeMap<&'static str, Breaker>,
    backend: Breaker,
}

/// A call under way. Dropped without an outcome, it says nothing.
pub(super) struct Turn<'a> {
    holding: &'a Holding,
    function: &'static str,
    tickets: Option<(Ticket, Option<Ticket>)>,
}

/// Whether a function asks the backend: by the contract these do not.
fn asks(function: &str) -> bool {
    !matches!(function, "describe" | "validate")
}

/// Whether it waits for a backend that is out of reach. `check` is what tells that it is back, at its Provider's own pace.
fn waits(function: &str) -> bool {
    asks(function) && function != "check"
}

impl Holding {
    pub fn new(
        plugin: Arc<str>,
        provider: Arc<str>,
        clock: Arc<dyn Clock>,
        turns: broadcast::Sender<Arc<str>>,
        shown: Arc<HeldBack>,
    ) -> Self {
        Self { plugin, provider, clock, turns, shown, state: Mutex::default() }
    }

    /// Lets a call begin, or says why and for how long not.
    pub fn admit(&self, function: &'static str) -> Result<Turn<'_>, CallError> {
        let now = self.clock.monotonic();
        let mut state = self.lock();
        let State { functions, backend } = &mut *state;
        let own = functions.entry(function).or_default();
        let both = own.admit(now).and_then(|ticket| {
            let other = waits(function).then(|| backend.admit(now)).transpose();
            other.inspect_err(|_| own.ended(ticket)).map(|other| (ticket, other))
        });
        match both {
            Ok(tickets) => Ok(Turn { holding: self, function, tickets: Some(tickets) }),
            Err(wait) => {
                let held = state.held(function).unwrap_or(Held { reason: FAILING, message: String::new() });
                let kind = if held.reason == FAILING { ErrorKind::Internal } else { ErrorKind::Transient };
                let error = CallError::new(kind, held.message).with_reason(held.reason);
                Err(CallError { by_host: Some(ByHost::HeldBack(wait)), ..error })
            }
        }
    }

    /// Why calls of this function are held back.
    pub fn held(&self, function: &str) -> Option<Held> {
        self.lock().held(function)
    }

    /// Why any calls are held back.
    pub fn any(&self) -> Option<Held> {
        let state = self.lock();
        let failing = state.functions.values().find_map(Breaker::why).map(failing);
        failing.or_else(|| state.backend.why().map(unreachable))
    }

    /// Lets all calls go at once: something changed.
    pub fn reset(&self) {
        let mut state = self.lock();
        let State { functions, backend } = &mut *state;
        let turned = functions.values_mut().chain([backend]).fold(false, |turned, one| one.worked() | turned);
        self.show(&state, turned);
    }

    /// Shows what is held back by now, and tells of it when it has turned.
    fn show(&self, state: &State, turned: bool) {
        let failing = state.functions.values().filter(|own| own.why().is_some()).count();
        self.shown.failing.store(failing as u64, Ordering::Relaxed);
        self.shown.unreachable.store(state.backend.why().is_some().into(), Ordering::Relaxed);
        if turned {
            // Nobody listens while the operator starts or ends.
            let _ = self.turns.send(self.provider.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn held(&self, function: &str) -> Option<Held> {
        let own = self.functions.get(function).and_then(Breaker::why).map(failing);
        own.or_else(|| self.backend.why().filter(|_| waits(function)).map(unreachable))
    }
}

fn failing(why: &str) -> Held {
    Held { reason: FAILING, message: why.to_owned() }
}

fn unreachable(why: &str) -> Held {
    Held { reason: UNREACHABLE, message: why.to_owned() }
}

impl Turn<'_> {
    /// Takes in how it ended. `about`: the object. `reached`: what it tells of the backend when it worked.
    pub fn came_to(mut self, about: Option<&str>, reached: Reached, outcome: Result<(), &CallError>) {
        let Some((own_ticket, backend_ticket)) = self.tickets.take() else { return };
        let Holding { plugin, clock, .. } = self.holding;
        let (function, now, random) = (self.function, clock.monotonic(), &mut rand::rng());
        let mut state = self.holding.lock();
        let State { functions, backend } = &mut *state;
        let own = functions.entry(function).or_default();
        let by_host = outcome.err().and_then(|error| error.by_host);
        let mut turned = match (by_host, outcome) {
            (Some(ByHost::Trapped), Err(error)) => {
                let why = || {
                    format!(
                        "{FAILURES} calls in a row failed, and {function} is held back and tried again now and then; the last one: {error}; \
                         mend the plugin {plugin}, or bring back its last good version"
                    )
                };
                own.failed(own_ticket, about, why, now, random)
            }
            // It was the operator that ended it, and the plugin had not done its part.
            (Some(_), _) => {
                own.ended(own_ticket);
                false
            }
            (None, _) => own.worked(),
        };
        let backend_ticket_or_free = backend_ticket.unwrap_or_default();
        turned |= match outcome {
            Ok(()) if reached == Reached::Yes => backend.worked(),
            Err(error)
                if error.kind == ErrorKind::Transient && error.by_host != Some(ByHost::Queued) && asks(function) =>
            {
                let why = || {
                    format!(
                        "{FAILURES} calls in a row did not reach the backend, and calls are held back and tried again now and then; \
                         the last one, {function} of plugin {plugin}: {error}"
                    )
                };
                backend.failed(backend_ticket_or_free, about, why, now, random)
            }
            _ => {
                backend.ended(backend_ticket_or_free);
                false
            }
        };
        self.holding.show(&state, turned);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some((own, backend)) = self.tickets.take() {
            let mut state = self.holding.lock();
            state.functions.entry(self.function).or_default().ended(own);
            state.backend.ended(backend.unwrap_or_default());
        }
    }
}
