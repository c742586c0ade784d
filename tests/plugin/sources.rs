//! Several sources of one name, the same bytes twice, and what an administrator lets in.

use std::cmp::Reverse;
use std::fs;
use std::sync::Arc;

use proxy_operator::model::clock::SystemClock;
use proxy_operator::plugin::engine::{Origin, Runtime};
use proxy_operator::plugin::load::{LoadError, Loader, Policy, digest_of};
use proxy_operator::plugin::source::Source;
use proxy_operator::plugin::source::upload::whole;
use proxy_operator_tests::binary;
use proxy_operator_tests::plugins::{bytes_of, file, file_of, loader, registry};

use crate::swapping::another;

fn config_map(made: i64, name: &str) -> Source {
    Source::ConfigMap { made: Reverse(made), name: format!("operators/{name}") }
}

#[tokio::test]
async fn the_younger_config_map_serves_before_the_older_one_and_both_before_the_folder() {
    let registry = registry();
    let (bundled, old, new) = (bytes_of("echo"), another(&bytes_of("echo")), another(&another(&bytes_of("echo"))));
    let (folder, older, younger) = (file("/plugins/echo.wasm"), config_map(1, "z"), config_map(2, "a"));
    for (source, bytes) in [(&folder, &bundled), (&younger, &new), (&older, &old)] {
        registry.offer("echo", source, bytes.clone()).await;
    }
    let serving = || registry.get("echo").current.map(|current| current.digest.clone());
    assert_eq!(serving(), Some(digest_of(&new)));
    assert_eq!(registry.get("echo").shadowed, [older.clone(), folder.clone()]);
    assert_eq!(registry.get("echo").source, Some(younger.clone()));

    // A bad file before it is told; one behind it is of no concern.
    registry.offer("echo", &older, b"nonsense".to_vec()).await;
    assert!(registry.get("echo").refused.is_none());
    registry.offer("echo", &config_map(3, "youngest"), b"nonsense".to_vec()).await;
    let entry = registry.get("echo");
    assert!(entry.refused.is_some_and(|refused| refused.message.contains("ConfigMap operators/youngest")));
    assert_eq!(serving(), Some(digest_of(&new)));

    registry.withdraw("echo", &younger);
    assert_eq!(serving(), Some(digest_of(&old)), "the good one of a source whose last file was refused");
    registry.withdraw("echo", &older);
    assert_eq!(serving(), Some(digest_of(&bundled)));
    registry.withdraw("echo", &folder);
    assert_eq!(serving(), None);
}

#[tokio::test]
async fn the_same_bytes_are_loaded_once() {
    let loader = loader();
    let (first, second) = tokio::join!(loader.load("echo", bytes_of("echo")), loader.load("echo", bytes_of("echo")));
    assert!(Arc::ptr_eq(&first.unwrap(), &second.unwrap()));
    // Under another name they are refused all the same.
    let error = loader.load("other", bytes_of("echo")).await.err().unwrap().to_string();
    assert!(error.contains("it calls itself \"echo\""), "{error}");
}

#[test]
fn parts_make_the_file_that_they_name_or_are_refused() {
    let echo = bytes_of("echo");
    let parts: Vec<_> = echo.chunks(echo.len() / 3 + 1).map(<[u8]>::to_vec).collect();
    assert!(whole(false, &parts, Some(&digest_of(&echo))).is_ok_and(|found| found == echo));
    assert!(whole(false, &parts, None).is_ok_and(|found| found == echo));
    let error = whole(false, &parts[1..], Some(&digest_of(&echo))).unwrap_err();
    assert!(matches!(error, LoadError::Digest { .. }), "{error}");
    assert!(error.to_string().contains(&digest_of(&echo)) && error.to_string().contains("anew"), "{error}");
    let error = whole(true, &parts, None).unwrap_err();
    assert!(matches!(error, LoadError::NotZstd(_)), "{error}");
    assert!(error.to_string().contains("it is called .zst and cannot be decompressed"), "{error}");
}

fn loader_under(policy: Policy) -> Arc<Loader> {
    let loader = Loader::new(Runtime::new(None).unwrap(), Arc::new(SystemClock::default())).unwrap();
    Arc::new(loader.under(policy))
}

#[tokio::test]
async fn only_listed_digests_are_loaded_where_there_is_a_list() {
    let allow = Some([digest_of(&bytes_of("echo"))].into());
    let loader = loader_under(Policy { allow, ..Policy::default() });
    assert!(loader.load("echo", bytes_of("echo")).await.is_ok());
    let other = another(&bytes_of("echo"));
    let error = loader.load("echo", other.clone()).await.err().unwrap();
    assert!(matches!(error, LoadError::NotAllowed(_)));
    assert!(error.to_string().contains(&digest_of(&other)) && error.to_string().contains("--allow-plugin"), "{error}");
}

#[tokio::test]
async fn a_plugin_too_large_to_compile_is_loaded_from_what_the_administrator_compiled() {
    let policy = || Policy { compile_bytes: 17 << 20, ..Policy::default() };
    let error = loader_under(policy()).load("echo", bytes_of("echo")).await.err().unwrap().to_string();
    for says in ["MiB, and 17 MiB are for that", "plugin compile", "--plugin-dir", "--compile-memory"] {
        assert!(error.contains(says), "{error}");
    }

    // The way out, as the text names it.
    let folder = tempfile::tempdir().unwrap();
    let compile = || {
        let mut command = std::process::Command::new(binary());
        command.args(["plugin", "compile"]).arg(file_of("echo")).arg("-o").arg(folder.path()).output().unwrap()
    };
    let output = compile();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let load = async || {
        let runtime = Runtime::new(None).unwrap().with_precompiled(folder.path());
        let loader = Loader::new(runtime, Arc::new(SystemClock::default())).unwrap().under(policy());
        Arc::new(loader).load("echo", bytes_of("echo")).await.map(|loaded| loaded.loading.0)
    };
    assert_eq!(load().await.unwrap(), Origin::Cache);
    // It is for that file alone, and damage is noticed.
    let code = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path());
    let code: Vec<_> = code.filter(|path| path.extension().is_some_and(|e| e == "cwasm")).collect();
    let mut bytes = fs::read(&code[0]).unwrap();
    bytes[100] ^= 1;
    fs::write(&code[0], &bytes).unwrap();
    assert!(matches!(load().await, Err(LoadError::Memory { .. })));

    // As a plugin it is refused for what it is.
    let native = fs::read(&code[0]).unwrap();
    let error = loader().load("echo", native).await.err().unwrap();
    assert_eq!(error.label(), "native");
    assert!(error.to_string().contains("it is compiled code"), "{error}");
}
