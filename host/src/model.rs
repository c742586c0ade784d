//! What the product talks about: the objects, their statuses, instances, and the classes of errors.
//!
//! Nothing here does I/O or reads a clock.

pub mod abandoned;
pub mod bootstrap;
pub mod clock;
pub mod condition;
pub mod error;
pub mod instance;
pub mod login;
pub mod mandate;
pub mod manifest;
pub mod metrics;
pub mod naming;
pub mod provider;
pub mod proxy;
pub mod pulse;
pub mod schema;
pub mod secret;
pub mod span;
pub mod spec_hash;

/// API group of our objects, labels and annotations.
pub const GROUP: &str = "crawl.example.com";

/// Group and version of our objects.
pub const API_VERSION: &str = "crawl.example.com/v1alpha1";

/// Finalizer of a `Proxy`: while it stands, an instance may exist.
pub const PROXY_FINALIZER: &str = "crawl.example.com/proxy";

/// Annotation of a `Provider`: a time (RFC 3339) from which on, for an hour, instances that vanished all at once are made
/// anew all the same. It ends by itself: forgotten, it would leave the next mass without protection.
pub const ACCEPT_ABSENCE: &str = "crawl.example.com/accept-absence";

/// Finalizer of a `Provider`: while it stands, it may have instances.
pub const PROVIDER_FINALIZER: &str = "crawl.example.com/provider";

/// Finalizer of a plugin's ConfigMap: while it stands, a Provider uses the plugin.
pub const PLUGIN_FINALIZER: &str = "crawl.example.com/plugin-in-use";

/// Annotation of a `Proxy` or `Provider` under deletion: with the value `true` it goes, and what it has at the backend stays.
pub const SKIP_CLEANUP: &str = "crawl.example.com/skip-cleanup";

/// Whether an object carries this annotation with the value `true`.
pub fn is_annotated<T: kube::ResourceExt>(object: &T, annotation: &str) -> bool {
    object.annotations().get(annotation).is_some_and(|value| value == "true")
}

/// Label of Secrets that a `Provider` may use; its value is `true`.
pub const PROVIDER_SECRET_LABEL: &str = "crawl.example.com/provider-secret";

/// Label of ConfigMaps that hold plugins; its value is `true`.
pub const PLUGIN_LABEL: &str = "crawl.example.com/plugin";

/// Label of Secrets that hold an API token; its value is `true`.
pub const API_TOKEN_LABEL: &str = "crawl.example.com/api-token";
