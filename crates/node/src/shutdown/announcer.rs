//! The source of shutdown signals: logind, behind a trait for tests.

use async_trait::async_trait;
use std::path::PathBuf;
use std::time::Duration;
use sys::logind::{Announcements, Logind, ShutdownLock, override_max_delay};
use telemetry::Chain;
use units::GoDuration;

/// First pause before the delay is read again; it doubles.
const REREAD: Duration = Duration::from_millis(100);
const REREADS: u32 = 5;

/// A source of shutdown signals.
#[async_trait]
pub(super) trait Announcer: Send + Sync + std::fmt::Debug {
    /// Makes the machine wait `needed` for us, takes the inhibitor lock, and subscribes.
    async fn attach(&self, needed: Duration) -> Result<Box<dyn Attached>, String>;
}

/// A held inhibitor lock with its subscription.
#[async_trait]
pub(super) trait Attached: Send + std::fmt::Debug {
    /// True when a shutdown begins, false when it was cancelled; `None` when the connection is
    /// lost. Cancel-safe.
    async fn next(&mut self) -> Option<bool>;
    /// Releases the lock, so that the shutdown proceeds.
    fn release(&mut self);
    /// Takes the lock again.
    async fn lock(&mut self) -> Result<(), String>;
}

/// The machine's logind.
#[derive(Debug)]
pub(super) struct Machine {
    /// `/etc`.
    pub(super) etc: PathBuf,
}

#[async_trait]
impl Announcer for Machine {
    async fn attach(&self, needed: Duration) -> Result<Box<dyn Attached>, String> {
        let logind = Logind::connect().await.map_err(|e| Chain(&e).to_string())?;
        self.allow(&logind, needed).await?;
        let lock = logind.inhibit().await.map_err(|e| Chain(&e).to_string())?;
        let heard = logind.announcements().await.map_err(|e| Chain(&e).to_string())?;
        Ok(Box::new(OnLogind { logind, lock: Some(lock), heard }))
    }
}

impl Machine {
    /// Raises logind's maximal delay if it is too small.
    async fn allow(&self, logind: &Logind, needed: Duration) -> Result<(), String> {
        if logind.max_delay().await.map_err(|e| Chain(&e).to_string())? >= needed {
            return Ok(());
        }
        let etc = self.etc.clone();
        let written = sys::blocking::run(move || override_max_delay(&etc, needed)).await;
        written.map_err(|e| Chain(&e).to_string())?.map_err(|e| {
            format!("unable to override inhibit delay by shutdown manager: {}", Chain(&e))
        })?;
        logind.reload().await.map_err(|e| Chain(&e).to_string())?;
        let mut pause = REREAD;
        let mut current = Duration::ZERO;
        for attempt in 1..=REREADS {
            current = logind.max_delay().await.map_err(|e| Chain(&e).to_string())?;
            if current >= needed {
                return Ok(());
            }
            if attempt < REREADS {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
        Err(format!(
            "node shutdown manager was timed out after {REREADS} attempts waiting for logind \
             InhibitDelayMaxSec to update to {} (ShutdownGracePeriod), current value is {}",
            GoDuration::from(needed),
            GoDuration::from(current)
        ))
    }
}

#[derive(Debug)]
struct OnLogind {
    logind: Logind,
    lock: Option<ShutdownLock>,
    heard: Announcements,
}

#[async_trait]
impl Attached for OnLogind {
    async fn next(&mut self) -> Option<bool> {
        self.heard.next().await
    }

    fn release(&mut self) {
        self.lock = None;
    }

    async fn lock(&mut self) -> Result<(), String> {
        let lock = self.logind.inhibit().await.map_err(|e| Chain(&e).to_string())?;
        self.lock = Some(lock);
        Ok(())
    }
}
