//! Signals that end a command for people, turned into a flag it looks at.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

/// Ctrl-C and SIGTERM set the flag; without this they would end the process before it cleans up.
pub fn on_stop(flag: &'static AtomicBool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = runtime.block_on(async {
        anyhow::Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
    })?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            // Both only wait for the next signal: nothing is lost when the other comes first.
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        flag.store(true, Ordering::Relaxed);
    });
    Ok(())
}
