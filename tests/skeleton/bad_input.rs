//! Whatever people put in place: refused or ended with its own clear reason, while everything else keeps running.

use proxy_operator::model::condition::Status;
use proxy_operator::model::provider::Provider;
use proxy_operator_tests::bad_plugins::{BadPlugin, bad_plugins, guest};
use proxy_operator_tests::lab::{Lab, condition, condition_of, is_ready, proxy, proxy_of, text, wish};

fn provider_of(plugin: &str) -> String {
    format!(
        "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {{name: of-{plugin}}}\nspec: {{plugin: {{name: {plugin}}}}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_plugins_are_refused_each_with_its_own_reason_and_nothing_else_stops() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    let all = bad_plugins();
    for BadPlugin { name, bytes, .. } in &all {
        lab.put_plugin(&format!("{name}.wasm"), bytes);
        lab.put(&format!("of-{name}.yaml"), &provider_of(name));
    }
    for BadPlugin { name, says, .. } in &all {
        let refused = |p: &Provider| condition(p).is_some_and(|c| c.reason == "PluginRefused");
        let ready = condition(&lab.wait_provider(&format!("of-{name}"), refused).await).unwrap();
        assert_eq!(ready.status, Status::False);
        assert!(ready.message.contains(says), "{name}: {}", ready.message);
        assert!(ready.message.contains(&format!("plugin {name} from ")), "{}", ready.message);
    }
    // Everything else keeps running.
    let lease = lab.lease(wish(60)).await;
    assert!(lab.fetch_through(&text(&lease, "url")).await.contains("Your request came from"));
    lab.put("b.yaml", &proxy("b", ""));
    lab.wait_ready(&["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_upload_leaves_the_running_version_in_place_and_says_so() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    let good = std::fs::read(lab.path("plugins/sandbox.wasm")).unwrap();
    lab.put_plugin("sandbox.wasm", &good[..good.len() - 100]);
    let provider = lab.wait_provider("demo", |p| condition(p).is_some_and(|c| c.reason == "PluginRefused")).await;
    let ready = condition(&provider).unwrap();
    assert_eq!(ready.status, Status::True, "Ready keeps its status");
    assert!(
        ready.message.contains("goes on serving") && ready.message.contains("broken or cut off"),
        "{}",
        ready.message
    );
    lab.put("b.yaml", &proxy("b", ""));
    lab.wait_ready(&["a", "b"]).await;
    lab.put_plugin("sandbox.wasm", &good);
    lab.wait_provider("demo", |p| condition(p).is_some_and(|c| c.reason == "Ready")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_loops_eats_memory_or_panics_in_a_call_hurts_itself_alone() {
    let lab = Lab::start().await;
    for (name, expected) in [
        ("loop-get", "it was still computing"),
        ("memory-get", "it hit its memory limit"),
        ("panic-get", "it panicked"),
    ] {
        lab.put_plugin(&format!("{name}.wasm"), &guest(name));
        lab.put(&format!("of-{name}.yaml"), &provider_of(name).replace("}}\n", "}, limits: {callTimeout: 2s}}\n"));
        lab.wait_provider(&format!("of-{name}"), |p| condition(p).is_some_and(|c| c.status == Status::True)).await;
        lab.put(&format!("p-{name}.yaml"), &proxy_of(&format!("of-{name}"), &format!("p-{name}"), ""));
        lab.wait_proxy(&format!("p-{name}"), |p| p.status.as_ref().is_some_and(|s| s.instance.is_some())).await;
        // A deletion asks first, and when asking fails three times running, deletes all the same.
        lab.command(&["delete", "proxy", &format!("p-{name}"), "--wait=false"]);
        let ready = lab.wait_reason(&format!("p-{name}"), "PluginFault").await;
        assert!(
            ready.message.contains(expected) && ready.message.contains(&format!("plugin {name}, get")),
            "{}",
            ready.message
        );
    }
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    lab.wait("the others are gone", async |lab| (lab.proxies().await.len() == 1).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_objects_get_a_condition_that_names_the_object_and_the_remedy() {
    let lab = Lab::start().await;
    lab.put("unknown.yaml", &provider_of("nowhere"));
    let provider = lab.wait_provider("of-nowhere", |p| condition(p).is_some()).await;
    let ready = condition(&provider).unwrap();
    assert_eq!(ready.reason, "PluginMissing");
    assert!(
        ready.message.contains("put nowhere.wasm into the plugin folder") && ready.message.contains("sandbox, static"),
        "{}",
        ready.message
    );

    lab.put("refused.yaml", &lab.provider("refused", "  config: {zones: 5}\n"));
    let provider = lab.wait_provider("refused", |p| condition(p).is_some()).await;
    let ready = condition(&provider).unwrap();
    assert_eq!(ready.reason, "ConfigInvalid");
    assert!(ready.message.contains("/config/zones"), "{}", ready.message);

    lab.put("no-connection.yaml", "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: bare}\nspec: {plugin: {name: sandbox}}\n");
    let provider = lab.wait_provider("bare", |p| condition(p).is_some()).await;
    assert_eq!(condition(&provider).unwrap().reason, "ConnectionMissing");

    for (name, more, reason, says) in [
        ("typo", "  bootstrap: 'password: {{pasword}}'\n", "BootstrapInvalid", "{{password}}"),
        ("files", "  files: nowhere\n", "FilesMissing", "--plugin-files"),
        (
            "user",
            "    shell: {ssh: {host: backend.example, user: 'a b', key: {file: /a}, knownHosts: {file: /b}}}\n",
            "ConnectionInvalid",
            "no account's name",
        ),
    ] {
        lab.put(&format!("{name}.yaml"), &lab.provider(name, more));
        let ready = condition(&lab.wait_provider(name, |p| condition(p).is_some()).await).unwrap();
        assert_eq!(ready.reason, reason, "{}", ready.message);
        assert!(ready.message.contains(says), "{}", ready.message);
    }

    lab.put(
        "no-secret.yaml",
        &lab.provider("poor", "").replace("name: cloud, key: token", "name: nothing, key: token"),
    );
    let provider = lab.wait_provider("poor", |p| condition(p).is_some()).await;
    let ready = condition(&provider).unwrap();
    assert_eq!(ready.reason, "SecretMissing");
    assert!(ready.message.contains("Secret nothing does not exist"), "{}", ready.message);

    lab.put("lost.yaml", &proxy_of("nobody", "lost", ""));
    let ready = lab.wait_reason("lost", "ProviderMissing").await;
    assert!(ready.message.contains("Provider nobody does not exist: create it"), "{}", ready.message);
    // Nothing was ever sent for it: it goes at once.
    lab.command(&["delete", "proxy", "lost", "--wait=false"]);
    lab.wait("it is gone", async |lab| lab.proxy("lost").await.is_none().then_some(())).await;

    lab.put("typo.yaml", &proxy("typo", ", parameters: {botMs: 5}"));
    let ready = lab.wait_reason("typo", "InvalidSpec").await;
    assert!(ready.message.contains("/parameters") && ready.message.contains("botMs"), "{}", ready.message);
    lab.put("typo.yaml", &proxy("typo", ", parameters: {bootMs: 5}"));
    lab.wait_ready(&["typo"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_spec_is_validated_before_anything_that_runs_is_touched() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    let before = lab.wait_proxy("a", is_ready).await.status.unwrap();
    lab.put("a.yaml", &proxy("a", ", image: debian12"));
    let after = lab.wait_proxy("a", |p| condition_of(p, "SpecValid").is_some_and(|c| c.status == Status::False)).await;
    assert_eq!(after.status.as_ref().unwrap().instance, before.instance);
    let lease = lab.lease(wish(60)).await;
    assert!(
        lab.fetch_through(&text(&lease, "url")).await.contains("Your request came from"),
        "the old instance serves on"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_written_or_invalid_manifest_keeps_the_old_object() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    let before = lab.wait_proxy("a", is_ready).await;
    for (text, expected) in [
        ("apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {na", "a.yaml: not valid YAML"),
        (&proxy("a", ", port: 700000"), "/spec/port"),
        (&proxy("a", ", prot: 1"), "/spec/prot: unknown field"),
    ] {
        lab.put("a.yaml", text);
        lab.wait(expected, async |lab| {
            let events = lab.events().await;
            events.last().filter(|e| e.reason == "ManifestRefused" && e.message.contains(expected)).map(|_| ())
        })
        .await;
        let now = lab.proxy("a").await.unwrap();
        assert_eq!((now.spec, now.metadata.generation), (before.spec.clone(), before.metadata.generation));
    }
}
