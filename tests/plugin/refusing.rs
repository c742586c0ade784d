//! A bad file is refused with its own text, and what serves goes on serving.

use proxy_operator::plugin::registry::Refusal;
use proxy_operator_tests::plugins::{Setup, bytes_of, file, identity, loader, registry, soon};

/// Offers `bytes` as NAME.wasm to a registry whose `echo` serves, and calls `echo` all the while.
async fn refused(name: &str, bytes: Vec<u8>) -> Refusal {
    let registry = registry();
    registry.offer("echo", &file("bin"), bytes_of("echo")).await;
    let echo = Setup::new().bind(registry.get("echo").current.expect("echo is good"));

    let source = file("the test");
    let offered = registry.offer(name, &source, bytes);
    tokio::pin!(offered);
    let (mut calls, asked) = (0, identity("a", "here"));
    soon("an offer", async {
        loop {
            tokio::select! {
                () = &mut offered => break,
                answer = echo.get(&asked) => {
                    answer.expect("echo serves while another file is looked at");
                    calls += 1;
                }
            }
        }
    })
    .await;
    echo.get(&identity("a", "here")).await.expect("echo serves after another file was refused");
    let entry = registry.get(name);
    assert!(entry.current.is_none() || name == "echo", "{name} was loaded after {calls} calls");
    registry.refusal(name, &source).unwrap_or_else(|| panic!("{name} was not refused"))
}

/// `kind`: as `docs/providers.md` names it.
async fn assert_refused(kind: &str, name: &str, bytes: Vec<u8>, expected: &[&str]) {
    let error = loader().load(name, bytes.clone()).await.err().expect("it is refused");
    assert_eq!(error.label(), kind, "{error}");
    let message = refused(name, bytes).await.message;
    assert!(message.starts_with(&format!("plugin {name} from the test is refused: ")), "{message}");
    for part in expected {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[tokio::test]
async fn a_text_file_is_no_plugin() {
    let text = b"<!DOCTYPE html>\n<html>Not found</html>".to_vec();
    assert_refused("not-wasm", "page", text, &["no WebAssembly file", "<!DOCTYPE html>"]).await;
}

#[tokio::test]
async fn an_empty_file_is_no_plugin() {
    assert_refused("not-wasm", "empty", vec![], &["no WebAssembly file"]).await;
}

#[tokio::test]
async fn a_file_that_was_cut_off_is_told_from_a_wrong_one() {
    let whole = bytes_of("echo");
    for share in [2, 10, 50, 99] {
        let part = whole[..whole.len() * share / 100].to_vec();
        assert_refused("malformed", "part", part, &["broken or cut off", "upload it again"]).await;
    }
}

#[tokio::test]
async fn a_core_module_without_the_contract_is_refused() {
    let expected = ["core module without the contract's type information", "crawl:provider@0.1.0"];
    assert_refused("core-without-contract", "no-contract", bytes_of("no-contract"), &expected).await;
}

#[tokio::test]
async fn another_version_of_the_contract_is_refused_with_both_versions() {
    let expected = ["built against crawl:provider@0.2.0", "serves crawl:provider@0.1.0"];
    assert_refused("version", "wrong-version", bytes_of("wrong-version"), &expected).await;
}

#[tokio::test]
async fn an_unknown_import_is_refused_by_name_with_what_there_is() {
    let expected = ["imports crawl:provider/teleport@0.1.0", "crawl:provider/ssh@0.1.0"];
    assert_refused("missing-import", "unknown-import", bytes_of("unknown-import"), &expected).await;
}

#[tokio::test]
async fn a_describe_that_never_ends_is_cut_off() {
    let expected = ["plugin loop-describe, describe", "still computing after 5 s", "answers at once"];
    assert_refused("describe", "loop-describe", bytes_of("loop-describe"), &expected).await;
}

#[tokio::test]
async fn a_describe_that_takes_all_memory_is_cut_off() {
    let expected = ["plugin memory-describe, describe", "memory limit of 64 MiB"];
    assert_refused("describe", "memory-describe", bytes_of("memory-describe"), &expected).await;
}

#[tokio::test]
async fn a_panic_in_describe_is_told_with_its_text_and_place() {
    let expected = ["plugin panic-describe, describe", "panicked: describe panics on purpose", "panic-describe.rs"];
    assert_refused("describe", "panic-describe", bytes_of("panic-describe"), &expected).await;
}

#[tokio::test]
async fn a_plugin_has_the_name_of_its_file() {
    let expected = ["it calls itself \"echo\"", "name the file echo.wasm"];
    assert_refused("other-name", "parrot", bytes_of("echo"), &expected).await;
}

#[tokio::test]
async fn a_file_name_is_a_dns_label() {
    for name in ["My_Plugin", "", "a.b", "-a", &"a".repeat(64)] {
        assert_refused("bad-name", name, bytes_of("echo"), &["no DNS-1123 label", "NAME.wasm"]).await;
    }
}

#[tokio::test]
async fn a_file_over_the_limit_is_refused_with_its_size() {
    let large = vec![0; (32 << 20) + 1];
    assert_refused("too-large", "large", large, &["33554433 bytes", "over the limit of 33554432"]).await;
}

#[tokio::test]
async fn a_bad_version_of_a_good_plugin_leaves_the_good_one_serving() {
    let mut damaged = bytes_of("echo");
    damaged.truncate(damaged.len() / 2);
    let refusal = refused("echo", damaged).await;
    assert!(refusal.message.contains("broken or cut off"), "{}", refusal.message);
    assert!(refusal.digest.starts_with("sha256:"), "{}", refusal.digest);
}

#[tokio::test]
async fn a_refused_file_is_not_looked_at_again_and_the_good_one_clears_the_refusal() {
    let registry = registry();
    registry.offer("echo", &file("bin"), bytes_of("echo")).await;
    let changes = registry.subscribe();
    registry.offer("echo", &file("bin"), b"nonsense".to_vec()).await;
    assert!(changes.has_changed().expect("the registry lives"));
    assert!(registry.get("echo").refused.is_some());

    let mut changes = registry.subscribe();
    changes.mark_unchanged();
    registry.offer("echo", &file("bin"), b"nonsense".to_vec()).await;
    assert!(!changes.has_changed().expect("the registry lives"), "the same bad file is one refusal");

    registry.offer("echo", &file("bin"), bytes_of("echo")).await;
    assert!(registry.get("echo").refused.is_none());
    assert_eq!(registry.names(), ["echo"]);
}

#[tokio::test]
async fn a_component_of_another_world_is_refused() {
    assert_refused(
        "no-provider",
        "stranger",
        b"\0asm\x0d\0\x01\0".to_vec(),
        &["does not export crawl:provider/provider"],
    )
    .await;
}
