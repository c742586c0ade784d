//! Calls that are held back: each waits for itself, and keeps nothing else waiting.

use super::*;
use crate::control::proxy::beside::Beside;
use crate::control::proxy::held::{HeldCall, placement_of};
use crate::control::proxy::settle::runs;
use crate::model::condition::find;
use crate::plugin::handle::Held;

const HELD_FOR: Duration = Duration::from_secs(200);

impl Lab {
    /// As the driver notes it: this call is held back.
    fn hold(&mut self, which: Option<Beside>, call: &Call) {
        let placement = placement_of(&self.proxy, which).map(str::to_owned);
        let says = Some(Held { reason: "BackendUnavailable", message: "it is down".into() });
        let until = self.facts.now + HELD_FOR;
        self.memory.hold(HeldCall { which, function: call.function(), placement, until, says });
    }

    fn serving_with_an_old_one() -> Self {
        let mut lab = Lab::serving();
        let old = InstanceStatus { incarnation: 7, placement: Some("zone-b".into()), ..InstanceStatus::default() };
        lab.proxy.status.as_mut().unwrap().retiring.push(old);
        lab
    }
}

/// A plugin whose `validate` failed had its running proxies neither looked at nor replaced until it was mended.
#[test]
fn what_runs_is_looked_after_while_its_spec_cannot_be_validated() {
    let mut lab = Lab::serving();
    lab.restart();
    assert_eq!(lab.run(), Step::Call(Call::Validate));
    lab.hold(None, &Call::Validate);
    lab.on(Call::Get, shown(State::Running));
    assert!(lab.wait() <= HELD_FOR);
    lab.advance(HELD_FOR);
    assert_eq!(lab.run(), Step::Call(Call::Validate));
    let mut lab = Lab::new();
    lab.hold(None, &Call::Validate);
    assert_eq!(lab.wait(), HELD_FOR, "nothing is made from a spec that nobody validated");
}

/// A backend that was down while the operator started again took all of its proxies from the crawlers.
#[test]
fn what_could_not_be_asked_for_since_a_restart_runs_as_its_status_says() {
    let running = |lab: &Lab| runs(&lab.proxy, &lab.memory);
    let mut lab = Lab::serving();
    lab.restart();
    assert!(running(&lab), "before it was asked for");
    lab.hold(None, &Call::Validate);
    lab.hold(None, &Call::Get);
    assert_eq!(lab.wait(), HELD_FOR);
    lab.settle();
    assert!(running(&lab), "held back");
    lab.memory.held.clear();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    lab.on(Call::Get, error(ErrorKind::Transient));
    lab.settle();
    assert_eq!(
        find(&lab.proxy.status.as_ref().unwrap().conditions, "Provisioned").unwrap().reason,
        "BackendUnavailable"
    );
    assert!(running(&lab), "asked in vain");
    lab.restart();
    assert!(running(&lab), "and again");
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    lab.on(Call::Get, absent());
    assert!(!running(&lab), "the backend says that it is gone");
    for state in [State::Creating, State::Stopped, State::Unknown("u".into())] {
        let mut lab = Lab::serving();
        lab.advance(OBSERVE);
        lab.on(Call::Get, shown(state.clone()));
        lab.settle();
        lab.restart();
        assert!(!running(&lab), "{state:?}");
    }
}

#[test]
fn a_held_call_of_the_one_that_serves_keeps_no_old_one_from_going() {
    let mut lab = Lab::serving_with_an_old_one();
    lab.advance(OBSERVE);
    assert_eq!(lab.run(), Step::Call(Call::Get));
    lab.hold(None, &Call::Get);
    lab.wait();
    lab.advance(secs(1));
    assert_eq!(lab.run(), Step::Beside(Beside::Retiring(7), Call::Delete));
}

#[test]
fn a_held_call_beside_keeps_the_one_that_serves_from_nothing() {
    let mut lab = Lab::serving_with_an_old_one();
    lab.wait();
    lab.advance(secs(1));
    assert_eq!(lab.run(), Step::Beside(Beside::Retiring(7), Call::Delete));
    lab.hold(Some(Beside::Retiring(7)), &Call::Delete);
    let wait = lab.wait();
    assert!(wait <= OBSERVE, "{wait:?}");
    lab.settle();
    let says = |lab: &Lab, type_: &str| {
        find(&lab.proxy.status.as_ref().unwrap().conditions, type_)
            .map(|c| (c.reason.clone(), c.message.clone()))
            .unwrap()
    };
    assert_eq!(says(&lab, "ProviderReady").0, "Ready");
    assert!(says(&lab, "UpToDate").1.contains("it is down"));
    lab.advance(OBSERVE);
    assert_eq!(lab.run(), Step::Call(Call::Get));
}

#[test]
fn a_place_that_cannot_be_asked_for_keeps_nobody_from_looking_after_what_serves() {
    let mut lab = Lab::serving();
    lab.provider().surges = true;
    lab.edit(|spec| spec.port = 81);
    assert_eq!(lab.run(), Step::Beside(Beside::Next, Call::Place(vec![])));
    lab.hold(Some(Beside::Next), &Call::Place(vec![]));
    assert!(lab.wait() <= OBSERVE);
    lab.advance(OBSERVE);
    assert_eq!(lab.run(), Step::Call(Call::Get));
}

#[test]
fn what_was_held_back_elsewhere_says_nothing_of_where_an_instance_is_now() {
    let mut lab = Lab::serving();
    lab.hold(None, &Call::Get);
    let proxy = lab.proxy.clone();
    lab.memory.keep_held(&proxy, lab.facts.now, |_| true);
    assert_eq!(lab.memory.held.len(), 1);
    lab.proxy.status.as_mut().unwrap().instance.as_mut().unwrap().placement = Some("zone-z".into());
    let proxy = lab.proxy.clone();
    lab.memory.keep_held(&proxy, lab.facts.now, |_| true);
    assert_eq!(lab.memory.held, []);
}
