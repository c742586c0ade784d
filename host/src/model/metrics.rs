//! Every metric, in one place. `docs/operations.md` lists them, and a test compares. Of objects' names only those of Providers
//! and their plugins are labels.

mod control;
mod provider;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub use self::control::QueueMetrics;
use self::control::{Controllers, Name, Queues};
use self::provider::Providers;
pub use self::provider::{HeldBack, ProviderMetrics};

/// Seconds: 100 µs to a minute. A call without I/O takes the former, one at its limit the latter.
const DURATIONS: [f64; 11] = [0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// Label of one set of known words.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// The word.
    pub outcome: &'static str,
}

/// Labels of the Proxies of one Provider.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Fleet {
    provider: String,
    ready: &'static str,
}

/// The metrics of this process.
pub struct Metrics {
    registry: Registry,
    providers: Providers,
    /// Files that were to become plugins: `ok`, or the refusal.
    pub plugin_loads: Family<Outcome, Counter>,
    /// Look-ups of compiled code.
    pub plugin_cache: Family<Outcome, Counter>,
    /// Duration of compiling.
    pub plugin_compile_seconds: Histogram,
    controllers: Controllers,
    queues: Queues,
    leads: Family<Name, Gauge>,
    proxies: Family<Fleet, Gauge>,
    /// Answers to acquires.
    pub leases: Family<Outcome, Counter>,
    /// Probes.
    pub probes: Family<Outcome, Counter>,
    /// Requests with no or a wrong credential.
    pub rest_unauthorized: Counter,
    /// What garbage collection found and did.
    pub collections: Family<Outcome, Counter>,
}

/// The metrics of this process.
pub static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

impl Metrics {
    fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            providers: Providers::default(),
            plugin_loads: Family::default(),
            plugin_cache: Family::default(),
            // A provider in Rust takes a tenth of a second, one in JavaScript half a minute.
            plugin_compile_seconds: Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]),
            controllers: Controllers::new(),
            queues: Queues::new(),
            leads: Family::default(),
            proxies: Family::default(),
            leases: Family::default(),
            probes: Family::default(),
            rest_unauthorized: Counter::default(),
            collections: Family::default(),
        };
        let r = &mut metrics.registry;
        r.register_collector(Box::new(metrics.providers.clone()));
        r.register(
            "proxy_operator_plugin_loads",
            "Files that were to become plugins, by outcome",
            metrics.plugin_loads.clone(),
        );
        r.register("proxy_operator_plugin_cache", "Look-ups of compiled code", metrics.plugin_cache.clone());
        r.register(
            "proxy_operator_plugin_compile_seconds",
            "Duration of compiling a plugin",
            metrics.plugin_compile_seconds.clone(),
        );
        metrics.controllers.register(r);
        metrics.queues.register(r);
        r.register("leader_election_master_status", "1: this replica leads", metrics.leads.clone());
        r.register("proxy_operator_proxies", "Proxies, and whether they are Ready", metrics.proxies.clone());
        r.register("proxy_operator_lease_requests", "Requests for a lease, by outcome", metrics.leases.clone());
        r.register("proxy_operator_probes", "Probes of proxies, by outcome", metrics.probes.clone());
        r.register(
            "proxy_operator_rest_unauthorized",
            "Requests with no or a wrong credential",
            metrics.rest_unauthorized.clone(),
        );
        r.register(
            "proxy_operator_collections",
            "Instances that no Proxy names: found, and what became of them",
            metrics.collections.clone(),
        );
        metrics
    }

    /// Counts a pass of a controller.
    pub fn reconciled(&self, controller: &'static str, result: &'static str, took: Duration) {
        self.controllers.reconciled(controller, result, took);
    }

    /// Those of a work queue.
    pub fn queue(&self, name: &'static str) -> QueueMetrics {
        self.queues.of(name)
    }

    /// Whether this replica leads.
    pub fn leads(&self, name: &'static str, leads: bool) {
        self.leads.get_or_create(&Name { name }).set(leads.into());
    }

    /// So many Proxies of this Provider are Ready, and so many are not.
    pub fn proxies(&self, provider: &str, ready: u32, others: u32) {
        for (word, count) in [("true", ready), ("false", others)] {
            let of = Fleet { provider: provider.to_owned(), ready: word };
            if ready + others == 0 {
                self.proxies.remove(&of);
            } else {
                self.proxies.get_or_create(&of).set(count.into());
            }
        }
    }

    /// Those of a Provider that uses this plugin.
    pub fn provider(&self, name: &str, plugin: &str) -> Arc<ProviderMetrics> {
        self.providers.of(name, plugin)
    }

    /// The Provider is gone, and so are its metrics.
    pub fn forget_provider(&self, name: &str) {
        self.providers.forget(name);
    }

    /// Counts a file that became a plugin (`ok`), or its refusal.
    pub fn plugin_loaded(&self, outcome: &'static str) {
        self.plugin_loads.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a look-up of compiled code.
    pub fn plugin_cached(&self, outcome: &'static str) {
        self.plugin_cache.get_or_create(&Outcome { outcome }).inc();
    }

    /// All of them, as Prometheus reads them.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_page_lists_every_metric_and_no_other() {
        // A family without a value is not served.
        for family in
            [&METRICS.leases, &METRICS.probes, &METRICS.plugin_loads, &METRICS.plugin_cache, &METRICS.collections]
        {
            drop(family.get_or_create(&Outcome { outcome: "success" }));
        }
        METRICS.reconciled("proxy", "error", Duration::ZERO);
        METRICS.queue("proxy").added(1);
        METRICS.leads("proxy-operator", false);
        METRICS.proxies("kvm-home", 1, 0);
        let text = METRICS.text();
        let page = include_str!("../../../docs/operations.md");
        let mut served: Vec<_> =
            text.lines().filter_map(|l| l.strip_prefix("# HELP ")).filter_map(|l| l.split(' ').next()).collect();
        let mut listed: Vec<_> = page
            .lines()
            .filter_map(|l| l.strip_prefix("| `"))
            .filter_map(|l| l.split(['`', '{']).next())
            .filter(|n| n.contains('_'))
            .map(|n| n.trim_end_matches("_total"))
            .collect();
        served.sort_unstable();
        listed.sort_unstable();
        assert_eq!(served, listed);
    }
}
