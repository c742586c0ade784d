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
