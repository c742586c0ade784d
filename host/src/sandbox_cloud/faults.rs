//! Misbehaviour on demand: which faults are set, and which of them strikes now.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::request::MAX_MILLIS;

/// What goes wrong. Each is described in `docs/sandbox-cloud.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    SlowBoot,
    FailedBoot,
    Quota,
    RateLimit,
    ServerError,
    LostAnswer,
    DeadProxy,
    WrongProxy,
    Vanish,
    SlowAnswer,
}

/// One fault as it is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Fault {
    kind: Kind,
    /// How often it strikes; for ever when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<u64>,
    /// Whom it strikes; everybody when absent.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    whom: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
}

impl Fault {
    /// Refuses what could not have been meant: a setting of another kind, or a number that makes no sense.
    fn check(&self) -> Result<(), String> {
        for (field, value, owner) in [
            ("bootMs", self.boot_ms, Kind::SlowBoot),
            ("retryAfter", self.retry_after, Kind::RateLimit),
            ("delayMs", self.delay_ms, Kind::SlowAnswer),
        ] {
            match value {
                Some(_) if self.kind != owner => {
                    return Err(format!("{field} belongs to {owner} only"));
                }
                Some(value) if value > MAX_MILLIS => {
                    return Err(format!("{field} must be at most {MAX_MILLIS}"));
                }
                _ => {}
            }
        }
        if self.times == Some(0) {
            return Err("times must be at least 1; leave it out for every time".to_owned());
        }
        if self.whom.as_deref() == Some("") {
            return Err("match must not be empty; leave it out for all".to_owned());
        }
        Ok(())
    }

    /// How long an instance boots under `slow-boot`.
    pub(super) fn boot(&self) -> Duration {
        Duration::from_millis(self.boot_ms.unwrap_or(60_000))
    }

    /// How late `slow-answer` answers.
    pub(super) fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms.unwrap_or(5_000))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SlowBoot => "slow-boot",
            Self::FailedBoot => "failed-boot",
            Self::Quota => "quota",
            Self::RateLimit => "rate-limit",
            Self::ServerError => "server-error",
            Self::LostAnswer => "lost-answer",
            Self::DeadProxy => "dead-proxy",
            Self::WrongProxy => "wrong-proxy",
            Self::Vanish => "vanish",
            Self::SlowAnswer => "slow-answer",
        })
    }
}

/// Whom a request is about; nobody in particular for one about the whole cloud.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Subject<'a> {
    pub(super) zone: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    /// `owner.name`.
    pub(super) owner: Option<&'a str>,
}

/// A fault and how often it struck.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Standing {
    #[serde(flatten)]
    fault: Fault,
    struck: u64,
}

impl Standing {
    fn strikes(&mut self, subject: Subject<'_>) -> bool {
        let whom = self.fault.whom.as_deref();
        let spent = self.fault.times.is_some_and(|times| self.struck >= times);
        let fits = whom.is_none() || [subject.zone, subject.name, subject.owner].contains(&whom);
        let strikes = fits && !spent;
        self.struck += u64::from(strikes);
        strikes
    }
}

/// The faults that are set, in the order in which they were given.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Standing>);

impl Faults {
    /// A list of faults, or what is wrong with the first bad one.
    pub(super) fn new(faults: Vec<Fault>) -> Result<Self, ApiError> {
        for (index, fault) in faults.iter().enumerate() {
            let kind = fault.kind;
            fault.check().map_err(|wrong| ApiError::Invalid(format!("fault {index} ({kind}): {wrong}")))?;
        }
        Ok(Self(faults.into_iter().map(|fault| Standing { fault, struck: 0 }).collect()))
    }

    pub(super) fn list(&self) -> Vec<Standing> {
        self.0.clone()
    }

    /// The first fault of `kind` that strikes, counted as struck.
    pub(super) fn strike(&mut self, kind: Kind, subject: Subject<'_>) -> Option<Fault> {
        let mut of_kind = self.0.iter_mut().filter(|standing| standing.fault.kind == kind);
        of_kind.find_map(|standing| standing.strikes(subject).then(|| standing.fault.clone()))
    }

    /// The first of the faults that refuse a request of any sort.
    pub(super) fn refusal(&mut self, subject: Subject<'_>) -> Option<ApiError> {
        self.0.iter_mut().find_map(|standing| {
            let refusal = match standing.fault.kind {
                Kind::RateLimit => ApiError::RateLimited(standing.fault.retry_after.unwrap_or(1)),
                Kind::ServerError => ApiError::Internal,
                _ => return None,
            };
            standing.strikes(subject).then_some(refusal)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_faults(json: serde_json::Value) -> Result<Faults, ApiError> {
        Faults::new(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn a_fault_strikes_whom_it_matches_and_no_more_often_than_it_may() {
        let mut faults = mk_faults(serde_json::json!([
            { "kind": "quota", "times": 2, "match": "zone-a" },
            { "kind": "quota", "times": 1, "match": "p" },
        ]))
        .unwrap();
        let about = |zone, name| Subject { zone: Some(zone), name: Some(name), owner: None };
        assert!(faults.strike(Kind::Quota, about("zone-b", "x")).is_none());
        assert!(faults.strike(Kind::RateLimit, about("zone-a", "x")).is_none());
        assert!(faults.strike(Kind::Quota, Subject::default()).is_none());
        for strikes in [true, true, true, false] {
            assert_eq!(faults.strike(Kind::Quota, about("zone-a", "p")).is_some(), strikes);
        }
        let struck: Vec<u64> = faults.list().iter().map(|standing| standing.struck).collect();
        assert_eq!(struck, [2, 1]);
    }

    #[test]
    fn a_fault_that_could_not_have_been_meant_is_refused() {
        for wrong in [
            serde_json::json!({ "kind": "quota", "bootMs": 5 }),
            serde_json::json!({ "kind": "slow-boot", "delayMs": 5 }),
            serde_json::json!({ "kind": "slow-answer", "retryAfter": 5 }),
            serde_json::json!({ "kind": "slow-boot", "bootMs": MAX_MILLIS + 1 }),
            serde_json::json!({ "kind": "vanish", "times": 0 }),
            serde_json::json!({ "kind": "vanish", "match": "" }),
        ] {
            assert!(matches!(mk_faults(serde_json::json!([wrong])), Err(ApiError::Invalid(_))), "{wrong}");
        }
    }
}
