//! Bodies of requests: read whole, up to a limit, with Go's words for what goes wrong.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use std::error::Error;
use std::io;

/// Why a body could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is larger than anybody asked for.
    TooLarge,
    /// It ended early or its chunks are broken; in Go's words.
    Broken(&'static str),
}

/// The whole body.
pub(crate) async fn read(body: Incoming, limit: usize) -> Result<Vec<u8>, Unread> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes().to_vec()),
        Err(error) if error.is::<LengthLimitError>() => Err(Unread::TooLarge),
        Err(error) => Err(Unread::Broken(text(&*error))),
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
}
