//! Each fault, as a client meets it.

use super::*;

#[tokio::test]
async fn slow_boot_keeps_an_instance_booting() {
    let sandbox = mk_sandbox().await;
    sandbox.set_faults(json!([{ "kind": "slow-boot", "times": 1 }])).await;
    sandbox.create("slow").await.assert_status(201);
    sandbox.create("quick").await.assert_status(201);
    sandbox.reaches("quick", "running").await;
    assert_eq!(sandbox.call("GET", &path("zone-a", "slow")).await.body["state"], "booting");
    sandbox.set_faults(json!([{ "kind": "slow-boot", "bootMs": 1 }])).await;
    let mut body = mk_body("third");
    body["bootMs"] = json!(60_000);
    sandbox.send("PUT", &path("zone-a", "third"), &body).await.assert_status(201);
    sandbox.reaches("third", "running").await;
}

#[tokio::test]
async fn failed_boot_ends_an_instance_as_failed() {
    let sandbox = mk_sandbox().await;
    sandbox.set_faults(json!([{ "kind": "failed-boot", "match": "p" }])).await;
    sandbox.create("p").await.assert_status(201);
    let failed = sandbox.reaches("p", "failed").await;
    assert_eq!((&failed["port"], &failed["message"]), (&Value::Null, &json!("the machine did not come up")));
    for wish in ["start", "stop"] {
        let answer = sandbox.call("POST", &format!("{}/{wish}", path("zone-a", "p"))).await;
        answer.assert_error(409, "wrong_state");
    }
    sandbox.call("DELETE", &path("zone-a", "p")).await.assert_status(202);
    sandbox.vanishes("p").await;
}

#[tokio::test]
async fn quota_refuses_new_instances_only() {
    let sandbox = mk_sandbox().await;
    sandbox.create("there").await.assert_status(201);
    sandbox.set_faults(json!([{ "kind": "quota", "match": "zone-a" }])).await;
    sandbox.create("there").await.assert_status(200);
    sandbox.create("p").await.assert_error(403, "quota");
    sandbox.send("PUT", &path("zone-b", "p"), &mk_body("p")).await.assert_status(201);
    assert_eq!(sandbox.struck().await, [1]);
    sandbox.set_faults(json!([])).await;
    sandbox.create("p").await.assert_status(201);
}

#[tokio::test]
async fn rate_limit_and_server_error_strike_everything_but_faults() {
    let sandbox = mk_sandbox().await;
    let instance = path("zone-a", "p");
    let body = mk_body("p");
    for (fault, status, code) in [
        (json!({ "kind": "rate-limit", "retryAfter": 7 }), 429, "rate_limited"),
        (json!({ "kind": "server-error" }), 500, "internal"),
    ] {
        sandbox.set_faults(json!([fault])).await;
        for (method, path) in [
            ("GET", "/v1/cloud".to_owned()),
            ("GET", "/v1/instances".to_owned()),
            ("PUT", instance.clone()),
            ("GET", instance.clone()),
            ("POST", format!("{instance}/start")),
            ("POST", format!("{instance}/stop")),
            ("DELETE", instance.clone()),
        ] {
            let answer = sandbox.send(method, &path, &body).await;
            answer.assert_error(status, code);
            let retry = answer.headers.get("retry-after").map(|value| value.to_str().unwrap());
            assert_eq!(retry, (status == 429).then_some("7"));
        }
        assert_eq!(sandbox.struck().await, [7]);
    }
    assert_eq!(sandbox.handle.instance_count(), 0, "nothing was carried out");
}

#[tokio::test]
async fn rate_limit_names_a_second_when_none_is_given_and_ends_after_its_times() {
    let sandbox = mk_sandbox().await;
    sandbox.set_faults(json!([{ "kind": "rate-limit", "times": 1, "match": "p" }])).await;
    sandbox.call("GET", "/v1/cloud").await.assert_status(200);
    let limited = sandbox.create("p").await;
    limited.assert_error(429, "rate_limited");
    assert_eq!(limited.headers["retry-after"], "1");
    sandbox.create("p").await.assert_status(201);
}

#[tokio::test]
async fn lost_answer_does_the_work_and_hangs_up() {
    let sandbox = mk_sandbox().await;
    let instance = path("zone-a", "p");
    sandbox.set_faults(json!([{ "kind": "lost-answer", "times": 2 }])).await;
    assert!(sandbox.try_send("PUT", &instance, &mk_body("p")).await.is_none());
    sandbox.call("GET", &instance).await.assert_status(200);
    assert!(sandbox.try_send("DELETE", &instance, &Value::Null).await.is_none());
    sandbox.vanishes("p").await;
    assert_eq!(sandbox.struck().await, [2]);
    sandbox.create("p").await.assert_status(201);
}

#[tokio::test]
async fn dead_proxy_runs_and_refuses_connections() {
    let sandbox = mk_sandbox().await;
    sandbox.set_faults(json!([{ "kind": "dead-proxy", "times": 1 }])).await;
    sandbox.create("p").await.assert_status(201);
    let dead = sandbox.reaches("p", "running").await;
    assert!(!accepts(port_of(&dead)).await);
    sandbox.create("q").await.assert_status(201);
    let alive = sandbox.reaches("q", "running").await;
    assert!(accepts(port_of(&alive)).await);
}

