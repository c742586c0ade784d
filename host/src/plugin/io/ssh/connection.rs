//! One connection to one account: dialled to checked addresses, to a server with a pinned key, and logged in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use russh::client::{self, AuthResult, DisconnectReason, Handle};
use russh::keys::{HashAlg, PublicKeyOrCertificate};
use russh::{AlgorithmKind, MethodKind, MethodSet};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::known_hosts::{Pins, Verdict, describe};
use super::{Account, Material};
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::io::address::GuardError;
use crate::plugin::io::fault;

/// Commands at once on one connection. OpenSSH's `MaxSessions` is 10 where nobody changed it.
pub(super) const CHANNELS: usize = 8;
/// After this without a refusal a server is tried with one more.
pub(super) const REGAIN: Duration = Duration::from_secs(5);
/// For each address of the host.
const DIAL: Duration = Duration::from_secs(5);
/// From the first byte to the login.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// After this silence the server is asked whether it is there.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(15);
/// So often it may leave that unanswered.
pub(super) const KEEPALIVES: usize = 3;
/// Bytes that a server may send ahead on each channel.
const WINDOW: u32 = 256 << 10;

/// A connection that is logged in. It ends with its last user.
pub(super) struct Connection {
    pub handle: Handle<Gate>,
    /// One permit per command that may run.
    pub slots: Arc<Semaphore>,
    limit: Mutex<Limit>,
    pub lost: Lost,
    /// Key and pins that it was made with.
    pub made_from: [u8; 32],
    used: Mutex<Instant>,
}

/// How many commands a server seems to allow.
struct Limit {
    /// Permits that there are, taken or not.
    places: usize,
    /// When one of those that were taken away is tried again.
    regain: Instant,
}

impl Connection {
    /// A channel was refused although few are open: one fewer for a while, but never none.
    pub fn shrink(&self, permit: tokio::sync::OwnedSemaphorePermit) {
        let mut limit = self.limit();
        if limit.places > 1 {
            limit.places -= 1;
            permit.forget();
        }
        limit.regain = Instant::now() + REGAIN;
    }

    /// Brings places back that were taken away, one after the other, as long as it is polled: a server that was still
    /// clearing up closed channels refuses too.
    pub async fn regain(&self) {
        loop {
            let at = {
                let mut limit = self.limit();
                if limit.places == CHANNELS {
                    break;
                }
                let now = Instant::now();
                if limit.regain <= now {
                    limit.places += 1;
                    limit.regain = now + REGAIN;
                    self.slots.add_permits(1);
                }
                limit.regain
            };
            sleep_until(at).await;
        }
        std::future::pending().await
    }

    /// Commands that run or begin.
    pub fn busy(&self) -> bool {
        self.slots.available_permits() < self.limit().places
    }

