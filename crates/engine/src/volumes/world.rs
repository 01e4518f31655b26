//! The desired and the actual state of volumes (upstream: `desired_state_of_world`, `actual_state_of_world`), and how
//! outcomes of operations change the latter.

use super::plan::Action;
use super::selinux::VolumeLabel;
use super::spec::VolumeSpec;
use api::ids::{PodUid, VolumeName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is to happen with a pod's volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Mount what is missing, keep what is there.
    Mount,
    /// Keep what is there, mount nothing new (the pod is being stopped, or not started yet).
    Keep,
}

/// One volume of one pod as desired.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredVolume {
    /// What it is.
    pub spec: Arc<VolumeSpec>,
    /// Its names in the pod spec (one claim may be used twice).
    pub names: BTreeSet<String>,
    /// Whether a controller must attach it first.
    pub attachable: bool,
    /// Whether its content is refreshed while the pod runs.
    pub refresh: bool,
    /// The size it should have, if it can grow.
    pub size: Option<i64>,
    /// Its SELinux label.
    pub label: VolumeLabel,
}

/// The volumes of one pod as desired.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredPod {
    /// What is to happen.
    pub want: Want,
    /// Whether every volume of the pod was resolved; if not, none of its volumes is unmounted.
    pub resolved: bool,
    /// Its volumes.
    pub volumes: BTreeMap<VolumeName, DesiredVolume>,
}

/// All pods' volumes as desired.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// By pod.
    pub pods: BTreeMap<PodUid, DesiredPod>,
}

impl Desired {
    /// Whether this pod still desires this volume.
    pub fn wants(&self, volume: &VolumeName, pod: &PodUid) -> bool {
        self.pods
            .get(pod)
            .is_some_and(|p| p.want == Want::Keep || !p.resolved || p.volumes.contains_key(volume))
    }

    /// Whether any pod still desires this volume.
    pub fn wants_volume(&self, volume: &VolumeName) -> bool {
        self.pods.values().any(|p| p.volumes.contains_key(volume))
    }

    /// Whether some pod desires this volume, but none with this label.
    pub(super) fn wants_relabelled(&self, volume: &VolumeName, label: &str) -> bool {
        let mut wanted = self.pods.values().filter_map(|p| p.volumes.get(volume)).peekable();
        wanted.peek().is_some() && wanted.all(|v| v.label.mount != label)
    }
}

/// State of one pod's mount of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountState {
    /// Known to be set up.
    Mounted,
    /// May or may not be there.
    Uncertain,
}

/// State of the device mount that pods share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceState {
    /// Not there.
    #[default]
    NotMounted,
    /// Known to be there.
    Mounted,
    /// May or may not be there.
    Uncertain,
}

/// One pod's mount of a volume.
#[derive(Debug, Clone, PartialEq)]
pub struct PodMount {
    /// What was mounted.
    pub spec: Arc<VolumeSpec>,
    /// Its state.
    pub state: MountState,
    /// Found on disk and not set up again since.
    pub reconstructed: bool,
    /// Its content must be refreshed.
    pub remount: bool,
}

/// One volume on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct ActualVolume {
    /// What it is.
    pub spec: Arc<VolumeSpec>,
    /// Whether a controller attaches it.
    pub attachable: bool,
    /// Whether it is attached, as last verified.
    pub attached: bool,
    /// The device path that the attacher reported.
    pub device_path: String,
    /// The shared device mount.
    pub device: DeviceState,
    /// The SELinux label of that mount; empty: none.
    pub label: String,
    /// Its mounts by pod.
    pub pods: BTreeMap<PodUid, PodMount>,
    /// The size it is known to have.
    pub size: Option<i64>,
    /// An expansion was refused for good while it stays attached here.
    pub expansion_refused: bool,
}

impl ActualVolume {
    /// A volume of which nothing is mounted yet.
    pub fn new(spec: Arc<VolumeSpec>, attachable: bool) -> Self {
        Self {
            spec,
            attachable,
            attached: !attachable,
            device_path: String::new(),
            device: DeviceState::NotMounted,
            label: String::new(),
            pods: BTreeMap::new(),
            size: None,
            expansion_refused: false,
        }
    }

