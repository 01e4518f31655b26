//! The tables of flags, fields and gates, and values for each by chance.

use super::chance::Dice;
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
pub(super) fn gate(dice: &mut Dice) -> &'static str {
    if dice.once_in(8) {
        return dice.of(&["Bogus", "", "allAlpha", "AllAlpha", "AllBeta", "kubeletTracing", "A B"]);
    }
    gates()[dice.below(gates().len())].name
}

fn gate_pairs(dice: &mut Dice) -> String {
    let mut pairs = Vec::new();
    for _ in 0..=dice.below(3) {
        let value = match dice.below(8) {
            0 => dice.of(&["", "x", "yes", "1", "0", "T", " true", "true ", "TRUE"]),
            n if n % 2 == 0 => "true",
            _ => "false",
        };
        let between = if dice.once_in(20) { dice.of(&["", ":", " = ", "=="]) } else { "=" };
        pairs.push(format!("{}{between}{value}", gate(dice)));
    }
    let comma = if dice.once_in(10) { dice.of(&[", ", ",,", " "]) } else { "," };
    pairs.join(comma)
}

fn map_text(path: &str, dice: &mut Dice) -> Option<String> {
    let (keys, values, mark) = pools::pairs(path)?;
    let mut pairs = Vec::new();
    for _ in 0..=dice.below(3) {
        let mark = if dice.once_in(12) { dice.of(&["", "<", "=", ":", " = "]) } else { "" };
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
        pairs.push(format!("{}{usual}{}", dice.of(keys), dice.of(values)));
    }
    let _ = mark;
    Some(pairs.join(if dice.once_in(12) { ", " } else { "," }))
}

/// A value for a flag.
pub(super) fn flag_value(flag: &Flag, dice: &mut Dice) -> String {
    let value = usual_flag_value(flag, dice);
    // No argument of a program has that letter.
    match dice.below(14) {
        0 | 1 => spelled_flag_value(flag, dice).replace('\0', ""),
        2 => spelled::misspelled(&value, dice).replace('\0', ""),
        _ => value,
    }
}

/// A value from the letters of the flag's type.
fn spelled_flag_value(flag: &Flag, dice: &mut Dice) -> String {
    match flag.kind {
        "int" | "int32" | "int64" | "Level" => spelled::number(dice),
        "duration" => spelled::duration(dice),
        "ip" => spelled::address(dice),
        "stringSlice" => spelled::list(dice),
        "quantity" => spelled::quantity(dice),
        "mapStringString" if flag.name == "node-labels" => {
            format!("{}={}", spelled::name(dice), spelled::name(dice))
        }
        "[]v1.Taint" => {
            let effect = dice.of(&[":NoSchedule", ":NoExecute", ":PreferNoSchedule", ":", ""]);
            format!("{}={}{effect}", spelled::name(dice), spelled::name(dice))
        }
        "mapStringString" | "mapStringBool" | "reserved-memory" | "pattern=N" => {
            spelled::pairs(dice)
        }
        _ => spelled_text(if flag.field.is_empty() { flag.name } else { flag.field }, dice),
    }
}

/// A text from the letters of what a field or flag wants to be told.
fn spelled_text(path: &str, dice: &mut Dice) -> String {
    match path {
        "address" | "healthzBindAddress" | "node-ip" => spelled::address(dice),
        "containerRuntimeEndpoint"
        | "imageServiceEndpoint"
        | "staticPodURL"
        | "tracing.endpoint"
        | "container-runtime-endpoint"
        | "image-service-endpoint" => spelled::url(dice),
        "reservedSystemCPUs" => spelled::cpus(dice),
        "containerLogMaxSize" => spelled::quantity(dice),
        _ => spelled::name(dice),
    }
}

