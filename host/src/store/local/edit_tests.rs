//! What `apply` and `delete` leave in the manifest folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::model::clock::SystemClock;
use crate::model::naming::{Kind, ObjectRef, ProxyKey};
use crate::store::local::LocalStore;
use crate::store::local::database::Database;
use crate::store::{Applied, Store, StoreError};

struct Lab {
    store: Arc<LocalStore>,
    dir: tempfile::TempDir,
}

fn proxy(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}}}\nspec: {{provider: demo{spec}}}\n"
    )
}

fn secret(value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: s, labels: {{crawl.example.com/api-token: \"true\"}}}}\nstringData: {{k: {value}}}\n"
    )
}

fn of(name: &str) -> ObjectRef {
    ObjectRef::new(Kind::Proxy, "default", name)
}

impl Lab {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("manifests")).unwrap();
        let database = Database::open(&dir.path().join("data/state.redb")).unwrap();
        let clock = Arc::new(SystemClock::default());
        let store = LocalStore::open(database, &dir.path().join("manifests"), vec![], clock).await.unwrap();
        Self { store, dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("manifests").join(name)
    }

    async fn put(&self, file: &str, text: &str) {
        fs::write(self.file(file), text).unwrap();
        self.store.apply_manifests().await;
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.file(file)).unwrap()
    }

    fn files(&self) -> Vec<String> {
        let all = fs::read_dir(self.file("")).unwrap();
        let mut names: Vec<String> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn names(&self) -> Vec<String> {
        self.store.proxies().iter().map(|p| ProxyKey::of(p).to_string()).collect()
    }

    async fn apply(&self, text: &str) -> Vec<Applied> {
        self.store.apply(text).await.unwrap().into_iter().map(|(_, outcome)| outcome).collect()
    }

    async fn refused(&self, text: &str) -> String {
        let before = self.files();
        let error = self.store.apply(text).await.unwrap_err();
        assert!(matches!(error, StoreError::Invalid(_) | StoreError::Unavailable(_)), "{error:?}");
        assert_eq!(self.files(), before, "nothing was written");
        error.to_string()
    }

    async fn delete(&self, object: ObjectRef) -> Result<Option<String>, StoreError> {
        self.store.delete(&[object]).await.remove(0)
    }
}

#[tokio::test]
async fn what_is_applied_has_a_file_and_is_told_apart_from_what_was_there() {
    let lab = Lab::new().await;
    let both = format!("# about a\n{}---\n{}", proxy("a", ""), proxy("b", ""));
    assert_eq!(lab.apply(&both).await, [Applied::Created, Applied::Created]);
    assert_eq!(lab.files(), ["proxy-default-a.yaml", "proxy-default-b.yaml"]);
    assert_eq!(lab.text("proxy-default-a.yaml"), format!("# about a\n{}", proxy("a", "")));
    assert_eq!(lab.names(), ["default/a", "default/b"]);
    let changed = format!("{}---\n{}", proxy("a", ", port: 81"), proxy("b", ""));
    assert_eq!(lab.apply(&changed).await, [Applied::Configured, Applied::Unchanged]);
    let a = lab.store.proxy(&ProxyKey { namespace: "default".into(), name: "a".into() }).unwrap();
    assert_eq!((a.spec.port, a.metadata.generation), (81, Some(2)));
    // What is the same but for comments is not written.
    assert_eq!(lab.apply(&format!("# other\n{}", proxy("b", ""))).await, [Applied::Unchanged]);
    assert_eq!(lab.text("proxy-default-b.yaml"), proxy("b", ""));
}

#[tokio::test]
async fn an_object_is_changed_in_the_file_that_holds_it_and_taken_out_of_it() {
    let lab = Lab::new().await;
    lab.put("all.yaml", &format!("# ours\n---\n# about a\n{}---\n# about b\n{}", proxy("a", ""), proxy("b", ""))).await;
    assert_eq!(lab.apply(&proxy("b", ", port: 81")).await, [Applied::Configured]);
    let expected = format!("# ours\n---\n# about a\n{}---\n{}", proxy("a", ""), proxy("b", ", port: 81"));
    assert_eq!(lab.text("all.yaml"), expected);
    assert_eq!(lab.delete(of("a")).await.unwrap(), None);
    assert_eq!(lab.text("all.yaml"), format!("# ours\n---\n{}", proxy("b", ", port: 81")));
    assert_eq!(lab.delete(of("b")).await.unwrap(), None);
    assert!(lab.files().is_empty() && lab.names().is_empty(), "{:?}", lab.files());
    assert!(matches!(lab.delete(of("b")).await, Err(StoreError::NotFound(_))));
    // Nothing stands in the way of its coming back.
    lab.put("b.yaml", &proxy("b", ", port: 81")).await;
    assert_eq!(lab.names(), ["default/b"]);
}

