//! Which path is what: decided before anybody is authenticated, without side effects.
//!
//! Promises: the same answers as Go's mux and go-restful give for a path and method (kubelet:
//! `InstallAuthNotRequiredHandlers`, `InstallDebuggingHandlers`); unknown paths never reach a
//! handler or a label value of a metric.

use http::Method;

/// Which handlers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

/// A path that somebody owns.
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
    Profile(String),
    /// `/logs/PATH`.
    Logs(String),
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
    /// A tree that is switched off: 405 with this text.
    Disabled(&'static str),
    /// Below a routed tree, but no route: go-restful's 404.
    NoRoute,
    /// A route with other methods: go-restful's 405, with `Allow`.
    WrongMethod(&'static str),
}

/// The pages of metrics.
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

/// What the mux says before authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nobody owns the path.
    NotFound,
    /// The same path, cleaned or with its slash.
    Redirect(String),
    /// Go on.
    Handle(Route),
}

const DEBUG_OFF: &str = "Debug endpoints are disabled.";
/// Trees below which everything is handled, also what has no route.
const TREES: [&str; 10] = [
    "/stats/",
    "/run/",
    "/exec/",
    "/attach/",
    "/portForward/",
    "/containerLogs/",
    "/runningpods/",
    "/checkpoint/",
    "/logs/",
    "/debug/pprof/",
];

/// Decides about a path.
pub fn decide(method: &Method, path: &str, switches: Switches) -> Decision {
    if method != Method::CONNECT {
        let clean = clean(path);
        if clean != path {
            return Decision::Redirect(clean);
        }
    }
    if let Some(route) = exact(path, switches) {
        return Decision::Handle(route);
    }
    for tree in TREES {
        if tree == "/checkpoint/" && !(switches.debugging && switches.checkpoint) {
            continue;
        }
        if path.starts_with(tree) {
            return Decision::Handle(in_tree(method, tree, path, switches));
        }
        if tree.strip_suffix('/') == Some(path) {
            return Decision::Redirect(tree.to_owned());
        }
    }
    if path == "/pods" {
        return Decision::Handle(only(method, &[Method::GET], "GET", Route::Pods));
    }
    Decision::NotFound
}

/// Paths that take any method.
fn exact(path: &str, switches: Switches) -> Option<Route> {
    Some(match path {
        "/healthz" => Route::Health(None),
        "/healthz/ping" => Route::Health(Some("ping")),
        "/healthz/log" => Route::Health(Some("log")),
        "/healthz/syncloop" => Route::Health(Some("syncloop")),
        "/healthz/device-plugin" => Route::Health(Some("device-plugin")),
        "/metrics" => Route::Metrics(MetricsPage::Main),
        "/metrics/cadvisor" => Route::Metrics(MetricsPage::Cadvisor),
        "/metrics/resource" => Route::Metrics(MetricsPage::Resource),
        "/metrics/probes" => Route::Metrics(MetricsPage::Probes),
        "/metrics/slis" => Route::Metrics(MetricsPage::Slis),
        "/configz" if switches.debugging => Route::Configz,
        "/flagz" if switches.debugging && switches.flagz => Route::Flagz,
        "/statusz" if switches.debugging && switches.statusz => Route::Statusz,
        "/debug/flags/v" if switches.debugging => {
            if switches.debug_flags {
                Route::DebugFlags
            } else {
                Route::Disabled("flags endpoint is disabled.")
            }
        }
        _ => return None,
    })
}

fn in_tree(method: &Method, tree: &str, path: &str, switches: Switches) -> Route {
    let rest = path.strip_prefix(tree).unwrap_or_default();
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let parts: Vec<&str> = if rest.is_empty() { Vec::new() } else { rest.split('/').collect() };
    if tree == "/stats/" {
        return match parts.as_slice() {
            ["summary"] => only(method, &[Method::GET, Method::POST], "GET, POST", Route::Summary),
            _ => Route::NoRoute,
        };
    }
    if !switches.debugging {
        return Route::Disabled(DEBUG_OFF);
    }
    let get = [Method::GET];
    let post = [Method::POST];
    let both = [Method::GET, Method::POST];
    match tree {
        "/logs/" if !switches.system_logs => Route::Disabled("logs endpoint is disabled."),
        "/logs/" => {
            let file = path.strip_prefix(tree).unwrap_or_default().to_owned();
            only(method, &get, "GET", Route::Logs(file))
        }
        "/debug/pprof/" if !switches.profiling => {
            Route::Disabled("profiling endpoint is disabled.")
        }
        "/debug/pprof/" if rest.is_empty() => Route::NoRoute,
        "/debug/pprof/" => only(method, &get, "GET", Route::Profile(rest.to_owned())),
        "/runningpods/" if parts.is_empty() => only(method, &get, "GET", Route::RunningPods),
        "/containerLogs/" => match container(&parts, false) {
            Some(path) => only(method, &get, "GET", Route::ContainerLogs(path)),
            None => Route::NoRoute,
        },
        "/checkpoint/" => match container(&parts, false) {
            Some(path) => only(method, &post, "POST", Route::Checkpoint(path)),
            None => Route::NoRoute,
        },
        "/run/" => match container(&parts, true) {
            Some(path) => only(method, &post, "POST", Route::Run(path)),
            None => Route::NoRoute,
        },
        "/exec/" => match container(&parts, true) {
            Some(path) => only(method, &both, "GET, POST", Route::Exec(path)),
            None => Route::NoRoute,
        },
        "/attach/" => match container(&parts, true) {
            Some(path) => only(method, &both, "GET, POST", Route::Attach(path)),
            None => Route::NoRoute,
        },
        "/portForward/" => match port_forward(&parts) {
            Some(path) => only(method, &both, "GET, POST", Route::PortForward(path)),
            None => Route::NoRoute,
        },
        _ => Route::NoRoute,
    }
}

