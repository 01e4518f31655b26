//! The driver's controller service: enough of it that csi-sanity can make, grow and delete volumes.
//!
//! A volume is a folder below `volumes`, its size a number in `sizes`. The parameter `image` of a class
//! makes it an image with a file system instead, as soon as it is first used.

use super::CsiDriverConfig;
use super::node::check_id;
use proto::csi_v1 as csi;
use proto::csi_v1::controller_server::Controller;
use proto::csi_v1::controller_service_capability::rpc::Type as Capability;
use std::path::PathBuf;
use tonic::{Request, Response, Status};

const DEFAULT_SIZE: i64 = 16 << 20;

/// One instance per driver; all state is on disk.
pub(super) struct ControllerService {
    pub(super) config: CsiDriverConfig,
}

impl ControllerService {
    fn size_file(&self, id: &str) -> PathBuf {
        self.config.data.join("sizes").join(id)
    }

    fn size(&self, id: &str) -> Option<i64> {
        std::fs::read_to_string(self.size_file(id)).ok()?.trim().parse().ok()
    }

    fn set_size(&self, id: &str, size: i64) -> Result<(), Status> {
        std::fs::create_dir_all(self.config.data.join("sizes"))?;
        Ok(std::fs::write(self.size_file(id), size.to_string())?)
    }
}

fn wanted(range: Option<&csi::CapacityRange>) -> i64 {
    let asked =
        range.map_or(0, |r| if r.required_bytes > 0 { r.required_bytes } else { r.limit_bytes });
    if asked > 0 { asked } else { DEFAULT_SIZE }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        if request.name.is_empty() {
            return Err(Status::invalid_argument("Name missing in request"));
        }
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("Volume Capabilities missing in request"));
        }
        // The name becomes the id, and so a file name.
        if check_id(&request.name).is_err() {
            return Err(Status::invalid_argument("the name is not a plain file name"));
        }
        let size = wanted(request.capacity_range.as_ref());
        match self.size(&request.name) {
            Some(known) if known != size => {
                return Err(Status::already_exists("the volume exists with another size"));
            }
            Some(_) => {}
            None => {
                std::fs::create_dir_all(self.config.data.join("volumes").join(&request.name))?;
                self.set_size(&request.name, size)?;
            }
        }
        let volume = csi::Volume {
            capacity_bytes: size,
            volume_id: request.name,
            volume_context: request.parameters,
        };
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        if id.is_empty() {
            return Err(Status::invalid_argument("Volume ID missing in request"));
        }
        // What was never made is as good as deleted.
        if check_id(&id).is_ok() {
            let volumes = self.config.data.join("volumes");
            let _ = std::fs::remove_file(volumes.join(format!("{id}.img")));
            if volumes.join(&id).is_dir() {
                std::fs::remove_dir_all(volumes.join(&id))?;
            }
            let _ = std::fs::remove_file(self.size_file(&id));
        }
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        check_id(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("Volume Capabilities missing in request"));
        }
        if self.size(&request.volume_id).is_none() {
            return Err(Status::not_found(format!("no volume {}", request.volume_id)));
        }
        Ok(Response::new(csi::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(csi::validate_volume_capabilities_response::Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
            }),
            message: String::new(),
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _request: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = [Capability::CreateDeleteVolume, Capability::ExpandVolume]
            .into_iter()
            .map(|kind| csi::ControllerServiceCapability {
                r#type: Some(csi::controller_service_capability::Type::Rpc(
                    csi::controller_service_capability::Rpc { r#type: kind.into() },
                )),
            })
            .collect();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        check_id(&request.volume_id)?;
        if request.capacity_range.is_none() {
            return Err(Status::invalid_argument("Capacity range missing in request"));
        }
        let Some(known) = self.size(&request.volume_id) else {
            return Err(Status::not_found(format!("no volume {}", request.volume_id)));
        };
        let size = wanted(request.capacity_range.as_ref()).max(known);
        self.set_size(&request.volume_id, size)?;
        Ok(Response::new(csi::ControllerExpandVolumeResponse {
            capacity_bytes: size,
            node_expansion_required: true,
        }))
    }
}
