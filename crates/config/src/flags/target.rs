//! What a flag's value does to the place it writes to, with Go's error texts.

use super::set::VersionRequest;
use super::{Kind, Registry};
use crate::kubelet::{MemoryReservation, Taint, VModuleItem};
use crate::validate::names::{is_huge_page_name, label_value_faults, qualified_name_faults};
use crate::version;
use std::collections::BTreeMap;
use units::strconv::{self, NumError, NumFault, parse_ip, quote};
use units::{GoDuration, Quantity, SpelledQuantity};

/// How a value is to be taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    pub(super) kind: Kind,
    pub(super) registry: Registry,
    /// Whether it is the first use of the flag: lists and maps start anew.
    pub(super) first: bool,
    /// Whether an empty value before has taken the flag off its place.
    pub(super) detached: bool,
}

/// A place a flag can write to.
pub(super) trait FlagTarget {
    /// Takes the value, or says why not.
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String>;

    /// The value as pflag shows it.
    fn show(&self, kind: Kind) -> String;
}

/// Go's own `flag` package hides the reason.
fn reason(error: &NumError, manner: Manner) -> String {
    match (manner.registry, error.reason) {
        (Registry::Pflag, _) => error.to_string(),
        (Registry::Go, NumFault::Syntax) => "parse error".to_owned(),
        (Registry::Go, NumFault::Range) => "value out of range".to_owned(),
    }
}

impl FlagTarget for bool {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        *self = strconv::parse_bool(raw).map_err(|e| reason(&e, manner))?;
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        self.to_string()
    }
}

impl FlagTarget for i32 {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        let number = strconv::parse_int(raw, 0, 32).map_err(|e| reason(&e, manner))?;
        *self = Self::try_from(number).unwrap_or_default();
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        self.to_string()
    }
}

impl FlagTarget for i64 {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        *self = strconv::parse_int(raw, 0, 64).map_err(|e| reason(&e, manner))?;
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        self.to_string()
    }
}

impl FlagTarget for u32 {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        let level = strconv::parse_uint(raw, 10, 31).map_err(|e| reason(&e, manner))?;
        *self = Self::try_from(level).unwrap_or_default();
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        self.to_string()
    }
}

impl FlagTarget for GoDuration {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        *self = raw.parse().map_err(|e: units::DurationError| match manner.registry {
            Registry::Pflag => e.to_string(),
            Registry::Go => "parse error".to_owned(),
        })?;
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        self.to_string()
    }
}

impl FlagTarget for crate::kubelet::FlushFrequency {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        self.duration.assign(raw, manner)
    }

    fn show(&self, _: Kind) -> String {
        self.duration.to_string()
    }
}

impl FlagTarget for Quantity {
    fn assign(&mut self, raw: &str, _: Manner) -> Result<(), String> {
        *self = raw.parse().map_err(|e: units::QuantityError| e.to_string())?;
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        self.to_string()
    }
}

impl<T: FlagTarget + Default> FlagTarget for Option<T> {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        self.get_or_insert_with(T::default).assign(raw, manner)
    }

    fn show(&self, kind: Kind) -> String {
        self.as_ref().map(|inner| inner.show(kind)).unwrap_or_default()
    }
}

impl FlagTarget for String {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        if manner.kind == Kind::Ip {
            // An empty address leaves the one in force.
            if raw.is_empty() {
                return Ok(());
            }
            if parse_ip(raw).is_none() {
                return Err(format!("{} is not a valid IP address", quote(raw)));
            }
            if manner.detached {
                // Upstream panics with it.
                return Err("the string pointer passed into IPVar should not be nil".to_owned());
            }
        }
        raw.clone_into(self);
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        self.clone()
    }
}

impl FlagTarget for Vec<String> {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        let items = csv(raw)?;
        if manner.first {
            self.clear();
        }
        self.extend(items);
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        format!("[{}]", self.iter().map(|item| csv_field(item)).collect::<Vec<_>>().join(","))
    }
}

