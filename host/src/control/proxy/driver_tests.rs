//! What the driver keeps, tells and stores around the decisions.

use super::*;
use crate::control::proxy::lab::mk_instance;
use crate::control::proxy::memory::Trouble;
use crate::lease::id::Signer;
use crate::lease::ledger::LocalLedger;
use crate::lease::{Reason, Refusal, Wish};
use crate::model::abandoned::ABANDONED;
use crate::model::clock::ManualClock;
use crate::model::instance::Owner;
use crate::model::mandate::Mandate;
use crate::plugin::engine::Runtime;
use crate::plugin::load::Loader;
use crate::plugin::registry::Registry;
use crate::plugin::source::oci::Artifacts;
use crate::store::local::LocalStore;
use crate::store::local::database::Database;

struct Lab {
    driver: Driver,
    store: Arc<LocalStore>,
    clock: Arc<ManualClock>,
    dir: tempfile::TempDir,
}

const MANIFEST: &str =
    "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: a, namespace: crawl}\nspec: {provider: p}\n";

fn key() -> ProxyKey {
    ProxyKey { namespace: "crawl".into(), name: "a".into() }
}

impl Lab {
    /// One Proxy whose Provider does not exist.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manifests = dir.path().join("manifests");
        std::fs::create_dir(&manifests).unwrap();
        std::fs::write(manifests.join("a.yaml"), MANIFEST).unwrap();
        let clock = Arc::new(ManualClock::default());
        let database = Database::open(&dir.path().join("data/state.redb")).unwrap();
        let store = LocalStore::open(database.clone(), &manifests, vec![], clock.clone()).await.unwrap();
        store.apply_manifests().await;
        let ledger = LocalLedger::open(database.clone()).await.unwrap();
        let allocator = Allocator::new(Arc::new(ledger), Signer::new(vec![1; 32].into()), clock.clone()).unwrap();
        let loader = Loader::new(Runtime::new(None).unwrap(), clock.clone()).unwrap();
        let registry = Arc::new(Registry::new(Arc::new(loader), "put NAME.wasm there"));
        let objects: Arc<dyn Store> = store.clone();
        let artifacts = Artifacts::new(registry.clone(), clock.clone(), dir.path(), vec![]);
        let providers =
            Arc::new(Providers::new(objects.clone(), registry, artifacts, clock.clone(), Arc::new(Mandate::always())));
        let driver = Driver::new(
            objects,
            providers,
            Engine::new().0,
            Arc::new(allocator),
            clock.clone(),
            "http://127.0.0.1:1/judge".into(),
        );
        Self { driver, store, clock, dir }
    }

    fn proxy(&self) -> Arc<Proxy> {
        self.store.proxy(&key()).unwrap()
    }

    async fn refusal(&self) -> Refusal {
        let wish = Wish { namespaces: vec!["crawl".into()], ttl: Duration::from_secs(60), ..Wish::default() };
        self.driver.allocator.acquire(&wish, self.clock.monotonic(), Duration::ZERO).await.unwrap_err()
    }
}

/// After a restart crawlers were told that no Proxy ever fits, and took their business elsewhere.
#[tokio::test]
async fn before_the_first_pass_crawlers_are_told_to_come_again() {
    let lab = Lab::new().await;
    assert!(matches!(lab.refusal().await, Refusal::Later(Reason::Scaling, _)));
}

#[tokio::test]
async fn a_proxy_that_was_never_placed_fits_all_the_same() {
    let lab = Lab::new().await;
    lab.driver.reconcile(&key()).await.unwrap();
    assert!(matches!(lab.refusal().await, Refusal::Later(Reason::NoneHealthy, _)));
}

/// Its memory, and what the allocator knew of it, once stayed for ever.
#[tokio::test]
async fn nothing_is_kept_of_a_proxy_that_went_without_a_finalizer() {
    let lab = Lab::new().await;
    lab.driver.reconcile(&key()).await.unwrap();
    assert_eq!(lab.driver.lock().len(), 1);
    lab.store.delete_proxy(&key()).await.unwrap();
    assert_eq!(lab.driver.reconcile(&key()).await.unwrap(), None);
    assert_eq!(lab.driver.lock().len(), 0);
    assert_eq!(lab.refusal().await, Refusal::NoMatch);
}

