//! The driver's node service.

use super::CsiDriverConfig;
use super::record::Record;
use proto::csi_v1 as csi;
use proto::csi_v1::node_server::Node;
use proto::csi_v1::node_service_capability::rpc::Type as Capability;
use proto::csi_v1::volume_capability::AccessType;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use sys::{loop_device, mount};
use tonic::{Code, Request, Response, Status};

const DEFAULT_SIZE: u64 = 16 << 20;

/// One instance per driver; all state is on disk.
pub(super) struct NodeService {
    config: CsiDriverConfig,
}

enum Fault {
    None,
    Before(Status),
    After(Status),
    Hang,
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

fn code(name: &str) -> Code {
    (0..17).map(Code::from_i32).find(|c| format!("{c:?}") == name).unwrap_or(Code::Internal)
}

fn has(text: &str, what: &str) -> Result<(), Status> {
    if text.is_empty() {
        return Err(Status::invalid_argument(format!("{what} missing in request")));
    }
    Ok(())
}

/// Only plain names: the id becomes a file name.
pub(super) fn check_id(id: &str) -> Result<(), Status> {
    has(id, "Volume ID")?;
    if id.contains('/') || id.starts_with('.') {
        return Err(Status::not_found(format!("no volume {id}")));
    }
    Ok(())
}

impl NodeService {
    pub(super) fn new(config: CsiDriverConfig) -> Self {
        Self { config }
    }

    fn note(&self, method: &str, request: &impl Record) -> Result<(), Status> {
        let request = request.record();
        let id = request["volume_id"].as_str().unwrap_or_default();
        let lines = [
            ("calls.log", format!("{method} {id}")),
            ("requests.jsonl", json!({"method": method, "request": request}).to_string()),
        ];
        for (file, line) in lines {
            let path = self.config.data.join(file);
            let mut log = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            log.write_all(format!("{line}\n").as_bytes())?;
        }
        Ok(())
    }

    async fn run<T: Default>(
        &self,
        method: &'static str,
        request: &impl Record,
        work: impl FnOnce() -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        self.note(method, request)?;
        let record = request.record();
        match self.fault(method, record["volume_id"].as_str().unwrap_or_default()) {
            Fault::Hang => std::future::pending().await,
            Fault::Before(status) => Err(status),
            Fault::After(status) => work().and(Err(status)),
            Fault::None => work().map(Response::new),
        }
    }

    fn fault(&self, method: &str, volume: &str) -> Fault {
        let faults = self.config.data.join("faults");
        let own = faults.join(format!("{method}.{volume}"));
        let path = if own.is_file() { own } else { faults.join(method) };
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let status = |name: &str| Status::new(code(name), format!("{method} told to fail"));
        let words: Vec<&str> = text.split_whitespace().collect();
        if let [when, name, times] = words.as_slice() {
            // Whoever asks for one volume waits for the answer: nobody else counts meanwhile.
            let left = times.parse::<u32>().unwrap_or_default().saturating_sub(1);
            let counted = match left {
                0 => std::fs::remove_file(&path),
                _ => std::fs::write(&path, format!("{when} {name} {left}")),
            };
            if let Err(error) = counted {
                tracing::warn!(%error, method, "fault not counted");
            }
        }
        match words.as_slice() {
            ["before", name, ..] => Fault::Before(status(name)),
            ["after", name, ..] => Fault::After(status(name)),
            ["hang"] => Fault::Hang,
            _ => Fault::None,
        }
    }

    fn folder(&self, id: &str) -> PathBuf {
        self.config.data.join("volumes").join(id)
    }

    fn image(&self, id: &str) -> PathBuf {
        self.config.data.join("volumes").join(format!("{id}.img"))
    }

    fn device(&self, id: &str) -> Result<Option<PathBuf>, Status> {
        loop_device::find(Path::new("/sys"), Path::new("/dev"), &self.image(id)).map_err(internal)
    }

