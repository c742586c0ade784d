//! What comes next for one Proxy. Pure: object, memory and facts in; one step out.

use std::time::Duration;

use rand::Rng;

use super::{Facts, Memory, ProviderFacts, ReadyProvider, Rebuild, Seen, Trouble};
use crate::control::backoff;
use crate::health::Verdict;
use crate::health::probe::FailureKind;
use crate::model::error::{CallError, ErrorKind, FieldError};
use crate::model::instance::{Address, Deletion, Instance, Presence, State};
use crate::model::provider::Reach;
use crate::model::proxy::{AuthMode, Endpoint, InstanceStatus, Proxy, ProxyStatus};
use crate::model::spec_hash::{VERSION, shaping_fields, spec_hash};

/// A provider that cannot serve is looked at again; its changes wake its Proxies anyway.
const PROVIDER_POLL: Duration = Duration::from_secs(60);
/// A running instance that no listing has shown for so long is asked for.
pub const OBSERVE: Duration = Duration::from_secs(150);
/// Between two calls that drive an instance on, where the plugin names no time.
const POLL: Duration = Duration::from_secs(5);
/// Leases are looked at again this often while they are waited for.
const LOOK: Duration = Duration::from_secs(1);
/// Until the allocator lends a proxy no more.
const CLOSE: Duration = Duration::from_millis(10);
/// Bad for so long is replaced.
const BAD_FOR: Duration = Duration::from_secs(600);
/// An unknown state for so long is a failed one.
const UNKNOWN_FOR: Duration = Duration::from_secs(600);
/// An answer may come this much after a call's time limit.
const LATE: Duration = Duration::from_secs(30);
/// Ready for so long, and the next rebuild is a first one again.
const STEADY: Duration = Duration::from_secs(3600);
/// Longest spacing of rebuilds.
const SPACING: Duration = Duration::from_secs(1800);

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Store this status, then decide anew.
    Store(Box<ProxyStatus>),
    /// Set or remove the finalizer, then decide anew.
    Finalizer(bool),
    /// Call the provider, absorb the answer, then decide anew.
    Call(Call),
    /// Nothing to do for so long, unless something changes.
    Wait(Duration),
}

/// A call to the provider about the instance that the status names.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Would the spec be accepted?
    Validate,
    /// Where to make it, other than here.
    Place(Vec<String>),
    /// Make it, drive it on.
    Create,
    /// Is it there?
    Get,
    /// Delete it.
    Delete,
    /// What is there of this Proxy, whose status was lost?
    Search,
}

impl Call {
    /// The contract's name of it.
    pub fn function(&self) -> &'static str {
        match self {
            Self::Validate => "validate",
            Self::Place(_) => "place",
            Self::Create => "create",
            Self::Get => "get",
            Self::Delete => "delete",
            Self::Search => "list-instances",
        }
    }
}

/// What a call answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To `Validate`: what is wrong.
    Validated(Vec<FieldError>),
    /// To `Place`.
    Placed(String),
    /// To `Create`.
    Created(Instance),
    /// To `Get`.
    Got(Presence),
    /// To `Delete`.
    Deleted(Deletion),
    /// To `Search`: this Proxy's instances.
    Found(Vec<Instance>),
}

/// What comes next.
pub fn next(proxy: &Proxy, memory: &mut Memory, facts: &Facts) -> Step {
    if proxy.is_deleting() { next_deleting(proxy, memory, facts) } else { next_living(proxy, memory, facts) }
}

