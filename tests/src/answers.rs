//! Whether two answers are the same for all that a client can see.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::ask::Ask;
use crate::node_pair::PairedNode;
use crate::wire::Answer;

/// Headers that say something; lengths and dates may differ.
const HEADERS: [&str; 16] = [
    "content-type",
    "x-content-type-options",
    "allow",
    "location",
    "content-encoding",
    "warning",
    "retry-after",
    "content-range",
    "accept-ranges",
    "last-modified",
    "upgrade",
    "sec-websocket-protocol",
    "www-authenticate",
    "cache-control",
    "transfer-encoding",
    "connection",
];

/// How a page is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    /// Word for word.
    Text,
    /// As JSON, by the names of its fields.
    Shape,
    /// Word for word, but for what a kubelet has of its own.
    Own,
    /// Not at all: other tests look at what is in it.
    Any,
}

/// What is different, in words; `None` if nothing is.
#[must_use]
pub fn difference(
    ask: &Ask,
    go: (&PairedNode, &Answer),
    ours: (&PairedNode, &Answer),
) -> Option<String> {
    let mut found = Vec::new();
    let (want, got) = (go.1, ours.1);
    if want.status != got.status {
        found.push(format!("status {} is {}", want.status, got.status));
    }
    if want.version != got.version {
        found.push(format!("version {} is {}", want.version, got.version));
    }
    // Of an upgrade that HTTP/1.0 asks for in vain ours says that it is over, which it is anyway; and
    // it goes on after a body that nobody has called for.
    let expects = ask.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("expect"));
    let old = ask.version == "HTTP/1.0" || (expects && ask.body.is_some());
    for name in HEADERS.into_iter().filter(|name| *name != "connection" || !old) {
        let of = |twin: &PairedNode, answer: &Answer| {
            let values: Vec<String> = answer
                .headers
                .iter()
                .filter(|(known, _)| known == name)
                .map(|(_, value)| without_boundary(&twin.common(value)))
                .collect();
            values
        };
        let (want, got) = (of(go.0, want), of(ours.0, got));
        if want != got {
            found.push(format!("header {name} {want:?} is {got:?}"));
        }
    }
    // What upstream writes by hand, or passes on, has no date and no length unless somebody said so.
    let by_hand = want.header("date").is_none();
    let names = |answer: &Answer| -> Vec<String> {
        let meant = |name: &&String| match name.as_str() {
            "date" | "content-length" => !by_hand,
            "connection" => !old,
            _ => true,
        };
        let names = answer.headers.iter().map(|(name, _)| name);
        let mut names: Vec<String> = names.filter(meant).cloned().collect();
        names.sort();
        names.dedup();
        names
    };
    if names(want) != names(got) {
        found.push(format!("headers {:?} are {:?}", names(want), names(got)));
    }
    if ask.method != "HEAD"
        && want.status != 101
        && let Some(text) = body(ask, go, ours)
    {
        found.push(text);
    }
    (!found.is_empty()).then(|| found.join("; "))
}

fn body(ask: &Ask, go: (&PairedNode, &Answer), ours: (&PairedNode, &Answer)) -> Option<String> {
    let (want, got) = (go.0.common(&go.1.text()), ours.0.common(&ours.1.text()));
    match kind(ask, go.1) {
        Body::Any => None,
        Body::Text => (plain(&want) != plain(&got)).then(|| {
            let (want, got) = (plain(&want), plain(&got));
            format!("body {:?} is {:?}", cut(&want), cut(&got))
        }),
        Body::Own => {
            let of = |(twin, answer): (&PairedNode, &Answer)| {
                without_own(&twin.placeless(&answer.text()))
            };
            first_other(&of(go), &of(ours))
        }
        Body::Shape => {
            let parse = |text: &str| {
                let mut value = serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
                forget(&mut value);
                value
            };
            shape("", &parse(&want), &parse(&got)).or_else(|| order(&want, &got))
        }
    }
}

fn kind(ask: &Ask, answer: &Answer) -> Body {
    let path = ask.target.split('?').next().unwrap_or_default();
    let path = match path.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None => path,
    };
    let path = &decoded(path);
    if answer.status != 200 {
        return Body::Text;
    }
    if answer.header("content-encoding").is_some() || path.starts_with("/metrics") {
        return Body::Any;
    }
    let answered = answer.header("content-type").unwrap_or_default();
    let own = ["/flagz", "/statusz", "/configz"];
    if own.iter().any(|page| path.starts_with(page)) {
        Body::Own
    } else if answered == "application/json" && !path.starts_with("/run/") {
        Body::Shape
    } else if path.starts_with("/debug/pprof") {
        Body::Any
    } else {
        Body::Text
    }
}

