//! Conditions, in the manner of the Kubernetes API conventions.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Status {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Not known yet, or no longer.
    Unknown,
}

impl From<bool> for Status {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// One aspect of an object's state.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The aspect, CamelCase.
    #[serde(rename = "type")]
    #[schemars(length(max = 64))]
    pub type_: String,
    /// Whether it holds.
    pub status: Status,
    /// The generation of the spec that this answer is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// When `status` last changed.
    #[schemars(with = "TimeSchema")]
    pub last_transition_time: Timestamp,
    /// CamelCase, from the documented table.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
    /// For people: what, which object, what to do.
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// Schema of a time stamp.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct TimeSchema(
    #[schemars(extend("format" = "date-time"))]
    #[allow(dead_code)]
    String,
);

/// What a condition is to say; the rest follows from what it said before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it holds.
    pub status: Status,
    /// CamelCase reason.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Verdict {
    /// A verdict of the given parts.
    pub fn new(status: impl Into<Status>, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: status.into(), reason: reason.into(), message: truncate(&message.into(), 4096) }
    }
}

/// Sets the condition `type_`. `last_transition_time` moves only when the status changes, so that setting the same verdict
/// twice changes nothing.
pub fn set(conditions: &mut Vec<Condition>, type_: &str, verdict: Verdict, generation: i64, now: Timestamp) {
    let Verdict { status, reason, message } = verdict;
    // Objects keep whole seconds, as Kubernetes does.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    match conditions.iter_mut().find(|c| c.type_ == type_) {
        Some(found) => {
            if found.status != status {
                found.last_transition_time = now;
            }
            *found = Condition {
                type_: type_.into(),
                status,
                observed_generation: generation,
                last_transition_time: found.last_transition_time,
                reason,
                message,
            };
        }
        None => conditions.push(Condition {
            type_: type_.into(),
            status,
            observed_generation: generation,
            last_transition_time: now,
            reason,
            message,
        }),
    }
}

/// The condition `type_`, if it was set.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition `type_` is `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == Status::True)
}

/// Text from elsewhere as one line: without control characters, and cut off at `max` bytes.
pub fn one_line(text: &str, max: usize) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    truncate(&plain, max)
}

/// At most `max` bytes of `text`, cut between characters.
pub fn truncate(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let cut = (0..=max.saturating_sub(3)).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    format!("{}…", &text[..cut])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let mut all = Vec::new();
        set(&mut all, "Ready", Verdict::new(false, "Creating", "a"), 1, at(10));
        set(&mut all, "Ready", Verdict::new(false, "Booting", "b"), 2, at(20));
        assert_eq!(
            (all[0].last_transition_time, all[0].observed_generation, all[0].reason.as_str()),
            (at(10), 2, "Booting")
        );
        set(&mut all, "Ready", Verdict::new(true, "Ready", "c"), 2, at(30));
        assert_eq!(all[0].last_transition_time, at(30));
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn truncation_never_splits_a_character() {
        assert_eq!(truncate("äöü", 6), "äöü");
        assert!(truncate("äöüäöü", 8).len() <= 8);
    }
}
