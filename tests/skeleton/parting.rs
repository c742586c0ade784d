//! Providers go when nothing of theirs is left; what is nobody's is collected, and what was given up is not.

use proxy_operator_tests::lab::{Lab, condition, is_ready, proxy};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_stays_while_it_is_used_and_goes_when_what_is_left_was_collected() {
    let lab = Lab::without_provider().await;
    // Nothing that was sent can land after 30 s and this.
    lab.put("provider.yaml", &lab.provider("demo", "  limits: {callTimeout: 1s}\n"));
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_proxy("a", is_ready).await;
    lab.command(&["delete", "provider", "demo", "--wait=false"]);
    lab.wait_provider("demo", |p| condition(p).is_some_and(|c| c.reason == "InUse")).await;
    lab.put("b.yaml", &proxy("b", ""));
    assert!(lab.wait_reason("b", "ProviderDeleting").await.message.contains("nothing is made any more"));

    let machine = lab.machines().await.remove(0);
    // As a leader leaves it that woke up late: another incarnation, under its own name.
    let name = machine["name"].as_str().unwrap().strip_suffix('0').unwrap().to_owned() + "1";
    let body = json!({"owner": machine["owner"], "incarnation": 1, "specHash": "h", "protocol": "http"});
    lab.make_machine(machine["zone"].as_str().unwrap(), &name, body).await;
    lab.command(&["delete", "proxy", "b", "--wait=false"]);
    lab.command(&["delete", "proxy", "a", "--wait=false"]);
    lab.wait_provider("demo", |p| condition(p).is_some_and(|c| c.reason == "CreatesMayLand")).await;
    lab.wait_event("OrphanFound", "demo").await;
    lab.wait_event("OrphanDeleted", "demo").await;
    lab.wait_parted("demo").await;
    assert_eq!(lab.machines().await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_is_left_where_it_is_and_listed_until_it_is_forgotten() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_proxy("a", is_ready).await;
    let given_up = |name: &str| {
        format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}, annotations: {{crawl.example.com/skip-cleanup: 'true'}}}}\nspec: {{provider: demo}}\n"
        )
    };
    lab.put("a.yaml", &given_up("a"));
    lab.wait_proxy("a", |p| proxy_operator::model::is_annotated(p, proxy_operator::model::SKIP_CLEANUP)).await;
    lab.command(&["delete", "proxy", "a", "--wait=false"]);
    assert!(lab.wait_event("Abandoned", "default/a").await.contains("nobody deletes what is left of it"));
    let listed = lab.command(&["abandoned", "list"]);
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[1..3], ["default/a", "demo"], "{listed}");

    assert_eq!(lab.machines().await.len(), 1);
    lab.command(&["abandoned", "forget", row[0]]);
    assert_eq!(lab.command(&["abandoned", "list"]).lines().count(), 1);
}
