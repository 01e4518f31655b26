//! Routes requests by path: before authentication and without side effects.
//!
//! Promises: the same results as Go's mux and go-restful for a path and method (kubelet:
//! `InstallAuthNotRequiredHandlers`, `InstallDebuggingHandlers`); unknown paths never reach a
//! handler or a metric's label value.

use crate::target::{Target, clean, unescape_segment};
use http::Method;

/// Which handlers are enabled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Switches {
    /// `enableDebuggingHandlers`; false on the read-only port.
    pub debugging: bool,
    /// `enableSystemLogHandler`.
    pub system_logs: bool,
    /// `enableProfilingHandler`.
    pub profiling: bool,
    /// `enableDebugFlagsHandler`.
    pub debug_flags: bool,
    /// Gate ContainerCheckpoint.
    pub checkpoint: bool,
    /// Gate ComponentFlagz.
    pub flagz: bool,
    /// Gate ComponentStatusz.
    pub statusz: bool,
    /// `enableSystemLogQuery`.
    pub log_query: bool,
    /// Gate PodLogsQuerySplitStreams.
    pub split_log_streams: bool,
    /// Gate ExtendWebSocketsToKubelet: WebSocket streams that the runtime need not support.
    pub translate_websockets: bool,
}

/// A path with a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// `/healthz`, or one named check.
    Health(Option<&'static str>),
    /// `/metrics` and below.
    Metrics(MetricsPage),
    /// `/pods`.
    Pods,
    /// `/runningpods/`.
    RunningPods,
    /// `/stats/summary`.
    Summary,
    /// `/configz`.
    Configz,
    /// `/flagz`.
    Flagz,
    /// `/statusz`.
    Statusz,
    /// `/debug/flags/v`.
    DebugFlags,
    /// `/debug/pprof/NAME`.
    Profile,
    /// `/logs/PATH`.
    Logs,
    /// `/containerLogs/NS/POD/CONTAINER`.
    ContainerLogs(ContainerPath),
    /// `/run/…`.
    Run(ContainerPath),
    /// `/exec/…`.
    Exec(ContainerPath),
    /// `/attach/…`.
    Attach(ContainerPath),
    /// `/portForward/NS/POD[/UID]`; the container is empty.
    PortForward(ContainerPath),
    /// `/checkpoint/NS/POD/CONTAINER`.
    Checkpoint(ContainerPath),
    /// A disabled tree: 405 with this text.
    Disabled(&'static str),
    /// Below a routed tree, but without a route: go-restful's 404.
    NoRoute,
    /// A route with other methods: go-restful's 405, with `Allow`.
    WrongMethod(String),
    /// A route whose content type is not accepted: go-restful's 406.
    NotAcceptable(&'static str),
}

impl Route {
    /// The route's pattern in go-restful; empty for paths handled outside of it.
    pub(crate) fn pattern(&self) -> String {
        let below = |tree: &str, path: &ContainerPath, container: bool| {
            let uid = if path.uid.is_some() { "/{uid}" } else { "" };
            let container = if container { "/{containerName}" } else { "" };
            format!("/{tree}/{{podNamespace}}/{{podID}}{uid}{container}")
        };
        match self {
            Self::Pods => "/pods".to_owned(),
            Self::RunningPods => "/runningpods/".to_owned(),
            Self::Summary => "/stats/summary".to_owned(),
            Self::Logs => "/logs/{logpath:*}".to_owned(),
            Self::ContainerLogs(path) => below("containerLogs", path, true),
            Self::Run(path) => below("run", path, true),
            Self::Exec(path) => below("exec", path, true),
            Self::Attach(path) => below("attach", path, true),
            Self::PortForward(path) => below("portForward", path, false),
            Self::Checkpoint(path) => below("checkpoint", path, true),
            _ => String::new(),
        }
    }
}

/// The metrics endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsPage {
    /// `/metrics`.
    Main,
    /// `/metrics/cadvisor`.
    Cadvisor,
    /// `/metrics/resource`.
    Resource,
    /// `/metrics/probes`.
    Probes,
    /// `/metrics/slis`.
    Slis,
}

/// A container named by a path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerPath {
    /// Namespace.
    pub namespace: String,
    /// Pod name.
    pub pod: String,
    /// Pod UID, where the path has one.
    pub uid: Option<String>,
    /// Container name.
    pub container: String,
}

