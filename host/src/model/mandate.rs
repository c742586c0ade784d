//! The right of this process to change anything outside of itself. Without election it has it always; else as long as it leads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Until when this process may act, on its own monotonic clock. A process that was frozen finds it over when it wakes.
#[derive(Debug)]
pub struct Mandate {
    until_ms: AtomicU64,
}

impl Mandate {
    /// One that never ends.
    pub fn always() -> Self {
        Self { until_ms: u64::MAX.into() }
    }

    /// One that has not begun.
    pub fn not_yet() -> Self {
        Self { until_ms: 0.into() }
    }

    /// Whether it holds.
    pub fn holds(&self, now: Duration) -> bool {
        (now.as_millis() as u64) < self.until_ms.load(Ordering::Acquire)
    }

    /// It holds until then.
    pub fn extend(&self, until: Duration) {
        self.until_ms.fetch_max(until.as_millis() as u64, Ordering::AcqRel);
    }

    /// It is over.
    pub fn end(&self) {
        self.until_ms.store(0, Ordering::Release);
    }
}