fn next_living(proxy: &Proxy, memory: &mut Memory, facts: &Facts) -> Step {
    let ProviderFacts::Ready(provider) = &facts.provider else { return Step::Wait(PROVIDER_POLL) };
    let generation = proxy.metadata.generation.unwrap_or(0);
    if let Some(wait) = memory.waits(generation, provider.epoch, facts.now) {
        return Step::Wait(wait);
    }
    let invalid = match &memory.validated {
        Some((g, e, errors)) if (*g, *e) == (generation, provider.epoch) => !errors.is_empty(),
        _ => return Step::Call(Call::Validate),
    };
    let status = proxy.status.clone().unwrap_or_default();
    let hands_off = invalid || proxy.spec.paused;
    if proxy.has_finalizer() && status.create_sent.is_none() && !memory.searched {
        return Step::Call(Call::Search);
    }
    let Some(instance) = status.instance.as_ref().filter(|i| i.placement.is_some()) else {
        if hands_off {
            return Step::Wait(PROVIDER_POLL);
        }
        if let Some(wait) = memory.spacing(facts.now) {
            return Step::Wait(wait);
        }
        let avoid = memory.avoid.iter().chain(&provider.taken).cloned().collect();
        return Step::Call(Call::Place(avoid));
    };
    if !proxy.has_finalizer() {
        return Step::Finalizer(true);
    }
    if let Some(rebuild) = memory.rebuild.clone() {
        return match memory.drains(proxy, facts).filter(|_| rebuild.drain) {
            Some(wait) => Step::Wait(wait),
            None => memory.delete_when_due(facts.now),
        };
    }
    let Some(seen) = memory.seen.clone() else { return Step::Call(Call::Get) };
    let paced = |call: Call, poll: Duration| {
        let due = seen.at + seen.poll_after.unwrap_or(poll);
        if due > facts.now { Step::Wait(due - facts.now) } else { Step::Call(call) }
    };
    match &seen.state {
        // It had been there and is gone: another one, under a new name.
        None if instance.provider_id.is_some() => {
            memory.rebuilt_at(facts.now);
            Step::Store(Box::new(next_incarnation(status, true)))
        }
        None if hands_off => Step::Wait(PROVIDER_POLL),
        None => Step::Call(Call::Create),
        Some(State::Running) => next_running(proxy, &status, memory, facts, &seen, hands_off),
        Some(State::Creating | State::Stopped) if hands_off => paced(Call::Get, POLL),
        Some(State::Creating | State::Stopped) => {
            let since = *memory.creating_since.get_or_insert(facts.now);
            if facts.now.saturating_sub(since) > provider.create_deadline {
                let message =
                    format!("it did not run within {} s (limits.createDeadline)", provider.create_deadline.as_secs());
                return memory.replace("CreateDeadlineExceeded", message, proxy, facts);
            }
            paced(Call::Create, POLL)
        }
        Some(State::Failed(_)) if hands_off => Step::Wait(PROVIDER_POLL),
        Some(State::Failed(why)) => memory.replace("InstanceFailed", why.clone(), proxy, facts),
        Some(State::Deleting) => paced(Call::Get, POLL),
        Some(State::Unknown(what)) => {
            let since = *memory.bad_since.get_or_insert(facts.now);
            if facts.now.saturating_sub(since) > UNKNOWN_FOR && !hands_off {
                return memory.replace("InstanceUnknown", what.clone(), proxy, facts);
            }
            paced(Call::Get, POLL * 2)
        }
    }
}

fn next_running(
    proxy: &Proxy,
    status: &ProxyStatus,
    memory: &mut Memory,
    facts: &Facts,
    seen: &Seen,
    hands_off: bool,
) -> Step {
    memory.creating_since = None;
    if facts.now.saturating_sub(seen.at) >= OBSERVE {
        return Step::Call(Call::Get);
    }
    if matches!(&facts.health, Verdict::Unhealthy(f) if f.kind != FailureKind::JudgeUnreachable) {
        memory.bad_since.get_or_insert(facts.now);
    } else {
        memory.bad_since = None;
    }
    if memory.bad_since.is_some_and(|since| seen.at < since) {
        // Its proxy has just gone bad: perhaps there is no instance any more.
        return Step::Call(Call::Get);
    }
    if !hands_off {
        if !up_to_date(proxy, status) {
            return memory.replace("SpecChanged", "the spec changed".into(), proxy, facts);
        }
        if memory.bad_since.is_some_and(|since| facts.now.saturating_sub(since) >= BAD_FOR) {
            return memory.replace("Unhealthy", "its proxy failed for 10 minutes".into(), proxy, facts);
        }
    }
    let observe = OBSERVE.saturating_sub(facts.now.saturating_sub(seen.at));
    let bad = memory.bad_since.map(|since| (since + BAD_FOR).saturating_sub(facts.now));
    Step::Wait(bad.unwrap_or(observe).min(observe).max(LOOK))
}

