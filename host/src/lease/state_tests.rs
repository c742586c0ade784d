//! What is lent, and to whom not.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::lease::{Leasable, Serving};
use crate::model::naming::ProxyKey;
use crate::model::proxy::{Endpoint, Protocol};

const TTL: Duration = Duration::from_secs(60);

fn at(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn mk_proxy(name: &str) -> Leasable {
    Leasable {
        key: ProxyKey { namespace: "crawl".into(), name: name.into() },
        uid: Uuid::new_v4(),
        incarnation: 0,
        provider: "demo".into(),
        location: None,
        labels: BTreeMap::from([("pool".into(), "a".into())]),
        protocol: Protocol::Http,
        serving: Some(Serving {
            endpoint: Endpoint { host: "192.0.2.1".into(), port: 3128, protocol: Protocol::Http },
            login: None,
            exit_ip: None,
        }),
        lack: Lack::Unhealthy,
        closed: false,
        draining: false,
    }
}

fn mk_holder(subject: &str, ttl: Duration, arrived: Duration) -> Holder {
    Holder { subject: subject.into(), since: arrived, expires: arrived + ttl, ttl }
}

fn mk_wish() -> Wish {
    Wish { namespaces: vec!["crawl".into()], ttl: TTL, subject: "alice".into(), ..Wish::default() }
}

fn mk_state(proxies: &[Leasable]) -> State {
    let mut state = State::default();
    for proxy in proxies {
        state.set(proxy.clone());
    }
    state
}

#[test]
fn an_exclusive_proxy_is_lent_to_one_holder_at_a_time() {
    let mut state = mk_state(&[mk_proxy("a"), mk_proxy("b")]);
    let first = state.reserve(&mk_wish(), at(0), at(0)).unwrap();
    let second = state.reserve(&mk_wish(), at(0), at(0)).unwrap();
    assert_ne!(first.slot, second.slot);
    assert_eq!(state.reserve(&mk_wish(), at(1), at(1)), Err(Refusal::Later(Reason::AllLeased, at(59))));
    state.expire(at(60));
    assert!(state.reserve(&mk_wish(), at(60), at(60)).is_ok());
}

#[test]
fn the_proxy_used_longest_ago_is_chosen() {
    let mut state = mk_state(&[mk_proxy("a"), mk_proxy("b"), mk_proxy("c")]);
    let mut order = Vec::new();
    for _ in 0..6 {
        let reserved = state.reserve(&mk_wish(), at(0), at(0)).unwrap();
        order.push(reserved.slot);
        state.release(reserved.slot, reserved.mark.generation, reserved.holder, None, at(0)).unwrap();
    }
    assert_eq!(order[..3], order[3..]);
    assert!(order[0] != order[1] && order[1] != order[2] && order[0] != order[2]);
}

#[test]
fn a_life_counts_from_the_arrival_of_its_request() {
    let mut state = mk_state(&[mk_proxy("a")]);
    let reserved = state.reserve(&mk_wish(), at(0), at(30)).unwrap();
    let (_, holder) = state.find(reserved.slot, reserved.mark.generation, reserved.holder, at(59)).unwrap();
    assert_eq!(holder.expires, at(60));
    assert_eq!(
        state.find(reserved.slot, reserved.mark.generation, reserved.holder, at(60)).err(),
        Some(NoLease::Ended)
    );
}

#[test]
fn a_marked_proxy_of_an_earlier_run_is_lent_to_nobody_until_the_promise_is_over() {
    let proxy = mk_proxy("a");
    let slot = Slot { uid: proxy.uid, incarnation: 0 };
    let mark = Mark { generation: 7, mode: Mode::Exclusive, hold_ms: 60_000, subject: "alice".into() };
    let mut state = State::restore(vec![(slot, mark)], 8, at(100));
    state.set(proxy);
    state.expire(at(160));
    assert!(
        matches!(state.reserve(&mk_wish(), at(160), at(160)), Err(Refusal::Later(Reason::AllLeased, _))),
        "the margin of 1 % is not over"
    );
    state.expire(at(161));
    let next = state.reserve(&mk_wish(), at(161), at(161)).unwrap();
    assert!(next.mark.generation > 8);
}

#[test]
fn a_renewal_restores_its_holder_after_a_restart_and_nobody_else() {
    let proxy = mk_proxy("a");
    let slot = Slot { uid: proxy.uid, incarnation: 0 };
    let mark = Mark { generation: 7, mode: Mode::Exclusive, hold_ms: 60_000, subject: "alice".into() };
    let mut state = State::restore(vec![(slot, mark)], 8, at(100));
    state.set(proxy);
    assert_eq!(state.find(slot, 7, 1, at(101)).err(), Some(NoLease::Restored));
    assert_eq!(state.renew(slot, 7, 1, &mk_holder("bob", TTL, at(101)), at(101)), Err(NoLease::Unknown));
    assert_eq!(state.renew(slot, 6, 1, &mk_holder("alice", TTL, at(101)), at(101)), Err(NoLease::Ended));
    assert_eq!(state.renew(slot, 7, 1, &mk_holder("alice", TTL, at(130)), at(130)), Ok(None));
    assert!(state.reserve(&mk_wish(), at(170), at(170)).is_err());
    assert_eq!(state.find(slot, 7, 1, at(189)).unwrap().1.expires, at(190));
}

#[test]
fn a_release_after_a_restart_frees_the_proxy() {
    let proxy = mk_proxy("a");
    let slot = Slot { uid: proxy.uid, incarnation: 0 };
    let mark = Mark { generation: 7, mode: Mode::Exclusive, hold_ms: 60_000, subject: "alice".into() };
    let mut state = State::restore(vec![(slot, mark.clone())], 8, at(100));
    state.set(proxy);
    assert_eq!(state.release(slot, 7, 1, Some("bob"), at(101)), Err(NoLease::Unknown));
    assert_eq!(state.release(slot, 7, 1, Some("alice"), at(101)), Ok(()));
    assert_eq!(state.take_over(), [(slot, mark)], "the ledger is told");
    assert!(state.reserve(&mk_wish(), at(101), at(101)).is_ok());
}

#[test]
fn a_shared_proxy_has_a_bounded_number_of_holders_and_no_exclusive_one_beside_them() {
    let mut state = mk_state(&[mk_proxy("a")]);
    let shared = Wish { mode: Mode::Shared, ..mk_wish() };
    let first = state.reserve(&shared, at(0), at(0)).unwrap();
    assert!(first.write);
    assert!(state.reserve(&shared, at(0), at(0)).unwrap().write, "another request's write may still fail");
    state.confirm(first.slot, &first.mark);
    for _ in 2..SHARED_HOLDERS {
        let next = state.reserve(&shared, at(0), at(0)).unwrap();
        assert!(!next.write, "inside its mark a shared grant writes nothing");
    }
    assert!(state.reserve(&shared, at(0), at(0)).is_err());
    assert!(state.reserve(&mk_wish(), at(0), at(0)).is_err());
    assert!(state.reserve(&Wish { mode: Mode::Shared, ..mk_wish() }, at(0), at(0)).is_err());
    state.release(first.slot, first.mark.generation, first.holder, None, at(1)).unwrap();
    assert!(state.reserve(&shared, at(1), at(1)).is_ok());
}

#[test]
fn a_longer_shared_grant_is_written() {
    let mut state = mk_state(&[mk_proxy("a")]);
    let shared = Wish { mode: Mode::Shared, ..mk_wish() };
    state.reserve(&shared, at(0), at(0)).unwrap();
    let longer = state.reserve(&Wish { ttl: TTL * 2, ..shared }, at(0), at(0)).unwrap();
    assert!(longer.write && longer.mark.hold_ms == 120_000);
}

#[test]
fn a_reservation_that_was_never_answered_leaves_the_proxy_free() {
    let mut state = mk_state(&[mk_proxy("a")]);
    let reserved = state.reserve(&mk_wish(), at(0), at(0)).unwrap();
    state.cancel(&reserved, at(0));
    assert!(state.reserve(&mk_wish(), at(0), at(0)).is_ok());
}

#[test]
fn a_draining_proxy_is_neither_lent_nor_renewed() {
    let mut proxy = mk_proxy("a");
    let mut state = mk_state(std::slice::from_ref(&proxy));
    let reserved = state.reserve(&mk_wish(), at(0), at(0)).unwrap();
    proxy.draining = true;
    state.set(proxy);
    let generation = reserved.mark.generation;
    assert_eq!(
        state.renew(reserved.slot, generation, reserved.holder, &mk_holder("alice", TTL, at(1)), at(1)),
        Err(NoLease::Draining)
    );
    assert!(state.find(reserved.slot, generation, reserved.holder, at(1)).is_ok(), "the lease itself lives on");
    state.release(reserved.slot, generation, reserved.holder, Some("alice"), at(1)).unwrap();
    assert!(state.reserve(&mk_wish(), at(1), at(1)).is_err());
}

#[test]
fn a_rebuilt_proxy_is_another_slot() {
    let mut proxy = mk_proxy("a");
    let mut state = mk_state(std::slice::from_ref(&proxy));
    let old = state.reserve(&mk_wish(), at(0), at(0)).unwrap();
    proxy.incarnation = 1;
    state.set(proxy);
    let new = state.reserve(&mk_wish(), at(1), at(1)).unwrap();
    assert_eq!((new.slot.uid, new.slot.incarnation), (old.slot.uid, 1));
    assert!(new.mark.generation > old.mark.generation);
}

#[test]
fn refusals_name_the_reason_and_when_it_can_change() {
    let lacking = |lack| Leasable { serving: None, lack, ..mk_proxy("a") };
    for (proxies, expected) in [
        (vec![], Refusal::NoMatch),
        (vec![lacking(Lack::Unhealthy)], Refusal::Later(Reason::NoneHealthy, UNHEALTHY_RETRY)),
        (vec![lacking(Lack::Scaling), lacking(Lack::Unhealthy)], Refusal::Later(Reason::Scaling, SCALING_RETRY)),
        (vec![lacking(Lack::Quota)], Refusal::Later(Reason::Quota, QUOTA_RETRY)),
        (vec![Leasable { closed: true, ..mk_proxy("a") }], Refusal::Later(Reason::NoneHealthy, UNHEALTHY_RETRY)),
    ] {
        assert_eq!(mk_state(&proxies).reserve(&mk_wish(), at(0), at(0)), Err(expected));
    }
}

#[test]
fn a_wish_is_met_in_every_respect() {
    let proxy = mk_proxy("a");
    for (wish, fits) in [
        (mk_wish(), true),
        (Wish { namespaces: vec!["other".into()], ..mk_wish() }, false),
        (Wish { selector: BTreeMap::from([("pool".into(), "a".into())]), ..mk_wish() }, true),
        (Wish { selector: BTreeMap::from([("pool".into(), "b".into())]), ..mk_wish() }, false),
        (Wish { provider: Some("demo".into()), ..mk_wish() }, true),
        (Wish { provider: Some("kvm".into()), ..mk_wish() }, false),
        (Wish { location: Some("zone-a".into()), ..mk_wish() }, false),
        (Wish { protocol: Some(Protocol::Socks5), ..mk_wish() }, false),
        (Wish { exclude: vec![proxy.key.clone()], ..mk_wish() }, false),
    ] {
        assert_eq!(wish.fits(&proxy), fits, "{wish:?}");
    }
}

/// A failed write once left the longer life in memory, so that the next renewal was answered without any write.
#[test]
fn a_renewal_beyond_what_the_ledger_holds_is_written_until_the_ledger_has_it() {
    let mut state = mk_state(&[mk_proxy("a")]);
    let first = state.reserve(&mk_wish(), at(0), at(0)).unwrap();
    state.confirm(first.slot, &first.mark);
    let renew = |state: &mut State| {
        state
            .renew(first.slot, first.mark.generation, first.holder, &mk_holder("alice", TTL * 2, at(1)), at(1))
            .unwrap()
    };
    let longer = renew(&mut state).expect("longer than the mark");
    assert_eq!(longer.hold_ms, 120_000);
    assert_eq!(renew(&mut state), Some(longer.clone()), "nobody confirmed the first write");
    state.confirm(first.slot, &longer);
    assert_eq!(renew(&mut state), None);
}

#[test]
fn a_lease_of_a_replaced_instance_is_not_renewed() {
    let mut proxy = mk_proxy("a");
    let mut state = mk_state(std::slice::from_ref(&proxy));
    let old = state.reserve(&mk_wish(), at(0), at(0)).unwrap();
    proxy.incarnation = 1;
    state.set(proxy);
    let renewed = state.renew(old.slot, old.mark.generation, old.holder, &mk_holder("alice", TTL, at(1)), at(1));
    assert_eq!(renewed, Err(NoLease::Ended));
}

/// Marks that ended while somebody acquired or asked once stayed in the ledger until the next start.
#[test]
fn every_mark_that_ends_is_told_to_the_ledger() {
    let (a, b, c) = (mk_proxy("a"), mk_proxy("b"), mk_proxy("c"));
    let mut state = mk_state(&[a, b, c]);
    let taken: Vec<_> = (0..3).map(|_| state.reserve(&mk_wish(), at(0), at(0)).unwrap()).collect();
    state.release(taken[0].slot, taken[0].mark.generation, taken[0].holder, None, at(1)).unwrap();
    state.cancel(&taken[1], at(1));
    state.remove(taken[2].slot.uid);
    let mut over: Vec<_> = state.take_over().into_iter().map(|(slot, _)| slot).collect();
    let mut expected: Vec<_> = taken.iter().map(|t| t.slot).collect();
    over.sort_unstable();
    expected.sort_unstable();
    assert_eq!(over, expected);
    let again = state.reserve(&mk_wish(), at(2), at(2)).unwrap();
    state.expire(at(62));
    assert_eq!(state.take_over(), [(again.slot, again.mark)]);
}

#[test]
fn a_subject_holds_no_more_leases_than_it_may() {
    let mut state = mk_state(&[mk_proxy("a"), mk_proxy("b"), mk_proxy("c")]);
    let wish = Wish { most: Some(2), ..mk_wish() };
    state.reserve(&wish, at(0), at(0)).unwrap();
    state.reserve(&wish, at(0), at(0)).unwrap();
    assert_eq!(state.reserve(&wish, at(1), at(1)), Err(Refusal::TooMany(2)));
    assert!(state.reserve(&Wish { subject: "bob".into(), ..wish.clone() }, at(1), at(1)).is_ok());
    assert!(state.reserve(&wish, at(60), at(60)).is_err(), "the third is bob's");
    state.expire(at(61));
    assert!(state.reserve(&wish, at(61), at(61)).is_ok());
}