#[tokio::test]
async fn a_secret_is_kept_from_others_and_deleted_with_its_file() {
    let lab = Lab::new().await;
    assert_eq!(lab.apply(&secret("one")).await, [Applied::Created]);
    assert_eq!(fs::metadata(lab.file("secret-s.yaml")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(lab.apply(&secret("one")).await, [Applied::Unchanged]);
    assert_eq!(lab.apply(&secret("two")).await, [Applied::Configured]);
    assert_eq!(lab.store.token_secrets().await.unwrap()[0].data["k"].expose_line(), Some("two"));
    let object = ObjectRef::new(Kind::Secret, "", "s");
    assert_eq!(lab.delete(object.clone()).await.unwrap(), None);
    assert!(lab.files().is_empty() && lab.store.token_secrets().await.unwrap().is_empty());
    assert!(matches!(lab.delete(object).await, Err(StoreError::NotFound(_))));
}

#[tokio::test]
async fn what_cannot_be_is_refused_before_anything_is_written() {
    let lab = Lab::new().await;
    lab.apply(&proxy("a", "")).await;
    let key = ProxyKey { namespace: "default".into(), name: "a".into() };
    for (text, says) in [
        (format!("{}---\n{}", proxy("b", ""), proxy("c", ", port: 0")), "/spec/port"),
        (format!("{}---\n{}", proxy("b", ""), proxy("b", "")), "proxy/b is there twice"),
        (
            format!("{}---\n{}", proxy("b", ""), proxy("a", "").replace("demo", "other")),
            "spec.provider cannot be changed",
        ),
        (proxy("b", ", auth: {publishSecret: x}"), "publishSecret: standalone"),
    ] {
        let error = lab.refused(&text).await;
        assert!(error.contains(says), "{error}");
    }
    fs::write(lab.file("proxy-default-a.yaml"), format!("{}---\nkind: [", proxy("a", ""))).unwrap();
    let error = lab.refused(&format!("{}---\n{}", proxy("a", ", port: 81"), proxy("b", ""))).await;
    assert!(error.contains("proxy-default-a.yaml: not valid YAML") && error.contains("mend it first"), "{error}");
    fs::write(lab.file("proxy-default-a.yaml"), proxy("a", "")).unwrap();
    let object = lab.store.proxy(&key).unwrap();
    lab.store.set_proxy_finalizer(&object, true).await.unwrap();
    lab.delete(of("a")).await.unwrap();
    let error = lab.refused(&proxy("a", "")).await;
    assert!(error.contains("proxy/a is being deleted: apply it again when it is gone"), "{error}");
    // A folder that is gone.
    fs::remove_dir_all(lab.file("")).unwrap();
    let error = lab.store.apply(&proxy("b", "")).await.unwrap_err().to_string();
    assert!(error.contains("manifests"), "{error}");
}

/// The name leaves no room for that of a file beside it: what stands for a folder that takes no file.
#[tokio::test]
async fn what_cannot_be_taken_out_stays_without_effect_until_it_is_edited_or_applied() {
    let lab = Lab::new().await;
    let file = format!("{}.yaml", "x".repeat(250));
    let both = format!("{}---\n{}", proxy("a", ""), proxy("b", ""));
    lab.put(&file, &both).await;
    let note = lab.delete(of("a")).await.unwrap().unwrap();
    assert!(note.contains("its manifest stays, without effect until it is edited") && note.contains(&file), "{note}");
    assert_eq!(lab.text(&file), both);
    lab.store.apply_manifests().await;
    assert_eq!(lab.names(), ["default/b"]);
    let error = lab.refused(&proxy("b", ", port: 81")).await;
    assert!(error.contains(&file), "{error}");
    // What is applied counts, although it was deleted by command.
    fs::rename(lab.file(&file), lab.file("short.yaml")).unwrap();
    assert_eq!(lab.apply(&proxy("a", "")).await, [Applied::Created]);
    assert_eq!(lab.names(), ["default/a", "default/b"]);
    assert_eq!(lab.text("short.yaml"), both);
}

#[tokio::test]
async fn an_object_in_two_files_goes_from_both() {
    let lab = Lab::new().await;
    lab.put("one.yaml", &proxy("a", "")).await;
    lab.put("two.yaml", &format!("{}---\n{}", proxy("a", ", port: 81"), proxy("b", ""))).await;
    lab.delete(of("a")).await.unwrap();
    assert_eq!(lab.files(), ["two.yaml"]);
    lab.store.apply_manifests().await;
    assert_eq!(lab.names(), ["default/b"]);
}

#[tokio::test]
async fn a_manifest_that_a_crash_kept_from_going_goes_with_the_next_deletion() {
    let lab = Lab::new().await;
    lab.put("a.yaml", &proxy("a", "")).await;
    // As after a crash between the two: the object is deleted, and its manifest is still there.
    let database = lab.store.database.clone();
    let digest = lab.store.metadata(&of("a")).unwrap().annotations.unwrap()[super::DIGEST_ANNOTATION].clone();
    let buried = super::Write::put(super::BURIED, "proxies/default/a", digest.into_bytes());
    database.write(vec![buried]).await.unwrap();
    lab.store.remove_proxy(&ProxyKey { namespace: "default".into(), name: "a".into() }).await.unwrap();
    lab.store.apply_manifests().await;
    assert!(lab.names().is_empty(), "it does not come back");
    assert_eq!(lab.files(), ["a.yaml"]);
    assert_eq!(lab.delete(of("a")).await.unwrap(), None);
    assert!(lab.files().is_empty());
    assert!(matches!(lab.delete(of("a")).await, Err(StoreError::NotFound(_))));
}
