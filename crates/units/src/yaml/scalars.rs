//! Scalars and tags (libyaml's scanner, second half).

use super::YamlError;
use super::reader::{is_blank, is_break, is_end, is_space, is_word};
use super::scanner::{Kind, Scanner, Token};

/// White space between words of a scalar, which may be a line break.
#[derive(Debug, Default)]
struct Gap {
    blanks: String,
    /// The first line break.
    first: String,
    /// The others.
    others: String,
    broken: bool,
}

impl Gap {
    /// Puts what the gap stands for into the text.
    fn fold(&mut self, text: &mut String) {
        if self.broken {
            if self.first.starts_with('\n') {
                text.push_str(if self.others.is_empty() { " " } else { &self.others });
            } else {
                text.push_str(&self.first);
                text.push_str(&self.others);
            }
            self.first.clear();
            self.others.clear();
            self.broken = false;
        } else {
            text.push_str(&self.blanks);
            self.blanks.clear();
        }
    }
}

impl Scanner<'_> {
    /// Takes white space into a gap; `least` is the indentation that tabs may not be part of.
    fn gap(&mut self, gap: &mut Gap, least: usize) -> Result<(), YamlError> {
        loop {
            let c = self.reader.peek(0);
            if is_blank(c) {
                if gap.broken && c == '\t' && self.reader.mark.column < least {
                    return Err(self.error("found a tab character that violates indentation"));
                }
                if gap.broken {
                    self.reader.skip();
                } else {
                    self.reader.take(&mut gap.blanks);
                }
            } else if let Some(line) = self.reader.skip_line() {
                if gap.broken {
                    gap.others.push(line);
                } else {
                    gap.blanks.clear();
                    gap.first.push(line);
                    gap.broken = true;
                }
            } else {
                return Ok(());
            }
            self.reader.fill()?;
        }
    }

    pub(super) fn plain_scalar(&mut self) -> Result<Token, YamlError> {
        let start = self.reader.mark;
        let least = self.indent.map_or(0, |indent| indent + 1);
        let mut text = String::new();
        let mut gap = Gap::default();
        loop {
            self.reader.fill()?;
            if self.at_document_mark() || self.reader.peek(0) == '#' {
                break;
            }
            while !is_space(self.reader.peek(0)) {
                let (c, next) = (self.reader.peek(0), self.reader.peek(1));
                let flow = self.flow_level > 0 && ",?[]{}".contains(c);
                if flow || (c == ':' && is_space(next)) {
                    break;
                }
                gap.fold(&mut text);
                self.reader.take(&mut text);
                self.reader.fill()?;
            }
            let c = self.reader.peek(0);
            if !is_blank(c) && !is_break(c) {
                break;
            }
            self.gap(&mut gap, least)?;
            if self.flow_level == 0 && self.reader.mark.column < least {
                break;
            }
        }
        if gap.broken {
            self.key_allowed = true;
        }
        Ok(Token { kind: Kind::Scalar(text, true), start })
    }

    pub(super) fn quoted_scalar(&mut self, mark: char) -> Result<Token, YamlError> {
        let start = self.reader.mark;
        self.reader.skip();
        let mut text = String::new();
        loop {
            self.reader.fill()?;
            if self.at_document_mark() {
                return Err(self.error("found unexpected document indicator"));
            }
            if self.reader.peek(0) == '\0' {
                return Err(self.error("found unexpected end of stream"));
            }
            let mut gap = Gap::default();
            while !is_space(self.reader.peek(0)) {
                let (c, next) = (self.reader.peek(0), self.reader.peek(1));
                if c == '\'' && mark == '\'' && next == '\'' {
                    text.push('\'');
                    self.reader.skip();
                    self.reader.skip();
                } else if c == mark {
                    break;
                } else if c == '\\' && mark == '"' && is_break(next) {
                    self.reader.skip();
                    self.reader.skip_line();
                    gap.broken = true;
                    break;
                } else if c == '\\' && mark == '"' {
                    self.escape(next, &mut text)?;
                } else {
                    self.reader.take(&mut text);
                }
                self.reader.fill()?;
            }
            self.reader.fill()?;
            if self.reader.peek(0) == mark {
                break;
            }
            self.gap(&mut gap, 0)?;
            gap.fold(&mut text);
        }
        self.reader.skip();
        Ok(Token { kind: Kind::Scalar(text, false), start })
    }

    fn escape(&mut self, code: char, text: &mut String) -> Result<(), YamlError> {
        let length = match code {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if length == 0 {
            text.push(match code {
                '0' => '\0',
                'a' => '\x07',
                'b' => '\x08',
                't' | '\t' => '\t',
                'n' => '\n',
                'v' => '\x0b',
                'f' => '\x0c',
                'r' => '\r',
                'e' => '\x1b',
                ' ' | '"' | '\'' | '\\' => code,
                'N' => '\u{85}',
                '_' => '\u{a0}',
                'L' => '\u{2028}',
                'P' => '\u{2029}',
                _ => return Err(self.error("found unknown escape character")),
            });
        }
        self.reader.skip();
        self.reader.skip();
        if length == 0 {
            return Ok(());
        }
        self.reader.fill()?;
        let mut value = 0;
        for ahead in 0..length {
            let digit = self
                .reader
                .peek(ahead)
                .to_digit(16)
                .ok_or_else(|| self.error("did not find expected hexdecimal number"))?;
            value = (value << 4) + digit;
        }
        let character = char::from_u32(value)
            .ok_or_else(|| self.error("found invalid Unicode character escape code"))?;
        text.push(character);
        for _ in 0..length {
            self.reader.skip();
        }
        Ok(())
    }

    pub(super) fn block_scalar(&mut self, literal: bool) -> Result<Token, YamlError> {
        let start = self.reader.mark;
        self.reader.skip();
        let (mut keep, mut increment) = (None, None);
        for _ in 0..2 {
            self.reader.fill()?;
            match self.reader.peek(0) {
                c @ ('+' | '-') if keep.is_none() => keep = Some(c == '+'),
                '0' if increment.is_none() => {
                    return Err(self.error("found an indentation indicator equal to 0"));
                }
                c if increment.is_none() && c.is_ascii_digit() => increment = c.to_digit(10),
                _ => break,
            }
            self.reader.skip();
        }
        self.rest_of_line()?;
        let mut indent = increment.map_or(0, |increment| {
            self.indent.unwrap_or(0) + usize::try_from(increment).unwrap_or(0)
        });
        let (mut text, mut first, mut others) = (String::new(), String::new(), String::new());
        self.block_breaks(&mut indent, &mut others)?;
        let mut blank_before = false;
        self.reader.fill()?;
        while self.reader.mark.column == indent && self.reader.peek(0) != '\0' {
            let blank = is_blank(self.reader.peek(0));
            if !literal && !blank_before && !blank && first.starts_with('\n') {
                if others.is_empty() {
                    text.push(' ');
                }
            } else {
                text.push_str(&first);
            }
            first.clear();
            text.push_str(&others);
            others.clear();
            blank_before = blank;
            while !is_end(self.reader.peek(0)) {
                self.reader.take(&mut text);
                self.reader.fill()?;
            }
            first.extend(self.reader.skip_line());
            self.block_breaks(&mut indent, &mut others)?;
        }
        if keep != Some(false) {
            text.push_str(&first);
        }
        if keep == Some(true) {
            text.push_str(&others);
        }
        Ok(Token { kind: Kind::Scalar(text, false), start })
    }

    /// Indentation and empty lines of a block scalar; an indentation of zero is found out.
    fn block_breaks(&mut self, indent: &mut usize, breaks: &mut String) -> Result<(), YamlError> {
        let mut most = 0;
        loop {
            self.reader.fill()?;
            while (*indent == 0 || self.reader.mark.column < *indent) && self.reader.peek(0) == ' '
            {
                self.reader.skip();
                self.reader.fill()?;
            }
            most = most.max(self.reader.mark.column);
            let before = *indent == 0 || self.reader.mark.column < *indent;
            if before && self.reader.peek(0) == '\t' {
                return Err(
                    self.error("found a tab character where an indentation space is expected")
                );
            }
            match self.reader.skip_line() {
                Some(line) => breaks.push(line),
                None => break,
            }
        }
        if *indent == 0 {
            *indent = most.max(self.indent.map_or(0, |indent| indent + 1)).max(1);
        }
        Ok(())
    }

    pub(super) fn tag(&mut self) -> Result<Token, YamlError> {
        let start = self.reader.mark;
        self.reader.fill()?;
        let (mut handle, mut suffix);
        if self.reader.peek(1) == '<' {
            self.reader.skip();
            self.reader.skip();
            handle = String::new();
            suffix = self.tag_uri("")?;
            if self.reader.peek(0) != '>' {
                return Err(self.error("did not find the expected '>'"));
            }
            self.reader.skip();
        } else {
            handle = self.tag_handle(false)?;
            if handle.len() > 1 && handle.ends_with('!') {
                suffix = self.tag_uri("")?;
            } else {
                suffix = self.tag_uri(&handle)?;
                "!".clone_into(&mut handle);
                if suffix.is_empty() {
                    std::mem::swap(&mut handle, &mut suffix);
                }
            }
        }
        self.reader.fill()?;
        if !is_space(self.reader.peek(0)) {
            return Err(self.error("did not find expected whitespace or line break"));
        }
        Ok(Token { kind: Kind::Tag(handle, suffix), start })
    }

    pub(super) fn tag_directive(&mut self) -> Result<Kind, YamlError> {
        self.blanks()?;
        let handle = self.tag_handle(true)?;
        self.reader.fill()?;
        if !is_blank(self.reader.peek(0)) {
            return Err(self.error("did not find expected whitespace"));
        }
        self.blanks()?;
        let prefix = self.tag_uri("")?;
        self.reader.fill()?;
        if !is_space(self.reader.peek(0)) {
            return Err(self.error("did not find expected whitespace or line break"));
        }
        Ok(Kind::TagDirective(handle, prefix))
    }

    fn tag_handle(&mut self, directive: bool) -> Result<String, YamlError> {
        self.reader.fill()?;
        if self.reader.peek(0) != '!' {
            return Err(self.error("did not find expected '!'"));
        }
        let mut handle = String::new();
        self.reader.take(&mut handle);
        self.reader.fill()?;
        while is_word(self.reader.peek(0)) {
            self.reader.take(&mut handle);
            self.reader.fill()?;
        }
        if self.reader.peek(0) == '!' {
            self.reader.take(&mut handle);
        } else if directive && handle != "!" {
            return Err(self.error("did not find expected '!'"));
        }
        Ok(handle)
    }

    fn tag_uri(&mut self, head: &str) -> Result<String, YamlError> {
        let mut bytes: Vec<u8> = head.bytes().skip(1).collect();
        let mut any = !head.is_empty();
        self.reader.fill()?;
        loop {
            let c = self.reader.peek(0);
            if !is_word(c) && !";/?:@&=+$,.!~*'()[]%".contains(c) {
                break;
            }
            if c == '%' {
                self.uri_escapes(&mut bytes)?;
            } else {
                let mut utf8 = [0; 4];
                bytes.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes());
                self.reader.skip();
            }
            self.reader.fill()?;
            any = true;
        }
        if !any {
            return Err(self.error("did not find expected tag URI"));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// One character as octets, `%xx` each.
    fn uri_escapes(&mut self, bytes: &mut Vec<u8>) -> Result<(), YamlError> {
        let mut left: Option<u8> = None;
        while left != Some(0) {
            self.reader.fill()?;
            let digits = (self.reader.peek(1).to_digit(16), self.reader.peek(2).to_digit(16));
            let (Some(high), Some(low), '%') = (digits.0, digits.1, self.reader.peek(0)) else {
                return Err(self.error("did not find URI escaped octet"));
            };
            let octet = u8::try_from((high << 4) + low).unwrap_or_default();
            left = match left {
                None => Some(match octet {
                    0x00..=0x7f => 0,
                    0xc0..=0xdf => 1,
                    0xe0..=0xef => 2,
                    0xf0..=0xf7 => 3,
                    _ => {
                        return Err(self.error("found an incorrect leading UTF-8 octet"));
                    }
                }),
                Some(_) if octet & 0xc0 != 0x80 => {
                    return Err(self.error("found an incorrect trailing UTF-8 octet"));
                }
                Some(left) => Some(left - 1),
            };
            bytes.push(octet);
            for _ in 0..3 {
                self.reader.skip();
            }
        }
        Ok(())
    }
}
