//! Building errors. The operator acts on the kind alone, so there is one constructor per kind.

use crate::{Error, ErrorKind, FieldError, Invalid};

impl Error {
    /// An error of a kind, with its text: what, which object, what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), reason: None, target: None, continuation: None }
    }

    /// The backend is not there just now; asked again with backoff.
    pub fn transient(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Transient, message)
    }

    /// The backend asks for less; after how many seconds, when it said so.
    pub fn rate_limited(seconds: Option<u32>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::RateLimited(seconds), message)
    }

    /// Quota, capacity, pool full: another place, else a slow retry.
    pub fn exhausted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Exhausted, message)
    }

    /// Key, token or host key refused: a human must act.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unauthorized, message)
    }

    /// Something the config, a placement or a grant points at is not there: a human must act. Never read as absent.
    pub fn config_missing(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ConfigMissing, message)
    }

    /// One field can never work; its JSON pointer and what is accepted.
    pub fn invalid_spec(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Invalid::field(pointer, message).into()
    }

    /// The name is taken by something that is not ours; nothing was touched.
    pub fn foreign(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Foreign, message)
    }

    /// A change was sent and its answer was lost.
    pub fn unknown_outcome(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::UnknownOutcome, message)
    }

    /// A fault of this plugin.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Names the reason, from the table in `docs/providers.md`.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Names the host, zone or cluster.
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// Leaves a note for the next call, 4 KiB at most.
    pub fn continuation(mut self, note: impl Into<String>) -> Self {
        self.continuation = Some(note.into());
        self
    }
}

impl Invalid {
    /// One wrong field.
    pub fn field(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { errors: vec![FieldError::new(pointer, message)] }
    }

    /// Fails with all the errors that were collected, if there are any.
    pub fn unless_empty(errors: Vec<FieldError>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self { errors }) }
    }
}

impl FieldError {
    /// A JSON pointer below the object's `spec`, and what is wrong and what is accepted.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into() }
    }
}

/// So that `?` works on [`parse_config`](crate::parse_config) in every function.
impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        let text: Vec<_> = invalid.errors.iter().map(|field| format!("{}: {}", field.pointer, field.message)).collect();
        Self::new(ErrorKind::InvalidSpec(invalid.errors), text.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_builder_fills_every_member() {
        let error = Error::transient("down").reason("Unreachable").target("zone-a").continuation("op-1");
        assert_eq!(error.reason.as_deref(), Some("Unreachable"));
        assert_eq!(error.target.as_deref(), Some("zone-a"));
        assert_eq!(error.continuation.as_deref(), Some("op-1"));
    }

    #[test]
    fn an_invalid_spec_keeps_each_field_and_says_it_in_its_text() {
        let error = Error::invalid_spec("/location", "accepted: a, b");
        assert_eq!(error.message, "/location: accepted: a, b");
        assert!(matches!(error.kind, ErrorKind::InvalidSpec(fields) if fields[0].pointer == "/location"));
    }
}
