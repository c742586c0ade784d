//! What comes next for one Proxy. Pure: object, memory and facts in; one step out.

use std::time::Duration;

use super::beside::{self, Beside};
use super::memory::{LOOK, POLL, Stage, serves};
use super::rebuild::{life_left, next_incarnation, next_rebuild, restamp, surge, up_to_date};
use super::{Facts, Memory, OwnLogin, ProviderFacts, ReadyProvider, Rebuild, Seen};
use crate::health::Verdict;
use crate::health::probe::FailureKind;
use crate::model::error::{ErrorKind, FieldError};
use crate::model::instance::{Deletion, Instance, Presence, State};
use crate::model::proxy::{Proxy, ProxyStatus};
use crate::model::{SKIP_CLEANUP, is_annotated};

/// A provider that cannot serve is looked at again; its changes wake its Proxies anyway.
const PROVIDER_POLL: Duration = Duration::from_secs(60);
/// Secrets of a Proxy's namespace are not watched: one that is missing is looked for.
const LOGIN_POLL: Duration = Duration::from_secs(15);
/// A running instance that no listing has shown for so long is asked for.
pub const OBSERVE: Duration = Duration::from_secs(150);
/// Bad for so long is replaced.
pub(super) const BAD_FOR: Duration = Duration::from_secs(600);
/// A state that leads nowhere for so long is a failed one.
pub(super) const UNKNOWN_FOR: Duration = Duration::from_secs(600);
/// What the floor, `limits.instances` or a mass absence holds back is looked at again.
pub(super) const HELD: Duration = Duration::from_secs(10);
/// Reason of a rebuild that is called off when the spec is as it was.
const SPEC_CHANGED: &str = "SpecChanged";
const MAX_AGE: &str = "MaxAge";

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Store this status, then decide anew.
    Store(Box<ProxyStatus>),
    /// Set or remove the finalizer, then decide anew.
    Finalizer(bool),
    /// Remember what is there as given up, then decide anew.
    Abandon,
    /// Call the provider, absorb the answer, then decide anew.
    Call(Call),
    /// The same about an instance beside the one that serves.
    Beside(Beside, Call),
    /// Nothing to do for so long, unless something changes.
    Wait(Duration),
}

/// A call to the provider about an instance that the status names.
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
// It lives for one step; its size matters to nobody.
#[allow(clippy::large_enum_variant)]
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
    memory.look_at_mark(proxy, facts.now);
    let step =
        if proxy.is_deleting() { next_deleting(proxy, memory, facts) } else { next_living(proxy, memory, facts) };
    let step = memory.unless_held(step, facts.now);
    let beside = proxy.status.as_ref().is_some_and(|s| s.next.is_some() || !s.retiring.is_empty());
    let wait = match step {
        _ if !beside => return step,
        Step::Wait(wait) => wait,
        // It goes only when all of its instances are gone.
        Step::Finalizer(false) if proxy.has_finalizer() && !memory.abandoned => PROVIDER_POLL,
        step => return step,
    };
    match beside::next(proxy, memory, facts) {
        Step::Wait(other) => Step::Wait(wait.min(other)),
        step => step,
    }
}

/// Whether nothing is made or replaced, only looked at.
pub(super) fn is_restrained(proxy: &Proxy, memory: &Memory, facts: &Facts) -> bool {
    let ProviderFacts::Ready(provider) = &facts.provider else { return true };
    let asked = (proxy.metadata.generation.unwrap_or(0), provider.epoch);
    let valid = memory.validated.as_ref().is_some_and(|(g, epoch, errors)| (*g, *epoch) == asked && errors.is_empty());
    // Without its login nothing can be made, so nothing is replaced either.
    !valid || proxy.spec.paused || provider.denied.is_some() || matches!(facts.own_login, OwnLogin::Lacking(_))
}

