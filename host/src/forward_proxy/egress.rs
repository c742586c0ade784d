//! The way out: may this target be reached, and if so, a connection to it.
//!
//! A name is looked up once and exactly the addresses that were checked are dialled. With a second look-up in between, a
//! name that answers differently each time would walk through the check (DNS rebinding).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use super::address::is_public;
use super::target::Target;

/// Mail: refused to everybody, always.
const SMTP: u16 = 25;

/// Addresses of one name that are tried; a name with more must not buy itself more time.
const MAX_ADDRESSES: usize = 8;

/// What a client wants a connection for. Each has its own rule on ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A request in absolute form: any port.
    Forward,
    /// CONNECT: the listed ports.
    Connect,
    /// SOCKS5: the listed ports, and 80, since plain HTTP has no other way through it.
    Socks,
}

/// Why there is no connection. The class decides the answer; the text goes to the client.
#[derive(Debug, thiserror::Error)]
pub(super) enum EgressError {
    /// A rule on ports says no.
    #[error("this proxy does not connect to port {0} in this way")]
    PortRefused(u16),
    /// A rule on addresses says no. The address is not named: a client could map the inside by asking.
    #[error("this proxy does not connect to addresses that are not on the public internet")]
    AddressRefused,
    /// The name has no address, or the look-up failed.
    #[error("the name of the target could not be resolved")]
    Unresolved,
    /// The look-up and the attempts together took too long.
    #[error("connecting to the target took too long")]
    TimedOut,
    /// Each attempt failed; this is the last one.
    #[error("the target could not be reached: {}", .0.kind())]
    Unreachable(#[source] io::Error),
}

/// The rules of one proxy.
#[derive(Debug)]
pub(super) struct Egress {
    connect_ports: Vec<u16>,
    allow_targets: Vec<Target>,
    deadline: Duration,
}

impl Egress {
    pub(super) fn new(connect_ports: Vec<u16>, allow_targets: Vec<Target>, deadline: Duration) -> Self {
        Self { connect_ports, allow_targets, deadline }
    }

    /// A connection to `target`, if the rules allow it.
    pub(super) async fn connect(&self, target: &Target, purpose: Purpose) -> Result<TcpStream, EgressError> {
        let exempt = self.allow_targets.contains(target);
        if !self.admits_port(target.port(), purpose, exempt) {
            return Err(EgressError::PortRefused(target.port()));
        }
        let deadline = Instant::now() + self.deadline;
        let found = timeout_at(deadline, lookup_host((target.host(), target.port())))
            .await
            .map_err(|_| EgressError::TimedOut)?
            .map_err(|_| EgressError::Unresolved)?;
        let addresses: Vec<SocketAddr> = found.collect();
        // One inside address among public ones is enough to refuse: which of them is dialled would be chance.
        if !exempt && !addresses.iter().all(|address| is_public(address.ip())) {
            return Err(EgressError::AddressRefused);
        }
        dial(&addresses, deadline).await
    }

    fn admits_port(&self, port: u16, purpose: Purpose, exempt: bool) -> bool {
        if port == SMTP || port == 0 {
            return false;
        }
        let listed = || self.connect_ports.contains(&port);
        exempt
            || match purpose {
                Purpose::Forward => true,
                Purpose::Connect => listed(),
                Purpose::Socks => port == 80 || listed(),
            }
    }
}

/// Tries the addresses in turn, each with its share of the time left, so that a dead first one (often IPv6) leaves time for
/// the next.
async fn dial(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, EgressError> {
    let tried = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    let mut last = EgressError::Unresolved;
    for (index, address) in tried.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        // At most MAX_ADDRESSES, so it fits.
        let share = left / (tried.len() - index) as u32;
        match timeout_at(Instant::now() + share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // See `connection`: small handshake messages must not wait for each other.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = EgressError::Unreachable(error),
            Err(_) => last = EgressError::TimedOut,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_egress(allowed: &[&str]) -> Egress {
        let allowed = allowed.iter().map(|text| text.parse().unwrap()).collect();
        Egress::new(vec![443, 8443, 25], allowed, Duration::from_secs(5))
    }

    #[test]
    fn each_purpose_has_its_ports_and_mail_has_none() {
        let egress = mk_egress(&[]);
        let cases = [
            (Purpose::Forward, 80, true),
            (Purpose::Forward, 8080, true),
            (Purpose::Forward, 25, false),
            (Purpose::Forward, 0, false),
            (Purpose::Connect, 443, true),
            (Purpose::Connect, 8443, true),
            (Purpose::Connect, 80, false),
            (Purpose::Connect, 22, false),
            (Purpose::Connect, 25, false),
            (Purpose::Socks, 443, true),
            (Purpose::Socks, 80, true),
            (Purpose::Socks, 22, false),
            (Purpose::Socks, 25, false),
        ];
        for (purpose, port, admitted) in cases {
            assert_eq!(egress.admits_port(port, purpose, false), admitted, "{purpose:?} {port}");
        }
        assert!(egress.admits_port(22, Purpose::Connect, true), "an allowed target lifts the rule on ports");
        assert!(!egress.admits_port(25, Purpose::Connect, true), "but never for mail");
    }

    #[tokio::test]
    async fn every_way_to_write_an_inside_address_is_refused() {
        let egress = mk_egress(&["127.0.0.1:81"]);
        for host in "127.0.0.1 localhost LOCALHOST. 127.1 2130706433 0x7f.0.0.1 017700000001 0.0.0.0 0 [::1] ::1 :: \
             [::ffff:127.0.0.1] [::ffff:a00:1] [64:ff9b::a9fe:a9fe] 10.0.0.1 192.168.0.1 172.20.0.1 100.64.1.1 \
             169.254.169.254 fe80::1 fd00:ec2::254 224.0.0.1 255.255.255.255"
            .split_whitespace()
        {
            let refused = egress.connect(&Target::new(host, 80), Purpose::Forward).await;
            assert!(matches!(refused, Err(EgressError::AddressRefused)), "{host}: {refused:?}");
        }
    }

    #[tokio::test]
    async fn an_allowed_target_is_exempt_as_it_is_written_only() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let egress = mk_egress(&[&format!("127.0.0.1:{port}")]);
        let reached = egress.connect(&Target::new("127.0.0.1", port), Purpose::Connect).await;
        assert!(reached.is_ok(), "{reached:?}");
        let by_name = egress.connect(&Target::new("localhost", port), Purpose::Forward).await;
        assert!(matches!(by_name, Err(EgressError::AddressRefused)), "{by_name:?}");
        let other_port = egress.connect(&Target::new("127.0.0.1", port ^ 1), Purpose::Forward).await;
        assert!(matches!(other_port, Err(EgressError::AddressRefused)), "{other_port:?}");
    }

    #[tokio::test]
    async fn a_dead_first_address_leaves_time_for_the_next() {
        let alive = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dead = tokio::net::TcpSocket::new_v4().unwrap();
        dead.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addresses = [dead.local_addr().unwrap(), alive.local_addr().unwrap()];
        let deadline = Instant::now() + Duration::from_secs(5);
        assert!(dial(&addresses, deadline).await.is_ok());
        assert!(matches!(dial(&addresses[..1], deadline).await, Err(EgressError::Unreachable(_))));
        assert!(matches!(dial(&[], deadline).await, Err(EgressError::Unresolved)));
    }
}
