//! `/debug/flags/v`: the verbosity of the log, changed while running.

use crate::body::{self, Unread};
use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use units::strconv::parse_uint;

/// Far longer than any number; a larger body is not echoed in the response.
const MAX_BODY: usize = 1 << 20;

/// Sets the verbosity to the number in the body.
pub(crate) async fn set_verbosity(deps: &ServerDeps, request: Request<Incoming>) -> Reply {
    if request.method() != Method::PUT {
        return text(StatusCode::NOT_ACCEPTABLE, "unsupported http method");
    }
    let refused =
        |why: &str| text(StatusCode::BAD_REQUEST, &format!("error reading request body: {why}"));
    let body = match body::read(request.into_body(), MAX_BODY).await {
        Ok(body) => String::from_utf8_lossy(&body).into_owned(),
        Err(Unread::TooLarge) => return refused("http: request body too large"),
        Err(Unread::Broken(why)) => return refused(why),
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
