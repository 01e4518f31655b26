//! What a kubelet said, in a form that two programs can share: headers of log lines, process ids
//! and places in the source are taken away.

use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What a kubelet made of a case.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The exit code; none for a kubelet that went on to run.
    pub code: Option<i32>,
    /// What it printed.
    pub printed: String,
    /// Lines that are no log lines: deprecated flags.
    pub notices: Vec<String>,
    /// Log lines of both kubelets' common concern, in order.
    pub lines: Vec<String>,
    /// Why it ended.
    pub fatal: String,
    /// Flags as it shows them.
    pub flags: Vec<String>,
    /// Settings in force, by lower-case path.
    pub settings: BTreeMap<String, Value>,
    /// What one that runs shows of its settings.
    pub pages: Vec<String>,
    /// What one with a runtime leaves to its next start, by file.
    pub kept: BTreeMap<String, String>,
}

/// Log lines that tell of something else than the configuration.
const ELSEWHERE: &[&str] = &[
    "\"Updated\" featureGates",
    "Detected umount with safe",
    "Cannot run systemd-run",
    "\"Kubelet version\"",
    "\"Golang settings\"",
    "\"Systemd watchdog",
    "\"Standalone mode, no API client\"",
    "\"Connecting to ",
    "\"Validating the CRI",
    "\"[core]",
    "[core]",
    "\"[pick-first",
    "\"Container runtime cannot be reached\"",
    "\"CRI call failed\"",
    "\"Using self-signed cert\"",
    "\"Client rotation is",
    "certificate_",
    "\"Starting client certificate",
    "\"Loading cert",
    // The ways of libraries, at the highest verbosity.
    "\"sending request to buffer",
    "\"worker ",
    "\"processing ",
    "\"poll_ready",
    "\"reconnect::",
    "\"Reconnect::",
    "\"error: connection error",
    "\"returning response future",
    // On purpose: ours asks for new certificates once the runtime has answered.
    "\"Loaded a new CA Bundle and Verifier\"",
    "\"Starting controller\"",
    "\"No bootstrapping requested",
    "\"Current kubeconfig file contents",
    "\"Use the bootstrap credentials",
    "\"Using bootstrap kubeconfig",
    "\"Kubeconfig exists and is valid",
    "\"Certificate rotation is enabled\"",
    "\"Rotating certificates\"",
    "\"Failed while requesting a signed certificate",
    "\"Current certificate CN does not match",
    "\"Loading client cert failed",
    "Systemd watchdog",
    "Validating the CRI",
    "[pick-first",
    "Connecting to ",
    "Standalone mode",
];

impl Answer {
    /// From what came out; no code at all for one that had to be stopped.
    #[must_use]
    pub fn read(code: Option<Option<i32>>, out: &str, err: &str) -> Answer {
        let mut answer = Answer { printed: out.to_owned(), ..Answer::default() };
        answer.code = code.flatten();
        if code.is_none() {
            "still running".clone_into(&mut answer.fatal);
        }
        let mut lines = err.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some(panic) = line.strip_prefix("panic: ") {
                answer.fatal = format!("panic: {panic}");
                break;
            }
            let Some(record) = Record::read(line) else {
                answer.notices.push(line.to_owned());
                continue;
            };
            let mut text = record.text;
            // Values of several lines are indented and end with a mark.
            while lines.peek().is_some_and(|next| next.starts_with(['\t', ' '])) {
                text.push('\n');
                text.push_str(lines.next().unwrap_or_default());
            }
            answer.take(record.severity, text);
        }
        // Upstream walks the gates in no particular order.
        let is_gate = |line: &String| line.contains(" feature gate. It will be removed");
        for run in answer.lines.chunk_by_mut(|a, b| is_gate(a) && is_gate(b)) {
            run.sort();
        }
        answer
    }

    /// Only how it ended: a kubelet with a runtime has much to say on the way, each in its words.
    #[must_use]
    pub fn read_end(code: Option<Option<i32>>, out: &str, err: &str) -> Answer {
        let whole = Answer::read(code, out, err);
        let mut end = Answer { code: whole.code, fatal: whole.fatal, ..Answer::default() };
        if end.fatal.is_empty() && end.code != Some(0) {
            let last = whole.lines.into_iter().rfind(|line| line.starts_with(['E', 'F']));
            end.fatal = last.unwrap_or_default();
        }
        end
    }

    fn take(&mut self, severity: char, text: String) {
        if let Some(flag) = text.strip_prefix("FLAG: ") {
            // Headers may be secret: ours shows none.
            let masked = flag.starts_with("--manifest-url-header=") && !flag.ends_with("=\"\"");
            let shown = if masked { "--manifest-url-header=\"<masked>\"" } else { flag };
            self.flags.push(shown.to_owned());
        } else if let Some(settings) = text.strip_prefix("\"KubeletConfiguration\" configuration=")
        {
            let value = settings_of(settings);
            flatten("", &value, &mut self.settings);
        } else if let Some(fatal) = text.strip_prefix("\"command failed\" err=") {
            fatal.clone_into(&mut self.fatal);
        } else if !ELSEWHERE.iter().any(|start| text.starts_with(start)) {
            self.lines.push(format!("{severity} {text}"));
        }
    }

    /// As one JSON object, without what is empty.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        let whole = json!({
            "code": self.code,
            "printed": self.printed,
            "notices": self.notices,
            "lines": self.lines,
            "fatal": self.fatal,
        });
        let Value::Object(whole) = whole else { return whole };
        for (key, value) in whole {
            let empty = value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty);
            if !empty {
                object.insert(key, value);
            }
        }
        Value::Object(object)
    }
}

