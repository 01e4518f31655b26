//! Listening on IPv4 and IPv6 at once, and TCP keep-alive.

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{Ipv6Addr, SocketAddrV6, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

const BACKLOG: i32 = 1024;
/// Go: `defaultTCPKeepAliveIdle`, `defaultTCPKeepAliveInterval`, `defaultTCPKeepAliveCount`.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_COUNT: u32 = 9;

/// Listens on every IPv6 and IPv4 address, regardless of `net.ipv6.bindv6only`. The listener is
/// non-blocking.
pub fn on_both_families(port: u16) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Enables TCP keep-alive, so that connections to vanished peers end.
pub fn keep_alive(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&socket, KEEP_ALIVE_COUNT)?;
    Ok(sockopt::set_socket_keepalive(&socket, true)?)
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

    #[test]
    fn silent_peers_are_asked_after() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        keep_alive(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEP_ALIVE_IDLE);
    }
}
