//! What follows from what: making an instance, and what goes wrong with it. Deleting and replacing have their own files.

use super::*;
use crate::control::proxy::lab::{Lab, SURE, absent, error, gone, mk_instance, placed, secs, shown};
use crate::model::error::{CallError, FieldError};
use crate::model::proxy::InstanceStatus;

#[path = "decide_tests/deleting.rs"]
mod deleting;
#[path = "decide_tests/held.rs"]
mod held;
#[path = "decide_tests/holding.rs"]
mod holding;
#[path = "decide_tests/logins.rs"]
mod logins;
#[path = "decide_tests/replacing.rs"]
mod replacing;
#[path = "decide_tests/surging.rs"]
mod surging;

fn refusal() -> Vec<FieldError> {
    vec![FieldError { pointer: "/parameters/x".into(), message: "no".into() }]
}

#[test]
fn place_mark_and_finalizer_are_stored_before_the_first_create() {
    let mut lab = Lab::new();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    lab.on(Call::Place(vec![]), placed("zone-a"));
    let status = lab.proxy.status.clone().unwrap();
    assert!(status.create_sent.is_some() && status.spec_hash.is_some());
    let instance = lab.instance();
    assert_eq!((instance.placement.as_deref(), instance.login_key.as_deref()), (Some("zone-a"), Some("k1")));
    assert_eq!(lab.next(), Step::Finalizer(true));
    lab.finalizer(true);
    assert_eq!(lab.next(), Step::Call(Call::Create));
}

#[test]
fn nothing_is_done_while_the_provider_cannot_serve() {
    for provider in [ProviderFacts::Missing, ProviderFacts::Unready("R".into(), "m".into())] {
        let mut lab = Lab::new();
        lab.facts.provider = provider;
        assert_eq!(lab.next(), Step::Wait(PROVIDER_POLL));
    }
}

#[test]
fn a_failed_create_waits_as_its_kind_says_and_a_change_ends_the_wait() {
    // Kind, shortest and longest wait, whether another generation or provider ends it.
    for (kind, from, to, ends) in [
        (ErrorKind::Transient, 0.1, 1.0, true),
        (ErrorKind::RateLimited(Some(secs(40))), 40.0, 41.0, false),
        (ErrorKind::Unauthorized, 300.0, 600.0, true),
        (ErrorKind::ConfigMissing, 300.0, 600.0, true),
        (ErrorKind::Foreign, 300.0, 600.0, true),
        (ErrorKind::InvalidSpec(vec![]), 3600.0, 4200.0, true),
        (ErrorKind::UnknownOutcome, 0.1, 1.0, true),
        (ErrorKind::Internal, 0.1, 1.0, true),
    ] {
        for change in ["none", "generation", "epoch"] {
            let mut lab = Lab::creating();
            lab.absorb(Call::Create, error(kind.clone()));
            let wait = lab.wait();
            assert!((from..=to).contains(&wait.as_secs_f64()), "{kind:?}: {wait:?}");
            lab.advance(wait / 2);
            assert!(matches!(lab.next(), Step::Wait(_)), "{kind:?}: called too early");
            match change {
                "generation" => lab.proxy.metadata.generation = Some(2),
                "epoch" => lab.provider().epoch = 2,
                _ => {}
            }
            let at_once = matches!(lab.next(), Step::Call(_));
            assert_eq!(at_once, ends && change != "none", "{kind:?} after a change of {change}");
        }
    }
}

#[test]
fn failures_in_a_row_wait_longer_and_a_success_forgets_them() {
    let mut lab = Lab::creating();
    for failures in 1..=5 {
        lab.absorb(Call::Create, error(ErrorKind::Transient));
        assert_eq!(lab.memory.trouble.as_ref().map(|t| t.failures), Some(failures));
    }
    lab.advance(secs(120));
    lab.on(Call::Create, Ok(Answer::Created(mk_instance("zone-a", State::Creating))));
    assert_eq!(lab.memory.trouble, None);
}

#[test]
fn a_create_whose_outcome_is_unknown_is_followed_by_a_look_and_converges() {
    for kind in [ErrorKind::UnknownOutcome, ErrorKind::Internal] {
        let mut lab = Lab::creating();
        lab.absorb(Call::Create, error(kind));
        lab.advance(secs(2));
        lab.on(Call::Get, absent());
        assert_eq!(lab.run(), Step::Call(Call::Create), "of the same incarnation");
        assert_eq!((lab.instance().incarnation, lab.instance().attempt), (0, 0));
    }
}

#[test]
fn what_failed_otherwise_is_repeated_without_a_look() {
    let mut lab = Lab::creating();
    lab.absorb(Call::Create, error(ErrorKind::Transient));
    lab.advance(secs(2));
    assert_eq!(lab.run(), Step::Call(Call::Create));
}

