//! Resource usage, read directly from the kernel: cgroups, network devices, filesystems,
//! directories.
//!
//! Promises: one pass over a handful of small files per cgroup, no process started, nothing
//! retained but open directories and files of held cgroups. A missing file results in an absent
//! value, never in an error for the whole cgroup.

mod cgroup;
mod folder;
mod network;
mod process;
mod read_all;

#[cfg(any(test, fuzzing))]
pub(crate) use cgroup::read_any_form;
pub use cgroup::{
    CgroupUsage, CpuUsage, DeviceIo, HeldCgroup, Hold, Look, MemoryUsage, Pressure, PressureLine,
    PressureSet, Pulse, cgroup_usage,
};
pub use folder::{FolderUsage, FsUsage, device, files_usage, folder_usage, fs_usage};
pub use network::{InterfaceUsage, network_usage, parse_net_dev};
pub use process::{OpenFiles, descriptors, open_files, own_open_files, soft_open_files};
