//! gRPC over Unix sockets.
//!
//! Owns: dialing a plugin's socket, and serving on sockets of ours to clients of any make, also those
//! that name the socket's path as their authority.
//!
//! Promises: a socket is either the old one or one that already listens; a client that breaks the
//! protocol loses only its own connection.
//!
//! Deliberately absent: what is said over the sockets.
#![forbid(unsafe_code)]

mod authority;
mod dial;
mod hpack;
mod limit;
mod serve;
mod unknown;
mod watched;

pub use authority::LocalAuthority;
pub use dial::{DialError, code_name, connect, go_error, lazy, lazy_target};
pub use limit::RateLimit;
pub use serve::{Connection, ListenError, Listening};
pub use tonic::transport::Channel;
pub use watched::watched;
