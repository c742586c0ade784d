//! Wires queues, workers and the sources of change. Ends when told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use tokio::sync::{Notify, Semaphore, broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::collect::Collector;
use super::provider::Providers;
use super::proxy::driver::Driver;
use super::queue::Queue;
use crate::model::metrics::METRICS;
use crate::model::naming::ProxyKey;
use crate::model::pulse::{BEAT, PULSE};
use crate::plugin::registry::Registry;
use crate::store::{Change, Store};

/// Proxies worked on at once, of all Providers and of one: one that is slow keeps no others waiting. Calls are bounded
/// besides.
const PROXIES: usize = 256;
const PROXIES_OF_ONE: usize = 64;
/// Providers worked on at once.
const PROVIDER_WORKERS: usize = 8;
/// Providers are looked at before Proxies for so long at most.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// After a failure to mark plugins in use.
const HOLD_RETRY: Duration = Duration::from_secs(5);
/// Everything is looked at this often, should a change have been missed.
const RESYNC: Duration = Duration::from_secs(600);

/// Runs the reconcilers.
pub struct Manager {
    /// Where objects live.
    pub store: Arc<dyn Store>,
    /// Their plugins.
    pub registry: Arc<Registry>,
    /// Reconciler of Providers.
    pub providers: Arc<Providers>,
    /// Reconciler of Proxies.
    pub driver: Arc<Driver>,
    /// Deletes what no Proxy names.
    pub collector: Collector,
    /// Asks to mark anew which plugins are in use.
    pub plugins_used: Notify,
}

impl Manager {
    /// Reconciles until `stop`; then finishes what is under way. `verdicts`: keys whose health changed. `ready` turns
    /// true when every Provider was looked at once.
    pub async fn run(
        self,
        verdicts: mpsc::UnboundedReceiver<ProxyKey>,
        ready: Arc<AtomicBool>,
        stop: CancellationToken,
    ) {
        let store = self.store.clone();
        let provider_of = move |key: &ProxyKey| store.proxy(key).map(|p| p.spec.provider.clone()).unwrap_or_default();
        let proxies = Queue::with_lanes("proxy", PROXIES_OF_ONE, provider_of);
        let providers = Queue::named("provider");
        // Listening before the first look: no change is missed in between.
        let (changes, turns) = (self.store.changes(), self.providers.turns());
        // Providers first, so that Proxies do not say for a moment that theirs is missing.
        let first = self.store.providers();
        let looks = first.iter().map(|p| self.look_at_provider(p.name_any(), &providers, &proxies));
        // One that hangs does not keep the others waiting: it is looked at again by a worker.
        let _ = tokio::time::timeout(FIRST_LOOK, futures::future::join_all(looks)).await;
        self.plugins_used.notify_one();
        self.enqueue_all(&providers, &proxies);
        ready.store(true, Ordering::Release);
        let workers = TaskTracker::new();
        let this = Arc::new(self);
        workers.spawn(this.clone().work_on_proxies(proxies.clone(), stop.clone()));
        for _ in 0..PROVIDER_WORKERS {
            workers.spawn(this.clone().work_on_providers(providers.clone(), proxies.clone(), stop.clone()));
        }
        tokio::select! {
            () = this.feed(changes, turns, verdicts, &providers, &proxies) => {}
            () = this.hold_plugins() => {}
            () = stop.cancelled() => {}
        }
        workers.close();
        workers.wait().await;
    }

    /// One task looks for work, so that a timer wakes one and not all.
    async fn work_on_proxies(self: Arc<Self>, queue: Queue<ProxyKey>, stop: CancellationToken) {
        let (permits, passes) = (Arc::new(Semaphore::new(PROXIES)), TaskTracker::new());
        let next = async || Some((permits.clone().acquire_owned().await.ok()?, queue.next().await));
        while let Some(Some((permit, working))) = stop.run_until_cancelled(next()).await {
            let (this, queue) = (self.clone(), queue.clone());
            passes.spawn(async move {
                this.look_at_proxy(&working.key, &queue).await;
                drop((working, permit));
            });
        }
        passes.close();
        passes.wait().await;
    }

    async fn look_at_proxy(&self, key: &ProxyKey, queue: &Queue<ProxyKey>) {
        let begun = Instant::now();
        let result = match self.driver.reconcile(key).await {
            Ok(None) => "success",
            Ok(Some(wait)) => {
                queue.add_after(key.clone(), wait);
                "requeue_after"
            }
            Err(error) => {
                tracing::debug!(proxy = %key, %error, "a pass is repeated");
                queue.add_after(key.clone(), Driver::retry(&error));
                "error"
            }
        };
        METRICS.reconciled("proxy", result, begun.elapsed());
    }

