//! Its `get` panics: the text must reach the error of that call.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest};

struct PanicGet;

impl Fixture for PanicGet {
    const NAME: &'static str = "panic-get";

    fn get(_config: &str, _identity: &Identity) -> Result<Presence, Error> {
        panic!("get panics on purpose")
    }
}

export_provider!(Guest<PanicGet>);
