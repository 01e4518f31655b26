//! TCP connections, with the error texts of Go's dialer.

use super::ProbeAnswer;
use std::time::Duration;
use tokio::net::TcpStream;
use units::errno::go_text;

/// How long the kernel keeps a connection that was closed.
const LINGER: Duration = Duration::from_secs(1);

/// Connects, or says why not in Go's words (`dial tcp 10.0.0.5:80: connect: connection refused`).
pub(crate) async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let shown =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    // The system would take `1.2.3` for an address.
    if host.parse::<std::net::IpAddr>().is_err() && !host.contains(':') && !is_domain_name(host) {
        return Err(format!("dial tcp: lookup {host}: no such host"));
    }
    match TcpStream::connect((host, port)).await {
        Ok(stream) => {
            // A probe never waits for more than one small write.
            let _ = stream.set_nodelay(true);
            // Thousands of probes must not leave thousands of closed connections behind
            // (`kubelet: ProbeDialer`).
            let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(LINGER));
            Ok(stream)
        }
        Err(error) if error.raw_os_error().is_some() => {
            Err(format!("dial tcp {shown}: connect: {}", go_text(&error)))
        }
        Err(error) => Err(format!("dial tcp: lookup {host}: {}", not_found(&error))),
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

/// Whether a name is one that could be looked up (`net: isDomainName`).
fn is_domain_name(name: &str) -> bool {
    if name == "." {
        return true;
    }
    let labels = name.strip_suffix('.').unwrap_or(name);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(fits)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    labels.len() <= 253 && labels.split('.').all(is_label) && !labels.bytes().all(is_number)
}

/// What Go says of a name that could not be looked up.
fn not_found(error: &std::io::Error) -> String {
    let text = error.to_string();
    let unknown = ["Name or service not known", "No address associated with hostname"];
    if unknown.iter().any(|known| text.contains(known)) {
        return "no such host".to_owned();
    }
    text
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

    #[tokio::test]
    async fn what_is_neither_address_nor_name_is_not_dialled() {
        for host in ["1.2.3", "127.1", "2130706433", "a b", "-x", "a..b", ""] {
            let told = dial(host, 9).await.unwrap_err();
            assert_eq!(told, format!("dial tcp: lookup {host}: no such host"));
        }
        let long = format!("{}.x", "a".repeat(64));
        assert!(!is_domain_name(&long));
        for host in ["a", "1.a", "x_y.example.", "0x7f.1", "."] {
            assert!(is_domain_name(host), "{host}");
        }
    }

    #[test]
    fn a_name_that_nobody_knows_is_no_such_host() {
        let text = "failed to lookup address information: Name or service not known";
        assert_eq!(not_found(&std::io::Error::other(text)), "no such host");
        assert_eq!(not_found(&std::io::Error::other("other")), "other");
    }
}
