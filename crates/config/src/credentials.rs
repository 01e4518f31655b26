//! `CredentialProviderConfig`: which program gives pull credentials for which images.
//!
//! Promises: decoding is strict, validation tells every fault in upstream's words. Whether the
//! programs exist is for the caller to check.

use crate::document::{self, Document};
use crate::kubelet::{KIND, KubeletConfiguration};
use crate::text::url_fault;
use crate::validate::names::qualified_name_faults;
use crate::value::{Decoder, FieldShape, GoValue, Leaf, Reading, go_struct};
use std::collections::BTreeSet;
use units::GoDuration;
use units::strconv::quote;

const GROUP: &str = "kubelet.config.k8s.io";
const API_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];
/// Versions and kinds of the group that are no configuration of providers.
const OTHER_KINDS: [(&str, &str); 6] = [
    ("v1beta1", KIND),
    ("v1beta1", "SerializedNodeConfigSource"),
    ("v1beta1", "ImagePullIntent"),
    ("v1beta1", "ImagePulledRecord"),
    ("v1alpha1", "ImagePullIntent"),
    ("v1alpha1", "ImagePulledRecord"),
];
const CACHE_TYPES: [&str; 2] = ["ServiceAccount", "Token"];

go_struct! {
    /// The document.
    CredentialProviderConfig = "v1.CredentialProviderConfig" {
        /// Kind.
        kind: String, "kind", "string", omitempty;
        /// API version.
        api_version: String, "apiVersion", "string", omitempty;
        /// The providers.
        providers: Vec<CredentialProvider>, "providers", "[]CredentialProvider", always;
    }
}

go_struct! {
    /// One provider.
    CredentialProvider = "v1.CredentialProvider" {
        /// Name, also of the program.
        name: String, "name", "string", always;
        /// Images it is asked for.
        match_images: Vec<String>, "matchImages", "[]string", always;
        /// How long answers are kept that say nothing themselves.
        default_cache_duration: Option<GoDuration>, "defaultCacheDuration", "*metav1.Duration", always;
        /// Version of the protocol.
        api_version: String, "apiVersion", "string", always;
        /// Arguments of the program.
        args: Vec<String>, "args", "[]string", omitempty;
        /// Environment of the program.
        env: Vec<ExecEnvVar>, "env", "[]ExecEnvVar", omitempty;
        /// Service account tokens for the program.
        token_attributes: Option<TokenAttributes>, "tokenAttributes", "*ServiceAccountTokenAttributes", omitempty;
    }
}

go_struct! {
    /// One variable of a program's environment.
    ExecEnvVar = "v1.ExecEnvVar" {
        /// Name.
        name: String, "name", "string", always;
        /// Value.
        value: String, "value", "string", always;
    }
}

go_struct! {
    /// Service account tokens for a program.
    TokenAttributes = "v1.ServiceAccountTokenAttributes" {
        /// Whom the token is for.
        service_account_token_audience: String, "serviceAccountTokenAudience", "string", always;
        /// What answers are kept by: `ServiceAccount` or `Token`.
        cache_type: String, "cacheType", "ServiceAccountTokenCacheType", always;
        /// Ask only for pods with a service account.
        require_service_account: Option<bool>, "requireServiceAccount", "*bool", always;
        /// Annotations the service account must have.
        required_service_account_annotation_keys: Vec<String>, "requiredServiceAccountAnnotationKeys", "[]string", omitempty;
        /// Annotations passed on when they are there.
        optional_service_account_annotation_keys: Vec<String>, "optionalServiceAccountAnnotationKeys", "[]string", omitempty;
    }
}

impl CredentialProviderConfig {
    /// Every leaf of the schema, in declaration order.
    pub fn leaves() -> Vec<Leaf> {
        let mut leaves = Vec::new();
        let root = FieldShape { go_type: "", omitempty: false };
        Self::describe("", &root, &mut leaves);
        leaves.retain(|leaf| leaf.path != "kind" && leaf.path != "apiVersion");
        leaves
    }
}

