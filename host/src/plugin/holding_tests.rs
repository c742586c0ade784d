//! What opens and closes: by function, by target, and for all that asks none.

use std::time::Duration;

use super::*;
use crate::model::clock::ManualClock;

struct Lab {
    holding: Holding,
    clock: Arc<ManualClock>,
    shown: Arc<HeldBack>,
}

impl Lab {
    fn new() -> Self {
        let (clock, shown) = (Arc::new(ManualClock::default()), Arc::new(HeldBack::default()));
        let turns = broadcast::channel(8).0;
        Self { holding: Holding::new("kvm".into(), "p".into(), clock.clone(), turns, shown.clone()), clock, shown }
    }

    fn call(&self, function: &'static str, target: Option<&str>, about: &str, kind: Option<ErrorKind>) {
        let turn = self.holding.admit(function, target).unwrap();
        let error = kind.map(|kind| CallError::new(kind, "no luck"));
        turn.came_to(Some(about), Reached::Yes, error.as_ref().map_or(Ok(()), Err));
    }

    /// Fails for one Proxy after the other until calls are held back.
    fn down(&self, function: &'static str, target: Option<&str>) {
        for about in ["a", "b", "c", "d", "e"] {
            self.call(function, target, about, Some(ErrorKind::Transient));
        }
        assert!(self.holding.held(function, target).is_some(), "{function} at {target:?}");
    }

    fn let_one_through(&self) {
        self.clock.advance(Duration::from_secs(6));
    }
}

/// The failures of a host never added up beside one that is healthy, or the healthy one was held back with it.
#[test]
fn a_target_that_is_down_holds_back_its_own_calls_and_no_others() {
    let lab = Lab::new();
    for about in ["a", "b", "c", "d", "e"] {
        lab.call("get", Some("host1"), about, Some(ErrorKind::Transient));
        lab.call("get", Some("host2"), about, None);
    }
    let why = lab.holding.held("create", Some("host1")).unwrap();
    assert!(why.message.contains("the backend of host1"), "{}", why.message);
    assert!(lab.holding.admit("delete", Some("host1")).is_err());
    for (function, target) in [("get", Some("host2")), ("create", Some("host3")), ("place", None), ("check", None)] {
        assert_eq!(lab.holding.held(function, target), None, "{function} {target:?}");
    }
    lab.call("list-instances", None, "a", None);
    assert!(lab.holding.held("get", Some("host1")).is_some(), "an answer about others says nothing of it");
    assert_eq!((lab.holding.any(), lab.holding.targets().len()), (None, 1));
    assert_eq!(lab.shown.unreachable.load(Ordering::Relaxed), 1);
    lab.holding.reached(["host2", "host9"].into_iter());
    assert!(lab.holding.held("get", Some("host1")).is_some());
    lab.holding.reached(["host1"].into_iter());
    assert_eq!(lab.holding.held("get", Some("host1")), None, "its own check says that it is back");
}

#[test]
fn a_provider_all_of_whose_targets_are_down_is_down() {
    let lab = Lab::new();
    lab.call("get", Some("host2"), "z", None);
    lab.down("get", Some("host1"));
    assert_eq!(lab.holding.any(), None);
    lab.down("create", Some("host2"));
    assert_eq!(lab.holding.any().unwrap().reason, UNREACHABLE);
    lab.holding.reset();
    assert_eq!((lab.holding.any(), lab.shown.unreachable.load(Ordering::Relaxed)), (None, 0));
}

#[test]
fn what_is_down_is_asked_once_at_a_time_whoever_it_is_about() {
    let lab = Lab::new();
    lab.down("get", Some("host1"));
    lab.let_one_through();
    let turn = lab.holding.admit("get", Some("host1")).unwrap();
    assert!(lab.holding.admit("create", Some("host1")).is_err());
    drop(turn);
    assert!(lab.holding.admit("create", Some("host1")).is_ok(), "one that was given up says nothing");
}

/// A backend that answered with refusals stayed held back as if it were out of reach.
#[test]
fn a_refusal_proves_that_the_backend_is_there() {
    let refusals = [
        ErrorKind::Unauthorized,
        ErrorKind::RateLimited(None),
        ErrorKind::Exhausted,
        ErrorKind::Foreign,
        ErrorKind::InvalidSpec(vec![]),
    ];
    for (function, target) in [("create", Some("host1")), ("place", None)] {
        for kind in &refusals {
            let lab = Lab::new();
            lab.down(function, target);
            lab.let_one_through();
            lab.call(function, target, "a", Some(kind.clone()));
            // What has no room, or is no spec, a plugin may say of a place without asking.
            let local = function == "place" && matches!(kind, ErrorKind::Exhausted | ErrorKind::InvalidSpec(_));
            assert_eq!(lab.holding.held(function, target).is_some(), local, "{function}: {kind:?}");
        }
    }
    for kind in [ErrorKind::ConfigMissing, ErrorKind::Internal, ErrorKind::UnknownOutcome, ErrorKind::Transient] {
        let lab = Lab::new();
        lab.down("get", None);
        lab.let_one_through();
        lab.call("get", None, "a", Some(kind.clone()));
        assert!(lab.holding.held("get", None).is_some(), "{kind:?}");
    }
    let lab = Lab::new();
    lab.down("get", None);
    lab.call("validate", None, "a", Some(ErrorKind::InvalidSpec(vec![])));
    assert!(lab.holding.held("get", None).is_some(), "validate asks nobody");
    lab.let_one_through();
    let queued = CallError { by_host: Some(ByHost::Queued), ..CallError::new(ErrorKind::Unauthorized, "q") };
    lab.holding.admit("get", None).unwrap().came_to(None, Reached::Perhaps, Err(&queued));
    assert!(lab.holding.held("get", None).is_some(), "nor does what never began");
}

/// Whatever placements a plugin names, one after the other, stayed for the operator's life.
#[test]
fn targets_are_forgotten_when_there_are_too_many_or_nobody_asks_them_any_more() {
    let lab = Lab::new();
    let known = || lab.holding.lock().targets.0.len();
    lab.down("get", Some("down"));
    for number in 0..3 * TARGETS {
        lab.clock.advance(Duration::from_millis(1));
        lab.call("get", Some(&format!("host{number}")), "a", None);
    }
    assert_eq!(known(), TARGETS);
    assert!(lab.holding.held("get", Some("down")).is_some(), "those that are well go before it");
    assert!(lab.holding.lock().targets.0.contains_key(&format!("host{}", 3 * TARGETS - 1)), "the eldest go first");

    // All of them down: still no more than so many.
    for number in 0..TARGETS + 10 {
        lab.call("get", Some(&format!("sick{number}")), "a", Some(ErrorKind::Transient));
    }
    assert_eq!(known(), TARGETS);

    // A host that was taken away is told of no longer than anybody may still ask it.
    let lab = Lab::new();
    lab.call("get", Some("well"), "a", None);
    lab.down("get", Some("gone"));
    lab.clock.advance(FORGOTTEN - Duration::from_secs(1));
    assert_eq!(lab.holding.targets().len(), 1);
    lab.clock.advance(Duration::from_secs(1));
    assert_eq!((lab.holding.targets(), lab.shown.unreachable.load(Ordering::Relaxed)), (vec![], 0));
    assert!(lab.holding.lock().targets.0.contains_key("well"), "it tells that not all are down");
}
