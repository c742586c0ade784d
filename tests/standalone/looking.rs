//! `top` and `doctor`: how the whole fleet is.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use proxy_operator_tests::lab::{Lab, proxy, wish};
use proxy_operator_tests::process::PATIENCE;

use crate::kit::{at, ends, words};
use crate::shows;

/// What a command writes to a terminal until these words stand there.
fn on_a_terminal(lab: &Lab, env: &[(&str, &str)], command: &str, until: &[&str]) -> String {
    let line = format!("{} {command} --data {}", proxy_operator_tests::binary().display(), lab.path("data").display());
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR").envs(env.iter().copied());
    let mut child = script.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("script, of util-linux");
    let mut stdout = child.stdout.take().unwrap();
    let (said, parts) = mpsc::channel();
    std::thread::spawn(move || {
        let mut part = [0; 4096];
        while let Ok(read @ 1..) = stdout.read(&mut part) {
            if said.send(part[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut all = Vec::new();
    let shown = loop {
        let shown = String::from_utf8_lossy(&all).into_owned();
        if until.iter().all(|word| shown.contains(word)) {
            break Ok(shown);
        }
        match parts.recv_timeout(PATIENCE) {
            Ok(part) => all.extend(part),
            Err(_) => break Err(shown),
        }
    };
    // With its terminal the command goes, too.
    let _ = child.kill();
    let _ = child.wait();
    shown.unwrap_or_else(|shown| panic!("{until:?} did not come:\n{shown}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn top_shows_the_fleet_once_or_live() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.put("b.yaml", &proxy("b", ""));
    lab.put("c.yaml", &proxy("c", ", paused: true"));
    lab.wait_ready(&["a", "b"]).await;
    lab.lease(wish(600)).await;
    let (once, _) = at(&lab, 0, &["top"]);
    // Which of the two is lent is the operator's choice.
    let once = words(&once).replace(" crawler AGE", "");
    let lent = once.lines().filter(|line| line.contains(" crawler ")).count();
    assert_eq!(lent, 1, "{once}");
    let known =
        |line: &str| !line.contains("crawler") && !line.starts_with("default a") && !line.starts_with("default b");
    shows!("top", once.lines().filter(|line| known(line)).collect::<Vec<_>>().join("\n"));
    assert_eq!(
        at(&lab, 0, &["top", "-n", "other"]).0.lines().next(),
        Some("Providers: 1 of 1 ready   Proxies: 0 of 0 ready   Leases: 0")
    );

    let live = on_a_terminal(&lab, &[], "top --interval 1s", &["Ctrl-C ends", "\x1b[32mTrue\x1b[0m", "crawler"]);
    assert!(live.contains("\x1b[?1049h"), "it has a screen of its own");
    let plain = on_a_terminal(&lab, &[("NO_COLOR", "1")], "top", &["Ctrl-C ends", "crawler", "\x1b[J"]);
    assert!(!plain.contains("\x1b[32m"), "{plain}");
    let printed = on_a_terminal(&lab, &[], "top --once", &["crawler"]);
    assert!(!printed.contains("\x1b[?1049h"), "{printed}");
    let none = tempfile::tempdir().unwrap();
    ends(4, &["top", "--data", &none.path().display().to_string()]);
    at(&lab, 2, &["top", "--interval", "soon"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_what_is_wrong_and_what_helps() {
    let mut lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    shows!("doctor-well", at(&lab, 0, &["doctor"]).0);
    lab.put("typo.yaml", &proxy("b", ", prot: http"));
    lab.put("alone.yaml", &lab.provider("alone", "").replace("name: sandbox", "name: nowhere"));
    lab.put("c.yaml", &proxy("c", "").replace("provider: demo", "provider: alone"));
    lab.wait_event("ManifestRefused", "typo.yaml").await;
    lab.wait_reason("c", "PluginMissing").await;
    std::fs::set_permissions(lab.path("data"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    lab.stop_cloud();
    shows!("doctor-ill", at(&lab, 1, &["doctor"]).0);
    let none = tempfile::tempdir().unwrap();
    std::fs::set_permissions(none.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let missing = none.path().join("none").display().to_string();
    let (gone, silent) = (
        ends(1, &["doctor", "--data", &missing]).0,
        ends(1, &["doctor", "--data", &none.path().display().to_string()]).0,
    );
    shows!("doctor-without", format!("{gone}\n{silent}"));
}

#[test]
fn the_demo_removes_no_folder_that_held_something_before() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mine"), "").unwrap();
    let (_, error) = ends(1, &["demo", "--once", "--dir", &dir.path().display().to_string()]);
    assert!(error.contains("holds something already"), "{error}");
    assert!(dir.path().join("mine").exists());
}
