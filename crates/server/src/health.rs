//! The plain health port (10248): `/healthz` and `/healthz/ping`, opened after everything else.
//!
//! Promises: never blocks on anything, and opening many connections does not keep others from a
//! response; a port in use is retried every five seconds and is never fatal. The checks of the sync
//! loop and the log are on the HTTPS port.

use crate::connections::{Connections, Limits};
use crate::handlers::health::{Check, respond};
use crate::health_metrics::HealthMetrics;
use crate::listen;
use crate::reply::{self, Reply};
use crate::route::{self, Decision};
use crate::serve::early_response;
use crate::target::Target;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use ports::{OnExit, Tasks};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const LISTEN_RETRY: Duration = Duration::from_secs(5);
/// Nobody authenticates here. A client that sends a request and reads the response is done long
/// before its connection could be evicted; an idle connection is.
const LIMITS: Limits = Limits { strangers: 128, known: 0, of_one: 0, buffered_bytes: 2 << 20 };

/// Serves until the tasks are cancelled.
pub async fn serve(address: SocketAddr, metrics: Arc<HealthMetrics>, tasks: Tasks) {
    let cancel = tasks.token();
    let listener = loop {
        match listen::bind(address).await {
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
    let connections = Connections::new(LIMITS);
    loop {
        let accepted = tokio::select! {
            // Cancel-safe: nothing is held yet.
            () = cancel.cancelled() => return,
            // Cancel-safe: accept loses no connection when dropped.
            accepted = listen::accept(&listener, &connections) => accepted,
        };
        let (cancel, metrics) = (cancel.clone(), Arc::clone(&metrics));
        tasks.spawn("health-connection", OnExit::Alone, async move {
            let answers = move |request| {
                let reply = answer(&request, &metrics);
                async move { reply }
            };
            let (stream, place) = (accepted.place.watch(accepted.stream), accepted.place);
            tokio::select! {
                // Cancel-safe: the connection is dropped with the process.
                () = cancel.cancelled() => {}
                // Runs to its end.
                () = Box::pin(listen::http(stream, listen::Protocol::Http1, place, answers)) => {}
            }
        });
    }
}

/// Any method is accepted (kubelet: `healthz.InstallHandler` on its own mux).
fn answer(request: &Request<Incoming>, metrics: &HealthMetrics) -> Reply {
    if let Some(refused) = early_response(request) {
        return refused;
    }
    let Ok(target) = Target::of(request) else {
        return reply::bad_request("400 Bad Request");
    };
    match route::decide_exact(request.method(), &target, &["/healthz", "/healthz/ping"]) {
        Decision::NotFound => reply::error(StatusCode::NOT_FOUND, "404 page not found"),
        Decision::Redirect(to) => {
            reply::redirect(StatusCode::TEMPORARY_REDIRECT, &to, request.method())
        }
        Decision::Handle(route::Route::Health(Some(_))) => {
            reply::plain(StatusCode::OK, "ok".to_owned())
        }
        Decision::Handle(_) => {
            respond(&[Check { name: "ping", result: &|| Ok(()) }], &target.query, metrics)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn ask(address: SocketAddr, path: &str) -> String {
        ask_by("GET", address, path).await
    }

    async fn ask_by(method: &str, address: SocketAddr, path: &str) -> String {
        let mut stream = loop {
            match tokio::net::TcpStream::connect(address).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn answers_health_in_short_and_in_full() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let tasks = Tasks::new();
        let metrics = Arc::new(HealthMetrics::new(0));
        let served = serve(port, Arc::clone(&metrics), tasks.clone());
        tasks.spawn("health", OnExit::Fine, served);
        assert!(ask(port, "/healthz").await.ends_with("\r\n\r\nok"));
        assert!(ask(port, "/healthz/ping").await.ends_with("\r\n\r\nok"));
        let verbose = ask(port, "/healthz?verbose").await;
        assert!(verbose.ends_with("[+]ping ok\nhealthz check passed\n"), "{verbose}");
        assert!(ask(port, "/pods").await.starts_with("HTTP/1.1 404"));
        assert!(ask(port, "/pods").await.ends_with("\r\n\r\n404 page not found\n"));
        assert!(ask_by("BREW", port, "/healthz").await.ends_with("\r\n\r\nok"));
        let without = ask(port, "/healthz?exclude=ping&exclude=log&verbose").await;
        let want = "[+]ping excluded: ok\nwarn: some health checks cannot be excluded: no matches \
                    for \"log\"\nhealthz check passed\n";
        assert!(without.ends_with(want), "{without}");
        let moved = ask(port, "//healthz?x").await;
        assert!(moved.contains("307") && moved.contains("Location: /healthz?x\r\n"), "{moved}");
        assert!(metrics.render().contains("kubernetes_healthcheck{name=\"ping\""));
        tasks.shutdown().await;
    }

    #[tokio::test]
    async fn idle_connections_do_not_shut_others_out() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let tasks = Tasks::new();
        let metrics = Arc::new(HealthMetrics::new(0));
        tasks.spawn("health", OnExit::Fine, serve(port, metrics, tasks.clone()));
        ask(port, "/healthz").await;
        let mut idle = Vec::new();
        for _ in 0..200 {
            idle.push(tokio::net::TcpStream::connect(port).await.unwrap());
            idle.last_mut().unwrap().write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
        }
        for _ in 0..20 {
            assert!(ask(port, "/healthz").await.ends_with("\r\n\r\nok"));
        }
        tasks.shutdown().await;
    }
}
