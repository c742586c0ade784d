//! Leader election on a Lease of the operator's namespace, as client-go does it: whether another's lease is over is measured
//! from when its last renewal was *seen*, on our own monotonic clock, so that clocks that differ do no harm.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};

use super::KubeStore;
use crate::model::clock::Clock;
use crate::model::mandate::Mandate;
use crate::model::metrics::METRICS;

/// Name of the Lease.
pub const LEASE: &str = "proxy-operator";

/// The times of an election; each shorter than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// For how long a leader that is not heard of is still the leader.
    pub lease: Duration,
    /// For how long a leader that cannot renew goes on acting.
    pub renew: Duration,
    /// Between two tries.
    pub retry: Duration,
}

impl Times {
    /// # Errors
    /// When a leader could still act while the next one does.
    pub fn checked(self) -> Result<Self, String> {
        let whole_second = self.lease.as_secs() >= 1;
        if whole_second && self.lease > self.renew && self.renew > self.retry && !self.retry.is_zero() {
            return Ok(self);
        }
        Err(format!(
            "leader election needs --leader-elect-lease-duration ({:?}) of 1 s or more, above --leader-elect-renew-deadline ({:?}), \
             and that above --leader-elect-retry-period ({:?})",
            self.lease, self.renew, self.retry
        ))
    }
}

/// Why this replica leads no more.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Renewing failed for too long.
    #[error("the Lease {LEASE} could not be renewed in time: {0}")]
    NotRenewed(String),
    /// Somebody else took it.
    #[error("{0} leads now")]
    Taken(String),
}

/// One replica's part in the election.
pub struct Election {
    api: Api<Lease>,
    me: String,
    times: Times,
    clock: Arc<dyn Clock>,
    mandate: Arc<Mandate>,
}

/// What is known of the Lease.
#[derive(Default)]
struct Seen {
    spec: Option<LeaseSpec>,
    at: Duration,
}

impl Seen {
    /// Takes in what was read.
    fn note(&mut self, spec: &LeaseSpec, now: Duration) {
        if self.spec.as_ref() != Some(spec) {
            *self = Self { spec: Some(spec.clone()), at: now };
        }
    }

    /// Whether `me` may take it.
    fn is_free(&self, me: &str, now: Duration) -> bool {
        let Some(spec) = &self.spec else { return true };
        let holder = holder(spec);
        let promised = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0).max(0) as u64);
        holder.is_empty() || holder == me || now.saturating_sub(self.at) > promised
    }
}

fn holder(spec: &LeaseSpec) -> &str {
    spec.holder_identity.as_deref().unwrap_or_default()
}

