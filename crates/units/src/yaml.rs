//! YAML as the Go kubelet reads it (`sigs.k8s.io/yaml` over yaml.v2): version 1.1 with its
//! booleans and octal numbers, merge keys, the first document only, turned into JSON.
//!
//! Promises: the same documents are taken, with the same values, and the others are refused with
//! the same words and line. Never panics, whatever comes in.
//!
//! ```text
//! bytes ─▶ characters ─▶ tokens ─▶ tree of nodes ─▶ JSON
//!          (reader)      (scanner)  (parser)         (here; scalars by `resolve`)
//! ```

mod parser;
mod reader;
mod resolve;
mod scalars;
mod scanner;
#[cfg(test)]
mod tests;

use crate::strconv::quote;
use parser::{Content, Node, Tree};
use resolve::Scalar;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A document.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its content; the last of equal keys has won.
    pub value: Value,
    /// What a strict reader objects to: keys that come twice.
    pub objection: Option<String>,
}

/// Why a document is refused; the text is that of the Go library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct YamlError(String);

impl YamlError {
    fn new(text: impl AsRef<str>) -> Self {
        Self(format!("yaml: {}", text.as_ref()))
    }

    /// With the line it was found in; zero for none.
    fn at(line: usize, text: &str) -> Self {
        if line == 0 { Self::new(text) } else { Self::new(format!("line {line}: {text}")) }
    }
}

/// Reads the first document.
pub fn read(data: &[u8]) -> Result<Document, YamlError> {
    let tree = parser::parse(data)?;
    let Some(root) = tree.root else {
        return Ok(Document { value: Value::Null, objection: None });
    };
    let mut builder = Builder::over(&tree);
    let built = builder.build(root)?;
    let value = to_json(built)?;
    let objection = (!builder.twice.is_empty())
        .then(|| format!("yaml: unmarshal errors:\n  {}", builder.twice.join("\n  ")));
    Ok(Document { value, objection })
}

/// Whether Go's readers take a text for JSON: its first character that is no space is a brace.
pub fn is_json(data: &[u8]) -> bool {
    String::from_utf8_lossy(data).trim_start().starts_with('{')
}

/// Reads JSON or the first document of YAML.
pub fn read_either(data: &[u8]) -> Result<Value, YamlError> {
    if !is_json(data) {
        return read(data).map(|document| document.value);
    }
    match crate::gojson::syntax_fault(data) {
        Some(fault) => Err(YamlError(fault)),
        None => serde_json::from_slice(data).map_err(|error| YamlError(error.to_string())),
    }
}

/// The line, from one, where the value at `path` (keys and indexes) begins, or the nearest value
/// around it; `None` where nothing can be read.
pub fn line_of<'a>(data: &[u8], path: impl IntoIterator<Item = &'a str>) -> Option<usize> {
    let tree = parser::parse(data).ok()?;
    let mut node = tree.nodes.get(tree.root?)?;
    for step in path {
        let inner = match &node.content {
            Content::List(items) => step.parse().ok().and_then(|index: usize| items.get(index)),
            Content::Map(pairs) => pairs.iter().rev().find_map(|(key, value)| {
                let key = &tree.nodes.get(*key)?.content;
                matches!(key, Content::Scalar(text, _) if text == step).then_some(value)
            }),
            Content::Scalar(..) | Content::Alias(..) => None,
        };
        match inner.and_then(|id| tree.nodes.get(*id)) {
            Some(inner) => node = inner,
            None => break,
        }
    }
    Some(node.line + 1)
}

/// A value as the Go library builds it.
#[derive(Debug, Clone, PartialEq)]
enum Built {
    Scalar(Scalar),
    List(Vec<Built>),
    /// In no particular order upstream; here in that of the keys.
    Map(BTreeMap<Key, Built>),
}

/// A key with its type: `5` and `'5'` are two.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    /// The bits of a float, with its sign turned so that they sort.
    Float(u64),
    Text(String),
}

struct Builder<'a> {
    tree: &'a Tree,
    /// Aliases being followed.
    open: Vec<usize>,
    /// Keys that were set already.
    twice: Vec<String>,
    /// How many values were built, and how many of them through aliases.
    built: u64,
    through_aliases: u64,
}

