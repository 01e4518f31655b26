//! How Go holds a quantity in memory, for hashes over dumps of Go objects.
//!
//! The same amount has several forms there: a scaled `int64` where it fits, else a decimal of any size, and the text as
//! written when that is canonical. Which of them depends on the spelling (upstream: `resource.ParseQuantity`).

use super::{Format, Quantity, QuantityError, Unit, split, unit_of};
use std::fmt;

/// The number of decimal digits that always fit an `int64`.
const DIGITS: i64 = 18;
/// Decimal places of the smallest unit.
const NANO_PLACES: u32 = 9;

/// A quantity as Go has it after reading this text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldQuantity {
    value: i64,
    scale: i64,
    decimal: Option<Decimal>,
    text: String,
    format: Format,
}

/// A decimal of any size: `±unscaled / 10^places`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    unscaled: u128,
    places: u32,
}

impl HeldQuantity {
    /// Reads a text.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let value: Quantity = text.parse()?;
        if text == "0" {
            return Ok(Self {
                value: 0,
                scale: 0,
                decimal: None,
                text: text.to_owned(),
                format: Format::DecimalSi,
            });
        }
        Ok(match Self::scaled(text)? {
            Some(scaled) => scaled,
            None => Self {
                value: 0,
                scale: 0,
                decimal: Some(Decimal {
                    negative: value.is_negative(),
                    unscaled: value.nanos().unsigned_abs(),
                    places: NANO_PLACES,
                }),
                text: String::new(),
                format: value.format(),
            },
        })
    }

    /// The form with a scaled `int64`, if Go chooses that.
    fn scaled(text: &str) -> Result<Option<Self>, QuantityError> {
        let parts = split(text)?;
        let (unit, format) = unit_of(parts.suffix).ok_or(QuantityError::Suffix)?;
        let stripped = parts.whole.trim_start_matches('0');
        let whole = if stripped.is_empty() { "0" } else { stripped };
        let length = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX);
        let (precision, exponent, factor) = match unit {
            Unit::Decimal(exponent) => {
                (DIGITS - length(whole) - length(parts.fraction), exponent, 1_i64)
            }
            Unit::Binary(exponent) if parts.fraction.is_empty() => {
                let digits = i64::from(exponent * 3 / 10);
                (15 - length(whole) - digits - 1, 0, 1_i64 << exponent)
            }
            Unit::Binary(_) => return Ok(None),
        };
        let scale = exponent.saturating_sub(length(parts.fraction));
        if precision < 0 || scale < -i64::from(NANO_PLACES) {
            return Ok(None);
        }
        let shifted = format!("{whole}{}", parts.fraction);
        let number: i64 = shifted.parse().map_err(|_| QuantityError::Numeric)?;
        let Some(value) = number.checked_mul(factor) else { return Ok(None) };
        let canonical = match unit {
            Unit::Binary(_) => number & 7 != 0,
            Unit::Decimal(_) => {
                scale % 3 == 0 && !shifted.ends_with("000") && !shifted.starts_with('0')
            }
        };
        Ok(Some(Self {
            value: if parts.negative { -value } else { value },
            scale,
            decimal: None,
            text: if canonical { text.to_owned() } else { String::new() },
            format,
        }))
    }

    /// The whole number, if Go can tell without reducing the fraction it holds (Go: `AsInt64`): `1000m`
    /// and `1.5Gi` are none.
    pub fn as_i64(&self) -> Option<i64> {
        if self.decimal.is_some() {
            return None;
        }
        let factor = 10_i64.checked_pow(u32::try_from(self.scale).ok()?)?;
        self.value.checked_mul(factor)
    }

    /// Rounded up to thousandths, as the API's defaults do with the amounts of resources.
    #[must_use]
    pub fn rounded_to_milli(mut self) -> Self {
        if let Some(decimal) = &mut self.decimal {
            self.text.clear();
            while decimal.places > 3 {
                decimal.unscaled = decimal.unscaled.div_ceil(10);
                decimal.places -= 1;
            }
            return self;
        }
        if self.scale >= -3 {
            return self;
        }
        self.text.clear();
        while self.scale < -3 {
            let up = i64::from(self.value % 10 != 0) * self.value.signum();
            self.value = self.value / 10 + up;
            self.scale += 1;
        }
        self
    }
}

impl fmt::Display for HeldQuantity {
    /// The dump of the Go struct's fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{i:(resource.int64Amount){{value:(int64){} scale:(resource.Scale){}}} ",
            self.value, self.scale
        )?;
        f.write_str("d:(resource.infDecAmount){Dec:(*inf.Dec)")?;
        match &self.decimal {
            None => f.write_str("<nil>")?,
            Some(Decimal { negative, unscaled, places }) => {
                write!(f, "{{unscaled:(big.Int){{neg:(bool){negative} abs:(big.nat)")?;
                let low = unscaled & u128::from(u64::MAX);
                match (unscaled >> 64, low) {
                    (0, 0) => f.write_str("[]")?,
                    (0, low) => write!(f, "[{low}]")?,
                    (high, low) => write!(f, "[{low} {high}]")?,
                }
                write!(f, "}} scale:(inf.Scale){places}}}")?;
            }
        }
        let format = match self.format {
            Format::DecimalExponent => "DecimalExponent",
            Format::BinarySi => "BinarySI",
            Format::DecimalSi => "DecimalSI",
        };
        write!(f, "}} s:(string){} Format:(resource.Format){format}}}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(text: &str) -> String {
        HeldQuantity::parse(text).unwrap().rounded_to_milli().to_string()
    }

    #[test]
    fn a_whole_number_is_told_by_its_spelling() {
        let whole = |text: &str| HeldQuantity::parse(text).unwrap().as_i64();
        for (text, number) in [
            ("0", 0),
            ("-5", -5),
            ("10Mi", 10 << 20),
            ("10Ti", 10 << 40),
            ("1e3", 1000),
            ("2k", 2000),
        ] {
            assert_eq!(whole(text), Some(number), "{text}");
        }
        for text in ["1.0", "1000m", "1.5Gi", "100Ti", "9Ei", "1e19", "9223372036854775808"] {
            assert_eq!(whole(text), None, "{text}");
        }
    }

    #[test]
    fn dumps_are_the_go_programs() {
        let small = |value: &str, scale: &str, text: &str, format: &str| {
            format!(
                "{{i:(resource.int64Amount){{value:(int64){value} scale:(resource.Scale){scale}}} \
                 d:(resource.infDecAmount){{Dec:(*inf.Dec)<nil>}} s:(string){text} \
                 Format:(resource.Format){format}}}"
            )
        };
        assert_eq!(dump("0"), small("0", "0", "0", "DecimalSI"));
        assert_eq!(dump("100m"), small("100", "-3", "100m", "DecimalSI"));
        assert_eq!(dump("3"), small("3", "0", "3", "DecimalSI"));
        assert_eq!(
            dump("1.5Gi"),
            "{i:(resource.int64Amount){value:(int64)0 scale:(resource.Scale)0} \
             d:(resource.infDecAmount){Dec:(*inf.Dec){unscaled:(big.Int){neg:(bool)false \
             abs:(big.nat)[1610612736000]} scale:(inf.Scale)3}} s:(string) \
             Format:(resource.Format)BinarySI}"
        );
    }
}
