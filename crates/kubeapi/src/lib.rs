//! The API server connection: rotating certificate, watches, patches, events, leases.
#![forbid(unsafe_code)]
