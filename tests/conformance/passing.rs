//! Plugins that keep every rule.

use proxy_operator::conformance::{self, Outcome};
use proxy_operator::sandbox_cloud::{self, Options};
use proxy_operator_tests::authors::sandbox_provider;
use tokio_util::sync::CancellationToken;

use crate::subject::{failed, not_applicable, subject};

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_passes_against_a_real_sandbox_cloud() {
    let options = Options::new("127.0.0.1:0".parse().unwrap(), "127.0.0.1", "token-of-the-cloud");
    let cloud = sandbox_cloud::bind(options).await.unwrap();
    let (address, handle, stop) = (cloud.local_addr(), cloud.handle(), CancellationToken::new());
    let serving = tokio::spawn(cloud.serve(stop.clone()));
    let documents = sandbox_provider("sandbox", address, "token-of-the-cloud");
    let report = conformance::run(subject(&documents, None).await, |_| true).await.unwrap();
    assert_eq!(failed(&report), []);
    // Both by what the plugin and its backend are; nothing else may be passed over.
    assert_eq!(not_applicable(&report), ["create-foreign", "random-differs"]);
    assert!(report.passed() && report.left.is_empty(), "{:?}", report.left);
    assert_eq!(handle.instance_count(), 0, "the kit removes what it made");
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn static_passes_and_makes_nothing() {
    let documents = "
apiVersion: crawl.example.com/v1alpha1
kind: Provider
metadata: {name: fixed}
spec:
  plugin: {name: static}
  config:
    proxies:
    - {name: one, host: 192.0.2.1, port: 3128, location: berlin}
    - {name: two, host: 192.0.2.2, port: 3128}
---
apiVersion: crawl.example.com/v1alpha1
kind: Proxy
metadata: {name: a}
spec: {provider: fixed, auth: {mode: none}}
";
    let report = conformance::run(subject(documents, None).await, |_| true).await.unwrap();
    assert_eq!(failed(&report), []);
    for verdict in &report.verdicts {
        if let Outcome::NotApplicable(why) = &verdict.outcome {
            let declared = ["declares no connection", "config-schema requires", "imports no random"];
            assert!(declared.iter().any(|reason| why.contains(reason)), "{}: {why}", verdict.case.name);
        }
    }
    let passed = report.verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Passed).count();
    assert!(passed >= 20, "{passed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_drawn_over_wasi_is_seen() {
    let provider = "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: p}\n";
    let subject = subject(&format!("{provider}spec: {{plugin: {{name: wasi}}}}\n"), None).await;
    let report = conformance::run(subject, |case| case.name == "random-differs").await.unwrap();
    assert_eq!((failed(&report), not_applicable(&report)), (vec![], vec![]));
}

#[tokio::test]
async fn what_cannot_be_asked_is_told_before_any_case() {
    let provider = "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: p}\nspec: ";
    let connection = "connections: {cloud: {http: {baseUrl: 'http://127.0.0.1:1'}}}";
    for (spec, script, expected) in [
        ("{plugin: {name: sandbox}}".to_owned(), None, "needs the http connection \"cloud\""),
        (format!("{{plugin: {{name: sandbox}}, {connection}, config: {{zone: a}}}}"), None, "/config"),
        (
            format!("{{plugin: {{name: sandbox}}, {connection}}}"),
            Some("http: [{connection: api}]"),
            "stands in for the http connection \"api\", which the Provider does not grant; it grants: cloud",
        ),
        (
            "{plugin: {name: sandbox}, connections: {cloud: {http: {baseUrl: 'http://127.0.0.1:1', auth: {bearer: {secretRef: {name: s, key: k}}}}}}}".to_owned(),
            None,
            "Secret s does not exist",
        ),
    ] {
        let subject = subject(&format!("{provider}{spec}\n"), script).await;
        let Err(error) = conformance::run(subject, |_| true).await else { panic!("{spec} is usable") };
        assert!(error.contains(expected), "{error}\n-- does not say --\n{expected}");
    }
}
