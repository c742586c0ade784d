//! Each reason that a condition or an event can have stands in `docs/conditions.md`, and some test brings it about.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proxy_operator_tests::root;

/// Where reasons are given.
const GIVEN: [&str; 8] =
    ["control", "health", "plugin", "store", "model/error.rs", "model/condition.rs", "lease", "rest"];
/// Words in CamelCase that are none: types of conditions, and what others call something.
const OTHERS: [&str; 12] = [
    "Bearer",
    "ConfigMaps",
    "Denied",
    "Error",
    "Google",
    "Healthy",
    "ProviderReady",
    "Provisioned",
    "Reconcile",
    "SpecValid",
    "TimeSchema",
    "Unknown",
];

fn sources(dir: &Path) -> Vec<PathBuf> {
    if dir.is_file() {
        return vec![dir.to_owned()];
    }
    let mut found: Vec<PathBuf> = fs::read_dir(dir).unwrap().flat_map(|e| sources(&e.unwrap().path())).collect();
    found.retain(|path| path.extension().is_some_and(|e| e == "rs"));
    found
}

/// A source without its tests, and its tests.
fn parts(path: &Path) -> (String, String) {
    let text = fs::read_to_string(path).unwrap();
    let name = path.file_stem().unwrap().to_string_lossy();
    if name.ends_with("tests") || path.components().any(|part| part.as_os_str().to_string_lossy().ends_with("_tests")) {
        return (String::new(), text);
    }
    match text.split_once("#[cfg(test)]") {
        Some((code, tests)) => (code.to_owned(), tests.to_owned()),
        None => (text, String::new()),
    }
}

/// The words in CamelCase that stand in quotes.
fn words(code: &str) -> BTreeSet<String> {
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let is_word = |word: &&str| {
        word.len() > 2
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.bytes().all(|b| b.is_ascii_alphanumeric())
            && word.bytes().any(|b| b.is_ascii_lowercase())
    };
    code.split('"').filter(is_word).map(str::to_owned).collect()
}

fn documented() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/conditions.md")).unwrap();
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    cells.map(str::to_owned).collect()
}

#[test]
fn every_reason_is_documented_and_every_documented_one_exists() {
    let host = root().join("host/src");
    let given: BTreeSet<String> = GIVEN
        .iter()
        .flat_map(|part| sources(&host.join(part)))
        .flat_map(|path| words(&parts(&path).0))
        .filter(|word| !OTHERS.contains(&word.as_str()))
        .collect();
    assert_eq!(given, documented(), "left: in the code, right: in docs/conditions.md");
}

#[test]
fn every_reason_has_a_scenario() {
    let tests: String = sources(&root().join("host/src"))
        .into_iter()
        .map(|path| parts(&path).1)
        .chain(
            sources(&root().join("tests"))
                .iter()
                .filter(|p| !p.ends_with("reasons.rs"))
                .map(|p| fs::read_to_string(p).unwrap()),
        )
        .collect();
    let without: Vec<String> = documented().into_iter().filter(|reason| !tests.contains(reason.as_str())).collect();
    assert_eq!(without, Vec::<String>::new(), "no test brings these about");
}
