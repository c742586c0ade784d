//! What the operator remembers of one Proxy between passes. Losing it costs a look-up and, where a create may have been
//! under way, a wait.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;

use super::decide::{Call, Step};
use super::held::HeldCall;
use super::{Facts, ReadyProvider};
use crate::control::backoff;
use crate::health::Verdict;
use crate::health::probe::FailureKind;
use crate::model::condition::is_true;
use crate::model::error::{CallError, ErrorKind, FieldError};
use crate::model::instance::{Instance, State};
use crate::model::proxy::{Endpoint, Proxy};

/// Leases are looked at again this often while they are waited for.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Between two calls that drive an instance on, where the plugin names no time.
pub(super) const POLL: Duration = Duration::from_secs(5);
/// What a plugin may name: a call per round trip would be a storm, and one a week would be none.
const POLLS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));
/// Until the allocator lends a proxy no more.
pub(super) const CLOSE: Duration = Duration::from_millis(10);
/// A create may land this much after its call's time limit.
pub(super) const LATE: Duration = Duration::from_secs(30);
/// Ready for so long, and the next rebuild is a first one again.
const STEADY: Duration = Duration::from_secs(3600);
/// First and longest spacing of rebuilds.
const SPACING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(1800));
/// Places tried in a row; a plugin that always knows another one is not followed for ever.
const PLACES: usize = 32;

/// What is remembered of one Proxy.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// When it began.
    pub born: Duration,
    /// The call that failed last, until one of its kind succeeds.
    pub trouble: Option<Trouble>,
    /// The calls that are held back.
    pub held: Vec<HeldCall>,
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
    /// Since when its proxy fails, or its instance is in no state that leads anywhere.
    pub bad_since: Option<Duration>,
    /// Why the instance is being replaced, and how far that is.
    pub rebuild: Option<Rebuild>,
    /// Rebuilds in a row, and when the last one began.
    pub rebuilt: (u32, Option<Duration>),
    /// Since when leases are waited for.
    pub drain_since: Option<Duration>,
    /// A create of unknown outcome may land until then: absent is not believed.
    pub doubt_until: Option<Duration>,
    /// Whether no earlier run may have left a create under way.
    pub settled: bool,
    /// Whether its deletion was taken up.
    pub deleting: bool,
    /// While deleting: `get` will not converge, so `delete` is tried.
    pub get_is_hopeless: bool,
    /// Faults of `get` in a row while deleting.
    pub get_faults: u32,
    /// While deleting: what is there was remembered as given up.
    pub abandoned: bool,
    /// While deleting: why it could not be.
    pub not_abandoned: Option<String>,
    /// Whether the status had the mark of a create: one without it was lost since.
    pub marked: bool,
    /// The backend was searched for what a lost status no longer names.
    pub searched: bool,
    /// Of the instance that is to follow, or of the attempts at it.
    pub coming: Coming,
    /// Of those on their way out, by incarnation.
    pub leaving: BTreeMap<u32, Leaving>,
}

/// What is remembered of the instance that is to follow.
#[derive(Clone, Debug, Default)]
pub struct Coming {
    /// The call that failed last.
    pub trouble: Option<Trouble>,
    /// What the provider last said of it.
    pub seen: Option<Seen>,
    /// Where its proxy answers.
    pub endpoint: Option<Endpoint>,
    /// Since when it is being made.
    pub creating_since: Option<Duration>,
    /// Since when its proxy fails, or it is in no state that leads anywhere.
    pub bad_since: Option<Duration>,
    /// A create of unknown outcome may land until then.
    pub doubt_until: Option<Duration>,
    /// Whether it was begun by this run.
    pub settled: bool,
    /// Places that were exhausted.
    pub avoid: Vec<String>,
}

