//! The operations that bring the actual state to the desired one.

use super::backoff::Backoffs;
use super::world::{Actual, ActualVolume, Desired, DeviceState, MountState, OpKey, Want};
use api::ids::{PodUid, VolumeName};
use std::collections::BTreeSet;
use std::time::Duration;

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Verify that the controller has attached the volume; without a controller, attach it.
    VerifyAttached {
        /// The volume.
        volume: VolumeName,
    },
    /// Mount (device first, if it has one), or refresh its content.
    Mount {
        /// The volume.
        volume: VolumeName,
        /// For this pod.
        pod: PodUid,
    },
    /// Grow it to its desired size.
    Expand {
        /// The volume.
        volume: VolumeName,
        /// As mounted for this pod.
        pod: PodUid,
    },
    /// Tear down one pod's mount.
    Unmount {
        /// The volume.
        volume: VolumeName,
        /// Of this pod.
        pod: PodUid,
    },
    /// Tear down the shared device mount; if it is gone, detach what the node attached.
    UnmountDevice {
        /// The volume.
        volume: VolumeName,
    },
    /// Nothing of it is left: drop it from the actual state.
    Forget {
        /// The volume.
        volume: VolumeName,
    },
}

impl Action {
    /// The volume it is about.
    pub fn volume(&self) -> &VolumeName {
        match self {
            Self::VerifyAttached { volume }
            | Self::Mount { volume, .. }
            | Self::Expand { volume, .. }
            | Self::Unmount { volume, .. }
            | Self::UnmountDevice { volume }
            | Self::Forget { volume } => volume,
        }
    }

    /// Upstream's name of the operation, as metrics and back-off use it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::VerifyAttached { .. } => "verify_controller_attached_volume",
            Self::Mount { .. } => "volume_mount",
            Self::Expand { .. } => "volume_fs_resize",
            Self::Unmount { .. } => "volume_unmount",
            Self::UnmountDevice { .. } => "unmount_device",
            Self::Forget { .. } => "forget",
        }
    }

    /// The key of mutual exclusion. A mount of a volume with a device mount locks the whole volume.
    pub fn key(&self, device_mountable: bool) -> OpKey {
        match self {
            Self::Mount { volume, pod } if !device_mountable => {
                OpKey::Pod(volume.clone(), pod.clone())
            }
            Self::Unmount { volume, pod } => OpKey::Pod(volume.clone(), pod.clone()),
            _ => OpKey::Volume(self.volume().clone()),
        }
    }
}

/// The input of the plan.
#[derive(Debug)]
pub struct PlanView<'a> {
    /// The desired state.
    pub desired: &'a Desired,
    /// The actual state.
    pub actual: &'a Actual,
    /// Running operations.
    pub pending: &'a BTreeSet<OpKey>,
    /// Back-off of failed operations.
    pub backoffs: &'a Backoffs,
    /// Whether anything may be unmounted: every pod has been resolved once, and volumes found on disk
    /// have been checked.
    pub may_unmount: bool,
    /// Whether a controller attaches volumes; if not, the node does it.
    pub controller_attaches: bool,
    /// Volumes that the controller reports as attached to this node.
    pub reported_attached: &'a BTreeSet<VolumeName>,
}

/// What to start now, and when to plan again if nothing else happens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Operations to start; none conflicts with another or with a pending one.
    pub actions: Vec<Action>,
    /// When the next back-off ends.
    pub wake_at: Option<Duration>,
}

/// Compares the desired with the actual state.
pub fn plan(view: &PlanView<'_>, now: Duration) -> Plan {
    let mut out = Planner { view, now, taken: BTreeSet::new(), plan: Plan::default() };
    if view.may_unmount {
        out.unmounts();
    }
    out.mounts();
    if view.may_unmount {
        out.devices();
    }
    out.plan
}

struct Planner<'a> {
    view: &'a PlanView<'a>,
    now: Duration,
    taken: BTreeSet<OpKey>,
    plan: Plan,
}

