//! A steady fleet writes nothing, though it is probed and listed all the time.

use std::time::{Duration, Instant};

use proxy_operator_tests::apiserver::ApiServer;
use proxy_operator_tests::backend::Backend;
use proxy_operator_tests::kube_api::{GROUP, KubeApi, is_ready};
use proxy_operator_tests::kube_lab::{cluster_with, operator_args, provider_of};
use proxy_operator_tests::process::{PATIENCE, Process};
use serde_json::{Value, json};

const PROXIES: usize = 200;
/// One would be full with them, and its Provider would say so a minute later.
const CLOUDS: usize = 2;
/// Each Proxy is probed twice in it, and the backend listed once.
const QUIET: Duration = Duration::from_secs(60);
/// Nothing was written for so long: all that a change brings with it is over.
const SETTLED: Duration = Duration::from_secs(5);

/// The changes that were asked for, but for the elections'.
fn changes(server: &ApiServer) -> Vec<Value> {
    let mut changes = server.changes();
    changes.retain(|change| change["objectRef"]["resource"] != "leases");
    changes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steady_fleet_writes_nothing() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(server) = cluster_with(&["sandbox"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let backends: Vec<Backend> = (0..CLOUDS)
        .map(|cloud| {
            let own = dir.path().join(format!("cloud-{cloud}"));
            std::fs::create_dir(&own).unwrap();
            Backend::start(&own)
        })
        .collect();
    let args = operator_args(&server.kubeconfig(), &dir.path().join("data"), &backends[0].judge_url);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (operator, _) = Process::start(&args, &dir.path().join("operator.log"));
    let api = KubeApi::of(&server);
    // Before their Providers, so that each counts its own at its first look.
    for number in 0..PROXIES {
        let proxy = json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy", "metadata": {"name": format!("p{number}")},
            "spec": {"provider": format!("cloud-{}", number % CLOUDS)},
        });
        api.create(&format!("{GROUP}/namespaces/default/proxies"), proxy).await;
    }
    for (cloud, backend) in backends.iter().enumerate() {
        let provider = provider_of(&format!("cloud-{cloud}"), "sandbox", &backend.cloud_url, "");
        server.run(&["apply", "-f", "-"], Some(&provider));
    }

    let until = Instant::now() + 4 * PATIENCE;
    loop {
        let ready = api.list(&format!("{GROUP}/proxies")).await.iter().filter(|proxy| is_ready(proxy)).count();
        if ready == PROXIES {
            break;
        }
        assert!(Instant::now() < until, "{ready} of {PROXIES} are Ready:\n{}", operator.log());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let (mut before, mut since) = (changes(&server).len(), Instant::now());
    while since.elapsed() < SETTLED {
        assert!(Instant::now() < until, "it does not settle: {:#?}", changes(&server).last());
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = changes(&server).len();
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    tokio::time::sleep(QUIET).await;
    let after = changes(&server);
    assert!(after.len() == before, "{} changes in {QUIET:?}: {:#?}", after.len() - before, &after[before..]);
    assert!(server.changes().len() > after.len(), "the audit log has the election's");
}