impl ContainerPath {
    fn new(namespace: &str, pod: &str, uid: Option<&str>, container: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            uid: uid.map(str::to_owned),
            container: container.to_owned(),
        }
    }
}

/// The mux's decision, before authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// No pattern matches the path.
    NotFound,
    /// Redirect to the same path, cleaned or with a trailing slash.
    Redirect(String),
    /// Continue with this route.
    Handle(Route),
}

const DEBUG_OFF: &str = "Debug endpoints are disabled.";

/// What a pattern of the mux leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Owner {
    /// Its own handler, for any method.
    Exact(Route),
    /// A tree that go-restful routes by path segments.
    Routed,
}

/// The patterns of the mux: a pattern with a trailing slash matches everything below it.
fn patterns(switches: Switches) -> Vec<(&'static str, Owner)> {
    let exact = |pattern, route| (pattern, Owner::Exact(route));
    let mut all = vec![
        exact("/healthz", Route::Health(None)),
        exact("/healthz/ping", Route::Health(Some("ping"))),
        exact("/healthz/log", Route::Health(Some("log"))),
        exact("/healthz/syncloop", Route::Health(Some("syncloop"))),
        exact("/healthz/device-plugin", Route::Health(Some("device-plugin"))),
        exact("/metrics", Route::Metrics(MetricsPage::Main)),
        exact("/metrics/cadvisor", Route::Metrics(MetricsPage::Cadvisor)),
        exact("/metrics/resource", Route::Metrics(MetricsPage::Resource)),
        exact("/metrics/probes", Route::Metrics(MetricsPage::Probes)),
        exact("/metrics/slis", Route::Metrics(MetricsPage::Slis)),
        ("/pods", Owner::Routed),
        ("/pods/", Owner::Routed),
        ("/stats/", Owner::Routed),
    ];
    if !switches.debugging {
        let off = [
            "/run/",
            "/exec/",
            "/attach/",
            "/portForward/",
            "/containerLogs/",
            "/runningpods/",
            "/debug/pprof/",
            "/logs/",
        ];
        all.extend(off.map(|tree| exact(tree, Route::Disabled(DEBUG_OFF))));
        return all;
    }
    for (alone, below) in [
        ("/run", "/run/"),
        ("/exec", "/exec/"),
        ("/attach", "/attach/"),
        ("/portForward", "/portForward/"),
        ("/containerLogs", "/containerLogs/"),
    ] {
        all.extend([(alone, Owner::Routed), (below, Owner::Routed)]);
    }
    all.push(("/runningpods/", Owner::Routed));
    all.push(exact("/configz", Route::Configz));
    if switches.checkpoint {
        all.push(("/checkpoint/", Owner::Routed));
    }
    if switches.flagz {
        all.push(exact("/flagz", Route::Flagz));
    }
    if switches.statusz {
        all.push(exact("/statusz", Route::Statusz));
    }
    let or_off = |on: bool, pattern, owner, text| {
        if on { (pattern, owner) } else { (pattern, Owner::Exact(Route::Disabled(text))) }
    };
    all.push(or_off(switches.system_logs, "/logs/", Owner::Routed, "logs endpoint is disabled."));
    all.push(or_off(
        switches.profiling,
        "/debug/pprof/",
        Owner::Routed,
        "profiling endpoint is disabled.",
    ));
    all.push(or_off(
        switches.debug_flags,
        "/debug/flags/v",
        Owner::Exact(Route::DebugFlags),
        "flags endpoint is disabled.",
    ));
    all
}

/// The parts of a request that routing uses.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The method.
    pub method: &'a Method,
    /// Path and query.
    pub target: &'a Target,
    /// The first `Accept` header; empty without one.
    pub accept: &'a str,
}

