//! Environment files read through `fileKeyRef`: a strict subset of POSIX shell assignments.
//!
//! Upstream: `pkg/kubelet/util/env.ParseEnv`. The error's text stays in our log; users see a
//! general one, because the file may belong to somebody else.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Why an environment file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvFileError {
    /// A line is not an assignment.
    #[error("line {0}: missing '='")]
    NoAssignment(usize),
    /// Nothing stands before the `=`.
    #[error("line {0}: empty variable name")]
    EmptyName(usize),
    /// White space stands before the `=`.
    #[error("line {0}: whitespace before '='")]
    SpaceBeforeEquals(usize),
    /// The value is not in single quotes.
    #[error("line {0}: value not in single quotes")]
    NotQuoted(usize),
    /// Something other than a comment follows the value.
    #[error("line {0}: unexpected content after the closing quote")]
    AfterQuote(usize),
    /// The file ends inside a value that began at this line.
    #[error("line {0}: unclosed single quote")]
    Unclosed(usize),
    /// A line does not fit into the reader's buffer.
    #[error("line {0}: too long")]
    TooLong(usize),
    /// A value that began at this line is larger than any runtime accepts.
    #[error("line {0}: value too large")]
    TooLarge(usize),
    /// It could not be opened, or not be read far enough.
    #[error("cannot be read")]
    Unreadable,
}

/// Longest line that upstream's scanner accepts, in bytes.
pub const MAX_LINE: usize = 65_535;
/// Limit of a value. Upstream has none; this is the limit of gRPC messages to the runtime.
const MAX_VALUE: usize = 16 << 20;

/// The variables found in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvValues {
    values: BTreeMap<String, Vec<u8>>,
    /// The error that ended the reading early.
    fault: Option<EnvFileError>,
}

impl EnvValues {
    /// The result for an unreadable file.
    pub fn unreadable() -> Self {
        Self { values: BTreeMap::new(), fault: Some(EnvFileError::Unreadable) }
    }

    /// The value of `key`, empty when it is missing. An error after the first match does not matter.
    pub fn get(&self, key: &str) -> Result<&[u8], EnvFileError> {
        match (self.values.get(key), &self.fault) {
            (Some(value), _) => Ok(value),
            (None, Some(fault)) => Err(fault.clone()),
            (None, None) => Ok(&[]),
        }
    }
}

/// Finds variables in a file of any size, which is fed line by line.
#[derive(Debug)]
pub struct EnvSearch {
    wanted: BTreeSet<String>,
    number: usize,
    open: Option<Open>,
    found: EnvValues,
}

/// A value whose closing quote was not seen yet.
#[derive(Debug)]
struct Open {
    /// The variable, if it is wanted.
    name: Option<String>,
    began: usize,
    text: Vec<u8>,
}

impl EnvSearch {
    /// Finds these variables.
    pub fn new(wanted: BTreeSet<String>) -> Self {
        Self { wanted, number: 0, open: None, found: EnvValues::default() }
    }

    /// Parses the next line, with or without its line ending; of one that is too long the beginning is enough.
    /// Breaks when all variables are found or an error ends the parsing.
    pub fn line(&mut self, line: &[u8]) -> ControlFlow<()> {
        self.number += 1;
        if let Err(fault) = self.take(line) {
            self.found.fault = Some(fault);
            return ControlFlow::Break(());
        }
        match self.wanted.is_empty() && self.open.is_none() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// The file could not be read further.
    pub fn failed(&mut self) {
        self.found.fault.get_or_insert(EnvFileError::Unreadable);
    }

    /// The result, after the last line.
    pub fn end(mut self) -> EnvValues {
        if let Some(open) = &self.open {
            self.found.fault.get_or_insert(EnvFileError::Unclosed(open.began));
        }
        self.found
    }

    fn take(&mut self, line: &[u8]) -> Result<(), EnvFileError> {
        let number = self.number;
        let line = whole(line, number)?;
        if let Some(open) = self.open.take() {
            return self.go_on(open, line);
        }
        let line = trimmed(line);
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(());
        }
        let (name, value) = split_at(line, b'=').ok_or(EnvFileError::NoAssignment(number))?;
        match name.last() {
            None => return Err(EnvFileError::EmptyName(number)),
            Some(b' ' | b'\t') => return Err(EnvFileError::SpaceBeforeEquals(number)),
            Some(_) => {}
        }
        let name = std::str::from_utf8(name).ok().and_then(|name| self.wanted.take(name));
        if value.starts_with(b" ") || value.starts_with(b"\t") {
            if let Some(name) = name {
                self.found.values.insert(name, Vec::new());
            }
            return Ok(());
        }
        let rest = value.strip_prefix(b"'").ok_or(EnvFileError::NotQuoted(number))?;
        self.go_on(Open { name, began: number, text: Vec::new() }, rest)
    }

