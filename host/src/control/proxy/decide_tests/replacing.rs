//! Replacing: why, after which drain, with what spacing, and what calls it off.

use super::*;
use crate::control::proxy::Listed;
use crate::control::proxy::lab::{bad, healthy};
use crate::health::probe::FailureKind;
use crate::model::instance::Deletion;

/// To the first delete of a rebuild, through its drain.
fn drained(lab: &mut Lab) {
    assert_eq!(lab.wait(), Duration::from_millis(10));
    lab.advance(secs(1));
    assert_eq!(lab.run(), Step::Call(Call::Delete));
}

#[test]
fn every_state_has_what_follows() {
    for (state, follows) in [
        (State::Failed("f".into()), Step::Call(Call::Delete)),
        (State::Creating, Step::Wait(secs(5))),
        (State::Stopped, Step::Wait(secs(5))),
        (State::Deleting, Step::Wait(secs(10))),
        (State::Unknown("u".into()), Step::Wait(secs(10))),
        (State::Running, Step::Wait(OBSERVE)),
    ] {
        assert_eq!(Lab::made(state.clone()).run(), follows, "{state:?}");
    }
}

#[test]
fn what_does_not_run_in_time_is_replaced() {
    let mut lab = Lab::made(State::Creating);
    lab.advance(secs(600));
    lab.on(Call::Create, Ok(Answer::Created(mk_instance("zone-a", State::Creating))));
    lab.advance(secs(5));
    assert_eq!(lab.run(), Step::Call(Call::Delete));
    assert_eq!(lab.memory.rebuild.as_ref().map(|r| r.reason), Some("CreateDeadlineExceeded"));
}

/// After a restart in the middle of a rebuild nobody called `delete` again, and some backends need that to go on.
#[test]
fn a_state_that_leads_nowhere_for_ten_minutes_is_a_failed_one() {
    for state in [State::Unknown("u".into()), State::Deleting] {
        let mut lab = Lab::made(state.clone());
        for _ in 0..60 {
            assert!(matches!(lab.run(), Step::Wait(_)));
            lab.advance(secs(10));
            lab.on(Call::Get, shown(state.clone()));
        }
        assert!(matches!(lab.run(), Step::Wait(_)));
        lab.advance(secs(11));
        assert!(lab.run() == Step::Call(Call::Delete), "{state:?}");
    }
}

#[test]
fn a_failed_instance_is_deleted_until_gone_and_followed_by_the_next_incarnation() {
    let mut lab = Lab::made(State::Failed("no boot".into()));
    let in_progress = Deletion::InProgress { message: None, poll_after: None, continuation: None };
    lab.on(Call::Delete, Ok(Answer::Deleted(in_progress)));
    assert_eq!(lab.wait(), secs(5));
    lab.advance(secs(5));
    lab.on(Call::Delete, gone());
    lab.on(Call::Place(vec![]), placed("zone-a"));
    assert_eq!(lab.instance().incarnation, 1);
    assert_eq!(lab.proxy.status.as_ref().unwrap().rebuilds, 1);
    assert_eq!(lab.run(), Step::Call(Call::Create));
}

#[test]
fn rebuilds_are_spaced_and_the_spacing_ends_after_a_steady_hour() {
    let mut lab = Lab::made(State::Failed("f".into()));
    for expected in [0, 30, 60, 120, 240, 480, 960, 1800, 1800] {
        lab.on(Call::Delete, gone());
        if expected > 0 {
            assert_eq!(lab.wait(), secs(expected));
            lab.advance(secs(expected));
        }
        lab.on(Call::Place(vec![]), placed("zone-a"));
        lab.on(Call::Create, Ok(Answer::Created(mk_instance("zone-a", State::Failed("f".into())))));
    }
    lab.advance(secs(3600));
    lab.on(Call::Delete, gone());
    assert_eq!(lab.run(), Step::Call(Call::Place(vec![])));
}

#[test]
fn a_changed_spec_is_validated_before_anything_is_drained() {
    let mut lab = Lab::serving();
    lab.proxy.spec.port = 1;
    lab.proxy.metadata.generation = Some(2);
    assert_eq!(lab.run(), Step::Call(Call::Validate));
    assert_eq!(lab.memory.rebuild, None);
    lab.absorb(Call::Validate, Ok(Answer::Validated(vec![])));
    drained(&mut lab);
}

#[test]
fn leases_are_awaited_after_the_proxy_was_closed_and_not_before() {
    let mut lab = Lab::serving();
    lab.edit(|spec| spec.port = 1);
    // The first pass closes it; only the next one may believe that nobody holds it.
    assert_eq!(lab.wait(), Duration::from_millis(10));
    lab.facts.held = true;
    lab.advance(secs(1));
    assert_eq!(lab.wait(), secs(1));
    lab.facts.held = false;
    lab.advance(secs(1));
    assert_eq!(lab.run(), Step::Call(Call::Delete));
}

/// After a restart nothing had been probed yet, and lent proxies were replaced under their holders.
#[test]
fn a_change_made_while_the_operator_was_down_drains_too() {
    let mut lab = Lab::serving();
    lab.restart();
    lab.facts.held = true;
    lab.edit(|spec| spec.port = 1);
    lab.on(Call::Get, shown(State::Running));
    assert_eq!(lab.wait(), Duration::from_millis(10));
    lab.advance(secs(1));
    assert_eq!(lab.wait(), secs(1));
}

