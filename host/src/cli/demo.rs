//! `demo`: the main job on this machine, told step by step. A sandbox cloud, the operator, three proxies, a lease.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use kube::ResourceExt;
use reqwest::Client;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::fleet::{Fleet, Place, Settings};
use super::named::Kind;
use super::plugin_args::PluginArgs;
use super::tables::object_table;
use super::terminal::{bold, coloured};
use super::write_whole;
use crate::model::PROVIDER_SECRET_LABEL;
use crate::model::condition::{find, is_true};
use crate::model::naming::ProxyKey;
use crate::rest::auth::{NewToken, Scope, mint};
use crate::rest::local::Logging;
use crate::sandbox_cloud;

/// No step of the demo takes longer on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);
/// After Ctrl-C.
const TIDY: Duration = Duration::from_secs(5);
const NAMES: [&str; 3] = ["berlin", "lisbon", "oslo"];

/// Show the main job on this machine
#[derive(Args)]
#[command(after_help = "Examples:\n  proxy-operator demo\n  proxy-operator demo --once")]
pub(super) struct DemoArgs {
    /// Tidy up and end, instead of staying up
    #[arg(long)]
    once: bool,
    /// Folder that holds sandbox.wasm [default: plugins beside this program]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Folder for manifests and state, new or empty, and removed at the end [default: a new one under the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) async fn demo(args: DemoArgs, logging: Logging) -> anyhow::Result<()> {
    let dir =
        args.dir.unwrap_or_else(|| std::env::temp_dir().join(format!("proxy-operator-demo-{}", std::process::id())));
    // It is removed at the end.
    let free = fs::read_dir(&dir).map_or(true, |mut entries| entries.next().is_none());
    anyhow::ensure!(free, "--dir {} holds something already: name a folder that is new or empty", dir.display());
    let stop = CancellationToken::new();
    let outcome = {
        let mut story = std::pin::pin!(show(&dir, args.plugin_dir, args.once, logging, &stop));
        tokio::select! {
            outcome = &mut story => outcome,
            () = super::told_to_stop() => {
                // While it stays up it tidies up by itself; a step under way is dropped.
                stop.cancel();
                tokio::time::timeout(TIDY, story).await.unwrap_or(Ok(()))
            }
        }
    };
    stop.cancel();
    // What was made here goes, also when a step failed.
    if let Err(error) = fs::remove_dir_all(&dir) {
        say(&format!("{} is left: {error}", dir.display()));
    }
    outcome
}

async fn show(
    dir: &Path,
    plugin_dir: Option<PathBuf>,
    once: bool,
    logging: Logging,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let plugin_dir = match plugin_dir {
        Some(dir) => dir,
        None => std::env::current_exe()?.with_file_name("plugins"),
    };
    anyhow::ensure!(
        plugin_dir.join("sandbox.wasm").exists(),
        "{} holds no sandbox.wasm: run `make build`, or give --plugin-dir",
        plugin_dir.display()
    );
    let (manifests, data) = (dir.join("manifests"), dir.join("data"));
    fs::create_dir_all(&manifests).with_context(|| manifests.display().to_string())?;

    head("A cloud to make proxies in");
    let cloud_token = uuid::Uuid::new_v4().to_string();
    let localhost = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let cloud = sandbox_cloud::bind(sandbox_cloud::Options::new(localhost, "127.0.0.1", &cloud_token)).await?;
    let (cloud_url, machines) = (format!("http://{}", cloud.local_addr()), cloud.handle());
    let cloud_task = tokio::spawn(cloud.serve(stop.child_token()));
    say(&format!("the sandbox cloud serves its API at {cloud_url}; its machines are real forward proxies"));

    head("The operator, with one provider");
    let NewToken { token, manifest } =
        mint("demo", "default", &[Scope::Read, Scope::Allocate], &["default".into()], None);
    write_whole(&manifests.join("secrets.yaml"), 0o600, &format!("{}---\n{manifest}", cloud_secret(&cloud_token)))?;
    write_whole(&manifests.join("provider.yaml"), 0o644, &provider(&cloud_url))?;
    let fleet = Fleet::start(Settings {
        place: Place::Standalone { manifests: manifests.clone() },
        secret_files: vec![],
        data: data.clone(),
        plugins: PluginArgs { plugin_dir: Some(plugin_dir), ..PluginArgs::default() },
        token_dir: None,
        rest_addr: localhost,
        health_addr: localhost,
        judge_addr: localhost,
        metrics_addr: localhost,
        judge_url: None,
        gc_grace: Duration::from_secs(120),
        gc_dry_run: false,
        logging,
    })
    .await?;
    wait("the provider", || {
        let provider = fleet.store.provider("demo")?;
        let status = provider.status.as_ref()?;
        is_true(&status.conditions, "Ready")
            .then(|| find(&status.conditions, "Ready").map(|c| c.message.clone()))
            .flatten()
    })
    .await
    .map(|message| {
        say(&format!(
            "Provider demo is ready: plugin {message}, a WebAssembly component of {} KB",
            size_of_plugin(&fleet)
        ))
    })?;

    head("Three proxies");
    for name in NAMES {
        write_whole(&manifests.join(format!("{name}.yaml")), 0o644, &proxy(name))?;
    }
    say(&format!("written to {}, as one would `kubectl apply` them:", manifests.display()));
    print!("{}", indent(&proxy(NAMES[0])));
    let started = Instant::now();
    let mut shown = BTreeMap::new();
    let proxies = wait("the proxies", || {
        let proxies: Vec<_> = fleet.store.proxies().iter().map(|p| (**p).clone()).collect();
        for proxy in &proxies {
            let Some(ready) = proxy.status.as_ref().and_then(|s| find(&s.conditions, "Ready")) else { continue };
            if shown.insert(proxy.name_any(), ready.reason.clone()).as_ref() != Some(&ready.reason) {
                println!(
                    "    {:4.1} s  {:8} {:13} {}",
                    started.elapsed().as_secs_f32(),
                    proxy.name_any(),
                    ready.reason,
                    ready.message
                );
            }
        }
        let ready = proxies.iter().filter(|p| p.status.as_ref().is_some_and(|s| is_true(&s.conditions, "Ready")));
        (ready.count() == NAMES.len()).then_some(proxies)
    })
    .await?;
    let shown = proxies.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    print!("{}", indent(&coloured(&object_table(Kind::Proxies, &shown, false).to_string())));
    say(&format!(
        "{} proxies are ready after {:.1} s: made, running, and probed through to the judge",
        proxies.len(),
        started.elapsed().as_secs_f32()
    ));

    head("A lease, as a crawler takes it");
    let rest = format!("http://{}", fleet.rest);
    let client = Client::builder().no_proxy().timeout(Duration::from_secs(30)).build()?;
    say(&format!("POST {rest}/v1/leases {}", json!({"ttlSeconds": 60})));
    let lease = lease(&client, &rest, &token).await?;
    let text = |key: &str| lease.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = lease.pointer("/proxy/name").and_then(Value::as_str).unwrap_or_default();
    say(&format!("lent: {name}, to nobody else until {}", text("expiresAt")));
    say(&format!(
        "url:  {} (its password is in the answer, and nowhere else)",
        text("server").replace("://", &format!("://{}:…@", text("username")))
    ));
    let page = format!("http://{}/", fleet.judge);
    let through =
        Client::builder().proxy(reqwest::Proxy::all(text("url"))?).timeout(Duration::from_secs(10)).build()?;
    let answer = through.get(&page).send().await?.error_for_status()?.text().await?;
    say(&format!("GET {page} through it:"));
    print!("{}", indent(answer.trim_end()));
    println!();
    client.delete(format!("{rest}/v1/leases/{}", text("id"))).bearer_auth(&token).send().await?.error_for_status()?;
    say("released");

    head("Everything is deleted");
    for name in NAMES {
        fleet.store.delete_proxy(&ProxyKey { namespace: "default".into(), name: name.into() }).await?;
    }
    wait("the deletion", || (fleet.store.proxies().is_empty() && machines.instance_count() == 0).then_some(())).await?;
    say(&format!("no Proxy is left, and the cloud holds {} machines", machines.instance_count()));

    if !once {
        stay(&fleet, dir, &manifests, &token)?;
        stop.cancelled().await;
        println!();
    }
    fleet.stop().await;
    stop.cancel();
    cloud_task.await?;
    say("stopped; nothing is left behind");
    Ok(())
}

