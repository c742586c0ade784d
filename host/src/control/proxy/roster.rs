//! What the Proxies of one Provider are together: how many of them are out, and whether too many vanished at once. The
//! figures that no single Proxy can know.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::model::metrics::METRICS;

/// Absences that begin within so long count together.
const WINDOW: Duration = Duration::from_secs(600);
/// So many absences at once, or a fifth of the Proxies, are no accident of single instances yet.
const ABSENCES: u32 = 3;
/// A mass is looked into again after so long, and whenever somebody comes back.
const JUDGED_FOR: Duration = Duration::from_secs(1);

/// How one Proxy stands among those of its Provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// It is Ready.
    pub ready: bool,
    /// It was Ready once and is not now.
    pub out: bool,
    /// It is being replaced.
    pub replaced: bool,
    /// Its instance had been there and is not.
    pub absent: bool,
    /// Instances that may exist of it: the one that serves, the one to follow, and those on their way out.
    pub instances: u32,
}

/// How the others stand, as one Proxy sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Proxies of the Provider, this one among them.
    pub total: u32,
    /// Others that were Ready once and are not now.
    pub out: u32,
    /// Others that are being replaced.
    pub replaced: u32,
    /// Instances of all of them.
    pub instances: u32,
    /// More vanished at once than accident explains.
    pub mass_absence: bool,
}

impl Standing {
    /// How many may be out at once, of `limits.maxUnavailable` (a number or a percentage): at least 1.
    pub fn floor(&self, max_unavailable: &str) -> u32 {
        let most = match max_unavailable.strip_suffix('%') {
            Some(percent) => self.total * percent.parse().unwrap_or(0) / 100,
            None => max_unavailable.parse().unwrap_or(0),
        };
        most.max(1)
    }
}

/// All Proxies by Provider and UID.
#[derive(Default)]
pub struct Roster {
    providers: Mutex<HashMap<String, Members>>,
}

#[derive(Default)]
struct Members {
    members: HashMap<String, Kept>,
    ready: u32,
    out: u32,
    instances: u32,
    /// Those that are being replaced, and since when.
    replaced: HashMap<String, Duration>,
    /// More vanished at once than accident explains, until they are there again.
    mass_absence: bool,
    judged_at: Duration,
}

#[derive(Default)]
struct Kept {
    member: Member,
    /// Missing in the last listing.
    missing: bool,
    /// When it was last found gone.
    gone_at: Option<Duration>,
}

impl Kept {
    fn is_gone(&self) -> bool {
        self.missing || self.member.absent
    }

    fn note(&mut self, was_gone: bool, now: Duration) {
        if self.is_gone() && !was_gone {
            self.gone_at = Some(now);
        }
    }
}

impl Roster {
    /// How a Proxy stands now. Answers whether a mass absence began or ended with it.
    pub fn set(&self, provider: &str, uid: &str, member: Member, now: Duration) -> bool {
        let mut providers = self.lock();
        let members = providers.entry(provider.to_owned()).or_default();
        let shown = members.shown();
        let kept = members.members.entry(uid.to_owned()).or_default();
        let before = std::mem::replace(&mut kept.member, member);
        kept.note(before.absent || kept.missing, now);
        members.ready = members.ready + u32::from(member.ready) - u32::from(before.ready);
        members.out = members.out + u32::from(member.out) - u32::from(before.out);
        members.instances = members.instances + member.instances - before.instances;
        if member.replaced {
            members.replaced.entry(uid.to_owned()).or_insert(now);
        } else {
            members.replaced.remove(uid);
        }
        if members.shown() != shown {
            members.show(provider);
        }
        before.absent != member.absent && members.judge(now)
    }

    /// Which of a Provider's Proxies a listing did not show; the rest of them it did. Not yet a proof of absence, and
    /// reason enough to be careful. Answers whether a mass absence began or ended with it.
    pub fn missing(&self, provider: &str, listed: impl IntoIterator<Item = (String, bool)>, now: Duration) -> bool {
        let mut providers = self.lock();
        let members = providers.entry(provider.to_owned()).or_default();
        for (uid, missing) in listed {
            let kept = members.members.entry(uid).or_default();
            let was_gone = kept.is_gone();
            kept.missing = missing;
            kept.note(was_gone, now);
        }
        members.judge(now)
    }

    /// A Proxy is gone.
    pub fn remove(&self, provider: &str, uid: &str) {
        let mut providers = self.lock();
        let Some(members) = providers.get_mut(provider) else { return };
        if let Some(kept) = members.members.remove(uid) {
            members.ready -= u32::from(kept.member.ready);
            members.out -= u32::from(kept.member.out);
            members.instances -= kept.member.instances;
            members.replaced.remove(uid);
        }
        members.show(provider);
        if members.members.is_empty() {
            providers.remove(provider);
        }
    }

