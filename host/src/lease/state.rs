//! What is lent: pure and synchronous, with the monotonic time as an argument.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use uuid::Uuid;

use super::ledger::{Mark, Slot};
use super::{Lack, Leasable, Mode, NoLease, Reason, Refusal, SHARED_HOLDERS, Wish};

/// How much longer than promised a mark of an earlier run is honoured: clocks differ in their rate.
const HOLD_MARGIN: f64 = 1.01;
/// When asking again may help while a proxy is being made, or is unhealthy.
const SCALING_RETRY: Duration = Duration::from_secs(2);
const UNHEALTHY_RETRY: Duration = Duration::from_secs(15);
const QUOTA_RETRY: Duration = Duration::from_secs(300);

#[derive(Default)]
pub(super) struct State {
    proxies: HashMap<Uuid, Leasable>,
    marks: HashMap<Slot, Marked>,
    /// When each was last lent; the smallest is the one used longest ago.
    last_used: HashMap<Uuid, u64>,
    uses: u64,
    /// The last grant's; never used twice, not even by a later run.
    generation: u64,
    /// Marks that ended and still stand in the ledger.
    over: Vec<(Slot, Mark)>,
}

struct Marked {
    mark: Mark,
    /// The longest life that the ledger is known to hold. What is promised beyond it has to be written first, and so has
    /// what another request only asked to be written.
    durable_ms: u64,
    holders: HashMap<u32, Holder>,
    /// A mark of an earlier run, whose holders are unknown: lent to nobody until then.
    restored_until: Option<Duration>,
}

impl Marked {
    /// Whether holders of an earlier run may still be there.
    fn is_restored(&self, now: Duration) -> bool {
        self.restored_until.is_some_and(|until| until > now)
    }

    fn is_over(&self, now: Duration) -> bool {
        self.holders.is_empty() && !self.is_restored(now)
    }
}

/// Somebody who holds a proxy, or wants to go on holding it.
#[derive(Clone)]
pub(super) struct Holder {
    pub subject: String,
    pub since: Duration,
    pub expires: Duration,
    pub ttl: Duration,
}

/// A grant that the ledger must hold before it is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reserved {
    pub slot: Slot,
    pub holder: u32,
    pub mark: Mark,
    /// Whether the mark has to be written: a shared grant inside its durable mark has not.
    pub write: bool,
}

impl State {
    /// Takes over the marks of an earlier run. Generations begin after `generation`.
    pub fn restore(marks: Vec<(Slot, Mark)>, generation: u64, now: Duration) -> Self {
        let restored = |mark: Mark| {
            let until = now + Duration::from_millis(mark.hold_ms).mul_f64(HOLD_MARGIN);
            Marked { durable_ms: mark.hold_ms, mark, holders: HashMap::new(), restored_until: Some(until) }
        };
        Self {
            marks: marks.into_iter().map(|(slot, mark)| (slot, restored(mark))).collect(),
            generation,
            ..Self::default()
        }
    }

    pub fn set(&mut self, proxy: Leasable) {
        self.proxies.insert(proxy.uid, proxy);
    }

    /// The Proxy is gone, and its marks with it.
    pub fn remove(&mut self, uid: Uuid) {
        self.proxies.remove(&uid);
        self.last_used.remove(&uid);
        let gone = self.marks.extract_if(|slot, _| slot.uid == uid);
        self.over.extend(gone.map(|(slot, marked)| (slot, marked.mark)));
    }

    pub fn proxy(&self, uid: Uuid) -> Option<&Leasable> {
        self.proxies.get(&uid)
    }

    /// Ends what is over.
    pub fn expire(&mut self, now: Duration) {
        for marked in self.marks.values_mut() {
            marked.holders.retain(|_, holder| holder.expires > now);
        }
        let ended = self.marks.extract_if(|_, marked| marked.is_over(now));
        self.over.extend(ended.map(|(slot, marked)| (slot, marked.mark)));
    }

    /// Marks that ended since this was last asked; the ledger should hold them no longer.
    pub fn take_over(&mut self) -> Vec<(Slot, Mark)> {
        std::mem::take(&mut self.over)
    }

    /// Whether somebody holds, or may hold, this incarnation.
    pub fn is_held(&self, slot: Slot, now: Duration) -> bool {
        self.marks.get(&slot).is_some_and(|m| m.is_restored(now) || m.holders.values().any(|h| h.expires > now))
    }

