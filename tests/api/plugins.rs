//! Plugins from ConfigMaps: too large for one, several of one name, and what is refused there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use proxy_operator::model::clock::SystemClock;
use proxy_operator::model::mandate::Mandate;
use proxy_operator::plugin::load::LoadError;
use proxy_operator::plugin::registry::{Entry, Registry};
use proxy_operator::store::kubernetes::KubeStore;
use proxy_operator_tests::interceptor::{Asked, Fate, Interceptor, Onlooker};
use proxy_operator_tests::kube_lab::{Lab, cluster, pack, wait_event};
use proxy_operator_tests::plugins::{bytes_of, registry, soon};
use reqwest::StatusCode;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

const HEAD: &str = "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata";

/// `echo` with a section that no compressor makes smaller, so that it takes more than one ConfigMap.
fn large(file: &Path, seed: u8) {
    let mut noise: Vec<u8> = Vec::with_capacity(2 << 20);
    let mut state = u64::from(seed) | 1;
    while noise.len() < 2 << 20 {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend(state.to_le_bytes());
    }
    let mut bytes = bytes_of("echo");
    let body = [&[5][..], b"noise", &noise].concat();
    bytes.push(0);
    let mut len = body.len();
    while len > 0x7f {
        bytes.push((len & 0x7f) as u8 | 0x80);
        len >>= 7;
    }
    bytes.push(len as u8);
    bytes.extend(body);
    std::fs::write(file, bytes).unwrap();
}