impl<'a> Builder<'a> {
    fn over(tree: &'a Tree) -> Self {
        Self { tree, open: Vec::new(), twice: Vec::new(), built: 0, through_aliases: 0 }
    }

    fn node(&self, id: usize) -> Result<&'a Node, YamlError> {
        self.tree.nodes.get(id).ok_or_else(|| YamlError::new("internal error: unknown node"))
    }

    fn count(&mut self) -> Result<(), YamlError> {
        self.built += 1;
        if !self.open.is_empty() {
            self.through_aliases += 1;
        }
        let (part, all) = (as_float(self.through_aliases), as_float(self.built));
        let excessive = self.through_aliases > 100 && self.built > 1000;
        if excessive && part / all > allowed_ratio(all) {
            return Err(YamlError::new("document contains excessive aliasing"));
        }
        Ok(())
    }

    fn build(&mut self, id: usize) -> Result<Built, YamlError> {
        self.count()?;
        let node = self.node(id)?;
        match &node.content {
            Content::Alias(name, target) => {
                self.enter(id, name)?;
                let built = self.build(*target)?;
                self.open.pop();
                Ok(built)
            }
            Content::Scalar(text, plain) => {
                Ok(Built::Scalar(resolve::resolve(&node.tag, text, *plain)?))
            }
            Content::List(items) => {
                let items = items.iter().map(|item| self.build(*item));
                Ok(Built::List(items.collect::<Result<_, _>>()?))
            }
            Content::Map(pairs) => {
                let mut map = BTreeMap::new();
                self.fill(pairs, &mut map)?;
                Ok(Built::Map(map))
            }
        }
    }

    fn enter(&mut self, id: usize, name: &str) -> Result<(), YamlError> {
        if self.open.contains(&id) {
            return Err(YamlError::new(format!("anchor '{name}' value contains itself")));
        }
        self.open.push(id);
        Ok(())
    }

    fn fill(
        &mut self,
        pairs: &[(usize, usize)],
        map: &mut BTreeMap<Key, Built>,
    ) -> Result<(), YamlError> {
        for (key, value) in pairs {
            if self.node(*key)?.is_merge() {
                self.merge(*value, map)?;
                continue;
            }
            let key = match self.build(*key)? {
                Built::Scalar(scalar) => Key::from(scalar),
                other => {
                    return Err(YamlError::new(format!("invalid map key: {}", go_syntax(&other))));
                }
            };
            let built = self.build(*value)?;
            if map.contains_key(&key) {
                let line = self.node(*value)?.line + 1;
                self.twice.push(format!("line {line}: key {} already set in map", key.shown()));
            }
            map.insert(key, built);
        }
        Ok(())
    }

    /// Takes over another map's members.
    fn merge(&mut self, id: usize, map: &mut BTreeMap<Key, Built>) -> Result<(), YamlError> {
        let wants = || YamlError::new("map merge requires map or sequence of maps as the value");
        let node = self.node(id)?;
        match &node.content {
            Content::Map(pairs) => {
                self.count()?;
                self.fill(pairs, map)
            }
            Content::Alias(name, target) => {
                let Content::Map(pairs) = &self.node(*target)?.content else {
                    return Err(wants());
                };
                self.count()?;
                self.enter(id, name)?;
                self.count()?;
                self.fill(pairs, map)?;
                self.open.pop();
                Ok(())
            }
            Content::List(items) => {
                // Earlier ones are stronger.
                for item in items.iter().rev() {
                    let target = match &self.node(*item)?.content {
                        Content::Alias(_, target) => *target,
                        _ => *item,
                    };
                    if !matches!(self.node(target)?.content, Content::Map(_)) {
                        return Err(wants());
                    }
                    self.merge(*item, map)?;
                }
                Ok(())
            }
            Content::Scalar(..) => Err(wants()),
        }
    }
}

/// How much of a document may come through aliases.
fn allowed_ratio(built: f64) -> f64 {
    const LOW: f64 = 400_000.0;
    const HIGH: f64 = 4_000_000.0;
    if built <= LOW {
        0.99
    } else if built >= HIGH {
        0.10
    } else {
        0.99 - 0.89 * ((built - LOW) / (HIGH - LOW))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio of counts")]
fn as_float(count: u64) -> f64 {
    count as f64
}

impl From<Scalar> for Key {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Null => Key::Null,
            Scalar::Bool(value) => Key::Bool(value),
            Scalar::Int(value) => Key::Int(value),
            Scalar::Uint(value) => Key::Uint(value),
            Scalar::Float(value) => {
                let bits = value.to_bits();
                Key::Float(if bits >> 63 == 0 { bits | 1 << 63 } else { !bits })
            }
            Scalar::Text(text) => Key::Text(text),
        }
    }
}

