//! `/containerLogs`: a container's log, from its file.

use super::pods::find;
use crate::gotime::rfc3339;
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::route::ContainerPath;
use crate::serve::ServerDeps;
use crate::target::Target;
use api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use axum::body::Body;
use http::{StatusCode, Version};
use ports::OnExit;
use std::path::PathBuf;
use std::sync::Arc;
use sys::logs::{LogQuery, read_log};
use tokio::sync::mpsc;
use units::cri_log::{Moment, Streams};
use units::strconv::{parse_int, quote};

const PIECES: usize = 8;

/// What the query asks for, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    previous: bool,
    since_seconds: Option<i64>,
    query: LogQuery,
}

/// Streams the log.
pub(crate) async fn container(
    deps: &Arc<ServerDeps>,
    path: &ContainerPath,
    target: &Target,
    split_streams: bool,
    version: Version,
) -> Reply {
    let missing = |what: &str| {
        reply::plain(StatusCode::BAD_REQUEST, format!(r#"{{"message": "Missing {what}."}}"#))
    };
    if path.pod.is_empty() {
        return missing("podID");
    }
    if path.container.is_empty() {
        return missing("container name");
    }
    if path.namespace.is_empty() {
        return missing("podNamespace");
    }
    let wanted = match parse(&target.query) {
        Ok(wanted) => wanted,
        Err(refused) => return *refused,
    };
    let Some(entry) = find(deps, &path.namespace, &path.pod) else {
        let text = format!("pod {} does not exist", target.quoted(2));
        return reply::plain(StatusCode::NOT_FOUND, text);
    };
    if !has_container(&entry.pod, &path.container) {
        let (container, pod) = (target.quoted(3), target.quoted(2));
        let text = format!("container {container} not found in pod {pod}");
        return reply::plain(StatusCode::NOT_FOUND, text);
    }
    let only = match wanted.query.streams {
        Streams::All => None,
        Streams::Stdout => Some("Stdout"),
        Streams::Stderr => Some("Stderr"),
    };
    if let Some(stream) = only.filter(|_| !split_streams) {
        let text = format!(
            "unable to return the given log stream: {stream:?}. Please enable PodLogsQuerySplitStreams feature gate in kubelet"
        );
        return reply::plain(StatusCode::BAD_REQUEST, text);
    }
    let status = entry.status.as_deref().or(entry.pod.status.as_ref());
    match choose(status, path, wanted.previous) {
        Ok(id) => stream(deps, id, wanted).await,
        // Upstream asks for chunks first, and then Go's server gives no type; HTTP/2 has none.
        Err(text) if version == Version::HTTP_2 => reply::plain(StatusCode::BAD_REQUEST, text),
        Err(text) => reply::bare(StatusCode::BAD_REQUEST, text),
    }
}

async fn stream(deps: &Arc<ServerDeps>, id: String, wanted: Wanted) -> Reply {
    let (sink, pieces) = mpsc::channel::<Vec<u8>>(PIECES);
    let deps = Arc::clone(deps);
    let tasks = deps.tasks.clone();
    tasks.spawn("container-log", OnExit::Fine, async move {
        if let Err(text) = follow(&deps, &id, wanted, &sink).await {
            // A reader that has gone does not need the reason.
            let _ = sink.send(text.into_bytes()).await;
        }
    });
    let body = futures::stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes::Bytes::from(piece)), pieces))
    });
    reply::bare(StatusCode::OK, Body::from_stream(body))
}

async fn follow(
    deps: &ServerDeps,
    id: &str,
    mut wanted: Wanted,
    sink: &mpsc::Sender<Vec<u8>>,
) -> Result<(), String> {
    let bare = id.split_once("://").map_or(id, |(_, bare)| bare).to_owned();
    let status = deps.runtime.container_status(&bare, false).await;
    let log_path = match status {
        Ok(answer) => answer.status.map(|s| s.log_path).unwrap_or_default(),
        Err(error) => {
            tracing::debug!(err = %error, containerID = bare, "no status for a log");
            return Err(format!("unable to retrieve container logs for {id}"));
        }
    };
    if let Some(seconds) = wanted.since_seconds {
        wanted.query.since = Some(ago(deps.clock.now(), seconds));
    }
    let runtime = deps.runtime.clone();
    let alive = move || {
        let (runtime, bare) = (runtime.clone(), bare.clone());
        async move {
            match runtime.container_status(&bare, false).await {
                Ok(answer) => {
                    let running = cri::api::ContainerState::ContainerRunning as i32;
                    Ok(answer.status.is_some_and(|s| s.state == running))
                }
                Err(error) if error.is_unavailable() => Ok(true),
                Err(error) if error.is_not_found() => Ok(false),
                Err(error) => Err(error.to_string()),
            }
        }
    };
    let path = PathBuf::from(log_path);
    read_log(&path, wanted.query, alive, sink.clone()).await.map_err(|e| e.to_string())
}

