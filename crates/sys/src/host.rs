//! Facts about the machine: processors, memory, identity, operating system, network.
//!
//! Promises: the filesystem roots are arguments, so that a test can present another machine; a fact
//! that cannot be read is absent or has upstream's placeholder, never a panic.

mod machine;
mod net;

pub use machine::{
    HugePages, Machine, boot_time, filesystem_bytes, hostname, idle_time, machine, os_image,
    uname_release,
};
pub use net::{Interface, NetError, default_route_interfaces, interfaces};
