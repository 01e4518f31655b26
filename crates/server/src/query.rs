//! Query strings, decoded as Go decodes them.

/// Pairs in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes; pairs that cannot be decoded are left out.
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        Self(
            pairs
                .filter_map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    Some((decode(key)?, decode(value)?))
                })
                .collect(),
        )
    }

    /// Decodes; the first pair that cannot be decoded is an error in Go's words.
    pub(crate) fn strict(text: &str) -> Result<Self, String> {
        // Of several faults Go tells of this one.
        if text.contains(';') {
            return Err("invalid semicolon separator in query".to_owned());
        }
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            for part in [key, value] {
                if let Some(bad) = bad_escape(part) {
                    return Err(format!("invalid URL escape {}", units::strconv::quote(bad)));
                }
            }
        }
        Ok(Self::parse(text))
    }

    /// Whether a key was given.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    /// The first value of a key.
    pub(crate) fn first(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Every value of a key.
    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Kubernetes' boolean: absent, `0` and `false` are false.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.first(key).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }
}

/// The first escape that is none.
fn bad_escape(text: &str) -> Option<&str> {
    text.match_indices('%').find_map(|(at, _)| {
        let digits = text.get(at + 1..at + 3);
        let good = digits.is_some_and(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        (!good).then(|| text.get(at..at + 3).unwrap_or(&text[at..]))
    })
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let high = char::from(rest.next()?).to_digit(16)?;
                let low = char::from(rest.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_broken_pairs_left_out() {
        let query = Query::parse("command=ls&command=-l%20a+b&x=%zz&tty=1&follow=true&p=false");
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["ls", "-l a b"]);
        assert_eq!(query.first("x"), None);
        assert_eq!(Query::strict("a=%zz1").unwrap_err(), "invalid URL escape \"%zz\"");
        assert_eq!(Query::strict("%4").unwrap_err(), "invalid URL escape \"%4\"");
        assert!(Query::strict("%zz&a;b").unwrap_err().starts_with("invalid semicolon"));
        assert!(Query::strict("a;b").is_err() && Query::strict("a=b&&c").is_ok());
        assert!(query.flag("follow") && !query.flag("p"));
    }
}
