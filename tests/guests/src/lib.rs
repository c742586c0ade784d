//! Guests for the host's tests. Each stands in `examples/`, named after what it does wrong, and says only that; all the
//! rest comes from here: a provider that has no instances.
//!
//! `wrong-version` and `unknown-import` are bound to a contract derived by `build.rs` and so use nothing of this.

use std::marker::PhantomData;

use crawl_provider_sdk::{
    Deletion, Description, Error, Finding, Identity, Instance, Invalid, Page, Presence, Provider, Request, State,
    instance_name, plugin_version,
};

/// What a fixture may do otherwise. Functions are the contract's, see `Provider`.
pub trait Fixture: 'static {
    /// The file's stem.
    const NAME: &'static str;

    fn describe() -> Description {
        description(Self::NAME)
    }

    fn validate(_config: &str, _request: Option<&Request>) -> Result<(), Invalid> {
        Ok(())
    }

    fn place(_config: &str, _request: &Request, _avoid: &[String]) -> Result<String, Error> {
        Ok(format!("here@{}", Self::NAME))
    }

    fn create(_config: &str, request: &Request) -> Result<Instance, Error> {
        Ok(instance(Self::NAME, &request.identity))
    }

    fn get(_config: &str, _identity: &Identity) -> Result<Presence, Error> {
        Ok(Presence::Absent)
    }

    fn list_instances(_page: Option<&str>) -> Result<Page, Error> {
        Ok(Page::empty())
    }
}

/// A good description that takes any config and parameters.
pub fn description(name: &str) -> Description {
    Description::new(name, plugin_version!(), "A guest for tests").schemas("{}", "{}")
}

/// A running instance of this identity.
pub fn instance(plugin: &str, identity: &Identity) -> Instance {
    let placement = &identity.placement;
    Instance::new(format!("{plugin}://{placement}/{}", instance_name(identity)), placement, State::Running)
}

/// A fixture as a provider, for `export_provider!`.
pub struct Guest<F>(PhantomData<F>);

impl<F: Fixture> Provider for Guest<F> {
    fn describe() -> Description {
        F::describe()
    }

    fn validate(config: &str, request: Option<&Request>) -> Result<(), Invalid> {
        F::validate(config, request)
    }

    fn place(config: &str, request: &Request, avoid: &[String]) -> Result<String, Error> {
        F::place(config, request, avoid)
    }

    fn create(config: &str, request: &Request) -> Result<Instance, Error> {
        F::create(config, request)
    }

    fn get(config: &str, identity: &Identity) -> Result<Presence, Error> {
        F::get(config, identity)
    }

    fn delete(_config: &str, _identity: &Identity) -> Result<Deletion, Error> {
        Ok(Deletion::Gone)
    }

    fn list_instances(_config: &str, _installation: &str, page: Option<&str>) -> Result<Page, Error> {
        F::list_instances(page)
    }

    fn check(_config: &str) -> Result<Vec<Finding>, Error> {
        Ok(vec![Finding::ok("here", "")])
    }
}

/// Never comes back, and no optimizer can see that it does nothing.
pub fn spin() -> ! {
    let mut turns = 0u64;
    loop {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
}

/// Takes memory until there is none.
pub fn devour() -> ! {
    let mut all = vec![];
    loop {
        // Written to, or the pages would be only promised.
        all.push(std::hint::black_box(vec![1u8; 1 << 20]));
    }
}