    /// Continues a value, up to its closing quote if this line has it.
    fn go_on(&mut self, mut open: Open, rest: &[u8]) -> Result<(), EnvFileError> {
        let closed = split_at(rest, b'\'');
        let inside = closed.map_or(rest, |(inside, _)| inside);
        if open.name.is_some() {
            open.text.extend_from_slice(inside);
            if open.text.len() > MAX_VALUE {
                return Err(EnvFileError::TooLarge(open.began));
            }
        }
        let Some((_, after)) = closed else {
            open.text.extend(open.name.is_some().then_some(b'\n'));
            self.open = Some(open);
            return Ok(());
        };
        let after = trimmed(after);
        if !after.is_empty() && !after.starts_with(b"#") {
            return Err(EnvFileError::AfterQuote(self.number));
        }
        if let Some(name) = open.name {
            self.found.values.insert(name, open.text);
        }
        Ok(())
    }
}

/// A line without its line ending, if it is not too long.
fn whole(line: &[u8], number: usize) -> Result<&[u8], EnvFileError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if line.len() > MAX_LINE {
        return Err(EnvFileError::TooLong(number));
    }
    Ok(line.strip_suffix(b"\r").unwrap_or(line))
}

fn trimmed(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|b| !matches!(b, b' ' | b'\t')).unwrap_or(bytes.len());
    bytes.get(start..).unwrap_or_default()
}

fn split_at(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = bytes.iter().position(|b| *b == at)?;
    Some((bytes.get(..place)?, bytes.get(place + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(content: &[u8], key: &str) -> Result<Vec<u8>, EnvFileError> {
        search(content, &[key]).get(key).map(<[u8]>::to_vec)
    }

    fn search(content: &[u8], keys: &[&str]) -> EnvValues {
        let mut search = EnvSearch::new(keys.iter().map(|key| (*key).to_owned()).collect());
        for line in content.split_inclusive(|b| *b == b'\n') {
            if search.line(line).is_break() {
                break;
            }
        }
        search.end()
    }

    #[test]
    fn each_variable_is_found_by_itself() {
        let found = search(b"A='1'\nB='2\n", &["A", "B", "C"]);
        assert_eq!(found.get("A"), Ok(&b"1"[..]));
        assert_eq!(found.get("B"), Err(EnvFileError::Unclosed(2)));
        assert_eq!(found.get("C"), Err(EnvFileError::Unclosed(2)));
        assert_eq!(EnvValues::unreadable().get("A"), Err(EnvFileError::Unreadable));
        let mut search = EnvSearch::new(["A".to_owned(), "B".to_owned()].into());
        assert!(search.line(b"A='1'").is_continue());
        search.failed();
        let found = search.end();
        assert_eq!(found.get("A"), Ok(&b"1"[..]));
        assert_eq!(found.get("B"), Err(EnvFileError::Unreadable));
    }

    #[test]
    fn only_what_is_wanted_is_kept_and_no_more_of_it_than_can_be_used() {
        let mut search = EnvSearch::new(["A".to_owned()].into());
        let line = vec![b'x'; MAX_LINE];
        assert!(search.line(b"B='").is_continue());
        for _ in 0..MAX_VALUE / MAX_LINE + 2 {
            assert!(search.line(&line).is_continue());
        }
        assert!(search.line(b"'").is_continue());
        assert!(search.line(b"A='").is_continue());
        while search.line(&line).is_continue() {}
        let began = MAX_VALUE / MAX_LINE + 5;
        assert_eq!(search.end().get("A"), Err(EnvFileError::TooLarge(began)));
    }

    #[test]
    fn finds_the_first_assignment_of_a_name() {
        let file = "# note\n\n  A='one' # why\nB='two\nlines'\nA='three'\nC= 'x'\nD=''\n";
        for (key, want) in
            [("A", "one"), ("B", "two\nlines"), ("C", ""), ("D", ""), ("missing", "")]
        {
            assert_eq!(lookup(file.as_bytes(), key).unwrap(), want.as_bytes(), "key {key}");
        }
    }

    #[test]
    fn refuses_what_a_strict_reader_refuses() {
        for (file, want) in [
            ("A", EnvFileError::NoAssignment(1)),
            ("='x'", EnvFileError::EmptyName(1)),
            ("  ='x'", EnvFileError::EmptyName(1)),
            ("\nA ='x'", EnvFileError::SpaceBeforeEquals(2)),
            ("A=x", EnvFileError::NotQuoted(1)),
            ("A=\"x\"", EnvFileError::NotQuoted(1)),
            ("A='x'y", EnvFileError::AfterQuote(1)),
            ("B='1\nA='x", EnvFileError::AfterQuote(2)),
            ("A='x\ny", EnvFileError::Unclosed(1)),
        ] {
            assert_eq!(lookup(file.as_bytes(), "Z"), Err(want), "file {file:?}");
        }
    }

    #[test]
    fn does_not_read_past_the_match() {
        assert_eq!(lookup(b"A='x'\nbroken", "A").unwrap(), b"x");
    }

    #[test]
    fn values_may_be_any_bytes_and_lines_only_so_long() {
        assert_eq!(lookup(b"O='\xff'\r\nA='\xfe\r\n\xfd'\r\n", "A").unwrap(), b"\xfe\n\xfd");
        let line = |length: usize| format!("A='{}'", "x".repeat(length - 4)).into_bytes();
        assert_eq!(lookup(&line(MAX_LINE), "A").unwrap().len(), MAX_LINE - 4);
        assert_eq!(lookup(&line(MAX_LINE + 1), "A"), Err(EnvFileError::TooLong(1)));
    }
}
