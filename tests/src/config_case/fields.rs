//! The tables of flags, fields and gates, and values for each by chance.

use super::rng::Rng;
use super::{pools, spelled};
use std::sync::OnceLock;

/// One flag.
#[derive(Debug, Clone)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    /// The field it stands for.
    field: &'static str,
}

/// One field of the configuration.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) path: &'static str,
    kind: &'static str,
}

/// One gate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gate {
    name: &'static str,
}

const FLAGS: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/parity/flags.tsv"));
const FIELDS: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/parity/config.tsv"));
const GATES: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/parity/gates.tsv"));

fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().skip(1).map(|line| line.split('\t').collect())
}

/// Flags whose values would lead out of the case's folder or keep a kubelet from ending.
const LEFT_OUT: &[&str] =
    &["windows-service", "windows-priorityclass", "lock-file", "bootstrap-kubeconfig"];

pub(super) fn flags() -> &'static [Flag] {
    static ALL: OnceLock<Vec<Flag>> = OnceLock::new();
    ALL.get_or_init(|| {
        rows(FLAGS)
            .filter(|row| !LEFT_OUT.contains(&row[0]) && row[7] != "windows")
            .map(|row| Flag { name: row[0], kind: row[2], field: row[6] })
            .collect()
    })
}

/// The flag that stands for a field.
pub(super) fn flag_of(path: &str) -> Option<&'static Flag> {
    flags().iter().find(|flag| flag.field == path)
}

pub(super) fn fields() -> &'static [Field] {
    static ALL: OnceLock<Vec<Field>> = OnceLock::new();
    ALL.get_or_init(|| {
        rows(FIELDS)
            .filter(|row| row[1] == "KubeletConfiguration")
            .map(|row| Field { path: row[2], kind: row[5] })
            .collect()
    })
}

fn gates() -> &'static [Gate] {
    static ALL: OnceLock<Vec<Gate>> = OnceLock::new();
    ALL.get_or_init(|| rows(GATES).map(|row| Gate { name: row[0] }).collect())
}

/// A gate's name, once in a while nobody's.
pub(super) fn gate(rng: &mut Rng) -> &'static str {
    if rng.once_in(8) {
        return rng.of(&["Bogus", "", "allAlpha", "AllAlpha", "AllBeta", "kubeletTracing", "A B"]);
    }
    gates()[rng.below(gates().len())].name
}

fn gate_pairs(rng: &mut Rng) -> String {
    let mut pairs = Vec::new();
    for _ in 0..=rng.below(3) {
        let value = match rng.below(8) {
            0 => rng.of(&["", "x", "yes", "1", "0", "T", " true", "true ", "TRUE"]),
            n if n % 2 == 0 => "true",
            _ => "false",
        };
        let between = if rng.once_in(20) { rng.of(&["", ":", " = ", "=="]) } else { "=" };
        pairs.push(format!("{}{between}{value}", gate(rng)));
    }
    let comma = if rng.once_in(10) { rng.of(&[", ", ",,", " "]) } else { "," };
    pairs.join(comma)
}

fn map_text(path: &str, rng: &mut Rng) -> Option<String> {
    let (keys, values, mark) = pools::pairs(path)?;
    let mut pairs = Vec::new();
    for _ in 0..=rng.below(3) {
        let mark = if rng.once_in(12) { rng.of(&["", "<", "=", ":", " = "]) } else { "" };
        let usual = if mark.is_empty() {
            if path.starts_with("evictionHard")
                || path.starts_with("evictionSoft") && !path.ends_with("Period")
            {
                "<"
            } else {
                "="
            }
        } else {
            mark
        };
        pairs.push(format!("{}{usual}{}", rng.of(keys), rng.of(values)));
    }
    let _ = mark;
    Some(pairs.join(if rng.once_in(12) { ", " } else { "," }))
}

/// A value for a flag.
pub(super) fn flag_value(flag: &Flag, rng: &mut Rng) -> String {
    let value = usual_flag_value(flag, rng);
    // No argument of a program has that letter.
    match rng.below(14) {
        0 | 1 => spelled_flag_value(flag, rng).replace('\0', ""),
        2 => spelled::misspelled(&value, rng).replace('\0', ""),
        _ => value,
    }
}