fn provider(lab: &Lab, name: &str) {
    lab.api.run(&["apply", "-f", "-"], Some(&format!("{HEAD}: {{name: {name}}}\nspec: {{plugin: {{name: echo}}}}\n")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_in_parts_loads_when_all_are_there_in_whatever_order() {
    let Some(lab) = Lab::start().await else { return };
    provider(&lab, "cut");
    let file = lab.dir.path().join("echo.wasm");
    large(&file, 1);
    let packed = pack(&file);
    let parts: Vec<&str> = packed.split("---\n").skip(1).collect();
    assert!(parts.len() >= 3, "{}", parts.len());
    let apply = |part: &str| lab.api.run(&["apply", "--server-side", "-f", "-"], Some(part));
    for part in parts.iter().skip(1).rev() {
        apply(part);
    }
    let incomplete = LoadError::Parts { of: parts.len() as u32, missing: vec![1] };
    lab.wait_for(&format!("jsonpath={{.status.conditions[0].reason}}={}", incomplete.reason()), "pxp/cut");
    let message = || lab.api.run(&["get", "pxp", "cut", "-o", "jsonpath={.status.conditions[0].message}"], None);
    assert!(message().contains(&incomplete.to_string()), "{}", message());
    apply(parts[0]);
    lab.wait_for("condition=Ready", "pxp/cut");
    let digest = || lab.api.run(&["get", "pxp", "cut", "-o", "jsonpath={.status.plugin.digest}"], None);
    let first = digest();

    // The next version: while its parts come in, the old one serves.
    large(&file, 3);
    let packed = pack(&file);
    let next: Vec<&str> = packed.split("---\n").skip(1).collect();
    apply(next[0]);
    lab.wait_for("jsonpath={.status.conditions[0].reason}=PluginIncomplete", "pxp/cut");
    assert!(message().contains("goes on serving"), "{}", message());
    assert_eq!(digest(), first);
    for part in &next[1..] {
        apply(part);
    }
    lab.wait_for("jsonpath={.status.conditions[0].reason}=Ready", "pxp/cut");
    assert_ne!(digest(), first);
    // In use they stay, each part of them, until their last user goes.
    let plugins = ["configmap", "-n", "proxy-operator", "-l", "crawl.example.com/plugin=true"];
    let delete = [&["delete", "--wait=false"][..], &plugins].concat();
    lab.api.run(&delete, None);
    lab.wait_for("condition=Ready", "pxp/cut");
    let left = || lab.api.run(&[&["get", "-o", "name"][..], &plugins].concat(), None);
    assert_eq!(left().lines().count(), next.len());
    lab.api.run(&["delete", "pxp", "cut", "--timeout=60s"], None);
    lab.api.run(&[&["wait", "--for=delete", "--timeout=60s"][..], &plugins].concat(), None);
    assert_eq!(left(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_serve_is_shown_and_native_code_refused_for_what_it_is() {
    let Some(lab) = Lab::start().await else { return };
    provider(&lab, "two");
    let file = lab.dir.path().join("echo.wasm");
    std::fs::write(&file, bytes_of("echo")).unwrap();
    let manifest = pack(&file);
    lab.api.run(&["apply", "--server-side", "-f", "-"], Some(&manifest));
    lab.wait_for("condition=Ready", "pxp/two");
    lab.api
        .run(&["apply", "--server-side", "-f", "-"], Some(&manifest.replace("name: plugin-echo", "name: release-2")));
    let source = "jsonpath={.status.plugin.source} {.status.plugin.shadowed}";
    lab.wait_for("jsonpath={.status.plugin.shadowed}", "pxp/two");
    let shown = lab.api.run(&["get", "pxp", "two", "-o", source], None);
    assert!(shown.contains("proxy-operator/plugin-echo") && shown.contains("proxy-operator/release-2"), "{shown}");

    let native = manifest.replace("name: plugin-echo", "name: native").replace("echo.wasm:", "echo.cwasm:");
    lab.api.run(&["apply", "--server-side", "-f", "-"], Some(&native));
    lab.wait_event("proxy-operator", "PluginRefused", "native", "runs outside of the sandbox");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_in_use_that_loses_its_label_can_be_deleted() {
    let Some(lab) = Lab::start().await else { return };
    provider(&lab, "user");
    let file = lab.dir.path().join("echo.wasm");
    std::fs::write(&file, bytes_of("echo")).unwrap();
    lab.api.run(&["apply", "--server-side", "-f", "-"], Some(&pack(&file)));
    lab.wait_for("condition=Ready", "pxp/user");
    let plugin = ["configmap", "plugin-echo", "-n", "proxy-operator"];
    let held = [&["wait", "--timeout=60s", "--for=jsonpath={.metadata.finalizers}"][..], &plugin].concat();
    lab.api.run(&held, None);
    lab.api.run(&[&["label"][..], &plugin, &["crawl.example.com/plugin-"]].concat(), None);
    lab.wait_for("condition=Ready=false", "pxp/user");
    lab.api.run(&[&["delete", "--timeout=60s"][..], &plugin].concat(), None);
}

/// Hands out no ConfigMap until it was asked for it so often.
#[derive(Default)]
struct Unwilling(Mutex<BTreeMap<String, u32>>);

const REFUSALS: u32 = 2;

#[async_trait]
impl Onlooker for Unwilling {
    async fn asked(&self, asked: &Asked) -> Fate {
        let Some(name) = asked.path.strip_prefix("/api/v1/namespaces/proxy-operator/configmaps/plugin-") else {
            return Fate::Passes;
        };
        let mut all = self.0.lock().unwrap();
        let times = all.entry(name.to_owned()).or_default();
        *times += 1;
        if *times > REFUSALS { Fate::Passes } else { Fate::Fails }
    }

    async fn answered(&self, _: &Asked, _: StatusCode, _: &Value) -> Fate {
        Fate::Passes
    }
}

/// Follows the plugins of a cluster as the operator does.
async fn follow(url: &str) -> (Arc<Registry>, AbortOnDropHandle<()>) {
    let config = kube::Config::new(url.parse().expect("a URL"));
    let (clock, mandate) = (Arc::new(SystemClock::default()), Arc::new(Mandate::always()));
    let store = KubeStore::connect(config, "proxy-operator", None, vec![], clock, mandate).await.expect("it connects");
    let registry = registry();
    let following = tokio::spawn(store.watch_plugins(registry.clone()));
    (registry, AbortOnDropHandle::new(following))
}

/// The plugin `echo`, once it is as it should be.
async fn echo_when(registry: &Registry, what: &str, holds: impl Fn(&Entry) -> bool) -> Entry {
    let mut changes = registry.subscribe();
    soon(what, async {
        loop {
            let entry = registry.get("echo");
            if holds(&entry) {
                return entry;
            }
            changes.changed().await.expect("the registry lives");
        }
    })
    .await
}

/// It was looked at again when it changed, which a plugin seldom does.
#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_that_could_not_be_fetched_is_fetched_again() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(api) = cluster() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("echo.wasm");
    large(&file, 1);
    let unwilling = Arc::new(Unwilling::default());
    let way = Interceptor::start(&api.url(), Some(&api.token()), unwilling.clone()).await;
    let (registry, _following) = follow(&way.url).await;
    let packed = pack(&file);
    api.run(&["apply", "--server-side", "-f", "-"], Some(&packed));
    echo_when(&registry, "the plugin", |echo| echo.current.is_some()).await;
    let asked = unwilling.0.lock().unwrap();
    assert!(asked.len() >= 3 && asked.values().all(|times| *times > REFUSALS), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_parts_that_are_there_twice_one_is_taken_and_the_other_told_of_and_kept_in_reserve() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(api) = cluster() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("echo.wasm");
    large(&file, 1);
    let way = Interceptor::start(&api.url(), Some(&api.token()), Arc::new(Open)).await;
    let (registry, _following) = follow(&way.url).await;
    let packed = pack(&file);
    api.run(&["apply", "--server-side", "-f", "-"], Some(&packed));
    let from = |name: &'static str| {
        move |echo: &Entry| {
            let source = echo.source.as_ref().map(ToString::to_string);
            echo.current.is_some() && source.as_deref() == Some(&format!("ConfigMap proxy-operator/{name}"))
        }
    };
    echo_when(&registry, "the plugin", from("plugin-echo-1")).await;
    // Younger, or as young and before it by name.
    let copy = packed.replace("name: plugin-echo-", "name: a-copy-");
    api.run(&["apply", "--server-side", "-f", "-"], Some(&copy));
    let echo = echo_when(&registry, "its copy", from("a-copy-1")).await;
    assert_eq!(echo.shadowed, []);
    wait_event(&api, "proxy-operator", "PluginTwice", "plugin-echo-1", "ConfigMap a-copy-1 has it too and goes first");

    api.run(&["-n", "proxy-operator", "delete", "configmap", "a-copy-1"], None);
    echo_when(&registry, "the one in reserve", from("plugin-echo-1")).await;
}

/// Lets everything pass.
struct Open;

#[async_trait]
impl Onlooker for Open {
    async fn asked(&self, _: &Asked) -> Fate {
        Fate::Passes
    }

    async fn answered(&self, _: &Asked, _: StatusCode, _: &Value) -> Fate {
        Fate::Passes
    }
}
