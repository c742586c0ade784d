//! The egress guard: every address is checked before it is dialled, and exactly the checked addresses are dialled.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::model::provider::Permit;

/// Refuses kinds of addresses that a connection does not permit.
#[derive(Clone, Debug)]
pub(in crate::plugin) struct Guard {
    permit: Vec<Permit>,
}

/// Why an address is not dialled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::plugin) enum GuardError {
    /// The name has no address.
    #[error("{0}")]
    Dns(String),
    /// The address is of a kind that needs a permit.
    #[error("{host} is at {address}, {kind}; {remedy}")]
    Refused {
        /// As the connection names it.
        host: String,
        /// What it resolves to.
        address: IpAddr,
        /// What kind of address that is.
        kind: &'static str,
        /// What to do.
        remedy: &'static str,
    },
}

impl Guard {
    pub fn new(permit: &[Permit]) -> Self {
        Self { permit: permit.to_vec() }
    }

    /// Checks one address.
    pub fn check(&self, host: &str, address: IpAddr) -> Result<(), GuardError> {
        let plain = canonical(address);
        let refused = |kind, remedy| Err(GuardError::Refused { host: host.to_owned(), address, kind, remedy });
        if is_loopback(plain) && !self.permit.contains(&Permit::Loopback) {
            return refused("a loopback address", "add `permit: [loopback]` to the connection if that is meant");
        }
        if is_link_local(plain) && !self.permit.contains(&Permit::LinkLocal) {
            return refused(
                "a link-local address (metadata servers are there)",
                "add `permit: [linkLocal]` to the connection if that is meant",
            );
        }
        if plain.is_unspecified() || plain.is_multicast() || plain == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return refused("not the address of a host", "name a host");
        }
        Ok(())
    }

    /// The addresses of a host, all of which may be dialled.
    pub async fn dialable(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, GuardError> {
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port))
            .await
            .map_err(|e| GuardError::Dns(format!("{host} does not resolve: {e}")))?
            .collect();
        if found.is_empty() {
            return Err(GuardError::Dns(format!("{host} has no address")));
        }
        // One refused address refuses the name: an attacker's answer mixes a good one in.
        for address in &found {
            self.check(host, address.ip())?;
        }
        Ok(found)
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move { Ok(Box::new(guard.dialable(name.as_str(), 0).await?.into_iter()) as Addrs) })
    }
}

/// The IPv4 address inside an IPv4-mapped, IPv4-compatible or NAT64 (RFC 6052, `64:ff9b::/96`) address.
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let segments = v6.segments();
    let embedded = matches!(segments, [0, 0, 0, 0, 0, 0xffff, ..])
        || matches!(segments, [0x64, 0xff9b, 0, 0, 0, 0, ..])
        || (matches!(segments, [0, 0, 0, 0, 0, 0, ..]) && v6 != Ipv6Addr::LOCALHOST && v6 != Ipv6Addr::UNSPECIFIED);
    if !embedded {
        return address;
    }
    let [.., a, b] = segments;
    IpAddr::V4(Ipv4Addr::from((u32::from(a) << 16) | u32::from(b)))
}

fn is_loopback(address: IpAddr) -> bool {
    address.is_loopback()
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        // fe80::/10, and the metadata address of another cloud, which is not link-local by prefix.
        IpAddr::V6(v6) => {
            v6.segments()[0] & 0xffc0 == 0xfe80 || v6 == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_need_a_permit_are_refused_in_every_form() {
        let guard = Guard::new(&[]);
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "::127.0.0.1",
            "169.254.169.254",
            "fe80::1",
            "::ffff:169.254.169.254",
            "fd00:ec2::254",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "255.255.255.255",
        ] {
            assert!(guard.check("h", address.parse().unwrap()).is_err(), "{address}");
        }
        for address in ["10.0.0.5", "192.168.1.1", "8.8.8.8", "2001:db8::1", "fd12::1"] {
            assert!(guard.check("h", address.parse().unwrap()).is_ok(), "{address}");
        }
    }

    #[test]
    fn a_permit_opens_its_own_kind_alone() {
        let loopback = Guard::new(&[Permit::Loopback]);
        assert!(loopback.check("h", "127.0.0.1".parse().unwrap()).is_ok());
        assert!(loopback.check("h", "169.254.169.254".parse().unwrap()).is_err());
        let error = Guard::new(&[Permit::LinkLocal]).check("h", "::1".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("permit: [loopback]"), "{error}");
    }
}
