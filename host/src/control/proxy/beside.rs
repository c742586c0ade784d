//! The instances beside the one that serves: the one that is to follow it (`status.next`), made first where the backend
//! allows it so that a rebuild takes nothing away, and those on their way out (`status.retiring`). Pure, as
//! [`decide`](super::decide) and [`absorb`](super::absorb::absorb) are.

use std::time::Duration;

use rand::Rng;

use super::absorb::endpoint;
use super::decide::{Answer, BAD_FOR, Call, OBSERVE, Step, UNKNOWN_FOR, is_restrained};
use super::memory::{CLOSE, Coming, LATE, LOOK, Leaving, Memory, POLL, Seen, Trouble};
use super::{Facts, ProviderFacts, ReadyProvider};
use crate::health::Verdict;
use crate::health::probe::FailureKind;
use crate::model::error::{CallError, ErrorKind};
use crate::model::instance::{Deletion, Instance, Presence, State};
use crate::model::proxy::{AuthMode, Endpoint, InstanceStatus, Proxy, ProxyStatus, RETIRING};
use crate::model::spec_hash::{shaping_fields, spec_hash};

/// While there is nothing to do but to wait for something else of this Proxy.
const IDLE: Duration = Duration::from_secs(60);

/// Which of them a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// The one that is to follow.
    Next,
    /// The one of this incarnation on its way out.
    Retiring(u32),
}

impl Beside {
    /// Its identity, as the status has it.
    pub fn of(self, status: &ProxyStatus) -> Option<&InstanceStatus> {
        match self {
            Self::Next => status.next.as_ref(),
            Self::Retiring(incarnation) => status.retiring.iter().find(|old| old.incarnation == incarnation),
        }
    }

    fn of_mut(self, status: &mut ProxyStatus) -> Option<&mut InstanceStatus> {
        match self {
            Self::Next => status.next.as_mut(),
            Self::Retiring(incarnation) => status.retiring.iter_mut().find(|old| old.incarnation == incarnation),
        }
    }
}

/// What comes next for them.
pub(super) fn next(proxy: &Proxy, memory: &mut Memory, facts: &Facts) -> Step {
    let ProviderFacts::Ready(provider) = &facts.provider else { return Step::Wait(Duration::MAX) };
    let Some(status) = &proxy.status else { return Step::Wait(Duration::MAX) };
    let mut wait = Duration::MAX;
    if let Some(next) = &status.next {
        let step = if proxy.is_deleting() {
            give_up(status, memory, provider, facts.now)
        } else {
            follow(proxy, status, next, memory, facts, provider)
        };
        match memory.unless_held(step, facts.now) {
            Step::Wait(other) => wait = other,
            step => return step,
        }
    }
    memory.leaving.retain(|incarnation, _| status.retiring.iter().any(|old| old.incarnation == *incarnation));
    for old in &status.retiring {
        let step = leave(proxy, status, old, memory, facts, provider);
        match memory.unless_held(step, facts.now) {
            Step::Wait(other) => wait = wait.min(other),
            step => return step,
        }
    }
    Step::Wait(wait)
}

