//! What follows from a pass for everybody else: status, events, probes, leases, and how the Proxy stands among the others of
//! its Provider.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use super::driver::{Driver, is_running};
use super::memory::Stage;
use super::roster::Member;
use super::summary::{lack, summarize};
use super::{Facts, Memory};
use crate::health::{Target, Verdict};
use crate::lease::{Lack, Leasable, Serving};
use crate::model::condition::{Status, find, is_true};
use crate::model::error::CallError;
use crate::model::login::{Login, LoginKey};
use crate::model::naming::ProxyKey;
use crate::model::proxy::{Endpoint, InstanceStatus, Proxy, ProxyStatus};
use crate::plugin::handle::Handle;
use crate::store::{Severity, StoreError};

impl Driver {
    /// A status that `decide` changed, with conditions that fit it.
    pub(super) fn fitting(proxy: &Proxy, status: ProxyStatus, memory: &Memory, facts: &Facts) -> ProxyStatus {
        let changed = Proxy { status: Some(status), ..proxy.clone() };
        summarize(&changed, memory, facts)
    }

    /// Stores a status. Only we write it, so that an edit of the rest meanwhile is no reason to lose an answer.
    pub(super) async fn store_status(&self, proxy: &Arc<Proxy>, status: ProxyStatus) -> Result<(), StoreError> {
        let mut decided_on = proxy.clone();
        loop {
            match self.store.set_proxy_status(&decided_on, status.clone()).await {
                Err(conflict @ StoreError::Conflict(_)) => {
                    let same = |p: &Arc<Proxy>| {
                        let newer = p.resource_version() != decided_on.resource_version();
                        newer && p.uid() == proxy.uid() && p.status == proxy.status
                    };
                    decided_on = self.store.proxy(&ProxyKey::of(proxy)).filter(same).ok_or(conflict)?;
                }
                outcome => {
                    outcome?;
                    self.tell_ready(proxy, &status);
                    return Ok(());
                }
            }
        }
    }

    /// Tells of a `Ready` that is new in a status which was stored.
    fn tell_ready(&self, before: &Proxy, stored: &ProxyStatus) {
        let ready = |status: &ProxyStatus| find(&status.conditions, "Ready").cloned();
        let before_it = before.status.as_ref().and_then(ready).map(|c| (c.status, c.reason));
        let Some(now) = ready(stored).filter(|c| before_it != Some((c.status, c.reason.clone()))) else { return };
        let good = now.status == Status::True || is_progress(&now.reason);
        let severity = if good { Severity::Normal } else { Severity::Warning };
        self.tell(&ProxyKey::of(before), severity, &now.reason, now.message);
    }

    /// Brings probes, leases and status in line with what is known; answers the object as it then is.
    pub(super) async fn settle(
        &self,
        proxy: &Arc<Proxy>,
        memory: &Memory,
        facts: &Facts,
        keys: &[LoginKey],
        handle: Option<&Handle>,
    ) -> Result<Arc<Proxy>, StoreError> {
        let key = ProxyKey::of(proxy);
        let running = runs(proxy, memory);
        let status = proxy.status.clone().unwrap_or_default();
        let login = self.login(proxy, status.instance.as_ref(), keys, handle, &facts.own_login).await;
        let watch = |instance: &InstanceStatus, endpoint: &Endpoint, login: &Option<Login>| {
            self.health.watch(Target {
                key: key.clone(),
                uid: proxy.uid().unwrap_or_default(),
                incarnation: instance.incarnation,
                endpoint: endpoint.clone(),
                login: login.clone(),
                check: proxy.spec.health_check.clone(),
                judge: self.judge.clone(),
            });
            Some(instance.incarnation)
        };
        let serving = status.instance.as_ref();
        let watched = match (status.endpoint.as_ref().filter(|_| running), serving, &login) {
            // What is being replaced may have an earlier login than its Secret gives by now.
            _ if running && memory.rebuild.is_some() => serving.map(|i| i.incarnation),
            (Some(endpoint), Some(instance), Ok(login)) => watch(instance, endpoint, login),
            // Whatever is at its last address may be somebody else's by now.
            _ if memory.seen.is_some() => None,
            _ => serving.map(|i| i.incarnation),
        };
        let coming = match (&status.next, &memory.coming.endpoint) {
            (Some(next), Some(endpoint)) => match self.login(proxy, Some(next), keys, handle, &facts.own_login).await {
                Ok(login) => watch(next, endpoint, &login),
                Err(_) => None,
            },
            _ => None,
        };
        self.health.keep_only(&key, &[watched, coming]);
        if let (true, None, Ok(Some(login))) = (running, &memory.rebuild, &login) {
            self.publish(proxy, login).await;
        }
        self.offer(proxy, memory, facts, login);
        let wanted = summarize(proxy, memory, facts);
        if proxy.status.as_ref() == Some(&wanted) {
            return Ok(proxy.clone());
        }
        let stored = self.store.set_proxy_status(proxy, wanted.clone()).await?;
        self.tell_ready(proxy, &wanted);
        Ok(stored)
    }

