//! Percentages as eviction thresholds have them: `10%`, `7.5%`.

use crate::strconv;
use std::str::FromStr;

/// A share of a whole, kept in Go's precision (`float32`).
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Percentage(f32);

/// Why a text is not a percentage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PercentageError {
    /// There is no `%` at the end.
    #[error("missing % in {}", strconv::quote(.0))]
    MissingSign(String),
    /// The rest is not a number; the text is Go's.
    #[error(transparent)]
    Number(#[from] strconv::NumError),
}

impl Percentage {
    /// From the fraction of one (`0.1` is 10 %).
    pub const fn from_fraction(fraction: f32) -> Self {
        Self(fraction)
    }

    /// The fraction of one.
    pub const fn fraction(self) -> f32 {
        self.0
    }

    /// The share of `whole`, cut to a whole number as Go does (`int64(float64(whole) * float64(p))`).
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "Go computes the same way"
    )]
    pub fn of(self, whole: i64) -> i64 {
        (whole as f64 * f64::from(self.0)) as i64
    }
}

impl FromStr for Percentage {
    type Err = PercentageError;

    fn from_str(text: &str) -> Result<Self, PercentageError> {
        if !text.ends_with('%') {
            return Err(PercentageError::MissingSign(text.to_owned()));
        }
        let number = text.trim_end_matches('%');
        Ok(Self(strconv::parse_float32(number)? / 100.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_computed_in_go_precision() {
        let ten: Percentage = "10%".parse().unwrap();
        assert_eq!(ten.fraction(), 0.1);
        assert_eq!(ten.of(1000), 100);
        assert_eq!("7.5%".parse::<Percentage>().unwrap().of(1000), 75);
    }

    #[test]
    fn faults_are_told() {
        assert_eq!("10".parse::<Percentage>().unwrap_err().to_string(), r#"missing % in "10""#);
        assert_eq!(
            "x%".parse::<Percentage>().unwrap_err().to_string(),
            r#"strconv.ParseFloat: parsing "x": invalid syntax"#
        );
    }
}
