//! The reconciler of Proxies: [`decide`] says what comes next, [`summary`] what the status says, [`driver`] does both.

pub mod decide;
pub mod driver;
pub mod summary;

use std::time::Duration;

use jiff::Timestamp;

use crate::health::Verdict;
use crate::model::error::{CallError, FieldError};
use crate::model::instance::State;
use crate::model::provider::Reach;

/// What is known beside the object.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its Provider.
    pub provider: ProviderFacts,
    /// What its probes say.
    pub health: Verdict,
    /// Whether somebody holds a lease of it.
    pub held: bool,
    /// On the monotonic clock.
    pub now: Duration,
    /// The date, for the object.
    pub wall: Timestamp,
    /// Id of the key from which new logins are derived.
    pub login_key: String,
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

/// What the operator remembers of one Proxy between passes. Losing it costs a look-up.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// When it began.
    pub born: Duration,
    /// The call that failed last, until one of its kind succeeds.
    pub trouble: Option<Trouble>,
    /// What the provider last said of the instance.
    pub seen: Option<Seen>,
    /// The (generation, epoch) that was validated, and what is wrong with it.
    pub validated: Option<(i64, u64, Vec<FieldError>)>,
    /// Places that were exhausted.
    pub avoid: Vec<String>,
    /// The exhaustion that began the search for another place.
    pub exhausted: Option<CallError>,
    /// Since when it is being made.
    pub creating_since: Option<Duration>,
    /// Since when its proxy fails.
    pub bad_since: Option<Duration>,
    /// Why the instance is being replaced.
    pub rebuild: Option<Rebuild>,
    /// Rebuilds in a row, and when the last one began.
    pub rebuilt: (u32, Option<Duration>),
    /// Since when leases are waited for.
    pub drain_since: Option<Duration>,
    /// A create's outcome is unknown until then: absent is not believed.
    pub doubt_until: Option<Duration>,
    /// Whether this run knows the outcome of every create it sent.
    pub settled: bool,
    /// While deleting: `get` will not converge, so `delete` is tried.
    pub get_is_hopeless: bool,
    /// `get` failures in a row while deleting.
    pub get_failures: u32,
    /// The backend was searched for what a lost status no longer names.
    pub searched: bool,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// Why.
    pub error: CallError,
    /// Which function.
    pub function: &'static str,
    /// Failures in a row.
    pub failures: u32,
    /// When it is tried again.
    pub retry_at: Duration,
    /// The (generation, epoch) that it failed with.
    pub with: (i64, u64),
}

/// What the provider said.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// None: absent.
    pub state: Option<State>,
    /// When.
    pub at: Duration,
    /// When asking again is worth it.
    pub poll_after: Option<Duration>,
    /// For people.
    pub message: Option<String>,
}

/// Why an instance is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// CamelCase.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// Whether leases are waited for: not where the proxy does not serve.
    pub drain: bool,
    /// Falling back to another place is no new incarnation.
    pub fall_back: bool,
}
