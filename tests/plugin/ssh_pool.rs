//! The connection that commands share: how many there are, what they carry, and what becomes of them.

use std::sync::Arc;

use proxy_operator::plugin::handle::Handle;
use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{Setup, eventually, holds, identity, soon};
use proxy_operator_tests::sshd::Sshd;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::ssh::{exec, handle_of, told};

/// Runs this many at once, and answers what each told.
async fn at_once(handle: Handle, count: usize) -> Vec<Value> {
    let handle = Arc::new(handle);
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let handle = handle.clone();
        calls.spawn(async move { told(&handle).await });
    }
    calls.join_all().await
}

#[tokio::test]
async fn fifty_calls_at_once_make_one_connection() {
    let Some(server) = Sshd::start() else { return };
    let handle = handle_of(server.setup().concurrent_calls(50), json!([{"argv": ["sleep", "0.05"]}])).await;
    for answer in at_once(handle, 50).await {
        assert_eq!(answer["status"], 0, "{answer}");
    }
    assert_eq!(server.logins(), 1, "{}", server.log());
    assert_eq!(server.logged("Starting session: command"), 50);
}

#[tokio::test]
async fn a_server_with_fewer_sessions_is_waited_for() {
    let Some(server) = Sshd::with("MaxSessions 2") else { return };
    let handle = handle_of(server.setup().concurrent_calls(50), json!([{"argv": ["sleep", "0.05"]}])).await;
    for answer in at_once(handle, 30).await {
        assert_eq!(answer["status"], 0, "{answer}");
    }
    assert_eq!(server.logins(), 1);
}

#[tokio::test]
async fn a_server_without_sessions_is_busy_and_nothing_was_sent() {
    let Some(server) = Sshd::with("MaxSessions 0") else { return };
    let answer = exec(server.setup(), json!({"argv": ["true"], "timeoutMs": 500})).await;
    assert_eq!((&answer["fault"], &answer["sent"]), (&json!("FaultKind::Busy"), &json!(false)), "{answer}");
    assert!(answer["message"].as_str().is_some_and(|text| text.contains("MaxSessions")), "{answer}");
}

#[tokio::test]
async fn a_ninth_command_at_once_waits_for_a_place() {
    let Some(server) = Sshd::start() else { return };
    let setup = server.setup().concurrent_calls(50);
    let gate = server.file("gate");
    let script = "echo >> $0; while [ $(wc -l < $0) -lt 100 ]; do sleep 0.05; done";
    let run = json!([{"argv": ["sh", "-c", script, gate]}]);
    let handle = Arc::new(handle_of(setup, run).await);
    let calls: Vec<_> = (0..9)
        .map(|_| {
            let handle = handle.clone();
            AbortOnDropHandle::new(tokio::spawn(async move { told(&handle).await }))
        })
        .collect();
    let lines = || std::fs::read_to_string(&gate).unwrap_or_default().lines().count();
    eventually("eight commands run", async || lines() == 8).await;
    // The ninth waits. Once all are let go, it runs.
    assert_eq!(server.logged("Starting session: command"), 8);
    std::fs::write(&gate, "\n".repeat(100)).expect("a file");
    for call in calls {
        let answer = soon("a call", call).await.expect("no panic");
        assert_eq!(answer["status"], 0, "{answer}");
    }
    assert_eq!(server.logins(), 1);
}

#[tokio::test]
async fn a_lost_connection_is_made_anew_for_the_next_command() {
    let Some(mut server) = Sshd::start() else { return };
    let handle = handle_of(server.setup(), json!([{"argv": ["true"]}])).await;
    assert_eq!(told(&handle).await["status"], 0);
    server.break_connections();
    assert_eq!(told(&handle).await["status"], 0);
    server.stop();
    let answer = told(&handle).await;
    assert_eq!((&answer["fault"], &answer["sent"]), (&json!("FaultKind::Unreachable"), &json!(false)), "{answer}");
    server.start_again();
    assert_eq!(told(&handle).await["status"], 0);
}

/// A firewall that forgot the connection, a machine that was switched off: nothing breaks, and nothing comes back.
#[tokio::test]
async fn a_connection_that_is_silent_is_replaced() {
    let Some(server) = Sshd::start() else { return };
    let handle = handle_of(server.setup().call_timeout(60), json!([{"argv": ["true"]}])).await;
    assert_eq!(told(&handle).await["status"], 0);
    server.freeze_connections();
    assert_eq!(told(&handle).await["status"], 0);
    assert_eq!(server.logins(), 2);
}

#[tokio::test]
async fn a_slow_server_is_connected_to_although_each_call_waits_shorter() {
    // Its greeting comes after a second, through a relay that holds it back.
    let Some(server) = Sshd::start() else { return };
    let relay = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (port, to) = (relay.local_addr().expect("its address").port(), server.port);
    let _relaying = AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut client, _) = relay.accept().await.expect("a client");
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let mut server = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.expect("sshd");
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }));
    let mut connection = server.connection();
    connection["ssh"]["port"] = port.into();
    let setup = server.setup().connection("host", connection);
    setup.vault.set("known-hosts", &server.pin("ed25519").replace(&to.to_string(), &port.to_string()));
    let handle = handle_of(setup, json!([{"argv": ["true"], "timeoutMs": 300}])).await;
    assert_eq!(told(&handle).await["fault"], "FaultKind::TimedOut");
    eventually("one of them runs", async || told(&handle).await["status"] == 0).await;
    assert_eq!(server.logins(), 1);
}

