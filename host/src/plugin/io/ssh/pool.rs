//! The connection that all commands of one account share: made when the first needs it, by one of them for all, replaced
//! when it is lost or its key or pins were rotated, and closed when nobody used it for a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Connection, connect};
use super::{Account, Material};
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};

/// How long a connection stays that nobody uses.
const IDLE: Duration = Duration::from_secs(45);

/// At most one connection that takes new commands.
#[derive(Default)]
pub(super) struct Pool(Mutex<State>);

#[derive(Default)]
struct State {
    live: Option<Live>,
    /// A connection in the making, and what it is made with.
    attempt: Option<([u8; 32], Attempt)>,
}

/// What comes of an attempt; none as long as it runs.
type Attempt = watch::Receiver<Option<Result<Arc<Connection>, Fault>>>;

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
    pub async fn slot(
        self: &Arc<Self>,
        account: &Arc<Account>,
        material: &Material,
        until: Instant,
    ) -> Result<Slot, Fault> {
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
                () = connection.regain() => {}
                () = connection.lost.token.cancelled() => {}
                () = sleep_until(until) => {
                    let what = "all channels of the connection were in use until the time limit passed; the command was not sent";
                    return Err(account.fault(FaultKind::Busy, false, what));
                }
            }
            self.retire(&connection);
        }
    }

    /// No new command on this connection: it ends with those that run.
    pub fn retire(&self, connection: &Arc<Connection>) {
        let mut state = self.lock();
        if state.live.as_ref().is_some_and(|live| Arc::ptr_eq(&live.connection, connection)) {
            state.live = None;
        }
    }

    /// The present connection, or a new one. Whoever comes while one is being made waits for it, and shares what comes of
    /// it: each of many would else wait for its own attempt at a dead host, one after the other.
    async fn connection(
        self: &Arc<Self>,
        account: &Arc<Account>,
        material: &Material,
    ) -> Result<Arc<Connection>, Fault> {
        let mut attempt = {
            let mut state = self.lock();
            if let Some(live) = &state.live {
                if live.connection.is_alive() && live.connection.made_from == material.digest {
                    return Ok(live.connection.clone());
                }
                state.live = None;
            }
            match &state.attempt {
                Some((made_from, attempt)) if *made_from == material.digest => attempt.clone(),
                _ => {
                    let (tell, attempt) = watch::channel(None);
                    state.attempt = Some((material.digest, attempt.clone()));
                    // A task of its own: a slow server would never be connected to by calls that wait shorter.
                    tokio::spawn(make(Arc::downgrade(self), account.clone(), material.clone(), tell));
                    attempt
                }
            }
        };
        let made = attempt.wait_for(Option::is_some).await.ok().and_then(|made| made.clone());
        made.unwrap_or_else(|| {
            let what = "the operator failed while it connected; please report it with the log";
            Err(account.fault(FaultKind::Other, false, what))
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a connection, puts it into its pool, and tells those who wait. It ends by itself, within the time limits of a
/// connection.
async fn make(
    pool: Weak<Pool>,
    account: Arc<Account>,
    material: Material,
    tell: watch::Sender<Option<Result<Arc<Connection>, Fault>>>,
) {
    let made = connect(&account, &material).await.map(Arc::new);
    // Without the account, which holds the pool.
    drop(account);
    if let Some(pool) = pool.upgrade() {
        let mut state = pool.lock();
        if state.attempt.as_ref().is_some_and(|(made_from, _)| *made_from == material.digest) {
            state.attempt = None;
            if let Ok(connection) = &made {
                let idle = tokio::spawn(close_when_idle(Arc::downgrade(&pool), Arc::downgrade(connection)));
                state.live = Some(Live { connection: connection.clone(), _idle: AbortOnDropHandle::new(idle) });
            }
        }
    }
    // Nobody waits any longer: it is there for the next.
    let _ = tell.send(Some(made));
}

async fn close_when_idle(pool: Weak<Pool>, connection: Weak<Connection>) {
    loop {
        let Some(last) = connection.upgrade().map(|connection| connection.last_used()) else { return };
        sleep_until((last + IDLE).max(Instant::now() + Duration::from_secs(1))).await;
        let (Some(pool), Some(connection)) = (pool.upgrade(), connection.upgrade()) else { return };
        let mut state = pool.lock();
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
