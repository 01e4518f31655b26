//! Who gets what from the node's API: every route of `fixtures/parity/routes.tsv` by every method and
//! every caller, with a real API server behind the reviews. `KUBELET=go` asks the Go kubelet. Without `LONG`
//! only those with a token and every right, or with none, ask by every method, the others by two.
//!
//! In the hardened set-up (no anonymous callers, reviewed access, no read-only port) nothing but the
//! health port answers without an identity.
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test on the real machine"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually, run,
};
use tests::wire::{Answer, Wire};

const METHODS: [&str; 8] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"];
const SUB_RESOURCES: [&str; 9] =
    ["proxy", "pods", "healthz", "configz", "stats", "metrics", "log", "checkpoint", "statusz"];
const PATIENCE: Duration = Duration::from_secs(60);
/// Callers that ask at the same time.
const AT_ONCE: usize = 4;
/// A secret of a pod, and as the API carries it.
const VALUE: [&str; 2] = ["p1anted-value-7f3a9c", "cDFhbnRlZC12YWx1ZS03ZjNhOWM="];
/// A password of a registry, and as a docker configuration carries it, with its user.
const PASSWORD: [&str; 2] = ["p1anted-word-51be08", "dTpwMWFudGVkLXdvcmQtNTFiZTA4"];
const EVERY_RIGHT: &str = "a token with every right";

/// The routes of one path.
#[derive(Debug, Default, Clone)]
struct Route {
    /// Methods that have a row of their own; empty where any method is handled.
    methods: BTreeSet<String>,
    sub_resources: Vec<String>,
    when_disabled: String,
}

/// Routes of one listener by path, with the names of the pod that runs.
fn routes(server: &str, uid: &str) -> BTreeMap<String, Route> {
    let table = include_str!("../../fixtures/parity/routes.tsv");
    let mut routes: BTreeMap<String, Route> = BTreeMap::new();
    for line in table.lines().skip(1) {
        let cells: Vec<&str> = line.split('\t').collect();
        if cells[0] != server || cells[2].starts_with('(') {
            continue;
        }
        let path = cells[2]
            .replace("{podNamespace}", "default")
            .replace("{podID}", "talk")
            .replace("{uid}", uid)
            .replace("{containerName}", "c")
            .replace("{logpath:*}", "no-such-file")
            .replace("{subpath:*}", "heap");
        let route = routes.entry(path).or_default();
        if !cells[1].starts_with("any") {
            route.methods.insert(cells[1].to_owned());
        }
        route.sub_resources = cells[6].split(',').map(str::to_owned).collect();
        cells[8].clone_into(&mut route.when_disabled);
    }
    // Handled by any method, one of which has a row for what it does.
    for path in ["/metrics/slis", "/debug/flags/v"] {
        if let Some(route) = routes.get_mut(path) {
            route.methods.clear();
        }
    }
    routes
}

/// The status that somebody with every right gets; `None` where it depends on the machine.
fn allowed(path: &str, route: &Route, method: &str) -> Option<u16> {
    if path == "/debug/pprof/" {
        return Some(404);
    }
    if path == "/debug/flags/v" {
        return Some(if method == "PUT" { 400 } else { 406 });
    }
    if !route.methods.is_empty() && !route.methods.contains(method) {
        return Some(405);
    }
    let first = path.split('/').nth(1).unwrap_or_default();
    match first {
        // No stream is asked for, or no upgrade.
        "exec" | "attach" => Some(400),
        "portForward" => Some(500),
        "checkpoint" => None,
        "logs" if path.ends_with("no-such-file") => Some(404),
        // There is no Go runtime to profile.
        "debug" if KubeletKind::from_env().unwrap() == KubeletKind::Rubelet => {
            Some(if path.ends_with("cmdline") || path.ends_with("symbol") { 200 } else { 501 })
        }
        _ => Some(200),
    }
}

