//! The reconciler of Proxies: [`decide`] says what comes next, [`absorb`] what an answer means, [`summary`] what the status
//! says; [`driver`] does what they say.

pub mod absorb;
pub mod beside;
mod calls;
pub mod decide;
pub mod driver;
pub mod held;
pub mod memory;
mod publish;
pub mod rebuild;
pub mod roster;
pub mod settle;
pub mod summary;

#[cfg(test)]
pub(super) mod lab;

use std::time::Duration;

use jiff::Timestamp;

use crate::health::Verdict;
use crate::model::error::CallError;
use crate::model::login::Login;
use crate::model::provider::Reach;

pub use self::memory::{Memory, Rebuild, Seen, Stage, Trouble};
pub use self::roster::{Roster, Standing};

/// What is known beside the object.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its Provider.
    pub provider: ProviderFacts,
    /// What its probes say.
    pub health: Verdict,
    /// What the probes of the instance to follow say.
    pub next_health: Verdict,
    /// Whether somebody holds a lease of it.
    pub held: bool,
    /// Incarnations on their way out of which somebody holds a lease.
    pub held_retiring: Vec<u32>,
    /// How the other Proxies of its Provider stand.
    pub standing: Standing,
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

impl Facts {
    /// Whether the floor (`limits.maxUnavailable`) lets this Proxy be replaced. `serving`: that takes one out which serves.
    pub(super) fn may_replace(&self, provider: &ReadyProvider, serving: bool) -> bool {
        let floor = self.standing.floor(&provider.max_unavailable);
        let out = if serving { self.standing.out } else { 0 };
        !self.mass_absence(provider) && self.standing.replaced.max(out) < floor
    }

    /// Whether `limits.instances` leaves no room for one more.
    pub(super) fn is_full(&self, provider: &ReadyProvider) -> bool {
        provider.instances.is_some_and(|most| self.standing.instances >= most)
    }

    /// Whether more vanished at once than accident explains, and nobody said that it is so.
    pub(super) fn mass_absence(&self, provider: &ReadyProvider) -> bool {
        self.standing.mass_absence && !provider.absence_accepted
    }
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
    /// Whether a place holds one instance.
    pub one_per_place: bool,
    /// `limits.createDeadline`.
    pub create_deadline: Duration,
    /// `limits.callTimeout`.
    pub call_timeout: Duration,
    /// `spec.endpoint`.
    pub reach: Option<Reach>,
    /// Whether an instance may come before the one that it follows goes: not with `static-address`.
    pub surges: bool,
    /// `limits.maxUnavailable`.
    pub max_unavailable: String,
    /// `limits.instances`.
    pub instances: Option<u32>,
    /// Vanished instances are made anew however many they are: a human said so.
    pub absence_accepted: bool,
    /// Why this Proxy may not have anything made or replaced there: reason, and text.
    pub denied: Option<(&'static str, String)>,
}
