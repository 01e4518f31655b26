//! TLS settings of the HTTPS API by Go's names.

use crate::kubelet::KubeletConfiguration;
use crate::log::LogLine;
use units::strconv::quote;

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.0.
    V10,
    /// 1.1.
    V11,
    /// 1.2.
    V12,
    /// 1.3.
    V13,
}

const SAFE: [&str; 15] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
const INSECURE: [&str; 12] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];
const CURVES: [i32; 7] = [23, 24, 25, 29, 4587, 4588, 4589];

/// Checks the names; answers the lowest version. What is to be logged is, whatever is found later.
pub(super) fn check(
    k: &KubeletConfiguration,
    lines: &mut Vec<LogLine>,
) -> Result<TlsVersion, String> {
    let insecure = |suite: &&String| INSECURE.contains(&suite.as_str());
    let known = |suite: &&String| SAFE.contains(&suite.as_str()) || insecure(suite);
    if let Some(suite) = k.tls_cipher_suites.iter().find(|suite| !known(suite)) {
        return Err(format!("Cipher suite {suite} not supported or doesn't exist"));
    }
    for suite in k.tls_cipher_suites.iter().filter(insecure) {
        lines
            .push(LogLine::info("Use of insecure cipher detected.").with("cipher", suite.as_str()));
    }
    let version = match k.tls_min_version.as_str() {
        "VersionTLS10" => TlsVersion::V10,
        "VersionTLS11" => TlsVersion::V11,
        "" | "VersionTLS12" => TlsVersion::V12,
        "VersionTLS13" => TlsVersion::V13,
        other => return Err(format!("unknown tls version {}", quote(other))),
    };
    if version == TlsVersion::V13 && !k.tls_cipher_suites.is_empty() {
        lines.push(LogLine::info(
            "Warning: TLS 1.3 cipher suites are not configurable, ignoring --tls-cipher-suites",
        ));
    }
    for (index, curve) in k.tls_curve_preferences.iter().enumerate() {
        if !(1..=65535).contains(curve) {
            return Err(format!("curve preference {curve} is out of range (must be 1-65535)"));
        }
        if k.tls_curve_preferences.iter().take(index).any(|earlier| earlier == curve) {
            return Err(format!("duplicate curve preference {curve}"));
        }
        if !CURVES.contains(curve) {
            return Err(format!(
                "curve preference {curve} is not supported by the current Go version"
            ));
        }
    }
    Ok(version)
}
