//! kubectl's newest WebSocket protocols, handled by the kubelet and translated to SPDY for the
//! runtime (apiserver: `StreamTranslatorHandler`, `TunnelingHandler`).
//!
//! ```text
//! client ──frames [channel, bytes…]──▶ messages ──▶ SPDY streams ──▶ runtime
//!        ◀─frames [channel, bytes…]── writer ◀──── SPDY streams ◀──
//! ```
//!
//! Promises: only a few small pieces are buffered each way, and a side that does not read stops the
//! other side; when one side ends, the other one is closed.

use super::stream::{Session, Streams, dial};
use crate::connections;
use crate::reply::{self, Reply};
use crate::request_metrics::Running;
use crate::serve::{Caller, ServerDeps};
use crate::spdy::{self, Frame, Headers};
use crate::websocket::{self, Piece};
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
/// The prefix of a protocol name within a tunnel.
const TUNNEL: &str = "SPDY/3.1+";
const STREAM_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Pieces queued for each side.
const PIECES: usize = 4;
/// The maximal size of a control message: a terminal size, or the channel to close.
const LONGEST_ORDER: usize = 1024;
/// The maximal size of the status that a command ends with.
const LONGEST_STATUS: usize = 64 << 10;
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

/// Counts a WebSocket that is handled here.
pub(super) fn count(deps: &ServerDeps, sub_resource: &str) {
    deps.metrics.counter(WEBSOCKETS).inc(&[sub_resource]);
}

/// Whether exec or attach is requested with the protocol that the kubelet handles itself.
pub(super) fn is_v5(headers: &HeaderMap) -> bool {
    crate::auth::is_websocket(headers) && websocket::offered(headers).iter().any(|name| name == V5)
}

/// Whether a port-forward is requested as SPDY within a WebSocket.
pub(super) fn is_tunnel(headers: &HeaderMap) -> bool {
    crate::auth::is_websocket(headers) && !tunnelled(headers).is_empty()
}

/// The protocols offered within a tunnel.
fn tunnelled(headers: &HeaderMap) -> Vec<String> {
    let inside = |name: &String| {
        let name = name.strip_prefix(TUNNEL)?;
        name.ends_with(".k8s.io").then(|| name.to_owned())
    };
    websocket::offered(headers).iter().filter_map(inside).collect()
}

