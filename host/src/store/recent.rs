//! The last events, in the log and in memory, whichever store they happened in.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use super::{Event, Severity};

/// Events that are remembered.
const EVENTS: usize = 1000;

/// The last events, oldest first.
#[derive(Default)]
pub(super) struct Recent(Mutex<VecDeque<Event>>);

impl Recent {
    /// Logs an event and remembers it in the place of the oldest.
    pub fn record(&self, event: Event) {
        match event.severity {
            Severity::Normal => {
                tracing::info!(regarding = %event.regarding, reason = %event.reason, "{}", event.message)
            }
            Severity::Warning => {
                tracing::warn!(regarding = %event.regarding, reason = %event.reason, "{}", event.message)
            }
        }
        let mut events = self.lock();
        if events.len() == EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// All that are remembered.
    pub fn all(&self) -> Vec<Event> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
