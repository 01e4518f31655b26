//! Usage numbers, read straight from the kernel: cgroups, network devices, filesystems, folders.
//!
//! Promises: one pass over a handful of small files per cgroup, no process started, nothing kept but open
//! folders and files of cgroups that are held. A file that is not there gives an absent number, never an error for the whole.

mod cgroup;
mod folder;
mod network;
mod process;
mod whole;

pub use cgroup::{
    CgroupUsage, CpuUsage, DeviceIo, HeldCgroup, Hold, Look, MemoryUsage, Pressure, PressureLine,
    PressureSet, Pulse, cgroup_usage,
};
pub use folder::{FolderUsage, FsUsage, device, files_usage, folder_usage, fs_usage};
pub use network::{InterfaceUsage, network_usage, parse_net_dev};
pub use process::{OpenFiles, descriptors, open_files, own_open_files, soft_open_files};
