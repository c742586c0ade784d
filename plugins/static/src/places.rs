//! Which entry a Proxy gets, and what an entry is as an instance.

use std::collections::BTreeSet;

use crawl_provider_sdk::{
    Address, Error, FieldError, Identity, Instance, Invalid, Request, State, instance_name, parse_parameters,
};
use serde::Deserialize;

use crate::config::{Config, Entry};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    entry: Option<String>,
}

/// What a wish is compared with.
type Member = fn(&Entry) -> Option<&str>;

/// The first free entry that fits.
pub fn choose(config: &Config, request: &Request, avoid: &[String]) -> Result<String, Error> {
    let fitting = matching(config, request)?;
    let free = fitting.iter().map(|entry| entry.placement()).find(|place| !avoid.contains(place));
    free.ok_or_else(|| {
        let names: Vec<_> = fitting.iter().map(|entry| entry.name.as_str()).collect();
        Error::exhausted(format!(
            "every entry that fits is held by another Proxy or has failed ({}); add one to config.proxies",
            short(&names)
        ))
        .reason("NoEntry")
    })
}

/// All entries that fit the request, free or not; at least one.
pub fn matching<'a>(config: &'a Config, request: &Request) -> Result<Vec<&'a Entry>, Invalid> {
    let mut errors = vec![];
    for (pointer, name) in [("/image", &request.image), ("/size", &request.size)] {
        if name.is_some() {
            errors.push(FieldError::new(pointer, "a proxy that exists already has none; leave the field out"));
        }
    }
    let wanted = match parse_parameters::<Parameters>(&request.parameters) {
        Ok(parameters) => parameters.entry,
        Err(invalid) => {
            errors.extend(invalid.errors);
            None
        }
    };
    let mut entries: Vec<_> = config.proxies.iter().collect();
    // One after the other: each is looked for in what those before it leave. One that nothing fits narrows nothing, so that
    // the next is judged all the same.
    let wishes: [(&str, Option<&str>, Member); 3] = [
        ("/parameters/entry", wanted.as_deref(), |entry| Some(&entry.name)),
        ("/location", request.location.as_deref(), |entry| entry.location.as_deref()),
        ("/protocol", Some(&request.protocol), |entry| Some(entry.protocol.name())),
    ];
    for (pointer, wish, of) in wishes {
        let Some(wish) = wish else { continue };
        let there: BTreeSet<_> = entries.iter().filter_map(|entry| of(entry)).collect();
        if !there.contains(wish) {
            let there: Vec<_> = there.into_iter().collect();
            errors.push(FieldError::new(pointer, format!("no entry fits {wish}; accepted: {}", short(&there))));
        } else {
            entries.retain(|entry| of(entry) == Some(wish));
        }
    }
    Invalid::unless_empty(errors)?;
    Ok(entries)
}

/// The entry at the placement. Gone or moved to another address is a mistake in the config and never "absent".
pub fn placed<'a>(config: &'a Config, identity: &Identity) -> Result<&'a Entry, Error> {
    let placement = &identity.placement;
    if let Some(entry) = config.proxies.iter().find(|entry| entry.placement() == *placement) {
        return Ok(entry);
    }
    let name = placement.split_once('@').map_or(placement.as_str(), |(name, _)| name);
    let error = match config.proxies.iter().find(|entry| entry.name == name) {
        Some(entry) => Error::config_missing(format!(
            "the Proxy was placed at {placement}, and the entry now reads {}; put the address back, or delete the \
             Proxy",
            entry.placement()
        ))
        .reason("EntryChanged"),
        None => Error::config_missing(format!(
            "the Proxy was placed at {placement}, and config.proxies has no entry {name}; put it back, or delete \
             the Proxy"
        ))
        .reason("EntryMissing"),
    };
    Err(error.target(name))
}

/// A proxy that exists already cannot be given the login that the operator made.
pub fn check_login(entry: &Entry, request: &Request) -> Result<(), Error> {
    if request.login.is_none() || entry.login_secret.is_some() {
        return Ok(());
    }
    Err(Error::invalid_spec(
        "/auth",
        format!("entry {} asks for no login; set auth.mode to none, or give the entry a loginSecret", entry.name),
    )
    .target(&entry.name))
}

pub fn instance(entry: &Entry, identity: &Identity) -> Instance {
    let placement = entry.placement();
    let id = format!("static://{placement}/{}", instance_name(identity));
    let mut instance = Instance::new(id, placement, State::Running);
    instance.addresses = vec![Address { host: entry.host.clone(), reach: entry.reach() }];
    instance.port = Some(entry.port);
    instance.login_secret = entry.login_secret.clone();
    instance
}

/// A list may be thousands long; a message is read by people.
fn short(names: &[&str]) -> String {
    const SHOWN: usize = 20;
    match names.len() {
        0 => "none".into(),
        n if n > SHOWN => format!("{}, …", names[..SHOWN].join(", ")),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests;
