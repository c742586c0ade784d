//! The life of one instance: it boots, serves or fails to, and ends when it is told.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::cloud::{Cloud, Key};
use crate::forward_proxy;

/// What becomes of an instance that has booted.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    /// Its proxy serves, rightly or wrongly.
    Serve,
    /// It does not come up.
    Fail,
    /// It comes up, and nothing listens on its port.
    Dead,
}

/// What an instance does from a start on.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) boot: Duration,
    pub(super) fate: Fate,
    pub(super) proxy: forward_proxy::Options,
}

/// An instance's task, from start to stop.
pub(super) struct Life {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Life {
    /// Starts the life of the instance at `key`. It likes to have `port` again if it had one before.
    pub(super) fn begin(cloud: &Arc<Cloud>, key: Key, plan: Plan, port: Option<u16>) -> Self {
        let stop = cloud.closing().child_token();
        let life = live(Arc::clone(cloud), key, plan, port, stop.clone());
        Self { task: cloud.tasks().spawn(life), stop }
    }

    /// Tells it to stop. From here on it changes nothing about its instance any more, if the caller holds the lock.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until its port is closed.
    pub(super) async fn ended(self) {
        // A panic in there is shown by its own message; the port is closed either way.
        let _ = self.task.await;
    }
}

async fn live(cloud: Arc<Cloud>, key: Key, plan: Plan, port: Option<u16>, stop: CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => return,
        () = tokio::time::sleep(plan.boot) => {}
    }
    let interface = cloud.interface();
    match plan.fate {
        Fate::Fail => cloud.failed(&key, &stop, "the machine did not come up"),
        Fate::Dead => match hold_port(SocketAddr::new(interface, 0)) {
            Ok((held, port)) => {
                cloud.running(&key, &stop, port);
                stop.cancelled().await;
                drop(held);
            }
            Err(error) => cloud.failed(&key, &stop, &no_port(&error)),
        },
        Fate::Serve => match listen(interface, port).await {
            Ok((listener, port)) => {
                cloud.running(&key, &stop, port);
                forward_proxy::serve(listener, plan.proxy, stop).await;
            }
            Err(error) => cloud.failed(&key, &stop, &no_port(&error)),
        },
    }
}

fn no_port(error: &io::Error) -> String {
    format!("the machine got no port: {error}")
}

/// A listener on the wished port, or on any if that is taken meanwhile.
async fn listen(interface: std::net::IpAddr, wished: Option<u16>) -> io::Result<(TcpListener, u16)> {
    let listener = match TcpListener::bind((interface, wished.unwrap_or(0))).await {
        Err(_) if wished.is_some() => TcpListener::bind((interface, 0)).await?,
        bound => bound?,
    };
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// A port that nobody else can get and that refuses connections: it is bound, and nothing listens.
fn hold_port(address: SocketAddr) -> io::Result<(TcpSocket, u16)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(address)?;
    let port = socket.local_addr()?.port();
    Ok((socket, port))
}
