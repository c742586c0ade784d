//! Accepting clients until told to stop: one task each, a bound on how many, and none left behind.

use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The pause after a failed accept. Its usual cause is too many open files, which only time heals; without a pause the loop
/// would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Runs `serve_client` for each client of `listener`, at most `limit` at once, until `shutdown` is cancelled. Then it closes
/// the listener, drops all clients' futures, and returns when every task of `tasks` has ended.
///
/// Clients over the limit are hung up on: one that waited in the backlog could not tell a full server from a dead one.
pub(crate) async fn accept_until<F>(
    listener: TcpListener,
    limit: NonZeroUsize,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    serve_client: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    // If this future is dropped instead of told to stop, the clients go all the same.
    let closing = shutdown.child_token();
    let _hang_up = closing.clone().drop_guard();
    let slots = Arc::new(Semaphore::new(limit.get().min(Semaphore::MAX_PERMITS)));
    loop {
        let accepted = tokio::select! {
            biased;
            () = closing.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let client = match accepted {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::select! {
                    () = closing.cancelled() => break,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => continue,
                }
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            tracing::debug!(limit, "a client was hung up on: too many are connected");
            continue;
        };
        let served = serve_client(client);
        let closing = closing.clone();
        tasks.spawn(async move {
            let _slot = slot;
            tokio::select! {
                biased;
                () = closing.cancelled() => {}
                () = served => {}
            }
        });
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}
