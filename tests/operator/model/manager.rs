//! One run of the operator: what it remembers, and the copy of the objects on which it decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proxy_operator::control::proxy::settle::member;
use proxy_operator::control::proxy::{Listed, Memory, Roster};
use proxy_operator::model::proxy::Proxy;

/// An object and its version, as the store has it.
#[derive(Clone)]
pub struct Object {
    pub proxy: Proxy,
    pub version: u64,
    /// It was deleted for good.
    pub gone: bool,
}

pub struct Manager {
    /// Its clock begins at nought.
    pub started: Duration,
    /// Frozen until then.
    pub frozen: Option<Duration>,
    /// It found out that another leads, and ends.
    pub over: bool,
    /// Proxies that a call is under way for, and those among them that are to be looked at after it.
    pub busy: BTreeSet<usize>,
    pub wanted: BTreeSet<usize>,
    /// When each is looked at next.
    pub due: BTreeMap<usize, Duration>,
    pub memories: BTreeMap<usize, Memory>,
    pub listed: BTreeMap<usize, Listed>,
    pub roster: Roster,
    /// What its watch last showed.
    pub cache: Vec<Object>,
}

impl Manager {
    /// A run that begins now.
    pub fn new(objects: &[Object], now: Duration) -> Self {
        let this = Self {
            started: now,
            frozen: None,
            over: false,
            busy: BTreeSet::new(),
            wanted: BTreeSet::new(),
            due: BTreeMap::new(),
            memories: objects.iter().map(|o| Memory::new(&o.proxy, Duration::ZERO)).enumerate().collect(),
            listed: BTreeMap::new(),
            roster: Roster::default(),
            cache: objects.to_vec(),
        };
        for (index, object) in objects.iter().enumerate().filter(|(_, object)| !object.gone) {
            this.enrol(index, &object.proxy, Duration::ZERO);
        }
        this
    }

    /// Shows how a Proxy stands to the others.
    pub fn enrol(&self, index: usize, proxy: &Proxy, now: Duration) {
        self.roster.set(super::world::PROVIDER, &index.to_string(), member(proxy, &self.memories[&index]), now);
    }
}
