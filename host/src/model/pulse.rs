//! Whether the loops of this process still turn: each says so now and then, and one that stopped saying it is named.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A loop says that it turns at least this often, also when it has nothing to do.
pub const BEAT: Duration = Duration::from_secs(5);
/// One that has not said so for this long does not turn.
const SILENCE: Duration = Duration::from_secs(60);

/// The loops of this process.
pub static PULSE: Pulse = Pulse::new();

/// Loops, with when each last turned.
#[derive(Default)]
pub struct Pulse {
    loops: Mutex<BTreeMap<u64, (&'static str, Instant)>>,
}

/// The beat of one loop; dropped with it.
pub struct Beat<'p> {
    pulse: &'p Pulse,
    id: u64,
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
        Beat { pulse: self, id }
    }

    /// Loops that do not turn.
    pub fn silent(&self) -> Vec<&'static str> {
        self.silent_at(Instant::now())
    }

    fn silent_at(&self, now: Instant) -> Vec<&'static str> {
        let is_silent = |last: &Instant| now.saturating_duration_since(*last) > SILENCE;
        self.lock().values().filter(|(_, last)| is_silent(last)).map(|(name, _)| *name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (&'static str, Instant)>> {
        self.loops.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Beat<'_> {
    /// The loop came round.
    pub fn turned(&self) {
        self.turned_at(Instant::now());
    }

    fn turned_at(&self, now: Instant) {
        if let Some((_, last)) = self.pulse.lock().get_mut(&self.id) {
            *last = now;
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

    #[test]
    fn a_loop_that_hangs_is_named_and_one_that_turns_or_ended_is_not() {
        let pulse = Pulse::new();
        let begun = Instant::now();
        let (turning, hanging, ended) = (pulse.of("turning"), pulse.of("hanging"), pulse.of("ended"));
        drop(ended);
        assert_eq!(pulse.silent_at(begun + SILENCE - BEAT), Vec::<&str>::new());
        let later = begun + SILENCE + BEAT;
        turning.turned_at(later - BEAT);
        assert_eq!(pulse.silent_at(later), ["hanging"]);
        drop(hanging);
        assert_eq!(pulse.silent_at(later), Vec::<&str>::new());
    }
}