fn next_living(proxy: &Proxy, memory: &mut Memory, facts: &Facts) -> Step {
    let ProviderFacts::Ready(provider) = &facts.provider else { return Step::Wait(PROVIDER_POLL) };
    let asked = (proxy.metadata.generation.unwrap_or(0), provider.epoch);
    let made = proxy.status.as_ref().and_then(|s| s.instance.as_ref()).is_some_and(|i| i.placement.is_some());
    if provider.denied.is_some() && !made && !proxy.has_finalizer() {
        return Step::Wait(PROVIDER_POLL);
    }
    let mut longest = Duration::MAX;
    if let Some(wait) = memory.waits(asked, facts.now) {
        // A spec that cannot be validated says nothing about the instance of the last one: that is looked after.
        if !made || memory.trouble.as_ref().is_none_or(|t| t.function != Call::Validate.function()) {
            return Step::Wait(wait);
        }
        longest = wait;
    }
    let answered = memory.validated.as_ref().is_some_and(|(generation, epoch, _)| (*generation, *epoch) == asked);
    if !answered && longest == Duration::MAX {
        match memory.unless_held(Step::Call(Call::Validate), facts.now) {
            // The same holds where the plugin is not asked at all.
            Step::Wait(wait) if made => longest = wait,
            step => return step,
        }
    }
    if matches!(facts.own_login, OwnLogin::Lacking(_)) {
        longest = longest.min(LOGIN_POLL);
    }
    match next_validated(proxy, memory, facts, provider, is_restrained(proxy, memory, facts)) {
        Step::Wait(wait) => Step::Wait(wait.min(longest)),
        step => step,
    }
}

