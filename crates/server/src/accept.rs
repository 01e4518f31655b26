//! `Accept` headers, read and ordered as Go's `goautoneg` does it.

use std::collections::BTreeMap;

/// One kind that a client takes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Clause {
    /// `text` of `text/plain`.
    pub(crate) kind: String,
    /// `plain` of `text/plain`.
    pub(crate) sub: String,
    /// How much it is wanted.
    pub(crate) quality: f64,
    /// Everything else, by name.
    pub(crate) params: BTreeMap<String, String>,
}

impl Clause {
    /// A parameter; empty if it was not given.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }
}

/// The clauses of a header, the most wanted first.
pub(crate) fn parse(header: &str) -> Vec<Clause> {
    let mut clauses: Vec<Clause> = header.split(',').filter_map(clause).collect();
    // Insertion by Go's own (not transitive) order; its sort does the same for short lists.
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
    for piece in pieces {
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
}
