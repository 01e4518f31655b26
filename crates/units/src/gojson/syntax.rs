//! What Go's scanner says about text that is not JSON.
//!
//! Promises: total and without recursion; the first fault, in Go's words.

use crate::strconv::quote;

/// How deep values may be nested.
const MAX_DEPTH: usize = 10_000;

/// The first fault of a text, as `encoding/json` words it; `None` when it is one JSON value.
pub fn syntax_fault(text: impl AsRef<[u8]>) -> Option<String> {
    let mut scanner = Scanner { rest: text.as_ref() };
    scanner.document().err().map(|fault| match fault {
        Fault::End => "unexpected end of JSON input".to_owned(),
        Fault::At(c, context) => format!("invalid character {} {context}", quote_char(c)),
    })
}

enum Fault {
    End,
    At(char, String),
}

/// What a value is inside of.
#[derive(Clone, Copy, PartialEq)]
enum Inside {
    Object,
    Array,
}

struct Scanner<'a> {
    rest: &'a [u8],
}

impl Scanner<'_> {
    fn peek(&self) -> Result<char, Fault> {
        // Go looks at bytes.
        self.rest.first().map(|b| char::from(*b)).ok_or(Fault::End)
    }

    fn next(&mut self) -> Result<char, Fault> {
        let (first, rest) = self.rest.split_first().ok_or(Fault::End)?;
        self.rest = rest;
        Ok(char::from(*first))
    }

    fn skip(&mut self, skipped: impl Fn(u8) -> bool) {
        let at = self.rest.iter().position(|byte| !skipped(*byte)).unwrap_or(self.rest.len());
        self.rest = &self.rest[at..];
    }

    fn starts_with(&self, any: &[u8]) -> bool {
        self.rest.first().is_some_and(|byte| any.contains(byte))
    }

    fn skip_space(&mut self) {
        self.skip(|byte| b" \t\r\n".contains(&byte));
    }

    fn fault<T>(&self, context: impl Into<String>) -> Result<T, Fault> {
        Err(Fault::At(self.within(), context.into()))
    }

    /// The next character of something that must go on: Go puts a space at the end of everything.
    fn within(&self) -> char {
        self.peek().unwrap_or(' ')
    }

    fn document(&mut self) -> Result<(), Fault> {
        let mut open: Vec<Inside> = Vec::new();
        loop {
            // At the beginning of a value.
            self.skip_space();
            match self.peek()? {
                '{' | '[' if open.len() >= MAX_DEPTH => return self.fault("exceeded max depth"),
                '{' => {
                    self.next()?;
                    self.skip_space();
                    if self.peek()? == '}' {
                        self.next()?;
                    } else {
                        open.push(Inside::Object);
                        self.key()?;
                        continue;
                    }
                }
                '[' => {
                    self.next()?;
                    self.skip_space();
                    if self.peek()? == ']' {
                        self.next()?;
                    } else {
                        open.push(Inside::Array);
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            // Behind a value.
            loop {
                self.skip_space();
                let Some(inside) = open.last() else {
                    if self.rest.is_empty() {
                        return Ok(());
                    }
                    return self.fault("after top-level value");
                };
                match (inside, self.peek()?) {
                    (Inside::Object, ',') => {
                        self.next()?;
                        self.skip_space();
                        self.key()?;
                        break;
                    }
                    (Inside::Array, ',') => {
                        self.next()?;
                        break;
                    }
                    (Inside::Object, '}') | (Inside::Array, ']') => {
                        self.next()?;
                        open.pop();
                    }
                    (Inside::Object, _) => return self.fault("after object key:value pair"),
                    (Inside::Array, _) => return self.fault("after array element"),
                }
            }
        }
    }

    fn key(&mut self) -> Result<(), Fault> {
        if self.peek()? != '"' {
            return self.fault("looking for beginning of object key string");
        }
        self.string()?;
        self.skip_space();
        if self.peek()? != ':' {
            return self.fault("after object key");
        }
        self.next().map(|_| ())
    }

    fn scalar(&mut self) -> Result<(), Fault> {
        match self.peek()? {
            '"' => self.string(),
            't' => self.literal("true"),
            'f' => self.literal("false"),
            'n' => self.literal("null"),
            '-' | '0'..='9' => self.number(),
            _ => self.fault("looking for beginning of value"),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), Fault> {
        for expected in word.chars() {
            if self.within() != expected {
                return self.fault(format!("in literal {word} (expecting '{expected}')"));
            }
            self.next()?;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), Fault> {
        self.next()?;
        loop {
            match self.peek()? {
                '"' => return self.next().map(|_| ()),
                '\\' => {
                    self.next()?;
                    match self.within() {
                        '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {
                            self.next()?;
                        }
                        'u' => {
                            self.next()?;
                            for _ in 0..4 {
                                if !self.within().is_ascii_hexdigit() {
                                    return self.fault("in \\u hexadecimal character escape");
                                }
                                self.next()?;
                            }
                        }
                        _ => return self.fault("in string escape code"),
                    }
                }
                c if c < ' ' => return self.fault("in string literal"),
                _ => {
                    self.next()?;
                }
            }
        }
    }

    fn digits(&mut self) {
        self.skip(|byte| byte.is_ascii_digit());
    }

    fn number(&mut self) -> Result<(), Fault> {
        if self.peek()? == '-' {
            self.next()?;
            if !self.within().is_ascii_digit() {
                return self.fault("in numeric literal");
            }
        }
        if self.next()? != '0' {
            self.digits();
        }
        if self.starts_with(b".") {
            self.next()?;
            if !self.within().is_ascii_digit() {
                return self.fault("after decimal point in numeric literal");
            }
            self.digits();
        }
        if self.starts_with(b"eE") {
            self.next()?;
            if self.starts_with(b"+-") {
                self.next()?;
            }
            if !self.within().is_ascii_digit() {
                return self.fault("in exponent of numeric literal");
            }
            self.digits();
        }
        Ok(())
    }
}

fn quote_char(c: char) -> String {
    match c {
        '\'' => r"'\''".to_owned(),
        '"' => "'\"'".to_owned(),
        c => format!("'{}'", quote(&c.to_string()).trim_matches('"')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn faults_read_as_gos() {
        let cases = [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            (r#"{"a":}"#, "invalid character '}' looking for beginning of value"),
            ("{a: b}", "invalid character 'a' looking for beginning of object key string"),
            (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string"),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("1 x", "invalid character 'x' after top-level value"),
            ("tru", "invalid character ' ' in literal true (expecting 'e')"),
            ("{\"a", "unexpected end of JSON input"),
            ("\"\\", "invalid character ' ' in string escape code"),
            ("\"\\u0", "invalid character ' ' in \\u hexadecimal character escape"),
            ("[-", "invalid character ' ' in numeric literal"),
            ("1.", "invalid character ' ' after decimal point in numeric literal"),
            ("1e+", "invalid character ' ' in exponent of numeric literal"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u00g0\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("\"\n\"", "invalid character '\\n' in string literal"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("01", "invalid character '1' after top-level value"),
            ("'a'", r"invalid character '\'' looking for beginning of value"),
        ];
        for (text, fault) in cases {
            assert_eq!(syntax_fault(text).as_deref(), Some(fault), "{text}");
        }
        assert_eq!(syntax_fault("[".repeat(10_000) + &"]".repeat(10_000)), None);
        assert_eq!(
            syntax_fault("[".repeat(10_001)).as_deref(),
            Some("invalid character '[' exceeded max depth")
        );
        assert_eq!(
            syntax_fault(b"{\xff").as_deref(),
            Some("invalid character '\u{ff}' looking for beginning of object key string")
        );
    }

    proptest! {
        #[test]
        fn what_serde_takes_has_no_fault_and_the_other_way_round(
            text in "[\\[\\]{}:,\"a1.e\\\\-tru fnl]{0,14}"
        ) {
            let taken = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert_eq!(syntax_fault(&text).is_none(), taken, "{}", text);
        }
    }
}