struct Record {
    severity: char,
    text: String,
}

impl Record {
    fn read(line: &str) -> Option<Record> {
        if line.starts_with("{\"ts\":") {
            return Record::read_json(line);
        }
        let severity = line.chars().next().filter(|c| "IWEF".contains(*c))?;
        let day = line.get(1..5)?;
        let (head, text) = line.split_once("] ")?;
        if !day.bytes().all(|b| b.is_ascii_digit()) || head.split_whitespace().count() != 4 {
            return None;
        }
        Some(Record { severity, text: text.to_owned() })
    }

    /// The form of the text format, so that both can be compared in one way.
    fn read_json(line: &str) -> Option<Record> {
        let Value::Object(object) = serde_json::from_str(line).ok()? else { return None };
        let message = object.get("msg")?.as_str()?;
        let error = object.contains_key("err") && !object.contains_key("v");
        let structured = object.keys().any(|key| !["ts", "caller", "msg", "v"].contains(&&**key));
        let mut text = if structured { json!(message).to_string() } else { message.to_owned() };
        for (key, value) in &object {
            if !["ts", "caller", "msg", "v", "logger"].contains(&&**key) {
                let text_of = match value {
                    Value::Object(_) => serde_json::to_string_pretty(value).unwrap_or_default(),
                    other => other.to_string(),
                };
                text.push_str(&format!(" {key}={text_of}"));
            }
        }
        Some(Record { severity: if error { 'E' } else { 'I' }, text })
    }
}

/// The settings of a log line: JSON, as it is, in marks, or as one quoted text.
fn settings_of(text: &str) -> Value {
    let text = text.trim().trim_start_matches('<').trim_end_matches('>').trim();
    let value: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    match value {
        Value::String(inner) => serde_json::from_str(&inner).unwrap_or(Value::Null),
        other => other,
    }
}

/// Settings by path in lower case, empty ones left out: the Go kubelet shows its own names.
fn flatten(path: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Null | Value::Bool(false) => {}
        Value::Number(number) if number.as_f64() == Some(0.0) => {}
        Value::String(text) if ["", "0s", "0"].contains(&text.as_str()) => {}
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                flatten(&format!("{path}[{index}]"), item, found);
            }
        }
        Value::Object(object) => {
            for (key, inner) in object {
                let dot = if path.is_empty() { "" } else { "." };
                let key = key.to_lowercase();
                let key = if key == "resolvconf" { "resolverconfig" } else { &key };
                flatten(&format!("{path}{dot}{key}"), inner, found);
            }
        }
        leaf => {
            found.insert(path.to_owned(), leaf.clone());
        }
    }
}

