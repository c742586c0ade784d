//! A caller that gives up ends its call, and leaves nothing behind.

use std::sync::Arc;
use std::time::Duration;

use proxy_operator::model::instance::Presence;
use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{Setup, bytes_of, eventually, identity, loader, soon};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

#[tokio::test]
async fn a_dropped_call_gives_its_turn_and_its_connection_back() {
    // Each request holds the gate as long as its connection is served.
    let (open, gate) = watch::channel(false);
    let server = Server::start(move |_| {
        let mut gate = gate.clone();
        async move {
            let _ = gate.wait_for(|open| *open).await;
            Reply::status(404)
        }
    })
    .await;
    let setup = Setup::new().http("cloud", server.address).concurrent_calls(3);
    let handle = Arc::new(setup.handle("slow-get").await);
    for round in 1..=5 {
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let handle = handle.clone();
                AbortOnDropHandle::new(tokio::spawn(async move { handle.get(&identity("a", "here")).await }))
            })
            .collect();
        server.wait_asked(3 * round).await;
        drop(calls);
    }
    open.send(true).expect("the server waits");
    // All three turns are free, or this would wait for ever.
    let asked = identity("a", "here");
    let work = async { tokio::join!(handle.get(&asked), handle.get(&asked), handle.get(&asked)) };
    let (a, b, c) = soon("three calls", work).await;
    assert_eq!([a, b, c], [const { Ok(Presence::Absent) }; 3]);
}

#[tokio::test]
async fn a_dropped_call_of_a_looping_guest_stops_computing() {
    let handle = Setup::new().concurrent_calls(1).handle("loop-get").await;
    for _ in 0..3 {
        let asked = identity("a", "here");
        let given_up = tokio::time::timeout(Duration::from_millis(50), handle.get(&asked)).await;
        assert!(given_up.is_err(), "a loop does not end by itself");
        // The one turn is free again long before the deadline of 30 s.
        let next = soon("a call", handle.check()).await;
        assert_eq!(next.map(|findings| findings.len()), Ok(1));
    }
}

#[tokio::test]
async fn a_call_that_ended_holds_nothing_of_its_plugin() {
    let plugin = loader().load("echo", bytes_of("echo")).await.unwrap_or_else(|e| panic!("{e}"));
    let last = Arc::downgrade(&plugin);
    let handle = Setup::new().bind(plugin);
    handle.get(&identity("a", "here")).await.expect("echo answers");
    drop(handle);
    eventually("the plugin is freed", async || last.strong_count() == 0).await;
}