/// Routes a request to a mux that has only these exact paths.
pub fn decide_exact(method: &Method, target: &Target, paths: &[&str]) -> Decision {
    let canonical = method != Method::CONNECT;
    let path = if canonical { clean(&target.escaped) } else { target.escaped.clone() };
    if path != target.escaped {
        return Decision::Redirect(target.with_path(&path));
    }
    let all = Switches::default();
    match lookup(&patterns(all), &path) {
        Some((pattern, Owner::Exact(route))) if paths.contains(&pattern) => {
            Decision::Handle(route.clone())
        }
        _ => Decision::NotFound,
    }
}

/// Routes a request (Go: `ServeMux.findHandler`, then go-restful's `CurlyRouter`).
pub fn decide(asked: Asked<'_>, switches: Switches) -> Decision {
    let target = asked.target;
    let patterns = patterns(switches);
    let canonical = asked.method != Method::CONNECT;
    let path = if canonical { clean(&target.escaped) } else { target.escaped.clone() };
    let found = lookup(&patterns, &path);
    if !found.is_some_and(|(pattern, _)| is_exact(pattern, &path)) && !path.ends_with('/') {
        let with_slash = format!("{path}/");
        if lookup(&patterns, &with_slash).is_some_and(|(pattern, _)| is_exact(pattern, &with_slash))
        {
            let to = target.with_path(&format!("{}/", clean(&target.path).trim_end_matches('/')));
            return Decision::Redirect(to);
        }
    }
    if canonical && path != target.escaped {
        return Decision::Redirect(target.with_path(&path));
    }
    match found {
        None => Decision::NotFound,
        Some((_, Owner::Exact(route))) => Decision::Handle(route.clone()),
        Some((_, Owner::Routed)) => Decision::Handle(routed(asked)),
    }
}

/// The pattern that matches a path: the one with the most segments.
fn lookup<'a>(
    patterns: &'a [(&'static str, Owner)],
    path: &str,
) -> Option<(&'static str, &'a Owner)> {
    let parts: Vec<String> = path.split('/').skip(1).map(unescape_segment).collect();
    let owns = |pattern: &str| {
        let wanted: Vec<&str> = pattern.split('/').skip(1).collect();
        match wanted.split_last() {
            Some((&"", wanted)) => {
                parts.len() > wanted.len() && wanted.iter().zip(&parts).all(|(a, b)| *a == b)
            }
            _ => parts == wanted,
        }
    };
    let owners = patterns.iter().filter(|(pattern, _)| owns(pattern));
    owners.max_by_key(|(pattern, _)| pattern.len()).map(|(pattern, owner)| (*pattern, owner))
}

/// Go's `exactMatch`: no part of the path was matched by a trailing slash.
fn is_exact(pattern: &str, path: &str) -> bool {
    !pattern.ends_with('/')
        || (path.ends_with('/') && path.matches('/').count() == pattern.matches('/').count())
}

const JSON: &str = "application/json";

