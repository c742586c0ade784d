//! When a Provider is looked at again, and when its Proxies are.

use super::*;
use crate::control::proxy::lab::mk_instance;
use crate::model::SKIP_CLEANUP;
use crate::model::clock::ManualClock;
use crate::model::instance::{Owner, State as InstanceState};
use crate::plugin::engine::Runtime;
use crate::plugin::load::Loader;
use crate::store::local::LocalStore;
use crate::store::local::database::Database;

const MANIFEST: &str = "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: demo}\nspec: {plugin: {name: sandbox}, config: {a: 1}}\n";

async fn mk_providers(dir: &std::path::Path) -> (Arc<LocalStore>, Providers, Arc<ManualClock>) {
    let manifests = dir.join("manifests");
    std::fs::create_dir(&manifests).unwrap();
    std::fs::write(manifests.join("demo.yaml"), MANIFEST).unwrap();
    let clock = Arc::new(ManualClock::default());
    let database = Database::open(&dir.join("data/state.redb")).unwrap();
    let store = LocalStore::open(database, &manifests, vec![], clock.clone()).await.unwrap();
    store.apply_manifests().await;
    let loader = Loader::new(Runtime::new(None).unwrap(), clock.clone()).unwrap();
    let registry = Arc::new(Registry::new(Arc::new(loader), "put NAME.wasm there"));
    let artifacts = Artifacts::new(registry.clone(), clock.clone(), dir, vec![]);
    (store.clone(), Providers::new(store, registry, artifacts, clock.clone(), Arc::new(Mandate::always())), clock)
}

/// Each write of its own status once led to another check; with a figure in a message that was a loop without a pause.
#[tokio::test]
async fn its_own_status_is_no_reason_to_look_at_a_provider_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, providers, _) = mk_providers(dir.path()).await;
    assert!(!providers.has_seen(&store.provider("demo").unwrap()), "never looked at");
    let pass = providers.reconcile("demo", false).await;
    assert!(pass.changed && pass.again >= Duration::from_secs(10));
    let written = store.provider("demo").unwrap();
    assert!(written.status.is_some() && providers.has_seen(&written));
    std::fs::write(dir.path().join("manifests/demo.yaml"), MANIFEST.replace("a: 1", "a: 2")).unwrap();
    store.apply_manifests().await;
    assert!(!providers.has_seen(&store.provider("demo").unwrap()), "another spec");
    assert!(!providers.reconcile("demo", false).await.changed, "it is as it was");
    assert_eq!(store.provider("demo").unwrap().status.as_ref().and_then(|s| s.observed_generation), Some(2));
}

#[tokio::test]
async fn a_transition_is_told_once_and_a_changed_credential_is_another_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let (store, providers, _) = mk_providers(dir.path()).await;
    for _ in 0..3 {
        providers.reconcile("demo", false).await;
    }
    assert_eq!(store.events().iter().filter(|e| e.reason == "PluginMissing").count(), 1);
    let epoch = || providers.lock()["demo"].epoch;
    let before = epoch();
    providers.reconcile("demo", false).await;
    assert_eq!(epoch(), before);
    providers.renew();
    assert_ne!(epoch(), before);
}

#[tokio::test]
async fn the_count_of_proxies_is_written_no_more_than_twice_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let (store, providers, clock) = mk_providers(dir.path()).await;
    let shown = || store.provider("demo").unwrap().status.as_ref().unwrap().proxies;
    for (step, (proxies, seconds, expected)) in
        [(1, 0, 1), (3, 29, 1), (3, 1, 3), (4, 5, 3), (4, 25, 4)].into_iter().enumerate()
    {
        for n in 0..proxies {
            let manifest = format!(
                "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: p{n}}}\nspec: {{provider: demo}}\n"
            );
            std::fs::write(dir.path().join(format!("manifests/{n}.yaml")), manifest).unwrap();
        }
        store.apply_manifests().await;
        clock.advance(Duration::from_secs(seconds));
        providers.reconcile("demo", false).await;
        assert_eq!(shown(), expected, "step {step}");
    }
}

#[tokio::test]
async fn what_is_left_at_its_backend_keeps_a_provider_unless_it_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (store, providers, clock) = mk_providers(dir.path()).await;
    let provider = store.provider("demo").unwrap();
    store.set_provider_finalizer(&provider, true).await.unwrap();
    let mut provider = (*store.provider("demo").unwrap()).clone();
    let owner = Owner {
        installation: store.installation().into(),
        proxy_uid: "u".into(),
        namespace: "n".into(),
        name: "a".into(),
    };
    let left = Instance { owner: Some(owner), ..mk_instance("z", InstanceState::Running) };
    let keeps = async |provider: &Provider, listed| providers.keeps(provider, &listed).await.unwrap();
    assert_eq!(keeps(&provider, Ok(vec![left.clone()])).await, None, "nothing was ever made in this run or the last");
    providers.begin_with(&provider);
    assert_eq!(keeps(&provider, Ok(vec![])).await.unwrap().0, "CreatesMayLand");
    clock.advance(Duration::from_secs(31));
    let (reason, message) = keeps(&provider, Ok(vec![left.clone()])).await.unwrap();
    assert!(reason == "InstancesLeft" && message.contains("collected first: vm-1"), "{message}");
    let nobodys = |n| Instance { owner: None, provider_id: format!("vm-{n}"), ..left.clone() };
    let (reason, message) = keeps(&provider, Ok((5..10).map(nobodys).collect())).await.unwrap();
    assert!(reason == "InstancesLeft" && message.contains("tags"), "{message}");
    assert!(message.contains("vm-5, vm-6, vm-7 and 2 more") && message.contains("skip-cleanup=true"), "{message}");
    let (reason, message) = keeps(&provider, Err(("Unreachable".into(), "no route".into()))).await.unwrap();
    assert!(reason == "Unreachable" && message.contains("skip-cleanup=true"), "{message}");
    assert_eq!(keeps(&provider, Ok(vec![])).await, None);
    provider.metadata.annotations = Some([(SKIP_CLEANUP.to_owned(), "true".to_owned())].into());
    assert_eq!(keeps(&provider, Ok(vec![left])).await, None);
}

/// With `--gc-dry-run` a Provider waited for ever for what nobody collects, and did not say so.
#[tokio::test]
async fn what_keeps_a_provider_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let (store, providers, clock) = mk_providers(dir.path()).await;
    let providers = providers.with_dry_run(true);
    let provider = store.provider("demo").unwrap();
    store.set_provider_finalizer(&provider, true).await.unwrap();
    let provider = store.provider("demo").unwrap();
    providers.begin_with(&provider);
    clock.advance(Duration::from_secs(31));
    let installation = store.installation().into();
    let owner = Owner { installation, proxy_uid: "u".into(), namespace: "n".into(), name: "a".into() };
    let left = Instance { owner: Some(owner), ..mk_instance("z", InstanceState::Running) };
    let (reason, message) = providers.keeps(&provider, &Ok(vec![left])).await.unwrap().unwrap();
    assert_eq!(reason, "InstancesLeft");
    for part in ["--gc-dry-run: vm-1", "skip-cleanup=true"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let manifest = "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: a, namespace: crawl}\nspec: {provider: demo}\n";
    std::fs::write(dir.path().join("manifests/a.yaml"), manifest).unwrap();
    store.apply_manifests().await;
    let (reason, message) = providers.keeps(&provider, &Ok(vec![])).await.unwrap().unwrap();
    assert!(reason == "InUse" && message.contains("crawl/a"), "{message}");
}
