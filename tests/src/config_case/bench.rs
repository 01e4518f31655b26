//! Runs a kubelet on a case: own network, own mounts, a working folder of its own, an end to
//! waiting.

use super::{Answer, COMMON, Case};
use anyhow::{Context, ensure};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A kubelet that has not ended by then is taken to be running.
const PATIENCE: Duration = Duration::from_secs(20);

/// A place to run kubelets one after the other.
#[derive(Debug)]
pub struct Bench {
    holder: Child,
}

/// What the namespaces' first process does: an empty working folder, nobody's `/run`.
const PREPARE: &str = "mount -t tmpfs tmpfs /mnt && mount -t tmpfs tmpfs /run && \
     ip link set lo up && echo ready && exec cat";

impl Bench {
    /// Makes the namespaces.
    pub fn new() -> anyhow::Result<Bench> {
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "--propagation", "private", "sh", "-c", PREPARE])
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
            let target = folder.join(path.trim_start_matches('!'));
            if path.ends_with('/') {
                fs::create_dir_all(&target)?;
                continue;
            }
            fs::create_dir_all(target.parent().unwrap_or(Path::new("/")))?;
            fs::write(&target, content)?;
            if executable {
                fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }

    /// What this program makes of the case.
    pub fn ask(&self, program: &Path, case: &Case) -> anyhow::Result<Answer> {
        self.lay_out(case)?;
        let mut child = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.holder.id()))
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .args(["--wdns=/mnt", "--"])
            .arg(program)
            .args(COMMON)
            .args(&case.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("nsenter")?;
        let out = collect(child.stdout.take());
        let err = collect(child.stderr.take());
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
        Ok(Answer::read(status.map(|status| status.code()), &out, &err))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // It ends when nobody can write to it any more.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn collect<R: Read + Send + 'static>(stream: Option<R>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
