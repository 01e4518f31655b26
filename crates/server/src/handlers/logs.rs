//! `/containerLogs`: a container's log, read from its file.

use super::kinds;
use super::pods::find;
use crate::gotime::rfc3339;
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::route::ContainerPath;
use crate::serve::ServerDeps;
use crate::target::Target;
use api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use axum::body::Body;
use bytes::Bytes;
use cri::CriError;
use cri::api::ContainerStatusResponse;
use http::{StatusCode, Version};
use ports::OnExit;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use sys::logs::{LogQuery, read_log};
use tokio::sync::{mpsc, oneshot};
use units::cri_log::{Moment, Streams};
use units::strconv::{parse_int, quote};

const PIECES: usize = 8;
const NO_STATUS: &str = "container status is nil";

/// The validated options of the query.
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
        Ok(id) => {
            let streams = wanted.query.streams;
            answer(read(deps, id, wanted), streams, version).await
        }
        Err(text) => refused(text, version),
    }
}

/// A log being read: its pieces, then the error, if any.
struct Log {
    pieces: mpsc::Receiver<Vec<u8>>,
    fault: Option<oneshot::Receiver<String>>,
}

enum Part {
    Piece(Vec<u8>),
    Fault(String),
}

impl Log {
    async fn next(&mut self) -> Option<Part> {
        if let Some(piece) = self.pieces.recv().await {
            return Some(Part::Piece(piece));
        }
        self.fault.take()?.await.ok().map(Part::Fault)
    }

    /// The rest of the log, preceded by a part that was taken already.
    fn body(self, first: Option<Part>) -> Body {
        Body::from_stream(futures::stream::unfold((first, self), |(first, mut log)| async move {
            let part = match first {
                Some(first) => first,
                None => log.next().await?,
            };
            let bytes = match part {
                Part::Piece(piece) => Bytes::from(piece),
                Part::Fault(text) => Bytes::from(text),
            };
            Some((Ok::<_, Infallible>(bytes), (None, log)))
        }))
    }
}

fn read(deps: &Arc<ServerDeps>, id: String, wanted: Wanted) -> Log {
    let (sink, pieces) = mpsc::channel::<Vec<u8>>(PIECES);
    let (report, fault) = oneshot::channel();
    let deps = Arc::clone(deps);
    let tasks = deps.tasks.clone();
    tasks.spawn("container-log", OnExit::Alone, async move {
        if let Err(text) = follow(&deps, &id, wanted, sink).await {
            // A caller that has disconnected does not need the error.
            let _ = report.send(text);
        }
    });
    Log { pieces, fault: Some(fault) }
}

/// The response with the headers that Go's server sends. Upstream asks for chunked encoding, with
/// which HTTP/1 responses get no content type; HTTP/2 has no chunked encoding, and the type is that
/// of the bytes present when the headers are sent.
async fn answer(mut log: Log, streams: Streams, version: Version) -> Reply {
    if streams != Streams::Stderr {
        // Upstream's first write to stdout is empty, which sends the headers.
        return reply::bare(StatusCode::OK, log.body(None));
    }
    let first = match log.next().await {
        Some(Part::Fault(text)) => return refused(text, version),
        Some(Part::Piece(first)) => first,
        None if version == Version::HTTP_2 => return reply::bare(StatusCode::OK, Body::empty()),
        None => return reply::bare(StatusCode::OK, log.body(None)),
    };
    // Upstream writes each line separately.
    let line = first.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let kind = kinds::of_start(line);
    let body = log.body(Some(Part::Piece(first)));
    match version {
        Version::HTTP_2 => reply::with_type(StatusCode::OK, kind, body),
        _ => reply::bare(StatusCode::OK, body),
    }
}

/// The response when nothing was sent before the error.
fn refused(text: String, version: Version) -> Reply {
    if version == Version::HTTP_2 {
        return reply::plain(StatusCode::BAD_REQUEST, text);
    }
    let chunk = futures::stream::once(async { Ok::<_, Infallible>(Bytes::from(text)) });
    reply::bare(StatusCode::BAD_REQUEST, Body::from_stream(chunk))
}

