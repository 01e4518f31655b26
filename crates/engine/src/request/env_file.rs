//! Environment files read through `fileKeyRef`: a strict subset of POSIX shell assignments.
//!
//! Upstream: `pkg/kubelet/util/env.ParseEnv`. The error's text stays in our log; users see a
//! general one, because the file may belong to somebody else.

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
}

/// Longest line that upstream's scanner takes, in bytes.
const MAX_LINE: usize = 65_535;

/// The value of `key`, or nothing when it is not there. Lines after the first match are not
/// looked at.
pub fn lookup(content: &[u8], key: &str) -> Result<Vec<u8>, EnvFileError> {
    let mut lines = content.split_inclusive(|b| *b == b'\n').enumerate();
    while let Some((index, line)) = lines.next() {
        let number = index + 1;
        let line = trimmed(whole(line, number)?);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, value) = split_at(line, b'=').ok_or(EnvFileError::NoAssignment(number))?;
        match name.last() {
            None => return Err(EnvFileError::EmptyName(number)),
            Some(b' ' | b'\t') => return Err(EnvFileError::SpaceBeforeEquals(number)),
            Some(_) => {}
        }
        let wanted = name == key.as_bytes();
        if value.starts_with(b" ") || value.starts_with(b"\t") {
            if wanted {
                return Ok(Vec::new());
            }
            continue;
        }
        let mut rest = value.strip_prefix(b"'").ok_or(EnvFileError::NotQuoted(number))?;
        let mut last = number;
        let mut text = Vec::new();
        loop {
            if let Some((inside, after)) = split_at(rest, b'\'') {
                text.extend_from_slice(inside);
                let after = trimmed(after);
                if !after.is_empty() && !after.starts_with(b"#") {
                    return Err(EnvFileError::AfterQuote(last));
                }
                break;
            }
            text.extend_from_slice(rest);
            text.push(b'\n');
            let (index, next) = lines.next().ok_or(EnvFileError::Unclosed(number))?;
            last = index + 1;
            rest = whole(next, last)?;
        }
        if wanted {
            return Ok(text);
        }
    }
    Ok(Vec::new())
}

/// A line without its end, if it is not too long.
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
