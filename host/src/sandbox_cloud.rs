//! The sandbox cloud: a small cloud in one process, whose machines are real forward proxies and which misbehaves on demand.
//!
//! The demo and the tests run it, and the plugin `sandbox` is an ordinary provider for it; its API is described in
//! `docs/sandbox-cloud.md`. It knows nothing of the operator: it is what the operator looks at from outside.
//!
//! ```text
//!  routes ─► faults (may refuse, delay, lose the answer) ─► cloud (who exists, in which state)
//!                                                             └─► life (boots, serves, ends) ─► forward_proxy
//! ```
//!
//! Everything is kept in memory, under one lock that is never held across an await.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::forward_proxy::listen::accept_until;

mod cloud;
mod error;
mod faults;
mod instance;
mod life;
mod request;
mod routes;

#[cfg(test)]
mod tests;

use cloud::Cloud;
use error::HangUp;

/// How long a machine boots when neither its maker nor a fault says otherwise: long enough to be seen booting, short enough
/// for a demo.
const BOOT: Duration = Duration::from_millis(150);

/// How long a deleted machine is still there, as `deleting`.
const DELETION: Duration = Duration::from_millis(50);

/// Clients of the API at once. An operator holds a handful of connections; a test of load, some hundreds.
// A constant: were it zero, it would not compile.
const MAX_CLIENTS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// How long a client may take over a request's head, or over its body.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// What a sandbox cloud is told. [`Options::new`] gives the defaults.
#[derive(Clone)]
pub struct Options {
    /// Where the API listens; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The host name or address under which instances are announced, and on which their ports listen.
    pub advertise: String,
    /// The bearer token of every request.
    pub token: String,
    /// The zones, by name.
    pub zones: Vec<String>,
    /// How many instances one zone holds.
    pub capacity_per_zone: usize,
}

impl Options {
    /// Two zones, `zone-a` and `zone-b`, of a hundred instances each.
    pub fn new(listen: SocketAddr, advertise: impl Into<String>, token: impl Into<String>) -> Self {
        Self {
            listen,
            advertise: advertise.into(),
            token: token.into(),
            zones: vec!["zone-a".to_owned(), "zone-b".to_owned()],
            capacity_per_zone: 100,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("listen", &self.listen)
            .field("advertise", &self.advertise)
            .field("token", &"(redacted)")
            .field("zones", &self.zones)
            .field("capacity_per_zone", &self.capacity_per_zone)
            .finish()
    }
}

/// A cloud that has its port but does not answer yet: clients wait in the backlog until [`serve`](Self::serve).
pub struct SandboxCloud {
    listener: TcpListener,
    address: SocketAddr,
    cloud: Arc<Cloud>,
}

/// Opens the API's port.
///
/// # Errors
/// When the port cannot be had, the advertised host has no address, the token is empty, or the zones are none or twice the
/// same.
pub async fn bind(options: Options) -> io::Result<SandboxCloud> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    if options.token.is_empty() {
        return Err(invalid("the sandbox cloud needs a token"));
    }
    let twice = |(index, zone): (usize, &String)| options.zones[..index].contains(zone);
    if options.zones.is_empty() || options.zones.iter().enumerate().any(twice) {
        return Err(invalid("the sandbox cloud needs zones of different names"));
    }
    let found = lookup_host((options.advertise.as_str(), 0)).await?.next();
    let interface = found.ok_or_else(|| invalid("the advertised host has no address"))?.ip();
    let listener = TcpListener::bind(options.listen).await?;
    let address = listener.local_addr()?;
    Ok(SandboxCloud { listener, address, cloud: Arc::new(Cloud::new(options, interface)) })
}

impl SandboxCloud {
    /// Where the API listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// A way to look at the cloud from inside its process.
    pub fn handle(&self) -> Handle {
        Handle { address: self.address, cloud: Arc::clone(&self.cloud) }
    }

    /// Answers requests until `shutdown` is cancelled, then ends every proxy. When it returns, no port is open and no task
    /// is left.
    pub async fn serve(self, shutdown: CancellationToken) {
        // If this future is dropped, the proxies end all the same.
        let _end = self.cloud.closing().clone().drop_guard();
        let api = TowerToHyperService::new(routes::router(Arc::clone(&self.cloud)));
        let connections = TaskTracker::new();
        accept_until(self.listener, MAX_CLIENTS, connections, shutdown, move |client| {
            serve_client(client, api.clone())
        })
        .await;
        // Nobody can ask for another instance any more.
        self.cloud.end().await;
    }
}

/// A cheap look at a [`SandboxCloud`] that may be running elsewhere.
#[derive(Clone)]
pub struct Handle {
    address: SocketAddr,
    cloud: Arc<Cloud>,
}

impl Handle {
    /// Where the API listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How many instances there are, in whatever state.
    pub fn instance_count(&self) -> usize {
        self.cloud.count()
    }
}

async fn serve_client(client: TcpStream, api: TowerToHyperService<axum::Router>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = api.call(request);
        async move {
            let answer: Response<Body> = answer.await.unwrap_or_else(|never: Infallible| match never {});
            // An error is how a service tells hyper to close without a word.
            match answer.extensions().get::<HangUp>() {
                Some(hang_up) => Err(*hang_up),
                None => Ok(answer),
            }
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_DEADLINE)
        .serve_connection(TokioIo::new(client), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "sandbox cloud client's connection ended");
    }
}