fn verb(method: &str) -> &'static str {
    match method {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// A request line and headers that ask for `path`.
fn request(method: &str, path: &str, token: Option<&str>) -> String {
    let query = match path {
        "/debug/pprof/profile" | "/debug/pprof/trace" => "?seconds=1",
        _ if path.starts_with("/run/") => "?cmd=true",
        _ => "",
    };
    let token = token.map(|t| format!("Authorization: Bearer {t}\r\n")).unwrap_or_default();
    format!("{method} {path}{query} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{token}\r\n")
}

struct RecordingNode {
    // In the order in which they must go.
    node: TestNode,
    control: Arc<ControlPlane>,
    uid: String,
    faults: String,
    asked: usize,
}

/// One who asks.
struct Caller {
    name: String,
    wire: Wire,
    token: Option<String>,
    /// Sub-resources of which it may use every verb; `None` for nobody at all.
    rights: Option<Vec<&'static str>>,
    /// The only verb it may use, if it is only one.
    only: Option<&'static str>,
}

impl Caller {
    fn ask(&self, port: u16, method: &str, path: &str) -> Answer {
        let text = request(method, path, self.token.as_deref());
        self.wire.send(port, text.as_bytes(), method == "HEAD").unwrap()
    }

    /// How many requests were made, and what was wrong with the answers.
    fn whole_table(&self, port: u16, routes: &BTreeMap<String, Route>) -> (usize, String) {
        let (mut asked, mut faults) = (0, String::new());
        let mut expect = |method: &str, path: &str, want: Option<u16>| {
            asked += 1;
            let got = self.ask(port, method, path);
            faults.push_str(&fault(&self.name, method, path, want, &got));
        };
        let slow = ["/debug/pprof/profile", "/debug/pprof/trace"];
        let may_proxy = self.rights.as_ref().is_some_and(|rights| rights.contains(&"proxy"));
        let some_rights = self.rights.as_ref().is_some_and(|rights| !rights.is_empty());
        let some_rights = some_rights && self.name != EVERY_RIGHT;
        let few = some_rights && std::env::var_os("LONG").is_none();
        let methods = if few { &METHODS[..2] } else { &METHODS[..] };
        for (path, route) in routes {
            if slow.contains(&path.as_str()) && may_proxy && self.name != EVERY_RIGHT {
                // Whoever is let in waits for a second: the others only if they are not.
                continue;
            }
            for method in methods {
                let want = match &self.rights {
                    None => Some(401),
                    Some(rights) => {
                        let sub = &route.sub_resources;
                        let may = sub.iter().any(|s| rights.contains(&s.as_str()));
                        let may = may && self.only.is_none_or(|only| only == verb(method));
                        if may { allowed(path, route, method) } else { Some(403) }
                    }
                };
                expect(method, path, want);
            }
        }
        for path in ["/", "/none", "/livez", "/api/v1/pods", "/healthz/none", "/spec/"] {
            expect("GET", path, Some(404));
        }
        (asked, faults)
    }
}

/// What is wrong with an answer, as a line; nothing if it is as wanted.
fn fault(who: &str, method: &str, path: &str, want: Option<u16>, got: &Answer) -> String {
    let fine = match want {
        Some(status) => got.status == status,
        None => ![401, 403, 405].contains(&got.status),
    };
    if fine {
        return String::new();
    }
    let text: String = got.text().chars().take(120).collect();
    format!("{who}: {method} {path} is {} {text:?}, not {want:?}\n", got.status)
}

impl RecordingNode {
    fn start() -> RecordingNode {
        let users = ["nobody", "all", "gets"].map(str::to_owned).into_iter();
        let users = users.chain(SUB_RESOURCES.map(|s| format!("only-{s}"))).collect();
        let options = ControlPlaneOptions { users, ..ControlPlaneOptions::default() };
        let control = Arc::new(ControlPlane::start(&options).unwrap());
        let grant = |user: &str, verb: &str, resources: &str| {
            let (verb, resources) = (format!("--verb={verb}"), format!("--resource={resources}"));
            control.kubectl(["create", "clusterrole", user, &verb, &resources]).unwrap();
            let (role, user_flag) = (format!("--clusterrole={user}"), format!("--user={user}"));
            control.kubectl(["create", "clusterrolebinding", user, &role, &user_flag]).unwrap();
        };
        let every: Vec<String> = SUB_RESOURCES.iter().map(|s| format!("nodes/{s}")).collect();
        grant("all", "*", &every.join(","));
        grant("gets", "get", &every.join(","));
        for one in SUB_RESOURCES {
            grant(&format!("only-{one}"), "*", &format!("nodes/{one}"));
        }
        let kind = KubeletKind::from_env().unwrap();
        let mut config = control.guarded();
        config["address"] = "127.0.0.1".into();
        config["readOnlyPort"] = 0.into();
        // Everything is logged: nothing secret may be in it.
        let options = KubeletOptions { config, verbosity: 10, ..KubeletOptions::default() };
        let node = TestNode::builder().kubelet(kind).options(options).join(&control).start();
        control.kubectl(["create", "serviceaccount", "talker"]).unwrap();
        let value = format!("--from-literal=key={}", VALUE[0]);
        control.kubectl(["create", "secret", "generic", "planted", &value]).unwrap();
        let password = format!("--docker-password={}", PASSWORD[0]);
        let pull =
            ["create", "secret", "docker-registry", "pull", "--docker-username=u", &password];
        let server = ["--docker-server=registry.k8s.io"];
        control.kubectl(pull.into_iter().chain(server)).unwrap();
        let image = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
        control
            .create(&json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "talk", "namespace": "default"},
                "spec": {"nodeName": "node1", "terminationGracePeriodSeconds": 1,
                    "automountServiceAccountToken": false, "serviceAccountName": "talker",
                    "imagePullSecrets": [{"name": "pull"}],
                    "volumes": [
                        {"name": "planted", "secret": {"secretName": "planted"}},
                        {"name": "token", "projected": {"sources": [
                            {"serviceAccountToken": {"path": "token"}}]}}],
                    "containers": [{"name": "c", "image": image, "imagePullPolicy": "Always",
                        "volumeMounts": [{"name": "planted", "mountPath": "/planted"},
                            {"name": "token", "mountPath": "/token"}],
                        "env": [{"name": "PLANTED",
                            "valueFrom": {"secretKeyRef": {"name": "planted", "key": "key"}}}],
                        "command": ["sh", "-c", "echo one; sleep 36000"]}]}}))
            .unwrap();
        eventually(PATIENCE, "the pod runs", || {
            control.get(["pod", "talk"]).is_ok_and(|pod| pod["status"]["phase"] == "Running")
        })
        .unwrap();
        let pod = control.get(["pod", "talk"]).unwrap();
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        RecordingNode { node: node.unwrap(), control, uid, faults: String::new(), asked: 0 }
    }

    fn callers(&self) -> Vec<Caller> {
        let caller =
            |name: &str, token: Option<String>, rights: Option<Vec<&'static str>>| Caller {
                name: name.to_owned(),
                wire: Wire::plain().unwrap(),
                token,
                rights,
                only: None,
            };
        let token = |user: &str| Some(self.control.token(user));
        let mut callers = vec![
            caller("anonymous", None, None),
            caller("a bad token", Some("nonsense".to_owned()), None),
            caller("a token without rights", token("nobody"), Some(vec![])),
            caller(EVERY_RIGHT, token("all"), Some(SUB_RESOURCES.to_vec())),
            Caller {
                only: Some("get"),
                ..caller("a token that may get", token("gets"), Some(SUB_RESOURCES.to_vec()))
            },
        ];
        for one in SUB_RESOURCES {
            callers.push(caller(one, token(&format!("only-{one}")), Some(vec![one])));
        }
        for (name, subject, rights) in [
            ("administrator's certificate", "/O=system:masters/CN=boss", SUB_RESOURCES.to_vec()),
            ("certificate without rights", "/CN=nobody", vec![]),
        ] {
            let file = name.split(' ').next().unwrap().replace('\'', "");
            let (crt, key) = self.control.client_certificate(&file, subject).unwrap();
            let wire = Wire::with_certificate(&crt, &key).unwrap();
            callers.push(Caller { wire, ..caller(name, None, Some(rights)) });
        }
        callers
    }

    fn ask(&mut self, caller: &Caller, method: &str, path: &str) -> Answer {
        self.asked += 1;
        caller.ask(self.node.api_port(), method, path)
    }

    fn expect(&mut self, who: &str, method: &str, path: &str, want: Option<u16>, got: &Answer) {
        self.faults.push_str(&fault(who, method, path, want, got));
    }

    /// Every route by every method and every caller; callers do not wait for each other.
    fn whole_table(&mut self) {
        let routes = routes("kubelet-https:10250", &self.uid);
        assert!(routes.len() > 25, "{} paths", routes.len());
        let (callers, port) = (self.callers(), self.node.api_port());
        let each = |callers: &[Caller]| -> Vec<(usize, String)> {
            callers.iter().map(|caller| caller.whole_table(port, &routes)).collect()
        };
        let results: Vec<(usize, String)> = std::thread::scope(|scope| {
            let shares = callers.chunks(callers.len().div_ceil(AT_ONCE));
            let asking: Vec<_> = shares.map(|share| scope.spawn(move || each(share))).collect();
            asking.into_iter().flat_map(|share| share.join().unwrap()).collect()
        });
        for (asked, faults) in results {
            self.asked += asked;
            self.faults.push_str(&faults);
        }
    }

    /// Ports on which the kubelet listens.
    fn listening(&mut self) -> BTreeSet<u16> {
        let pid = self.node.kubelet().unwrap().pid();
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let own: BTreeSet<String> = links
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .filter_map(|to| {
                let to = to.to_string_lossy().into_owned();
                to.strip_prefix("socket:[").map(|rest| rest.trim_end_matches(']').to_owned())
            })
            .collect();
        let mut ports = BTreeSet::new();
        for table in ["tcp", "tcp6"] {
            let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap();
            for line in text.lines().skip(1) {
                let words: Vec<&str> = line.split_whitespace().collect();
                if words[3] == "0A" && own.contains(words[9]) {
                    let port = words[1].rsplit(':').next().unwrap();
                    ports.insert(u16::from_str_radix(port, 16).unwrap());
                }
            }
        }
        ports
    }

    /// The health port has the health routes and nothing else, and no other port is open.
    fn health_only(&mut self) {
        let (api, health) = (self.node.api_port(), self.node.health_port());
        assert_eq!(self.listening(), BTreeSet::from([api, health]));
        let wire = Wire::clear();
        let routes = routes("kubelet-https:10250", &self.uid);
        for path in routes.keys() {
            let own = ["/healthz", "/healthz/ping"].contains(&path.as_str());
            for method in ["GET", "POST"] {
                let text = request(method, path, None);
                let got = wire.send(health, text.as_bytes(), false).unwrap();
                let want = if own { 200 } else { 404 };
                self.expect("health port", method, path, Some(want), &got);
            }
        }
    }

    /// What the kubelet logged at the highest verbosity names no secret that went through it: of pods, of
    /// registries, of callers, or its own.
    fn nothing_secret_is_logged(&mut self) {
        let token = "volumes/kubernetes.io~projected/token/token";
        let token = self.node.root_dir().join("pods").join(&self.uid).join(token);
        let token = std::fs::read_to_string(token).unwrap();
        assert!(token.len() > 100, "a token: {token}");
        let log = self.node.kubelet().unwrap().log().to_owned();
        let log = std::fs::read_to_string(log).unwrap();
        assert!(log.contains("talk"), "the log is about the pod");
        let mut secrets: Vec<(&str, String)> = vec![("a pod's token", token)];
        secrets.extend(VALUE.map(|text| ("a pod's secret", text.to_owned())));
        secrets.extend(PASSWORD.map(|text| ("a registry's password", text.to_owned())));
        let users = ["all", "gets", "nobody"].map(|user| self.control.token(user));
        secrets.extend(users.map(|token| ("a caller's token", token)));
        secrets.push(("the administrator's token", self.control.admin_token().to_owned()));
        for (what, secret) in &secrets {
            if let Some(line) = log.lines().find(|line| line.contains(secret.as_str())) {
                self.faults.push_str(&format!("{what} is logged: {line}\n"));
            }
        }
    }

    fn finish(self) {
        println!("{} requests", self.asked);
        assert!(self.faults.is_empty(), "{}", self.faults);
    }
}

