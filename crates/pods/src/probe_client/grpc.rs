//! gRPC health checks (`grpc.health.v1.Health/Check`).

use super::ProbeAnswer;
use std::time::Duration;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request};

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
pub(crate) async fn probe(
    host: &str,
    port: u16,
    service: &str,
    agent: &str,
    timeout: Duration,
) -> ProbeAnswer {
    let address =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let limit = go_seconds(timeout);
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
    // Go's dialer retries a refused port until its time is over.
    let connect = async {
        loop {
            if let Ok(channel) = endpoint.connect().await {
                return channel;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let Ok(channel) = tokio::time::timeout_at(deadline, connect).await else {
        return ProbeAnswer::Failure(format!(
            "timeout: failed to connect service {address:?} within {limit}: context deadline exceeded"
        ));
    };
    let mut client = tonic::client::Grpc::new(channel);
    let check = async {
        client.ready().await.map_err(|e| tonic::Status::unavailable(e.to_string()))?;
        let request = Request::new(HealthCheckRequest { service: service.to_owned() });
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        client.unary(request, path, codec).await
    };
    match tokio::time::timeout_at(deadline, check).await {
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

fn go_seconds(timeout: Duration) -> String {
    format!("{}s", timeout.as_secs())
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
}
