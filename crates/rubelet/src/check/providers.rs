//! Credential providers: their configuration and their programs.

use super::Finding;
use config::Config;
use config::credentials;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const SUBJECT: &str = "credentials";

/// Reads the configuration of the providers, if there are any, and looks for their programs.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let Some(providers) = &config.image_pulls.credential_providers else { return Vec::new() };
    let joined = match read(&providers.config) {
        Ok(joined) => joined,
        Err(why) => {
            return vec![Finding::error(
                SUBJECT,
                why,
                "give both --image-credential-provider-config and \
                 --image-credential-provider-bin-dir, and correct the file",
            )];
        }
    };
    let tokens = config.gates.enabled("KubeletServiceAccountTokenForCredentialProviders");
    let faults = credentials::faults(&joined, tokens);
    if !faults.is_empty() {
        return vec![Finding::error(SUBJECT, faults.join("\n"), "correct the file")];
    }
    let missing: Vec<String> = joined
        .providers
        .iter()
        .map(|provider| providers.bin_dir.join(&provider.name))
        .filter(|program| !is_program(program))
        .map(|program| program.display().to_string())
        .collect();
    if missing.is_empty() {
        let names: Vec<&str> = joined.providers.iter().map(|p| p.name.as_str()).collect();
        return vec![Finding::ok(SUBJECT, format!("providers: {}", names.join(" ")))];
    }
    vec![Finding::error(
        SUBJECT,
        format!("programs are not there or cannot be run: {}", missing.join(" ")),
        "install them with mode 0755",
    )]
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn read(path: &Path) -> Result<credentials::CredentialProviderConfig, String> {
    if path.as_os_str().is_empty() {
        return Err("credential provider config path is empty".to_owned());
    }
    let files: Vec<PathBuf> = if path.is_dir() {
        let names = sys::fs::list_dir(path).map_err(|e| format!("{e}: {}", e.source))?;
        names
            .into_iter()
            .filter(|name| {
                [".json", ".yaml", ".yml"].iter().any(|extension| name.ends_with(extension))
            })
            .map(|name| path.join(name))
            .collect()
    } else {
        vec![path.to_owned()]
    };
    if files.is_empty() {
        return Err(format!(
            "no configuration files found in directory {:?}",
            path.display().to_string()
        ));
    }
    let mut configs = Vec::new();
    for file in files {
        let shown = file.display().to_string();
        let bytes = sys::fs::read(&file).map_err(|e| format!("{e}: {}", e.source))?;
        let decoded = credentials::decode(&bytes)
            .map_err(|why| format!("error decoding config {shown:?}: {why}"))?;
        configs.push(decoded);
    }
    credentials::join(configs)
}
