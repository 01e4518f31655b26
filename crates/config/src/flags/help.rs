//! The help text, in pflag's layout.

use super::{Flag, Kind, all};
use crate::gates::{self, Stage};
use std::fmt::Write;

const ABOUT: &str = "Rubelet is the node agent of Kubernetes: it runs the pods assigned to this machine and reports on \
them and on the machine.

Pods come from the API server (--kubeconfig), from a folder or file (--pod-manifest-path) and from \
a URL (--manifest-url). Settings come from a configuration file (--config), drop-ins \
(--config-dir) and flags, in that order.

Beside running, there are two commands that take the same flags:
  config   print the settings in force and where each comes from
  check    check the settings and this machine, with a fix for each finding";

/// What `--help` prints.
pub fn help() -> String {
    let heads: Vec<String> = all().iter().map(head).collect();
    let width = heads.iter().map(String::len).max().unwrap_or_default();
    let mut text = format!("{ABOUT}\n\nUsage:\n  kubelet [flags]\n\nFlags:\n");
    for (flag, head) in all().iter().zip(&heads) {
        let usage = usage(flag).replace('\n', "\n                ");
        let _ = writeln!(text, "{head:width$}   {usage}");
    }
    text
}

fn head(flag: &Flag) -> String {
    let mut head = match flag.shorthand {
        Some(letter) => format!("  -{letter}, --{}", flag.name),
        None => format!("      --{}", flag.name),
    };
    let quoted = flag.usage.split('`').nth(1);
    let value = quoted.unwrap_or(match flag.kind {
        Kind::Bool => "",
        Kind::Int64 => "int",
        Kind::Strings => "strings",
        kind => kind.type_name(),
    });
    if !value.is_empty() {
        head.push(' ');
        head.push_str(value);
    }
    if flag.kind == Kind::Version {
        head.push_str("[=true]");
    }
    head
}

fn usage(flag: &Flag) -> String {
    let mut usage = flag.usage.replace('`', "");
    if flag.kind == Kind::Gates {
        for gate in gates::all().iter().filter(|g| matches!(g.stage, Stage::Alpha | Stage::Beta)) {
            let _ = write!(
                usage,
                "\n{}=true|false ({} - default={})",
                gate.name,
                gate.stage.as_str(),
                gate.default
            );
        }
    }
    match (flag.kind, flag.default) {
        (_, "" | "0" | "0s" | "false") => {}
        (Kind::Text, default) => {
            let _ = write!(usage, " (default \"{default}\")");
        }
        (Kind::Strings, default) => {
            let _ = write!(usage, " (default [{default}])");
        }
        (_, default) => {
            let _ = write!(usage, " (default {default})");
        }
    }
    if let Some(text) = flag.deprecation.text() {
        let _ = write!(usage, " (DEPRECATED: {text})");
    }
    usage
}