/// What is remembered of an instance on its way out.
#[derive(Clone, Debug)]
pub struct Leaving {
    /// The delete that failed last.
    pub trouble: Option<Trouble>,
    /// Deleting or absent, once a delete has answered.
    pub seen: Option<Seen>,
    /// Since when leases are waited for.
    pub drain_since: Option<Duration>,
    /// A create may land until then.
    pub doubt_until: Duration,
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

impl Seen {
    /// Nothing was there at this time.
    pub fn absent(at: Duration) -> Self {
        Self { state: None, at, poll_after: None, message: None }
    }

    /// It will never run; why.
    pub fn failed(why: &str, at: Duration) -> Self {
        Self { state: Some(State::Failed(why.to_owned())), ..Self::absent(at) }
    }

    /// What the backend shows.
    pub fn of(shown: &Instance, at: Duration) -> Self {
        Self { state: Some(shown.state.clone()), at, poll_after: shown.poll_after, message: shown.message.clone() }
    }

    /// When the next call about it is due.
    pub fn due(&self, otherwise: Duration) -> Duration {
        self.at + self.poll_after.unwrap_or(otherwise).clamp(POLLS.0, POLLS.1)
    }
}

impl Trouble {
    /// A failure after `before`, the last one, with the wait that its kind asks for.
    pub(super) fn after(
        before: Option<&Self>,
        error: CallError,
        function: &'static str,
        with: (i64, u64),
        now: Duration,
        random: &mut impl Rng,
    ) -> Self {
        let failures = before.filter(|t| t.function == function).map_or(0, |t| t.failures) + 1;
        let retry_at = now + backoff::delay(&error.kind, failures, random);
        Self { error, function, failures, retry_at, with }
    }

    /// How long it still keeps from calling. A change of object or Provider ends the wait, but not one that the backend
    /// asked for.
    pub(super) fn waits(&self, with: (i64, u64), now: Duration) -> Option<Duration> {
        let asked_for = matches!(self.error.kind, ErrorKind::RateLimited(_));
        let wait = self.retry_at.checked_sub(now).filter(|wait| !wait.is_zero());
        wait.filter(|_| self.with == with || asked_for)
    }
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
    /// How far it is.
    pub stage: Stage,
    /// Since when it is being deleted.
    pub deleting_since: Option<Duration>,
}

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing was deleted yet: it may still be called off.
    Planned,
    /// A delete was sent, and is sent again until everything is gone.
    Deleting,
    /// The backend said so; creates that may still land are waited for.
    Gone,
}

impl Memory {
    /// The memory of a run that begins now.
    pub fn new(proxy: &Proxy, now: Duration) -> Self {
        let status = proxy.status.as_ref();
        // `Provisioned` is stored as not true before every create, and as true only after the last one has answered.
        let steady = status.is_some_and(|s| is_true(&s.conditions, "Provisioned"));
        let untouched = !proxy.has_finalizer() && status.is_none_or(|s| s.create_sent.is_none());
        Self { born: now, settled: steady || untouched, ..Self::default() }
    }

    /// How long the last failure still keeps from calling.
    pub(super) fn waits(&self, with: (i64, u64), now: Duration) -> Option<Duration> {
        self.trouble.as_ref()?.waits(with, now)
    }

    /// Takes up a deletion. What failed while the object lived says nothing about deleting it.
    pub(super) fn begin_deletion(&mut self) {
        if !self.deleting {
            self.deleting = true;
            // Asked for anew: what was seen while it lived may be gone, and what was absent before a create that failed may
            // have been half made by it.
            self.seen.take_if(|seen| seen.state != Some(State::Deleting));
            self.rebuild = None;
            self.trouble.take_if(|t| !matches!(t.error.kind, ErrorKind::RateLimited(_)));
        }
    }