    fn limit(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it can take commands.
    pub fn is_alive(&self) -> bool {
        !self.lost.token.is_cancelled() && !self.handle.is_closed()
    }

    /// It was used just now.
    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// When it was last used.
    pub fn last_used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether and why a connection is no more.
#[derive(Clone, Default)]
pub(super) struct Lost {
    pub token: CancellationToken,
    why: Arc<Mutex<Option<String>>>,
}

impl Lost {
    /// Why, for people.
    pub fn why(&self) -> String {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        why.unwrap_or_else(|| "the connection broke".into())
    }
}

/// Looks at what the server presents, and notes the connection's end.
pub(super) struct Gate {
    pins: Pins,
    refused: Arc<Mutex<Option<(Verdict, String)>>>,
    lost: Lost,
}

impl Drop for Gate {
    fn drop(&mut self) {
        // The library ends some connections without a word to `disconnected`.
        self.lost.token.cancel();
    }
}

impl client::Handler for Gate {
    type Error = russh::Error;

    async fn check_server_key(&mut self, presented: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let PublicKeyOrCertificate::PublicKey { key, .. } = presented else { return Ok(false) };
        let verdict = self.pins.judge(key);
        if verdict != Verdict::Pinned {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some((verdict, describe(key)));
        }
        Ok(verdict == Verdict::Pinned)
    }

    async fn disconnected(&mut self, reason: DisconnectReason<russh::Error>) -> Result<(), russh::Error> {
        let why = match reason {
            DisconnectReason::ReceivedDisconnect(info) => format!("the server disconnected: {}", info.message),
            DisconnectReason::Error(error) => broken(&error),
        };
        *self.lost.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.lost.token.cancel();
        Ok(())
    }
}

/// How a connection ended, in words.
fn broken(error: &russh::Error) -> String {
    match error {
        russh::Error::KeepaliveTimeout | russh::Error::InactivityTimeout => "the server answers no more".into(),
        russh::Error::HUP | russh::Error::Disconnect => "the server closed the connection".into(),
        russh::Error::IO(error) => format!("the connection broke: {error}"),
        error => format!("the connection broke: {error}"),
    }
}

/// Connects and logs in.
///
/// # Errors
/// Nothing was sent that could have run; each way to fail has its class.
pub(super) async fn connect(account: &Account, material: &Material) -> Result<Connection, Fault> {
    let stream = dial(account).await?;
    let made = timeout(HANDSHAKE, handshake(account, material, stream)).await;
    made.unwrap_or_else(|_| {
        let what = format!("it accepts connections, but no login was done within {} s", HANDSHAKE.as_secs());
        Err(account.fault(FaultKind::TimedOut, false, what))
    })
}

/// A TCP connection to the first address that takes one. All of them are checked before the first is dialled.
async fn dial(account: &Account) -> Result<TcpStream, Fault> {
    let guarded = |error: GuardError| {
        let kind = if matches!(error, GuardError::Dns(_)) { FaultKind::Dns } else { FaultKind::Denied };
        account.fault(kind, false, error.to_string())
    };
    let host = account.host();
    let addresses = account.guard.dialable(host, account.spec.port).await.map_err(guarded)?;
    let mut last = String::new();
    for address in addresses {
        match timeout(DIAL, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // What a name resolved to is what was dialled; looked at once more, since the guard is only as good as that.
                let peer =
                    stream.peer_addr().map_err(|e| account.fault(FaultKind::Unreachable, false, e.to_string()))?;
                account.guard.check(host, peer.ip()).map_err(guarded)?;
                // Commands are short; a delayed packet would be most of their time.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => last = format!("no answer within {} s", DIAL.as_secs()),
        }
    }
    let remedy = "is sshd running there, and is the way to it open?";
    Err(account.fault(FaultKind::Unreachable, false, format!("no connection: {last}; {remedy}")))
}

async fn handshake(account: &Account, material: &Material, stream: TcpStream) -> Result<Connection, Fault> {
    let pins = Pins::find(&material.known_hosts, account.host(), account.spec.port);
    let config = client::Config {
        window_size: WINDOW,
        channel_buffer_size: 16,
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: KEEPALIVES,
        // Keep-alives are answered, so only a dead server is silent this long; ends what no keep-alive reaches.
        inactivity_timeout: Some(KEEPALIVE * 4),
        preferred: russh::Preferred { key: pins.algorithms().into(), ..russh::Preferred::DEFAULT },
        ..client::Config::default()
    };
    let (lost, refused) = (Lost::default(), Arc::new(Mutex::new(None)));
    let gate = Gate { pins: pins.clone(), refused: refused.clone(), lost: lost.clone() };
    let connected = client::connect_stream(Arc::new(config), stream, gate).await;
    let mut handle = connected.map_err(|error| {
        let refused = refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        match refused {
            Some((verdict, presented)) => host_key_fault(account, &pins, verdict, &presented),
            None => handshake_fault(account, &pins, &error),
        }
    })?;
    log_in(account, material, &mut handle).await?;
    tracing::info!(
        connection = account.name,
        host = account.host(),
        port = account.spec.port,
        user = account.spec.user,
        key = material.key.describe(),
        "connected over SSH"
    );
    Ok(Connection {
        handle,
        slots: Arc::new(Semaphore::new(CHANNELS)),
        limit: Mutex::new(Limit { places: CHANNELS, regain: Instant::now() }),
        lost,
        made_from: material.digest,
        used: Mutex::new(Instant::now()),
    })
}

async fn log_in(account: &Account, material: &Material, handle: &mut Handle<Gate>) -> Result<(), Fault> {
    let key = &material.key;
    let lost = |error: russh::Error| {
        account.fault(FaultKind::Lost, false, format!("the connection was lost while logging in: {}", broken(&error)))
    };
    let mut hashes = vec![HashAlg::Sha256];
    if key.is_rsa() {
        // Some servers name a hash that they do not take from this account, so the other one is tried too.
        hashes = match handle.best_supported_rsa_hash().await.map_err(lost)?.flatten() {
            Some(HashAlg::Sha512) => vec![HashAlg::Sha512, HashAlg::Sha256],
            _ => vec![HashAlg::Sha256, HashAlg::Sha512],
        };
    }
    let (mut more, mut methods) = (false, MethodSet::empty());
    for hash in hashes {
        match handle.authenticate_publickey(&account.spec.user, key.signing(hash)).await.map_err(lost)? {
            AuthResult::Success => return Ok(()),
            AuthResult::Failure { partial_success, remaining_methods } => {
                (more, methods) = (partial_success, remaining_methods)
            }
        }
        if more {
            break;
        }
    }
    let offered: Vec<&'static str> = methods.iter().map(<&str>::from).collect();
    let (user, key) = (&account.spec.user, key.describe());
    let text = if more {
        format!(
            "the server took the key {key} of {user:?} and wants more ({}), which the operator has not",
            offered.join(", ")
        )
    } else if !methods.contains(&MethodKind::PublicKey) && !offered.is_empty() {
        format!("the server takes no keys for {user:?}, only {}; allow public keys there", offered.join(", "))
    } else {
        format!(
            "the server refused the key {key} for {user:?}; add its public half to that account's authorized_keys, or correct ssh.user or ssh.key"
        )
    };
    Err(account.fault(FaultKind::AuthRefused, false, text))
}

/// What a host key means that is not pinned.
fn host_key_fault(account: &Account, pins: &Pins, verdict: Verdict, presented: &str) -> Fault {
    let (host, port) = (account.host(), account.spec.port);
    match verdict {
        Verdict::Unknown | Verdict::Pinned => account.fault(
            FaultKind::HostKeyUnknown,
            false,
            format!(
                "no key is pinned for this server, which presents {presented}{}; compare that with the server's own (ssh-keygen -lf /etc/ssh/ssh_host_…_key.pub there), then add to knownHosts what this prints: ssh-keyscan -p {port} {host}",
                pins.remark()
            ),
        ),
        Verdict::Changed => account.fault(
            FaultKind::HostKeyChanged,
            false,
            format!(
                "the server presents {presented}, but pinned is {}; somebody else may be answering: find out why on the server itself, and only if its key was replaced on purpose replace the line in knownHosts",
                pins.pinned()
            ),
        ),
        Verdict::Revoked => account.fault(
            FaultKind::HostKeyChanged,
            false,
            format!("the server presents {presented}, which knownHosts marks @revoked; give the server a new key, and pin that"),
        ),
    }
}

/// What a failed handshake means.
fn handshake_fault(account: &Account, pins: &Pins, error: &russh::Error) -> Fault {
    match error {
        russh::Error::NoCommonAlgo { kind: AlgorithmKind::Key, theirs, .. } if !pins.pinned().is_empty() => account.fault(
            FaultKind::HostKeyChanged,
            false,
            format!(
                "the server has none of the keys that are pinned ({}), only keys of the types {}; find out why on the server itself, and only if its keys were replaced on purpose replace the lines in knownHosts",
                pins.pinned(),
                theirs.join(", ")
            ),
        ),
        russh::Error::NoCommonAlgo { kind, theirs, .. } => account.fault(
            FaultKind::Protocol,
            false,
            format!("no {kind:?} algorithm is known to both sides; the server has {}", theirs.join(", ")),
        ),
        russh::Error::HUP | russh::Error::Disconnect | russh::Error::IO(_) => account.fault(
            FaultKind::Lost,
            false,
            format!("the server hung up during the handshake ({error}); too many connections at once (MaxStartups), or a rule against this address?"),
        ),
        error => account.fault(FaultKind::Protocol, false, format!("that is no SSH server that the operator understands: {error}")),
    }
}

impl Account {
    /// A fault of this connection; the text names it.
    pub(super) fn fault(&self, kind: FaultKind, sent: bool, what: impl AsRef<str>) -> Fault {
        fault(kind, sent, format!("{}: {}", self.label(), what.as_ref()))
    }
}
