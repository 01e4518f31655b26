//! A proxy on a Unix socket between a kubelet and its runtime that notes every CRI call that
//! changes something, in order of arrival, and passes everything else on untouched (streams too).
//!
//! It works on HTTP/2 requests, not on typed messages, so that a field it has never heard of still
//! reaches the runtime. One connection of the kubelet is one connection to the runtime: when the
//! runtime goes away, so does the kubelet's connection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};

use super::grpc_json::CriMessages;

/// The calls worth noting; the rest only reads.
const RECORDED: &[&str] = &[
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
    "ExecSync",
    "PullImage",
    "RemoveImage",
    "CheckpointContainer",
];

/// One call that changed something.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// CRI method.
    pub method: String,
    /// The span that the kubelet named.
    pub traceparent: Option<String>,
    /// The request as JSON (see the goldens' README for the shape).
    pub request: Value,
    /// The request as it came, to be made again.
    pub message: Bytes,
    /// The response, once there was one.
    pub response: Value,
    /// Code name and message of a failure.
    pub error: Option<(String, String)>,
    /// Whether the runtime has answered.
    pub answered: bool,
}

type Calls = Arc<Mutex<Vec<Arc<Call>>>>;
type Body = BoxBody<Bytes, hyper::Error>;

/// A running recorder.
#[derive(Debug)]
pub struct Recorder {
    socket: PathBuf,
    calls: Calls,
    // Dropping the runtime ends the proxy.
    _runtime: tokio::runtime::Runtime,
}

impl Recorder {
    /// Listen on `socket` and pass on to `upstream`.
    pub fn start(socket: &Path, upstream: &Path) -> anyhow::Result<Recorder> {
        let messages = CriMessages::get()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start the recorder")?;
        let listener = runtime
            .block_on(async { UnixListener::bind(socket) })
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let calls = Calls::default();
        let proxy = Proxy { upstream: upstream.to_path_buf(), calls: Arc::clone(&calls), messages };
        runtime.spawn(accept(listener, proxy));
        Ok(Recorder { socket: socket.to_path_buf(), calls, _runtime: runtime })
    }

    /// Where the kubelet connects.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Everything noted so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Arc<Call>> {
        self.calls.lock().map(|calls| calls.clone()).unwrap_or_default()
    }
}

#[derive(Clone)]
struct Proxy {
    upstream: PathBuf,
    calls: Calls,
    messages: &'static CriMessages,
}

async fn accept(listener: UnixListener, proxy: Proxy) {
    while let Ok((stream, _)) = listener.accept().await {
        let proxy = proxy.clone();
        tokio::spawn(async move {
            if let Err(error) = proxy.serve(stream).await {
                tracing::debug!(err = %error, "Recorder connection ended");
            }
        });
    }
}

impl Proxy {
    async fn serve(self, stream: UnixStream) -> anyhow::Result<()> {
        let upstream = UnixStream::connect(&self.upstream).await?;
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(1 << 20)
            .handshake(TokioIo::new(upstream))
            .await?;
        let service = service_fn(move |request| {
            let proxy = self.clone();
            let sender = sender.clone();
            async move { proxy.pass(sender, request).await }
        });
        let down = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        // Either end closing closes the other; both futures may be dropped at any point.
        tokio::select! {
            ended = connection => ended?,
            ended = down => ended?,
        }
        Ok(())
    }

