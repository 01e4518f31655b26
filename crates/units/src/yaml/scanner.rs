//! Characters into tokens (libyaml's scanner): where blocks begin and end, which scalar is a key.
//!
//! A key of one line is known to be one only at its colon. Until then its place in the queue of
//! tokens is kept, and the tokens that a mapping begins with are put in front of it afterwards.

use super::YamlError;
use super::reader::{Mark, Reader, is_blank, is_break, is_end, is_space, is_word};
use std::collections::{BTreeMap, VecDeque};

/// What a token is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    StreamStart,
    StreamEnd,
    Version(u8, u8),
    TagDirective(String, String),
    DocumentStart,
    DocumentEnd,
    BlockSequence,
    BlockMapping,
    BlockEnd,
    FlowSequence,
    FlowSequenceEnd,
    FlowMapping,
    FlowMappingEnd,
    Entry,
    FlowEntry,
    Key,
    Value,
    Alias(String),
    Anchor(String),
    /// Handle and the rest.
    Tag(String, String),
    /// Text, and whether it was written without quotes.
    Scalar(String, bool),
}

/// A token with its place.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) start: Mark,
}

/// A place where a key may be.
#[derive(Debug, Clone, Copy, Default)]
struct Candidate {
    possible: bool,
    required: bool,
    number: usize,
    mark: Mark,
}

/// Deeper than this nobody goes.
const MAX_DEPTH: usize = 10_000;
/// A key is at most this long.
const MAX_KEY: usize = 1024;

