//! An error with its causes on one line.
//!
//! Errors of this project do not repeat their source in their own text, so a log line needs the whole chain.

use std::error::Error;
use std::fmt;

/// Prints `outer: middle: root`, leaving out a cause that the text before it already ends with
/// (errors of other crates often repeat their source).
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(
    /// The outermost error.
    pub &'a (dyn Error + 'static),
);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
                last = text;
            }
            source = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layered {
        text: &'static str,
        #[source]
        cause: Option<Box<Layered>>,
    }

    fn layered(texts: &[&'static str]) -> Layered {
        let mut cause = None;
        for text in texts.iter().rev() {
            cause = Some(Box::new(Layered { text, cause }));
        }
        *cause.unwrap()
    }

    #[test]
    fn joins_every_cause_once() {
        let err = layered(&["mount volume", "open socket", "permission denied"]);
        assert_eq!(Chain(&err).to_string(), "mount volume: open socket: permission denied");
    }

    #[test]
    fn skips_a_cause_the_outer_text_repeats() {
        let err = layered(&["request failed: connection refused", "connection refused"]);
        assert_eq!(Chain(&err).to_string(), "request failed: connection refused");
    }
}
