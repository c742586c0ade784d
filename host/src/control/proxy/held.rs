//! Calls of one Proxy that are held back: each of them waits, and everything else goes on. Pure.

use std::time::Duration;

use super::Memory;
use super::beside::Beside;
use super::decide::Step;
use crate::model::proxy::Proxy;
use crate::plugin::handle::Held;

/// A call that is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCall {
    /// About an instance beside the one that serves; none: about that one.
    pub which: Option<Beside>,
    /// Which function.
    pub function: &'static str,
    /// Where that instance is.
    pub placement: Option<String>,
    /// When it is tried again.
    pub until: Duration,
    /// What its Provider says of it.
    pub says: Option<Held>,
}

/// Where the instance is that a call is about.
pub fn placement_of(proxy: &Proxy, which: Option<Beside>) -> Option<&str> {
    let status = proxy.status.as_ref()?;
    let instance = which.map_or(status.instance.as_ref(), |which| which.of(status));
    instance?.placement.as_deref()
}

impl Memory {
    /// Notes a call that is held back.
    pub fn hold(&mut self, call: HeldCall) {
        self.held.retain(|other| (other.which, other.function) != (call.which, call.function));
        self.held.push(call);
    }

    /// Keeps of the calls that were held back those that still are, about instances that are still where they were.
    pub(super) fn keep_held(&mut self, proxy: &Proxy, now: Duration, still: impl Fn(&HeldCall) -> bool) {
        self.held.retain(|held| {
            let there = held.placement.as_deref() == placement_of(proxy, held.which);
            there && if held.says.is_some() { still(held) } else { held.until > now }
        });
    }

    /// The step, or the wait for its call where that is held back.
    pub(super) fn unless_held(&self, step: Step, now: Duration) -> Step {
        let (which, function) = match &step {
            Step::Call(call) => (None, call.function()),
            Step::Beside(which, call) => (Some(*which), call.function()),
            _ => return step,
        };
        let held = self.held.iter().find(|held| (held.which, held.function) == (which, function));
        match held.and_then(|held| held.until.checked_sub(now)).filter(|wait| !wait.is_zero()) {
            Some(wait) => Step::Wait(wait),
            None => step,
        }
    }

    /// Why a call is held back about an instance that `which` is true of, if one is.
    pub(super) fn held_about(&self, which: impl Fn(Option<Beside>) -> bool) -> Option<&Held> {
        self.held.iter().filter(|held| which(held.which)).find_map(|held| held.says.as_ref())
    }
}
