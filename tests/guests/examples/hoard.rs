//! Its `get` does what `{"do": …}` in the config names: without end, so that only a limit stops it.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest, devour, spin};

struct Hoard;

impl Fixture for Hoard {
    const NAME: &'static str = "hoard";

    fn get(config: &str, _identity: &Identity) -> Result<Presence, Error> {
        let config: serde_json::Value = parse_config(config)?;
        match config["do"].as_str().unwrap_or_default() {
            "memory" => devour(),
            "time" => spin(),
            "hold" => {
                let held = std::hint::black_box(vec![1u8; 40 << 20]);
                log::info(&format!("holds {}", held.len()), &[]);
                spin();
            }
            "stack" => return Err(Error::exhausted(deeper(0).to_string())),
            "handles" => handles(),
            "host-call" => log::info(&"x".repeat(9 << 20), &[]),
            "log" => {
                for turn in 0..10_000 {
                    log::info(&format!("record {turn} \u{1b}[31mred\u{1b}[0m\nforged=line"), &[]);
                }
            }
            "random" => return Err(Error::exhausted(random::bytes(u32::MAX).len().to_string())),
            other => return Err(Error::exhausted(format!("nothing called {other:?}"))),
        }
        Ok(Presence::Absent)
    }

    /// Page after page, each with a few instances that say much.
    fn list_instances(page: Option<&str>) -> Result<Page, Error> {
        let mut much = Instance::new("x".repeat(1000), "here", State::Running);
        much.addresses = vec![Address { host: "x".repeat(250), reach: Reach::External }; 16];
        much.continuation = Some("x".repeat(4000));
        let turn: u32 = page.and_then(|page| page.parse().ok()).unwrap_or_default();
        Ok(Page { instances: vec![much; 100], next: Some((turn + 1).to_string()) })
    }
}

/// No loop can do the same, and nothing of it lies in linear memory: there it would run out first.
#[inline(never)]
fn deeper(depth: u64) -> u64 {
    if depth == u64::MAX { 0 } else { deeper(depth + 1).rotate_left((depth % 63) as u32) ^ depth }
}

#[cfg(target_arch = "wasm32")]
fn handles() {
    for _ in 0..10_000 {
        std::mem::forget(wasip2::clocks::monotonic_clock::subscribe_duration(1));
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn handles() {}

export_provider!(Guest<Hoard>);