    /// Tells the allocator what there is to lend.
    fn offer(&self, proxy: &Proxy, memory: &Memory, facts: &Facts, login: Result<Option<Login>, CallError>) {
        let Some(leasable) = leasable(proxy) else { return };
        let status = proxy.status.as_ref();
        let healthy = runs(proxy, memory) && matches!(facts.health, Verdict::Healthy { .. });
        let endpoint = status.and_then(|s| s.endpoint.clone()).filter(|_| healthy);
        let exit_ip = status.and_then(|s| s.exit_ip.clone());
        self.allocator.set(Leasable {
            // Without its login it would be of no use.
            serving: endpoint.zip(login.ok()).map(|(endpoint, login)| Serving { endpoint, login, exit_ip }),
            lack: lack(memory, facts),
            draining: proxy.is_deleting() || memory.rebuild.is_some(),
            ..leasable
        });
    }

    /// Tells the allocator that there is such a Proxy, before anything is known of it.
    pub(super) fn introduce(&self, proxy: &Proxy) {
        if let Some(leasable) = leasable(proxy) {
            self.allocator.set(leasable);
        }
    }

    /// Shows how it stands to the others of its Provider.
    pub(super) fn enrol(&self, proxy: &Proxy, memory: &Memory, now: Duration) {
        let Some(uid) = proxy.uid() else { return };
        if self.roster.set(&proxy.spec.provider, &uid, member(proxy, memory), now) {
            self.providers.wake(&proxy.spec.provider);
        }
    }
}

/// Whether what serves is worth a probe, and may be lent when that passes: it was seen to run; or it could not be asked for
/// since the operator began, and its status says no other. A backend that is down takes no proxy away.
pub(super) fn runs(proxy: &Proxy, memory: &Memory) -> bool {
    let said = proxy.status.as_ref().filter(|status| memory.seen.is_none() && status.endpoint.is_some());
    is_running(memory)
        || said.and_then(|status| find(&status.conditions, "Provisioned")).is_some_and(|provisioned| {
            // What failed since is told as Unknown, and so is a state that the backend itself does not know.
            provisioned.status == Status::True
                || (provisioned.status == Status::Unknown && provisioned.reason != "InstanceUnknown")
        })
}

/// How a Proxy stands among the others of its Provider.
pub fn member(proxy: &Proxy, memory: &Memory) -> Member {
    let Some(status) = &proxy.status else { return Member::default() };
    let instances = status.instances().count() as u32;
    let Some(instance) = status.instance.as_ref().filter(|_| !proxy.is_deleting()) else {
        return Member { instances, ..Member::default() };
    };
    // Falling back to another place takes away nothing that served.
    let rebuild = memory.rebuild.as_ref().filter(|rebuild| !rebuild.fall_back);
    let gone = memory.seen.as_ref().is_some_and(|seen| seen.state.is_none());
    let served = instance.ready_since.is_some() || status.rebuilds > 0;
    let closed = rebuild.is_some_and(|rebuild| rebuild.drain || rebuild.stage != Stage::Planned);
    let ready = is_true(&status.conditions, "Ready");
    Member {
        ready,
        out: served && (closed || !ready),
        replaced: rebuild.is_some() || status.next.is_some() || (served && instance.ready_since.is_none()),
        absent: gone && instance.provider_id.is_some() && memory.rebuild.is_none(),
        instances,
    }
}

/// A Proxy of which nothing is known yet but its object.
fn leasable(proxy: &Proxy) -> Option<Leasable> {
    let status = proxy.status.as_ref();
    Some(Leasable {
        key: ProxyKey::of(proxy),
        uid: proxy.uid()?.parse().ok()?,
        incarnation: status.and_then(|s| s.instance.as_ref()).map_or(0, |i| i.incarnation),
        provider: proxy.spec.provider.clone(),
        location: proxy.spec.location.clone(),
        labels: proxy.labels_map(),
        // What runs may be made from an earlier spec.
        protocol: status.and_then(|s| s.endpoint.as_ref()).map_or(proxy.spec.protocol, |e| e.protocol),
        serving: None,
        lack: Lack::Scaling,
        closed: proxy.spec.unschedulable,
        draining: proxy.is_deleting(),
    })
}

/// Reasons of a Proxy that is on its way.
fn is_progress(reason: &str) -> bool {
    matches!(
        reason,
        "Creating"
            | "ProbePending"
            | "Deleting"
            | "Draining"
            | "NotAsked"
            | "NotValidated"
            | "SpecChanged"
            | "MaxAge"
            | "Stopped"
            | "Paused"
    )
}
