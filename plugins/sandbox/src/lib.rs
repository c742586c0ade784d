//! An ordinary provider for the sandbox cloud. Here each function of the contract stands as a short story; what can be
//! tested without a cloud stands in the modules.

mod cloud;
mod outcome;
mod placing;
mod settings;
mod wire;

use crawl_provider_sdk::{
    Deletion, Description, Error, Finding, Identity, Instance, Invalid, Page, Presence, Provider, Request,
    export_provider, instance_name, plugin_version,
};

use placing::Placement;
use settings::Settings;

struct Sandbox;

impl Provider for Sandbox {
    fn describe() -> Description {
        Description::new("sandbox", plugin_version!(), "Forward proxies in the sandbox cloud, for demos and tests")
            .schemas(settings::CONFIG_SCHEMA, settings::PARAMETERS_SCHEMA)
            .needs(cloud::CONNECTION, "http", "API of the sandbox cloud, with its bearer token")
    }

    fn validate(config: &str, request: Option<&Request>) -> Result<(), Invalid> {
        Settings::read(config, request).map(drop)
    }

    fn place(config: &str, request: &Request, avoid: &[String]) -> Result<String, Error> {
        let settings = Settings::read(config, Some(request))?;
        placing::choose(&cloud::state()?, &settings, request, avoid)
    }

    fn create(config: &str, request: &Request) -> Result<Instance, Error> {
        let settings = Settings::read(config, Some(request))?;
        let at = Placement::of(&request.identity)?;
        // Before the change: a cloud started anew on the same address must not get what belongs to the old one.
        at.check_cloud(&cloud::state()?)?;
        let name = instance_name(&request.identity);
        let made = outcome::of_create(&at, &name, &cloud::put(&at, &name, &settings.body(request))?)?;
        at.check_instance(&made)?;
        let made = match made.state.as_str() {
            "stopped" => outcome::of_start(&at, &name, &cloud::start(&at, &name)?)?,
            _ => made,
        };
        Ok(made.into_instance())
    }

    fn get(_config: &str, identity: &Identity) -> Result<Presence, Error> {
        let at = Placement::of(identity)?;
        Ok(match look_up(&at, identity)? {
            Some(found) => Presence::Present(found.into_instance()),
            None => Presence::Absent,
        })
    }

    fn delete(_config: &str, identity: &Identity) -> Result<Deletion, Error> {
        let at = Placement::of(identity)?;
        let Some(found) = look_up(&at, identity)? else {
            return Ok(Deletion::Gone);
        };
        if found.state != "deleting" {
            outcome::of_delete(&at, &cloud::delete(&at, &found.name)?)?;
        }
        // Gone is only what the next call's look-up does not find.
        Ok(Deletion::InProgress(outcome::progress()))
    }

    fn list_instances(_config: &str, installation: &str, page: Option<&str>) -> Result<Page, Error> {
        Ok(cloud::list(installation, page)?.into_page(installation))
    }

    fn check(config: &str) -> Result<Vec<Finding>, Error> {
        let settings = Settings::read(config, None)?;
        Ok(placing::findings(&cloud::state()?, &settings))
    }
}

/// The instance of this identity if it is there, after making sure that both the cloud and the instance are ours.
fn look_up(at: &Placement, identity: &Identity) -> Result<Option<wire::Instance>, Error> {
    let name = instance_name(identity);
    match outcome::of_get(at, &cloud::get(at, &name)?)? {
        Some(found) => {
            at.check_instance(&found)?;
            found.check_owner(&identity.owner)?;
            Ok(Some(found))
        }
        None => {
            // After the 404: an id never comes back, so a cloud that still has it is the one that gave the 404.
            at.check_cloud(&cloud::state()?)?;
            Ok(None)
        }
    }
}

export_provider!(Sandbox);
