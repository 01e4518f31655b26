//! TCP connections, with the error texts of Go's dialer.

use super::{Names, ProbeAnswer};
use futures::future::Either;
use std::net::SocketAddr;
use std::time::Duration;
use sys::names::LookupError;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;
use units::errno::go_text;

/// How long the kernel keeps a connection that was closed.
const LINGER: Duration = Duration::from_secs(1);

/// How long addresses of the better family have for themselves.
const HEAD_START: Duration = Duration::from_millis(300);

/// Connects, or says why not in Go's words (`dial tcp 10.0.0.5:80: connect: connection refused`).
pub(crate) async fn dial(names: &Names, host: &str, port: u16) -> Result<TcpStream, String> {
    let found = names.lookup(host, port).await.map_err(|error| format!("dial tcp: {error}"))?;
    connect(&found).await
}

/// Tries the addresses of the better family one after the other, and beside them those of the other
/// family when that takes its time (`net: sysDialer.dialParallel`).
async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, String> {
    let better = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (first, other): (Vec<_>, Vec<_>) = addresses.iter().partition(|at| at.is_ipv4() == better);
    if other.is_empty() {
        return one_after_the_other(&first).await;
    }
    let hurry = Notify::new();
    let fallback = async {
        // Earlier when the better family has failed.
        let _ = tokio::time::timeout(HEAD_START, hurry.notified()).await;
        one_after_the_other(&other).await
    };
    let primary = async {
        let outcome = one_after_the_other(&first).await;
        hurry.notify_one();
        outcome
    };
    match futures::future::select(Box::pin(primary), Box::pin(fallback)).await {
        Either::Left((Ok(stream), _)) | Either::Right((Ok(stream), _)) => Ok(stream),
        // What is told of is what became of the better family.
        Either::Left((Err(error), rest)) => rest.await.map_err(|_| error),
        Either::Right((Err(_), rest)) => rest.await,
    }
}

async fn one_after_the_other(addresses: &[&SocketAddr]) -> Result<TcpStream, String> {
    let mut first: Option<String> = None;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // A probe never waits for more than one small write.
                let _ = stream.set_nodelay(true);
                // Thousands of probes must not leave thousands of closed connections behind
                // (`kubelet: ProbeDialer`).
                let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(LINGER));
                return Ok(stream);
            }
            Err(error) => {
                let text = format!("dial tcp {address}: connect: {}", go_text(&error));
                first.get_or_insert(text);
            }
        }
    }
    Err(first.unwrap_or_else(|| "dial tcp: no suitable address found".to_owned()))
}

/// One TCP probe.
pub async fn probe(names: &Names, host: &str, port: u16, timeout: Duration) -> ProbeAnswer {
    let dialled = async {
        let failed = |cause: String| ProbeAnswer::Failure(format!("dial tcp{cause}"));
        let deadline = Instant::now() + timeout;
        let found = match tokio::time::timeout_at(deadline, names.lookup(host, port)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return failed(format!(": {error}")),
            Err(_) => return failed(format!(": {}", LookupError::timed_out(host))),
        };
        match tokio::time::timeout_at(deadline, connect(&found)).await {
            Ok(Ok(_stream)) => ProbeAnswer::Success,
            Ok(Err(text)) => ProbeAnswer::Failure(text),
            Err(_) => {
                let shown = found.first().map(|at| format!(" {at}")).unwrap_or_default();
                failed(format!("{shown}: i/o timeout"))
            }
        }
    };
    dialled.await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::path::PathBuf;
    use sys::names::Resolver;
    use tokio::net::{TcpListener, UdpSocket};

    #[tokio::test]
    async fn an_open_port_succeeds_and_a_closed_one_fails_in_gos_words() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (names, second) = (Names::here(), Duration::from_secs(1));
        assert_eq!(probe(&names, "127.0.0.1", port, second).await, ProbeAnswer::Success);
        let stream = dial(&names, "127.0.0.1", port).await.unwrap();
        assert_eq!(rustix::net::sockopt::socket_linger(&stream).unwrap(), Some(LINGER));
        drop(listener);
        assert_eq!(
            probe(&names, "127.0.0.1", port, second).await,
            ProbeAnswer::Failure(format!("dial tcp 127.0.0.1:{port}: connect: connection refused"))
        );
    }

    #[tokio::test]
    async fn what_is_neither_address_nor_name_is_not_dialled() {
        for host in ["1.2.3", "127.1", "2130706433", "a b", "-x", "a..b", ""] {
            let told = dial(&Names::here(), host, 9).await.unwrap_err();
            assert_eq!(told, format!("dial tcp: lookup {host}: no such host"));
        }
    }

    #[tokio::test]
    async fn the_other_family_is_tried_when_the_better_one_fails() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed = SocketAddr::new("::1".parse().unwrap(), open.port());
        assert!(connect(&[closed, open]).await.is_ok());
        drop(listener);
        let told = connect(&[closed, open]).await.unwrap_err();
        assert!(told.starts_with(&format!("dial tcp {closed}: connect: ")), "{told}");
    }

    /// Names whose server takes questions and never answers.
    async fn silent() -> (Resolver, UdpSocket, PathBuf) {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let etc = std::env::temp_dir().join(format!("rubelet-silent-{port}"));
        sys::fs::create_dir_all(&etc, 0o755).unwrap();
        sys::fs::write(etc.join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
        sys::fs::write(etc.join("hosts"), "127.0.0.1 here\n").unwrap();
        (Resolver::with_port(&etc, port), server, etc)
    }

    #[test]
    fn probes_at_a_silent_name_server_hold_up_nothing_else() {
        // With fewer threads than probes: whoever looks names up on one of them stops the node.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(4)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (resolver, _server, etc) = silent().await;
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let long = Duration::from_secs(3600);
            let greedy = Names::of(&resolver, "greedy");
            let hosts: Vec<String> = (0..200).map(|n| format!("n{n}.example")).collect();
            let stuck = hosts.iter().map(|host| probe(&greedy, host, 80, long));
            let mut stuck = Box::pin(futures::future::join_all(stuck));
            let others = async {
                let modest = Names::of(&resolver, "modest");
                // A file as a checkpoint is written, a name, and a probe by address.
                let file = etc.join("checkpoint");
                let written = sys::blocking::run(move || sys::fs::write_atomic(file, "x", 0o600));
                written.await.unwrap().unwrap();
                let limit = Duration::from_secs(60);
                for host in ["here", "127.0.0.1"] {
                    assert_eq!(probe(&modest, host, port, limit).await, ProbeAnswer::Success);
                }
            };
            tokio::select! {
                _ = &mut stuck => unreachable!("nobody answers"),
                () = others => {}
            }
            drop(stuck);
            let all = sys::removal::Contents::Everything;
            sys::removal::remove_tree(std::path::Path::new("/proc"), &etc, all).unwrap();
        });
    }

    #[tokio::test]
    async fn a_name_that_is_not_answered_for_in_time_is_told_in_gos_words() {
        let (resolver, _server, etc) = silent().await;
        let names = Names::of(&resolver, "pod");
        let told = probe(&names, "x.example", 80, Duration::from_millis(20)).await;
        let text = "dial tcp: lookup x.example: i/o timeout".to_owned();
        assert_eq!(told, ProbeAnswer::Failure(text));
        let all = sys::removal::Contents::Everything;
        sys::removal::remove_tree(std::path::Path::new("/proc"), &etc, all).unwrap();
    }
}
