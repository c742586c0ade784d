use super::*;
use crawl_provider_sdk::bindings::crawl::provider::http::HttpResponse;
use crawl_provider_sdk::{ErrorKind, testing};

fn mk_answer(status: u16, error: &str, mutating: bool) -> Answer {
    let body = format!(r#"{{"error":"{error}","message":"text"}}"#).into_bytes();
    let headers = vec![("retry-after".into(), b"1".to_vec())];
    Answer::new("PUT /v1/x", mutating, HttpResponse { status, headers, body })
}

fn mk_placement() -> Placement {
    let mut identity = testing::identity();
    identity.placement = "zone-a@c1".into();
    Placement::of(&identity).unwrap()
}

#[test]
fn a_create_tells_its_refusals_apart() {
    let cases = [
        (409, "foreign", ErrorKind::Foreign, None),
        (403, "quota", ErrorKind::Exhausted, Some("QuotaExceeded")),
        (403, "forbidden", ErrorKind::Unauthorized, Some("AuthRefused")),
        (401, "unauthorized", ErrorKind::Unauthorized, Some("AuthRefused")),
        (429, "rate_limited", ErrorKind::RateLimited(Some(1)), Some("RateLimited")),
        (404, "no_such_zone", ErrorKind::ConfigMissing, Some("ZoneMissing")),
        (500, "internal", ErrorKind::Transient, Some("ServerError")),
    ];
    for (status, code, kind, reason) in cases {
        let error = of_create(&mk_placement(), "px-x-0", &mk_answer(status, code, true)).unwrap_err();
        assert_eq!((&error.kind, error.reason.as_deref()), (&kind, reason), "{status} {code}");
        assert_eq!(error.target.as_deref(), Some("zone-a"));
    }
}

#[test]
fn only_the_clouds_own_404_is_no_instance() {
    let at = mk_placement();
    assert!(of_get(&at, &mk_answer(404, "no_such_instance", false)).unwrap().is_none());
    for code in ["no_such_zone", "not_found", ""] {
        assert_eq!(of_get(&at, &mk_answer(404, code, false)).unwrap_err().kind, ErrorKind::ConfigMissing, "{code}");
    }
    let page = HttpResponse { status: 404, headers: vec![], body: b"<html>".to_vec() };
    assert!(of_get(&at, &Answer::new("GET /", false, page)).is_err());
}

#[test]
fn a_delete_that_finds_nothing_is_on_its_way() {
    let at = mk_placement();
    of_delete(&at, &mk_answer(202, "", true)).unwrap();
    of_delete(&at, &mk_answer(404, "no_such_instance", true)).unwrap();
    assert_eq!(of_delete(&at, &mk_answer(500, "internal", true)).unwrap_err().kind, ErrorKind::Transient);
}

#[test]
fn what_changes_before_its_start_is_asked_again() {
    for (status, code) in [(404, "no_such_instance"), (409, "wrong_state")] {
        let error = of_start(&mk_placement(), "px-x-0", &mk_answer(status, code, true)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Transient);
    }
}
