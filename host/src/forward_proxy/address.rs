//! Which addresses are the public internet, and which belong to somebody's inside.
//!
//! From the IANA special-purpose registries (RFC 6890 and its updates). For IPv6 the rule is turned round: only what is
//! known to be global unicast passes, so a range that is assigned later starts out refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Azure's agent endpoint ("wire server"): it hands out machine credentials and yet lies in a public range, so no rule on
/// ranges catches it.
const AZURE_WIRE_SERVER: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Whether an address is on the public internet, so that anybody may be sent there.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let refused = match address.octets() {
        [0 | 10 | 127, ..] => true,  // this network, private, loopback
        [100, 64..=127, ..] => true, // carrier-grade NAT, and Alibaba's metadata
        [169, 254, ..] => true,      // link-local, and most clouds' metadata
        [172, 16..=31, ..] => true,  // private
        [192, 0, 0, _] => true,      // protocol assignments, and Oracle's metadata
        [192, 0, 2, _] => true,      // documentation
        [192, 88, 99, _] => true,    // 6to4 relays, withdrawn
        [192, 168, ..] => true,      // private
        [198, 18..=19, ..] => true,  // benchmarks
        [198, 51, 100, _] => true,   // documentation
        [203, 0, 113, _] => true,    // documentation
        [224..=255, ..] => true,     // multicast, reserved, broadcast
        _ => address == AZURE_WIRE_SERVER,
    };
    !refused
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // IPv4-mapped: the kernel dials the IPv4 address inside.
        [0, 0, 0, 0, 0, 0xffff, high, low] => is_public_v4(embedded(high, low)),
        // NAT64 (RFC 6052): a gateway dials the IPv4 address inside. Its local-use sister 64:ff9b:1::/48 is an inside.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_public_v4(embedded(high, low)),
        // Teredo, ORCHID and other protocol assignments; documentation; 6to4, which carries an IPv4 address.
        [0x2001, 0x0000..=0x01ff, ..] | [0x2001, 0x0db8, ..] => false,
        [0x2002, ..] | [0x3fff, 0x0000..=0x0fff, ..] => false,
        // Global unicast. All else is loopback, unspecified, IPv4-compatible, link-local, ULA, multicast or unassigned.
        [0x2000..=0x3fff, ..] => true,
        _ => false,
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insides_are_refused_in_every_form() {
        for refused in "0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 \
             127.255.0.1 169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 \
             192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1 \
             255.255.255.255 168.63.129.16 :: ::1 ::7f00:1 ::10.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 \
             ::ffff:169.254.169.254 ::ffff:0.0.0.0 ::ffff:100.64.0.1 64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 \
             64:ff9b::169.254.169.254 64:ff9b:1::8.8.8.8 fe80::1 febf::1 fec0::1 fc00::1 fd00:ec2::254 \
             fd20:ce::254 ff02::1 ff0e::1 2001::1 2001:10::1 2001:db8::1 2002:7f00:1:: 2002:0808:0808::1 3fff::1 \
             100::1 5f00::1 4000::1"
            .split_whitespace()
        {
            let address: IpAddr = refused.parse().unwrap();
            assert!(!is_public(address), "{refused} must be refused");
        }
    }

    #[test]
    fn the_public_internet_is_let_through() {
        for public in
            "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 169.253.0.1 172.15.0.1 172.32.0.1 \
             192.0.1.1 192.167.0.1 198.17.0.1 198.20.0.1 203.0.112.1 223.255.255.255 168.63.129.17 \
             2606:4700::1111 2001:4860:4860::8888 2a00:1450::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8"
                .split_whitespace()
        {
            let address: IpAddr = public.parse().unwrap();
            assert!(is_public(address), "{public} must be let through");
        }
    }
}
