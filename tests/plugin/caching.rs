//! Compiled code is kept, and what is kept is never trusted blindly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
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

/// Names the mount to the process that a test goes on in.
const MOUNT: &str = "TEST_CACHE_MOUNT";

/// A small file system with these options, in a mount namespace of this test's own: there it is run once more, alone, and
/// gets the folder. None for the caller outside, once that has passed, or where nothing may be mounted.
fn mounted(test: &str, options: &str) -> Option<PathBuf> {
    if let Some(mount) = std::env::var_os(MOUNT) {
        return Some(mount.into());
    }
    let unshare = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c"]).args(args);
        command
    };
    let mount = tempfile::tempdir().expect("a folder");
    let (at, program) = (mount.path(), std::env::current_exe().expect("this program"));
    let tried = unshare(&["mount -t tmpfs cache $0"]).arg(at).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        println!("SKIPPED: nothing may be mounted here: run as root");
        return None;
    }
    let script = "mount -t tmpfs -o $1 cache $0 && exec $2 --exact $3 --nocapture";
    let inside = unshare(&[script]).arg(at).arg(options).arg(program).arg(test).env(MOUNT, at).output();
    let inside = inside.expect("unshare just worked");
    let said = String::from_utf8_lossy(&inside.stdout).into_owned() + &String::from_utf8_lossy(&inside.stderr);
    assert!(inside.status.success() && said.contains("1 passed"), "{said}");
    None
}

#[tokio::test]
async fn a_full_disk_costs_only_time() {
    let Some(mount) = mounted("caching::a_full_disk_costs_only_time", "size=64k") else { return };
    let cache = mount.join("code");
    for _ in 0..2 {
        let loaded = load(&cache).await;
        assert_eq!(loaded.loading.0, Origin::Compiled);
        assert_serves(loaded).await;
        assert!(kept(&cache).is_empty(), "half a file is left on a full disk");
    }
    // It fits in later, without a restart of anything but the load.
    let grown = Command::new("mount").args(["-o", "remount,size=8m"]).arg(&mount).status();
    assert!(grown.is_ok_and(|status| status.success()));
    assert_eq!(load(&cache).await.loading.0, Origin::Compiled);
    assert_eq!(load(&cache).await.loading.0, Origin::Cache);
}

#[tokio::test]
async fn code_on_a_mount_without_exec_is_loaded_all_the_same() {
    let Some(mount) = mounted("caching::code_on_a_mount_without_exec_is_loaded_all_the_same", "noexec") else { return };
    let program = mount.join("true");
    fs::copy("/bin/true", &program).expect("copied");
    assert!(Command::new(program).status().is_err(), "programs run from there");
    let cache = mount.join("code");
    for origin in [Origin::Compiled, Origin::Cache] {
        let loaded = load(&cache).await;
        assert_eq!(loaded.loading.0, origin);
        assert_serves(loaded).await;
    }
}

#[tokio::test]
async fn a_read_only_folder_gives_what_it_has_and_takes_nothing() {
    let Some(mount) = mounted("caching::a_read_only_folder_gives_what_it_has_and_takes_nothing", "size=8m") else {
        return;
    };
    let (filled, empty) = (mount.join("filled"), mount.join("empty"));
    fs::create_dir(&empty).expect("a folder");
    load(&filled).await;
    let shut = Command::new("mount").args(["-o", "remount,ro"]).arg(&mount).status();
    assert!(shut.is_ok_and(|status| status.success()) && fs::write(mount.join("file"), "").is_err());
    for (cache, origin) in [(&filled, Origin::Cache), (&empty, Origin::Compiled), (&empty, Origin::Compiled)] {
        let loaded = load(cache).await;
        assert_eq!(loaded.loading.0, origin, "{}", cache.display());
        assert_serves(loaded).await;
    }
}
