//! Whether proxies serve: each is probed as a client would use it, against a judge.
//!
//! Knows nothing of how objects are stored. A failed judge is never a failed proxy: verdicts name whose fault it is.

pub mod engine;
pub mod judge;
pub mod probe;

use crate::model::login::Login;
use crate::model::naming::ProxyKey;
use crate::model::proxy::{Endpoint, HealthCheck};

/// One proxy to watch.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The Proxy.
    pub key: ProxyKey,
    /// Its UID and incarnation: another one is judged anew.
    pub uid: String,
    /// See `uid`.
    pub incarnation: u32,
    /// Where it is.
    pub endpoint: Endpoint,
    /// Its login.
    pub login: Option<Login>,
    /// How it is probed.
    pub check: HealthCheck,
    /// The judge's URL.
    pub judge: String,
}

/// What is known of one proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Not judged yet; what the last probe said, if one ended.
    #[default]
    Unknown,
    /// It has not passed yet.
    Waiting(probe::Failure),
    /// It serves.
    Healthy {
        /// The address that the judge saw.
        exit_ip: Option<String>,
    },
    /// It failed several times in a row.
    Unhealthy(probe::Failure),
}
