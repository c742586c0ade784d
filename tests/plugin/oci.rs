//! Plugins from a registry: pulled when it makes sense, with credentials, and kept for the day when the registry is away.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proxy_operator::model::clock::ManualClock;
use proxy_operator::plugin::load::{LoadError, PullError};
use proxy_operator::plugin::registry::{Entry, Registry};
use proxy_operator::plugin::source::oci::Artifacts;
use proxy_operator_tests::oci_registry::{OciRegistry, PASSWORD};
use proxy_operator_tests::plugins::{bytes_of, registry};

use crate::swapping::another;

const WASM: &str = "application/wasm";

/// An operator that pulls.
struct Puller {
    registry: Arc<Registry>,
    artifacts: Artifacts,
    clock: Arc<ManualClock>,
}

impl Puller {
    fn new(host: &str, cache: &Path) -> Self {
        let (registry, clock) = (registry(), Arc::new(ManualClock::default()));
        let artifacts = Artifacts::new(registry.clone(), clock.clone(), cache, vec![host.to_owned()]);
        Self { registry, artifacts, clock }
    }

    async fn pull(&self, from: &OciRegistry, reference: &str) -> Entry {
        self.artifacts.ensure("echo", reference, Some(&from.docker_config(PASSWORD))).await;
        self.registry.artifact("echo", reference)
    }
}

fn digest(entry: &Entry) -> String {
    let refusal = entry.refused.as_ref().map(|refused| refused.message.clone());
    entry.current.as_ref().unwrap_or_else(|| panic!("{refusal:?}")).digest.clone()
}

#[tokio::test]
async fn a_tag_is_followed_and_a_digest_never_looked_up_again() {
    let Some(server) = OciRegistry::start().await else { return };
    let cache = tempfile::tempdir().unwrap();
    let puller = Puller::new(&server.host(), cache.path());
    let pinned = server.push("1", WASM, &bytes_of("echo")).await;
    let (tag, by_digest) = (format!("{}/plugins:1", server.host()), format!("{}/plugins@{pinned}", server.host()));
    let first = digest(&puller.pull(&server, &tag).await);
    assert_eq!(digest(&puller.pull(&server, &by_digest).await), first);
    assert!(puller.registry.get("echo").current.is_none(), "an artifact is for the Providers that name it alone");

    server.push("1", "application/vnd.wasm.content.layer.v1+wasm", &another(&bytes_of("echo"))).await;
    assert_eq!(digest(&puller.pull(&server, &tag).await), first, "not yet looked up again");
    puller.clock.advance(Duration::from_secs(600));
    let second = digest(&puller.pull(&server, &tag).await);
    assert_ne!(second, first);
    assert_eq!(digest(&puller.pull(&server, &by_digest).await), first);

    // A bad file under the tag leaves the good one in place.
    server.push("1", WASM, &bytes_of("wrong-version")).await;
    puller.clock.advance(Duration::from_secs(600));
    let entry = puller.pull(&server, &tag).await;
    assert_eq!(digest(&entry), second);
    assert!(entry.refused.unwrap().message.contains("crawl:provider@0.2.0"));

    // The registry is away: what was pulled serves, in this run and in the next.
    let host = server.host();
    let config = server.docker_config(PASSWORD);
    drop(server);
    puller.clock.advance(Duration::from_secs(600));
    puller.artifacts.ensure("echo", &tag, Some(&config)).await;
    let entry = puller.registry.artifact("echo", &tag);
    assert_eq!(digest(&entry), second);
    let refused = entry.refused.unwrap();
    assert_eq!(refused.reason, LoadError::Pull(PullError(String::new())).reason());
    assert!(refused.message.contains("cannot be reached"), "{}", refused.message);
    let next = Puller::new(&host, cache.path());
    next.artifacts.ensure("echo", &by_digest, Some(&config)).await;
    assert_eq!(digest(&next.registry.artifact("echo", &by_digest)), first);

    // Nobody names it any more.
    next.artifacts.keep_only(&HashSet::new());
    assert!(next.registry.artifact("echo", &by_digest).current.is_none());
}

#[tokio::test]
async fn what_cannot_be_pulled_says_why_and_what_to_do() {
    let Some(server) = OciRegistry::start().await else { return };
    let cache = tempfile::tempdir().unwrap();
    let puller = Puller::new(&server.host(), cache.path());
    server.push("tar", "application/vnd.oci.image.layer.v1.tar+gzip", b"no plugin").await;
    server.push("1", WASM, &bytes_of("echo")).await;
    let at = |rest: &str| format!("{}/{rest}", server.host());
    let (good, wrong) = (server.docker_config(PASSWORD), server.docker_config("a-wrong-passw0rd"));
    for (reference, config, says) in [
        (at("plugins:none"), Some(&good), "has no such artifact"),
        (at("plugins:tar"), Some(&good), "it holds: application/vnd.oci.image.layer.v1.tar+gzip"),
        (at("plugins:1"), None, "name their Secret in spec.plugin.pullSecretRef"),
        (at("plugins:1"), Some(&wrong), "refuses the credentials of spec.plugin.pullSecretRef"),
        ("UPPER/case:1".to_owned(), Some(&good), "is no reference"),
        ("127.0.0.1:1/plugins:1".to_owned(), None, "cannot be reached"),
    ] {
        puller.artifacts.ensure("echo", &reference, config).await;
        let entry = puller.registry.artifact("echo", &reference);
        let message = entry.refused.unwrap_or_else(|| panic!("{reference}")).message;
        assert!(message.contains(says) && message.contains("plugin echo from artifact"), "{message}");
        assert!(entry.current.is_none() && !message.contains("passw0rd"), "{message}");
    }
    // Corrected credentials are tried at once.
    assert!(puller.pull(&server, &at("plugins:1")).await.current.is_some());
}
