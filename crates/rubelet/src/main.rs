//! Entry point: arguments → configuration → agent → exit code.
#![forbid(unsafe_code)]

fn main() {}
