//! Every metric, in one place. `docs/operations.md` lists them, and a test compares. No object's name is ever a label.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Labels of a provider's call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    /// Function of the contract.
    pub function: &'static str,
    /// `ok`, or the error kind.
    pub outcome: &'static str,
}

/// Label of one set of known words.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// The word.
    pub outcome: &'static str,
}

/// The metrics of this process.
pub struct Metrics {
    registry: Registry,
    /// Calls of plugins.
    pub provider_calls: Family<CallLabels, Counter>,
    /// Their duration.
    pub provider_call_seconds: Histogram,
    /// Passes over Proxies.
    pub reconciles: Family<Outcome, Counter>,
    /// Keys that wait for a worker.
    pub queue_depth: Gauge,
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
        // 100 µs to a minute: a call without I/O takes the former, one at its limit the latter.
        let buckets = [0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];
        let mut metrics = Self {
            registry: Registry::default(),
            provider_calls: Family::default(),
            provider_call_seconds: Histogram::new(buckets),
            reconciles: Family::default(),
            queue_depth: Gauge::default(),
            leases: Family::default(),
            probes: Family::default(),
            rest_unauthorized: Counter::default(),
            collections: Family::default(),
        };
        let r = &mut metrics.registry;
        r.register(
            "proxy_operator_provider_calls",
            "Calls of plugins, by function and outcome",
            metrics.provider_calls.clone(),
        );
        r.register(
            "proxy_operator_provider_call_seconds",
            "Duration of calls of plugins",
            metrics.provider_call_seconds.clone(),
        );
        r.register("controller_runtime_reconcile", "Passes over Proxies, by outcome", metrics.reconciles.clone());
        r.register("workqueue_depth", "Proxies that wait for a worker", metrics.queue_depth.clone());
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

    /// Counts one call of a plugin.
    pub fn called(&self, function: &'static str, outcome: &'static str, took: Duration) {
        self.provider_calls.get_or_create(&CallLabels { function, outcome }).inc();
        self.provider_call_seconds.observe(took.as_secs_f64());
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
        METRICS.called("get", "ok", Duration::ZERO);
        for family in [&METRICS.reconciles, &METRICS.leases, &METRICS.probes, &METRICS.collections] {
            drop(family.get_or_create(&Outcome { outcome: "success" }));
        }
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
