//! The command line: flags as data, pflag's grammar, help.
//!
//! Owns: the table of flags (names, types, defaults, deprecations, help) and what a use of each
//! does to the configuration.
//!
//! Promises: the texts of errors and notices are pflag's. Nothing is printed here.

mod apply;
mod help;
mod parse;
mod set;
mod table;
mod target;

pub use help::help;
pub use parse::{FlagUse, ParsedArgs, parse};
pub use set::{KubeletFlags, VersionRequest};

pub(crate) use apply::{apply, mask, shown, validate_uses};

/// One flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag {
    /// Name without dashes.
    pub name: &'static str,
    /// One-letter form.
    pub shorthand: Option<char>,
    /// What its value looks like.
    pub kind: Kind,
    /// Which library of upstream parses it: error texts differ.
    pub registry: Registry,
    /// Value when it is not given and there is no configuration file.
    pub default: &'static str,
    /// Why it should not be used.
    pub deprecation: Deprecation,
    /// The configuration field it sets, as a dotted path; empty for none.
    pub field: &'static str,
    /// What it is for.
    pub usage: &'static str,
}

/// What a flag's value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true`, `false`, or nothing for true.
    Bool,
    /// Go's duration.
    Duration,
    /// `name=true|false` pairs.
    Gates,
    /// `name:value` pairs, repeatable.
    Headers,
    /// An integer of the machine's size.
    Int,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// An IP address.
    Ip,
    /// `key=value` pairs, a missing value is empty.
    Labels,
    /// `key<value` pairs.
    LangleMap,
    /// A verbosity.
    Level,
    /// `key=value` pairs.
    Map,
    /// A quantity.
    Quantity,
    /// Memory per NUMA node.
    ReservedMemory,
    /// One `key=value` pair, commas and all.
    SinglePair,
    /// A list separated by commas.
    Strings,
    /// `key=value:effect` entries.
    Taints,
    /// Any text.
    Text,
    /// Verbosities per file.
    VModule,
    /// The version request.
    Version,
}

/// Which library of upstream parses a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registry {
    /// pflag.
    Pflag,
    /// Go's own `flag`, which says `parse error` and no more.
    Go,
}

/// Why a flag should not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deprecation {
    /// It is fine.
    None,
    /// It belongs in the configuration file.
    UseConfigFile,
    /// It came along with cAdvisor.
    CadvisorLeak,
    /// Eviction replaced it.
    UseEviction,
    /// It will go.
    Removal,
    /// It will go, with CSI instead.
    RemovalForCsi,
}

impl Deprecation {
    /// The text of notices and help; `None` when the flag is fine.
    pub const fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::None => return None,
            Self::UseConfigFile => {
                "This parameter should be set via the config file specified by the Kubelet's \
                 --config flag. See https://kubernetes.io/docs/tasks/administer-cluster/\
                 kubelet-config-file/ for more information."
            }
            Self::CadvisorLeak => {
                "This is a cadvisor flag that was mistakenly registered with the Kubelet. Due to \
                 legacy concerns, it will follow the standard CLI deprecation timeline before \
                 being removed."
            }
            Self::UseEviction => {
                "Use --eviction-hard or --eviction-soft instead. Will be removed in a future \
                 version."
            }
            Self::Removal => "will be removed in 1.25 or later.",
            Self::RemovalForCsi => "will be removed in 1.25 or later. in favor of using CSI.",
        })
    }
}

impl Kind {
    /// pflag's name of the type.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Duration => "duration",
            Self::Gates => "mapStringBool",
            Self::Headers => "colonSeparatedMultimapStringString",
            Self::Int => "int",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Ip => "ip",
            Self::Labels | Self::LangleMap | Self::Map | Self::SinglePair => "mapStringString",
            Self::Level => "Level",
            Self::Quantity => "quantity",
            Self::ReservedMemory => "reserved-memory",
            Self::Strings => "stringSlice",
            Self::Taints => "[]v1.Taint",
            Self::Text => "string",
            Self::VModule => "pattern=N,...",
            Self::Version => "version",
        }
    }

    /// The value a flag has when it is given without one.
    pub const fn bare_value(self) -> Option<&'static str> {
        match self {
            Self::Bool | Self::Version => Some("true"),
            _ => None,
        }
    }
}

/// Every flag, sorted by name.
pub fn all() -> &'static [Flag] {
    table::FLAGS
}

/// Looks a flag up by its normalised name.
pub fn find(name: &str) -> Option<&'static Flag> {
    table::FLAGS
        .binary_search_by(|flag| flag.name.cmp(name))
        .ok()
        .and_then(|at| table::FLAGS.get(at))
}

#[cfg(test)]
mod tests;