impl FlagTarget for BTreeMap<String, String> {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        if manner.first && manner.kind != Kind::Labels {
            self.clear();
        }
        let separator = if manner.kind == Kind::LangleMap { '<' } else { '=' };
        let pairs = match manner.kind {
            Kind::SinglePair => vec![raw],
            _ => raw.split(',').filter(|pair| !pair.is_empty()).collect(),
        };
        for pair in pairs {
            let (key, value) = match (pair.split_once(separator), manner.kind) {
                (Some(pair), _) => pair,
                (None, Kind::Labels) => (pair, ""),
                (None, _) => {
                    return Err(format!("malformed pair, expect string{separator}string"));
                }
            };
            self.insert(key.trim().to_owned(), value.trim().to_owned());
        }
        Ok(())
    }

    fn show(&self, kind: Kind) -> String {
        let separator = if kind == Kind::LangleMap { '<' } else { '=' };
        sorted(self.iter().map(|(k, v)| format!("{k}{separator}{v}")))
    }
}

impl FlagTarget for BTreeMap<String, bool> {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        if manner.first {
            self.clear();
        }
        for pair in raw.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or("malformed pair, expect string=bool")?;
            let (key, value) = (key.trim(), value.trim());
            let value = strconv::parse_bool(value)
                .map_err(|e| format!("invalid value of {key}: {value}, err: {e}"))?;
            self.insert(key.to_owned(), value);
        }
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        sorted(self.iter().map(|(k, v)| format!("{k}={v}")))
    }
}

/// Pairs in the order of their text.
fn sorted(pairs: impl Iterator<Item = String>) -> String {
    let mut pairs: Vec<String> = pairs.collect();
    pairs.sort();
    pairs.join(",")
}

impl FlagTarget for BTreeMap<String, Vec<String>> {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        if manner.first {
            self.clear();
        }
        for pair in raw.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once(':').ok_or("malformed pair, expect string:string")?;
            self.entry(key.trim().to_owned()).or_default().push(value.trim().to_owned());
        }
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        let values = |(k, vs): (&String, &Vec<String>)| {
            vs.iter().map(|v| format!("{k}:{v}")).collect::<Vec<_>>()
        };
        self.iter().flat_map(values).collect::<Vec<_>>().join(",")
    }
}

impl FlagTarget for Vec<VModuleItem> {
    /// Adds to what the file has: upstream's flag appends.
    fn assign(&mut self, raw: &str, _: Manner) -> Result<(), String> {
        for item in raw.split(',').filter(|item| !item.is_empty()) {
            let parts: Vec<&str> = item.split('=').collect();
            let [pattern, level] = parts.as_slice() else {
                return Err(format!("{} does not have the pattern=N format", quote(item)));
            };
            if pattern.is_empty() || level.is_empty() {
                return Err(format!("{} does not have the pattern=N format", quote(item)));
            }
            let level = strconv::parse_uint(level, 10, 31)
                .map_err(|e| format!("parsing verbosity in {}: {e}", quote(item)))?;
            self.push(VModuleItem {
                file_pattern: (*pattern).to_owned(),
                verbosity: u32::try_from(level).unwrap_or_default(),
            });
        }
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        let items = self.iter().map(|item| format!("{}={}", item.file_pattern, item.verbosity));
        items.collect::<Vec<_>>().join(",")
    }
}

impl FlagTarget for Vec<Taint> {
    fn assign(&mut self, raw: &str, _: Manner) -> Result<(), String> {
        let mut taints: Self = Vec::new();
        for spec in raw.split(',').filter(|_| !raw.is_empty()) {
            if let Some(removal) = spec.strip_suffix('-') {
                taint(removal)?;
                continue;
            }
            let taint = taint(spec)?;
            if taint.effect.is_empty() {
                return Err(format!("invalid taint spec: {spec}"));
            }
            if taints.iter().any(|t| t.key == taint.key && t.effect == taint.effect) {
                return Err(format!(
                    "duplicated taints with the same key and effect: {{{} {} {} <nil>}}",
                    taint.key, taint.value, taint.effect
                ));
            }
            taints.push(taint);
        }
        *self = taints;
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        let taints = self.iter().map(|t| format!("{}={}:{}", t.key, t.value, t.effect));
        taints.collect::<Vec<_>>().join(",")
    }
}