    /// Chooses the proxy that was used longest ago, and reserves it.
    pub fn reserve(&mut self, wish: &Wish, arrived: Duration, now: Duration) -> Result<Reserved, Refusal> {
        let mut fitting = self.proxies.values().filter(|p| wish.fits(p)).peekable();
        if fitting.peek().is_none() {
            return Err(Refusal::NoMatch);
        }
        if let Some(most) =
            wish.most.filter(|most| self.live(now).filter(|l| l.3.subject == wish.subject).count() >= *most)
        {
            return Err(Refusal::TooMany(most));
        }
        let free = fitting
            .filter(|p| p.serving.is_some() && !p.closed && !p.draining && self.takes(p, wish.mode, now))
            .min_by_key(|p| (self.last_used.get(&p.uid).copied().unwrap_or(0), p.uid));
        let Some(chosen) = free.map(|p| Slot { uid: p.uid, incarnation: p.incarnation }) else {
            return Err(self.refusal(wish, now));
        };
        self.uses += 1;
        self.last_used.insert(chosen.uid, self.uses);
        Ok(self.hold(chosen, wish, arrived))
    }

    fn takes(&self, proxy: &Leasable, mode: Mode, now: Duration) -> bool {
        match self.marks.get(&Slot { uid: proxy.uid, incarnation: proxy.incarnation }) {
            None => true,
            Some(marked) if marked.is_restored(now) => false,
            Some(marked) => {
                mode == Mode::Shared && marked.mark.mode == Mode::Shared && marked.holders.len() < SHARED_HOLDERS
            }
        }
    }

    fn hold(&mut self, slot: Slot, wish: &Wish, arrived: Duration) -> Reserved {
        let holder =
            Holder { subject: wish.subject.clone(), since: arrived, expires: arrived + wish.ttl, ttl: wish.ttl };
        let hold_ms = wish.ttl.as_millis() as u64;
        let mut number: u32 = rand::random();
        if let Some(marked) = self.marks.get_mut(&slot) {
            // A further holder of a shared proxy.
            while marked.holders.contains_key(&number) {
                number = number.wrapping_add(1);
            }
            let write = marked.durable_ms < hold_ms;
            marked.mark.hold_ms = marked.mark.hold_ms.max(hold_ms);
            marked.holders.insert(number, holder);
            return Reserved { slot, holder: number, mark: marked.mark.clone(), write };
        }
        self.generation += 1;
        let mark = Mark { generation: self.generation, mode: wish.mode, hold_ms, subject: wish.subject.clone() };
        let holders = HashMap::from([(number, holder)]);
        let marked = Marked { mark: mark.clone(), durable_ms: 0, holders, restored_until: None };
        self.marks.insert(slot, marked);
        Reserved { slot, holder: number, mark, write: true }
    }

    /// The ledger holds this mark.
    pub fn confirm(&mut self, slot: Slot, mark: &Mark) {
        if let Some(marked) = self.marks.get_mut(&slot).filter(|m| m.mark.generation == mark.generation) {
            marked.durable_ms = marked.durable_ms.max(mark.hold_ms);
        }
    }

    /// Takes a reservation back whose answer never left.
    pub fn cancel(&mut self, reserved: &Reserved, now: Duration) {
        let Some(marked) = self.marks.get_mut(&reserved.slot).filter(|m| m.mark.generation == reserved.mark.generation)
        else {
            return;
        };
        marked.holders.remove(&reserved.holder);
        if marked.is_over(now) {
            self.end(reserved.slot);
        }
    }

    /// The reason that says most about when asking again may help, and that moment.
    fn refusal(&self, wish: &Wish, now: Duration) -> Refusal {
        let open = || self.proxies.values().filter(|p| wish.fits(p) && !p.closed && !p.draining);
        let lent: BTreeSet<Duration> = open().filter(|p| p.serving.is_some()).filter_map(|p| self.free_at(p)).collect();
        let lacks = |lack: Lack| open().any(|p| p.serving.is_none() && p.lack == lack);
        let scaling = self.proxies.values().any(|p| wish.fits(p) && p.serving.is_none() && p.lack == Lack::Scaling);
        match lent.first() {
            Some(free) => {
                let mut wait = free.saturating_sub(now);
                if scaling {
                    wait = wait.min(SCALING_RETRY);
                }
                Refusal::Later(Reason::AllLeased, wait.max(Duration::from_millis(1)))
            }
            None if scaling => Refusal::Later(Reason::Scaling, SCALING_RETRY),
            None if lacks(Lack::Quota) && !lacks(Lack::Unhealthy) => Refusal::Later(Reason::Quota, QUOTA_RETRY),
            None => Refusal::Later(Reason::NoneHealthy, UNHEALTHY_RETRY),
        }
    }

