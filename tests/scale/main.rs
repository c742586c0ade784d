//! Ten thousand Proxies in one operator inside 128 MiB: a new leader takes them over as they are, and nothing is written,
//! though they are probed and listed all the time.

mod seed;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use proxy_operator_tests::apiserver::ApiServer;
use proxy_operator_tests::backend::{Backend, CloudApi};
use proxy_operator_tests::cgroup::Group;
use proxy_operator_tests::kube_api::{GROUP, KubeApi, is_ready};
use proxy_operator_tests::kube_lab::{address, cluster_with, operator_args, provider_of};
use proxy_operator_tests::process::{PATIENCE, Process};
use serde_json::{Value, json};

/// `SCALE_PROXIES` sets another number.
const PROXIES: usize = 10_000;
/// Each is a process, which has so many ports.
const CLOUDS: usize = 4;
const LIMIT: u64 = 128 << 20;
/// For all of them to be taken over.
const SETTLES: Duration = Duration::from_secs(300);
/// For all of those that come at once to be made.
const FRESH: Duration = Duration::from_secs(900);
/// Each Proxy is probed twice in it, and each backend listed once.
const QUIET: Duration = Duration::from_secs(60);
/// Each test takes the whole machine.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
/// Nothing was written for so long: all that a change brings with it is over.
const SETTLED: Duration = Duration::from_secs(5);

/// `SCALE_INTERVAL` sets another time between probes: how much of the work is theirs.
fn interval() -> String {
    std::env::var("SCALE_INTERVAL").unwrap_or_else(|_| "30s".into())
}

fn proxies() -> usize {
    std::env::var("SCALE_PROXIES").ok().and_then(|n| n.parse().ok()).unwrap_or(PROXIES)
}

/// The changes that were asked for, but for the elections'.
fn changes(server: &ApiServer) -> Vec<Value> {
    let mut changes = server.changes();
    changes.retain(|change| change["objectRef"]["resource"] != "leases");
    changes
}

struct Fleet {
    group: Group,
    server: ApiServer,
    backends: Vec<Backend>,
    dir: tempfile::TempDir,
}

impl Fleet {
    fn start() -> Option<Self> {
        let group = Group::make(LIMIT)?;
        let server = cluster_with(&["sandbox"])?;
        let dir = tempfile::tempdir().unwrap();
        let capacity = proxies().to_string();
        let mk_backend = |cloud: usize| {
            let own = dir.path().join(format!("cloud-{cloud}"));
            std::fs::create_dir(&own).unwrap();
            Backend::start_with(&own, &["--capacity", &capacity])
        };
        let backends = (0..CLOUDS).map(mk_backend).collect();
        Some(Self { group, server, backends, dir })
    }

    /// An operator in the group, and the address of its metrics.
    fn operator(&self) -> (Process, String) {
        let data = self.dir.path().join("data");
        let mut args = operator_args(&self.server.kubeconfig(), &data, &self.backends[0].judge_url);
        args[1] = "info".into();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let log: &Path = &self.dir.path().join("operator.log");
        let (operator, line) = Process::start_in(Some(self.group.path()), &args, log);
        (operator, address(&line, "metrics="))
    }

    /// Makes one Proxy for each cloud, and then all the others like it.
    async fn fill(&self, api: &KubeApi) {
        let (operator, _) = self.operator();
        for (cloud, backend) in self.backends.iter().enumerate() {
            let provider = provider_of(&format!("cloud-{cloud}"), "sandbox", &backend.cloud_url, "");
            self.server.run(&["apply", "-f", "-"], Some(&provider));
            let proxy = json!({
                "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy", "metadata": {"name": format!("p{cloud}")},
                "spec": {"provider": format!("cloud-{cloud}"), "healthCheck": {"interval": interval()}},
            });
            api.create(&format!("{GROUP}/namespaces/default/proxies"), proxy).await;
        }
        self.server.run(&["wait", "proxies", "--all", "--for=condition=Ready", "--timeout=60s"], None);
        operator.stop();
        let clouds: Vec<CloudApi> = self.backends.iter().map(Backend::api).collect();
        let (key, judge) = (seed::login_key(api).await, &self.backends[0].judge_url);
        for (template, cloud) in seed::templates(api, &clouds).await.iter().zip(&clouds) {
            let more = seed::multiply(template, cloud, &key, judge, proxies() / CLOUDS - 1).await;
            seed::store(&self.server, &more).await;
        }
    }

