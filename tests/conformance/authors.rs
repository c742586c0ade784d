//! `plugin new`, `check`, `call` and `test` as an author uses them: the binary, outside this repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use proxy_operator_tests::plugins::file_of;

/// Runs the binary in `dir`.
fn plugin(dir: &Path, args: &[&str]) -> Output {
    let output = Command::new(proxy_operator_tests::binary()).current_dir(dir).arg("plugin").args(args).output();
    output.expect("the binary")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn all(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

const TOKEN: &str = "token-of-the-tests";

/// A folder with a Provider of `rulebreaker` at `address`, and its backend's script.
fn folder(address: &str, broken: &str) -> (tempfile::TempDir, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let template = proxy_operator_tests::root().join("plugins/template");
    let read = |file: &str| fs::read_to_string(template.join(file)).unwrap().replace("{{name}}", "rulebreaker");
    let provider = read("provider.yaml")
        .replace("https://machines.example.com", &format!("{address}\n        permit: [loopback]"))
        .replace("small: plan-1", &format!("break: {broken}"));
    let path = dir.path().join("provider.yaml");
    fs::write(&path, provider).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(dir.path().join("backend.yaml"), read("tests/backend.yaml")).unwrap();
    let file = file_of("rulebreaker");
    (dir, file)
}

#[test]
fn a_test_run_prints_a_table_writes_junit_and_tells_by_its_status() {
    let (dir, file) = folder("https://machines.example.com", "list-complete");
    let file = file.to_str().unwrap();
    let common = ["test", file, "--provider", "provider.yaml", "--script", "backend.yaml"];
    let run = plugin(dir.path(), &[&common[..], &["--junit", "junit.xml"]].concat());
    let out = text(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{}", all(&run));
    assert!(out.contains("list-complete failed\n  rule: list-instances is complete over all pages"), "{out}");
    assert!(out.contains("1 failed, 1 not applicable"), "{out}");
    let junit = fs::read_to_string(dir.path().join("junit.xml")).unwrap();
    assert!(junit.contains("failures=\"1\"") && junit.contains("name=\"list-complete\""), "{junit}");
    assert!(!all(&run).contains(TOKEN) && !junit.contains(TOKEN));

    let run = plugin(dir.path(), &[&common[..], &["--case", "describe-pure"]].concat());
    assert_eq!(run.status.code(), Some(0), "{}", all(&run));
    assert!(text(&run.stdout).contains("1 passed, 0 failed"));

    for (more, expected) in [
        (vec!["--case", "no-such-case"], "there is no case \"no-such-case\""),
        (vec!["--proxy", "none.yaml"], "none.yaml"),
    ] {
        let run = plugin(dir.path(), &[&common[..], &more].concat());
        assert_eq!(run.status.code(), Some(2), "{}", all(&run));
        assert!(text(&run.stderr).contains(expected), "{}", all(&run));
    }
    assert!(text(&plugin(dir.path(), &["cases"]).stdout).contains("delete-until-gone\n  gone means every artefact"));
}

#[test]
fn manifests_are_read_as_a_standalone_operator_reads_them() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, file) = folder("https://machines.example.com", "nothing");
    let path = dir.path().join("provider.yaml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let call = |file: &str| plugin(dir.path(), &["call", file, "describe", "--provider", "provider.yaml"]);
    let run = call(file.to_str().unwrap());
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("chmod 600"), "{}", all(&run));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let run = call(file_of("echo").to_str().unwrap());
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("the Provider is for the plugin \"rulebreaker\""), "{}", all(&run));
    let run = call(file.to_str().unwrap());
    assert_eq!(run.status.code(), Some(0), "{}", all(&run));
    assert!(text(&run.stdout).contains("config-schema:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_live_a_life_and_show_no_secret() {
    use proxy_operator_tests::plugins::server::{Reply, Server};
    use serde_json::{Value, json};
    use std::sync::{Arc, Mutex};
    // One machine, as the API of the template has it; it never boots.
    let there: Arc<Mutex<Option<Value>>> = Arc::default();
    let server = Server::start(move |asked| {
        let there = there.clone();
        async move {
            assert_eq!(asked.header("authorization"), Some("Bearer token-of-the-tests"));
            let mut there = there.lock().unwrap();
            match (asked.method.as_str(), asked.target.as_str()) {
                ("GET", "/v1/account") => {
                    Reply::json(200, json!({"account": "acc-1", "regions": [{"name": "north", "open": true}]}))
                }
                ("GET", list) if list.starts_with("/v1/machines") => {
                    Reply::json(200, json!({"machines": there.iter().collect::<Vec<_>>(), "next": null}))
                }
                ("PUT", path) => {
                    let mut machine: Value = serde_json::from_slice(&asked.body).unwrap();
                    assert!(machine["password"].as_str().unwrap().len() >= 24);
                    machine["name"] = path.rsplit('/').next().unwrap().into();
                    machine["region"] = "north".into();
                    machine["state"] = "booting".into();
                    *there = Some(machine.clone());
                    Reply::json(201, machine)
                }
                ("GET", _) => match &*there {
                    Some(machine) => Reply::json(200, machine.clone()),
                    None => Reply::json(404, json!({})),
                },
                ("DELETE", _) => Reply::json(202, there.take().unwrap()),
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    let (dir, file) = folder(&format!("http://{}", server.address), "secrets-nowhere");
    let dir = dir.path().to_owned();
    let login = dir.join("login");
    fs::write(&login, "pxuser:a-password-of-some-length-5c2e\n").unwrap();
    let call = |function: &str, more: &[&str]| {
        let common = ["call", file.to_str().unwrap(), function, "--provider", "provider.yaml", "-o", "json"];
        let run = plugin(&dir, &[&common[..], &["--login-file", "login"], more].concat());
        let shown = all(&run);
        assert!(!shown.contains(TOKEN) && !shown.contains("a-password-of-some-length"), "{shown}");
        let answer = serde_json::from_slice::<Value>(&run.stdout).unwrap_or_else(|e| panic!("{e}: {shown}"));
        (run.status.code(), answer, text(&run.stderr))
    };
    let (status, placed, _) = call("place", &[]);
    assert_eq!((status, &placed["placement"]), (Some(0), &json!("north@acc-1")));
    let at = ["--placement", "north@acc-1"];
    let (status, made, log) = call("create", &at);
    assert_eq!((status, &made["state"], &made["incarnation"]), (Some(0), &json!("creating"), &json!(0)), "{made}");
    assert!(log.contains("login") && log.contains("[redacted]"), "the guest's log goes to stderr: {log}");
    assert_eq!(call("get", &at).1["present"]["provider-id"], made["provider-id"]);
    assert_eq!(call("list-instances", &["--installation", "plugin-call"]).1["instances"][0]["state"], "creating");
    assert!(call("delete", &at).1["in-progress"].is_object());
    assert_eq!(call("delete", &at).1, json!("gone"));
    assert_eq!(call("get", &at).1, json!("absent"));
    assert_eq!(call("check", &[]).1["findings"][0]["target"], "north");
    assert_eq!(call("validate", &[]).1, json!({"valid": true}));

    let (status, refused, _) = call("validate", &["--size", "huge", "--protocol", "socks5"]);
    assert_eq!((status, &refused["error"]["kind"]), (Some(1), &json!("invalid-spec")));
    assert_eq!(refused["error"]["fields"][0]["pointer"], "/size");
    assert_eq!(refused["error"]["fields"][1]["pointer"], "/protocol");
    let (status, other, _) = call("get", &["--placement", "north@acc-2"]);
    assert_eq!((status, &other["error"]["reason"]), (Some(1), &json!("BackendChanged")));
    assert_eq!(other["error"]["target"], "north");

    let run = plugin(&dir, &["call", file.to_str().unwrap(), "get", "--provider", "provider.yaml"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("give --placement"), "{}", all(&run));
}

#[test]
fn check_tells_good_refused_and_not_run_apart() {
    let dir = tempfile::tempdir().unwrap();
    let good = plugin(dir.path(), &["check", file_of("sandbox").to_str().unwrap()]);
    let out = text(&good.stdout);
    assert_eq!(good.status.code(), Some(0), "{}", all(&good));
    for part in [
        "contract      crawl:provider@0.1.0; this operator serves crawl:provider@0.1.0",
        "import        crawl:provider/http@0.1.0: served as @0.1.0",
        "fits one ConfigMap",
        "MiB of memory for",
    ] {
        assert!(out.contains(part), "{out}\n-- does not say --\n{part}");
    }
    let refused = plugin(dir.path(), &["check", file_of("wrong-version").to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1), "{}", all(&refused));
    assert!(text(&refused.stderr).contains("built against crawl:provider@0.2.0"), "{}", all(&refused));
    assert_eq!(plugin(dir.path(), &["check", "none.wasm"]).status.code(), Some(2));
    assert_eq!(plugin(dir.path(), &["check"]).status.code(), Some(2));
}

#[test]
fn a_new_plugin_builds_outside_this_repository_and_passes() {
    let dir = tempfile::tempdir().unwrap();
    let made = plugin(dir.path(), &["new", "my-cloud"]);
    assert_eq!(made.status.code(), Some(0), "{}", all(&made));
    let krate = dir.path().join("my-cloud");
    proxy_operator_tests::authors::build(&krate);
    let checked = plugin(&krate, &["check", "my-cloud.wasm"]);
    assert_eq!(checked.status.code(), Some(0), "{}", all(&checked));
    assert!(text(&checked.stdout).contains("my-cloud 0.1.0"), "{}", all(&checked));
    let size = fs::metadata(krate.join("my-cloud.wasm")).unwrap().len();
    assert!(size < 512 << 10, "{size} bytes");
    let args = ["test", "my-cloud.wasm", "--provider", "provider.yaml", "--script", "tests/backend.yaml"];
    let tested = plugin(&krate, &args);
    assert_eq!(tested.status.code(), Some(0), "{}", all(&tested));
    assert!(text(&tested.stdout).contains("0 failed, 1 not applicable"), "{}", all(&tested));
    let again = plugin(dir.path(), &["new", "my-cloud"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("is not empty"), "{}", all(&again));
}