/// Decodes one file.
pub fn decode(data: &[u8]) -> Result<CredentialProviderConfig, String> {
    let document = document::read(data)?;
    let found = document::document_type(&document)?;
    let body = String::from_utf8_lossy(data);
    if found.kind.is_empty() {
        return Err(format!("Object 'Kind' is missing in '{body}'"));
    }
    if found.versionless() {
        return Err(format!("Object 'apiVersion' is missing in '{body}'"));
    }
    let version = found
        .api_version
        .strip_prefix(GROUP)
        .and_then(|rest| rest.strip_prefix('/'))
        .filter(|version| ["v1", "v1beta1", "v1alpha1"].contains(version));
    let known = version.is_some() && found.kind == "CredentialProviderConfig";
    let other = |(of, kind): &(&str, &str)| version == Some(*of) && found.kind == *kind;
    if OTHER_KINDS.iter().any(other) {
        if found.kind == KIND {
            let (_, decoder) = KubeletConfiguration::read_members(&document);
            if let Some(error) = decoder.error() {
                return Err(error.clone());
            }
            strict(&decoder.objections(&document.duplicates))?;
        }
        return Err(format!("failed to decode {} (wrong Kind)", quote(&found.kind)));
    }
    if !known {
        return Err(found.unregistered());
    }
    let (config, objections) = read(&document, version.unwrap_or_default())?;
    strict(&objections)?;
    Ok(config)
}

fn strict(objections: &[String]) -> Result<(), String> {
    match objections {
        [] => Ok(()),
        some => Err(format!("strict decoding error: {}", some.join(", "))),
    }
}

/// Reads a document of this version; also answers what a strict reader objects to.
pub(crate) fn read(
    document: &Document,
    version: &str,
) -> Result<(CredentialProviderConfig, Vec<String>), String> {
    let reading = if document.json { Reading::Json } else { Reading::Yaml };
    let mut decoder = Decoder::new(reading);
    let mut config = CredentialProviderConfig::default();
    config.decode(&document.value, "", &mut decoder);
    if let Some(error) = decoder.error() {
        // Types carry the version of the file.
        let error = error.replace("of type []Cred", &format!("of type []{version}.Cred"));
        return Err(error.replace("of type v1.", &format!("of type {version}.")));
    }
    if version != "v1" {
        // Token attributes are a field of v1 alone.
        for (index, provider) in config.providers.iter_mut().enumerate() {
            if provider.token_attributes.take().is_some() {
                decoder.unknown.push(format!("providers[{index}].tokenAttributes"));
            }
        }
    }
    Ok((config, decoder.objections(&document.duplicates)))
}

/// Joins the files of a folder; a provider named twice is an error.
pub fn join(
    configs: impl IntoIterator<Item = CredentialProviderConfig>,
) -> Result<CredentialProviderConfig, String> {
    let mut joined = CredentialProviderConfig::default();
    let mut names = BTreeSet::new();
    for provider in configs.into_iter().flat_map(|config| config.providers) {
        if !names.insert(provider.name.clone()) {
            return Err(format!(
                "duplicate provider name {} found in configuration file(s)",
                quote(&provider.name)
            ));
        }
        joined.providers.push(provider);
    }
    Ok(joined)
}

/// Everything that is wrong with the providers, as API field errors; `tokens` says whether the
/// gate KubeletServiceAccountTokenForCredentialProviders is on.
pub fn faults(config: &CredentialProviderConfig, tokens: bool) -> Vec<String> {
    let mut faults = Vec::new();
    if config.providers.is_empty() {
        faults.push("providers: Required value: at least 1 item in plugins is required".to_owned());
    }
    let mut names = BTreeSet::new();
    for provider in &config.providers {
        let name = &provider.name;
        let mut bad_name = |wrong: bool, why: &str| {
            if wrong {
                faults.push(format!(
                    "providers.name: Invalid value: {}: provider name cannot {why}",
                    quote(name)
                ));
            }
        };
        bad_name(name.contains('/'), "contain '/'");
        bad_name(name.contains(' '), "contain spaces");
        bad_name(name == ".", "be '.'");
        bad_name(name == "..", "be '..'");
        if !names.insert(name) {
            faults.push(format!("providers.name: Duplicate value: {}", quote(name)));
        }
        provider_faults(provider, &mut faults);
        if let Some(attributes) = &provider.token_attributes {
            token_faults(attributes, &provider.api_version, tokens, &mut faults);
        }
    }
    faults
}