pub(crate) fn parse(text: &str) -> Result<Wanted, Box<Reply>> {
    let undecodable = || {
        let body = r#"{"message": "Unable to decode query."}"#.to_owned();
        Box::new(reply::plain(StatusCode::BAD_REQUEST, body))
    };
    let invalid = || {
        let body = r#"{"message": "Invalid request."}"#.to_owned();
        Box::new(reply::plain(StatusCode::UNPROCESSABLE_ENTITY, body))
    };
    let query = Query::parse(text);
    let number = |text: &str| parse_int(text, 10, 64).map_err(|_| undecodable());
    let given = |key| query.first(key).map(number).transpose();
    let tail = match query.first("tail").filter(|legacy| !legacy.is_empty()) {
        Some("all") => None,
        Some(legacy) => Some(number(legacy)?),
        None => given("tailLines")?,
    };
    let limit = given("limitBytes")?;
    let since_seconds = given("sinceSeconds")?;
    let since_time = match query.first("sinceTime") {
        None => None,
        Some("" | "null") => Some(None),
        Some(text) => Some(Some(rfc3339(text).ok_or_else(undecodable)?)),
    };
    let streams = match query.first("stream") {
        None | Some("All") => Streams::All,
        Some("Stdout") => Streams::Stdout,
        Some("Stderr") => Streams::Stderr,
        Some(_) => return Err(invalid()),
    };
    let bad = tail.is_some_and(|n| n < 0)
        || limit.is_some_and(|n| n < 1)
        || since_seconds.is_some_and(|n| n < 1)
        || (since_seconds.is_some() && since_time.is_some())
        || (tail.is_some() && streams != Streams::All);
    if bad {
        return Err(invalid());
    }
    let positive = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok());
    Ok(Wanted {
        previous: query.flag("previous"),
        since_seconds,
        query: LogQuery {
            tail_lines: positive(tail),
            limit_bytes: positive(limit),
            since: since_time.flatten(),
            follow: query.flag("follow"),
            timestamps: query.flag("timestamps"),
            streams,
        },
    })
}

/// The moment so many seconds ago, with Go's wrapping arithmetic.
fn ago(now: jiff::Timestamp, seconds: i64) -> Moment {
    let back = seconds.wrapping_mul(1_000_000_000).wrapping_neg();
    let nanos = now.as_nanosecond() + i128::from(back);
    let whole = i64::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or_default();
    (whole, u32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or_default())
}

fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let regular = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut names = regular
        .map(|c| c.name.as_str())
        .chain(spec.ephemeral_containers.iter().flatten().map(|c| c.name.as_str()));
    names.any(|n| n == name)
}

/// The id of the instance whose log is wanted (kubelet: `validateContainerLogStatus`).
fn choose(
    status: Option<&PodStatus>,
    path: &ContainerPath,
    previous: bool,
) -> Result<String, String> {
    let (container, pod) = (quote(&path.container), quote(&path.pod));
    let found = status.and_then(|status| {
        let all = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ];
        all.into_iter().flatten().flatten().find(|s| s.name == path.container)
    });
    let Some(found) = found else {
        return Err(format!("container {container} in pod {pod} is not available"));
    };
    let last = ended(found.last_state.as_ref());
    if previous {
        return last.ok_or_else(|| {
            format!("previous terminated container {container} in pod {pod} not found")
        });
    }
    let state = found.state.as_ref();
    if state.is_some_and(|s| s.running.is_some()) {
        return Ok(found.container_id.clone().unwrap_or_default());
    }
    if state.is_some_and(|s| s.terminated.is_some()) {
        return ended(state)
            .or(last)
            .ok_or_else(|| format!("container {container} in pod {pod} is terminated"));
    }
    if let Some(last) = last {
        return Ok(last);
    }
    Err(format!("container {container} in pod {pod} is waiting to start: {}", why(found)))
}

fn ended(state: Option<&ContainerState>) -> Option<String> {
    state?.terminated.as_ref()?.container_id.clone().filter(|id| !id.is_empty())
}

fn why(status: &ContainerStatus) -> String {
    let waiting = status.state.as_ref().and_then(|s| s.waiting.as_ref());
    match waiting.and_then(|w| w.reason.as_deref()).unwrap_or_default() {
        "ErrImagePull" => "image can't be pulled".to_owned(),
        "ImagePullBackOff" => "trying and failing to pull image".to_owned(),
        reason => reason.to_owned(),
    }
}
