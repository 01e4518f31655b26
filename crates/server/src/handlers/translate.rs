//! kubectl's newest WebSocket protocols, answered by the kubelet itself and spoken on to the runtime
//! as SPDY (apiserver: `StreamTranslatorHandler`, `TunnelingHandler`).
//!
//! ```text
//! client ──frames [channel, bytes…]──▶ messages ──▶ SPDY streams ──▶ runtime
//!        ◀─frames [channel, bytes…]── writer ◀──── SPDY streams ◀──
//! ```
//!
//! Promises: nothing is buffered beyond a few frames; whichever side ends, the other is told.

use super::stream::{Streams, dial};
use crate::reply::{self, Reply};
use crate::request_metrics::Running;
use crate::serve::{Caller, ServerDeps};
use crate::spdy::{self, Frame, Headers};
use crate::websocket::{self, Message};
use axum::body::Body;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use ports::OnExit;
use serde_json::{Value, json};
use std::sync::Arc;
use telemetry::metrics::Desc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

const V5: &str = "v5.channel.k8s.io";
/// What stands before the name of a protocol within a tunnel.
const TUNNEL: &str = "SPDY/3.1+";
const STREAM_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const PIECES: usize = 8;
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

const WEBSOCKETS: Desc = Desc::alpha(
    "kubelet_websocket_streaming_requests_total",
    "Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.",
)
.labels(&["subresource"]);

/// Counts a WebSocket that is answered here.
pub(super) fn count(deps: &ServerDeps, sub_resource: &str) {
    deps.metrics.counter(WEBSOCKETS).inc(&[sub_resource]);
}

/// Whether exec and attach are asked for in the protocol that the kubelet answers itself.
pub(super) fn is_v5(headers: &HeaderMap) -> bool {
    crate::auth::is_websocket(headers) && websocket::offered(headers).iter().any(|name| name == V5)
}

/// Whether a port-forward is asked for as SPDY within a WebSocket.
pub(super) fn is_tunnel(headers: &HeaderMap) -> bool {
    crate::auth::is_websocket(headers) && !tunnelled(headers).is_empty()
}

/// The protocols that are offered within a tunnel.
fn tunnelled(headers: &HeaderMap) -> Vec<String> {
    let inside = |name: &String| {
        let name = name.strip_prefix(TUNNEL)?;
        name.ends_with(".k8s.io").then(|| name.to_owned())
    };
    websocket::offered(headers).iter().filter_map(inside).collect()
}

/// exec and attach.
pub(super) fn translate(
    deps: &Arc<ServerDeps>,
    url: String,
    mut request: Request<()>,
    wanted: Streams,
) -> Reply {
    let switched = match websocket::accept(request.method(), request.headers(), V5) {
        Ok(switched) => switched,
        Err(refused) => return *refused,
    };
    let ours = hyper::upgrade::on(&mut request);
    let (inner, running) = (Arc::clone(deps), Running::of(&request));
    deps.tasks.spawn("stream", OnExit::Fine, async move {
        let _running = running;
        match ours.await {
            Ok(client) => session(&inner, &url, TokioIo::new(client), wanted).await,
            Err(error) => tracing::debug!(err = %error, "stream was not switched"),
        }
    });
    switched
}

/// Frames for the client; the last one is `None`.
type ToClient = mpsc::Sender<Option<Vec<u8>>>;

