//! Made-up usage: a hundredth of a core and one mebibyte per running container.

use proto::cri_v1::{
    ContainerAttributes, ContainerStats, CpuUsage, FilesystemIdentifier, FilesystemUsage,
    LinuxPodSandboxStats, MemoryUsage, PodSandboxAttributes, PodSandboxStats, UInt64Value,
};

use super::state::{ContainerRecord, SandboxRecord, State};

const NANO_CORES: u64 = 10_000_000;
const WORKING_SET_BYTES: u64 = 1 << 20;

fn value(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

fn cpu(now: i64, running_nanos: u64) -> CpuUsage {
    CpuUsage {
        timestamp: now,
        usage_core_nano_seconds: value(running_nanos / (1_000_000_000 / NANO_CORES)),
        usage_nano_cores: value(NANO_CORES),
        psi: None,
    }
}

fn memory(now: i64, containers: u64) -> MemoryUsage {
    let bytes = WORKING_SET_BYTES.saturating_mul(containers);
    MemoryUsage {
        timestamp: now,
        working_set_bytes: value(bytes),
        usage_bytes: value(bytes),
        rss_bytes: value(bytes),
        page_faults: value(0),
        major_page_faults: value(0),
        ..Default::default()
    }
}

pub(super) fn of_container(container: &ContainerRecord, now: i64) -> ContainerStats {
    let running = now.saturating_sub(container.started_at);
    ContainerStats {
        attributes: Some(ContainerAttributes {
            id: container.id.clone(),
            metadata: container.config.metadata.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }),
        cpu: Some(cpu(now, u64::try_from(running).unwrap_or(0))),
        memory: Some(memory(now, 1)),
        writable_layer: Some(filesystem(now, 4096)),
        swap: None,
        io: None,
    }
}

pub(super) fn of_sandbox(state: &State, sandbox: &SandboxRecord, now: i64) -> PodSandboxStats {
    let running = state.containers.values().filter(|c| c.sandbox == sandbox.id && c.is_running());
    let containers: Vec<_> = running.map(|container| of_container(container, now)).collect();
    let age = u64::try_from(now.saturating_sub(sandbox.created_at)).unwrap_or(0);
    let count = u64::try_from(containers.len()).unwrap_or(u64::MAX);
    PodSandboxStats {
        attributes: Some(PodSandboxAttributes {
            id: sandbox.id.clone(),
            metadata: sandbox.config.metadata.clone(),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
        }),
        linux: Some(LinuxPodSandboxStats {
            cpu: Some(cpu(now, age)),
            memory: Some(memory(now, count)),
            containers,
            ..Default::default()
        }),
        windows: None,
    }
}

pub(super) fn filesystem(now: i64, used_bytes: u64) -> FilesystemUsage {
    FilesystemUsage {
        timestamp: now,
        fs_id: Some(FilesystemIdentifier { mountpoint: "/".to_owned() }),
        used_bytes: value(used_bytes),
        inodes_used: value(1),
    }
}