/// Prints three commands to go on with.
fn stay(fleet: &Fleet, dir: &Path, manifests: &Path, token: &str) -> anyhow::Result<()> {
    let sample = dir.join("more.yaml");
    write_whole(&sample, 0o644, &["tokyo", "lima"].map(proxy).join("---\n"))?;
    let program = std::env::current_exe()?;
    head("It stays up. Three commands to paste into another terminal:");
    println!("  cp {} {}/", sample.display(), manifests.display());
    println!("  {} get proxies --data {}", program.display(), dir.join("data").display());
    println!(
        "  curl -s -H 'Authorization: Bearer {token}' -X POST http://{}/v1/leases -d '{{\"waitSeconds\": 30}}'",
        fleet.rest
    );
    println!("\n  Ctrl-C ends it and removes {}", dir.display());
    Ok(())
}

async fn lease(client: &Client, rest: &str, token: &str) -> anyhow::Result<Value> {
    let body = json!({"ttlSeconds": 60, "waitSeconds": 10}).to_string();
    let answer = client.post(format!("{rest}/v1/leases")).bearer_auth(token).body(body).send().await?;
    let status = answer.status();
    let lease: Value = answer.json().await?;
    anyhow::ensure!(status.is_success(), "no lease: {lease}");
    Ok(lease)
}

/// Waits on a condition, with a deadline that names it.
async fn wait<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(met) = condition() {
            return Ok(met);
        }
        if Instant::now() > until {
            bail!("{what} took over {} s; run again with --log info to see why", PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn size_of_plugin(fleet: &Fleet) -> usize {
    fleet.plugin_size("sandbox").unwrap_or_default().div_ceil(1024)
}

fn cloud_secret(token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: sandbox-cloud\n  labels:\n    {PROVIDER_SECRET_LABEL}: \"true\"\nstringData:\n  token: {token:?}\n"
    )
}

fn provider(cloud: &str) -> String {
    format!(
        "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata:\n  name: demo\nspec:\n  plugin: {{name: sandbox}}\n  connections:\n    cloud:\n      http:\n        baseUrl: {cloud}\n        permit: [loopback]\n        auth:\n          bearer:\n            secretRef: {{name: sandbox-cloud, key: token}}\n  config: {{bootMs: 800}}\n"
    )
}

fn proxy(name: &str) -> String {
    format!(
        "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata:\n  name: {name}\n  namespace: default\nspec:\n  provider: demo\n"
    )
}

fn head(text: &str) {
    println!("\n{}", bold(&format!("■ {text}")));
}

fn say(text: &str) {
    println!("  {text}");
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
