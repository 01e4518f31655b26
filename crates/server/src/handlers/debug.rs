//! `/debug/flags/v`: the verbosity of the log, changed while running.

use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use units::strconv::parse_uint;

const MAX_BODY: usize = 1024;

/// Sets the verbosity to the number in the body.
pub(crate) async fn set_verbosity(deps: &ServerDeps, request: Request<Incoming>) -> Reply {
    if request.method() != Method::PUT {
        return text(StatusCode::NOT_ACCEPTABLE, "unsupported http method");
    }
    let body = match Limited::new(request.into_body(), MAX_BODY).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Err(error) => {
            let refused = format!("error reading request body: {error}");
            return text(StatusCode::BAD_REQUEST, &refused);
        }
    };
    match parse_uint(&body, 10, 32) {
        Ok(level) => {
            deps.logs.set_verbosity(u32::try_from(level).unwrap_or(u32::MAX));
            text(StatusCode::OK, &format!("successfully set klog.logging.verbosity to {body}"))
        }
        Err(error) => text(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

fn text(status: StatusCode, text: &str) -> Reply {
    reply::no_sniff(reply::with_type(status, "text/plain", format!("{text}\n")))
}
