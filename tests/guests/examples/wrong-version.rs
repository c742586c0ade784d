//! Bound to the contract as if it were 0.2.0: the host refuses it, naming both versions.

wit_bindgen::generate!({ path: concat!(env!("OUT_DIR"), "/wit-0.2"), world: "plugin" });

include!("../src/foreign.rs");

const NAME: &str = "wrong-version";

fn summary() -> String {
    "Speaks a contract that no host has".into()
}