    async fn work_on_providers(
        self: Arc<Self>,
        queue: Queue<String>,
        proxies: Queue<ProxyKey>,
        stop: CancellationToken,
    ) {
        loop {
            let working = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                working = queue.next() => working,
            };
            self.look_at_provider(working.key.clone(), &queue, &proxies).await;
        }
    }

    async fn look_at_provider(&self, name: String, queue: &Queue<String>, proxies: &Queue<ProxyKey>) {
        let begun = Instant::now();
        let pass = self.providers.reconcile(&name, self.driver.mass_absence(&name)).await;
        for key in pass.listed.iter().flat_map(|instances| self.driver.observe(&name, instances)) {
            proxies.add(key);
        }
        if let (Some(instances), Some(handle)) = (&pass.listed, self.providers.handle(&name)) {
            self.collector.pass(&name, &handle, instances).await;
        }
        if pass.changed {
            self.plugins_used.notify_one();
            self.enqueue_proxies_of(&name, proxies);
        }
        METRICS.reconciled("provider", if pass.failed { "error" } else { "requeue_after" }, begun.elapsed());
        if self.store.provider(&name).is_some() {
            queue.add_after(name, pass.again);
        }
    }

    /// Turns everything that happens into work.
    async fn feed(
        &self,
        mut changes: broadcast::Receiver<Change>,
        mut turns: broadcast::Receiver<Arc<str>>,
        mut verdicts: mpsc::UnboundedReceiver<ProxyKey>,
        providers: &Queue<String>,
        proxies: &Queue<ProxyKey>,
    ) {
        let mut plugins = self.registry.subscribe();
        let mut resync = tokio::time::interval(RESYNC);
        resync.tick().await;
        let beat = PULSE.of("objects");
        loop {
            beat.turned();
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                change = changes.recv() => match change {
                    Ok(Change::Proxy(key)) => proxies.add(key),
                    Ok(Change::Provider(name)) => self.provider_changed(name, providers, proxies),
                    Ok(Change::Namespace(name)) => {
                        for proxy in self.store.proxies() {
                            if proxy.namespace().as_ref() == Some(&name) {
                                proxies.add(ProxyKey::of(&proxy));
                            }
                        }
                    }
                    Ok(Change::Secrets) => {
                        self.providers.renew();
                        self.enqueue_all(providers, proxies);
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => self.enqueue_all(providers, proxies),
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                turn = turns.recv() => match turn {
                    Ok(name) => {
                        self.enqueue_proxies_of(&name, proxies);
                        providers.add(name.to_string());
                    }
                    Err(_) => self.enqueue_all(providers, proxies),
                },
                Some(key) = verdicts.recv() => proxies.add(key),
                Ok(()) = plugins.changed() => {
                    self.plugins_used.notify_one();
                    self.enqueue_all(providers, proxies);
                }
                _ = resync.tick() => self.enqueue_all(providers, proxies),
            }
        }
    }

    /// Keeps the plugins that a Provider uses from being deleted under it. Ends never.
    async fn hold_plugins(&self) {
        loop {
            self.plugins_used.notified().await;
            let providers = self.store.providers();
            let in_use = providers.iter().filter(|p| p.spec.plugin.oci.is_none()).map(|p| p.spec.plugin.name.clone());
            if let Err(error) = self.store.hold_plugins(&in_use.collect()).await {
                tracing::warn!(%error, "plugins in use are not marked as such yet");
                tokio::time::sleep(HOLD_RETRY).await;
                self.plugins_used.notify_one();
            }
        }
    }

    fn provider_changed(&self, name: String, providers: &Queue<String>, proxies: &Queue<ProxyKey>) {
        let provider = self.store.provider(&name);
        if provider.as_ref().is_some_and(|p| self.providers.has_seen(p)) {
            return;
        }
        if provider.is_none() {
            self.enqueue_proxies_of(&name, proxies);
        }
        providers.add(name);
    }

    fn enqueue_proxies_of(&self, provider: &str, proxies: &Queue<ProxyKey>) {
        for proxy in self.store.proxies().iter().filter(|p| p.spec.provider == provider) {
            proxies.add(ProxyKey::of(proxy));
        }
    }

    fn enqueue_all(&self, providers: &Queue<String>, proxies: &Queue<ProxyKey>) {
        for provider in self.store.providers() {
            providers.add(provider.name_any());
        }
        for proxy in self.store.proxies() {
            proxies.add(ProxyKey::of(&proxy));
        }
    }
}