    /// Takes a failure in: what follows, and when.
    pub(super) fn fail(
        &mut self,
        proxy: &Proxy,
        call: &Call,
        error: CallError,
        with: (i64, u64),
        now: Duration,
        random: &mut impl Rng,
    ) {
        let mut trouble = Trouble::after(self.trouble.as_ref(), error, call.function(), with, now, random);
        let error = trouble.error.clone();
        let status = proxy.status.as_ref();
        let deleting = proxy.is_deleting();
        self.get_faults = if *call == Call::Get && error.kind == ErrorKind::Internal { self.get_faults + 1 } else { 0 };
        match (call, &error.kind) {
            (Call::Create, ErrorKind::UnknownOutcome | ErrorKind::Internal) => self.seen = None,
            // Stock-outs are reported late by some backends, so that a `get` tells them.
            (Call::Create | Call::Get, ErrorKind::Exhausted)
                if !deleting && status.is_none_or(|s| s.endpoint.is_none()) =>
            {
                // Another place, if there is one; what this one may have begun goes first.
                let here = status.and_then(|s| s.instance.as_ref()).and_then(|i| i.placement.clone());
                self.avoid.extend(here.filter(|place| !self.avoid.contains(place)));
                self.exhausted.get_or_insert_with(|| error.clone());
                self.rebuild = Some(Rebuild {
                    reason: "CapacityExhausted",
                    message: error.message.clone(),
                    drain: false,
                    fall_back: true,
                    stage: Stage::Planned,
                    deleting_since: None,
                });
                if self.avoid.len() < PLACES {
                    trouble.retry_at = now;
                } else {
                    self.avoid.clear();
                }
            }
            (Call::Place(_), ErrorKind::Exhausted) => {
                // No other place: all of them are tried again later. The first exhaustion says most.
                self.avoid.clear();
                trouble.error = self.exhausted.take().unwrap_or(error);
            }
            (Call::Get, kind) if deleting => {
                let permanent = matches!(
                    kind,
                    ErrorKind::Unauthorized
                        | ErrorKind::ConfigMissing
                        | ErrorKind::InvalidSpec(_)
                        | ErrorKind::Exhausted
                );
                if permanent || self.get_faults >= 3 {
                    self.get_is_hopeless = true;
                    trouble.retry_at = now;
                }
            }
            _ => {}
        }
        self.trouble = Some(trouble);
    }

    /// How long its leases are still waited for; none: they are over, were waited for long enough, or are of no use.
    ///
    /// The first answer is always to wait: only from the next pass on is the proxy closed to new leases, and `held` final.
    pub(super) fn drains(&mut self, proxy: &Proxy, facts: &Facts) -> Option<Duration> {
        if !serves(proxy, facts) {
            return None;
        }
        let Some(since) = self.drain_since else {
            self.drain_since = Some(facts.now);
            return Some(CLOSE);
        };
        let waited = facts.now.saturating_sub(since);
        let left = proxy.spec.drain_timeout.duration().saturating_sub(waited);
        if facts.held && !left.is_zero() { Some(left.min(LOOK)) } else { None }
    }

    /// Deletes, or goes on deleting at the pace that the backend named.
    pub(super) fn delete_when_due(&self, now: Duration) -> Step {
        let deleting = self.seen.as_ref().filter(|seen| seen.state == Some(State::Deleting));
        let due = deleting.map_or(now, |seen| seen.due(POLL));
        if due > now { Step::Wait(due - now) } else { Step::Call(Call::Delete) }
    }

    /// What still has to be done before an absence is the end of it: a create may land late. None: nothing.
    pub(super) fn doubts(&self, seen: &Seen, provider: &ReadyProvider, now: Duration) -> Option<Step> {
        let end = self.creates_end(provider);
        if end > now {
            Some(Step::Wait(end - now))
        } else {
            // Asked once more, now that every create has ended.
            (seen.at < end).then_some(Step::Call(Call::Get))
        }
    }

    /// From when on no create that was sent for this identity can land.
    pub(super) fn creates_end(&self, provider: &ReadyProvider) -> Duration {
        let earlier = if self.settled { Duration::ZERO } else { self.born + provider.call_timeout + LATE };
        earlier.max(self.doubt_until.unwrap_or_default())
    }

