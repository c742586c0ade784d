//! Random schedules against a simulated backend: calls that fail, creates that land late, instances that vanish, an operator
//! that crashes between any two steps, and a user who edits and deletes. Once the faults stop, what was asked for is there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::absorb::absorb;
use super::decide::{Answer, Call, Step, next};
use super::lab::{CALL_TIMEOUT, SURE, healthy, mk_instance, mk_provider, mk_proxy, secs};
use super::summary::summarize;
use super::{Facts, Memory, OwnLogin, ProviderFacts};
use crate::health::Verdict;
use crate::model::PROXY_FINALIZER;
use crate::model::error::{CallError, ErrorKind};
use crate::model::instance::{Deletion, Presence, State};
use crate::model::proxy::Proxy;

const SCHEDULES: u64 = 2_000;
/// How long things go wrong, and how long they may then take to come right.
const FAULTS_END: Duration = Duration::from_secs(2_400);
const RIGHT_AFTER: Duration = Duration::from_secs(4 * 3_600);
const PLACES: [&str; 3] = ["a", "b", "c"];

type Id = (u32, String);

#[derive(Clone)]
struct Machine {
    state: State,
    /// Deletes that are still needed until it is gone.
    deletes: u32,
}

struct World {
    seed: u64,
    random: StdRng,
    now: Duration,
    /// Starts of this run's clock: a restart begins at nought.
    started: Duration,
    machines: BTreeMap<Id, Machine>,
    /// Names that something of others has.
    foreign: BTreeSet<Id>,
    /// Creates under way: when they land.
    late: Vec<(Duration, Id)>,
    proxy: Proxy,
    memory: Memory,
    epoch: u64,
    released: bool,
    /// What happened, kept where one seed is looked into.
    trace: Option<RefCell<Vec<String>>>,
}

impl World {
    fn new(seed: u64, traced: bool) -> Self {
        let proxy = mk_proxy();
        let memory = Memory::new(&proxy, Duration::ZERO);
        Self {
            seed,
            random: StdRng::seed_from_u64(seed),
            now: Duration::ZERO,
            started: Duration::ZERO,
            machines: BTreeMap::new(),
            foreign: BTreeSet::new(),
            late: vec![],
            proxy,
            memory,
            epoch: 1,
            released: false,
            trace: traced.then(RefCell::default),
        }
    }

