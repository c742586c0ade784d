//! When an instance is replaced, and how: the next one first where the backend allows it, else this one goes first. Pure.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::absorb::stamp;
use super::beside::{self, Beside};
use super::decide::{Call, HELD, Step};
use super::memory::{LOOK, Memory, Rebuild, Stage};
use super::{Facts, OwnLogin, ReadyProvider};
use crate::model::proxy::{InstanceStatus, Proxy, ProxyStatus, RETIRING};
use crate::model::spec_hash::{APPLIED_LOGIN, VERSION, shaping_fields, spec_hash};

/// A deletion that takes longer goes on beside the next incarnation.
const STUCK: Duration = Duration::from_secs(900);

/// No new lease, drain, delete until gone, next incarnation.
pub(super) fn next_rebuild(
    proxy: &Proxy,
    status: ProxyStatus,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
) -> Step {
    let Some(Rebuild { stage, drain, fall_back, .. }) = memory.rebuild.clone() else { return Step::Wait(LOOK) };
    match (stage, &memory.seen) {
        (Stage::Planned, _) if drain => {
            if let Some(wait) = memory.drains(proxy, facts) {
                return Step::Wait(wait);
            }
        }
        (Stage::Gone, None) => return Step::Call(Call::Get),
        (Stage::Gone, Some(seen)) if seen.state.is_none() => {
            return memory.doubts(seen, provider, facts.now).unwrap_or_else(|| {
                memory.begins_anew(!fall_back, facts.now);
                Step::Store(Box::new(next_incarnation(status, !fall_back)))
            });
        }
        // A late create made it again.
        _ => {}
    }
    let step = memory.delete_when_due(facts.now);
    if let (Step::Call(_), Some(rebuild)) = (&step, &mut memory.rebuild) {
        rebuild.stage = Stage::Deleting;
        let since = *rebuild.deleting_since.get_or_insert(facts.now);
        if facts.now.saturating_sub(since) > STUCK && status.retiring.len() < RETIRING {
            // Its host may be down for good: the next one does not wait for it.
            let mut status = status;
            if let Some(old) = status.instance.clone() {
                let end = memory.creates_end(provider);
                beside::retire(&mut status, memory, old, end);
            }
            memory.begins_anew(true, facts.now);
            return Step::Store(Box::new(next_incarnation(status, true)));
        }
    }
    step
}

/// The next incarnation comes before this one goes; none: that is not possible here, so this one goes first.
pub(super) fn surge(
    status: &ProxyStatus,
    memory: &mut Memory,
    facts: &Facts,
    provider: &ReadyProvider,
) -> Option<Step> {
    // With its Secret changed, nobody knows the login of what serves any more.
    let applied = status.applied.get(APPLIED_LOGIN).and_then(|applied| applied.as_str());
    let same_login = facts.own_login.digest(applied) == applied;
    if !provider.surges || !same_login || facts.is_full(provider) {
        return None;
    }
    let trouble = memory.coming.trouble.as_ref().and_then(|t| t.waits(t.with, facts.now));
    Some(match trouble.or(memory.spacing_of_next(facts.now)) {
        Some(wait) => Step::Wait(wait),
        None if !facts.may_replace(provider, false) => Step::Wait(HELD),
        None => {
            let own = status.instances().filter_map(|i| i.placement.as_ref()).filter(|_| provider.one_per_place);
            let avoid = memory.coming.avoid.iter().chain(own).cloned().collect();
            // Held back, it must not keep what serves from being looked after.
            memory.unless_held(Step::Beside(Beside::Next, Call::Place(avoid)), facts.now)
        }
    })
}

/// How long the instance may still serve by `spec.maxAge`. Up to a tenth earlier, differently for each, so that what was
/// made together does not go together.
pub(super) fn life_left(proxy: &Proxy, status: &ProxyStatus, wall: Timestamp) -> Option<Duration> {
    let max_age = proxy.spec.max_age?.duration();
    let instance = status.instance.as_ref()?;
    let age = Duration::try_from(wall.duration_since(instance.ready_since?)).unwrap_or_default();
    let seed = format!("{}/{}", proxy.uid().unwrap_or_default(), instance.incarnation);
    let part = f64::from(Sha256::digest(seed)[0]) / 255.0;
    Some(max_age.mul_f64(1.0 - 0.1 * part).saturating_sub(age))
}

/// The status with the hash of the present rule, where that of another version says the same: an upgrade rebuilds nothing.
pub(super) fn restamp(proxy: &Proxy, status: &ProxyStatus, facts: &Facts) -> Option<ProxyStatus> {
    let foreign = status.spec_hash.as_ref().is_some_and(|hash| hash.version != VERSION);
    if !foreign || !up_to_date(proxy, status, &facts.own_login) {
        return None;
    }
    let mut status = status.clone();
    stamp(proxy, &mut status, facts);
    Some(status)
}

/// The status after an instance is gone: the next incarnation, or the next attempt of the same one. One write clears what
/// belonged to the old one.
pub(super) fn next_incarnation(mut status: ProxyStatus, rebuilt: bool) -> ProxyStatus {
    let old = status.instance.take().unwrap_or_default();
    status.instance = Some(if rebuilt {
        status.rebuilds += 1;
        status.last_incarnation = status.last_incarnation.max(old.incarnation);
        InstanceStatus { incarnation: status.begin_incarnation(), ..InstanceStatus::default() }
    } else {
        InstanceStatus { incarnation: old.incarnation, attempt: old.attempt + 1, ..InstanceStatus::default() }
    });
    status.endpoint = None;
    status.address = None;
    status.exit_ip = None;
    status
}

/// Whether the instance was made from the present spec and login. A login that cannot be read says nothing. A hash of
/// another version says nothing either: then it is a changed spec only where the object changed since, in a field that was
/// applied.
pub fn up_to_date(proxy: &Proxy, status: &ProxyStatus, login: &OwnLogin) -> bool {
    let Some(made_from) = &status.spec_hash else { return true };
    let login = login.digest(status.applied.get(APPLIED_LOGIN).and_then(|applied| applied.as_str()));
    if made_from.version == VERSION {
        return *made_from == spec_hash(&proxy.spec, login);
    }
    let wanted = shaping_fields(&proxy.spec, login);
    status.observed_generation == proxy.metadata.generation
        || status.applied.iter().all(|(field, value)| wanted.get(field) == Some(value))
}