#[test]
fn a_rebuild_is_called_off_while_nothing_was_deleted() {
    type Edit = fn(&mut Lab);
    let edits: [(&str, Edit); 3] = [
        ("the spec is as it was", |lab| lab.edit(|spec| spec.port = 3128)),
        ("paused", |lab| lab.proxy.spec.paused = true),
        ("refused", |lab| {
            lab.proxy.metadata.generation = Some(9);
            lab.on(Call::Validate, Ok(Answer::Validated(refusal())));
        }),
    ];
    for (what, edit) in edits {
        let mut lab = Lab::serving();
        lab.edit(|spec| spec.port = 1);
        lab.facts.held = true;
        assert!(matches!(lab.run(), Step::Wait(_)));
        edit(&mut lab);
        lab.facts.held = false;
        lab.advance(secs(1));
        assert!(matches!(lab.run(), Step::Wait(wait) if wait > secs(1)), "{what}");
        assert_eq!((&lab.memory.rebuild, lab.memory.drain_since), (&None, None), "{what}");
    }
}

#[test]
fn a_rebuild_that_has_begun_is_not_called_off() {
    let mut lab = Lab::serving();
    lab.edit(|spec| spec.port = 1);
    drained(&mut lab);
    lab.absorb(Call::Delete, error(ErrorKind::UnknownOutcome));
    lab.advance(secs(2));
    lab.edit(|spec| spec.port = 3128);
    assert_eq!(lab.run(), Step::Call(Call::Delete));
}

#[test]
fn a_proxy_that_fails_is_asked_for_at_once_and_replaced_after_ten_minutes() {
    let mut lab = Lab::serving();
    lab.advance(secs(30));
    lab.facts.health = bad(FailureKind::Broken);
    lab.on(Call::Get, shown(State::Running));
    loop {
        match lab.run() {
            Step::Wait(wait) => lab.advance(wait),
            Step::Call(Call::Get) => lab.absorb(Call::Get, shown(State::Running)),
            step => break assert_eq!(step, Step::Call(Call::Delete), "nothing is drained: it serves nobody"),
        }
    }
    assert_eq!(lab.facts.now, secs(10_000 + 30 + 600));
}

#[test]
fn a_judge_that_is_not_reached_replaces_nothing() {
    let mut lab = Lab::serving();
    lab.facts.health = bad(FailureKind::JudgeUnreachable);
    for _ in 0..100 {
        lab.advance(OBSERVE);
        lab.on(Call::Get, shown(State::Running));
    }
    assert!(matches!(lab.run(), Step::Wait(_)));
}

#[test]
fn a_proxy_that_recovers_is_given_ten_minutes_again() {
    let mut lab = Lab::serving();
    lab.facts.health = bad(FailureKind::Broken);
    lab.advance(secs(1));
    lab.on(Call::Get, shown(State::Running));
    lab.facts.health = healthy();
    lab.run();
    lab.facts.health = bad(FailureKind::Broken);
    lab.advance(secs(900));
    lab.on(Call::Get, shown(State::Running));
    assert!(matches!(lab.run(), Step::Wait(_)));
}

#[test]
fn a_listing_spares_the_look_and_one_that_lacks_it_asks_for_one() {
    let mut lab = Lab::serving();
    lab.advance(OBSERVE);
    lab.facts.listed = Some(Listed { at: lab.facts.now, running: true });
    assert_eq!(lab.wait(), OBSERVE);
    lab.advance(secs(1));
    lab.facts.listed = Some(Listed { at: lab.facts.now, running: false });
    lab.on(Call::Get, shown(State::Running));
    assert!(matches!(lab.run(), Step::Wait(_)), "the answer counts, not the listing");
}

/// An instance that missed in a listing was once not asked for in the first minutes of a run.
#[test]
fn a_listing_counts_from_the_first_second_of_a_run() {
    let mut lab = Lab::serving();
    lab.restart();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    lab.on(Call::Get, shown(State::Running));
    lab.advance(secs(5));
    lab.facts.listed = Some(Listed { at: lab.facts.now, running: false });
    assert_eq!(lab.run(), Step::Call(Call::Get));
}

/// A listing brings no address, so that one was never found.
#[test]
fn what_runs_without_an_address_is_asked_until_it_has_one() {
    let mut lab = Lab::creating();
    let instance = Instance { addresses: vec![], ..mk_instance("zone-a", State::Running) };
    lab.absorb(Call::Create, Ok(Answer::Created(instance)));
    lab.facts.listed = Some(Listed { at: lab.facts.now + secs(1), running: true });
    assert_eq!(lab.wait(), secs(10));
    lab.advance(secs(10));
    lab.on(Call::Get, shown(State::Running));
    assert!(lab.proxy.status.as_ref().unwrap().endpoint.is_some());
}

#[test]
fn could_not_ask_replaces_nothing() {
    for kind in [ErrorKind::Transient, ErrorKind::Unauthorized, ErrorKind::ConfigMissing, ErrorKind::Internal] {
        let mut lab = Lab::serving();
        lab.facts.health = bad(FailureKind::Broken);
        for _ in 0..20 {
            lab.advance(secs(700));
            lab.on(Call::Get, error(kind.clone()));
        }
        assert!(matches!(lab.run(), Step::Wait(_)), "{kind:?}");
    }
}
