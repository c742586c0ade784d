//! Holds calls back while they fail one after the other, and lets one through now and then to see whether they still do.
//! Pure: time and chance come in.

use std::time::Duration;

use rand::{Rng, RngExt};

/// Failures in a row after which calls are held back.
pub(super) const FAILURES: u32 = 5;
/// First and longest wait until one is let through.
const WAITS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// One kind of failure of one Provider.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    /// Whom the failures in a row were about; none: several, or nobody.
    only: Option<String>,
    open: Option<Open>,
    /// Numbers the calls that are let through.
    probes: u64,
}

#[derive(Debug)]
struct Open {
    why: String,
    wait: Duration,
    until: Duration,
    probe: Option<u64>,
}

/// A call that is let through; with a number, to see whether it still fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticket(Option<u64>);

impl Breaker {
    /// A ticket, or how long to wait.
    pub fn admit(&mut self, now: Duration) -> Result<Ticket, Duration> {
        let Some(open) = &mut self.open else { return Ok(Ticket(None)) };
        if now < open.until {
            return Err(open.until - now);
        }
        if open.probe.is_some() {
            // How long it takes nobody knows; who waits is woken when it succeeds.
            return Err(open.wait);
        }
        self.probes += 1;
        open.probe = Some(self.probes);
        Ok(Ticket(open.probe))
    }

    /// Why calls are held back. It does not change while they are, so that a status that says it is written once.
    pub fn why(&self) -> Option<&str> {
        self.open.as_ref().map(|open| open.why.as_str())
    }

    /// A call failed. One object alone is its own matter, and backs off by itself: calls are held back when several fail,
    /// or one about none. Answers whether they are from now on.
    pub fn failed(
        &mut self,
        ticket: Ticket,
        about: Option<&str>,
        why: impl FnOnce() -> String,
        now: Duration,
        random: &mut impl Rng,
    ) -> bool {
        if let Some(open) = &mut self.open {
            // What began before says nothing new.
            if open.probe.is_some() && open.probe == ticket.0 {
                open.probe = None;
                open.wait = (open.wait * 2).min(WAITS.1);
                open.until = now + jittered(open.wait, random);
            }
            return false;
        }
        self.only = match (self.failures, about) {
            (0, about) => about.map(str::to_owned),
            (_, Some(about)) => self.only.take().filter(|only| only == about),
            (_, None) => None,
        };
        self.failures += 1;
        if self.failures < FAILURES || self.only.is_some() {
            return false;
        }
        let until = now + jittered(WAITS.0, random);
        self.open = Some(Open { why: why(), wait: WAITS.0, until, probe: None });
        true
    }

    /// Whether no call has failed since the last one that worked.
    pub fn is_well(&self) -> bool {
        self.failures == 0 && self.open.is_none()
    }

    /// A call worked: nothing is held back. Answers whether something was.
    pub fn worked(&mut self) -> bool {
        self.failures = 0;
        self.only = None;
        self.open.take().is_some()
    }

    /// A call ended and says nothing either way.
    pub fn ended(&mut self, ticket: Ticket) {
        if let Some(open) = self.open.as_mut().filter(|open| open.probe.is_some() && open.probe == ticket.0) {
            open.probe = None;
        }
    }
}

/// Never longer, so that the longest wait is one.
fn jittered(wait: Duration, random: &mut impl Rng) -> Duration {
    wait.mul_f64(random.random_range(0.7..=1.0))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    struct Lab {
        breaker: Breaker,
        now: Duration,
        random: StdRng,
    }

    impl Lab {
        fn new() -> Self {
            let (breaker, now) = (Breaker::default(), Duration::from_secs(1000));
            Self { breaker, now, random: StdRng::seed_from_u64(1) }
        }

        fn fail(&mut self, ticket: Ticket, about: Option<&str>) -> bool {
            let now = self.now;
            self.breaker.failed(ticket, about, || "it fell".into(), now, &mut self.random)
        }

        /// Fails with an object after the other until calls are held back.
        fn open() -> Self {
            let mut lab = Self::new();
            for (object, opens) in [("a", false), ("b", false), ("a", false), ("c", false), ("a", true)] {
                let ticket = lab.breaker.admit(lab.now).unwrap();
                assert_eq!(lab.fail(ticket, Some(object)), opens);
            }
            lab
        }

        /// Waits for the next call that is let through.
        fn probe(&mut self) -> (Duration, Ticket) {
            let wait = self.breaker.admit(self.now).unwrap_err();
            self.now += wait;
            (wait, self.breaker.admit(self.now).unwrap())
        }
    }

    #[test]
    fn waits_grow_to_the_longest_and_one_call_at_a_time_is_let_through() {
        let mut lab = Lab::open();
        let mut waits = vec![];
        for _ in 0..10 {
            let (wait, ticket) = lab.probe();
            assert!(lab.breaker.admit(lab.now).is_err(), "only one at a time");
            assert!(!lab.fail(ticket, Some("a")));
            waits.push(wait.as_secs_f64());
        }
        for (wait, ceiling) in waits.iter().zip([5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 300.0]) {
            assert!((0.69 * ceiling..=ceiling).contains(wait), "{waits:?}");
        }
    }

    #[test]
    fn a_call_that_works_ends_it_at_once_and_the_count_begins_anew() {
        let mut lab = Lab::open();
        assert_eq!(lab.breaker.why(), Some("it fell"));
        lab.probe();
        assert!(lab.breaker.worked());
        assert_eq!(lab.breaker.why(), None);
        for _ in 0..4 {
            let ticket = lab.breaker.admit(lab.now).unwrap();
            assert!(!lab.fail(ticket, None));
        }
        assert!(!lab.breaker.worked(), "nothing was held back");
    }

    #[test]
    fn one_object_alone_is_its_own_matter() {
        let mut lab = Lab::new();
        for _ in 0..50 {
            assert!(!lab.fail(Ticket(None), Some("a")));
        }
        assert!(lab.fail(Ticket(None), Some("b")), "two are not");
        let mut lab = Lab::new();
        assert!((1..=FAILURES).all(|n| lab.fail(Ticket(None), None) == (n == FAILURES)), "nor is it about none");
    }

    #[test]
    fn what_began_before_neither_prolongs_nor_frees_the_place_of_the_one_let_through() {
        let mut lab = Lab::open();
        let wait = lab.breaker.admit(lab.now).unwrap_err();
        for _ in 0..64 {
            lab.fail(Ticket(None), Some("late"));
            lab.breaker.ended(Ticket(None));
        }
        assert_eq!(lab.breaker.admit(lab.now), Err(wait));
        let (_, ticket) = lab.probe();
        lab.fail(Ticket(None), Some("late"));
        assert!(lab.breaker.admit(lab.now).is_err());
        lab.breaker.ended(ticket);
        assert!(lab.breaker.admit(lab.now).is_ok(), "it said nothing, so another may");
    }
}
