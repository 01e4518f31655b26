//! The plain health port (10248): `/healthz` and `/healthz/ping`, answered from the first moment.
//!
//! Promises: never blocks on anything; a port that is taken is retried every five seconds and is
//! never fatal. The checks of the sync loop and the log live on the HTTPS port.

use axum::Router;
use axum::extract::RawQuery;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use ports::{OnExit, Tasks};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

const LISTEN_RETRY: Duration = Duration::from_secs(5);
const HEADER_DEADLINE: Duration = Duration::from_secs(10);
const MAX_CONNECTIONS: usize = 64;

/// Serves until the tasks are cancelled.
pub async fn serve(address: SocketAddr, tasks: Tasks) {
    let cancel = tasks.token();
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::error!(err = %error, %address, "Failed to start healthz server");
            }
        }
        tokio::select! {
            // Cancel-safe: nothing is held yet.
            () = cancel.cancelled() => return,
            // Cancel-safe: a sleep.
            () = tokio::time::sleep(LISTEN_RETRY) => {}
        }
    };
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            // Cancel-safe: nothing is held yet.
            () = cancel.cancelled() => return,
            // Cancel-safe: accept loses no connection when dropped.
            accepted = listener.accept() => accepted,
        };
        let (stream, _) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(err = %error, "health connection not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else { continue };
        let cancel = cancel.clone();
        tasks.spawn("health-connection", OnExit::Fine, async move {
            let mut builder = Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_DEADLINE);
            let service = TowerToHyperService::new(router());
            tokio::select! {
                // Cancel-safe: the connection is dropped with the process.
                () = cancel.cancelled() => {}
                // Runs to its end.
                result = builder.serve_connection(TokioIo::new(stream), service) => {
                    if let Err(error) = result {
                        tracing::debug!(err = %error, "health connection ended");
                    }
                }
            }
            drop(slot);
        });
    }
}

fn router() -> Router {
    Router::new().route("/healthz", get(all)).route("/healthz/ping", get(ping))
}

async fn all(RawQuery(query): RawQuery) -> Response {
    let verbose =
        query.is_some_and(|q| q.split('&').any(|p| p == "verbose" || p.starts_with("verbose=")));
    if verbose { text("[+]ping ok\nhealthz check passed\n") } else { text("ok") }
}

async fn ping() -> Response {
    text("ok")
}

fn text(body: &'static str) -> Response {
    const NO_SNIFF: (HeaderName, &str) =
        (HeaderName::from_static("x-content-type-options"), "nosniff");
    ([(CONTENT_TYPE, "text/plain; charset=utf-8"), NO_SNIFF], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = loop {
            match tokio::net::TcpStream::connect(address).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn answers_health_in_short_and_in_full() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let tasks = Tasks::new();
        tasks.spawn("health", OnExit::Fine, serve(port, tasks.clone()));
        assert!(ask(port, "/healthz").await.ends_with("\r\n\r\nok"));
        assert!(ask(port, "/healthz/ping").await.ends_with("\r\n\r\nok"));
        let verbose = ask(port, "/healthz?verbose").await;
        assert!(verbose.ends_with("[+]ping ok\nhealthz check passed\n"), "{verbose}");
        assert!(ask(port, "/pods").await.starts_with("HTTP/1.1 404"));
        tasks.shutdown().await;
    }
}