#[test]
fn an_exhausted_place_is_deleted_at_and_another_one_is_tried_at_once() {
    let mut lab = Lab::creating();
    lab.absorb(Call::Create, error(ErrorKind::Exhausted));
    lab.on(Call::Delete, gone());
    lab.on(Call::Place(vec!["zone-a".into()]), placed("zone-b"));
    let instance = lab.instance();
    assert_eq!((instance.incarnation, instance.attempt, instance.placement.as_deref()), (0, 1, Some("zone-b")));
    lab.on(Call::Create, Ok(Answer::Created(mk_instance("zone-b", State::Running))));
    assert!(lab.memory.avoid.is_empty() && lab.memory.exhausted.is_none());
    assert_eq!(lab.proxy.status.unwrap().rebuilds, 0, "a fall-back is no rebuild");
}

#[test]
fn when_every_place_is_exhausted_all_are_tried_again_slowly_and_the_first_reason_stands() {
    let mut lab = Lab::creating();
    lab.absorb(Call::Create, Err(CallError::new(ErrorKind::Exhausted, "no room in zone-a")));
    lab.on(Call::Delete, gone());
    lab.on(Call::Place(vec!["zone-a".into()]), placed("zone-b"));
    lab.on(Call::Create, Err(CallError::new(ErrorKind::Exhausted, "no room in zone-b")));
    lab.on(Call::Delete, gone());
    lab.on(Call::Place(vec!["zone-a".into(), "zone-b".into()]), Err(CallError::new(ErrorKind::Exhausted, "none left")));
    assert_eq!(lab.memory.trouble.as_ref().map(|t| t.error.message.as_str()), Some("no room in zone-a"));
    let wait = lab.wait();
    assert!((300..=600).contains(&wait.as_secs()));
    lab.advance(wait);
    assert_eq!(lab.run(), Step::Call(Call::Place(vec![])));
}

#[test]
fn a_plugin_that_ignores_avoid_has_no_other_place() {
    let mut lab = Lab::creating();
    lab.absorb(Call::Create, error(ErrorKind::Exhausted));
    lab.on(Call::Delete, gone());
    lab.on(Call::Place(vec!["zone-a".into()]), placed("zone-a"));
    assert!(lab.wait() >= secs(300));
}

/// A plugin that knew ever new places was once followed at full speed, with a list of places that only grew.
#[test]
fn a_plugin_that_always_knows_another_place_is_not_followed_for_ever() {
    let mut lab = Lab::creating();
    for n in 0..200 {
        lab.absorb(Call::Create, error(ErrorKind::Exhausted));
        if let Step::Wait(wait) = lab.run() {
            assert!(wait >= secs(300) && n < 40);
            return;
        }
        lab.on(Call::Delete, gone());
        let Step::Call(call) = lab.run() else { panic!("no place is asked for") };
        lab.absorb(call, placed(&format!("zone-{n}")));
        assert_eq!(lab.run(), Step::Call(Call::Create));
    }
    panic!("200 places in a row");
}

#[test]
fn a_stock_out_that_a_look_brings_falls_back_too() {
    let mut lab = Lab::creating();
    lab.absorb(Call::Create, error(ErrorKind::UnknownOutcome));
    lab.advance(secs(2));
    lab.on(Call::Get, error(ErrorKind::Exhausted));
    assert_eq!(lab.run(), Step::Call(Call::Delete));
}

#[test]
fn a_place_that_was_taken_meanwhile_is_asked_for_anew() {
    let mut lab = Lab::new();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    assert_eq!(lab.run(), Step::Call(Call::Place(vec![])));
    lab.provider().taken = vec!["slot-2".into()];
    lab.absorb(Call::Place(vec![]), placed("slot-2"));
    assert_eq!(lab.run(), Step::Call(Call::Place(vec![])));
    lab.absorb(Call::Place(vec!["slot-2".into()]), placed("slot-3"));
    assert_eq!(lab.instance().placement.as_deref(), Some("slot-3"));
}

#[test]
fn a_refused_spec_makes_nothing_until_it_changes() {
    for answer in [Ok(Answer::Validated(refusal())), error(ErrorKind::InvalidSpec(refusal()))] {
        let mut lab = Lab::new();
        lab.on(Call::Validate, answer);
        assert_eq!(lab.run(), Step::Wait(PROVIDER_POLL));
        lab.proxy.metadata.generation = Some(2);
        assert_eq!(lab.run(), Step::Call(Call::Validate));
    }
}

#[test]
fn a_refused_spec_leaves_what_runs_alone_and_goes_on_looking_after_it() {
    for answer in [
        Ok(Answer::Validated(refusal())),
        error(ErrorKind::InvalidSpec(vec![])),
        error(ErrorKind::Internal),
        error(ErrorKind::Unauthorized),
    ] {
        let mut lab = Lab::serving();
        lab.proxy.spec.port = 1;
        lab.proxy.metadata.generation = Some(2);
        lab.on(Call::Validate, answer);
        assert!(matches!(lab.run(), Step::Wait(wait) if wait <= OBSERVE), "nothing is drained");
        lab.advance(OBSERVE);
        let Step::Call(call) = lab.run() else { panic!("it is observed") };
        if call == Call::Validate {
            lab.absorb(Call::Validate, error(ErrorKind::Internal));
        }
        lab.on(Call::Get, shown(State::Running));
    }
}