    /// When a lent proxy is free at the latest.
    fn free_at(&self, proxy: &Leasable) -> Option<Duration> {
        let marked = self.marks.get(&Slot { uid: proxy.uid, incarnation: proxy.incarnation })?;
        let expiries = marked.holders.values().map(|h| h.expires).chain(marked.restored_until);
        // A shared proxy has room when the first holder goes; an exclusive one when the last does.
        if marked.mark.mode == Mode::Shared { expiries.min() } else { expiries.max() }
    }

    /// The lease that these numbers name.
    pub fn find(&self, slot: Slot, generation: u64, holder: u32, now: Duration) -> Result<(&Mark, &Holder), NoLease> {
        let marked = self.marks.get(&slot).filter(|m| m.mark.generation == generation).ok_or(NoLease::Ended)?;
        match marked.holders.get(&holder) {
            Some(found) if found.expires > now => Ok((&marked.mark, found)),
            Some(_) => Err(NoLease::Ended),
            None if marked.is_restored(now) => Err(NoLease::Restored),
            None => Err(NoLease::Ended),
        }
    }

    fn end(&mut self, slot: Slot) {
        self.over.extend(self.marks.remove(&slot).map(|marked| (slot, marked.mark)));
    }

    /// Lengthens a lease to what its holder wants, or restores one of an earlier run. Answers the mark when it has to be written first.
    pub fn renew(
        &mut self,
        slot: Slot,
        generation: u64,
        holder: u32,
        wanted: &Holder,
        now: Duration,
    ) -> Result<Option<Mark>, NoLease> {
        match self.proxies.get(&slot.uid) {
            // Its instance was replaced: there is nothing left to be used.
            Some(proxy) if proxy.incarnation != slot.incarnation => return Err(NoLease::Ended),
            Some(proxy) if proxy.draining => return Err(NoLease::Draining),
            Some(_) => {}
            None => return Err(NoLease::Ended),
        }
        let marked = self.marks.get_mut(&slot).filter(|m| m.mark.generation == generation).ok_or(NoLease::Ended)?;
        let restored = marked.is_restored(now);
        match marked.holders.get_mut(&holder) {
            Some(found) if found.expires <= now => return Err(NoLease::Ended),
            Some(found) if found.subject != wanted.subject => return Err(NoLease::Unknown),
            // A renewal never shortens what was promised.
            Some(found) => {
                found.expires = found.expires.max(wanted.expires);
                found.ttl = wanted.ttl;
            }
            None if restored => {
                if marked.mark.mode == Mode::Exclusive && marked.mark.subject != wanted.subject {
                    return Err(NoLease::Unknown);
                }
                marked.holders.insert(holder, wanted.clone());
            }
            None => return Err(NoLease::Ended),
        }
        let hold_ms = wanted.ttl.as_millis() as u64;
        marked.mark.hold_ms = marked.mark.hold_ms.max(hold_ms);
        Ok((marked.durable_ms < hold_ms).then(|| marked.mark.clone()))
    }

    /// Ends a lease.
    pub fn release(
        &mut self,
        slot: Slot,
        generation: u64,
        holder: u32,
        subject: Option<&str>,
        now: Duration,
    ) -> Result<(), NoLease> {
        let marked = self.marks.get_mut(&slot).filter(|m| m.mark.generation == generation).ok_or(NoLease::Ended)?;
        let others = |owner: &str| subject.is_some_and(|s| s != owner);
        match marked.holders.get(&holder) {
            Some(found) if others(&found.subject) => return Err(NoLease::Unknown),
            Some(_) => drop(marked.holders.remove(&holder)),
            // Of a shared mark of an earlier run nobody knows how many hold it.
            None if !marked.is_restored(now) || marked.mark.mode == Mode::Shared => return Err(NoLease::Ended),
            None if others(&marked.mark.subject) => return Err(NoLease::Unknown),
            None => {}
        }
        if marked.mark.mode == Mode::Exclusive {
            // Its one holder gives it back, in whichever run it was lent.
            marked.restored_until = None;
        }
        if marked.is_over(now) {
            self.end(slot);
        }
        Ok(())
    }

    /// All leases that live: slot, mark, holder number, holder.
    pub fn live(&self, now: Duration) -> impl Iterator<Item = (Slot, &Mark, u32, &Holder)> {
        self.marks.iter().flat_map(move |(slot, marked)| {
            marked
                .holders
                .iter()
                .filter(move |(_, h)| h.expires > now)
                .map(move |(number, holder)| (*slot, &marked.mark, *number, holder))
        })
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
