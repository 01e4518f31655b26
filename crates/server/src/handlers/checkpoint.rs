//! `/checkpoint/NS/POD/CONTAINER`: writes a running container to an archive.
//!
//! An archive contains a container's complete memory and is never removed: operators can limit the
//! number of archives (CVE-2025-0426).

use super::pods::find;
use super::stream::find_running;
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::route::ContainerPath;
use crate::serve::ServerDeps;
use crate::target;
use api::core::v1::Pod;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Has the runtime write the archive.
pub(crate) async fn answer(
    deps: &ServerDeps,
    path: &ContainerPath,
    request: &Request<Incoming>,
) -> Reply {
    let not_found = |text: &str| reply::plain(StatusCode::NOT_FOUND, text.to_owned());
    let Some(entry) = find(deps, &path.namespace, &path.pod) else {
        return not_found("pod does not exist");
    };
    if !has_container(&entry.pod, &path.container) {
        return not_found(&format!("container {} does not exist", path.container));
    }
    let query = Query::parse(&target::query(request));
    let Some(timeout) = query.all("timeout").last().map_or(Some(0), |t| t.parse::<i64>().ok())
    else {
        return not_found("cannot parse value of timeout parameter");
    };
    let failed = |error: String| {
        let (namespace, pod, container) = (&path.namespace, &path.pod, &path.container);
        let text = format!("checkpointing of {namespace}/{pod}/{container} failed ({error})");
        reply::plain(StatusCode::INTERNAL_SERVER_ERROR, text)
    };
    let id = match find_running(deps, &entry.pod, &path.container).await {
        Ok(Some(id)) => id,
        Ok(None) => return failed(format!("container {} not found", path.container)),
        Err(error) => return failed(error.to_string()),
    };
    let Some(_in_flight) = deps.checkpoints.begin(count_archives(deps).await) else {
        let (namespace, pod, container) = (&path.namespace, &path.pod, &path.container);
        let text = format!(
            "checkpointing of {namespace}/{pod}/{container} refused (there are as many archives as allowed: {})",
            deps.checkpoints.most.unwrap_or_default()
        );
        return reply::plain(StatusCode::TOO_MANY_REQUESTS, text);
    };
    let name = archive(path, &local_time(deps.clock.now()));
    let place = deps.roots.kubelet.join("checkpoints").join(name).display().to_string();
    match deps.runtime.checkpoint_container(&id, &place, timeout).await {
        Ok(()) => reply::json(format!("{{\"items\":[\"{place}\"]}}")),
        Err(error) => failed(error.to_string()),
    }
}

/// Limits the number of archives.
#[derive(Debug, Default)]
pub struct CheckpointQuota {
    most: Option<usize>,
    in_flight: AtomicUsize,
}

impl CheckpointQuota {
    /// At most `most` archives; `None` for no limit.
    pub fn new(most: Option<usize>) -> Self {
        Self { most, in_flight: AtomicUsize::new(0) }
    }

    /// Reserves one more archive besides those on disk and those being written; `None` over the
    /// limit.
    fn begin(&self, on_disk: usize) -> Option<InFlight<'_>> {
        let others = self.in_flight.fetch_add(1, Ordering::SeqCst);
        let permit = InFlight(&self.in_flight);
        self.most.is_none_or(|most| on_disk.saturating_add(others) < most).then_some(permit)
    }
}

/// An archive that is being written.
struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The number of archives on disk; not counted without a limit. An unreadable directory counts as
/// full.
async fn count_archives(deps: &ServerDeps) -> usize {
    if deps.checkpoints.most.is_none() {
        return 0;
    }
    let folder = deps.roots.kubelet.join("checkpoints");
    match sys::blocking::run_for(sys::blocking::Purpose::Callers, move || sys::fs::list_dir(folder))
        .await
    {
        Ok(Ok(names)) => names.iter().filter(|name| name.ends_with(".tar")).count(),
        Ok(Err(error)) if error.is_not_found() => 0,
        _ => usize::MAX,
    }
}

fn archive(path: &ContainerPath, when: &str) -> String {
    format!("checkpoint-{}_{}-{}-{when}.tar", path.pod, path.namespace, path.container)
}

/// Local time as RFC 3339.
fn local_time(now: Timestamp) -> String {
    let local = now.to_zoned(TimeZone::system());
    let zone = if local.offset().seconds() == 0 { "Z" } else { "%:z" };
    local.strftime(&format!("%Y-%m-%dT%H:%M:%S{zone}")).to_string()
}

fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let init = spec.init_containers.iter().flatten().map(|c| c.name.as_str());
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.name.as_str());
    spec.containers.iter().map(|c| c.name.as_str()).chain(init).chain(ephemeral).any(|c| c == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_on_disk_and_under_way_count_and_a_refused_one_does_not() {
        let quota = CheckpointQuota::new(Some(3));
        let first = quota.begin(1).expect("the second of three");
        let second = quota.begin(1).expect("the third of three");
        assert!(quota.begin(1).is_none() && quota.begin(1).is_none());
        drop((first, second));
        assert!(quota.begin(2).is_some());
        assert!(quota.begin(3).is_none());
        assert!(CheckpointQuota::default().begin(usize::MAX).is_some(), "without a limit");
    }

    #[test]
    fn archives_are_named_after_pod_container_and_time() {
        let path = ContainerPath {
            namespace: "ns".into(),
            pod: "p".into(),
            uid: None,
            container: "c".into(),
        };
        assert_eq!(archive(&path, "T"), "checkpoint-p_ns-c-T.tar");
    }
}