/// `hands_off`: nothing is made or replaced, only looked at.
fn next_validated(
    proxy: &Proxy,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
    hands_off: bool,
) -> Step {
    let status = proxy.status.clone().unwrap_or_default();
    if proxy.has_finalizer() && status.create_sent.is_none() && !memory.searched {
        return search(memory, provider, facts.now);
    }
    let Some(instance) = status.instance.as_ref().filter(|i| i.placement.is_some()) else {
        if hands_off {
            return Step::Wait(PROVIDER_POLL);
        }
        if let Some(wait) = memory.spacing(facts.now) {
            return Step::Wait(wait);
        }
        if facts.is_full(provider) {
            return Step::Wait(HELD);
        }
        let avoid = memory.avoid.clone();
        return Step::Call(Call::Place(avoid));
    };
    if let Some(restamped) = restamp(proxy, &status, facts) {
        return Step::Store(Box::new(restamped));
    }
    if !proxy.has_finalizer() {
        return Step::Finalizer(true);
    }
    let called_off = |rebuild: &mut Rebuild| {
        let pointless = rebuild.reason == SPEC_CHANGED && up_to_date(proxy, &status, &facts.own_login);
        rebuild.stage == Stage::Planned && (hands_off || pointless)
    };
    if memory.rebuild.take_if(called_off).is_some() {
        memory.drain_since = None;
    }
    if memory.rebuild.is_some() {
        return next_rebuild(proxy, status, memory, facts, provider);
    }
    let Some(seen) = memory.seen.clone() else { return Step::Call(Call::Get) };
    let paced = |call: Call, poll: Duration| {
        let due = seen.due(poll);
        if due > facts.now { Step::Wait(due - facts.now) } else { Step::Call(call) }
    };
    let changed = !up_to_date(proxy, &status, &facts.own_login);
    let replace = |memory: &mut Memory, reason, message: String, fall_back| {
        if beside::stands_by(proxy, &status, facts) {
            return beside::take_over(proxy, &status, memory, facts, provider, true);
        }
        // One that never was Ready takes nobody away.
        let counts = instance.ready_since.is_some();
        if counts && !facts.may_replace(provider, serves(proxy, facts)) {
            return Step::Wait(HELD);
        }
        let drain = seen.state == Some(State::Running);
        let stage = Stage::Planned;
        memory.rebuild = Some(Rebuild { reason, message, drain, fall_back, stage, deleting_since: None });
        memory.drain_since = None;
        next_rebuild(proxy, status.clone(), memory, facts, provider)
    };
    match &seen.state {
        // It had been there and is gone: another one, under a new name.
        None if instance.provider_id.is_some() => {
            if let Some(step) = memory.doubts(&seen, provider, facts.now) {
                return step;
            }
            if beside::stands_by(proxy, &status, facts) {
                return beside::take_over(proxy, &status, memory, facts, provider, false);
            }
            // A changed base URL or project looks exactly like this. Who asks for another one, gets it.
            if facts.mass_absence(provider) && !changed {
                return paced(Call::Get, PROVIDER_POLL);
            }
            memory.begins_anew(true, facts.now);
            Step::Store(Box::new(next_incarnation(status, true)))
        }
        None if hands_off => Step::Wait(PROVIDER_POLL),
        None if changed => {
            // Its place was chosen for another spec, and so were those to avoid.
            memory.avoid.clear();
            memory.exhausted = None;
            replace(memory, SPEC_CHANGED, "the spec changed".into(), true)
        }
        None => Step::Call(Call::Create),
        Some(State::Running) => match next_running(proxy, &status, memory, facts, provider, &seen, hands_off) {
            Ok(step) => step,
            Err((reason, message)) => replace(memory, reason, message, false),
        },
        Some(State::Creating | State::Stopped) if hands_off => paced(Call::Get, POLL),
        Some(State::Creating | State::Stopped) => {
            memory.bad_since = None;
            let since = *memory.creating_since.get_or_insert(facts.now);
            if changed {
                return replace(memory, SPEC_CHANGED, "the spec changed".into(), false);
            }
            if facts.now.saturating_sub(since) > provider.create_deadline {
                let message =
                    format!("it did not run within {} s (limits.createDeadline)", provider.create_deadline.as_secs());
                return replace(memory, "CreateDeadlineExceeded", message, false);
            }
            paced(Call::Create, POLL)
        }
        Some(State::Failed(_)) if hands_off => paced(Call::Get, PROVIDER_POLL),
        Some(State::Failed(why)) => replace(memory, "InstanceFailed", why.clone(), false),
        // Somebody deletes it, or an earlier run of ours did and is needed to go on.
        Some(state @ (State::Deleting | State::Unknown(_))) => {
            let since = *memory.bad_since.get_or_insert(facts.now);
            if facts.now.saturating_sub(since) > UNKNOWN_FOR && !hands_off {
                return match state {
                    State::Unknown(what) => replace(memory, "InstanceUnknown", what.clone(), false),
                    _ => replace(memory, "InstanceDeleting", "its deletion does not end".into(), false),
                };
            }
            paced(Call::Get, POLL * 2)
        }
    }
}

/// What to do with what runs; or why it is to be replaced.
fn next_running(
    proxy: &Proxy,
    status: &ProxyStatus,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
    seen: &Seen,
    hands_off: bool,
) -> Result<Step, (&'static str, String)> {
    memory.creating_since = None;
    let listed = facts.listed.filter(|listed| listed.at > seen.at);
    let observed = listed.map_or(seen.at, |listed| listed.at);
    let missing = listed.is_some_and(|listed| !listed.running);
    // A listing does not answer what a failed call asked; its wait is over here.
    let unanswered = memory.trouble.as_ref().is_some_and(|t| t.function != Call::Validate.function());
    if missing || unanswered || facts.now.saturating_sub(observed) >= OBSERVE {
        return Ok(Step::Call(Call::Get));
    }
    if matches!(&facts.health, Verdict::Unhealthy(f) if f.kind != FailureKind::JudgeUnreachable) {
        memory.bad_since.get_or_insert(facts.now);
    } else {
        memory.bad_since = None;
    }
    if memory.bad_since.is_some_and(|since| seen.at < since) {
        // Its proxy has just gone bad: perhaps there is no instance any more.
        return Ok(Step::Call(Call::Get));
    }
    let mut wait = OBSERVE.saturating_sub(facts.now.saturating_sub(observed));
    if !hands_off {
        let outdated = if !up_to_date(proxy, status, &facts.own_login) {
            Some((SPEC_CHANGED, "the spec changed"))
        } else {
            let left = life_left(proxy, status, facts.wall);
            wait = wait.min(left.unwrap_or(wait));
            left.filter(Duration::is_zero).map(|_| (MAX_AGE, "it is older than spec.maxAge"))
        };
        if let Some((reason, message)) = outdated
            && status.next.is_none()
        {
            match surge(status, memory, facts, provider) {
                Some(Step::Wait(held)) => wait = wait.min(held),
                Some(step) => return Ok(step),
                None => return Err((reason, message.into())),
            }
        }
        if let Some(since) = memory.bad_since {
            let left = (since + BAD_FOR).saturating_sub(facts.now);
            if left.is_zero() {
                return Err(("Unhealthy", "its proxy failed for 10 minutes".into()));
            }
            wait = wait.min(left);
        }
    }
    if status.endpoint.is_none() {
        // A listing shows that it runs, but only an answer about it brings its address.
        let due = seen.due(POLL * 2);
        if due <= facts.now {
            return Ok(Step::Call(Call::Get));
        }
        wait = wait.min(due - facts.now);
    }
    Ok(Step::Wait(wait.max(LOOK)))
}

