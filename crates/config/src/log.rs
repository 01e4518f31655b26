//! Lines to log, as data: this crate decides what is said, the caller prints it.

use std::fmt;

/// How loud a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Shown from this verbosity on.
    Info(u8),
    /// Always shown.
    Error,
}

/// A value of a line's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogValue {
    /// Printed in quotes.
    Text(String),
    /// Printed as it is.
    Raw(String),
}

/// One structured line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// How loud.
    pub severity: Severity,
    /// The constant phrase.
    pub message: String,
    /// Keys and values, in order.
    pub values: Vec<(&'static str, LogValue)>,
    /// The message is printed as it is rather than quoted (klog's `Infof`).
    pub plain: bool,
}

impl LogLine {
    /// A line at the usual verbosity.
    pub fn info(message: impl Into<String>) -> Self {
        Self::at(Severity::Info(0), message)
    }

    /// A line shown from a verbosity on.
    pub fn at(severity: Severity, message: impl Into<String>) -> Self {
        Self { severity, message: message.into(), values: Vec::new(), plain: false }
    }

    /// A line whose message is printed as it is.
    pub fn plain(severity: Severity, message: impl Into<String>) -> Self {
        Self { plain: true, ..Self::at(severity, message) }
    }

    /// Adds a text.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.values.push((key, LogValue::Text(value.into())));
        self
    }

    /// Adds a number or boolean.
    #[must_use]
    pub fn with_raw(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.values.push((key, LogValue::Raw(value.into())));
        self
    }
}

impl fmt::Display for LogLine {
    /// klog's form of message and values, without the header.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.plain {
            f.write_str(&self.message)?;
        } else {
            f.write_str(&units::strconv::quote(&self.message))?;
        }
        for (key, value) in &self.values {
            match value {
                LogValue::Raw(text) => write!(f, " {key}={text}")?,
                LogValue::Text(text) if text.contains('\n') => {
                    write!(f, " {key}=<")?;
                    for line in text.lines() {
                        write!(f, "\n\t{line}")?;
                    }
                    f.write_str("\n >")?;
                }
                LogValue::Text(text) => write!(f, " {key}={}", units::strconv::quote(text))?,
            }
        }
        Ok(())
    }
}
