//! What Go says of connections that fail.

/// Both ends of a connection, as Go names them.
pub(super) fn ends_of(stream: &tokio::net::TcpStream) -> String {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(own), Ok(other)) => format!("tcp {own}->{other}"),
        _ => "tcp".to_owned(),
    }
}

/// What Go says of a connection that the other side threw away.
pub(super) fn reset(ends: &str) -> String {
    format!("read {ends}: read: connection reset by peer")
}

/// What Go says of a handshake that failed.
pub(super) fn handshake(error: &std::io::Error, ends: &str) -> String {
    let alert = match error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => Some(*alert),
        _ => None,
    };
    match (alert, error.kind()) {
        (Some(alert), _) => format!("remote error: tls: {}", go_alert(alert)),
        (_, std::io::ErrorKind::UnexpectedEof) => "EOF".to_owned(),
        (_, std::io::ErrorKind::ConnectionReset) => reset(ends),
        _ => format!("tls: {error}"),
    }
}

fn go_alert(alert: rustls::AlertDescription) -> String {
    use rustls::AlertDescription as Alert;
    let text = match alert {
        Alert::UnexpectedMessage => "unexpected message",
        Alert::BadRecordMac => "bad record MAC",
        Alert::HandshakeFailure => "handshake failure",
        Alert::BadCertificate => "bad certificate",
        Alert::UnsupportedCertificate => "unsupported certificate",
        Alert::CertificateRevoked => "revoked certificate",
        Alert::CertificateExpired => "expired certificate",
        Alert::CertificateUnknown => "unknown certificate",
        Alert::IllegalParameter => "illegal parameter",
        Alert::UnknownCA => "unknown certificate authority",
        Alert::AccessDenied => "access denied",
        Alert::DecodeError => "error decoding message",
        Alert::DecryptError => "error decrypting message",
        Alert::ProtocolVersion => "protocol version not supported",
        Alert::InsufficientSecurity => "insufficient security level",
        Alert::InternalError => "internal error",
        Alert::MissingExtension => "missing extension",
        Alert::UnrecognisedName => "unrecognized name",
        Alert::CertificateRequired => "certificate required",
        Alert::NoApplicationProtocol => "no application protocol",
        other => return format!("alert({})", u8::from(other)),
    };
    text.to_owned()
}

/// What Go says of HTTP/2 that failed, of the one stream that each connection has.
pub(super) fn http2(error: &h2::Error, ends: &str) -> String {
    if let Some(io) = error.get_io() {
        return match io.kind() {
            std::io::ErrorKind::ConnectionReset => reset(ends),
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::BrokenPipe => {
                "unexpected EOF".to_owned()
            }
            _ => io.to_string(),
        };
    }
    match error.reason() {
        Some(reason) if error.is_reset() && error.is_remote() => {
            format!("stream error: stream ID 1; {reason:?}; received from peer")
        }
        Some(reason) if error.is_reset() => format!("stream error: stream ID 1; {reason:?}"),
        Some(reason) if error.is_go_away() && error.is_remote() => {
            format!("http2: server sent GOAWAY and closed the connection; ErrCode={reason:?}")
        }
        Some(reason) => format!("connection error: {reason:?}"),
        None => error.to_string(),
    }
}