/// Looks for what a lost status no longer names. What is not found is believed only when no create may land any more.
fn search(memory: &Memory, provider: &ReadyProvider, now: Duration) -> Step {
    let absent = memory.seen.as_ref().filter(|seen| seen.state.is_none());
    match absent.and_then(|seen| memory.doubts(seen, provider, now)) {
        Some(Step::Wait(wait)) => Step::Wait(wait),
        _ => Step::Call(Call::Search),
    }
}

/// Deleting: Get first; a Get that cannot converge does not keep the object for ever.
fn next_deleting(proxy: &Proxy, memory: &mut Memory, facts: &Facts) -> Step {
    memory.begin_deletion();
    if !proxy.has_finalizer() {
        // Finalizers of others are theirs.
        let others = proxy.metadata.finalizers.as_ref().is_some_and(|f| !f.is_empty());
        return if others { Step::Wait(PROVIDER_POLL) } else { Step::Finalizer(false) };
    }
    // Before the Provider is looked up: it also frees what has none any more.
    if is_annotated(proxy, SKIP_CLEANUP) {
        return if memory.abandoned { Step::Finalizer(false) } else { Step::Abandon };
    }
    if is_foreign(memory) {
        return Step::Finalizer(false);
    }
    let ProviderFacts::Ready(provider) = &facts.provider else { return Step::Wait(PROVIDER_POLL) };
    let generation = proxy.metadata.generation.unwrap_or(0);
    if let Some(wait) = memory.waits((generation, provider.epoch), facts.now) {
        return Step::Wait(wait);
    }
    let status = proxy.status.clone().unwrap_or_default();
    if status.create_sent.is_none() && !memory.searched {
        return search(memory, provider, facts.now);
    }
    if status.instance.as_ref().is_none_or(|i| i.placement.is_none()) {
        return Step::Finalizer(false);
    }
    let state = match memory.seen.clone() {
        Some(seen) if seen.state.is_none() => {
            return match memory.doubts(&seen, provider, facts.now) {
                None => Step::Finalizer(false),
                // What was deleted once without a look is made sure of in the same way.
                Some(Step::Call(_)) if memory.get_is_hopeless => Step::Call(Call::Delete),
                Some(step) => step,
            };
        }
        None if !memory.get_is_hopeless => return Step::Call(Call::Get),
        seen => seen.and_then(|s| s.state),
    };
    if (memory.get_is_hopeless || state == Some(State::Running))
        && let Some(wait) = memory.drains(proxy, facts)
    {
        return Step::Wait(wait);
    }
    memory.delete_when_due(facts.now)
}

/// Whether the object's deletion ends without deleting: what is there is not ours.
pub fn is_foreign(memory: &Memory) -> bool {
    memory.deleting && memory.trouble.as_ref().is_some_and(|t| t.error.kind == ErrorKind::Foreign)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
