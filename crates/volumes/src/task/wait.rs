//! Waiting for a pod's volumes, and the errors and explanations of a wait.

use super::VolumesTask;
use crate::pool::{SHOWN_AFTER, tells_of_quarantine};
use api::ids::{PodUid, VolumeName};
use engine::volumes::{MountState, OpKey, Plugin, VolumeSpec, used_volumes};
use ports::{MountedVolume, PodMounts, VolumeError, Wait};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A caller that waits for all volumes of a pod.
#[derive(Debug)]
pub(super) struct ReadyWaiter {
    pub(super) uid: PodUid,
    /// The number of resolves started when the wait began; errors of earlier ones are ignored.
    pub(super) after: u64,
    pub(super) reply: oneshot::Sender<Result<PodMounts, VolumeError>>,
}

/// The mount progress of a pod's volumes.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitState {
    /// All of them, if every one is mounted.
    pub(crate) ready: Option<PodMounts>,
    /// Names, in the pod spec, of volumes that are not mounted.
    pub(crate) unmounted: Vec<String>,
    /// … of which a controller must attach these first.
    pub(crate) unattached: Vec<String>,
    /// Driver and handle of those that are CSI volumes.
    pub(crate) unattached_storage: Vec<(String, String)>,
    /// … of which these could not be resolved.
    pub(crate) unprocessed: Vec<String>,
    /// Unique names of what is mounted.
    pub(crate) mounted: Vec<String>,
    /// What each missing volume waits for.
    pub(crate) steps: Vec<String>,
}

impl WaitState {
    /// Upstream's error text for the wait.
    pub(crate) fn text(&self, cause: &str) -> String {
        format!(
            "unmounted volumes=[{}], unattached volumes=[{}], failed to process volumes=[{}]: {cause}",
            self.unmounted.join(" "),
            self.unattached.join(" "),
            self.unprocessed.join(" ")
        )
    }

    /// The wait is over: success if everything is mounted. Only the log shows what each volume waits for.
    pub(crate) fn ended(self, cause: &str) -> Result<PodMounts, VolumeError> {
        if let Some(mounts) = self.ready {
            return Ok(mounts);
        }
        let mut text = self.text(cause);
        if !self.steps.is_empty() {
            text.push_str(&format!(" ({})", self.steps.join("; ")));
        }
        Err(VolumeError::TimedOut(text))
    }
}

impl VolumesTask {
    /// Answers every waiter whose wait is over.
    pub(super) fn settle_waiters(&mut self) {
        let mut still = Vec::new();
        for waiter in std::mem::take(&mut self.waiters) {
            if waiter.reply.is_closed() {
                continue;
            }
            match self.ready_answer(&waiter) {
                Some(answer) => drop(waiter.reply.send(answer)),
                None => still.push(waiter),
            }
        }
        self.waiters = still;
        let mut waiting = Vec::new();
        for (uid, reply) in std::mem::take(&mut self.release_waiters) {
            let held = self
                .actual
                .volumes
                .values()
                .filter_map(|v| v.pods.get(&uid))
                .any(|m| m.state == MountState::Mounted);
            let busy = self.pending.iter().any(|k| matches!(k, OpKey::Pod(_, p) if *p == uid));
            if held || busy {
                if !reply.is_closed() {
                    waiting.push((uid, reply));
                }
            } else {
                // The asker may have gone away.
                let _ = reply.send(());
            }
        }
        self.release_waiters = waiting;
    }

    fn ready_answer(&self, waiter: &ReadyWaiter) -> Option<Result<PodMounts, VolumeError>> {
        let Some(pod_state) = self.pod_states.get(&waiter.uid) else {
            return Some(Err(VolumeError::NotReady("the pod is gone".into())));
        };
        if pod_state.finished < waiter.after {
            return None;
        }
        let state = self.describe(&waiter.uid);
        if let Some(mounts) = state.ready {
            return Some(Ok(mounts));
        }
        let mut errors: Vec<String> = pod_state.errors.iter().cloned().collect();
        errors.extend(self.label_waits(&waiter.uid));
        if errors.is_empty() {
            return None;
        }
        Some(Err(VolumeError::NotReady(state.text(&errors.join("; ")))))
    }

