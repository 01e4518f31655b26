//! From a command line and files to one configuration, in upstream's order.
//!
//! ```text
//! flags ─▶ gates ─▶ node labels ─▶ file ─▶ drop-ins ─▶ flags again ─▶ gates ─▶ logging ─▶ validation
//! ```
//!
//! Promises: the first failing step ends it with upstream's text; notices and log lines gathered
//! until then are handed out in every case.

use crate::ConfigFiles;
use crate::credentials;
use crate::document::{self, Document, DocumentType};
use crate::dropins;
use crate::environment::{Environment, Setting, VARIABLES};
use crate::flags::{self, FlagUse, KubeletFlags, ParsedArgs, VersionRequest};
use crate::gates::Gates;
use crate::kubelet::{API_VERSION, KIND, KubeletConfiguration, defaults};
use crate::log::{LogLine, Severity};
use crate::origin::{Layers, Origin};
use crate::resolved::{Config, Logging, caller_fault};
use crate::text::{self, aggregate};
use crate::validate::{self, CgroupVersion, logging_faults, node_label_fault};
use crate::value::Reading;
use crate::version;
use serde_json::Value;
use std::collections::BTreeMap;
use units::strconv::quote;

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Print this to standard output and leave.
    Print(String),
    /// Run with this configuration.
    Run(Box<Config>),
    /// Leave with this exit code and without a word.
    Leave(u8),
}

/// The exit code of Go's flag packages.
const PARSE_FAILED: u8 = 2;

/// Why there is no configuration; the text is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);

/// The answer to a command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// Lines for standard error as they are: deprecated flags.
    pub notices: Vec<String>,
    /// Lines to log, in order.
    pub lines: Vec<LogLine>,
    /// How many of them came before it was known how to log: those are text in any case.
    pub early: usize,
    /// How to log, once that is known to be good; until then text at the lowest verbosity.
    pub logging: Option<Logging>,
    /// The settings in force, once they are known; also there when they are found to be wrong.
    pub effective: Option<Box<Effective>>,
    /// What to do, or why not.
    pub result: Result<Request, LoadError>,
}

/// The settings in force, before they are typed.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// The configuration document, defaults included.
    pub kubelet: KubeletConfiguration,
    /// Settings that only flags have.
    pub flags: KubeletFlags,
    /// Feature gates.
    pub gates: Gates,
    /// Where each value of the document comes from, by dotted path.
    pub origins: BTreeMap<String, Origin>,
    /// Settings that only variables have.
    pub environment: Vec<Setting>,
}

/// Resolves a command line (without the program's name).
pub fn load<I>(args: I, files: &dyn ConfigFiles, cgroups: CgroupVersion) -> Loaded
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    let parsed = flags::parse(args);
    let mut kubelet = flag_defaults();
    let mut own = KubeletFlags::default();
    let (notices, fault) = flags::validate_uses(&parsed, &mut kubelet, &mut own);
    let mut loader = Loader {
        files,
        cgroups,
        lines: Vec::new(),
        logging: None,
        early: 0,
        effective: None,
        gates: Gates::default(),
        environment: Environment::read(&files.variables()),
    };
    let result = match fault {
        Some(fault) => Err(format!("failed to parse kubelet flag: {fault}")),
        None => loader.request(&parsed, kubelet, own),
    };
    let Loader { lines, logging, early, effective, environment, .. } = loader;
    let result = with_fault(result, environment.fault()).map_err(LoadError);
    Loaded { notices, lines, early, logging, effective, result }
}

/// What comes of it if there is also a fault in the environment: all that is wrong is told at once. One
/// who only asks for help or the version gets it.
fn with_fault(result: Result<Request, String>, fault: Option<String>) -> Result<Request, String> {
    match (result, fault) {
        (Err(first), Some(fault)) => Err(format!("{first}; and {fault}")),
        (Ok(Request::Run(config)), Some(fault)) => Err(match config.faults.first() {
            Some(first) => format!("failed to run Kubelet: {first}; and {fault}"),
            None => fault,
        }),
        (result, _) => result,
    }
}

