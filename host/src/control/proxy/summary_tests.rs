//! What the status says, and that saying it twice changes nothing.

use super::*;
use crate::control::proxy::decide::{Answer, Step};
use crate::control::proxy::lab::{Lab, bad, error, gone, healthy, secs};
use crate::model::error::FieldError;
use crate::model::proxy::InstanceStatus;

fn says(lab: &Lab, type_: &str) -> (Status, String) {
    let status = summarize(&lab.proxy, &lab.memory, &lab.facts);
    let condition = find(&status.conditions, type_).unwrap();
    (condition.status, condition.reason.clone())
}

fn labs() -> Vec<(&'static str, Lab)> {
    let mut failing = Lab::serving();
    failing.advance(secs(200));
    failing.on(Call::Get, error(ErrorKind::Transient));
    let mut refused = Lab::creating();
    refused.absorb(Call::Create, error(ErrorKind::InvalidSpec(vec![])));
    let mut replaced = Lab::made(State::Failed("f".into()));
    replaced.on(Call::Delete, gone());
    let mut deleting = Lab::serving();
    deleting.delete();
    deleting.run();
    let mut unhealthy = Lab::serving();
    unhealthy.facts.health = bad(FailureKind::Broken);
    let mut missing = Lab::serving();
    missing.facts.provider = ProviderFacts::Missing;
    let mut unvalidated = Lab::serving();
    unvalidated.proxy.metadata.generation = Some(2);
    unvalidated.on(Call::Validate, error(ErrorKind::Transient));
    let mut paused = Lab::new();
    paused.proxy.spec.paused = true;
    let mut nowhere = Lab::made(State::Running);
    if let Some(status) = &mut nowhere.proxy.status {
        (status.endpoint, status.address) = (None, None);
    }
    let mut full = Lab::creating();
    full.absorb(Call::Create, error(ErrorKind::Exhausted));
    let mut old = Lab::serving();
    if let Some(status) = &mut old.proxy.status {
        status.next = Some(InstanceStatus { incarnation: 1, ..InstanceStatus::default() });
    }
    let mut draining = Lab::serving();
    draining.facts.held = true;
    draining.delete_seen(State::Running);
    draining.run();
    let mut unknown_provider = Lab::new();
    unknown_provider.facts.provider = ProviderFacts::Unready(NOT_LOOKED_AT.into(), "not yet".into());
    let mut restarted = Lab::serving();
    restarted.restart();
    vec![
        ("new", Lab::new()),
        ("creating", Lab::creating()),
        ("serving", Lab::serving()),
        ("could not ask", failing),
        ("refused", refused),
        ("replaced", replaced),
        ("deleting", deleting),
        ("unhealthy", unhealthy),
        ("provider missing", missing),
        ("not validated", unvalidated),
        ("restarted", restarted),
        ("stopped", Lab::made(State::Stopped)),
        ("on its way out", Lab::made(State::Deleting)),
        ("paused", paused),
        ("provider not looked at", unknown_provider),
        ("nowhere", nowhere),
        ("full", full),
        ("old", old),
        ("draining", draining),
        ("unknown", Lab::made(State::Unknown("u".into()))),
    ]
}

/// A Provider's outage once made `Provisioned` Unknown and then False, with a write for each.
#[test]
fn saying_it_twice_changes_nothing() {
    for (what, mut lab) in labs() {
        lab.settle();
        let first = lab.proxy.status.clone();
        lab.advance(secs(1));
        lab.facts.wall = jiff::Timestamp::from_second(1_000_000).unwrap();
        lab.settle();
        assert_eq!(lab.proxy.status, first, "{what}");
    }
}

#[test]
fn a_restart_keeps_what_was_said_until_something_is_known() {
    for (what, mut lab) in labs().into_iter().filter(|(what, _)| *what == "serving" || *what == "stopped") {
        lab.settle();
        let before = lab.proxy.status.clone();
        lab.restart();
        lab.facts.provider = ProviderFacts::Unready(NOT_LOOKED_AT.into(), "not yet".into());
        lab.settle();
        assert_eq!(lab.proxy.status, before, "{what}");
    }
}