    /// Until this operator has looked at every Proxy and probed it.
    async fn wait_taken_over(&self, operator: &mut Process, metrics: &str) -> Duration {
        let began = Instant::now();
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        loop {
            let page = client.get(format!("{metrics}/metrics")).send().await.unwrap().text().await.unwrap();
            let figure = |series: &str| {
                let of_it =
                    page.lines().filter_map(|line| line.strip_prefix(series)?.rsplit(' ').next()?.parse::<f64>().ok());
                of_it.sum::<f64>() as usize
            };
            let looked_at = figure("controller_runtime_reconcile_total{controller=\"proxy\"");
            let probed = figure("proxy_operator_probes_total{outcome=\"pass\"");
            let waiting = figure("workqueue_depth{name=\"proxy\"");
            if looked_at.min(probed) >= proxies() && waiting == 0 {
                return began.elapsed();
            }
            let so_far = format!("{looked_at} passes, {probed} probes, {waiting} wait");
            assert!(
                !operator.has_ended(),
                "it ended with {} kills: {so_far}\n{}",
                self.group.kills(),
                tail(&operator.log())
            );
            assert!(began.elapsed() < SETTLES, "{so_far}:\n{}", tail(&operator.log()));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Until nothing was written for a while.
    async fn wait_settled(&self) -> usize {
        let until = Instant::now() + SETTLES;
        let (mut before, mut since) = (changes(&self.server).len(), Instant::now());
        while since.elapsed() < SETTLED {
            assert!(Instant::now() < until, "it does not settle: {:#?}", changes(&self.server).last());
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = changes(&self.server).len();
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
        before
    }
}

fn tail(log: &str) -> &str {
    &log[log.len().saturating_sub(4000)..]
}

/// What was changed how often.
fn by_kind(changes: &[Value]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for change in changes {
        let of = &change["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        *kinds.entry([&change["verb"], &of["resource"], &of["subresource"]].map(text).join(" ")).or_default() += 1;
    }
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_proxies_fit_into_128_mib_and_are_quiet_when_they_are_steady() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let _turn = TURN.lock().await;
    let Some(fleet) = Fleet::start() else { return };
    let api = KubeApi::of(&fleet.server);
    fleet.fill(&api).await;
    println!("{} Proxies are there", proxies());
    let at_rest = changes(&fleet.server).len();
    let (mut operator, metrics) = fleet.operator();
    let settled = fleet.wait_taken_over(&mut operator, &metrics).await;
    println!("settled in {settled:?}, peak {} MiB", fleet.group.peak() >> 20);
    let before = fleet.wait_settled().await;
    let taken_over = by_kind(&changes(&fleet.server)[at_rest..]);
    println!("written meanwhile: {taken_over:?}");
    assert!(!taken_over.keys().any(|kind| kind.contains("proxies")), "they are taken over as they are");
    let busy = operator.cpu_time();
    tokio::time::sleep(QUIET).await;
    let busy = operator.cpu_time() - busy;
    println!("busy for {busy:?} of {QUIET:?}");
    let after = changes(&fleet.server);
    assert!(after.len() == before, "{} changes in {QUIET:?}: {:#?}", after.len() - before, &after[before..]);
    assert!(fleet.server.changes().len() > after.len(), "the audit log has the election's");
    let there = api.list(&format!("{GROUP}/proxies")).await;
    assert_eq!(there.iter().filter(|proxy| is_ready(proxy)).count(), proxies());
    assert_eq!(fleet.group.kills(), 0);
    secrets_are_read_by_name(&fleet.server);
    println!("COUNT: {} Proxies, at most {} of {} MiB", proxies(), fleet.group.peak() >> 20, LIMIT >> 20);
    operator.stop();
}

/// Lists are of the operator's own namespace, and of those alone that carry a label of it: API tokens, and the metadata of
/// what Providers name, which says when it changes.
fn secrets_are_read_by_name(server: &ApiServer) {
    let looks = server.looks_at_secrets();
    assert!(looks.iter().any(|look| look["verb"] == "get" && look["objectRef"]["name"] == "cloud"), "{looks:#?}");
    for look in looks.iter().filter(|look| look["verb"] != "get") {
        let uri = look["requestURI"].as_str().unwrap_or_default();
        let own = uri.starts_with("/api/v1/namespaces/proxy-operator/secrets?");
        let labelled = |label: &str| uri.contains(&format!("labelSelector=crawl.example.com%2F{label}%3Dtrue"));
        assert!(own && (labelled("api-token") || labelled("provider-secret")), "{look:#}");
    }
}

/// `SCALE_FRESH` sets another number.
#[tokio::test(flavor = "multi_thread")]
async fn proxies_that_come_at_once_are_made_within_128_mib() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let _turn = TURN.lock().await;
    let number = std::env::var("SCALE_FRESH").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let Some(fleet) = Fleet::start() else { return };
    let api = KubeApi::of(&fleet.server);
    for (cloud, backend) in fleet.backends.iter().enumerate() {
        let provider = provider_of(&format!("cloud-{cloud}"), "sandbox", &backend.cloud_url, "");
        fleet.server.run(&["apply", "-f", "-"], Some(&provider));
    }
    let fresh = |n: usize| {
        json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy", "metadata": {"name": format!("p{n}")},
            "spec": {"provider": format!("cloud-{}", n % CLOUDS), "healthCheck": {"interval": interval()}},
        })
    };
    let path = format!("{GROUP}/namespaces/default/proxies");
    let created = stream::iter((0..number).map(|n| api.create(&path, fresh(n))));
    created.buffer_unordered(32).for_each(|_| std::future::ready(())).await;
    let (mut operator, metrics) = fleet.operator();
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let began = Instant::now();
    loop {
        let page = client.get(format!("{metrics}/metrics")).send().await.unwrap().text().await.unwrap();
        let of_it = |line: &str| line.starts_with("proxy_operator_proxies{") && line.contains("ready=\"true\"");
        let counts =
            page.lines().filter(|line| of_it(line)).filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
        let ready: usize = counts.sum();
        if ready == number {
            break;
        }
        let so_far =
            format!("{ready} of {number} are Ready, {} kills, {} MiB", fleet.group.kills(), fleet.group.peak() >> 20);
        assert!(!operator.has_ended(), "it ended: {so_far}\n{}", tail(&operator.log()));
        assert!(began.elapsed() < FRESH, "{so_far}:\n{}", tail(&operator.log()));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(fleet.group.kills(), 0);
    println!("COUNT: {number} Proxies made in {:?}, at most {} MiB", began.elapsed(), fleet.group.peak() >> 20);
    operator.stop();
}
