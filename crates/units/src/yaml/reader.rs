//! Bytes into characters, piece by piece: what is wrong in a piece is found when it is reached.

use super::YamlError;

/// So many bytes are looked at in one go.
const PIECE: usize = 512;

/// Where something is in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark {
    pub(super) index: usize,
    pub(super) line: usize,
    pub(super) column: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Utf8,
    Utf16 { low: usize, high: usize },
}

/// The characters of a document, with a place to read at.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    raw: &'a [u8],
    /// Bytes already decoded.
    taken: usize,
    /// Bytes already fetched.
    fetched: usize,
    encoding: Encoding,
    chars: Vec<char>,
    at: usize,
    pub(super) mark: Mark,
}

impl<'a> Reader<'a> {
    pub(super) fn new(raw: &'a [u8]) -> Self {
        let (encoding, taken) = match raw {
            [0xff, 0xfe, ..] => (Encoding::Utf16 { low: 0, high: 1 }, 2),
            [0xfe, 0xff, ..] => (Encoding::Utf16 { low: 1, high: 0 }, 2),
            [0xef, 0xbb, 0xbf, ..] => (Encoding::Utf8, 3),
            _ => (Encoding::Utf8, 0),
        };
        let fetched = raw.len().min(PIECE);
        Self { raw, taken, fetched, encoding, chars: Vec::new(), at: 0, mark: Mark::default() }
    }

    /// Makes sure that what [`Reader::peek`] may be asked for is there.
    pub(super) fn fill(&mut self) -> Result<(), YamlError> {
        while self.chars.len() < self.at + 8 {
            if self.decode()? == 0 {
                if self.fetched == self.raw.len() {
                    break;
                }
                let left = self.fetched - self.taken;
                self.fetched = self.raw.len().min(self.fetched + PIECE - left);
            }
        }
        Ok(())
    }

    /// Decodes what was fetched; answers how many characters came of it.
    fn decode(&mut self) -> Result<usize, YamlError> {
        let before = self.chars.len();
        while self.taken < self.fetched {
            let Some((value, width)) = self.next_char()? else { break };
            let allowed = matches!(value, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}')
                || matches!(value, '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
                || value >= '\u{10000}';
            if !allowed {
                return Err(YamlError::new("control characters are not allowed"));
            }
            self.taken += width;
            self.chars.push(value);
        }
        Ok(self.chars.len() - before)
    }

    /// The next character and its width; nothing when more bytes are needed.
    fn next_char(&self) -> Result<Option<(char, usize)>, YamlError> {
        let piece = self.raw.get(self.taken..self.fetched).unwrap_or_default();
        let complete = self.fetched == self.raw.len();
        match self.encoding {
            Encoding::Utf8 => utf8(piece, complete),
            Encoding::Utf16 { low, high } => utf16(piece, low, high, complete),
        }
    }

    /// The character so many places on; NUL is the end.
    pub(super) fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    /// Whether this is where a document begins.
    pub(super) fn at_start(&self) -> bool {
        self.at == 0
    }

    /// Over one character that is no line break.
    pub(super) fn skip(&mut self) {
        self.at += 1;
        self.mark.index += 1;
        self.mark.column += 1;
    }

    /// Over a line break, if there is one; answers what it stands for.
    pub(super) fn skip_line(&mut self) -> Option<char> {
        let first = self.peek(0);
        if !is_break(first) {
            return None;
        }
        let width = if first == '\r' && self.peek(1) == '\n' { 2 } else { 1 };
        self.at += width;
        self.mark.index += width;
        self.mark.column = 0;
        self.mark.line += 1;
        Some(if matches!(first, '\u{2028}' | '\u{2029}') { first } else { '\n' })
    }

    /// Takes one character over.
    pub(super) fn take(&mut self, text: &mut String) {
        text.push(self.peek(0));
        self.skip();
    }
}

fn utf8(piece: &[u8], complete: bool) -> Result<Option<(char, usize)>, YamlError> {
    let first = piece.first().copied().unwrap_or_default();
    let (width, bits) = match first {
        0x00..=0x7f => (1, first),
        0xc0..=0xdf => (2, first & 0x1f),
        0xe0..=0xef => (3, first & 0x0f),
        0xf0..=0xf7 => (4, first & 0x07),
        _ => return Err(YamlError::new("invalid leading UTF-8 octet")),
    };
    if width > piece.len() {
        return if complete {
            Err(YamlError::new("incomplete UTF-8 octet sequence"))
        } else {
            Ok(None)
        };
    }
    let mut value = u32::from(bits);
    for octet in piece.iter().take(width).skip(1) {
        if octet & 0xc0 != 0x80 {
            return Err(YamlError::new("invalid trailing UTF-8 octet"));
        }
        value = (value << 6) + u32::from(octet & 0x3f);
    }
    let least = [0, 0, 0x80, 0x800, 0x10000].get(width).copied().unwrap_or_default();
    if value < least {
        return Err(YamlError::new("invalid length of a UTF-8 sequence"));
    }
    char::from_u32(value)
        .map(|value| Some((value, width)))
        .ok_or_else(|| YamlError::new("invalid Unicode character"))
}

fn utf16(
    piece: &[u8],
    low: usize,
    high: usize,
    complete: bool,
) -> Result<Option<(char, usize)>, YamlError> {
    let unit = |from: usize| {
        let byte = |at: usize| piece.get(from + at).copied().map(u32::from);
        Some(byte(low)? + (byte(high)? << 8))
    };
    let missing = |what: &str| if complete { Err(YamlError::new(what)) } else { Ok(None) };
    let Some(first) = unit(0) else { return missing("incomplete UTF-16 character") };
    if first & 0xfc00 == 0xdc00 {
        return Err(YamlError::new("unexpected low surrogate area"));
    }
    if first & 0xfc00 != 0xd800 {
        return Ok(char::from_u32(first).map(|value| (value, 2)));
    }
    let Some(second) = unit(2) else { return missing("incomplete UTF-16 surrogate pair") };
    if second & 0xfc00 != 0xdc00 {
        return Err(YamlError::new("expected low surrogate area"));
    }
    let value = 0x10000 + ((first & 0x3ff) << 10) + (second & 0x3ff);
    Ok(char::from_u32(value).map(|value| (value, 4)))
}

/// Space or tab.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

/// The end of a line.
pub(super) fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The end of a line or of everything.
pub(super) fn is_end(c: char) -> bool {
    c == '\0' || is_break(c)
}

/// White space or an end.
pub(super) fn is_space(c: char) -> bool {
    is_blank(c) || is_end(c)
}

/// What names are made of.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}
