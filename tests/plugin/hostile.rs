//! A guest that loops, hoards or panics costs its own call and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proxy_operator::model::error::{CallError, ErrorKind};
use proxy_operator::model::instance::Presence;
use proxy_operator::plugin::handle::Handle;
use proxy_operator_tests::plugins::{PANICS, Setup, identity, request, soon};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

async fn failure(handle: &Handle) -> CallError {
    soon("a call of a hostile guest", handle.get(&identity("a", "here"))).await.expect_err("the guest is hostile")
}

fn assert_internal(error: &CallError, expected: &[&str]) {
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Internal, "PluginFault"), "{error}");
    for part in expected {
        assert!(error.message.contains(part), "{:?} does not say {part:?}", error.message);
    }
}

#[tokio::test]
async fn a_loop_ends_at_the_deadline_and_is_named() {
    let handle = Setup::new().call_timeout(1).handle("loop-get").await;
    assert_internal(&failure(&handle).await, &["plugin loop-get, get", "still computing after 1 s", "callTimeout"]);
}

#[tokio::test]
async fn a_memory_bomb_ends_at_its_limit_and_is_named() {
    let handle = Setup::new().handle("memory-get").await;
    assert_internal(&failure(&handle).await, &["plugin memory-get, get", "memory limit of 64 MiB"]);
}

#[tokio::test]
async fn a_panic_is_told_with_its_text_and_place() {
    let handle = Setup::new().handle("panic-get").await;
    let expected = ["plugin panic-get, get", "it panicked: get panics on purpose", "panic-get.rs"];
    assert_internal(&failure(&handle).await, &expected);
}

#[tokio::test]
async fn after_a_trap_the_next_call_works() {
    for guest in ["panic-get", "memory-get"] {
        // One call at a time: a permit that was not given back would stop the second.
        let handle = Setup::new().concurrent_calls(1).handle(guest).await;
        for _ in 0..3 {
            failure(&handle).await;
            let made = soon("a create", handle.create(&request("a", "here"))).await;
            assert_eq!(made.expect("create does no harm").placement, "here");
        }
    }
}

#[tokio::test]
async fn other_calls_go_on_while_one_loops() {
    let looping = Arc::new(Setup::new().call_timeout(2).handle("loop-get").await);
    let echo = Setup::new().handle("echo").await;
    let bad = looping.clone();
    let running = AbortOnDropHandle::new(tokio::spawn(async move { failure(&bad).await }));
    let mut answered = 0;
    while !running.is_finished() {
        assert_eq!(echo.get(&identity("a", "here")).await, Ok(Presence::Absent));
        // Of the same provider, too.
        looping.create(&request("b", "here")).await.expect("another call of the looping plugin");
        answered += 1;
    }
    assert!(answered > 10, "only {answered} calls were answered while a guest looped");
    assert_internal(&running.await.expect("no panic"), &["still computing"]);
}

/// bytecodealliance/wasmtime#10667: a yield that is scheduled again at once starves timers.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_only_worker_still_serves_timers_while_guests_loop() {
    let looping = Arc::new(Setup::new().call_timeout(3).handle("loop-get").await);
    let ticks = Arc::new(AtomicU32::new(0));
    let counted = ticks.clone();
    let timer = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            counted.fetch_add(1, Ordering::SeqCst);
        }
    }));
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let handle = looping.clone();
            AbortOnDropHandle::new(tokio::spawn(async move { failure(&handle).await }))
        })
        .collect();
    for call in calls {
        assert_internal(&call.await.expect("no panic"), &["still computing"]);
    }
    drop(timer);
    // Starved, it ticks twice a second; served, some fifty times, with two guests that take 10 ms in turn.
    let ticks = ticks.load(Ordering::SeqCst);
    assert!(ticks >= 30, "a timer of 1 ms fired {ticks} times in 3 s");
}

/// The operator's own fault is that call's failure, and nobody else's.
#[tokio::test]
async fn a_panic_of_the_host_ends_the_call_that_met_it_alone() {
    let setup = Setup::new().secret("fine", "value").secret("cursed", PANICS).config(json!({"secret": "cursed"}));
    let cursed = setup.handle("echo").await;
    let error = cursed.validate(None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(
        error.message.contains("plugin echo, validate: the operator failed while it served this call"),
        "{}",
        error.message
    );
    assert!(!error.message.contains(PANICS));
    // The same handle goes on, and so do its permits.
    assert!(cursed.get(&identity("a", "here")).await.is_ok());
    let fine = setup.config(json!({"secret": "fine"})).handle("echo").await;
    assert_eq!(fine.validate(None).await, Ok(Ok(())));
}
