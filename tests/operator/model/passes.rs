//! What a manager does: passes, calls, and the writes between them.

use std::time::Duration;

use proxy_operator::control::proxy::absorb::absorb;
use proxy_operator::control::proxy::beside::{self, Beside};
use proxy_operator::control::proxy::decide::{Answer, Call, Step, next};
use proxy_operator::control::proxy::summary::summarize;
use proxy_operator::control::proxy::{Facts, Memory};
use proxy_operator::model::PROXY_FINALIZER;
use proxy_operator::model::condition::is_true;
use proxy_operator::model::error::{CallError, ErrorKind};
use proxy_operator::model::proxy::{Proxy, ProxyStatus};
use rand::RngExt;

use super::manager::Object;
use super::world::{CALL_TIMEOUT, Event, FAULTS_END, LANDED, PROVIDER, Sent, World};

impl World {
    /// One pass, as the driver does it, up to its first call or wait.
    pub fn pass(&mut self, manager: usize, index: usize) {
        // A run that has just woken up decides on what it saw last.
        let stale = self.managers[manager].frozen.is_some() && self.random.random_range(0..2) == 0;
        if !stale {
            self.managers[manager].cache[index] = self.objects[index].clone();
        }
        for _ in 0..100 {
            let object = self.managers[manager].cache[index].clone();
            if object.gone {
                self.managers[manager].roster.remove(PROVIDER, &index.to_string());
                return;
            }
            let proxy = &object.proxy;
            let facts = self.facts(manager, index, proxy);
            let before = self.managers[manager].memories[&index].clone();
            let mut memory = before.clone();
            let step = next(proxy, &mut memory, &facts);
            if before.rebuild.is_none() && memory.rebuild.as_ref().is_some_and(|r| r.drain && !r.fall_back) {
                self.check_floor(manager, index);
            }
            self.remember(manager, index, proxy, memory.clone(), facts.now);
            match step {
                Step::Store(status) => {
                    if !self.store(manager, index, &object, *status, &memory, &facts) {
                        return self.again(manager, index, before);
                    }
                }
                Step::Abandon => self.fail("nobody gave it up"),
                Step::Finalizer(present) => {
                    if !self.finalize(manager, index, &object, present) {
                        return self.again(manager, index, before);
                    }
                }
                Step::Wait(wait) => {
                    if wait.is_zero() {
                        self.fail("a wait of nothing");
                    }
                    let status = summarize(proxy, &memory, &facts);
                    if proxy.status.as_ref() != Some(&status)
                        && !self.store(manager, index, &object, status, &memory, &facts)
                    {
                        return self.again(manager, index, before);
                    }
                    self.note(|| format!("manager {manager} waits with {index} for {wait:?}"));
                    // Something else may wake it sooner.
                    let part = self.random.random_range(0.1..=1.0);
                    let wait =
                        if self.now < FAULTS_END { wait.min(Duration::from_secs(600)).mul_f64(part) } else { wait };
                    return self.wake(manager, index, wait.max(Duration::from_millis(10)));
                }
                Step::Call(call) => return self.send(manager, index, None, call, memory, &facts),
                Step::Beside(which, call) => return self.send(manager, index, Some(which), call, memory, &facts),
            }
        }
        self.fail("a pass does not settle");
    }

    fn again(&mut self, manager: usize, index: usize, memory: Memory) {
        self.managers[manager].memories.insert(index, memory);
        self.managers[manager].cache[index] = self.objects[index].clone();
        self.wake(manager, index, Duration::from_millis(50));
    }

    fn remember(&mut self, manager: usize, index: usize, proxy: &Proxy, memory: Memory, now: Duration) {
        self.managers[manager].memories.insert(index, memory);
        self.managers[manager].enrol(index, proxy, now);
    }

    /// Compare and swap, by the version that was decided on; an edit of the rest alone is no conflict.
    fn store(
        &mut self,
        manager: usize,
        index: usize,
        decided_on: &Object,
        status: ProxyStatus,
        memory: &Memory,
        facts: &Facts,
    ) -> bool {
        let live = &mut self.objects[index];
        if live.gone || (live.version != decided_on.version && live.proxy.status != decided_on.proxy.status) {
            return false;
        }
        let changed = Proxy { status: Some(status), ..decided_on.proxy.clone() };
        live.proxy.status = Some(summarize(&changed, memory, facts));
        live.version += 1;
        self.managers[manager].cache[index] = live.clone();
        let proxy = live.proxy.clone();
        self.managers[manager].enrol(index, &proxy, facts.now);
        true
    }

    fn finalize(&mut self, manager: usize, index: usize, decided_on: &Object, present: bool) -> bool {
        let live = &mut self.objects[index];
        if live.gone || live.version != decided_on.version {
            return false;
        }
        live.proxy.metadata.finalizers = present.then(|| vec![PROXY_FINALIZER.to_owned()]);
        live.version += 1;
        live.gone = !present && live.proxy.is_deleting();
        let gone = live.gone;
        self.managers[manager].cache[index] = live.clone();
        self.note(|| format!("manager {manager}: {index} finalizer {present}{}", if gone { ", gone" } else { "" }));
        true
    }

