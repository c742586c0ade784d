//! Who exists, in which state: every change of an instance is made here, under one lock.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::error::ApiError;
use super::faults::{Faults, Kind, Subject};
use super::instance::{Instance, State};
use super::life::{Fate, Life, Plan};
use super::request::Order;
use super::{DELETION, Options};
use crate::forward_proxy::Behaviour;

/// Zone and name. Their order is the order of lists.
pub(super) type Key = (String, String);

/// An instance and what drives it.
struct Record {
    instance: Instance,
    plan: Plan,
    /// The port it had last, for a start after a stop.
    last_port: Option<u16>,
    life: Option<Life>,
}

/// A zone as the API shows it.
#[derive(Debug, Serialize)]
pub(super) struct Zone {
    name: String,
    healthy: bool,
    message: String,
    instances: usize,
    capacity: usize,
}

/// The whole cloud.
pub(super) struct Cloud {
    id: String,
    options: Options,
    /// The address behind `advertise`.
    interface: IpAddr,
    records: Mutex<BTreeMap<Key, Record>>,
    faults: Mutex<Faults>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Cloud {
    pub(super) fn new(options: Options, interface: IpAddr) -> Self {
        Self {
            id: format!("sandbox-{}", Uuid::new_v4().simple()),
            options,
            interface,
            records: Mutex::default(),
            faults: Mutex::default(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn token(&self) -> &str {
        &self.options.token
    }

    pub(super) fn interface(&self) -> IpAddr {
        self.interface
    }

    /// Where the lives of instances run.
    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Cancelled when the cloud ends.
    pub(super) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        // Nothing that holds the lock can panic half-way through a change.
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<Key, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every instance and waits until their ports are closed.
    pub(super) async fn end(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub(super) fn count(&self) -> usize {
        self.records().len()
    }

    pub(super) fn zones(&self) -> Vec<Zone> {
        let records = self.records();
        let capacity = self.options.capacity_per_zone;
        let zone = |name: &String| {
            let instances = count_in(&records, name);
            let message = if instances < capacity { String::new() } else { full(name, capacity) };
            Zone { name: name.clone(), healthy: true, message, instances, capacity }
        };
        self.options.zones.iter().map(zone).collect()
    }

    fn check_zone(&self, zone: &str) -> Result<(), ApiError> {
        if self.options.zones.iter().any(|known| known == zone) {
            Ok(())
        } else {
            Err(ApiError::NoSuchZone(zone.to_owned()))
        }
    }

    /// Makes an instance, unless its owner has it already. The flag says whether it was made now.
    pub(super) fn create(self: &Arc<Self>, key: Key, order: Order) -> Result<(Instance, bool), ApiError> {
        self.check_zone(&key.0)?;
        let mut records = self.records();
        let capacity = self.options.capacity_per_zone;
        let is_full = count_in(&records, &key.0) >= capacity;
        let vacant = match records.entry(key) {
            Entry::Occupied(taken) => {
                let there = &taken.get().instance;
                if there.owner != order.owner {
                    let owner = format!("{}/{}", there.owner.namespace, there.owner.name);
                    return Err(ApiError::Foreign { name: there.name.clone(), owner });
                }
                return Ok((there.clone(), false));
            }
            Entry::Vacant(vacant) => vacant,
        };
        let (zone, name) = vacant.key().clone();
        let about = Subject { zone: Some(&zone), name: Some(&name), owner: Some(&order.owner.name) };
        let mut faults = self.faults();
        if faults.strike(Kind::Quota, about).is_some() {
            return Err(ApiError::Quota("the quota of this cloud is used up".to_owned()));
        }
        if is_full {
            return Err(ApiError::Quota(full(&zone, capacity)));
        }
        let mut plan = Plan { boot: order.boot, fate: Fate::Serve, proxy: order.proxy };
        let slow = faults.strike(Kind::SlowBoot, about);
        if faults.strike(Kind::WrongProxy, about).is_some() {
            plan.proxy.behaviour = Behaviour::WrongPage;
        }
        if faults.strike(Kind::DeadProxy, about).is_some() {
            plan.fate = Fate::Dead;
        }
        if faults.strike(Kind::FailedBoot, about).is_some() {
            plan.fate = Fate::Fail;
        }
        drop(faults);
        let instance = Instance {
            id: format!("i-{}", Uuid::new_v4().simple()),
            name,
            zone,
            cloud_id: self.id.clone(),
            state: State::Booting,
            message: "the machine is booting".to_owned(),
            host: self.options.advertise.clone(),
            port: None,
            owner: order.owner,
            incarnation: order.incarnation,
            spec_hash: order.spec_hash,
            created_at: seconds_since_1970(),
        };
        let first = Plan { boot: slow.map_or(plan.boot, |fault| fault.boot()), ..plan.clone() };
        let life = Life::begin(self, vacant.key().clone(), first, None);
        vacant.insert(Record { instance: instance.clone(), plan, last_port: None, life: Some(life) });
        Ok((instance, true))
    }

    pub(super) fn get(&self, key: &Key) -> Result<Instance, ApiError> {
        self.with(key, |record| Ok(record.instance.clone()))
    }

    /// `owner.name` of an instance, if there is such an instance.
    pub(super) fn owner_name(&self, key: &Key) -> Option<String> {
        self.records().get(key).map(|record| record.instance.owner.name.clone())
    }

    /// Starts a stopped instance; one that is up already stays as it is.
    pub(super) fn start(self: &Arc<Self>, key: &Key) -> Result<Instance, ApiError> {
        self.with(key, |record| {
            match record.instance.state {
                State::Booting | State::Running => {}
                State::Stopped => {
                    record.life = Some(Life::begin(self, key.clone(), record.plan.clone(), record.last_port));
                    record.turn(State::Booting, "the machine is booting");
                }
                State::Failed | State::Deleting => return Err(record.cannot_be("started")),
            }
            Ok(record.instance.clone())
        })
    }

    /// Stops an instance, and waits until its port is closed.
    pub(super) async fn stop(&self, key: &Key) -> Result<Instance, ApiError> {
        let (instance, life) = self.with(key, |record| {
            if matches!(record.instance.state, State::Failed | State::Deleting) {
                return Err(record.cannot_be("stopped"));
            }
            record.turn(State::Stopped, "the machine is stopped");
            Ok((record.instance.clone(), record.end()))
        })?;
        if let Some(life) = life {
            life.ended().await;
        }
        Ok(instance)
    }

    /// Begins to delete an instance; it is gone a little later.
    pub(super) fn delete(self: &Arc<Self>, key: &Key) -> Result<Instance, ApiError> {
        self.with(key, |record| {
            if record.instance.state != State::Deleting {
                record.turn(State::Deleting, "the machine is being deleted");
                let (life, id) = (record.end(), record.instance.id.clone());
                self.tasks.spawn(Arc::clone(self).bury(key.clone(), id, life));
            }
            Ok(record.instance.clone())
        })
    }

    async fn bury(self: Arc<Self>, key: Key, id: String, life: Option<Life>) {
        if let Some(life) = life {
            life.ended().await;
        }
        tokio::select! {
            () = self.closing.cancelled() => {}
            () = tokio::time::sleep(DELETION) => {}
        }
        let mut records = self.records();
        // It may have vanished meanwhile and been made anew.
        if records.get(&key).is_some_and(|record| record.instance.id == id) {
            records.remove(&key);
        }
    }

    /// Replaces the faults. Those that make instances vanish strike at once; when this returns, their ports are closed.
    pub(super) async fn set_faults(&self, mut faults: Faults) {
        let mut lives = Vec::new();
        {
            let mut records = self.records();
            records.retain(|(zone, name), record| {
                let owner = Some(record.instance.owner.name.as_str());
                let about = Subject { zone: Some(zone), name: Some(name), owner };
                let vanishes = faults.strike(Kind::Vanish, about).is_some();
                if vanishes {
                    lives.extend(record.end());
                }
                !vanishes
            });
            *self.faults() = faults;
        }
        for life in lives {
            life.ended().await;
        }
    }

    /// Up to `limit` instances behind `after`, of one installation or of all, and whether there are more.
    pub(super) fn list(&self, installation: Option<&str>, limit: usize, after: Option<Key>) -> (Vec<Instance>, bool) {
        let records = self.records();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = records
            .range((start, Bound::Unbounded))
            .map(|(_, record)| &record.instance)
            .filter(|instance| installation.is_none_or(|wanted| instance.owner.installation == wanted));
        let page = found.by_ref().take(limit).cloned().collect();
        (page, found.next().is_some())
    }

    /// A life reports that its port is open, unless it has been told to stop.
    pub(super) fn running(&self, key: &Key, stop: &CancellationToken, port: u16) {
        self.report(key, stop, |record| {
            record.turn(State::Running, "the proxy is up");
            record.instance.port = Some(port);
            record.last_port = Some(port);
        });
    }

    /// A life reports that it came to nothing, unless it has been told to stop.
    pub(super) fn failed(&self, key: &Key, stop: &CancellationToken, why: &str) {
        self.report(key, stop, |record| record.turn(State::Failed, why));
    }

    /// Lives are told to stop under the lock, so a report of one that was not is about the present.
    fn report(&self, key: &Key, stop: &CancellationToken, change: impl FnOnce(&mut Record)) {
        let mut records = self.records();
        if let Some(record) = records.get_mut(key).filter(|_| !stop.is_cancelled()) {
            change(record);
        }
    }

    fn with<T>(&self, key: &Key, act: impl FnOnce(&mut Record) -> Result<T, ApiError>) -> Result<T, ApiError> {
        self.check_zone(&key.0)?;
        match self.records().get_mut(key) {
            Some(record) => act(record),
            None => Err(ApiError::NoSuchInstance { zone: key.0.clone(), name: key.1.clone() }),
        }
    }
}

impl Record {
    fn turn(&mut self, state: State, message: &str) {
        self.instance.state = state;
        self.instance.message = message.to_owned();
        self.instance.port = None;
    }

    /// Tells the life to stop, and hands it out to be waited for.
    fn end(&mut self) -> Option<Life> {
        let life = self.life.take();
        if let Some(life) = &life {
            life.stop();
        }
        life
    }

    fn cannot_be(&self, wish: &'static str) -> ApiError {
        ApiError::WrongState { name: self.instance.name.clone(), state: self.instance.state, wish }
    }
}

fn count_in(records: &BTreeMap<Key, Record>, zone: &str) -> usize {
    records.keys().filter(|key| key.0 == zone).count()
}

fn full(zone: &str, capacity: usize) -> String {
    format!("{zone} is full: it holds {capacity} instances")
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
