//! Request bodies: read completely, with limits for size and time, and with Go's error texts.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use std::error::Error;
use std::io;
use std::time::Duration;

/// The longest time that a complete body may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// Why a body could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is larger than the handler's limit.
    TooLarge,
    /// It ended early or its chunked encoding is malformed; Go's error text.
    Broken(&'static str),
}

/// Reads the complete body.
pub(crate) async fn read<B>(body: B, limit: usize) -> Result<Vec<u8>, Unread>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let read = Limited::new(body, limit).collect();
    match tokio::time::timeout(DEADLINE, read).await {
        Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Unread::TooLarge),
        Ok(Err(error)) => Err(Unread::Broken(text(&*error))),
        Err(_) => Err(Unread::Broken("i/o timeout")),
    }
}

fn text(error: &(dyn Error + 'static)) -> &'static str {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return match io.kind() {
                io::ErrorKind::UnexpectedEof => "unexpected EOF",
                _ => "invalid byte in chunk length",
            };
        }
        cause = error.source();
    }
    "unexpected EOF"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_the_words_of_go() {
        let early = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(text(&early), "unexpected EOF");
        let broken = io::Error::new(io::ErrorKind::InvalidInput, "Invalid chunk size line");
        assert_eq!(text(&broken), "invalid byte in chunk length");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let never = futures::stream::pending::<Result<Bytes, io::Error>>();
        let body = axum::body::Body::from_stream(never);
        assert_eq!(read(body, 10).await, Err(Unread::Broken("i/o timeout")));
        let large = axum::body::Body::from("more than ten bytes");
        assert_eq!(read(large, 10).await, Err(Unread::TooLarge));
    }
}
