//! Rules about functions, structs and tests, read from source as `cargo fmt` leaves it: an item ends with the
//! first closing brace that stands as far in as the item does.
//!
//! - A function of the product has at most [`MAX_FUNCTION`] lines.
//! - A struct with more than [`MAX_FIELDS`] fields says why, in a sentence of its doc comment that begins with
//!   [`WHY_SO_MANY`].
//! - Results whose error is a `String` become fewer: [`MOST_STRING_ERRORS`].
//! - Feature gates are looked up in one file of the agent.
//! - A test does not return before it has tried anything, and none is marked to be ignored.
#![expect(
    clippy::disallowed_methods,
    reason = "a developer tool: plain std::fs with context is enough"
)]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::source::collect;

/// Lines of a function, its signature included.
const MAX_FUNCTION: usize = 120;
/// Fields of a struct.
const MAX_FIELDS: usize = 15;
/// How the sentence begins that says why a struct has more.
const WHY_SO_MANY: &str = "/// Many fields:";
/// Results with a `String` for an error that the product may have. When there are fewer, lower it.
const MOST_STRING_ERRORS: usize = 345;
/// Where the agent looks gates up.
const GATES: &str = "crates/agent/src/settings.rs";

pub(super) fn faults(root: &Path) -> Result<Vec<String>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in ["crates", "xtask", "tests"] {
        collect(&root.join(folder), &mut files)?;
    }
    let mut faults = Vec::new();
    let mut string_errors = 0;
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let shown = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let text = fs::read_to_string(path).with_context(|| format!("read {shown}"))?;
        faults.extend(hollow_tests(&text).iter().map(|fault| format!("{shown}: {fault}")));
        if let Some(product) = product(&shown, &text) {
            faults.extend(faults_of(&shown, product));
            string_errors += count_string_errors(product);
        }
    }
    if string_errors > MOST_STRING_ERRORS {
        faults.push(format!(
            "crates: {string_errors} results have a String for an error, more than \
             {MOST_STRING_ERRORS}; name what can fail"
        ));
    }
    Ok(faults)
}

/// The part of a file that ships, if any does.
fn product<'a>(shown: &str, text: &'a str) -> Option<&'a str> {
    let ships = shown.starts_with("crates/")
        && shown.contains("/src/")
        && !shown.starts_with("crates/testkit/")
        && !shown.contains("/generated/")
        && !shown.contains("/tests/")
        && !shown.ends_with("/tests.rs");
    ships.then(|| text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default())
}

fn faults_of(shown: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut faults = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let number = at + 1;
        if let Some(name) = named(line, "fn ")
            && let Some(long) = length(&lines, at).filter(|long| *long > MAX_FUNCTION)
        {
            faults.push(format!("{shown}:{number}: {name} has {long} lines, over {MAX_FUNCTION}"));
        }
        if let Some(name) = named(line, "struct ")
            && let Some(many) = fields(&lines, at).filter(|many| *many > MAX_FIELDS)
            && !comment(&lines, at).contains(WHY_SO_MANY)
        {
            faults.push(format!(
                "{shown}:{number}: {name} has {many} fields; a sentence that begins with \
                 {WHY_SO_MANY:?} says why"
            ));
        }
        let looks_up = line.contains("gates.enabled(");
        if looks_up && shown.starts_with("crates/agent/") && shown != GATES {
            faults.push(format!("{shown}:{number}: looks a gate up; that is done in {GATES}"));
        }
    }
    faults
}

/// The name of the item of this kind that begins on a line.
fn named<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    let mut rest = line.trim_start();
    if let Some(shown) = rest.strip_prefix("pub(") {
        rest = shown.split_once(") ")?.1;
    }
    for word in ["pub ", "const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest.strip_prefix(kind)?.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Lines of the item that begins at a line; `None` if it has no body.
fn length(lines: &[&str], at: usize) -> Option<usize> {
    let first = lines.get(at)?;
    let margin = first.get(..first.len() - first.trim_start().len())?;
    for (line, number) in lines.get(at..)?.iter().zip(1..) {
        let Some(own) = line.strip_prefix(margin) else { continue };
        if own == "}" || (number == 1 && own.ends_with('}')) {
            return Some(number);
        }
        if own.ends_with(';') && !own.starts_with(' ') {
            return None;
        }
    }
    None
}

/// Fields of the struct that begins at a line.
fn fields(lines: &[&str], at: usize) -> Option<usize> {
    let long = length(lines, at)?;
    let first = lines.get(at)?;
    let inside = first.len() - first.trim_start().len() + 4;
    let is_field = |line: &&&str| {
        let own = line.trim_start();
        let own =
            own.strip_prefix("pub(").and_then(|own| own.split_once(") ")).map_or(own, |p| p.1);
        let own = own.strip_prefix("pub ").unwrap_or(own);
        let name = own.split(": ").next().unwrap_or_default().trim_start_matches("r#");
        line.len() - line.trim_start().len() == inside
            && own.contains(": ")
            && !name.is_empty()
            && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    Some(lines.get(at..at + long)?.iter().filter(is_field).count())
}

/// The doc comment and attributes above a line.
fn comment(lines: &[&str], at: usize) -> String {
    let above = lines.get(..at).unwrap_or_default().iter().rev();
    let own = above.take_while(|line| {
        let line = line.trim_start();
        line.starts_with("///") || line.starts_with('#') || line.starts_with(')')
    });
    own.copied().collect::<Vec<_>>().join("\n")
}

/// How many results have a `String` for an error.
fn count_string_errors(text: &str) -> usize {
    let starts = text.match_indices("Result<").map(|(at, found)| at + found.len());
    starts.filter(|from| last_argument(text.get(*from..).unwrap_or_default()) == "String").count()
}

/// The last of the type arguments that a text begins with, if there are two.
fn last_argument(text: &str) -> &str {
    let (mut depth, mut comma, mut before) = (0_u32, None, ' ');
    for (at, c) in text.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' if before == '-' => {}
            '>' if depth == 0 => {
                let last = comma.and_then(|comma: usize| text.get(comma + 1..at));
                return last.unwrap_or_default().trim().trim_end_matches(',');
            }
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 && text.get(at + 1..).is_some_and(|rest| !ends_here(rest)) => {
                comma = Some(at);
            }
            _ => {}
        }
        before = c;
    }
    ""
}