impl Planner<'_> {
    fn unmounts(&mut self) {
        for (name, volume) in &self.view.actual.volumes {
            for pod in volume.pods.keys() {
                if !self.view.desired.wants(name, pod) {
                    let action = Action::Unmount { volume: name.clone(), pod: pod.clone() };
                    self.offer(action, volume.spec.is_device_mountable());
                }
            }
        }
    }

    fn mounts(&mut self) {
        for (pod, wanted) in &self.view.desired.pods {
            if wanted.want != Want::Mount {
                continue;
            }
            for (name, volume) in &wanted.volumes {
                let actual = self.view.actual.volumes.get(name);
                if actual.is_some_and(|a| a.labelled_otherwise(pod, volume)) {
                    continue;
                }
                let mount = actual.and_then(|v| v.pods.get(pod));
                let settled = mount.is_some_and(|m| m.state == MountState::Mounted && !m.remount);
                let action = if settled {
                    let grow = actual.is_some_and(|a| must_grow(a, volume.size));
                    if !grow {
                        continue;
                    }
                    Action::Expand { volume: name.clone(), pod: pod.clone() }
                } else if volume.attachable && !actual.is_some_and(|v| v.attached) {
                    let waits = self.view.controller_attaches
                        && !self.view.reported_attached.contains(name);
                    if waits {
                        continue;
                    }
                    Action::VerifyAttached { volume: name.clone() }
                } else {
                    Action::Mount { volume: name.clone(), pod: pod.clone() }
                };
                self.offer(action, volume.spec.is_device_mountable());
            }
        }
    }

    fn devices(&mut self) {
        for (name, volume) in &self.view.actual.volumes {
            let desired = self.view.desired;
            let relabel = volume.device != DeviceState::NotMounted
                && desired.wants_relabelled(name, &volume.label);
            if !volume.pods.is_empty() || (desired.wants_volume(name) && !relabel) {
                continue;
            }
            let ours = !self.view.controller_attaches && volume.attachable && volume.attached;
            let action = if volume.device == DeviceState::NotMounted && !ours {
                Action::Forget { volume: name.clone() }
            } else {
                Action::UnmountDevice { volume: name.clone() }
            };
            self.offer(action, volume.spec.is_device_mountable());
        }
    }

    fn offer(&mut self, action: Action, device_mountable: bool) {
        let key = action.key(device_mountable);
        if key.is_blocked_by(self.view.pending) || key.is_blocked_by(&self.taken) {
            return;
        }
        match self.view.backoffs.blocked_until(&key, action.name(), self.now) {
            Some(until) => {
                let soonest = self.plan.wake_at.map_or(until, |at| at.min(until));
                self.plan.wake_at = Some(soonest);
            }
            None => {
                self.taken.insert(key);
                self.plan.actions.push(action);
            }
        }
    }
}

fn must_grow(actual: &ActualVolume, wanted: Option<i64>) -> bool {
    !actual.expansion_refused
        && matches!((wanted, actual.size), (Some(wanted), Some(size)) if wanted > size)
}

#[cfg(test)]
mod tests {
    use super::super::selinux::VolumeLabel;
    use super::super::spec::{Plugin, SpecSource, VolumeSpec};
    use super::super::world::{DesiredPod, DesiredVolume, Outcome};
    use super::*;
    use std::sync::Arc;

    fn spec(plugin: Plugin) -> Arc<VolumeSpec> {
        Arc::new(VolumeSpec {
            name: "v".into(),
            plugin,
            source: SpecSource::Found { volume_id: None, block: false },
            read_only: false,
            migrated: false,
        })
    }

    fn desired(pod: &str, want: Want, plugin: Plugin, attachable: bool) -> Desired {
        let volume = DesiredVolume {
            spec: spec(plugin),
            names: BTreeSet::new(),
            attachable,
            refresh: false,
            size: None,
            label: VolumeLabel::default(),
        };
        let mut desired = Desired::default();
        desired.pods.insert(
            pod.into(),
            DesiredPod { want, resolved: true, volumes: [("v".into(), volume)].into() },
        );
        desired
    }