/// The configuration flags start from.
fn flag_defaults() -> KubeletConfiguration {
    let mut kubelet = KubeletConfiguration::default();
    kubelet.set_defaults(&Gates::default());
    kubelet.settle();
    kubelet.set_legacy_defaults();
    kubelet
}

struct Loader<'a> {
    files: &'a dyn ConfigFiles,
    cgroups: CgroupVersion,
    lines: Vec<LogLine>,
    logging: Option<Logging>,
    early: usize,
    effective: Option<Box<Effective>>,
    gates: Gates,
    environment: Environment,
}

impl Loader<'_> {
    fn request(
        &mut self,
        parsed: &ParsedArgs,
        mut kubelet: KubeletConfiguration,
        own: KubeletFlags,
    ) -> Result<Request, String> {
        if let Some(word) = parsed.positional.first() {
            return Err(format!("unknown command {word}"));
        }
        if own.help {
            return Ok(Request::Print(flags::help()));
        }
        match &own.version {
            VersionRequest::Print => {
                return Ok(Request::Print(format!(
                    "Kubernetes {}\n",
                    units::release::REPORTED_VERSION
                )));
            }
            VersionRequest::PrintRaw => return Ok(Request::Print(version::raw())),
            VersionRequest::No | VersionRequest::Report(_) => {}
        }
        self.set_gates(&kubelet)?;
        if let Some(fault) = node_label_fault(&own.node_labels) {
            return Err(format!("failed to validate kubelet flags: {fault}"));
        }
        let flag_gates = kubelet.feature_gates.keys().cloned().collect();
        let shown = |kubelet: &KubeletConfiguration| {
            let mut values = flags::shown(&parsed.uses, &mut kubelet.clone(), &mut own.clone());
            // Unlike upstream, which logs them.
            flags::mask(&mut values);
            values
        };
        let mut layers = Layers {
            uses: &parsed.uses,
            flag_gates,
            flag_values: shown(&kubelet),
            ..Layers::default()
        };
        if !own.config.is_empty() {
            let (loaded, said) = self.file(&own.config).map_err(|fault| {
                format!("failed to load kubelet config file, path: {}, error: {fault}", own.config)
            })?;
            kubelet = loaded;
            layers.file = Some((own.config.clone(), said));
        }
        let mut skipped = Vec::new();
        if !own.config_dir.is_empty() {
            let found = dropins::read_all(self.files, &own.config_dir)
                .and_then(|found| self.merge(&mut kubelet, &found).map(|()| found))
                .map_err(|fault| format!("failed to merge kubelet configs: {fault}"))?;
            layers.drop_ins = found.patches;
            skipped = found.skipped;
        }
        if !own.config.is_empty() || !own.config_dir.is_empty() {
            // Nobody knows that flag the second time, whatever its value: that asks for help.
            if parsed.uses.iter().any(|u| u.flag.name == "help") {
                return Ok(Request::Print(String::new()));
            }
            let again = parsed.again();
            if again.fault.is_some() {
                return Ok(Request::Leave(PARSE_FAILED));
            }
            self.reapply(&again.uses, &mut kubelet)?;
            // Drop-ins alone change what the flags are bound to.
            if own.config.is_empty() {
                layers.flag_values = shown(&kubelet);
            }
        }
        self.finish(kubelet, own, &layers, skipped)
    }

    fn set_gates(&mut self, kubelet: &KubeletConfiguration) -> Result<(), String> {
        self.gates.set(&kubelet.feature_gates, &mut self.lines).map_err(|faults| {
            format!(
                "failed to set feature gates from initial flags-based config: {}",
                aggregate(&faults)
            )
        })
    }

    /// Reads the configuration file; also answers what it said.
    fn file(&mut self, path: &str) -> Result<(KubeletConfiguration, Value), String> {
        let absolute = text::absolute_path(&self.files.working_dir(), path);
        let failed =
            |fault: String| format!("failed to load Kubelet config file {path}, error {fault}");
        let (mut kubelet, said, objections) = self.decode(&absolute).map_err(failed)?;
        // A file that a strict reader objects to is read again, and filled again.
        if !objections.is_empty() {
            self.default(&mut kubelet.clone())?;
        }
        self.default(&mut kubelet)?;
        self.tell(&objections);
        let folder = absolute.rsplit_once('/').map_or("/", |(folder, _)| folder).to_owned();
        resolve_paths(&mut kubelet, if folder.is_empty() { "/" } else { &folder });
        match &mut kubelet.eviction_hard {
            None => kubelet.eviction_hard = Some(defaults::eviction_hard()),
            Some(given) if kubelet.merge_default_eviction_settings == Some(true) => {
                for (signal, threshold) in defaults::eviction_hard() {
                    given.entry(signal).or_insert(threshold);
                }
            }
            Some(_) => {}
        }
        Ok((kubelet, said))
    }

    /// Reads a file: the configuration, what it said, and what a strict reader objects to.
    fn decode(&mut self, path: &str) -> Result<(KubeletConfiguration, Value, Vec<String>), String> {
        let data = self.files.read(path).map_err(|e| {
            format!("failed to read kubelet config file {}, error: {e}", quote(path))
        })?;
        if data.is_empty() {
            return Err(format!("kubelet config file {} was empty", quote(path)));
        }
        let undecoded = |e: String| format!("failed to decode: {e}");
        let document = document::read(&data).map_err(undecoded)?;
        let found = document::document_type(&document).map_err(undecoded)?;
        if let Some(kind) = other_kind(&found, &data).map_err(undecoded)? {
            let objections = kind.objections(&document).map_err(undecoded)?;
            if !objections.is_empty() && kind.version != "v1beta1" {
                let objections = objections.join(", ");
                return Err(format!(
                    "failed lenient decoding: strict decoding error: {objections}"
                ));
            }
            self.tell(&objections);
            return Err(format!(
                "failed to cast object to KubeletConfiguration, unexpected type: {}",
                found.shown()
            ));
        }
        let (kubelet, decoder) = KubeletConfiguration::read_members(&document);
        if let Some(error) = decoder.error() {
            return Err(undecoded(error.clone()));
        }
        let objections = decoder.objections(&document.duplicates);
        Ok((kubelet, document.value, objections))
    }

    /// What a strict reader objects to is told, no more.
    fn tell(&mut self, objections: &[String]) {
        if !objections.is_empty() {
            let error = format!("strict decoding error: {}", objections.join(", "));
            self.lines.push(
                LogLine::info("Using lenient decoding as strict decoding failed")
                    .with("err", error),
            );
        }
    }

    /// Fills defaults under the gates of flags and of the object itself.
    fn default(&mut self, kubelet: &mut KubeletConfiguration) -> Result<(), String> {
        let mut gates = self.gates.clone();
        gates.set(&kubelet.feature_gates, &mut self.lines).map_err(|faults| {
            format!(
                "failed to merge global and in-flight KubeletConfiguration while setting \
                 defaults, error: {}",
                aggregate(&faults)
            )
        })?;
        kubelet.set_defaults(&gates);
        kubelet.settle();
        Ok(())
    }

    fn merge(
        &mut self,
        kubelet: &mut KubeletConfiguration,
        found: &dropins::DropIns,
    ) -> Result<(), String> {
        let mut merged = serde_json::to_value(&*kubelet).unwrap_or_default();
        for (_, patch) in &found.patches {
            dropins::merge(&mut merged, patch);
        }
        let (mut decoded, decoder) = KubeletConfiguration::read(&merged, Reading::Merged);
        if let Some(error) = decoder.error() {
            return Err(format!(
                "failed to unmarshal merged JSON into kubelet configuration: {error}"
            ));
        }
        self.default(&mut decoded)?;
        *kubelet = decoded;
        Ok(())
    }

    /// Puts the flags over what the files gave.
    fn reapply(
        &mut self,
        uses: &[FlagUse],
        kubelet: &mut KubeletConfiguration,
    ) -> Result<(), String> {
        let from_files = kubelet.feature_gates.clone();
        // Registering these flags resets what they stand for.
        kubelet.logging.options.text.split_stream = false;
        kubelet.logging.options.json.split_stream = false;
        flags::apply(uses, kubelet, &mut KubeletFlags::default())
            .map_err(|fault| format!("failed to precedence kubeletConfigFlag: {fault}"))?;
        for (gate, value) in from_files {
            kubelet.feature_gates.entry(gate).or_insert(value);
        }
        self.set_gates(kubelet)
    }

    fn finish(
        &mut self,
        mut kubelet: KubeletConfiguration,
        own: KubeletFlags,
        layers: &Layers<'_>,
        skipped: Vec<String>,
    ) -> Result<Request, String> {
        kubelet.kind.clear();
        kubelet.api_version.clear();
        let origins = layers.origins(&kubelet);
        self.effective = Some(Box::new(Effective {
            kubelet: kubelet.clone(),
            flags: own.clone(),
            gates: self.gates.clone(),
            origins: origins.clone(),
            environment: self.environment.settings.clone(),
        }));
        let faults = logging_faults(&kubelet.logging, &self.gates);
        if !faults.is_empty() {
            return Err(format!("initialize logging: {}", aggregate(&faults)));
        }
        self.logging = Some(Logging::of(&kubelet));
        self.early = self.lines.len();
        self.lines.extend(flag_lines(&layers.flag_values));
        self.gates.warn(&mut self.lines);
        let faults = validate::faults(&kubelet, &self.gates, self.cgroups);
        if !faults.is_empty() {
            return Err(format!(
                "failed to validate kubelet configuration, error: {}, path: \
                 &TypeMeta{{Kind:,APIVersion:,}}",
                aggregate(&faults)
            ));
        }
        let ours = &kubelet.kubelet_cgroups;
        let reserved = &kubelet.kube_reserved_cgroup;
        if !ours.is_empty() && !reserved.is_empty() && !ours.starts_with(reserved.as_str()) {
            self.lines.push(LogLine::info(
                "unsupported configuration:KubeletCgroups is not within KubeReservedCgroup",
            ));
        }
        let gates = self.gates.clone();
        let (files, lines) = (self.files, &mut self.lines);
        let mut config = Config::resolve(kubelet, own, gates, origins, files, lines)?;
        config.flag_values.clone_from(&layers.flag_values);
        config.opt_ins = self.environment.opt_ins();
        for setting in self.environment.set() {
            let line = LogLine::info("Opted in by the environment");
            let name = setting.variable.name;
            self.lines.push(line.with("variable", name).with("setting", setting.value.as_str()));
        }
        for name in &self.environment.unknown {
            let line = LogLine::at(
                Severity::Error,
                "Left a variable alone that nobody knows, though it has our prefix",
            );
            let known: Vec<&str> = VARIABLES.iter().map(|known| known.name).collect();
            self.lines.push(line.with("variable", name.as_str()).with("known", known.join(", ")));
        }
        for path in skipped {
            self.lines.push(
                LogLine::at(
                    Severity::Info(4),
                    "Skipped file in drop-in directory (does not have .conf extension)",
                )
                .with("file", path),
            );
        }
        let shown = units::gojson::to_string(&config.kubelet.masked()).unwrap_or_default();
        self.lines.push(
            LogLine::at(Severity::Info(5), "KubeletConfiguration").with("configuration", shown),
        );
        self.gates.warn(&mut self.lines);
        self.gates.warn(&mut self.lines);
        if self.gates.enabled("MemoryQoS") && self.cgroups == CgroupVersion::V1 {
            self.lines.push(LogLine::info(
                "Warning: MemoryQoS feature only works with cgroups v2 on Linux, but enabled with \
                 cgroups v1",
            ));
        }
        let fault = caller_fault(&config.kubelet, &config.flags, self.files, &mut self.lines);
        config.faults.callers = fault;
        Ok(Request::Run(Box::new(config)))
    }
}

