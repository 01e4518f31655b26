//! `Accept` headers, read and ordered as Go's `goautoneg` does it.

use std::collections::BTreeMap;

/// One media range of an `Accept` header.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Clause {
    /// `text` of `text/plain`.
    pub(crate) kind: String,
    /// `plain` of `text/plain`.
    pub(crate) sub: String,
    /// The `q` parameter; 1 when absent.
    pub(crate) quality: f64,
    /// All other parameters, by name.
    pub(crate) params: BTreeMap<String, String>,
}

impl Clause {
    /// A parameter; empty if it was not given.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }
}

/// Clauses beyond this number are ignored, as are further parameters of one clause. Browsers send
/// about a dozen.
const MOST_CLAUSES: usize = 64;
const MOST_PARAMS: usize = 16;

/// The clauses of a header, the most preferred first.
pub(crate) fn parse(header: &str) -> Vec<Clause> {
    let parts = header.split(',').take(MOST_CLAUSES);
    let mut clauses: Vec<Clause> = parts.filter_map(clause).collect();
    // Insertion sort by Go's comparison, which is not transitive; Go's sort gives the same order
    // for short lists.
    for end in 1..clauses.len() {
        let mut at = end;
        while at > 0 && before(&clauses[at], &clauses[at - 1]) {
            clauses.swap(at, at - 1);
            at -= 1;
        }
    }
    clauses
}

fn before(a: &Clause, b: &Clause) -> bool {
    a.quality > b.quality || (a.kind != "*" && b.kind == "*") || (a.sub != "*" && b.sub == "*")
}

fn clause(part: &str) -> Option<Clause> {
    let part = part.trim_matches(' ');
    let mut pieces = part.split(';');
    let (kind, sub) = match pieces.next().unwrap_or_default().split_once('/') {
        Some((kind, sub)) if !sub.is_empty() => (kind.trim_matches(' '), sub),
        other => {
            let kind = other.map_or(part.split(';').next().unwrap_or_default(), |(kind, _)| kind);
            let kind = kind.trim_matches(' ');
            if kind != "*" {
                return None;
            }
            (kind, "*")
        }
    };
    let sub = match sub.split_once('/') {
        Some((_, rest)) if !rest.is_empty() => return None,
        Some((sub, _)) => sub,
        None => sub,
    };
    let mut found = Clause {
        kind: kind.to_owned(),
        sub: sub.trim_matches(' ').to_owned(),
        quality: 1.0,
        params: BTreeMap::new(),
    };
    for piece in pieces.take(MOST_PARAMS) {
        let Some((name, value)) = piece.split_once('=') else { continue };
        let value = match value.split_once('=') {
            Some((_, rest)) if !rest.is_empty() => continue,
            Some((value, _)) => value,
            None => value,
        };
        if value.is_empty() {
            continue;
        }
        let name = name.trim_matches(' ');
        if name == "q" {
            found.quality = value.parse().unwrap_or(0.0);
        } else {
            found.params.insert(name.to_owned(), value.trim_matches(' ').to_owned());
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_wanted_comes_first() {
        let order = |header: &str| -> Vec<String> {
            parse(header).iter().map(|c| format!("{}/{}", c.kind, c.sub)).collect()
        };
        assert_eq!(order("text/plain;q=0.5, */*;q=0.1, a/b"), ["a/b", "text/plain", "*/*"]);
        assert_eq!(order("*, nonsense, x/y/z, a/*"), ["a/*", "*/*"]);
        assert_eq!(order(""), Vec::<String>::new());
        assert_eq!(parse("a/b; v=1 ;q=0.25")[0].param("v"), "1");
    }

    #[test]
    fn of_a_flood_of_clauses_only_the_first_are_read() {
        let flood: String = (0..100_000).map(|n| format!("a/b;q=0.{n};p{n}=x,")).collect();
        assert_eq!(parse(&flood).len(), MOST_CLAUSES);
        let params: String = (0..1000).map(|n| format!(";p{n}=x")).collect();
        assert_eq!(parse(&format!("a/b{params}"))[0].params.len(), MOST_PARAMS);
    }
}
