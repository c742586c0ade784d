//! Its `get` waits for `GET /slow` on connection `cloud`: present on 200, absent on 404. The instance's message tells the
//! version, so a test of hot swapping sees which one answered.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest, description, instance};

struct SlowGet;

impl Fixture for SlowGet {
    const NAME: &'static str = "slow-get";

    fn describe() -> Description {
        description(Self::NAME).needs("cloud", "http", "Answers GET /slow when it likes")
    }

    fn get(_config: &str, identity: &Identity) -> Result<Presence, Error> {
        let answer = http::get("cloud", "/slow").send()?;
        match answer.status {
            200 => {
                let mut found = instance(Self::NAME, identity);
                found.message = Some(format!("version {}", plugin_version!()));
                Ok(Presence::Present(found))
            }
            404 => Ok(Presence::Absent),
            _ => Err(answer.error()),
        }
    }
}

export_provider!(Guest<SlowGet>);