/// A kind of our group that is no configuration of a kubelet.
struct OtherKind {
    version: &'static str,
    fields: &'static [&'static str],
}

impl OtherKind {
    /// What a strict reader objects to.
    fn objections(&self, document: &Document) -> Result<Vec<String>, String> {
        if self.fields.is_empty() {
            return Ok(credentials::read(document, self.version)?.1);
        }
        let known = |key: &str| ["apiVersion", "kind"].contains(&key) || self.fields.contains(&key);
        let unknown = document.members.iter().filter(|(key, _)| !known(key));
        let unknown = unknown.map(|(key, _)| format!("unknown field {}", quote(key)));
        let unknown = unknown.take(crate::value::MOST_UNKNOWN);
        Ok(document.duplicates.iter().cloned().chain(unknown).collect())
    }
}

/// Kinds of our group that are no configuration; one that is read elsewhere has no fields here.
const OTHER_KINDS: [(&str, &str, &[&str]); 5] = [
    ("CredentialProviderConfig", "v1beta1", &[]),
    ("CredentialProviderConfig", "v1", &[]),
    ("ImagePullIntent", "v1beta1", &["image"]),
    ("ImagePulledRecord", "v1beta1", &["lastUpdatedTime", "imageRef", "credentialMapping"]),
    ("SerializedNodeConfigSource", "v1beta1", &["source"]),
];