#[test]
fn every_route_by_every_method_and_every_caller_then_with_routes_switched_off() {
    let mut recording_node = RecordingNode::start();
    recording_node.whole_table();
    recording_node.health_only();
    switched_off_and_read_only_routes_say_so(&mut recording_node);
    streams_need_create_where_operators_ask_for_it(&mut recording_node);
    kept_connections_carry_no_rights(&mut recording_node);
    if KubeletKind::from_env().unwrap() == KubeletKind::Rubelet {
        recording_node.nothing_secret_is_logged();
    }
    recording_node.finish();
}

/// CVE-2018-1002105: on a connection that somebody with rights has used, and on which a stream was refused,
/// every request is judged anew. CVE-2018-16875: a certificate with a long tail costs nothing.
fn kept_connections_carry_no_rights(recording_node: &mut RecordingNode) {
    let ask = |path: &str, headers: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: node\r\n{headers}\r\n").into_bytes()
    };
    let token =
        |user: &str| format!("Authorization: Bearer {}\r\n", recording_node.control.token(user));
    let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
    let refused = format!("{}{upgrade}", token("nobody"));
    let stream = "/exec/default/talk/c?command=true&output=1";
    let requests = [
        (ask("/pods", &token("all")), 200),
        (ask("/pods", ""), 401),
        (ask("/configz", &token("nobody")), 403),
        (ask(stream, &refused), 403),
        (ask("/pods", upgrade), 401),
        (ask("/configz", &token("all")), 200),
    ];
    let sent: Vec<&[u8]> = requests.iter().map(|(text, _)| text.as_slice()).collect();
    let answers = Wire::plain().unwrap().converse(recording_node.node.api_port(), &sent).unwrap();
    let got: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    // Whether a refusal ends the connection or not, nobody gets further on it than alone.
    let want: Vec<u16> = requests.iter().map(|(_, want)| *want).take(got.len()).collect();
    assert!(got.len() > 3 && got == want, "{got:?}");
    let (crt, key) = recording_node.control.client_certificate("tail", "/CN=nobody").unwrap();
    let chain = std::fs::read_to_string(&crt).unwrap().repeat(60);
    let long = crt.with_extension("long");
    std::fs::write(&long, chain).unwrap();
    let begun = std::time::Instant::now();
    let wire = Wire::with_certificate(&long, &key).unwrap();
    let answer =
        wire.send(recording_node.node.api_port(), &ask("/pods", "Connection: close\r\n"), false);
    assert!(answer.as_ref().map_or(true, |answer| answer.status != 200), "{answer:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    recording_node.asked += requests.len() + 1;
}