/// A value from the letters of the flag's type.
fn spelled_flag_value(flag: &Flag, rng: &mut Rng) -> String {
    match flag.kind {
        "int" | "int32" | "int64" | "Level" => spelled::number(rng),
        "duration" => spelled::duration(rng),
        "ip" => spelled::address(rng),
        "stringSlice" => spelled::list(rng),
        "quantity" => spelled::quantity(rng),
        "mapStringString" if flag.name == "node-labels" => {
            format!("{}={}", spelled::name(rng), spelled::name(rng))
        }
        "[]v1.Taint" => {
            let effect = rng.of(&[":NoSchedule", ":NoExecute", ":PreferNoSchedule", ":", ""]);
            format!("{}={}{effect}", spelled::name(rng), spelled::name(rng))
        }
        "mapStringString" | "mapStringBool" | "reserved-memory" | "pattern=N" => {
            spelled::pairs(rng)
        }
        _ => spelled_text(if flag.field.is_empty() { flag.name } else { flag.field }, rng),
    }
}

/// A text from the letters of what a field or flag wants to be told.
fn spelled_text(path: &str, rng: &mut Rng) -> String {
    match path {
        "address" | "healthzBindAddress" | "node-ip" => spelled::address(rng),
        "containerRuntimeEndpoint"
        | "imageServiceEndpoint"
        | "staticPodURL"
        | "tracing.endpoint"
        | "container-runtime-endpoint"
        | "image-service-endpoint" => spelled::url(rng),
        "reservedSystemCPUs" => spelled::cpus(rng),
        "containerLogMaxSize" => spelled::quantity(rng),
        _ => spelled::name(rng),
    }
}

fn usual_flag_value(flag: &Flag, rng: &mut Rng) -> String {
    let name = if flag.field.is_empty() { flag.name } else { flag.field };
    if flag.name == "feature-gates" {
        return gate_pairs(rng);
    }
    if !rng.once_in(8) {
        if let Some(text) = map_text(name, rng) {
            return text;
        }
        if let Some(words) = pools::words(flag.name).or_else(|| pools::words(name)) {
            let count = if flag.kind == "stringSlice"
                || flag.name == "node-labels"
                || flag.name == "register-with-taints"
            {
                1 + rng.below(3)
            } else {
                1
            };
            let words: Vec<&str> = (0..count).map(|_| rng.of(words)).collect();
            return words.join(",");
        }
    }
    let pool = match flag.kind {
        "bool" => pools::SWITCHES,
        "int" | "int32" | "int64" | "Level" => pools::NUMBERS,
        "duration" => pools::DURATIONS,
        "ip" => pools::ADDRESSES,
        "stringSlice" => pools::LISTS,
        "mapStringString"
        | "mapStringBool"
        | "colonSeparatedMultimapStringString"
        | "reserved-memory"
        | "[]v1.Taint"
        | "pattern=N" => pools::MAPS,
        "quantity" => pools::NUMBERS,
        _ => pools::TEXTS,
    };
    rng.of(pool).to_owned()
}

/// Text as YAML would quote it when needed.
fn quoted(text: &str, rng: &mut Rng) -> String {
    let plain = !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "./-_%".contains(c))
        && !text.starts_with(['-', '%', '.']);
    if plain && rng.below(3) > 0 {
        text.to_owned()
    } else if rng.once_in(3) && !text.contains(['\n', '\t', '\u{1}']) {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        serde_json::Value::from(text).to_string()
    }
}

/// A value for a field, as YAML in one line.
pub(super) fn field_value(field: &Field, rng: &mut Rng) -> String {
    if rng.once_in(6) {
        return rng.of(pools::SCALARS).to_owned();
    }
    match rng.below(14) {
        0 => spelled::scalar(rng),
        1 | 2 => {
            let text = spelled_field_value(field, rng);
            if text.starts_with('{') || rng.once_in(3) {
                text.replace('\n', " ")
            } else {
                quoted(&text, rng)
            }
        }
        3 => {
            let value = usual_field_value(field, rng);
            spelled::misspelled(&value, rng)
        }
        _ => usual_field_value(field, rng),
    }
}