/// Drives the one that is to follow, until it serves and takes over.
fn follow(
    proxy: &Proxy,
    status: &ProxyStatus,
    next: &InstanceStatus,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
) -> Step {
    if is_restrained(proxy, memory, facts) {
        return Step::Wait(IDLE);
    }
    if !is_wanted(proxy, next, facts) {
        return give_up(status, memory, provider, facts.now);
    }
    let with = (proxy.metadata.generation.unwrap_or(0), provider.epoch);
    if let Some(wait) = memory.coming.trouble.as_ref().and_then(|t| t.waits(with, facts.now)) {
        return Step::Wait(wait);
    }
    let Some(seen) = memory.coming.seen.clone() else { return Step::Beside(Beside::Next, Call::Get) };
    let paced = |call: Call, poll: Duration| match seen.due(poll).checked_sub(facts.now) {
        Some(wait) if !wait.is_zero() => Step::Wait(wait),
        _ => Step::Beside(Beside::Next, call),
    };
    let coming = &mut memory.coming;
    match &seen.state {
        None if next.provider_id.is_some() => give_up(status, memory, provider, facts.now),
        None => Step::Beside(Beside::Next, Call::Create),
        Some(State::Creating | State::Stopped) => {
            let since = *coming.creating_since.get_or_insert(facts.now);
            if facts.now.saturating_sub(since) > provider.create_deadline {
                return give_up(status, memory, provider, facts.now);
            }
            paced(Call::Create, POLL)
        }
        Some(State::Running) => {
            if matches!(facts.next_health, Verdict::Healthy { .. }) && coming.endpoint.is_some() {
                if status.retiring.len() >= RETIRING {
                    return Step::Wait(LOOK);
                }
                return take_over(proxy, status, memory, facts, provider, true);
            }
            let bad = match &facts.next_health {
                Verdict::Unhealthy(failure) => failure.kind != FailureKind::JudgeUnreachable,
                _ => coming.endpoint.is_none(),
            };
            if !bad {
                coming.bad_since = None;
            } else if facts.now.saturating_sub(*coming.bad_since.get_or_insert(facts.now)) > BAD_FOR {
                return give_up(status, memory, provider, facts.now);
            }
            paced(Call::Get, if coming.endpoint.is_none() { POLL * 2 } else { OBSERVE })
        }
        Some(State::Failed(_)) => give_up(status, memory, provider, facts.now),
        Some(State::Deleting | State::Unknown(_)) => {
            let since = *coming.bad_since.get_or_insert(facts.now);
            if facts.now.saturating_sub(since) > UNKNOWN_FOR {
                return give_up(status, memory, provider, facts.now);
            }
            paced(Call::Get, POLL * 2)
        }
    }
}

/// Whether the one that is to follow is made from the present spec and login.
fn is_wanted(proxy: &Proxy, next: &InstanceStatus, facts: &Facts) -> bool {
    next.spec_hash.as_ref() == Some(&spec_hash(&proxy.spec, facts.own_login.newest()))
}

/// Whether one stands by that may take over from one that is lost.
pub(super) fn stands_by(proxy: &Proxy, status: &ProxyStatus, facts: &Facts) -> bool {
    status.retiring.len() < RETIRING && status.next.as_ref().is_some_and(|next| is_wanted(proxy, next, facts))
}

/// The one that is to follow serves from now on. `keep_old`: the other one has to be deleted yet.
pub(super) fn take_over(
    proxy: &Proxy,
    status: &ProxyStatus,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
    keep_old: bool,
) -> Step {
    let mut status = status.clone();
    let Some(mut next) = status.next.take() else { return Step::Wait(LOOK) };
    let mut coming = std::mem::take(&mut memory.coming);
    status.spec_hash = next.spec_hash.take();
    status.applied = shaping_fields(&proxy.spec, facts.own_login.newest());
    status.endpoint = coming.endpoint.take();
    status.address = status.endpoint.as_ref().map(Endpoint::authority);
    status.exit_ip = None;
    status.rebuilds += 1;
    let old = status.instance.replace(next).filter(|_| keep_old);
    if let Some(old) = old {
        retire(&mut status, memory, old, memory.creates_end(provider));
    }
    memory.succeeded_by(coming);
    Step::Store(Box::new(status))
}

/// Notes an instance as on its way out.
pub(super) fn retire(status: &mut ProxyStatus, memory: &mut Memory, old: InstanceStatus, doubt_until: Duration) {
    let leaving = Leaving { trouble: None, seen: None, drain_since: None, doubt_until };
    memory.leaving.insert(old.incarnation, leaving);
    status.retiring.push(old);
}

