//! What the status says: the conditions, from object, memory and facts. Pure, and the same input gives the same status, so
//! that a steady Proxy is never written.

use super::beside::Beside;
use super::decide::Call;
use super::rebuild::up_to_date;
use super::{Facts, Memory, OwnLogin, ProviderFacts, Trouble};
use crate::control::provider::NOT_LOOKED_AT;
use crate::health::Verdict;
use crate::health::probe::FailureKind;
use crate::lease::Lack;
use crate::model::ACCEPT_ABSENCE;
use crate::model::condition::{Status, Verdict as Says, find, set};
use crate::model::error::{ErrorKind, list_fields};
use crate::model::instance::State;
use crate::model::proxy::{Proxy, ProxyStatus};
use crate::model::spec_hash::VERSION;

/// The conditions of a Proxy, in the order in which the first that lacks explains `Ready`.
pub const CONDITIONS: [&str; 7] =
    ["Deleting", "SpecValid", "ProviderReady", "Provisioned", "Healthy", "UpToDate", "Ready"];

/// The status as it should be stored.
pub fn summarize(proxy: &Proxy, memory: &Memory, facts: &Facts) -> ProxyStatus {
    let mut status = proxy.status.clone().unwrap_or_default();
    let generation = proxy.metadata.generation.unwrap_or(0);
    // A hash of another version stands for the generation that it was made from.
    if status.spec_hash.as_ref().is_none_or(|hash| hash.version == VERSION) {
        status.observed_generation = Some(generation);
    }
    if let Verdict::Healthy { exit_ip: Some(exit_ip) } = &facts.health {
        status.exit_ip = Some(exit_ip.clone());
    }
    let says = [
        ("Deleting", deleting(proxy, memory, facts)),
        ("ProviderReady", provider_ready(proxy, memory, facts)),
        ("SpecValid", spec_valid(proxy, memory)),
        ("Provisioned", provisioned(proxy, memory, facts)),
        ("Healthy", healthy(proxy, memory, facts)),
        ("UpToDate", fresh(proxy, memory, &status, facts)),
    ];
    let ready = ready(&says);
    if ready.status == Status::True
        && let Some(instance) = &mut status.instance
    {
        // How old it is counts from here; an earlier run's stands.
        instance.ready_since.get_or_insert(facts.wall);
    }
    for (type_, verdict) in says.into_iter().chain([("Ready", ready)]) {
        set(&mut status.conditions, type_, verdict, generation, facts.wall);
    }
    status
}

fn ready(says: &[(&str, Says)]) -> Says {
    // UpToDate is left out: an old instance serves until the new one does.
    let lacking = says[..5].iter().find(|(type_, says)| (says.status == Status::True) == (*type_ == "Deleting"));
    match lacking {
        None => Says::new(true, "Ready", "the proxy serves"),
        Some((_, says)) => Says::new(false, says.reason.clone(), says.message.clone()),
    }
}

fn deleting(proxy: &Proxy, memory: &Memory, facts: &Facts) -> Says {
    if !proxy.is_deleting() {
        return Says::new(false, "NotDeleting", "nobody asked for its deletion");
    }
    match &facts.provider {
        ProviderFacts::Missing => Says::new(
            true,
            "ProviderMissing",
            format!(
                "Provider {} does not exist, so its instance cannot be deleted: create the Provider again",
                proxy.spec.provider
            ),
        ),
        ProviderFacts::Unready(reason, message) => Says::new(true, reason.clone(), message.clone()),
        ProviderFacts::Ready(_) => match &memory.trouble {
            _ if let Some(held) = memory.held_about(|_| true) => Says { status: Status::True, ..held.clone().into() },
            Some(trouble) => Says::new(true, trouble.error.reason.clone(), trouble.error.message.clone()),
            None if memory.drain_since.is_some() && facts.held => Says::new(true, "Draining", "leases are waited for"),
            None => Says::new(true, "Deleting", "its instance is being deleted"),
        },
    }
}

fn spec_valid(proxy: &Proxy, memory: &Memory) -> Says {
    match (&memory.validated, &memory.trouble) {
        (Some((_, _, errors)), _) if !errors.is_empty() => Says::new(false, "InvalidSpec", list_fields(errors)),
        (_, Some(trouble)) => match &trouble.error.kind {
            ErrorKind::InvalidSpec(fields) => {
                let message = if fields.is_empty() { trouble.error.message.clone() } else { list_fields(fields) };
                Says::new(false, trouble.error.reason.clone(), message)
            }
            _ if memory.validated.is_some() => Says::new(true, "Accepted", "the provider accepts the spec"),
            _ => as_before(proxy, "SpecValid", "NotValidated", "the provider has not been asked yet"),
        },
        (Some(_), None) => Says::new(true, "Accepted", "the provider accepts the spec"),
        (None, None) => as_before(proxy, "SpecValid", "NotValidated", "the provider has not been asked yet"),
    }
}

