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
}

/// The value of `key`, or an empty text when it is not there. Lines after the first match are
/// not looked at.
pub fn lookup(content: &str, key: &str) -> Result<String, EnvFileError> {
    let mut lines = content.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let number = index + 1;
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(EnvFileError::NoAssignment(number))?;
        match name.trim_end_matches([' ', '\t']) {
            "" => return Err(EnvFileError::EmptyName(number)),
            trimmed if trimmed.len() != name.len() => {
                return Err(EnvFileError::SpaceBeforeEquals(number));
            }
            _ => {}
        }
        if value.starts_with([' ', '\t']) {
            if name == key {
                return Ok(String::new());
            }
            continue;
        }
        let mut rest = value.strip_prefix('\'').ok_or(EnvFileError::NotQuoted(number))?;
        let mut last = number;
        let mut text = String::new();
        loop {
            if let Some((inside, after)) = rest.split_once('\'') {
                text.push_str(inside);
                let after = after.trim_start_matches([' ', '\t']);
                if !after.is_empty() && !after.starts_with('#') {
                    return Err(EnvFileError::AfterQuote(last));
                }
                break;
            }
            text.push_str(rest);
            text.push('\n');
            let (index, next) = lines.next().ok_or(EnvFileError::Unclosed(number))?;
            last = index + 1;
            rest = next;
        }
        if name == key {
            return Ok(text);
        }
    }
    Ok(String::new())
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
            assert_eq!(lookup(file, key).unwrap(), want, "key {key}");
        }
    }

    #[test]
    fn refuses_what_a_strict_reader_refuses() {
        for (file, want) in [
            ("A", EnvFileError::NoAssignment(1)),
            ("='x'", EnvFileError::EmptyName(1)),
            ("\nA ='x'", EnvFileError::SpaceBeforeEquals(2)),
            ("A=x", EnvFileError::NotQuoted(1)),
            ("A=\"x\"", EnvFileError::NotQuoted(1)),
            ("A='x'y", EnvFileError::AfterQuote(1)),
            ("B='1\nA='x", EnvFileError::AfterQuote(2)),
            ("A='x\ny", EnvFileError::Unclosed(1)),
        ] {
            assert_eq!(lookup(file, "Z"), Err(want), "file {file:?}");
        }
    }

    #[test]
    fn does_not_read_past_the_match() {
        assert_eq!(lookup("A='x'\nbroken", "A").unwrap(), "x");
    }
}