#[tokio::test]
async fn a_proxy_made_anew_under_the_same_name_is_another_one() {
    let lab = Lab::new().await;
    lab.driver.reconcile(&key()).await.unwrap();
    let old = lab.proxy().uid().unwrap();
    lab.store.delete_proxy(&key()).await.unwrap();
    std::fs::write(lab.dir.path().join("manifests/a.yaml"), MANIFEST.replace("spec: {", "spec: {port: 81, ")).unwrap();
    lab.store.apply_manifests().await;
    assert_ne!(lab.proxy().uid().unwrap(), old);
    lab.driver.lock().get_mut(&key()).unwrap().memory.searched = true;
    lab.driver.reconcile(&key()).await.unwrap();
    assert!(!lab.driver.lock()[&key()].memory.searched);
}

/// A user's edit during a long call once lost the call's answer, and with it the instance's address.
#[tokio::test]
async fn an_edit_during_a_call_does_not_lose_its_answer() {
    let lab = Lab::new().await;
    let decided_on = lab.proxy();
    std::fs::write(lab.dir.path().join("manifests/a.yaml"), MANIFEST.replace("spec: {", "spec: {port: 81, ")).unwrap();
    lab.store.apply_manifests().await;
    let status = ProxyStatus { address: Some("192.0.2.1:1".into()), ..ProxyStatus::default() };
    lab.driver.store_status(&decided_on, status.clone()).await.unwrap();
    assert_eq!((lab.proxy().status.clone(), lab.proxy().spec.port), (Some(status.clone()), 81));
    let again = lab.driver.store_status(&decided_on, status).await;
    assert!(matches!(again, Err(StoreError::Conflict(_))), "a status of somebody else is not overwritten");
}

#[tokio::test]
async fn only_what_a_listing_lacks_is_looked_at_and_a_running_pass_does_not_lose_it() {
    let lab = Lab::new().await;
    let uid = lab.proxy().uid().unwrap();
    let running = Memory {
        seen: Some(Seen { state: Some(State::Running), at: Duration::ZERO, poll_after: None, message: None }),
        ..Memory::default()
    };
    lab.driver.remember(&lab.proxy(), running.clone());
    lab.store
        .set_proxy_status(&lab.proxy(), ProxyStatus { instance: Some(Default::default()), ..ProxyStatus::default() })
        .await
        .unwrap();
    let owner = Owner {
        installation: lab.store.installation().into(),
        proxy_uid: uid.clone(),
        namespace: "crawl".into(),
        name: "a".into(),
    };
    let shown = |state, installation: &str| {
        let owner = Owner { installation: installation.into(), ..owner.clone() };
        vec![Instance { owner: Some(owner), ..mk_instance("z", state) }]
    };
    let ours = lab.store.installation().to_owned();
    assert_eq!(lab.driver.observe("p", &shown(State::Running, &ours)), []);
    assert_eq!(lab.driver.observe("other", &[]), []);
    for missing in [vec![], shown(State::Stopped, &ours), shown(State::Running, "another")] {
        assert_eq!(lab.driver.observe("p", &missing), [key()]);
    }
    // The end of a pass that began before the listing.
    lab.driver.remember(&lab.proxy(), running);
    assert_eq!(lab.driver.lock()[&key()].listed.map(|l| l.running), Some(false));
}

/// The pass that finds the fourth of five gone makes none of them anew: it is told before it is decided what follows.
#[tokio::test]
async fn the_absence_that_makes_a_mass_counts_before_anything_follows_from_it() {
    let lab = Lab::new().await;
    let mut wakes = lab.driver.providers.turns();
    let gone = |n: u32| {
        let mut proxy = Proxy::clone(&lab.proxy());
        proxy.metadata.uid = Some(n.to_string());
        let there = InstanceStatus { provider_id: Some("vm".into()), ..InstanceStatus::default() };
        proxy.status = Some(ProxyStatus { instance: Some(there), ..ProxyStatus::default() });
        proxy
    };
    let absent = Memory { seen: Some(Seen::absent(Duration::ZERO)), ..Memory::default() };
    for n in 0..5 {
        lab.driver.enrol(&gone(n), &Memory::default(), Duration::ZERO);
    }
    for n in 0..4 {
        assert!(!lab.driver.mass_absence("p") && wakes.try_recv().is_err(), "{n} are none");
        lab.driver.enrol(&gone(n), &absent, Duration::ZERO);
    }
    assert!(lab.driver.mass_absence("p"));
    assert_eq!(wakes.try_recv().as_deref(), Ok("p"), "its Provider says so at once");
}

