//! What those who run controllers know, under the names that controller-runtime gave it.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::DURATIONS;

/// Label of a queue, or of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Name {
    pub name: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pass {
    controller: &'static str,
    result: &'static str,
}

/// Histograms by one label.
type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

fn durations<L: Clone + Eq + std::hash::Hash>() -> Durations<L> {
    Family::new_with_constructor(|| Histogram::new(DURATIONS))
}

/// Passes of the controllers.
pub(super) struct Controllers {
    passes: Family<Pass, Counter>,
    errors: Family<Controller, Counter>,
    seconds: Durations<Controller>,
}

impl Controllers {
    pub fn new() -> Self {
        Self { passes: Family::default(), errors: Family::default(), seconds: durations() }
    }

    pub fn register(&self, r: &mut Registry) {
        r.register("controller_runtime_reconcile", "Passes over objects, by result", self.passes.clone());
        r.register("controller_runtime_reconcile_errors", "Passes that failed", self.errors.clone());
        r.register("controller_runtime_reconcile_time_seconds", "Duration of a pass", self.seconds.clone());
    }

    pub fn reconciled(&self, controller: &'static str, result: &'static str, took: Duration) {
        self.passes.get_or_create(&Pass { controller, result }).inc();
        if result == "error" {
            self.errors.get_or_create(&Controller { controller }).inc();
        }
        self.seconds.get_or_create(&Controller { controller }).observe(took.as_secs_f64());
    }
}

/// The work queues.
pub(super) struct Queues {
    depth: Family<Name, Gauge>,
    adds: Family<Name, Counter>,
    seconds: Durations<Name>,
}

impl Queues {
    pub fn new() -> Self {
        Self { depth: Family::default(), adds: Family::default(), seconds: durations() }
    }

    pub fn register(&self, r: &mut Registry) {
        r.register("workqueue_depth", "Keys that wait for a worker", self.depth.clone());
        r.register("workqueue_adds", "Keys that came to wait", self.adds.clone());
        r.register("workqueue_queue_duration_seconds", "How long a key waited", self.seconds.clone());
    }

    pub fn of(&self, name: &'static str) -> QueueMetrics {
        let name = Name { name };
        QueueMetrics {
            depth: self.depth.get_or_create_owned(&name),
            adds: self.adds.get_or_create_owned(&name),
            seconds: self.seconds.get_or_create_owned(&name),
        }
    }
}

/// The metrics of one work queue.
pub struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    seconds: Histogram,
}

impl QueueMetrics {
    /// A key came; so many wait now.
    pub fn added(&self, depth: usize) {
        self.adds.inc();
        self.depth.set(depth as i64);
    }

    /// A key went to a worker; so many wait now.
    pub fn taken(&self, depth: usize, waited: Duration) {
        self.depth.set(depth as i64);
        self.seconds.observe(waited.as_secs_f64());
    }
}
