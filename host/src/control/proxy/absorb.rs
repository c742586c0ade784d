//! What a provider's answer means for status and memory. Pure.

use rand::Rng;

use super::decide::{Answer, Call};
use super::memory::{POLL, Stage};
use super::{Facts, Memory, ProviderFacts, ReadyProvider, Seen};
use crate::model::error::{CallError, ErrorKind, FieldError};
use crate::model::instance::{Deletion, Instance, Presence, State};
use crate::model::provider::Reach;
use crate::model::proxy::{AuthMode, Endpoint, InstanceStatus, Proxy, ProxyStatus, RETIRING};
use crate::model::spec_hash::{shaping_fields, spec_hash};

/// Takes an answer in; answers the status to store, when it changed. `facts.provider` is the one that was asked.
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
    let answer = match answer {
        // A refusal is an answer, however it is told.
        Err(CallError { kind: ErrorKind::InvalidSpec(fields), message, .. }) if *call == Call::Validate => {
            let whole = FieldError { pointer: String::new(), message };
            Answer::Validated(if fields.is_empty() { vec![whole] } else { fields })
        }
        Err(error) => {
            if *call == Call::Create && matches!(error.kind, ErrorKind::UnknownOutcome | ErrorKind::Internal) {
                memory.doubt(provider, facts.now);
            }
            memory.fail(proxy, call, error, with, facts.now, random);
            return None;
        }
        Ok(answer) => answer,
    };
    if let (Call::Place(avoid), Answer::Placed(placement)) = (call, &answer) {
        if avoid.contains(placement) {
            let error =
                memory.exhausted.clone().unwrap_or_else(|| CallError::new(ErrorKind::Exhausted, "no other place"));
            memory.fail(proxy, call, error, with, facts.now, random);
            return None;
        }
        if provider.taken.contains(placement) || facts.is_full(provider) {
            // Another Proxy took it meanwhile: a place is asked for anew.
            return None;
        }
    }
    // Another function's success says nothing about the one that failed, but for what is there to be seen.
    let settles = *call == Call::Create || matches!(answer, Answer::Got(Presence::Present(_)));
    if settles || memory.trouble.as_ref().is_some_and(|t| t.function == call.function()) {
        memory.trouble = None;
    }
    let mut status = proxy.status.clone().unwrap_or_default();
    match answer {
        Answer::Validated(errors) => memory.validated = Some((generation, provider.epoch, errors)),
        Answer::Placed(placement) => {
            let instance = status.instance.get_or_insert_default();
            instance.placement = Some(placement);
            instance.login_key = (proxy.spec.auth.mode == AuthMode::Generated).then(|| facts.login_key.clone());
            status.create_sent.get_or_insert(facts.wall);
            stamp(proxy, &mut status, facts);
            // Nothing was sent yet for this identity, so there is nothing to look for and nothing that can land.
            memory.seen = Some(Seen::absent(facts.now));
            memory.creating_since = Some(facts.now);
            memory.doubt_until = None;
            memory.settled = true;
        }
        Answer::Created(instance) => {
            memory.avoid.clear();
            memory.exhausted = None;
            take_in(proxy, &mut status, memory, facts, provider, &instance);
        }
        Answer::Got(presence) => {
            memory.get_faults = 0;
            match presence {
                Presence::Present(instance) => take_in(proxy, &mut status, memory, facts, provider, &instance),
                Presence::Absent => memory.seen = Some(Seen::absent(facts.now)),
            }
        }
        Answer::Deleted(Deletion::InProgress { message, poll_after, continuation }) => {
            let state = Some(State::Deleting);
            memory.seen = Some(Seen { state, at: facts.now, poll_after: Some(poll_after.unwrap_or(POLL)), message });
            if let (Some(instance), Some(note)) = (status.instance.as_mut(), continuation) {
                instance.continuation = Some(note);
            }
        }
        Answer::Deleted(Deletion::Gone) => {
            memory.seen = Some(Seen::absent(facts.now));
            memory.get_is_hopeless = false;
            if let Some(rebuild) = &mut memory.rebuild {
                rebuild.stage = Stage::Gone;
            }
        }
        Answer::Found(instances) if instances.is_empty() => {
            memory.seen = Some(Seen::absent(facts.now));
            memory.searched = memory.creates_end(provider) <= facts.now;
        }
        Answer::Found(instances) => {
            memory.seen = None;
            memory.searched = true;
            adopt(proxy, &mut status, instances, facts);
        }
    }
    (proxy.status.as_ref() != Some(&status)).then_some(status)
}

/// Notes from which spec the instance is made.
pub(super) fn stamp(proxy: &Proxy, status: &mut ProxyStatus, facts: &Facts) {
    let login = facts.own_login.newest();
    status.spec_hash = Some(spec_hash(&proxy.spec, login));
    status.applied = shaping_fields(&proxy.spec, login);
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
    status.instance.get_or_insert_default().take_in(shown);
    memory.seen = Some(Seen::of(shown, facts.now));
    if shown.state == State::Running {
        status.endpoint = endpoint(proxy, shown, provider.reach);
        status.address = status.endpoint.as_ref().map(Endpoint::authority);
    }
}

/// Where probe, status and lease reach it.
pub(super) fn endpoint(proxy: &Proxy, shown: &Instance, reach: Option<Reach>) -> Option<Endpoint> {
    let external = shown.addresses.iter().find(|a| a.external);
    let internal = shown.addresses.iter().find(|a| !a.external);
    let address = match reach {
        Some(Reach::External) => external,
        Some(Reach::Internal) => internal,
        None => external.or(internal),
    }?;
    let port = shown.port.unwrap_or(proxy.spec.port);
    Some(Endpoint { host: address.host.clone(), port, protocol: proxy.spec.protocol })
}

/// Restores a lost status from what the backend shows: the newest incarnation serves, the others go. What finds no room
/// among those is an orphan, which garbage collection finds.
fn adopt(proxy: &Proxy, status: &mut ProxyStatus, mut instances: Vec<Instance>, facts: &Facts) {
    instances.sort_by_key(|i| i.incarnation);
    let restored = |found: Instance| InstanceStatus {
        incarnation: found.incarnation.unwrap_or(0),
        placement: Some(found.placement),
        provider_id: Some(found.provider_id),
        backend_id: found.backend_id,
        login_key: Some(facts.login_key.clone()),
        ..InstanceStatus::default()
    };
    let Some(newest) = instances.pop().map(restored) else { return };
    status.create_sent.get_or_insert(facts.wall);
    let older = instances.into_iter().rev().map(restored).filter(|old| old.incarnation != newest.incarnation);
    status.retiring = older.take(RETIRING).collect();
    status.retiring.dedup_by_key(|old| old.incarnation);
    status.instance = Some(newest);
    // Of what it was made nobody knows any more; the next change of the spec is noticed again.
    stamp(proxy, status, facts);
}
