//! The generated bindings, as they are. Names follow the WIT: `bindings::crawl::provider::http` and so on.
#![allow(missing_docs, reason = "generated; the WIT documents it")]

wit_bindgen::generate!({
    path: "../../wit",
    world: "plugin",
    pub_export_macro: true,
    default_bindings_module: "crawl_provider_sdk::bindings",
    additional_derives: [PartialEq],
});
