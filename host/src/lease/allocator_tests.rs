//! Many who acquire, renew and release at once, a clock that jumps, and a crash: no two promises of one exclusive proxy overlap.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::lease::ledger::LocalLedger;
use crate::lease::{Lack, Mode, Serving};
use crate::model::clock::ManualClock;
use crate::model::naming::ProxyKey;
use crate::model::proxy::{Endpoint, Protocol};
use crate::store::local::database::Database;

const TASKS: u64 = 64;
const PROXIES: usize = 8;
const ROUNDS: usize = 80;

fn mk_proxy(n: usize) -> Leasable {
    Leasable {
        key: ProxyKey { namespace: "crawl".into(), name: format!("p{n}") },
        uid: Uuid::from_u128(n as u128 + 1),
        incarnation: 0,
        provider: "demo".into(),
        location: None,
        labels: Default::default(),
        protocol: Protocol::Http,
        serving: Some(Serving {
            endpoint: Endpoint { host: format!("192.0.2.{n}"), port: 3128, protocol: Protocol::Http },
            login: None,
            exit_ip: None,
        }),
        lack: Lack::Unhealthy,
        closed: false,
        draining: false,
    }
}

fn mk_wish(subject: &str, ttl: u64) -> Wish {
    Wish { namespaces: vec!["crawl".into()], ttl: Duration::from_secs(ttl), subject: subject.into(), ..Wish::default() }
}

fn mk_allocator(ledger: impl Ledger, clock: &Arc<ManualClock>, proxies: usize) -> Arc<Allocator> {
    let allocator = Allocator::new(Arc::new(ledger), Signer::new(vec![7; 32].into()), clock.clone()).unwrap();
    (0..proxies).for_each(|n| allocator.set(mk_proxy(n)));
    Arc::new(allocator)
}

