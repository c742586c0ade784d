//! Lends proxies: the state, the ledger, and those who wait.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use super::id::{Claim, Signer};
use super::ledger::{Ledger, Mark, Slot};
use super::state::{Holder, Reserved, State};
use super::{Leasable, Lease, NoLease, Refusal, Wish};
use crate::model::clock::Clock;
use crate::model::pulse::PULSE;
use crate::store::StoreError;

/// Ended leases are cleared away this often; they end at their time all the same.
const SWEEP: Duration = Duration::from_secs(1);

/// Lends proxies.
pub struct Allocator {
    state: Mutex<State>,
    ledger: Arc<dyn Ledger>,
    signer: Signer,
    clock: Arc<dyn Clock>,
    freed: Notify,
}

impl Allocator {
    /// Takes over what the ledger says may be lent.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn new(ledger: Arc<dyn Ledger>, signer: Signer, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let state = State::restore(ledger.marks()?, ledger.first_generation(), clock.monotonic());
        Ok(Self { state: Mutex::new(state), ledger, signer, clock, freed: Notify::new() })
    }

    /// Now, on the clock by which leases end.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// A proxy came or changed.
    pub fn set(&self, proxy: Leasable) {
        let mut state = self.lock();
        if state.proxy(proxy.uid) != Some(&proxy) {
            state.set(proxy);
            drop(state);
            self.freed.notify_waiters();
        }
    }

    /// A Proxy is gone for good.
    pub fn remove(&self, uid: Uuid) {
        self.lock().remove(uid);
    }

    /// Whether somebody holds, or may hold, this incarnation.
    pub fn is_held(&self, uid: Uuid, incarnation: u32) -> bool {
        self.lock().is_held(Slot { uid, incarnation }, self.now())
    }

    /// Lends a proxy, waiting up to `wait` for one. `arrived`: when the request came, from which the lease's life counts.
    ///
    /// # Errors
    /// Why not, and when asking again may help.
    pub async fn acquire(&self, wish: &Wish, arrived: Duration, wait: Duration) -> Result<Lease, Refusal> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Listening before looking: what is freed in between wakes us.
            freed.as_mut().enable();
            let outcome = {
                let now = self.now();
                let mut state = self.lock();
                state.expire(now);
                state.reserve(wish, arrived, now)
            };
            match outcome {
                Ok(reserved) => match self.grant(wish, reserved, arrived).await {
                    // Replaced or gone while the ledger was written: another one is looked for.
                    Ok(None) => {}
                    Ok(Some(lease)) => return Ok(lease),
                    Err(refusal) => return Err(refusal),
                },
                Err(Refusal::Later(reason, retry)) => {
                    let waited = self.now().saturating_sub(arrived);
                    let left = wait.saturating_sub(waited);
                    // A lease that would be over on arrival is none.
                    if left.is_zero() || waited >= wish.ttl {
                        return Err(Refusal::Later(reason, retry));
                    }
                    let _ = tokio::time::timeout(left.min(retry), freed).await;
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Makes a reservation durable, then answers it. Of a caller that gives up meanwhile the proxy is free again: no
    /// answer left.
    async fn grant(&self, wish: &Wish, reserved: Reserved, arrived: Duration) -> Result<Option<Lease>, Refusal> {
        let mut unanswered = Unanswered { allocator: self, reserved, answered: false };
        let Reserved { slot, holder, mark, write } = &unanswered.reserved;
        if *write {
            self.ledger.mark(*slot, mark).await.map_err(|e| Refusal::Ledger(e.to_string()))?;
        }
        let holder_of =
            Holder { subject: wish.subject.clone(), since: arrived, expires: arrived + wish.ttl, ttl: wish.ttl };
        let proxy = {
            let mut state = self.lock();
            if *write {
                state.confirm(*slot, mark);
            }
            state.proxy(slot.uid).filter(|p| p.incarnation == slot.incarnation && p.serving.is_some()).cloned()
        };
        let Some(proxy) = proxy else { return Ok(None) };
        if holder_of.expires <= self.now() {
            return Err(Refusal::Ledger("the ledger was written only when the lease was over".into()));
        }
        let lease = self.lease(*slot, mark, *holder, &holder_of, proxy);
        unanswered.answered = true;
        Ok(Some(lease))
    }

    fn lease(&self, slot: Slot, mark: &Mark, number: u32, holder: &Holder, mut proxy: Leasable) -> Lease {
        if proxy.incarnation != slot.incarnation {
            // What serves under this name by now is another's to lend.
            proxy.serving = None;
            proxy.draining = true;
        }
        let claim = Claim {
            ledger: self.ledger.nonce(),
            uid: slot.uid,
            incarnation: slot.incarnation,
            generation: mark.generation,
            holder: number,
        };
        Lease {
            id: self.signer.sign(&claim),
            generation: mark.generation,
            proxy,
            mode: mark.mode,
            subject: holder.subject.clone(),
            since: holder.since,
            ttl: holder.ttl,
            expires: holder.expires,
        }
    }

    /// The lease with this id.
    ///
    /// # Errors
    /// Why there is none for this subject (none: for whomever).
    pub fn get(&self, id: &str, subject: Option<&str>) -> Result<Lease, NoLease> {
        let claim = self.claim(id)?;
        let slot = Slot { uid: claim.uid, incarnation: claim.incarnation };
        let state = self.lock();
        let (mark, holder) = state.find(slot, claim.generation, claim.holder, self.now())?;
        if subject.is_some_and(|s| s != holder.subject) {
            return Err(NoLease::Unknown);
        }
        let proxy = state.proxy(claim.uid).cloned().ok_or(NoLease::Ended)?;
        Ok(self.lease(slot, mark, claim.holder, holder, proxy))
    }

    /// All leases of a subject (none: of everybody).
    pub fn list(&self, subject: Option<&str>) -> Vec<Lease> {
        let (state, now) = (self.lock(), self.now());
        let ours = state.live(now).filter(|(_, _, _, holder)| subject.is_none_or(|s| s == holder.subject));
        let mut all: Vec<Lease> = ours
            .filter_map(|(slot, mark, number, holder)| {
                Some(self.lease(slot, mark, number, holder, state.proxy(slot.uid)?.clone()))
            })
            .collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Lengthens a lease: it lives for `ttl` from `arrived` on.
    ///
    /// # Errors
    /// When it is over, not the subject's, or its proxy drains.
    pub async fn renew(&self, id: &str, subject: &str, ttl: Duration, arrived: Duration) -> Result<Lease, NoLease> {
        let claim = self.claim(id)?;
        let slot = Slot { uid: claim.uid, incarnation: claim.incarnation };
        let wanted = Holder { subject: subject.to_owned(), since: arrived, expires: arrived + ttl, ttl };
        let write = self.lock().renew(slot, claim.generation, claim.holder, &wanted, self.now())?;
        if let Some(mark) = write {
            self.ledger.mark(slot, &mark).await.map_err(|e| NoLease::Ledger(e.to_string()))?;
            self.lock().confirm(slot, &mark);
        }
        self.get(id, Some(subject))
    }

    /// Ends a lease (subject none: whoever's it is).
    ///
    /// # Errors
    /// When there is none to end.
    pub fn release(&self, id: &str, subject: Option<&str>) -> Result<(), NoLease> {
        let claim = self.claim(id)?;
        let slot = Slot { uid: claim.uid, incarnation: claim.incarnation };
        self.lock().release(slot, claim.generation, claim.holder, subject, self.now())?;
        // Free at once in memory; its mark goes with the next sweep, and after a crash before that is kept too long.
        self.freed.notify_waiters();
        Ok(())
    }

    /// Clears away what is over, for ever.
    pub async fn sweep(&self) {
        let beat = PULSE.of("leases");
        loop {
            tokio::time::sleep(SWEEP).await;
            self.sweep_once().await;
            beat.turned();
        }
    }

    /// Clears away what is over.
    pub async fn sweep_once(&self) {
        let marks = {
            let mut state = self.lock();
            state.expire(self.now());
            state.take_over()
        };
        if marks.is_empty() {
            return;
        }
        self.freed.notify_waiters();
        if let Err(error) = self.ledger.unmark(&marks).await {
            tracing::warn!(%error, "ended leases stay in the ledger; after a restart their proxies are held a while longer");
        }
    }

    fn claim(&self, id: &str) -> Result<Claim, NoLease> {
        self.signer.read(id).filter(|claim| claim.ledger == self.ledger.nonce()).ok_or(NoLease::Unknown)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A reservation whose answer has not left.
struct Unanswered<'a> {
    allocator: &'a Allocator,
    reserved: Reserved,
    answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.allocator.lock().cancel(&self.reserved, self.allocator.now());
        self.allocator.freed.notify_waiters();
    }
}

#[cfg(test)]
#[path = "allocator_tests.rs"]
mod tests;
