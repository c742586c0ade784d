//! Deleting: ask, delete until gone, release; and never believe an absence too early.

use super::*;
use crate::control::proxy::lab::{bad, healthy};
use crate::health::probe::FailureKind;
use crate::model::instance::Deletion;

fn released(mut lab: Lab) -> bool {
    lab.run() == Step::Finalizer(false)
}

#[test]
fn what_never_had_an_instance_goes_without_asking_anybody() {
    let mut lab = Lab::new();
    lab.facts.provider = ProviderFacts::Missing;
    lab.delete();
    assert_eq!(lab.next(), Step::Finalizer(false));
}

#[test]
fn finalizers_of_others_are_waited_for() {
    let mut lab = Lab::new();
    lab.proxy.metadata.finalizers = Some(vec!["example.com/other".into()]);
    lab.delete();
    assert_eq!(lab.next(), Step::Wait(PROVIDER_POLL));
}

#[test]
fn it_is_asked_for_first_then_deleted_until_gone_and_released() {
    let mut lab = Lab::serving();
    lab.restart();
    lab.delete();
    lab.on(Call::Get, shown(State::Stopped));
    let in_progress = |secs_| {
        Ok(Answer::Deleted(Deletion::InProgress {
            message: None,
            poll_after: Some(secs(secs_)),
            continuation: Some("note".into()),
        }))
    };
    lab.on(Call::Delete, in_progress(3));
    assert_eq!(lab.wait(), secs(3), "at the named pace");
    assert_eq!(lab.instance().continuation.as_deref(), Some("note"));
    lab.advance(secs(3));
    lab.on(Call::Delete, in_progress(9));
    lab.advance(secs(9));
    lab.on(Call::Delete, gone());
    assert!(released(lab));
}

#[test]
fn what_was_seen_while_it_lived_is_asked_for_anew() {
    let mut lab = Lab::serving();
    assert!(lab.memory.seen.is_some());
    lab.delete();
    lab.on(Call::Get, absent());
    assert!(released(lab));
}

#[test]
fn what_is_absent_is_released() {
    let mut lab = Lab::serving();
    lab.restart();
    lab.delete();
    lab.on(Call::Get, absent());
    assert!(released(lab));
}

#[test]
fn an_absence_is_not_believed_while_a_create_may_land() {
    // Before the restart nothing was known of the create; and without a restart its outcome was unknown.
    for restarted in [true, false] {
        let mut lab = Lab::creating();
        if restarted {
            lab.restart();
        } else {
            lab.absorb(Call::Create, error(ErrorKind::UnknownOutcome));
        }
        lab.delete();
        lab.on(Call::Get, absent());
        assert_eq!(lab.wait(), SURE);
        lab.advance(SURE);
        lab.on(Call::Get, absent());
        assert!(released(lab));
    }
}

/// The first create could land after the second one's instance had been deleted.
#[test]
fn a_later_success_does_not_end_the_doubt_about_an_earlier_create() {
    let mut lab = Lab::creating();
    lab.absorb(Call::Create, error(ErrorKind::UnknownOutcome));
    lab.advance(secs(2));
    lab.on(Call::Get, absent());
    lab.on(Call::Create, Ok(Answer::Created(mk_instance("zone-a", State::Running))));
    lab.delete_seen(State::Running);
    lab.on(Call::Delete, gone());
    assert_eq!(lab.wait(), SURE - secs(2));
    lab.advance(SURE);
    lab.on(Call::Get, shown(State::Running));
    lab.on(Call::Delete, gone());
    assert!(released(lab), "what landed late is deleted too");
}

#[test]
fn a_look_that_cannot_converge_does_not_keep_the_object() {
    for kind in
        [ErrorKind::Unauthorized, ErrorKind::ConfigMissing, ErrorKind::InvalidSpec(vec![]), ErrorKind::Exhausted]
    {
        let mut lab = Lab::serving();
        lab.proxy.status.as_mut().unwrap().conditions.clear();
        lab.restart();
        lab.delete();
        lab.on(Call::Get, error(kind));
        lab.on(Call::Delete, gone());
        assert_eq!(lab.wait(), SURE, "without conditions nobody knows that no create was under way");
        lab.advance(SURE);
        lab.on(Call::Get, error(ErrorKind::Unauthorized));
        lab.on(Call::Delete, gone());
        assert!(released(lab));
    }
}

#[test]
fn three_faults_in_a_row_are_a_look_that_cannot_converge() {
    let mut lab = Lab::serving();
    lab.restart();
    lab.delete();
    for kind in [
        ErrorKind::Transient,
        ErrorKind::Transient,
        ErrorKind::Internal,
        ErrorKind::Internal,
        ErrorKind::Transient,
        ErrorKind::Internal,
        ErrorKind::Internal,
    ] {
        lab.on(Call::Get, error(kind));
        lab.advance(secs(121));
    }
    lab.on(Call::Get, error(ErrorKind::Internal));
    assert_eq!(lab.wait(), Duration::from_millis(10), "it may still be lent");
    lab.advance(secs(1));
    assert_eq!(lab.run(), Step::Call(Call::Delete));
}