impl FlagTarget for Vec<MemoryReservation> {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        if manner.detached {
            return Err("no target (nil pointer to *[]MemoryReservation)".to_owned());
        }
        // An empty value leaves what is in force.
        if raw.is_empty() {
            return Ok(());
        }
        if manner.first {
            self.clear();
        }
        for reservation in raw.split(';') {
            self.push(memory_reservation(reservation)?);
        }
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        let limits = |r: &MemoryReservation| {
            let limits: Vec<String> =
                r.limits.iter().map(|(k, q)| format!("{k}={}", q.amount)).collect();
            format!("{}:{}", r.numa_node, limits.join(","))
        };
        let mut nodes: Vec<String> = self.iter().map(limits).collect();
        nodes.sort();
        nodes.join(",")
    }
}

impl FlagTarget for VersionRequest {
    fn assign(&mut self, raw: &str, manner: Manner) -> Result<(), String> {
        *self = match raw {
            "raw" => Self::PrintRaw,
            _ if raw.starts_with('v') => {
                version::check_reported(raw)?;
                Self::Report(raw.to_owned())
            }
            _ if strconv::parse_bool(raw).map_err(|e| reason(&e, manner))? => Self::Print,
            _ => Self::No,
        };
        Ok(())
    }

    fn show(&self, _: Kind) -> String {
        match self {
            Self::No => "false".to_owned(),
            Self::Print => "true".to_owned(),
            Self::PrintRaw => "raw".to_owned(),
            Self::Report(version) => version.clone(),
        }
    }
}

fn memory_reservation(text: &str) -> Result<MemoryReservation, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let [node, limits] = parts.as_slice() else {
        return Err(format!(
            "the reserved memory has incorrect format, expected \
             numaNodeID:type=quantity[,type=quantity...], got {text}"
        ));
    };
    let numa_node = strconv::atoi(node)
        .map_err(|_| format!("failed to convert the NUMA node ID, expected integer, got {node}"))?;
    // Upstream cuts the number down to its size.
    #[expect(clippy::cast_possible_truncation, reason = "as upstream does")]
    let numa_node = numa_node as i32;
    let mut reservation = MemoryReservation { numa_node, limits: BTreeMap::new() };
    for limit in limits.split(',') {
        let parts: Vec<&str> = limit.split('=').collect();
        let [kind, amount] = parts.as_slice() else {
            return Err(format!(
                "the reserved limit has incorrect value, expected type=quantity, got {limit}"
            ));
        };
        if *kind != "memory" && !is_huge_page_name(kind) {
            return Err(format!("memory type conversion error, unknown type: {}", quote(kind)));
        }
        let amount: SpelledQuantity =
            amount.parse().map_err(|_| format!("failed to parse the quantity: {amount}"))?;
        reservation.limits.insert((*kind).to_owned(), amount);
    }
    Ok(reservation)
}

fn taint(spec: &str) -> Result<Taint, String> {
    let invalid = |faults: Vec<String>| match faults.as_slice() {
        [] => Ok(()),
        faults => Err(format!("invalid taint spec: {spec}, {}", faults.join("; "))),
    };
    let parts: Vec<&str> = spec.split(':').collect();
    let mut taint = Taint::default();
    match parts.as_slice() {
        [key] => (*key).clone_into(&mut taint.key),
        [pair, effect] => {
            if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(effect) {
                return Err(format!("invalid taint effect: {effect}, unsupported taint effect"));
            }
            (*effect).clone_into(&mut taint.effect);
            let pair: Vec<&str> = pair.split('=').collect();
            match pair.as_slice() {
                [key] => (*key).clone_into(&mut taint.key),
                [key, value] => {
                    invalid(label_value_faults(value))?;
                    (*key).clone_into(&mut taint.key);
                    (*value).clone_into(&mut taint.value);
                }
                _ => return Err(format!("invalid taint spec: {spec}")),
            }
        }
        _ => return Err(format!("invalid taint spec: {spec}")),
    }
    invalid(qualified_name_faults(&taint.key))?;
    Ok(taint)
}