#[tokio::test]
async fn a_connection_lost_in_mid_command_is_a_fault_and_the_command_is_not_repeated() {
    let Some(server) = Sshd::start() else { return };
    let file = server.file("began");
    let run = json!([{"argv": ["sh", "-c", "echo >> $0; exec sleep 600", file]}]);
    let handle = handle_of(server.setup(), run).await;
    let (answer, ()) = tokio::join!(told(&handle), async {
        eventually("the command runs", async || file.exists()).await;
        server.break_connections();
    });
    assert_eq!((&answer["fault"], &answer["sent"]), (&json!("FaultKind::Lost"), &json!(true)), "{answer}");
    assert_eq!(std::fs::read_to_string(file).expect("it ran").lines().count(), 1);
}

#[tokio::test]
async fn a_dropped_call_ends_its_command_and_leaves_no_task_and_no_channel() {
    let Some(server) = Sshd::unprivileged() else { return };
    let setup = server.setup().concurrent_calls(8);
    let file = server.file("ids");
    let run = json!([{"argv": ["sh", "-c", "echo $$ >> $0; exec sleep 600", file]}]);
    let handle = Arc::new(handle_of(setup, run).await);
    let ids = || std::fs::read_to_string(&file).unwrap_or_default();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut at_rest = None;
    for round in 1..=3 {
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let handle = handle.clone();
                AbortOnDropHandle::new(tokio::spawn(async move { handle.get(&identity("a", "here")).await }))
            })
            .collect();
        let all = async || ids().lines().count() == 8 * round;
        assert!(holds(all).await, "round {round}: {:?} of 8 each\n{}", ids(), server.log());
        drop(calls);
        let alive = |id: &str| std::path::Path::new(&format!("/proc/{id}")).exists();
        eventually("all have ended", async || !ids().lines().any(alive)).await;
        // The connection's own tasks stay, and not one more after each round.
        eventually("no task is left", async || tasks() <= *at_rest.get_or_insert(tasks())).await;
        at_rest = at_rest.min(Some(tasks()));
    }
    // MaxSessions is 10, and 24 have been opened on the one connection: each was closed.
    assert_eq!(server.logins(), 1, "{}", server.log());
    eventually("the server has closed them all", async || server.logged("Close session") == 24).await;
    drop(handle);
    eventually("the pool went with its grants", async || tasks() == 0).await;
    eventually("the server sees it", async || {
        server.logged("Connection closed by") + server.logged("Disconnected from") >= 1
    })
    .await;
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_told_as_what_it_is() {
    let Some(server) = Sshd::start() else { return };
    let to = |host: &str, port: u16, permit: Value| {
        let mut connection = server.connection();
        connection["ssh"]["host"] = host.into();
        connection["ssh"]["port"] = port.into();
        connection["ssh"]["permit"] = permit;
        server.setup().connection("host", connection)
    };
    let closed = { TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("its address").port() };
    let http = Server::start(async |_| Reply::status(200)).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent_port = silent.local_addr().expect("its address").port();
    let loopback = || json!(["loopback"]);
    for (setup, kind, says) in [
        (to("127.0.0.1", closed, loopback()), "Unreachable", "no connection"),
        (to("no-such-host.invalid", 22, loopback()), "Dns", "does not resolve"),
        (to("127.0.0.1", server.port, json!([])), "Denied", "permit: [loopback]"),
        (to("localhost", server.port, json!([])), "Denied", "permit: [loopback]"),
        (to("2130706433", server.port, json!(["linkLocal"])), "Denied", "permit: [loopback]"),
        (to("169.254.169.254", 22, loopback()), "Denied", "permit: [linkLocal]"),
        (to("127.0.0.1", http.address.port(), loopback()), "", ""),
        (to("127.0.0.1", silent_port, loopback()), "TimedOut", "still connecting"),
    ] {
        let answer = exec(setup, json!({"argv": ["true"], "timeoutMs": 2000})).await;
        assert_eq!(answer["sent"], false, "{answer}");
        if kind.is_empty() {
            // A web server waits for a request, or says something that is no greeting, or hangs up.
            assert!(
                ["Protocol", "Lost", "TimedOut"].iter().any(|kind| answer["fault"] == format!("FaultKind::{kind}")),
                "{answer}"
            );
            continue;
        }
        assert_eq!(answer["fault"], format!("FaultKind::{kind}"), "{answer}");
        assert!(answer["message"].as_str().is_some_and(|text| text.contains(says)), "{answer}");
    }
}

#[tokio::test]
async fn many_that_wait_for_a_dead_server_are_told_together() {
    let Some(mut server) = Sshd::start() else { return };
    server.stop();
    let handle = handle_of(server.setup().concurrent_calls(50), json!([{"argv": ["true"]}])).await;
    for answer in soon("all of them", at_once(handle, 50)).await {
        assert_eq!(answer["fault"], "FaultKind::Unreachable", "{answer}");
    }
}

#[tokio::test]
async fn a_connection_that_is_not_granted_is_named_with_those_that_are() {
    let setup = Setup::new().http("cloud", "127.0.0.1:9".parse().expect("an address"));
    let answer = exec(setup, json!({"connection": "cloud", "argv": ["true"]})).await;
    assert_eq!(answer["fault"], "FaultKind::UnknownConnection");
    assert!(answer["message"].as_str().is_some_and(|text| text.contains("\"cloud\" is http, not ssh")), "{answer}");
    let Some(server) = Sshd::start() else { return };
    let answer = exec(server.setup(), json!({"connection": "moon", "argv": ["true"]})).await;
    assert!(answer["message"].as_str().is_some_and(|text| text.contains("\"moon\"; it grants: host")), "{answer}");
}