/// What is not the same; each with its kind in front.
#[must_use]
pub fn differences(go: &Answer, ours: &Answer) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |what: &str, go: String, ours: String| {
        if go != ours {
            found.push(format!("{what}\n      go   {go}\n      ours {ours}"));
        }
    };
    add("fatal", go.fatal.clone(), meant(&go.fatal, &ours.fatal));
    // What follows from another end is no news.
    let same_end = found.is_empty();
    let mut add = |what: &str, go: String, ours: String| {
        if go != ours && same_end {
            found.push(format!("{what}\n      go   {go}\n      ours {ours}"));
        }
    };
    add("code", format!("{:?}", meant_code(go)), format!("{:?}", ours.code));
    add("printed", plain(&go.printed), plain(&ours.printed));
    for (what, go, ours) in [
        ("notices", &go.notices, &ours.notices),
        ("lines", &go.lines, &ours.lines),
        ("flags", &go.flags, &ours.flags),
    ] {
        let lacking = |a: &[String], b: &[String]| -> Vec<String> {
            a.iter().filter(|line| !b.contains(line)).cloned().collect()
        };
        if go != ours {
            let (less, more) = (lacking(go, ours), lacking(ours, go));
            add(what, format!("{less:?}"), format!("{more:?} (of {}, {})", go.len(), ours.len()));
        }
    }
    for (at, (go, ours)) in go.pages.iter().zip(&ours.pages).enumerate() {
        let same = go.chars().zip(ours.chars()).take_while(|(a, b)| a == b).count();
        let from =
            |text: &str| text.chars().skip(same.saturating_sub(60)).take(300).collect::<String>();
        if go != ours {
            add(&format!("page {at}"), from(go), from(ours));
        }
    }
    let names: BTreeSet<&String> = go.kept.keys().chain(ours.kept.keys()).collect();
    // What one that ends has written until then is its own way.
    for name in names.into_iter().filter(|_| go.code.is_none()) {
        let text = |answer: &Answer| answer.kept.get(name).cloned().unwrap_or_default();
        add(name, text(go), text(ours));
    }
    let paths = go.settings.keys().chain(ours.settings.keys());
    let mut paths: Vec<&String> = paths.collect();
    paths.sort();
    paths.dedup();
    let shown = |settings: &BTreeMap<String, Value>, path: &String| {
        settings.get(path).map_or_else(|| "nothing".to_owned(), Value::to_string)
    };
    add("settings shown", shown_at_all(go), shown_at_all(ours));
    if !go.settings.is_empty() && !ours.settings.is_empty() {
        for path in paths {
            add(&format!("setting {path}"), shown(&go.settings, path), shown(&ours.settings, path));
        }
    }
    found
}

fn shown_at_all(answer: &Answer) -> String {
    (!answer.settings.is_empty()).to_string()
}

/// Printed text without what is meant to be our own: the build, and how flags are described.
fn plain(text: &str) -> String {
    if text.starts_with("version.Info") {
        return "version.Info".to_owned();
    }
    if let Some((_, flags)) = text.split_once("\nFlags:\n") {
        let names = flags.split_whitespace().filter(|word| word.starts_with("--"));
        let names: BTreeSet<&str> =
            names.map(|name| name.trim_end_matches([',', '.', ')'])).collect();
        let flag = |line: &str| line.trim_start().starts_with('-');
        let first = |line: &str| line.split_whitespace().find(|w| w.starts_with("--")).is_some();
        let lines = flags.lines().filter(|line| flag(line) && first(line));
        let listed: Vec<&str> = lines
            .filter_map(|line| line.split_whitespace().find(|word| names.contains(word)))
            .collect();
        return listed.join(" ");
    }
    text.replace("+rubelet.0.1.0", "")
}

/// Upstream walks maps in no particular order: the same faults in another order are the same.
fn sorted(text: &str) -> Vec<&str> {
    let marks = [',', ';', '[', ']', '"', '\n'];
    let mut parts: Vec<&str> =
        text.split(marks).flat_map(|part| part.split(": ")).map(str::trim).collect();
    parts.retain(|part| !part.is_empty());
    parts.sort_unstable();
    parts
}

/// Where the Go kubelet panics, ours says the same as an ordinary error.
fn meant(go: &str, ours: &str) -> String {
    let unquoted = ours.replace("\\\"", "\"");
    let same = match go.strip_prefix("panic: ") {
        Some(panic) => {
            let said = sorted(&unquoted);
            unquoted.contains(panic) || sorted(panic).iter().all(|part| said.contains(part))
        }
        None => sorted(go) == sorted(ours),
    };
    if same { go.to_owned() } else { ours.to_owned() }
}

fn meant_code(go: &Answer) -> Option<i32> {
    if go.fatal.starts_with("panic: ") { Some(1) } else { go.code }
}