    /// The volume's loop device; image and device are made if missing.
    fn attach(&self, id: &str, context: &BTreeMap<String, String>) -> Result<PathBuf, Status> {
        let image = self.image(id);
        if std::fs::metadata(&image).is_err() {
            std::fs::create_dir_all(self.config.data.join("volumes"))?;
            let size = context.get("size").and_then(|s| s.parse().ok()).unwrap_or(DEFAULT_SIZE);
            std::fs::File::create(&image)?.set_len(size)?;
        }
        match self.device(id)? {
            Some(device) => Ok(device),
            None => loop_device::attach(Path::new("/dev"), &image, false).map_err(internal),
        }
    }

    /// What a filesystem volume shows: a folder, or with the attribute `image` an ext4 image.
    fn mount_source(
        &self,
        id: &str,
        context: &BTreeMap<String, String>,
        target: &Path,
    ) -> Result<(), Status> {
        if mount::is_mount_point(target).map_err(internal)? {
            return Ok(());
        }
        if context.contains_key("image") {
            let fresh = std::fs::metadata(self.image(id)).is_err();
            let device = self.attach(id, context)?;
            if fresh {
                command("mkfs.ext4", &["-q", "-F", &device.to_string_lossy()])?;
            }
            return mount::mount_fs(&device.to_string_lossy(), target, "ext4", false, "")
                .map_err(internal);
        }
        let folder = self.folder(id);
        std::fs::create_dir_all(&folder)?;
        mount::bind(&folder, target, false).map_err(internal)
    }

    fn stage(&self, request: &csi::NodeStageVolumeRequest) -> Result<(), Status> {
        let target = Path::new(&request.staging_target_path);
        if is_block(request.volume_capability.as_ref()) {
            return self.attach(&request.volume_id, &request.volume_context).map(drop);
        }
        std::fs::create_dir_all(target)?;
        self.mount_source(&request.volume_id, &request.volume_context, target)
    }

