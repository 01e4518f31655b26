//! The node's API, asked of the Go kubelet and of ours: status, headers and body must be the same.
//!
//! `make server-compare` asks thousands (`ASKS=n`, `SEED=n`); within `make test` it is fewer.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;
use testkit::real::run;
use tests::answers::difference;
use tests::ask::{Ask, Chance, Who, access, table};
use tests::exposition;
use tests::twins::Twins;
use tests::wire::{Answer, Wire};

/// Families of the Go runtime and of libraries that are linked but do nothing in a kubelet, queues
/// that ours does not have, and what is not yet counted.
const FAMILIES: &[&str] = &[
    "go_",
    "aggregator_",
    "apiserver_audit_",
    "apiserver_envelope_",
    "apiserver_storage_",
    "apiserver_validation_",
    "apiserver_webhooks_",
    "cardinality_enforcement_",
    "dra_",
    "rest_client_exec_plugin_",
    "rest_client_transport_",
    "workqueue_",
    "kubelet_cgroup_manager_duration_seconds",
    "kubelet_container_log_filesystem_used_bytes",
    "kubelet_cpu_manager_",
    "kubelet_evented_pleg_",
    "kubelet_first_network_pod_start_sli_duration_seconds",
    "kubelet_graceful_shutdown_",
    "kubelet_memory_manager_",
    "kubelet_metrics_provider",
    "kubelet_pod_watch_events_dropped_total",
    "kubelet_topology_manager_",
    "kubelet_volume_metric_collection_duration_seconds",
    "kubelet_websocket_streaming_requests_total",
];

/// Every metrics page of ours is valid and has the families of the Go kubelet's.
fn compare_metrics(twins: &Twins, callers: &Callers) -> Vec<String> {
    let mut found = Vec::new();
    for page in
        ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"]
    {
        let ask = Ask::new("GET", page);
        let families = |port| {
            let answer = callers.plain.send(port, &ask.bytes(), false).unwrap();
            exposition::read(&answer.text())
        };
        let want = families(twins.go.port()).unwrap();
        match families(twins.ours.port()) {
            Err(error) => found.push(format!("{page}: {error:#}")),
            Ok(ours) => {
                let lacking = exposition::lacking(&want, &ours).into_iter();
                let meant = |name: &str| FAMILIES.iter().any(|family| name.starts_with(family));
                let lacking = lacking.filter(|(name, _)| !meant(name));
                found.extend(lacking.map(|(name, how)| format!("{page} {name}: {how}")));
            }
        }
    }
    found
}

struct Callers {
    plain: Wire,
    certified: BTreeMap<&'static str, Wire>,
}

impl Callers {
    fn new(twins: &Twins) -> Callers {
        let control = &twins.control;
        let mut certified = BTreeMap::new();
        for (name, subject) in [
            ("admin", "/O=system:masters/CN=boss"),
            ("nobody", "/CN=nobody"),
            ("nameless", "/O=system:masters"),
        ] {
            let (certificate, key) = control.client_certificate(name, subject).unwrap();
            certified.insert(name, Wire::with_certificate(&certificate, &key).unwrap());
        }
        let folder = control.authority().with_file_name("foreign");
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        run(
            "openssl",
            [
                "req",
                "-x509",
                "-nodes",
                "-newkey",
                "rsa:2048",
                "-subj",
                "/O=system:masters/CN=foreign",
                "-keyout",
                &path("key"),
                "-out",
                &path("crt"),
                "-addext",
                "extendedKeyUsage=clientAuth",
            ],
        )
        .unwrap();
        certified.insert(
            "foreign",
            Wire::with_certificate(&folder.join("crt"), &folder.join("key")).unwrap(),
        );
        Callers { plain: Wire::plain().unwrap(), certified }
    }

    fn of(&self, who: Who) -> &Wire {
        match who {
            Who::AdminCertificate => &self.certified["admin"],
            Who::NobodyCertificate => &self.certified["nobody"],
            Who::NamelessCertificate => &self.certified["nameless"],
            Who::ForeignCertificate | Who::ForeignCertificateAdminToken => {
                &self.certified["foreign"]
            }
            _ => &self.plain,
        }
    }
}

/// Asks both and says what is different.
fn compare(twins: &Twins, callers: &Callers, ask: &Ask) -> Option<String> {
    let send = |twin: &tests::twins::Twin| -> anyhow::Result<Answer> {
        let text = String::from_utf8(ask.bytes()).unwrap();
        callers.of(ask.who).send(twin.port(), twin.own(&text).as_bytes(), ask.method == "HEAD")
    };
    match (send(&twins.go), send(&twins.ours)) {
        (Ok(go), Ok(ours)) => difference(ask, (&twins.go, &go), (&twins.ours, &ours)),
        (Err(_), Err(_)) => None,
        (Ok(go), Err(error)) => {
            Some(format!("{} {:?} has no answer: {error:#}", go.status, go.text()))
        }
        (Err(error), Ok(ours)) => {
            Some(format!("no answer ({error:#}) is {} {:?}", ours.status, ours.text()))
        }
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn both_kubelets_answer_alike() {
    let twins = Twins::start(&json!({"volumeStatsAggPeriod": "1s"})).unwrap();
    let callers = Callers::new(&twins);
    let long = std::env::var_os("ASKS").is_some();
    let mut asks = table();
    let mut access = access();
    if !long {
        access = access.into_iter().step_by(7).collect();
    }
    asks.append(&mut access);
    let mut chance = Chance::new(number("SEED", 1));
    asks.extend((0..number("ASKS", 300)).map(|_| chance.ask()));
    let mut report = String::new();
    let (mut asked, mut differ) = (0, 0);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for ask in asks {
        asked += 1;
        if let Some(found) = compare(&twins, &callers, &ask) {
            differ += 1;
            let seen = kinds.entry(found.clone()).or_default();
            *seen += 1;
            if *seen <= 3 {
                let _ = writeln!(report, "{ask}\n    {found}");
            }
        }
    }
    if let Some(file) = std::env::var_os("REPORT") {
        std::fs::write(file, &report).unwrap();
    }
    for found in compare_metrics(&twins, &callers) {
        differ += 1;
        let _ = writeln!(report, "{found}");
    }
    println!("{asked} requests, {differ} differences");
    assert!(differ == 0, "{differ} of {asked} answers differ:\n{report}");
}