fn provider_ready(proxy: &Proxy, memory: &Memory, facts: &Facts) -> Says {
    match &facts.provider {
        ProviderFacts::Missing => {
            let name = &proxy.spec.provider;
            Says::new(
                false,
                "ProviderMissing",
                format!("Provider {name} does not exist: create it, or correct spec.provider of a new Proxy"),
            )
        }
        // Just started: what was known of it stands until it was looked at.
        ProviderFacts::Unready(reason, message) if reason == NOT_LOOKED_AT => {
            as_before(proxy, "ProviderReady", reason, message)
        }
        ProviderFacts::Unready(reason, message) => Says::new(false, reason.clone(), message.clone()),
        ProviderFacts::Ready(provider) => match (&provider.denied, memory.held_about(|which| which.is_none())) {
            (Some((reason, message)), _) => Says::new(false, *reason, message.clone()),
            (None, Some(held)) => held.clone().into(),
            (None, None) => Says::new(true, "Ready", "the provider serves"),
        },
    }
}

fn provisioned(proxy: &Proxy, memory: &Memory, facts: &Facts) -> Says {
    let running = memory.seen.as_ref().is_some_and(|s| s.state == Some(State::Running));
    // A spec that cannot be validated says nothing about the instance of the last one.
    let concerns = |t: &&Trouble| t.function != Call::Validate.function() || (memory.seen.is_some() && !running);
    if let Some(trouble) = memory.trouble.as_ref().filter(concerns) {
        let before = proxy.status.as_ref().and_then(|s| find(&s.conditions, "Provisioned")).map(|c| c.status);
        // Could not ask is not "absent".
        let asked = trouble.function == Call::Get.function() && before.is_some_and(|b| b != Status::False);
        let status = if asked { Status::Unknown } else { Status::False };
        return Says::new(status, trouble.error.reason.clone(), trouble.error.message.clone());
    }
    if let (OwnLogin::Lacking(error), false) = (&facts.own_login, proxy.is_deleting()) {
        // What runs is of no use without its login.
        return Says::new(false, error.reason.clone(), error.message.clone());
    }
    if let Some(rebuild) = &memory.rebuild {
        return Says::new(false, rebuild.reason, format!("being replaced: {}", rebuild.message));
    }
    if let Some(says) = held(proxy, memory, facts) {
        return says;
    }
    let Some(seen) = &memory.seen else {
        if proxy.spec.paused && proxy.status.as_ref().is_none_or(|s| s.instance.is_none()) {
            return Says::new(false, "Paused", "spec.paused is true: nothing is created");
        }
        if proxy.status.as_ref().and_then(|s| s.instance.as_ref()).is_some_and(|i| i.provider_id.is_none()) {
            return Says::new(false, "Creating", "an instance is about to be created");
        }
        return as_before(proxy, "Provisioned", "NotAsked", "the backend has not been asked yet");
    };
    let waits = seen.message.clone();
    match &seen.state {
        None if proxy.spec.paused => Says::new(false, "Paused", "spec.paused is true: nothing is created"),
        None => Says::new(false, "Creating", "an instance is about to be created"),
        Some(State::Creating) => {
            Says::new(false, "Creating", waits.unwrap_or_else(|| "the instance is being made".into()))
        }
        Some(State::Running) if proxy.status.as_ref().is_some_and(|s| s.endpoint.is_some()) => {
            Says::new(true, "Running", "the instance runs")
        }
        Some(State::Running) => Says::new(
            false,
            "NoAddress",
            "the instance runs and has no address of the kind that spec.endpoint of its Provider names",
        ),
        Some(State::Stopped) => {
            Says::new(false, "Stopped", waits.unwrap_or_else(|| "the instance is off and is being started".into()))
        }
        Some(State::Failed(why)) => Says::new(false, "InstanceFailed", why.clone()),
        Some(State::Deleting) => {
            Says::new(false, "InstanceDeleting", waits.unwrap_or_else(|| "the instance is being deleted".into()))
        }
        Some(State::Unknown(what)) => Says::new(Status::Unknown, "InstanceUnknown", what.clone()),
    }
}

