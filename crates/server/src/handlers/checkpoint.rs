//! `/checkpoint/NS/POD/CONTAINER`: a running container written to an archive.

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
use serde_json::json;

/// Asks the runtime for the archive.
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
    let query = Query::parse(target::query(request));
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
    let name = archive(path, &moment(deps.clock.now()));
    let place = deps.roots.kubelet.join("checkpoints").join(name).display().to_string();
    match deps.runtime.checkpoint_container(&id, &place, timeout).await {
        Ok(()) => reply::json(&json!({"items": [place]})),
        Err(error) => failed(error.to_string()),
    }
}

fn archive(path: &ContainerPath, when: &str) -> String {
    format!("checkpoint-{}_{}-{}-{when}.tar", path.pod, path.namespace, path.container)
}

/// Local time as RFC 3339.
fn moment(now: Timestamp) -> String {
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