/// None for a configuration; the error is upstream's for a kind that nobody knows.
fn other_kind(found: &DocumentType, data: &[u8]) -> Result<Option<OtherKind>, String> {
    let body = || String::from_utf8_lossy(data);
    if found.kind.is_empty() {
        return Err(format!("Object 'Kind' is missing in '{}'", body()));
    }
    if found.versionless() {
        return Err(format!("Object 'apiVersion' is missing in '{}'", body()));
    }
    if found.api_version == API_VERSION && found.kind == KIND {
        return Ok(None);
    }
    let version = found.api_version.strip_prefix("kubelet.config.k8s.io/").unwrap_or_default();
    let other = OTHER_KINDS.iter().find(|(kind, of, _)| *kind == found.kind && *of == version);
    match other {
        Some((_, version, fields)) => Ok(Some(OtherKind { version, fields })),
        None => Err(found.unregistered()),
    }
}

/// Paths of a configuration file are relative to its folder.
fn resolve_paths(kubelet: &mut KubeletConfiguration, folder: &str) {
    let paths = [
        Some(&mut kubelet.static_pod_path),
        Some(&mut kubelet.authentication.x509.client_ca_file),
        Some(&mut kubelet.tls_cert_file),
        Some(&mut kubelet.tls_private_key_file),
        kubelet.resolv_conf.as_mut(),
        Some(&mut kubelet.volume_plugin_dir),
        Some(&mut kubelet.pod_logs_dir),
    ];
    for path in paths.into_iter().flatten() {
        if !path.is_empty() && !path.starts_with('/') {
            *path = text::absolute_path(folder, path);
        }
    }
}

/// The dump of every flag.
fn flag_lines(values: &BTreeMap<&'static str, String>) -> Vec<LogLine> {
    let line = |(name, value): (&&str, &String)| {
        LogLine::plain(Severity::Info(1), format!("FLAG: --{name}={}", quote(value)))
    };
    values.iter().map(line).collect()
}

#[cfg(test)]
mod drawn;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
