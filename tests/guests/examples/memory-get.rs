//! Its `get` takes memory without end: that call alone must be cut off.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest, devour};

struct MemoryGet;

impl Fixture for MemoryGet {
    const NAME: &'static str = "memory-get";

    fn get(_config: &str, _identity: &Identity) -> Result<Presence, Error> {
        devour()
    }
}

export_provider!(Guest<MemoryGet>);
