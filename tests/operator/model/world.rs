//! Objects, backend, managers and time. An event is one step of one of them; its order is that of time.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proxy_operator::control::proxy::beside::Beside;
use proxy_operator::control::proxy::decide::{Answer, Call};
use proxy_operator::control::proxy::rebuild::up_to_date;
use proxy_operator::control::proxy::{Facts, Listed, OwnLogin, ProviderFacts, ReadyProvider};
use proxy_operator::health::Verdict;
use proxy_operator::health::probe::{Failure, FailureKind};
use proxy_operator::model::condition::is_true;
use proxy_operator::model::error::CallError;
use proxy_operator::model::instance::State;
use proxy_operator::model::proxy::{InstanceStatus, Proxy, ProxySpec};
use proxy_operator::model::span::Span;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::backend::{Backend, Id};
use super::manager::{Manager, Object};

pub const PROVIDER: &str = "p";
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Nothing that was sent lands later than this.
pub const LANDED: Duration = Duration::from_secs(59);
/// How long things go wrong, and how long they may then take to come right.
pub const FAULTS_END: Duration = Duration::from_secs(3_600);
const RIGHT_AFTER: Duration = Duration::from_secs(4 * 3_600);
/// A leader that is frozen so long has lost its lease.
const LEASE: Duration = Duration::from_secs(15);

pub enum Event {
    /// A pass of a manager over a Proxy.
    Pass { manager: usize, proxy: usize },
    /// A call arrives at the backend.
    Arrives { sent: Box<Sent>, lost: bool },
    /// Its answer arrives at the caller.
    Answers { sent: Box<Sent>, answer: Box<Result<Answer, CallError>> },
    /// A listing of the backend.
    Listing { manager: usize },
    /// Something goes wrong, or somebody does something.
    Disturbance,
}

#[derive(Clone)]
pub struct Sent {
    pub manager: usize,
    pub proxy: usize,
    pub which: Option<Beside>,
    pub call: Call,
    pub id: Id,
    pub decided_on: Object,
}

struct At(Duration, u64, Event);

impl PartialEq for At {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for At {}
impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

pub struct World {
    pub crashes: u32,
    pub leader_changes: u32,
    /// Instances that nobody named in the end.
    pub collected: u32,
    seed: u64,
    pub random: StdRng,
    pub now: Duration,
    serial: u64,
    events: BinaryHeap<Reverse<At>>,
    pub objects: Vec<Object>,
    pub backend: Backend,
    pub managers: Vec<Manager>,
    /// Whether managers freeze and others lead meanwhile.
    several: bool,
    pub provider: ReadyProvider,
    /// What happened, kept where one seed is looked into.
    trace: Option<RefCell<Vec<String>>>,
}

fn mk_object(index: usize, max_age: bool) -> Object {
    let mut spec = ProxySpec::of_provider(PROVIDER);
    spec.max_age = max_age.then(|| Span::secs(1_200));
    let mut proxy = Proxy::new(&format!("proxy-{index}"), spec);
    proxy.metadata.namespace = Some("n".into());
    proxy.metadata.uid = Some(format!("6b1d5c52-0d3a-4b53-9b8e-0a6a4e3d9a{index:02}"));
    proxy.metadata.generation = Some(1);
    Object { proxy, version: 1, gone: false }
}

impl World {
    pub fn new(seed: u64, traced: bool) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let proxies = random.random_range(1..=4);
        let max_age = random.random_range(0..4) == 0;
        let objects: Vec<Object> = (0..proxies).map(|index| mk_object(index, max_age)).collect();
        let provider = ReadyProvider {
            epoch: 1,
            taken: vec![],
            one_per_place: false,
            create_deadline: Duration::from_secs(600),
            call_timeout: CALL_TIMEOUT,
            reach: None,
            surges: random.random_range(0..3) > 0,
            max_unavailable: if random.random_range(0..2) == 0 { "25%".into() } else { "2".into() },
            instances: None,
            absence_accepted: false,
            denied: None,
        };
        let mut this = Self {
            crashes: 0,
            leader_changes: 0,
            collected: 0,
            seed,
            now: Duration::ZERO,
            serial: 0,
            events: BinaryHeap::new(),
            managers: vec![],
            objects,
            backend: Backend::default(),
            several: seed.is_multiple_of(3),
            provider,
            trace: traced.then(RefCell::default),
            random,
        };
        this.lead();
        this.at(Duration::from_secs(1), Event::Disturbance);
        this
    }

