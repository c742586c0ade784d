//! Create, get, list and delete against the sandbox cloud.

use std::sync::Arc;

use proxy_operator::model::clock::SystemClock;
use proxy_operator::model::error::ErrorKind;
use proxy_operator::model::instance::{Deletion, Presence, State};
use proxy_operator::plugin::engine::{Origin, Runtime};
use proxy_operator::plugin::handle::Handle;
use proxy_operator::plugin::load::{Loader, Policy};
use proxy_operator::sandbox_cloud::{self, Options};
use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{Setup, eventually, identity, present, request};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "token-of-the-cloud";

/// A plugin as an operator with little memory loads it.
async fn handle(name: &str, setup: &Setup) -> Option<Handle> {
    let folder = crate::examples()?;
    let runtime = Runtime::new(None).unwrap().with_precompiled(&folder);
    let policy = Policy { compile_bytes: 64 << 20, ..Policy::default() };
    let loader = Arc::new(Loader::new(runtime, Arc::new(SystemClock::default())).unwrap().under(policy));
    let bytes = std::fs::read(folder.join(format!("{name}.wasm"))).unwrap();
    let plugin = loader.load(name, bytes).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(plugin.loading.0, Origin::Cache);
    Some(setup.bind(plugin))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_made_seen_listed_and_deleted() {
    let cloud = sandbox_cloud::bind(Options::new("127.0.0.1:0".parse().unwrap(), "127.0.0.1", TOKEN)).await.unwrap();
    let (address, stop) = (cloud.local_addr(), CancellationToken::new());
    let serving = tokio::spawn(cloud.serve(stop.clone()));
    for name in crate::EXAMPLES {
        let setup = Setup::new().bearer("cloud", address, TOKEN).config(json!({"bootMs": 20}));
        let Some(handle) = handle(name, &setup).await else { return };
        assert_eq!(handle.validate(None).await, Ok(Ok(())));
        assert!(handle.check().await.unwrap().iter().all(|finding| finding.healthy));
        let mut wrong = request(name, "");
        wrong.image = Some("debian12".into());
        let errors = handle.validate(Some(&wrong)).await.unwrap().unwrap_err();
        assert_eq!(errors[0].pointer, "/image");

        let place = handle.place(&request(name, ""), &[]).await.unwrap();
        let wanted = request(name, &place);
        // Twice, as after a lost answer: one instance.
        let made = handle.create(&wanted).await.unwrap();
        assert_eq!(handle.create(&wanted).await.unwrap().backend_id, made.backend_id);
        let at = identity(name, &place);
        let mut running = None;
        eventually("it runs", async || {
            running = Some(present(handle.get(&at).await.unwrap()));
            running.as_ref().is_some_and(|instance| instance.state == State::Running)
        })
        .await;
        let running = running.unwrap();
        assert_eq!((running.placement.as_str(), running.port.is_some()), (place.as_str(), true));
        let listed = handle.list().await.unwrap();
        assert_eq!(listed.iter().map(|i| &i.provider_id).collect::<Vec<_>>(), [&running.provider_id]);

        let elsewhere = identity(name, "zone-a@another-cloud");
        assert_eq!(handle.get(&elsewhere).await.unwrap_err().kind, ErrorKind::ConfigMissing);
        let nonsense = handle.get(&identity(name, "nonsense")).await.unwrap_err();
        assert_eq!(nonsense.reason, "PlacementUnknown");
        eventually("it is gone", async || handle.delete(&at).await.unwrap() == Deletion::Gone).await;
        assert_eq!(handle.get(&at).await, Ok(Presence::Absent));
    }
    stop.cancel();
    serving.await.unwrap();
    for name in crate::EXAMPLES {
        let setup = Setup::new().bearer("cloud", address, TOKEN);
        let Some(handle) = handle(name, &setup).await else { return };
        let unreachable = handle.get(&identity(name, "zone-a@gone")).await.unwrap_err();
        assert_eq!((unreachable.kind, unreachable.reason.as_str()), (ErrorKind::Transient, "Unreachable"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stray_exception_is_internal_with_its_text() {
    for name in crate::EXAMPLES {
        let server = Server::start(|_| async { Reply::json(200, json!({"unlike": "a cloud"})) }).await;
        let setup = Setup::new().http("cloud", server.address);
        let Some(handle) = handle(name, &setup).await else { return };
        let error = handle.check().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        assert!(error.message.contains("check: ") && error.message.contains("Error: "), "{}", error.message);
    }
}
