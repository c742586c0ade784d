//! The sandbox cloud misbehaves: each fault has its kind and its reason.

use std::time::Duration;

use proxy_operator::model::error::{CallError, ErrorKind};
use proxy_operator::model::instance::{Presence, Request, State};
use proxy_operator_tests::plugins::{Setup, identity, present, request, soon};
use serde_json::json;

use crate::sandbox::{Cloud, TOKEN};

async fn placed(cloud: &Cloud, name: &str) -> Request {
    let mut wanted = request(name, "");
    wanted.identity.placement = cloud.handle.place(&wanted, &[]).await.expect("there is room");
    wanted
}

fn assert_error(error: &CallError, kind: ErrorKind, reason: &str) {
    assert_eq!((&error.kind, error.reason.as_str()), (&kind, reason), "{error}");
}

#[tokio::test]
async fn a_used_up_quota_is_exhausted_and_names_its_zone() {
    let cloud = Cloud::start().await;
    let wanted = placed(&cloud, "a").await;
    cloud.faults(json!([{"kind": "quota", "times": 1}])).await;
    let error = cloud.handle.create(&wanted).await.expect_err("the quota is used up");
    assert_error(&error, ErrorKind::Exhausted, "QuotaExceeded");
    assert_eq!(error.target.as_deref(), wanted.identity.placement.split('@').next());
    let elsewhere = cloud.handle.place(&wanted, std::slice::from_ref(&wanted.identity.placement)).await;
    assert_ne!(elsewhere.expect("the other zone"), wanted.identity.placement);
    cloud.handle.create(&wanted).await.expect("the quota is free again");
}

#[tokio::test]
async fn a_rate_limit_says_how_long_to_wait() {
    let cloud = Cloud::start().await;
    let wanted = placed(&cloud, "a").await;
    cloud.faults(json!([{"kind": "rate-limit", "retryAfter": 7}])).await;
    let kind = || ErrorKind::RateLimited(Some(Duration::from_secs(7)));
    assert_error(&cloud.handle.create(&wanted).await.expect_err("limited"), kind(), "RateLimited");
    assert_error(&cloud.handle.get(&wanted.identity).await.expect_err("limited"), kind(), "RateLimited");
    assert_error(&cloud.handle.list().await.expect_err("limited"), kind(), "RateLimited");
}

#[tokio::test]
async fn a_failing_server_is_transient_and_nothing_is_taken_for_absent() {
    let cloud = Cloud::start().await;
    let made = cloud.running("a").await;
    cloud.faults(json!([{"kind": "server-error"}])).await;
    let asked = identity("a", &made.placement);
    for error in [
        cloud.handle.get(&asked).await.expect_err("500"),
        cloud.handle.delete(&asked).await.expect_err("500"),
        cloud.handle.create(&request("a", &made.placement)).await.expect_err("500"),
        cloud.handle.list().await.expect_err("500"),
        cloud.handle.check().await.expect_err("500"),
    ] {
        assert_error(&error, ErrorKind::Transient, "ServerError");
    }
}

#[tokio::test]
async fn a_lost_answer_leaves_the_outcome_unknown_and_get_finds_it() {
    let cloud = Cloud::start().await;
    let wanted = placed(&cloud, "a").await;
    cloud.faults(json!([{"kind": "lost-answer", "times": 1}])).await;
    let error = cloud.handle.create(&wanted).await.expect_err("the answer is lost");
    assert_error(&error, ErrorKind::UnknownOutcome, "ConnectionLost");
    let found = present(cloud.handle.get(&wanted.identity).await.expect("the cloud answers"));
    let again = cloud.handle.create(&wanted).await.expect("a repeat meets what the first one made");
    assert_eq!(found.backend_id, again.backend_id);

    cloud.faults(json!([{"kind": "lost-answer", "times": 1}])).await;
    let error = cloud.handle.delete(&wanted.identity).await.expect_err("the answer is lost");
    assert_error(&error, ErrorKind::UnknownOutcome, "ConnectionLost");
    soon("the deletion", async {
        while cloud.handle.get(&wanted.identity).await.expect("the cloud answers") != Presence::Absent {}
    })
    .await;
}