/// Deleting: Get first; a Get that cannot converge does not keep the object for ever.
fn next_deleting(proxy: &Proxy, memory: &mut Memory, facts: &Facts) -> Step {
    let status = proxy.status.clone().unwrap_or_default();
    if !proxy.has_finalizer() || is_foreign(memory, proxy) {
        return Step::Finalizer(false);
    }
    let ProviderFacts::Ready(provider) = &facts.provider else { return Step::Wait(PROVIDER_POLL) };
    let generation = proxy.metadata.generation.unwrap_or(0);
    if let Some(wait) = memory.waits(generation, provider.epoch, facts.now) {
        return Step::Wait(wait);
    }
    if status.create_sent.is_none() && !memory.searched {
        return Step::Call(Call::Search);
    }
    let Some(instance) = status.instance.as_ref().filter(|i| i.placement.is_some()) else {
        return Step::Finalizer(false);
    };
    if memory.get_is_hopeless {
        return memory.delete_when_due(facts.now);
    }
    let Some(seen) = memory.seen.clone() else { return Step::Call(Call::Get) };
    match &seen.state {
        None => match memory.absent_is_believed_at(instance, provider) {
            Some(at) if at > facts.now => Step::Wait(at - facts.now),
            // Asked once more, now that every create has ended.
            Some(at) if seen.at < at => Step::Call(Call::Get),
            _ => Step::Finalizer(false),
        },
        Some(state) => match memory.drains(proxy, facts).filter(|_| *state == State::Running) {
            Some(wait) => Step::Wait(wait),
            None => memory.delete_when_due(facts.now),
        },
    }
}

/// Takes an answer in; answers the status to store, when it changed.
pub fn absorb(
    proxy: &Proxy,
    memory: &mut Memory,
    facts: &Facts,
    call: &Call,
    answer: Result<Answer, CallError>,
    random: &mut impl Rng,
) -> Option<ProxyStatus> {
    let ProviderFacts::Ready(provider) = &facts.provider else { return None };
    let generation = proxy.metadata.generation.unwrap_or(0);
    let with = (generation, provider.epoch);
    let mut status = proxy.status.clone().unwrap_or_default();
    if *call == Call::Create {
        memory.doubt_until = match &answer {
            Err(e) if matches!(e.kind, ErrorKind::UnknownOutcome | ErrorKind::Internal) => {
                Some(facts.now + provider.call_timeout + LATE)
            }
            _ => None,
        };
        memory.settled = true;
    }
    let answer = match answer {
        Ok(answer) => {
            // Another function's success says nothing about the one that failed, but for what is there to be seen.
            let settles = *call == Call::Create || matches!(answer, Answer::Got(Presence::Present(_)));
            if settles || memory.trouble.as_ref().is_some_and(|t| t.function == call.function()) {
                memory.trouble = None;
            }
            answer
        }
        Err(error) => {
            memory.fail(proxy, call, error, with, facts, random);
            return None;
        }
    };
    match answer {
        Answer::Validated(errors) => {
            memory.validated = Some((generation, provider.epoch, errors));
            return None;
        }
        Answer::Placed(placement) => {
            if memory.avoid.contains(&placement) {
                let error =
                    memory.exhausted.clone().unwrap_or_else(|| CallError::new(ErrorKind::Exhausted, "no other place"));
                memory.fail(proxy, call, error, with, facts, random);
                return None;
            }
            let instance = status.instance.get_or_insert_default();
            instance.placement = Some(placement);
            instance.login_key = (proxy.spec.auth.mode == AuthMode::Generated).then(|| facts.login_key.clone());
            status.create_sent.get_or_insert(facts.wall);
            status.spec_hash = Some(spec_hash(&proxy.spec));
            status.applied = shaping_fields(&proxy.spec);
            // Nothing was sent yet, so there is nothing to look for.
            memory.seen = Some(Seen { state: None, at: facts.now, poll_after: None, message: None });
            memory.creating_since = Some(facts.now);
            memory.settled = true;
        }
        Answer::Created(instance) => {
            memory.avoid.clear();
            memory.exhausted = None;
            take_in(proxy, &mut status, memory, facts, provider, &instance);
        }
        Answer::Got(Presence::Present(instance)) => {
            memory.get_failures = 0;
            take_in(proxy, &mut status, memory, facts, provider, &instance);
        }
        Answer::Got(Presence::Absent) => {
            memory.get_failures = 0;
            memory.seen = Some(Seen { state: None, at: facts.now, poll_after: None, message: None });
        }
        Answer::Deleted(Deletion::InProgress { message, poll_after, continuation }) => {
            memory.seen = Some(Seen {
                state: Some(State::Deleting),
                at: facts.now,
                poll_after: Some(poll_after.unwrap_or(POLL)),
                message,
            });
            if let (Some(instance), Some(note)) = (status.instance.as_mut(), continuation) {
                instance.continuation = Some(note);
            }
        }
        Answer::Deleted(Deletion::Gone) => {
            let rebuild = memory.rebuild.take();
            memory.seen = None;
            memory.drain_since = None;
            memory.get_is_hopeless = false;
            let fall_back = rebuild.as_ref().is_some_and(|r| r.fall_back);
            if rebuild.is_some() && !fall_back {
                memory.rebuilt_at(facts.now);
            }
            if proxy.is_deleting() {
                // Nothing is left there: nothing has to be asked any more.
                status.instance = status.instance.map(|i| InstanceStatus { placement: None, ..i });
            } else {
                status = next_incarnation(status, !fall_back);
            }
        }
        Answer::Found(instances) => {
            memory.searched = true;
            adopt(&mut status, instances, facts);
        }
    }
    (proxy.status.as_ref() != Some(&status)).then_some(status)
}

