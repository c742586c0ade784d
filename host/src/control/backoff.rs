//! When a failed call is tried again, by its kind (`docs/providers.md` has the table).

use std::time::Duration;

use rand::{Rng, RngExt};

use crate::model::error::ErrorKind;

/// Shortest and longest wait after a temporary failure.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(120);
/// After what a human, or somebody else's machine, must give room for.
const SLOW: (u64, u64) = (300, 600);
/// After a refused spec: nothing but a change of the object or the Provider helps.
const SAFETY: (u64, u64) = (3600, 4200);

/// The wait after the `failures`-th failure in a row (from 1), with full jitter.
pub fn delay(kind: &ErrorKind, failures: u32, random: &mut impl Rng) -> Duration {
    match kind {
        ErrorKind::Transient | ErrorKind::UnknownOutcome | ErrorKind::Internal => exponential(failures, random),
        // At least what the backend asked for; a spread on top, so that not all come back at once.
        ErrorKind::RateLimited(wait) => {
            wait.unwrap_or(FIRST).max(exponential(failures, random)) + spread(FIRST, random)
        }
        ErrorKind::Exhausted | ErrorKind::Unauthorized | ErrorKind::ConfigMissing | ErrorKind::Foreign => {
            between(SLOW, random)
        }
        ErrorKind::InvalidSpec(_) => between(SAFETY, random),
    }
}

fn exponential(failures: u32, random: &mut impl Rng) -> Duration {
    let ceiling = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST);
    // Never under a tenth: a wait of nothing would be no wait.
    ceiling.mul_f64(random.random_range(0.1..=1.0))
}

fn between((from, to): (u64, u64), random: &mut impl Rng) -> Duration {
    Duration::from_secs_f64(random.random_range(from as f64..=to as f64))
}

fn spread(over: Duration, random: &mut impl Rng) -> Duration {
    over.mul_f64(random.random_range(0.0..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_wait() {
        let mut random = rand::rng();
        let secs = |from: f64, to: f64| Duration::from_secs_f64(from)..=Duration::from_secs_f64(to);
        for (kind, failures, expected) in [
            (ErrorKind::Transient, 1, secs(0.1, 1.0)),
            (ErrorKind::Transient, 4, secs(0.8, 8.0)),
            (ErrorKind::Transient, 99, secs(12.0, 120.0)),
            (ErrorKind::Internal, 2, secs(0.2, 2.0)),
            (ErrorKind::UnknownOutcome, 1, secs(0.1, 1.0)),
            (ErrorKind::RateLimited(Some(Duration::from_secs(30))), 1, secs(30.0, 31.0)),
            (ErrorKind::RateLimited(None), 1, secs(1.0, 2.0)),
            (ErrorKind::Exhausted, 1, secs(300.0, 600.0)),
            (ErrorKind::Unauthorized, 9, secs(300.0, 600.0)),
            (ErrorKind::ConfigMissing, 1, secs(300.0, 600.0)),
            (ErrorKind::Foreign, 1, secs(300.0, 600.0)),
            (ErrorKind::InvalidSpec(vec![]), 1, secs(3600.0, 4200.0)),
        ] {
            for _ in 0..50 {
                let wait = delay(&kind, failures, &mut random);
                assert!(expected.contains(&wait), "{kind:?} after {failures}: {wait:?}");
            }
        }
    }
}