async fn follow(
    deps: &ServerDeps,
    id: &str,
    mut wanted: Wanted,
    sink: mpsc::Sender<Vec<u8>>,
) -> Result<(), String> {
    let (kind, bare) = parts(id);
    let bare = bare.to_owned();
    let status = deps.runtime.container_status(&bare, false).await;
    let log_path = match status {
        Ok(answer) => answer.status.ok_or(NO_STATUS)?.log_path,
        Err(error) => {
            tracing::debug!(err = %error, containerID = bare, "Failed to get container status for its log");
            return Err(format!("unable to retrieve container logs for {kind}://{bare}"));
        }
    };
    if let Some(seconds) = wanted.since_seconds {
        wanted.query.since = Some(ago(deps.clock.now(), seconds));
    }
    let runtime = deps.runtime.clone();
    let alive = move || {
        let (runtime, bare) = (runtime.clone(), bare.clone());
        async move { still_runs(runtime.container_status(&bare, false).await) }
    };
    let path = PathBuf::from(log_path);
    read_log(&path, wanted.query, alive, sink).await.map_err(|e| e.to_string())
}

/// Runtime and ID of a container ID from a status; both empty if it is empty (kubelet:
/// `ParseContainerID`).
fn parts(id: &str) -> (&str, &str) {
    let parts = id.trim_matches('"').split_once("://");
    parts.filter(|(_, bare)| !bare.contains("://")).unwrap_or_default()
}

/// Whether the container may still write. An unreachable runtime does not end the log; any other
/// error does, with its text as the last line (cri-client: `isContainerRunning`), also when the
/// container was removed.
fn still_runs(answer: Result<ContainerStatusResponse, CriError>) -> Result<bool, String> {
    match answer {
        Ok(answer) => {
            let status = answer.status.ok_or(NO_STATUS)?;
            Ok(status.state() == cri::api::ContainerState::ContainerRunning)
        }
        Err(error) if error.is_unavailable() => Ok(true),
        Err(error) => Err(error.to_string()),
    }
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

/// The time so many seconds ago, with Go's wrapping arithmetic.
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

/// The ID of the container instance whose log is requested (kubelet: `validateContainerLogStatus`).
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
    let terminated = |state: Option<&ContainerState>| state.is_some_and(|s| s.terminated.is_some());
    if terminated(state) || terminated(found.last_state.as_ref()) {
        return ended(state)
            .or(last)
            .ok_or_else(|| format!("container {container} in pod {pod} is terminated"));
    }
    Err(format!("container {container} in pod {pod} is waiting to start{}", why(found)))
}

fn ended(state: Option<&ContainerState>) -> Option<String> {
    state?.terminated.as_ref()?.container_id.clone().filter(|id| !id.is_empty())
}

