//! The configuration itself.

use super::Finding;
use config::{Loaded, Origin, Request};

const SUBJECT: &str = "configuration";

/// Whether the settings can be used, and which of them are doubtful.
pub(super) fn check(loaded: &Loaded) -> Vec<Finding> {
    let mut findings = Vec::new();
    match &loaded.result {
        Err(error) => findings.push(Finding::error(
            SUBJECT,
            error.to_string(),
            "correct it; `rubelet config` with the same flags shows where each value comes from",
        )),
        Ok(Request::Run(config)) => {
            let faults = &config.faults;
            let told = [&faults.callers, &faults.reserved, &faults.construction];
            let told = told.into_iter().flatten();
            findings.extend(told.map(|fault| Finding::error(SUBJECT, fault.clone(), "correct it")));
            let set = config.origins.values();
            let set = set.filter(|o| !matches!(o, Origin::Default | Origin::LegacyDefault)).count();
            if faults.first().is_none() {
                findings.push(Finding::ok(SUBJECT, format!("{set} values are set, all are good")));
            }
            if config.flags.config.is_empty() && config.server.anonymous {
                findings.push(Finding::warning(
                    SUBJECT,
                    "without --config anybody may use the API of this node",
                    "give --config with a KubeletConfiguration; its defaults ask for identity",
                ));
            }
        }
        Ok(Request::Print(_) | Request::Leave(_)) => {}
    }
    for line in &loaded.lines {
        if line.message.starts_with("Using lenient decoding") {
            findings.push(Finding::warning(
                SUBJECT,
                line.to_string(),
                "remove or correct the fields named; they have no effect",
            ));
        } else if line.message.starts_with("Warning: ") {
            findings.push(Finding::warning(SUBJECT, line.to_string(), "remove the gate"));
        }
    }
    findings
}