#[tokio::test]
async fn wrong_proxy_answers_everything_itself() {
    let sandbox = mk_sandbox().await;
    sandbox.set_faults(json!([{ "kind": "wrong-proxy" }])).await;
    let mut body = mk_body("p");
    (body["username"], body["password"]) = (json!("u"), json!("p"));
    sandbox.send("PUT", &path("zone-a", "p"), &body).await.assert_status(201);
    let port = port_of(&sandbox.reaches("p", "running").await);
    let answer = through(port, "http://example.com/", "").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("not the page"), "{answer}");
}

#[tokio::test]
async fn vanish_takes_matching_instances_at_once_without_a_trace() {
    let sandbox = mk_sandbox().await;
    let mut ports = Vec::new();
    for name in ["p", "q", "r"] {
        sandbox.create(name).await.assert_status(201);
        ports.push(port_of(&sandbox.reaches(name, "running").await));
    }
    sandbox.set_faults(json!([{ "kind": "vanish", "match": "q" }])).await;
    sandbox.call("GET", &path("zone-a", "q")).await.assert_error(404, "no_such_instance");
    assert!(!accepts(ports[1]).await);
    assert!(accepts(ports[0]).await && accepts(ports[2]).await);
    assert_eq!(sandbox.struck().await, [1]);
    sandbox.create("q").await.assert_status(201);
    sandbox.set_faults(json!([{ "kind": "vanish", "times": 2 }])).await;
    assert_eq!(sandbox.handle.instance_count(), 1, "it strikes as often as it may");
    sandbox.set_faults(json!([{ "kind": "vanish" }])).await;
    assert_eq!(sandbox.handle.instance_count(), 0);
}

#[tokio::test]
async fn slow_answer_does_the_work_first_and_answers_late() {
    let sandbox = mk_sandbox().await;
    sandbox.set_faults(json!([{ "kind": "slow-answer", "delayMs": 60_000, "times": 1 }])).await;
    let body = mk_body("p");
    let instance = path("zone-a", "p");
    let slow = sandbox.try_send("PUT", &instance, &body);
    let mut slow = Box::pin(slow);
    let seen = async {
        loop {
            if sandbox.handle.instance_count() == 1 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = &mut slow => panic!("answered at once: {answer:?}"),
        () = seen => {}
    }
    drop(slow);
    sandbox.create("p").await.assert_status(200);

    sandbox.set_faults(json!([{ "kind": "slow-answer", "delayMs": 30 }])).await;
    let begun = Instant::now();
    sandbox.call("GET", &instance).await.assert_status(200);
    assert!(begun.elapsed() >= Duration::from_millis(30));
}

#[tokio::test]
async fn a_fault_matches_by_name_zone_or_owner() {
    let sandbox = mk_sandbox().await;
    sandbox.create("p").await.assert_status(201);
    let mut other = mk_body("owner-name");
    other["bootMs"] = json!(60_000);
    sandbox.send("PUT", &path("zone-a", "q"), &other).await.assert_status(201);
    for (matched, on_p, on_q) in
        [("p", true, false), ("owner-name", false, true), ("zone-a", true, true), ("zone-b", false, false)]
    {
        sandbox.set_faults(json!([{ "kind": "server-error", "match": matched }])).await;
        for (name, struck) in [("p", on_p), ("q", on_q)] {
            let status = sandbox.call("GET", &path("zone-a", name)).await.status;
            assert_eq!(status == 500, struck, "{matched} on {name}");
        }
    }
    sandbox.set_faults(json!([{ "kind": "server-error", "match": "owner-name" }])).await;
    let create = sandbox.send("PUT", &path("zone-b", "new"), &mk_body("owner-name")).await;
    create.assert_error(500, "internal");
}

#[tokio::test]
async fn faults_are_listed_as_they_were_set() {
    let sandbox = mk_sandbox().await;
    sandbox
        .set_faults(json!([{ "kind": "rate-limit", "times": 1, "match": "x", "retryAfter": 3 }, { "kind": "quota" }]))
        .await;
    sandbox.create("p").await.assert_error(403, "quota");
    let listed = sandbox.call("GET", "/v1/faults").await.assert_status(200);
    let expected = json!([
        { "kind": "rate-limit", "times": 1, "match": "x", "retryAfter": 3, "struck": 0 },
        { "kind": "quota", "struck": 1 },
    ]);
    assert_eq!(listed, expected);
    for wrong in [json!({}), json!([{ "kind": "earthquake" }]), json!([{ "kind": "quota", "bootMs": 1 }])] {
        sandbox.send("PUT", "/v1/faults", &wrong).await.assert_error(422, "invalid");
    }
    let kept = sandbox.call("GET", "/v1/faults").await.body;
    assert_eq!(kept, expected, "a bad list changes nothing");
}