fn usual_flag_value(flag: &Flag, dice: &mut Dice) -> String {
    let name = if flag.field.is_empty() { flag.name } else { flag.field };
    if flag.name == "feature-gates" {
        return gate_pairs(dice);
    }
    if !dice.once_in(8) {
        if let Some(text) = map_text(name, dice) {
            return text;
        }
        if let Some(words) = pools::words(flag.name).or_else(|| pools::words(name)) {
            let count = if flag.kind == "stringSlice"
                || flag.name == "node-labels"
                || flag.name == "register-with-taints"
            {
                1 + dice.below(3)
            } else {
                1
            };
            let words: Vec<&str> = (0..count).map(|_| dice.of(words)).collect();
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
    dice.of(pool).to_owned()
}

/// Text as YAML would quote it when needed.
fn quoted(text: &str, dice: &mut Dice) -> String {
    let plain = !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "./-_%".contains(c))
        && !text.starts_with(['-', '%', '.']);
    if plain && dice.below(3) > 0 {
        text.to_owned()
    } else if dice.once_in(3) && !text.contains(['\n', '\t', '\u{1}']) {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        serde_json::Value::from(text).to_string()
    }
}

/// A value for a field, as YAML in one line.
pub(super) fn field_value(field: &Field, dice: &mut Dice) -> String {
    if dice.once_in(6) {
        return dice.of(pools::SCALARS).to_owned();
    }
    match dice.below(14) {
        0 => spelled::scalar(dice),
        1 | 2 => {
            let text = spelled_field_value(field, dice);
            if text.starts_with('{') || dice.once_in(3) {
                text.replace('\n', " ")
            } else {
                quoted(&text, dice)
            }
        }
        3 => {
            let value = usual_field_value(field, dice);
            spelled::misspelled(&value, dice)
        }
        _ => usual_field_value(field, dice),
    }
}

/// A value from the letters of the field's type.
fn spelled_field_value(field: &Field, dice: &mut Dice) -> String {
    match field.path {
        "evictionHard" | "evictionSoft" | "evictionMinimumReclaim" => {
            return format!("{{memory.available: {}}}", quoted(&spelled::threshold(dice), dice));
        }
        "evictionSoftGracePeriod" => {
            return format!("{{memory.available: {}}}", quoted(&spelled::duration(dice), dice));
        }
        "kubeReserved" | "systemReserved" => {
            return format!("{{memory: {}}}", quoted(&spelled::quantity(dice), dice));
        }
        _ => {}
    }
    match field.kind {
        "integer" | "number" => spelled::number(dice),
        "duration-string" | "duration-string or integer ns" => spelled::duration(dice),
        "quantity" => spelled::quantity(dice),
        "object<quantity>" => format!("{{memory: {}}}", quoted(&spelled::quantity(dice), dice)),
        _ => spelled_text(field.path, dice),
    }
}

fn usual_field_value(field: &Field, dice: &mut Dice) -> String {
    let path = field.path;
    if path == "featureGates" {
        let mut pairs = Vec::new();
        for _ in 0..=dice.below(3) {
            let value = if dice.once_in(8) {
                dice.of(&["yes", "1", "'true'", "~", "x"])
            } else {
                dice.of(&["true", "false"])
            };
            pairs.push(format!("{}: {value}", quoted(gate(dice), dice)));
        }
        return format!("{{{}}}", pairs.join(", "));
    }
    if let Some((keys, values, _)) = pools::pairs(path) {
        let mut pairs = Vec::new();
        for _ in 0..=dice.below(3) {
            let value = dice.of(values);
            let value = quoted(value, dice);
            let key = dice.of(keys);
            pairs.push(format!("{}: {value}", quoted(key, dice)));
        }
        return format!("{{{}}}", pairs.join(", "));
    }
    let words = pools::words(path);
    let list = |pool: &'static [&'static str], dice: &mut Dice| {
        let items: Vec<String> = (0..dice.below(4))
            .map(|_| {
                let item = dice.of(pool);
                quoted(item, dice)
            })
            .collect();
        format!("[{}]", items.join(", "))
    };
    match field.kind {
        "bool" => dice.of(&["true", "false", "yes", "off", "null"]).to_owned(),
        "integer" => {
            let number = dice.of(pools::NUMBERS);
            if number.trim().parse::<i128>().is_ok() {
                number.trim().to_owned()
            } else {
                quoted(number, dice)
            }
        }
        "number" => dice
            .of(&["0.9", "0", "1", "1.1", "-0.5", "1e-3", "0.0001", "'0.5'", "1e400"])
            .to_owned(),
        "duration-string" | "duration-string or integer ns" => {
            let text = dice.of(pools::DURATIONS);
            if dice.once_in(8) { text.to_owned() } else { quoted(text, dice) }
        }
        "quantity" => quoted(dice.of(&["0", "1Ki", "10Mi", "-1", "x", ""]), dice),
        "array<string>" => list(words.unwrap_or(pools::TEXTS), dice),
        "array<integer>" => {
            let items: Vec<&str> = (0..=dice.below(3))
                .map(|_| {
                    dice.of(&[
                        "23", "24", "25", "29", "4588", "0", "-1", "65536", "1", "x", "4587",
                        "4589",
                    ])
                })
                .collect();
            format!("[{}]", items.join(", "))
        }
        "object<array<string>>" => {
            dice.of(&["{a: [b]}", "{a: b}", "{a: [b, c], d: []}", "{a: [1]}", "{}"]).to_owned()
        }
        "object<quantity>" => dice
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
        _ => quoted(dice.of(words.unwrap_or(pools::TEXTS)), dice),
    }
}
