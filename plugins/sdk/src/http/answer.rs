//! What an answer means: its JSON, or an error whose kind follows from the status.

use serde::de::DeserializeOwned;

use crate::Error;
use crate::bindings::crawl::provider::http::HttpResponse;

/// How much of a body an error quotes.
const QUOTED: usize = 200;

/// One answer, whatever its status.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// The whole body.
    pub body: Vec<u8>,
    headers: Vec<(String, Vec<u8>)>,
    what: String,
    mutating: bool,
}

impl Answer {
    /// Wraps a response of the host; `what` names the request in errors. Public for tests of what a status leads to.
    pub fn new(what: impl Into<String>, mutating: bool, response: HttpResponse) -> Self {
        let HttpResponse { status, headers, body } = response;
        Self { status, body, headers, what: what.into(), mutating }
    }

    /// The first header of that name, when it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(value).ok()
    }

    /// Whether the status is 2xx.
    pub fn success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The answer when it is 2xx, else [`Answer::error`].
    pub fn ok(self) -> Result<Self, Error> {
        if self.success() { Ok(self) } else { Err(self.error()) }
    }

    /// The error that this status stands for. Statuses that mean something else at a backend (404, 409, a 403 for quota)
    /// are looked at before.
    pub fn error(&self) -> Error {
        let text = format!("{} was answered {}{}", self.what, self.status, self.quote());
        match self.status {
            401 | 403 => Error::unauthorized(text).reason("AuthRefused"),
            429 => Error::rate_limited(self.retry_after(), text).reason("RateLimited"),
            // A gateway gave up on a backend that may have carried it out.
            502 | 504 if self.mutating => Error::unknown_outcome(text).reason("ServerError"),
            500..=599 => Error::transient(text).reason("ServerError"),
            // A redirect, or a refusal that the plugin has no rule for: it asked for the wrong thing.
            _ => Error::internal(text).reason("UnexpectedAnswer"),
        }
    }

    /// The body as JSON. One that does not fit is an unknown outcome after a change, which did happen.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let text = format!("{} was answered {} with a body that does not fit: {error}", self.what, self.status);
            let error = if self.mutating { Error::unknown_outcome(text) } else { Error::internal(text) };
            error.reason("UnexpectedAnswer")
        })
    }

    /// Seconds only: the date form of `Retry-After` would need the backend's clock.
    fn retry_after(&self) -> Option<u32> {
        self.header("retry-after")?.trim().parse().ok()
    }

    /// A piece of the body, as far as it is readable on one line.
    fn quote(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(QUOTED).collect();
        if line.trim().is_empty() { String::new() } else { format!(": {}", line.trim()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn mk_answer(status: u16, mutating: bool) -> Answer {
        let headers = vec![("Retry-After".into(), b"7".to_vec())];
        Answer::new("PUT /x", mutating, HttpResponse { status, headers, body: b"no\nway".to_vec() })
    }

    #[test]
    fn a_status_leads_to_a_kind() {
        let cases = [
            (401, ErrorKind::Unauthorized),
            (403, ErrorKind::Unauthorized),
            (429, ErrorKind::RateLimited(Some(7))),
            (500, ErrorKind::Transient),
            (503, ErrorKind::Transient),
            (504, ErrorKind::Transient),
            (302, ErrorKind::Internal),
        ];
        for (status, kind) in cases {
            assert_eq!(mk_answer(status, false).ok().unwrap_err().kind, kind, "{status}");
        }
        assert_eq!(mk_answer(504, true).error().kind, ErrorKind::UnknownOutcome);
        assert!(mk_answer(204, true).ok().is_ok());
    }

    #[test]
    fn an_error_quotes_the_body_on_one_line() {
        assert_eq!(mk_answer(500, false).error().message, "PUT /x was answered 500: no way");
    }

    #[test]
    fn a_change_whose_answer_cannot_be_read_did_happen() {
        assert_eq!(mk_answer(200, true).json::<u8>().unwrap_err().kind, ErrorKind::UnknownOutcome);
        assert_eq!(mk_answer(200, false).json::<u8>().unwrap_err().kind, ErrorKind::Internal);
    }
}
