//! A watched folder: what lies in it serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proxy_operator::plugin::registry::{Entry, Registry};
use proxy_operator::plugin::source::directory::Directory;
use proxy_operator_tests::plugins::{bytes_of, registry, soon};
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use crate::swapping::another;

struct Watched {
    folder: TempDir,
    registry: Arc<Registry>,
    _watching: AbortOnDropHandle<()>,
}

impl Watched {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let registry = registry();
        let watching = tokio::spawn(Directory::new(folder.path()).watch(registry.clone()));
        Self { folder, registry, _watching: AbortOnDropHandle::new(watching) }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Waits for the registry to tell of a change after which this holds.
    async fn until(&self, what: &str, mut holds: impl FnMut(&Entry) -> bool) -> Entry {
        let mut changes = self.registry.subscribe();
        soon(what, async {
            loop {
                changes.mark_unchanged();
                let entry = self.registry.get("echo");
                if holds(&entry) {
                    return entry;
                }
                changes.changed().await.expect("the registry lives");
            }
        })
        .await
    }

    async fn serving(&self) -> String {
        let entry = self.until("echo serves", |entry| entry.current.is_some()).await;
        entry.current.expect("it was there").digest.clone()
    }

    async fn refusal(&self) -> String {
        let entry = self.until("echo is refused", |entry| entry.refused.is_some()).await;
        entry.refused.expect("it was there").message
    }
}

/// As `mv` does, from a name that no plugin has.
fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).expect("a file");
    fs::rename(&new, path).expect("renamed");
}

#[tokio::test]
async fn a_new_file_is_served_and_its_replacement_after_it() {
    let watched = Watched::start();
    replace(&watched.path("echo.wasm"), &bytes_of("echo"));
    let first = watched.serving().await;
    replace(&watched.path("echo.wasm"), &another(&bytes_of("echo")));
    watched.until("the replacement serves", |entry| entry.current.as_ref().is_some_and(|c| c.digest != first)).await;
}

#[tokio::test]
async fn a_half_written_file_is_refused_until_it_is_whole() {
    let watched = Watched::start();
    let bytes = bytes_of("echo");
    let path = watched.path("echo.wasm");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("half a file");
    let message = watched.refusal().await;
    assert!(message.contains("broken or cut off") && message.contains("echo.wasm"), "{message}");
    fs::write(&path, &bytes).expect("a whole file");
    let entry = watched.until("the whole file serves", |entry| entry.current.is_some()).await;
    assert!(entry.refused.is_none());
}

#[tokio::test]
async fn a_file_that_goes_takes_its_plugin_along() {
    let watched = Watched::start();
    replace(&watched.path("echo.wasm"), &bytes_of("echo"));
    watched.serving().await;
    fs::remove_file(watched.path("echo.wasm")).expect("removed");
    watched.until("echo is withdrawn", |entry| entry.current.is_none()).await;
}

#[tokio::test]
async fn a_file_that_is_too_large_is_refused_unread_and_the_old_one_serves_on() {
    let watched = Watched::start();
    let path = watched.path("echo.wasm");
    replace(&path, &bytes_of("echo"));
    let digest = watched.serving().await;
    let large = watched.path("large.new");
    // Sparse: a terabyte that nobody could read.
    fs::File::create(&large).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    fs::rename(&large, &path).expect("renamed");
    let message = watched.refusal().await;
    assert!(message.contains("1099511627776 bytes, over the limit"), "{message}");
    assert_eq!(watched.registry.get("echo").current.expect("the old one").digest, digest);

    replace(&path, &bytes_of("echo"));
    watched.until("the refusal is over", |entry| entry.refused.is_none()).await;
}

/// A mounted ConfigMap is a folder of links to links; an update swaps the link in the middle.
#[tokio::test]
async fn a_mounted_config_map_is_followed_through_its_links() {
    use std::os::unix::fs::symlink;
    let watched = Watched::start();
    let version = |name: &str, bytes: &[u8]| {
        fs::create_dir(watched.path(name)).expect("a folder");
        fs::write(watched.path(name).join("echo.wasm"), bytes).expect("a file");
        symlink(name, watched.path("..new")).expect("a link");
        fs::rename(watched.path("..new"), watched.path("..data")).expect("renamed");
    };
    version("..1", &bytes_of("echo"));
    symlink("..data/echo.wasm", watched.path("echo.wasm")).expect("a link");
    let first = watched.serving().await;
    version("..2", &another(&bytes_of("echo")));
    watched.until("the update serves", |entry| entry.current.as_ref().is_some_and(|c| c.digest != first)).await;
}

#[tokio::test]
async fn what_is_no_plugin_file_is_left_alone() {
    let watched = Watched::start();
    fs::write(watched.path("README.md"), "plugins go here").expect("a file");
    fs::create_dir(watched.path("folder.wasm")).expect("a folder");
    fs::write(watched.path("echo.wasm.partial"), "not yet").expect("a file");
    replace(&watched.path("echo.wasm"), &bytes_of("echo"));
    watched.serving().await;
    assert_eq!(watched.registry.names(), ["echo"]);
    for name in ["README", "folder", "echo.wasm.partial"] {
        assert!(watched.registry.get(name).refused.is_none(), "{name}");
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_read_withdraws_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = registry();
    replace(&folder.path().join("echo.wasm"), &bytes_of("echo"));
    let mut directory = Directory::new(folder.path());
    directory.scan(&registry).await.expect("the folder is there");
    assert_eq!(registry.names(), ["echo"]);
    drop(folder);
    directory.scan(&registry).await.expect_err("the folder is gone");
    assert_eq!(registry.names(), ["echo"]);
}
