//! The operator as a service: settings read again, a copy of its state while it runs, and the unit under a real systemd.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use proxy_operator_tests::lab::{Lab, proxy};
use proxy_operator_tests::process::{PATIENCE, Process};
use proxy_operator_tests::systemd::Systemd;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::kit::{at, ends};
use crate::shows;

fn eventually(what: &str, mut met: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < until, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_backed_up_while_it_ran_is_there_after_a_restore() {
    let mut lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    lab.lease(json!({"mode": "exclusive", "ttlSeconds": 600})).await;
    lab.put("b.yaml", &proxy("b", ""));
    lab.wait_ready(&["b"]).await;
    let instance = async |lab: &Lab| lab.proxy("a").await.unwrap().status.unwrap().instance.unwrap().provider_id;
    let made = instance(&lab).await;
    let file = lab.path("copy.redb").display().to_string();
    let (said, _) = at(&lab, 0, &["backup", &file]);
    assert!(said.contains("1 providers, 2 proxies, 1 leases"), "{said}");
    shows!("backup", said.split(';').next().unwrap());
    let left: Vec<_> = fs::read_dir(lab.path("data")).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("backup")), "{left:?}");
    // What is changed later is not in it.
    at(&lab, 0, &["delete", "px/b"]);
    lab.take_operator().kill();
    lab.put("b.yaml", &proxy("b", ""));
    fs::rename(&file, lab.path("data/state.redb")).unwrap();
    lab.start_operator().await;
    lab.wait_ready(&["a", "b"]).await;
    assert_eq!(instance(&lab).await, made);
    // What the copy says of the other one is not so any more, which is found out.
    lab.wait("both have a machine", async |lab| (lab.machines().await.len() == 2).then_some(())).await;
    lab.wait_ready(&["b"]).await;
    // The first is still lent, so that there is one for the next and none for a third.
    lab.lease(json!({"mode": "exclusive", "waitSeconds": 30})).await;
    let (status, answer) = lab.rest(Method::POST, "/v1/leases", Some(json!({"mode": "exclusive"}))).await;
    assert_ne!(status, StatusCode::CREATED, "{answer}");

    let mut errors = at(&lab, 1, &["backup", "/proc/none/copy.redb"]).1;
    errors += &ends(4, &["backup", &file, "--data", &lab.path("nowhere").display().to_string()]).1;
    shows!("backup-errors", errors);
}

#[test]
fn settings_are_read_again_when_the_operator_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir(dir.path().join("manifests")).unwrap();
    let addresses: String =
        ["rest", "health", "judge", "metrics"].map(|name| format!("{name}-addr: 127.0.0.1:0\n")).concat();
    let base = format!("standalone: true\nmanifests: {}\ndata: {}\n{addresses}", at("manifests"), at("data"));
    let settings = |more: &str| fs::write(dir.path().join("config.yaml"), format!("{base}{more}")).unwrap();
    settings("log: info\n");
    let (operator, _) = Process::start(&["run", "--config", &at("config.yaml")], &dir.path().join("log"));
    let reload = |says: &str| {
        let before = operator.log().matches(says).count();
        operator.signal("HUP");
        eventually(says, || operator.log().matches(says).count() > before);
    };
    reload("settings were read again");
    settings("log: proxy_operator=debug\n");
    reload("settings were read again");
    settings("log: proxy_operator=debug\ngc-grace: 5m\ngc-dry-run: true\n");
    reload("these wait for the next start");
    assert!(operator.log().contains("gc-dry-run, gc-grace"), "{}", operator.log());
    // What was not taken is told as long as it is so.
    reload("these wait for the next start");
    for wrong in ["log: '!!'\n", "gc-grace: soon\n", "gc-grac: 1m\n", ": [\n"] {
        settings(wrong);
        reload("settings stay as they are");
    }
    fs::remove_file(dir.path().join("config.yaml")).unwrap();
    reload("settings stay as they are");
    assert_eq!(ends(0, &["get", "px", "--data", &at("data")]).1, "no proxies found\n");
    assert_eq!(operator.stop(), Some(0));
}

#[test]
fn the_unit_runs_under_systemd() {
    let Some(mut systemd) = Systemd::boot() else { return };
    let page = fs::read_to_string(proxy_operator_tests::root().join("docs/operations.md")).unwrap();
    let (_, installation) = page.split_once("### As a service").unwrap();
    let commands = installation.split("```").nth(1).unwrap();
    systemd.does(&["sh", "-exc", commands]);
    let data = ["--data", "/var/lib/proxy-operator/data"];
    let property = |systemd: &Systemd, name: &str| {
        systemd.does(&["systemctl", "show", "--value", "-p", name, "proxy-operator"]).trim().to_owned()
    };
    // Ready as soon as the last command returns: the socket answers.
    let operator = |args: &[&'static str]| [&["/usr/local/bin/proxy-operator"], args, &data].concat();
    assert!(systemd.does(&operator(&["get", "px"])).is_empty());

    // A plugin is compiled and called within all that the unit forbids.
    let manifests = "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: bought}\nspec:\n  plugin: {name: static}\n  config: {proxies: [{name: a, host: 127.0.0.1, port: 9}]}\n";
    let apply = format!("printf '%s' \"{manifests}\" | /usr/local/bin/proxy-operator apply -f - {}", data.join(" "));
    systemd.does(&["sh", "-c", &apply]);
    systemd.does(&operator(&["wait", "pxp/bought", "--for", "condition=Ready", "--timeout", "60s"]));
    assert_eq!(systemd.does(&["stat", "-c", "%U %a", "/var/lib/proxy-operator/data"]).trim(), "proxy-operator 700");

    let said = property(&systemd, "WatchdogTimestampMonotonic");
    systemd.wait("it says that it lives", |systemd| {
        (property(systemd, "WatchdogTimestampMonotonic") != said).then_some(())
    });
    systemd.does(&["systemctl", "reload", "proxy-operator"]);
    systemd.does(&["systemctl", "kill", "-s", "KILL", "proxy-operator"]);
    systemd.wait("it is started anew", |systemd| {
        // Counted first: right after the kill it may still be called active.
        let anew = property(systemd, "NRestarts") == "1" && property(systemd, "ActiveState") == "active";
        anew.then_some(())
    });
    systemd.does(&operator(&["wait", "pxp/bought", "--for", "condition=Ready", "--timeout", "60s"]));
    systemd.does(&["systemctl", "stop", "proxy-operator"]);
    assert_eq!(property(&systemd, "Result"), "success");
}

#[test]
fn the_unit_gives_away_no_more_than_it_must() {
    let unit = proxy_operator_tests::root().join("deploy/systemd/proxy-operator.service");
    let analyze = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager", "--threshold=20"])
        .arg(unit)
        .output();
    let Ok(output) = analyze else {
        println!("SKIPPED: there is no systemd-analyze: install systemd");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
