//! `rubelet config`: the settings in force, each with its origin.
//!
//! Promises: the YAML form is itself a configuration file; origins are comments.

use config::kubelet::{API_VERSION, KIND};
use config::{Effective, Origin};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use units::release::REPORTED_VERSION;

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
                "environment": config
                    .environment
                    .iter()
                    .map(|setting| (setting.variable.name, setting))
                    .collect::<BTreeMap<_, _>>(),
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
    text.push_str("# settings that only the environment has\n");
    for setting in &config.environment {
        let head = format!("# {}={}", setting.variable.name, setting.value);
        let _ = writeln!(text, "{head:<60} # {}", setting.origin);
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

#[cfg(test)]
mod tests {
    use super::*;
    use config::{CgroupVersion, ConfigFiles};

    /// One file, whatever its path.
    #[derive(Debug)]
    struct One(String);

    impl ConfigFiles for One {
        fn read(&self, _: &str) -> Result<Vec<u8>, String> {
            Ok(self.0.clone().into_bytes())
        }

        fn walk(&self, path: &str) -> Result<Vec<String>, String> {
            Ok(vec![path.to_owned()])
        }

        fn working_dir(&self) -> String {
            "/".to_owned()
        }
    }

    fn effective_of(args: &[&str], file: &str) -> Effective {
        let files = One(format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{file}"));
        let loaded = config::load(args.iter().copied(), &files, CgroupVersion::V2);
        *loaded.effective.unwrap()
    }

    #[test]
    fn what_is_shown_is_a_configuration_file_that_means_the_same() {
        let args = ["--config=/c", "--max-pods=7", "--feature-gates=CRIListStreaming=true"];
        let body =
            "clusterDNS: [10.0.0.10]\nclusterDomain: 'yes'\nevictionHard: {memory.available: 5%}\n";
        let shown = effective(&effective_of(&args, body), Form::Yaml);
        assert!(shown.contains("maxPods: 7 "), "{shown}");
        assert!(shown.contains("# flag --max-pods\n"), "{shown}");
        assert!(shown.contains("  memory.available: \"5%\""), "{shown}");
        let again = effective_of(
            &["--config=/c"],
            &shown.replace(&format!("apiVersion: {API_VERSION}\nkind: {KIND}\n"), ""),
        );
        assert_eq!(again.kubelet, effective_of(&args, body).kubelet);
    }

    #[test]
    fn settings_are_shown_even_when_they_are_wrong() {
        let shown = effective(&effective_of(&["--config=/c"], "port: -1\n"), Form::Yaml);
        assert!(shown.contains("port: -1 "), "{shown}");
        assert!(shown.contains("# file /c\n"), "{shown}");
    }

    #[test]
    fn the_json_form_has_origins_gates_and_flags() {
        let shown = effective(&effective_of(&["--node-ip=10.0.0.1", "--port=5"], ""), Form::Json);
        let json: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(json["configuration"]["port"], 5);
        assert_eq!(json["origins"]["port"], json!({"flag": "port"}));
        assert_eq!(json["origins"]["readOnlyPort"], "legacyDefault");
        assert_eq!(json["flags"]["node-ip"], "\"10.0.0.1\"");
        let strict = json!({"value": "false", "origin": "default"});
        assert_eq!(json["environment"]["RUBELET_STRICT_STREAMING"], strict);
        assert_eq!(json["featureGates"].as_object().unwrap().len(), 242);
    }

    #[test]
    fn the_output_form_is_taken_off_the_arguments() {
        for args in
            [vec!["-o", "json", "--v=1"], vec!["--v=1", "--output=json"], vec!["-ojson", "--v=1"]]
        {
            let mut args: Vec<String> = args.into_iter().map(str::to_owned).collect();
            assert_eq!(Form::take(&mut args), Form::Json);
            assert_eq!(args, ["--v=1"]);
        }
        let mut args = vec!["--v=1".to_owned()];
        assert_eq!(Form::take(&mut args), Form::Yaml);
    }
}