/// What keeps an instance from being made although nothing failed.
fn held(proxy: &Proxy, memory: &Memory, facts: &Facts) -> Option<Says> {
    let ProviderFacts::Ready(provider) = &facts.provider else { return None };
    let instance = proxy.status.as_ref().and_then(|s| s.instance.as_ref()).filter(|i| i.placement.is_some());
    let absent = memory.seen.as_ref().is_some_and(|seen| seen.state.is_none());
    match instance {
        None if !proxy.is_deleting() && !proxy.spec.paused && facts.is_full(provider) => Some(Says::new(
            false,
            "InstanceLimit",
            format!(
                "Provider {} has as many instances as its limits.instances allows: raise it, or delete Proxies",
                proxy.spec.provider
            ),
        )),
        Some(instance) if absent && instance.provider_id.is_some() && facts.mass_absence(provider) => Some(Says::new(
            false,
            "MassAbsence",
            format!(
                "its instance is gone, as those of many other Proxies of Provider {provider} are at once, so none is made \
                 anew: a changed address or project looks like this. If they are gone indeed: kubectl annotate provider \
                 {provider} --overwrite {ACCEPT_ABSENCE}=$(date -u +%FT%TZ)",
                provider = proxy.spec.provider
            ),
        )),
        _ => None,
    }
}

fn healthy(proxy: &Proxy, memory: &Memory, facts: &Facts) -> Says {
    let runs = memory.seen.as_ref().is_some_and(|s| s.state == Some(State::Running));
    match &facts.health {
        Verdict::Healthy { .. } => Says::new(true, "ProbePassed", "probes through the proxy pass"),
        Verdict::Unhealthy(failure) => Says::new(false, failure.kind.reason(), failure.message.clone()),
        Verdict::Waiting(failure) if failure.kind == FailureKind::Unreachable || !runs => {
            Says::new(Status::Unknown, "ProbePending", "its port does not answer yet")
        }
        Verdict::Waiting(failure) => Says::new(false, failure.kind.reason(), failure.message.clone()),
        Verdict::Unknown if proxy.status.as_ref().is_some_and(|s| s.endpoint.is_some()) => {
            as_before(proxy, "Healthy", "ProbePending", "not probed yet")
        }
        Verdict::Unknown => Says::new(Status::Unknown, "ProbePending", "not probed yet"),
    }
}

/// What was said last stands until something is known, so that a restart writes nothing.
fn as_before(proxy: &Proxy, type_: &str, reason: &str, message: &str) -> Says {
    match proxy.status.as_ref().and_then(|s| find(&s.conditions, type_)) {
        Some(last) => Says::new(last.status, last.reason.clone(), last.message.clone()),
        None => Says::new(Status::Unknown, reason, message),
    }
}

fn fresh(proxy: &Proxy, memory: &Memory, status: &ProxyStatus, facts: &Facts) -> Says {
    if status.spec_hash.is_none() {
        return Says::new(Status::Unknown, "NotCreated", "no instance was made yet");
    }
    let follows = || match (&status.next, &memory.coming.trouble) {
        _ if let Some(held) = memory.held_about(|which| which == Some(Beside::Next)) => {
            format!("; what is to follow it cannot be made yet: {}", held.message)
        }
        (_, Some(trouble)) => format!("; what is to follow it cannot be made yet: {}", trouble.error.message),
        (Some(_), None) => "; what is to follow it is being made".into(),
        (None, None) => String::new(),
    };
    if !up_to_date(proxy, status, &facts.own_login) {
        Says::new(false, "SpecChanged", format!("the instance was made from an earlier spec{}", follows()))
    } else if status.next.is_some() {
        Says::new(false, "MaxAge", format!("the instance is older than spec.maxAge{}", follows()))
    } else if let Some(why) = leaving(memory) {
        Says::new(true, "Retiring", format!("an earlier instance is being deleted yet: {why}"))
    } else {
        Says::new(true, "UpToDate", "the instance was made from this spec")
    }
}

/// Why an earlier instance is still there.
fn leaving(memory: &Memory) -> Option<&str> {
    let held = memory.held_about(|which| matches!(which, Some(Beside::Retiring(_))));
    let trouble = || memory.leaving.values().find_map(|leaving| leaving.trouble.as_ref());
    held.map(|held| held.message.as_str()).or_else(|| trouble().map(|trouble| trouble.error.message.as_str()))
}

/// Why a Proxy is not lent, for the answer to crawlers.
pub fn lack(memory: &Memory, facts: &Facts) -> Lack {
    if memory.trouble.as_ref().is_some_and(|t| t.error.kind == ErrorKind::Exhausted) {
        return Lack::Quota;
    }
    let made = match &memory.seen {
        None => true,
        Some(seen) => matches!(seen.state, None | Some(State::Creating | State::Stopped | State::Deleting)),
    };
    let probing = matches!(facts.health, Verdict::Unknown | Verdict::Waiting(_));
    let stuck = memory.trouble.is_some()
        || memory.held_about(|which| which.is_none()).is_some()
        || !matches!(facts.provider, ProviderFacts::Ready(_));
    if !stuck && (made || memory.rebuild.is_some() || probing) { Lack::Scaling } else { Lack::Unhealthy }
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