/// The place was chosen for the old spec; a create there could be refused for ever.
#[test]
fn a_spec_that_changes_before_anything_was_made_asks_for_a_place_anew() {
    let mut lab = Lab::creating();
    lab.absorb(Call::Create, error(ErrorKind::InvalidSpec(refusal())));
    lab.edit(|spec| spec.location = Some("zone-b".into()));
    lab.on(Call::Delete, gone());
    lab.on(Call::Place(vec![]), placed("zone-b"));
    assert_eq!((lab.instance().incarnation, lab.instance().attempt), (0, 1));
    assert_eq!(lab.run(), Step::Call(Call::Create));
}

#[test]
fn what_is_being_made_is_driven_on_at_the_named_pace() {
    for state in [State::Creating, State::Stopped] {
        let mut lab = Lab::creating();
        let mut instance = mk_instance("zone-a", state);
        instance.poll_after = Some(secs(7));
        lab.absorb(Call::Create, Ok(Answer::Created(instance)));
        assert_eq!(lab.wait(), secs(7));
        lab.advance(secs(7));
        assert_eq!(lab.run(), Step::Call(Call::Create));
    }
}

#[test]
fn a_pace_of_nothing_is_no_storm_and_one_of_years_is_no_end() {
    for (named, expected) in [(secs(0), Duration::from_millis(100)), (secs(1 << 30), secs(600))] {
        let mut lab = Lab::creating();
        let instance =
            crate::model::instance::Instance { poll_after: Some(named), ..mk_instance("zone-a", State::Creating) };
        lab.absorb(Call::Create, Ok(Answer::Created(instance)));
        assert_eq!(lab.wait(), expected);
    }
}

#[test]
fn a_pause_makes_nothing_and_replaces_nothing() {
    let mut lab = Lab::new();
    lab.proxy.spec.paused = true;
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    assert_eq!(lab.run(), Step::Wait(PROVIDER_POLL));
    for state in
        [State::Creating, State::Stopped, State::Failed("f".into()), State::Unknown("u".into()), State::Deleting]
    {
        let mut lab = Lab::made(state.clone());
        lab.proxy.spec.paused = true;
        for _ in 0..20 {
            lab.advance(secs(61));
            lab.on(Call::Get, shown(state.clone()));
        }
    }
}

#[test]
fn what_is_absent_and_had_been_seen_is_followed_by_the_next_incarnation_in_one_write() {
    let mut lab = Lab::serving();
    lab.advance(OBSERVE);
    lab.on(Call::Get, absent());
    let Step::Store(status) = lab.next() else { panic!("one write") };
    assert_eq!(status.instance, Some(InstanceStatus { incarnation: 1, ..InstanceStatus::default() }));
    assert_eq!((status.endpoint, status.address, status.exit_ip, status.rebuilds), (None, None, None, 1));
}

#[test]
fn what_is_absent_and_was_never_seen_is_created_again() {
    let mut lab = Lab::creating();
    lab.restart();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    lab.on(Call::Get, absent());
    assert_eq!(lab.run(), Step::Call(Call::Create));
    assert_eq!(lab.instance().incarnation, 0);
}

/// A create that an earlier run had under way could land beside the next incarnation.
#[test]
fn an_absence_is_not_believed_while_a_create_of_an_earlier_run_may_land() {
    let mut lab = Lab::made(State::Creating);
    lab.settle();
    lab.restart();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    lab.on(Call::Get, absent());
    assert_eq!(lab.wait(), SURE);
    lab.advance(SURE);
    lab.on(Call::Get, absent());
    assert!(matches!(lab.next(), Step::Store(_)));
}

#[test]
fn a_lost_status_is_searched_for_and_the_newest_incarnation_adopted() {
    let mut lab = Lab::serving();
    lab.proxy.status = None;
    lab.restart();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    let found = |incarnation| Instance { incarnation: Some(incarnation), ..mk_instance("zone-c", State::Running) };
    lab.on(Call::Search, Ok(Answer::Found(vec![found(1), found(4), found(2)])));
    let instance = lab.instance();
    assert_eq!((instance.incarnation, instance.placement.as_deref()), (4, Some("zone-c")));
    assert!(lab.proxy.status.as_ref().unwrap().create_sent.is_some());
    lab.on(Call::Get, Ok(Answer::Got(Presence::Present(Box::new(found(4))))));
    lab.edit(|spec| spec.port = 1);
    assert!(matches!(lab.run(), Step::Call(Call::Delete)), "later changes are noticed");
}

#[test]
fn what_a_search_does_not_find_is_believed_when_no_create_may_land() {
    let mut lab = Lab::serving();
    lab.proxy.status = None;
    lab.restart();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    lab.on(Call::Search, Ok(Answer::Found(vec![])));
    assert_eq!(lab.wait(), SURE);
    lab.advance(SURE);
    lab.on(Call::Search, Ok(Answer::Found(vec![])));
    assert_eq!(lab.run(), Step::Call(Call::Place(vec![])));
}