async fn session(
    deps: &Arc<ServerDeps>,
    url: &str,
    client: impl AsyncRead + AsyncWrite,
    wanted: Streams,
) {
    let (mut reader, mut writer) = tokio::io::split(client);
    let (to_client, mut frames) = mpsc::channel::<Option<Vec<u8>>>(PIECES);
    let (to_runtime, pieces) = mpsc::channel::<Vec<u8>>(PIECES);
    let ids = Ids::new(&wanted);
    let write = async {
        while let Some(Some(frame)) = frames.recv().await {
            if writer.write_all(&frame).await.is_err() || writer.flush().await.is_err() {
                return;
            }
        }
        // The client may have gone first.
        let _ = writer.shutdown().await;
    };
    let read = from_client(&mut reader, &ids, &to_client, &to_runtime);
    let run = async {
        let lowest = [(wanted.stdout, STDOUT), (wanted.stderr, STDERR), (true, ERROR)];
        let lowest = lowest.iter().find(|(open, _)| *open).map_or(ERROR, |(_, channel)| *channel);
        let told = to_client.send(Some(websocket::binary(&[lowest], &[]))).await;
        let ended = match told {
            Ok(()) => through_runtime(deps, url, &ids, &to_client, pieces).await,
            Err(_) => return,
        };
        let status = ended.unwrap_or_else(|error| internal_error(&error)).to_string();
        for last in
            [Some(websocket::binary(&[ERROR], status.as_bytes())), Some(websocket::close()), None]
        {
            // A client that has gone needs no status.
            let _ = to_client.send(last).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        // Ends with the last frame or the client; frames half written go with the connection.
        () = write => {}
        // Ends when the client goes: nothing is owed to it.
        () = read => {}
        // Never ends by itself.
        () = run => {}
    }
}

/// The SPDY streams of a session, by purpose.
#[derive(Debug, Default)]
struct Ids {
    error: u32,
    stdin: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
    resize: Option<u32>,
}

impl Ids {
    fn new(wanted: &Streams) -> Self {
        let mut next = 1;
        let mut id = |open: bool| {
            open.then(|| {
                next += 2;
                next
            })
        };
        Self {
            error: 1,
            stdin: id(wanted.stdin),
            stdout: id(wanted.stdout),
            stderr: id(wanted.stderr && !wanted.tty),
            resize: id(wanted.tty),
        }
    }

    fn all(&self) -> Vec<(u32, &'static str)> {
        let optional = [
            (self.stdin, "stdin"),
            (self.stdout, "stdout"),
            (self.stderr, "stderr"),
            (self.resize, "resize"),
        ];
        let optional = optional.into_iter().filter_map(|(id, name)| Some((id?, name)));
        std::iter::once((self.error, "error")).chain(optional).collect()
    }
}

/// Takes the client's messages apart until it goes.
async fn from_client(
    reader: &mut (impl AsyncRead + Unpin),
    ids: &Ids,
    to_client: &ToClient,
    to_runtime: &mpsc::Sender<Vec<u8>>,
) {
    while let Ok(message) = websocket::read(reader).await {
        let message = match message {
            Message::Close => return,
            Message::Ping(bytes) => {
                if to_client.send(Some(websocket::pong(&bytes))).await.is_err() {
                    return;
                }
                continue;
            }
            Message::Bytes(bytes) => bytes,
        };
        let Some((channel, bytes)) = message.split_first() else { continue };
        let frame = match (*channel, ids.stdin, ids.resize) {
            (STDIN, Some(id), _) => spdy::data(id, bytes, false),
            (CLOSE, Some(id), _) if bytes == [STDIN] => spdy::data(id, &[], true),
            (RESIZE, _, Some(id)) => {
                let mut line = bytes.to_vec();
                line.push(b'\n');
                spdy::data(id, &line, false)
            }
            _ => continue,
        };
        if to_runtime.send(frame).await.is_err() {
            // The runtime has ended its side; the client is told by the status.
            std::future::pending::<()>().await;
        }
    }
}

/// Runs the command over SPDY; the status at its end.
async fn through_runtime(
    deps: &Arc<ServerDeps>,
    url: &str,
    ids: &Ids,
    to_client: &ToClient,
    mut pieces: mpsc::Receiver<Vec<u8>>,
) -> Result<Value, String> {
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    for version in ["v5", "v4", "v3", "v2"] {
        if let Ok(value) = HeaderValue::from_str(&format!("{version}.channel.k8s.io")) {
            headers.append(STREAM_VERSION, value);
        }
    }
    headers.append(STREAM_VERSION, HeaderValue::from_static("channel.k8s.io"));
    let answer = dial(deps, url, &Method::POST, headers, Vec::new()).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(format!("unable to upgrade connection: {}", answer.status()));
    }
    let upgraded = hyper::upgrade::on(answer).await.map_err(|e| e.to_string())?;
    let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
    let mut opener = Headers::new().map_err(|e| e.to_string())?;
    for (id, kind) in ids.all() {
        let frame = opener.open(id, "streamtype", kind).map_err(|e| e.to_string())?;
        writer.write_all(&frame).await.map_err(|e| e.to_string())?;
    }
    let (pings, mut pongs) = mpsc::channel::<Vec<u8>>(PIECES);
    let write = async {
        loop {
            let frame = tokio::select! {
                // Cancel-safe: a receive.
                Some(frame) = pieces.recv() => frame,
                // Cancel-safe: a receive.
                Some(frame) = pongs.recv() => frame,
            };
            if writer.write_all(&frame).await.is_err() || writer.flush().await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let read = from_runtime(&mut reader, ids, to_client, &pings);
    tokio::select! {
        // Never ends: the runtime's side decides.
        () = write => Err("the connection to the runtime broke".to_owned()),
        // Ends with all streams.
        ended = read => ended,
    }
}

async fn from_runtime(
    reader: &mut (impl AsyncRead + Unpin),
    ids: &Ids,
    to_client: &ToClient,
    pings: &mpsc::Sender<Vec<u8>>,
) -> Result<Value, String> {
    let mut open: Vec<u32> =
        [Some(ids.error), ids.stdout, ids.stderr].into_iter().flatten().collect();
    let mut status = Vec::new();
    while !open.is_empty() {
        let frame = match spdy::read(reader).await {
            Ok(frame) => frame,
            // A runtime that closes after its last words has said everything.
            Err(_) => break,
        };
        match frame {
            Frame::Data { stream, end, data } => {
                if stream == ids.error {
                    status.extend(data);
                } else if !data.is_empty() {
                    let channel = if Some(stream) == ids.stdout { STDOUT } else { STDERR };
                    let frame = websocket::binary(&[channel], &data);
                    if to_client.send(Some(frame)).await.is_err() {
                        return Err("the client has gone".to_owned());
                    }
                }
                if end {
                    open.retain(|id| *id != stream);
                }
            }
            Frame::Reset(stream) => open.retain(|id| *id != stream),
            Frame::Ping(id) => {
                // A full queue means that others are being answered.
                let _ = pings.try_send(spdy::ping(id));
            }
            Frame::GoAway => break,
            Frame::Other => {}
        }
    }
    verdict(&status)
}

/// The runtime's status as the client is told it (client-go: `errorDecoderV4`).
fn verdict(status: &[u8]) -> Result<Value, String> {
    let success = || json!({"metadata": {}, "status": "Success"});
    if status.is_empty() {
        return Ok(success());
    }
    let parsed: Value = serde_json::from_slice(status).map_err(|error| {
        let shown = String::from_utf8_lossy(status);
        format!("error stream protocol error: {error} in {}", units::strconv::quote(&shown))
    })?;
    match parsed["status"].as_str() {
        Some("Success") => return Ok(success()),
        Some("Failure") => {}
        _ => return Err("error stream protocol error: unknown error".to_owned()),
    }
    if parsed["reason"] != "NonZeroExitCode" {
        return Err(parsed["message"].as_str().unwrap_or_default().to_owned());
    }
    let causes = parsed["details"]["causes"].as_array();
    let code = causes.into_iter().flatten().find(|cause| cause["reason"] == "ExitCode");
    let Some(code) = code.and_then(|cause| cause["message"].as_str()) else {
        return Err("error stream protocol error: no ExitCode cause given".to_owned());
    };
    let text = format!(
        "command terminated with non-zero exit code: command terminated with exit code {code}"
    );
    Ok(json!({
        "metadata": {},
        "status": "Failure",
        "message": text,
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code}]},
    }))
}

