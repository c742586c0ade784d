//! A provider for a small API of machines. Each function of the contract keeps the rules that `plugin test` looks at.

use std::collections::BTreeMap;

use crawl_provider_sdk::http::{self, Answer};
use crawl_provider_sdk::*;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The connection that the Provider grants.
const API: &str = "api";

struct Machines;

/// `Provider.spec.config`; the schema says what each is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    regions: Option<Vec<String>>,
    #[serde(default)]
    sizes: BTreeMap<String, String>,
}

impl Config {
    /// Config and request together; every wrong field at once.
    fn read(config: &str, request: Option<&Request>) -> Result<Self, Invalid> {
        let config: Self = parse_config(config)?;
        let mut errors = vec![];
        if let Some(request) = request {
            if let (Some(regions), Some(location)) = (&config.regions, &request.location)
                && !regions.contains(location)
            {
                errors.push(FieldError::new("/location", format!("accepted: {}", regions.join(", "))));
            }
            if let Some(size) = &request.size
                && !config.sizes.contains_key(size)
            {
                let known: Vec<_> = config.sizes.keys().cloned().collect();
                errors.push(FieldError::new("/size", format!("accepted: {}", known.join(", "))));
            }
            if request.image.is_some() {
                errors.push(FieldError::new("/image", "there are no images; leave it out"));
            }
            if request.protocol != "http" {
                errors.push(FieldError::new("/protocol", "accepted: http"));
            }
        }
        Invalid::unless_empty(errors)?;
        Ok(config)
    }
}

/// What the API says.
#[derive(Deserialize)]
struct Account {
    account: String,
    regions: Vec<Region>,
}