/// A method of a route, the content type it produces, and the route.
type Candidate = (Method, &'static str, Route);

/// Routes by the segments of the decoded path (go-restful: `CurlyRouter.SelectRoute`).
fn routed(asked: Asked<'_>) -> Route {
    let parts: Vec<&str> = asked.target.path.trim_matches('/').split('/').collect();
    let candidates = candidates(&parts);
    if candidates.is_empty() {
        return Route::NoRoute;
    }
    let by_method: Vec<&Candidate> =
        candidates.iter().filter(|(method, _, _)| method == asked.method).collect();
    let Some((_, produces, route)) = by_method.first() else {
        let allowed: Vec<&str> = candidates.iter().map(|(method, _, _)| method.as_str()).collect();
        return Route::WrongMethod(allowed.join(", "));
    };
    if accepts(asked.accept, produces) { route.clone() } else { Route::NotAcceptable(produces) }
}

fn candidates(parts: &[&str]) -> Vec<Candidate> {
    let get = |produces, route: Route| vec![(Method::GET, produces, route)];
    let post = |produces, route: Route| vec![(Method::POST, produces, route)];
    let both = |produces, route: Route| {
        vec![(Method::GET, produces, route.clone()), (Method::POST, produces, route)]
    };
    match parts {
        ["pods"] => get(JSON, Route::Pods),
        ["runningpods"] => get(JSON, Route::RunningPods),
        ["stats", "summary"] => both(JSON, Route::Summary),
        ["logs", ..] => get("", Route::Logs),
        ["debug", "pprof", _, ..] => get("", Route::Profile),
        ["containerLogs", ns, pod, name] => {
            get("", Route::ContainerLogs(ContainerPath::new(ns, pod, None, name)))
        }
        ["checkpoint", ns, pod, name] => {
            post(JSON, Route::Checkpoint(ContainerPath::new(ns, pod, None, name)))
        }
        ["portForward", ns, pod] => {
            both("", Route::PortForward(ContainerPath::new(ns, pod, None, "")))
        }
        ["portForward", ns, pod, uid] => {
            both("", Route::PortForward(ContainerPath::new(ns, pod, Some(uid), "")))
        }
        [tree, ns, pod, name] => container(tree, ContainerPath::new(ns, pod, None, name)),
        [tree, ns, pod, uid, name] => container(tree, ContainerPath::new(ns, pod, Some(uid), name)),
        _ => Vec::new(),
    }
}

fn container(tree: &str, path: ContainerPath) -> Vec<Candidate> {
    let both = |route: Route| vec![(Method::GET, "", route.clone()), (Method::POST, "", route)];
    match tree {
        "run" => vec![(Method::POST, "", Route::Run(path))],
        "exec" => both(Route::Exec(path)),
        "attach" => both(Route::Attach(path)),
        _ => Vec::new(),
    }
}

/// Whether an `Accept` header admits what is produced (go-restful: `matchesAccept`).
fn accepts(accept: &str, produces: &str) -> bool {
    accept.is_empty()
        || accept.split(',').any(|kind| {
            let kind = kind.split(';').next().unwrap_or_default().trim_matches(' ');
            kind == "*/*" || (!produces.is_empty() && kind == produces)
        })
}

/// The sub-resources that authorization checks, in order (kubelet: `GetRequestAttributes`).
pub fn sub_resources(path: &str) -> &'static [&'static str] {
    let below = |prefix: &str| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if below("/pods") || below("/runningpods") {
        &["pods", "proxy"]
    } else if below("/healthz") {
        &["healthz", "proxy"]
    } else if below("/configz") {
        &["configz", "proxy"]
    } else if below("/stats") {
        &["stats"]
    } else if below("/metrics") {
        &["metrics"]
    } else if below("/logs") {
        &["log"]
    } else if below("/checkpoint") {
        &["checkpoint"]
    } else if below("/statusz") {
        &["statusz"]
    } else if below("/flagz") {
        &["configz"]
    } else {
        &["proxy"]
    }
}