/// Handles exec and attach.
pub(super) fn translate(
    deps: &Arc<ServerDeps>,
    url: String,
    mut request: Request<()>,
    wanted: Streams,
    right: Session,
) -> Reply {
    let switched = match websocket::accept(request.method(), request.headers(), V5) {
        Ok(switched) => switched,
        Err(refused) => return *refused,
    };
    let ours = hyper::upgrade::on(&mut request);
    let inner = Arc::clone(deps);
    let running = (Running::of(&request), connections::Request::of(&request), right);
    deps.tasks.spawn("stream", OnExit::Alone, async move {
        let _running = running;
        match ours.await {
            Ok(client) => session(&inner, &url, TokioIo::new(client), wanted).await,
            Err(error) => tracing::debug!(err = %error, "Failed to upgrade the connection"),
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
        // The client may have disconnected first.
        let _ = writer.shutdown().await;
    };
    let read = from_client(&mut reader, &ids, &to_client, &to_runtime);
    let run = async {
        let lowest = [(wanted.stdout, STDOUT), (wanted.stderr, STDERR), (true, ERROR)];
        let lowest = lowest.iter().find(|(open, _)| *open).map_or(ERROR, |(_, channel)| *channel);
        let sent = to_client.send(Some(websocket::binary(&[lowest], &[]))).await;
        let ended = match sent {
            Ok(()) => through_runtime(deps, url, &ids, &to_client, pieces).await,
            Err(_) => return,
        };
        let status = ended.unwrap_or_else(|error| internal_error(&error)).to_string();
        for last in
            [Some(websocket::binary(&[ERROR], status.as_bytes())), Some(websocket::close()), None]
        {
            // A client that has disconnected needs no status.
            let _ = to_client.send(last).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        // Ends with the last frame or the client; partly written frames end with the connection.
        () = write => {}
        // Ends when the client disconnects: nothing more is sent to it.
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

/// Parses the client's messages until it disconnects.
async fn from_client(
    reader: impl AsyncRead + Unpin,
    ids: &Ids,
    to_client: &ToClient,
    to_runtime: &mpsc::Sender<Vec<u8>>,
) {
    let mut reader = websocket::Reader::new(reader);
    let mut message = Message::default();
    while let Ok(piece) = reader.next().await {
        let frame = match piece {
            Piece::Close => return,
            Piece::Ping(bytes) => {
                if to_client.send(Some(websocket::pong(&bytes))).await.is_err() {
                    return;
                }
                continue;
            }
            Piece::Bytes { first, last, bytes } => {
                if first {
                    message = Message::default();
                }
                message.take(&bytes, last, ids)
            }
        };
        let Some(frame) = frame else { continue };
        if to_runtime.send(frame).await.is_err() {
            // The runtime has closed its side; the client learns it from the status.
            std::future::pending::<()>().await;
        }
    }
}

/// A message of the client, possibly received in part.
#[derive(Debug, Default)]
struct Message {
    channel: Option<u8>,
    /// The content so far of a control message.
    order: Vec<u8>,
}

impl Message {
    /// Adds received bytes; returns a frame for the runtime if there is something to send.
    fn take(&mut self, bytes: &[u8], last: bool, ids: &Ids) -> Option<Vec<u8>> {
        let bytes = match self.channel {
            Some(_) => bytes,
            None => {
                let (channel, bytes) = bytes.split_first()?;
                self.channel = Some(*channel);
                bytes
            }
        };
        match (self.channel?, ids.stdin, ids.resize) {
            (STDIN, Some(id), _) if !bytes.is_empty() => Some(spdy::data(id, bytes, false)),
            (CLOSE | RESIZE, ..) => {
                if self.order.len() + bytes.len() > LONGEST_ORDER {
                    // Too long for any control message: the rest of it is ignored.
                    self.channel = Some(ERROR);
                    return None;
                }
                self.order.extend_from_slice(bytes);
                if last { self.order(ids) } else { None }
            }
            _ => None,
        }
    }

    fn order(&mut self, ids: &Ids) -> Option<Vec<u8>> {
        match (self.channel?, ids.stdin, ids.resize) {
            (CLOSE, Some(id), _) if self.order == [STDIN] => Some(spdy::data(id, &[], true)),
            (RESIZE, _, Some(id)) => {
                self.order.push(b'\n');
                Some(spdy::data(id, &self.order, false))
            }
            _ => None,
        }
    }
}

/// Runs the command over SPDY; returns its final status.
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
    let (reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
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
    let read = from_runtime(spdy::Reader::new(reader), ids, to_client, &pings);
    tokio::select! {
        // Ends only when writing fails: otherwise the runtime's side decides.
        () = write => Err("the connection to the runtime broke".to_owned()),
        // Ends when all streams have ended.
        ended = read => ended,
    }
}

async fn from_runtime(
    mut reader: spdy::Reader<impl AsyncRead + Unpin>,
    ids: &Ids,
    to_client: &ToClient,
    pings: &mpsc::Sender<Vec<u8>>,
) -> Result<Value, String> {
    let mut open: Vec<u32> =
        [Some(ids.error), ids.stdout, ids.stderr].into_iter().flatten().collect();
    let mut status = Vec::new();
    while !open.is_empty() {
        let frame = match reader.next().await {
            Ok(frame) => frame,
            // A runtime that closes the connection after its last frame has sent everything.
            Err(_) => break,
        };
        match frame {
            Frame::Data { stream, end, data } => {
                if stream == ids.error {
                    let room = LONGEST_STATUS - status.len();
                    status.extend_from_slice(data.get(..room).unwrap_or(&data));
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
                // A full queue means that earlier pings are being answered.
                let _ = pings.try_send(spdy::ping(id));
            }
            Frame::GoAway => break,
            Frame::Other => {}
        }
    }
    verdict(&status)
}

/// The runtime's status in the form sent to the client (client-go: `errorDecoderV4`).
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

/// A port-forward: the bytes of the runtime's SPDY connection within WebSocket frames.
pub(super) async fn tunnel(
    deps: &Arc<ServerDeps>,
    url: &str,
    mut request: Request<Incoming>,
    caller: &Caller,
    session: Session,
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
    let running = (Running::of(&request), connections::Request::of(&request), session);
    deps.tasks.spawn("tunnel", OnExit::Alone, async move {
        let _running = running;
        match tokio::try_join!(ours, theirs) {
            Ok((client, runtime)) => carry(TokioIo::new(client), TokioIo::new(runtime)).await,
            Err(error) => tracing::debug!(err = %error, "Failed to upgrade the connection"),
        }
    });
    switched
}

async fn carry(client: impl AsyncRead + AsyncWrite, runtime: impl AsyncRead + AsyncWrite) {
    let (client_reader, mut client_writer) = tokio::io::split(client);
    let (mut runtime_reader, mut runtime_writer) = tokio::io::split(runtime);
    let (pongs, mut answers) = mpsc::channel::<Vec<u8>>(PIECES);
    let up = async {
        let mut client = websocket::Reader::new(client_reader);
        while let Ok(piece) = client.next().await {
            let bytes = match piece {
                Piece::Close => return,
                Piece::Ping(bytes) => {
                    // A full queue means that earlier pings are being answered.
                    let _ = pongs.try_send(websocket::pong(&bytes));
                    continue;
                }
                Piece::Bytes { bytes, .. } => bytes,
            };
            let sent = runtime_writer.write_all(&bytes).await;
            if sent.is_err() || runtime_writer.flush().await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut piece = vec![0; websocket::PIECE];
        loop {
            let frame = tokio::select! {
                // Cancel-safe: a receive.
                Some(pong) = answers.recv() => pong,
                // Cancel-safe: a dropped read has consumed nothing.
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
        // The client may have disconnected first.
        let _ = client_writer.write_all(&websocket::close()).await;
        let _ = client_writer.shutdown().await;
    };
    tokio::select! {
        // The client has disconnected: the runtime's connection is closed with it.
        () = up => {}
        // The runtime has closed its connection: the client was sent a close frame.
        () = down => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_told_in_the_clients_words() {
        let status = br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        let sent = verdict(status).unwrap();
        assert_eq!(sent["details"]["causes"][0]["message"], "7");
        let want =
            "command terminated with non-zero exit code: command terminated with exit code 7";
        assert_eq!(sent["message"], want);
        assert_eq!(verdict(b"").unwrap()["status"], "Success");
        let other = br#"{"status":"Failure","message":"no"}"#;
        assert_eq!(verdict(other).unwrap_err(), "no");
        assert_eq!(internal_error("no")["message"], "Internal error occurred: no");
    }

    #[test]
    fn messages_go_to_their_streams_whatever_pieces_they_come_in() {
        let ids = Ids::new(&Streams { stdin: true, stdout: true, stderr: false, tty: true });
        let (stdin, resize) = (ids.stdin.unwrap(), ids.resize.unwrap());
        let said = |pieces: &[&[u8]]| {
            let mut message = Message::default();
            let pieces = pieces.iter().enumerate();
            let last = |at: usize| at + 1 == pieces.len();
            let said = pieces.clone().filter_map(|(at, piece)| message.take(piece, last(at), &ids));
            said.collect::<Vec<_>>()
        };
        let input = |bytes: &[u8]| spdy::data(stdin, bytes, false);
        assert_eq!(said(&[b"\0abc"]), [input(b"abc")]);
        assert_eq!(said(&[b"", b"\0", b"ab", b"\0c"]), [input(b"ab"), input(b"\0c")]);
        assert_eq!(said(&[&[CLOSE], &[STDIN]]), [spdy::data(stdin, b"", true)]);
        assert!(said(&[&[CLOSE, STDOUT]]).is_empty());
        assert_eq!(
            said(&[b"\x04{\"Wid", b"th\":1}"]),
            [spdy::data(resize, b"{\"Width\":1}\n", false)]
        );
        let long = vec![RESIZE; 1 << 20];
        assert!(said(&[&long]).is_empty() && said(&[&long[..900], &long[..900], b"x"]).is_empty());
    }

    // A client that does not read stops the runtime, and little is buffered meanwhile.
    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_not_read_from() {
        let ids = Ids::new(&Streams { stdin: false, stdout: true, stderr: false, tty: false });
        let (to_client, mut frames) = mpsc::channel(PIECES);
        let (pings, _pongs) = mpsc::channel(1);
        let (mut runtime, ours) = tokio::io::duplex(1024);
        let flood = async {
            let frame = spdy::data(3, &vec![b'x'; 1 << 20], false);
            let mut sent = 0;
            while let Ok(Ok(count)) = {
                let rest = frame.get(sent..).unwrap_or_default();
                tokio::time::timeout(std::time::Duration::from_secs(60), runtime.write(rest)).await
            } {
                sent += count;
            }
            sent
        };
        let reader = spdy::Reader::new(ours);
        tokio::select! {
            _ = from_runtime(reader, &ids, &to_client, &pings) => panic!("nothing has ended"),
            sent = flood => assert!(sent < (PIECES + 3) * websocket::PIECE, "{sent}"),
        }
        assert!(frames.recv().await.is_some());
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
