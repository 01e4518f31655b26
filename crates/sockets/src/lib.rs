//! gRPC over Unix sockets.
//!
//! Owns: dialing a plugin's socket, and serving on our own sockets to any gRPC client, including
//! those that send the socket's path as their authority.
//!
//! Promises: at a socket's path there is either the old socket or one that already listens; a
//! client that breaks the protocol loses only its own connection.
//!
//! Deliberately absent: the services themselves.
#![forbid(unsafe_code)]

mod authority;
mod dial;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hpack;
mod limit;
mod notify_on_close;
mod seats;
mod serve;
mod unknown;

pub use authority::LocalAuthority;
pub use dial::{DialError, code_name, connect, go_error, lazy, lazy_target};
pub use limit::RateLimit;
pub use notify_on_close::connect_notifying;
pub use serve::{Connection, ListenError, Listening};
pub use tonic::transport::Channel;
