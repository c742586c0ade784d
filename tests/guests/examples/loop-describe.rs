//! Its `describe` never ends: loading must be cut off.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest, spin};

struct LoopDescribe;

impl Fixture for LoopDescribe {
    const NAME: &'static str = "loop-describe";

    fn describe() -> Description {
        spin()
    }
}

export_provider!(Guest<LoopDescribe>);
