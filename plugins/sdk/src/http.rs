//! JSON over HTTP through a named connection. The host adds origin, TLS trust and credentials.
//!
//! ```no_run
//! # use crawl_provider_sdk::{Error, http};
//! # fn f() -> Result<(), Error> {
//! let answer = http::get("cloud", "/v1/instances").query("limit", "100").send()?;
//! let all: serde_json::Value = answer.ok()?.json()?;
//! # Ok(()) }
//! ```

mod answer;

use serde::Serialize;

use crate::Error;
use crate::bindings::crawl::provider::http as host;
pub use answer::Answer;

/// The host bounds it by the rest of the call's deadline; alone it only stops a backend that never answers.
const TIMEOUT_MS: u32 = 30_000;

/// One request.
#[must_use = "a request goes out with send()"]
pub struct Call {
    connection: String,
    request: host::HttpRequest,
    mutating: bool,
}

/// Reads.
pub fn get(connection: &str, path: impl Into<String>) -> Call {
    Call::new("GET", connection, path.into(), false)
}

/// Replaces or makes.
pub fn put(connection: &str, path: impl Into<String>) -> Call {
    Call::new("PUT", connection, path.into(), true)
}

/// Makes or acts.
pub fn post(connection: &str, path: impl Into<String>) -> Call {
    Call::new("POST", connection, path.into(), true)
}

/// Removes.
pub fn delete(connection: &str, path: impl Into<String>) -> Call {
    Call::new("DELETE", connection, path.into(), true)
}

impl Call {
    fn new(method: &str, connection: &str, path: String, mutating: bool) -> Self {
        let request = host::HttpRequest {
            method: method.into(),
            path,
            query: vec![],
            headers: vec![("accept".into(), b"application/json".to_vec())],
            body: None,
            timeout_ms: TIMEOUT_MS,
        };
        Self { connection: connection.into(), request, mutating }
    }

    /// Adds a query pair, raw.
    pub fn query(mut self, name: &str, value: impl Into<String>) -> Self {
        self.request.query.push((name.into(), value.into()));
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.request.headers.push((name.into(), value.as_bytes().to_vec()));
        self
    }

    /// Sends this as the body.
    ///
    /// # Panics
    /// When the value has a map whose keys are no strings.
    pub fn json(mut self, body: &impl Serialize) -> Self {
        self.request.body = Some(serde_json::to_vec(body).expect("a body that JSON can hold"));
        self.header("content-type", "application/json")
    }

    /// Bounds the wait.
    pub fn timeout_ms(mut self, limit: u32) -> Self {
        self.request.timeout_ms = limit;
        self
    }

    /// Declares that this method changes nothing here (a query by POST), so that a lost answer is only `transient`.
    pub fn read_only(mut self) -> Self {
        self.mutating = false;
        self
    }

    /// Sends it. Only faults are errors; a status is for [`Answer::ok`] or for the caller.
    pub fn send(self) -> Result<Answer, Error> {
        let what = format!("{} {} on connection {}", self.request.method, self.request.path, self.connection);
        match host::send(&self.connection, &self.request) {
            Ok(response) => Ok(Answer::new(what, self.mutating, response)),
            Err(fault) => {
                let mut error = Error::from_fault(&fault, self.mutating);
                error.message = format!("{what}: {}", error.message);
                Err(error)
            }
        }
    }
}
