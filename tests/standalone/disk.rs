//! A disk that is full, read-only or broken: what is said, what is kept, and that it goes on when the disk does.

use std::fs;
use std::path::Path;

use proxy_operator::store::local::database::{Database, Write};
use proxy_operator_tests::lab::{Lab, proxy, text, wish};
use proxy_operator_tests::small_disk::SmallDisk;
use proxy_operator_tests::strace::{Tracer, can_trace};
use reqwest::{Method, StatusCode};

use crate::kit::at;

/// A manifest that takes its room in the database.
fn large(name: &str) -> String {
    proxy(name, &format!(", parameters: {{note: {}}}", "x".repeat(60_000))).replace("provider: demo", "provider: none")
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nothing_can_be_written_nothing_is_promised_and_all_goes_on_afterwards() {
    if !can_trace() {
        return;
    }
    let mut lab = Lab::start().await;
    for name in ["a", "b"] {
        lab.put(&format!("{name}.yaml"), &proxy(name, ""));
    }
    lab.wait_ready(&["a", "b"]).await;
    let held = lab.lease(wish(60)).await;
    let renew = format!("/v1/leases/{}/renew", text(&held, "id"));
    let file = lab.path("c.yaml");
    fs::write(&file, proxy("c", "")).unwrap();
    let file = file.display().to_string();
    let database = lab.path("data/state.redb");
    for (calls, error, says) in [
        ("pwrite64", "ENOSPC", "No space left on device (os error 28); make room on its disk"),
        ("fdatasync", "EIO", "Input/output error (os error 5)"),
    ] {
        let broken = Tracer::fail(lab.operator().id(), calls, error, &database, &lab.path("calls"));
        let (status, problem) = lab.rest(Method::POST, "/v1/leases", Some(wish(60))).await;
        assert_eq!((status, text(&problem, "code").as_str()), (StatusCode::SERVICE_UNAVAILABLE, "ledger_busy"));
        let (status, problem) = lab.rest(Method::POST, &renew, Some(wish(600))).await;
        assert_eq!((status, text(&problem, "code").as_str()), (StatusCode::SERVICE_UNAVAILABLE, "ledger_busy"));
        let (_, refused) = at(&lab, 1, &["apply", "-f", &file]);
        assert!(refused.contains(says) && refused.contains("state.redb"), "{refused}");
        assert!(lab.proxy("c").await.is_none());
        let (_, refused) = at(&lab, 1, &["delete", "px/a", "--wait=false"]);
        assert!(refused.contains(says), "{refused}");
        assert!(lab.path("manifests/a.yaml").exists(), "a deletion that is not remembered takes no manifest");
        broken.end();
        // As before: of what was refused nothing is held.
        let free = lab.wait("the other one is lent", async |lab| {
            let (status, lease) = lab.rest(Method::POST, "/v1/leases", Some(wish(60))).await;
            (status == StatusCode::CREATED).then_some(lease)
        });
        let free = free.await;
        assert_eq!(lab.rest(Method::POST, &renew, Some(wish(60))).await.0, StatusCode::OK);
        assert_eq!(lab.rest(Method::POST, "/v1/leases", Some(wish(60))).await.0, StatusCode::SERVICE_UNAVAILABLE);
        let path = format!("/v1/leases/{}", text(&free, "id"));
        assert_eq!(lab.rest(Method::DELETE, &path, None).await.0, StatusCode::NO_CONTENT);
        at(&lab, 0, &["apply", "-f", &file]);
        lab.wait_ready(&["c"]).await;
        at(&lab, 0, &["delete", "px/c", "--timeout", "60s"]);
    }
    // What was promised before the trouble is kept through it, and through a crash.
    lab.take_operator().kill();
    lab.start_operator().await;
    lab.wait_ready(&["a", "b"]).await;
    assert_eq!(lab.rest(Method::POST, &renew, Some(wish(60))).await.0, StatusCode::OK);
    assert_eq!(lab.machines().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_what_has_no_room_and_keeps_all_else() {
    let mut lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    assert_eq!(lab.take_operator().stop(), Some(0));
    let Some(disk) = SmallDisk::at(&lab.path("data"), 64 << 10) else { return };
    lab.start_operator().await;
    disk.fill(0);
    let file = lab.path("large.yaml");
    let mut applied = vec![];
    let refused = loop {
        let name = format!("l{}", applied.len());
        fs::write(&file, large(&name)).unwrap();
        let output = lab.attempt(&["apply", "-f", &file.display().to_string()]);
        if !output.status.success() {
            break String::from_utf8(output.stderr).unwrap();
        }
        applied.push(name);
        assert!(applied.len() < 1000, "there is room for all of them");
    };
    assert!(refused.contains("state.redb") && refused.contains("make room on its disk"), "{refused}");
    assert!(refused.contains("is in the manifest folder and has no effect yet"), "{refused}");
    let names =
        async |lab: &Lab| lab.proxies().await.iter().filter_map(|p| p.metadata.name.clone()).collect::<Vec<_>>();
    let there = names(&lab).await;
    assert!(applied.iter().all(|name| there.contains(name)), "{applied:?} of {there:?}");
    // Full as it is, it starts anew.
    lab.take_operator().kill();
    lab.start_operator().await;
    lab.wait_ready(&["a"]).await;
    disk.free();
    let last = format!("l{}", applied.len());
    lab.wait("what had no room has an effect", async |lab| names(lab).await.contains(&last).then_some(())).await;
    lab.take_operator().kill();
    lab.start_operator().await;
    let there = names(&lab).await;
    assert!(applied.iter().chain([&last]).all(|name| there.contains(name)), "{there:?}");
    assert_eq!(lab.machines().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_folder_without_room_or_read_only_stays_as_it_is() {
    let mut lab = Lab::start().await;
    lab.put("ab.yaml", &format!("{}---\n{}", proxy("a", ""), proxy("b", "")));
    lab.wait_ready(&["a", "b"]).await;
    assert_eq!(lab.take_operator().stop(), Some(0));
    let Some(disk) = SmallDisk::at(&lab.path("manifests"), 256) else { return };
    lab.start_operator().await;
    let files = || {
        let all = fs::read_dir(lab.path("manifests")).unwrap().map(|e| e.unwrap().path());
        let mut all: Vec<_> =
            all.filter(|p| !p.ends_with("ballast")).map(|p| (p.clone(), fs::read(p).unwrap())).collect();
        all.sort();
        all
    };
    let before = files();
    fs::write(lab.path("c.yaml"), proxy("c", "")).unwrap();
    let c = lab.path("c.yaml").display().to_string();
    disk.fill(0);
    let (_, full) = at(&lab, 1, &["apply", "-f", &c]);
    assert!(full.contains("proxy-default-c.yaml") && full.contains("No space left on device"), "{full}");
    assert_eq!(files(), before);
    disk.free();
    disk.read_only(true);
    let (_, refused) = at(&lab, 1, &["apply", "-f", &c]);
    assert!(refused.contains("proxy-default-c.yaml") && refused.contains("Read-only file system"), "{refused}");
    let (_, kept) = at(&lab, 0, &["delete", "px/a", "--timeout", "60s"]);
    assert!(kept.contains("its manifest stays, without effect until it is edited"), "{kept}");
    assert_eq!(files(), before);
    disk.read_only(false);
    let mut lab = lab;
    lab.take_operator().kill();
    lab.start_operator().await;
    lab.wait_ready(&["b"]).await;
    assert!(lab.proxy("a").await.is_none(), "what was deleted does not come back");
    at(&lab, 0, &["apply", "-f", &c]);
    lab.wait_ready(&["c"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_room_or_on_a_read_only_disk_is_refused_and_changes_nothing() {
    let mut lab = Lab::without_provider().await;
    assert_eq!(lab.take_operator().stop(), Some(0));
    let database = lab.path("data/state.redb");
    let kept = fs::read(&database).unwrap();
    let Some(disk) = SmallDisk::at(&lab.path("data"), 64 << 10) else { return };
    disk.read_only(true);
    let said = lab.refused_operator();
    assert!(names(&said, &database) && said.contains("Read-only file system"), "{said}");
    assert!(said.contains("the operator has to write there"), "{said}");
    disk.read_only(false);
    assert_eq!(fs::read(&database).unwrap(), kept);
    // Where there is none, and no room for one.
    fs::remove_file(&database).unwrap();
    disk.fill(8);
    let said = lab.refused_operator();
    assert!(said.contains("state.redb") && said.contains("make room on its disk"), "{said}");
    let left: Vec<_> = fs::read_dir(lab.path("data")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("state")), "{left:?}");
    disk.free();
    lab.start_operator().await;
}

fn names(said: &str, file: &Path) -> bool {
    said.contains(&file.display().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_damaged_is_refused_by_name_and_left_as_it_is() {
    let mut lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    assert_eq!(lab.take_operator().stop(), Some(0));
    let database = lab.path("data/state.redb");
    let whole = fs::read(&database).unwrap();
    let flipped = |range: std::ops::Range<usize>| {
        let mut bytes = whole.clone();
        bytes[range].iter_mut().for_each(|byte| *byte ^= 0x55);
        bytes
    };
    // Wherever the object stands, the place of the present version among them.
    let mut object = whole.clone();
    let needle = b"crawl.example.com/manifest-digest";
    let places: Vec<usize> = (0..whole.len() - needle.len()).filter(|&at| whole[at..].starts_with(needle)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| object[at] ^= 1);
    let cases = [
        ("empty", vec![], "it is empty"),
        ("no database", b"hello, world\n".repeat(1000), ""),
        ("cut off in its header", whole[..100].to_vec(), ""),
        ("cut off in the middle", whole[..whole.len() / 2].to_vec(), ""),
        ("a header that is wrong", flipped(0..320), ""),
        ("a middle that is wrong", flipped(whole.len() / 4..whole.len() * 3 / 4), ""),
        ("an object that is wrong", object, ""),
    ];
    for (what, bytes, says) in cases {
        fs::write(&database, &bytes).unwrap();
        let said = lab.refused_operator();
        println!("{what}: {said}");
        assert!(names(&said, &database) && said.contains(says), "{what}: {said}");
        assert!(said.contains("restore the folder from a backup, or start with an empty one"), "{what}: {said}");
        assert!(!said.contains("panicked"), "{what}: {said}");
        assert!(fs::read(&database).unwrap() == bytes, "{what}: the file was changed");
    }
    // One of a later version is no damaged one.
    fs::write(&database, &whole).unwrap();
    Database::open(&database).unwrap().write(vec![Write::put("meta", "format", b"9".to_vec())]).await.unwrap();
    let said = lab
        .wait("the database is closed", async |lab| {
            let said = lab.refused_operator();
            (!said.contains("another process")).then_some(said)
        })
        .await;
    assert!(names(&said, &database) && said.contains("its format is 9"), "{said}");
    assert!(said.contains("use the version that wrote it, or a later one"), "{said}");
    // Put back, it goes on.
    fs::write(&database, &whole).unwrap();
    lab.start_operator().await;
    lab.wait_ready(&["a"]).await;
    assert_eq!(lab.machines().await.len(), 1);
}