/// The status after an instance is gone: the next incarnation, or the next attempt of the same one. One write clears what
/// belonged to the old one.
fn next_incarnation(mut status: ProxyStatus, rebuilt: bool) -> ProxyStatus {
    let old = status.instance.unwrap_or_default();
    status.instance = Some(if rebuilt {
        status.rebuilds += 1;
        InstanceStatus { incarnation: old.incarnation + 1, ..InstanceStatus::default() }
    } else {
        InstanceStatus { incarnation: old.incarnation, attempt: old.attempt + 1, ..InstanceStatus::default() }
    });
    status.endpoint = None;
    status.address = None;
    status.exit_ip = None;
    status
}

/// What the backend shows of the instance goes into status and memory.
fn take_in(
    proxy: &Proxy,
    status: &mut ProxyStatus,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
    shown: &Instance,
) {
    let instance = status.instance.get_or_insert_default();
    instance.provider_id = Some(shown.provider_id.clone());
    instance.backend_id = shown.backend_id.clone().or(instance.backend_id.take());
    instance.continuation = shown.continuation.clone();
    instance.login_secret = shown.login_secret.clone().or(instance.login_secret.take());
    memory.seen = Some(Seen {
        state: Some(shown.state.clone()),
        at: facts.now,
        poll_after: shown.poll_after,
        message: shown.message.clone(),
    });
    if shown.state == State::Running {
        status.endpoint = choose(&shown.addresses, provider.reach).map(|host| Endpoint {
            host,
            port: shown.port.unwrap_or(proxy.spec.port),
            protocol: proxy.spec.protocol,
        });
        status.address = status.endpoint.as_ref().map(Endpoint::authority);
    }
}

/// The address that probe, status and lease use.
fn choose(addresses: &[Address], reach: Option<Reach>) -> Option<String> {
    let external = addresses.iter().find(|a| a.external);
    let internal = addresses.iter().find(|a| !a.external);
    match reach {
        Some(Reach::External) => external,
        Some(Reach::Internal) => internal,
        None => external.or(internal),
    }
    .map(|a| a.host.clone())
}

/// Restores a lost status from what the backend shows: the newest incarnation serves.
fn adopt(status: &mut ProxyStatus, mut instances: Vec<Instance>, facts: &Facts) {
    instances.sort_by_key(|i| i.incarnation);
    let Some(newest) = instances.pop() else { return };
    status.create_sent.get_or_insert(facts.wall);
    status.instance = Some(InstanceStatus {
        incarnation: newest.incarnation.unwrap_or(0),
        placement: Some(newest.placement),
        provider_id: Some(newest.provider_id),
        backend_id: newest.backend_id,
        login_key: Some(facts.login_key.clone()),
        ..InstanceStatus::default()
    });
}

/// Whether the instance was made from the present spec. A hash of another version says nothing.
pub fn up_to_date(proxy: &Proxy, status: &ProxyStatus) -> bool {
    status
        .spec_hash
        .as_ref()
        .is_none_or(|made_from| made_from.version != VERSION || *made_from == spec_hash(&proxy.spec))
}

impl Memory {
    /// How long the last failure still keeps from calling. A change of object or Provider ends the wait, but not one that
    /// the backend asked for.
    fn waits(&self, generation: i64, epoch: u64, now: Duration) -> Option<Duration> {
        let trouble = self.trouble.as_ref().filter(|t| t.retry_at > now)?;
        let changed = trouble.with != (generation, epoch);
        let asked_for = matches!(trouble.error.kind, ErrorKind::RateLimited(_));
        (!changed || asked_for).then(|| trouble.retry_at - now)
    }