fn why(status: &ContainerStatus) -> String {
    let Some(waiting) = status.state.as_ref().and_then(|s| s.waiting.as_ref()) else {
        return " - no logs yet".to_owned();
    };
    match waiting.reason.as_deref().unwrap_or_default() {
        "ErrImagePull" => ": image can't be pulled".to_owned(),
        "ImagePullBackOff" => ": trying and failing to pull image".to_owned(),
        reason => format!(": {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    const TEXT: Option<&str> = Some("text/plain; charset=utf-8");

    /// Status, content type and body of the response to a log request.
    async fn response(
        pieces: &[&[u8]],
        fault: Option<&str>,
        (streams, version): (Streams, Version),
    ) -> (u16, Option<String>, String) {
        let (sink, receiver) = mpsc::channel(PIECES);
        let (said, heard) = oneshot::channel();
        for piece in pieces {
            sink.send(piece.to_vec()).await.unwrap();
        }
        drop(sink);
        match fault {
            Some(text) => said.send(text.to_owned()).unwrap(),
            None => drop(said),
        }
        let log = Log { pieces: receiver, fault: Some(heard) };
        let (head, body) = answer(log, streams, version).await.into_parts();
        let kind = head.headers.get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_owned());
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), kind, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn standard_error_alone_has_the_head_that_its_first_line_makes() {
        let one = (Streams::Stderr, Version::HTTP_11);
        let two = (Streams::Stderr, Version::HTTP_2);
        for (pieces, fault, how, status, kind, body) in [
            (&[&b"a\n"[..]][..], None, one, 200, None, "a\n"),
            (&[&b"a\n"[..]][..], None, two, 200, TEXT, "a\n"),
            (&[b"\n\x01\n"], None, two, 200, TEXT, "\n\x01\n"),
            (&[b"\x01\n"], None, two, 200, Some("application/octet-stream"), "\x01\n"),
            (&[b"a\n", b"b\n"], Some("gone"), two, 200, TEXT, "a\nb\ngone"),
            (&[b"a\n"], Some("gone"), one, 200, None, "a\ngone"),
            (&[], Some("gone"), one, 400, None, "gone"),
            (&[], Some("gone"), two, 400, TEXT, "gone"),
            (&[], None, one, 200, None, ""),
            (&[], None, two, 200, None, ""),
        ] {
            let want = (status, kind.map(str::to_owned), body.to_owned());
            assert_eq!(response(pieces, fault, how).await, want, "{pieces:?} {fault:?} {how:?}");
        }
    }

    #[test]
    fn a_removed_container_ends_its_log_with_the_runtimes_words() {
        use cri::api::{ContainerState, ContainerStatus};
        let state = |state: ContainerState| {
            let status = Some(ContainerStatus { state: state.into(), ..Default::default() });
            still_runs(Ok(ContainerStatusResponse { status, ..Default::default() }))
        };
        assert_eq!(state(ContainerState::ContainerRunning), Ok(true));
        assert_eq!(state(ContainerState::ContainerExited), Ok(false));
        let failed = |code, text: &str| {
            let message = text.to_owned();
            still_runs(Err(CriError::Rpc { call: cri::Call::ContainerStatus, code, message }))
        };
        assert_eq!(failed(tonic::Code::Unavailable, "away"), Ok(true));
        let gone = "an error occurred when try to find container \"x\": not found";
        let message = format!("rpc error: code = NotFound desc = {gone}");
        assert_eq!(failed(tonic::Code::NotFound, gone), Err(message));
        assert_eq!(
            still_runs(Ok(ContainerStatusResponse::default())),
            Err("container status is nil".to_owned())
        );
    }

    #[test]
    fn the_instance_is_the_one_that_has_a_log() {
        let path = ContainerPath { pod: "p".into(), container: "c".into(), ..Default::default() };
        let chosen = |state: Value, last: Value, previous| {
            let status = json!({"containerStatuses": [{"name": "c", "containerID": "r://now",
                "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": state, "lastState": last}]});
            choose(Some(&serde_json::from_value(status).unwrap()), &path, previous)
        };
        let ended = |id: &str| json!({"terminated": {"exitCode": 0, "containerID": id}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let ok = |id: &str| Ok(id.to_owned());
        let refusal = |why: &str| Err(format!("container \"c\" in pod \"p\" is {why}"));
        for (state, last, want) in [
            (json!({"running": {}}), ended("r://old"), ok("r://now")),
            (ended("r://one"), ended("r://old"), ok("r://one")),
            (ended(""), ended("r://old"), ok("r://old")),
            (ended(""), json!({}), refusal("terminated")),
            (waiting("CrashLoopBackOff"), ended("r://old"), ok("r://old")),
            (waiting("CrashLoopBackOff"), ended(""), refusal("terminated")),
            (waiting("x"), json!({}), refusal("waiting to start: x")),
            (
                waiting("ErrImagePull"),
                json!({}),
                refusal("waiting to start: image can't be pulled"),
            ),
            (json!({}), json!({}), refusal("waiting to start - no logs yet")),
        ] {
            assert_eq!(chosen(state.clone(), last, false), want, "{state}");
        }
        let none = "previous terminated container \"c\" in pod \"p\" not found";
        assert_eq!(chosen(json!({}), ended(""), true), Err(none.to_owned()));
    }

    #[test]
    fn what_names_no_container_is_none() {
        assert_eq!(parts("containerd://abc"), ("containerd", "abc"));
        assert_eq!(parts("\"r://abc\""), ("r", "abc"));
        for none in ["", "abc", "a://b://c"] {
            assert_eq!(parts(none), ("", ""), "{none}");
        }
    }

    #[tokio::test]
    async fn the_head_of_other_logs_waits_for_nothing_and_has_no_type() {
        for streams in [Streams::All, Streams::Stdout] {
            for version in [Version::HTTP_11, Version::HTTP_2] {
                let how = (streams, version);
                let want = |body: &str| (200, None, body.to_owned());
                assert_eq!(response(&[b"a\n"], None, how).await, want("a\n"));
                assert_eq!(response(&[], Some("gone"), how).await, want("gone"));
                assert_eq!(response(&[], None, how).await, want(""));
            }
        }
        let (_sink, pieces) = mpsc::channel(1);
        let log = Log { pieces, fault: None };
        let head = answer(log, Streams::All, Version::HTTP_11).await;
        assert_eq!(head.status(), StatusCode::OK, "nothing was written yet");
    }
}