    /// Waits for volumes that other pods have mounted with another SELinux label.
    fn label_waits(&self, uid: &PodUid) -> Vec<String> {
        let wanted = self.desired.pods.get(uid).into_iter().flat_map(|pod| &pod.volumes);
        let held = wanted.filter(|(name, volume)| {
            let actual = self.actual.volumes.get(*name);
            actual.is_some_and(|a| a.labelled_otherwise(uid, volume))
        });
        held.map(|(name, _)| {
            format!(
                "waiting for unmount of volume {:?}, because it is already mounted to a different pod with a different SELinux label",
                name.as_str()
            )
        })
        .collect()
    }

    /// The mount progress of the pod's volumes.
    pub(super) fn describe(&self, uid: &PodUid) -> WaitState {
        let mut state = WaitState::default();
        for (name, volume) in &self.actual.volumes {
            if volume.pods.get(uid).is_some_and(|m| m.state == MountState::Mounted) {
                state.mounted.push(name.to_string());
            }
        }
        let Some(pod_state) = self.pod_states.get(uid) else { return state };
        let desired = self.desired.pods.get(uid);
        let mut mounts = PodMounts::new();
        for name in used_volumes(&pod_state.pod).into_keys() {
            let found =
                desired.and_then(|d| d.volumes.iter().find(|(_, v)| v.names.contains(&name)));
            let Some((unique, volume)) = found else {
                state.steps.push(format!("volume {name:?} is not resolved"));
                state.unprocessed.push(name.clone());
                state.unmounted.push(name);
                continue;
            };
            if self.is_mounted(unique, uid) {
                let labelled = self.actual.volumes.get(unique).is_some_and(|v| !v.label.is_empty());
                mounts.insert(name, self.mounted_volume(uid, &volume.spec, labelled));
                continue;
            }
            let attached = self.actual.volumes.get(unique).is_some_and(|v| v.attached);
            if volume.attachable && !attached {
                state.unattached.push(name.clone());
                state.unattached_storage.extend(crate::csi::mount::storage_id(&volume.spec));
            }
            let keys = [OpKey::Pod(unique.clone(), uid.clone()), OpKey::Volume(unique.clone())];
            let step = keys.iter().find_map(|k| self.steps.get(k)).map(|step| step.read());
            state.steps.push(match step {
                Some((what, since)) => {
                    format!("volume {name:?}: {what} for {}s", since.as_secs())
                }
                None if volume.attachable && !attached => {
                    format!("volume {name:?}: waiting for the controller to attach it")
                }
                None => format!("volume {name:?}: waiting before the next try"),
            });
            state.unmounted.push(name);
        }
        if state.unmounted.is_empty() {
            state.ready = Some(mounts);
        }
        state
    }

    /// What every pod's volumes wait for.
    pub(super) fn waits(&self) -> BTreeMap<PodUid, Vec<Wait>> {
        let pod_states = self.pod_states.iter().filter(|(_, pod_state)| !pod_state.released);
        let waits = pod_states.map(|(uid, pod_state)| {
            let wanted = self.desired.pods.get(uid);
            let missing = used_volumes(&pod_state.pod).into_keys().filter_map(|name| {
                let found =
                    wanted.and_then(|d| d.volumes.iter().find(|(_, v)| v.names.contains(&name)));
                let wait = match found {
                    Some((unique, _)) if self.is_mounted(unique, uid) => return None,
                    Some((unique, volume)) => self.volume_wait(uid, unique, volume.attachable),
                    None => Wait {
                        what: "finding out what it is".into(),
                        next_try: pod_state.again_at.map(|at| self.moment(at)),
                        last_error: pod_state.errors.iter().cloned().collect::<Vec<_>>().join("; "),
                        ..Wait::default()
                    },
                };
                let since = wait.since.unwrap_or_else(|| self.moment(pod_state.since));
                Some(Wait { who: format!("volume {name:?}"), since: Some(since), ..wait })
            });
            (uid.clone(), missing.collect::<Vec<_>>())
        });
        let mut waits: BTreeMap<PodUid, Vec<Wait>> = waits.filter(|(_, w)| !w.is_empty()).collect();
        // Unmounts that take long.
        for (key, step) in &self.steps {
            let OpKey::Pod(volume, uid) = key else { continue };
            let (what, since) = step.read();
            if since >= SHOWN_AFTER && !self.desired.wants(volume, uid) {
                let wait = self.in_flight(what, since);
                let wait = Wait { who: format!("volume {:?}", volume.to_string()), ..wait };
                waits.entry(uid.clone()).or_default().push(wait);
            }
        }
        waits
    }

