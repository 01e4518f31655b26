//! gRPC health checks (`grpc.health.v1.Health/Check`).

use super::ProbeAnswer;
use std::time::Duration;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// One gRPC probe: connect and check within one time limit.
pub async fn probe(
    host: &str,
    port: u16,
    service: &str,
    agent: &str,
    timeout: Duration,
) -> ProbeAnswer {
    let address =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let limit = units::GoDuration::from(timeout);
    let deadline = tokio::time::Instant::now() + timeout;
    let endpoint = match Endpoint::from_shared(format!("http://{address}"))
        .and_then(|endpoint| endpoint.user_agent(agent.to_owned()))
    {
        Ok(endpoint) => endpoint,
        Err(e) => {
            return ProbeAnswer::Failure(format!(
                "error: failed to connect service at {address:?}: {e}"
            ));
        }
    };
    // Go's dialer retries until its time is over, a refused port and a server of another protocol alike.
    let connect = || async {
        loop {
            if let Ok(channel) = endpoint.connect().await {
                return channel;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let no_connection = || {
        ProbeAnswer::Failure(format!(
            "timeout: failed to connect service {address:?} within {limit}: context deadline exceeded"
        ))
    };
    let answer = loop {
        let Ok(channel) = tokio::time::timeout_at(deadline, connect()).await else {
            return no_connection();
        };
        let answer = tokio::time::timeout_at(deadline, check(channel, service)).await;
        match &answer {
            Ok(Err(status)) if broke(status) => {}
            _ => break answer,
        }
        if tokio::time::timeout_at(deadline, tokio::time::sleep(PAUSE)).await.is_err() {
            return no_connection();
        }
    };
    match answer {
        Err(_) => {
            ProbeAnswer::Failure(format!("timeout: health rpc did not complete within {limit}"))
        }
        Ok(Ok(response)) => judge(response.into_inner().status),
        Ok(Err(status)) => ProbeAnswer::Failure(match status.code() {
            Code::Unimplemented => format!(
                "error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): {}",
                status.message()
            ),
            Code::DeadlineExceeded => {
                format!("timeout: health rpc did not complete within {limit}")
            }
            code => format!(
                "error: health rpc probe failed: rpc error: code = {} desc = {}",
                sockets::code_name(code),
                status.message()
            ),
        }),
    }
}

async fn check(
    channel: Channel,
    service: &str,
) -> Result<tonic::Response<HealthCheckResponse>, tonic::Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|e| tonic::Status::unavailable(e.to_string()))?;
    let request = Request::new(HealthCheckRequest { service: service.to_owned() });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    client.unary(request, path, codec).await
}

/// Whether the connection broke rather than the server answered: most likely it does not speak HTTP/2.
fn broke(status: &tonic::Status) -> bool {
    std::error::Error::source(status).is_some()
}

fn judge(status: i32) -> ProbeAnswer {
    match status {
        1 => ProbeAnswer::Success,
        other => {
            let name = match other {
                0 => "UNKNOWN".to_owned(),
                2 => "NOT_SERVING".to_owned(),
                3 => "SERVICE_UNKNOWN".to_owned(),
                number => number.to_string(),
            };
            ProbeAnswer::Failure(format!("service unhealthy (responded with {name:?})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serving_is_healthy() {
        assert_eq!(judge(1), ProbeAnswer::Success);
        assert_eq!(
            judge(2),
            ProbeAnswer::Failure("service unhealthy (responded with \"NOT_SERVING\")".into())
        );
    }

    #[tokio::test]
    async fn a_server_of_another_protocol_is_a_connect_timeout() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = async {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let _ = client.read(&mut [0; 64]).await;
                let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nbad";
                let _ = client.write_all(answer).await;
            }
        };
        let second = Duration::from_secs(1);
        let answer = tokio::select! {
            answer = probe("127.0.0.1", port, "", "kube-probe/1.36", second) => answer,
            () = serve => unreachable!("the server goes on for ever"),
        };
        assert_eq!(
            answer,
            ProbeAnswer::Failure(format!(
                "timeout: failed to connect service \"127.0.0.1:{port}\" within 1s: context deadline exceeded"
            ))
        );
    }

    #[tokio::test]
    async fn a_closed_port_is_a_connect_timeout() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let answer = probe("127.0.0.1", port, "", "kube-probe/1.36", Duration::from_secs(1)).await;
        assert_eq!(
            answer,
            ProbeAnswer::Failure(format!(
                "timeout: failed to connect service \"127.0.0.1:{port}\" within 1s: context deadline exceeded"
            ))
        );
    }

    /// Serves one connection; each request gets `answer`, over and over if it goes on for ever.
    async fn flood(listener: &tokio::net::TcpListener, answer: &[u8], forever: bool) {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        let head =
            hyper::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let mut stream = respond.send_response(head, false).unwrap();
        let answer = bytes::Bytes::copy_from_slice(answer);
        let send = async move {
            loop {
                stream.reserve_capacity(answer.len());
                let ready = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
                if !matches!(ready, Some(Ok(_))) || stream.send_data(answer.clone(), false).is_err()
                {
                    return;
                }
                if !forever {
                    return std::future::pending().await;
                }
            }
        };
        let drive = async { while connection.accept().await.is_some_and(|next| next.is_ok()) {} };
        tokio::select! {
            () = send => {}
            () = drive => {}
        }
    }

    #[tokio::test]
    async fn a_server_that_streams_for_ever_or_says_too_much_fails_in_time() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let limit = Duration::from_millis(300);
        // One message of "serving", again and again; and one that claims four gigabytes.
        for (answer, forever) in
            [(&[0, 0, 0, 0, 2, 8, 1][..], true), (&[0, 255, 255, 255, 255], false)]
        {
            let serve = async {
                loop {
                    flood(&listener, answer, forever).await;
                }
            };
            let patience = Duration::from_secs(30);
            let asked = probe("127.0.0.1", port, "", "kube-probe/1.36", limit);
            let answer = tokio::select! {
                answer = tokio::time::timeout(patience, asked) => answer.unwrap(),
                () = serve => unreachable!("the server goes on for ever"),
            };
            assert!(matches!(answer, ProbeAnswer::Failure(_)), "{answer:?}");
        }
    }
}
