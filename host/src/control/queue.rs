//! The work queue, as operators know it: each key once, never twice at the same time, delayed or at once. Its keys may be on
//! lanes, which take turns, and of which none is worked on more often at once than its share.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::model::metrics::{METRICS, QueueMetrics};

/// A queue of keys. Cheap to clone.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

/// Names the lane of a key.
type LaneOf<K> = Box<dyn Fn(&K) -> String + Send + Sync>;

struct State<K> {
    lane_of: LaneOf<K>,
    /// Keys of one lane that are worked on at once, at most.
    share: usize,
    lanes: HashMap<String, Lane<K>>,
    /// Lanes with a key that may be handed out now, each once.
    turns: VecDeque<String>,
    /// Keys that are ready.
    depth: usize,
    /// What is ready, or was added while it was worked on.
    wanted: HashSet<K>,
    /// What is worked on, and on which lane.
    working: HashMap<K, String>,
    timers: BinaryHeap<Reverse<(Instant, K)>>,
    /// The earliest timer of each key; later ones are passed over.
    due: HashMap<K, Instant>,
    metrics: QueueMetrics,
}

struct Lane<K> {
    ready: VecDeque<(K, Instant)>,
    working: usize,
    /// Whether it is among those that have a turn.
    has_turn: bool,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// An empty one, whose metrics carry this name.
    pub fn named(name: &'static str) -> Self {
        Self::with_lanes(name, usize::MAX, |_| String::new())
    }

    /// The same, where at most `share` keys of a lane are worked on at once.
    pub fn with_lanes(
        name: &'static str,
        share: usize,
        lane_of: impl Fn(&K) -> String + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            lane_of: Box::new(lane_of),
            share,
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            depth: 0,
            wanted: HashSet::new(),
            working: HashMap::new(),
            timers: BinaryHeap::new(),
            due: HashMap::new(),
            metrics: METRICS.queue(name),
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), wake: Notify::new() }) }
    }

    /// Asks for work on a key, now.
    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.shared.wake.notify_one();
    }

    /// Asks for work on a key after a while; an earlier moment replaces a later one.
    pub fn add_after(&self, key: K, wait: Duration) {
        let at = Instant::now() + wait;
        let mut state = self.lock();
        if state.due.get(&key).is_none_or(|due| *due > at) {
            state.due.insert(key.clone(), at);
            state.timers.push(Reverse((at, key)));
            state.tidy();
        }
        drop(state);
        self.shared.wake.notify_one();
    }

    /// The next key to work on. Nobody else gets it until the guard is dropped.
    pub async fn next(&self) -> Working<K> {
        loop {
            let until = {
                let mut state = self.lock();
                state.ring();
                if let Some(key) = state.take() {
                    if !state.turns.is_empty() {
                        self.shared.wake.notify_one();
                    }
                    return Working { queue: self.clone(), key };
                }
                state.timers.peek().map(|Reverse((at, _))| *at)
            };
            match until {
                Some(at) => drop(tokio::time::timeout_at(at, self.shared.wake.notified()).await),
                None => self.shared.wake.notified().await,
            }
        }
    }

    #[cfg(test)]
    fn depth(&self) -> usize {
        self.lock().depth
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    fn add(&mut self, key: K) {
        // Work that is due at once makes a later timer needless.
        self.due.remove(&key);
        if self.wanted.insert(key.clone()) && !self.working.contains_key(&key) {
            self.push(key);
        }
    }

    fn push(&mut self, key: K) {
        let name = (self.lane_of)(&key);
        let new = || Lane { ready: VecDeque::new(), working: 0, has_turn: false };
        self.lanes.entry(name.clone()).or_insert_with(new).ready.push_back((key, Instant::now()));
        self.depth += 1;
        self.metrics.added(self.depth);
        self.give_turn(name);
    }

    /// Gives a lane its turn where one of its keys may be handed out; one that is done with is forgotten.
    fn give_turn(&mut self, name: String) {
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        if lane.ready.is_empty() && lane.working == 0 {
            self.lanes.remove(&name);
        } else if !lane.ready.is_empty() && lane.working < self.share && !lane.has_turn {
            lane.has_turn = true;
            self.turns.push_back(name);
        }
    }

    /// A key is worked on no more.
    fn done(&mut self, key: &K) {
        let Some(name) = self.working.remove(key) else { return };
        if self.wanted.contains(key) {
            // Asked for while it was worked on.
            self.push(key.clone());
        }
        if let Some(lane) = self.lanes.get_mut(&name) {
            lane.working -= 1;
        }
        self.give_turn(name);
    }

    /// Moves keys whose time has come.
    fn ring(&mut self) {
        let now = Instant::now();
        while self.timers.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            if let Some(Reverse((at, key))) = self.timers.pop()
                && self.due.get(&key) == Some(&at)
            {
                self.add(key);
            }
        }
    }

    /// Drops timers that were replaced, once they are the most: they would stay until their time.
    fn tidy(&mut self) {
        if self.timers.len() > 64 + 4 * self.due.len() {
            self.timers = self.due.iter().map(|(key, at)| Reverse((*at, key.clone()))).collect();
        }
    }

    fn take(&mut self) -> Option<K> {
        let name = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&name)?;
        lane.has_turn = false;
        let (key, since) = lane.ready.pop_front()?;
        lane.working += 1;
        self.depth -= 1;
        self.metrics.taken(self.depth, since.elapsed());
        self.wanted.remove(&key);
        self.working.insert(key.clone(), name.clone());
        self.give_turn(name);
        Some(key)
    }
}

