//! The rules of the manifest folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::model::clock::SystemClock;
use crate::store::local::database::Database;
use crate::store::{Event, Store};

const PROVIDER: &str =
    "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: demo}\nspec: {plugin: {name: sandbox}}\n";

fn database(dir: &tempfile::TempDir) -> Database {
    Database::open(&dir.path().join("data/state.redb")).unwrap()
}

struct Lab {
    store: Arc<LocalStore>,
    dir: tempfile::TempDir,
}

impl Lab {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("manifests")).unwrap();
        let store =
            LocalStore::open(database(&dir), &dir.path().join("manifests"), vec![], Arc::new(SystemClock::default()))
                .await
                .unwrap();
        Self { store, dir }
    }

    fn folder(&self) -> std::path::PathBuf {
        self.dir.path().join("manifests")
    }

    async fn put(&self, file: &str, text: &str) {
        write(&self.folder().join(file), text, 0o644);
        self.store.apply_manifests().await;
    }

    async fn remove(&self, files: &[&str]) {
        for file in files {
            fs::remove_file(self.folder().join(file)).unwrap();
        }
        self.store.apply_manifests().await;
    }

    fn names(&self) -> Vec<String> {
        self.store.proxies().iter().map(|p| ProxyKey::of(p).to_string()).collect()
    }

    fn last_event(&self) -> Event {
        self.store.events().last().cloned().expect("an event")
    }
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn proxy(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}}}\nspec: {{provider: demo{spec}}}\n"
    )
}

#[tokio::test]
async fn a_changed_spec_is_a_new_generation_and_a_changed_label_is_not() {
    let lab = Lab::new().await;
    lab.put("a.yaml", &proxy("a", "")).await;
    let first = lab.store.proxies()[0].clone();
    assert_eq!((first.metadata.generation, first.namespace().as_deref()), (Some(1), Some("default")));
    lab.put("a.yaml", &proxy("a", ", port: 8080")).await;
    let second = lab.store.proxies()[0].clone();
    assert_eq!((second.metadata.generation, second.spec.port, second.uid()), (Some(2), 8080, first.uid()));
    lab.put("a.yaml", &proxy("a", ", port: 8080").replace("{name: a}", "{name: a, labels: {team: x}}")).await;
    let third = lab.store.proxies()[0].clone();
    assert_eq!((third.metadata.generation, third.labels().get("team").map(String::as_str)), (Some(2), Some("x")));
}

#[tokio::test]
async fn a_half_written_file_keeps_its_old_objects_and_names_itself() {
    let lab = Lab::new().await;
    lab.put("a.yaml", &proxy("a", "")).await;
    lab.put("a.yaml", &proxy("a", ", port: [")).await;
    assert_eq!(lab.names(), ["default/a"]);
    assert!(lab.last_event().message.contains("a.yaml"), "{:?}", lab.last_event());
    lab.put("a.yaml", &proxy("a", ", port: 99999")).await;
    assert_eq!(lab.store.proxies()[0].spec.port, 3128);
    assert!(lab.last_event().message.contains("/spec/port"), "{:?}", lab.last_event());
    lab.put("a.yaml", &proxy("a", ", port: 81")).await;
    assert_eq!(lab.store.proxies()[0].spec.port, 81);
    assert_eq!(lab.last_event().reason, "ManifestAccepted");
}

#[tokio::test]
async fn a_problem_is_told_once() {
    let lab = Lab::new().await;
    lab.put("a.yaml", "nonsense: [").await;
    lab.store.apply_manifests().await;
    assert_eq!(lab.store.events().len(), 1);
}

#[tokio::test]
async fn a_vanished_manifest_deletes_its_object_alone() {
    let lab = Lab::new().await;
    for name in ["a", "b", "c"] {
        lab.put(&format!("{name}.yaml"), &proxy(name, "")).await;
    }
    lab.remove(&["b.yaml"]).await;
    assert_eq!(lab.names(), ["default/a", "default/c"]);
}

#[tokio::test]
async fn doubt_deletes_nothing() {
    let lab = Lab::new().await;
    for name in ["a", "b", "c"] {
        lab.put(&format!("{name}.yaml"), &proxy(name, "")).await;
    }
    lab.put("bad.yaml", "nonsense: [").await;
    lab.remove(&["a.yaml"]).await;
    assert_eq!(lab.names().len(), 3, "while a file is wrong");
    lab.remove(&["bad.yaml", "b.yaml"]).await;
    assert_eq!(lab.names().len(), 3, "two of three vanished");
    assert!(
        lab.last_event().message.contains("vanished at once")
            || lab.store.events().iter().any(|e| e.message.contains("2 of 3 manifests vanished at once"))
    );
    lab.remove(&["c.yaml"]).await;
    assert_eq!(lab.names().len(), 3, "an empty folder");
    fs::remove_dir(lab.folder()).unwrap();
    lab.store.apply_manifests().await;
    assert_eq!(lab.names().len(), 3, "no folder");
    assert!(lab.last_event().message.contains("cannot be read"));
}

#[tokio::test]
async fn the_provider_of_a_proxy_cannot_be_changed() {
    let lab = Lab::new().await;
    lab.put("a.yaml", &proxy("a", "")).await;
    lab.put("a.yaml", &proxy("a", "").replace("demo", "other")).await;
    assert_eq!(lab.store.proxies()[0].spec.provider, "demo");
    assert!(lab.last_event().message.contains("spec.provider cannot be changed"));
}