    /// The label for a mount of the desired volume: that of the device mount, if there is one.
    pub fn label_for<'a>(&'a self, wanted: &'a DesiredVolume) -> &'a str {
        match self.device {
            DeviceState::NotMounted => &wanted.label.mount,
            DeviceState::Mounted | DeviceState::Uncertain => &self.label,
        }
    }

    /// Whether a pod that does not have the volume yet must wait until it is unmounted from those that use it with
    /// another label. A pod's existing mount is never removed for its label.
    pub fn labelled_otherwise(&self, pod: &PodUid, wanted: &DesiredVolume) -> bool {
        !self.pods.contains_key(pod) && self.label_for(wanted) != wanted.label.mount
    }
}

/// What operations exclude one another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKey {
    /// The whole volume.
    Volume(VolumeName),
    /// One pod's mount of it.
    Pod(VolumeName, PodUid),
}

impl OpKey {
    /// The volume it is about.
    pub fn volume(&self) -> &VolumeName {
        match self {
            Self::Volume(volume) | Self::Pod(volume, _) => volume,
        }
    }

    /// Whether any operation in `others` excludes this one.
    pub fn is_blocked_by(&self, others: &BTreeSet<Self>) -> bool {
        if others.contains(&Self::Volume(self.volume().clone())) {
            return true;
        }
        match self {
            Self::Pod(..) => others.contains(self),
            Self::Volume(volume) => {
                let first = Self::Pod(volume.clone(), PodUid::from(""));
                others.range(first..).next().is_some_and(|other| other.volume() == volume)
            }
        }
    }

    /// Whether two operations may not run side by side.
    pub fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pod(a, p), Self::Pod(b, q)) => a == b && p == q,
            _ => self.volume() == other.volume(),
        }
    }
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It worked.
    Done,
    /// It failed and certainly left nothing behind.
    Final,
    /// It failed and may have left something behind.
    Uncertain,
    /// It could not begin (driver missing, object not readable).
    Transient,
}

/// All volumes on this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Actual {
    /// By unique name.
    pub volumes: BTreeMap<VolumeName, ActualVolume>,
}

impl Actual {
    /// State of one pod's mount; `None` if there is none.
    pub fn mount(&self, volume: &VolumeName, pod: &PodUid) -> Option<&PodMount> {
        self.volumes.get(volume)?.pods.get(pod)
    }

    /// Adds a mount found on disk.
    pub fn add_found(&mut self, name: VolumeName, pod: PodUid, spec: Arc<VolumeSpec>) {
        let device = spec.is_device_mountable();
        let volume =
            self.volumes.entry(name).or_insert_with(|| ActualVolume::new(Arc::clone(&spec), false));
        if device {
            volume.device = DeviceState::Uncertain;
        }
        volume.pods.insert(
            pod,
            PodMount { spec, state: MountState::Uncertain, reconstructed: true, remount: false },
        );
    }

    /// An operation begins: records what it may leave behind.
    pub fn begin(&mut self, action: &Action, desired: &Desired) {
        let (volume, pod) = match action {
            Action::Mount { volume, pod } => (volume, Some(pod)),
            Action::VerifyAttached { volume } => (volume, None),
            _ => return,
        };
        let wanted = desired
            .pods
            .iter()
            .filter(|(uid, _)| pod.is_none_or(|pod| pod == *uid))
            .find_map(|(_, p)| p.volumes.get(volume));
        let Some(wanted) = wanted else { return };
        let entry = self
            .volumes
            .entry(volume.clone())
            .or_insert_with(|| ActualVolume::new(Arc::clone(&wanted.spec), wanted.attachable));
        entry.spec = Arc::clone(&wanted.spec);
        entry.label = entry.label_for(wanted).to_owned();
        if let Some(mount) = pod.and_then(|pod| entry.pods.get_mut(pod)) {
            mount.remount = false;
        }
    }

