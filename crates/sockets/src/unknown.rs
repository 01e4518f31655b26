//! Errors for unknown services and methods, in the words of Go's servers (grpc-go:
//! `Server.handleStream`).

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use tonic::service::Routes;
use tonic::{Code, Status};

/// The same routes, with errors that name the unknown service or method.
pub(crate) fn with_go_errors(routes: Routes) -> Routes {
    let router = routes.into_axum_router().fallback(unknown_service);
    router.layer(from_fn(unknown_method)).into()
}

async fn unknown_service(request: Request) -> Response {
    refusal(match parts(request.uri().path()) {
        Some((service, _)) => format!("unknown service {service}"),
        None => format!("malformed method name: {:?}", request.uri().path()),
    })
}

/// Adds the name to a service's error for an unknown method, which has none.
async fn unknown_method(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let response = next.run(request).await;
    let status = Status::from_header_map(response.headers());
    let silent = |s: &Status| s.code() == Code::Unimplemented && s.message().is_empty();
    match (status.filter(silent), parts(&path)) {
        (Some(_), Some((service, method))) => {
            refusal(format!("unknown method {method} for service {service}"))
        }
        _ => response,
    }
}

fn parts(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/').unwrap_or(path).rsplit_once('/')
}

fn refusal(text: String) -> Response {
    Status::unimplemented(text).into_http::<Body>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::any;
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_client_is_told_what_is_unknown() {
        // As generated code responds.
        let lacks = any(|| async { Status::unimplemented("").into_http::<Body>() });
        let refuses = any(|| async { Status::unimplemented("not now").into_http::<Body>() });
        let router = Router::new().route("/a.B/{*rest}", lacks).route("/a.C/Get", refuses);
        let routes = with_go_errors(router.into());
        for (path, want) in [
            ("/a.B/None", "unknown method None for service a.B"),
            ("/a.X/Get", "unknown service a.X"),
            ("/a/b/c", "unknown service a/b"),
            ("/", "malformed method name: \"/\""),
            ("/a.C/Get", "not now"),
        ] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = routes.clone().oneshot(request).await.unwrap();
            let status = Status::from_header_map(response.headers()).unwrap();
            assert_eq!((status.code(), status.message()), (Code::Unimplemented, want), "{path}");
        }
    }
}
