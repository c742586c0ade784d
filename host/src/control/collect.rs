//! Garbage collection: instances of ours that no Proxy names. Any doubt deletes nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kube::ResourceExt;

use crate::model::abandoned::Abandoned;
use crate::model::clock::Clock;
use crate::model::error::{ByHost, CallError, ErrorKind};
use crate::model::instance::{Deletion, Identity, Instance};
use crate::model::metrics::{METRICS, Outcome};
use crate::model::naming::ProxyKey;
use crate::model::proxy::Proxy;
use crate::plugin::handle::Handle;
use crate::store::{Event, Regarding, Severity, Store, StoreError};

/// Deletes of one pass over one Provider.
const CAP: usize = 10;

/// What an instance is to the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A Proxy's status names it.
    Named,
    /// It cannot be told whose it is, or not yet.
    Unsure,
    /// It was given up by a human.
    Abandoned,
    /// Nobody names it.
    Orphan,
}

/// What a shown instance is, beside *all* Proxies (by UID) and all that was given up. Both have to be read after the
/// instance was listed: what is made in between is named before it is made.
pub fn judge(
    shown: &Instance,
    installation: &str,
    proxies: &HashMap<String, Arc<Proxy>>,
    abandoned: &[Abandoned],
) -> Verdict {
    let (Some(owner), Some(incarnation)) = (&shown.owner, shown.incarnation) else { return Verdict::Unsure };
    if owner.installation != installation || owner.proxy_uid.is_empty() {
        return Verdict::Unsure;
    }
    if abandoned.iter().any(|given_up| given_up.is(shown)) {
        return Verdict::Abandoned;
    }
    let Some(proxy) = proxies.get(&owner.proxy_uid) else { return Verdict::Orphan };
    let mut named = proxy.status.iter().flat_map(|status| status.instances()).peekable();
    if named.peek().is_none() {
        // Its status may be lost; it is adopted before anything else.
        return Verdict::Unsure;
    }
    let is_it = |named: &crate::model::proxy::InstanceStatus| {
        named.incarnation == incarnation && named.placement.as_ref() == Some(&shown.placement)
    };
    if named.any(is_it) { Verdict::Named } else { Verdict::Orphan }
}

/// By UID.
pub fn by_uid(proxies: Vec<Arc<Proxy>>) -> HashMap<String, Arc<Proxy>> {
    proxies.into_iter().filter_map(|proxy| Some((proxy.uid()?, proxy))).collect()
}

/// Who an instance is: UID, incarnation, placement.
type Key = (String, u32, String);

/// Collects orphans.
pub struct Collector {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    grace: Duration,
    dry_run: bool,
    /// By Provider: what was not named, since when, whichever age its backend tells.
    suspects: Mutex<HashMap<String, HashMap<Key, Suspect>>>,
}

struct Suspect {
    since: Duration,
    told: bool,
    /// When its deletion was last tried: those that cannot be deleted come after all others.
    tried_at: Option<Duration>,
    /// Its deletion was asked for. It is believed when the backend lists it no more.
    deleting: bool,
}