    /// What serves is taken away only while enough of the others do. Told by the stored statuses alone; after a crash or with
    /// a second leader memories differ, and one may be over.
    fn check_floor(&self, manager: usize, index: usize) {
        if self.managers.len() > 1 || manager > 0 {
            return;
        }
        let ready = |object: &Object| {
            let status = object.proxy.status.as_ref();
            status.is_some_and(|status| is_true(&status.conditions, "Ready"))
        };
        let served = |object: &Object| {
            let status = object.proxy.status.clone().unwrap_or_default();
            status.rebuilds > 0 || status.instance.is_some_and(|i| i.ready_since.is_some())
        };
        if !ready(&self.objects[index]) {
            return;
        }
        let living: Vec<_> = self.objects.iter().filter(|o| !o.gone).collect();
        let others = living.iter().filter(|o| o.proxy.metadata.uid != self.objects[index].proxy.metadata.uid);
        let out = others.filter(|o| !o.proxy.is_deleting() && served(o) && !ready(o)).count() as u32;
        let floor = match self.provider.max_unavailable.strip_suffix('%') {
            Some(percent) => living.len() as u32 * percent.parse::<u32>().expect("a number") / 100,
            None => self.provider.max_unavailable.parse().expect("a number"),
        };
        if out >= floor.max(1) {
            self.fail("one more is taken out than the floor allows");
        }
    }

    fn send(&mut self, manager: usize, index: usize, which: Option<Beside>, call: Call, memory: Memory, facts: &Facts) {
        let mut object = self.managers[manager].cache[index].clone();
        if matches!(call, Call::Create | Call::Delete) {
            let status = summarize(&object.proxy, &memory, facts);
            if object.proxy.status.as_ref() != Some(&status)
                && !self.store(manager, index, &object, status, &memory, facts)
            {
                return self.again(manager, index, memory);
            }
            object = self.managers[manager].cache[index].clone();
        }
        let status = object.proxy.status.clone().unwrap_or_default();
        let instance = which.map_or(status.instance.clone(), |which| which.of(&status).cloned()).unwrap_or_default();
        let id = (index, instance.incarnation, instance.placement.clone().unwrap_or_default());
        if call == Call::Create {
            if !object.proxy.has_finalizer() || status.create_sent.is_none() || id.2.is_empty() {
                self.fail("a create before finalizer, mark and place were stored");
            }
            if object.proxy.is_deleting() {
                self.fail("a create of a deleted Proxy");
            }
        }
        self.managers[manager].busy.insert(index);
        let sent = Sent { manager, proxy: index, which, call, id, decided_on: object };
        // Frozen after the decision, before the call leaves: it lands whenever the process wakes.
        let frozen = self.managers[manager].frozen.and_then(|until| until.checked_sub(self.now)).unwrap_or_default();
        let lost = matches!(sent.call, Call::Create | Call::Delete) && self.odds(120);
        let lands = if lost { self.some(1, LANDED.as_millis() as u64) } else { self.some(1, 1_500) };
        self.at(frozen + lands, Event::Arrives { sent: Box::new(sent.clone()), lost });
        if lost {
            let answer = Err(CallError::new(ErrorKind::UnknownOutcome, "lost"));
            self.at(frozen + CALL_TIMEOUT, Event::Answers { sent: Box::new(sent), answer: Box::new(answer) });
        }
    }

    pub fn arrive(&mut self, sent: Sent, lost: bool) {
        let kinds = [
            ErrorKind::Transient,
            ErrorKind::Internal,
            ErrorKind::Unauthorized,
            ErrorKind::ConfigMissing,
            ErrorKind::RateLimited(Some(Duration::from_secs(3))),
        ];
        let kind = kinds[self.random.random_range(0..kinds.len())].clone();
        let answer = if self.odds(120) {
            Err(CallError::new(kind, "simulated"))
        } else if sent.call == Call::Create && self.odds(80) {
            Err(CallError::new(ErrorKind::Exhausted, "full"))
        } else {
            self.backend.answer(&sent.call, &sent.id, &mut self.random)
        };
        self.note(|| {
            let what = answer.as_ref().map_err(|e| e.kind.label());
            format!("manager {} {} of {:?}: {what:?}", sent.manager, sent.call.function(), sent.id)
        });
        if !lost {
            let after = self.some(1, 500);
            self.at(after, Event::Answers { sent: Box::new(sent), answer: Box::new(answer) });
        }
    }

    pub fn answered(&mut self, sent: Sent, answer: Result<Answer, CallError>) {
        let Sent { manager, proxy: index, which, call, decided_on, .. } = sent;
        self.managers[manager].busy.remove(&index);
        if self.managers[manager].wanted.remove(&index) {
            self.wake(manager, index, Duration::from_millis(1));
        }
        let facts = self.facts(manager, index, &decided_on.proxy);
        let mut memory = self.managers[manager].memories[&index].clone();
        let before = memory.clone();
        let random = &mut self.random;
        let status = match which {
            None => absorb(&decided_on.proxy, &mut memory, &facts, &call, answer, random),
            Some(which) => beside::absorb(&decided_on.proxy, &mut memory, &facts, which, &call, answer, random),
        };
        self.remember(manager, index, &decided_on.proxy, memory.clone(), facts.now);
        if let Some(status) = status
            && !self.store(manager, index, &decided_on, status, &memory, &facts)
        {
            return self.again(manager, index, memory.unstored(before));
        }
        self.managers[manager].cache[index] = self.objects[index].clone();
        self.pass(manager, index);
    }
}
