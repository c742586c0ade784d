//! Its `get` never ends: that call alone must be cut off.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest, spin};

struct LoopGet;

impl Fixture for LoopGet {
    const NAME: &'static str = "loop-get";

    fn get(_config: &str, _identity: &Identity) -> Result<Presence, Error> {
        spin()
    }
}

export_provider!(Guest<LoopGet>);
