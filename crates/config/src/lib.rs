//! Flags, configuration file, drop-ins, feature gates, defaults and validation: one resolved Config.
#![forbid(unsafe_code)]
