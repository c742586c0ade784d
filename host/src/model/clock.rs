//! Time as an argument, so that tests can set it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Since an arbitrary start; never goes back.
    fn monotonic(&self) -> Duration;
    /// The date, for people and for objects; never used to measure.
    fn wall(&self) -> Timestamp;
}

/// The machine's own clocks.
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that moves when told.
#[derive(Default)]
pub struct ManualClock {
    monotonic_ms: AtomicU64,
    wall: Mutex<Timestamp>,
}

impl ManualClock {
    /// Moves both clocks on.
    pub fn advance(&self, by: Duration) {
        self.monotonic_ms.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
        let mut wall = self.wall.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *wall = wall
            .saturating_add(jiff::SignedDuration::try_from(by).unwrap_or(jiff::SignedDuration::MAX))
            .unwrap_or(*wall);
    }

    /// Sets the date alone, as an administrator or a time service does.
    pub fn set_wall(&self, to: Timestamp) {
        *self.wall.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = to;
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.monotonic_ms.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Timestamp {
        *self.wall.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