    /// How the others stand. A replacement that takes longer than `patience` counts no longer, so that one that never ends
    /// keeps nobody else dead.
    pub fn standing(&self, provider: &str, uid: &str, patience: Duration, now: Duration) -> Standing {
        let mut providers = self.lock();
        let Some(members) = providers.get_mut(provider) else { return Standing { total: 1, ..Standing::default() } };
        if members.mass_absence && now.saturating_sub(members.judged_at) >= JUDGED_FOR {
            members.judge(now);
        }
        let own = members.members.get(uid).map(|kept| kept.member).unwrap_or_default();
        let known = members.members.contains_key(uid);
        let replaced = members.replaced.iter().filter(|(other, _)| *other != uid).map(|(_, since)| *since);
        Standing {
            total: members.members.len() as u32 + u32::from(!known),
            out: members.out - u32::from(own.out),
            replaced: replaced.filter(|since| now.saturating_sub(*since) < patience).count() as u32,
            instances: members.instances,
            mass_absence: members.mass_absence,
        }
    }

    /// Whether a Provider's instances vanished at once.
    pub fn mass_absence(&self, provider: &str) -> bool {
        self.lock().get(provider).is_some_and(|members| members.mass_absence)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Members>> {
        self.providers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Members {
    /// Those that are Ready, and the others.
    fn shown(&self) -> (u32, u32) {
        (self.ready, self.members.len() as u32 - self.ready)
    }

    fn show(&self, provider: &str) {
        let (ready, others) = self.shown();
        METRICS.proxies(provider, ready, others);
    }

    /// Answers whether it came to another verdict.
    fn judge(&mut self, now: Duration) -> bool {
        self.judged_at = now;
        let before = self.mass_absence;
        let tolerated = ABSENCES.max(self.members.len() as u32 / 5);
        let gone = self.members.values().filter(|kept| kept.is_gone()).count() as u32;
        let recent = |at: &Duration| now.saturating_sub(*at) < WINDOW;
        let lately = self.members.values().filter(|kept| kept.gone_at.as_ref().is_some_and(recent)).count() as u32;
        self.mass_absence = lately > tolerated || (self.mass_absence && gone > tolerated);
        self.mass_absence != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn absent(absent: bool) -> Member {
        Member { absent, instances: 1, ..Member::default() }
    }

    fn mk_roster(of: u32) -> Roster {
        let roster = Roster::default();
        for n in 0..of {
            roster.set("p", &n.to_string(), absent(false), Duration::ZERO);
        }
        roster
    }

    #[test]
    fn more_than_three_and_a_fifth_at_once_are_a_mass() {
        for (of, gone, mass) in [(10, 3, false), (10, 4, true), (40, 8, false), (40, 9, true), (3, 3, false)] {
            let roster = mk_roster(of);
            for n in 0..gone {
                roster.set("p", &n.to_string(), absent(true), NOW);
            }
            assert_eq!(roster.mass_absence("p"), mass, "{gone} of {of}");
        }
    }

    #[test]
    fn a_mass_that_a_listing_shows_is_seen_before_anyone_is_asked_for() {
        let roster = mk_roster(10);
        roster.missing("p", (0..4).map(|n| (n.to_string(), true)), NOW);
        assert!(roster.mass_absence("p"));
        roster.missing("p", (0..4).map(|n| (n.to_string(), false)), NOW);
        let later = NOW + WINDOW;
        assert!(!roster.standing("p", "0", WINDOW, later).mass_absence, "they are there again");
    }

    #[test]
    fn absences_that_are_far_apart_do_not_add_up_and_a_mass_lasts_as_long_as_they_do() {
        let roster = mk_roster(10);
        for n in 0..4 {
            roster.set("p", &n.to_string(), absent(true), NOW + WINDOW / 2 * n);
            roster.set("p", &n.to_string(), absent(false), NOW + WINDOW / 2 * n);
        }
        assert!(!roster.mass_absence("p"));
        let roster = mk_roster(10);
        for n in 0..4 {
            roster.set("p", &n.to_string(), absent(true), NOW);
        }
        let later = NOW + WINDOW * 9;
        assert!(roster.standing("p", "0", WINDOW, later).mass_absence, "time alone brings nothing back");
        roster.set("p", "0", absent(false), later);
        assert!(!roster.mass_absence("p"));
    }

    #[test]
    fn one_sees_how_the_others_stand() {
        let roster = mk_roster(4);
        let replaced = Member { out: true, replaced: true, instances: 2, ..Member::default() };
        roster.set("p", "0", replaced, NOW);
        roster.set("p", "1", replaced, NOW - WINDOW);
        roster.set("p", "1", replaced, NOW);
        let seen = |uid: &str| {
            let standing = roster.standing("p", uid, WINDOW, NOW);
            (standing.total, standing.out, standing.replaced, standing.instances)
        };
        assert_eq!(seen("3"), (4, 2, 1, 6));
        assert_eq!(seen("0"), (4, 1, 0, 6), "oneself is not another");
        assert_eq!(seen("new"), (5, 2, 1, 6));
        roster.remove("p", "0");
        assert_eq!(seen("3"), (3, 1, 0, 4));
    }

    #[test]
    fn the_floor_is_a_number_or_a_percentage_and_at_least_one() {
        let standing = |total| Standing { total, ..Standing::default() };
        for (total, max, floor) in
            [(10, "25%", 2), (3, "25%", 1), (0, "25%", 1), (10, "0", 1), (10, "4", 4), (10, "100%", 10)]
        {
            assert_eq!(standing(total).floor(max), floor, "{max} of {total}");
        }
    }
}