/// The one that is to follow is not wanted, or leads nowhere: it goes, when there is room among those that do.
fn give_up(status: &ProxyStatus, memory: &mut Memory, provider: &ReadyProvider, now: Duration) -> Step {
    if status.retiring.len() >= RETIRING {
        return Step::Wait(LOOK);
    }
    let mut status = status.clone();
    let Some(next) = status.next.take() else { return Step::Wait(LOOK) };
    let end = if memory.coming.settled { Duration::ZERO } else { memory.born + provider.call_timeout + LATE };
    let end = end.max(memory.coming.doubt_until.unwrap_or_default()).max(now);
    retire(&mut status, memory, next, end);
    memory.coming = Coming { avoid: std::mem::take(&mut memory.coming.avoid), ..Coming::default() };
    Step::Store(Box::new(status))
}

/// Waits for the leases of one on its way out, deletes it until it is gone, then forgets it.
fn leave(
    proxy: &Proxy,
    status: &ProxyStatus,
    old: &InstanceStatus,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
) -> Step {
    let which = Beside::Retiring(old.incarnation);
    let earlier = memory.born + provider.call_timeout + LATE;
    let leaving = memory.leaving.entry(old.incarnation).or_insert(Leaving {
        trouble: None,
        seen: None,
        drain_since: None,
        doubt_until: earlier,
    });
    let with = (proxy.metadata.generation.unwrap_or(0), provider.epoch);
    if let Some(wait) = leaving.trouble.as_ref().and_then(|t| t.waits(with, facts.now)) {
        return Step::Wait(wait);
    }
    match &leaving.seen {
        Some(Seen { state: None, at, .. }) => match leaving.doubt_until.checked_sub(facts.now) {
            Some(wait) if !wait.is_zero() => Step::Wait(wait),
            // A create may have landed since: made sure of once more.
            _ if *at < leaving.doubt_until => Step::Beside(which, Call::Delete),
            _ => {
                let mut status = status.clone();
                status.retiring.retain(|other| other.incarnation != old.incarnation);
                Step::Store(Box::new(status))
            }
        },
        Some(seen) if seen.due(POLL) > facts.now => Step::Wait(seen.due(POLL) - facts.now),
        Some(_) => Step::Beside(which, Call::Delete),
        None => {
            let Some(since) = leaving.drain_since else {
                // The allocator lends it no more only when it was told who serves; `held` is final from then on.
                leaving.drain_since = Some(facts.now);
                return Step::Wait(CLOSE);
            };
            let waited = facts.now.saturating_sub(since);
            let left = proxy.spec.drain_timeout.duration().saturating_sub(waited);
            if facts.held_retiring.contains(&old.incarnation) && !left.is_zero() {
                return Step::Wait(left.min(LOOK));
            }
            Step::Beside(which, Call::Delete)
        }
    }
}

