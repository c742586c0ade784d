//! What keeps an instance from being made or replaced although nothing failed: the floor, a mass absence, limits, namespaces;
//! and what an upgrade leaves alone.

use super::*;
use crate::control::proxy::lab::bad;
use crate::control::proxy::summary::summarize;
use crate::health::probe::FailureKind;
use crate::model::condition::{Status, find};
use crate::model::proxy::Protocol;
use crate::model::spec_hash::VERSION;

impl Lab {
    fn reason(&self, type_: &str) -> (Status, String) {
        let status = summarize(&self.proxy, &self.memory, &self.facts);
        let condition = find(&status.conditions, type_).unwrap();
        (condition.status, condition.reason.clone())
    }

    /// Bad for so long that it is to be replaced.
    fn dead() -> Self {
        let mut lab = Lab::serving();
        lab.advance(secs(1));
        lab.facts.health = bad(FailureKind::Broken);
        lab.on(Call::Get, shown(State::Running));
        lab.advance(BAD_FOR + secs(1));
        lab.facts.listed = Some(crate::control::proxy::Listed { at: lab.facts.now, running: true });
        lab
    }
}

#[test]
fn the_floor_holds_back_what_serves_and_bounds_replacements_of_what_does_not() {
    // Others that are out, others that are replaced, of 8 with a floor of 2; whether one that serves, or that is dead, goes.
    for (out, replaced, serving_goes, dead_goes) in
        [(0, 0, true, true), (1, 1, true, true), (2, 0, false, true), (2, 2, false, false), (7, 1, false, true)]
    {
        let mut lab = Lab::serving();
        (lab.facts.standing.total, lab.facts.standing.out, lab.facts.standing.replaced) = (8, out, replaced);
        lab.edit(|spec| spec.protocol = Protocol::Socks5);
        lab.wait();
        assert_eq!(lab.memory.rebuild.is_some(), serving_goes, "serving: {out} out, {replaced} replaced");
        let mut lab = Lab::dead();
        (lab.facts.standing.total, lab.facts.standing.out, lab.facts.standing.replaced) = (8, out, replaced);
        lab.run();
        assert_eq!(lab.memory.rebuild.is_some(), dead_goes, "dead: {out} out, {replaced} replaced");
    }
}

#[test]
fn one_that_never_was_ready_takes_nobody_away() {
    let mut lab = Lab::made(State::Failed("f".into()));
    (lab.facts.standing.total, lab.facts.standing.out, lab.facts.standing.replaced) = (8, 8, 8);
    assert_eq!(lab.run(), Step::Call(Call::Delete));
}

#[test]
fn a_mass_absence_makes_nothing_anew_and_says_so_until_a_human_says_otherwise() {
    for way in ["held", "accepted", "asked for"] {
        let mut lab = Lab::serving();
        lab.advance(OBSERVE);
        lab.on(Call::Get, absent());
        lab.facts.standing.mass_absence = true;
        match way {
            "held" => {
                lab.wait();
                assert_eq!(lab.reason("Provisioned"), (Status::False, "MassAbsence".into()));
                lab.advance(secs(60));
                assert_eq!(lab.run(), Step::Call(Call::Get), "it may be there again");
                continue;
            }
            "accepted" => lab.provider().absence_accepted = true,
            _ => lab.edit(|spec| spec.rebuild_token = "now".into()),
        }
        assert_eq!(lab.run(), Step::Call(Call::Place(vec![])), "{way}");
        assert_eq!(lab.instance().incarnation, 1);
    }
}

#[test]
fn a_mass_absence_replaces_nothing_else_either() {
    let mut lab = Lab::dead();
    lab.facts.standing.mass_absence = true;
    assert!(matches!(lab.run(), Step::Wait(_)));
    assert!(lab.memory.rebuild.is_none());
}

#[test]
fn a_full_provider_makes_nothing_and_says_so() {
    let mut lab = Lab::new();
    lab.provider().instances = Some(3);
    lab.facts.standing.instances = 3;
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    assert_eq!(lab.wait(), HELD);
    assert_eq!(lab.reason("Provisioned"), (Status::False, "InstanceLimit".into()));
    lab.facts.standing.instances = 2;
    assert_eq!(lab.run(), Step::Call(Call::Place(vec![])));
    // Another one took the last room while a place was asked for.
    lab.facts.standing.instances = 3;
    lab.absorb(Call::Place(vec![]), placed("zone-a"));
    assert_eq!(lab.wait(), HELD);
}

#[test]
fn a_namespace_that_is_not_allowed_gets_nothing_keeps_what_it_has_and_can_delete_it() {
    let mut lab = Lab::new();
    lab.provider().denied = Some(("NamespaceNotAllowed", "no".into()));
    assert!(matches!(lab.run(), Step::Wait(_)));
    assert_eq!(lab.reason("ProviderReady"), (Status::False, "NamespaceNotAllowed".into()));
    lab.delete();
    assert_eq!(lab.next(), Step::Finalizer(false));

    let mut lab = Lab::serving();
    lab.provider().denied = Some(("NamespaceNotAllowed", "no".into()));
    lab.edit(|spec| spec.port = 81);
    assert!(matches!(lab.run(), Step::Wait(_)));
    assert!(lab.memory.rebuild.is_none());
    lab.delete_seen(State::Running);
    lab.facts.health = Verdict::Unknown;
    lab.proxy.status.as_mut().unwrap().conditions.clear();
    assert_eq!(lab.run(), Step::Call(Call::Delete));
}

#[test]
fn a_hash_of_another_version_is_stamped_anew_and_rebuilds_nothing_unless_the_spec_changed() {
    for (edited, rebuilt) in [(false, false), (true, true)] {
        let mut lab = Lab::serving();
        let status = lab.proxy.status.as_mut().unwrap();
        status.spec_hash.as_mut().unwrap().version = VERSION + 1;
        status.applied.insert("unheard-of".into(), true.into());
        if edited {
            lab.edit(|spec| spec.port = 81);
        }
        lab.wait();
        assert_eq!(lab.memory.rebuild.is_some(), rebuilt);
        assert_eq!(lab.proxy.status.as_ref().unwrap().spec_hash.as_ref().unwrap().version == VERSION, !rebuilt);
    }
    // Edited while an operator of another version ran, in nothing that shapes the instance.
    let mut lab = Lab::serving();
    lab.proxy.status.as_mut().unwrap().spec_hash.as_mut().unwrap().version = VERSION + 1;
    lab.edit(|spec| spec.drain_timeout = crate::model::span::Span::secs(5));
    lab.wait();
    assert!(lab.memory.rebuild.is_none());
    assert_eq!(lab.proxy.status.as_ref().unwrap().spec_hash.as_ref().unwrap().version, VERSION);
}
