//! The reconciler of Proxies: [`decide`] says what comes next, [`absorb`] what an answer means, [`summary`] what the status
//! says; [`driver`] does what they say.

pub mod absorb;
mod calls;
pub mod decide;
pub mod driver;
pub mod memory;
mod publish;
pub mod summary;

#[cfg(test)]
mod lab;
#[cfg(test)]
mod model_tests;

use std::time::Duration;

use jiff::Timestamp;

use crate::health::Verdict;
use crate::model::error::CallError;
use crate::model::login::Login;
use crate::model::provider::Reach;

pub use self::memory::{Memory, Rebuild, Seen, Stage, Trouble};

/// What is known beside the object.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its Provider.
    pub provider: ProviderFacts,
    /// What its probes say.
    pub health: Verdict,
    /// Whether somebody holds a lease of it.
    pub held: bool,
    /// What the last listing of its Provider showed of it.
    pub listed: Option<Listed>,
    /// On the monotonic clock.
    pub now: Duration,
    /// The date, for the object.
    pub wall: Timestamp,
    /// Id of the key from which new logins are derived.
    pub login_key: String,
    /// The login that a Secret gives.
    pub own_login: OwnLogin,
}

/// The login of `auth.secretRef`.
#[derive(Clone, Debug)]
pub enum OwnLogin {
    /// None is asked for.
    Unused,
    /// It was read.
    Read {
        /// The login.
        login: Login,
        /// Its digests under each key, that for new instances first.
        digests: Vec<String>,
    },
    /// It cannot be had.
    Lacking(CallError),
}

impl OwnLogin {
    /// The digest to compare with what was applied. Where nothing can be said, that is what was applied.
    pub fn digest<'a>(&'a self, applied: Option<&'a str>) -> Option<&'a str> {
        let digests = match self {
            Self::Unused => return None,
            Self::Lacking(_) => return applied,
            Self::Read { digests, .. } => digests,
        };
        let Some(applied) = applied else { return digests.first().map(String::as_str) };
        let key = |digest: &str| digest.split_once(':').map(|(key, _)| key.to_owned());
        let under_its_key = digests.iter().find(|digest| key(digest) == key(applied));
        Some(under_its_key.map_or(applied, String::as_str))
    }

    /// The digest for a new instance.
    pub fn newest(&self) -> Option<&str> {
        self.digest(None)
    }
}

/// What a listing showed of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// When.
    pub at: Duration,
    /// Whether it was there, and running.
    pub running: bool,
}

/// What is known of the Provider.
#[derive(Clone, Debug)]
pub enum ProviderFacts {
    /// There is no such object.
    Missing,
    /// It cannot serve; CamelCase reason, and text.
    Unready(String, String),
    /// It serves.
    Ready(ReadyProvider),
}

/// A Provider that serves.
#[derive(Clone, Debug)]
pub struct ReadyProvider {
    /// Another number whenever plugin, object or a credential changed.
    pub epoch: u64,
    /// Places that other Proxies hold, where a place holds one instance.
    pub taken: Vec<String>,
    /// `limits.createDeadline`.
    pub create_deadline: Duration,
    /// `limits.callTimeout`.
    pub call_timeout: Duration,
    /// `spec.endpoint`.
    pub reach: Option<Reach>,
}
