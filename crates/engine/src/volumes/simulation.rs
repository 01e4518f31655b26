//! Set-up and tear-down of a thousand pods with failures and crashes at every step.
//!
//! The simulated disk stores only the effects of operations. A crash loses everything else; the next run has
//! only what is found on disk.

use super::*;
use api::ids::{PodUid, VolumeName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A small random number generator: the run is a function of its seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

#[derive(Default)]
struct Disk {
    mounts: BTreeSet<(VolumeName, PodUid)>,
    devices: BTreeSet<VolumeName>,
}

struct World {
    disk: Disk,
    specs: BTreeMap<VolumeName, Arc<VolumeSpec>>,
    desired: Desired,
    actual: Actual,
    backoffs: Backoffs,
    now: Duration,
    rng: Rng,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            disk: Disk::default(),
            specs: BTreeMap::new(),
            desired: Desired::default(),
            actual: Actual::default(),
            backoffs: Backoffs::default(),
            now: Duration::ZERO,
            rng: Rng(seed | 1),
        }
    }

    fn add_pod(&mut self, number: u64) {
        let uid = PodUid::from(format!("pod{number}"));
        let mut volumes = BTreeMap::new();
        for (kind, shared) in
            [(Plugin::EmptyDir, false), (Plugin::Secret, false), (Plugin::Local, true)]
        {
            let spec = Arc::new(VolumeSpec {
                name: if shared { format!("pv{}", number % 5) } else { "v".into() },
                plugin: kind,
                source: SpecSource::Found { volume_id: None, block: false },
                read_only: false,
                migrated: false,
            });
            let name = spec.unique_name(&uid);
            self.specs.insert(name.clone(), Arc::clone(&spec));
            let volume = DesiredVolume {
                spec,
                names: BTreeSet::new(),
                attachable: false,
                refresh: false,
                size: None,
                label: VolumeLabel::default(),
            };
            volumes.insert(name, volume);
        }
        self.desired.pods.insert(uid, DesiredPod { want: Want::Mount, resolved: true, volumes });
    }

    /// Everything in memory is lost; the disk is read back.
    fn crash(&mut self) {
        self.actual = Actual::default();
        self.backoffs = Backoffs::default();
        for (volume, pod) in &self.disk.mounts {
            let spec = Arc::clone(&self.specs[volume]);
            self.actual.add_found(volume.clone(), pod.clone(), spec);
        }
        // A device without a pod mount is found by its folder.
        for volume in &self.disk.devices {
            let spec = Arc::clone(&self.specs[volume]);
            self.actual
                .volumes
                .entry(volume.clone())
                .or_insert_with(|| ActualVolume::new(spec, false))
                .device = DeviceState::Uncertain;
        }
    }

    fn step(&mut self, faults: bool) -> usize {
        let pending = BTreeSet::new();
        let reported = BTreeSet::new();
        let plan = plan(
            &PlanView {
                desired: &self.desired,
                actual: &self.actual,
                pending: &pending,
                backoffs: &self.backoffs,
                may_unmount: true,
                controller_attaches: true,
                reported_attached: &reported,
            },
            self.now,
        );
        let count = plan.actions.len() + usize::from(plan.wake_at.is_some());
        for (i, action) in plan.actions.iter().enumerate() {
            for other in plan.actions.iter().skip(i + 1) {
                let (a, b) = (self.key(action), self.key(other));
                assert!(!a.conflicts(&b), "{action:?} and {other:?} at once");
            }
        }
        for action in plan.actions {
            self.actual.begin(&action, &self.desired);
            if faults && self.rng.one_in(40) {
                // Crash before, or after, the effect.
                if self.rng.one_in(2) {
                    self.effect(&action);
                }
                self.crash();
                return count;
            }
            let (outcome, device) = if faults && self.rng.one_in(8) {
                self.fault(&action)
            } else {
                (Outcome::Done, self.effect(&action))
            };
            let key = self.key(&action);
            if outcome == Outcome::Done {
                self.backoffs.succeeded(&key);
            } else {
                self.backoffs.failed(key, action.name(), self.now);
            }
            self.actual.finish(&action, &outcome, device);
            self.check();
        }
        self.now += Duration::from_millis(700);
        count
    }

    fn key(&self, action: &Action) -> OpKey {
        action.key(self.specs[action.volume()].is_device_mountable())
    }

    fn fault(&mut self, action: &Action) -> (Outcome, Option<DeviceState>) {
        match self.rng.next() % 3 {
            0 => {
                // By contract, a final error leaves nothing behind that did not exist before.
                if let Action::Mount { volume, pod } = action {
                    let keeps = self
                        .actual
                        .mount(volume, pod)
                        .is_some_and(|m| m.state == MountState::Mounted || m.reconstructed);
                    if !keeps {
                        self.disk.mounts.remove(&(volume.clone(), pod.clone()));
                    }
                }
                (Outcome::Final, None)
            }
            1 => (Outcome::Transient, None),
            _ => {
                let device = self.effect(action);
                (Outcome::Uncertain, device.map(|_| DeviceState::Uncertain))
            }
        }
    }

    fn effect(&mut self, action: &Action) -> Option<DeviceState> {
        match action {
            Action::Mount { volume, pod } => {
                let known = self
                    .actual
                    .mount(volume, pod)
                    .is_some_and(|m| m.state == MountState::Mounted && !m.remount);
                assert!(!known, "{volume} mounted twice for {pod}");
                self.disk.mounts.insert((volume.clone(), pod.clone()));
                if self.specs[volume].is_device_mountable() {
                    self.disk.devices.insert(volume.clone());
                    return Some(DeviceState::Mounted);
                }
            }
            Action::Unmount { volume, pod } => {
                self.disk.mounts.remove(&(volume.clone(), pod.clone()));
            }
            Action::UnmountDevice { volume } => {
                assert!(
                    !self.disk.mounts.iter().any(|(v, _)| v == volume),
                    "device of {volume} unmounted under a pod"
                );
                self.disk.devices.remove(volume);
            }
            Action::VerifyAttached { .. } | Action::Expand { .. } | Action::Forget { .. } => {}
        }
        None
    }

    /// Everything on disk is in the actual state.
    fn check(&self) {
        for (volume, pod) in &self.disk.mounts {
            assert!(self.actual.mount(volume, pod).is_some(), "{volume} of {pod} leaked");
        }
        for volume in &self.disk.devices {
            let state = self.actual.volumes.get(volume).map(|v| v.device);
            assert!(
                matches!(state, Some(DeviceState::Mounted | DeviceState::Uncertain)),
                "device {volume} leaked"
            );
        }
    }

    fn settle(&mut self) {
        for _ in 0..2000 {
            if self.step(false) == 0 {
                return;
            }
        }
        panic!("does not settle");
    }
}

#[test]
fn no_leak_and_no_double_mount_over_many_pods_failures_and_crashes() {
    for seed in 1..=20_u64 {
        let mut world = World::new(seed * 7919);
        for number in 0..50 {
            world.add_pod(number);
            for _ in 0..3 {
                world.step(true);
            }
            if world.rng.one_in(2) {
                let victim = world.rng.next() % (number + 1);
                world.desired.pods.remove(format!("pod{victim}").as_str());
            }
        }
        world.settle();
        let wanted: usize = world.desired.pods.values().map(|p| p.volumes.len()).sum();
        assert_eq!(world.disk.mounts.len(), wanted, "seed {seed}");
        world.desired.pods.clear();
        for _ in 0..20 {
            world.step(true);
        }
        world.settle();
        assert!(world.disk.mounts.is_empty(), "seed {seed}: {:?}", world.disk.mounts);
        assert!(world.disk.devices.is_empty(), "seed {seed}: {:?}", world.disk.devices);
        assert_eq!(world.actual, Actual::default(), "seed {seed}");
    }
}
