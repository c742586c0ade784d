use super::*;
use crawl_provider_sdk::{ErrorKind, Login, Reach, testing};

fn mk_config() -> Config {
    Config::read(
        r#"{"proxies":[
            {"name":"a","host":"10.0.0.1","port":3128,"location":"de"},
            {"name":"b","host":"10.0.0.2","port":3128,"location":"fr","reach":"internal","loginSecret":"up"},
            {"name":"c","host":"10.0.0.3","port":1080,"location":"de","protocol":"socks5"}
        ]}"#,
    )
    .unwrap()
}

fn mk_request(change: impl FnOnce(&mut Request)) -> Request {
    let mut request = testing::request();
    change(&mut request);
    request
}

fn refused(request: &Request) -> Vec<(String, String)> {
    let invalid = matching(&mk_config(), request).unwrap_err();
    invalid.errors.into_iter().map(|field| (field.pointer, field.message)).collect()
}

fn at(placement: &str) -> Identity {
    let mut identity = testing::identity();
    identity.placement = placement.into();
    identity
}

#[test]
fn the_first_free_entry_that_fits_is_taken() {
    let cases: [(Request, &[&str], &str); 4] = [
        (mk_request(|_| {}), &[], "a@10.0.0.1:3128"),
        (mk_request(|_| {}), &["a@10.0.0.1:3128"], "b@10.0.0.2:3128"),
        (mk_request(|request| request.protocol = "socks5".into()), &[], "c@10.0.0.3:1080"),
        (mk_request(|request| request.parameters = r#"{"entry":"b"}"#.into()), &[], "b@10.0.0.2:3128"),
    ];
    for (request, avoid, place) in cases {
        let avoid: Vec<_> = avoid.iter().map(|held| held.to_string()).collect();
        assert_eq!(choose(&mk_config(), &request, &avoid).unwrap(), place);
    }
}

#[test]
fn an_entry_with_a_new_address_is_another_place() {
    assert_eq!(choose(&mk_config(), &mk_request(|_| {}), &["a@10.9.9.9:3128".into()]).unwrap(), "a@10.0.0.1:3128");
}

#[test]
fn held_entries_leave_nothing() {
    let request = mk_request(|request| request.location = Some("fr".into()));
    let error = choose(&mk_config(), &request, &["b@10.0.0.2:3128".into()]).unwrap_err();
    assert_eq!((error.kind, error.reason.as_deref()), (ErrorKind::Exhausted, Some("NoEntry")));
}

#[test]
fn a_wish_that_no_entry_fits_lists_what_is_there() {
    let cases = [
        (mk_request(|r| r.parameters = r#"{"entry":"z"}"#.into()), "/parameters/entry", "accepted: a, b, c"),
        (mk_request(|r| r.location = Some("us".into())), "/location", "accepted: de, fr"),
        (mk_request(|r| r.parameters = r#"{"entry":"c"}"#.into()), "/protocol", "accepted: socks5"),
        (mk_request(|r| r.parameters = r#"{"entri":"c"}"#.into()), "/parameters/entri", "unknown field"),
        (mk_request(|r| r.image = Some("debian12".into())), "/image", "leave the field out"),
    ];
    for (request, pointer, message) in cases {
        let found = refused(&request);
        assert_eq!(found[0].0, pointer);
        assert!(found[0].1.contains(message), "{found:?}");
    }
}

#[test]
fn every_wish_that_no_entry_fits_is_named() {
    let found = refused(&mk_request(|r| {
        r.location = Some("us".into());
        r.protocol = "gopher".into();
    }));
    let pointers: Vec<_> = found.iter().map(|(pointer, _)| pointer.as_str()).collect();
    assert_eq!(pointers, ["/location", "/protocol"]);
}

#[test]
fn an_entry_that_is_gone_or_moved_is_never_absent() {
    let config = mk_config();
    assert_eq!(placed(&config, &at("a@10.0.0.1:3128")).unwrap().name, "a");
    for (placement, reason) in [("a@10.0.0.9:3128", "EntryChanged"), ("z@10.0.0.1:3128", "EntryMissing")] {
        let error = placed(&config, &at(placement)).unwrap_err();
        assert_eq!((error.kind, error.reason.as_deref()), (ErrorKind::ConfigMissing, Some(reason)));
    }
}

#[test]
fn a_generated_login_needs_an_entry_that_has_one() {
    let config = mk_config();
    let login = Some(Login { username: "u".into(), password: "p".into() });
    let with = mk_request(|request| request.login = login);
    let error = check_login(&config.proxies[0], &with).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::InvalidSpec(fields) if fields[0].pointer == "/auth"));
    check_login(&config.proxies[0], &mk_request(|_| {})).unwrap();
    check_login(&config.proxies[1], &with).unwrap();
}

#[test]
fn an_instance_shows_the_entry() {
    let config = mk_config();
    let instance = instance(&config.proxies[1], &at("b@10.0.0.2:3128"));
    assert!(instance.provider_id.starts_with("static://b@10.0.0.2:3128/px-"));
    assert_eq!(instance.addresses, [Address { host: "10.0.0.2".into(), reach: Reach::Internal }]);
    assert_eq!((instance.port, instance.state), (Some(3128), State::Running));
    assert_eq!(instance.login_secret.as_deref(), Some("up"));
}
