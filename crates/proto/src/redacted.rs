//! `Debug` for messages that carry credentials: says which secrets are set, never what they are.

use std::collections::BTreeMap;
use std::fmt;

use crate::{cri_v1, csi_v1};

/// Stands for a secret text: empty or `[redacted]`.
struct Hidden<'a>(&'a str);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "\"\"" } else { "[redacted]" })
    }
}

/// Shows the keys of a secret map.
struct HiddenValues<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for HiddenValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(key, value)| (key, Hidden(value)))).finish()
    }
}

impl fmt::Debug for cri_v1::AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { username, password, auth, server_address, identity_token, registry_token } =
            self;
        f.debug_struct("AuthConfig")
            .field("username", username)
            .field("password", &Hidden(password))
            .field("auth", &Hidden(auth))
            .field("server_address", server_address)
            .field("identity_token", &Hidden(identity_token))
            .field("registry_token", &Hidden(registry_token))
            .finish()
    }
}

impl fmt::Debug for csi_v1::NodeStageVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStageVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &self.publish_context)
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("secrets", &HiddenValues(&self.secrets))
            .field("volume_context", &VolumeContext(&self.volume_context))
            .finish()
    }
}

impl fmt::Debug for csi_v1::NodePublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &self.publish_context)
            .field("staging_target_path", &self.staging_target_path)
            .field("target_path", &self.target_path)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("secrets", &HiddenValues(&self.secrets))
            .field("volume_context", &VolumeContext(&self.volume_context))
            .finish()
    }
}

impl fmt::Debug for csi_v1::NodeExpandVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeExpandVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("volume_path", &self.volume_path)
            .field("capacity_range", &self.capacity_range)
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("secrets", &HiddenValues(&self.secrets))
            .finish()
    }
}

/// A volume context, in which a driver may have been handed service account tokens.
struct VolumeContext<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for VolumeContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
        let mut map = f.debug_map();
        for (key, value) in self.0 {
            match key.as_str() {
                TOKENS => map.entry(key, &Hidden(value)),
                _ => map.entry(key, value),
            };
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_credential_prints_its_user_but_no_secret() {
        let auth = cri_v1::AuthConfig {
            username: "ada".into(),
            password: "pw-1".into(),
            auth: "pw-2".into(),
            identity_token: "pw-3".into(),
            registry_token: "pw-4".into(),
            ..Default::default()
        };
        let pull = cri_v1::PullImageRequest { auth: Some(auth), ..Default::default() };
        let text = format!("{pull:?}");
        assert!(text.contains("ada") && text.contains("[redacted]"), "{text}");
        assert!(!text.contains("pw-"), "{text}");
    }

    #[test]
    fn a_volume_request_prints_no_secret_and_no_token() {
        let secrets = BTreeMap::from([("key".to_owned(), "pw-1".to_owned())]);
        let volume_context = BTreeMap::from([
            ("csi.storage.k8s.io/serviceAccount.tokens".to_owned(), "pw-2".to_owned()),
            ("share".to_owned(), "plain".to_owned()),
        ]);
        let publish = csi_v1::NodePublishVolumeRequest {
            secrets: secrets.clone(),
            volume_context: volume_context.clone(),
            ..Default::default()
        };
        let stage = csi_v1::NodeStageVolumeRequest {
            secrets: secrets.clone(),
            volume_context,
            ..Default::default()
        };
        let expand = csi_v1::NodeExpandVolumeRequest { secrets, ..Default::default() };
        let text = format!("{publish:?} {stage:?} {expand:?}");
        assert!(text.contains("plain") && text.contains("[redacted]"), "{text}");
        assert!(!text.contains("pw-"), "{text}");
    }
}
