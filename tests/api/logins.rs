//! Logins from Secrets and into them.

use proxy_operator_tests::kube_lab::{Lab, pack};
use proxy_operator_tests::root;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn logins_come_from_a_secret_and_go_into_one() {
    let Some(lab) = Lab::start().await else { return };
    let api = &lab.api;
    api.run(&["apply", "-f", "-"], Some(&lab.provider()));
    api.run(&["apply", "--server-side", "-f", "-"], Some(&pack(&root().join("bin/plugins/sandbox.wasm"))));
    lab.wait_for("condition=Ready", "pxp/demo");
    let proxy = |name: &str, auth: &str| {
        let head = "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata";
        api.run(
            &["apply", "-f", "-"],
            Some(&format!("{head}: {{name: {name}, namespace: default}}\nspec: {{provider: demo, auth: {auth}}}\n")),
        );
    };
    // A derived login is published, owned by its Proxy.
    proxy("derived", "{publishSecret: derived-login}");
    lab.wait_for("condition=Ready", "px/derived");
    lab.wait_for("jsonpath={.metadata.ownerReferences[0].name}=derived", "secret/derived-login");
    let username = api.run(&["get", "secret", "derived-login", "-o", "jsonpath={.data.username}"], None);
    assert!(!username.is_empty());

    // A Secret that is not there is named; once it is there, its login is the proxy's.
    proxy("given", "{mode: secret, secretRef: {name: own-login}}");
    lab.wait_for("jsonpath={.status.conditions[-1].reason}=SecretMissing", "px/given");
    api.run(
        &[
            "create",
            "secret",
            "generic",
            "own-login",
            "--from-literal=username=ann",
            "--from-literal=password=0wnP4ssw0rd",
        ],
        None,
    );
    // Nobody has to touch the Proxy for that.
    lab.wait_for("condition=Ready", "px/given");
    let request = lab.client.post(format!("{}/v1/leases", lab.rest)).bearer_auth(&lab.token);
    let wish = json!({"ttlSeconds": 60, "exclude": ["default/derived"]});
    let lease: Value = request.body(wish.to_string()).send().await.unwrap().json().await.unwrap();
    assert_eq!((lease["username"].as_str(), lease["password"].as_str()), (Some("ann"), Some("0wnP4ssw0rd")), "{lease}");

    let path = format!("{}/v1/leases/{}", lab.rest, lease["id"].as_str().unwrap());
    assert!(lab.client.delete(path).bearer_auth(&lab.token).send().await.unwrap().status().is_success());

    // A changed login replaces the proxy that was made with the last one.
    let incarnation = "jsonpath={.status.instance.incarnation}";
    assert_eq!(api.run(&["get", "px", "given", "-o", incarnation], None), "0");
    let status = api.run(&["get", "px", "given", "-o", "jsonpath={.status}"], None);
    assert!(!status.contains("0wnP4ssw0rd"), "{status}");
    api.run(&["patch", "secret", "own-login", "-p", r#"{"stringData":{"password":"An0therP4ss"}}"#], None);
    api.run(&["annotate", "px", "given", "look=again"], None);
    lab.wait_for("jsonpath={.status.instance.incarnation}=1", "px/given");
    lab.wait_for("condition=Ready", "px/given");

    // Somebody else's Secret is left alone, and an event says so.
    proxy("given", "{mode: secret, secretRef: {name: own-login}, publishSecret: own-login}");
    lab.wait_event("default", "PublishFailed", "given", "is not this Proxy's");
    lab.wait_event("default", "LoginPublished", "derived", "is in Secret derived-login");
    assert_eq!(api.run(&["get", "secret", "own-login", "-o", "jsonpath={.metadata.ownerReferences}"], None), "");
}
