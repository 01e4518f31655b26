//! Probes and lifecycle hooks.

use super::faults::{At, Faults};
use super::text;
use api::core::v1::{
    ExecAction, GRPCAction, HTTPGetAction, Lifecycle, LifecycleHandler, PodSpec, Probe,
    SleepAction, TCPSocketAction,
};
use api::machinery::util::intstr::IntOrString;

const ONE_HANDLER: &str = "may not specify more than 1 handler type";

/// The action of a probe or hook.
#[derive(Default)]
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http: Option<&'a HTTPGetAction>,
    tcp: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

fn check_port(port: &IntOrString, at: &At, list: &mut Faults) {
    match port {
        IntOrString::Int(number) => list.range(at, (*number).into(), 1, 65_535),
        IntOrString::String(name) => list.each(at, name, text::port_name(name)),
    }
}

fn check_handler(handler: &Handler<'_>, grace: Option<i64>, at: &At, list: &mut Faults) {
    let mut first = true;
    // The first kind is checked, any other is one too many.
    let mut turn = |name: &str, set: bool, list: &mut Faults| {
        if set && !first {
            list.forbidden(&at.get(name), ONE_HANDLER);
        }
        let mine = first && set;
        first &= !set;
        mine
    };
    if turn("exec", handler.exec.is_some(), list)
        && handler.exec.is_some_and(|e| e.command.as_ref().is_none_or(Vec::is_empty))
    {
        list.required(&at.get("exec").get("command"), "");
    }
    if turn("httpGet", handler.http.is_some(), list)
        && let Some(http) = handler.http
    {
        check_http(http, &at.get("httpGet"), list);
    }
    if turn("tcpSocket", handler.tcp.is_some(), list)
        && let Some(tcp) = handler.tcp
    {
        check_port(&tcp.port, &at.get("tcpSocket").get("port"), list);
    }
    if turn("grpc", handler.grpc.is_some(), list)
        && let Some(grpc) = handler.grpc
    {
        list.range(&at.get("grpc").get("port"), grpc.port.into(), 1, 65_535);
    }
    if turn("sleep", handler.sleep.is_some(), list)
        && let (Some(sleep), Some(grace)) = (handler.sleep, grace)
        && (sleep.seconds < 0 || sleep.seconds > grace)
    {
        let why =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        list.invalid(&at.get("sleep"), sleep.seconds, &why);
    }
    if first {
        list.required(at, "must specify a handler type");
    }
}

fn check_http(http: &HTTPGetAction, at: &At, list: &mut Faults) {
    list.filled(&at.get("path"), http.path.as_deref());
    check_port(&http.port, &at.get("port"), list);
    let scheme = Some(http.scheme.as_deref().unwrap_or_default());
    list.word_if_set(&at.get("scheme"), scheme, &["HTTP", "HTTPS"]);
    for header in http.http_headers.iter().flatten() {
        list.each(&at.get("httpHeaders"), &header.name, text::header(&header.name));
    }
}

/// The three probes of a container by name; readiness has rules of its own.
pub(super) fn check_probe(
    probe: &Probe,
    name: &str,
    grace: Option<i64>,
    at: &At,
    list: &mut Faults,
) {
    let at = at.get(name);
    let handler = Handler {
        exec: probe.exec.as_ref(),
        http: probe.http_get.as_ref(),
        tcp: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    };
    check_handler(&handler, grace, &at, list);
    let numbers = [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ];
    for (name, value) in numbers {
        list.not_negative(&at.get(name), value.unwrap_or_default().into());
    }
    let own_grace = probe.termination_grace_period_seconds;
    let at_grace = at.get("terminationGracePeriodSeconds");
    if let Some(seconds) = own_grace.filter(|seconds| *seconds <= 0) {
        list.invalid(&at_grace, seconds, "must be greater than 0");
    }
    if name == "readinessProbe" {
        if let Some(seconds) = own_grace {
            list.invalid(&at_grace, seconds, "must not be set for readinessProbes");
        }
    } else if probe.success_threshold != Some(1) {
        let value = probe.success_threshold.unwrap_or_default();
        list.invalid(&at.get("successThreshold"), value, "must be 1");
    }
}

pub(super) fn check_lifecycle(lifecycle: &Lifecycle, spec: &PodSpec, at: &At, list: &mut Faults) {
    let grace = spec.termination_grace_period_seconds;
    for (name, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        if let Some(hook) = hook {
            check_handler(&of_hook(hook), grace, &at.get(name), list);
        }
    }
    let Some(signal) = &lifecycle.stop_signal else { return };
    let at = at.get("stopSignal");
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        None => list.forbidden(&at, "may not be set for containers with empty `spec.os.name`"),
        Some("windows") => list.word_if_set(&at, Some(signal), &["SIGKILL", "SIGTERM"]),
        Some("linux") if !is_signal(signal) => {
            let all = all_signals();
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            list.unsupported(&at, signal, &all);
        }
        Some(_) => {}
    }
}

fn of_hook(hook: &LifecycleHandler) -> Handler<'_> {
    Handler {
        exec: hook.exec.as_ref(),
        http: hook.http_get.as_ref(),
        tcp: hook.tcp_socket.as_ref(),
        grpc: None,
        sleep: hook.sleep.as_ref(),
    }
}

/// Named signals; the numbered real-time ones follow a rule.
const SIGNALS: [&str; 36] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMIN",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// All signals, by name.
fn all_signals() -> Vec<String> {
    let offsets = (1..=15).map(|n| format!("SIGRTMIN+{n}"));
    let offsets = offsets.chain((1..=14).map(|n| format!("SIGRTMAX-{n}")));
    let mut all: Vec<String> = SIGNALS.iter().map(|name| (*name).to_owned()).collect();
    all.extend(offsets);
    all.sort();
    all
}

fn is_signal(name: &str) -> bool {
    let offset = |digits: &str, most: u32| {
        let number = digits.parse::<u32>().ok().filter(|n| (1..=most).contains(n));
        number.is_some_and(|n| n.to_string() == digits)
    };
    SIGNALS.contains(&name)
        || name.strip_prefix("SIGRTMIN+").is_some_and(|rest| offset(rest, 15))
        || name.strip_prefix("SIGRTMAX-").is_some_and(|rest| offset(rest, 14))
}
