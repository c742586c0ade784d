//! Built against the next release, and uses what is new there: the host refuses it, naming both versions.

wit_bindgen::generate!({ path: concat!(env!("OUT_DIR"), "/wit-0.1.1"), world: "plugin" });

include!("../src/foreign.rs");

const NAME: &str = "newer-function";

/// Called, or the import would be dropped as unused.
fn summary() -> String {
    crawl::provider::clock::later().to_string()
}