    /// A create ended without saying what it did.
    pub(super) fn doubt(&mut self, provider: &ReadyProvider, now: Duration) {
        // An earlier doubt is over earlier: calls of one Proxy follow each other.
        self.doubt_until = Some(now + provider.call_timeout + LATE);
    }

    /// A rebuild begins.
    pub(super) fn count_rebuild(&mut self, now: Duration) {
        let (count, last) = self.rebuilt;
        let recent = last.is_some_and(|last| now.saturating_sub(last) < STEADY);
        self.rebuilt = (if recent { count + 1 } else { 1 }, Some(now));
    }

    /// The next incarnation begins, or the next attempt of the same one.
    pub(super) fn begins_anew(&mut self, rebuilt: bool, now: Duration) {
        if rebuilt {
            self.count_rebuild(now);
        }
        self.rebuild = None;
        self.drain_since = None;
        self.seen = None;
        self.creating_since = None;
        self.bad_since = None;
    }

    /// Notes whether the status still has its mark. What is remembered of instances goes with a status that was lost, and
    /// the backend is searched for them.
    pub(super) fn look_at_mark(&mut self, proxy: &Proxy, now: Duration) {
        let marked = proxy.status.as_ref().is_some_and(|s| s.create_sent.is_some());
        if self.marked && !marked {
            *self = Self { rebuilt: self.rebuilt, ..Self::new(proxy, now) };
        }
        self.marked = marked;
    }

    /// What is left of it when an answer that it took in could not be stored, so that it is asked for again. `before`: as it
    /// was before the answer.
    pub fn unstored(self, before: Self) -> Self {
        let coming = Coming { seen: None, ..before.coming };
        Self { seen: None, rebuild: before.rebuild, coming, leaving: before.leaving, ..self }
    }

    /// The one that was to follow serves from now on; this is what is remembered of it.
    pub(super) fn succeeded_by(&mut self, coming: Coming) {
        self.trouble = None;
        self.seen = coming.seen;
        self.creating_since = coming.creating_since;
        self.doubt_until = coming.doubt_until;
        self.settled = coming.settled;
        self.avoid.clear();
        self.exhausted = None;
        self.bad_since = None;
        self.rebuild = None;
        self.drain_since = None;
    }

    /// How long the incarnation that was begun still has to wait: 0, 30 s, 1, 2, 4 … 30 min.
    pub(super) fn spacing(&self, now: Duration) -> Option<Duration> {
        self.space(self.rebuilt.0, now)
    }

    /// How long one that is not begun yet has to wait.
    pub(super) fn spacing_of_next(&self, now: Duration) -> Option<Duration> {
        let recent = self.rebuilt.1.is_some_and(|last| now.saturating_sub(last) < STEADY);
        if recent { self.space(self.rebuilt.0 + 1, now) } else { None }
    }

    fn space(&self, count: u32, now: Duration) -> Option<Duration> {
        let space = match count {
            0 | 1 => return None,
            n => (SPACING.0 * 2u32.saturating_pow((n - 2).min(16))).min(SPACING.1),
        };
        (self.rebuilt.1? + space).checked_sub(now).filter(|wait| !wait.is_zero())
    }
}

/// Whether crawlers may be using it. A judge that cannot be reached says nothing against the proxy; and what was true
/// before a restart stands until the first probe.
pub(super) fn serves(proxy: &Proxy, facts: &Facts) -> bool {
    match &facts.health {
        Verdict::Healthy { .. } => true,
        Verdict::Waiting(failure) | Verdict::Unhealthy(failure) => failure.kind == FailureKind::JudgeUnreachable,
        Verdict::Unknown => proxy.status.as_ref().is_some_and(|s| is_true(&s.conditions, "Healthy")),
    }
}
