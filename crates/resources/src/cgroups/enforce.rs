//! Enforces node allocatable and the reserved cgroups (kubelet: `enforceNodeAllocatableCgroups`).
//!
//! Promises: the pods' limit is retried every minute until the kernel accepts it (more may be in use than it
//! allows); a reserved cgroup that cannot be limited is a fatal error at start.

use super::{CgroupTree, chain};
use engine::cgroup::{CgroupName, Limits};
use ports::{EventSeverity, EventTarget, Events, NodeEvent};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const RETRY: Duration = Duration::from_secs(60);

/// A reserved cgroup: its daemons may use no more than was reserved for them.
#[derive(Debug, Clone)]
pub struct ReservedCgroup {
    /// `System` or `Kube`.
    pub whose: &'static str,
    /// Only CPU is limited.
    pub compressible: bool,
    /// The cgroup's name as configured.
    pub name: String,
    /// Its limits; `None` when nothing is reserved.
    pub limits: Option<Limits>,
}

impl CgroupTree {
    /// Limits all pods together; ends when that succeeded or when cancelled.
    pub async fn enforce_pods(self, events: Arc<dyn Events>, cancel: CancellationToken) {
        let inner = &self.inner;
        let name = inner.tree.kubepods();
        loop {
            match inner.driver.apply(name, &inner.config.kubepods).await {
                Ok(()) => {
                    let message = "Updated Node Allocatable limit across pods".to_owned();
                    enforced(&*events, message);
                    // `kubepods` has huge page limits from the QoS levels, which this write has replaced.
                    inner.kubepods_written.notify_one();
                    return;
                }
                Err(error) => failed(
                    &*events,
                    format!(
                        "Failed to update Node Allocatable Limits {}: {}",
                        name.quoted(),
                        chain(&error)
                    ),
                ),
            }
            tokio::select! {
                // Cancel-safe: a token and a timer.
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Limits the cgroups of daemons, which must exist.
    pub async fn enforce_reserved(
        &self,
        reserved: &[ReservedCgroup],
        events: &dyn Events,
    ) -> Result<(), String> {
        for one in reserved {
            if let Err(error) = self.limit_reserved(one).await {
                let part = if one.compressible { "Compressible " } else { "" };
                let message = format!(
                    "Failed to enforce {} Reserved {part}Cgroup Limits on {:?}: {error}",
                    one.whose, one.name
                );
                failed(events, message.clone());
                return Err(message);
            }
            let whose = one.whose.to_lowercase();
            enforced(events, format!("Updated limits on {whose} reserved cgroup {}", one.name));
        }
        Ok(())
    }

    async fn limit_reserved(&self, one: &ReservedCgroup) -> Result<(), String> {
        let driver = &self.inner.driver;
        let name = CgroupName::parse(driver.kind(), &one.name);
        let Some(limits) = &one.limits else {
            return Err(format!("{} cgroup is not configured properly", name.quoted()));
        };
        if let Some(fault) = driver.fault(&name).await {
            return Err(fault);
        }
        driver.apply(&name, limits).await.map_err(|error| chain(&error))
    }
}

fn enforced(events: &dyn Events, message: String) {
    events.emit(NodeEvent {
        target: EventTarget::Node,
        severity: EventSeverity::Normal,
        reason: "NodeAllocatableEnforced",
        message,
    });
}

fn failed(events: &dyn Events, message: String) {
    events.emit(NodeEvent {
        target: EventTarget::Node,
        severity: EventSeverity::Warning,
        reason: "FailedNodeAllocatableEnforcement",
        message,
    });
}
