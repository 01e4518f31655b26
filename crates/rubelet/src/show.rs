//! `rubelet config`: the settings in force, each with its origin.
//!
//! Promises: the YAML form is itself a configuration file; origins are comments.

use config::kubelet::{API_VERSION, KIND};
use config::{Effective, Origin, REPORTED_VERSION};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A configuration file with comments.
    Yaml,
    /// One document with configuration, origins, flags and gates.
    Json,
}

impl Form {
    /// Takes `-o json` or `--output=json` off the arguments.
    pub(crate) fn take(args: &mut Vec<String>) -> Self {
        let joined = args.iter().position(|a| a == "-ojson" || a == "--output=json");
        let split = args
            .windows(2)
            .position(|pair| ["-o", "--output"].contains(&pair[0].as_str()) && pair[1] == "json");
        match (joined, split) {
            (Some(at), _) => {
                args.remove(at);
                Self::Json
            }
            (None, Some(at)) => {
                args.drain(at..at + 2);
                Self::Json
            }
            (None, None) => Self::Yaml,
        }
    }
}

/// The settings in force.
pub(crate) fn effective(config: &Effective, form: Form) -> String {
    let document = config.kubelet.masked().to_json();
    match form {
        Form::Yaml => yaml(config, &document),
        Form::Json => {
            let whole = json!({
                "configuration": document,
                "origins": config.origins,
                "flags": own_flags(config),
                "featureGates": config
                    .gates
                    .states()
                    .map(|(gate, on)| (gate.name.to_owned(), on))
                    .collect::<BTreeMap<_, _>>(),
                "version": REPORTED_VERSION,
            });
            let mut text = serde_json::to_string_pretty(&whole).unwrap_or_default();
            text.push('\n');
            text
        }
    }
}

fn yaml(config: &Effective, document: &Value) -> String {
    let mut text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n");
    if let Value::Object(object) = document {
        let mut object = object.clone();
        object.remove("apiVersion");
        object.remove("kind");
        branch(&object, "", 0, &config.origins, &mut text);
    }
    let flags = own_flags(config);
    if !flags.is_empty() {
        text.push_str("# settings that only flags have\n");
        for (name, value) in flags {
            let _ = writeln!(text, "# --{name}={value}");
        }
    }
    let on: Vec<&str> =
        config.gates.states().filter(|(_, on)| *on).map(|(gate, _)| gate.name).collect();
    let _ = writeln!(text, "# {} of {} feature gates are on", on.len(), config::gates::all().len());
    text
}

fn branch(
    object: &Map<String, Value>,
    path: &str,
    depth: usize,
    origins: &BTreeMap<String, Origin>,
    text: &mut String,
) {
    let indent = "  ".repeat(depth);
    for (key, value) in object {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{key}");
        match value {
            Value::Object(inner) if inner.is_empty() => {
                let _ = writeln!(text, "{indent}{key}: {{}}");
            }
            Value::Object(inner) => {
                let _ = writeln!(text, "{indent}{key}:");
                branch(inner, &path, depth + 1, origins, text);
            }
            leaf => {
                let head = format!(
                    "{indent}{key}: {}",
                    units::gojson::to_string(leaf).unwrap_or_default()
                );
                let origin = origins.get(&path).unwrap_or(&Origin::Default);
                let _ = writeln!(text, "{head:<60} # {origin}");
            }
        }
    }
}

/// Flags that were given and have no configuration field.
fn own_flags(config: &Effective) -> BTreeMap<&'static str, String> {
    let given = &config.flags;
    let default = config::KubeletFlags::default();
    let mut flags = BTreeMap::new();
    let mut add = |name, value: String, default: String| {
        if value != default {
            flags.insert(name, value);
        }
    };
    macro_rules! texts {
        ($($name:literal => $field:ident),* $(,)?) => {
            $(add($name, format!("{:?}", given.$field), format!("{:?}", default.$field));)*
        };
    }
    texts! {
        "bootstrap-kubeconfig" => bootstrap_kubeconfig,
        "cert-dir" => cert_dir,
        "cloud-provider" => cloud_provider,
        "config" => config,
        "config-dir" => config_dir,
        "exit-on-lock-contention" => exit_on_lock_contention,
        "experimental-allocatable-ignore-eviction" => experimental_allocatable_ignore_eviction,
        "hostname-override" => hostname_override,
        "housekeeping-interval" => housekeeping_interval,
        "image-credential-provider-bin-dir" => image_credential_provider_bin_dir,
        "image-credential-provider-config" => image_credential_provider_config,
        "kubeconfig" => kubeconfig,
        "lock-file" => lock_file,
        "maximum-dead-containers" => maximum_dead_containers,
        "maximum-dead-containers-per-container" => maximum_dead_containers_per_container,
        "minimum-container-ttl-duration" => minimum_container_ttl_duration,
        "node-ip" => node_ip,
        "node-labels" => node_labels,
        "root-dir" => root_dir,
        "runtime-cgroups" => runtime_cgroups,
        "seccomp-default" => seccomp_default,
    }
    flags
}