    fn fail(&self, what: &str) -> ! {
        let trace = self.trace.as_ref().map(|trace| trace.borrow().join("\n"));
        let trace = trace.unwrap_or_else(|| "MODEL_SEED=… of this seed shows its steps".into());
        panic!(
            "seed {}: {what} at {:?}\nmachines {:?}\n{}\n{:#?}",
            self.seed,
            self.now,
            self.machines.keys(),
            trace,
            self.memory
        );
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.borrow_mut().push(what());
        }
    }

    fn faulty(&self) -> bool {
        self.now < FAULTS_END
    }

    fn odds(&mut self, of_100: u32) -> bool {
        self.faulty() && self.random.random_range(0..100) < of_100
    }

    fn facts(&self) -> Facts {
        let provider = super::ReadyProvider { epoch: self.epoch, ..mk_provider() };
        let runs = self.proxy.status.as_ref().is_some_and(|s| s.endpoint.is_some());
        Facts {
            provider: ProviderFacts::Ready(provider),
            health: if runs { healthy() } else { Verdict::Unknown },
            held: false,
            listed: None,
            now: self.now - self.started,
            wall: jiff::Timestamp::UNIX_EPOCH,
            login_key: "k".into(),
            own_login: OwnLogin::Unused,
        }
    }

    fn crash(&mut self) {
        self.note(|| format!("{:?} crash", self.now));
        self.started = self.now;
        self.memory = Memory::new(&self.proxy, Duration::ZERO);
    }

    fn pass_time(&mut self, by: Duration) {
        self.now += by;
        let now = self.now;
        for (_, id) in self.late.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            self.note(|| format!("{now:?} a late create lands: {id:?}"));
            self.land(id);
        }
    }

    /// Idempotent by (incarnation, placement), as the contract asks.
    fn land(&mut self, id: Id) {
        let deletes = self.random.random_range(1..=3);
        if self.foreign.contains(&id) {
            return;
        }
        self.machines.entry(id).or_insert(Machine { state: State::Creating, deletes });
    }

    /// What users and other people do.
    fn disturb(&mut self) {
        if self.odds(3) {
            self.proxy.spec.port = self.random.random_range(1..5);
            self.proxy.metadata.generation = self.proxy.metadata.generation.map(|g| g + 1);
            self.note(|| format!("{:?} another spec", self.now));
        }
        if self.odds(1) {
            self.epoch += 1;
        }
        if self.odds(1) && self.seed.is_multiple_of(2) {
            self.proxy.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
            self.note(|| format!("{:?} deleted by its user", self.now));
        }
        if self.odds(3) {
            let gone = self.machines.pop_first();
            self.note(|| format!("{:?} vanishes: {:?}", self.now, gone.map(|(id, _)| id)));
        }
        if self.odds(5) {
            let states = [State::Stopped, State::Failed("f".into()), State::Unknown("u".into()), State::Deleting];
            let state = states[self.random.random_range(0..states.len())].clone();
            if let Some(machine) = self.machines.values_mut().next() {
                machine.state = state;
            }
        }
        if self.odds(3) && !self.machines.contains_key(&self.id()) {
            self.foreign.insert(self.id());
        }
        if self.odds(20) || !self.faulty() {
            self.foreign.clear();
        }
        if self.odds(5) {
            self.crash();
        }
    }

    fn id(&self) -> Id {
        let instance = self.proxy.status.as_ref().and_then(|s| s.instance.clone()).unwrap_or_default();
        (instance.incarnation, instance.placement.unwrap_or_default())
    }

    fn shown(id: &Id, machine: &Machine) -> crate::model::instance::Instance {
        crate::model::instance::Instance {
            provider_id: format!("{}-{}", id.1, id.0),
            incarnation: Some(id.0),
            ..mk_instance(&id.1, machine.state.clone())
        }
    }

    fn trouble(&mut self) -> Option<CallError> {
        let kinds = [
            ErrorKind::Transient,
            ErrorKind::Internal,
            ErrorKind::Unauthorized,
            ErrorKind::ConfigMissing,
            ErrorKind::RateLimited(Some(secs(3))),
        ];
        let kind = kinds[self.random.random_range(0..kinds.len())].clone();
        self.odds(15).then(|| CallError::new(kind, "simulated"))
    }

    fn call(&mut self, call: &Call) -> Result<Answer, CallError> {
        let id = self.id();
        if *call == Call::Create {
            let status = self.proxy.status.clone().unwrap_or_default();
            if !self.proxy.has_finalizer() || status.create_sent.is_none() || id.1.is_empty() {
                self.fail("a create before finalizer, mark and place were stored");
            }
            if self.proxy.is_deleting() {
                self.fail("a create of a deleted Proxy");
            }
            if self.odds(15) {
                // The answer is lost, and the create lands when it lands: at the latest when nobody waits any more.
                let lands = self.now + Duration::from_millis(self.random.random_range(0..59_000));
                self.late.push((lands, id));
                return Err(CallError::new(ErrorKind::UnknownOutcome, "lost"));
            }
            if self.odds(10) {
                return Err(CallError::new(ErrorKind::Exhausted, "full"));
            }
        }
        if let Some(error) = self.trouble() {
            return Err(error);
        }
        if self.foreign.contains(&id) && matches!(call, Call::Create | Call::Get | Call::Delete) {
            return Err(CallError::new(ErrorKind::Foreign, "of somebody else"));
        }
        Ok(match call {
            Call::Validate => Answer::Validated(vec![]),
            Call::Place(avoid) => match PLACES.iter().find(|p| !avoid.iter().any(|a| a == *p)) {
                Some(place) => Answer::Placed((*place).into()),
                None => return Err(CallError::new(ErrorKind::Exhausted, "nowhere")),
            },
            Call::Create => {
                self.land(id.clone());
                let machine = self.machines.get_mut(&id).expect("it has just landed");
                if matches!(machine.state, State::Creating | State::Stopped) {
                    machine.state = State::Running;
                }
                Answer::Created(Self::shown(&id, machine))
            }
            Call::Get => Answer::Got(match self.machines.get(&id) {
                Some(machine) => Presence::Present(Box::new(Self::shown(&id, machine))),
                None => Presence::Absent,
            }),
            Call::Delete => Answer::Deleted(match self.machines.get_mut(&id) {
                Some(machine) if machine.deletes > 1 => {
                    // Goes on only when it is called again.
                    machine.deletes -= 1;
                    machine.state = State::Deleting;
                    Deletion::InProgress { message: None, poll_after: None, continuation: None }
                }
                _ => {
                    self.machines.remove(&id);
                    Deletion::Gone
                }
            }),
            Call::Search => Answer::Found(self.machines.iter().map(|(id, m)| Self::shown(id, m)).collect()),
        })
    }

    /// One pass, as the driver does it; answers how long it waits.
    fn pass(&mut self) -> Duration {
        for _ in 0..100 {
            if self.released {
                return secs(60);
            }
            let facts = self.facts();
            match next(&self.proxy, &mut self.memory, &facts) {
                Step::Store(status) => self.proxy.status = Some(*status),
                Step::Finalizer(present) => {
                    self.proxy.metadata.finalizers = present.then(|| vec![PROXY_FINALIZER.to_owned()]);
                    self.released = !present;
                }
                Step::Wait(wait) => {
                    self.proxy.status = Some(summarize(&self.proxy, &self.memory, &facts));
                    if wait.is_zero() {
                        self.fail("a wait of nothing");
                    }
                    return wait;
                }
                Step::Call(call) => {
                    if matches!(call, Call::Create | Call::Delete) {
                        self.proxy.status = Some(summarize(&self.proxy, &self.memory, &facts));
                    }
                    let decided_on = self.proxy.clone();
                    let answer = self.call(&call);
                    self.note(|| {
                        let what = answer.as_ref().map_err(|e| e.kind.label());
                        format!("{:?} {} of {:?}: {what:?}", self.now, call.function(), self.id())
                    });
                    let took = Duration::from_millis(self.random.random_range(1..2_000));
                    self.pass_time(took);
                    if self.odds(4) {
                        // Between the call and its answer.
                        self.crash();
                        continue;
                    }
                    let facts = self.facts();
                    let status = absorb(&decided_on, &mut self.memory, &facts, &call, answer, &mut self.random);
                    if let Some(status) = status {
                        self.proxy.status = Some(status);
                    }
                }
            }
            if self.odds(2) {
                self.crash();
            }
        }
        self.fail("a pass does not settle");
    }

    fn is_right(&self) -> bool {
        if self.released {
            return self.late.is_empty();
        }
        let ready =
            self.proxy.status.as_ref().is_some_and(|s| super::decide::up_to_date(&self.proxy, s, &OwnLogin::Unused));
        let one = self.machines.len() == 1 && self.machines.get(&self.id()).is_some_and(|m| m.state == State::Running);
        !self.proxy.is_deleting() && ready && one && self.late.is_empty()
    }

    fn run(&mut self) {
        while self.now < FAULTS_END {
            self.disturb();
            let wait = self.pass();
            // Something else may wake it sooner.
            let part = self.random.random_range(0.1..=1.0);
            self.pass_time(wait.mul_f64(part).max(Duration::from_millis(10)));
            if self.released {
                break;
            }
        }
        if self.released {
            self.pass_time(CALL_TIMEOUT + SURE);
        }
        self.foreign.clear();
        let until = self.now.max(FAULTS_END) + RIGHT_AFTER;
        while !self.is_right() {
            if self.now > until {
                self.fail("it does not come right");
            }
            let wait = self.pass();
            self.pass_time(wait);
        }
        if self.released && !self.machines.is_empty() {
            self.fail("an instance is left of a deleted Proxy");
        }
    }
}

#[test]
fn whatever_goes_wrong_one_instance_serves_in_the_end_or_none_is_left() {
    let only = std::env::var("MODEL_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..SCHEDULES, |seed: u64| seed..seed + 1) {
        World::new(seed, only.is_some()).run();
    }
}
