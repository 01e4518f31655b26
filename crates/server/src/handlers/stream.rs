//! exec, attach, port-forward and run.
//!
//! The first three request a URL from the runtime and then copy bytes between the caller's
//! connection and the runtime's, so that the runtime negotiates the protocol (SPDY or WebSocket).
//! The URL is never shown to the caller. The number of concurrent streams is limited, and each
//! buffers only a few network packets: a side that does not read stops the other side.

use super::pods::find;
use super::{runtime_pods, translate};
use crate::auth::{is_websocket, wants_upgrade};
use crate::connections;
use crate::form::{Apart, Form};
use crate::query::Query;
use crate::reply::{self, Reply, Verbatim};
use crate::request_metrics::Running;
use crate::route::ContainerPath;
use crate::serve::{Caller, ServerDeps};
use crate::target::{self, Target};
use axum::body::{Body, Bytes};
use cri::CriError;
use cri::api::{AttachRequest, ExecRequest};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING,
    USER_AGENT,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use ports::OnExit;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use units::strconv::{parse_uint, quote};

const DIAL_DEADLINE: Duration = Duration::from_secs(10);
/// Longer error bodies of the runtime are not read.
const LONGEST_REFUSAL: usize = 64 << 10;

/// Concurrent streams. The runtime has its own limit for streams that were requested but not
/// started.
const MOST_SESSIONS: usize = 1024;

/// Limits the number of streams. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sessions(Arc<Semaphore>);

impl Default for Sessions {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_SESSIONS)))
    }
}

/// The permit for one stream.
pub(super) type Session = OwnedSemaphorePermit;

impl Sessions {
    fn begin(&self) -> Result<Session, Box<Reply>> {
        Arc::clone(&self.0).try_acquire_owned().map_err(|_| {
            let text = "too many exec, attach and port-forward streams".to_owned();
            Box::new(try_later(reply::plain(StatusCode::TOO_MANY_REQUESTS, text)))
        })
    }
}

/// Which side handles the newer WebSocket protocols (gate ExtendWebSocketsToKubelet).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebSockets {
    /// The kubelet, which then speaks SPDY to the runtime.
    Ours,
    /// The runtime, if it supports them.
    Runtimes,
}

impl WebSockets {
    fn are_ours(self) -> bool {
        self == Self::Ours
    }
}