/// A stream that a WebSocket opens.
fn open_stream(recording_node: &RecordingNode, user: &str, path: &str) -> Answer {
    let text = format!(
        "GET {path} HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n",
        recording_node.control.token(user)
    );
    Wire::plain().unwrap().send(recording_node.node.api_port(), text.as_bytes(), false).unwrap()
}

/// By default the verb get opens a stream, as with the Go kubelet; with RUBELET_STRICT_STREAMING, which
/// that one does not look at, it does not.
fn streams_need_create_where_operators_ask_for_it(recording_node: &mut RecordingNode) {
    let kind = KubeletKind::from_env().unwrap();
    for strict in [false, true] {
        recording_node.node.stop_kubelet();
        recording_node.node.slot().release_ports();
        recording_node.node.configure(&json!({"enableDebuggingHandlers": true, "readOnlyPort": 0}));
        if strict {
            recording_node.node.add_variable("RUBELET_STRICT_STREAMING", "true");
        }
        recording_node.node.start_kubelet(kind).unwrap();
        let refused = strict && kind == KubeletKind::Rubelet;
        for path in [
            "/exec/default/talk/c?command=true&output=1",
            "/attach/default/talk/c?output=1",
            "/portForward/default/talk?port=80",
            "/ex%65c/default/talk/c?command=true&output=1",
        ] {
            let got = open_stream(recording_node, "gets", path);
            let want = if refused { 403 } else { 101 };
            recording_node.expect("a token that may get", "GET", path, Some(want), &got);
            if refused
                && !got.text().contains("verb=create, resource=nodes, subresource(s)=[proxy]")
            {
                recording_node.faults.push_str(&format!("{path}: {:?}\n", got.text()));
            }
            let got = open_stream(recording_node, "all", path);
            recording_node.expect(EVERY_RIGHT, "GET", path, Some(101), &got);
            recording_node.asked += 2;
        }
        // Reading needs get, as ever.
        for path in ["/pods", "/containerLogs/default/talk/c"] {
            let text = request("GET", path, Some(&recording_node.control.token("gets")));
            let got =
                Wire::plain().unwrap().send(recording_node.node.api_port(), text.as_bytes(), false);
            recording_node.expect("a token that may get", "GET", path, Some(200), &got.unwrap());
        }
    }
}

