//! Instances from create to gone, and the proxies that they are.

use fast_socks5::client::{Config, Socks5Stream};

use super::*;

#[tokio::test]
async fn an_instance_boots_and_is_a_proxy_with_a_login() {
    let (sandbox, web) = (mk_sandbox().await, mk_web().await);
    let mut body = mk_body("p");
    body["allowTargets"] = json!([web.to_string()]);
    (body["username"], body["password"]) = (json!("crawler"), json!("pa:ss word"));
    body["bootMs"] = json!(20);
    let made = sandbox.send("PUT", &path("zone-a", "p"), &body).await.assert_status(201);
    assert_eq!((&made["state"], &made["port"]), (&json!("booting"), &Value::Null));

    let running = sandbox.reaches("p", "running").await;
    let port = port_of(&running);
    let url = format!("http://{web}/");
    let login = "Proxy-Authorization: Basic Y3Jhd2xlcjpwYTpzcyB3b3Jk\r\n";
    assert!(through(port, &url, login).await.ends_with("\r\n\r\npage"));
    assert!(through(port, &url, "").await.starts_with("HTTP/1.1 407 "));
    assert!(through(port, "http://127.0.0.1:1/", login).await.starts_with("HTTP/1.1 403 "));

    let cloud = sandbox.call("GET", "/v1/cloud").await.body;
    let mut expected = json!({
        "name": "p", "zone": "zone-a", "cloudId": cloud["cloudId"], "state": "running",
        "message": "the proxy is up", "host": "127.0.0.1", "port": port, "owner": body["owner"],
        "incarnation": 0, "specHash": "hash"
    });
    (expected["id"], expected["createdAt"]) = (running["id"].clone(), running["createdAt"].clone());
    assert_eq!(running, expected);
    assert!(running["id"].as_str().unwrap().starts_with("i-"));
    assert!(running["createdAt"].as_u64().unwrap() > 1_700_000_000);
}

#[tokio::test]
async fn an_instance_can_speak_socks5() {
    let (sandbox, web) = (mk_sandbox().await, mk_web().await);
    let mut body = mk_body("p");
    body["protocol"] = json!("socks5");
    body["allowTargets"] = json!([web.to_string()]);
    (body["username"], body["password"]) = (json!("u"), json!("p"));
    sandbox.send("PUT", &path("zone-a", "p"), &body).await.assert_status(201);
    let proxy = ("127.0.0.1", port_of(&sandbox.reaches("p", "running").await));
    let connect = async |password: &str| {
        let (host, config) = (web.ip().to_string(), Config::default());
        let word = password.to_owned();
        Socks5Stream::connect_with_password(proxy, host, web.port(), "u".into(), word, config).await
    };
    let mut stream = connect("p").await.unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
    assert!(answer.ends_with("page"), "{answer}");
    assert!(connect("wrong").await.is_err());
}