impl Key {
    fn float(bits: u64) -> f64 {
        f64::from_bits(if bits >> 63 == 1 { bits & !(1 << 63) } else { !bits })
    }

    /// As Go's `%#v` prints it.
    fn shown(&self) -> String {
        match self {
            Key::Null => "<nil>".to_owned(),
            Key::Bool(value) => value.to_string(),
            Key::Int(value) => value.to_string(),
            Key::Uint(value) => format!("{value:#x}"),
            Key::Float(bits) => go_float(Key::float(*bits)),
            Key::Text(text) => quote(text),
        }
    }

    /// As a key of JSON.
    fn into_text(self, value: &Built) -> Result<String, YamlError> {
        Ok(match self {
            Key::Text(text) => text,
            Key::Bool(value) => value.to_string(),
            Key::Int(value) => value.to_string(),
            Key::Float(bits) => float_key(Key::float(bits)),
            Key::Null | Key::Uint(_) => {
                let kind = if self == Key::Null { "%!s(<nil>)" } else { "uint64" };
                return Err(YamlError(format!(
                    "unsupported map key of type: {kind}, key: {}, value: {}",
                    self.shown(),
                    go_syntax(value)
                )));
            }
        })
    }
}

/// A float as a key: shortest form of a 32-bit float.
fn float_key(value: f64) -> String {
    if value.is_nan() {
        return ".nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    #[expect(clippy::cast_possible_truncation, reason = "upstream prints 32 bits")]
    let short = value as f32;
    let text = format!("{short:e}");
    let exponent: i32 =
        text.rsplit_once('e').and_then(|(_, digits)| digits.parse().ok()).unwrap_or(0);
    if (-4..21).contains(&exponent) {
        return short.to_string();
    }
    exponent_form(&text)
}

/// `1e21` as `1e+21`, `1e-7` as `1e-07`.
fn exponent_form(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// A float as Go's `%#v` prints it.
fn go_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = format!("{value:e}");
    let exponent: i32 =
        text.rsplit_once('e').and_then(|(_, digits)| digits.parse().ok()).unwrap_or(0);
    if (-4..21).contains(&exponent) { value.to_string() } else { exponent_form(&text) }
}

/// A value as Go's `%#v` prints it.
fn go_syntax(value: &Built) -> String {
    let inner = |value: &Built| match value {
        Built::Scalar(Scalar::Null) => "interface {}(nil)".to_owned(),
        other => go_syntax(other),
    };
    match value {
        Built::Scalar(scalar) => Key::from(scalar.clone()).shown(),
        Built::List(items) => {
            let items: Vec<String> = items.iter().map(inner).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Built::Map(map) => {
            let members: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}:{}", key.shown(), inner(value)))
                .collect();
            format!("map[interface {{}}]interface {{}}{{{}}}", members.join(", "))
        }
    }
}

fn to_json(value: Built) -> Result<Value, YamlError> {
    Ok(match value {
        Built::Scalar(scalar) => match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Int(value) => value.into(),
            Scalar::Uint(value) => value.into(),
            Scalar::Text(text) => Value::String(text),
            Scalar::Float(value) => json_float(value)?,
        },
        Built::List(items) => {
            Value::Array(items.into_iter().map(to_json).collect::<Result<_, _>>()?)
        }
        Built::Map(map) => {
            let mut object = Map::new();
            for (key, value) in map {
                let key = key.into_text(&value)?;
                object.insert(key, to_json(value)?);
            }
            Value::Object(object)
        }
    })
}

/// A whole float is written as a whole number.
fn json_float(value: f64) -> Result<Value, YamlError> {
    if !value.is_finite() {
        return Err(YamlError(format!("json: unsupported value: {}", go_float(value))));
    }
    let text = crate::gojson::float(value);
    let number = text
        .parse::<i64>()
        .map(Value::from)
        .or_else(|_| text.parse::<u64>().map(Value::from))
        .unwrap_or_else(|_| Value::from(value));
    Ok(number)
}
