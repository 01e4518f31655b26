//! Authentication by client certificate.

use arc_swap::ArcSwapOption;
use ports::UserInfo;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{DistinguishedName, RootCertStore};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use x509_parser::x509::X509Name;

/// The client CA bundle, re-read when its file changes.
#[derive(Debug)]
pub struct ClientAuthorities {
    file: PathBuf,
    verifier: ArcSwapOption<VerifierBox>,
}

#[derive(Debug)]
struct VerifierBox {
    bundle: Vec<u8>,
    certificates: Vec<CertificateDer<'static>>,
    /// Provides the CA names that are sent to clients in the handshake.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl ClientAuthorities {
    /// Reads the bundle; the error message is meant for the operator.
    pub fn read(file: &Path) -> Result<Self, String> {
        let this = Self { file: file.to_owned(), verifier: ArcSwapOption::empty() };
        this.reload()?;
        Ok(this)
    }

    /// The distinguished names of the authorities.
    pub(crate) fn names(&self) -> Vec<DistinguishedName> {
        let known = self.verifier.load();
        let known = known.as_ref().and_then(|known| known.verifier.as_ref());
        known.map(|verifier| verifier.root_hint_subjects().to_vec()).unwrap_or_default()
    }

    /// The path of the bundle.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Reads the bundle again if it has changed; an invalid file leaves the previous bundle in
    /// force.
    pub fn reload(&self) -> Result<(), String> {
        let bundle = sys::fs::read(&self.file)
            .map_err(|e| format!("open {}: {}", self.file.display(), e.source))?;
        if self.verifier.load().as_ref().is_some_and(|known| known.bundle == bundle) {
            return Ok(());
        }
        // As in Go, PEM blocks of other types are skipped; a malformed certificate is an error.
        let blocks = units::pem::blocks(&bundle).into_iter();
        let blocks = blocks.filter(|block| block.label == "CERTIFICATE" && !block.has_headers);
        let certificates: Vec<_> = blocks.map(|block| CertificateDer::from(block.bytes)).collect();
        let is_broken = |c: &CertificateDer<'_>| units::x509::outline_fault(c).is_some();
        if certificates.is_empty() || certificates.iter().any(is_broken) {
            let what = if certificates.is_empty() { "no" } else { "a broken" };
            return Err(format!("client CA file {} has {what} certificate", self.file.display()));
        }
        let mut roots = RootCertStore::empty();
        // Go can parse some certificates that rustls cannot; those are missing from the names sent
        // to clients, but verification uses them.
        let (usable, _) = roots.add_parsable_certificates(certificates.iter().cloned());
        let builder = WebPkiClientVerifier::builder(Arc::new(roots));
        let verifier = (usable > 0).then(|| builder.build()).transpose();
        let verifier =
            verifier.map_err(|e| format!("client CA file {}: {e}", self.file.display()))?;
        self.verifier.store(Some(Arc::new(VerifierBox { bundle, certificates, verifier })));
        Ok(())
    }

    /// The user named by a verified chain, and the seconds until its certificate expires; `None`
    /// without a common name.
    pub(crate) fn user(
        &self,
        chain: &[CertificateDer<'static>],
    ) -> Result<Option<(UserInfo, f64)>, String> {
        let Some(leaf) = chain.first() else { return Ok(None) };
        let verifier = self.verifier.load();
        let Some(known) = verifier.as_ref() else { return Ok(None) };
        let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        super::chain::verify(chain, &known.certificates, &algorithms, now)
            .map_err(|e| e.to_string())?;
        let (_, certificate) =
            x509_parser::parse_x509_certificate(leaf).map_err(|e| e.to_string())?;
        let subject = certificate.subject();
        // Go takes the last common name.
        let name = subject.iter_common_name().last().and_then(|cn| cn.as_str().ok());
        let Some(name) = name.filter(|n| !n.is_empty()) else { return Ok(None) };
        let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned));
        let fingerprint = ring::digest::digest(&ring::digest::SHA256, leaf);
        let hex: String = fingerprint.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        #[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
        let left = certificate.validity().not_after.timestamp().saturating_sub(now) as f64;
        let user = UserInfo {
            name: name.to_owned(),
            uid: uid(subject)?,
            groups: groups.collect(),
            extra: BTreeMap::from([(
                "authentication.kubernetes.io/credential-id".to_owned(),
                vec![format!("X509SHA256={hex}")],
            )]),
        };
        Ok(Some((user, left)))
    }
}

/// The user's UID, if the certificate names one (apiserver: `parseUIDFromCert`).
fn uid(subject: &X509Name<'_>) -> Result<String, String> {
    const UID: &str = "1.3.6.1.4.1.57683.2";
    let named = subject.iter_attributes().filter(|part| part.attr_type().to_id_string() == UID);
    let mut found = Vec::new();
    for part in named {
        let text = part.as_str().map_err(|_| "unable to parse UID into a string".to_owned())?;
        found.push(text.to_owned());
    }
    match found.as_slice() {
        [] => Ok(String::new()),
        [only] if only.is_empty() => Err("UID cannot be an empty string".to_owned()),
        [only] => Ok(only.clone()),
        many => Err(format!("expected 1 UID, but found multiple: [{}]", many.join(" "))),
    }
}