#[tokio::test]
async fn a_login_whose_key_is_gone_says_so() {
    let lab = Lab::new().await;
    let made = InstanceStatus { login_key: Some("old".into()), ..InstanceStatus::default() };
    let keys = lab.store.login_keys().await.unwrap();
    let lacking = lab.driver.login(&lab.proxy(), Some(&made), &keys, None, &OwnLogin::Unused).await.unwrap_err();
    assert_eq!(lacking.reason, "LoginKeyMissing");
    assert!(lacking.message.contains("the key old"), "{}", lacking.message);
}

/// It once was probed and lent with a login that its backend never had.
#[tokio::test]
async fn a_login_of_the_backend_is_not_made_up_while_its_provider_is_not_ready() {
    let lab = Lab::new().await;
    lab.driver.reconcile(&key()).await.unwrap();
    let found = InstanceStatus { login_secret: Some("entries".into()), ..InstanceStatus::default() };
    let keys = lab.store.login_keys().await.unwrap();
    let login = async || lab.driver.login(&lab.proxy(), Some(&found), &keys, None, &OwnLogin::Unused).await;
    let lacking = login().await.unwrap_err();
    assert!(lacking.message.contains("Provider p, which is not ready"), "{}", lacking.message);
    let last = Login { username: "user".into(), password: "from the Secret".to_owned().into() };
    lab.driver.remember_login(&key(), LoginSecret::Granted("entries".into()), &last);
    assert_eq!(login().await.unwrap(), Some(last.clone()));
    lab.driver.remember_login(&key(), LoginSecret::Granted("other entries".into()), &last);
    assert!(login().await.is_err());
}

#[tokio::test]
async fn what_is_somebody_elses_is_released_with_an_event_that_says_so() {
    let lab = Lab::new().await;
    let proxy = lab.store.set_proxy_finalizer(&lab.proxy(), true).await.unwrap().unwrap();
    lab.store.delete_proxy(&key()).await.unwrap();
    let proxy = lab.store.proxy(&key()).unwrap_or(proxy);
    let error = CallError::new(ErrorKind::Foreign, "vm px-1 is somebody else's");
    let memory = Memory {
        deleting: true,
        trouble: Some(Trouble::after(None, error, "delete", (1, 1), Duration::ZERO, &mut rand::rng())),
        ..Memory::default()
    };
    assert!(lab.driver.finalize(&proxy, false, &memory).await.unwrap(), "it is gone");
    let told = lab.store.events().into_iter().find(|e| e.reason == "ReleasedForeign").unwrap();
    assert!(told.message.contains("vm px-1 is somebody else's"), "{}", told.message);
}

/// Of an object that is gone, Kubernetes is told nothing: whoever gave up a proxy never heard what was left of it.
#[tokio::test]
async fn what_is_given_up_is_told_while_its_object_is_there() {
    let lab = Lab::new().await;
    let outdated = lab.proxy();
    lab.store.set_proxy_status(&outdated, ProxyStatus { rebuilds: 1, ..ProxyStatus::default() }).await.unwrap();
    let given_up = Memory { abandoned: true, ..Memory::default() };
    let kept = lab.driver.finalize(&outdated, false, &given_up).await;
    assert!(matches!(kept, Err(StoreError::Conflict(_))));
    assert!(lab.store.events().iter().any(|told| told.reason == "Abandoned"));
}

#[tokio::test]
async fn what_cannot_be_remembered_is_not_given_up_and_says_so_once() {
    let lab = Lab::new().await;
    let metadata = "metadata: {annotations: {crawl.example.com/skip-cleanup: \"true\"}, ";
    std::fs::write(lab.dir.path().join("manifests/a.yaml"), MANIFEST.replace("metadata: {", metadata)).unwrap();
    lab.store.apply_manifests().await;
    let proxy = lab.store.set_proxy_finalizer(&lab.proxy(), true).await.unwrap().unwrap();
    lab.store.delete_proxy(&key()).await.unwrap();
    let all = (0..ABANDONED)
        .map(|n| Abandoned { proxy_uid: n.to_string(), ..Abandoned::of(&proxy, lab.clock.wall())[0].clone() });
    let all: Vec<Abandoned> = all.collect();
    let first = all[0].key();
    lab.store.abandon(all).await.unwrap();
    for _ in 0..3 {
        lab.driver.reconcile(&key()).await.unwrap_err();
    }
    let told: Vec<_> = lab.store.events().into_iter().filter(|told| told.reason == "AbandonFailed").collect();
    assert!(told.len() == 1 && told[0].message.contains("proxy-operator abandoned forget"), "{told:?}");
    assert!(lab.store.forget_abandoned(&first).await.unwrap());
    lab.driver.reconcile(&key()).await.unwrap();
    assert!(lab.store.proxy(&key()).is_none(), "it goes as soon as there is room");
}
