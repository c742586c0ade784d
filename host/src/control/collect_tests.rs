//! What is an orphan, and what must never be taken for one.

use super::*;
use crate::control::proxy::lab::{mk_instance, mk_proxy};
use crate::model::clock::ManualClock;
use crate::model::instance::{Owner, State};
use crate::model::proxy::{InstanceStatus, ProxyStatus};
use crate::store::local::LocalStore;
use crate::store::local::database::Database;

const OURS: &str = "installation-1";

fn mk_named(incarnation: u32, placement: &str) -> InstanceStatus {
    InstanceStatus { incarnation, placement: Some(placement.into()), ..InstanceStatus::default() }
}

fn mk_living(status: Option<ProxyStatus>) -> Proxy {
    Proxy { status, ..mk_proxy() }
}

/// As the backend shows it: of our Proxy, or of whoever `change` says.
fn mk_shown(incarnation: u32, placement: &str, change: impl FnOnce(&mut Instance)) -> Instance {
    let proxy = mk_proxy();
    let owner =
        Owner { installation: OURS.into(), proxy_uid: proxy.uid().unwrap(), namespace: "n".into(), name: "a".into() };
    let mut shown =
        Instance { owner: Some(owner), incarnation: Some(incarnation), ..mk_instance(placement, State::Running) };
    change(&mut shown);
    shown
}

fn judged(shown: &Instance, proxies: Vec<Proxy>, abandoned: &[Abandoned]) -> Verdict {
    judge(shown, OURS, &by_uid(proxies.into_iter().map(Arc::new).collect()), abandoned)
}

#[test]
fn what_a_status_names_stays_whether_it_serves_comes_or_goes() {
    let status = ProxyStatus {
        instance: Some(mk_named(3, "z")),
        next: Some(mk_named(4, "y")),
        retiring: vec![mk_named(2, "x")],
        ..ProxyStatus::default()
    };
    for (incarnation, placement) in [(3, "z"), (4, "y"), (2, "x")] {
        let shown = mk_shown(incarnation, placement, |_| {});
        assert_eq!(judged(&shown, vec![mk_living(Some(status.clone()))], &[]), Verdict::Named, "{incarnation}");
    }
    // An earlier incarnation of a living Proxy, one that a leader made that woke up late, and one made elsewhere.
    for (incarnation, placement) in [(1, "z"), (5, "z"), (3, "y")] {
        let shown = mk_shown(incarnation, placement, |_| {});
        assert_eq!(judged(&shown, vec![mk_living(Some(status.clone()))], &[]), Verdict::Orphan, "{incarnation}");
    }
}

#[test]
fn what_is_nobodys_is_an_orphan_and_any_doubt_is_not() {
    assert_eq!(judged(&mk_shown(0, "z", |_| {}), vec![], &[]), Verdict::Orphan);
    let of_other = |shown: &mut Instance| shown.owner.as_mut().unwrap().installation = "installation-2".into();
    assert_eq!(judged(&mk_shown(0, "z", of_other), vec![], &[]), Verdict::Unsure, "another installation's");
    assert_eq!(judged(&mk_shown(0, "z", |shown| shown.owner = None), vec![], &[]), Verdict::Unsure, "without tags");
    assert_eq!(judged(&mk_shown(0, "z", |shown| shown.incarnation = None), vec![], &[]), Verdict::Unsure);
    let nameless = |shown: &mut Instance| shown.owner.as_mut().unwrap().proxy_uid.clear();
    assert_eq!(judged(&mk_shown(0, "z", nameless), vec![], &[]), Verdict::Unsure);
    // Its status was lost: it is found again before anything is collected.
    for lost in [None, Some(ProxyStatus::default())] {
        assert_eq!(judged(&mk_shown(0, "z", |_| {}), vec![mk_living(lost)], &[]), Verdict::Unsure);
    }
    // The name was used again: another Proxy, another UID.
    let mut namesake = mk_living(Some(ProxyStatus { instance: Some(mk_named(0, "z")), ..ProxyStatus::default() }));
    namesake.metadata.uid = Some("another".into());
    assert_eq!(judged(&mk_shown(0, "z", |_| {}), vec![namesake], &[]), Verdict::Orphan);
}

#[test]
fn what_was_given_up_is_told_and_never_an_orphan() {
    let at = jiff::Timestamp::UNIX_EPOCH;
    let status = ProxyStatus { instance: Some(mk_named(3, "z")), ..ProxyStatus::default() };
    let given_up = Abandoned::of(&mk_living(Some(status)), at);
    assert_eq!(judged(&mk_shown(3, "z", |_| {}), vec![], &given_up), Verdict::Abandoned);
    assert_eq!(judged(&mk_shown(4, "z", |_| {}), vec![], &given_up), Verdict::Orphan, "another incarnation");
    // Of a Proxy whose status named nothing, everything.
    let all = Abandoned::of(&mk_living(None), at);
    for incarnation in 0..3 {
        assert_eq!(judged(&mk_shown(incarnation, "z", |_| {}), vec![], &all), Verdict::Abandoned);
    }
    assert_eq!(
        given_up[0].key(),
        Abandoned::of(&mk_living(Some(ProxyStatus { instance: Some(mk_named(3, "z")), ..ProxyStatus::default() })), at)
            [0]
        .key()
    );
    assert_ne!(given_up[0].key(), all[0].key());
}

/// Ten that nobody could delete once kept all others from being deleted, for ever.
#[tokio::test]
async fn what_was_tried_comes_after_what_was_not() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let database = Database::open(&dir.path().join("state.redb")).unwrap();
    let store = LocalStore::open(database, dir.path(), vec![], clock.clone()).await.unwrap();
    let collector = Collector::new(store, clock.clone(), Duration::from_secs(60), false);
    let orphans: Vec<Instance> = (0..15).map(|incarnation| mk_shown(incarnation, "z", |_| {})).collect();
    let found: Vec<_> = orphans.iter().map(|shown| (shown, Verdict::Orphan)).collect();
    let due = || collector.note("p", &found).iter().filter_map(|shown| shown.incarnation).collect::<Vec<_>>();
    assert!(due().is_empty(), "each has its grace");
    clock.advance(Duration::from_secs(60));
    let first = due();
    assert_eq!(first.len(), orphans.len());
    for incarnation in &first[..CAP] {
        collector.tried("p", &orphans[*incarnation as usize], false);
    }
    clock.advance(Duration::from_secs(60));
    let second = due();
    assert_eq!(second[..5], first[CAP..], "those that were not tried yet");
    for incarnation in &second[..CAP] {
        collector.tried("p", &orphans[*incarnation as usize], false);
    }
    assert_eq!(due()[..5], second[CAP..], "then those whose turn was longest ago");
}
