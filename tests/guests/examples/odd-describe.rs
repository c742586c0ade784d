//! Its `describe` draws a random number, takes its version from no scheme, and its schemas accept everything.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest};

struct OddDescribe;

impl Fixture for OddDescribe {
    const NAME: &'static str = "odd-describe";

    fn describe() -> Description {
        random::bytes(1);
        Description::new(Self::NAME, "one", "A guest for tests").schemas("{}", "{}")
    }
}

export_provider!(Guest<OddDescribe>);