/// Whether only the closing bracket is left.
fn ends_here(rest: &str) -> bool {
    rest.trim_start().starts_with('>')
}

/// Tests that can be green without having run: they return before anything that can fail, or are ignored.
fn hollow_tests(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut faults = Vec::new();
    let mut is_test = false;
    for (at, line) in lines.iter().enumerate() {
        let own = line.trim_start();
        if own.starts_with("#[ignore") {
            faults.push(format!("line {}: an ignored test is none", at + 1));
        }
        if own.starts_with("#[test]") || own.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = named(line, "fn ").filter(|_| std::mem::take(&mut is_test)) {
            let body = length(&lines, at).and_then(|long| lines.get(at + 1..at + long));
            let inside = line.len() - own.len() + NESTED;
            if returns_untried(body.unwrap_or_default(), inside, line.contains("->")) {
                faults.push(format!(
                    "line {}: {name} may return before it has tried anything; what is long or needs \
                     more than a bare machine is a program of its own that a make target runs",
                    at + 1
                ));
            }
        }
    }
    faults
}

/// What shows that something was tried.
const CAN_FAIL: [&str; 6] = ["assert", "unwrap", "expect", "panic", "?;", "unreachable"];

/// Columns that a return may be in from its function and still be the function's: what is further in is mostly a
/// task's or a peer's.
const NESTED: usize = 12;

/// Whether a test ends before anything can fail. One that answers something may do so with `Ok(())`; a property
/// does that for single cases.
fn returns_untried(body: &[&str], inside: usize, answers: bool) -> bool {
    for whole in body {
        let line = whole.trim();
        let ends = line == "return;" || (answers && line.starts_with("return Ok(()"));
        if ends && whole.len() - whole.trim_start().len() <= inside {
            return true;
        }
        if CAN_FAIL.iter().any(|word| line.contains(word)) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!(
            "    pub(crate) async fn f(\n        a: u8,\n    ) {{\n{}    }}\n",
            "        a;\n".repeat(lines - 4)
        )
    }

    fn structure(fields: usize, why: &str) -> String {
        let field = |n: usize| format!("    /// One: it.\n    pub(crate) f{n}: Option<u8>,\n");
        let fields: String = (0..fields).map(field).collect();
        format!("/// It.\n{why}#[derive(Debug)]\npub struct S {{\n{fields}}}\n")
    }

    fn count(text: &str) -> usize {
        faults_of("crates/x/src/a.rs", text).len()
    }

    #[test]
    fn a_function_has_at_most_so_many_lines() {
        assert_eq!(count(&function(MAX_FUNCTION)), 0);
        assert_eq!(count(&function(MAX_FUNCTION + 1)), 1);
        assert_eq!(count("fn without_a_body();\n"), 0);
    }

    #[test]
    fn a_struct_with_many_fields_says_why() {
        assert_eq!(count(&structure(MAX_FIELDS, "")), 0);
        assert_eq!(count(&structure(MAX_FIELDS + 1, "")), 1);
        assert_eq!(count(&structure(MAX_FIELDS + 1, "/// Many fields: one a flag.\n")), 0);
    }

    #[test]
    fn gates_are_looked_up_in_one_file() {
        let line = "    let on = config.gates.enabled(X);\n";
        assert_eq!(faults_of("crates/agent/src/start/pods.rs", line).len(), 1);
        assert_eq!(faults_of(GATES, line).len(), 0);
    }

    #[test]
    fn errors_that_are_texts_are_counted() {
        for (text, wanted) in [
            ("fn a() -> Result<(), String> {", 1),
            ("fn a() -> Result<BTreeMap<String, (u8, u8)>, String>;", 1),
            ("fn a() -> Result<\n    Vec<String>,\n    String,\n> {", 1),
            ("Box<dyn Fn(&str) -> Result<u8, String>>", 1),
            ("Result<Box<dyn Fn() -> u8>, Error>", 0),
            ("Result<String, Error>", 0),
            ("Result<String>", 0),
            ("Result<(String, String)>", 0),
        ] {
            assert_eq!(count_string_errors(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_test_that_returns_early_is_named() {
        let early = "#[test]\nfn t() {\n    if var(\"LONG\").is_none() {\n        return;\n    }\n    assert!(x);\n}\n";
        assert_eq!(hollow_tests(early).len(), 1);
        let late = "#[test]\nfn t() {\n    assert!(x);\n    if y {\n        return;\n    }\n}\n";
        assert_eq!(hollow_tests(late).len(), 0);
        let helper = "fn t() {\n    return;\n}\n";
        assert_eq!(hollow_tests(helper).len(), 0);
        assert_eq!(hollow_tests(concat!("#[test]\n#[ig", "nore]\nfn t() {}\n")).len(), 1);
    }
}
