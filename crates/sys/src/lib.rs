//! Linux.
//!
//! Owns: every system call of the workspace: files, mounts, cgroup files, procfs, kernel log,
//! inotify. All `unsafe` of the workspace is here, each block with its safety note.
//!
//! Promises: an error names the path or object it is about; nothing here decides policy.

pub mod blocking;
pub mod cgroup;
pub mod clock;
mod descent;
pub mod fail_point;
pub mod fs;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod heap;
pub mod host;
pub mod kmsg;
pub mod listen;
pub mod locked;
pub mod logind;
pub mod logs;
pub mod loop_device;
pub mod memcg;
pub mod mount;
pub mod mountinfo;
pub mod names;
pub mod ownership;
pub mod process;
pub mod propagation;
pub mod quota;
mod readable;
pub mod removal;
pub mod rooted_dir;
#[cfg(test)]
mod scratch;
mod shares;
pub mod stats;
pub mod systemd;
pub mod text;
pub mod topology;
pub mod watch;
