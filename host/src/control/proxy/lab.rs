//! One Proxy on the bench: object, memory and facts, moved by hand.

use std::time::Duration;

use jiff::Timestamp;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::absorb::absorb;
use super::decide::{Answer, Call, Step, next};
use super::summary::summarize;
use super::{Facts, Memory, OwnLogin, ProviderFacts, ReadyProvider, Standing};
use crate::health::Verdict;
use crate::health::probe::{Failure, FailureKind};
use crate::model::PROXY_FINALIZER;
use crate::model::error::{CallError, ErrorKind};
use crate::model::instance::{Address, Deletion, Instance, Presence, State};
use crate::model::proxy::{InstanceStatus, Proxy, ProxySpec};

pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// From when on nothing that was sent can land.
pub(super) const SURE: Duration = Duration::from_secs(60);

pub(super) struct Lab {
    pub proxy: Proxy,
    pub memory: Memory,
    pub facts: Facts,
    pub released: bool,
    random: StdRng,
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(in crate::control) fn mk_proxy() -> Proxy {
    let mut proxy = Proxy::new("a", ProxySpec::of_provider("p"));
    proxy.metadata.namespace = Some("n".into());
    proxy.metadata.uid = Some("6b1d5c52-0d3a-4b53-9b8e-0a6a4e3d9a01".into());
    proxy.metadata.generation = Some(1);
    proxy
}

pub(super) fn mk_provider() -> ReadyProvider {
    ReadyProvider {
        epoch: 1,
        taken: vec![],
        one_per_place: false,
        create_deadline: secs(600),
        call_timeout: CALL_TIMEOUT,
        reach: None,
        surges: false,
        max_unavailable: "25%".into(),
        instances: None,
        absence_accepted: false,
        denied: None,
    }
}

pub(in crate::control) fn mk_instance(placement: &str, state: State) -> Instance {
    let address = Address { host: "192.0.2.1".into(), external: true };
    Instance {
        provider_id: "vm-1".into(),
        backend_id: Some("b-1".into()),
        placement: placement.into(),
        addresses: if state == State::Running { vec![address] } else { vec![] },
        state,
        port: None,
        owner: None,
        incarnation: Some(0),
        message: None,
        login_secret: None,
        poll_after: None,
        continuation: None,
    }
}

pub(super) fn bad(kind: FailureKind) -> Verdict {
    Verdict::Unhealthy(Failure { kind, message: "m".into() })
}

pub(super) fn healthy() -> Verdict {
    Verdict::Healthy { exit_ip: None }
}

pub(super) fn error<T>(kind: ErrorKind) -> Result<T, CallError> {
    Err(CallError::new(kind, "no luck"))
}

impl Lab {
    /// A Proxy of which nothing was done yet.
    pub fn new() -> Self {
        let proxy = mk_proxy();
        let facts = Facts {
            provider: ProviderFacts::Ready(mk_provider()),
            health: Verdict::Unknown,
            next_health: Verdict::Unknown,
            held: false,
            held_retiring: vec![],
            standing: Standing { total: 1, ..Standing::default() },
            listed: None,
            now: secs(10_000),
            wall: Timestamp::UNIX_EPOCH,
            login_key: "k1".into(),
            own_login: OwnLogin::Unused,
        };
        let memory = Memory::new(&proxy, facts.now);
        Self { proxy, memory, facts, released: false, random: StdRng::seed_from_u64(1) }
    }

    /// At its first create.
    pub fn creating() -> Self {
        let mut lab = Self::new();
        lab.on(Call::Validate, Ok(Answer::Validated(vec![])));
        lab.on(Call::Place(vec![]), Ok(Answer::Placed("zone-a".into())));
        assert_eq!(lab.next(), Step::Finalizer(true));
        lab.finalizer(true);
        assert_eq!(lab.next(), Step::Call(Call::Create));
        lab
    }

