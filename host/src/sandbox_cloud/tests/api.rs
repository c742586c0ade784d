//! The API's shapes: who may ask, what is refused, what is listed.

use super::*;

#[tokio::test]
async fn only_the_token_opens_the_api() {
    let sandbox = mk_sandbox().await;
    for path in ["/v1/cloud", "/v1/faults", "/v1/instances", "/nothing", "/v1/zones/z/instances/n"] {
        for token in [None, Some("Bearer wrong"), Some("Bearer "), Some("t0ken"), Some("Basic t0ken")] {
            let answer = sandbox.ask("GET", path, token, Bytes::new()).await.unwrap();
            answer.assert_error(401, "unauthorized");
        }
    }
    let answer = sandbox.ask("GET", "/v1/cloud", Some("bearer t0ken"), Bytes::new()).await.unwrap();
    answer.assert_status(200);
}

#[tokio::test]
async fn the_cloud_describes_itself_and_each_start_is_another() {
    let (one, other) = (mk_sandbox().await, mk_sandbox().await);
    one.create("p").await.assert_status(201);
    let cloud = one.call("GET", "/v1/cloud").await.assert_status(200);
    let zones = json!([
        { "name": "zone-a", "healthy": true, "message": "", "instances": 1, "capacity": 100 },
        { "name": "zone-b", "healthy": true, "message": "", "instances": 0, "capacity": 100 },
    ]);
    assert_eq!(cloud["zones"], zones);
    let another = other.call("GET", "/v1/cloud").await.assert_status(200);
    assert_ne!(cloud["cloudId"], another["cloudId"]);
    assert_eq!(one.handle.instance_count(), 1);
}

#[tokio::test]
async fn unknown_paths_methods_zones_and_instances_are_told_apart() {
    let sandbox = mk_sandbox().await;
    sandbox.call("GET", "/v1/nothing").await.assert_error(404, "not_found");
    sandbox.call("POST", "/v1/cloud").await.assert_error(405, "method_not_allowed");
    for (method, tail) in [("GET", ""), ("DELETE", ""), ("POST", "/start"), ("POST", "/stop")] {
        let there = format!("{}{tail}", path("zone-a", "none"));
        sandbox.call(method, &there).await.assert_error(404, "no_such_instance");
        let nowhere = format!("{}{tail}", path("zone-x", "none"));
        sandbox.call(method, &nowhere).await.assert_error(404, "no_such_zone");
    }
    let nowhere = sandbox.send("PUT", &path("zone-x", "p"), &mk_body("p")).await;
    nowhere.assert_error(404, "no_such_zone");
}

#[tokio::test]
async fn bad_creates_are_refused_with_what_is_wrong() {
    let sandbox = mk_sandbox().await;
    let long = "x".repeat(300);
    let changes = [
        ("/owner/installation", json!(""), "owner.installation"),
        ("/owner/proxyUid", json!(""), "owner.proxyUid"),
        ("/owner/name", json!(long), "owner.name"),
        ("/owner", Value::Null, "Owner"),
        ("/specHash", json!(7), "string"),
        ("/incarnation", json!(-1), "u64"),
        ("/protocol", json!("https"), "socks5"),
        ("/username", json!("u"), "both"),
        ("/password", json!("p"), "both"),
        ("/allowTargets", json!(["127.0.0.1"]), "port"),
        ("/allowTargets", json!(vec!["a:1"; 65]), "at most 64"),
        ("/bootMs", json!(1_000_000_000), "bootMs"),
        ("/flavour", json!("large"), "flavour"),
    ];
    for (pointer, value, named) in changes {
        let mut body = mk_body("p");
        match body.pointer_mut(pointer) {
            Some(field) => *field = value,
            None => body[&pointer[1..]] = value,
        }
        let answer = sandbox.send("PUT", &path("zone-a", "p"), &body).await;
        answer.assert_error(422, "invalid");
        let message = answer.body["message"].as_str().unwrap();
        assert!(message.contains(named), "{pointer}: {message}");
    }
    for (username, password) in [("a:b", "p"), ("", "p"), ("u", ""), ("u", "line\nbreak"), (&*long, "p")] {
        let mut body = mk_body("p");
        (body["username"], body["password"]) = (json!(username), json!(password));
        let answer = sandbox.send("PUT", &path("zone-a", "p"), &body).await;
        answer.assert_error(422, "invalid");
    }
    for name in ["Upper", "-a", "a-", "a.b", "a%20b", &"x".repeat(64)] {
        let answer = sandbox.send("PUT", &path("zone-a", name), &mk_body("p")).await;
        answer.assert_error(422, "invalid");
    }
    assert_eq!(sandbox.handle.instance_count(), 0);
}

