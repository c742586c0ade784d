//! Its `describe` takes memory without end: loading must be cut off.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest, devour};

struct MemoryDescribe;

impl Fixture for MemoryDescribe {
    const NAME: &'static str = "memory-describe";

    fn describe() -> Description {
        devour()
    }
}

export_provider!(Guest<MemoryDescribe>);