#[test]
fn a_variable_that_is_wrong_ends_the_start_with_all_other_faults() {
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let program = testkit::real::rubelet_bin().unwrap();
        let mut command = std::process::Command::new(program);
        let output = command.args(args).envs(variables.iter().copied()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, told) = run(&["--healthz-port=-1"], &[("RUBELET_STRICT_STREAMING", "on")]);
    assert_eq!(code, Some(1), "{told}");
    for part in ["healthzPort", "RUBELET_STRICT_STREAMING is \\\"on\\\"; allowed are false, true"] {
        assert!(told.contains(part), "{part} in {told}");
    }
    // The node may have cgroups of version 1.
    let config = ["config", "--fail-cgroupv1=false"];
    let (code, _, told) = run(&config, &[("RUBELET_TOKEN", "p1anted")]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("RUBELET_TOKEN") && !told.contains("p1anted"), "{told}");
    let (code, shown, told) = run(&config, &[("RUBELET_STRICT_STREAMING", "true")]);
    assert_eq!(code, Some(0));
    let line =
        r#""Opted in by the environment" variable="RUBELET_STRICT_STREAMING" setting="true""#;
    assert!(told.contains(line), "{told}");
    let line = shown.lines().find(|line| line.starts_with("# RUBELET_STRICT_STREAMING=true "));
    assert!(line.is_some_and(|line| line.ends_with("# environment")), "{shown}");
}

