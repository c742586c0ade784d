//! Settings from flags, the environment and a file; what shells and readers are given.

use std::fs;
use std::process::Command;

use proxy_operator_tests::process::Process;

use crate::kit::{ends, words};
use crate::shows;

/// Runs with these variables; answers status, standard output and error.
fn with_env(env: &[(&str, &str)], args: &[&str]) -> (i32, String, String) {
    let output = Command::new(proxy_operator_tests::binary()).args(args).envs(env.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn each_setting_says_where_it_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    let lines = "standalone: true\nmanifests: m\ndata: d\nrest-addr: 127.0.0.1:8080\ngc-grace: 1m\nmetrics-addr: 127.0.0.1:9090\ngc-dry-run: false\nsecret-files: [/a, /b]\nlog: debug\n";
    fs::write(&file, lines).unwrap();
    let file = file.display().to_string();
    let flags = ["config", "view", "--config", &file, "--metrics-addr", "127.0.0.1:7"];
    let env = [("PROXY_OPERATOR_GC_GRACE", "5m"), ("PROXY_OPERATOR_DATA", "e")];
    let (status, table, _) = with_env(&env, &flags);
    assert_eq!(status, 0);
    // The whole with its ages and ports, so without what is left out elsewhere.
    let table = words(&table);
    for line in [
        "data e environment PROXY_OPERATOR_DATA",
        "gc-grace 5m environment PROXY_OPERATOR_GC_GRACE",
        "metrics-addr 127.0.0.1:7 flag",
        "health-addr 0.0.0.0:8081 default",
    ] {
        assert!(table.contains(line), "{line} is not in\n{table}");
    }
    shows!("config-view", table);
    let (json, _) = ends(0, &["config", "view", "--config", &file, "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rest-addr"]["value"], "127.0.0.1:8080");
    assert_eq!(json["rest-addr"]["origin"], format!("file {file}"));
}

#[test]
fn a_file_that_says_what_there_is_not_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut said = String::new();
    for (status, lines) in [
        (2, "rest-adr: x\n"),
        (2, "gc-dry-run: perhaps\n"),
        (2, "gc-grace: {a: b}\n"),
        (2, "- standalone\n"),
        (2, "standalone: [\n"),
        (2, "config: other.yaml\n"),
    ] {
        let file = dir.path().join("config.yaml");
        fs::write(&file, lines).unwrap();
        said += &ends(status, &["run", "--config", &file.display().to_string()]).1;
    }
    said += &ends(1, &["config", "view", "--config", &dir.path().join("none.yaml").display().to_string()]).1;
    shows!("config-errors", said);
    let file = dir.path().join("config.yaml");
    fs::write(&file, "gc-grace: soon\n").unwrap();
    let (_, error) = ends(2, &["run", "--config", &file.display().to_string()]);
    assert!(error.contains("--gc-grace"), "{error}");
}

#[test]
fn an_operator_runs_by_a_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir(dir.path().join("manifests")).unwrap();
    let addresses: String =
        ["rest", "health", "judge", "metrics"].map(|name| format!("{name}-addr: 127.0.0.1:0\n")).concat();
    let lines = format!("standalone: true\nmanifests: {}\ndata: {}\n{addresses}", at("manifests"), at("data"));
    fs::write(dir.path().join("config.yaml"), lines).unwrap();
    let (operator, line) = Process::start(&["run", "--config", &at("config.yaml")], &dir.path().join("log"));
    assert!(line.contains("rest=http://127.0.0.1:"), "{line}");
    assert_eq!(ends(0, &["get", "px", "--data", &at("data")]).1, "no proxies found\n");
    assert_eq!(operator.stop(), Some(0));
}

#[test]
fn shells_complete_every_command_and_each_has_a_page() {
    let (help, _) = ends(0, &["--help"]);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.split_whitespace().next().filter(|_| line.starts_with("  ") && !line.starts_with("   "))
        })
        .filter(|command| *command != "help")
        .collect();
    assert!(commands.len() > 20 && commands.contains(&"leases"), "{commands:?}");
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("pages");
    ends(0, &["man", "-o", &pages.display().to_string()]);
    for shell in ["bash", "zsh", "fish"] {
        let (script, _) = ends(0, &["completion", shell]);
        for command in &commands {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
    }
    for command in &commands {
        let page = fs::read_to_string(pages.join(format!("proxy-operator-{command}.1"))).unwrap();
        assert!(page.contains(".SH DESCRIPTION"), "{command}");
    }
    assert!(pages.join("proxy-operator.1").exists() && pages.join("proxy-operator-token-create.1").exists());
    // Bash takes its script.
    let script = dir.path().join("completion.bash");
    fs::write(&script, ends(0, &["completion", "bash"]).0).unwrap();
    assert!(Command::new("bash").arg("-n").arg(&script).status().unwrap().success());
    ends(2, &["completion", "tcsh"]);
    let (_, error) = ends(1, &["man", "-o", "/proc/none"]);
    assert!(error.contains("/proc/none"), "{error}");
}

/// Every command but those that only lead to others.
#[test]
fn every_command_has_its_help_and_an_example() {
    let mut left: Vec<Vec<String>> = vec![vec![]];
    let mut seen = 0;
    while let Some(words) = left.pop() {
        let asked: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let (help, _) = ends(0, &asked);
        assert!(!help.contains('\x1b'), "no colours but on a terminal");
        let Some((_, below)) = help.split_once("\nCommands:\n") else {
            assert!(help.contains("Example") && help.contains("proxy-operator "), "{words:?}:\n{help}");
            seen += 1;
            continue;
        };
        let lines = below.lines().take_while(|line| !line.is_empty());
        // What a line goes on with stands further in.
        let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
        left.extend(names.filter(|name| *name != "help").map(|name| [&words[..], &[name.to_owned()]].concat()));
    }
    assert!(seen > 30, "{seen}");
}

/// They stood among each command's own options.
#[test]
fn the_flags_of_logging_are_taken_everywhere_and_shown_apart_where_something_is_logged() {
    for (words, shown) in
        [(&["run"][..], true), (&["plugin", "test"], true), (&["get"], false), (&["plugin", "new"], false)]
    {
        let (help, _) = ends(0, &[words, &["--log", "warn", "--log-json", "--help"]].concat());
        let (own, global) = help.split_once("Global options:").unwrap_or((&help, ""));
        assert_eq!((own.contains("--log"), global.contains("--log-json")), (false, shown), "{words:?}:\n{help}");
    }
    let (crds, _) = ends(0, &["crd", "--log", "warn"]);
    assert!(crds.contains("kind: CustomResourceDefinition"), "{crds}");
}
