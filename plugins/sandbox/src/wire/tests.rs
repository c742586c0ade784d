use super::*;
use crawl_provider_sdk::{ErrorKind, testing};
use serde_json::{Value, json};

fn mk_json(state: &str) -> Value {
    let owner = testing::identity().owner;
    json!({
        "id": "i-7", "name": "px-x-0", "zone": "zone-a", "cloudId": "c1", "state": state, "message": "", "port": 41234,
        "host": "127.0.0.1", "incarnation": 0, "specHash": "h", "createdAt": 1_790_000_000,
        "owner": {"installation": owner.installation, "proxyUid": owner.proxy_uid, "namespace": "team", "name": "p"},
    })
}

fn mk_instance(state: &str) -> Instance {
    serde_json::from_value(mk_json(state)).unwrap()
}

#[test]
fn states_are_mapped() {
    let cases = [
        ("booting", State::Creating, Some(POLL_AFTER_MS)),
        ("running", State::Running, None),
        ("stopped", State::Stopped, None),
        ("failed", State::Failed("the cloud gives no reason".into()), None),
        ("deleting", State::Deleting, Some(POLL_AFTER_MS)),
        ("melting", State::Unknown("the cloud calls it melting".into()), None),
    ];
    for (said, state, poll) in cases {
        let instance = mk_instance(said).into_instance();
        assert_eq!((instance.state, instance.poll_after_ms), (state, poll), "{said}");
    }
}

#[test]
fn an_instance_is_taken_over_whole() {
    let instance = mk_instance("running").into_instance();
    assert_eq!(instance.provider_id, "sandbox://zone-a@c1/px-x-0");
    assert_eq!(instance.placement, "zone-a@c1");
    assert_eq!(instance.backend_id.as_deref(), Some("i-7"));
    assert_eq!((instance.port, instance.created_at), (Some(41234), Some(1_790_000_000)));
    assert_eq!(instance.addresses, [Address { host: "127.0.0.1".into(), reach: Reach::External }]);
    assert_eq!((instance.incarnation, instance.message), (Some(0), None));
}

#[test]
fn without_a_port_there_is_no_address() {
    let mut json = mk_json("booting");
    json["port"] = Value::Null;
    let instance = serde_json::from_value::<Instance>(json).unwrap().into_instance();
    assert!(instance.addresses.is_empty() && instance.port.is_none());
}

#[test]
fn ours_is_decided_by_installation_and_uid_only() {
    let mut owner = testing::identity().owner;
    owner.name = "renamed".into();
    mk_instance("running").check_owner(&owner).unwrap();
    owner.installation = "installation-2".into();
    assert_eq!(mk_instance("running").check_owner(&owner).unwrap_err().kind, ErrorKind::Foreign);
    let mut owner = testing::identity().owner;
    owner.proxy_uid = "another".into();
    assert_eq!(mk_instance("running").check_owner(&owner).unwrap_err().kind, ErrorKind::Foreign);
}

#[test]
fn a_page_keeps_its_cursor() {
    let json = json!({"instances": [mk_json("running"), mk_json("deleting")], "next": "c"});
    let page = serde_json::from_value::<Listing>(json).unwrap().into_page("installation-1");
    assert_eq!((page.instances.len(), page.next.as_deref()), (2, Some("c")));
}
