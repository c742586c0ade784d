//! Who holds which proxy until when. An exclusive proxy is never lent twice.
//!
//! ```text
//! allocator: choose (pool) → reserve (state) → write (ledger, durable) → answer
//! ```
//! A lease lives from the moment its request arrived, and no grant leaves before the ledger holds it: after a crash every
//! proxy that may be lent is marked there, and is lent to nobody else until the longest life promised is over.
//! Knows no HTTP; time is an argument.

pub mod allocator;
pub mod id;
pub mod ledger;
mod state;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::login::Login;
use crate::model::naming::ProxyKey;
use crate::model::proxy::{Endpoint, Protocol};

/// Holders of one shared proxy at most.
pub const SHARED_HOLDERS: usize = 10;

/// How a proxy is lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// To one holder.
    #[default]
    Exclusive,
    /// To up to [`SHARED_HOLDERS`].
    Shared,
}

/// A proxy as the allocator knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leasable {
    /// Its key.
    pub key: ProxyKey,
    /// Its UID.
    pub uid: uuid::Uuid,
    /// Its incarnation: a lease is of one.
    pub incarnation: u32,
    /// Its provider.
    pub provider: String,
    /// Its location.
    pub location: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What it speaks.
    pub protocol: Protocol,
    /// Where and with what login it is reached, and the address it shows; none while it does not serve.
    pub serving: Option<Serving>,
    /// Why it does not serve.
    pub lack: Lack,
    /// No new leases, for the time being or for good.
    pub closed: bool,
    /// It is to go; holders should finish.
    pub draining: bool,
}

/// How a serving proxy is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// Where.
    pub endpoint: Endpoint,
    /// With what login.
    pub login: Option<Login>,
    /// The address that it shows to the world.
    pub exit_ip: Option<String>,
}

/// Why a proxy does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It is being made.
    Scaling,
    /// The backend's quota is used up.
    Quota,
    /// It is not healthy.
    Unhealthy,
}

/// What a crawler asks for.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Namespaces that its caller may use and it asks for.
    pub namespaces: Vec<String>,
    /// Labels that the proxy must carry.
    pub selector: BTreeMap<String, String>,
    /// Its provider.
    pub provider: Option<String>,
    /// Its location.
    pub location: Option<String>,
    /// What it must speak.
    pub protocol: Option<Protocol>,
    /// Proxies that it must not be.
    pub exclude: Vec<ProxyKey>,
    /// How it is lent.
    pub mode: Mode,
    /// For how long.
    pub ttl: Duration,
    /// To whom.
    pub subject: String,
    /// Leases that this subject may hold at once.
    pub most: Option<usize>,
}

impl Wish {
    fn fits(&self, proxy: &Leasable) -> bool {
        self.namespaces.contains(&proxy.key.namespace)
            && self.selector.iter().all(|(k, v)| proxy.labels.get(k) == Some(v))
            && self.provider.as_ref().is_none_or(|p| *p == proxy.provider)
            && (self.location.is_none() || self.location == proxy.location)
            && self.protocol.is_none_or(|p| p == proxy.protocol)
            && !self.exclude.contains(&proxy.key)
    }
}

/// A granted lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// Its signed id.
    pub id: String,
    /// Fences: counts the grants of its proxy.
    pub generation: u64,
    /// Its proxy, as it is now.
    pub proxy: Leasable,
    /// How it is lent.
    pub mode: Mode,
    /// To whom.
    pub subject: String,
    /// When the request for it arrived, on the allocator's monotonic clock; in a later run, when it was restored.
    pub since: Duration,
    /// The life that was asked for, counted from the request's arrival.
    pub ttl: Duration,
    /// When it ends, on the allocator's monotonic clock.
    pub expires: Duration,
}

/// Why no lease is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No proxy ever fits.
    NoMatch,
    /// None is free now; asking again is worth it after this time.
    Later(Reason, Duration),
    /// The subject holds this many, which is all that it may.
    TooMany(usize),
    /// The ledger cannot be written.
    Ledger(String),
}

/// Why none is free now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Those that fit are unhealthy.
    NoneHealthy,
    /// Those that serve are lent.
    AllLeased,
    /// One that fits is being made.
    Scaling,
    /// The backend's quota is used up.
    Quota,
}

impl Reason {
    /// The stable code.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoneHealthy => "none_healthy",
            Self::AllLeased => "all_leased",
            Self::Scaling => "scaling",
            Self::Quota => "quota",
        }
    }
}

/// Why a lease cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// No lease of this operator, or of somebody else.
    Unknown,
    /// It was, and is over.
    Ended,
    /// Its proxy is to go: no further renewal.
    Draining,
    /// The operator restarted and does not know how long it still lives; a renewal restores it.
    Restored,
    /// The ledger cannot be written.
    Ledger(String),
}
