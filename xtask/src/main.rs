//! Repository chores: code generation, the tidy rules, the test run.
//!
//! `cargo run -p xtask -- codegen` rewrites the generated gRPC code, `-- tidy` checks the rules of the tree,
//! `-- fuzz` runs the fuzz targets, `-- test [NAME…]` builds and runs the test programs.
//! `cargo test -p xtask` fails when the generated code has drifted from its `.proto` files or a rule is broken.
#![forbid(unsafe_code)]

mod codegen;
mod fuzz;
mod idleness;
mod suite;
mod tidy;
mod unsteady;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            #[expect(clippy::print_stderr, reason = "a command line tool reports on stderr")]
            {
                eprintln!("xtask: {err:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<()> {
    match args.next().as_deref() {
        Some("codegen") => codegen::write(&workspace_root()),
        Some("tidy") => tidy::check(&workspace_root()),
        Some("fuzz") => fuzz::run(&workspace_root()),
        Some("test") => suite::run(&workspace_root(), &args.collect::<Vec<_>>()),
        Some(other) => bail!("unknown chore {other:?}; there are: codegen, tidy, fuzz, test"),
        None => bail!("usage: cargo run -p xtask -- codegen|tidy|fuzz|test"),
    }
}

/// The folder that holds the workspace's `Cargo.toml`.
fn workspace_root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}