impl Election {
    /// Of the operator in `store`'s namespace; `mandate` holds while this replica leads.
    pub fn new(store: &KubeStore, times: Times, clock: Arc<dyn Clock>, mandate: Arc<Mandate>) -> Self {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "proxy-operator".into());
        let me = format!("{host}_{}", uuid::Uuid::new_v4());
        METRICS.leads(LEASE, false);
        Self { api: Api::namespaced(store.client.clone(), &store.namespace), me, times, clock, mandate }
    }

    /// Waits until this replica leads.
    pub async fn campaign(&self) {
        let mut seen = Seen::default();
        let mut told = String::new();
        loop {
            let begun = self.clock.monotonic();
            match tokio::time::timeout(self.times.renew, self.try_take(&mut seen)).await {
                Ok(Ok(None)) => {
                    self.mandate.extend(begun + self.times.renew);
                    METRICS.leads(LEASE, true);
                    tracing::info!(me = self.me, "this replica leads");
                    return;
                }
                Ok(Ok(Some(leader))) if leader != told => {
                    tracing::info!(leader, "this replica stands by");
                    told = leader;
                }
                Ok(Ok(Some(_))) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the Lease {LEASE} cannot be taken yet"),
                Err(_) => tracing::warn!("the API server does not answer in time about the Lease {LEASE}"),
            }
            tokio::time::sleep(self.times.retry.mul_f64(rand::random_range(1.0..1.2))).await;
        }
    }

    /// Renews until that fails for too long.
    pub async fn hold(&self) -> Lost {
        let mut until = self.clock.monotonic() + self.times.renew;
        let mut why = "no answer".to_owned();
        loop {
            tokio::time::sleep(self.times.retry).await;
            let begun = self.clock.monotonic();
            let left = until.saturating_sub(begun);
            if left.is_zero() {
                self.lose();
                return Lost::NotRenewed(why);
            }
            match tokio::time::timeout(left, self.renew()).await {
                Ok(Ok(None)) => {
                    until = begun + self.times.renew;
                    self.mandate.extend(until);
                }
                Ok(Ok(Some(leader))) => {
                    self.lose();
                    return Lost::Taken(leader);
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the Lease {LEASE} is not renewed yet");
                    why = error.to_string();
                }
                Err(_) => why = "no answer".to_owned(),
            }
        }
    }

    /// Gives the Lease back, so that the next leader need not wait. Only when nothing is done any more.
    pub async fn release(&self) {
        self.lose();
        let work = async {
            let mut lease = self.api.get(LEASE).await?;
            if lease.spec.as_ref().map(holder) != Some(&self.me) {
                return Ok(());
            }
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(self.now());
            self.api.replace(LEASE, &PostParams::default(), &lease).await.map(drop)
        };
        match tokio::time::timeout(self.times.retry, work).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the Lease {LEASE} is not given back; it ends by itself"),
            Err(_) => tracing::warn!("the Lease {LEASE} is not given back in time; it ends by itself"),
        }
    }

    fn lose(&self) {
        self.mandate.end();
        METRICS.leads(LEASE, false);
    }

    /// Takes the Lease if it is free; else answers who has it.
    async fn try_take(&self, seen: &mut Seen) -> Result<Option<String>, kube::Error> {
        let Some(mut lease) = self.api.get_opt(LEASE).await? else {
            let spec = self.spec(&LeaseSpec::default());
            let metadata = ObjectMeta { name: Some(LEASE.into()), ..ObjectMeta::default() };
            let created = self.api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await;
            return won(created, "another replica");
        };
        let old = lease.spec.unwrap_or_default();
        let now = self.clock.monotonic();
        seen.note(&old, now);
        if !seen.is_free(&self.me, now) {
            return Ok(Some(holder(&old).to_owned()));
        }
        // With the version that was read: of two that take it at once, one does.
        lease.spec = Some(self.spec(&old));
        won(self.api.replace(LEASE, &PostParams::default(), &lease).await, "another replica")
    }

    /// Renews it; answers who has it instead.
    async fn renew(&self) -> Result<Option<String>, kube::Error> {
        let mut lease = self.api.get(LEASE).await?;
        let old = lease.spec.clone().unwrap_or_default();
        if holder(&old) != self.me {
            return Ok(Some(holder(&old).to_owned()));
        }
        lease.spec = Some(LeaseSpec { renew_time: Some(self.now()), ..old });
        self.api.replace(LEASE, &PostParams::default(), &lease).await.map(|_| None)
    }

    fn spec(&self, old: &LeaseSpec) -> LeaseSpec {
        let changes = holder(old) != self.me && old.acquire_time.is_some();
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(self.times.lease.as_secs() as i32),
            acquire_time: Some(self.now()),
            renew_time: Some(self.now()),
            lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(changes)),
            ..LeaseSpec::default()
        }
    }

    fn now(&self) -> MicroTime {
        MicroTime(self.clock.wall())
    }
}

/// Whether a write that takes the Lease went through; a lost race is no error.
fn won(written: Result<Lease, kube::Error>, who: &str) -> Result<Option<String>, kube::Error> {
    match written {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Some(who.to_owned())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn spec(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(jiff::Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn anothers_lease_is_free_once_no_renewal_was_seen_for_its_length_whatever_its_clock_says() {
        // Long ago, and in the far future: only what was seen counts.
        for renewed in [0, 4_000_000_000] {
            let mut seen = Seen::default();
            let mut now = 100 * SECOND;
            seen.note(&spec("other", renewed), now);
            assert!(!seen.is_free("me", now));
            now += 10 * SECOND;
            seen.note(&spec("other", renewed + 10), now);
            now += 15 * SECOND;
            seen.note(&spec("other", renewed + 10), now);
            assert!(!seen.is_free("me", now));
            assert!(seen.is_free("me", now + SECOND));
        }
    }

    #[test]
    fn what_nobody_holds_or_we_hold_ourselves_is_free_at_once() {
        for holder in ["", "me"] {
            let mut seen = Seen::default();
            seen.note(&spec(holder, 0), SECOND);
            assert!(seen.is_free("me", SECOND), "{holder:?}");
        }
        assert!(Seen::default().is_free("me", SECOND));
    }

    #[test]
    fn times_that_let_two_act_at_once_are_refused() {
        let times = |lease, renew, retry| Times { lease: lease * SECOND, renew: renew * SECOND, retry: retry * SECOND };
        assert!(times(15, 10, 2).checked().is_ok());
        for bad in [times(10, 10, 2), times(15, 2, 2), times(15, 10, 0), times(0, 0, 0)] {
            let refused = bad.checked().unwrap_err();
            assert!(refused.contains("--leader-elect-renew-deadline"), "{refused}");
        }
    }
}
