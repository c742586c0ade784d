//! What the backend holds, and how it answers: by the contract, late, or not at all.

use std::collections::{BTreeMap, BTreeSet};

use proxy_operator::control::proxy::decide::{Answer, Call};
use proxy_operator::model::error::{CallError, ErrorKind};
use proxy_operator::model::instance::{Address, Deletion, Instance, Presence, State};
use rand::RngExt;
use rand::rngs::StdRng;

pub const PLACES: [&str; 3] = ["a", "b", "c"];

/// Proxy, incarnation, placement: what names and tags are made of.
pub type Id = (usize, u32, String);

#[derive(Clone, Debug)]
pub struct Machine {
    pub state: State,
    /// Its proxy does not answer.
    pub bad: bool,
    /// Deletes that are still needed until it is gone.
    deletes: u32,
}

#[derive(Default)]
pub struct Backend {
    pub machines: BTreeMap<Id, Machine>,
    /// Names that something of others has.
    pub foreign: BTreeSet<Id>,
}

impl Backend {
    /// A create arrives. Idempotent by identity, as the contract asks.
    pub fn land(&mut self, id: &Id, random: &mut StdRng) {
        if !self.foreign.contains(id) {
            let deletes = random.random_range(1..=3);
            self.machines.entry(id.clone()).or_insert(Machine { state: State::Creating, bad: false, deletes });
        }
    }

    /// A call arrives about `id`; `index`: of the Proxy.
    pub fn answer(&mut self, call: &Call, id: &Id, random: &mut StdRng) -> Result<Answer, CallError> {
        if self.foreign.contains(id) && matches!(call, Call::Create | Call::Get | Call::Delete) {
            return Err(CallError::new(ErrorKind::Foreign, "of somebody else"));
        }
        Ok(match call {
            Call::Validate => Answer::Validated(vec![]),
            Call::Place(avoid) => match PLACES.iter().find(|p| !avoid.iter().any(|a| a == *p)) {
                Some(place) => Answer::Placed((*place).into()),
                None => return Err(CallError::new(ErrorKind::Exhausted, "nowhere")),
            },
            Call::Create => {
                self.land(id, random);
                let machine = self.machines.get_mut(id).expect("it has just landed");
                if matches!(machine.state, State::Creating | State::Stopped) {
                    machine.state = State::Running;
                }
                Answer::Created(shown(id, machine))
            }
            Call::Get => Answer::Got(match self.machines.get(id) {
                Some(machine) => Presence::Present(Box::new(shown(id, machine))),
                None => Presence::Absent,
            }),
            Call::Delete => Answer::Deleted(match self.machines.get_mut(id) {
                Some(machine) if machine.deletes > 1 => {
                    // Goes on only when it is called again.
                    machine.deletes -= 1;
                    machine.state = State::Deleting;
                    Deletion::InProgress { message: None, poll_after: None, continuation: None }
                }
                _ => {
                    self.machines.remove(id);
                    Deletion::Gone
                }
            }),
            Call::Search => {
                let own = self.machines.iter().filter(|(other, _)| other.0 == id.0);
                Answer::Found(own.map(|(id, machine)| shown(id, machine)).collect())
            }
        })
    }

    /// Whether a probe through the proxy of this instance passes.
    pub fn serves(&self, id: &Id) -> bool {
        self.machines.get(id).is_some_and(|machine| machine.state == State::Running && !machine.bad)
    }
}

fn shown((_, incarnation, placement): &Id, machine: &Machine) -> Instance {
    let running = machine.state == State::Running;
    Instance {
        provider_id: format!("{placement}-{incarnation}"),
        backend_id: None,
        placement: placement.clone(),
        addresses: if running { vec![Address { host: "192.0.2.1".into(), external: true }] } else { vec![] },
        state: machine.state.clone(),
        port: None,
        owner: None,
        incarnation: Some(*incarnation),
        message: None,
        login_secret: None,
        poll_after: None,
        continuation: None,
    }
}
