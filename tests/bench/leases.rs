//! The lease engine, without HTTP: in memory, and with a ledger that is on the disk before a grant is answered.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use proxy_operator::lease::allocator::Allocator;
use proxy_operator::lease::id::Signer;
use proxy_operator::lease::ledger::{Ledger, LocalLedger, Mark, Slot};
use proxy_operator::lease::{Lack, Leasable, Mode, Serving, Wish};
use proxy_operator::model::clock::SystemClock;
use proxy_operator::model::naming::ProxyKey;
use proxy_operator::model::proxy::{Endpoint, Protocol};
use proxy_operator::store::StoreError;
use proxy_operator::store::local::database::Database;
use tokio::task::JoinSet;

use super::table::{Table, Target, millis, quantile};

/// Keeps nothing.
struct Memory;

#[async_trait]
impl Ledger for Memory {
    fn nonce(&self) -> [u8; 8] {
        [7; 8]
    }

    fn first_generation(&self) -> u64 {
        0
    }

    fn marks(&self) -> Result<Vec<(Slot, Mark)>, StoreError> {
        Ok(vec![])
    }

    async fn mark(&self, _: Slot, _: &Mark) -> Result<(), StoreError> {
        Ok(())
    }

    async fn unmark(&self, _: &[(Slot, Mark)]) -> Result<(), StoreError> {
        Ok(())
    }
}

fn allocator(ledger: Arc<dyn Ledger>, proxies: usize) -> Arc<Allocator> {
    let signer = Signer::new(vec![1; 32].into());
    let allocator = Allocator::new(ledger, signer, Arc::new(SystemClock::default())).expect("the ledger is readable");
    for number in 0..proxies {
        let endpoint =
            Endpoint { host: format!("10.0.{}.{}", number / 256, number % 256), port: 3128, protocol: Protocol::Http };
        allocator.set(Leasable {
            key: ProxyKey { namespace: "crawlers".into(), name: format!("p{number}") },
            uid: uuid::Uuid::new_v4(),
            incarnation: 0,
            provider: "sandbox".into(),
            location: None,
            labels: [("pool".to_owned(), "a".to_owned())].into(),
            protocol: Protocol::Http,
            serving: Some(Serving { endpoint, login: None, exit_ip: None }),
            lack: Lack::Scaling,
            closed: false,
            draining: false,
        });
    }
    Arc::new(allocator)
}

fn wish(mode: Mode) -> Wish {
    Wish {
        namespaces: vec!["crawlers".into()],
        selector: [("pool".to_owned(), "a".to_owned())].into(),
        mode,
        ttl: Duration::from_secs(60),
        subject: "bench".into(),
        ..Wish::default()
    }
}

/// Grants and releases until `budget` is over: how many, and how long each grant took.
async fn lend(allocator: &Allocator, mode: Mode, budget: Duration) -> Vec<Duration> {
    let (wish, started, mut times) = (wish(mode), Instant::now(), vec![]);
    while started.elapsed() < budget {
        let asked = Instant::now();
        let lease = allocator.acquire(&wish, allocator.now(), Duration::ZERO).await;
        times.push(asked.elapsed());
        let lease = lease.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        allocator.release(&lease.id, None).unwrap_or_else(|e| panic!("{e:?}"));
    }
    times
}

pub async fn measure(table: &mut Table, work: &Path) {
    const BUDGET: Duration = Duration::from_secs(1);
    for (mode, name) in [(Mode::Exclusive, "exclusive"), (Mode::Shared, "shared")] {
        for proxies in [100, 1_000, 10_000] {
            let allocator = allocator(Arc::new(Memory), proxies);
            let times = lend(&allocator, mode, BUDGET).await;
            // Of the time of the grants alone: a release is not what is promised.
            let rate = times.len() as f64 / times.iter().sum::<Duration>().as_secs_f64();
            let title = format!("lease engine in memory, {name}, {proxies} proxies");
            let target = if proxies == 1_000 { Target::Over(200_000.0) } else { Target::None };
            table.row(&title, rate, "grants/s", target);
        }
    }
    let database = Database::open(&work.join("ledger.redb")).expect("a database");
    let ledger = LocalLedger::open(database).await.expect("a ledger");
    let allocator = allocator(Arc::new(ledger), 1_000);
    let (started, mut all, mut callers) = (Instant::now(), vec![], JoinSet::new());
    for _ in 0..32 {
        let allocator = allocator.clone();
        callers.spawn(async move { lend(&allocator, Mode::Exclusive, 3 * BUDGET).await });
    }
    while let Some(times) = callers.join_next().await {
        all.extend(times.expect("no panic"));
    }
    let rate = all.len() as f64 / started.elapsed().as_secs_f64();
    let title = "lease engine with its ledger on disk, exclusive, 32 callers";
    table.row(title, rate, "grants/s", Target::Over(10_000.0));
    table.row("  p99", millis(quantile(&mut all, 0.99)), "ms", Target::Under(10.0));
}
