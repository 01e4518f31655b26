//! The test kit's CSI driver as a process of its own.
//!
//! `csi-hostpath NAME DATA-DIR [PLUGINS-REGISTRY]`

use std::path::PathBuf;
use std::process::ExitCode;
use testkit::csi_driver::{CsiDriver, CsiDriverConfig};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a program for people and tests")]
            {
                eprintln!("csi-hostpath: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(data)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: csi-hostpath NAME DATA-DIR [PLUGINS-REGISTRY]");
    };
    let mut config = CsiDriverConfig::new(&name, &PathBuf::from(data));
    config.registry = arguments.next().map(PathBuf::from);
    if let Ok(node) = std::env::var("NODE_ID") {
        config.node_id = node;
    }
    CsiDriver::start(config)?.wait().await;
    Ok(())
}
