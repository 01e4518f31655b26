//! User namespaces of pods on this machine.
//!
//! Owns: the file `pods/<uid>/userns` of each pod with `hostUsers: false`. A pod keeps its range over a
//! new sandbox and over a restart of the agent; the file is written before the range is used.

use crate::shared::RuntimeHandlers;
use api::core::v1::Pod;
use api::ids::PodUid;
use engine::request::security::UserNamespaceRange;
use engine::userns::{HostIds, Slots, UsernsError, decode, encode};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

const FILE: &str = "userns";
/// The user whose subordinate ids pods get, if there is one.
const OWNER: &str = "kubelet";
/// The program that tells them.
const ASKED: &str = "getsubids";

/// Settings of user namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsernsConfig {
    /// `userNamespaces.idsPerPod`.
    pub ids_per_pod: u32,
    /// The ids of all pods.
    pub ids: HostIds,
    /// `maxPods`.
    pub max_pods: u32,
}

impl Default for UsernsConfig {
    fn default() -> Self {
        let ids_per_pod = 65_536;
        Self { ids_per_pod, ids: HostIds::all_but_hosts(ids_per_pod), max_pods: 110 }
    }
}

/// Why user namespaces cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UsernsStartError {
    /// The ids do not fit.
    #[error(transparent)]
    Ids(#[from] UsernsError),
    /// The ids of the `kubelet` user cannot be had.
    #[error("kubelet mappings: {0}")]
    Owner(String),
    /// A pod's file cannot be used.
    #[error("record pod mappings for existing pod {pod:?}: {why}")]
    Pod {
        /// The pod's UID.
        pod: String,
        /// What is wrong.
        why: String,
    },
    /// The pods' folder cannot be read.
    #[error("read pods from disk: {0}")]
    Folder(String),
}

/// The ids that the machine sets aside for pods: those of the user `kubelet` if there is one, else all
/// but the host's own. Blocking.
pub fn host_ids(passwd: &Path, ids_per_pod: u32) -> Result<HostIds, UsernsStartError> {
    let users = match sys::fs::read_to_string(passwd) {
        Err(e) if e.is_not_found() => String::new(),
        Err(e) => return Err(UsernsStartError::Owner(e.in_go())),
        Ok(text) => text,
    };
    if !users.lines().any(|line| line.split(':').next() == Some(OWNER)) {
        return Ok(HostIds::all_but_hosts(ids_per_pod));
    }
    owners_ids().map_err(UsernsStartError::Owner)
}

/// What `getsubids` says (kubelet: `getKubeletMappings`).
fn owners_ids() -> Result<HostIds, String> {
    let ask = |arguments: &[&str]| {
        let output = Command::new(ASKED).args(arguments).output().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                format!("exec: {ASKED:?}: executable file not found in $PATH")
            }
            _ => format!("exec: {ASKED:?}: {}", units::errno::go_text(&e)),
        })?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok::<_, String>((text, output.status))
    };
    let (uids, ended) = ask(&[OWNER])?;
    if !ended.success() {
        let code = ended.code().unwrap_or(-1);
        return Err(format!(
            "error retrieving additional uids for user {OWNER:?}: exit status {code}"
        ));
    }
    let (gids, ended) = ask(&["-g", OWNER])?;
    if !ended.success() {
        return Err(format!("error retrieving additional gids for user {OWNER:?}"));
    }
    if uids != gids {
        return Err(format!("mismatched subuids and subgids for user {OWNER:?}"));
    }
    HostIds::parse(&uids).map_err(|e| e.to_string())
}

/// The ranges of all pods. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct UserNamespaces {
    pods: PathBuf,
    slots: Arc<Mutex<Slots>>,
}