/// Runs a command to completion and responds with its output.
pub(crate) async fn run(
    deps: &ServerDeps,
    path: &ContainerPath,
    request: &Request<Incoming>,
) -> Reply {
    let query = Query::parse(&target::query(request));
    let command: Vec<String> =
        query.first("cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
    let id = match running_container(deps, path, quoted_container(path, request)).await {
        Ok(id) => id,
        Err(refused) => return *refused,
    };
    match deps.runtime.exec_sync(&id, &command, None).await {
        Ok(output) => match output.failure(&command) {
            Some(failure) => reply::plain(StatusCode::INTERNAL_SERVER_ERROR, failure),
            None => {
                let mut body = output.stdout;
                body.extend_from_slice(&output.stderr);
                if body.is_empty() {
                    return reply::bare(StatusCode::OK, Body::empty());
                }
                reply::with_type(StatusCode::OK, "application/json", body)
            }
        },
        Err(error) => reply::plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// The streams requested by a query or a form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

fn streams(form: &Form) -> Result<Streams, Box<Reply>> {
    let tty = form.one("tty");
    let wanted = Streams {
        stdin: form.one("input"),
        stdout: form.one("output"),
        stderr: form.one("error") && !tty,
        tty,
    };
    if !wanted.stdin && !wanted.stdout && !wanted.stderr {
        let text = "you must specify at least 1 of stdin, stdout, stderr";
        return Err(Box::new(reply::plain(StatusCode::BAD_REQUEST, text.to_owned())));
    }
    Ok(wanted)
}

/// Executes a command with streams.
pub(crate) async fn exec(
    deps: &Arc<ServerDeps>,
    path: &ContainerPath,
    request: Request<Incoming>,
    caller: &Caller,
    websockets: WebSockets,
) -> Reply {
    let (form, apart) = Form::of_parts(request).await;
    let wanted = match streams(&form) {
        Ok(wanted) => wanted,
        Err(refused) => return *refused,
    };
    // The command is read from the query only, never from the form.
    let query = Query::parse(&target::query(&apart.request));
    let quoted = quoted_container(path, &apart.request);
    let id = match running_container(deps, path, quoted).await {
        Ok(id) => id,
        Err(refused) => return *refused,
    };
    let message = ExecRequest {
        container_id: id,
        cmd: query.all("command").map(str::to_owned).collect(),
        tty: wanted.tty,
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
    };
    let session = match deps.sessions.begin() {
        Ok(session) => session,
        Err(refused) => return *refused,
    };
    match deps.runtime.exec(message).await {
        Ok(url) if websockets.are_ours() && translate::is_v5(apart.request.headers()) => {
            translate::count(deps, "exec");
            translate::translate(deps, url, apart.request, wanted, session)
        }
        Ok(url) => proxy(deps, &url, apart, caller, session).await,
        Err(error) => runtime_refused(&error),
    }
}

/// Attaches to a running container.
pub(crate) async fn attach(
    deps: &Arc<ServerDeps>,
    path: &ContainerPath,
    request: Request<Incoming>,
    caller: &Caller,
    websockets: WebSockets,
) -> Reply {
    let (form, apart) = Form::of_parts(request).await;
    let wanted = match streams(&form) {
        Ok(wanted) => wanted,
        Err(refused) => return *refused,
    };
    let Some(entry) = find(deps, &path.namespace, &path.pod) else {
        return reply::plain(StatusCode::NOT_FOUND, "pod does not exist".to_owned());
    };
    let full_name = format!("{}_{}", path.pod, path.namespace);
    let missing = || {
        let text = format!("container {} not found in pod {full_name}", path.container);
        reply::plain(StatusCode::INTERNAL_SERVER_ERROR, text)
    };
    let id = match find_running(deps, &entry.pod, &path.container).await {
        Ok(Some(id)) => id,
        Ok(None) => return missing(),
        Err(error) => return runtime_refused(&error),
    };
    // The container is looked up before the UID is checked: upstream finds it by name alone.
    if path.uid.as_deref().is_some_and(|uid| entry.pod.metadata.uid.as_deref() != Some(uid)) {
        let text = format!("pod {full_name} not found");
        return reply::plain(StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    let Some(tty) = wants_tty(&entry.pod, &path.container) else { return missing() };
    let message = AttachRequest {
        container_id: id,
        stdin: wanted.stdin,
        tty,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
    };
    let session = match deps.sessions.begin() {
        Ok(session) => session,
        Err(refused) => return *refused,
    };
    match deps.runtime.attach(message).await {
        Ok(url) if websockets.are_ours() && translate::is_v5(apart.request.headers()) => {
            translate::count(deps, "attach");
            translate::translate(deps, url, apart.request, wanted, session)
        }
        Ok(url) => proxy(deps, &url, apart, caller, session).await,
        Err(error) => runtime_refused(&error),
    }
}

/// Whether a container has a terminal; `None` if the pod has no such container.
fn wants_tty(pod: &api::core::v1::Pod, name: &str) -> Option<bool> {
    let spec = pod.spec.as_ref()?;
    let regular = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut all = regular
        .map(|c| (c.name.as_str(), c.tty))
        .chain(spec.ephemeral_containers.iter().flatten().map(|c| (c.name.as_str(), c.tty)));
    all.find(|(n, _)| *n == name).map(|(_, tty)| tty.unwrap_or(false))
}

/// Forwards ports of a pod.
pub(crate) async fn port_forward(
    deps: &Arc<ServerDeps>,
    path: &ContainerPath,
    request: Request<Incoming>,
    caller: &Caller,
    websockets: WebSockets,
) -> Reply {
    let query = Query::parse(&target::query(&request));
    let tunnel = websockets.are_ours() && translate::is_tunnel(request.headers());
    let ports = match wanted_ports(request.headers(), &query, tunnel) {
        Ok(ports) => ports,
        Err(text) => return reply::plain(StatusCode::BAD_REQUEST, text),
    };
    let Some(entry) = find(deps, &path.namespace, &path.pod) else {
        return reply::plain(StatusCode::NOT_FOUND, "pod does not exist".to_owned());
    };
    if path.uid.as_deref().is_some_and(|uid| entry.pod.metadata.uid.as_deref() != Some(uid)) {
        return reply::plain(StatusCode::NOT_FOUND, "pod not found".to_owned());
    }
    let uid = entry.pod.metadata.uid.as_deref().unwrap_or_default();
    let failed = |text: String| reply::plain(StatusCode::INTERNAL_SERVER_ERROR, text);
    match runtime_pods::named(deps, &entry.pod).await {
        Ok(Some(_)) => {}
        Ok(None) => {
            let full_name = quote(&format!("{}_{}", path.pod, path.namespace));
            return failed(format!("pod not found ({full_name})"));
        }
        Err(error) => return runtime_refused(&error),
    }
    let none =
        || format!("failed to find sandboxID for pod {}_{}({uid})", path.pod, path.namespace);
    let sandbox = match runtime_pods::sandbox(deps, uid).await {
        Ok(Some(sandbox)) => sandbox,
        Ok(None) => return failed(none()),
        Err(error) => return failed(format!("{}: {error}", none())),
    };
    let session = match deps.sessions.begin() {
        Ok(session) => session,
        Err(refused) => return *refused,
    };
    match deps.runtime.port_forward(&sandbox, &ports).await {
        Ok(url) if tunnel => {
            translate::count(deps, "portforward");
            translate::tunnel(deps, &url, request, caller, session).await
        }
        Ok(url) => proxy(deps, &url, Apart::of(request), caller, session).await,
        Err(error) => runtime_refused(&error),
    }
}

/// The ports of a plain WebSocket request; SPDY, also when tunnelled, names them per stream.
fn wanted_ports(headers: &HeaderMap, query: &Query, tunnel: bool) -> Result<Vec<i32>, String> {
    if !is_websocket(headers) || tunnel {
        return Ok(Vec::new());
    }
    if !query.has("port") {
        return Err("query parameter \"port\" is required".to_owned());
    }
    let mut ports = Vec::new();
    for list in query.all("port") {
        if list.is_empty() {
            return Err("query parameter \"port\" cannot be empty".to_owned());
        }
        for text in list.split(',') {
            match parse_uint(text, 10, 16) {
                Ok(0) => return Err(format!("port {} must be > 0", quote(list))),
                Ok(port) => ports.extend(i32::try_from(port)),
                Err(error) => {
                    return Err(format!("unable to parse {} as a port: {error}", quote(list)));
                }
            }
        }
    }
    Ok(ports)
}

/// The container name of a path as requested, quoted; it may not be valid UTF-8.
fn quoted_container<B>(path: &ContainerPath, request: &Request<B>) -> String {
    let part = if path.uid.is_some() { 4 } else { 3 };
    Target::of(request).map_or_else(|_| quote(&path.container), |target| target.quoted(part))
}

/// The running container of a path, or the error response.
async fn running_container(
    deps: &ServerDeps,
    path: &ContainerPath,
    quoted: String,
) -> Result<String, Box<Reply>> {
    let Some(entry) = find(deps, &path.namespace, &path.pod) else {
        let text = "pod does not exist".to_owned();
        return Err(Box::new(reply::plain(StatusCode::NOT_FOUND, text)));
    };
    match find_running(deps, &entry.pod, &path.container).await {
        Ok(Some(id)) => Ok(id),
        Ok(None) => {
            let text = format!("container not found ({quoted})");
            Err(Box::new(reply::plain(StatusCode::INTERNAL_SERVER_ERROR, text)))
        }
        Err(error) => Err(Box::new(runtime_refused(&error))),
    }
}

/// The ID of a running container of a pod.
pub(crate) async fn find_running(
    deps: &ServerDeps,
    pod: &api::core::v1::Pod,
    container: &str,
) -> Result<Option<String>, CriError> {
    let found = runtime_pods::named(deps, pod).await?;
    Ok(found.and_then(|pod| pod.container(container).map(str::to_owned)))
}

fn try_later(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("60"));
    reply
}

fn runtime_refused(error: &CriError) -> Reply {
    let status = match error.code() {
        Some(cri::Code::NotFound) => StatusCode::NOT_FOUND,
        Some(cri::Code::ResourceExhausted) => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let reply = reply::plain(status, error.to_string());
    if status == StatusCode::TOO_MANY_REQUESTS { try_later(reply) } else { reply }
}

/// Replays the request to the runtime and joins the two connections.
async fn proxy(
    deps: &Arc<ServerDeps>,
    url: &str,
    Apart { mut request, body }: Apart,
    caller: &Caller,
    session: Session,
) -> Reply {
    if !wants_upgrade(request.headers()) {
        return reply::error(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required");
    }
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if let Some(length) = length.filter(|length| body.is_none() && *length != "0") {
        let text =
            format!("error sending request: http: ContentLength={length} with Body length 0");
        return reply::error(StatusCode::INTERNAL_SERVER_ERROR, &text);
    }
    let body = match Apart::unread(body).await {
        Ok(body) => body,
        Err(why) => {
            let text = format!("error sending request: {why}");
            return reply::error(StatusCode::INTERNAL_SERVER_ERROR, &text);
        }
    };
    let ours = hyper::upgrade::on(&mut request);
    let answer = match replay(deps, url, &request, body, caller).await {
        Ok(answer) => answer,
        Err(error) => {
            let text = format!("error dialing backend: {error}");
            return reply::error(StatusCode::INTERNAL_SERVER_ERROR, &text);
        }
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        if answer.status().as_u16() >= 400 {
            return refusal(answer).await;
        }
        let text = format!("invalid upgrade response: status code {}", answer.status().as_u16());
        return reply::error(StatusCode::INTERNAL_SERVER_ERROR, &text);
    }
    let mut switched = Response::new(Body::empty());
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *switched.headers_mut() = answer.headers().clone();
    let theirs = hyper::upgrade::on(answer);
    let running = (Running::of(&request), connections::Request::of(&request), session);
    deps.tasks.spawn("stream", OnExit::Alone, async move {
        let _running = running;
        let (ours, theirs) = match tokio::try_join!(ours, theirs) {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(err = %error, "Failed to upgrade the connection");
                return;
            }
        };
        if let Err(error) = between(TokioIo::new(ours), TokioIo::new(theirs)).await {
            tracing::debug!(err = %error, "stream ended");
        }
    });
    switched
}

/// The runtime's error response, unchanged. A response without a length ends with the runtime's
/// connection; its body is read here, so that the response to the caller has a length.
async fn refusal(answer: Response<Incoming>) -> Reply {
    let (mut head, body) = answer.into_parts();
    head.extensions.insert(Verbatim);
    if head.headers.contains_key(CONTENT_LENGTH) || head.headers.contains_key(TRANSFER_ENCODING) {
        return Response::from_parts(head, Body::new(body));
    }
    let read = tokio::time::timeout(DIAL_DEADLINE, Limited::new(body, LONGEST_REFUSAL).collect());
    let content = match read.await {
        Ok(Ok(read)) => read.to_bytes(),
        // The status is what counts; a body that cannot be read in time is dropped.
        Ok(Err(_)) | Err(_) => Bytes::new(),
    };
    head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Response::from_parts(head, Body::from(content))
}

/// Copies both ways until either side ends; then both are closed.
async fn between<S: AsyncRead + AsyncWrite>(ours: S, theirs: S) -> io::Result<()> {
    let (mut our_reader, mut our_writer) = tokio::io::split(ours);
    let (mut their_reader, mut their_writer) = tokio::io::split(theirs);
    tokio::select! {
        // Everything the caller sent is written; it no longer reads responses of the runtime.
        copied = tokio::io::copy(&mut our_reader, &mut their_writer) => copied?,
        // Everything the runtime sent is written; further input would not be read.
        copied = tokio::io::copy(&mut their_reader, &mut our_writer) => copied?,
    };
    // Either side may have disconnected.
    let _ = their_writer.shutdown().await;
    our_writer.shutdown().await
}

/// Adds the caller's address to `X-Forwarded-For`.
pub(super) fn forwarded(headers: &mut HeaderMap, caller: &Caller) {
    let name = HeaderName::from_static("x-forwarded-for");
    let before = headers.get_all(&name).iter().filter_map(|v| v.to_str().ok());
    let mut way: Vec<String> = before.map(str::to_owned).collect();
    way.push(caller.address.ip().to_string());
    if let Ok(value) = HeaderValue::from_str(&way.join(", ")) {
        headers.insert(name, value);
    }
}

async fn replay(
    deps: &ServerDeps,
    url: &str,
    request: &Request<()>,
    body: Vec<u8>,
    caller: &Caller,
) -> Result<Response<Incoming>, String> {
    let mut headers = request.headers().clone();
    forwarded(&mut headers, caller);
    dial(deps, url, request.method(), headers, body).await
}

/// Sends a request to the runtime's streaming server and waits for its response with a timeout.
pub(super) async fn dial(
    deps: &ServerDeps,
    url: &str,
    method: &Method,
    headers: HeaderMap,
    body: Vec<u8>,
) -> Result<Response<Incoming>, String> {
    let sent = tokio::time::timeout(DIAL_DEADLINE, send(deps, url, method, headers, body)).await;
    sent.map_err(|_| "i/o timeout".to_owned())?
}

async fn send(
    deps: &ServerDeps,
    url: &str,
    method: &Method,
    mut headers: HeaderMap,
    body: Vec<u8>,
) -> Result<Response<Incoming>, String> {
    let target: Uri = url.parse().map_err(|e| format!("runtime's URL: {e}"))?;
    let authority = target.authority().ok_or("the runtime's URL has no host")?;
    let port = authority.port_u16().unwrap_or(80);
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, port)).await.map_err(|e| e.to_string())?;
    // A failure only costs latency.
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    deps.tasks.spawn("stream-backend", OnExit::Alone, async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(err = %error, "runtime's stream ended");
        }
    });
    let path = target.path_and_query().map_or("/", |p| p.as_str());
    if !headers.contains_key(HOST)
        && let Ok(value) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, value);
    }
    match headers.get(USER_AGENT) {
        None => {
            headers.insert(USER_AGENT, HeaderValue::from_static("Go-http-client/1.1"));
        }
        // Go omits an empty header.
        Some(agent) if agent.is_empty() => {
            headers.remove(USER_AGENT);
        }
        Some(_) => {}
    }
    let sized = headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING);
    if *method != Method::GET && !sized {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut outgoing = Request::new(Body::from(body));
    outgoing.method_mut().clone_from(method);
    *outgoing.uri_mut() = path.parse().map_err(|e| format!("runtime's URL: {e}"))?;
    *outgoing.headers_mut() = headers;
    sender.send_request(outgoing).await.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, duplex};

    #[test]
    fn a_tunnel_names_its_ports_per_stream_and_a_plain_websocket_in_its_query() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-protocol", "SPDY/3.1+portforward.k8s.io"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        assert!(translate::is_tunnel(&headers));
        let (none, two) = (Query::parse(""), Query::parse("port=80&port=8080,1"));
        assert_eq!(wanted_ports(&headers, &none, true), Ok(Vec::new()));
        let required = Err("query parameter \"port\" is required".to_owned());
        assert_eq!(wanted_ports(&headers, &none, false), required);
        assert_eq!(wanted_ports(&headers, &two, false), Ok(vec![80, 8080, 1]));
        assert_eq!(wanted_ports(&HeaderMap::new(), &none, false), Ok(Vec::new()));
    }

    #[test]
    fn there_are_only_so_many_streams() {
        let sessions = Sessions::default();
        let mut all: Vec<Session> = (0..MOST_SESSIONS).map(|_| sessions.begin().unwrap()).collect();
        let refused = sessions.begin().unwrap_err();
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()[RETRY_AFTER]),
            (429, &"60".parse().unwrap())
        );
        all.pop();
        assert!(sessions.begin().is_ok());
    }

    #[test]
    fn a_container_that_is_not_there_is_named_as_it_was_asked_for() {
        let quoted = |target: &str, uid: Option<&str>| {
            let request = Request::builder().uri(target).body(()).unwrap();
            let uid = uid.map(str::to_owned);
            quoted_container(&ContainerPath { uid, ..ContainerPath::default() }, &request)
        };
        assert_eq!(quoted("/exec/a/b/c%ffd?x=y", None), r#""c\xffd""#);
        assert_eq!(quoted("/run/a/b/uid/%22", Some("uid")), r#""\"""#);
    }

    #[tokio::test]
    async fn bytes_go_both_ways_until_either_side_ends() {
        for runtime_ends in [true, false] {
            let ((mut client, ours), (theirs, mut runtime)) = (duplex(64), duplex(64));
            let said = vec![b'x'; 100_000];
            let echo = async {
                let mut heard = vec![0; said.len()];
                runtime.read_exact(&mut heard).await.unwrap();
                runtime.write_all(&heard).await.unwrap();
                if runtime_ends {
                    runtime.shutdown().await.unwrap();
                }
                // The other side may still be open.
                runtime
            };
            let talk = async {
                client.write_all(&said).await.unwrap();
                let mut heard = vec![0; said.len()];
                client.read_exact(&mut heard).await.unwrap();
                if !runtime_ends {
                    client.shutdown().await.unwrap();
                }
                (client, heard)
            };
            let (copied, mut runtime, (mut client, heard)) =
                tokio::join!(between(ours, theirs), echo, talk);
            copied.unwrap();
            assert_eq!(heard, said);
            let mut rest = Vec::new();
            assert_eq!(client.read_to_end(&mut rest).await.unwrap(), 0, "it is content of the end");
            assert_eq!(
                runtime.read_to_end(&mut rest).await.unwrap(),
                0,
                "it is content of the end"
            );
        }
    }
}