/// A value from the letters of the field's type.
fn spelled_field_value(field: &Field, rng: &mut Rng) -> String {
    match field.path {
        "evictionHard" | "evictionSoft" | "evictionMinimumReclaim" => {
            return format!("{{memory.available: {}}}", quoted(&spelled::threshold(rng), rng));
        }
        "evictionSoftGracePeriod" => {
            return format!("{{memory.available: {}}}", quoted(&spelled::duration(rng), rng));
        }
        "kubeReserved" | "systemReserved" => {
            return format!("{{memory: {}}}", quoted(&spelled::quantity(rng), rng));
        }
        _ => {}
    }
    match field.kind {
        "integer" | "number" => spelled::number(rng),
        "duration-string" | "duration-string or integer ns" => spelled::duration(rng),
        "quantity" => spelled::quantity(rng),
        "object<quantity>" => format!("{{memory: {}}}", quoted(&spelled::quantity(rng), rng)),
        _ => spelled_text(field.path, rng),
    }
}

fn usual_field_value(field: &Field, rng: &mut Rng) -> String {
    let path = field.path;
    if path == "featureGates" {
        let mut pairs = Vec::new();
        for _ in 0..=rng.below(3) {
            let value = if rng.once_in(8) {
                rng.of(&["yes", "1", "'true'", "~", "x"])
            } else {
                rng.of(&["true", "false"])
            };
            pairs.push(format!("{}: {value}", quoted(gate(rng), rng)));
        }
        return format!("{{{}}}", pairs.join(", "));
    }
    if let Some((keys, values, _)) = pools::pairs(path) {
        let mut pairs = Vec::new();
        for _ in 0..=rng.below(3) {
            let value = rng.of(values);
            let value = quoted(value, rng);
            let key = rng.of(keys);
            pairs.push(format!("{}: {value}", quoted(key, rng)));
        }
        return format!("{{{}}}", pairs.join(", "));
    }
    let words = pools::words(path);
    let list = |pool: &'static [&'static str], rng: &mut Rng| {
        let items: Vec<String> = (0..rng.below(4))
            .map(|_| {
                let item = rng.of(pool);
                quoted(item, rng)
            })
            .collect();
        format!("[{}]", items.join(", "))
    };
    match field.kind {
        "bool" => rng.of(&["true", "false", "yes", "off", "null"]).to_owned(),
        "integer" => {
            let number = rng.of(pools::NUMBERS);
            if number.trim().parse::<i128>().is_ok() {
                number.trim().to_owned()
            } else {
                quoted(number, rng)
            }
        }
        "number" => {
            rng.of(&["0.9", "0", "1", "1.1", "-0.5", "1e-3", "0.0001", "'0.5'", "1e400"]).to_owned()
        }
        "duration-string" | "duration-string or integer ns" => {
            let text = rng.of(pools::DURATIONS);
            if rng.once_in(8) { text.to_owned() } else { quoted(text, rng) }
        }
        "quantity" => quoted(rng.of(&["0", "1Ki", "10Mi", "-1", "x", ""]), rng),
        "array<string>" => list(words.unwrap_or(pools::TEXTS), rng),
        "array<integer>" => {
            let items: Vec<&str> = (0..=rng.below(3))
                .map(|_| {
                    rng.of(&[
                        "23", "24", "25", "29", "4588", "0", "-1", "65536", "1", "x", "4587",
                        "4589",
                    ])
                })
                .collect();
            format!("[{}]", items.join(", "))
        }
        "object<array<string>>" => {
            rng.of(&["{a: [b]}", "{a: b}", "{a: [b, c], d: []}", "{a: [1]}", "{}"]).to_owned()
        }
        "object<quantity>" => rng
            .of(&[
                "{memory: 1Gi}",
                "{memory: 0}",
                "{memory: x}",
                "{cpu: 1}",
                "{hugepages-2Mi: 4Mi}",
                "{memory: -1}",
                "{}",
                "{hugepages-1Gi: 1Gi, memory: 1}",
            ])
            .to_owned(),
        _ => quoted(rng.of(words.unwrap_or(pools::TEXTS)), rng),
    }
}
