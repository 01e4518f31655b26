//! `/debug/pprof/NAME`: the few of Go's profiles that a native process can serve.

use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use http::{HeaderName, HeaderValue, StatusCode};

/// The command line and the symbol lookup; other profiles need a Go runtime.
pub(crate) fn answer(deps: &ServerDeps, path: &str) -> Reply {
    match path.strip_prefix("/debug/pprof/").unwrap_or_default() {
        "cmdline" => {
            let raw = sys::fs::read(deps.roots.proc.join("self/cmdline")).unwrap_or_default();
            let end = raw.strip_suffix(b"\0").unwrap_or(&raw).to_vec();
            reply::no_sniff(reply::with_type(StatusCode::OK, "text/plain; charset=utf-8", end))
        }
        "symbol" => {
            let kind = "text/plain; charset=utf-8";
            reply::no_sniff(reply::with_type(StatusCode::OK, kind, "num_symbols: 1\n"))
        }
        "profile" | "trace" | "heap" | "goroutine" | "allocs" | "block" | "mutex"
        | "threadcreate" => {
            let text = "this process has no Go runtime to profile; use perf on its pid";
            reply::error(StatusCode::NOT_IMPLEMENTED, text)
        }
        _ => {
            let mut reply = reply::error(StatusCode::NOT_FOUND, "Unknown profile");
            let mark = HeaderName::from_static("x-go-pprof");
            reply.headers_mut().insert(mark, HeaderValue::from_static("1"));
            reply
        }
    }
}
