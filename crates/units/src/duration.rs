//! Go durations (`time.Duration`, `metav1.Duration`): `1m0s`, `100ms`.
//!
//! Promises: parsing, printing and error texts are Go's, to the byte.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A signed span of nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoDuration(i64);

/// Why a text is not a duration; the texts are Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not a sequence of numbers with units, or out of range.
    #[error("time: invalid duration {}", quote(.0))]
    Invalid(String),
    /// A number without a unit.
    #[error("time: missing unit in duration {}", quote(.0))]
    MissingUnit(String),
    /// A unit Go does not know.
    #[error("time: unknown unit {} in duration {}", quote(.unit), quote(.text))]
    UnknownUnit {
        /// The unit as written.
        unit: String,
        /// The whole text.
        text: String,
    },
}

impl GoDuration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// From nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// From milliseconds, saturating.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// From seconds, saturating.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// From minutes, saturating.
    pub const fn from_mins(minutes: i64) -> Self {
        Self::from_secs(minutes.saturating_mul(60))
    }

    /// In nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// In seconds, as Go's `Seconds`.
    #[expect(clippy::cast_precision_loss, reason = "the rest is below a second")]
    pub fn as_secs_f64(self) -> f64 {
        let (whole, rest) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        whole as f64 + rest as f64 / 1e9
    }

    /// Whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// As a span of time; `None` when it is negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }

    /// As a span of time; a negative one is no time at all.
    pub fn to_std_or_zero(self) -> Duration {
        self.to_std().unwrap_or_default()
    }
}

impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let invalid = || DurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total = 0_u64;
        while !rest.is_empty() {
            let after_whole = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let whole_digits = &rest[..rest.len() - after_whole.len()];
            let whole = leading_int(whole_digits).ok_or_else(invalid)?;
            let (fraction, after) = match after_whole.strip_prefix('.') {
                Some(tail) => {
                    let after = tail.trim_start_matches(|c: char| c.is_ascii_digit());
                    (&tail[..tail.len() - after.len()], after)
                }
                None => ("", after_whole),
            };
            if whole_digits.is_empty() && fraction.is_empty() {
                return Err(invalid());
            }
            let unit_end =
                after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
            let (unit_text, tail) = after.split_at(unit_end);
            if unit_text.is_empty() {
                return Err(DurationError::MissingUnit(text.to_owned()));
            }
            let unit = unit_nanos(unit_text).ok_or_else(|| DurationError::UnknownUnit {
                unit: unit_text.to_owned(),
                text: text.to_owned(),
            })?;
            let span = span_nanos(whole, fraction, unit).ok_or_else(invalid)?;
            total = total.checked_add(span).filter(|t| *t <= 1 << 63).ok_or_else(invalid)?;
            rest = tail;
        }
        let signed = if negative { -i128::from(total) } else { i128::from(total) };
        i64::try_from(signed).map(Self).map_err(|_| invalid())
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        const SECOND: u64 = 1_000_000_000;
        if nanos < SECOND {
            return match nanos {
                n if n < 1_000 => write!(f, "{n}ns"),
                n if n < 1_000_000 => write!(f, "{}µs", with_fraction(n, 1_000)),
                n => write!(f, "{}ms", with_fraction(n, 1_000_000)),
            };
        }
        let (minutes, rest) = (nanos / (60 * SECOND), nanos % (60 * SECOND));
        if minutes >= 60 {
            write!(f, "{}h", minutes / 60)?;
        }
        if minutes > 0 {
            write!(f, "{}m", minutes % 60)?;
        }
        write!(f, "{}s", with_fraction(rest, SECOND))
    }
}

impl fmt::Debug for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// `n / unit` with the fraction's trailing zeros dropped.
fn with_fraction(n: u64, unit: u64) -> String {
    let (whole, rest) = (n / unit, n % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.to_string().len() - 1;
    let fraction = format!("{rest:0width$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

fn leading_int(digits: &str) -> Option<u64> {
    let mut value = 0_u64;
    for digit in digits.bytes() {
        if value > (1 << 63) / 10 {
            return None;
        }
        value = value * 10 + u64::from(digit - b'0');
        if value > 1 << 63 {
            return None;
        }
    }
    Some(value)
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Go computes the fraction in floating point; so do we, to agree on the last nanosecond.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the fraction of a unit is at most an hour in nanoseconds"
)]
fn span_nanos(whole: u64, fraction: &str, unit: u64) -> Option<u64> {
    if whole > (1 << 63) / unit {
        return None;
    }
    let mut nanos = whole * unit;
    let (mut value, mut scale) = (0_u64, 1_f64);
    for digit in fraction.bytes() {
        if value > ((1 << 63) - 1) / 10 {
            break;
        }
        let next = value * 10 + u64::from(digit - b'0');
        if next > 1 << 63 {
            break;
        }
        value = next;
        scale *= 10.0;
    }
    if value > 0 {
        nanos += (value as f64 * (unit as f64 / scale)) as u64;
        if nanos > 1 << 63 {
            return None;
        }
    }
    Some(nanos)
}

/// A text in the quotes of Go's package `time`, which has bytes rather than characters.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        if c == '"' || c == '\\' {
            quoted.push('\\');
            quoted.push(c);
        } else if c < ' ' || !c.is_ascii() {
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                quoted.push_str(&format!("\\x{byte:02x}"));
            }
        } else {
            quoted.push(c);
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_as_go() {
        let cases = [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (5 * 3_600_000_000_000 + 367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ];
        for (nanos, text) in cases {
            assert_eq!(GoDuration(nanos).to_string(), text);
            assert_eq!(text.parse(), Ok(GoDuration(nanos)), "{text}");
        }
    }

    #[test]
    fn parses_as_go() {
        let cases = [
            ("0", 0),
            ("+0", 0),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("-2m3.4s", -123_400_000_000),
            ("1h15m30.918273645s", 4_530_918_273_645),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("52763797000ns", 52_763_797_000),
            ("12us", 12_000),
            ("12μs", 12_000),
        ];
        for (text, nanos) in cases {
            assert_eq!(text.parse(), Ok(GoDuration(nanos)), "{text}");
        }
    }

    #[test]
    fn errors_read_as_go_has_them() {
        let cases = [
            ("", r#"time: invalid duration """#),
            ("3", r#"time: missing unit in duration "3""#),
            ("-", r#"time: invalid duration "-""#),
            ("s", r#"time: invalid duration "s""#),
            (".s", r#"time: invalid duration ".s""#),
            ("5x", r#"time: unknown unit "x" in duration "5x""#),
            ("1ß", r#"time: unknown unit "\xc3\x9f" in duration "1\xc3\x9f""#),
            ("3000000h", r#"time: invalid duration "3000000h""#),
            ("9223372036854775808ns", r#"time: invalid duration "9223372036854775808ns""#),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<GoDuration>().unwrap_err().to_string(), error);
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(nanos: i64) {
            let duration = GoDuration(nanos);
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
