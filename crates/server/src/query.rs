//! Query strings, decoded as Go decodes them.

/// With more pairs than this Go rejects the query.
const MOST: usize = 10_000;

/// The decoded pairs, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<Pair>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pair {
    key: String,
    value: String,
    /// The value's bytes, which may not be UTF-8.
    bytes: Vec<u8>,
}

impl Pair {
    fn new(key: &[u8], value: Vec<u8>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { key: text(key), value: text(&value), bytes: value }
    }
}

impl Query {
    /// Decodes a query; pairs that cannot be decoded are skipped.
    pub(crate) fn parse(text: &str) -> Self {
        if has_too_many(text) {
            return Self::default();
        }
        let pairs = text.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        Self(
            pairs
                .filter_map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    Some(Pair::new(&decode(key)?, decode(value)?))
                })
                .collect(),
        )
    }

    /// Decodes a query; the first pair that cannot be decoded is an error with Go's text.
    pub(crate) fn strict(text: &str) -> Result<Self, String> {
        if has_too_many(text) {
            return Err("number of URL query parameters exceeded limit".to_owned());
        }
        // Of several errors Go reports this one.
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
        self.0.iter().any(|pair| pair.key == key)
    }

    /// The first value of a key.
    pub(crate) fn first(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|pair| pair.key == key).map(|pair| pair.value.as_str())
    }

    /// Every value of a key.
    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |pair| pair.key == key).map(|pair| pair.value.as_str())
    }

    /// The bytes of every value of a key.
    pub(crate) fn all_bytes<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |pair| pair.key == key).map(|pair| pair.bytes.as_slice())
    }

    /// Kubernetes' boolean: absent, `0` and `false` are false.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.first(key).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }
}

fn has_too_many(text: &str) -> bool {
    text.bytes().filter(|byte| *byte == b'&').count() >= MOST
}

/// The first invalid escape.
fn bad_escape(text: &str) -> Option<&str> {
    text.match_indices('%').find_map(|(at, _)| {
        let digits = text.get(at + 1..at + 3);
        let good = digits.is_some_and(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        (!good).then(|| text.get(at..at + 3).unwrap_or(&text[at..]))
    })
}

fn decode(text: &str) -> Option<Vec<u8>> {
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
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_broken_pairs_left_out() {
        let query = Query::parse("command=ls&command=-l%20a+b&x=%zz&tty=1&follow=true&p=false");
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["ls", "-l a b"]);
        assert_eq!(query.first("x"), None);
        let odd = Query::parse("a=%ff");
        assert_eq!(odd.all("a").zip(odd.all_bytes("a")).next(), Some(("\u{fffd}", &b"\xff"[..])));
        assert_eq!(Query::strict("a=%zz1").unwrap_err(), "invalid URL escape \"%zz\"");
        assert_eq!(Query::strict("%4").unwrap_err(), "invalid URL escape \"%4\"");
        assert!(Query::strict("%zz&a;b").unwrap_err().starts_with("invalid semicolon"));
        assert!(Query::strict("a;b").is_err() && Query::strict("a=b&&c").is_ok());
        assert!(query.flag("follow") && !query.flag("p"));
    }

    #[test]
    fn of_too_many_pairs_none_is_read() {
        let most = format!("a=b{}", "&".repeat(MOST - 1));
        assert_eq!(Query::parse(&most).first("a"), Some("b"));
        assert!(Query::strict(&most).is_ok());
        let more = format!("{most}&x;y");
        assert_eq!(Query::parse(&more), Query::default());
        let limit = "number of URL query parameters exceeded limit";
        assert_eq!(Query::strict(&more).unwrap_err(), limit);
    }
}