    fn publish(&self, request: &csi::NodePublishVolumeRequest) -> Result<(), Status> {
        let (id, target) = (&request.volume_id, Path::new(&request.target_path));
        let staged = self.config.stages && !request.staging_target_path.is_empty();
        if is_block(request.volume_capability.as_ref()) {
            let device = self.attach(id, &request.volume_context)?;
            if std::fs::metadata(target).is_err() {
                std::fs::File::create(target)?;
            }
            if mount::is_mount_point(target).map_err(internal)? {
                return Ok(());
            }
            return mount::bind(&device, target, false).map_err(internal);
        }
        std::fs::create_dir_all(target)?;
        if mount::is_mount_point(target).map_err(internal)? {
            return Ok(());
        }
        if staged {
            let staging = Path::new(&request.staging_target_path);
            if !mount::is_mount_point(staging).map_err(internal)? {
                return Err(Status::failed_precondition("volume is not staged"));
            }
            return mount::bind(staging, target, request.readonly).map_err(internal);
        }
        self.mount_source(id, &request.volume_context, target)
    }
}

fn is_block(capability: Option<&csi::VolumeCapability>) -> bool {
    capability.is_some_and(|c| matches!(c.access_type, Some(AccessType::Block(_))))
}

fn command(program: &str, arguments: &[&str]) -> Result<(), Status> {
    let output = std::process::Command::new(program).args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(internal(format!("{program}: {}", String::from_utf8_lossy(&output.stderr))))
}

fn remove_target(target: &Path) -> Result<(), Status> {
    mount::unmount_all_at(target).map_err(internal)?;
    match std::fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => std::fs::remove_dir(target)?,
        Ok(_) => std::fs::remove_file(target)?,
        Err(_) => {}
    }
    Ok(())
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeStageVolume", &request, || {
            check_id(&request.volume_id)?;
            has(&request.staging_target_path, "Target path")?;
            if request.volume_capability.is_none() {
                return Err(Status::invalid_argument("Volume Capability missing in request"));
            }
            self.stage(&request).map(|()| csi::NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeUnstageVolume", &request, || {
            check_id(&request.volume_id)?;
            has(&request.staging_target_path, "Target path")?;
            mount::unmount_all_at(Path::new(&request.staging_target_path)).map_err(internal)?;
            if let Some(device) = self.device(&request.volume_id)? {
                loop_device::detach(&device).map_err(internal)?;
            }
            Ok(csi::NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let keys: Vec<&str> = request.volume_context.keys().map(String::as_str).collect();
        std::fs::write(self.config.data.join("context-keys"), keys.join("\n"))?;
        let keys: Vec<&str> = request.secrets.keys().map(String::as_str).collect();
        std::fs::write(self.config.data.join("secret-keys"), keys.join("\n"))?;
        self.run("NodePublishVolume", &request, || {
            check_id(&request.volume_id)?;
            has(&request.target_path, "Target path")?;
            if request.volume_capability.is_none() {
                return Err(Status::invalid_argument("Volume capability missing in request"));
            }
            self.publish(&request).map(|()| csi::NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeUnpublishVolume", &request, || {
            check_id(&request.volume_id)?;
            has(&request.target_path, "Target path")?;
            remove_target(Path::new(&request.target_path))?;
            Ok(csi::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeGetVolumeStats", &request, || {
            check_id(&request.volume_id)?;
            has(&request.volume_path, "Volume path")?;
            if std::fs::metadata(&request.volume_path).is_err() {
                return Err(Status::not_found("no such volume path"));
            }
            let found = mount::capacity(Path::new(&request.volume_path)).map_err(internal)?;
            let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            let usage = |total, available, used, unit: csi::volume_usage::Unit| csi::VolumeUsage {
                total: number(total),
                available: number(available),
                used: number(used),
                unit: unit.into(),
            };
            Ok(csi::NodeGetVolumeStatsResponse {
                usage: vec![
                    usage(
                        found.capacity,
                        found.available,
                        found.used,
                        csi::volume_usage::Unit::Bytes,
                    ),
                    usage(
                        found.inodes,
                        found.inodes_free,
                        found.inodes.saturating_sub(found.inodes_free),
                        csi::volume_usage::Unit::Inodes,
                    ),
                ],
                volume_condition: self
                    .config
                    .condition
                    .clone()
                    .map(|(abnormal, message)| csi::VolumeCondition { abnormal, message }),
            })
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.run("NodeExpandVolume", &request, || {
            check_id(&request.volume_id)?;
            has(&request.volume_path, "Volume path")?;
            let id = &request.volume_id;
            if !self.folder(id).exists() && !self.image(id).exists() {
                return Err(Status::not_found(format!("no volume {id}")));
            }
            let wanted = request.capacity_range.as_ref().map_or(0, |r| r.required_bytes);
            let size = u64::try_from(wanted).unwrap_or_default();
            if let Some(device) = self.device(&request.volume_id)? {
                let image = self.image(&request.volume_id);
                if std::fs::metadata(&image)?.len() < size {
                    std::fs::OpenOptions::new().write(true).open(&image)?.set_len(size)?;
                }
                loop_device::refresh_size(&device).map_err(internal)?;
                if Path::new(&request.volume_path).is_dir() {
                    command("resize2fs", &[&device.to_string_lossy()])?;
                }
            }
            Ok(csi::NodeExpandVolumeResponse { capacity_bytes: wanted })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        self.note("NodeGetCapabilities", &request.into_inner())?;
        let mut all = vec![Capability::GetVolumeStats, Capability::ExpandVolume];
        if self.config.stages {
            all.push(Capability::StageUnstageVolume);
        }
        if self.config.condition.is_some() {
            all.push(Capability::VolumeCondition);
        }
        if self.config.mount_group {
            all.push(Capability::VolumeMountGroup);
        }
        let capabilities = all
            .into_iter()
            .map(|kind| csi::NodeServiceCapability {
                r#type: Some(csi::node_service_capability::Type::Rpc(
                    csi::node_service_capability::Rpc { r#type: kind.into() },
                )),
            })
            .collect();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        request: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        self.run("NodeGetInfo", &request.into_inner(), || {
            Ok(csi::NodeGetInfoResponse {
                node_id: self.config.node_id.clone(),
                max_volumes_per_node: self.config.max_volumes,
                accessible_topology: Some(csi::Topology { segments: self.config.topology.clone() }),
            })
        })
        .await
    }
}
