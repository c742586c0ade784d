//! Holding back the calls of one Provider: those of a function with which its plugin keeps failing, and all that ask a
//! backend which is out of reach: that of one target (a host, a zone), or, where a call is about no placement, of all.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;

use super::breaker::{Breaker, FAILURES, Ticket};
use crate::model::clock::Clock;
use crate::model::error::{ByHost, CallError, ErrorKind};
use crate::model::metrics::HeldBack;

/// Reasons of a Provider whose calls are held back.
const FAILING: &str = "PluginFailing";
const UNREACHABLE: &str = "BackendUnavailable";

/// Targets of one Provider that are remembered.
const TARGETS: usize = 1000;
/// Longer than anybody waits between two calls about what is at a target.
const FORGOTTEN: Duration = Duration::from_secs(2 * 60 * 60);

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
    /// Of calls that are about no target.
    backend: Breaker,
    targets: Targets,
}

/// Each target by itself: a host that is down must not hold back the others, nor one of those let it go. Those that are well are
/// kept too, since they tell that not all are down.
#[derive(Default)]
struct Targets(BTreeMap<String, Target>);

#[derive(Default)]
struct Target {
    breaker: Breaker,
    /// When a call last asked it.
    asked: Duration,
}

impl Targets {
    /// The breaker of a target that is asked now.
    fn asked(&mut self, name: &str, now: Duration) -> &mut Breaker {
        if !self.0.contains_key(name) {
            self.forget(now);
            while self.0.len() >= TARGETS {
                // What is well first, and of that what nobody asked for the longest.
                let least = self.0.iter().min_by_key(|(_, target)| (!target.breaker.is_well(), target.asked));
                let Some(least) = least.map(|(name, _)| name.clone()) else { break };
                self.0.remove(&least);
            }
        }
        let target = self.0.entry(name.to_owned()).or_default();
        target.asked = now;
        &mut target.breaker
    }

    /// Lets go of those that failed and that nobody has asked for long: nothing is there any more that would.
    fn forget(&mut self, now: Duration) {
        self.0.retain(|_, target| target.breaker.is_well() || now.saturating_sub(target.asked) < FORGOTTEN);
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Breaker> {
        self.0.get_mut(name).map(|target| &mut target.breaker)
    }

    fn why(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.breaker.why()
    }

    /// Each with why its calls are held back, if they are.
    fn all(&self) -> impl Iterator<Item = (&String, Option<&str>)> {
        self.0.iter().map(|(name, target)| (name, target.breaker.why()))
    }
}

/// The breaker of what a call asks now.
fn asked<'a>(
    backend: &'a mut Breaker,
    targets: &'a mut Targets,
    target: Option<&str>,
    now: Duration,
) -> &'a mut Breaker {
    match target {
        None => backend,
        Some(target) => targets.asked(target, now),
    }
}

/// A call under way. Dropped without an outcome, it says nothing.
pub(super) struct Turn<'a> {
    holding: &'a Holding,
    function: &'static str,
    target: Option<String>,
    tickets: Option<(Ticket, Option<Ticket>)>,
}

/// Whether a function asks the backend: by the contract these do not.
fn asks(function: &str) -> bool {
    !matches!(function, "describe" | "validate")
}