    async fn pass(
        self,
        mut sender: SendRequest<Body>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, hyper::Error> {
        let path = request.uri().path().to_owned();
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        if !RECORDED.contains(&method.as_str()) {
            let response = sender.send_request(request.map(|body| body.boxed())).await?;
            return Ok(response.map(|body| body.boxed()));
        }
        let (head, body) = request.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let traceparent = head.headers.get("traceparent").and_then(|span| span.to_str().ok());
        let index = self.note(&path, traceparent, bytes.clone());
        let whole = Full::new(bytes.clone()).map_err(|never| match never {}).boxed();
        let response = sender.send_request(Request::from_parts(head, whole)).await?;
        let (head, body) = response.into_parts();
        let answer = body.collect().await?;
        let trailers = answer.trailers().cloned();
        let answer = answer.to_bytes();
        let status = trailers.as_ref().unwrap_or(&head.headers);
        self.finish(index, &path, &bytes, &answer, status);
        let body = Full::new(answer).map_err(|never| match never {});
        let body = match trailers {
            Some(trailers) => body.with_trailers(async move { Some(Ok(trailers)) }).boxed(),
            // A failure may be told in the headers alone; then nothing may follow them.
            None => body.boxed(),
        };
        Ok(Response::from_parts(head, body))
    }

    fn note(&self, path: &str, traceparent: Option<&str>, mut frame: Bytes) -> usize {
        let message = frame.split_off(FRAME.min(frame.len()));
        let request = match self.messages.decode(path, &message, None) {
            Ok((request, _)) => request,
            Err(error) => Value::String(format!("cannot decode: {error:#}")),
        };
        let call = Call {
            method: path.rsplit('/').next().unwrap_or_default().to_owned(),
            traceparent: traceparent.map(str::to_owned),
            request,
            message,
            response: Value::Null,
            error: None,
            answered: false,
        };
        let Ok(mut calls) = self.calls.lock() else { return 0 };
        calls.push(Arc::new(call));
        calls.len() - 1
    }

    fn finish(&self, index: usize, path: &str, request: &[u8], answer: &[u8], status: &HeaderMap) {
        let error = failure(status);
        let response = match &error {
            Some(_) => Value::Null,
            None => self
                .messages
                .decode(path, message(request), Some(message(answer)))
                .map_or_else(|error| Value::String(error.to_string()), |(_, response)| response),
        };
        let Ok(mut calls) = self.calls.lock() else { return };
        if let Some(call) = calls.get_mut(index) {
            let call = Arc::make_mut(call);
            call.answered = true;
            call.response = response;
            call.error = error;
        }
    }
}

/// What comes before the message in a gRPC frame: one byte of flags and four of length.
const FRAME: usize = 5;

fn message(frame: &[u8]) -> &[u8] {
    frame.get(FRAME..).unwrap_or_default()
}

fn failure(status: &HeaderMap) -> Option<(String, String)> {
    let code = status.get("grpc-status")?.to_str().ok()?;
    if code == "0" {
        return None;
    }
    let text = status.get("grpc-message").map(|value| percent_decoded(value.as_bytes()));
    Some((code_name(code).to_owned(), text.unwrap_or_default()))
}

fn code_name(code: &str) -> &str {
    match code {
        "1" => "CANCELLED",
        "2" => "UNKNOWN",
        "3" => "INVALID_ARGUMENT",
        "4" => "DEADLINE_EXCEEDED",
        "5" => "NOT_FOUND",
        "6" => "ALREADY_EXISTS",
        "7" => "PERMISSION_DENIED",
        "8" => "RESOURCE_EXHAUSTED",
        "9" => "FAILED_PRECONDITION",
        "10" => "ABORTED",
        "11" => "OUT_OF_RANGE",
        "12" => "UNIMPLEMENTED",
        "13" => "INTERNAL",
        "14" => "UNAVAILABLE",
        "15" => "DATA_LOSS",
        "16" => "UNAUTHENTICATED",
        other => other,
    }
}

fn percent_decoded(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = &after[2..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_trailers_become_code_name_and_text() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "5".parse().unwrap());
        trailers.insert("grpc-message", "image %22x%22: not found 100%".parse().unwrap());
        let expected = ("NOT_FOUND".to_owned(), "image \"x\": not found 100%".to_owned());
        assert_eq!(failure(&trailers), Some(expected));
        trailers.insert("grpc-status", "0".parse().unwrap());
        assert_eq!(failure(&trailers), None);
    }
}
