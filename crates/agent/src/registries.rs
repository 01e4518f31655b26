//! The plugins that know registries: their configuration, a file or a folder of files, and their
//! programs (kubelet: `RegisterCredentialProviderPlugins`).

use crate::settings;
use config::Config;
use config::credentials::{self, CredentialProvider, CredentialProviderConfig};
use engine::image::provider::{ExecEnv, ProviderConfig, TokenAttributes};
use images::ProviderSetup;
use sha2::{Digest as _, Sha256};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use units::errno::go_text;
use units::strconv::quote;

/// The plugins as configured; `None` without any. A fault is upstream's text.
pub(crate) fn load(config: &Config) -> Result<Option<ProviderSetup>, String> {
    let Some(places) = &config.image_pulls.credential_providers else { return Ok(None) };
    let bin_dir = places.bin_dir.display();
    if let Err(error) = std::fs::metadata(&places.bin_dir) {
        let why = go_text(&error);
        return Err(match error.kind() {
            io::ErrorKind::NotFound => format!("plugin binary directory {bin_dir} did not exist"),
            _ => format!("error inspecting binary directory {bin_dir}: stat {bin_dir}: {why}"),
        });
    }
    let (joined, hash) = read(&places.config)?;
    let tokens = settings::tokens_for_providers(config);
    let faults = credentials::faults(&joined, tokens);
    if !faults.is_empty() {
        let faults = config::aggregate(&faults);
        return Err(format!("failed to validate credential provider config: {faults}"));
    }
    for provider in &joined.providers {
        look_up(&places.bin_dir.join(&provider.name))?;
    }
    let providers = joined.providers.into_iter().map(provider).collect();
    Ok(Some(ProviderSetup { providers, bin_dir: places.bin_dir.clone(), hash }))
}

/// All files as one, and a digest of them.
fn read(path: &Path) -> Result<(CredentialProviderConfig, String), String> {
    if path.as_os_str().is_empty() {
        return Err("credential provider config path is empty".to_owned());
    }
    let shown = quote(&path.to_string_lossy());
    let metadata = std::fs::metadata(path).map_err(|error| {
        let why = go_text(&error);
        format!("unable to access path {shown}: stat {}: {why}", path.display())
    })?;
    let files = if metadata.is_dir() { files_of(path)? } else { vec![path.to_owned()] };
    let mut hasher = Sha256::new();
    let mut configs = Vec::new();
    for file in files {
        let shown = quote(&file.to_string_lossy());
        let bytes = sys::fs::read(&file).map_err(|error| {
            let (why, path) = (go_text(&error.source), file.display());
            format!("unable to read file {shown}: open {path}: {why}")
        })?;
        hasher.update((bytes.len() as u64).to_be_bytes());
        hasher.update(&bytes);
        let decoded = credentials::decode(&bytes)
            .map_err(|why| format!("error decoding config {shown}: {why}"))?;
        configs.push(decoded);
    }
    let hex: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((credentials::join(configs)?, format!("sha256:{hex}")))
}

/// The files of a folder that count, by name.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let shown = quote(&folder.to_string_lossy());
    let names = sys::fs::list_dir(folder).map_err(|error| {
        let (why, path) = (go_text(&error.source), folder.display());
        format!("unable to read directory {shown}: open {path}: {why}")
    })?;
    let wanted = |name: &String| {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        ["json", "yaml", "yml"].contains(&extension)
    };
    // A link to a folder is no folder here; reading it then fails, as upstream.
    let is_folder = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    let mut files: Vec<PathBuf> =
        names.iter().filter(|name| wanted(name)).map(|name| folder.join(name)).collect();
    files.retain(|path| !is_folder(path));
    files.sort();
    if files.is_empty() {
        return Err(format!("no configuration files found in directory {shown}"));
    }
    Ok(files)
}

/// Whether a program is there and can be run (Go: `exec.LookPath`, whose path is empty when it fails).
fn look_up(program: &Path) -> Result<(), String> {
    let failed = |why: &str| {
        let path = quote(&program.to_string_lossy());
        Err(format!("error inspecting binary executable : exec: {path}: {why}"))
    };
    let bare = program.components().count() == 1 && !program.is_absolute();
    match std::fs::metadata(program) {
        // A name without a folder is looked for elsewhere, and not found.
        _ if bare => Err("plugin binary executable  did not exist".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err("plugin binary executable  did not exist".to_owned())
        }
        Err(error) => failed(&format!("stat {}: {}", program.display(), go_text(&error))),
        Ok(found) if found.is_dir() => failed("is a directory"),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => failed("permission denied"),
        Ok(_) => Ok(()),
    }
}

fn provider(provider: CredentialProvider) -> ProviderConfig {
    let env = provider.env.into_iter();
    ProviderConfig {
        name: provider.name,
        match_images: provider.match_images,
        default_cache_duration: provider.default_cache_duration,
        api_version: provider.api_version,
        args: provider.args,
        env: env.map(|var| ExecEnv { name: var.name, value: var.value }).collect(),
        token_attributes: provider.token_attributes.map(|token| TokenAttributes {
            service_account_token_audience: token.service_account_token_audience,
            cache_type: token.cache_type,
            require_service_account: token.require_service_account,
            required_service_account_annotation_keys: token
                .required_service_account_annotation_keys,
            optional_service_account_annotation_keys: token
                .optional_service_account_annotation_keys,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n\
        providers:\n- name: plug\n  matchImages: ['*.r.io']\n  defaultCacheDuration: 10m\n  \
        apiVersion: credentialprovider.kubelet.k8s.io/v1\n";

    fn folder(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("rubelet-registries-{name}-{}", std::process::id()));
        sys::fs::create_dir_all(&path, 0o755).unwrap();
        path
    }

    fn remove(dir: &Path) {
        let everything = sys::removal::Contents::Everything;
        sys::removal::remove_tree(Path::new("/proc"), dir, everything).unwrap();
    }

    #[test]
    fn files_of_a_folder_are_one_configuration() {
        let dir = folder("files");
        let fault = read(&dir).unwrap_err();
        assert_eq!(fault, format!("no configuration files found in directory {:?}", dir.display()));
        sys::fs::write(dir.join("b.json"), GOOD.replace("plug", "other")).unwrap();
        sys::fs::write(dir.join("a.yaml"), GOOD).unwrap();
        sys::fs::write(dir.join("c.txt"), "x").unwrap();
        let (joined, hash) = read(&dir).unwrap();
        let names: Vec<&str> = joined.providers.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["plug", "other"]);
        assert!(hash.starts_with("sha256:") && hash.len() == 71);
        sys::fs::write(dir.join("b.json"), GOOD).unwrap();
        assert_eq!(
            read(&dir).unwrap_err(),
            "duplicate provider name \"plug\" found in configuration file(s)"
        );
        let none = dir.join("none");
        let shown = none.display();
        assert_eq!(
            read(&none).unwrap_err(),
            format!("unable to access path \"{shown}\": stat {shown}: no such file or directory")
        );
        remove(&dir);
    }

    #[test]
    fn programs_must_be_there_and_runnable() {
        let dir = folder("programs");
        let program = dir.join("plug");
        assert_eq!(look_up(&program).unwrap_err(), "plugin binary executable  did not exist");
        sys::fs::write(&program, "x").unwrap();
        let fault = look_up(&program).unwrap_err();
        assert!(fault.ends_with("/plug\": permission denied"), "{fault}");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(look_up(&program), Ok(()));
        assert!(look_up(&dir).unwrap_err().ends_with("is a directory"));
        remove(&dir);
    }
}