    /// The label of a device mount found on disk.
    pub fn set_found_label(&mut self, name: &VolumeName, label: String) {
        if let Some(volume) = self.volumes.get_mut(name) {
            volume.label = label;
        }
    }

    /// Adds a device mount found on disk without any pod.
    pub fn add_found_device(&mut self, name: VolumeName, spec: Arc<VolumeSpec>) {
        let volume = self.volumes.entry(name).or_insert_with(|| ActualVolume::new(spec, false));
        if volume.device == DeviceState::NotMounted {
            volume.device = DeviceState::Uncertain;
        }
    }

    /// An operation ended. `device` is the state in which it left the device mount, if it
    /// touched it.
    pub fn finish(&mut self, action: &Action, outcome: &Outcome, device: Option<DeviceState>) {
        let Some(entry) = self.volumes.get_mut(action.volume()) else { return };
        if let Some(device) = device {
            entry.device = device;
        }
        match action {
            Action::Mount { pod, .. } => finish_mount(entry, pod, outcome),
            Action::Unmount { pod, .. } => match outcome {
                Outcome::Done => {
                    entry.pods.remove(pod);
                }
                _ => {
                    if let Some(mount) = entry.pods.get_mut(pod) {
                        mount.state = MountState::Uncertain;
                    }
                }
            },
            Action::UnmountDevice { .. } => {
                // With no device mount left, it was detached.
                let detached = entry.device == DeviceState::NotMounted && entry.attachable;
                entry.attached &= !(detached && *outcome == Outcome::Done);
                entry.device = match outcome {
                    Outcome::Done => DeviceState::NotMounted,
                    _ => DeviceState::Uncertain,
                };
            }
            Action::VerifyAttached { .. } => entry.attached |= *outcome == Outcome::Done,
            Action::Expand { .. } => {}
            Action::Forget { volume } => {
                let volume = volume.clone();
                self.volumes.remove(&volume);
            }
        }
    }

    /// Marks a pod's volumes for a refresh of their content; `which` chooses among them.
    pub fn request_remount(
        &mut self,
        pod: &PodUid,
        which: impl Fn(&VolumeName, &VolumeSpec) -> bool,
    ) {
        for (name, volume) in &mut self.volumes {
            if let Some(mount) = volume.pods.get_mut(pod)
                && which(name, &mount.spec)
            {
                mount.remount = true;
            }
        }
    }

    /// `status.volumesInUse`.
    pub fn in_use(&self, desired: &Desired) -> Vec<String> {
        let wanted = desired
            .pods
            .values()
            .flat_map(|p| p.volumes.iter())
            .filter(|(_, v)| v.attachable)
            .map(|(name, _)| name);
        let present = self.volumes.iter().filter(|(_, v)| v.attachable).map(|(name, _)| name);
        let all: BTreeSet<&VolumeName> = wanted.chain(present).collect();
        all.into_iter().map(|name| name.to_string()).collect()
    }
}

fn finish_mount(entry: &mut ActualVolume, pod: &PodUid, outcome: &Outcome) {
    let spec = Arc::clone(&entry.spec);
    match (outcome, entry.pods.get_mut(pod)) {
        (Outcome::Done, _) => {
            // A refresh that was requested meanwhile stays pending.
            let remount = entry.pods.get(pod).is_some_and(|m| m.remount);
            let mount =
                PodMount { spec, state: MountState::Mounted, reconstructed: false, remount };
            entry.pods.insert(pod.clone(), mount);
        }
        (_, Some(mount)) if mount.state == MountState::Mounted => mount.remount = true,
        (Outcome::Uncertain, None) => {
            let mount = PodMount {
                spec,
                state: MountState::Uncertain,
                reconstructed: false,
                remount: false,
            };
            entry.pods.insert(pod.clone(), mount);
        }
        (Outcome::Final, Some(mount)) if !mount.reconstructed => {
            entry.pods.remove(pod);
        }
        _ => {}
    }
}
