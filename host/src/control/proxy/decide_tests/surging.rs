//! The next instance comes before the old one goes, and old ones go on their own.

use super::*;
use crate::control::proxy::beside::{self, Beside};
use crate::control::proxy::lab::{bad, healthy};
use crate::health::probe::FailureKind;
use crate::model::instance::Instance;
use crate::model::proxy::RETIRING;
use crate::model::span::Span;

const NEXT: Beside = Beside::Next;

/// Serving, where the backend lets one come before the other goes.
fn serving() -> Lab {
    let mut lab = Lab::serving();
    lab.provider().surges = true;
    lab
}

fn mk_next(state: State) -> Instance {
    Instance { provider_id: "vm-2".into(), incarnation: Some(1), ..mk_instance("zone-b", state) }
}

impl Lab {
    fn absorb_beside(&mut self, which: Beside, call: &Call, answer: Result<Answer, CallError>) {
        let mut random = rand::rng();
        let status = beside::absorb(&self.proxy, &mut self.memory, &self.facts, which, call, answer, &mut random);
        if let Some(status) = status {
            self.proxy.status = Some(status);
        }
    }

    fn on_beside(&mut self, which: Beside, call: Call, answer: Result<Answer, CallError>) {
        assert_eq!(self.run(), Step::Beside(which, call.clone()), "{:?}", self.memory);
        self.absorb_beside(which, &call, answer);
    }

    fn status(&self) -> ProxyStatus {
        self.proxy.status.clone().unwrap()
    }

    /// The spec changed, and the next one was made, with this state.
    fn followed(state: State) -> Self {
        let mut lab = serving();
        lab.edit(|spec| spec.port = 81);
        lab.on_beside(NEXT, Call::Place(vec![]), placed("zone-b"));
        lab.on_beside(NEXT, Call::Create, Ok(Answer::Created(mk_next(state))));
        lab
    }

    /// The next one serves, and the old one is on its way out.
    fn taken_over() -> Self {
        let mut lab = Self::followed(State::Running);
        lab.facts.next_health = healthy();
        lab.wait();
        lab.facts.next_health = Verdict::Unknown;
        lab
    }
}

#[test]
fn a_changed_spec_makes_the_next_one_first_and_the_old_one_serves_until_it_is_ready() {
    let mut lab = Lab::followed(State::Creating);
    let status = lab.status();
    let next = status.next.clone().unwrap();
    assert_eq!((next.incarnation, next.placement.as_deref()), (1, Some("zone-b")));
    assert_eq!(status.instance.unwrap().incarnation, 0);
    assert!(lab.memory.rebuild.is_none(), "nothing is taken away");
    lab.advance(POLL);
    lab.on_beside(NEXT, Call::Create, Ok(Answer::Created(mk_next(State::Running))));
    assert!(matches!(lab.next(), Step::Wait(_)), "it runs, and is not known to serve");
    lab.facts.next_health = healthy();
    let Step::Store(status) = lab.next() else { panic!("it does not take over") };
    let serving = status.instance.clone().unwrap();
    assert_eq!((serving.incarnation, serving.provider_id.as_deref()), (1, Some("vm-2")));
    assert_eq!((status.endpoint.as_ref().unwrap().port, status.rebuilds), (81, 1));
    assert!(up_to_date(&Proxy { status: Some(*status.clone()), ..lab.proxy.clone() }, &status, &OwnLogin::Unused));
    assert_eq!((status.next, status.retiring.len()), (None, 1));
}

#[test]
fn an_old_one_goes_when_its_leases_have_ended_and_is_forgotten_when_it_is_gone() {
    let mut lab = Lab::taken_over();
    lab.facts.held_retiring = vec![0];
    assert!(matches!(lab.run(), Step::Wait(_)));
    lab.facts.held_retiring = vec![];
    let old = Beside::Retiring(0);
    let progress = Deletion::InProgress { message: None, poll_after: None, continuation: Some("op".into()) };
    lab.on_beside(old, Call::Delete, Ok(Answer::Deleted(progress)));
    assert_eq!(lab.status().retiring[0].continuation.as_deref(), Some("op"));
    lab.advance(POLL);
    lab.on_beside(old, Call::Delete, gone());
    lab.facts.health = healthy();
    assert!(matches!(lab.run(), Step::Wait(_)));
    assert!(lab.status().retiring.is_empty());
}