fn provider_faults(provider: &CredentialProvider, faults: &mut Vec<String>) {
    let version = provider.api_version.as_str();
    if version.is_empty() {
        faults.push("providers.apiVersion: Required value".to_owned());
    } else if !API_VERSIONS.contains(&version) {
        faults.push(format!(
            "providers.apiVersion: Unsupported value: {}: supported values: {}",
            quote(version),
            API_VERSIONS.map(quote).join(", ")
        ));
    }
    if provider.match_images.is_empty() {
        faults.push(
            "providers.matchImages: Required value: at least 1 item in matchImages is required"
                .to_owned(),
        );
    }
    for image in &provider.match_images {
        if let Some(why) = url_fault(&format!("https://{image}")) {
            faults.push(format!(
                "providers.matchImages: Invalid value: {}: match image is invalid: {why}",
                quote(image)
            ));
        }
    }
    match provider.default_cache_duration {
        None => faults.push("providers.defaultCacheDuration: Required value".to_owned()),
        Some(duration) if duration < GoDuration::ZERO => faults.push(format!(
            "providers.defaultCacheDuration: Invalid value: {}: must be greater than or equal to 0",
            quote(&duration.to_string())
        )),
        Some(_) => {}
    }
}

fn token_faults(
    attributes: &TokenAttributes,
    version: &str,
    tokens: bool,
    faults: &mut Vec<String>,
) {
    const PATH: &str = "providers.tokenAttributes";
    if !tokens {
        faults.push(format!(
            "{PATH}: Forbidden: tokenAttributes is not supported when \
             KubeletServiceAccountTokenForCredentialProviders feature gate is disabled"
        ));
    }
    if attributes.service_account_token_audience.is_empty() {
        faults.push(format!("{PATH}.serviceAccountTokenAudience: Required value"));
    }
    if attributes.require_service_account.is_none() {
        faults.push(format!("{PATH}.requireServiceAccount: Required value"));
    }
    if version != "credentialprovider.kubelet.k8s.io/v1" {
        faults.push(format!(
            "{PATH}: Forbidden: tokenAttributes is only supported for \
             credentialprovider.kubelet.k8s.io/v1 API version"
        ));
    }
    let required = &attributes.required_service_account_annotation_keys;
    let optional = &attributes.optional_service_account_annotation_keys;
    if attributes.require_service_account == Some(false) && !required.is_empty() {
        faults.push(format!(
            "{PATH}.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot \
             be false when requiredServiceAccountAnnotationKeys is set"
        ));
    }
    for (name, keys) in [("required", required), ("optional", optional)] {
        let path = format!("{PATH}.{name}ServiceAccountAnnotationKeys");
        let mut seen = BTreeSet::new();
        for key in keys {
            for fault in qualified_name_faults(&key.to_lowercase()) {
                faults.push(format!("{path}: Invalid value: {}: {fault}", quote(key)));
            }
            if !seen.insert(key) {
                faults.push(format!("{path}: Duplicate value: {}", quote(key)));
            }
        }
    }
    let required: BTreeSet<&String> = required.iter().collect();
    let both: Vec<String> = optional
        .iter()
        .collect::<BTreeSet<_>>()
        .intersection(&required)
        .map(|key| quote(key))
        .collect();
    if !both.is_empty() {
        faults.push(format!(
            "{PATH}: Invalid value: [{}]: annotation keys cannot be both required and optional",
            both.join(",")
        ));
    }
    let cache = attributes.cache_type.as_str();
    if cache.is_empty() {
        faults.push(format!(
            "{PATH}.cacheType: Required value: cacheType is required to be set when \
             tokenAttributes is specified. Supported values are: {}",
            CACHE_TYPES.join(", ")
        ));
    } else if !CACHE_TYPES.contains(&cache) {
        faults.push(format!(
            "{PATH}.cacheType: Unsupported value: {}: supported values: {}",
            quote(cache),
            CACHE_TYPES.map(quote).join(", ")
        ));
    }
}

#[cfg(test)]
mod tests;
