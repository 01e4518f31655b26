//! `/debug/flags/v`: the verbosity of the log, changed while running.

use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

const MAX_BODY: usize = 1024;

/// Sets the verbosity to the number in the body.
pub(crate) async fn set_verbosity(deps: &ServerDeps, request: Request<Incoming>) -> Reply {
    if request.method() != Method::PUT {
        let text = "unsupported http method\n".to_owned();
        return reply::with_type(StatusCode::NOT_ACCEPTABLE, "text/plain", text);
    }
    let body = match Limited::new(request.into_body(), MAX_BODY).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).trim().to_owned(),
        Err(error) => {
            let text = format!("error reading request body: {error}");
            return reply::with_type(StatusCode::BAD_REQUEST, "text/plain", text);
        }
    };
    match body.parse::<u32>() {
        Ok(level) => {
            deps.logs.set_verbosity(level);
            let text = format!("successfully set klog.logging.verbosity to {body}\n");
            reply::with_type(StatusCode::OK, "text/plain", text)
        }
        Err(_) => {
            let text = format!(
                "failed set klog.logging.verbosity {body}: strconv.ParseInt: parsing {body:?}: invalid syntax"
            );
            reply::with_type(StatusCode::BAD_REQUEST, "text/plain", text)
        }
    }
}
