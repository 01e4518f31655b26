//! CRI messages as JSON, in the shape the goldens have: proto field names, enums as names, 64-bit
//! numbers as strings, zero values left out, environment values as text.

use std::sync::OnceLock;

use anyhow::Context;
use base64::Engine as _;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;

use super::repository_root;

/// The methods of CRI, read from the project's own .proto file.
#[derive(Debug)]
pub(super) struct CriMessages {
    pool: DescriptorPool,
}

impl CriMessages {
    /// Parsed once per process.
    pub(super) fn get() -> anyhow::Result<&'static CriMessages> {
        static MESSAGES: OnceLock<Result<CriMessages, String>> = OnceLock::new();
        let parsed = MESSAGES.get_or_init(|| parse().map_err(|error| format!("{error:#}")));
        parsed.as_ref().map_err(|error| anyhow::Error::msg(error.clone()))
    }

    /// Request and response of one call (`/runtime.v1.RuntimeService/RunPodSandbox`) as JSON.
    pub(super) fn decode(
        &self,
        path: &str,
        request: &[u8],
        response: Option<&[u8]>,
    ) -> anyhow::Result<(Value, Value)> {
        let (service, method) =
            path.trim_start_matches('/').split_once('/').context("not a gRPC path")?;
        let service = self.pool.get_service_by_name(service).context("unknown service")?;
        let method = service.methods().find(|m| m.name() == method).context("unknown method")?;
        let request = to_json(DynamicMessage::decode(method.input(), request)?)?;
        let response = match response {
            Some(bytes) => to_json(DynamicMessage::decode(method.output(), bytes)?)?,
            None => Value::Null,
        };
        Ok((request, response))
    }
}

fn parse() -> anyhow::Result<CriMessages> {
    let folder = repository_root().join("crates/proto/proto");
    let file = folder.join("cri_v1.proto");
    let set = protox::compile([&file], [&folder])
        .with_context(|| format!("cannot read {}", file.display()))?;
    Ok(CriMessages { pool: DescriptorPool::from_file_descriptor_set(set)? })
}

fn to_json(message: DynamicMessage) -> anyhow::Result<Value> {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .skip_default_fields(true)
        .stringify_64_bit_integers(true);
    let mut value = message.serialize_with_options(serde_json::value::Serializer, &options)?;
    environment_as_text(&mut value);
    Ok(value)
}

/// `envs[].value` is bytes on the wire, hence base64 in JSON; people read text.
fn environment_as_text(value: &mut Value) {
    let Some(envs) = value.pointer_mut("/config/envs").and_then(Value::as_array_mut) else {
        return;
    };
    for entry in envs {
        if let Some(encoded) = entry["value"].as_str()
            && let Ok(bytes) = base64::engine::general_purpose::STANDARD.decode(encoded)
        {
            entry["value"] = String::from_utf8_lossy(&bytes).into_owned().into();
        }
    }
}
