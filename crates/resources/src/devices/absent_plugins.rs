//! Pods that arrive while their plugin is not registered: after a reboot, or while the plugin is replaced.
//!
//! Upstream rejects such a pod for good (`devicesToAllocate`, "no healthy devices present"), even one that runs
//! already. With [`LateDevices::Wait`] a new pod waits for its plugin, for as long as a plugin may be away, and one
//! that was running when the agent started is never ended for its devices, which it has already.

use super::Devices;
use super::allocate::device_requests;
use api::core::v1::Pod;
use api::pod::PodExt;
use engine::devices::GRACE;
use std::collections::BTreeSet;

/// What happens to a pod whose plugin is not registered at admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LateDevices {
    /// It is rejected, as upstream does.
    #[default]
    Refuse,
    /// It waits, and pods that run already keep running.
    Wait,
}

impl Devices {
    /// The resources requested by a new pod whose plugin may still register, for display.
    pub(super) fn awaited_plugin(&self, pod: &Pod) -> Option<String> {
        if self.inner.config.late == LateDevices::Refuse {
            return None;
        }
        let uid = pod.uid_str();
        if self.ran(uid) {
            return None;
        }
        let spec = pod.spec.as_ref()?;
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let requested = containers.flat_map(device_requests).filter(|(_, count)| *count > 0);
        let requested: BTreeSet<String> = requested.map(|(resource, _)| resource).collect();
        let late: Vec<String> = self.state(|state| {
            let late = state.absent_plugins(requested.iter().map(String::as_str));
            late.into_iter().map(str::to_owned).collect()
        });
        (!late.is_empty()).then(|| format!("the device plugin of {}", late.join(", ")))
    }

    /// Waits until the pod's plugins are back or have been gone for too long.
    pub(super) async fn settled(&self, pod: &Pod) {
        let mut news = self.inner.news.subscribe();
        let settled = news.wait_for(|()| self.awaited_plugin(pod).is_none());
        // Also bounds the wait for a plugin that registers and then lists nothing.
        let _ = tokio::time::timeout(GRACE, settled).await;
    }

    /// Whether a pod keeps running whatever is known about its devices.
    pub(super) fn trusts(&self, uid: &str) -> bool {
        self.inner.config.late == LateDevices::Wait && self.ran(uid)
    }

    /// Whether a container of the pod was running when the agent started.
    fn ran(&self, uid: &str) -> bool {
        self.inner.config.running.iter().any(|(pod, _)| pod == uid)
    }
}
