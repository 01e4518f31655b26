//! The CRI connection: deadlines, typed errors, event stream.
#![forbid(unsafe_code)]