    fn actions(desired: &Desired, actual: &Actual, may_unmount: bool) -> Vec<Action> {
        plan(
            &PlanView {
                desired,
                actual,
                pending: &BTreeSet::new(),
                backoffs: &Backoffs::default(),
                may_unmount,
                controller_attaches: true,
                reported_attached: &["attached".into()].into(),
            },
            Duration::ZERO,
        )
        .actions
    }

    #[test]
    fn nothing_is_unmounted_before_it_may_be() {
        let mut actual = Actual::default();
        actual.add_found("v".into(), "p".into(), spec(Plugin::EmptyDir));
        assert_eq!(actions(&Desired::default(), &actual, false), []);
        let expected = Action::Unmount { volume: "v".into(), pod: "p".into() };
        assert_eq!(actions(&Desired::default(), &actual, true), [expected]);
    }

    #[test]
    fn a_pod_being_stopped_keeps_what_it_has_and_gets_nothing_new() {
        let mut actual = Actual::default();
        let stopping = desired("p", Want::Keep, Plugin::EmptyDir, false);
        assert_eq!(actions(&stopping, &actual, true), []);
        actual.add_found("v".into(), "p".into(), spec(Plugin::EmptyDir));
        assert_eq!(actions(&stopping, &actual, true), []);
    }

    #[test]
    fn the_device_goes_after_the_last_pod() {
        let mut actual = Actual::default();
        actual.add_found("v".into(), "p".into(), spec(Plugin::Local));
        actual.add_found("v".into(), "q".into(), spec(Plugin::Local));
        let desired = Desired::default();
        let unmounts = actions(&desired, &actual, true);
        assert_eq!(unmounts.len(), 2);
        for action in &unmounts {
            actual.finish(action, &Outcome::Done, None);
        }
        let device = Action::UnmountDevice { volume: "v".into() };
        assert_eq!(actions(&desired, &actual, true), std::slice::from_ref(&device));
        actual.finish(&device, &Outcome::Done, None);
        let forget = Action::Forget { volume: "v".into() };
        assert_eq!(actions(&desired, &actual, true), std::slice::from_ref(&forget));
        actual.finish(&forget, &Outcome::Done, None);
        assert_eq!(actual, Actual::default());
    }

    #[test]
    fn an_attachable_volume_waits_for_the_controller() {
        let wanted = desired("p", Want::Mount, Plugin::Csi, true);
        assert_eq!(actions(&wanted, &Actual::default(), true), []);
    }

    #[test]
    fn without_a_controller_the_node_attaches_and_detaches() {
        let attached = |desired: &Desired, actual: &Actual| {
            let view = PlanView {
                desired,
                actual,
                pending: &BTreeSet::new(),
                backoffs: &Backoffs::default(),
                may_unmount: true,
                controller_attaches: false,
                reported_attached: &BTreeSet::new(),
            };
            plan(&view, Duration::ZERO).actions
        };
        let wanted = desired("p", Want::Mount, Plugin::FlexAttached("v/d".into()), true);
        let mut actual = Actual::default();
        let attach = Action::VerifyAttached { volume: "v".into() };
        assert_eq!(attached(&wanted, &actual), std::slice::from_ref(&attach));
        actual.begin(&attach, &wanted);
        actual.finish(&attach, &Outcome::Done, None);
        let detach = Action::UnmountDevice { volume: "v".into() };
        assert_eq!(attached(&Desired::default(), &actual), std::slice::from_ref(&detach));
        actual.finish(&detach, &Outcome::Final, None);
        actual.finish(&detach, &Outcome::Done, None);
        assert_eq!(attached(&Desired::default(), &actual), std::slice::from_ref(&detach));
        actual.finish(&detach, &Outcome::Done, None);
        let forget = Action::Forget { volume: "v".into() };
        assert_eq!(attached(&Desired::default(), &actual), std::slice::from_ref(&forget));
    }

