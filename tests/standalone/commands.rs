//! What people type: what is printed, what is refused, and each exit status.

use proxy_operator_tests::lab::{Lab, proxy};

use crate::kit::ends;

fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_listed_described_waited_for_and_deleted() {
    let lab = Lab::start().await;
    let labelled = proxy("b", "").replace("name: b", "name: b, labels: {team: blue}");
    assert!(labelled.contains("team"), "{labelled}");
    lab.put("a.yaml", &proxy("a", ""));
    lab.put("b.yaml", &labelled);
    lab.wait_ready(&["a", "b"]).await;
    let data = lab.path("data").display().to_string();
    let with = |args: &[&'static str]| {
        let mut all = args.to_vec();
        let data: &'static str = data.clone().leak();
        all.extend(["--data", data]);
        all
    };

    let (waited, _) = ends(0, &with(&["wait", "px/a", "px/b", "--for", "condition=Ready", "--timeout", "60s"]));
    assert_eq!(waited, "proxy/a condition met\nproxy/b condition met\n");
    let (table, _) = ends(0, &with(&["get", "proxies"]));
    let rows = words(&table);
    assert_eq!(rows[0], ["NAMESPACE", "NAME", "READY", "PROVIDER", "ADDRESS", "REASON"]);
    assert_eq!([&rows[1][..4], &rows[2][..4]], [["default", "a", "True", "demo"], ["default", "b", "True", "demo"]]);
    assert_eq!(ends(0, &with(&["get", "px", "-o", "name"])).0, "proxy/a\nproxy/b\n");
    assert_eq!(ends(0, &with(&["get", "px", "-l", "team=blue", "-o", "name"])).0, "proxy/b\n");
    assert_eq!(ends(0, &with(&["get", "proxy", "a", "-A", "-o", "name"])).0, "proxy/a\n");
    assert_eq!(ends(0, &with(&["get", "proxy/b", "-o", "name"])).0, "proxy/b\n");
    assert!(ends(0, &with(&["get", "px", "-o", "wide"])).0.contains("team=blue"));
    assert!(ends(0, &with(&["get", "pxp", "demo", "-o", "yaml"])).0.contains("name: demo"));
    let one: serde_json::Value = serde_json::from_str(&ends(0, &with(&["get", "px/a", "-o", "json"])).0).unwrap();
    assert_eq!(one["metadata"]["name"], "a");
    let (none, says) = ends(0, &with(&["get", "px", "-n", "elsewhere"]));
    assert_eq!((none.as_str(), says.as_str()), ("", "no proxies found\n"));

    let (told, _) = ends(0, &with(&["describe", "proxy", "a"]));
    for part in ["Name:         a", "Namespace:    default", "provider: demo", "Conditions:", "Healthy", "Events:"] {
        assert!(told.contains(part), "{part} is missing:\n{told}");
    }
    ends(0, &with(&["events", "--for", "proxy/a"]));

    let (_, late) = ends(3, &with(&["wait", "px/a", "--for", "delete", "--timeout", "1s"]));
    assert!(late.contains("proxy/a: not in time: it is still there"), "{late}");
    ends(0, &with(&["delete", "proxy/a", "--wait=false"]));
    assert_eq!(ends(0, &with(&["wait", "px/a", "--for", "delete", "--timeout", "60s"])).0, "proxy/a is gone\n");
    assert_eq!(ends(0, &with(&["get", "px", "-o", "name"])).0, "proxy/b\n");

    for (status, args, says) in [
        (1, vec!["get", "px", "a"], "there is no proxy \"a\" in namespace default"),
        (1, vec!["describe", "pxp", "x"], "there is no provider \"x\"; `proxy-operator get providers` lists them"),
        (1, vec!["delete", "px/a"], "there is no proxy \"a\" in namespace default"),
        (1, vec!["wait", "px/a", "--for", "condition=Ready"], "there is no proxy \"a\""),
        (2, vec!["get", "pods"], "there is no kind \"pods\": use proxies (px), providers (pxp) or events"),
        (2, vec!["get", "px/a", "pxp/demo"], "objects of one kind at a time"),
        (2, vec!["get", "px", "-l", "a>1"], "is no requirement"),
        (2, vec!["get", "events", "-o", "name"], "events have no names"),
        (2, vec!["describe", "px"], "name what is to be described"),
        (2, vec!["delete", "px"], "name what is to be deleted"),
        (2, vec!["wait", "px/b", "--for", "Ready"], "write condition=TYPE"),
    ] {
        let (_, error) = ends(status, &with(&args));
        assert!(error.contains(says), "{args:?}: {error}");
    }
}

#[test]
fn without_an_operator_the_commands_say_where_they_looked() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().display().to_string();
    for args in [
        vec!["get", "px"],
        vec!["describe", "px/a"],
        vec!["delete", "px/a"],
        vec!["events"],
        vec!["wait", "px/a", "--for", "delete"],
        vec!["log", "debug"],
        vec!["abandoned", "list"],
    ] {
        let (_, error) = ends(4, &[args, vec!["--data", &data]].concat());
        assert_eq!(
            error,
            format!("error: no operator answers at {data}/operator.sock: is it running with this --data folder?\n")
        );
    }
}