    fn fail(
        &mut self,
        proxy: &Proxy,
        call: &Call,
        error: CallError,
        with: (i64, u64),
        facts: &Facts,
        random: &mut impl Rng,
    ) {
        let function = call.function();
        let failures = self.trouble.as_ref().filter(|t| t.function == function).map_or(0, |t| t.failures) + 1;
        let mut error = error;
        let mut wait = backoff::delay(&error.kind, failures, random);
        match (call, &error.kind) {
            (Call::Create, ErrorKind::UnknownOutcome | ErrorKind::Internal) => self.seen = None,
            (Call::Create, ErrorKind::Exhausted) => {
                // Another place, if there is one; what this one may have begun goes first.
                self.avoid
                    .extend(proxy.status.iter().flat_map(|s| s.instance.iter()).filter_map(|i| i.placement.clone()));
                self.exhausted = Some(error.clone());
                self.rebuild = Some(Rebuild {
                    reason: "CapacityExhausted",
                    message: error.message.clone(),
                    drain: false,
                    fall_back: true,
                });
                wait = Duration::ZERO;
            }
            (Call::Place(_), ErrorKind::Exhausted) => {
                // No other place: all of them are tried again later. The first exhaustion says most.
                self.avoid.clear();
                error = self.exhausted.take().unwrap_or(error);
            }
            (Call::Get, kind) if proxy.is_deleting() => {
                self.get_failures += 1;
                let permanent =
                    matches!(kind, ErrorKind::Unauthorized | ErrorKind::ConfigMissing | ErrorKind::InvalidSpec(_));
                if permanent || (*kind == ErrorKind::Internal && self.get_failures >= 3) {
                    self.get_is_hopeless = true;
                    wait = Duration::ZERO;
                }
            }
            _ => {}
        }
        self.trouble = Some(Trouble { error, function, failures, retry_at: facts.now + wait, with });
    }

    fn replace(&mut self, reason: &'static str, message: String, proxy: &Proxy, facts: &Facts) -> Step {
        let serves = matches!(facts.health, Verdict::Healthy { .. });
        self.rebuild = Some(Rebuild { reason, message, drain: serves, fall_back: false });
        self.drain_since = None;
        match self.drains(proxy, facts).filter(|_| serves) {
            Some(wait) => Step::Wait(wait),
            None => Step::Call(Call::Delete),
        }
    }

    /// How long its leases are still waited for; none: they are over, were waited for long enough, or are of no use.
    ///
    /// The first answer is always to wait: only from the next pass on is the proxy closed to new leases, and `held` final.
    fn drains(&mut self, proxy: &Proxy, facts: &Facts) -> Option<Duration> {
        if !matches!(facts.health, Verdict::Healthy { .. }) {
            return None;
        }
        let Some(since) = self.drain_since else {
            self.drain_since = Some(facts.now);
            return Some(CLOSE);
        };
        let waited = facts.now.saturating_sub(since);
        let left = proxy.spec.drain_timeout.duration().saturating_sub(waited);
        if facts.held && !left.is_zero() { Some(left.min(LOOK)) } else { None }
    }

    /// Deletes, or goes on deleting at the pace that the backend named.
    fn delete_when_due(&self, now: Duration) -> Step {
        let deleting = self.seen.as_ref().filter(|seen| seen.state == Some(State::Deleting));
        let due = deleting.map_or(now, |seen| seen.at + seen.poll_after.unwrap_or(POLL));
        if due > now { Step::Wait(due - now) } else { Step::Call(Call::Delete) }
    }

    fn rebuilt_at(&mut self, now: Duration) {
        let (count, last) = self.rebuilt;
        let recent = last.is_some_and(|last| now.saturating_sub(last) < STEADY);
        self.rebuilt = (if recent { count + 1 } else { 1 }, Some(now));
        self.seen = None;
        self.creating_since = None;
        self.bad_since = None;
    }

    /// How long the next incarnation still has to wait: 0, 30 s, 1, 2, 4 … 30 min.
    fn spacing(&self, now: Duration) -> Option<Duration> {
        let (count, Some(last)) = self.rebuilt else { return None };
        let space = match count {
            0 | 1 => return None,
            n => (LATE * 2u32.saturating_pow((n - 2).min(16))).min(SPACING),
        };
        (last + space).checked_sub(now).filter(|wait| !wait.is_zero())
    }

    /// When an `absent` is believed: after the last create that may still land. None: now.
    fn absent_is_believed_at(&self, instance: &InstanceStatus, provider: &ReadyProvider) -> Option<Duration> {
        if self.doubt_until.is_some() {
            return self.doubt_until;
        }
        // An earlier run may have sent a create just before it ended.
        let unsettled = !self.settled && instance.provider_id.is_none();
        unsettled.then(|| self.born + provider.call_timeout + LATE)
    }
}

/// Whether the object's deletion ends without deleting: what is there is not ours.
pub fn is_foreign(memory: &Memory, proxy: &Proxy) -> bool {
    proxy.is_deleting() && memory.trouble.as_ref().is_some_and(|t| t.error.kind == ErrorKind::Foreign)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
