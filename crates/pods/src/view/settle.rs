//! Waits until the runtime has said why a container was killed.
//!
//! A runtime learns of a container's end and of the kernel's out-of-memory kill in two ways, and the
//! end may come first: asked at once it says `Error`, a moment later `OOMKilled`. A reader that looks once a
//! second seldom notices; one that looks at every event would believe the first answer for ever.
//!
//! Promises: only an end by SIGKILL without a reason waits, only where the kernel did kill in the pod's
//! cgroup, and not for longer than [`LIMIT`].

use proto::cri_v1::{ContainerState, ContainerStatus};
use std::time::Duration;
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(100);
/// 128 and the number of SIGKILL.
const KILLED: i32 = 137;

/// Whether the answer may still change.
pub(super) fn may_change(status: &ContainerStatus) -> bool {
    status.state == ContainerState::ContainerExited as i32
        && status.exit_code == KILLED
        && status.reason == "Error"
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
}
