//! How many log records the plugin of one Provider may write over all its calls. Pure: time comes in.

use std::time::Duration;

/// Records at once, and how many a second come back.
const BURST: f64 = 1000.0;
const PER_SECOND: f64 = 20.0;
/// What is dropped is told of this often.
const WINDOW: Duration = Duration::from_secs(60);

/// A bucket of records.
pub(super) struct LogRate {
    left: f64,
    filled: Duration,
    dropped: u64,
    told: Option<Duration>,
}

/// What becomes of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// It is written.
    Written,
    /// It is dropped; with how many were since that was last told, when it is to be told.
    Dropped(Option<u64>),
}

impl LogRate {
    /// A full one.
    pub fn new(now: Duration) -> Self {
        Self { left: BURST, filled: now, dropped: 0, told: None }
    }

    /// Takes one record.
    pub fn take(&mut self, now: Duration) -> Record {
        let came_back = now.saturating_sub(self.filled).as_secs_f64() * PER_SECOND;
        self.left = (self.left + came_back).min(BURST);
        self.filled = self.filled.max(now);
        if self.left >= 1.0 {
            self.left -= 1.0;
            return Record::Written;
        }
        self.dropped += 1;
        if self.told.is_some_and(|told| now < told + WINDOW) {
            return Record::Dropped(None);
        }
        self.told = Some(now);
        Record::Dropped(Some(std::mem::take(&mut self.dropped)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(rate: &mut LogRate, records: u32, at: Duration) -> usize {
        (0..records).filter(|_| rate.take(at) == Record::Written).count()
    }

    #[test]
    fn a_burst_passes_and_then_a_trickle() {
        let at = Duration::from_secs;
        let mut rate = LogRate::new(at(100));
        assert_eq!(written(&mut rate, 5000, at(100)), 1000);
        assert_eq!(written(&mut rate, 5000, at(103)), 60);
        assert_eq!(written(&mut rate, 5000, at(103)), 0);
        assert_eq!(written(&mut rate, 5000, at(90_000)), 1000, "never more than a burst");
    }

    #[test]
    fn what_is_dropped_is_told_once_a_window_and_nothing_is_left_out() {
        let at = Duration::from_secs;
        let mut rate = LogRate::new(at(0));
        written(&mut rate, 1000, at(0));
        assert_eq!(rate.take(at(0)), Record::Dropped(Some(1)));
        let quiet = (0..7).all(|_| rate.take(at(0)) == Record::Dropped(None));
        assert!(quiet);
        let before = at(60) - Duration::from_millis(1);
        written(&mut rate, 1000, before);
        assert_eq!(rate.take(before), Record::Dropped(None));
        // All but those that were written.
        assert_eq!(rate.take(at(60)), Record::Dropped(Some(9)));
    }
}
