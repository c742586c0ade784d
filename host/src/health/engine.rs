//! One task set for thousands of proxies: a heap of timers, bounded concurrency, verdicts by counting.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::probe::{Failure, probe};
use super::{Target, Verdict};
use crate::model::metrics::{METRICS, Outcome};
use crate::model::naming::ProxyKey;
use crate::model::proxy::{Endpoint, ProbeMode};
use crate::model::pulse::PULSE;

/// Probes at once.
const CONCURRENCY: usize = 256;
/// Until its first pass a proxy is probed sooner than its interval says: its port opens when it opens.
const FIRST: Duration = Duration::from_millis(250);

/// Probes proxies and keeps their verdicts. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    wake: Notify,
    changed: mpsc::UnboundedSender<ProxyKey>,
}

#[derive(Default)]
struct State {
    /// A Proxy has more than one while another instance comes to take over.
    watched: HashMap<ProxyKey, Vec<Watched>>,
    timers: BinaryHeap<Reverse<(Instant, u64, ProxyKey)>>,
    serial: u64,
}

struct Watched {
    target: Arc<Target>,
    /// Timers and probes of an earlier target are passed over.
    serial: u64,
    verdict: Verdict,
    passes: u32,
    failures: u32,
    passed_once: bool,
}

impl Engine {
    /// An engine, and the keys whose verdicts change. The channel holds each change once per probe at most, so it is
    /// bounded by the probes.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<ProxyKey>) {
        let (changed, changes) = mpsc::unbounded_channel();
        (Self { shared: Arc::new(Shared { state: Mutex::default(), wake: Notify::new(), changed }) }, changes)
    }

    /// Watches this target from now on, in the place of the last one of its incarnation. The same one again changes nothing.
    pub fn watch(&self, target: Target) {
        let mut state = self.lock();
        let state = &mut *state;
        let of_key = state.watched.entry(target.key.clone()).or_default();
        let old = of_key.iter().position(|w| w.target.uid == target.uid && w.target.incarnation == target.incarnation);
        if old.is_some_and(|at| *of_key[at].target == target) {
            return;
        }
        state.serial += 1;
        let serial = state.serial;
        let key = target.key.clone();
        let (verdict, passed_once) = match old.map(|at| of_key.swap_remove(at)) {
            // Another interval or login is no reason to forget.
            Some(old) if old.target.endpoint == target.endpoint => (old.verdict, old.passed_once),
            _ => (Verdict::Unknown, false),
        };
        of_key.push(Watched { target: Arc::new(target), serial, verdict, passes: 0, failures: 0, passed_once });
        state.timers.push(Reverse((Instant::now(), serial, key)));
        self.shared.wake.notify_one();
    }

    /// Watches none of a Proxy's any longer but these incarnations.
    pub fn keep_only(&self, key: &ProxyKey, incarnations: &[Option<u32>]) {
        let mut state = self.lock();
        let Some(of_key) = state.watched.get_mut(key) else { return };
        of_key.retain(|w| incarnations.contains(&Some(w.target.incarnation)));
        if of_key.is_empty() {
            state.watched.remove(key);
        }
    }

    /// Watches none of it any longer.
    pub fn forget(&self, key: &ProxyKey) {
        self.lock().watched.remove(key);
    }

    /// What is known of this incarnation of a proxy at this address; of an unwatched one, or of another that was there
    /// before, nothing.
    pub fn verdict(&self, key: &ProxyKey, uid: &str, incarnation: u32, endpoint: &Endpoint) -> Verdict {
        let state = self.lock();
        let same = |t: &Target| t.uid == uid && t.incarnation == incarnation && t.endpoint == *endpoint;
        let found = state.watched.get(key).into_iter().flatten().find(|w| same(&w.target));
        found.map(|w| w.verdict.clone()).unwrap_or_default()
    }

    /// Probes until dropped.
    pub async fn run(self) {
        let permits = Arc::new(Semaphore::new(CONCURRENCY));
        let probes = TaskTracker::new();
        let mut beat = PULSE.of("probes");
        loop {
            beat.turned();
            let due = match self.next_due() {
                Ok(due) => due,
                Err(at) => {
                    tokio::select! {
                        () = self.shared.wake.notified() => {}
                        () = sleep_until(at) => {}
                        () = beat.tick() => {}
                    }
                    continue;
                }
            };
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let this = self.clone();
            probes.spawn(async move {
                let (target, serial) = due;
                let outcome = if target.check.mode == ProbeMode::None { Ok(None) } else { probe(&target).await };
                drop(permit);
                this.record(&target, serial, outcome);
            });
        }
    }

    /// The next target that is due, or when that will be.
    fn next_due(&self) -> Result<(Arc<Target>, u64), Option<Instant>> {
        let mut state = self.lock();
        loop {
            let Some(Reverse((at, _, _))) = state.timers.peek() else { return Err(None) };
            if *at > Instant::now() {
                return Err(Some(*at));
            }
            let Some(Reverse((_, serial, key))) = state.timers.pop() else { return Err(None) };
            if let Some(watched) = state.watched.get(&key).into_iter().flatten().find(|w| w.serial == serial) {
                return Ok((watched.target.clone(), serial));
            }
        }
    }

    fn record(&self, target: &Target, serial: u64, outcome: Result<Option<String>, Failure>) {
        let mut state = self.lock();
        let of_key = state.watched.get_mut(&target.key).into_iter().flatten();
        let Some(watched) = of_key.into_iter().find(|w| w.serial == serial) else { return };
        let word = outcome.as_ref().map_or_else(|f| f.kind.reason(), |_| "pass");
        METRICS.probes.get_or_create(&Outcome { outcome: word }).inc();
        let before = watched.verdict.clone();
        watched.count(outcome);
        let changed = watched.verdict != before;
        let pause = watched.pause();
        state.timers.push(Reverse((Instant::now() + pause, serial, target.key.clone())));
        drop(state);
        self.shared.wake.notify_one();
        if changed {
            // Nobody listens any more when the operator stops.
            let _ = self.shared.changed.send(target.key.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Watched {
    /// Counts one probe. A first pass is enough for a proxy that never served; later, `passAfter` in a row are needed.
    fn count(&mut self, outcome: Result<Option<String>, Failure>) {
        let check = &self.target.check;
        match outcome {
            Ok(exit_ip) => {
                self.failures = 0;
                self.passes = self.passes.saturating_add(1);
                if !self.passed_once
                    || self.passes >= check.pass_after
                    || matches!(self.verdict, Verdict::Healthy { .. })
                {
                    self.passed_once = true;
                    self.verdict = Verdict::Healthy { exit_ip };
                }
            }
            Err(failure) => {
                self.passes = 0;
                self.failures = self.failures.saturating_add(1);
                // While the kind stays, so does the text: its details differ from probe to probe, and each change is a
                // write of the status.
                let same = matches!(&self.verdict, Verdict::Waiting(old) | Verdict::Unhealthy(old) if old.kind == failure.kind);
                let failure = match &self.verdict {
                    Verdict::Waiting(old) | Verdict::Unhealthy(old) if same => old.clone(),
                    _ => failure,
                };
                if self.failures >= check.fail_after {
                    self.verdict = Verdict::Unhealthy(failure);
                } else if !self.passed_once {
                    self.verdict = Verdict::Waiting(failure);
                }
            }
        }
    }

    /// Time to the next probe: the interval ± 20 %, or sooner until the first pass.
    fn pause(&self) -> Duration {
        let interval = self.target.check.interval.duration().max(Duration::from_secs(1));
        let base = if self.passed_once {
            interval
        } else {
            (FIRST * 2u32.saturating_pow(self.failures.min(16))).min(interval)
        };
        base.mul_f64(rand::random_range(0.8..1.2))
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::probe::FailureKind;
    use crate::model::proxy::{HealthCheck, Protocol};

    fn mk_watched() -> Watched {
        let target = Target {
            key: ProxyKey { namespace: "n".into(), name: "p".into() },
            uid: "u".into(),
            incarnation: 0,
            endpoint: Endpoint { host: "127.0.0.1".into(), port: 1, protocol: Protocol::Http },
            login: None,
            check: HealthCheck::default(),
            judge: "http://127.0.0.1:1/judge".into(),
        };
        Watched {
            target: Arc::new(target),
            serial: 1,
            verdict: Verdict::Unknown,
            passes: 0,
            failures: 0,
            passed_once: false,
        }
    }

    fn fail() -> Result<Option<String>, Failure> {
        Err(Failure { kind: FailureKind::Broken, message: "m".into() })
    }

    #[test]
    fn down_after_three_and_up_after_two() {
        let mut watched = mk_watched();
        let healthy = |w: &Watched| matches!(w.verdict, Verdict::Healthy { .. });
        watched.count(Ok(None));
        assert!(healthy(&watched), "a first pass is enough");
        watched.count(fail());
        watched.count(fail());
        assert!(healthy(&watched), "two failures are not three");
        watched.count(fail());
        assert!(matches!(watched.verdict, Verdict::Unhealthy(_)));
        watched.count(Ok(None));
        assert!(!healthy(&watched), "one pass is not two");
        watched.count(Ok(None));
        assert!(healthy(&watched));
    }

    #[test]
    fn a_new_proxy_waits_for_its_port_and_then_one_pass_is_enough() {
        let mut watched = mk_watched();
        watched.count(fail());
        assert!(matches!(watched.verdict, Verdict::Waiting(_)));
        for _ in 0..10 {
            watched.count(fail());
        }
        assert!(matches!(watched.verdict, Verdict::Unhealthy(_)));
        watched.count(Ok(Some("192.0.2.1".into())));
        assert_eq!(watched.verdict, Verdict::Healthy { exit_ip: Some("192.0.2.1".into()) });
    }

    #[test]
    fn a_failure_of_the_same_kind_keeps_its_text_so_that_nothing_is_written() {
        let fail = |kind, message: &str| Err(Failure { kind, message: message.into() });
        let mut watched = mk_watched();
        for n in 0..9 {
            watched.count(fail(FailureKind::Broken, &format!("from port {n}")));
        }
        let first = Failure { kind: FailureKind::Broken, message: "from port 0".into() };
        assert_eq!(watched.verdict, Verdict::Unhealthy(first));
        watched.count(fail(FailureKind::TimedOut, "late"));
        assert!(matches!(&watched.verdict, Verdict::Unhealthy(f) if f.kind == FailureKind::TimedOut));
    }

    /// The verdict about an old address once counted for a new one, which was lent before it was probed.
    #[test]
    fn a_verdict_is_of_one_incarnation_at_one_address() {
        let (engine, _changes) = Engine::new();
        let target = (*mk_watched().target).clone();
        engine.watch(target.clone());
        let healthy = Verdict::Healthy { exit_ip: None };
        engine.lock().watched.get_mut(&target.key).unwrap()[0].verdict = healthy.clone();
        let other = Endpoint { port: 2, ..target.endpoint.clone() };
        assert_eq!(engine.verdict(&target.key, "u", 0, &target.endpoint), healthy);
        for (uid, incarnation, endpoint) in [("v", 0, &target.endpoint), ("u", 1, &target.endpoint), ("u", 0, &other)] {
            assert_eq!(engine.verdict(&target.key, uid, incarnation, endpoint), Verdict::Unknown);
        }
    }

    #[test]
    fn probes_are_spread_around_their_interval() {
        let mut watched = mk_watched();
        assert!(watched.pause() < Duration::from_secs(1));
        watched.count(Ok(None));
        for _ in 0..100 {
            let pause = watched.pause();
            assert!(pause >= Duration::from_secs(24) && pause <= Duration::from_secs(36), "{pause:?}");
        }
    }
}
