//! What goes on: `get --watch`, `leases`, `logs`; and the same of an operator elsewhere, by its REST API.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use proxy_operator_tests::lab::{Lab, proxy, text, wish};
use proxy_operator_tests::process::PATIENCE;
use serde_json::Value;

use crate::kit::{at, ends, words};
use crate::shows;

/// A command that goes on, and its lines.
struct Watch {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Watch {
    fn start(lab: &Lab, args: &[&str]) -> Self {
        let data = lab.path("data");
        let mut command = Command::new(proxy_operator_tests::binary());
        command.args(args).arg("--data").arg(data).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (said, lines) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
        Self { child, lines }
    }

    /// Waits for a line in which all these words stand.
    fn says(&self, words: &[&str]) -> String {
        let mut before = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if words.iter().all(|word| line.contains(word)) => return line,
                Ok(line) => before.push(line),
                Err(_) => panic!("no line has {words:?}:\n{}", before.join("\n")),
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_of_what_comes_changes_and_goes() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    let table = Watch::start(&lab, &["get", "px", "--watch"]);
    let names = Watch::start(&lab, &["get", "px", "-w", "-o", "name"]);
    let documents = Watch::start(&lab, &["get", "px/a", "-w", "-o", "yaml"]);
    table.says(&["NAMESPACE", "NAME", "READY"]);
    table.says(&["a", "True"]);
    names.says(&["proxy/a"]);
    documents.says(&["---"]);
    lab.put("b.yaml", &proxy("b", ""));
    table.says(&["b", "True"]);
    names.says(&["proxy/b"]);
    lab.put("a.yaml", &proxy("a", ", unschedulable: true"));
    documents.says(&["unschedulable: true"]);
    at(&lab, 0, &["delete", "px/b"]);
    table.says(&["b", "(gone)"]);
    for args in [["get", "events", "-w"], ["get", "secrets", "-w"]] {
        at(&lab, 2, &args);
    }
    at(&lab, 1, &["get", "px/none", "-w"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_listed_here_and_elsewhere_without_a_credential() {
    let lab = Lab::start().await;
    assert_eq!(at(&lab, 0, &["leases"]), (String::new(), "no leases found\n".into()));
    lab.put("a.yaml", &proxy("a", ", location: zone-a"));
    lab.wait_ready(&["a"]).await;
    let lease = lab.lease(wish(600)).await;
    let (table, _) = at(&lab, 0, &["leases"]);
    let (wide, _) = at(&lab, 0, &["leases", "-o", "wide"]);
    assert_eq!(at(&lab, 0, &["leases", "-o", "name"]).0.trim(), text(&lease, "id"));
    let hide = |shown: &str| shown.replace(&text(&lease, "id"), "ID").replace(table_id(&table), "…ID");
    fn table_id(table: &str) -> &str {
        table.split_whitespace().find(|word| word.starts_with('…')).unwrap()
    }
    let (server, token) = (lab.rest_url().to_owned(), lab.path("token"));
    fs::write(&token, format!("{}\n", lab.token())).unwrap();
    let token = token.display().to_string();
    let elsewhere = |args: &[&str]| ends(0, &[args, &["--server", &server, "--token-file", &token]].concat()).0;
    let theirs = elsewhere(&["leases"]);
    shows!("leases", words(&hide(&format!("{table}\n{wide}\n{theirs}"))));
    for shown in [at(&lab, 0, &["leases", "-o", "json"]).0, elsewhere(&["leases", "-o", "yaml"])] {
        assert!(shown.contains(&text(&lease, "id")) && !shown.contains(&text(&lease, "password")), "{shown}");
    }
    assert_eq!(at(&lab, 0, &["leases", "-n", "other"]).1, "no leases found\n");

    // The same objects, with what REST tells of them.
    shows!("get-elsewhere", words(&elsewhere(&["get", "px", "-o", "wide"])));
    let providers = words(&elsewhere(&["get", "pxp"]));
    assert!(providers.contains("\ndemo True sandbox 0.1.0 Ready "), "{providers}");
    let whole: Value = serde_json::from_str(&elsewhere(&["get", "px/a", "-o", "json"])).unwrap();
    assert_eq!((&whole["metadata"]["name"], &whole["spec"]["location"]), (&"a".into(), &"zone-a".into()));
    assert_eq!(elsewhere(&["wait", "px/a", "--for", "condition=Ready"]), "proxy/a condition met\n");
    assert_eq!(elsewhere(&["wait", "pxp/demo", "--for", "condition=ready"]), "provider/demo condition met\n");
    assert_eq!(elsewhere(&["wait", "px/none", "--for", "delete"]), "proxy/none is gone\n");

    let wrong = lab.path("wrong").display().to_string();
    fs::write(&wrong, "pxo_wrong\n").unwrap();
    let mut said = String::new();
    for (status, args) in [
        (1, vec!["get", "px", "--server", &server, "--token-file", &wrong]),
        (1, vec!["get", "px", "--server", &server, "--token-file", "/nowhere/token"]),
        (1, vec!["get", "px/none", "--server", &server, "--token-file", &token]),
        (1, vec!["wait", "px/none", "--for", "condition=Ready", "--server", &server, "--token-file", &token]),
        (1, vec!["leases", "--all", "--server", &server, "--token-file", &token]),
        (1, vec!["get", "px", "--server", lab.cloud_url(), "--token-file", &token]),
        (2, vec!["get", "events", "--server", &server, "--token-file", &token]),
        (2, vec!["wait", "px/a", "--for", "condition=Healthy", "--server", &server, "--token-file", &token]),
        (2, vec!["get", "px", "--server", "mailto:x", "--token-file", &token]),
        (3, vec!["wait", "px/a", "--for", "delete", "--timeout", "1s", "--server", &server, "--token-file", &token]),
        (4, vec!["leases", "--server", "http://127.0.0.1:1", "--token-file", &token]),
    ] {
        said += &ends(status, &args).1;
    }
    shows!("elsewhere-errors", said);
    let (_, usage) = ends(2, &["get", "px", "--server", &server]);
    assert!(usage.contains("--token-file"), "{usage}");
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_of_all_or_of_one_object() {
    let lab = Lab::start().await;
    let follow = Watch::start(&lab, &["logs", "proxy/a", "--follow"]);
    lab.put("a.yaml", &proxy("a", ""));
    lab.put("b.yaml", &proxy("b", ""));
    lab.wait_ready(&["a", "b"]).await;
    follow.says(&["Ready"]);
    let (of_a, _) = at(&lab, 0, &["logs", "px", "a"]);
    assert!(of_a.contains("Ready") && !of_a.contains("default/b"), "{of_a}");
    let (all, _) = at(&lab, 0, &["logs"]);
    assert!(all.contains("default/b") && all.lines().count() > of_a.lines().count(), "{all}");
    assert_eq!(at(&lab, 0, &["logs", "--tail", "2"]).0.lines().count(), 2);
    let (line, _) = at(&lab, 0, &["logs", "provider/demo", "--tail", "1", "-o", "json"]);
    let line: Value = serde_json::from_str(&line).unwrap();
    assert!(line["text"].is_string() && line["at"].is_string() && line["level"].is_string(), "{line}");
    assert!(!all.contains(lab.token()), "no credential is logged");
    let mut said = String::new();
    for (status, args) in [
        (1, vec!["logs", "proxy/none"]),
        (1, vec!["logs", "provider", "none"]),
        (2, vec!["logs", "events"]),
        (2, vec!["logs", "pods/a"]),
        (2, vec!["logs", "secret/cloud"]),
    ] {
        said += &at(&lab, status, &args).1;
    }
    shows!("logs-errors", said);
    let none = tempfile::tempdir().unwrap();
    for command in ["logs", "leases"] {
        ends(4, &[command, "--data", &none.path().display().to_string()]);
    }
}
