//! Repository chores: code generation and the tidy rules.
#![forbid(unsafe_code)]

fn main() {}
