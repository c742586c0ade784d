//! Plugins from ConfigMaps: too large for one, several of one name, and what is refused there.

use std::path::Path;

use proxy_operator_tests::kube_lab::{Lab, pack};
use proxy_operator_tests::plugins::bytes_of;

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
    lab.wait_for("jsonpath={.status.conditions[0].reason}=PluginIncomplete", "pxp/cut");
    let message = || lab.api.run(&["get", "pxp", "cut", "-o", "jsonpath={.status.conditions[0].message}"], None);
    assert!(message().contains("and 1 is missing; apply all of them"), "{}", message());
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
