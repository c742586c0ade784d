//! Built against the next release, of which it uses nothing new: this host runs it.

wit_bindgen::generate!({ path: concat!(env!("OUT_DIR"), "/wit-0.1.1"), world: "plugin" });

include!("../src/foreign.rs");

const NAME: &str = "newer-contract";

fn summary() -> String {
    "Speaks the next release of the contract".into()
}
