//! Kubernetes quantities (`resource.Quantity`): `100Mi`, `1500m`, `12e6`.
//!
//! Owns: parsing, the canonical text form, rounding, comparison and arithmetic.
//!
//! Promises: a value is an `i128` count of nano-units, so that every quantity an API object can
//! hold is exact; arithmetic saturates instead of wrapping. Equality and order are by value, as
//! Go's `Cmp`, whatever the format.
//!
//! Deliberately absent: Go's cache of the original spelling. Go prints `+1` or `1.500` as they
//! were written when it judges them canonical; here the text form is always the canonical one
//! ([`HeldQuantity`] has the other).

mod held;
mod spelled;

pub use held::HeldQuantity;
pub use spelled::SpelledQuantity;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

const NANO: i128 = 1_000_000_000;
/// Go caps binary quantities (and only those) at the largest int64.
const BINARY_CAP: i128 = i64::MAX as i128 * NANO;

/// How a quantity likes to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `12e6`.
    DecimalExponent,
    /// `12Mi`, powers of 1024.
    BinarySi,
    /// `12M`, powers of 1000.
    #[default]
    DecimalSi,
}

/// Why a text is not a quantity; the texts are Go's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not have the shape of a quantity.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// There are no digits to read.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// The suffix is not a known unit.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// A fixed-point number with Kubernetes' text form.
#[derive(Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

impl Quantity {
    /// Zero, decimal.
    pub const ZERO: Self = Self { nanos: 0, format: Format::DecimalSi };

    /// A whole number.
    pub const fn new(value: i64, format: Format) -> Self {
        Self { nanos: value as i128 * NANO, format }
    }

    /// A whole number of thousandths.
    pub const fn from_milli(milli: i64, format: Format) -> Self {
        Self { nanos: milli as i128 * 1_000_000, format }
    }

    /// Bytes, written in powers of 1024.
    pub const fn from_bytes(bytes: i64) -> Self {
        Self::new(bytes, Format::BinarySi)
    }

    /// How it is written.
    pub const fn format(self) -> Format {
        self.format
    }

    /// The same value in another format.
    pub const fn with_format(self, format: Format) -> Self {
        Self { nanos: self.nanos, format }
    }

    /// The whole value, rounded away from zero; out of range values saturate.
    pub fn value(self) -> i64 {
        self.scaled(NANO)
    }

    /// The value in thousandths, rounded away from zero; out of range values saturate.
    pub fn milli_value(self) -> i64 {
        self.scaled(1_000_000)
    }

    /// The value as a float, for ratios and metrics.
    #[expect(clippy::cast_precision_loss, reason = "approximate by contract")]
    pub fn as_f64(self) -> f64 {
        let (whole, rest) = (self.nanos / NANO, self.nanos % NANO);
        whole as f64 + rest as f64 / 1e9
    }

    /// The value in billionths.
    pub const fn nanos(self) -> i128 {
        self.nanos
    }

    /// Whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it is below zero.
    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether it is a whole number (Go's `AsInt64` succeeds).
    pub fn as_i64(self) -> Option<i64> {
        if self.nanos % NANO != 0 {
            return None;
        }
        i64::try_from(self.nanos / NANO).ok()
    }

    /// Sum; when `self` is zero the format of `other` is taken, as Go does.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }

    /// Difference; when `self` is zero the format of `other` is taken, as Go does.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_sub(other.nanos), format }
    }

    /// Product with a whole number.
    #[must_use]
    pub fn saturating_mul(self, factor: i64) -> Self {
        Self { nanos: self.nanos.saturating_mul(i128::from(factor)), format: self.format }
    }

    /// The value rounded away from zero to a whole number.
    #[must_use]
    pub fn round_up(self) -> Self {
        Self::new(self.value(), self.format)
    }