/// The verb that authorization checks.
pub fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Switches = Switches {
        debugging: true,
        system_logs: true,
        profiling: true,
        debug_flags: true,
        checkpoint: true,
        flagz: true,
        statusz: true,
        log_query: false,
        split_log_streams: false,
        translate_websockets: true,
    };
    const READ_ONLY: Switches = Switches { debugging: false, ..ALL };

    fn ask(method: &Method, path: &str, accept: &str, switches: Switches) -> Decision {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let target = Target::from_parts(path.as_bytes(), query).unwrap();
        decide(Asked { method, target: &target, accept }, switches)
    }

    fn get(path: &str) -> Decision {
        ask(&Method::GET, path, "", ALL)
    }

    #[test]
    fn unknown_paths_are_nobodys_and_unclean_ones_are_redirected() {
        for path in ["/", "/livez", "/healthz/x", "/spec/", "/podsx", "/metrics/x", "/pods%2Fx"] {
            assert_eq!(get(path), Decision::NotFound, "{path}");
        }
        for (path, to) in [
            ("/stats", "/stats/"),
            ("/stats?a=b", "/stats/?a=b"),
            ("/logs", "/logs/"),
            ("/runningpods", "/runningpods/"),
            ("/debug/pprof", "/debug/pprof/"),
            ("//pods", "/pods"),
            ("/logs/../pods", "/pods"),
            ("/logs/a//b/", "/logs/a/b/"),
            ("//a%2Fb", "/a%252Fb"),
        ] {
            assert_eq!(get(path), Decision::Redirect(to.to_owned()), "{path}");
        }
        assert_eq!(get("/%70ods"), Decision::Handle(Route::Pods));
        assert_eq!(get("/pods/"), Decision::Handle(Route::Pods));
    }

    #[test]
    fn routed_trees_know_their_methods_and_their_parts() {
        let path = ContainerPath::new("n", "p", None, "c");
        assert_eq!(get("/exec/n/p/c"), Decision::Handle(Route::Exec(path.clone())));
        assert_eq!(get("/exec/n/p/c/"), Decision::Handle(Route::Exec(path.clone())));
        let with_uid = ContainerPath { uid: Some("u".into()), ..path.clone() };
        assert_eq!(get("/attach/n/p/u/c"), Decision::Handle(Route::Attach(with_uid)));
        assert_eq!(get("/run/n/p/c"), Decision::Handle(Route::WrongMethod("POST".to_owned())));
        assert_eq!(get("/exec/n/p"), Decision::Handle(Route::NoRoute));
        assert_eq!(get("/exec"), Decision::Handle(Route::NoRoute));
        assert_eq!(get("/stats/container"), Decision::Handle(Route::NoRoute));
        let put = ask(&Method::PUT, "/stats/summary", "", ALL);
        assert_eq!(put, Decision::Handle(Route::WrongMethod("GET, POST".to_owned())));
        let head = ask(&Method::HEAD, "/pods", "", ALL);
        assert_eq!(head, Decision::Handle(Route::WrongMethod("GET".to_owned())));
    }

    #[test]
    fn what_is_not_accepted_is_not_handled() {
        let asked = |path, accept| ask(&Method::GET, path, accept, ALL);
        assert_eq!(
            asked("/pods", "text/html, application/json;q=0"),
            Decision::Handle(Route::Pods)
        );
        assert_eq!(asked("/pods", "text/html"), Decision::Handle(Route::NotAcceptable(JSON)));
        assert_eq!(asked("/logs/x", "text/plain"), Decision::Handle(Route::NotAcceptable("")));
        assert_eq!(asked("/healthz", "x/y"), Decision::Handle(Route::Health(None)));
    }

    #[test]
    fn the_read_only_port_has_only_what_is_always_there() {
        let ask = |path| ask(&Method::GET, path, "", READ_ONLY);
        for path in ["/exec/", "/run/x", "/containerLogs/n/p/c", "/runningpods/", "/logs/a"] {
            assert_eq!(ask(path), Decision::Handle(Route::Disabled(DEBUG_OFF)), "{path}");
        }
        for path in ["/configz", "/flagz", "/statusz", "/debug/flags/v", "/checkpoint/n/p/c"] {
            assert_eq!(ask(path), Decision::NotFound, "{path}");
        }
        assert_eq!(ask("/exec"), Decision::Redirect("/exec/".to_owned()));
        assert_eq!(ask("/pods"), Decision::Handle(Route::Pods));
        assert_eq!(ask("/stats/summary"), Decision::Handle(Route::Summary));
    }

    #[test]
    fn sub_resources_follow_the_path() {
        assert_eq!(sub_resources("/pods"), ["pods", "proxy"]);
        assert_eq!(sub_resources("/podsx"), ["proxy"]);
        assert_eq!(sub_resources("/metrics/cadvisor"), ["metrics"]);
        assert_eq!(sub_resources("/flagz"), ["configz"]);
        assert_eq!(sub_resources("/exec/a/b/c"), ["proxy"]);
    }
}