#[test]
fn a_failed_delete_is_repeated_as_its_kind_says() {
    for (kind, from, to) in [
        (ErrorKind::Transient, 0.1, 1.0),
        (ErrorKind::UnknownOutcome, 0.1, 1.0),
        (ErrorKind::Internal, 0.1, 1.0),
        (ErrorKind::RateLimited(Some(secs(20))), 20.0, 21.0),
        (ErrorKind::Unauthorized, 300.0, 600.0),
        (ErrorKind::ConfigMissing, 300.0, 600.0),
    ] {
        let mut lab = Lab::made(State::Running);
        lab.delete_seen(State::Running);
        lab.on(Call::Delete, error(kind.clone()));
        let wait = lab.wait();
        assert!((from..=to).contains(&wait.as_secs_f64()), "{kind:?}: {wait:?}");
        lab.advance(wait);
        assert_eq!(lab.run(), Step::Call(Call::Delete), "{kind:?}");
    }
}

#[test]
fn what_is_not_ours_is_touched_neither_while_living_nor_on_deletion() {
    for call in [Call::Get, Call::Delete] {
        let mut lab = Lab::made(State::Stopped);
        match call {
            Call::Get => lab.delete(),
            _ => lab.delete_seen(State::Stopped),
        }
        lab.on(call, error(ErrorKind::Foreign));
        assert!(released(lab));
    }
    let mut lab = Lab::creating();
    lab.absorb(Call::Create, error(ErrorKind::Foreign));
    assert!(lab.wait() >= secs(300));
    lab.delete();
    lab.on(Call::Get, error(ErrorKind::Foreign));
    assert!(released(lab), "what a create said is asked again");
}

/// A refused create once kept a deleted object waiting for up to 70 minutes.
#[test]
fn what_failed_while_it_lived_does_not_delay_its_deletion() {
    for (kind, delays) in [
        (ErrorKind::InvalidSpec(vec![]), false),
        (ErrorKind::Unauthorized, false),
        (ErrorKind::Transient, false),
        (ErrorKind::RateLimited(Some(secs(60))), true),
    ] {
        let mut lab = Lab::made(State::Creating);
        lab.absorb(Call::Create, error(kind.clone()));
        lab.delete();
        assert_eq!(matches!(lab.run(), Step::Wait(_)), delays, "{kind:?}");
    }
}

#[test]
fn an_object_whose_provider_is_missing_stays() {
    let mut lab = Lab::serving();
    lab.delete();
    lab.facts.provider = ProviderFacts::Missing;
    assert_eq!(lab.run(), Step::Wait(PROVIDER_POLL));
}

#[test]
fn leases_are_awaited_up_to_the_drain_timeout_once_no_new_one_is_given() {
    let mut lab = Lab::serving();
    lab.delete_seen(State::Running);
    assert_eq!(lab.wait(), Duration::from_millis(10), "closed first: not held yet says nothing");
    lab.facts.held = true;
    for _ in 0..599 {
        lab.advance(secs(1));
        assert!(lab.wait() <= secs(1));
    }
    lab.advance(secs(1));
    assert_eq!(lab.run(), Step::Call(Call::Delete));
    lab.memory.drain_since = Some(lab.facts.now);
    assert!(matches!(lab.run(), Step::Wait(_)));
    lab.facts.held = false;
    assert_eq!(lab.run(), Step::Call(Call::Delete), "over when the leases are");
}

#[test]
fn leases_are_awaited_only_where_the_proxy_may_serve() {
    for (health, awaited) in [
        (healthy(), true),
        (bad(FailureKind::JudgeUnreachable), true),
        (bad(FailureKind::Broken), false),
        // Not probed since the restart: what the status says stands.
        (Verdict::Unknown, true),
    ] {
        let mut lab = Lab::serving();
        lab.delete_seen(State::Running);
        lab.facts.health = health.clone();
        assert_eq!(matches!(lab.run(), Step::Wait(_)), awaited, "{health:?}");
    }
}

#[test]
fn a_deletion_after_a_lost_status_searches_before_it_releases() {
    let mut lab = Lab::serving();
    lab.proxy.status = None;
    lab.restart();
    lab.delete();
    lab.on(Call::Search, Ok(Answer::Found(vec![])));
    assert_eq!(lab.wait(), SURE);
    lab.advance(SURE);
    lab.on(Call::Search, Ok(Answer::Found(vec![mk_instance("zone-a", State::Running)])));
    lab.on(Call::Get, shown(State::Running));
    lab.on(Call::Delete, gone());
    assert!(released(lab));
}

/// A create can fail half-way: what it left behind is not what was seen before it.
#[test]
fn an_absence_from_before_a_create_is_asked_for_again() {
    let mut lab = Lab::creating();
    lab.absorb(Call::Create, error(ErrorKind::Transient));
    lab.delete();
    assert_eq!(lab.run(), Step::Call(Call::Get));
}

#[test]
fn a_pause_does_not_keep_from_deleting() {
    let mut lab = Lab::made(State::Stopped);
    lab.proxy.spec.paused = true;
    lab.delete_seen(State::Stopped);
    lab.on(Call::Delete, gone());
    assert!(released(lab));
}
