//! Compiled code is kept, and what is kept is never trusted blindly.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proxy_operator::model::instance::Presence;
use proxy_operator::plugin::engine::Origin;
use proxy_operator::plugin::load::Loaded;
use proxy_operator_tests::plugins::{Setup, bytes_of, identity, loader_with};

/// Loads `echo` as an operator does that starts anew with this cache.
async fn load(cache: &Path) -> Arc<Loaded> {
    let loaded = loader_with(Some(cache.to_owned())).load("echo", bytes_of("echo")).await;
    loaded.unwrap_or_else(|e| panic!("{e}"))
}

fn kept(cache: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(cache).expect("the cache").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    files
}

async fn assert_serves(loaded: Arc<Loaded>) {
    let handle = Setup::new().bind(loaded);
    assert_eq!(handle.get(&identity("a", "here")).await, Ok(Presence::Absent));
}

#[tokio::test]
async fn the_second_load_is_from_the_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("code");
    let first = load(&cache).await;
    assert_eq!(first.loading.0, Origin::Compiled);
    let second = load(&cache).await;
    assert_eq!(second.loading.0, Origin::Cache);
    assert_eq!(first.digest, second.digest);
    assert_serves(second).await;
    let names: Vec<_> = kept(&cache).iter().map(|path| path.extension().map(|e| e.to_owned())).collect();
    assert_eq!(names, [Some("cwasm".into()), Some("sha256".into())], "nothing temporary is left");
}

#[tokio::test]
async fn only_the_operator_reads_its_cache() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("code");
    load(&cache).await;
    assert_eq!(fs::metadata(&cache).expect("the cache").permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn damaged_code_is_compiled_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("code");
    load(&cache).await;
    let code = kept(&cache).into_iter().find(|path| path.extension().is_some_and(|e| e == "cwasm")).expect("the code");
    let good = fs::read(&code).expect("the code");
    let mut flipped = good.clone();
    flipped[good.len() / 3] ^= 0x40;
    for (what, bytes) in
        [("a flipped bit", flipped), ("a cut", good[..good.len() / 2].to_vec()), ("an empty file", vec![])]
    {
        // Another file of the same name: what is mapped is never written to.
        fs::remove_file(&code).expect("removed");
        fs::write(&code, bytes).expect("written");
        let again = load(&cache).await;
        assert_eq!(again.loading.0, Origin::Compiled, "after {what}");
        assert_serves(again).await;
        assert_eq!(load(&cache).await.loading.0, Origin::Cache, "after {what}");
    }
}

#[tokio::test]
async fn two_operators_may_share_a_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("code");
    let (first, second) = tokio::join!(load(&cache), load(&cache));
    assert_serves(first).await;
    assert_serves(second).await;
    assert_eq!(load(&cache).await.loading.0, Origin::Cache);
    assert_eq!(kept(&cache).len(), 2, "nothing temporary is left");
}

#[tokio::test]
async fn a_cache_that_cannot_be_written_costs_only_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("taken");
    fs::write(&cache, "a file where the folder should be").expect("a file");
    for _ in 0..2 {
        let loaded = load(&cache).await;
        assert_eq!(loaded.loading.0, Origin::Compiled);
        assert_serves(loaded).await;
    }
}