fn internal_error(error: &str) -> Value {
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("Internal error occurred: {error}"),
        "reason": "InternalError",
        "details": {"causes": [{"message": error}]},
        "code": 500,
    })
}

/// A port-forward: the runtime's SPDY connection, byte by byte within frames.
pub(super) async fn tunnel(
    deps: &Arc<ServerDeps>,
    url: &str,
    mut request: Request<Incoming>,
    caller: &Caller,
) -> Reply {
    let inside = tunnelled(request.headers());
    let mut headers = request.headers().clone();
    for name in [
        SEC_WEBSOCKET_ACCEPT,
        SEC_WEBSOCKET_EXTENSIONS,
        SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_PROTOCOL,
        SEC_WEBSOCKET_VERSION,
        CONTENT_LENGTH,
        TRANSFER_ENCODING,
    ] {
        headers.remove(name);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.remove(STREAM_VERSION);
    for value in inside.iter().filter_map(|name| HeaderValue::from_str(name).ok()) {
        headers.append(STREAM_VERSION, value);
    }
    super::stream::forwarded(&mut headers, caller);
    let answer = match dial(deps, url, &Method::POST, headers, Vec::new()).await {
        Ok(answer) => answer,
        Err(error) => {
            let text = format!("error dialing backend: {error}");
            return reply::error(StatusCode::INTERNAL_SERVER_ERROR, &text);
        }
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return answer.map(Body::new);
    }
    let agreed = answer.headers().get(STREAM_VERSION).and_then(|name| name.to_str().ok());
    let agreed = agreed.filter(|name| inside.iter().any(|known| known == name.trim()));
    let protocol = agreed.map(|name| format!("{TUNNEL}{}", name.trim())).unwrap_or_default();
    let accepted = websocket::accept_tunnel(request.method(), request.headers(), &protocol);
    let switched = match accepted {
        Ok(switched) => switched,
        Err(refused) => return *refused,
    };
    let (ours, theirs) = (hyper::upgrade::on(&mut request), hyper::upgrade::on(answer));
    let running = Running::of(&request);
    deps.tasks.spawn("tunnel", OnExit::Fine, async move {
        let _running = running;
        match tokio::try_join!(ours, theirs) {
            Ok((client, runtime)) => carry(TokioIo::new(client), TokioIo::new(runtime)).await,
            Err(error) => tracing::debug!(err = %error, "stream was not switched"),
        }
    });
    switched
}

async fn carry(client: impl AsyncRead + AsyncWrite, runtime: impl AsyncRead + AsyncWrite) {
    let (mut client_reader, mut client_writer) = tokio::io::split(client);
    let (mut runtime_reader, mut runtime_writer) = tokio::io::split(runtime);
    let (pongs, mut answers) = mpsc::channel::<Vec<u8>>(PIECES);
    let up = async {
        while let Ok(message) = websocket::read(&mut client_reader).await {
            let bytes = match message {
                Message::Close => return,
                Message::Ping(bytes) => {
                    // A full queue means that others are being answered.
                    let _ = pongs.try_send(websocket::pong(&bytes));
                    continue;
                }
                Message::Bytes(bytes) => bytes,
            };
            let sent = runtime_writer.write_all(&bytes).await;
            if sent.is_err() || runtime_writer.flush().await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut piece = vec![0; 32 * 1024];
        loop {
            let frame = tokio::select! {
                // Cancel-safe: a receive.
                Some(pong) = answers.recv() => pong,
                // Cancel-safe: a read that was dropped has taken nothing.
                read = runtime_reader.read(&mut piece) => match read {
                    Ok(0) | Err(_) => break,
                    Ok(read) => websocket::binary(&[], piece.get(..read).unwrap_or_default()),
                },
            };
            let sent = client_writer.write_all(&frame).await;
            if sent.is_err() || client_writer.flush().await.is_err() {
                return;
            }
        }
        // The client may have gone first.
        let _ = client_writer.write_all(&websocket::close()).await;
        let _ = client_writer.shutdown().await;
    };
    tokio::select! {
        // The client has gone: the runtime's connection ends with it.
        () = up => {}
        // The runtime has ended: the client was told.
        () = down => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_told_in_the_clients_words() {
        let status = br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        let told = verdict(status).unwrap();
        assert_eq!(told["details"]["causes"][0]["message"], "7");
        let want =
            "command terminated with non-zero exit code: command terminated with exit code 7";
        assert_eq!(told["message"], want);
        assert_eq!(verdict(b"").unwrap()["status"], "Success");
        let other = br#"{"status":"Failure","message":"no"}"#;
        assert_eq!(verdict(other).unwrap_err(), "no");
        assert_eq!(internal_error("no")["message"], "Internal error occurred: no");
    }

    #[test]
    fn streams_get_odd_numbers_in_upstreams_order() {
        let wanted = Streams { stdin: true, stdout: true, stderr: true, tty: false };
        let all = Ids::new(&wanted).all();
        assert_eq!(all, [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")]);
        let wanted = Streams { stdin: false, stdout: true, stderr: true, tty: true };
        let all = Ids::new(&wanted).all();
        assert_eq!(all, [(1, "error"), (3, "stdout"), (5, "resize")]);
    }
}