#[test]
fn leases_of_an_old_one_are_waited_for_no_longer_than_its_drain_timeout() {
    let mut lab = Lab::taken_over();
    lab.facts.held_retiring = vec![0];
    lab.facts.health = healthy();
    assert!(matches!(lab.run(), Step::Wait(_)));
    lab.advance(secs(600));
    lab.memory.seen.as_mut().unwrap().at = lab.facts.now;
    assert_eq!(lab.run(), Step::Beside(Beside::Retiring(0), Call::Delete));
}

#[test]
fn after_a_restart_an_old_one_is_gone_only_when_no_create_can_land_any_more() {
    let mut lab = Lab::taken_over();
    lab.restart();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    lab.on(Call::Get, Ok(Answer::Got(Presence::Present(Box::new(mk_next(State::Running))))));
    lab.advance(secs(1));
    let old = Beside::Retiring(0);
    lab.run();
    lab.on_beside(old, Call::Delete, gone());
    assert!(matches!(lab.run(), Step::Wait(_)));
    assert_eq!(lab.status().retiring.len(), 1);
    lab.advance(SURE);
    lab.on_beside(old, Call::Delete, gone());
    lab.run();
    assert!(lab.status().retiring.is_empty());
}

#[test]
fn what_follows_is_given_up_when_it_leads_nowhere_and_no_number_is_used_twice() {
    for way in ["failed", "vanished", "late", "outdated", "bad", "exhausted"] {
        let mut lab = Lab::followed(State::Running);
        match way {
            "failed" => lab.memory.coming.seen.as_mut().unwrap().state = Some(State::Failed("f".into())),
            "vanished" => lab.memory.coming.seen.as_mut().unwrap().state = None,
            "late" => {
                lab.memory.coming.seen.as_mut().unwrap().state = Some(State::Creating);
                lab.advance(secs(601));
                lab.facts.listed = Some(crate::control::proxy::Listed { at: lab.facts.now, running: true });
            }
            "outdated" => lab.edit(|spec| spec.port = 82),
            "bad" => {
                lab.facts.next_health = bad(FailureKind::Broken);
                lab.wait();
                lab.advance(secs(601));
                lab.facts.listed = Some(crate::control::proxy::Listed { at: lab.facts.now, running: true });
            }
            _ => {
                lab.memory.coming.seen.as_mut().unwrap().state = Some(State::Creating);
                lab.advance(POLL);
                lab.on_beside(NEXT, Call::Create, error(ErrorKind::Exhausted));
            }
        }
        lab.facts.health = healthy();
        let Step::Store(status) = lab.next() else { panic!("{way}: it is not given up: {:?}", lab.memory.coming) };
        assert_eq!((status.next.clone(), status.retiring[0].incarnation), (None, 1), "{way}");
        assert_eq!(status.instance.as_ref().unwrap().incarnation, 0, "{way}: the old one serves");
        lab.proxy.status = Some(*status);
        if lab.memory.spacing_of_next(lab.facts.now).is_some() {
            lab.run();
            lab.on_beside(Beside::Retiring(1), Call::Delete, gone());
        }
        lab.facts.listed = None;
        // The second one in a row is spaced.
        lab.advance(secs(31));
        lab.memory.seen.as_mut().unwrap().at = lab.facts.now;
        let avoid = if way == "exhausted" { vec!["zone-b".to_owned()] } else { vec![] };
        lab.on_beside(NEXT, Call::Place(avoid), placed("zone-c"));
        assert_eq!(lab.status().next.unwrap().incarnation, 2, "{way}");
    }
}

