//! The CRDs: accepted, explained, defaulted, and strict.

use proxy_operator::model::manifest::{crds, parse};
use proxy_operator_tests::apiserver::{ApiServer, manifests};
use proxy_operator_tests::{examples, root};
use serde_json::Value;

const PROXY: &str = "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: a, namespace: default}\nspec: {provider: demo}\n";

/// Every field below a schema, by its path, that has no description.
fn undescribed(schema: &Value, path: &str, found: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let below = format!("{path}.{name}");
        if field["description"].as_str().is_none_or(str::is_empty) {
            found.push(below.clone());
        }
        undescribed(field, &below, found);
    }
    for inner in [&schema["items"], &schema["additionalProperties"]] {
        if inner.is_object() {
            undescribed(inner, &format!("{path}[]"), found);
        }
    }
}

#[test]
fn every_field_is_described() {
    for crd in crds() {
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let mut found = Vec::new();
        undescribed(&schema["spec"], "spec", &mut found);
        undescribed(&schema["status"], "status", &mut found);
        assert!(found.is_empty(), "{}: {}", crd["metadata"]["name"], found.join(" "));
    }
}

#[test]
fn kubectl_knows_explains_and_lists_our_objects() {
    let Some(api) = ApiServer::start() else { return };
    api.apply_crds();
    api.run(&["apply", "-f", "-"], Some(PROXY));
    let explained = api.run(&["explain", "px.spec", "--recursive"], None);
    for field in ["provider", "healthCheck", "failAfter", "publishSecret", "drainTimeout"] {
        assert!(explained.contains(field), "{field}: {explained}");
    }
    assert!(api.run(&["explain", "pxp.spec.connections.http"], None).contains("Scheme, host, port and path prefix"));
    let header =
        |args: &[&str]| api.run(args, None).lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(header(&["get", "px"]), "NAME READY PROVIDER ADDRESS REASON AGE");
    assert_eq!(
        header(&["get", "px", "-o", "wide"]),
        "NAME READY PROVIDER ADDRESS REASON AGE PROVIDER-ID IMAGE UP-TO-DATE PAUSED"
    );
    assert!(api.run(&["get", "crawl", "-o", "name"], None).contains("proxy.crawl.example.com/a"));
    assert!(api.run(&["describe", "px", "a"], None).contains("Fail After:"));
    // Applied again, nothing changes.
    assert!(api.run(&["apply", "-f", "-"], Some(PROXY)).contains("unchanged"));
    let crds = std::process::Command::new(proxy_operator_tests::binary()).arg("crd").output().unwrap().stdout;
    let before = api.run(&["get", "crd", "proxies.crawl.example.com", "-o", "jsonpath={.metadata.generation}"], None);
    api.run(&["apply", "--server-side", "-f", "-"], Some(&String::from_utf8(crds).unwrap()));
    assert_eq!(
        api.run(&["get", "crd", "proxies.crawl.example.com", "-o", "jsonpath={.metadata.generation}"], None),
        before
    );
}

#[test]
fn defaults_are_visible_and_the_same_as_standalone() {
    let Some(api) = ApiServer::start() else { return };
    api.apply_crds();
    api.run(&["apply", "--server-side", "--field-manager=somebody", "-f", "-"], Some(PROXY));
    let stored: Value = serde_json::from_str(&api.run(&["get", "px", "a", "-o", "json"], None)).unwrap();
    let ours = match parse(PROXY).unwrap().remove(0) {
        proxy_operator::model::manifest::Manifest::Proxy(proxy) => serde_json::to_value(&proxy.spec).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(stored["spec"], ours);
    let refused = api.refused(&["patch", "px", "a", "--type=merge", "-p", r#"{"spec":{"provider":"other"}}"#], None);
    assert!(refused.contains("provider cannot be changed: delete the Proxy and create it anew"), "{refused}");
    // Status is the operator's: a user who writes it writes nothing.
    api.run(&["patch", "px", "a", "--type=merge", "-p", r#"{"status":{"rebuilds":7}}"#], None);
    assert_eq!(api.run(&["get", "px", "a", "-o", "jsonpath={.status}"], None), "");
    let provider = "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: demo}\nspec: {plugin: {name: sandbox}}\n";
    api.run(&["apply", "-f", "-"], Some(provider));
    let refused =
        api.refused(&["patch", "pxp", "demo", "--type=merge", "-p", r#"{"spec":{"plugin":{"name":"other"}}}"#], None);
    assert!(refused.contains("the plugin's name cannot be changed"), "{refused}");
}

#[test]
fn bad_manifests_are_refused_with_the_same_care_by_both() {
    let Some(api) = ApiServer::start() else { return };
    api.apply_crds();
    let all = manifests(&root().join("tests/api/bad"));
    assert!(all.len() >= 20);
    for (file, text) in all {
        let says = |who: &str| {
            let line = text
                .lines()
                .find_map(|l| l.strip_prefix(&format!("# {who} says: ")))
                .unwrap_or_else(|| panic!("{file}"));
            line.to_owned()
        };
        let refused = api.refused(&["apply", "--dry-run=server", "-f", "-"], Some(&text));
        assert!(refused.contains(&says("kubectl")), "{file}: {refused}");
        let refused = parse(&text).unwrap_err().to_string();
        assert!(refused.contains(&says("standalone")), "{file}: {refused}");
    }
    assert_eq!(api.run(&["get", "px,pxp", "-A"], None), "", "nothing was stored");
}

#[test]
fn the_samples_are_accepted() {
    let Some(api) = ApiServer::start() else { return };
    api.apply_crds();
    for (file, text) in manifests(&root().join("deploy/samples/standalone")) {
        api.run(&["apply", "-f", "-"], Some(&text));
        parse(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
    for example in examples("connections.md") {
        api.run(&["apply", "--dry-run=server", "-f", "-"], Some(&example));
    }
}

#[test]
fn the_doctor_says_what_a_cluster_lacks() {
    let Some(api) = ApiServer::start() else { return };
    let look = || {
        let mut command = std::process::Command::new(proxy_operator_tests::binary());
        let output = command.args(["doctor", "--kubeconfig"]).arg(api.kubeconfig()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (status, bare) = look();
    assert_eq!(status, Some(1), "{bare}");
    for says in
        ["proxies.crawl.example.com", "proxy-operator crd | kubectl apply", "kubectl create namespace proxy-operator"]
    {
        assert!(bare.contains(says), "{says}\n{bare}");
    }
    api.apply_crds();
    api.run(&["create", "namespace", "proxy-operator"], None);
    let (status, empty) = look();
    assert_eq!(status, Some(0), "{empty}");
    assert!(empty.contains("nothing is wrong") && empty.contains("there is no Provider"), "{empty}");
    api.run(&["apply", "-f", "-"], Some(PROXY));
    let lease = "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: proxy-operator, namespace: proxy-operator}\nspec: {holderIdentity: pod-1, leaseDurationSeconds: 15, renewTime: \"2020-01-01T00:00:00.000000Z\"}\n";
    api.run(&["apply", "-f", "-"], Some(lease));
    let (status, silent) = look();
    assert_eq!(status, Some(1), "{silent}");
    assert!(silent.contains("pod-1 leads and has not been heard of"), "{silent}");
    assert!(silent.contains("proxies: 0 of 1 are ready; 1 are being made or paused"), "{silent}");
}
