//! Whether the loops of this process still turn: each says so now and then, and one that stopped saying it is named.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, Interval, interval};

/// A loop says that it turns this often.
const BEAT: Duration = Duration::from_secs(5);
/// One that has not said so for this long does not turn.
const SILENCE: Duration = Duration::from_secs(60);

/// The loops of this process.
pub static PULSE: Pulse = Pulse::new();

/// Loops, with when each last turned.
pub struct Pulse {
    loops: Mutex<BTreeMap<u64, (&'static str, Instant)>>,
}

/// The beat of one loop; dropped with it.
pub struct Beat<'p> {
    pulse: &'p Pulse,
    id: u64,
    interval: Interval,
}

impl Pulse {
    /// No loops yet.
    pub const fn new() -> Self {
        Self { loops: Mutex::new(BTreeMap::new()) }
    }

    /// A loop that begins.
    pub fn of(&self, name: &'static str) -> Beat<'_> {
        let mut loops = self.lock();
        let id = loops.last_key_value().map_or(0, |(last, _)| last + 1);
        loops.insert(id, (name, Instant::now()));
        Beat { pulse: self, id, interval: interval(BEAT) }
    }

    /// Loops that do not turn.
    pub fn silent(&self) -> Vec<&'static str> {
        self.lock().values().filter(|(_, last)| last.elapsed() > SILENCE).map(|(name, _)| *name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (&'static str, Instant)>> {
        self.loops.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Beat<'_> {
    /// Waits for the next beat and tells of it: a branch of the loop's own `select!`, so that it is told only when the loop
    /// comes round.
    pub async fn tick(&mut self) {
        self.interval.tick().await;
        self.turned();
    }

    /// Tells that the loop turned.
    pub fn turned(&self) {
        if let Some((_, last)) = self.pulse.lock().get_mut(&self.id) {
            *last = Instant::now();
        }
    }
}

impl Drop for Beat<'_> {
    fn drop(&mut self) {
        self.pulse.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_hangs_is_named_and_one_that_turns_or_ended_is_not() {
        static PULSE: Pulse = Pulse::new();
        let turning = tokio::spawn(async {
            let mut beat = PULSE.of("turning");
            loop {
                beat.tick().await;
            }
        });
        let hanging = tokio::spawn(async {
            let mut beat = PULSE.of("hanging");
            beat.tick().await;
            std::future::pending::<()>().await;
        });
        let ended = tokio::spawn(async { PULSE.of("ended").turned() });
        ended.await.unwrap();
        tokio::time::sleep(SILENCE).await;
        assert_eq!(PULSE.silent(), Vec::<&str>::new());
        tokio::time::sleep(2 * BEAT).await;
        assert_eq!(PULSE.silent(), ["hanging"]);
        hanging.abort();
        assert!(hanging.await.unwrap_err().is_cancelled());
        assert_eq!(PULSE.silent(), Vec::<&str>::new());
        turning.abort();
    }
}
