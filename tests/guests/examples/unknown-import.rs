//! Imports an interface that no host has: the host refuses it, naming the interface.

wit_bindgen::generate!({ path: concat!(env!("OUT_DIR"), "/wit-teleport"), world: "plugin" });

include!("../src/foreign.rs");

const NAME: &str = "unknown-import";

/// Called, or the import would be dropped as unused.
fn summary() -> String {
    crawl::provider::teleport::beam()
}