impl UserNamespaces {
    /// Takes over the ranges of pods that have a folder. Blocking.
    pub(crate) fn open(
        kubelet_root: &Path,
        config: UsernsConfig,
    ) -> Result<Self, UsernsStartError> {
        let UsernsConfig { ids_per_pod, ids, max_pods } = config;
        let mut slots = Slots::new(ids, ids_per_pod, max_pods)?;
        let pods = kubelet_root.join("pods");
        let names = match sys::fs::list_dir(&pods) {
            Err(e) if e.is_not_found() => Vec::new(),
            Err(e) => return Err(UsernsStartError::Folder(e.in_go())),
            Ok(names) => names,
        };
        // What is no folder is nobody's pod.
        let names = names.into_iter().filter(|name| sys::fs::is_folder(pods.join(name)));
        for pod in names {
            let taken = match read(&pods.join(&pod)) {
                Ok(None) => Ok(()),
                Ok(Some(bytes)) => decode(&bytes)
                    .and_then(|range| slots.record(&PodUid::from(pod.as_str()), range)),
                Err(why) => Err(UsernsError::File(why)),
            };
            taken.map_err(|e| UsernsStartError::Pod { pod, why: e.to_string() })?;
        }
        Ok(Self { pods, slots: Arc::new(Mutex::new(slots)) })
    }

    /// The pod's range; `None` for pods that use the host's users.
    pub(crate) async fn range(
        &self,
        pod: &Pod,
        handler: &str,
        handlers: &RuntimeHandlers,
    ) -> Result<Option<UserNamespaceRange>, String> {
        if pod.spec.as_ref().and_then(|s| s.host_users) != Some(false) {
            return Ok(None);
        }
        if !handlers.user_namespaces.contains(handler) {
            let who = match handler {
                "" => "runtime".to_owned(),
                handler => format!("RuntimeClass handler {handler:?}"),
            };
            let unknown = !handlers.known.is_empty() && !handlers.known.contains(handler);
            let why = if unknown {
                format!(": the handler {handler:?} is not known")
            } else {
                String::new()
            };
            return Err(format!(
                "can't set `spec.hostUsers: false`, {who} does not support user namespaces{why}"
            ));
        }
        let uid = PodUid::from(pod.metadata.uid.clone().unwrap_or_default());
        let this = self.clone();
        let work = sys::blocking::run(move || this.read_or_allocate(&uid));
        work.await.map_err(|e| e.to_string())?.map(Some)
    }

    /// Frees the range of a pod that is gone.
    pub(crate) async fn release(&self, uid: &PodUid) {
        let (file, slots, uid) =
            (self.pods.join(uid.as_str()).join(FILE), Arc::clone(&self.slots), uid.clone());
        let work = move || {
            let Ok(mut slots) = slots.lock() else { return };
            // Freed only once no file claims it any more.
            match sys::fs::remove_file(&file) {
                Ok(()) => slots.release(uid.as_str()),
                Err(error) => {
                    tracing::warn!(podUID = %uid, err = %telemetry::Chain(&error), "user ids stay taken");
                }
            }
        };
        if let Err(error) = sys::blocking::run(work).await {
            tracing::warn!(err = %error, "user ids stay taken");
        }
    }

    fn read_or_allocate(&self, uid: &PodUid) -> Result<UserNamespaceRange, String> {
        let folder = self.pods.join(uid.as_str());
        let mut slots = self.slots.lock().map_err(|e| e.to_string())?;
        if let Some(bytes) = read(&folder)? {
            let range = decode(&bytes).and_then(|range| slots.record(uid, range).map(|()| range));
            return range.map_err(|e| format!("user namespace: {e}"));
        }
        let failed = |why: String| format!("create user namespace: {why}");
        let range = slots.allocate(uid).map_err(|e| failed(e.to_string()))?;
        let written = sys::fs::create_dir_all(&folder, 0o750)
            .and_then(|()| sys::fs::write_atomic(folder.join(FILE), encode(range), 0o600));
        if let Err(error) = written {
            slots.release(uid.as_str());
            return Err(failed(error.in_go()));
        }
        Ok(range)
    }
}

