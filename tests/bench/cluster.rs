//! With Kubernetes as the store: how soon what is applied begins to work.

use std::time::{Duration, Instant};

use proxy_operator_tests::kube_api::{GROUP, KubeApi, condition};
use proxy_operator_tests::kube_lab::{Lab, pack};
use proxy_operator_tests::process::PATIENCE;
use proxy_operator_tests::root;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::table::{Table, Target, millis, quantile};

const TIMES: usize = 9;
const PLUGINS: &str = "/api/v1/namespaces/proxy-operator/configmaps";

/// Until the condition `Ready` of the Provider is this.
async fn provider(api: &KubeApi, status: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let provider = api.get(&format!("{GROUP}/providers/demo")).await.expect("the Provider");
        if condition(&provider, "Ready")["status"] == status {
            return;
        }
        assert!(Instant::now() < until, "{provider}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A way to the cloud that tells when a create passes.
async fn listening_in(cloud: String) -> (String, mpsc::UnboundedReceiver<Instant>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (seen, creates) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((inward, _)) = listener.accept().await {
            let Ok(outward) = TcpStream::connect(&cloud).await else { return };
            let seen = seen.clone();
            let ((mut from, mut back), (mut answers, mut to)) = (inward.into_split(), outward.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = from.read(&mut buffer).await {
                    if buffer.starts_with(b"PUT ") {
                        let _ = seen.send(Instant::now());
                    }
                    if to.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (format!("http://{address}"), creates)
}

pub async fn measure(table: &mut Table) {
    let Some(lab) = Lab::start().await else { return };
    let (way, mut creates) = listening_in(lab.cloud_url().trim_start_matches("http://").to_owned()).await;
    lab.api.run(&["apply", "-f", "-"], Some(&lab.provider().replace(lab.cloud_url(), &way)));
    let api = KubeApi::of(&lab.api);
    let plugin: String = lab.api.run(
        &["create", "--dry-run=client", "-o", "json", "-f", "-"],
        Some(&pack(&root().join("bin/plugins/sandbox.wasm"))),
    );
    let plugin: Value = serde_json::from_str(&plugin).expect("JSON");

    let mut loads = Vec::new();
    for _ in 0..TIMES {
        provider(&api, "False").await;
        let applied = Instant::now();
        api.create(PLUGINS, plugin.clone()).await;
        provider(&api, "True").await;
        loads.push(applied.elapsed());
        api.delete(&format!("{PLUGINS}/plugin-sandbox")).await;
    }
    provider(&api, "False").await;
    api.create(PLUGINS, plugin).await;
    provider(&api, "True").await;
    table.row("plugin ConfigMap applied until Provider Ready, first", millis(loads[0]), "ms", Target::Under(1000.0));
    table.row("  again, from the cache", millis(quantile(&mut loads[1..], 0.5)), "ms", Target::Under(1000.0));

    let proxies = format!("{GROUP}/namespaces/default/proxies");
    let mut calls = Vec::new();
    for turn in 0..TIMES {
        let proxy = json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy",
            "metadata": {"name": format!("p{turn}")}, "spec": {"provider": "demo"},
        });
        let applied = Instant::now();
        api.create(&proxies, proxy).await;
        let create = tokio::time::timeout(PATIENCE, creates.recv()).await;
        calls.push(create.expect("a create in time").expect("the way is open") - applied);
    }
    // Validate and place come before; the create is what leaves the operator first.
    table.row("Proxy applied until its create leaves", millis(quantile(&mut calls, 0.5)), "ms", Target::Under(200.0));
}