#[derive(Deserialize)]
struct Region {
    name: String,
    open: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tags {
    installation: String,
    proxy_uid: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Machine {
    region: String,
    name: String,
    state: String,
    address: Option<String>,
    owner: Tags,
    incarnation: u32,
}

#[derive(Deserialize)]
struct Listing {
    machines: Vec<Machine>,
    next: Option<String>,
}

fn account() -> Result<Account, Error> {
    http::get(API, "/v1/account").send()?.ok()?.json()
}

/// A placement is `REGION@ACCOUNT`: the place, and which backend it is a place of.
struct Place {
    region: String,
    account: String,
}

impl Place {
    fn of(identity: &Identity) -> Result<Self, Error> {
        let parts =
            identity.placement.split_once('@').filter(|(region, account)| !region.is_empty() && !account.is_empty());
        let (region, account) = parts.ok_or_else(|| {
            Error::config_missing(format!("the placement {:?} is not REGION@ACCOUNT", identity.placement))
                .reason("PlacementUnknown")
        })?;
        Ok(Self { region: region.into(), account: account.into() })
    }

    /// With another account's token, nothing that is found or missing means anything.
    fn check(&self) -> Result<(), Error> {
        let found = account()?.account;
        if found == self.account {
            return Ok(());
        }
        Err(Error::config_missing(format!("the token is of account {found}, and the Proxy is in {}", self.account))
            .reason("BackendChanged")
            .target(&self.region))
    }

    fn path(&self, identity: &Identity) -> String {
        format!("/v1/regions/{}/machines/{}", self.region, instance_name(identity))
    }

    /// The machine of this identity; none when the API has none. Somebody else's is an error.
    fn machine(&self, identity: &Identity) -> Result<Option<Machine>, Error> {
        self.check()?;
        let answer = http::get(API, self.path(identity)).send()?;
        if answer.status == 404 {
            return Ok(None);
        }
        self.ours(&answer.ok()?, identity).map(Some)
    }

    /// A machine out of an answer. Tags say whose it is, never the name.
    fn ours(&self, answer: &Answer, identity: &Identity) -> Result<Machine, Error> {
        let machine: Machine = answer.json()?;
        let owner = &identity.owner;
        if machine.owner.installation == owner.installation && machine.owner.proxy_uid == owner.proxy_uid {
            return Ok(machine);
        }
        Err(Error::foreign(format!("{} belongs to somebody else; it was not touched", machine.name))
            .target(&self.region))
    }
}

impl Machine {
    fn into_instance(self, account: &str) -> Instance {
        let state = match self.state.as_str() {
            "booting" => State::Creating,
            "running" => State::Running,
            "ending" => State::Deleting,
            "broken" => State::Failed("the API calls it broken".into()),
            other => State::Unknown(format!("the API calls it {other}")),
        };
        let placement = format!("{}@{account}", self.region);
        let mut instance = Instance::new(format!("{{name}}://{placement}/{}", self.name), placement, state);
        instance.addresses = self.address.into_iter().map(|host| Address { host, reach: Reach::External }).collect();
        instance.owner = Some(Owner {
            installation: self.owner.installation,
            proxy_uid: self.owner.proxy_uid,
            namespace: self.owner.namespace,
            name: self.owner.name,
        });
        instance.incarnation = Some(self.incarnation);
        if matches!(instance.state, State::Creating | State::Deleting) {
            instance.poll_after_ms = Some(1000);
        }
        instance
    }
}

impl Provider for Machines {
    fn describe() -> Description {
        Description::new("{{name}}", plugin_version!(), "Machines of a small API")
            .schemas(include_str!("config.schema.json"), include_str!("parameters.schema.json"))
            .needs(API, "http", "the API of machines, with its token")
    }

    fn validate(config: &str, request: Option<&Request>) -> Result<(), Invalid> {
        Config::read(config, request).map(drop)
    }

    fn place(config: &str, request: &Request, avoid: &[String]) -> Result<String, Error> {
        let config = Config::read(config, Some(request))?;
        let Account { account, regions } = account()?;
        let wanted = |region: &Region| {
            region.open
                && config.regions.as_ref().is_none_or(|names| names.contains(&region.name))
                && request.location.as_ref().is_none_or(|name| *name == region.name)
        };
        let mut places =
            regions.iter().filter(|region| wanted(region)).map(|region| format!("{}@{account}", region.name));
        places
            .find(|place| !avoid.contains(place))
            .ok_or_else(|| Error::exhausted("every open region has failed or is full").reason("NoRegion"))
    }

    fn create(config: &str, request: &Request) -> Result<Instance, Error> {
        let config = Config::read(config, Some(request))?;
        let identity = &request.identity;
        let place = Place::of(identity)?;
        place.check()?;
        let owner = identity.owner.clone();
        let login = request.login.as_ref();
        // One request makes the machine with its tags. PUT by name: a repeat meets what is there.
        let answer = http::put(API, place.path(identity))
            .json(&json!({
                "owner": Tags {
                    installation: owner.installation,
                    proxy_uid: owner.proxy_uid,
                    namespace: owner.namespace,
                    name: owner.name,
                },
                "incarnation": identity.incarnation,
                "plan": request.size.as_ref().and_then(|size| config.sizes.get(size)),
                "port": request.port,
                "username": login.map(|login| &login.username),
                "password": login.map(|login| &login.password),
            }))
            .send()?
            .ok()?;
        Ok(place.ours(&answer, identity)?.into_instance(&place.account))
    }

    fn get(_config: &str, identity: &Identity) -> Result<Presence, Error> {
        let place = Place::of(identity)?;
        Ok(match place.machine(identity)? {
            Some(machine) => Presence::Present(machine.into_instance(&place.account)),
            None => Presence::Absent,
        })
    }

    fn delete(_config: &str, identity: &Identity) -> Result<Deletion, Error> {
        let place = Place::of(identity)?;
        let Some(machine) = place.machine(identity)? else { return Ok(Deletion::Gone) };
        if machine.state != "ending" {
            let answer = http::delete(API, place.path(identity)).send()?;
            if answer.status != 404 {
                answer.ok()?;
            }
        }
        // Gone is only what the next call does not find.
        Ok(Deletion::InProgress(Progress { message: None, poll_after_ms: Some(1000), continuation: None }))
    }

    fn list_instances(_config: &str, installation: &str, page: Option<&str>) -> Result<Page, Error> {
        let account = account()?.account;
        let mut call = http::get(API, "/v1/machines").query("installation", installation);
        if let Some(page) = page {
            call = call.query("page", page);
        }
        let Listing { machines, next } = call.send()?.ok()?.json()?;
        // An API that passes over its filter must not show us somebody else's.
        let ours = machines.into_iter().filter(|machine| machine.owner.installation == installation);
        Ok(Page { instances: ours.map(|machine| machine.into_instance(&account)).collect(), next })
    }

    fn check(config: &str) -> Result<Vec<Finding>, Error> {
        let config = Config::read(config, None)?;
        let regions = account()?.regions;
        let used = |name: &String| config.regions.as_ref().is_none_or(|names| names.contains(name));
        let finding = |region: &Region| match region.open {
            true => Finding::ok(&region.name, ""),
            false => Finding::bad(&region.name, "RegionClosed", "the API takes no machines there"),
        };
        Ok(regions.iter().filter(|region| used(&region.name)).map(finding).collect())
    }
}

export_provider!(Machines);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_field_is_named_at_once() {
        let mut request = testing::request();
        request.location = Some("west".into());
        request.size = Some("huge".into());
        let invalid = Config::read(r#"{"regions":["north"]}"#, Some(&request)).err().expect("it is wrong");
        let pointers: Vec<_> = invalid.errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/location", "/size"]);
    }
}
