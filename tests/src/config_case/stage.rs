//! A place to run kubelets with a container runtime, so that they find what is wrong only then:
//! reservations, thresholds, placement, credential providers, listeners.

use super::bench::{Bench, Running};
use super::{Answer, COMMON, Case};
use anyhow::Context;
use ports::SystemClock;
use std::path::Path;
use std::sync::Arc;
use testkit::fake_cri::FakeCri;
use testkit::real::{Slot, run};
use tokio::runtime::Runtime;

/// As for a bench, and nobody's state and logs: a kubelet with a runtime writes outside of its root.
const PREPARE: &str = "mount -t tmpfs tmpfs /mnt && mount -t tmpfs tmpfs /run && \
     mount -t tmpfs tmpfs /var/lib && mount -t tmpfs tmpfs /var/log && \
     mkdir -p /var/lib/kubelet/device-plugins && ip link set lo up && echo ready && exec cat";

/// What a kubelet says once nothing of its configuration can be wrong any more: the Go kubelet when
/// its container manager has started, ours when everything has.
const RUNNING: [&str; 2] =
    ["desired_state_of_world populator (plugin watcher) starts", "\"Started kubelet\"\n"];

/// A runtime and a cgroup for kubelets that run one after the other.
#[derive(Debug)]
pub struct Stage {
    slot: Slot,
    certificate: Vec<u8>,
    key: Vec<u8>,
    _runtime: FakeCri,
    // Last: what it serves goes first.
    _tokio: Runtime,
}

impl Stage {
    /// Starts the runtime and makes the cgroup.
    pub fn new() -> anyhow::Result<Stage> {
        let slot = Slot::take()?;
        slot.make_cgroups()?;
        let tokio = Runtime::new().context("tokio")?;
        let runtime = FakeCri::new(Arc::new(SystemClock));
        {
            let _inside = tokio.enter();
            runtime.serve_unix(&slot.path("run/cri.sock")).context("the runtime's socket")?;
        }
        let path = |name: &str| slot.path(name).to_string_lossy().into_owned();
        let (crt, key) = (path("good.crt"), path("good.key"));
        run(
            "openssl",
            [
                "req",
                "-x509",
                "-nodes",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-subj",
                "/CN=good",
                "-keyout",
                &key,
                "-out",
                &crt,
            ],
        )?;
        let (certificate, key) = (std::fs::read(crt)?, std::fs::read(key)?);
        Ok(Stage { slot, certificate, key, _runtime: runtime, _tokio: tokio })
    }

    /// What this program makes of the case. It gets namespaces of its own: it may leave mounts.
    pub fn ask(&self, program: &Path, case: &Case) -> anyhow::Result<Answer> {
        let bench = Bench::with(PREPARE)?;
        let case = &case
            .clone()
            .file("good.crt", self.certificate.clone())
            .file("two.crt", self.certificate.repeat(2))
            .file("good.key", self.key.clone());
        let endpoint = format!(
            "--container-runtime-endpoint=unix://{}",
            self.slot.path("run/cri.sock").display()
        );
        let root = format!("--cgroup-root=/{}", self.slot.cgroup());
        let mut args: Vec<&str> = COMMON[..4].to_vec();
        args.extend([endpoint.as_str(), root.as_str()]);
        let running = Running {
            words: if program.ends_with("kubelet-go") { &RUNNING[..1] } else { &RUNNING[1..] },
            pages: PAGES
                .iter()
                .map(|(page, accept)| (format!("https://{}/{page}", address(case)), *accept))
                .collect(),
        };
        let ran = bench.run(program, &args, case, &running)?;
        let own = |text: &str| {
            text.replace(&*self.slot.dir().to_string_lossy(), "SLOT")
                .replace(&self.slot.cgroup(), "CGROUP")
        };
        let mut answer = Answer::read_end(ran.code, &own(&ran.out), &own(&ran.err));
        answer.pages = ran.pages.iter().map(|page| masked(&own(page))).collect();
        answer.kept = bench.kept();
        Ok(answer)
    }
}

/// What a kubelet that runs says of its settings.
const PAGES: [(&str, &str); 2] =
    [("configz", "*/*"), ("flagz", "application/json;as=Flagz;g=config.k8s.io;v=v1beta1")];

/// Where the API of a case listens.
fn address(case: &Case) -> String {
    let text = case.files.get("c.yaml").map(|text| String::from_utf8_lossy(text).into_owned());
    let text = text.unwrap_or_default();
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().map(|value| value.trim_matches([' ', '\'']).to_owned())
    };
    let host = field("address:").filter(|host| host.contains('.') && !host.starts_with("0.0"));
    let port = field("port:").unwrap_or_else(|| "10250".to_owned());
    format!("{}:{port}", host.unwrap_or_else(|| "127.0.0.1".to_owned()))
}

/// Headers may be secret: ours shows none.
fn masked(page: &str) -> String {
    let name = "\"manifest-url-header\":\"";
    match page.split_once(name).and_then(|(a, b)| Some((a, b.split_once('"')?))) {
        Some((before, (value, after))) if !value.is_empty() => {
            format!("{before}{name}<masked>\"{after}")
        }
        _ => page.to_owned(),
    }
}
