//! Sorts a name's addresses (RFC 6724, as far as Go's resolver implements it: usable, same scope,
//! same label, precedence, smaller scope, and the longer common prefix for IPv6).

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

/// Sorts addresses by how well this machine reaches them.
pub(super) fn sort(addresses: &mut [IpAddr]) {
    if addresses.len() > 1 {
        // The kernel is asked only for the source address; no packet is sent.
        sort_by_sources(addresses, source);
    }
}

fn source(address: IpAddr) -> Option<IpAddr> {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(SocketAddr::new(address, 53)).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

fn sort_by_sources(addresses: &mut [IpAddr], source: impl Fn(IpAddr) -> Option<IpAddr>) {
    addresses.sort_by_cached_key(|address| match source(*address) {
        None => (true, false, false, Reverse(0), 0, Reverse(0)),
        Some(source) => {
            let (own, theirs) = (Attributes::of(source), Attributes::of(*address));
            (
                false,
                own.scope != theirs.scope,
                own.label != theirs.label,
                Reverse(theirs.precedence),
                theirs.scope,
                Reverse(common_prefix(*address, source)),
            )
        }
    });
}

#[derive(Debug, PartialEq, Eq)]
struct Attributes {
    scope: u8,
    precedence: u8,
    label: u8,
}

impl Attributes {
    fn of(ip: IpAddr) -> Self {
        let v6 = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let segments = v6.segments();
        let first = segments[0];
        let (precedence, label) = match segments {
            _ if v6 == Ipv6Addr::LOCALHOST => (50, 0),
            _ if v6.to_ipv4_mapped().is_some() => (35, 4),
            [0, 0, 0, 0, 0, 0, ..] => (1, 3),
            [0x2001, 0, ..] => (5, 5),
            [0x2002, ..] => (30, 2),
            [0x3ffe, ..] => (1, 12),
            _ if first & 0xffc0 == 0xfec0 => (1, 11),
            _ if first & 0xfe00 == 0xfc00 => (3, 13),
            _ => (40, 1),
        };
        Self { scope: scope(ip), precedence, label }
    }
}

const LINK: u8 = 2;
const GLOBAL: u8 = 14;

fn scope(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(ip) if ip.is_loopback() || ip.is_link_local() => LINK,
        IpAddr::V4(_) => GLOBAL,
        IpAddr::V6(ip) if ip.is_loopback() || ip.is_unicast_link_local() => LINK,
        IpAddr::V6(ip) if ip.is_multicast() => ip.octets()[1] & 0xf,
        IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfec0 => 5,
        IpAddr::V6(_) => GLOBAL,
    }
}

/// The number of leading bits that two IPv6 addresses share, in the first half; 0 for IPv4.
fn common_prefix(a: IpAddr, b: IpAddr) -> u32 {
    let (IpAddr::V6(a), IpAddr::V6(b)) = (a, b) else { return 0 };
    let differ = (u128::from(a) ^ u128::from(b)).leading_zeros();
    differ.min(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(addresses: &[&str], sources: &[(&str, &str)]) -> Vec<String> {
        let mut parsed: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        sort_by_sources(&mut parsed, |address| {
            let found = sources.iter().find(|(ip, _)| ip.parse() == Ok(address))?;
            found.1.parse().ok()
        });
        parsed.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_without_a_route_come_last() {
        let told = sorted(&["2001:db8::1", "10.0.0.1"], &[("10.0.0.1", "10.0.0.9")]);
        assert_eq!(told, ["10.0.0.1", "2001:db8::1"]);
    }

    #[test]
    fn global_ipv6_comes_before_ipv4_and_unique_local_after_it() {
        let both = [("2001:db8::1", "2001:db8::9"), ("10.0.0.1", "10.0.0.9")];
        assert_eq!(sorted(&["10.0.0.1", "2001:db8::1"], &both), ["2001:db8::1", "10.0.0.1"]);
        let local = [("fd00::1", "fd00::9"), ("10.0.0.1", "10.0.0.9")];
        assert_eq!(sorted(&["fd00::1", "10.0.0.1"], &local), ["10.0.0.1", "fd00::1"]);
        let own = [("::1", "::1"), ("127.0.0.1", "127.0.0.1")];
        assert_eq!(sorted(&["127.0.0.1", "::1"], &own), ["::1", "127.0.0.1"]);
    }

    #[test]
    fn equals_keep_their_order() {
        let routes = [("10.0.0.2", "10.0.0.9"), ("10.0.0.1", "10.0.0.9")];
        assert_eq!(sorted(&["10.0.0.2", "10.0.0.1"], &routes), ["10.0.0.2", "10.0.0.1"]);
    }
}
