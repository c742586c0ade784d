//! Its `describe` panics: the text must reach whoever installed it.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest};

struct PanicDescribe;

impl Fixture for PanicDescribe {
    const NAME: &'static str = "panic-describe";

    fn describe() -> Description {
        panic!("describe panics on purpose")
    }
}

export_provider!(Guest<PanicDescribe>);