async fn open(dir: &std::path::Path) -> LocalLedger {
    // The last run's writer lets go of the file a moment later.
    for _ in 0..1000 {
        if let Ok(database) = Database::open(&dir.join("state.redb")) {
            return LocalLedger::open(database).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the database stays locked");
}

/// What each proxy was promised to whom until when, by the answers that left.
#[derive(Default)]
struct Oracle {
    promised: Mutex<HashMap<Uuid, (String, Duration)>>,
    granted: AtomicUsize,
}

impl Oracle {
    /// A promise to somebody else must be over when this one's answer is read.
    fn granted(&self, lease: &Lease, clock: &ManualClock) {
        let mut promised = self.promised.lock().unwrap();
        let now = clock.monotonic();
        if lease.expires <= now {
            // Read too late to be relied on; the next one may have been promised meanwhile.
            return;
        }
        if let Some((holder, until)) = promised.get(&lease.proxy.uid) {
            assert!(
                *until <= now,
                "{:?} is promised to {holder} until {until:?}, it is {now:?}: {lease:?}",
                lease.proxy.key
            );
        }
        promised.insert(lease.proxy.uid, (lease.id.clone(), lease.expires));
        self.granted.fetch_add(1, Ordering::Relaxed);
    }

    fn renewed(&self, lease: &Lease) {
        let mut promised = self.promised.lock().unwrap();
        // An answer may be read after its lease was over and the next one given.
        if let Some((holder, until)) = promised.get_mut(&lease.proxy.uid).filter(|(holder, _)| *holder == lease.id) {
            *until = (*until).max(lease.expires);
            assert_eq!(*holder, lease.id);
        }
    }

    /// Before the request is sent: from here on the holder relies on it no more.
    fn releases(&self, lease: &Lease) {
        self.promised.lock().unwrap().retain(|_, (holder, _)| *holder != lease.id);
    }
}

async fn crawl(n: u64, allocator: Arc<Allocator>, clock: Arc<ManualClock>, oracle: Arc<Oracle>) {
    let mut random = StdRng::seed_from_u64(n);
    let me = format!("crawler-{n}");
    for _ in 0..ROUNDS {
        let ttl = random.random_range(10..60);
        if random.random_range(0..4) == 0 {
            clock.advance(Duration::from_millis(random.random_range(0..15_000)));
        }
        let wish = mk_wish(&me, ttl);
        let acquire = allocator.acquire(&wish, allocator.now(), Duration::ZERO);
        // Some give up before they are answered.
        let patience = Duration::from_micros(random.random_range(0..50_000));
        let Ok(answer) = tokio::time::timeout(patience, acquire).await else { continue };
        let Ok(lease) = answer else {
            clock.advance(Duration::from_millis(random.random_range(0..500)));
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        };
        oracle.granted(&lease, &clock);
        if random.random_range(0..3) == 0 {
            let ttl = Duration::from_secs(random.random_range(10..200));
            if let Ok(renewed) = allocator.renew(&lease.id, &me, ttl, allocator.now()).await {
                oracle.renewed(&renewed);
            }
        }
        if random.random_range(0..3) > 0 {
            oracle.releases(&lease);
            let _ = allocator.release(&lease.id, Some(&me));
        }
        if random.random_range(0..8) == 0 {
            allocator.sweep_once().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_exclusive_proxy_is_never_promised_twice_and_a_crash_forgets_no_promise() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let oracle = Arc::new(Oracle::default());
    let allocator = mk_allocator(open(dir.path()).await, &clock, PROXIES);
    let crawlers = (0..TASKS).map(|n| tokio::spawn(crawl(n, allocator.clone(), clock.clone(), oracle.clone())));
    for crawler in futures::future::join_all(crawlers.collect::<Vec<_>>()).await {
        crawler.unwrap();
    }
    assert!(oracle.granted.load(Ordering::Relaxed) > 50);

    drop(allocator);
    let reopened = clock.monotonic();
    let allocator = mk_allocator(open(dir.path()).await, &clock, PROXIES);
    let promised = oracle.promised.lock().unwrap().clone();
    let alive = |now: Duration| promised.iter().filter(move |(_, (_, until))| *until > now).map(|(uid, _)| *uid);
    for _ in 0..400 {
        let now = clock.monotonic();
        if let Ok(lease) = allocator.acquire(&mk_wish("after", 10), now, Duration::ZERO).await {
            assert!(
                !alive(now).any(|uid| uid == lease.proxy.uid),
                "{:?} was promised before the crash",
                lease.proxy.key
            );
        }
        clock.advance(Duration::from_millis(700));
    }
    assert!(clock.monotonic() > reopened + Duration::from_secs(200), "every promise was waited for");
}

/// A ledger whose writes are answered when told, or refused.
#[derive(Clone, Default)]
struct Script {
    gate: Arc<tokio::sync::Notify>,
    waits: Arc<std::sync::atomic::AtomicBool>,
    fails: Arc<std::sync::atomic::AtomicBool>,
    marks: Arc<AtomicUsize>,
}

#[async_trait]
impl Ledger for Script {
    fn nonce(&self) -> [u8; 8] {
        [1; 8]
    }

    fn first_generation(&self) -> u64 {
        0
    }

    fn marks(&self) -> Result<Vec<(Slot, Mark)>, StoreError> {
        Ok(vec![])
    }

    async fn mark(&self, _: Slot, _: &Mark) -> Result<(), StoreError> {
        self.marks.fetch_add(1, Ordering::SeqCst);
        if self.waits.load(Ordering::SeqCst) {
            self.gate.notified().await;
        }
        if self.fails.load(Ordering::SeqCst) { Err(StoreError::Unavailable("disk".into())) } else { Ok(()) }
    }

    async fn unmark(&self, _: &[(Slot, Mark)]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The second holder of a shared proxy was once answered while the first one's mark was still being written.
#[tokio::test]
async fn a_shared_grant_does_not_leave_before_its_mark_is_durable() {
    let (ledger, clock) = (Script::default(), Arc::new(ManualClock::default()));
    ledger.waits.store(true, Ordering::SeqCst);
    let allocator = mk_allocator(ledger.clone(), &clock, 1);
    let wish = Wish { mode: Mode::Shared, ..mk_wish("a", 60) };
    let first = allocator.acquire(&wish, Duration::ZERO, Duration::ZERO);
    let second = allocator.acquire(&wish, Duration::ZERO, Duration::ZERO);
    tokio::pin!(first, second);
    assert!(futures::poll!(first.as_mut()).is_pending());
    assert!(futures::poll!(second.as_mut()).is_pending());
    assert_eq!(ledger.marks.load(Ordering::SeqCst), 2);
    ledger.gate.notify_waiters();
    assert!(first.await.is_ok() && second.await.is_ok());
    assert!(allocator.acquire(&wish, Duration::ZERO, Duration::ZERO).await.is_ok());
    assert_eq!(ledger.marks.load(Ordering::SeqCst), 2, "inside a durable mark nothing is written");
}

#[tokio::test]
async fn a_renewal_that_could_not_be_written_is_written_by_the_next_one() {
    let (ledger, clock) = (Script::default(), Arc::new(ManualClock::default()));
    let allocator = mk_allocator(ledger.clone(), &clock, 1);
    let lease = allocator.acquire(&mk_wish("a", 60), Duration::ZERO, Duration::ZERO).await.unwrap();
    let longer = || allocator.renew(&lease.id, "a", Duration::from_secs(120), Duration::ZERO);
    ledger.fails.store(true, Ordering::SeqCst);
    assert!(matches!(longer().await, Err(NoLease::Ledger(_))));
    assert!(matches!(longer().await, Err(NoLease::Ledger(_))), "not answered without a write");
    ledger.fails.store(false, Ordering::SeqCst);
    assert!(longer().await.is_ok());
}

/// Its holder once saw, and was lent, what served under the old one's name.
#[tokio::test]
async fn a_lease_never_shows_the_instance_that_replaced_its_own() {
    let (ledger, clock) = (Script::default(), Arc::new(ManualClock::default()));
    let allocator = mk_allocator(ledger.clone(), &clock, 1);
    let lease = allocator.acquire(&mk_wish("a", 60), Duration::ZERO, Duration::ZERO).await.unwrap();
    let replaced = |incarnation| allocator.set(Leasable { incarnation, ..mk_proxy(0) });
    replaced(1);
    let shown = allocator.get(&lease.id, Some("a")).unwrap();
    assert!(shown.proxy.serving.is_none() && shown.proxy.draining);
    assert!(allocator.list(Some("a")).iter().all(|l| l.proxy.serving.is_none()));
    let renewed = allocator.renew(&lease.id, "a", Duration::from_secs(60), Duration::ZERO).await;
    assert_eq!(renewed.err(), Some(NoLease::Ended));
    // Replaced while the grant is being written: the new one is lent, as what it is.
    ledger.waits.store(true, Ordering::SeqCst);
    let wish = mk_wish("b", 60);
    let grant = allocator.acquire(&wish, Duration::ZERO, Duration::ZERO);
    tokio::pin!(grant);
    assert!(futures::poll!(grant.as_mut()).is_pending());
    replaced(2);
    ledger.waits.store(false, Ordering::SeqCst);
    ledger.gate.notify_waiters();
    assert_eq!(grant.await.unwrap().proxy.incarnation, 2);
    assert!(!allocator.is_held(mk_proxy(0).uid, 1));
}

#[tokio::test]
async fn a_grant_that_is_over_before_it_is_durable_is_none() {
    let (ledger, clock) = (Script::default(), Arc::new(ManualClock::default()));
    ledger.waits.store(true, Ordering::SeqCst);
    let allocator = mk_allocator(ledger.clone(), &clock, 1);
    let wish = mk_wish("a", 10);
    let grant = allocator.acquire(&wish, Duration::ZERO, Duration::ZERO);
    tokio::pin!(grant);
    assert!(futures::poll!(grant.as_mut()).is_pending());
    clock.advance(Duration::from_secs(10));
    ledger.gate.notify_waiters();
    assert!(matches!(grant.await, Err(Refusal::Ledger(_))));
}
