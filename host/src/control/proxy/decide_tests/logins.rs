//! Logins from a Secret: one that is missing stops what is made, and a changed one replaces what was made with it.

use super::*;
use crate::control::proxy::OwnLogin;
use crate::control::proxy::lab::healthy;
use crate::model::condition::find;
use crate::model::login::Login;

fn read(digests: &[&str]) -> OwnLogin {
    let login = Login { username: "ann".into(), password: "secret".to_owned().into() };
    OwnLogin::Read { login, digests: digests.iter().map(|d| (*d).to_owned()).collect() }
}

fn lacking() -> OwnLogin {
    OwnLogin::Lacking(
        CallError::new(ErrorKind::ConfigMissing, "Secret own does not exist").with_reason("SecretMissing"),
    )
}

/// Made with a login that this key digests so.
fn serving_with(digests: &[&str]) -> Lab {
    let mut lab = Lab::new();
    lab.facts.own_login = read(digests);
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    lab.on(Call::Place(vec![]), placed("zone-a"));
    lab.on(Call::Create, Ok(Answer::Created(mk_instance("zone-a", State::Running))));
    lab.facts.health = healthy();
    assert_eq!(lab.wait(), OBSERVE);
    lab.settle();
    lab
}

#[test]
fn without_its_login_nothing_is_made_until_the_secret_is_there() {
    let mut lab = Lab::new();
    lab.facts.own_login = lacking();
    lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
    assert_eq!(lab.wait(), secs(15));
    lab.settle();
    let status = lab.proxy.status.clone().unwrap();
    let ready = find(&status.conditions, "Ready").unwrap();
    assert_eq!((ready.reason.as_str(), ready.message.as_str()), ("SecretMissing", "Secret own does not exist"));
    assert!(!lab.proxy.has_finalizer() && status.create_sent.is_none(), "it can be deleted without asking anybody");
    lab.facts.own_login = read(&["k1:a"]);
    assert_eq!(lab.run(), Step::Call(Call::Place(vec![])));
}

#[test]
fn a_login_that_cannot_be_read_replaces_nothing() {
    let mut lab = serving_with(&["k1:a"]);
    lab.facts.own_login = lacking();
    assert_eq!(lab.wait(), secs(15));
    lab.edit(|spec| spec.port = 8080);
    assert_eq!(lab.wait(), secs(15), "what could not be made anew is not taken down");
}

#[test]
fn a_changed_login_replaces_what_was_made_with_the_last_one() {
    let mut lab = serving_with(&["k1:a"]);
    lab.facts.own_login = read(&["k1:b"]);
    assert_eq!(lab.wait(), Duration::from_millis(10));
    assert_eq!(lab.memory.rebuild.as_ref().map(|r| r.reason), Some("SpecChanged"));
}

#[test]
fn a_rotated_key_replaces_nothing() {
    let mut lab = serving_with(&["k1:a"]);
    lab.facts.own_login = read(&["k2:x", "k1:a"]);
    assert_eq!(lab.wait(), OBSERVE);
    // Whether the login changed cannot be said any more.
    lab.facts.own_login = read(&["k2:x"]);
    assert_eq!(lab.wait(), OBSERVE);
}
