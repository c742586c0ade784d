//! The trait that an author implements, and the bridge from it to the generated exports.

use std::marker::PhantomData;

use crate::bindings::exports::crawl::provider::provider::Guest;
use crate::{Deletion, Description, Error, Finding, Identity, Instance, Invalid, Page, Presence, Request, panic};

/// A provider. Every call runs in a fresh instance of the plugin, so nothing is kept between calls but what goes through
/// `continuation`.
pub trait Provider: 'static {
    /// What this plugin is. Pure; called when it is loaded.
    fn describe() -> Description;

    /// Whether the config, and with it this request, could be accepted. Pure.
    fn validate(config: &str, request: Option<&Request>) -> Result<(), Invalid>;

    /// Where to make it: the placement that all later calls get. Reads only.
    fn place(config: &str, request: &Request, avoid: &[String]) -> Result<String, Error>;

    /// Makes it at `request.identity.placement`, or drives it on. Idempotent on (owner, incarnation).
    fn create(config: &str, request: &Request) -> Result<Instance, Error>;

    /// Whether it is there. Changes nothing; absent only on positive evidence.
    fn get(config: &str, identity: &Identity) -> Result<Presence, Error>;

    /// Removes all of it. Idempotent; works without a valid spec; refuses what is not ours.
    fn delete(config: &str, identity: &Identity) -> Result<Deletion, Error>;

    /// One page of what this installation owns.
    fn list_instances(config: &str, installation: &str, page: Option<&str>) -> Result<Page, Error>;

    /// One finding per target.
    fn check(config: &str) -> Result<Vec<Finding>, Error>;
}

/// Exports a [`Provider`] through the generated bindings. [`export_provider!`](crate::export_provider) names it; authors
/// need not.
pub struct Adapter<P>(PhantomData<P>);

impl<P: Provider> Guest for Adapter<P> {
    fn describe() -> Description {
        panic::install_hook();
        P::describe()
    }

    fn validate(config: String, request: Option<Request>) -> Result<(), Invalid> {
        panic::install_hook();
        P::validate(&config, request.as_ref())
    }

    fn place(config: String, request: Request, avoid: Vec<String>) -> Result<String, Error> {
        panic::install_hook();
        P::place(&config, &request, &avoid)
    }

    fn create(config: String, request: Request) -> Result<Instance, Error> {
        panic::install_hook();
        P::create(&config, &request)
    }

    fn get(config: String, identity: Identity) -> Result<Presence, Error> {
        panic::install_hook();
        P::get(&config, &identity)
    }

    fn delete(config: String, identity: Identity) -> Result<Deletion, Error> {
        panic::install_hook();
        P::delete(&config, &identity)
    }

    fn list_instances(config: String, installation: String, page: Option<String>) -> Result<Page, Error> {
        panic::install_hook();
        P::list_instances(&config, &installation, page.as_deref())
    }

    fn check(config: String) -> Result<Vec<Finding>, Error> {
        panic::install_hook();
        P::check(&config)
    }
}

/// Makes a type that implements [`Provider`] the plugin of this crate. Once per crate.
#[macro_export]
macro_rules! export_provider {
    ($provider:ty) => {
        #[cfg(target_family = "wasm")]
        type ExportedProvider = $crate::Adapter<$provider>;
        #[cfg(target_family = "wasm")]
        $crate::bindings::export!(ExportedProvider with_types_in $crate::bindings);

        // No linker but wasm's takes a colon in an exported name. Natively, for unit tests, the provider only has to
        // count as used.
        #[cfg(not(target_family = "wasm"))]
        const _: fn() -> $crate::Description = <$provider as $crate::Provider>::describe;
    };
}

/// The version of the crate that is being built, as text. The environment variable `PLUGIN_VERSION` at build time
/// overrides it, so that one source can be built as two releases.
#[macro_export]
macro_rules! plugin_version {
    () => {
        match option_env!("PLUGIN_VERSION") {
            Some(version) => version,
            None => env!("CARGO_PKG_VERSION"),
        }
    };
}
