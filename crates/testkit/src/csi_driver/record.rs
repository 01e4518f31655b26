//! What the driver was asked, as JSON lines: everything but the values of secrets and tokens.

use proto::csi_v1 as csi;
use proto::csi_v1::volume_capability::AccessType;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A request that can be written down.
pub(super) trait Record {
    /// Its fields; empty ones are left out.
    fn record(&self) -> Value;
}

fn capability(capability: Option<&csi::VolumeCapability>) -> Value {
    let Some(capability) = capability else { return Value::Null };
    let mode = capability.access_mode.map(|m| format!("{:?}", m.mode()));
    let kind = match &capability.access_type {
        Some(AccessType::Block(_)) => json!("block"),
        Some(AccessType::Mount(mount)) => fields([
            ("fs_type", json!(mount.fs_type)),
            ("mount_flags", json!(mount.mount_flags)),
            ("volume_mount_group", json!(mount.volume_mount_group)),
        ]),
        None => Value::Null,
    };
    json!({"mode": mode, "access": kind})
}

fn context(map: &BTreeMap<String, String>) -> Value {
    let shown = map.iter().map(|(key, value)| {
        let value = if key.contains("token") { "..." } else { value.as_str() };
        (key.clone(), json!(value))
    });
    Value::Object(shown.collect())
}

fn keys(map: &BTreeMap<String, String>) -> Value {
    json!(map.keys().collect::<Vec<_>>())
}

fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
    };
    let kept = pairs.into_iter().filter(|(_, value)| !is_empty(value));
    Value::Object(kept.map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>())
}

impl Record for csi::NodeStageVolumeRequest {
    fn record(&self) -> Value {
        fields([
            ("volume_id", json!(self.volume_id)),
            ("publish_context", context(&self.publish_context)),
            ("staging_target_path", json!(self.staging_target_path)),
            ("volume_capability", capability(self.volume_capability.as_ref())),
            ("secrets", keys(&self.secrets)),
            ("volume_context", context(&self.volume_context)),
        ])
    }
}

impl Record for csi::NodeUnstageVolumeRequest {
    fn record(&self) -> Value {
        fields([
            ("volume_id", json!(self.volume_id)),
            ("staging_target_path", json!(self.staging_target_path)),
        ])
    }
}

impl Record for csi::NodePublishVolumeRequest {
    fn record(&self) -> Value {
        fields([
            ("volume_id", json!(self.volume_id)),
            ("publish_context", context(&self.publish_context)),
            ("staging_target_path", json!(self.staging_target_path)),
            ("target_path", json!(self.target_path)),
            ("volume_capability", capability(self.volume_capability.as_ref())),
            ("readonly", json!(self.readonly)),
            ("secrets", keys(&self.secrets)),
            ("volume_context", context(&self.volume_context)),
        ])
    }
}

impl Record for csi::NodeUnpublishVolumeRequest {
    fn record(&self) -> Value {
        fields([("volume_id", json!(self.volume_id)), ("target_path", json!(self.target_path))])
    }
}

impl Record for csi::NodeGetVolumeStatsRequest {
    fn record(&self) -> Value {
        fields([
            ("volume_id", json!(self.volume_id)),
            ("volume_path", json!(self.volume_path)),
            ("staging_target_path", json!(self.staging_target_path)),
        ])
    }
}

impl Record for csi::NodeExpandVolumeRequest {
    fn record(&self) -> Value {
        let range = self.capacity_range.as_ref();
        fields([
            ("volume_id", json!(self.volume_id)),
            ("volume_path", json!(self.volume_path)),
            ("required_bytes", json!(range.map_or(0, |r| r.required_bytes))),
            ("limit_bytes", json!(range.map_or(0, |r| r.limit_bytes))),
            ("staging_target_path", json!(self.staging_target_path)),
            ("volume_capability", capability(self.volume_capability.as_ref())),
            ("secrets", keys(&self.secrets)),
        ])
    }
}

impl Record for csi::NodeGetInfoRequest {
    fn record(&self) -> Value {
        json!({})
    }
}

impl Record for csi::NodeGetCapabilitiesRequest {
    fn record(&self) -> Value {
        json!({})
    }
}