#[tokio::test]
async fn a_body_is_bounded_and_has_to_be_json() {
    let sandbox = mk_sandbox().await;
    let send = async |body: Vec<u8>| {
        let body = Bytes::from(body);
        sandbox.ask("PUT", &path("zone-a", "p"), Some("Bearer t0ken"), body).await.unwrap()
    };
    send(vec![b' '; 64 * 1024 + 1]).await.assert_error(413, "too_large");
    let mut fits = mk_body("p").to_string().into_bytes();
    fits.resize(64 * 1024, b' ');
    send(fits).await.assert_status(201);
    send(b"not json".to_vec()).await.assert_error(422, "invalid");
    send(Vec::new()).await.assert_error(422, "invalid");
}

#[tokio::test]
async fn a_password_never_comes_back() {
    let sandbox = mk_sandbox().await;
    let mut body = mk_body("p");
    (body["username"], body["password"]) = (json!("u"), json!(87_654_321));
    let refused = sandbox.send("PUT", &path("zone-a", "p"), &body).await;
    refused.assert_error(422, "invalid");
    assert!(!refused.body.to_string().contains("87654321"), "{refused:?}");
    body["password"] = json!("s3cret");
    for method_and_path in [
        ("PUT", path("zone-a", "p")),
        ("PUT", path("zone-a", "p")),
        ("GET", path("zone-a", "p")),
        ("GET", "/v1/instances".to_owned()),
        ("DELETE", path("zone-a", "p")),
    ] {
        let answer = sandbox.send(method_and_path.0, &method_and_path.1, &body).await;
        assert!(answer.status < 300 && !answer.body.to_string().contains("s3cret"), "{answer:?}");
    }
    let options = format!("{:?}", Options::new("127.0.0.1:0".parse().unwrap(), "h", "s3cret"));
    assert!(!options.contains("s3cret"), "{options}");
}

#[tokio::test]
async fn a_list_comes_in_pages_ordered_by_zone_and_name() {
    let sandbox = mk_sandbox().await;
    let mut body = mk_body("p");
    for (zone, name) in [("zone-b", "a"), ("zone-a", "c"), ("zone-a", "a"), ("zone-b", "b"), ("zone-a", "b")] {
        sandbox.send("PUT", &path(zone, name), &body).await.assert_status(201);
    }
    body["owner"]["installation"] = json!("other one");
    sandbox.send("PUT", &path("zone-a", "foreign"), &body).await.assert_status(201);

    let mut seen = Vec::new();
    let mut pages = 0;
    let mut tail = String::new();
    loop {
        let query = format!("/v1/instances?installation=inst&limit=2{tail}");
        let page = sandbox.call("GET", &query).await.assert_status(200);
        pages += 1;
        for instance in page["instances"].as_array().unwrap() {
            let text = |field: &str| instance[field].as_str().unwrap().to_owned();
            seen.push(format!("{}/{}", text("zone"), text("name")));
        }
        match page["next"].as_str() {
            Some(cursor) => tail = format!("&cursor={cursor}"),
            None => break,
        }
        // What the cursor points at may go meanwhile.
        sandbox.call("DELETE", &path("zone-a", "b")).await;
        sandbox.vanishes("b").await;
    }
    assert_eq!(seen, ["zone-a/a", "zone-a/b", "zone-a/c", "zone-b/a", "zone-b/b"]);
    assert_eq!(pages, 3);

    let other = sandbox.call("GET", "/v1/instances?installation=other%20one").await.assert_status(200);
    assert_eq!(other["instances"].as_array().unwrap().len(), 1);
    let all = sandbox.call("GET", "/v1/instances").await.assert_status(200);
    assert_eq!((all["instances"].as_array().unwrap().len(), &all["next"]), (5, &Value::Null));
}

#[tokio::test]
async fn a_page_holds_at_most_a_hundred() {
    let sandbox = mk_sandbox_of(200).await;
    for index in 0..101 {
        sandbox.create(&format!("p-{index}")).await.assert_status(201);
    }
    for query in ["", "?limit=1000"] {
        let page = sandbox.call("GET", &format!("/v1/instances{query}")).await.assert_status(200);
        assert_eq!(page["instances"].as_array().unwrap().len(), 100);
        assert!(page["next"].is_string());
    }
    for query in ["limit=0", "limit=-1", "limit=x", "cursor=%21", "cursor=YQ", "instalation=typo"] {
        let answer = sandbox.call("GET", &format!("/v1/instances?{query}")).await;
        answer.assert_error(422, "invalid");
    }
}

#[tokio::test]
async fn a_cloud_that_makes_no_sense_does_not_start() {
    let listen = "127.0.0.1:0".parse().unwrap();
    let sane = Options::new(listen, "127.0.0.1", TOKEN);
    for wrong in [
        Options { token: String::new(), ..sane.clone() },
        Options { zones: Vec::new(), ..sane.clone() },
        Options { zones: vec!["a".into(), "a".into()], ..sane.clone() },
        Options { advertise: "no-such-name.invalid".into(), ..sane.clone() },
    ] {
        assert!(bind(wrong.clone()).await.is_err(), "{wrong:?}");
    }
}
