//! What machine this is: processors, memory, identity, system, network.
//!
//! Promises: roots are arguments, so that a test can show another machine; a fact that cannot be
//! read is absent or has upstream's word for it, never a panic.

mod machine;
mod net;

pub use machine::{
    HugePages, Machine, boot_time, filesystem_bytes, hostname, idle_time, machine, os_image,
    uname_release,
};
pub use net::{Interface, NetError, default_route_interfaces, interfaces};
