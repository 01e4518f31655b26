//! Network interfaces with their addresses, over netlink, and the interfaces of default routes.

use crate::fs;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFF_POINTOPOINT: u32 = 0x10;
const HEADER: usize = 16;

/// Why the network could not be read.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel refused the dump.
    #[error("netlink dump")]
    Netlink(#[source] std::io::Error),
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// A point-to-point link.
    pub point_to_point: bool,
    /// Addresses in the kernel's order.
    pub addresses: Vec<IpAddr>,
}

/// All interfaces, by index.
pub fn interfaces() -> Result<Vec<Interface>, NetError> {
    let mut found: BTreeMap<u32, Interface> = BTreeMap::new();
    for message in dump(RTM_GETLINK)? {
        if let Some((index, interface)) = parse_link(&message) {
            found.insert(index, interface);
        }
    }
    for message in dump(RTM_GETADDR)? {
        if let Some((index, address)) = parse_address(&message)
            && let Some(interface) = found.get_mut(&index)
        {
            interface.addresses.push(address);
        }
    }
    Ok(found.into_values().collect())
}

/// Names of interfaces that carry a default route, in the kernel's order, for IPv4 and IPv6.
pub fn default_route_interfaces(proc: &Path) -> (Vec<String>, Vec<String>) {
    let v4 = fs::read_to_string(proc.join("net/route")).unwrap_or_default();
    let v6 = fs::read_to_string(proc.join("net/ipv6_route")).unwrap_or_default();
    (default_routes_v4(&v4), default_routes_v6(&v6))
}

fn default_routes_v4(text: &str) -> Vec<String> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        // Destination and mask zero, up and through a gateway.
        let default = *fields.get(1)? == "00000000" && *fields.get(7)? == "00000000";
        (default && flags & 3 == 3).then(|| fields.first().map(|n| (*n).to_owned())).flatten()
    };
    text.lines().skip(1).filter_map(route).collect()
}

fn default_routes_v6(text: &str) -> Vec<String> {
    const NOWHERE: &str = "00000000000000000000000000000000";
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let default = *fields.first()? == NOWHERE && *fields.get(1)? == "00";
        let has_gateway = *fields.get(4)? != NOWHERE;
        (default && has_gateway).then(|| fields.get(9).map(|n| (*n).to_owned())).flatten()
    };
    text.lines().filter_map(route).collect()
}

/// One dump: every message after its header, with its type in front.
fn dump(kind: u16) -> Result<Vec<Vec<u8>>, NetError> {
    let failed = |e: rustix::io::Errno| NetError::Netlink(e.into());
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // Protocol 0 is NETLINK_ROUTE.
        None,
    )
    .map_err(failed)?;
    let mut request = Vec::with_capacity(HEADER + 16);
    request.extend_from_slice(&32_u32.to_ne_bytes());
    request.extend_from_slice(&kind.to_ne_bytes());
    request.extend_from_slice(&DUMP.to_ne_bytes());
    request.extend_from_slice(&1_u32.to_ne_bytes());
    request.resize(32, 0);
    rustix::net::send(&socket, &request, SendFlags::empty()).map_err(failed)?;
    let mut messages = Vec::new();
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let (read, _) =
            rustix::net::recv(&socket, &mut buffer, RecvFlags::empty()).map_err(failed)?;
        let mut rest = buffer.get(..read).unwrap_or_default();
        while let Some(length) = u32_at(rest, 0).and_then(|l| usize::try_from(l).ok()) {
            let Some(message) = rest.get(..length).filter(|m| m.len() >= HEADER) else { break };
            match u16_at(message, 4) {
                Some(NLMSG_DONE) => return Ok(messages),
                Some(NLMSG_ERROR) => {
                    let code = u32_at(message, HEADER).unwrap_or_default().cast_signed();
                    let error = std::io::Error::from_raw_os_error(code.saturating_neg());
                    return Err(NetError::Netlink(error));
                }
                _ => messages.push(message.get(4..).unwrap_or_default().to_vec()),
            }
            rest = rest.get(aligned(length)..).unwrap_or_default();
        }
        if read == 0 {
            return Ok(messages);
        }
    }
}

/// `message` begins with its type; the body follows 12 bytes later.
fn parse_link(message: &[u8]) -> Option<(u32, Interface)> {
    if u16_at(message, 0)? != RTM_NEWLINK {
        return None;
    }
    let body = message.get(12..)?;
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let name = attributes(body.get(16..)?).find(|(kind, _)| *kind == IFLA_IFNAME);
    let name =
        name.map(|(_, bytes)| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned());
    let interface = Interface {
        name: name?,
        up: flags & IFF_UP != 0,
        loopback: flags & IFF_LOOPBACK != 0,
        point_to_point: flags & IFF_POINTOPOINT != 0,
        addresses: Vec::new(),
    };
    Some((index, interface))
}

fn parse_address(message: &[u8]) -> Option<(u32, IpAddr)> {
    if u16_at(message, 0)? != RTM_NEWADDR {
        return None;
    }
    let body = message.get(12..)?;
    let index = u32_at(body, 4)?;
    let list: Vec<(u16, &[u8])> = attributes(body.get(8..)?).collect();
    let find = |wanted| list.iter().find(|(kind, _)| *kind == wanted).map(|(_, bytes)| *bytes);
    // On a point-to-point link the plain address is the peer's; the local one is ours.
    let bytes = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?;
    let address = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => return None,
    };
    Some((index, address))
}

fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)?;
        let value = rest.get(4..length)?;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some((kind & 0x3fff, value))
    })
}

fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_loopback_interface_with_its_address() {
        let all = interfaces().unwrap();
        let loopback = all.iter().find(|i| i.loopback).unwrap();
        assert_eq!(loopback.name, "lo");
        assert!(loopback.addresses.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn finds_default_routes_in_the_kernels_tables() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                  eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth1\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_routes_v4(v4), ["eth0"]);
        let v6 = format!(
            "{z} 00 {z} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n\
             {z} 00 {z} 00 {z} ffffffff 00000001 00000000 00200200 lo\n",
            z = "0".repeat(32)
        );
        assert_eq!(default_routes_v6(&v6), ["eth0"]);
    }
}