impl Collector {
    /// Deletes what was nobody's for `grace`; with `dry_run` it only says so.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, grace: Duration, dry_run: bool) -> Self {
        Self { store, clock, grace, dry_run, suspects: Mutex::default() }
    }

    /// One pass over what a complete listing of a ready Provider shows.
    pub async fn pass(&self, provider: &str, handle: &Handle, listed: &[Instance]) {
        if let Err(error) = self.try_pass(provider, handle, listed).await {
            tracing::info!(provider, %error, "nothing is collected: the Proxies cannot be listed");
        }
    }

    async fn try_pass(&self, provider: &str, handle: &Handle, listed: &[Instance]) -> Result<(), StoreError> {
        // What was last seen of the Proxies is enough to see that there is nothing to do.
        let installation = self.store.installation();
        let known = by_uid(self.store.proxies());
        let suspicious = |shown: &&Instance| judge(shown, installation, &known, &[]) == Verdict::Orphan;
        let suspects: Vec<&Instance> = listed.iter().filter(suspicious).collect();
        self.take_leave(provider, &suspects);
        if suspects.is_empty() {
            return Ok(());
        }
        let proxies = by_uid(self.store.fresh_proxies().await?);
        let abandoned = self.store.abandoned().await?;
        let judged = suspects.into_iter().map(|shown| (shown, judge(shown, installation, &proxies, &abandoned)));
        let nobodys = judged.filter(|(_, verdict)| matches!(verdict, Verdict::Orphan | Verdict::Abandoned));
        let due = self.note(provider, &nobodys.collect::<Vec<_>>());
        let (mut asked, mut held) = (0, HashSet::new());
        for shown in due {
            let target = handle.target("delete", &shown.placement);
            if asked == CAP || held.contains(&None) {
                break;
            }
            if held.contains(&target) {
                continue;
            }
            if self.collect(provider, handle, shown).await? {
                asked += 1;
            } else {
                held.insert(target);
            }
        }
        Ok(())
    }

    /// Forgets what is not listed any more, or has been named since; tells of what was being deleted.
    fn take_leave(&self, provider: &str, listed: &[&Instance]) {
        let there: HashSet<Key> = listed.iter().filter_map(|shown| key_of(shown)).collect();
        let mut all = self.lock();
        let Some(suspects) = all.get_mut(provider) else { return };
        let gone = suspects.extract_if(|key, _| !there.contains(key)).filter(|(_, suspect)| suspect.deleting);
        let gone: Vec<Key> = gone.map(|(key, _)| key).collect();
        if suspects.is_empty() {
            all.remove(provider);
        }
        drop(all);
        for (uid, incarnation, placement) in gone {
            let message =
                format!("incarnation {incarnation} of Proxy {uid} at {placement} was named by no Proxy and is gone");
            self.event(provider, Severity::Normal, "OrphanDeleted", message);
        }
    }

    /// Keeps track of what is nobody's; answers what has been so for long enough, what was tried longest ago first.
    fn note<'a>(&self, provider: &str, found: &[(&'a Instance, Verdict)]) -> Vec<&'a Instance> {
        let now = self.clock.monotonic();
        let mut suspects = self.lock();
        let suspects = suspects.entry(provider.to_owned()).or_default();
        let new = |since| Suspect { since, told: false, tried_at: None, deleting: false };
        let mut due = Vec::new();
        for (shown, verdict) in found {
            let Some(key) = key_of(shown) else { continue };
            let suspect = suspects.entry(key).or_insert(new(now));
            if now.saturating_sub(suspect.since) < self.grace {
                continue;
            }
            if !suspect.told {
                suspect.told = true;
                self.tell(provider, *verdict, shown);
            }
            if *verdict == Verdict::Orphan && !self.dry_run {
                due.push((suspect.tried_at, *shown));
            }
        }
        due.sort_by_key(|(tried_at, _)| *tried_at);
        due.into_iter().map(|(_, shown)| shown).collect()
    }

    fn tell(&self, provider: &str, verdict: Verdict, shown: &Instance) {
        let owner = shown.owner.as_ref().map(|o| format!("{}/{}", o.namespace, o.name)).unwrap_or_default();
        let what = format!("{} of Proxy {owner}", shown.provider_id);
        let (reason, message) = match verdict {
            Verdict::Abandoned => ("AbandonedInstance", format!("{what} was given up and is still there")),
            _ if self.dry_run => ("OrphanFound", format!("{what} is named by no Proxy; it stays (--gc-dry-run)")),
            _ => ("OrphanFound", format!("{what} is named by no Proxy and is deleted")),
        };
        METRICS
            .collections
            .get_or_create(&Outcome { outcome: if verdict == Verdict::Abandoned { "abandoned" } else { "found" } })
            .inc();
        self.event(provider, Severity::Warning, reason, message);
    }

    /// Notes that the deletion of one was tried; `deleting`: it was asked for.
    fn tried(&self, provider: &str, shown: &Instance, deleting: bool) {
        let now = self.clock.monotonic();
        let mut suspects = self.lock();
        if let Some(suspect) = key_of(shown).and_then(|key| suspects.get_mut(provider)?.get_mut(&key)) {
            suspect.tried_at = Some(now);
            suspect.deleting |= deleting;
        }
    }

    /// Deletes one, unless it is somebody's after all. False: calls are held back.
    async fn collect(&self, provider: &str, handle: &Handle, shown: &Instance) -> Result<bool, StoreError> {
        let (Some(owner), Some(incarnation)) = (shown.owner.clone(), shown.incarnation) else { return Ok(true) };
        // Once more, for this one alone: it may have been adopted since.
        let its = ProxyKey { namespace: owner.namespace.clone(), name: owner.name.clone() };
        let now = self.store.fresh_proxy(&its).await?;
        let mut known = by_uid(self.store.proxies());
        known.extend(by_uid(now.into_iter().collect()));
        if judge(shown, self.store.installation(), &known, &self.store.abandoned().await?) != Verdict::Orphan {
            return Ok(true);
        }
        let identity = Identity {
            placement: shown.placement.clone(),
            provider_id: Some(shown.provider_id.clone()),
            backend_id: shown.backend_id.clone(),
            ..Identity::new(owner, incarnation)
        };
        let outcome = match handle.delete(&identity).await {
            Ok(Deletion::Gone) => "deleted",
            Ok(Deletion::InProgress { .. }) => "in_progress",
            Err(CallError { by_host: Some(ByHost::HeldBack(_)), .. }) => return Ok(false),
            Err(error) if error.kind == ErrorKind::Foreign => "foreign",
            Err(error) => {
                tracing::info!(provider, instance = shown.provider_id, "an orphan stays for now: {}", error.message);
                "failed"
            }
        };
        self.tried(provider, shown, matches!(outcome, "deleted" | "in_progress"));
        METRICS.collections.get_or_create(&Outcome { outcome }).inc();
        Ok(true)
    }

    fn event(&self, provider: &str, severity: Severity, reason: &str, message: String) {
        let regarding = Regarding::Provider(provider.to_owned());
        self.store.event(Event { regarding, severity, reason: reason.to_owned(), message });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, HashMap<Key, Suspect>>> {
        self.suspects.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn key_of(shown: &Instance) -> Option<Key> {
    Some((shown.owner.as_ref()?.proxy_uid.clone(), shown.incarnation?, shown.placement.clone()))
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