    #[test]
    fn a_failed_refresh_leaves_the_mount_alone_and_is_tried_again() {
        let wanted = desired("p", Want::Mount, Plugin::Secret, false);
        let mut actual = Actual::default();
        let mount = Action::Mount { volume: "v".into(), pod: "p".into() };
        assert_eq!(actions(&wanted, &actual, true), std::slice::from_ref(&mount));
        actual.begin(&mount, &wanted);
        actual.finish(&mount, &Outcome::Done, None);
        assert_eq!(actions(&wanted, &actual, true), []);
        actual.request_remount(&"p".into(), |_, s| s.plugin.is_content());
        assert_eq!(actions(&wanted, &actual, true), std::slice::from_ref(&mount));
        actual.begin(&mount, &wanted);
        actual.finish(&mount, &Outcome::Final, None);
        let state = actual.mount(&"v".into(), &"p".into()).unwrap();
        assert_eq!((state.state, state.remount), (MountState::Mounted, true));
    }

    #[test]
    fn final_and_uncertain_errors_differ_in_what_must_be_torn_down() {
        let wanted = desired("p", Want::Mount, Plugin::EmptyDir, false);
        let mount = Action::Mount { volume: "v".into(), pod: "p".into() };
        for (outcome, left) in
            [(Outcome::Final, false), (Outcome::Transient, false), (Outcome::Uncertain, true)]
        {
            let mut actual = Actual::default();
            actual.begin(&mount, &wanted);
            actual.finish(&mount, &outcome, None);
            let must_unmount = actions(&Desired::default(), &actual, true)
                .contains(&Action::Unmount { volume: "v".into(), pod: "p".into() });
            assert_eq!(must_unmount, left, "{outcome:?}");
        }
        // A volume found on disk stays uncertain even after a final error.
        let mut actual = Actual::default();
        actual.add_found("v".into(), "p".into(), spec(Plugin::EmptyDir));
        actual.begin(&mount, &wanted);
        actual.finish(&mount, &Outcome::Final, None);
        assert!(actual.mount(&"v".into(), &"p".into()).is_some());
    }

    #[test]
    fn another_label_waits_until_the_device_is_unmounted() {
        let labelled = |pod: &str, label: &str| {
            let mut wanted = desired(pod, Want::Mount, Plugin::Csi, false);
            let volume = wanted.pods.get_mut(pod).unwrap().volumes.get_mut("v").unwrap();
            volume.spec = Arc::new(VolumeSpec {
                source: SpecSource::Found { volume_id: Some("d^h".into()), block: false },
                ..(*volume.spec).clone()
            });
            let label = label.to_owned();
            volume.label = VolumeLabel { possible: true, wanted: label.clone(), mount: label };
            wanted
        };
        let mount = |pod: &str| Action::Mount { volume: "v".into(), pod: pod.into() };
        let (mut wanted, mut actual) = (labelled("p", "one"), Actual::default());
        actual.begin(&mount("p"), &wanted);
        actual.finish(&mount("p"), &Outcome::Done, Some(DeviceState::Mounted));
        assert_eq!(actual.volumes["v"].label, "one");
        wanted.pods.extend(labelled("q", "two").pods);
        assert_eq!(actions(&wanted, &actual, true), []);
        // Even if the first pod's desired label changes, it keeps its mount.
        wanted.pods.extend(labelled("p", "three").pods);
        assert_eq!(actions(&wanted, &actual, true), []);
        wanted.pods.remove("p");
        let unmount = Action::Unmount { volume: "v".into(), pod: "p".into() };
        assert_eq!(actions(&wanted, &actual, true), std::slice::from_ref(&unmount));
        actual.finish(&unmount, &Outcome::Done, None);
        let device = Action::UnmountDevice { volume: "v".into() };
        assert_eq!(actions(&wanted, &actual, true), std::slice::from_ref(&device));
        actual.finish(&device, &Outcome::Done, None);
        assert_eq!(actions(&wanted, &actual, true), [mount("q")]);
        actual.begin(&mount("q"), &wanted);
        assert_eq!(actual.volumes["v"].label, "two");
    }

    #[test]
    fn an_unresolved_pod_loses_nothing() {
        let mut actual = Actual::default();
        actual.add_found("v".into(), "p".into(), spec(Plugin::Csi));
        let mut wanted = desired("p", Want::Mount, Plugin::Csi, false);
        let pod = wanted.pods.get_mut("p").unwrap();
        pod.resolved = false;
        pod.volumes.clear();
        assert_eq!(actions(&wanted, &actual, true), []);
    }
}
