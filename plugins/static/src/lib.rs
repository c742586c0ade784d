//! Proxies that exist already: the provider makes and removes nothing, it hands out the entries of its config.

mod config;
mod places;

use crawl_provider_sdk::{
    Deletion, Description, Error, Finding, Identity, Instance, Invalid, Page, Presence, Provider, Request,
    export_provider, plugin_version, secrets,
};

use config::Config;

struct Static;

impl Provider for Static {
    fn describe() -> Description {
        Description::new("static", plugin_version!(), "Proxies that exist already, listed in the config")
            .schemas(config::CONFIG_SCHEMA, config::PARAMETERS_SCHEMA)
            // The host passes the entries that other Proxies hold in `avoid`.
            .capability("one-per-place")
            .capability("static-address")
    }

    fn validate(config: &str, request: Option<&Request>) -> Result<(), Invalid> {
        let config = Config::read(config)?;
        request.map_or(Ok(()), |request| places::matching(&config, request).map(drop))
    }

    fn place(config: &str, request: &Request, avoid: &[String]) -> Result<String, Error> {
        places::choose(&Config::read(config)?, request, avoid)
    }

    fn create(config: &str, request: &Request) -> Result<Instance, Error> {
        let config = Config::read(config)?;
        let entry = places::placed(&config, &request.identity)?;
        places::check_login(entry, request)?;
        if let Some(name) = &entry.login_secret {
            secrets::granted(name).map_err(|error| error.target(&entry.name))?;
        }
        Ok(places::instance(entry, &request.identity))
    }

    fn get(config: &str, identity: &Identity) -> Result<Presence, Error> {
        let config = Config::read(config)?;
        let entry = places::placed(&config, identity)?;
        Ok(Presence::Present(places::instance(entry, identity)))
    }

    /// Nothing was made, so nothing is left, whatever became of the entry.
    fn delete(_config: &str, _identity: &Identity) -> Result<Deletion, Error> {
        Ok(Deletion::Gone)
    }

    /// Empty: an entry carries no tags, so none can be told to be ours. Who holds what stands in the Proxies alone.
    fn list_instances(_config: &str, _installation: &str, _page: Option<&str>) -> Result<Page, Error> {
        Ok(Page::empty())
    }

    /// Without I/O: whether an entry serves is for the operator's probe to find.
    fn check(config: &str) -> Result<Vec<Finding>, Error> {
        let config = Config::read(config)?;
        Ok(config.proxies.iter().map(|entry| Finding::ok(&entry.name, "")).collect())
    }
}

export_provider!(Static);
