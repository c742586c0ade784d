//! A Provider under deletion: it goes when no Proxy uses it and nothing of ours is left at its backend.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use kube::ResourceExt;

use super::{CHECK_BAD, Pass, Providers, State};
use crate::control::collect::{Verdict, by_uid, judge};
use crate::model::condition::Verdict as Says;
use crate::model::instance::Instance;
use crate::model::naming::ProxyKey;
use crate::model::provider::Provider;
use crate::model::proxy::Proxy;
use crate::model::{SKIP_CLEANUP, is_annotated};
use crate::plugin::handle::Handle;
use crate::plugin::registry::Entry;
use crate::store::{Event, Regarding, Severity, StoreError};

/// A create may land this much after its call has ended.
const LATE: Duration = Duration::from_secs(30);
/// What is waited for is looked at again.
const LOOK: Duration = Duration::from_secs(5);

/// Names a few of many, always the same ones of the same.
fn some_of(all: &[String]) -> String {
    const FEW: usize = 3;
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    all.sort_unstable();
    let few = all[..all.len().min(FEW)].join(", ");
    if all.len() > FEW { format!("{few} and {} more", all.len() - FEW) } else { few }
}

fn way_out(provider: &str) -> String {
    format!("to leave behind what is there: kubectl annotate provider {provider} {SKIP_CLEANUP}=true")
}

impl Providers {
    /// Takes a Provider up, once in a run. What an earlier run sent for it may still land.
    pub(super) fn begin_with(&self, provider: &Provider) {
        if provider.has_finalizer() {
            let now = self.clock.monotonic();
            self.creates_end().entry(provider.uid().unwrap_or_default()).or_insert(now + LATE);
        }
    }

    /// A create is sent to a Provider, or has ended; `within`: the longest that it may take from now.
    pub fn note_create(&self, name: &str, within: Duration) {
        let Some(uid) = self.store.provider(name).and_then(|provider| provider.uid()) else { return };
        let end = self.clock.monotonic() + within + LATE;
        self.creates_end().insert(uid, end);
    }

    /// A pass over a Provider under deletion.
    pub(super) async fn part_with(
        &self,
        provider: &Provider,
        entry: &Entry,
        built: Result<Arc<Handle>, (String, String)>,
    ) -> Pass {
        let name = provider.name_any();
        let listed = match &built {
            Ok(handle) => handle.list().await.map_err(|error| (error.reason, error.message)),
            Err(why) => Err(why.clone()),
        };
        let kept = match self.keeps(provider, &listed).await {
            Ok(None) => return self.release(provider).await,
            Ok(Some(kept)) => kept,
            Err(error) => return Pass { listed: listed.ok(), ..Pass::failed(&name, &error) },
        };
        // Its Proxies need it until they are gone.
        let changed = self.remember(&name, State::from(built), provider, entry);
        let says = Says::new(false, kept.0, format!("being deleted: {}", kept.1));
        let targets = provider.status.as_ref().map(|s| s.targets.clone()).unwrap_or_default();
        let pass = Pass { again: LOOK, changed, failed: false, listed: listed.ok() };
        match self.write(provider, entry, says, targets).await {
            Ok(()) => pass,
            Err(error) => Pass { changed, listed: pass.listed, ..Pass::failed(&name, &error) },
        }
    }

    async fn release(&self, provider: &Provider) -> Pass {
        let name = provider.name_any();
        if !provider.has_finalizer() {
            // Finalizers of others are theirs.
            return Pass { again: CHECK_BAD, changed: false, failed: false, listed: None };
        }
        if is_annotated(provider, SKIP_CLEANUP) {
            // Told while the object is there: of one that is gone, Kubernetes is told nothing.
            self.store.event(Event {
                regarding: Regarding::Provider(name.clone()),
                severity: Severity::Warning,
                reason: "Abandoned".into(),
                message: format!("released by {SKIP_CLEANUP}; nobody looks for what is left at its backend"),
            });
        }
        if let Err(error) = self.store.set_provider_finalizer(provider, false).await {
            return Pass::failed(&name, &error);
        }
        self.creates_end().remove(&provider.uid().unwrap_or_default());
        Pass { again: Duration::ZERO, changed: true, failed: false, listed: None }
    }

    /// What still keeps it: reason and text; none: nothing.
    pub(super) async fn keeps(
        &self,
        provider: &Provider,
        listed: &Result<Vec<Instance>, (String, String)>,
    ) -> Result<Option<(String, String)>, StoreError> {
        let keep = |reason: &str, message: String| Ok(Some((reason.to_owned(), message)));
        if !provider.has_finalizer() || is_annotated(provider, SKIP_CLEANUP) {
            return Ok(None);
        }
        let name = provider.name_any();
        // What was last seen is enough to know that it is used; that it is not is read anew.
        let mut users = Self::users(&self.store.proxies(), &name);
        let mut proxies = vec![];
        if users.is_empty() {
            proxies = self.store.fresh_proxies().await?;
            users = Self::users(&proxies, &name);
        }
        if !users.is_empty() {
            let message = format!("Proxies use it ({}); it goes when they are deleted", some_of(&users));
            return keep("InUse", message);
        }
        let end = self.creates_end().get(&provider.uid().unwrap_or_default()).copied();
        let Some(end) = end else { return Ok(None) };
        if end > self.clock.monotonic() {
            return keep("CreatesMayLand", "a create that was sent may still arrive; it is waited for".into());
        }
        let shown = match listed {
            Ok(shown) => shown,
            Err((reason, message)) => {
                return keep(reason, format!("its instances cannot be listed: {message}; {}", way_out(&name)));
            }
        };
        let (proxies, abandoned) = (by_uid(proxies), self.store.abandoned().await?);
        let judged = |wanted: Verdict| {
            let its =
                shown.iter().filter(|shown| judge(shown, self.store.installation(), &proxies, &abandoned) == wanted);
            its.map(|shown| shown.provider_id.clone()).collect::<Vec<_>>()
        };
        let (orphans, unsure) = (judged(Verdict::Orphan), judged(Verdict::Unsure));
        if orphans.is_empty() && unsure.is_empty() {
            return Ok(None);
        }
        let mut why = vec![];
        if !orphans.is_empty() && self.collects {
            why.push(format!(
                "instances that no Proxy names are left at its backend and are collected first: {}",
                some_of(&orphans)
            ));
        } else if !orphans.is_empty() {
            why.push(format!(
                "instances that no Proxy names are left at its backend, and none is collected with --gc-dry-run: {}; run \
                 without it, or delete them there",
                some_of(&orphans)
            ));
        }
        if !unsure.is_empty() {
            why.push(format!(
                "its plugin lists instances without all of this installation's tags, so that nobody may delete them: {}; \
                 look at them at the backend, and delete those that are yours",
                some_of(&unsure)
            ));
        }
        why.push(way_out(&name));
        keep("InstancesLeft", why.join("; "))
    }

    /// The Proxies of a Provider, by name.
    fn users(proxies: &[Arc<Proxy>], provider: &str) -> Vec<String> {
        let its = proxies.iter().filter(|proxy| proxy.spec.provider == provider);
        its.map(|proxy| ProxyKey::of(proxy).to_string()).collect()
    }

    fn creates_end(&self) -> MutexGuard<'_, HashMap<String, Duration>> {
        self.creates_end.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
