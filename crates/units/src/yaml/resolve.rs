//! What a scalar's text means (yaml.v2: `resolve`).

use super::YamlError;
use crate::strconv::{parse_int, parse_uint};

/// The value of a scalar.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
}

const PREFIX: &str = "tag:yaml.org,2002:";

impl Scalar {
    fn tag(&self) -> &'static str {
        match self {
            Scalar::Null => "!!null",
            Scalar::Bool(_) => "!!bool",
            Scalar::Int(_) | Scalar::Uint(_) => "!!int",
            Scalar::Float(_) => "!!float",
            Scalar::Text(_) => "!!str",
        }
    }
}

/// The value of a text with this tag; a plain one without a tag may be anything.
pub(super) fn resolve(tag: &str, text: &str, plain: bool) -> Result<Scalar, YamlError> {
    let as_text = || Scalar::Text(text.to_owned());
    if tag.is_empty() {
        return Ok(if plain { guess(text) } else { as_text() });
    }
    let Some(name) = tag.strip_prefix(PREFIX) else { return Ok(as_text()) };
    if name == "binary" {
        return crate::base64::decode(text)
            .map(|bytes| Scalar::Text(String::from_utf8_lossy(&bytes).into_owned()))
            .map_err(|_| YamlError::new("!!binary value contains invalid base64 data"));
    }
    if !["bool", "int", "float", "null", "timestamp"].contains(&name) {
        return Ok(as_text());
    }
    if name == "timestamp" && is_timestamp(text) {
        return Ok(as_text());
    }
    let found = guess(text);
    if name == "float"
        && let Scalar::Int(value) = found
    {
        #[expect(clippy::cast_precision_loss, reason = "as upstream does")]
        return Ok(Scalar::Float(value as f64));
    }
    if found.tag().strip_prefix("!!") == Some(name) {
        return Ok(found);
    }
    Err(YamlError::new(format!("cannot decode {} `{text}` as a !!{name}", found.tag())))
}

fn guess(text: &str) -> Scalar {
    let as_text = || Scalar::Text(text.to_owned());
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Scalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Scalar::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    match text.as_bytes().first() {
        Some(b'.') => float(text).map_or_else(as_text, Scalar::Float),
        Some(b'+' | b'-' | b'0'..=b'9') => number(text).unwrap_or_else(as_text),
        _ => as_text(),
    }
}

fn number(text: &str) -> Option<Scalar> {
    let plain = text.replace('_', "");
    if let Ok(value) = parse_int(&plain, 0, 64) {
        return Some(Scalar::Int(value));
    }
    if let Ok(value) = parse_uint(&plain, 0, 64) {
        return Some(Scalar::Uint(value));
    }
    float(&plain).map(Scalar::Float)
}

/// Digits with an optional point and exponent; nothing else that a float may be called.
fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let exponent_good = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let empty = whole.is_empty() && part.is_empty();
    if empty || !digits(whole) || !digits(part) || !exponent_good {
        return None;
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}

/// Whether it begins as a date does.
fn is_timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    let year = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    year == 4 && bytes.get(4) == Some(&b'-') && bytes.get(5).is_some_and(u8::is_ascii_digit)
}
