//! Waits until the runtime has said why a container was killed, and whether its sandbox ended too.
//!
//! A runtime learns of a container's end and of the kernel's out-of-memory kill in two ways, and the
//! end may come first: asked at once it says `Error`, a moment later `OOMKilled`. A reader that looks once a
//! second seldom notices; one that looks at every event would believe the first answer for ever.
//!
//! Where containers share the sandbox's processes, the end of the sandbox kills them all, and the runtime
//! learns of their ends first: who starts one anew at once does so in a sandbox that is gone.
//!
//! Promises: only an end by SIGKILL without a reason waits, only where the kernel did kill in the pod's
//! cgroup, and not for longer than [`LIMIT`].

use engine::runtime::{ContainerRunState, NamespaceMode, RuntimePod, SandboxState};
use proto::cri_v1::{ContainerState, ContainerStatus};
use std::time::Duration;
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(3);
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// How long a sandbox may take to follow its containers.
pub(super) const SANDBOX_LIMIT: Duration = Duration::from_millis(400);
/// 128 and the number of SIGKILL.
const KILLED: i32 = 137;

/// Whether the answer may still change.
pub(super) fn may_change(status: &ContainerStatus) -> bool {
    status.state == ContainerState::ContainerExited as i32
        && status.exit_code == KILLED
        && status.reason == "Error"
}

/// Whether a container was killed since we looked last whose sandbox, which ends with nothing less than that, is
/// said to be there still.
pub(super) fn sandbox_may_end(pod: &RuntimePod, before: Option<&RuntimePod>) -> bool {
    let is_known = |id| {
        let mut known = before.iter().flat_map(|pod| &pod.containers);
        known.any(|c| c.id == id && c.state == ContainerRunState::Exited)
    };
    let shares = |id: &api::ids::SandboxId| {
        pod.sandboxes.iter().any(|s| {
            s.id == *id && s.state == SandboxState::Ready && s.pid_mode == NamespaceMode::Pod
        })
    };
    pod.containers.iter().any(|c| {
        c.state == ContainerRunState::Exited
            && c.exit_code == KILLED
            && shares(&c.sandbox)
            && !is_known(c.id.clone())
    })
}

/// The last answer of `ask`, which is asked until the answer cannot change any more.
pub(super) async fn settled<F, Answer, E>(
    mut status: ContainerStatus,
    mut ask: F,
) -> Result<ContainerStatus, E>
where
    F: FnMut() -> Answer,
    Answer: Future<Output = Result<Option<ContainerStatus>, E>>,
{
    let end = Instant::now() + LIMIT;
    while may_change(&status) && Instant::now() < end {
        tokio::time::sleep(PAUSE).await;
        match ask().await? {
            Some(newer) => status = newer,
            None => break,
        }
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::translate;
    use std::cell::Cell;

    fn ended(reason: &str) -> ContainerStatus {
        ContainerStatus {
            state: ContainerState::ContainerExited as i32,
            exit_code: KILLED,
            reason: reason.to_owned(),
            ..ContainerStatus::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_reason_that_comes_after_the_end_is_waited_for() {
        let asked = Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            let reason = if asked.get() < 3 { "Error" } else { "OOMKilled" };
            async move { Ok::<_, ()>(Some(ended(reason))) }
        };
        let status = settled(ended("Error"), ask).await.unwrap();
        assert_eq!((status.reason.as_str(), asked.get()), ("OOMKilled", 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reason_that_never_comes_is_not_waited_for_long() {
        let began = Instant::now();
        let ask = || async { Ok::<_, ()>(Some(ended("Error"))) };
        let status = settled(ended("Error"), ask).await.unwrap();
        assert_eq!((status.reason.as_str(), began.elapsed()), ("Error", LIMIT));
    }

    #[test]
    fn other_ends_are_final() {
        assert!(may_change(&ended("Error")));
        assert!(!may_change(&ended("OOMKilled")));
        assert!(!may_change(&ContainerStatus { exit_code: 1, ..ended("Error") }));
        let running = ContainerState::ContainerRunning as i32;
        assert!(!may_change(&ContainerStatus { state: running, ..ended("Error") }));
    }

    fn pod(state: SandboxState, pid_mode: NamespaceMode, exit_code: i32) -> RuntimePod {
        let sandbox = proto::cri_v1::PodSandboxStatus { id: "s".into(), ..Default::default() };
        let status = ContainerStatus { id: "c".into(), exit_code, ..ended("Error") };
        let mut pod = RuntimePod::empty("u".into(), "p", "n", jiff::Timestamp::UNIX_EPOCH);
        let sandbox = translate::sandbox(&sandbox);
        pod.sandboxes.push(engine::runtime::SandboxView { state, pid_mode, ..sandbox });
        pod.containers.push(translate::container(&status, "s"));
        pod
    }

    #[test]
    fn a_sandbox_that_kills_with_its_end_is_waited_for_once() {
        let killed = pod(SandboxState::Ready, NamespaceMode::Pod, KILLED);
        assert!(sandbox_may_end(&killed, None));
        assert!(!sandbox_may_end(&killed, Some(&killed)), "known before");
        let over = pod(SandboxState::NotReady, NamespaceMode::Pod, KILLED);
        assert!(!sandbox_may_end(&over, None));
        let own = pod(SandboxState::Ready, NamespaceMode::Container, KILLED);
        assert!(!sandbox_may_end(&own, None), "its processes are its own");
        let done = pod(SandboxState::Ready, NamespaceMode::Pod, 1);
        assert!(!sandbox_may_end(&done, None), "ended by itself");
    }
}
