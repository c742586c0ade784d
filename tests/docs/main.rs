//! What the documentation tells its readers to do, done.

mod page;

use std::fs;

use page::Page;
use proxy_operator::conformance;
use proxy_operator_tests::languages;

#[test]
fn the_walk_through_in_rust_works() {
    let page = Page::read("plugin-authors.md");
    let dir = tempfile::tempdir().unwrap();
    page.section("## In Rust, in one sitting").follow(dir.path());
    let junit = fs::read_to_string(dir.path().join("rental/results.xml")).unwrap();
    assert!(junit.contains("failures=\"0\""), "{junit}");
    let packed = fs::read_to_string(dir.path().join("rental/rental-plugin.yaml")).unwrap();
    assert!(packed.contains("kind: ConfigMap") && packed.contains("rental.wasm: "));
}

#[test]
fn the_walk_through_in_javascript_works() {
    // Node is there where the example was built.
    if languages::built(&["sandbox-js"]).is_none() {
        return;
    }
    let page = Page::read("plugin-authors.md");
    let dir = tempfile::tempdir().unwrap();
    page.section("## In JavaScript, in one sitting").follow(dir.path());
    let junit = fs::read_to_string(dir.path().join("lines/results.xml")).unwrap();
    assert!(junit.contains("failures=\"0\""), "{junit}");
    let packed = fs::read_dir(dir.path().join("lines/packed")).unwrap();
    assert!(packed.count() > 1, "12 MB fit into no single ConfigMap");
}

#[test]
fn the_page_names_every_case_of_the_kit() {
    let page = Page::read("plugin-authors.md");
    for case in conformance::all() {
        assert!(page.text.contains(&format!("`{}`", case.name)), "{} is not on the page", case.name);
    }
}