/// Reads tokens.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    pub(super) reader: Reader<'a>,
    started: bool,
    queue: VecDeque<Token>,
    /// Tokens handed out.
    handed: usize,
    /// The indentation of the block we are in; none outside of all.
    pub(super) indent: Option<usize>,
    indents: Vec<Option<usize>>,
    pub(super) flow_level: usize,
    pub(super) key_allowed: bool,
    candidates: Vec<Candidate>,
    by_number: BTreeMap<usize, usize>,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self {
            reader: Reader::new(data),
            started: false,
            queue: VecDeque::new(),
            handed: 0,
            indent: None,
            indents: Vec::new(),
            flow_level: 0,
            key_allowed: false,
            candidates: Vec::new(),
            by_number: BTreeMap::new(),
        }
    }

    /// The next token.
    pub(super) fn peek(&mut self) -> Result<Token, YamlError> {
        loop {
            if let Some(token) = self.queue.front() {
                let candidate = self.by_number.get(&self.handed).copied();
                let token = token.clone();
                match candidate {
                    Some(index) if self.still_possible(index)? => {}
                    _ => return Ok(token),
                }
            }
            self.fetch()?;
        }
    }

    /// Over the token that was seen.
    pub(super) fn skip(&mut self) {
        self.queue.pop_front();
        self.handed += 1;
    }

    /// An error at the place we are at.
    pub(super) fn error(&self, problem: &str) -> YamlError {
        let line = self.reader.mark.line;
        YamlError::at(if line == 0 { 0 } else { line + 1 }, problem)
    }

    fn push(&mut self, kind: Kind, start: Mark) {
        self.queue.push_back(Token { kind, start });
    }

    fn fetch(&mut self) -> Result<(), YamlError> {
        self.reader.fill()?;
        if !self.started {
            self.started = true;
            self.candidates.push(Candidate::default());
            self.key_allowed = true;
            self.push(Kind::StreamStart, self.reader.mark);
            return Ok(());
        }
        self.find_token()?;
        self.unroll(Some(self.reader.mark.column));
        self.reader.fill()?;
        let (c, next) = (self.reader.peek(0), self.reader.peek(1));
        if c == '\0' {
            return self.stream_end();
        }
        if self.reader.mark.column == 0 {
            if c == '%' {
                return self.directive();
            }
            if self.at_document_mark() {
                let kind = if c == '-' { Kind::DocumentStart } else { Kind::DocumentEnd };
                return self.document_mark(kind);
            }
        }
        let in_flow = self.flow_level > 0;
        match c {
            '[' => self.flow_start(Kind::FlowSequence),
            '{' => self.flow_start(Kind::FlowMapping),
            ']' => self.flow_end(Kind::FlowSequenceEnd),
            '}' => self.flow_end(Kind::FlowMappingEnd),
            ',' => {
                self.drop_candidate()?;
                self.key_allowed = true;
                self.indicator(Kind::FlowEntry);
                Ok(())
            }
            '-' if is_space(next) => self.block_entry(),
            '?' if in_flow || is_space(next) => self.key(),
            ':' if in_flow || is_space(next) => self.value(),
            '*' | '&' => self.anchor(c == '*'),
            '!' => {
                self.save_candidate()?;
                self.key_allowed = false;
                let token = self.tag()?;
                self.queue.push_back(token);
                Ok(())
            }
            '|' | '>' if !in_flow => {
                self.drop_candidate()?;
                self.key_allowed = true;
                let token = self.block_scalar(c == '|')?;
                self.queue.push_back(token);
                Ok(())
            }
            '\'' | '"' => {
                self.save_candidate()?;
                self.key_allowed = false;
                let token = self.quoted_scalar(c)?;
                self.queue.push_back(token);
                Ok(())
            }
            _ if self.starts_plain(c, next) => {
                self.save_candidate()?;
                self.key_allowed = false;
                let token = self.plain_scalar()?;
                self.queue.push_back(token);
                Ok(())
            }
            _ => Err(self.error("found character that cannot start any token")),
        }
    }

    fn starts_plain(&self, c: char, next: char) -> bool {
        let special = is_space(c) || "-?:,[]{}#&*!|>'\"%@`".contains(c);
        !special
            || (c == '-' && !is_blank(next))
            || (self.flow_level == 0 && matches!(c, '?' | ':') && !is_space(next))
    }

    /// Whether `---` or `...` stands here as a word of its own.
    pub(super) fn at_document_mark(&self) -> bool {
        let word = [self.reader.peek(0), self.reader.peek(1), self.reader.peek(2)];
        self.reader.mark.column == 0
            && matches!(word, ['-', '-', '-'] | ['.', '.', '.'])
            && is_space(self.reader.peek(3))
    }

    /// One character that is a token.
    fn indicator(&mut self, kind: Kind) {
        let start = self.reader.mark;
        self.reader.skip();
        self.push(kind, start);
    }

    fn still_possible(&mut self, index: usize) -> Result<bool, YamlError> {
        let mark = self.reader.mark;
        let Some(candidate) = self.candidates.get_mut(index) else { return Ok(false) };
        if !candidate.possible {
            return Ok(false);
        }
        let over = candidate.mark.line < mark.line || candidate.mark.index + MAX_KEY < mark.index;
        if !over {
            return Ok(true);
        }
        if candidate.required {
            return Err(self.error("could not find expected ':'"));
        }
        candidate.possible = false;
        Ok(false)
    }

    pub(super) fn save_candidate(&mut self) -> Result<(), YamlError> {
        if !self.key_allowed {
            return Ok(());
        }
        let mark = self.reader.mark;
        let required = self.flow_level == 0 && self.indent == Some(mark.column);
        let number = self.handed + self.queue.len();
        self.drop_candidate()?;
        let last = self.candidates.len().saturating_sub(1);
        if let Some(slot) = self.candidates.last_mut() {
            *slot = Candidate { possible: true, required, number, mark };
            self.by_number.insert(number, last);
        }
        Ok(())
    }

    fn drop_candidate(&mut self) -> Result<(), YamlError> {
        let Some(candidate) = self.candidates.last_mut() else { return Ok(()) };
        if candidate.possible {
            if candidate.required {
                return Err(self.error("could not find expected ':'"));
            }
            candidate.possible = false;
            self.by_number.remove(&candidate.number);
        }
        Ok(())
    }

    /// Begins a block when we are further in; its token goes before token `number`, or last.
    fn roll(
        &mut self,
        column: usize,
        number: Option<usize>,
        kind: Kind,
        mark: Mark,
    ) -> Result<(), YamlError> {
        if self.flow_level > 0 || self.indent.is_some_and(|indent| indent >= column) {
            return Ok(());
        }
        self.indents.push(self.indent);
        self.indent = Some(column);
        if self.indents.len() > MAX_DEPTH {
            return Err(self.error(&format!("exceeded max depth of {MAX_DEPTH}")));
        }
        let token = Token { kind, start: mark };
        match number {
            Some(number) => self.insert(number, token),
            None => self.queue.push_back(token),
        }
        Ok(())
    }

    fn insert(&mut self, number: usize, token: Token) {
        let at = number.saturating_sub(self.handed).min(self.queue.len());
        self.queue.insert(at, token);
    }

    /// Ends the blocks that are further in than `column`.
    fn unroll(&mut self, column: Option<usize>) {
        if self.flow_level > 0 {
            return;
        }
        while self.indent > column {
            self.push(Kind::BlockEnd, self.reader.mark);
            self.indent = self.indents.pop().flatten();
        }
    }

    fn stream_end(&mut self) -> Result<(), YamlError> {
        if self.reader.mark.column != 0 {
            self.reader.mark.column = 0;
            self.reader.mark.line += 1;
        }
        self.unroll(None);
        self.drop_candidate()?;
        self.key_allowed = false;
        self.push(Kind::StreamEnd, self.reader.mark);
        Ok(())
    }

    fn document_mark(&mut self, kind: Kind) -> Result<(), YamlError> {
        self.unroll(None);
        self.drop_candidate()?;
        self.key_allowed = false;
        let start = self.reader.mark;
        for _ in 0..3 {
            self.reader.skip();
        }
        self.push(kind, start);
        Ok(())
    }

    fn flow_start(&mut self, kind: Kind) -> Result<(), YamlError> {
        self.save_candidate()?;
        let number = self.handed + self.queue.len();
        let mark = self.reader.mark;
        self.candidates.push(Candidate { number, mark, ..Candidate::default() });
        self.flow_level += 1;
        if self.flow_level > MAX_DEPTH {
            return Err(self.error(&format!("exceeded max depth of {MAX_DEPTH}")));
        }
        self.key_allowed = true;
        self.indicator(kind);
        Ok(())
    }

    fn flow_end(&mut self, kind: Kind) -> Result<(), YamlError> {
        self.drop_candidate()?;
        if self.flow_level > 0 {
            self.flow_level -= 1;
            if let Some(candidate) = self.candidates.pop() {
                self.by_number.remove(&candidate.number);
            }
        }
        self.key_allowed = false;
        self.indicator(kind);
        Ok(())
    }

    fn block_entry(&mut self) -> Result<(), YamlError> {
        if self.flow_level == 0 {
            if !self.key_allowed {
                return Err(self.error("block sequence entries are not allowed in this context"));
            }
            let mark = self.reader.mark;
            self.roll(mark.column, None, Kind::BlockSequence, mark)?;
        }
        self.drop_candidate()?;
        self.key_allowed = true;
        self.indicator(Kind::Entry);
        Ok(())
    }

    fn key(&mut self) -> Result<(), YamlError> {
        if self.flow_level == 0 {
            if !self.key_allowed {
                return Err(self.error("mapping keys are not allowed in this context"));
            }
            let mark = self.reader.mark;
            self.roll(mark.column, None, Kind::BlockMapping, mark)?;
        }
        self.drop_candidate()?;
        self.key_allowed = self.flow_level == 0;
        self.indicator(Kind::Key);
        Ok(())
    }

    fn value(&mut self) -> Result<(), YamlError> {
        let last = self.candidates.len().saturating_sub(1);
        if self.still_possible(last)? {
            let Some(candidate) = self.candidates.last().copied() else { return Ok(()) };
            let start = candidate.mark;
            self.insert(candidate.number, Token { kind: Kind::Key, start });
            self.roll(start.column, Some(candidate.number), Kind::BlockMapping, start)?;
            if let Some(candidate) = self.candidates.last_mut() {
                candidate.possible = false;
            }
            self.by_number.remove(&candidate.number);
            self.key_allowed = false;
        } else {
            if self.flow_level == 0 {
                if !self.key_allowed {
                    return Err(self.error("mapping values are not allowed in this context"));
                }
                let mark = self.reader.mark;
                self.roll(mark.column, None, Kind::BlockMapping, mark)?;
            }
            self.key_allowed = self.flow_level == 0;
        }
        self.indicator(Kind::Value);
        Ok(())
    }

    fn anchor(&mut self, alias: bool) -> Result<(), YamlError> {
        self.save_candidate()?;
        self.key_allowed = false;
        let start = self.reader.mark;
        self.reader.skip();
        let name = self.word()?;
        let next = self.reader.peek(0);
        if name.is_empty() || !(is_space(next) || "?:,]}%@`".contains(next)) {
            return Err(self.error("did not find expected alphabetic or numeric character"));
        }
        self.push(if alias { Kind::Alias(name) } else { Kind::Anchor(name) }, start);
        Ok(())
    }

    /// Letters, digits, `_` and `-`.
    fn word(&mut self) -> Result<String, YamlError> {
        let mut word = String::new();
        self.reader.fill()?;
        while is_word(self.reader.peek(0)) {
            self.reader.take(&mut word);
            self.reader.fill()?;
        }
        Ok(word)
    }

    pub(super) fn blanks(&mut self) -> Result<(), YamlError> {
        self.reader.fill()?;
        while is_blank(self.reader.peek(0)) {
            self.reader.skip();
            self.reader.fill()?;
        }
        Ok(())
    }

    /// Over a comment and up to the end of the line, which must come.
    pub(super) fn rest_of_line(&mut self) -> Result<(), YamlError> {
        self.blanks()?;
        if self.reader.peek(0) == '#' {
            while !is_end(self.reader.peek(0)) {
                self.reader.skip();
                self.reader.fill()?;
            }
        }
        if !is_end(self.reader.peek(0)) {
            return Err(self.error("did not find expected comment or line break"));
        }
        self.reader.skip_line();
        Ok(())
    }

    fn find_token(&mut self) -> Result<(), YamlError> {
        loop {
            self.reader.fill()?;
            if self.reader.at_start() && self.reader.peek(0) == '\u{feff}' {
                self.reader.skip();
            }
            loop {
                let tabs = self.flow_level > 0 || !self.key_allowed;
                let c = self.reader.peek(0);
                if c != ' ' && !(tabs && c == '\t') {
                    break;
                }
                self.reader.skip();
                self.reader.fill()?;
            }
            if self.reader.peek(0) == '#' {
                while !is_end(self.reader.peek(0)) {
                    self.reader.skip();
                    self.reader.fill()?;
                }
            }
            if !is_break(self.reader.peek(0)) {
                return Ok(());
            }
            self.reader.skip_line();
            if self.flow_level == 0 {
                self.key_allowed = true;
            }
        }
    }

    fn directive(&mut self) -> Result<(), YamlError> {
        self.unroll(None);
        self.drop_candidate()?;
        self.key_allowed = false;
        let start = self.reader.mark;
        self.reader.skip();
        let name = self.word()?;
        if name.is_empty() {
            return Err(self.error("could not find expected directive name"));
        }
        if !is_space(self.reader.peek(0)) {
            return Err(self.error("found unexpected non-alphabetical character"));
        }
        let kind = match name.as_str() {
            "YAML" => self.version()?,
            "TAG" => self.tag_directive()?,
            _ => return Err(self.error("found unknown directive name")),
        };
        self.rest_of_line()?;
        self.push(kind, start);
        Ok(())
    }

    fn version(&mut self) -> Result<Kind, YamlError> {
        self.blanks()?;
        let major = self.version_number()?;
        if self.reader.peek(0) != '.' {
            return Err(self.error("did not find expected digit or '.' character"));
        }
        self.reader.skip();
        Ok(Kind::Version(major, self.version_number()?))
    }

    fn version_number(&mut self) -> Result<u8, YamlError> {
        self.reader.fill()?;
        let mut digits = String::new();
        while self.reader.peek(0).is_ascii_digit() {
            if digits.len() == 2 {
                return Err(self.error("found extremely long version number"));
            }
            self.reader.take(&mut digits);
            self.reader.fill()?;
        }
        digits.parse().map_err(|_| self.error("did not find expected version number"))
    }
}