fn switched_off_and_read_only_routes_say_so(recording_node: &mut RecordingNode) {
    let kind = KubeletKind::from_env().unwrap();
    recording_node.node.stop_kubelet();
    let read_only = recording_node.node.slot().free_port().unwrap();
    recording_node.node.slot().release_ports();
    recording_node
        .node
        .configure(&json!({"enableDebuggingHandlers": false, "readOnlyPort": read_only}));
    recording_node.node.start_kubelet(kind).unwrap();
    let callers = recording_node.callers();
    let secure = routes("kubelet-https:10250", &recording_node.uid);
    for caller in &callers {
        for (path, route) in &secure {
            let disabled = route.when_disabled.rsplit('(').next().unwrap_or_default();
            let tree = ["/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/"]
                .iter()
                .chain(&["/runningpods/", "/debug/pprof/", "/logs/"])
                .any(|tree| path.starts_with(tree));
            let status = match disabled {
                "" => continue,
                _ if tree => 405,
                _ => 404,
            };
            let got = recording_node.ask(caller, "GET", path);
            let sub = &route.sub_resources;
            let want = match &caller.rights {
                // What is not there needs no identity.
                _ if status == 404 => 404,
                None => 401,
                Some(rights) if sub.iter().any(|s| rights.contains(&s.as_str())) => status,
                Some(_) => 403,
            };
            recording_node.expect(&caller.name, "GET", path, Some(want), &got);
        }
    }
    let wire = Wire::clear();
    eventually(PATIENCE, "the read-only port is open", || {
        run("curl", ["-fsS", &format!("http://127.0.0.1:{read_only}/healthz")]).is_ok()
    })
    .unwrap();
    for (path, route) in routes("read-only-http:10255", &recording_node.uid) {
        for method in METHODS {
            let text = request(method, &path, None);
            let got = wire.send(read_only, text.as_bytes(), method == "HEAD").unwrap();
            recording_node.asked += 1;
            let gone = ["/configz", "/checkpoint/", "/flagz", "/statusz", "/debug/flags/v"];
            let kept = ["/healthz", "/metrics", "/pods", "/stats"];
            let want = if gone.contains(&path.as_str()) {
                404
            } else if !kept.iter().any(|prefix| path.starts_with(prefix)) {
                405
            } else if route.methods.is_empty() || route.methods.contains(method) {
                200
            } else {
                405
            };
            recording_node.expect("read-only port", method, &path, Some(want), &got);
        }
    }
}
