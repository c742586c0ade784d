//! `demo --once`: tells the story, and leaves nothing behind.

use std::process::Command;

#[test]
fn the_demo_shows_the_main_job_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("demo");
    let output = Command::new(proxy_operator_tests::binary())
        .args(["demo", "--once", "--dir", place.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for expected in [
        "Provider demo is ready",
        "3 proxies are ready after",
        "lent: ",
        "Your request came from 127.0.0.1",
        "released",
        "the cloud holds 0 machines",
        "nothing is left behind",
    ] {
        assert!(said.contains(expected), "{expected:?} is missing in:\n{said}");
    }
    assert!(!place.exists(), "its folder is gone");
    // Everything ran in one process, which has ended: none names the folder any more.
    let others = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(place.to_str().unwrap())
    });
    assert_eq!(others.count(), 0, "no process is left");
}

#[test]
fn a_demo_without_plugins_says_how_to_get_them() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(proxy_operator_tests::binary())
        .args(["demo", "--once", "--plugin-dir", dir.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("run `make build`"));
}