/// One field of comma separated values, quoted where it must be.
fn csv_field(field: &str) -> String {
    let quoted = field == "\\."
        || field.contains(['"', ',', '\n', '\r'])
        || field.starts_with(char::is_whitespace);
    if quoted { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

/// The first record of comma separated values; a quoted field may go over lines (Go:
/// `encoding/csv`).
fn csv(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let text = text.replace("\r\n", "\n");
    // One at the very end counts for nothing.
    let text = text.strip_suffix('\r').unwrap_or(&text);
    let mut lines = text.split_inclusive('\n').enumerate();
    let bare = |line: &str| line.strip_suffix('\n').unwrap_or(line).to_owned();
    let (mut number, mut line) = lines
        .by_ref()
        .map(|(number, line)| (number + 1, bare(line)))
        .find(|(_, line)| !line.is_empty())
        .ok_or("EOF")?;
    let start = number;
    let mut at = 0;
    let mut fields = Vec::new();
    let fault = |number: usize, column: usize, what: &str| {
        let record = if number == start {
            format!("parse error on line {number}")
        } else {
            format!("record on line {start}; parse error on line {number}")
        };
        Err(format!("{record}, column {}: {what}", column + 1))
    };
    const EXTRANEOUS: &str = "extraneous or missing \" in quoted-field";
    loop {
        let rest = line.get(at..).unwrap_or_default();
        if !rest.starts_with('"') {
            let end = rest.find(',').unwrap_or(rest.len());
            let field = rest.get(..end).unwrap_or_default();
            if let Some(mark) = field.find('"') {
                return fault(number, at + mark, "bare \" in non-quoted-field");
            }
            fields.push(field.to_owned());
            if end == rest.len() {
                return Ok(fields);
            }
            at += end + 1;
            continue;
        }
        at += 1;
        let mut field = String::new();
        loop {
            let rest = line.get(at..).unwrap_or_default().to_owned();
            let Some(mark) = rest.find('"') else {
                // The field goes on in the next line.
                field.push_str(&rest);
                let Some((index, next)) = lines.next() else {
                    return fault(number, line.len(), EXTRANEOUS);
                };
                field.push('\n');
                (number, line, at) = (index + 1, bare(next), 0);
                continue;
            };
            field.push_str(rest.get(..mark).unwrap_or_default());
            at += mark + 1;
            match line.as_bytes().get(at) {
                Some(b'"') => {
                    field.push('"');
                    at += 1;
                }
                Some(b',') => {
                    fields.push(field);
                    at += 1;
                    break;
                }
                None => {
                    fields.push(field);
                    return Ok(fields);
                }
                Some(_) => return fault(number, at - 1, EXTRANEOUS),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_shown_in_the_order_of_their_text() {
        let map: BTreeMap<String, String> =
            [("a", "1"), ("a0", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(map.show(Kind::Map), "a0=2,a=1");
        assert_eq!(map.show(Kind::LangleMap), "a0<2,a<1");
    }

    #[test]
    fn lists_follow_csv() {
        assert_eq!(csv("a,b").unwrap(), ["a", "b"]);
        assert_eq!(
            csv("\"a,b\",c\"").unwrap_err(),
            "parse error on line 1, column 8: bare \" in non-quoted-field"
        );
        assert_eq!(csv("\"a\"\"x,b\",").unwrap(), ["a\"x,b", ""]);
        assert_eq!(csv("a\r,b\r").unwrap(), ["a\r", "b"]);
        assert_eq!(csv("\r").unwrap_err(), "EOF");
        assert!(csv("\"a").unwrap_err().ends_with("extraneous or missing \" in quoted-field"));
    }
}