#[test]
fn each_situation_has_its_reasons() {
    use Status::{False, True, Unknown};
    for (what, type_, status, reason) in [
        ("new", "Provisioned", Unknown, "NotAsked"),
        ("new", "SpecValid", Unknown, "NotValidated"),
        ("creating", "Provisioned", False, "Creating"),
        ("creating", "SpecValid", True, "Accepted"),
        ("serving", "Ready", True, "Ready"),
        ("serving", "UpToDate", True, "UpToDate"),
        ("could not ask", "Provisioned", Unknown, "BackendUnavailable"),
        ("refused", "SpecValid", False, "InvalidSpec"),
        ("replaced", "Provisioned", False, "InstanceFailed"),
        ("deleting", "Ready", False, "Deleting"),
        ("unhealthy", "Healthy", False, "ProxyBroken"),
        ("unhealthy", "Ready", False, "ProxyBroken"),
        ("provider missing", "ProviderReady", False, "ProviderMissing"),
        ("not validated", "Provisioned", True, "Running"),
        ("not validated", "Ready", True, "Ready"),
        ("stopped", "Provisioned", False, "Stopped"),
        ("unknown", "Provisioned", Unknown, "InstanceUnknown"),
        ("new", "UpToDate", Unknown, "NotCreated"),
        ("new", "Deleting", False, "NotDeleting"),
        ("provider not looked at", "ProviderReady", Unknown, "ProviderPending"),
        ("creating", "Healthy", Unknown, "ProbePending"),
        ("serving", "Healthy", True, "ProbePassed"),
        ("on its way out", "Provisioned", False, "InstanceDeleting"),
        ("paused", "Provisioned", False, "Paused"),
        ("nowhere", "Provisioned", False, "NoAddress"),
        ("full", "Provisioned", False, "CapacityExhausted"),
        ("old", "UpToDate", False, "MaxAge"),
        ("draining", "Deleting", True, "Draining"),
    ] {
        let (_, lab) = labs().into_iter().find(|(name, _)| *name == what).unwrap();
        assert_eq!(says(&lab, type_), (status, reason.to_owned()), "{what}: {type_}");
    }
}

#[test]
fn a_refused_spec_is_said_and_the_old_instance_is_ready_all_the_same() {
    let mut lab = Lab::serving();
    lab.proxy.spec.port = 1;
    lab.proxy.metadata.generation = Some(2);
    let wrong = FieldError { pointer: "/port".into(), message: "taken".into() };
    lab.on(Call::Validate, Ok(Answer::Validated(vec![wrong])));
    assert_eq!(says(&lab, "SpecValid"), (Status::False, "InvalidSpec".into()));
    assert_eq!(says(&lab, "Provisioned"), (Status::True, "Running".into()));
    assert_eq!(says(&lab, "UpToDate"), (Status::False, "SpecChanged".into()));
}

#[test]
fn a_deletion_that_cannot_go_on_says_why() {
    let mut lab = Lab::serving();
    lab.delete();
    lab.facts.provider = ProviderFacts::Missing;
    assert_eq!(says(&lab, "Deleting"), (Status::True, "ProviderMissing".into()));
    let mut lab = Lab::made(State::Stopped);
    lab.delete_seen(State::Stopped);
    lab.on(Call::Delete, error(ErrorKind::Unauthorized));
    assert_eq!(says(&lab, "Deleting"), (Status::True, "Unauthorized".into()));
    let mut lab = Lab::serving();
    lab.delete_seen(State::Running);
    lab.facts.held = true;
    assert!(matches!(lab.run(), Step::Wait(_)));
    assert_eq!(says(&lab, "Deleting"), (Status::True, "Draining".into()));
}

#[test]
fn crawlers_are_told_what_a_proxy_lacks() {
    let mut exhausted = Lab::creating();
    exhausted.absorb(Call::Create, error(ErrorKind::Exhausted));
    let mut failing = Lab::creating();
    failing.absorb(Call::Create, error(ErrorKind::Unauthorized));
    let mut unhealthy = Lab::serving();
    unhealthy.facts.health = bad(FailureKind::Broken);
    let mut probing = Lab::made(State::Running);
    probing.facts.health = Verdict::Unknown;
    for (lab, expected) in [
        (exhausted, Lack::Quota),
        (failing, Lack::Unhealthy),
        (unhealthy, Lack::Unhealthy),
        (probing, Lack::Scaling),
        (Lab::made(State::Creating), Lack::Scaling),
        (Lab::new(), Lack::Scaling),
    ] {
        assert_eq!(lack(&lab.memory, &lab.facts), expected, "{:?}", lab.memory);
    }
}

#[test]
fn the_address_that_a_judge_saw_is_kept_for_the_instance_that_shows_it() {
    let mut lab = Lab::serving();
    lab.facts.health = Verdict::Healthy { exit_ip: Some("192.0.2.9".into()) };
    lab.settle();
    assert_eq!(lab.proxy.status.as_ref().unwrap().exit_ip.as_deref(), Some("192.0.2.9"));
    lab.facts.health = healthy();
    lab.settle();
    assert_eq!(lab.proxy.status.as_ref().unwrap().exit_ip.as_deref(), Some("192.0.2.9"));
}
