//! Two operators of which one leads, and freezes: the other goes on, and nothing is done twice when the first one wakes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use proxy_operator_tests::apiserver::ApiServer;
use proxy_operator_tests::backend::{Backend, CloudApi};
use proxy_operator_tests::interceptor::{Asked, Fate, Interceptor, Onlooker};
use proxy_operator_tests::kube_api::{GROUP, KubeApi, is_ready};
use proxy_operator_tests::kube_lab::{address, cluster_with, operator_args, provider_of};
use proxy_operator_tests::process::{PATIENCE, Process};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::cluster::SHORT_LEASE;

const CHANGES_OF_LEADER: usize = 3;
/// Proxies that are made, and then deleted, around each freeze.
const BATCH: usize = 6;
const PROXIES: &str = "/apis/crawl.example.com/v1alpha1/namespaces/default/proxies";

/// What the cloud was asked for, by machine.
#[derive(Default)]
struct CloudLog {
    machines: Mutex<HashMap<String, Machine>>,
    /// While it is true, changes wait here.
    gate: watch::Sender<bool>,
    waiting: AtomicUsize,
}

#[derive(Clone, Default)]
struct Machine {
    made: usize,
    deleted: usize,
}

#[async_trait]
impl Onlooker for CloudLog {
    async fn asked(&self, asked: &Asked) -> Fate {
        if asked.changes() {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            // The sender lives as long as this.
            let _ = self.gate.subscribe().wait_for(|closed| !closed).await;
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        Fate::Passes
    }

    async fn answered(&self, asked: &Asked, status: StatusCode, _body: &Value) -> Fate {
        let mut log = self.machines.lock().unwrap();
        let machine = log.entry(asked.path.clone()).or_default();
        match status {
            StatusCode::CREATED => machine.made += 1,
            // Of what is gone already: 404.
            StatusCode::ACCEPTED => machine.deleted += 1,
            _ => {}
        }
        Fate::Passes
    }
}

impl CloudLog {
    /// How many changes were carried out.
    fn changes(&self) -> usize {
        self.machines.lock().unwrap().values().map(|machine| machine.made + machine.deleted).sum()
    }
}

struct Replica {
    process: Process,
    metrics: String,
}

struct Replicas {
    both: Vec<Replica>,
    client: Client,
    api: KubeApi,
    cloud: CloudApi,
    log: Arc<CloudLog>,
    started: usize,
    _way: Interceptor,
    backend: Backend,
    dir: TempDir,
    server: ApiServer,
}

impl Replicas {
    async fn start() -> Option<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = cluster_with(&["sandbox"])?;
        let dir = tempfile::tempdir().unwrap();
        let backend = Backend::start(dir.path());
        let log = Arc::new(CloudLog::default());
        let way = Interceptor::start(&backend.cloud_url, None, log.clone()).await;
        server.run(
            &["apply", "-f", "-"],
            Some(&provider_of("demo", "sandbox", &way.url, "  limits: {callTimeout: 5s}\n")),
        );
        let mut this = Self {
            both: vec![],
            client: Client::builder().no_proxy().timeout(Duration::from_secs(1)).build().unwrap(),
            api: KubeApi::of(&server),
            cloud: backend.api(),
            log,
            started: 0,
            _way: way,
            backend,
            dir,
            server,
        };
        this.add();
        this.add();
        Some(this)
    }

    /// One more replica.
    fn add(&mut self) {
        self.started += 1;
        let own = self.dir.path().join(self.started.to_string());
        let mut args = operator_args(&self.server.kubeconfig(), &own, &self.backend.judge_url);
        args.extend(SHORT_LEASE.map(str::to_owned));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (process, line) = Process::start(&args, &own.with_extension("log"));
        self.both.push(Replica { process, metrics: address(&line, "metrics=") });
    }

    /// What was told, oldest first.
    fn events(&self) -> String {
        let columns = "custom-columns=AT:.firstTimestamp,OBJECT:.involvedObject.name,REASON:.reason,TEXT:.message";
        self.server.run(&["get", "events", "-A", "-o", columns, "--sort-by=.metadata.creationTimestamp"], None)
    }

    async fn leads(&self, replica: &Replica) -> bool {
        let asked = self.client.get(format!("{}/metrics", replica.metrics)).send().await;
        let Ok(answer) = asked else { return false };
        answer.text().await.unwrap_or_default().contains("leader_election_master_status{name=\"proxy-operator\"} 1")
    }

