//! Durations as objects write them: `30s`, `10m`, `1h30m`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A duration of whole seconds, at most 1,000,000 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(Duration);

impl Span {
    /// From seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// As the standard library has it.
    pub const fn duration(self) -> Duration {
        self.0
    }
}

/// Text that is no duration.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a duration: write whole numbers with the units h, m and s, for example 30s, 10m or 1h30m")]
pub struct NotASpan(String);

impl FromStr for Span {
    type Err = NotASpan;

    fn from_str(text: &str) -> Result<Self, NotASpan> {
        let refuse = || NotASpan(text.to_owned());
        let (mut total, mut number) = (0u64, None::<u64>);
        for c in text.chars() {
            if let Some(digit) = c.to_digit(10) {
                let next = number.unwrap_or(0).checked_mul(10).and_then(|n| n.checked_add(digit.into()));
                number = Some(next.filter(|n| *n <= 3_600_000_000).ok_or_else(refuse)?);
            } else {
                let unit = match c {
                    'h' => 3600,
                    'm' => 60,
                    's' => 1,
                    _ => return Err(refuse()),
                };
                total += number.take().ok_or_else(refuse)? * unit;
            }
        }
        if number.is_some() || text.is_empty() || total > 3_600_000_000 {
            return Err(refuse());
        }
        Ok(Self::secs(total))
    }
}

impl TryFrom<String> for Span {
    type Error = NotASpan;

    fn try_from(text: String) -> Result<Self, NotASpan> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.0.as_secs();
        let (h, m, s) = (secs / 3600, secs / 60 % 60, secs % 60);
        for (n, unit) in [(h, 'h'), (m, 'm'), (s, 's')] {
            if n > 0 {
                write!(f, "{n}{unit}")?;
            }
        }
        if secs == 0 { f.write_str("0s") } else { Ok(()) }
    }
}

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^([0-9]{1,9}[hms])+$", "maxLength": 24})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_written_back() {
        for (text, secs, written) in
            [("30s", 30, "30s"), ("90m", 5400, "1h30m"), ("1h30m", 5400, "1h30m"), ("0s", 0, "0s")]
        {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.duration().as_secs(), secs);
            assert_eq!(span.to_string(), written);
        }
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in ["", "5", "s", "5d", "-5s", "1.5h", "99999999999999999999s", "5 s", "999999999h999999999h"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
