//! Ten thousand Proxies in one operator inside 128 MiB: all of them become Ready, also after a restart, and then nothing is
//! written, though they are probed and listed all the time.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use proxy_operator_tests::apiserver::ApiServer;
use proxy_operator_tests::backend::Backend;
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
/// Requests at once with which they are made.
const AT_ONCE: usize = 16;
/// For all of them to be made and to become Ready.
const SETTLES: Duration = Duration::from_secs(900);
/// Each Proxy is probed twice in it, and each backend listed once.
const QUIET: Duration = Duration::from_secs(60);
/// Nothing was written for so long: all that a change brings with it is over.
const SETTLED: Duration = Duration::from_secs(5);

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

    async fn make(&self, api: &KubeApi) {
        let proxy = |number: usize| {
            json!({
                "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy", "metadata": {"name": format!("p{number}")},
                "spec": {"provider": format!("cloud-{}", number % CLOUDS)},
            })
        };
        let path = format!("{GROUP}/namespaces/default/proxies");
        let made = stream::iter(0..proxies()).map(|number| api.create(&path, proxy(number)));
        made.buffer_unordered(AT_ONCE).for_each(|_| std::future::ready(())).await;
    }

    /// Until every Proxy is Ready for this operator, as its own figures have it.
    async fn wait_ready(&self, operator: &mut Process, metrics: &str) -> Duration {
        let began = Instant::now();
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        loop {
            let page = client.get(format!("{metrics}/metrics")).send().await.unwrap().text().await.unwrap();
            let series = "proxy_operator_proxies{";
            let ready = page.lines().filter(|l| l.starts_with(series) && l.contains("ready=\"true\""));
            let ready: f64 = ready.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum();
            if ready as usize == proxies() {
                return began.elapsed();
            }
            assert!(!operator.has_ended(), "it ended with {} kills:\n{}", self.group.kills(), tail(&operator.log()));
            assert!(began.elapsed() < SETTLES, "{ready} are Ready:\n{}", tail(&operator.log()));
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
    let Some(fleet) = Fleet::start() else { return };
    let api = KubeApi::of(&fleet.server);
    // Before their Providers, so that each counts its own at its first look.
    fleet.make(&api).await;
    let (mut operator, metrics) = fleet.operator();
    for (cloud, backend) in fleet.backends.iter().enumerate() {
        let provider =
            provider_of(&format!("cloud-{cloud}"), "sandbox", &backend.cloud_url, "  limits: {concurrentCalls: 16}\n");
        fleet.server.run(&["apply", "-f", "-"], Some(&provider));
    }
    let made = fleet.wait_ready(&mut operator, &metrics).await;
    println!("made in {made:?}, peak {} MiB", fleet.group.peak() >> 20);
    fleet.wait_settled().await;
    println!("written: {:?}", by_kind(&changes(&fleet.server)));
    operator.stop();

    let (mut operator, metrics) = fleet.operator();
    let settled = fleet.wait_ready(&mut operator, &metrics).await;
    println!("settled after a restart in {settled:?}, peak {} MiB", fleet.group.peak() >> 20);
    let before = fleet.wait_settled().await;
    tokio::time::sleep(QUIET).await;
    let after = changes(&fleet.server);
    assert!(after.len() == before, "{} changes in {QUIET:?}: {:#?}", after.len() - before, &after[before..]);
    assert!(fleet.server.changes().len() > after.len(), "the audit log has the election's");
    let there = api.list(&format!("{GROUP}/proxies")).await;
    assert_eq!(there.iter().filter(|proxy| is_ready(proxy)).count(), proxies());
    assert_eq!(fleet.group.kills(), 0);
    println!("COUNT: {} Proxies, at most {} of {} MiB", proxies(), fleet.group.peak() >> 20, LIMIT >> 20);
    operator.stop();
}