    fn volume_wait(&self, uid: &PodUid, volume: &VolumeName, attachable: bool) -> Wait {
        let keys = [OpKey::Pod(volume.clone(), uid.clone()), OpKey::Volume(volume.clone())];
        let last_error = keys.iter().find_map(|key| self.errors.get(key)).cloned();
        let last_error = last_error.unwrap_or_default();
        if let Some(step) = keys.iter().find_map(|key| self.steps.get(key)) {
            let (what, since) = step.read();
            return Wait { last_error, ..self.in_flight(what, since) };
        }
        let now = Instant::now() - self.start;
        let until = keys.iter().filter_map(|key| self.backoffs.waits_until(key)).max();
        let next_try = until.filter(|at| *at > now).map(|at| self.moment(self.start + at));
        let attached = self.actual.volumes.get(volume).is_some_and(|v| v.attached);
        let what = match (attachable && !attached, next_try) {
            (true, None) => "the controller to attach it",
            (_, Some(_)) => "the next try",
            (false, None) => "its turn",
        };
        let hung = tells_of_quarantine(&last_error);
        Wait { what: what.into(), next_try, last_error, hung, ..Wait::default() }
    }

    fn in_flight(&self, what: String, since: Duration) -> Wait {
        let began = self.moment(Instant::now() - since);
        Wait { what, since: Some(began), hung: since >= SHOWN_AFTER, ..Wait::default() }
    }

    /// An instant as wall clock time.
    fn moment(&self, at: Instant) -> jiff::Timestamp {
        let (wall, now) = (self.env.clock.now(), Instant::now());
        let moment = if at >= now {
            jiff::SignedDuration::try_from(at - now).and_then(|ahead| wall.checked_add(ahead))
        } else {
            jiff::SignedDuration::try_from(now - at).and_then(|past| wall.checked_sub(past))
        };
        moment.unwrap_or(wall)
    }

    fn mounted_volume(&self, uid: &PodUid, spec: &VolumeSpec, labelled: bool) -> MountedVolume {
        let host_owned = spec.plugin == Plugin::HostPath;
        let inline_read_only = spec.as_inline().is_some_and(|v| {
            v.nfs.as_ref().and_then(|n| n.read_only) == Some(true)
                || v.csi.as_ref().and_then(|c| c.read_only) == Some(true)
                || v.iscsi.as_ref().and_then(|i| i.read_only) == Some(true)
                || v.fc.as_ref().and_then(|f| f.read_only) == Some(true)
                || v.flex_volume.as_ref().and_then(|f| f.read_only) == Some(true)
        });
        let read_only = spec.read_only || inline_read_only;
        // Volumes that the kubelet does not manage are not relabelled (kubelet: `Attributes.Managed`).
        let relabels = match &spec.plugin {
            Plugin::HostPath | Plugin::Nfs | Plugin::Image => false,
            plugin => plugin.is_content() || !read_only,
        };
        let gid = spec
            .as_persistent()
            .and_then(|v| v.metadata.annotations.as_ref())
            .and_then(|a| a.get("pv.beta.kubernetes.io/gid"))
            .and_then(|gid| gid.parse().ok());
        MountedVolume {
            host_path: self.env.paths.container_source(uid.as_str(), spec),
            read_only: read_only || spec.plugin.is_content() || spec.plugin == Plugin::Image,
            selinux_relabel: relabels && !labelled && self.env.config.selinux,
            block: spec.is_block(),
            host_owned,
            supplemental_gid: gid,
        }
    }
}