/// A key that is being worked on.
pub struct Working<K: Clone + Eq + Hash + Ord> {
    queue: Queue<K>,
    /// The key.
    pub key: K,
}

impl<K: Clone + Eq + Hash + Ord> Drop for Working<K> {
    fn drop(&mut self) {
        self.queue.lock().done(&self.key);
        self.queue.shared.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_handed_out_once_and_again_when_it_was_added_meanwhile() {
        let queue = Queue::named("test");
        queue.add("a");
        queue.add("a");
        let first = queue.next().await;
        assert_eq!((first.key, queue.depth()), ("a", 0));
        queue.add("a");
        assert_eq!(queue.depth(), 0, "never twice at the same time");
        drop(first);
        assert_eq!(queue.next().await.key, "a");
        assert_eq!(queue.depth(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_timer_of_a_key_wins_and_rings_once() {
        let queue = Queue::named("test");
        let start = Instant::now();
        queue.add_after("a", Duration::from_secs(60));
        queue.add_after("a", Duration::from_secs(5));
        queue.add_after("a", Duration::from_secs(30));
        drop(queue.next().await);
        assert_eq!(start.elapsed().as_secs(), 5);
        let more = tokio::time::timeout(Duration::from_secs(300), queue.next()).await;
        assert!(more.is_err(), "the later timers were replaced");
    }

    #[tokio::test(start_paused = true)]
    async fn timers_that_were_replaced_do_not_pile_up() {
        let queue = Queue::named("test");
        for _ in 0..10_000 {
            queue.add_after("a", Duration::from_secs(3600));
            queue.add("a");
            drop(queue.next().await);
        }
        queue.add_after("a", Duration::from_secs(5));
        assert!(queue.lock().timers.len() < 100);
        let start = Instant::now();
        drop(queue.next().await);
        assert_eq!(start.elapsed().as_secs(), 5);
    }

    /// One Provider whose calls hung once kept all workers, and the Proxies of the others waited for it.
    #[tokio::test(start_paused = true)]
    async fn a_lane_whose_keys_hang_has_its_share_and_the_others_go_on() {
        let queue = Queue::with_lanes("test", 2, |key: &&str| key[..1].to_owned());
        for key in ["a1", "a2", "a3", "a4", "b1", "b2", "b3"] {
            queue.add(key);
        }
        let next = || async { tokio::time::timeout(Duration::from_secs(1), queue.next()).await.ok() };
        let hanging = [next().await.unwrap(), next().await.unwrap(), next().await.unwrap()];
        assert_eq!(hanging.each_ref().map(|working| working.key), ["a1", "b1", "a2"], "lanes take turns");
        let [a1, b1, a2] = hanging;
        drop(b1);
        for expected in ["b2", "b3"] {
            assert_eq!(next().await.unwrap().key, expected);
        }
        assert!(next().await.is_none(), "the other lane has its share");
        queue.add("b1");
        queue.add("a1");
        assert_eq!(next().await.unwrap().key, "b1");
        assert_eq!(queue.depth(), 2);
        drop(a1);
        for expected in ["a3", "a4", "a1"] {
            assert_eq!(next().await.unwrap().key, expected, "in the order in which they were asked for");
        }
        drop(a2);
        assert!(next().await.is_none());
        assert!(queue.lock().lanes.is_empty(), "nothing is kept of lanes that are done");
    }

    #[tokio::test(start_paused = true)]
    async fn many_workers_share_many_keys() {
        let queue = Queue::named("test");
        for key in 0..100 {
            queue.add(key);
        }
        let workers = (0..4).map(|_| {
            let queue = queue.clone();
            async move {
                let mut seen = Vec::new();
                while let Ok(working) = tokio::time::timeout(Duration::from_secs(1), queue.next()).await {
                    tokio::task::yield_now().await;
                    seen.push(working.key);
                }
                seen
            }
        });
        let mut all: Vec<i32> = futures::future::join_all(workers).await.concat();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}