    async fn wait(&mut self, what: &str, mut met: impl AsyncFnMut(&mut Self) -> bool) {
        let until = Instant::now() + 2 * PATIENCE;
        while !met(self).await {
            if Instant::now() > until {
                let logs: Vec<_> = self.both.iter().map(|replica| replica.process.log()).collect();
                let tails: Vec<_> = logs.iter().map(|log| &log[log.len().saturating_sub(4000)..]).collect();
                panic!("waited in vain until {what}\n{}\n{:#?}", tails.join("\n---\n"), self.api.list(PROXIES).await);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn make(&self, name: String) {
        let proxy = json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy", "metadata": {"name": name},
            "spec": {"provider": "demo"},
        });
        self.api.create(PROXIES, proxy).await;
    }

    /// The place of the one that leads.
    async fn leader(&mut self) -> usize {
        let mut leader = 0;
        self.wait("one leads", async |r| {
            for at in 0..r.both.len() {
                if r.leads(&r.both[at]).await {
                    leader = at;
                    return true;
                }
            }
            false
        })
        .await;
        leader
    }

    /// Freezes the leader while it makes some Proxies and deletes others, until the other one leads; then it wakes.
    async fn change_leader(&mut self, round: usize) {
        let leader = self.leader().await;
        let before = self.log.changes();
        for number in 0..BATCH {
            self.make(format!("p{round}-{number}")).await;
            if let Some(last) = round.checked_sub(1) {
                self.api.delete(&format!("{PROXIES}/p{last}-{number}")).await;
            }
        }
        self.wait("it is in the midst of it", async |r| r.log.changes() > before + 1).await;
        let frozen = self.both.remove(leader);
        frozen.process.signal("STOP");
        self.wait("the other one leads", async |r| r.leads(&r.both[0]).await).await;
        self.make(format!("p{round}-late")).await;
        frozen.process.signal("CONT");
        // It finds its mandate over and ends, as a container that is started anew.
        let mut frozen = frozen;
        self.wait("the frozen one has ended", async |_| frozen.process.has_ended()).await;
        self.add();
        self.wait("all that is wanted is Ready", async |r| {
            let proxies = r.api.list(PROXIES).await;
            let wanted = |p: &Value| p["metadata"]["deletionTimestamp"].is_null();
            proxies.iter().filter(|p| wanted(p)).all(is_ready)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_frozen_does_nothing_twice_when_it_wakes() {
    let Some(mut replicas) = Replicas::start().await else { return };
    for round in 0..CHANGES_OF_LEADER {
        replicas.change_leader(round).await;
    }
    let lates = CHANGES_OF_LEADER;
    replicas.wait("what was deleted is gone", async |r| r.api.list(PROXIES).await.len() == BATCH + lates).await;
    let machines = replicas.cloud.machines().await;
    for proxy in replicas.api.list(PROXIES).await {
        let uid = &proxy["metadata"]["uid"];
        let its: Vec<_> = machines.iter().filter(|machine| machine["owner"]["proxyUid"] == *uid).collect();
        assert_eq!(its.len(), 1, "{proxy} has {its:?}\n{}", replicas.events());
    }
    assert_eq!(machines.len(), BATCH + lates, "{machines:?}\n{}", replicas.events());
    for (machine, Machine { made, deleted }) in replicas.log.machines.lock().unwrap().iter() {
        assert!(*made <= 1 && *deleted <= 1, "{machine} was made {made} times and deleted {deleted} times");
    }
    replicas.server.run(&["delete", "px", "--all", "--wait=false"], None);
    replicas.wait("nothing is left", async |r| r.api.list(&format!("{GROUP}/proxies")).await.is_empty()).await;
    replicas.wait("no machine is left", async |r| r.cloud.machines().await.is_empty()).await;
    println!("COUNT: {CHANGES_OF_LEADER} leader changes");
}

/// A leader that is asked to stop renews its lease for as long as what it began is under way, and then gives it back.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stops_leads_until_its_calls_have_ended() {
    let Some(mut replicas) = Replicas::start().await else { return };
    let patient = provider_of("demo", "sandbox", &replicas._way.url, "  limits: {callTimeout: 25s}\n");
    replicas.server.run(&["apply", "-f", "-"], Some(&patient));
    let leader = replicas.leader().await;
    replicas
        .wait("the Provider is Ready", async |r| {
            is_ready(&r.api.get(&format!("{GROUP}/providers/demo")).await.unwrap())
        })
        .await;
    replicas.log.gate.send_replace(true);
    replicas.make("slow".into()).await;
    replicas.wait("its create is under way", async |r| r.log.waiting.load(Ordering::SeqCst) == 1).await;
    let mut stopping = replicas.both.remove(leader);
    stopping.process.signal("TERM");

    let lease = "/apis/coordination.k8s.io/v1/namespaces/proxy-operator/leases/proxy-operator";
    let holder = replicas.api.get(lease).await.unwrap()["spec"]["holderIdentity"].clone();
    let mut renewals = std::collections::BTreeSet::new();
    // More of them than its lease is long.
    replicas
        .wait("it renews", async |r| {
            let spec = &r.api.get(lease).await.unwrap()["spec"];
            assert_eq!(spec["holderIdentity"], holder);
            renewals.insert(spec["renewTime"].to_string());
            renewals.len() > 5
        })
        .await;
    assert!(!stopping.process.has_ended() && !replicas.leads(&replicas.both[0]).await);
    replicas.log.gate.send_replace(false);
    replicas.wait("it has ended", async |_| stopping.process.has_ended()).await;
    replicas.wait("the other one leads", async |r| r.leads(&r.both[0]).await).await;
    replicas.wait("its Proxy is Ready", async |r| r.api.list(PROXIES).await.iter().all(is_ready)).await;
    assert!(replicas.log.machines.lock().unwrap().values().all(|machine| machine.made <= 1));
}
