//! `apply` and `delete`: what they print, and what they leave in the manifest folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use proxy_operator_tests::lab::{Lab, proxy, secret};

use crate::kit::{at, ends, ends_with_input};
use crate::shows;

fn files(lab: &Lab) -> Vec<String> {
    let all = fs::read_dir(lab.path("manifests")).unwrap();
    let mut names: Vec<String> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_stays_and_what_is_deleted_stays_away() {
    let mut lab = Lab::start().await;
    // A call that a kill cuts off may land until then, and is waited for.
    lab.put("provider.yaml", &lab.provider("demo", "  limits: {callTimeout: 2s}\n"));
    let dir = lab.path("fleet");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), format!("# the first\n{}---\n{}", proxy("a", ""), secret("extra", &[("k", "v")])))
        .unwrap();
    fs::write(dir.join("b.yml"), proxy("b", "")).unwrap();
    fs::write(dir.join("notes.txt"), "no manifest").unwrap();
    let fleet = dir.display().to_string();
    let (first, _) = at(&lab, 0, &["apply", "-f", &fleet]);
    fs::write(dir.join("b.yml"), proxy("b", ", port: 3129")).unwrap();
    let (second, _) = at(&lab, 0, &["apply", "-f", &fleet]);
    shows!("apply", format!("{first}\n{second}"));
    let before = ["cloud.yaml", "provider.yaml", "token.yaml"];
    let added = ["proxy-default-a.yaml", "proxy-default-b.yaml", "secret-extra.yaml"];
    let mut expected = [&before[..], &added[..]].concat();
    expected.sort_unstable();
    assert_eq!(files(&lab), expected);
    let mode = fs::metadata(lab.path("manifests/secret-extra.yaml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    lab.wait_ready(&["a", "b"]).await;
    let data = lab.path("data").display().to_string();
    let (piped, _) = ends_with_input(0, &["apply", "-f", "-", "--data", &data], &proxy("c", ""));
    assert_eq!(piped, "proxy/c created\n");
    lab.wait_ready(&["c"]).await;

    // What was deleted does not come back, what was applied does.
    at(&lab, 0, &["delete", "proxy", "c", "--wait=false"]);
    lab.take_operator().kill();
    lab.start_operator().await;
    assert!(!files(&lab).contains(&"proxy-default-c.yaml".to_owned()));
    at(&lab, 0, &["wait", "px/c", "--for", "delete", "--timeout", "60s"]);
    assert_eq!(lab.proxy("b").await.unwrap().spec.port, 3129);

    let (kept, says) = at(&lab, 0, &["delete", "-f", &fleet, "--wait=false"]);
    let (gone, _) = at(&lab, 0, &["delete", "-f", &fleet, "--ignore-not-found"]);
    shows!("delete-files", format!("{kept}{says}\n{gone}"));
    assert_eq!(files(&lab), before);
    let (gone, _) = at(&lab, 0, &["delete", "provider", "demo"]);
    shows!("delete-provider", gone);
    assert!(lab.machines().await.is_empty());
    assert_eq!(at(&lab, 0, &["delete", "secret", "cloud"]).0, "secret/cloud is gone\n");
    assert_eq!(files(&lab), ["token.yaml"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_applied_or_deleted_says_why() {
    let lab = Lab::start().await;
    let file = |name: &str, text: &str| {
        let path = lab.path(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let typo = file("typo.yaml", &proxy("a", ", prot: http"));
    let pod = file("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n");
    let empty = file("empty.yaml", "# nothing\n");
    let twice = file("twice.yaml", &format!("{}---\n{}", proxy("a", ""), proxy("a", "")));
    let good = file("good.yaml", &proxy("a", ""));
    let frozen = file("frozen.yaml", &lab.provider("demo", "").replace("name: sandbox", "name: static"));
    fs::create_dir(lab.path("nothing")).unwrap();
    let folder = lab.path("nothing").display().to_string();
    let missing = lab.path("missing.yaml").display().to_string();
    let mut said = String::new();
    for (status, args) in [
        (1, vec!["apply", "-f", &typo]),
        (1, vec!["apply", "-f", &good, "-f", &pod]),
        (1, vec!["apply", "-f", &empty]),
        (1, vec!["apply", "-f", &twice]),
        (1, vec!["apply", "-f", &frozen]),
        (1, vec!["apply", "-f", &folder]),
        (1, vec!["apply", "-f", &missing]),
        (1, vec!["delete", "-f", &good]),
        (1, vec!["delete", "-f", &pod]),
        (1, vec!["delete", "px", "x", "y"]),
        (1, vec!["delete", "secret", "x"]),
        (2, vec!["delete", "px"]),
        (2, vec!["delete", "pods", "x"]),
        (2, vec!["get", "secrets"]),
    ] {
        said += &at(&lab, status, &args).1;
    }
    shows!("apply-errors", said);
    for args in [&["apply"][..], &["delete"], &["delete", "px/a", "-f", "x"], &["delete", "px/a", "--timeout", "soon"]]
    {
        at(&lab, 2, args);
    }
    assert!(lab.proxies().await.is_empty(), "nothing was applied");
    // A cloud that does not answer keeps its proxy.
    let mut lab = lab;
    at(&lab, 0, &["apply", "-f", &good]);
    lab.wait_ready(&["a"]).await;
    lab.stop_cloud();
    let (out, late) = at(&lab, 3, &["delete", "px/a", "--timeout", "1s"]);
    shows!("delete-late", format!("{out}{late}"));
    // Without --for, without an operator.
    let none = tempfile::tempdir().unwrap();
    let none = none.path().display().to_string();
    for args in [["apply", "-f", &good], ["delete", "-f", &good]] {
        let (_, error) = ends(4, &[&args[..], &["--data", &none]].concat());
        assert!(error.contains("no operator answers at"), "{error}");
    }
}
