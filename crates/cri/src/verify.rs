//! Required fields of responses. (cri-client: `verifySandboxStatus`, `verifyContainerStatus`.)

use proto::cri_v1::{
    ContainerStatus, ImageStatusResponse, PodSandboxStatus, StatusResponse, VersionResponse,
};
use telemetry::go_text::quote;

type Verdict = Result<(), String>;

fn unless(missing: bool, problem: &str) -> Verdict {
    if missing { Err(problem.to_owned()) } else { Ok(()) }
}

pub(crate) fn sandbox_status(status: &PodSandboxStatus) -> Verdict {
    unless(status.id.is_empty(), "status.Id is not set")?;
    let Some(metadata) = &status.metadata else {
        return Err("status.Metadata is not set".to_owned());
    };
    if metadata.name.is_empty() || metadata.namespace.is_empty() || metadata.uid.is_empty() {
        let shown = quote(&format!("{}/{} ({})", metadata.namespace, metadata.name, metadata.uid));
        return Err(format!(
            "metadata.Name, metadata.Namespace or metadata.Uid is not in metadata {shown}"
        ));
    }
    unless(status.created_at == 0, "status.CreatedAt is not set")
}

pub(crate) fn container_status(status: &ContainerStatus) -> Verdict {
    unless(status.id.is_empty(), "status.Id is not set")?;
    let Some(metadata) = &status.metadata else {
        return Err("status.Metadata is not set".to_owned());
    };
    unless(metadata.name.is_empty(), "metadata.Name is not in metadata \"\"")?;
    unless(status.created_at == 0, "status.CreatedAt is not set")?;
    let image = status.image.as_ref().map(|spec| spec.image.as_str());
    unless(image.unwrap_or_default().is_empty(), "status.Image is not set")?;
    unless(status.image_ref.is_empty(), "status.ImageRef is not set")
}

pub(crate) fn version(version: &VersionResponse) -> Verdict {
    let fields = [
        ("Version", &version.version),
        ("RuntimeName", &version.runtime_name),
        ("RuntimeApiVersion", &version.runtime_api_version),
        ("RuntimeVersion", &version.runtime_version),
    ];
    let missing: Vec<&str> =
        fields.iter().filter(|(_, value)| value.is_empty()).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("not all fields are set in VersionResponse (missing {})", missing.join(", ")))
}

pub(crate) fn runtime_status(response: &StatusResponse) -> Verdict {
    let conditions = response.status.as_ref().map_or(0, |status| status.conditions.len());
    unless(conditions < 2, "RuntimeReady or NetworkReady condition are not set")
}

pub(crate) fn image_status(image: &str, response: &ImageStatusResponse) -> Verdict {
    match &response.image {
        Some(found) if found.id.is_empty() || found.size == 0 => {
            Err(format!("Id or size of image {} is not set", quote(image)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proto::cri_v1::{ContainerMetadata, Image, ImageSpec, PodSandboxMetadata};

    use super::*;

    #[test]
    fn a_sandbox_needs_id_metadata_and_creation_time() {
        let metadata = PodSandboxMetadata {
            name: "n".into(),
            namespace: "ns".into(),
            uid: "u".into(),
            attempt: 0,
        };
        let good = PodSandboxStatus {
            id: "i".into(),
            metadata: Some(metadata),
            created_at: 1,
            ..Default::default()
        };
        assert_eq!(sandbox_status(&good), Ok(()));
        let cases = [
            (PodSandboxStatus { id: String::new(), ..good.clone() }, "status.Id is not set"),
            (PodSandboxStatus { metadata: None, ..good.clone() }, "status.Metadata is not set"),
            (PodSandboxStatus { created_at: 0, ..good }, "status.CreatedAt is not set"),
        ];
        for (status, want) in cases {
            assert_eq!(sandbox_status(&status), Err(want.to_owned()));
        }
    }

    #[test]
    fn a_container_needs_its_image_too() {
        let good = ContainerStatus {
            id: "i".into(),
            metadata: Some(ContainerMetadata { name: "c".into(), attempt: 0 }),
            created_at: 1,
            image: Some(ImageSpec { image: "img".into(), ..Default::default() }),
            image_ref: "ref".into(),
            ..Default::default()
        };
        assert_eq!(container_status(&good), Ok(()));
        let bad = ContainerStatus { image_ref: String::new(), ..good.clone() };
        assert_eq!(container_status(&bad), Err("status.ImageRef is not set".to_owned()));
        let bad = ContainerStatus { image: Some(ImageSpec::default()), ..good };
        assert_eq!(container_status(&bad), Err("status.Image is not set".to_owned()));
    }

    #[test]
    fn a_version_names_every_missing_field() {
        let answer = VersionResponse { runtime_name: "x".into(), ..Default::default() };
        assert_eq!(
            version(&answer).unwrap_err(),
            "not all fields are set in VersionResponse (missing Version, RuntimeApiVersion, RuntimeVersion)"
        );
    }

    #[test]
    fn an_absent_image_is_fine_but_one_without_size_is_not() {
        assert_eq!(image_status("a", &ImageStatusResponse::default()), Ok(()));
        let image = Image { id: "x".into(), ..Default::default() };
        let answer = ImageStatusResponse { image: Some(image), ..Default::default() };
        assert_eq!(image_status("a", &answer).unwrap_err(), "Id or size of image \"a\" is not set");
    }
}
