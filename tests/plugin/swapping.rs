//! A plugin is replaced while it is called: calls in flight end on the version that they began with.

use std::sync::Arc;

use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{Setup, bytes_of, eventually, file, identity, present, registry, soon};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// The same plugin under another digest: with a custom section more, which means nothing.
pub fn another(bytes: &[u8]) -> Vec<u8> {
    [bytes, &[0, 5, 4], b"note"].concat()
}

#[tokio::test]
async fn a_call_in_flight_ends_on_the_version_that_it_began_with() {
    let (open, gate) = watch::channel(false);
    let server = Server::start(move |_| {
        let mut gate = gate.clone();
        async move {
            let _ = gate.wait_for(|open| *open).await;
            Reply::status(200)
        }
    })
    .await;
    let registry = registry();
    registry.offer("slow-get", &file("bin"), bytes_of("slow-get")).await;
    let setup = Setup::new().http("cloud", server.address);
    let old = registry.get("slow-get").current.expect("it is good");
    let (digest, gone) = (old.digest.clone(), Arc::downgrade(&old));
    let handle = setup.bind(old);
    let in_flight =
        AbortOnDropHandle::new(tokio::spawn(async move { handle.get(&identity("a", "here")).await.map(present) }));
    server.wait_asked(1).await;

    let mut changes = registry.subscribe();
    changes.mark_unchanged();
    registry.offer("slow-get", &file("bin"), another(&bytes_of("slow-get"))).await;
    assert!(changes.has_changed().expect("the registry lives"));
    let new = registry.get("slow-get").current.expect("it is good");
    assert_ne!(new.digest, digest);
    assert!(!in_flight.is_finished(), "the call still waits for its backend");
    assert!(gone.upgrade().is_some(), "the old version lives as long as its call");

    open.send(true).expect("the server waits");
    let found = soon("the old call", in_flight).await.expect("no panic").expect("the old version answers");
    assert_eq!(found.message.as_deref(), Some("version 0.1.0"));
    eventually("the old version is freed", async || gone.upgrade().is_none()).await;
    let found = setup.bind(new).get(&identity("a", "here")).await.map(present).expect("the new version answers");
    assert_eq!(found.placement, "here");
}

#[tokio::test]
async fn a_plugin_is_withdrawn_while_it_is_called() {
    let server = Server::start(async |_| Reply::status(404)).await;
    let registry = registry();
    registry.offer("slow-get", &file("bin"), bytes_of("slow-get")).await;
    let handle = Setup::new().http("cloud", server.address).bind(registry.get("slow-get").current.expect("good"));
    registry.withdraw("slow-get", &file("bin"));
    assert!(registry.get("slow-get").current.is_none());
    assert!(registry.names().is_empty());
    handle.get(&identity("a", "here")).await.expect("what holds it can still call it");
}

#[tokio::test]
async fn of_two_offers_at_once_the_later_one_wins() {
    let (registry, bin) = (registry(), file("bin"));
    let (first, second) = (bytes_of("echo"), another(&bytes_of("echo")));
    // The first has to compile, the second has only to be refused: it is done sooner.
    tokio::join!(registry.offer("echo", &bin, first), registry.offer("echo", &bin, b"nonsense".to_vec()));
    let entry = registry.get("echo");
    assert!(entry.current.is_some());
    assert!(entry.refused.is_some_and(|refusal| refusal.message.contains("from bin")), "the later file is refused");
    tokio::join!(registry.offer("echo", &bin, second), registry.offer("echo", &bin, bytes_of("echo")));
    let served = registry.get("echo").current.expect("it is good").digest.clone();
    let fresh = proxy_operator_tests::plugins::registry();
    fresh.offer("echo", &bin, bytes_of("echo")).await;
    assert_eq!(served, fresh.get("echo").current.expect("it is good").digest);
}
