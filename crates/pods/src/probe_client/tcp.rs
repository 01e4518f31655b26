//! TCP connections, with the error texts of Go's dialer.

use super::ProbeAnswer;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long the kernel keeps a connection that was closed.
const LINGER: Duration = Duration::from_secs(1);

/// Connects, or says why not in Go's words (`dial tcp 10.0.0.5:80: connect: connection refused`).
pub(crate) async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let shown =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    match TcpStream::connect((host, port)).await {
        Ok(stream) => {
            // A probe never waits for more than one small write.
            let _ = stream.set_nodelay(true);
            // Thousands of probes must not leave thousands of closed connections behind
            // (`kubelet: ProbeDialer`).
            let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(LINGER));
            Ok(stream)
        }
        Err(error) => Err(format!("dial tcp {shown}: {}", go_text(&error))),
    }
}

/// One TCP probe.
pub(crate) async fn probe(host: &str, port: u16, timeout: Duration) -> ProbeAnswer {
    let shown =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    match tokio::time::timeout(timeout, dial(host, port)).await {
        Ok(Ok(_stream)) => ProbeAnswer::Success,
        Ok(Err(text)) => ProbeAnswer::Failure(text),
        Err(_) => ProbeAnswer::Failure(format!("dial tcp {shown}: i/o timeout")),
    }
}

fn go_text(error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    let what = match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused",
        ErrorKind::ConnectionReset => "connection reset by peer",
        ErrorKind::HostUnreachable => "no route to host",
        ErrorKind::NetworkUnreachable => "network is unreachable",
        ErrorKind::TimedOut => "connection timed out",
        _ => return error.to_string(),
    };
    format!("connect: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_open_port_succeeds_and_a_closed_one_fails_in_gos_words() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let second = Duration::from_secs(1);
        assert_eq!(probe("127.0.0.1", port, second).await, ProbeAnswer::Success);
        let stream = dial("127.0.0.1", port).await.unwrap();
        assert_eq!(rustix::net::sockopt::socket_linger(&stream).unwrap(), Some(LINGER));
        drop(listener);
        assert_eq!(
            probe("127.0.0.1", port, second).await,
            ProbeAnswer::Failure(format!("dial tcp 127.0.0.1:{port}: connect: connection refused"))
        );
    }
}
