//! Pods that come while their plugin is away: after a reboot, or while the plugin itself is replaced.
//!
//! Upstream refuses such a pod for good (`devicesToAllocate`, "no healthy devices present"), and a pod that runs with
//! it. Where operators ask for it a new pod waits for its plugin, for as long as a plugin may be away, and one that
//! runs as the agent begins is never ended for its devices: it has what it needs.

use super::Devices;
use super::allocate::wishes;
use api::core::v1::Pod;
use engine::devices::GRACE;
use std::collections::BTreeSet;

/// What becomes of a pod whose plugin is away as it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LateDevices {
    /// It is refused, as upstream does.
    #[default]
    Refuse,
    /// It waits, and what runs goes on.
    Wait,
}

impl Devices {
    /// Which of the devices a new pod asks for may still come.
    pub(super) fn late(&self, pod: &Pod) -> Option<String> {
        if self.inner.config.late == LateDevices::Refuse {
            return None;
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if self.ran(uid) {
            return None;
        }
        let spec = pod.spec.as_ref()?;
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let wished = containers.flat_map(wishes).filter(|(_, count)| *count > 0);
        let wished: BTreeSet<String> = wished.map(|(resource, _)| resource).collect();
        let late: Vec<String> = self.book(|book| {
            let late = book.late(wished.iter().map(String::as_str));
            late.into_iter().map(str::to_owned).collect()
        });
        (!late.is_empty()).then(|| format!("the device plugin of {}", late.join(", ")))
    }

    /// Waits until the pod's plugins are back or given up.
    pub(super) async fn settled(&self, pod: &Pod) {
        let mut news = self.inner.news.subscribe();
        let settled = news.wait_for(|()| self.late(pod).is_none());
        // A plugin that registers and then says nothing is not waited for any longer than one that is away.
        let _ = tokio::time::timeout(GRACE, settled).await;
    }

    /// Whether a pod goes on whatever is known about its devices.
    pub(super) fn trusts(&self, uid: &str) -> bool {
        self.inner.config.late == LateDevices::Wait && self.ran(uid)
    }

    /// Whether a container of the pod ran as the agent began.
    fn ran(&self, uid: &str) -> bool {
        self.inner.config.running.iter().any(|(pod, _)| pod == uid)
    }
}
