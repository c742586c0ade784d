//! The requests of the sandbox cloud's API, and nothing about what their answers mean.

use crawl_provider_sdk::{Error, http};

use crate::placing::Placement;
use crate::wire::{Cloud, Create, Listing};

/// The connection that the Provider must grant.
pub const CONNECTION: &str = "cloud";

/// The API's own upper bound.
const PAGE: &str = "100";

pub fn state() -> Result<Cloud, Error> {
    http::get(CONNECTION, "/v1/cloud").send()?.ok()?.json()
}

pub fn put(at: &Placement, name: &str, body: &Create) -> Result<http::Answer, Error> {
    http::put(CONNECTION, path(at, name)).json(body).send()
}

pub fn get(at: &Placement, name: &str) -> Result<http::Answer, Error> {
    http::get(CONNECTION, path(at, name)).send()
}

pub fn start(at: &Placement, name: &str) -> Result<http::Answer, Error> {
    http::post(CONNECTION, path(at, name) + "/start").send()
}

pub fn delete(at: &Placement, name: &str) -> Result<http::Answer, Error> {
    http::delete(CONNECTION, path(at, name)).send()
}

pub fn list(installation: &str, cursor: Option<&str>) -> Result<Listing, Error> {
    let mut call = http::get(CONNECTION, "/v1/instances").query("installation", installation).query("limit", PAGE);
    if let Some(cursor) = cursor {
        call = call.query("cursor", cursor);
    }
    call.send()?.ok()?.json()
}

fn path(at: &Placement, name: &str) -> String {
    format!("/v1/zones/{}/instances/{name}", at.zone)
}