    fn scaled(self, unit: i128) -> i64 {
        let (quotient, rest) = (self.nanos / unit, self.nanos % unit);
        let rounded = if rest == 0 { quotient } else { quotient + self.nanos.signum() };
        let bound = if rounded < 0 { i64::MIN } else { i64::MAX };
        i64::try_from(rounded).unwrap_or(bound)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let parts = split(text)?;
        let (unit, format) = unit_of(parts.suffix).ok_or(QuantityError::Suffix)?;
        let digits_missing = parts.whole.is_empty() && parts.fraction.is_empty();
        if digits_missing && matches!(unit, Unit::Binary(exponent) if exponent >= 50) {
            return Err(QuantityError::Numeric);
        }
        let mut nanos = match unit {
            Unit::Decimal(exponent) => scale_decimal(parts.whole, parts.fraction, exponent),
            Unit::Binary(exponent) => scale_binary(parts.whole, parts.fraction, exponent),
        };
        let mut format = format;
        if format == Format::BinarySi {
            nanos = nanos.min(BINARY_CAP);
            if nanos > 0 && nanos < NANO {
                format = Format::DecimalSi;
            }
        }
        if parts.negative {
            nanos = -nanos;
        }
        Ok(Self { nanos, format })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let binary = self.format == Format::BinarySi
            && self.nanos.abs() >= 1024 * NANO
            && self.nanos % NANO == 0;
        if binary {
            let mut value = self.nanos / NANO;
            let mut power = 0_usize;
            while value % 1024 == 0 {
                value /= 1024;
                power += 1;
            }
            let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].get(power).unwrap_or(&"");
            return write!(f, "{value}{suffix}");
        }
        let mut value = self.nanos;
        let mut exponent = -9_i32;
        while value % 10 == 0 {
            value /= 10;
            exponent += 1;
        }
        while exponent.rem_euclid(3) != 0 {
            value *= 10;
            exponent -= 1;
        }
        if self.format == Format::DecimalExponent {
            return if exponent == 0 {
                write!(f, "{value}")
            } else {
                write!(f, "{value}e{exponent}")
            };
        }
        let suffix = match exponent {
            -9 => "n",
            -6 => "u",
            -3 => "m",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            18 => "E",
            _ => "",
        };
        write!(f, "{value}{suffix}")
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// Takes a string or a number (`memory: 1024`), as Go's `UnmarshalJSON`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.trim().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::new(value, Format::DecimalSi))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                let nanos = i128::from(value) * NANO;
                Ok(Quantity { nanos, format: Format::DecimalSi })
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
                value.to_string().parse().map_err(E::custom)
            }

            fn visit_unit<E: de::Error>(self) -> Result<Quantity, E> {
                Ok(Quantity::ZERO)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

enum Unit {
    Decimal(i64),
    Binary(u32),
}

/// Cuts a text into sign, digits and suffix; digits may be missing altogether, as in Go.
fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, rest) = take_digits(rest);
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => take_digits(rest),
        None => ("", rest),
    };
    let letters = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    let exponent = letters.strip_prefix(['-', '+']).unwrap_or(letters);
    if !exponent.bytes().all(|b| b.is_ascii_digit()) {
        return Err(QuantityError::Format);
    }
    Ok(Parts { negative, whole, fraction, suffix })
}

fn take_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn unit_of(suffix: &str) -> Option<(Unit, Format)> {
    let decimal = |exponent| Some((Unit::Decimal(exponent), Format::DecimalSi));
    let binary = |exponent| Some((Unit::Binary(exponent), Format::BinarySi));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            Some((Unit::Decimal(exponent.parse().ok()?), Format::DecimalExponent))
        }
    }
}

/// `whole.fraction × 10^exponent` in nano-units, rounded up.
fn scale_decimal(whole: &str, fraction: &str, exponent: i64) -> i128 {
    let shift = exponent.saturating_add(9);
    let mut nanos = 0_i128;
    let mut remainder = false;
    // Digits are consumed from the left; each stands at a power of ten relative to one nano-unit.
    let leading = i64::try_from(whole.len()).unwrap_or(i64::MAX);
    let mut power = leading.saturating_sub(1).saturating_add(shift);
    for digit in whole.bytes().chain(fraction.bytes()) {
        let digit = i128::from(digit - b'0');
        if digit != 0 {
            if power < 0 {
                remainder = true;
            } else {
                let place = u32::try_from(power).ok().and_then(|p| 10_i128.checked_pow(p));
                let term = place.and_then(|p| p.checked_mul(digit)).unwrap_or(i128::MAX);
                nanos = nanos.saturating_add(term);
            }
        }
        power = power.saturating_sub(1);
    }
    if remainder { nanos.saturating_add(1) } else { nanos }
}

/// `whole.fraction × 2^exponent` in nano-units, rounded up.
fn scale_binary(whole: &str, fraction: &str, exponent: u32) -> i128 {
    let factor = 1_i128 << exponent;
    let whole = scale_decimal(whole, "", 0).saturating_mul(factor);
    // A fraction digit d at place k is worth d × 10^9 × 2^exponent / 10^k nano-units; long division
    // keeps it exact for any number of digits.
    let mut carry_units = 0_i128;
    let mut exact = true;
    for digit in fraction.bytes().rev() {
        let total = carry_units + i128::from(digit - b'0') * factor * NANO;
        exact &= total % 10 == 0;
        carry_units = total / 10;
    }
    let fraction = if exact { carry_units } else { carry_units + 1 };
    whole.saturating_add(fraction)
}

#[cfg(test)]
mod tests;
