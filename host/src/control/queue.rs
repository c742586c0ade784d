//! The work queue, as operators know it: each key once, never twice at the same time, delayed or at once.

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

struct State<K> {
    ready: VecDeque<(K, Instant)>,
    /// What is in `ready`, or was added while it was worked on.
    wanted: HashSet<K>,
    working: HashSet<K>,
    timers: BinaryHeap<Reverse<(Instant, K)>>,
    /// The earliest timer of each key; later ones are passed over.
    due: HashMap<K, Instant>,
    metrics: QueueMetrics,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// An empty one, whose metrics carry this name.
    pub fn named(name: &'static str) -> Self {
        let state = State {
            ready: VecDeque::new(),
            wanted: HashSet::new(),
            working: HashSet::new(),
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
                    if !state.ready.is_empty() {
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
        self.lock().ready.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    fn add(&mut self, key: K) {
        // Work that is due at once makes a later timer needless.
        self.due.remove(&key);
        if self.wanted.insert(key.clone()) && !self.working.contains(&key) {
            self.push(key);
        }
    }

    fn push(&mut self, key: K) {
        self.ready.push_back((key, Instant::now()));
        self.metrics.added(self.ready.len());
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
        let (key, since) = self.ready.pop_front()?;
        self.metrics.taken(self.ready.len(), since.elapsed());
        self.wanted.remove(&key);
        self.working.insert(key.clone());
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
        let mut state = self.queue.lock();
        state.working.remove(&self.key);
        if state.wanted.contains(&self.key) {
            // Asked for while it was worked on.
            state.push(self.key.clone());
        }
        drop(state);
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