#[tokio::test]
async fn a_secret_that_others_can_read_is_refused() {
    let lab = Lab::new().await;
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, labels: {crawl.example.com/api-token: \"true\"}}\nstringData: {k: v}\n";
    lab.put("s.yaml", text).await;
    assert!(lab.last_event().message.contains("chmod 600"), "{:?}", lab.last_event());
    assert!(lab.store.token_secrets().await.unwrap().is_empty());
    write(&lab.folder().join("s.yaml"), text, 0o600);
    lab.store.apply_manifests().await;
    assert_eq!(lab.store.token_secrets().await.unwrap().len(), 1);
}

#[tokio::test]
async fn one_object_in_two_files_is_told_and_the_first_wins() {
    let lab = Lab::new().await;
    lab.put("a.yaml", &proxy("a", ", port: 81")).await;
    lab.put("b.yaml", &proxy("a", ", port: 82")).await;
    assert_eq!(lab.store.proxies()[0].spec.port, 81);
    assert!(lab.last_event().message.contains("in another file too"));
}

#[tokio::test]
async fn an_object_under_deletion_goes_when_its_finalizer_does() {
    let lab = Lab::new().await;
    lab.put("p.yaml", PROVIDER).await;
    lab.put("a.yaml", &proxy("a", "")).await;
    let key = ProxyKey { namespace: "default".into(), name: "a".into() };
    let object = lab.store.proxy(&key).unwrap();
    let stored = lab.store.set_proxy_finalizer(&object, true).await.unwrap().unwrap();
    assert!(
        matches!(lab.store.set_proxy_finalizer(&object, false).await, Err(crate::store::StoreError::Conflict(_))),
        "decided on an old version"
    );
    lab.store.delete_proxy(&key).await.unwrap();
    let deleting = lab.store.proxy(&key).unwrap();
    assert!(deleting.is_deleting() && deleting.resource_version() != stored.resource_version());
    assert!(lab.store.set_proxy_finalizer(&deleting, false).await.unwrap().is_none());
    assert!(lab.store.proxy(&key).is_none());
}

#[tokio::test]
async fn objects_survive_a_restart() {
    let lab = Lab::new().await;
    lab.put("a.yaml", &proxy("a", "")).await;
    let uid = lab.store.proxies()[0].uid();
    let installation = lab.store.installation().to_owned();
    let Lab { store, dir } = lab;
    drop(store);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let again = loop {
        match LocalStore::open(database(&dir), &dir.path().join("manifests"), vec![], Arc::new(SystemClock::default()))
            .await
        {
            Ok(store) => break store,
            Err(e) if std::time::Instant::now() > until => panic!("{e}"),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!((again.proxies()[0].uid(), again.installation()), (uid, installation.as_str()));
}

/// Its manifest's digest was once kept as if a command had deleted it, so that a restored file had no effect.
#[tokio::test]
async fn a_manifest_that_is_put_back_brings_its_object_back() {
    let lab = Lab::new().await;
    for name in ["a", "b", "c"] {
        lab.put(&format!("{name}.yaml"), &proxy(name, "")).await;
    }
    lab.remove(&["b.yaml"]).await;
    assert_eq!(lab.names(), ["default/a", "default/c"]);
    lab.put("b.yaml", &proxy("b", "")).await;
    assert_eq!(lab.names(), ["default/a", "default/b", "default/c"]);
    lab.store.delete_proxy(&ProxyKey { namespace: "default".into(), name: "b".into() }).await.unwrap();
    assert!(!lab.folder().join("b.yaml").exists());
    lab.put("b.yaml", &proxy("b", "")).await;
    assert_eq!(lab.names().len(), 3, "put back after a deletion");
}

/// Editors empty a file before they write it, and a write can be cut off between two documents.
#[tokio::test]
async fn a_file_that_is_being_written_deletes_nothing() {
    let lab = Lab::new().await;
    for name in ["a", "b"] {
        lab.put(&format!("{name}.yaml"), &proxy(name, "")).await;
    }
    let both = format!("{}---\n{}", proxy("c", ""), proxy("d", ""));
    lab.put("c.yaml", &both).await;
    lab.put("c.yaml", "").await;
    assert_eq!(lab.names().len(), 4);
    assert!(lab.last_event().message.contains("it is empty"), "{:?}", lab.last_event());
    lab.put("c.yaml", &proxy("c", "")).await;
    assert_eq!(lab.names().len(), 4, "the rest may follow");
    let file = fs::File::open(lab.folder().join("c.yaml")).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(6)).unwrap();
    lab.store.apply_manifests().await;
    assert_eq!(lab.names(), ["default/a", "default/b", "default/c"], "it does not");
}

#[tokio::test]
async fn a_broken_secret_is_told_without_its_value() {
    let lab = Lab::new().await;
    let head = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n";
    for body in [
        "  k: hunter2-hunter2\n  k: [\n",
        "  k: \"hunter2-hunter2\n",
        "  k: hunter2-hunter2\n bad: hunter2-hunter2\n",
        "  k: {hunter2-hunter2: hunter2-hunter2}\n",
        "  k: [hunter2-hunter2]\n",
        "  k: hunter2-hunter2\ndata: {j: hunter2-hunter2}\n",
        "  k: !!int hunter2-hunter2\n",
        "  k: *hunter2-hunter2\n",
    ] {
        write(&lab.folder().join("s.yaml"), &format!("{head}{body}"), 0o600);
        lab.store.apply_manifests().await;
        for event in lab.store.events() {
            assert!(!event.message.contains("hunter2"), "{}", event.message);
        }
    }
    assert!(!lab.store.events().is_empty());
}