#[tokio::test]
async fn an_answer_later_than_the_deadline_leaves_the_outcome_unknown() {
    let cloud = Cloud::start().await;
    let wanted = placed(&cloud, "a").await;
    let setup = Setup::new().bearer("cloud", cloud.address, TOKEN).call_timeout(1);
    let hasty = setup.handle("sandbox").await;
    let zone = wanted.identity.placement.split('@').next().expect("a zone");
    // Of this zone's requests alone: the look at the cloud before the create is answered.
    cloud.faults(json!([{"kind": "slow-answer", "delayMs": 20_000, "match": zone}])).await;
    let error = hasty.create(&wanted).await.expect_err("too late");
    assert_error(&error, ErrorKind::UnknownOutcome, "OutcomeUnknown");
    let error = hasty.get(&wanted.identity).await.expect_err("too late");
    assert_error(&error, ErrorKind::Transient, "CallTimedOut");
    cloud.faults(json!([])).await;
    assert_eq!(cloud.handle.list().await.map(|all| all.len()), Ok(1), "it was carried out all the same");
}

#[tokio::test]
async fn boots_that_fail_or_take_long_are_states_and_no_errors() {
    let cloud = Cloud::start().await;
    cloud.faults(json!([{"kind": "failed-boot", "match": "bad"}, {"kind": "slow-boot", "match": "slow"}])).await;
    for name in ["bad", "slow"] {
        cloud.handle.create(&placed(&cloud, name).await).await.expect("it is made");
    }
    let all = soon("a failed boot", async {
        loop {
            let all = cloud.handle.list().await.expect("the cloud answers");
            if all.iter().any(|found| matches!(found.state, State::Failed(_))) {
                return all;
            }
        }
    })
    .await;
    for found in all {
        match found.owner.expect("an owner").name.as_str() {
            "bad" => assert!(matches!(&found.state, State::Failed(why) if !why.is_empty()), "{:?}", found.state),
            _ => assert_eq!(found.state, State::Creating),
        }
    }
}

#[tokio::test]
async fn an_instance_that_vanished_is_absent() {
    let cloud = Cloud::start().await;
    let made = cloud.running("a").await;
    cloud.faults(json!([{"kind": "vanish"}])).await;
    assert_eq!(cloud.handle.get(&identity("a", &made.placement)).await, Ok(Presence::Absent));
    assert_eq!(cloud.handle.list().await, Ok(vec![]));
}

#[tokio::test]
async fn a_wrong_token_is_unauthorized() {
    let cloud = Cloud::start().await;
    let made = cloud.running("a").await;
    let stranger = Setup::new().bearer("cloud", cloud.address, "not-the-token").handle("sandbox").await;
    for error in [
        stranger.get(&identity("a", &made.placement)).await.expect_err("401"),
        stranger.list().await.expect_err("401"),
        stranger.place(&request("b", ""), &[]).await.expect_err("401"),
    ] {
        assert_error(&error, ErrorKind::Unauthorized, "AuthRefused");
    }
}

#[tokio::test]
async fn a_cloud_that_is_down_is_transient() {
    let mut cloud = Cloud::start().await;
    let made = cloud.running("a").await;
    cloud.stop().await;
    for error in [
        cloud.handle.get(&identity("a", &made.placement)).await.expect_err("nobody listens"),
        cloud.handle.delete(&identity("a", &made.placement)).await.expect_err("nobody listens"),
        cloud.handle.create(&request("a", &made.placement)).await.expect_err("nobody listens"),
    ] {
        assert_eq!(error.kind, ErrorKind::Transient, "{error}");
    }
}

#[tokio::test]
async fn a_place_that_the_plugin_never_made_is_config_missing() {
    let cloud = Cloud::start().await;
    for placement in ["zone-a", "@", "zone-a@"] {
        let error = cloud.handle.get(&identity("a", placement)).await.expect_err("no such form");
        assert_error(&error, ErrorKind::ConfigMissing, "PlacementUnknown");
    }
    let made = cloud.running("a").await;
    let elsewhere = made.placement.replace("zone-a", "zone-x").replace("zone-b", "zone-x");
    let error = cloud.handle.get(&identity("a", &elsewhere)).await.expect_err("no such zone");
    assert_error(&error, ErrorKind::ConfigMissing, "ZoneMissing");
}