    /// Made, with this state.
    pub fn made(state: State) -> Self {
        let mut lab = Self::creating();
        lab.absorb(Call::Create, Ok(Answer::Created(mk_instance("zone-a", state))));
        lab
    }

    /// Serving, and the status says so.
    pub fn serving() -> Self {
        let mut lab = Self::made(State::Running);
        lab.facts.health = healthy();
        assert!(matches!(lab.next(), Step::Wait(_)));
        lab.settle();
        lab
    }

    pub fn next(&mut self) -> Step {
        next(&self.proxy, &mut self.memory, &self.facts)
    }

    /// The next call or wait, after what only has to be stored.
    pub fn run(&mut self) -> Step {
        for _ in 0..20 {
            match self.next() {
                Step::Store(status) => self.proxy.status = Some(*status),
                Step::Finalizer(present) => {
                    self.finalizer(present);
                    if self.released {
                        return Step::Finalizer(false);
                    }
                }
                step => return step,
            }
        }
        panic!("it does not settle: {:?}", self.memory)
    }

    /// Expects this call, and answers it.
    pub fn on(&mut self, call: Call, answer: Result<Answer, CallError>) {
        assert_eq!(self.run(), Step::Call(call.clone()), "{:?}", self.memory);
        self.absorb(call, answer);
    }

    pub fn absorb(&mut self, call: Call, answer: Result<Answer, CallError>) {
        if let Some(status) = absorb(&self.proxy, &mut self.memory, &self.facts, &call, answer, &mut self.random) {
            self.proxy.status = Some(status);
        }
    }

    pub fn finalizer(&mut self, present: bool) {
        self.proxy.metadata.finalizers = present.then(|| vec![PROXY_FINALIZER.to_owned()]);
        self.released = !present;
    }

    /// Stores what the status should say.
    pub fn settle(&mut self) {
        self.proxy.status = Some(summarize(&self.proxy, &self.memory, &self.facts));
    }

    pub fn wait(&mut self) -> Duration {
        match self.run() {
            Step::Wait(wait) => wait,
            step => panic!("no wait: {step:?}"),
        }
    }

    pub fn advance(&mut self, by: Duration) {
        self.facts.now += by;
    }

    /// The operator starts again: only the object is left.
    pub fn restart(&mut self) {
        self.facts.now = secs(1);
        self.facts.health = Verdict::Unknown;
        self.facts.listed = None;
        self.memory = Memory::new(&self.proxy, self.facts.now);
    }

    /// Another spec, which is accepted.
    pub fn edit(&mut self, edit: impl FnOnce(&mut ProxySpec)) {
        edit(&mut self.proxy.spec);
        self.proxy.metadata.generation = self.proxy.metadata.generation.map(|g| g + 1);
        self.on(Call::Validate, Ok(Answer::Validated(vec![])));
    }

    pub fn delete(&mut self) {
        let at = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.facts.wall);
        self.proxy.metadata.deletion_timestamp = Some(at);
    }

    /// Deletes the object, and answers the look that comes first.
    pub fn delete_seen(&mut self, state: State) {
        self.delete();
        self.on(Call::Get, shown(state));
    }

    pub fn provider(&mut self) -> &mut ReadyProvider {
        match &mut self.facts.provider {
            ProviderFacts::Ready(provider) => provider,
            other => panic!("{other:?}"),
        }
    }

    pub fn instance(&self) -> InstanceStatus {
        self.proxy.status.as_ref().and_then(|s| s.instance.clone()).unwrap_or_default()
    }
}

pub(super) fn shown(state: State) -> Result<Answer, CallError> {
    Ok(Answer::Got(Presence::Present(Box::new(mk_instance("zone-a", state)))))
}

pub(super) fn absent() -> Result<Answer, CallError> {
    Ok(Answer::Got(Presence::Absent))
}

pub(super) fn gone() -> Result<Answer, CallError> {
    Ok(Answer::Deleted(Deletion::Gone))
}

pub(super) fn placed(at: &str) -> Result<Answer, CallError> {
    Ok(Answer::Placed(at.into()))
}
