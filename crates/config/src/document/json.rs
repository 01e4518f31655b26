//! JSON with what `serde_json` drops: every member, duplicates, and numbers as they were written.
//!
//! Promises: what Go takes is taken (numbers of any size, lone surrogates, bytes that are no text
//! inside strings), what it refuses is refused in its words.

use super::Document;
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;
use units::strconv::quote;

/// Reads a document that begins with a brace.
pub(super) fn read(data: &[u8]) -> Result<Document, String> {
    if let Some(fault) = units::gojson::syntax_fault(data) {
        return Err(format!("couldn't get version/kind; json parse error: {fault}"));
    }
    let text = String::from_utf8_lossy(data);
    let mut reader = Reader { rest: &text, ..Reader::default() };
    let value = reader.value("");
    let Reader { members, duplicates, literals, .. } = reader;
    Ok(Document { value, json: true, members, duplicates, literals })
}

/// Reads text whose syntax was checked before: whatever is not there reads as nothing.
#[derive(Debug, Default)]
struct Reader<'a> {
    rest: &'a str,
    members: Vec<(String, Value)>,
    duplicates: Vec<String>,
    literals: BTreeMap<String, String>,
}

impl Reader<'_> {
    /// The next character that is no space.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.rest.chars().next()
    }

    fn skip(&mut self) {
        let mut chars = self.rest.chars();
        chars.next();
        self.rest = chars.as_str();
    }

    fn value(&mut self, path: &str) -> Value {
        match self.peek() {
            Some('{') => self.object(path),
            Some('[') => self.array(path),
            Some('"') => Value::String(self.string()),
            Some('t') => self.word("true", Value::Bool(true)),
            Some('f') => self.word("false", Value::Bool(false)),
            Some('n') => self.word("null", Value::Null),
            _ => self.number(path),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Value {
        self.rest = self.rest.get(word.len()..).unwrap_or_default();
        value
    }

    fn object(&mut self, path: &str) -> Value {
        let mut object = Map::new();
        self.skip();
        while let Some('"') = self.peek() {
            let key = self.string();
            let dot = if path.is_empty() { "" } else { "." };
            let below = format!("{path}{dot}{key}");
            if object.contains_key(&key) {
                self.duplicates.push(format!("duplicate field {}", quote(&below)));
            }
            self.peek();
            self.skip();
            let value = self.value(&below);
            if path.is_empty() {
                self.members.push((key.clone(), value.clone()));
            }
            object.insert(key, value);
            if self.peek() == Some(',') {
                self.skip();
            }
        }
        self.skip();
        Value::Object(object)
    }

    fn array(&mut self, path: &str) -> Value {
        let mut items = Vec::new();
        self.skip();
        while self.peek().is_some_and(|c| c != ']') {
            let item = self.value(&format!("{path}[{}]", items.len()));
            items.push(item);
            if self.peek() == Some(',') {
                self.skip();
            }
        }
        self.skip();
        Value::Array(items)
    }

    fn number(&mut self, path: &str) -> Value {
        let part = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len()).max(1);
        let (literal, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, ""));
        self.rest = rest;
        let number: Number = literal.parse().unwrap_or_else(|_| {
            // Too large for a float: the nearest, and the literal tells.
            let nearest = if literal.starts_with('-') { f64::MIN } else { f64::MAX };
            Number::from_f64(nearest).unwrap_or_else(|| 0.into())
        });
        if !number.is_f64() {
            self.literals.remove(path);
        } else {
            self.literals.insert(path.to_owned(), literal.to_owned());
        }
        Value::Number(number)
    }

    fn string(&mut self) -> String {
        self.skip();
        let mut text = String::new();
        loop {
            let mut chars = self.rest.chars();
            let next = chars.next();
            self.rest = chars.as_str();
            match next {
                None | Some('"') => return text,
                Some('\\') => text.push(self.escaped()),
                Some(c) => text.push(c),
            }
        }
    }

    /// What stands behind a backslash.
    fn escaped(&mut self) -> char {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        match next {
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => self.code_point(),
            Some(c) => c,
            None => char::REPLACEMENT_CHARACTER,
        }
    }

    fn code_point(&mut self) -> char {
        let unit = |text: &str| text.get(..4).and_then(|hex| u16::from_str_radix(hex, 16).ok());
        let Some(first) = unit(self.rest) else { return char::REPLACEMENT_CHARACTER };
        self.rest = self.rest.get(4..).unwrap_or_default();
        let second = self.rest.strip_prefix("\\u").and_then(unit);
        let units = [first, second.unwrap_or_default()];
        let pair = char::decode_utf16(units).next().and_then(Result::ok);
        match pair {
            // Half of a pair stands for itself, and that is nothing.
            None => char::REPLACEMENT_CHARACTER,
            Some(c) if c.len_utf16() == 2 => {
                self.rest = self.rest.get(6..).unwrap_or_default();
                c
            }
            Some(c) => c,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_keep_their_form() {
        let document = read(br#"{"a": 1e2, "b": [{"c": 1E400}], "d": 5}"#).unwrap();
        assert_eq!(document.value["a"], json!(100.0));
        let literals = [("a", "1e2"), ("b[0].c", "1E400")];
        let literals = literals.map(|(path, text)| (path.to_owned(), text.to_owned()));
        assert_eq!(document.literals, literals.into());
    }

    #[test]
    fn strings_are_read_as_go_reads_them() {
        let document = read(b"{\"a\": \"\\ud83d\\ude00 \\ud83d \\u00e9\\n\xff\"}").unwrap();
        assert_eq!(document.value, json!({"a": "\u{1f600} \u{fffd} é\n\u{fffd}"}));
    }

    proptest::proptest! {
        #[test]
        fn what_serde_reads_reads_the_same(text in "\\{\"a\": [\\[\\]{}:,\"a1.e\\\\tru fnl-]{0,14}\\}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                proptest::prop_assert_eq!(read(text.as_bytes()).unwrap().value, value);
            }
        }
    }
}
