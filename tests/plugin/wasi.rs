//! What WASI gives a guest: the one folder that is granted, to read, and nothing else.

use std::fs;

use proxy_operator::model::instance::Presence;
use proxy_operator_tests::plugins::{Setup, identity, loaded, present};

async fn report(setup: &Setup) -> String {
    let handle = setup.bind(loaded("wasi").await);
    present(handle.get(&identity("a", "here")).await.unwrap()).message.unwrap()
}

#[tokio::test]
async fn without_a_grant_there_is_no_folder_no_network_and_no_environment() {
    let said = report(&Setup::new()).await;
    assert_eq!(said, "environment 0, arguments 0; folders []; connect: access-denied");
}

#[tokio::test]
async fn a_granted_folder_is_read_and_nothing_outside_of_it() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("granted");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("hello.txt"), "hello").unwrap();
    fs::write(root.path().join("secret.txt"), "secret").unwrap();
    std::os::unix::fs::symlink(root.path().join("secret.txt"), folder.join("link.txt")).unwrap();
    let said = report(&Setup::new().files(&folder)).await;
    for says in [
        "folders [\"/\"]",
        "hello.txt: read \"hello\"",
        "../secret.txt: not-permitted",
        "/etc/hostname: not-permitted",
        "link.txt: not-permitted",
        "new.txt: not-permitted",
        "unlink: not-permitted",
        "connect: access-denied",
    ] {
        assert!(said.contains(says), "{says}: {said}");
    }
    assert!(folder.join("hello.txt").exists() && !folder.join("new.txt").exists());
}

#[tokio::test]
async fn each_call_has_a_wasi_of_its_own() {
    let handle = Setup::new().bind(loaded("wasi").await);
    for _ in 0..3 {
        assert!(matches!(handle.get(&identity("a", "here")).await, Ok(Presence::Present(_))));
    }
}