/// A path with its escapes resolved.
pub(crate) fn decoded(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match value.filter(|_| *byte == b'%') {
            Some(value) => {
                out.push(value);
                at += 3;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What no two kubelets have in common: who wrote which field is not kept by ours (it is a third of
/// a pod's memory), the machine's interfaces come and go with other tests, a crashing pod is in
/// another state every few seconds, on cgroup v1 upstream shows a memory limit that nobody set, and
/// after a restart upstream forgets the address of a pod that has ended.
fn forget(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("managedFields");
            map.remove("interfaces");
            if map.get("qosClass").is_some() {
                map.remove("resources");
                if map.get("phase").is_some_and(|phase| phase == "Succeeded" || phase == "Failed") {
                    map.remove("podIP");
                    map.remove("podIPs");
                }
            }
            map.values_mut().for_each(forget);
        }
        Value::Array(list) => {
            list.retain(|item| {
                item["metadata"]["name"] != "again" && item["podRef"]["name"] != "again"
            });
            list.iter_mut().for_each(forget);
        }
        _ => {}
    }
}

/// A page about a kubelet without its times and its language, and without the mark that upstream
/// draws by chance to stand between names and values.
fn without_own(text: &str) -> String {
    let mut text = text.to_owned();
    for field in ["startTime", "uptimeSeconds", "goVersion"] {
        for name in [format!("\"{field}\":"), format!("\n{field}: ")] {
            let Some((before, after)) = text.split_once(&name) else { continue };
            let end = after.find([',', '\n']).unwrap_or(after.len());
            text = format!("{before}{name}{}", &after[end..]);
        }
    }
    if !text.starts_with('\n') {
        return text;
    }
    let lines = text.lines().enumerate().map(|(at, line)| {
        let words = ["Started", "Up", "Go version", "Binary version", "Emulation version", "Paths"];
        let flag = || {
            let part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            line.split_at(line.find(|c| !part(c)).unwrap_or(line.len()))
        };
        let word = words.iter().find(|word| line.starts_with(*word));
        match word.map_or_else(flag, |word| line.split_at(word.len())) {
            _ if at < 3 => line.to_owned(),
            ("Started" | "Up" | "Go version", _) => String::new(),
            (name, value) => format!("{name}={}", value.trim_start_matches([':', '=', ' '])),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The place where two texts part.
fn first_other(want: &str, got: &str) -> Option<String> {
    let same = want.chars().zip(got.chars()).take_while(|(a, b)| a == b).count();
    let from = |text: &str| text.chars().skip(same.saturating_sub(40)).collect::<String>();
    (want != got).then(|| format!("from {:?} is {:?}", cut(&from(want)), cut(&from(got))))
}

/// Ids that a runtime makes up for each call.
fn without_ids(text: &str) -> String {
    let is_id = |word: &str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let split = |c: char| !c.is_ascii_alphanumeric();
    let mut out = text.to_owned();
    for word in text.split(split).filter(|word| is_id(word)) {
        out = out.replace(word, "ID");
    }
    out
}

/// The words between several parts of a file are each kubelet's own.
fn without_boundary(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    let inside = first.strip_prefix("--").filter(|word| word.len() == 60);
    let after = text.split("boundary=").nth(1).and_then(|rest| rest.get(..60));
    match inside.or(after) {
        Some(boundary) => text.replace(boundary, "BOUNDARY"),
        None => text.to_owned(),
    }
}

/// Times of log lines are each kubelet's own, and so is the moment of a pull that is tried again.
fn plain(text: &str) -> String {
    let text = &without_boundary(&without_ids(text));
    let text = &text.replace("image can't be pulled", "trying and failing to pull image");
    let text = &without_tokens(text);
    let is_time = |word: &str| {
        word.len() > 20 && word.ends_with('Z') && word.starts_with("20") && word.contains('T')
    };
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| match line.split_once(' ') {
            Some((first, rest)) if is_time(first) => format!("TIME {rest}"),
            _ => line.to_owned(),
        })
        .collect();
    lines.join("\n")
}

/// The runtime's addresses of streams end in a word of its own.
fn without_tokens(text: &str) -> String {
    let mut out = text.to_owned();
    for place in ["/exec/", "/attach/", "/portforward/"] {
        let token = text.split_once("\"ws://").and_then(|(_, rest)| rest.split_once(place));
        if let Some(token) = token.and_then(|(_, token)| token.get(..8)) {
            out = out.replace(token, "TOKEN");
        }
    }
    out
}

fn cut(text: &str) -> String {
    text.chars().take(300).collect()
}

/// The first place where the fields of two documents are not the same.
fn shape(place: &str, want: &Value, got: &Value) -> Option<String> {
    match (want, got) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                match b.get(key) {
                    None => {
                        return Some(format!(
                            "{place}.{key} is missing (it was {})",
                            cut(&value.to_string())
                        ));
                    }
                    Some(other) => {
                        if let Some(found) = shape(&format!("{place}.{key}"), value, other) {
                            return Some(found);
                        }
                    }
                }
            }
            b.keys()
                .find(|key| !a.contains_key(*key))
                .map(|key| format!("{place}.{key} is too much"))
        }
        (Value::Array(a), Value::Array(b)) => {
            let (a, b) = (named(a), named(b));
            if a.len() != b.len() {
                return Some(format!("{place} has {} elements, not {}", b.len(), a.len()));
            }
            a.iter().zip(&b).find_map(|((name, a), (other, b))| {
                if name == other {
                    shape(&format!("{place}[{name}]"), a, b)
                } else {
                    Some(format!("{place}[{name}] is {other}"))
                }
            })
        }
        (Value::String(a), Value::String(b)) if is_told(place) && steady(a) != steady(b) => {
            Some(format!("{place}: {:?} is {:?}", cut(a), cut(b)))
        }
        (Value::Bool(a), Value::Bool(b)) if a == b => None,
        // What is measured is each one's own; what a pod says is not.
        (Value::Number(a), Value::Number(b)) if a == b || !place.starts_with(".items") => None,
        (Value::String(_), Value::String(_)) | (Value::Null, Value::Null) => None,
        _ => Some(format!("{place}: {} is {}", cut(&want.to_string()), cut(&got.to_string()))),
    }
}

/// The first two fields that come in the other order, in any object at the same place.
fn order(want: &str, got: &str) -> Option<String> {
    let of = |text: &str| {
        let mut before = BTreeSet::new();
        if let Ok(keys) = serde_json::from_str::<Keys>(text) {
            keys.pairs("", &mut before);
        }
        before
    };
    let want = of(want);
    let turned = |(place, a, b): &(String, String, String)| {
        want.contains(&(place.clone(), b.clone(), a.clone()))
    };
    let found = of(got).into_iter().find(turned);
    found.map(|(place, a, b)| format!("{place} has {a} before {b}"))
}

/// The names of fields as they are written.
enum Keys {
    Object(Vec<(String, Keys)>),
    List(Vec<Keys>),
    Leaf,
}

impl Keys {
    /// Which comes before which, by place.
    fn pairs(&self, place: &str, before: &mut BTreeSet<(String, String, String)>) {
        match self {
            Keys::Object(fields) => {
                for (at, (name, inner)) in fields.iter().enumerate() {
                    let later = fields.iter().skip(at + 1);
                    before.extend(later.map(|(b, _)| (place.to_owned(), name.clone(), b.clone())));
                    inner.pairs(&format!("{place}.{name}"), before);
                }
            }
            Keys::List(items) => items.iter().for_each(|item| item.pairs(place, before)),
            Keys::Leaf => {}
        }
    }
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeysVisitor)
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Keys::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Keys, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Keys::List(items))
    }

    fn visit_unit<E>(self) -> Result<Keys, E> {
        Ok(Keys::Leaf)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Keys, E> {
        Ok(Keys::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Keys, E> {
        Ok(Keys::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Keys, E> {
        Ok(Keys::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Keys, E> {
        Ok(Keys::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Keys, E> {
        Ok(Keys::Leaf)
    }
}

/// Whether two kubelets have the same text at a place of a document: addresses, versions and what a
/// pull that is tried again says are each one's own.
fn is_told(place: &str) -> bool {
    let own = [
        "resourceVersion",
        "uid",
        "IP",
        "ip",
        "message",
        "reason",
        "kubernetes.io/config.hash",
        "kubernetes.io/config.mirror",
    ];
    let last = place.rsplit(['.', ']']).next().unwrap_or_default();
    !own.iter().any(|name| last.ends_with(name))
}

/// A text without ids and times.
fn steady(text: &str) -> String {
    let time = text.len() >= 20 && text.starts_with("20") && text.ends_with('Z');
    if time { "TIME".to_owned() } else { without_ids(text) }
}

/// Elements with a name, in its order: lists of pods and containers come in any.
fn named(list: &[Value]) -> Vec<(String, &Value)> {
    let mut list: Vec<(String, &Value)> = list
        .iter()
        .enumerate()
        .map(|(index, value)| {
            let names = [
                &value["name"],
                &value["podRef"]["name"],
                &value["metadata"]["name"],
                &value["type"],
            ];
            let name = names.iter().find_map(|name| name.as_str());
            (name.map_or_else(|| format!("{index:03}"), str::to_owned), value)
        })
        .collect();
    list.sort_by(|a, b| a.0.cmp(&b.0));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_about_a_kubelet_are_compared_without_its_own() {
        let flags = |mark: &str| format!("\nkubelet flagz\nWarning: x\na-b{mark}c=d\ne{mark}\n");
        assert_eq!(without_own(&flags(": ")), without_own(&flags("=")));
        assert_ne!(without_own(&flags("=")), without_own(&flags("=").replace("c=d", "c=e")));
        let status = |up: u8| format!("\nkubelet statusz\nWarning: x\n\nUp{up}\nPaths: /a /b\n");
        assert_eq!(without_own(&status(1)), without_own(&status(2)));
        let json =
            |up: u8| format!("{{\"a\":1,\"uptimeSeconds\":{up},\"goVersion\":\"x\",\"b\":2}}");
        assert_eq!(without_own(&json(1)), without_own(&json(2)));
        assert!(without_own(&json(1)).ends_with("\"b\":2}"));
        assert_eq!(first_other("abc", "abd"), Some("from \"abc\" is \"abd\"".to_owned()));
    }
}