fn only(method: &Method, allowed: &[Method], header: &'static str, route: Route) -> Route {
    if allowed.contains(method) { route } else { Route::WrongMethod(header) }
}

fn container(parts: &[&str], with_uid: bool) -> Option<ContainerPath> {
    if parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    let (namespace, pod, uid, container) = match parts {
        [namespace, pod, container] => (namespace, pod, None, container),
        [namespace, pod, uid, container] if with_uid => (namespace, pod, Some(uid), container),
        _ => return None,
    };
    Some(ContainerPath {
        namespace: (*namespace).to_owned(),
        pod: (*pod).to_owned(),
        uid: uid.map(|u| (*u).to_owned()),
        container: (*container).to_owned(),
    })
}

fn port_forward(parts: &[&str]) -> Option<ContainerPath> {
    if parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    let (namespace, pod, uid) = match parts {
        [namespace, pod] => (namespace, pod, None),
        [namespace, pod, uid] => (namespace, pod, Some(uid)),
        _ => return None,
    };
    Some(ContainerPath {
        namespace: (*namespace).to_owned(),
        pod: (*pod).to_owned(),
        uid: uid.map(|u| (*u).to_owned()),
        container: String::new(),
    })
}

/// Go's `path.Clean` as its mux uses it: no `.`, `..` or empty parts, the trailing slash kept.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    let mut clean = format!("/{}", parts.join("/"));
    if path.ends_with('/') && clean.len() > 1 {
        clean.push('/');
    }
    clean
}

/// The sub-resources that authorization asks for, in order (kubelet: `GetRequestAttributes`).
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

/// The verb that authorization asks for.
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
    };
    const READ_ONLY: Switches = Switches { debugging: false, ..ALL };

    fn get(path: &str) -> Decision {
        decide(&Method::GET, path, ALL)
    }

    #[test]
    fn unknown_paths_are_nobodys_and_unclean_ones_are_redirected() {
        for path in ["/", "/livez", "/healthz/x", "/spec/", "/podsx", "/metrics/x", "/pods/"] {
            assert_eq!(get(path), Decision::NotFound, "{path}");
        }
        for (path, to) in [
            ("/stats", "/stats/"),
            ("/logs", "/logs/"),
            ("/runningpods", "/runningpods/"),
            ("/debug/pprof", "/debug/pprof/"),
            ("//pods", "/pods"),
            ("/logs/../pods", "/pods"),
            ("/logs/a//b/", "/logs/a/b/"),
        ] {
            assert_eq!(get(path), Decision::Redirect(to.to_owned()), "{path}");
        }
    }

    #[test]
    fn routed_trees_know_their_methods_and_their_parts() {
        let path = ContainerPath {
            namespace: "n".into(),
            pod: "p".into(),
            uid: None,
            container: "c".into(),
        };
        assert_eq!(get("/exec/n/p/c"), Decision::Handle(Route::Exec(path.clone())));
        assert_eq!(get("/exec/n/p/c/"), Decision::Handle(Route::Exec(path.clone())));
        let with_uid = ContainerPath { uid: Some("u".into()), ..path.clone() };
        assert_eq!(get("/attach/n/p/u/c"), Decision::Handle(Route::Attach(with_uid)));
        assert_eq!(get("/run/n/p/c"), Decision::Handle(Route::WrongMethod("POST")));
        assert_eq!(get("/exec/n/p"), Decision::Handle(Route::NoRoute));
        assert_eq!(get("/stats/container"), Decision::Handle(Route::NoRoute));
        let put = decide(&Method::PUT, "/stats/summary", ALL);
        assert_eq!(put, Decision::Handle(Route::WrongMethod("GET, POST")));
        let head = decide(&Method::HEAD, "/pods", ALL);
        assert_eq!(head, Decision::Handle(Route::WrongMethod("GET")));
    }

    #[test]
    fn the_read_only_port_has_only_what_is_always_there() {
        let ask = |path| decide(&Method::GET, path, READ_ONLY);
        for path in ["/exec/", "/run/x", "/containerLogs/n/p/c", "/runningpods/", "/logs/a"] {
            assert_eq!(ask(path), Decision::Handle(Route::Disabled(DEBUG_OFF)), "{path}");
        }
        for path in ["/configz", "/flagz", "/statusz", "/debug/flags/v", "/checkpoint/n/p/c"] {
            assert_eq!(ask(path), Decision::NotFound, "{path}");
        }
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