    pub fn fail(&self, what: &str) -> ! {
        let trace = self.trace.as_ref().map(|trace| trace.borrow().join("\n"));
        let trace = trace.unwrap_or_else(|| format!("MODEL_SEED={} shows its steps", self.seed));
        let objects = self.objects.iter().map(|object| {
            let status = object.proxy.status.clone().unwrap_or_default();
            let ids: Vec<_> =
                status.instances().map(|i| (i.incarnation, i.placement.clone(), i.provider_id.is_some())).collect();
            let ready = status.conditions.iter().find(|c| c.type_ == "Ready").map(|c| (&c.reason, &c.message));
            format!("gone {} deleting {} {ids:?} {ready:?}", object.gone, object.proxy.is_deleting())
        });
        let objects: Vec<_> = objects.collect();
        panic!(
            "{trace}\nseed {}: {what} at {:?}\nmachines {:#?}\n{objects:#?}",
            self.seed, self.now, self.backend.machines
        );
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.borrow_mut().push(format!("{:?} {}", self.now, what()));
        }
    }

    pub fn at(&mut self, after: Duration, event: Event) {
        self.serial += 1;
        self.events.push(Reverse(At(self.now + after, self.serial, event)));
    }

    pub fn odds(&mut self, of_1000: u32) -> bool {
        self.now < FAULTS_END && self.random.random_range(0..1000) < of_1000
    }

    pub fn some(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(self.random.random_range(from_ms..to_ms))
    }

    /// Asks for a pass, as the queue has it: never two of one Proxy at once, and the earliest moment counts.
    pub fn wake(&mut self, manager: usize, proxy: usize, after: Duration) {
        let at = self.now + after;
        let run = &mut self.managers[manager];
        if run.busy.contains(&proxy) {
            run.wanted.insert(proxy);
        } else if run.due.get(&proxy).is_none_or(|due| at < *due) {
            run.due.insert(proxy, at);
            self.at(after, Event::Pass { manager, proxy });
        }
    }

    /// A new run begins, and leads.
    fn lead(&mut self) {
        let manager = self.managers.len();
        self.managers.push(Manager::new(&self.objects, self.now));
        for proxy in 0..self.objects.len() {
            let soon = self.some(0, 500);
            self.wake(manager, proxy, soon);
        }
        self.at(Duration::from_secs(60), Event::Listing { manager });
    }

    fn leader(&self) -> usize {
        self.managers.len() - 1
    }

    /// Until the faults end, and on until everything is right.
    pub fn run(&mut self) {
        while let Some(Reverse(At(at, _, event))) = self.events.pop() {
            self.now = at;
            if at > FAULTS_END {
                if at > FAULTS_END + LANDED * 2 && self.is_right() {
                    return self.collect();
                }
                if at > FAULTS_END + RIGHT_AFTER {
                    self.fail("it does not come right");
                }
                self.backend.foreign.clear();
                self.backend.machines.values_mut().for_each(|machine| machine.bad = false);
            }
            self.happen(event);
        }
        if !self.is_right() {
            self.fail("nothing happens any more");
        }
        self.collect();
    }

    fn happen(&mut self, event: Event) {
        let manager = match &event {
            Event::Pass { manager, .. } | Event::Listing { manager } => Some(*manager),
            Event::Answers { sent, .. } => Some(sent.manager),
            Event::Arrives { .. } | Event::Disturbance => None,
        };
        if let Some(manager) = manager {
            if self.managers[manager].over {
                return;
            }
            if let Some(until) = self.managers[manager].frozen {
                if until > self.now {
                    let after = until - self.now;
                    return self.at(after, event);
                }
                // It wakes, goes on where it was, and soon finds that another leads.
                if self.odds(400) || self.now >= FAULTS_END {
                    self.managers[manager].over |= manager != self.leader();
                }
            }
        }
        match event {
            Event::Pass { manager, proxy } => {
                let run = &mut self.managers[manager];
                // Another moment took the place of this one.
                if run.due.get(&proxy).is_some_and(|due| *due <= self.now) {
                    run.due.remove(&proxy);
                    if run.busy.contains(&proxy) {
                        run.wanted.insert(proxy);
                    } else {
                        self.pass(manager, proxy);
                    }
                }
            }
            Event::Listing { manager } => self.listing(manager),
            Event::Arrives { sent, lost } => self.arrive(*sent, lost),
            Event::Answers { sent, answer } => self.answered(*sent, *answer),
            Event::Disturbance => self.disturb(),
        }
    }

    /// What users and other people do, and what breaks.
    fn disturb(&mut self) {
        if self.now >= FAULTS_END {
            return;
        }
        let after = self.some(500, 20_000);
        self.at(after, Event::Disturbance);
        let index = self.random.random_range(0..self.objects.len());
        match self.random.random_range(0..100) {
            0..14 => {
                let port = self.random.random_range(1..5);
                self.edit(index, |proxy| proxy.spec.port = port);
            }
            14..16 => self.provider.epoch += 1,
            16..19 => self.edit(index, |proxy| {
                proxy.metadata.deletion_timestamp.get_or_insert(Time(Timestamp::UNIX_EPOCH));
            }),
            19..26 => {
                let gone = self.backend.machines.pop_first();
                self.note(|| format!("vanishes: {:?}", gone.map(|(id, _)| id)));
            }
            26..40 => {
                let states = [State::Stopped, State::Failed("f".into()), State::Unknown("u".into()), State::Deleting];
                let state = states[self.random.random_range(0..states.len())].clone();
                let at = self.random.random_range(0..=self.backend.machines.len());
                if let Some((id, machine)) = self.backend.machines.iter_mut().nth(at) {
                    machine.state = state;
                    let (id, machine) = (id.clone(), machine.clone());
                    self.note(|| format!("now {:?}: {id:?}", machine.state));
                }
            }
            40..60 => {
                for machine in self.backend.machines.values_mut() {
                    machine.bad = self.random.random_range(0..4) == 0;
                }
            }
            60..64 => {
                let status = self.objects[index].proxy.status.clone().unwrap_or_default();
                if let Some(id) = status.instance.as_ref().and_then(|i| id_of(index, i))
                    && !self.backend.machines.contains_key(&id)
                {
                    self.backend.foreign.insert(id);
                }
            }
            64..75 => self.backend.foreign.clear(),
            75..78 if !self.objects[index].proxy.is_deleting() => {
                // A backup was restored, or somebody wrote to the status.
                self.note(|| format!("{index} loses its status"));
                self.edit(index, |proxy| proxy.status = None);
            }
            78..84 => {
                self.note(|| "the operator is killed".into());
                self.crashes += 1;
                let leader = self.leader();
                self.managers[leader].over = true;
                self.lead();
            }
            84..95 if self.several => {
                let leader = self.leader();
                let until = self.now + self.some(1_000, 900_000);
                self.managers[leader].frozen = Some(until);
                self.note(|| format!("manager {leader} is frozen until {until:?}"));
                if until > self.now + LEASE {
                    self.leader_changes += 1;
                    self.lead();
                }
            }
            _ => {}
        }
    }

    fn edit(&mut self, index: usize, edit: impl FnOnce(&mut Proxy)) {
        let object = &mut self.objects[index];
        if object.gone {
            return;
        }
        let spec = object.proxy.spec.clone();
        edit(&mut object.proxy);
        object.version += 1;
        if object.proxy.spec != spec {
            object.proxy.metadata.generation = object.proxy.metadata.generation.map(|g| g + 1);
        }
        if object.proxy.is_deleting() && !object.proxy.has_finalizer() {
            object.gone = true;
        }
        let deleting = object.proxy.is_deleting();
        self.note(|| format!("{index} is edited{}", if deleting { ", and being deleted" } else { "" }));
        let manager = self.leader();
        let soon = self.some(1, 2_000);
        self.wake(manager, index, soon);
    }

    pub fn facts(&self, manager: usize, index: usize, proxy: &Proxy) -> Facts {
        let run = &self.managers[manager];
        let now = self.now - run.started;
        let status = proxy.status.clone().unwrap_or_default();
        let verdict = |instance: Option<&InstanceStatus>, endpoint: bool| match instance.and_then(|i| id_of(index, i)) {
            Some(id) if endpoint && self.backend.serves(&id) => Verdict::Healthy { exit_ip: None },
            Some(_) if endpoint => {
                Verdict::Unhealthy(Failure { kind: FailureKind::Unreachable, message: "no answer".into() })
            }
            _ => Verdict::Unknown,
        };
        let coming = run.memories[&index].coming.endpoint.is_some();
        Facts {
            health: verdict(status.instance.as_ref(), status.endpoint.is_some()),
            next_health: verdict(status.next.as_ref(), coming),
            held: (self.serial + index as u64).is_multiple_of(7),
            held_retiring: vec![],
            standing: run.roster.standing(PROVIDER, &index.to_string(), self.provider.create_deadline, now),
            provider: ProviderFacts::Ready(self.provider.clone()),
            listed: run.listed.get(&index).copied(),
            now,
            wall: Timestamp::UNIX_EPOCH + self.now,
            login_key: "k".into(),
            own_login: OwnLogin::Unused,
        }
    }

    fn listing(&mut self, manager: usize) {
        self.at(Duration::from_secs(60), Event::Listing { manager });
        let at = self.now - self.managers[manager].started;
        let run = &mut self.managers[manager];
        let mut missing = vec![];
        for (index, object) in self.objects.iter().enumerate().filter(|(_, o)| !o.gone && !o.proxy.is_deleting()) {
            let Some(instance) = object.proxy.status.as_ref().and_then(|s| s.instance.as_ref()) else { continue };
            let id = id_of(index, instance);
            let shown = id.and_then(|id| self.backend.machines.get(&id));
            let running = shown.is_some_and(|machine| machine.state == State::Running);
            run.listed.insert(index, Listed { at, running });
            if instance.provider_id.is_some() {
                missing.push((index.to_string(), shown.is_none()));
            }
        }
        run.roster.missing(PROVIDER, missing, at);
        for proxy in 0..self.objects.len() {
            self.wake(manager, proxy, Duration::from_millis(1));
        }
    }

    fn is_right(&self) -> bool {
        let frozen = |m: &Manager| m.frozen.is_some_and(|until| until + LANDED > self.now) && !m.over;
        !self.managers.iter().any(frozen)
            && self.objects.iter().enumerate().all(|(index, object)| {
                if object.gone {
                    return true;
                }
                let status = object.proxy.status.clone().unwrap_or_default();
                let serves =
                    status.instance.as_ref().and_then(|i| id_of(index, i)).is_some_and(|id| self.backend.serves(&id));
                let alone = status.next.is_none() && status.retiring.is_empty();
                !object.proxy.is_deleting()
                    && serves
                    && alone
                    && is_true(&status.conditions, "Ready")
                    && up_to_date(&object.proxy, &status, &OwnLogin::Unused)
            })
    }

    /// What nobody names is for collection to find. A single manager that crashes at any moment leaves nothing behind.
    fn collect(&mut self) {
        let named: Vec<Id> = self
            .objects
            .iter()
            .enumerate()
            .filter(|(_, object)| !object.gone)
            .flat_map(|(index, object)| {
                let status = object.proxy.status.clone().unwrap_or_default();
                status.instances().filter_map(|instance| id_of(index, instance)).collect::<Vec<_>>()
            })
            .collect();
        let orphans: Vec<&Id> = self.backend.machines.keys().filter(|id| !named.contains(id)).collect();
        if !orphans.is_empty() && !self.several {
            self.fail(&format!("orphans {orphans:?}"));
        }
        self.collected = orphans.len() as u32;
    }
}

fn id_of(index: usize, instance: &InstanceStatus) -> Option<Id> {
    Some((index, instance.incarnation, instance.placement.clone()?))
}
