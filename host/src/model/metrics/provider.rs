//! The metrics of one Provider's plugin. They carry its name, so they go when it goes, also from under calls that still run.

use std::collections::BTreeMap;
use std::fmt::{Debug, Error};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;

use super::DURATIONS;

/// Metrics by labels of known words. What a guest says is never one of them.
#[derive(Debug)]
struct Rows<const N: usize, M> {
    names: [&'static str; N],
    rows: Mutex<BTreeMap<[&'static str; N], M>>,
    make: fn() -> M,
}

impl<const N: usize, M: Clone> Rows<N, M> {
    fn new(names: [&'static str; N], make: fn() -> M) -> Self {
        Self { names, rows: Mutex::default(), make }
    }

    fn at(&self, values: [&'static str; N]) -> M {
        lock(&self.rows).entry(values).or_insert_with(self.make).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How much of a Provider is held back. Whoever holds back owns it: when it is dropped, nothing is held back any more.
#[derive(Debug, Default)]
pub struct HeldBack {
    /// Functions, because the plugin fails.
    pub failing: AtomicU64,
    /// Targets, and the Provider as a whole, because they are out of reach.
    pub unreachable: AtomicU64,
}

/// The metrics of one Provider.
#[derive(Debug)]
pub struct ProviderMetrics {
    provider: String,
    plugin: String,
    calls: Rows<2, Counter>,
    call_seconds: Rows<1, Histogram>,
    host_calls: Rows<2, Counter>,
    host_call_seconds: Rows<1, Histogram>,
    dropped_records: Counter,
    held_back: Mutex<Weak<HeldBack>>,
}

impl ProviderMetrics {
    fn new(provider: &str, plugin: &str) -> Self {
        let durations = || Histogram::new(DURATIONS);
        Self {
            provider: provider.into(),
            plugin: plugin.into(),
            calls: Rows::new(["function", "outcome"], Counter::default),
            call_seconds: Rows::new(["function"], durations),
            host_calls: Rows::new(["call", "outcome"], Counter::default),
            host_call_seconds: Rows::new(["call"], durations),
            dropped_records: Counter::default(),
            held_back: Mutex::default(),
        }
    }

    /// Metrics that nobody is served.
    pub fn detached() -> Arc<Self> {
        Arc::new(Self::new("", ""))
    }

    /// Counts one call of the plugin; how long it took, where it was made.
    pub fn called(&self, function: &'static str, outcome: &'static str, took: Option<Duration>) {
        self.calls.at([function, outcome]).inc();
        if let Some(took) = took {
            self.call_seconds.at([function]).observe(took.as_secs_f64());
        }
    }

    /// Counts one call of a host function; how long it took, where it waits for somebody.
    pub fn host_called(&self, call: &'static str, outcome: &'static str, took: Option<Duration>) {
        self.host_calls.at([call, outcome]).inc();
        if let Some(took) = took {
            self.host_call_seconds.at([call]).observe(took.as_secs_f64());
        }
    }

    /// Counts a log record that was dropped.
    pub fn dropped_record(&self) {
        self.dropped_records.inc();
    }

    /// What is shown as held back from now on.
    pub fn hold_back(&self) -> Arc<HeldBack> {
        let new = Arc::default();
        *lock(&self.held_back) = Arc::downgrade(&new);
        new
    }

    fn labels<'a, const N: usize>(&'a self, names: &[&'static str; N], values: &[&'static str; N]) -> Labels<'a> {
        Labels { whose: self, own: names.iter().copied().zip(values.iter().copied()).collect() }
    }
}

#[derive(Debug)]
struct Labels<'a> {
    whose: &'a ProviderMetrics,
    own: Vec<(&'static str, &'static str)>,
}

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), Error> {
        let whose = [("provider", self.whose.provider.as_str()), ("plugin", self.whose.plugin.as_str())];
        for label in whose.iter().chain(&self.own) {
            label.encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

/// The metrics of all Providers.
#[derive(Clone, Debug, Default)]
pub(super) struct Providers(Arc<Mutex<BTreeMap<String, Arc<ProviderMetrics>>>>);

impl Providers {
    /// Those of this Provider; anew when it has another plugin.
    pub fn of(&self, provider: &str, plugin: &str) -> Arc<ProviderMetrics> {
        let mut all = lock(&self.0);
        match all.get(provider).filter(|found| found.plugin == plugin) {
            Some(found) => found.clone(),
            None => {
                let new = Arc::new(ProviderMetrics::new(provider, plugin));
                all.insert(provider.to_owned(), new.clone());
                new
            }
        }
    }

    /// Serves them no more. Calls that still run count where nobody looks.
    pub fn forget(&self, provider: &str) {
        lock(&self.0).remove(provider);
    }
}

impl Collector for Providers {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let all: Vec<_> = lock(&self.0).values().cloned().collect();
        type Write<'w> = &'w dyn Fn(&ProviderMetrics, &mut MetricEncoder) -> Result<(), Error>;
        let mut family = |name: &str, help: &str, kind: MetricType, write: Write| {
            let mut encoder = encoder.encode_descriptor(name, help, None, kind)?;
            all.iter().try_for_each(|one| write(one, &mut encoder))
        };
        family(
            "proxy_operator_provider_calls",
            "Calls of plugins, by function and outcome",
            MetricType::Counter,
            &|one, to| encode(one, &one.calls, to),
        )?;
        family(
            "proxy_operator_provider_call_seconds",
            "Duration of calls of plugins",
            MetricType::Histogram,
            &|one, to| encode(one, &one.call_seconds, to),
        )?;
        family(
            "proxy_operator_provider_host_calls",
            "Calls of host functions by plugins, by outcome",
            MetricType::Counter,
            &|one, to| encode(one, &one.host_calls, to),
        )?;
        family(
            "proxy_operator_provider_host_call_seconds",
            "Duration of calls of host functions that wait for others",
            MetricType::Histogram,
            &|one, to| encode(one, &one.host_call_seconds, to),
        )?;
        family(
            "proxy_operator_provider_dropped_log_records",
            "Log records of plugins that were too many",
            MetricType::Counter,
            &|one, to| one.dropped_records.encode(to.encode_family(&one.labels(&[], &[]))?),
        )?;
        family(
            "proxy_operator_provider_held_back",
            "Functions that are held back because the plugin fails, or 1 because its backend is out of reach",
            MetricType::Gauge,
            &|one, to| {
                let held = lock(&one.held_back).upgrade().unwrap_or_default();
                for (cause, count) in [("failing", &held.failing), ("unreachable", &held.unreachable)] {
                    let gauge = ConstGauge::new(count.load(Ordering::Relaxed));
                    gauge.encode(to.encode_family(&one.labels(&["cause"], &[cause]))?)?;
                }
                Ok(())
            },
        )
    }
}

fn encode<const N: usize, M: EncodeMetric>(
    one: &ProviderMetrics,
    rows: &Rows<N, M>,
    to: &mut MetricEncoder,
) -> Result<(), Error> {
    for (values, metric) in lock(&rows.rows).iter() {
        metric.encode(to.encode_family(&one.labels(&rows.names, values))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(all: &Providers) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(all.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_provider_that_goes_takes_its_series_with_it_even_from_under_a_call() {
        let all = Providers::default();
        let (gone, stays) = (all.of("gone", "p"), all.of("stays", "p"));
        for one in [&gone, &stays] {
            one.called("get", "ok", None);
            one.host_called("http", "lost", Some(Duration::ZERO));
        }
        assert!(text(&all).contains(
            "proxy_operator_provider_calls_total{provider=\"gone\",plugin=\"p\",function=\"get\",outcome=\"ok\"} 1\n"
        ));
        all.forget("gone");
        gone.called("create", "ok", None);
        let text = text(&all);
        assert!(!text.contains("gone"), "{text}");
        assert!(text.contains("host_calls_total{provider=\"stays\",plugin=\"p\",call=\"http\",outcome=\"lost\"} 1\n"));
    }

    #[test]
    fn another_plugin_is_another_series_and_the_old_one_goes() {
        let all = Providers::default();
        all.of("a", "old").called("get", "ok", None);
        all.of("a", "new").called("get", "ok", None);
        let text = text(&all);
        assert!(text.contains("plugin=\"new\"") && !text.contains("plugin=\"old\""), "{text}");
    }

    #[test]
    fn what_is_held_back_counts_as_long_as_its_holder_lives() {
        let all = Providers::default();
        let one = all.of("a", "p");
        let held = one.hold_back();
        held.failing.store(2, Ordering::Relaxed);
        let says = |n: u64| format!("held_back{{provider=\"a\",plugin=\"p\",cause=\"failing\"}} {n}\n");
        assert!(text(&all).contains(&says(2)));
        let newer = one.hold_back();
        held.failing.store(3, Ordering::Relaxed);
        assert!(text(&all).contains(&says(0)), "a version that was replaced holds nothing back");
        newer.failing.store(1, Ordering::Relaxed);
        drop(newer);
        assert!(text(&all).contains(&says(0)));
    }
}
