//! Good plugins with something wrong in the middle: the loader answers with a reason, whatever it is, and never falls.
//! `MUTATIONS=N` for more of them, `MUTATION_SEED=N` for others.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use proxy_operator::plugin::source::upload::pack;
use proxy_operator_tests::plugins::{bytes_of, loader};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::fuzz::{Outcome, join, load};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// The file with one to four changes: flipped, overwritten, cut out, doubled, cut off.
fn mutated(original: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..bytes.len().max(1));
        let to = (at + random.random_range(1..64)).min(bytes.len());
        match random.random_range(0..5) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at..to].fill(random.random()),
            2 => drop(bytes.drain(at..to)),
            3 => {
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => bytes.truncate(at.max(1)),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn no_damage_makes_the_loader_fall() {
    let (seed, times) = (setting("MUTATION_SEED", 1), setting("MUTATIONS", 3000));
    let mut random = StdRng::seed_from_u64(seed);
    let originals = ["echo", "wasi", "no-contract", "newer-contract"].map(bytes_of);
    let loader = loader();
    let mut loaded = 0;
    for turn in 0..times {
        let bytes = mutated(&originals[turn as usize % originals.len()], &mut random);
        // What is still sound goes all the way, a few times: compiling is what takes the time.
        let most = if loaded < 20 { u64::MAX } else { 0 };
        let outcome = AssertUnwindSafe(load(&loader, "echo", &bytes, most)).catch_unwind().await;
        let outcome = outcome.unwrap_or_else(|_| panic!("it fell in turn {turn} of seed {seed}"));
        loaded += u32::from(matches!(outcome, Outcome::Loaded));
    }
    println!("mutations: {times}, of which {loaded} were loaded");
    assert!(loaded > 0);
}

#[test]
fn no_damage_makes_an_upload_fall() {
    let mut random = StdRng::seed_from_u64(setting("MUTATION_SEED", 1));
    let original = pack("echo", &bytes_of("echo").repeat(12)).into_iter().flat_map(|(_, bytes)| bytes);
    let original: Vec<u8> = std::iter::once(1).chain(original).collect();
    assert_eq!(join(&original).expect("it is whole"), bytes_of("echo").repeat(12));
    for _ in 0..setting("MUTATIONS", 3000) / 10 {
        let _ = join(&mutated(&original, &mut random));
    }
}
