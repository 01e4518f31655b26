//! Listening on both families at once.

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{Ipv6Addr, SocketAddrV6, TcpListener};

const BACKLOG: i32 = 1024;

/// Listens on every IPv6 and IPv4 address, whatever `net.ipv6.bindv6only` says. The listener does
/// not block.
pub fn on_both_families(port: u16) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpStream};

    #[test]
    fn both_families_are_listened_to() {
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
            assert!(on_both_families(0).is_err(), "a machine without IPv6");
            return;
        }
        let listener = on_both_families(0).unwrap();
        assert!(!sockopt::ipv6_v6only(&listener).unwrap());
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let taken = on_both_families(port).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
