//! A forward proxy: HTTP (absolute-form and CONNECT) or SOCKS5, with user and password or open.
//!
//! It knows nothing of fleets, providers or objects: the command `forward-proxy` runs one, the sandbox cloud runs many,
//! and both call [`serve`]. The folder beside this file holds one idea a file:
//!
//! ```text
//!  client ─► listen ─► http | socks5 ─► login ─► egress (ports, addresses, one look-up) ─► target
//!               │            └── headers          └── address
//!               └── activity: every byte counts as life, silence ends the connection
//! ```
//!
//! What a target sees is the client's own request: neither `Via` nor `X-Forwarded-For` is added, because a crawler's proxy
//! that announces itself is blocked (RFC 9110 §7.6.3 asks for `Via`; we leave it out on purpose). What the *client* sees
//! tells the proxy's own errors from the target's: they carry `Proxy-Status` (RFC 9209), and a target's headers of that
//! kind never get through.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod activity;
mod address;
mod egress;
mod headers;
mod http;
pub(crate) mod listen;
mod login;
mod reply;
mod socks5;
mod target;
mod tunnel;
mod wrong_page;

#[cfg(test)]
mod tests;

pub use login::Login;
pub(crate) use login::same as same_secret;
pub use target::{Target, TargetError};

use activity::{Activity, Watched};
use egress::Egress;

/// The port that CONNECT may reach when nothing else is said: TLS, the one use crawlers have for a tunnel.
pub const DEFAULT_CONNECT_PORTS: [u16; 1] = [443];

/// How many clients may be connected at once when nothing else is said.
///
/// Each costs two sockets, so that this many fit under 1,024 open files, the usual soft limit.
// A constant: were it zero, it would not compile.
pub const DEFAULT_MAX_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(500).unwrap();

/// What a proxy speaks to its clients. In JSON and YAML: `http` or `socks5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1: requests in absolute form, and CONNECT.
    Http,
    /// SOCKS5 (RFC 1928), the command CONNECT only.
    Socks5,
}

/// What a proxy does with the requests it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Behaviour {
    /// It forwards them.
    #[default]
    Proxy,
    /// It answers each with a page of its own, status 200, whoever asks. Only the sandbox cloud uses it: this is what a
    /// captive portal does, and what a health check must not take for a working proxy.
    #[doc(hidden)]
    WrongPage,
}

/// How long each kind of wait may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Looking up the target's name and connecting to it.
    pub connect: Duration,
    /// The client's request head, or its SOCKS5 handshake up to the command. Also how long an HTTP connection may rest
    /// between two requests.
    pub handshake: Duration,
    /// How long a target may leave a request without an answer while no byte of the request moves either.
    pub answer: Duration,
    /// How long a connection may stand without a byte in either direction.
    pub idle: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            answer: Duration::from_secs(120),
            idle: Duration::from_secs(300),
        }
    }
}

/// All that one proxy is told. [`Options::new`] gives the defaults.
#[derive(Debug, Clone)]
pub struct Options {
    /// What it speaks.
    pub protocol: Protocol,
    /// Who may use it; `None` makes an open proxy.
    pub login: Option<Login>,
    /// The ports that CONNECT may reach. SOCKS5 may reach these and 80; plain HTTP any. Port 25 is refused to all three,
    /// even where it is listed: an open mail relay is what gets an address onto every block list.
    pub connect_ports: Vec<u16>,
    /// Targets that are exempt from the rules on ports (but for 25) and on addresses, matched as they are written in the
    /// request, never by what a name resolves to.
    pub allow_targets: Vec<Target>,
    /// Clients beyond this many are hung up on at once.
    pub max_connections: NonZeroUsize,
    /// How long the waits may last.
    pub deadlines: Deadlines,
    /// For testing what watches over proxies.
    #[doc(hidden)]
    pub behaviour: Behaviour,
}

impl Options {
    /// An open proxy that speaks `protocol`, with every default.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            login: None,
            connect_ports: DEFAULT_CONNECT_PORTS.to_vec(),
            allow_targets: Vec::new(),
            max_connections: DEFAULT_MAX_CONNECTIONS,
            deadlines: Deadlines::default(),
            behaviour: Behaviour::Proxy,
        }
    }
}

/// Serves clients of `listener` until `shutdown` is cancelled, then hangs up on all of them and returns.
///
/// When it returns, the listener is closed and no task of this proxy is left. Dropping the future hangs up as well, only
/// without waiting for it.
pub async fn serve(listener: TcpListener, options: Options, shutdown: CancellationToken) {
    let tasks = TaskTracker::new();
    let protocol = options.protocol;
    let limit = options.max_connections;
    let shared = Arc::new(Shared::new(options, tasks.clone()));
    listen::accept_until(listener, limit, tasks, shutdown, move |client| {
        connection(protocol, client, Arc::clone(&shared))
    })
    .await;
}

/// What all connections of one proxy have in common.
struct Shared {
    login: Option<Login>,
    egress: Egress,
    deadlines: Deadlines,
    behaviour: Behaviour,
    /// The connections to targets that HTTP requests keep, beside the clients' own tasks.
    tasks: TaskTracker,
}

impl Shared {
    fn new(options: Options, tasks: TaskTracker) -> Self {
        Self {
            login: options.login,
            egress: Egress::new(options.connect_ports, options.allow_targets, options.deadlines.connect),
            deadlines: options.deadlines,
            behaviour: options.behaviour,
            tasks,
        }
    }
}

/// One client, from its first byte to its last. Only the client's side is watched for silence: whatever a target sends or
/// takes passes through it.
async fn connection(protocol: Protocol, client: TcpStream, shared: Arc<Shared>) {
    // Tunnels carry handshakes of few bytes, which Nagle's algorithm would hold back.
    let _ = client.set_nodelay(true);
    let activity = Activity::begin();
    let idle = shared.deadlines.idle;
    let client = Watched::new(client, activity.clone());
    let served = async {
        match protocol {
            Protocol::Http => http::serve_client(client, activity.clone(), shared).await,
            Protocol::Socks5 => socks5::serve_client(client, shared).await,
        }
    };
    tokio::select! {
        () = served => {}
        () = activity.quiet_for(idle) => tracing::debug!(?idle, "proxy connection closed after silence"),
    }
}
