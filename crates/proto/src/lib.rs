//! Checked-in gRPC code for CRI, device plugins, pod resources, plugin registration, DRA and CSI.
#![forbid(unsafe_code)]
