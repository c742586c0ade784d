//! Wrong objects, as people with kubectl see them: a condition and an event that name object and remedy, and no trace left.

use proxy_operator_tests::kube_lab::{Lab, pack};
use proxy_operator_tests::root;

const HEAD: &str = "apiVersion: crawl.example.com/v1alpha1\nkind";

/// What is applied, as which object, and what its condition and event say.
struct Wrong {
    object: &'static str,
    manifest: String,
    reason: &'static str,
    says: &'static str,
}

fn all(lab: &Lab) -> Vec<Wrong> {
    let demo = lab.provider();
    let of_demo = |name: &str, edit: &dyn Fn(&str) -> String| {
        let (_, provider) = demo.split_once("---\n").unwrap();
        edit(&provider.replace("{name: demo}", &format!("{{name: {name}}}")))
    };
    let proxy = |name: &str, spec: &str| {
        format!("{HEAD}: Proxy\nmetadata: {{name: {name}, namespace: default}}\nspec: {{{spec}}}\n")
    };
    vec![
        Wrong {
            object: "pxp/of-nowhere",
            manifest: format!(
                "{HEAD}: Provider\nmetadata: {{name: of-nowhere}}\nspec: {{plugin: {{name: nowhere}}}}\n"
            ),
            reason: "PluginMissing",
            says: "nowhere.wasm",
        },
        Wrong {
            object: "pxp/refused",
            manifest: of_demo("refused", &|p| format!("{p}  config: {{zones: 5}}\n")),
            reason: "ConfigInvalid",
            says: "/config/zones",
        },
        Wrong {
            object: "pxp/bare",
            manifest: format!("{HEAD}: Provider\nmetadata: {{name: bare}}\nspec: {{plugin: {{name: sandbox}}}}\n"),
            reason: "ConnectionMissing",
            says: "cloud",
        },
        Wrong {
            object: "pxp/poor",
            manifest: of_demo("poor", &|p| p.replace("{name: cloud, key: token}", "{name: nothing, key: token}")),
            reason: "SecretMissing",
            says: "Secret nothing does not exist",
        },
        Wrong {
            object: "pxp/thief",
            manifest: of_demo("thief", &|p| {
                p.replace("{name: cloud, key: token}", "{name: proxy-operator-key, key: login}")
            }),
            reason: "PermissionDenied",
            says: "crawl.example.com/provider-secret",
        },
        Wrong {
            object: "px/lost",
            manifest: proxy("lost", "provider: nobody"),
            reason: "ProviderMissing",
            says: "Provider nobody does not exist: create it",
        },
        Wrong {
            object: "px/typo",
            manifest: proxy("typo", "provider: demo, parameters: {botMs: 5}"),
            reason: "InvalidSpec",
            says: "botMs",
        },
        Wrong {
            object: "px/keyless",
            manifest: proxy("keyless", "provider: demo, auth: {mode: secret, secretRef: {name: nothing}}"),
            reason: "SecretMissing",
            says: "Secret nothing does not exist in namespace default",
        },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_wrong_object_has_a_condition_and_an_event_that_say_what_to_do() {
    let Some(lab) = Lab::start().await else { return };
    let api = &lab.api;
    api.run(&["apply", "-f", "-"], Some(&lab.provider()));
    api.run(&["apply", "--server-side", "-f", "-"], Some(&pack(&root().join("bin/plugins/sandbox.wasm"))));
    lab.wait_for("condition=Ready", "pxp/demo");
    let wrong = all(&lab);
    for Wrong { manifest, .. } in &wrong {
        api.run(&["apply", "-f", "-"], Some(manifest));
    }
    let condition = |part: &str| format!("jsonpath={{.status.conditions[?(@.type==\"Ready\")].{part}}}");
    for Wrong { object, reason, says, .. } in &wrong {
        lab.wait_for(&format!("{}={reason}", condition("reason")), object);
        let message = api.run(&["get", object, "-o", &condition("message")], None);
        assert!(message.contains(says), "{object}: {message}");
        let (kind, name) = object.split_once('/').unwrap();
        // Events about what has no namespace are in `default` too.
        lab.wait_event("default", reason, name, says);
        let described = api.run(&["describe", kind, name], None);
        assert!(described.contains(says) && described.contains("Events:"), "{described}");
    }
    // Nothing was ever made, so that each goes at once and asks nobody.
    for Wrong { object, .. } in &wrong {
        api.run(&["delete", object, "--timeout=30s"], None);
    }
    assert_eq!(lab.machines().await, 0);
}
