//! JSON as Go's `encoding/json` writes it: `<`, `>`, `&` and the two line separators escaped,
//! floats in Go's form, no white space.
//!
//! Deliberately absent: key order. A struct's keys come in declaration order, as in Go; use a
//! `BTreeMap` where Go has a map.

mod syntax;

pub use syntax::syntax_fault;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{CharEscape, Formatter};
use serde_json::{Map, Value};
use std::io;

/// Why a text could not be decoded: Go's words for what is no JSON, the decoder's for what does not
/// fit.
pub fn fault(text: &str, error: &serde_json::Error) -> String {
    syntax_fault(text).unwrap_or_else(|| format!("json: {error}"))
}

/// An object of Go's: its type, and its fields with theirs.
pub type Shape<'a> = (&'a str, &'a [(&'a str, &'a str)]);

/// Decodes an object as leniently as Go does: its fields are known by their names in any case, what is
/// null is as good as missing, and of several the last counts. What does not fit is named in Go's words.
pub fn decode<T: DeserializeOwned>(
    text: &str,
    (go_type, fields): Shape<'_>,
) -> Result<T, serde_json::Error> {
    let mut given = match serde_json::from_str(text)? {
        Value::Null => Map::new(),
        Value::Object(given) => given,
        // A derived decoder would take a list for the fields in their order.
        other => {
            let into = format!("value of type {go_type}");
            return Err(cannot(kind(&other), &into));
        }
    };
    let structure = go_type.rsplit('.').next().unwrap_or_default();
    let mut found = Map::new();
    for (name, wanted) in fields {
        let keys: Vec<String> =
            given.keys().filter(|key| key.eq_ignore_ascii_case(name)).cloned().collect();
        for value in keys.into_iter().filter_map(|key| given.remove(&key)) {
            let into = format!("struct field {structure}.{name} of type {wanted}");
            match value {
                Value::Null => {}
                value if fits(&value, wanted) => {
                    found.insert((*name).to_owned(), value);
                }
                Value::Number(number) if wanted.starts_with("uint") || wanted.ends_with("sum") => {
                    return Err(cannot(&format!("number {number}"), &into));
                }
                other => return Err(cannot(kind(&other), &into)),
            }
        }
    }
    serde_json::from_value(Value::Object(found))
}

fn cannot(what: &str, into: &str) -> serde_json::Error {
    serde::de::Error::custom(format!("cannot unmarshal {what} into Go {into}"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether a value can be one of a type of Go's, as far as its outside goes.
fn fits(value: &Value, go_type: &str) -> bool {
    match go_type {
        "string" => value.is_string(),
        "uint32" => value.as_u64().is_some_and(|number| u32::try_from(number).is_ok()),
        "checksum.Checksum" => value.is_u64(),
        list if list.starts_with("[]") || list.ends_with("List") => value.is_array(),
        _ => value.is_object(),
    }
}

/// A string as a JSON string, with its quotes.
pub fn quoted(text: &str) -> String {
    to_string(text).unwrap_or_else(|_| "\"\"".to_owned())
}

/// What a reader of Go's JSON sees of any bytes: each one that is not UTF-8 is a replacement character
/// of its own.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

/// Any value as compact JSON.
pub fn to_string<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, GoFormatter))?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

/// A float as Go prints it in JSON: shortest form, exponent below 1e-6 and from 1e21.
pub fn float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let text = format!("{value:e}");
        return match text.split_once("e-") {
            Some((mantissa, exponent)) => {
                format!("{mantissa}e-{exponent:0>2}").replace("e-0", "e-")
            }
            None => text.replace('e', "e+"),
        };
    }
    format!("{value}")
}

struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_f64<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (plain, from) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let mut chars = from.chars();
            if let Some(special) = chars.next() {
                write!(writer, "\\u{:04x}", u32::from(special))?;
            }
            rest = chars.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        let text: &[u8] = match escape {
            CharEscape::Quote => b"\\\"",
            CharEscape::ReverseSolidus => b"\\\\",
            CharEscape::Solidus => b"/",
            CharEscape::Backspace => b"\\b",
            CharEscape::FormFeed => b"\\f",
            CharEscape::LineFeed => b"\\n",
            CharEscape::CarriageReturn => b"\\r",
            CharEscape::Tab => b"\\t",
            CharEscape::AsciiControl(byte) => return write!(writer, "\\u{byte:04x}"),
        };
        writer.write_all(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_is_no_text_is_replaced_by_itself() {
        for (bytes, want) in [
            (&b"a\xff\xfeb"[..], "a\u{fffd}\u{fffd}b"),
            (b"\xe2\x82", "\u{fffd}\u{fffd}"),
            (b"\x82\xac\xe2\x82\xac", "\u{fffd}\u{fffd}\u{20ac}"),
            (b"plain", "plain"),
        ] {
            assert_eq!(text(bytes), want, "{bytes:?}");
        }
    }

    #[test]
    fn objects_are_decoded_as_leniently_as_in_go() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Two {
            #[serde(rename = "policyName", default)]
            name: String,
            #[serde(default)]
            sum: u64,
        }
        let shape: Shape<'_> = ("a.Two", &[("policyName", "string"), ("sum", "checksum.Checksum")]);
        let two = |name: &str, sum| Ok(Two { name: name.to_owned(), sum });
        let field = |kind: &str, rest: &str| {
            Err(format!("json: cannot unmarshal {kind} into Go struct field Two.{rest}"))
        };
        for (text, want) in [
            (r#"{"policyName":"a","sum":5}"#, two("a", 5)),
            (r#"{"POLICYNAME":"a","Sum":5,"other":{}}"#, two("a", 5)),
            (r#"{"policyName":null,"sum":null}"#, two("", 0)),
            (r#"{"sum":1,"sum":2}"#, two("", 2)),
            ("null", two("", 0)),
            ("[]", Err("json: cannot unmarshal array into Go value of type a.Two".to_owned())),
            ("{", Err("unexpected end of JSON input".to_owned())),
            (r#"{"sum":"x"}"#, field("string", "sum of type checksum.Checksum")),
            (r#"{"sum":-1}"#, field("number -1", "sum of type checksum.Checksum")),
            (r#"{"policyName":5}"#, field("number", "policyName of type string")),
        ] {
            let got = decode::<Two>(text, shape).map_err(|error| fault(text, &error));
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn strings_are_escaped_as_go_does() {
        assert_eq!(quoted("a<b>&c"), r#""a\u003cb\u003e\u0026c""#);
        assert_eq!(
            quoted("\u{2028}\u{2029}é\"\\\n\u{1}\u{7f}"),
            "\"\\u2028\\u2029é\\\"\\\\\\n\\u0001\u{7f}\""
        );
    }

    #[test]
    fn floats_have_gos_form() {
        for (value, text) in [
            (1.0, "1"),
            (0.9, "0.9"),
            (1e21, "1e+21"),
            (1e-7, "1e-7"),
            (1e20, "100000000000000000000"),
            (1.5e-10, "1.5e-10"),
        ] {
            assert_eq!(float(value), text);
        }
    }
}
