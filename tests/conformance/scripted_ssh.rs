//! A scripted host answers commands, and no session is opened.

use proxy_operator::conformance;
use proxy_operator_tests::sshd::client_key;

use crate::subject::{failed, subject};

/// The guest's `get` runs one command, and tells what it said. The key is a good one, though no session is opened with it.
fn documents() -> String {
    let key = client_key().private.replace('\n', "\n    ");
    format!(
        "
apiVersion: v1
kind: Secret
metadata: {{name: host, labels: {{crawl.example.com/provider-secret: 'true'}}}}
stringData:
  known: unread
  key: |
    {key}
---
apiVersion: crawl.example.com/v1alpha1
kind: Provider
metadata: {{name: host}}
spec:
  plugin: {{name: exec}}
  connections:
    host:
      ssh:
        host: host.example
        user: ops
        key: {{secretRef: {{name: host, key: key}}}}
        knownHosts: {{secretRef: {{name: host, key: known}}}}
  config: {{run: [{{connection: host, argv: [uptime, --pretty]}}]}}
"
    )
}

async fn stable(script: &str) -> Vec<(&'static str, String)> {
    let report =
        conformance::run(subject(&documents(), Some(script)).await, |case| case.name == "messages-stable").await;
    failed(&report.unwrap())
}

#[tokio::test]
async fn the_first_command_that_fits_answers() {
    let script = "ssh: [{connection: host, commands: [{argv: [uptime, '--p*'], stdout: up 3 days}]}]";
    assert_eq!(stable(script).await, []);
}

#[tokio::test]
async fn what_a_command_sets_the_next_one_sees() {
    let script = "ssh: [{connection: host, commands: [
        {argv: [uptime, ...], when: {asked: ''}, set: {asked: by create}, stdout: up 2 days},
        {argv: [uptime, ...], when: {asked: by create}, set: {asked: once}, stdout: up 3 days},
        {argv: [uptime, ...], stdout: up 4 days}]}]";
    let [(_, seen)] = &stable(script).await[..] else { panic!("its answers differ") };
    assert!(seen.contains("up 3 days") && seen.contains("up 4 days"), "{seen}");
}

#[tokio::test]
async fn a_host_that_the_provider_does_not_grant_is_refused() {
    let script = "ssh: [{connection: other, commands: []}]";
    let Err(error) = conformance::run(subject(&documents(), Some(script)).await, |_| true).await else {
        panic!("there is no such connection")
    };
    assert!(error.contains("\"other\", which the Provider does not grant"), "{error}");
}
