//! The closed set of ways in which a provider's call fails. The operator's behaviour follows from the kind alone.

use std::fmt;
use std::time::Duration;

/// One wrong field, by JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// For example `/parameters/entry`.
    pub pointer: String,
    /// What is wrong and what is accepted.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pointer = if self.pointer.is_empty() { "/" } else { &self.pointer };
        write!(f, "{pointer}: {}", self.message)
    }
}

/// Joins field errors into one line.
pub fn list_fields(errors: &[FieldError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What the operator does next; see the table in `docs/providers.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Asked again with backoff.
    Transient,
    /// Asked again no sooner than this.
    RateLimited(Option<Duration>),
    /// Quota, capacity, pool full.
    Exhausted,
    /// A credential or host key was refused.
    Unauthorized,
    /// Something that the Provider names does not exist; never read as absent.
    ConfigMissing,
    /// The spec can never work.
    InvalidSpec(Vec<FieldError>),
    /// The name is taken by something that is not ours.
    Foreign,
    /// A change was sent and its answer was lost.
    UnknownOutcome,
    /// A fault of the plugin.
    Internal,
}

impl ErrorKind {
    /// The kind as a metric label and in documents.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::RateLimited(_) => "rate-limited",
            Self::Exhausted => "exhausted",
            Self::Unauthorized => "unauthorized",
            Self::ConfigMissing => "config-missing",
            Self::InvalidSpec(_) => "invalid-spec",
            Self::Foreign => "foreign",
            Self::UnknownOutcome => "unknown-outcome",
            Self::Internal => "internal",
        }
    }

    /// The condition reason of a call that names none of its own.
    pub fn default_reason(&self) -> &'static str {
        match self {
            Self::Transient => "BackendUnavailable",
            Self::RateLimited(_) => "RateLimited",
            Self::Exhausted => "CapacityExhausted",
            Self::Unauthorized => "Unauthorized",
            Self::ConfigMissing => "ConfigMissing",
            Self::InvalidSpec(_) => "InvalidSpec",
            Self::Foreign => "ForeignInstance",
            Self::UnknownOutcome => "OutcomeUnknown",
            Self::Internal => "PluginFault",
        }
    }
}

/// Why a call to a provider failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// The class.
    pub kind: ErrorKind,
    /// For people: what, which object, what to do.
    pub message: String,
    /// CamelCase condition reason.
    pub reason: String,
    /// Which host, zone or cluster.
    pub target: Option<Box<str>>,
    /// The plugin's note for the next call.
    pub continuation: Option<Box<str>>,
    /// How the operator ended the call; none: the plugin answered with this.
    pub by_host: Option<ByHost>,
}

/// How the operator ended a call of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByHost {
    /// The plugin trapped, met a limit, computed until its deadline, or led the operator into a fault.
    Trapped,
    /// Its turn did not come in time.
    Queued,
    /// Calls are held back, for so long.
    HeldBack(Duration),
}

impl CallError {
    /// An error with its kind's default reason.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let reason = kind.default_reason().to_owned();
        Self { kind, message: message.into(), reason, target: None, continuation: None, by_host: None }
    }

    /// The same with a reason of its own.
    pub fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }
}
