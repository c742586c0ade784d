//! The plugin `static` and the random bytes of `echo`: what takes one call to see.

use std::collections::BTreeSet;

use proxy_operator::model::error::ErrorKind;
use proxy_operator::model::instance::{Deletion, ONE_PER_PLACE};
use proxy_operator_tests::plugins::{Setup, identity, loaded, login, present, request};
use serde_json::{Value, json};

fn entries() -> Value {
    json!({"proxies": [
        {"name": "de-1", "host": "203.0.113.10", "port": 3128, "location": "de", "loginSecret": "upstream"},
        {"name": "de-2", "host": "203.0.113.11", "port": 3128, "location": "de", "loginSecret": "upstream"},
        {"name": "fr-1", "host": "203.0.113.20", "port": 3128, "location": "fr", "loginSecret": "upstream"},
    ]})
}

#[tokio::test]
async fn no_entry_is_handed_out_twice_while_it_is_avoided() {
    let handle = Setup::new().config(entries()).handle("static").await;
    assert!(handle.plugin().description.has(ONE_PER_PLACE));
    let mut held = vec![];
    for name in ["a", "b", "c"] {
        let place = handle.place(&request(name, ""), &held).await.expect("an entry is free");
        assert!(!held.contains(&place), "{place} twice");
        held.push(place);
    }
    assert_eq!(held, ["de-1@203.0.113.10:3128", "de-2@203.0.113.11:3128", "fr-1@203.0.113.20:3128"]);
    let error = handle.place(&request("d", ""), &held).await.expect_err("all are held");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Exhausted, "NoEntry"), "{error}");
}

#[tokio::test]
async fn an_entry_is_an_instance_with_its_own_login() {
    let handle = Setup::new().config(entries()).secret("upstream", "user:opensesame").handle("static").await;
    let mut wanted = request("a", "");
    wanted.location = Some("fr".into());
    wanted.identity.placement = handle.place(&wanted, &[]).await.expect("there is one in fr");
    wanted.login = Some(login("pxUser", "unused-password"));
    let made = handle.create(&wanted).await.expect("the entry is there");
    assert_eq!((made.addresses[0].host.as_str(), made.port), ("203.0.113.20", Some(3128)));
    assert_eq!(made.login_secret.as_deref(), Some("upstream"));
    let used = handle.granted_login("upstream").await.expect("it is granted");
    assert_eq!((used.username.as_str(), used.password.expose_line()), ("user", Some("opensesame")));
    assert_eq!(present(handle.get(&wanted.identity).await.expect("it is listed")).provider_id, made.provider_id);
    assert_eq!(handle.delete(&wanted.identity).await, Ok(Deletion::Gone));
    assert_eq!(handle.list().await, Ok(vec![]));
}

#[tokio::test]
async fn an_entry_that_was_edited_away_is_config_missing_and_never_absent() {
    let handle = Setup::new().config(entries()).handle("static").await;
    for (placement, reason) in [("de-1@198.51.100.1:3128", "EntryChanged"), ("it-1@203.0.113.30:3128", "EntryMissing")]
    {
        let error = handle.get(&identity("a", placement)).await.expect_err("it is not as it was");
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, reason), "{error}");
    }
}

#[tokio::test]
async fn a_login_secret_that_is_not_granted_is_told_from_one_that_is_missing() {
    let setup = Setup::new().config(entries());
    let mut wanted = request("a", "de-1@203.0.113.10:3128");
    wanted.login = Some(login("pxUser", "unused-password"));
    let error = setup.handle("static").await.create(&wanted).await.expect_err("no grant");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, "SecretNotGranted"), "{error}");

    let mut setup = setup.secret("upstream", "user:opensesame");
    setup.vault = Default::default();
    let error = setup.handle("static").await.create(&wanted).await.expect_err("no Secret");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, "SecretMissing"), "{error}");
}

#[tokio::test]
async fn config_and_request_are_refused_field_by_field() {
    let handle = Setup::new().config(entries()).handle("static").await;
    let mut wanted = request("a", "");
    (wanted.image, wanted.location) = (Some("debian".into()), Some("mars".into()));
    let errors = handle.validate(Some(&wanted)).await.expect("the call works").expect_err("two fields are wrong");
    let pointers: Vec<_> = errors.iter().map(|error| error.pointer.as_str()).collect();
    assert_eq!(pointers, ["/image", "/location"]);
    assert!(errors[1].message.contains("accepted: de, fr"), "{}", errors[1]);
    assert_eq!(handle.validate(Some(&request("a", ""))).await, Ok(Ok(())));
}

#[tokio::test]
async fn random_bytes_differ_between_instances() {
    let handle = Setup::new().handle("echo").await;
    let mut places = BTreeSet::new();
    for _ in 0..20 {
        places.insert(handle.place(&request("a", ""), &[]).await.expect("echo has room"));
    }
    assert_eq!(places.len(), 20, "{places:?}");
}

#[tokio::test]
async fn every_plugin_of_ours_says_what_it_is() {
    for name in ["sandbox", "static", "echo"] {
        let plugin = loaded(name).await;
        let description = &plugin.description;
        assert_eq!((description.name.as_str(), plugin.contract.as_str()), (name, "0.1.0"));
        assert!(plugin.digest.starts_with("sha256:") && plugin.digest.len() == 71, "{}", plugin.digest);
        assert!(!description.version.is_empty() && !plugin.description.summary.is_empty());
        assert!(plugin.size < 512 << 10, "{name} has {} bytes", plugin.size);
    }
}