/// Whether an error proves that the backend was there to refuse. What a plugin may say without asking proves nothing.
fn proves(function: &str, error: &CallError) -> bool {
    let refused = match error.kind {
        ErrorKind::Unauthorized | ErrorKind::RateLimited(_) | ErrorKind::Foreign => true,
        ErrorKind::Exhausted | ErrorKind::InvalidSpec(_) => function != "place",
        _ => false,
    };
    refused && error.by_host.is_none() && asks(function)
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

    /// Lets a call begin, or says why and for how long not. `target`: whom it asks, where that is known.
    pub fn admit(&self, function: &'static str, target: Option<&str>) -> Result<Turn<'_>, CallError> {
        let now = self.clock.monotonic();
        let mut state = self.lock();
        let State { functions, backend, targets } = &mut *state;
        let own = functions.entry(function).or_default();
        let both = own.admit(now).and_then(|ticket| {
            let other = waits(function).then(|| asked(backend, targets, target, now).admit(now)).transpose();
            other.inspect_err(|_| own.ended(ticket)).map(|other| (ticket, other))
        });
        match both {
            Ok(tickets) => {
                Ok(Turn { holding: self, function, target: target.map(str::to_owned), tickets: Some(tickets) })
            }
            Err(wait) => {
                let held = state.held(function, target).unwrap_or(Held { reason: FAILING, message: String::new() });
                let kind = if held.reason == FAILING { ErrorKind::Internal } else { ErrorKind::Transient };
                let error = CallError::new(kind, held.message).with_reason(held.reason);
                Err(CallError { by_host: Some(ByHost::HeldBack(wait)), ..error })
            }
        }
    }

    /// Why calls of this function that ask this target are held back.
    pub fn held(&self, function: &str, target: Option<&str>) -> Option<Held> {
        self.lock().held(function, target)
    }

    /// Why calls are held back whomever they ask.
    pub fn any(&self) -> Option<Held> {
        let state = self.lock();
        let failing = state.functions.values().find_map(Breaker::why).map(failing);
        let everywhere = || {
            let all = state.targets.all().all(|(_, why)| why.is_some());
            state.targets.all().find_map(|(_, why)| why).filter(|_| all)
        };
        failing.or_else(|| state.backend.why().or_else(everywhere).map(unreachable))
    }

    /// The targets that are out of reach, and why it is thought so.
    pub fn targets(&self) -> Vec<(String, Held)> {
        let mut state = self.lock();
        state.targets.forget(self.clock.monotonic());
        self.show(&state, false);
        state.targets.all().filter_map(|(name, why)| Some((name.clone(), unreachable(why?)))).collect()
    }

    /// These targets are there.
    pub fn reached<'t>(&self, targets: impl Iterator<Item = &'t str>) {
        let mut state = self.lock();
        let turned =
            targets.fold(false, |turned, name| state.targets.get_mut(name).is_some_and(Breaker::worked) | turned);
        self.show(&state, turned);
    }

    /// Lets all calls go at once: something changed.
    pub fn reset(&self) {
        let mut state = self.lock();
        let State { functions, backend, targets } = &mut *state;
        let turned = functions
            .values_mut()
            .chain([backend])
            .chain(targets.0.values_mut().map(|target| &mut target.breaker))
            .fold(false, |turned, one| one.worked() | turned);
        self.show(&state, turned);
    }

    /// Shows what is held back by now, and tells of it when it has turned.
    fn show(&self, state: &State, turned: bool) {
        let failing = state.functions.values().filter(|own| own.why().is_some()).count();
        self.shown.failing.store(failing as u64, Ordering::Relaxed);
        let backend = state.backend.why();
        let unreachable = state.targets.all().map(|(_, why)| why).chain([backend]).flatten().count();
        self.shown.unreachable.store(unreachable as u64, Ordering::Relaxed);
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
    fn held(&self, function: &str, target: Option<&str>) -> Option<Held> {
        let own = self.functions.get(function).and_then(Breaker::why).map(failing);
        let asked = || target.map_or_else(|| self.backend.why(), |target| self.targets.why(target));
        own.or_else(|| asked().filter(|_| waits(function)).map(unreachable))
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
        let State { functions, backend, targets } = &mut *state;
        let own = functions.entry(function).or_default();
        let backend = asked(backend, targets, self.target.as_deref(), now);
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
            Err(error) if proves(function, error) => backend.worked(),
            Err(error)
                if error.kind == ErrorKind::Transient && error.by_host != Some(ByHost::Queued) && asks(function) =>
            {
                let at = self.target.as_ref().map(|target| format!(" of {target}")).unwrap_or_default();
                let why = || {
                    format!(
                        "{FAILURES} calls in a row did not reach the backend{at}, and calls are held back and tried again now and then; \
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
            let State { backend: all, targets, .. } = &mut *state;
            let now = self.holding.clock.monotonic();
            asked(all, targets, self.target.as_deref(), now).ended(backend.unwrap_or_default());
        }
    }
}

#[cfg(test)]
#[path = "holding_tests.rs"]
mod tests;