/// What a pod's file says, if it has one that is not empty.
fn read(folder: &Path) -> Result<Option<Vec<u8>>, String> {
    match sys::fs::read(folder.join(FILE)) {
        Ok(bytes) => Ok(Some(bytes).filter(|bytes| !bytes.is_empty())),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e.in_go()),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make their own files")]
mod tests {
    use super::*;
    use api::core::v1::PodSpec;

    fn pod(uid: &str, host_users: Option<bool>) -> Pod {
        let mut pod =
            Pod { spec: Some(PodSpec { host_users, ..PodSpec::default() }), ..Pod::default() };
        pod.metadata.uid = Some(uid.into());
        pod
    }

    fn handlers() -> RuntimeHandlers {
        RuntimeHandlers { user_namespaces: [String::new()].into(), ..RuntimeHandlers::default() }
    }

    fn root(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rubelet-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[tokio::test]
    async fn a_pod_keeps_its_ids_over_a_restart_and_gives_them_back_at_its_end() {
        let root = root("userns");
        let open = || UserNamespaces::open(&root, UsernsConfig::default()).unwrap();
        let first = open();
        let own = first.range(&pod("a", Some(false)), "", &handlers()).await.unwrap().unwrap();
        let again = open();
        let same = again.range(&pod("a", Some(false)), "", &handlers()).await.unwrap();
        assert_eq!(same, Some(own));
        let other = again.range(&pod("b", Some(false)), "", &handlers()).await.unwrap().unwrap();
        assert_ne!(other.host_id, own.host_id);
        again.release(&PodUid::from("a")).await;
        assert!(!root.join("pods/a/userns").is_file());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[tokio::test]
    async fn pods_with_the_hosts_users_need_nothing() {
        let root = root("userns-host");
        let all = UserNamespaces::open(&root, UsernsConfig::default()).unwrap();
        for host_users in [None, Some(true)] {
            let got = all.range(&pod("a", host_users), "", &RuntimeHandlers::default()).await;
            assert_eq!(got, Ok(None));
        }
        let of = |handler: &'static str| {
            let all = all.clone();
            async move {
                let none = RuntimeHandlers::default();
                all.range(&pod("a", Some(false)), handler, &none).await.unwrap_err()
            }
        };
        assert_eq!(
            of("").await,
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        );
        assert_eq!(
            of("kata").await,
            "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support \
             user namespaces"
        );
        let told = handlers();
        let known = RuntimeHandlers { known: told.user_namespaces.clone(), ..told };
        let got = all.range(&pod("a", Some(false)), "kata", &known).await.unwrap_err();
        assert!(got.ends_with(" user namespaces: the handler \"kata\" is not known"), "{got}");
        std::fs::create_dir_all(root.join("pods/a")).unwrap();
        std::fs::write(root.join("pods/a/userns"), "{}").unwrap();
        let got = all.range(&pod("a", Some(false)), "", &known).await.unwrap_err();
        assert!(got.starts_with("user namespace: invalid user namespace "), "{got}");
    }

    #[test]
    fn a_damaged_file_stops_the_start() {
        let root = root("userns-bad");
        std::fs::create_dir_all(root.join("pods/a")).unwrap();
        std::fs::write(root.join("pods/a/userns"), "{").unwrap();
        let error = UserNamespaces::open(&root, UsernsConfig::default()).unwrap_err();
        assert!(error.to_string().starts_with("record pod mappings for existing pod \"a\": "));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_is_no_folder_among_the_pods_is_passed_over() {
        let root = root("userns-stray");
        std::fs::create_dir_all(root.join("pods")).unwrap();
        std::fs::write(root.join("pods/core.1234"), "x").unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("pods/link")).unwrap();
        UserNamespaces::open(&root, UsernsConfig::default()).unwrap();
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn without_a_kubelet_user_all_ids_but_the_hosts_are_used() {
        let root = root("userns-passwd");
        std::fs::create_dir_all(&root).unwrap();
        let passwd = root.join("passwd");
        std::fs::write(&passwd, "root:x:0:0::/:/bin/sh\nkubelet2:x:1:1::/:/\n").unwrap();
        assert_eq!(host_ids(&passwd, 65_536).unwrap(), HostIds::all_but_hosts(65_536));
        std::fs::remove_dir_all(root).unwrap();
    }
}
