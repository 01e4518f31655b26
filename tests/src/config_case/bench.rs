//! Runs a kubelet on a case: own network, own mounts, a working folder of its own, an end to
//! waiting.
//!
//! Without a runtime a good configuration ends at the socket that is not there ([`Bench`]); with one
//! it goes on until the kubelet says that it runs ([`super::Stage`]).

use super::{Answer, COMMON, Case};
use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A kubelet that has not ended by then is taken to be running.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a kubelet that says it runs may still find that it cannot: its listeners fail apart.
const AFTERMATH: Duration = Duration::from_millis(700);

/// A place to run kubelets one after the other.
#[derive(Debug)]
pub struct Bench {
    holder: Child,
}

/// What the namespaces' first process does: an empty working folder, nobody's `/run`.
const PREPARE: &str = "mount -t tmpfs tmpfs /mnt && mount -t tmpfs tmpfs /run && \
     ip link set lo up && echo ready && exec cat";

/// What kubelets remember from one start to the next.
const KEPT: [&str; 7] = [
    "mnt/root/cpu_manager_state",
    "mnt/root/memory_manager_state",
    "mnt/root/allocated_pods_state",
    "mnt/root/actuated_pods_state",
    "mnt/root/dra_manager_state",
    "mnt/root/graceful_node_shutdown_state",
    "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
];

impl Bench {
    /// Makes the namespaces.
    pub fn new() -> anyhow::Result<Bench> {
        Bench::with(PREPARE)
    }

    /// Makes the namespaces, prepared by this script.
    pub(super) fn with(prepare: &str) -> anyhow::Result<Bench> {
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "--propagation", "private", "sh", "-c", prepare])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("unshare")?;
        let mut line = String::new();
        let out = holder.stdout.take().context("no standard output")?;
        BufReader::new(out).read_line(&mut line)?;
        let bench = Bench { holder };
        ensure!(line == "ready\n", "the namespaces could not be made");
        Ok(bench)
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/mnt", self.holder.id()))
    }

    fn lay_out(&self, case: &Case) -> anyhow::Result<()> {
        let folder = self.folder();
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                fs::remove_dir_all(&path)?;
            } else {
                fs::remove_file(&path)?;
            }
        }
        for (path, content) in &case.files {
            let executable = path.starts_with('!');
            let target = folder.join(path.trim_start_matches(['!', '@']));
            if path.ends_with('/') {
                fs::create_dir_all(&target)?;
                continue;
            }
            fs::create_dir_all(target.parent().unwrap_or(Path::new("/")))?;
            if path.starts_with('@') {
                std::os::unix::fs::symlink(OsStr::from_bytes(content), &target)?;
                continue;
            }
            fs::write(&target, content)?;
            if executable {
                fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }

    /// What this program makes of the case.
    pub fn ask(&self, program: &Path, case: &Case) -> anyhow::Result<Answer> {
        let args: Vec<&str> = COMMON.into_iter().collect();
        let ran = self.run(program, &args, case, &Running::default())?;
        Ok(Answer::read(ran.code, &ran.out, &ran.err))
    }

    /// What was remembered, by file: those of [`KEPT`] that are there.
    pub(super) fn kept(&self) -> BTreeMap<String, String> {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        let read = |name: &&str| {
            let bytes = fs::read(root.join(name)).ok()?;
            Some(((*name).to_owned(), String::from_utf8_lossy(&bytes).into_owned()))
        };
        KEPT.iter().filter_map(read).collect()
    }

    /// The page at this address, as a client within these namespaces gets it; empty if there is none.
    fn page(&self, (url, accept): &(String, &str)) -> anyhow::Result<String> {
        let got = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.holder.id()))
            .args(["--", "curl", "-sgk", "--noproxy", "*", "--max-time", "5"])
            .args(["-H", &format!("Accept: {accept}"), "-w", "\n%{http_code}", url])
            .output()
            .context("curl")?;
        Ok(String::from_utf8_lossy(&got.stdout).into_owned())
    }

    /// Runs this program until it ends, says that it runs or tries our patience.
    pub(super) fn run(
        &self,
        program: &Path,
        args: &[&str],
        case: &Case,
        running: &Running<'_>,
    ) -> anyhow::Result<Ran> {
        self.lay_out(case)?;
        let mut child = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.holder.id()))
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .args(["--wdns=/mnt", "--"])
            .arg(program)
            .args(args)
            .args(&case.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("nsenter")?;
        let out = Collected::from(child.stdout.take());
        let err = Collected::from(child.stderr.take());
        let start = Instant::now();
        let mut said = None;
        let mut pages = Vec::new();
        let code = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status.code());
            }
            if said.is_none() && running.words.iter().any(|words| err.has(words)) {
                said = Some(Instant::now());
            }
            let patience = start.elapsed() > PATIENCE;
            if patience || said.is_some_and(|at: Instant| at.elapsed() > AFTERMATH) {
                for page in &running.pages {
                    pages.push(self.page(page)?);
                }
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Ok(Ran { code, out: out.whole(), err: err.whole(), pages })
    }
}

/// What there is to do with a kubelet that runs.
#[derive(Debug, Default)]
pub(super) struct Running<'a> {
    /// What it says then.
    pub(super) words: &'a [&'a str],
    /// Which pages it is asked for, and in which form.
    pub(super) pages: Vec<(String, &'static str)>,
}

/// How a run ended.
#[derive(Debug)]
pub(super) struct Ran {
    /// The exit code of one that ended by itself.
    pub(super) code: Option<Option<i32>>,
    pub(super) out: String,
    pub(super) err: String,
    /// The pages of one that was still running.
    pub(super) pages: Vec<String>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // It ends when nobody can write to it any more.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// What a program writes, while it does.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
}

impl Collected {
    fn from<R: Read + Send + 'static>(stream: Option<R>) -> Collected {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let Some(mut stream) = stream else { return };
            let mut piece = [0; 16 * 1024];
            while let Ok(got @ 1..) = stream.read(&mut piece) {
                let mut all = shared.lock().unwrap_or_else(PoisonError::into_inner);
                all.extend_from_slice(&piece[..got]);
            }
        });
        Collected { bytes, reader }
    }

    fn has(&self, words: &str) -> bool {
        let all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        all.windows(words.len()).any(|window| window == words.as_bytes())
    }

    fn whole(self) -> String {
        let _ = self.reader.join();
        let all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&all).into_owned()
    }
}
