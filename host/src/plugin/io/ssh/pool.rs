//! The connection that all commands of one account share: made when the first needs it, by one of them for all, replaced
//! when it is lost or its key or pins were rotated, and closed when nobody used it for a while.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Connection, connect};
use super::{Account, Material};
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};

/// How long a connection stays that nobody uses.
const IDLE: Duration = Duration::from_secs(45);

/// At most one connection that takes new commands.
#[derive(Default)]
pub(super) struct Pool {
    current: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    /// The last attempt that failed: when it ended, with what key and pins, how.
    failed: Option<(Instant, [u8; 32], Fault)>,
}

struct Live {
    connection: Arc<Connection>,
    _idle: AbortOnDropHandle<()>,
}

/// The right to run one command on a connection.
pub(super) struct Slot {
    pub connection: Arc<Connection>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Slot {
    /// The server opened no channel for it: one place fewer on this connection.
    pub fn shrink(mut self) {
        if let Some(permit) = self.permit.take() {
            self.connection.shrink(permit);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.connection.touch();
    }
}

impl Pool {
    /// A place for one command, on a connection made with this material.
    pub async fn slot(self: &Arc<Self>, account: &Account, material: &Material, until: Instant) -> Result<Slot, Fault> {
        loop {
            let connection = timeout_at(until, self.connection(account, material)).await.unwrap_or_else(|_| {
                Err(account.fault(
                    FaultKind::TimedOut,
                    false,
                    "the time limit passed while it was still connecting; the command was not sent",
                ))
            })?;
            let free = connection.slots.clone().acquire_owned();
            tokio::select! {
                permit = free => match permit {
                    Ok(permit) if connection.is_alive() => return Ok(Slot { connection, permit: Some(permit) }),
                    _ => {}
                },
                () = connection.lost.token.cancelled() => {}
                () = sleep_until(until) => {
                    let what = "all channels of the connection were in use until the time limit passed; the command was not sent";
                    return Err(account.fault(FaultKind::Busy, false, what));
                }
            }
            self.retire(&connection).await;
        }
    }

    /// No new command on this connection: it ends with those that run.
    pub async fn retire(&self, connection: &Arc<Connection>) {
        let mut state = self.current.lock().await;
        if state.live.as_ref().is_some_and(|live| Arc::ptr_eq(&live.connection, connection)) {
            state.live = None;
        }
    }

    /// The present connection, or a new one. Whoever comes while one is being made waits for it.
    async fn connection(self: &Arc<Self>, account: &Account, material: &Material) -> Result<Arc<Connection>, Fault> {
        let came = Instant::now();
        let mut state = self.current.lock().await;
        if let Some(live) = &state.live {
            if live.connection.is_alive() && live.connection.made_from == material.digest {
                return Ok(live.connection.clone());
            }
            state.live = None;
        }
        // Each of many that wait for a dead host would else wait for its own attempt, one after the other.
        if let Some((ended, made_from, fault)) = &state.failed
            && *ended >= came
            && *made_from == material.digest
        {
            return Err(fault.clone());
        }
        match connect(account, material).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                let idle = tokio::spawn(close_when_idle(Arc::downgrade(self), Arc::downgrade(&connection)));
                state.live = Some(Live { connection: connection.clone(), _idle: AbortOnDropHandle::new(idle) });
                Ok(connection)
            }
            Err(fault) => {
                state.failed = Some((Instant::now(), material.digest, fault.clone()));
                Err(fault)
            }
        }
    }
}

async fn close_when_idle(pool: Weak<Pool>, connection: Weak<Connection>) {
    loop {
        let Some(last) = connection.upgrade().map(|connection| connection.last_used()) else { return };
        sleep_until((last + IDLE).max(Instant::now() + Duration::from_secs(1))).await;
        let (Some(pool), Some(connection)) = (pool.upgrade(), connection.upgrade()) else { return };
        let mut state = pool.current.lock().await;
        if !connection.busy() && connection.last_used().elapsed() >= IDLE {
            // Ends this task too.
            state.live = None;
            return;
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