#[tokio::test]
async fn a_create_said_twice_makes_one_instance() {
    let sandbox = mk_sandbox().await;
    let made = sandbox.create("p").await.assert_status(201);
    let mut again = mk_body("p");
    (again["incarnation"], again["specHash"]) = (json!(9), json!("another"));
    let found = sandbox.send("PUT", &path("zone-a", "p"), &again).await.assert_status(200);
    assert_eq!((&found["id"], &found["incarnation"]), (&made["id"], &json!(0)));
    assert_eq!(sandbox.handle.instance_count(), 1);
    let elsewhere = sandbox.send("PUT", &path("zone-b", "p"), &again).await.assert_status(201);
    assert_ne!(elsewhere["id"], made["id"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn creates_at_once_converge_on_one_instance() {
    let sandbox = mk_sandbox().await;
    let asked = (0..20).map(|_| sandbox.create("p"));
    let answers = futures::future::join_all(asked).await;
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(made, 1);
    assert!(answers.iter().all(|answer| answer.body["id"] == answers[0].body["id"]), "{answers:?}");
    assert_eq!(sandbox.handle.instance_count(), 1);
}

#[tokio::test]
async fn a_name_of_another_owner_is_foreign() {
    let sandbox = mk_sandbox().await;
    let made = sandbox.create("p").await.assert_status(201);
    for (field, value) in [("installation", "other"), ("proxyUid", "other"), ("namespace", "other")] {
        let mut body = mk_body("p");
        body["owner"][field] = json!(value);
        let answer = sandbox.send("PUT", &path("zone-a", "p"), &body).await;
        answer.assert_error(409, "foreign");
        assert!(answer.body["message"].as_str().unwrap().contains("ns/p"), "{answer:?}");
    }
    assert_eq!(sandbox.call("GET", &path("zone-a", "p")).await.body["id"], made["id"]);
}

#[tokio::test]
async fn a_full_zone_says_so_and_the_other_takes_more() {
    let sandbox = mk_sandbox_of(1).await;
    sandbox.create("p").await.assert_status(201);
    sandbox.create("q").await.assert_error(403, "quota");
    sandbox.create("p").await.assert_status(200);
    let zones = sandbox.call("GET", "/v1/cloud").await.body["zones"].clone();
    assert_eq!(zones[0]["message"], "zone-a is full: it holds 1 instances");
    sandbox.send("PUT", &path("zone-b", "q"), &mk_body("q")).await.assert_status(201);
    sandbox.call("DELETE", &path("zone-a", "p")).await.assert_status(202);
    sandbox.vanishes("p").await;
    sandbox.create("q").await.assert_status(201);
}

#[tokio::test]
async fn a_stopped_instance_has_no_port_and_gets_it_back_at_the_start() {
    let sandbox = mk_sandbox().await;
    sandbox.create("p").await.assert_status(201);
    let running = sandbox.reaches("p", "running").await;
    let port = port_of(&running);
    let instance = path("zone-a", "p");

    for _ in 0..2 {
        let stopped = sandbox.call("POST", &format!("{instance}/stop")).await.assert_status(200);
        assert_eq!((&stopped["state"], &stopped["port"]), (&json!("stopped"), &Value::Null));
        assert!(!accepts(port).await, "the port is closed once the answer is there");
    }
    let started = sandbox.call("POST", &format!("{instance}/start")).await.assert_status(200);
    assert_eq!((&started["state"], &started["id"]), (&json!("booting"), &running["id"]));
    let again = sandbox.reaches("p", "running").await;
    assert!(accepts(port_of(&again)).await);
    let up = sandbox.call("POST", &format!("{instance}/start")).await.assert_status(200);
    assert_eq!(up, again, "starting what runs changes nothing");
}

#[tokio::test]
async fn an_instance_stopped_while_it_boots_does_not_come_up() {
    let sandbox = mk_sandbox().await;
    let mut body = mk_body("p");
    body["bootMs"] = json!(60_000);
    sandbox.send("PUT", &path("zone-a", "p"), &body).await.assert_status(201);
    let stopped = sandbox.call("POST", &format!("{}/stop", path("zone-a", "p"))).await;
    assert_eq!(stopped.assert_status(200)["state"], "stopped");
    sandbox.call("DELETE", &path("zone-a", "p")).await.assert_status(202);
    sandbox.vanishes("p").await;
}

#[tokio::test]
async fn a_deleted_instance_is_deleting_and_then_gone_with_its_port() {
    let sandbox = mk_sandbox().await;
    sandbox.create("p").await.assert_status(201);
    let running = sandbox.reaches("p", "running").await;
    let instance = path("zone-a", "p");
    for _ in 0..2 {
        let deleting = sandbox.call("DELETE", &instance).await.assert_status(202);
        assert_eq!((&deleting["state"], &deleting["port"]), (&json!("deleting"), &Value::Null));
    }
    sandbox.call("POST", &format!("{instance}/start")).await.assert_error(409, "wrong_state");
    sandbox.call("POST", &format!("{instance}/stop")).await.assert_error(409, "wrong_state");
    sandbox.create("p").await.assert_status(200);
    sandbox.vanishes("p").await;
    assert!(!accepts(port_of(&running)).await);
    sandbox.call("DELETE", &instance).await.assert_error(404, "no_such_instance");
    let anew = sandbox.create("p").await.assert_status(201);
    assert_ne!(anew["id"], running["id"], "an id is never used twice");
}

#[tokio::test]
async fn when_the_cloud_ends_no_port_is_left_open() {
    let sandbox = mk_sandbox().await;
    let mut ports = vec![sandbox.handle.local_addr().port()];
    for name in ["p", "q"] {
        sandbox.create(name).await.assert_status(201);
        ports.push(port_of(&sandbox.reaches(name, "running").await));
    }
    let mut slow = mk_body("slow");
    slow["bootMs"] = json!(60_000);
    sandbox.send("PUT", &path("zone-a", "slow"), &slow).await.assert_status(201);
    sandbox.call("DELETE", &path("zone-a", "p")).await.assert_status(202);
    sandbox.ends().await;
    for port in ports {
        assert!(!accepts(port).await, "{port} is open");
    }
}
