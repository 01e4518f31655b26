//! Out-of-memory kills, heard from the kernel's log (kubelet: `oom.realWatcher`).
//!
//! Promises: a kill because the machine's memory ran out is an event of the node; one inside a limited
//! cgroup is logged with process, limit and peak, since upstream has no event for it.

use engine::oom::{OomKill, OomReader};
use ports::{EventSeverity, EventTarget, Events, NodeEvent};
use std::sync::Arc;
use sys::cgroup::Cgroups;
use sys::kmsg::KernelLog;
use tokio_util::sync::CancellationToken;

/// Follows the kernel's log.
#[derive(Debug)]
pub struct OomWatch {
    log: KernelLog,
    events: Arc<dyn Events>,
    cgroups: Arc<Cgroups>,
}

impl OomWatch {
    /// Ready to run.
    pub fn new(log: KernelLog, events: Arc<dyn Events>, cgroups: Arc<Cgroups>) -> Self {
        Self { log, events, cgroups }
    }

    /// Runs until cancelled or until the log cannot be read.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut reader = OomReader::default();
        loop {
            let line = tokio::select! {
                // Cancel-safe: a token.
                () = cancel.cancelled() => return,
                // Cancel-safe: a record is read whole or not at all.
                line = self.log.next() => line,
            };
            match line {
                Ok(line) => {
                    if let Some(kill) = reader.line(&line) {
                        self.tell(&kill);
                    }
                }
                Err(error) => {
                    tracing::error!(err = %error, "Unexpectedly stopped receiving OOM notifications");
                    return;
                }
            }
        }
    }

    fn tell(&self, kill: &OomKill) {
        let Some(message) = kill.system_message() else {
            let (limit, peak) = if self.cgroups.is_v2() {
                ("memory.max", "memory.peak")
            } else {
                ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
            };
            let read = |file| self.cgroups.read("memory", &kill.limited, file).unwrap_or_default();
            tracing::info!(
                cgroup = kill.cgroup,
                limitedCgroup = kill.limited,
                process = kill.process,
                pid = kill.pid,
                limit = read(limit),
                peak = read(peak),
                "A process was killed because its cgroup ran out of memory"
            );
            return;
        };
        self.events.emit(NodeEvent {
            target: EventTarget::Node,
            severity: EventSeverity::Warning,
            reason: "SystemOOM",
            message,
        });
    }
}