/// Takes an answer in; answers the status to store, when it changed.
pub fn absorb(
    proxy: &Proxy,
    memory: &mut Memory,
    facts: &Facts,
    which: Beside,
    call: &Call,
    answer: Result<Answer, CallError>,
    random: &mut impl Rng,
) -> Option<ProxyStatus> {
    let ProviderFacts::Ready(provider) = &facts.provider else { return None };
    let with = (proxy.metadata.generation.unwrap_or(0), provider.epoch);
    let mut status = proxy.status.clone().unwrap_or_default();
    match (which, answer) {
        (Beside::Next, answer) => {
            let answer = answer.and_then(|answer| match (call, answer) {
                (Call::Place(avoid), Answer::Placed(at)) if avoid.contains(&at) => {
                    Err(CallError::new(ErrorKind::Exhausted, "no other place"))
                }
                (_, answer) => Ok(answer),
            });
            match answer {
                Ok(answer) => absorb_next(proxy, &mut status, memory, facts, provider, answer),
                Err(error) => {
                    let coming = &mut memory.coming;
                    match (call, &error.kind) {
                        (Call::Create, ErrorKind::UnknownOutcome | ErrorKind::Internal) => {
                            coming.seen = None;
                            coming.doubt_until = Some(facts.now + provider.call_timeout + LATE);
                        }
                        (Call::Create | Call::Get, ErrorKind::Exhausted) => {
                            let here = status.next.as_ref().and_then(|next| next.placement.clone());
                            coming.avoid.extend(here.filter(|place| !coming.avoid.contains(place)));
                            coming.seen = Some(Seen::failed(&error.message, facts.now));
                            return None;
                        }
                        (Call::Place(_), _) => coming.avoid.clear(),
                        _ => {}
                    }
                    let before = coming.trouble.take();
                    coming.trouble =
                        Some(Trouble::after(before.as_ref(), error, call.function(), with, facts.now, random));
                }
            }
        }
        (Beside::Retiring(incarnation), answer) => {
            let leaving = memory.leaving.get_mut(&incarnation)?;
            match answer {
                Ok(Answer::Deleted(Deletion::Gone)) => {
                    leaving.trouble = None;
                    leaving.seen = Some(Seen::absent(facts.now));
                }
                Ok(Answer::Deleted(Deletion::InProgress { message, poll_after, continuation })) => {
                    leaving.trouble = None;
                    let poll_after = Some(poll_after.unwrap_or(POLL));
                    leaving.seen = Some(Seen { state: Some(State::Deleting), at: facts.now, poll_after, message });
                    if let (Some(old), Some(note)) = (which.of_mut(&mut status), continuation) {
                        old.continuation = Some(note);
                    }
                }
                Ok(_) => {}
                // Nothing of ours is there any more.
                Err(error) if error.kind == ErrorKind::Foreign => {
                    status.retiring.retain(|old| old.incarnation != incarnation);
                }
                Err(error) => {
                    let before = leaving.trouble.take();
                    leaving.trouble =
                        Some(Trouble::after(before.as_ref(), error, call.function(), with, facts.now, random));
                }
            }
        }
    }
    (proxy.status.as_ref() != Some(&status)).then_some(status)
}

fn absorb_next(
    proxy: &Proxy,
    status: &mut ProxyStatus,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
    answer: Answer,
) {
    match answer {
        Answer::Placed(placement) => {
            // Asked without the others' latest places and replacements in view: then a place is asked for anew.
            if provider.taken.contains(&placement) || !facts.may_replace(provider, false) {
                return;
            }
            memory.count_rebuild(facts.now);
            memory.coming = Coming {
                seen: Some(Seen::absent(facts.now)),
                creating_since: Some(facts.now),
                settled: true,
                avoid: std::mem::take(&mut memory.coming.avoid),
                ..Coming::default()
            };
            status.next = Some(InstanceStatus {
                incarnation: status.begin_incarnation(),
                placement: Some(placement),
                login_key: (proxy.spec.auth.mode == AuthMode::Generated).then(|| facts.login_key.clone()),
                spec_hash: Some(spec_hash(&proxy.spec, facts.own_login.newest())),
                ..InstanceStatus::default()
            });
        }
        Answer::Created(shown) => show_next(proxy, status, memory, facts, provider, &shown),
        Answer::Got(Presence::Present(shown)) => show_next(proxy, status, memory, facts, provider, &shown),
        Answer::Got(Presence::Absent) => memory.coming.seen = Some(Seen::absent(facts.now)),
        Answer::Validated(_) | Answer::Deleted(_) | Answer::Found(_) => {}
    }
}

fn show_next(
    proxy: &Proxy,
    status: &mut ProxyStatus,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
    shown: &Instance,
) {
    let Some(next) = &mut status.next else { return };
    next.take_in(shown);
    let coming = &mut memory.coming;
    coming.trouble = None;
    coming.seen = Some(Seen::of(shown, facts.now));
    if shown.state == State::Running {
        coming.endpoint = endpoint(proxy, shown, provider.reach);
    }
}