#[test]
fn what_serves_is_lost_while_another_comes_so_that_takes_over() {
    let mut lab = Lab::followed(State::Creating);
    lab.memory.seen.as_mut().unwrap().state = Some(State::Failed("f".into()));
    let Step::Store(status) = lab.next() else { panic!("it does not take over") };
    assert_eq!((status.instance.unwrap().incarnation, status.retiring.len()), (1, 1));
    let mut lab = Lab::followed(State::Creating);
    lab.memory.seen = Some(Seen::absent(lab.facts.now));
    let Step::Store(status) = lab.next() else { panic!("it does not take over") };
    assert_eq!((status.instance.unwrap().incarnation, status.retiring.len()), (1, 0), "nothing is left of it");
}

#[test]
fn paused_nothing_follows_and_nothing_takes_over() {
    let mut lab = Lab::followed(State::Running);
    lab.edit(|spec| spec.paused = true);
    lab.facts.next_health = healthy();
    assert!(matches!(lab.run(), Step::Wait(_)));
    assert!(lab.status().next.is_some());
}

#[test]
fn a_deleted_proxy_goes_only_when_all_of_its_instances_are_gone() {
    let mut lab = Lab::followed(State::Creating);
    lab.delete();
    lab.on(Call::Get, absent());
    lab.run();
    let status = lab.status();
    assert_eq!((status.next, status.retiring.len()), (None, 1));
    lab.on_beside(Beside::Retiring(1), Call::Delete, gone());
    assert_eq!(lab.run(), Step::Finalizer(false));
    assert!(lab.released);
}

#[test]
fn a_static_address_a_changed_secret_and_a_full_provider_let_nothing_come_first() {
    for way in ["static", "full"] {
        let mut lab = serving();
        match way {
            "static" => lab.provider().surges = false,
            _ => {
                lab.provider().instances = Some(1);
                lab.facts.standing.instances = 1;
            }
        }
        lab.edit(|spec| spec.port = 81);
        lab.wait();
        assert!(lab.memory.rebuild.is_some(), "{way}: the old one goes first");
    }
}

#[test]
fn too_old_is_replaced_and_not_all_at_the_same_age() {
    let age = |uid: &str| {
        let mut lab = serving();
        lab.proxy.metadata.uid = Some(uid.into());
        lab.proxy.spec.max_age = Some(Span::secs(10_000));
        let mut age = 0;
        while matches!(lab.next(), Step::Wait(_)) {
            assert!(age <= 10_000, "it is never replaced");
            age += 50;
            lab.facts.wall += secs(50);
            lab.advance(secs(50));
            lab.facts.listed = Some(crate::control::proxy::Listed { at: lab.facts.now, running: true });
        }
        assert_eq!(lab.next(), Step::Beside(NEXT, Call::Place(vec![])));
        age
    };
    let ages: std::collections::BTreeSet<u64> = (0..8).map(|n| age(&format!("uid-{n}"))).collect();
    assert!(ages.iter().all(|age| (9_000..=10_000).contains(age)), "{ages:?}");
    assert!(ages.len() > 3, "{ages:?}");
}

/// Bad for so long that it is replaced, and its deletion takes too long.
fn delete_in_vain(lab: &mut Lab) {
    lab.advance(secs(1));
    lab.facts.health = bad(FailureKind::Broken);
    lab.on(Call::Get, shown(State::Running));
    lab.advance(secs(601));
    lab.facts.listed = Some(crate::control::proxy::Listed { at: lab.facts.now, running: true });
    lab.on(Call::Delete, error(ErrorKind::Transient));
    lab.advance(secs(901));
}

#[test]
fn a_deletion_that_takes_too_long_goes_on_beside_the_next_one() {
    let mut lab = Lab::serving();
    delete_in_vain(&mut lab);
    let Step::Store(status) = lab.next() else { panic!("it waits for ever: {:?}", lab.memory.rebuild) };
    let instance = status.instance.unwrap();
    assert_eq!((instance.incarnation, instance.placement, status.retiring.len()), (1, None, 1));
    // With three on their way out already, the next one waits.
    let mut lab = Lab::serving();
    let old = |incarnation| InstanceStatus { incarnation, placement: Some("z".into()), ..InstanceStatus::default() };
    lab.proxy.status.as_mut().unwrap().retiring = (7..7 + RETIRING as u32).map(old).collect();
    delete_in_vain(&mut lab);
    assert_eq!(lab.next(), Step::Call(Call::Delete));
}
