//! The modules of the operator stand in order: each uses only those before it.

use std::fs;
use std::path::Path;

/// From the ground up. `sandbox_cloud` and the forward proxy know nothing of the operator.
const ORDER: [&str; 11] = [
    "model",
    "plugin",
    "store",
    "health",
    "lease",
    "control",
    "rest",
    "forward_proxy",
    "sandbox_cloud",
    "conformance",
    "cli",
];

/// What a module must not use at all.
const FORBIDDEN: [(&str, &[&str]); 7] = [
    ("model", &["tokio", "axum", "wasmtime", "redb", "reqwest"]),
    ("health", &["redb", "wasmtime"]),
    ("lease", &["axum", "wasmtime", "kube"]),
    ("control", &["axum", "wasmtime", "redb"]),
    ("rest", &["wasmtime", "redb"]),
    ("store", &["axum", "wasmtime"]),
    ("conformance", &["redb", "wasmtime", "reqwest"]),
];

fn sources(dir: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// (module, file, text) of each source file of the host.
fn modules() -> Vec<(String, String, String)> {
    let src = proxy_operator_tests::root().join("host/src");
    let mut all = Vec::new();
    sources(&src, &mut all);
    let module = |file: &str| {
        let below = file.split("host/src/").nth(1).unwrap();
        below.split('/').next().unwrap().trim_end_matches(".rs").to_owned()
    };
    all.into_iter()
        .map(|(file, text)| (module(&file), file, text))
        .filter(|(m, _, _)| m != "lib" && m != "main")
        .collect()
}

#[test]
fn each_module_uses_only_those_before_it() {
    let place = |module: &str| ORDER.iter().position(|m| *m == module);
    let mut wrong = Vec::new();
    for (module, file, text) in modules() {
        let own = place(&module).unwrap_or_else(|| panic!("{file}: module {module} has no place in the order"));
        for used in text.split("crate::").skip(1) {
            let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if place(&used).is_some_and(|used_at| used_at > own) {
                wrong.push(format!("{file}: {module} uses {used}"));
            }
        }
        let alone = ["forward_proxy", "sandbox_cloud"].contains(&module.as_str());
        if alone && ORDER[..7].iter().any(|m| text.contains(&format!("crate::{m}::"))) {
            wrong.push(format!("{file}: {module} knows nothing of the operator"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_a_module_knows_nothing_of_it_does_not_import() {
    let mut wrong = Vec::new();
    for (module, file, text) in modules() {
        for crate_ in FORBIDDEN.iter().filter(|(m, _)| *m == module).flat_map(|(_, crates)| crates.iter()) {
            let uses = |line: &str| {
                line.trim_start().starts_with(&format!("use {crate_}::")) || line.contains(&format!(" {crate_}::"))
            };
            // kube's object traits are what objects are made of; its client is not.
            if text.lines().any(|line| uses(line) && !line.trim_start().starts_with("//")) {
                wrong.push(format!("{file}: {module} uses {crate_}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_is_in_one_module() {
    let wrong: Vec<String> = modules()
        .into_iter()
        .filter(|(_, file, text)| {
            !file.ends_with("plugin/engine.rs")
                && text.lines().any(|l| !l.trim_start().starts_with("//") && l.contains("unsafe "))
        })
        .map(|(_, file, _)| file)
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
