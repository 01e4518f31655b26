//! A CSI driver that really mounts and records every call that violates the CSI contract. It stands for a
//! separate process: it survives a crash of the node, whose calls may not arrive and whose responses may be
//! lost.

use super::machine::{Machine, State};
use proto::csi_v1 as csi;
use proto::csi_v1::node_server::Node;
use proto::csi_v1::node_service_capability::rpc::Type as Capability;
use proto::csi_v1::volume_capability::AccessType;
use std::future::pending;
use std::path::Path;
use sys::mount;
use tonic::{Request, Response, Status};

pub(super) struct SimulatedDriver {
    pub(super) machine: Machine,
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

fn is_block(capability: Option<&csi::VolumeCapability>) -> bool {
    capability.is_some_and(|c| matches!(c.access_type, Some(AccessType::Block(_))))
}

impl SimulatedDriver {
    async fn answer<T: Default>(
        &self,
        method: &str,
        path: &str,
        work: impl FnOnce(&mut State) -> Result<(), Status>,
    ) -> Result<Response<T>, Status> {
        let path = Path::new(path);
        if !self.machine.change(method, path) {
            // The node crashed before the call.
            return pending().await;
        }
        let fault = {
            let mut state = self.machine.state();
            match state.faults {
                0 => u64::MAX,
                one_in => match state.rng.below(one_in) {
                    0 => state.rng.below(5),
                    _ => u64::MAX,
                },
            }
        };
        match fault {
            0 => return Err(Status::internal("refused")),
            1 => return Err(Status::unavailable("not now")),
            2 => return pending().await,
            _ => {}
        }
        let worked = work(&mut self.machine.state());
        match fault {
            3 => return worked.and(Err(Status::deadline_exceeded("done, but late"))),
            4 => {
                worked?;
                return pending().await;
            }
            _ => {}
        }
        if !self.machine.change("answered", path) {
            // The call took effect, but the node crashed before the response.
            return pending().await;
        }
        worked.map(|()| Response::new(T::default()))
    }
}

#[tonic::async_trait]
impl Node for SimulatedDriver {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let (id, path) = (request.volume_id.clone(), request.staging_target_path.clone());
        let block = is_block(request.volume_capability.as_ref());
        self.answer("NodeStageVolume", &path.clone(), move |state| {
            state.needs_attached(&id, "staged");
            if let Some(elsewhere) = state.storage.staged.get(&id)
                && elsewhere != Path::new(&path)
            {
                let elsewhere = elsewhere.display().to_string();
                state.wrong(format!("{id} staged at {path} and {elsewhere}"));
            }
            let place = Path::new(&path);
            if !block && !mount::is_mount_point(place).map_err(internal)? {
                mount::mount_fs("tmpfs", place, "tmpfs", false, "size=64k").map_err(internal)?;
            }
            state.storage.staged.insert(id, path.into());
            Ok(())
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let (id, path) = (request.volume_id, request.staging_target_path);
        self.answer("NodeUnstageVolume", &path.clone(), move |state| {
            if state.storage.staged.contains_key(&id) {
                state.needs_attached(&id, "unstaged");
            }
            let users: Vec<String> = (state.storage.published.iter())
                .filter(|(_, volume)| **volume == id)
                .map(|(target, _)| target.display().to_string())
                .collect();
            if !users.is_empty() {
                state.wrong(format!("{id} unstaged while published at {users:?}"));
            }
            mount::unmount_all_at(Path::new(&path)).map_err(internal)?;
            state.storage.staged.remove(&id);
            Ok(())
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let block = is_block(request.volume_capability.as_ref());
        let (id, path) = (request.volume_id.clone(), request.target_path.clone());
        self.answer("NodePublishVolume", &path.clone(), move |state| {
            let staging = Path::new(&request.staging_target_path);
            let inline = request.staging_target_path.is_empty();
            state.needs_attached(&id, "published");
            let staged = state.storage.staged.get(&id).map(std::path::PathBuf::as_path);
            if !inline && staged != Some(staging) {
                state.wrong(format!("{id} published at {path} but not staged"));
                return Err(Status::failed_precondition("not staged"));
            }
            let target = Path::new(&path);
            if let Some(other) = state.storage.published.get(target)
                && *other != id
            {
                let other = other.clone();
                state.wrong(format!("{id} published over {other} at {path}"));
            }
            if block {
                std::fs::write(target, [0; 4096])?;
            } else {
                std::fs::create_dir_all(target)?;
                match mount::is_mount_point(target).map_err(internal)? {
                    true => {}
                    false if inline => mount::mount_fs("tmpfs", target, "tmpfs", false, "size=64k")
                        .map_err(internal)?,
                    false => mount::bind(staging, target, false).map_err(internal)?,
                }
            }
            state.storage.published.insert(target.to_owned(), id);
            Ok(())
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (id, path) = (request.volume_id, request.target_path);
        self.answer("NodeUnpublishVolume", &path.clone(), move |state| {
            let target = Path::new(&path);
            let pod_of_device = target.file_name().is_some_and(|name| {
                path.contains("/volumeDevices/publish/")
                    && state.running.contains(&*name.to_string_lossy())
            });
            if state.user(target).is_some() || pod_of_device {
                state.wrong(format!("{id} unpublished from running containers at {path}"));
            }
            mount::unmount_all_at(target).map_err(internal)?;
            if target.is_dir() {
                std::fs::remove_dir(target)?;
            } else if target.exists() {
                std::fs::remove_file(target)?;
            }
            state.storage.published.remove(target);
            Ok(())
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let flaky = {
            let mut state = self.machine.state();
            let one_in = state.faults * 8;
            one_in > 0 && state.rng.below(one_in) == 0
        };
        if flaky {
            return Err(Status::unavailable("not now"));
        }
        let can = |what: Capability| {
            let rpc = csi::node_service_capability::Rpc { r#type: what.into() };
            let kind = csi::node_service_capability::Type::Rpc(rpc);
            csi::NodeServiceCapability { r#type: Some(kind) }
        };
        let capabilities = vec![can(Capability::StageUnstageVolume), can(Capability::ExpandVolume)];
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _request: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn node_get_volume_stats(
        &self,
        _request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let (id, path) = (request.volume_id, request.volume_path);
        let wanted = request.capacity_range.map_or(0, |range| range.required_bytes);
        self.answer("NodeExpandVolume", &path.clone(), move |state| {
            if state.storage.published.get(Path::new(&path)) != Some(&id) {
                state.wrong(format!("{id} expanded at {path}, where it is not"));
            }
            let size = state.storage.sizes.entry(id.clone()).or_default();
            if wanted < *size {
                let size = *size;
                state.wrong(format!("{id} shrunk from {size} to {wanted}"));
            } else {
                *size = wanted;
            }
            Ok(())
        })
        .await
    }
}
