//! Plugins that announce themselves by a socket below `plugins_registry`.
//!
//! Scans once a second: a socket that is new, or was replaced, is asked for its plugin info and handed to
//! the handler of its type; one that vanished is deregistered. Each socket is handled in a job of its own,
//! so a plugin that does not answer delays only itself.

use crate::csi::client::channel;
use ports::{OnExit, PluginHandler, PluginInfo, Tasks};
use proto::plugin_registration_v1::registration_client::RegistrationClient;
use proto::plugin_registration_v1::{InfoRequest, PluginInfo as Info, RegistrationStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use telemetry::metrics::GaugeFamily;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(1);
const DIAL_AND_INFO: Duration = Duration::from_secs(10);
const NOTIFY: Duration = Duration::from_secs(5);
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LAST_WAIT: Duration = Duration::from_secs(2 * 60 + 2);
const MAX_DEPTH: usize = 8;
/// Directory entries that one scan reads; further ones are ignored.
const MOST_ENTRIES: usize = 4096;
/// Sockets handled at a time; others wait for a later scan.
const MOST_JOBS: usize = 32;
/// Limits on a plugin's info: names become file names, annotations and metric labels.
const LONGEST_NAME: usize = 253;
const LONGEST_PATH: usize = 4096;
const MOST_VERSIONS: usize = 64;
/// Limit of a plugin's error message in ours.
const LONGEST_MESSAGE: usize = 1024;

/// Handlers by the plugin type of the registration protocol (`CSIPlugin`, `DRAPlugin`, …).
pub type PluginHandlers = BTreeMap<String, Arc<dyn PluginHandler>>;

/// Watches `dir` (made if missing) until the tasks are cancelled; `shown` is the gauge of known sockets.
pub(crate) fn watch_plugins(
    dir: PathBuf,
    handlers: PluginHandlers,
    shown: GaugeFamily,
    tasks: &Tasks,
) {
    let watch = Watch {
        dir,
        shown,
        counted: BTreeSet::new(),
        handlers: Arc::new(handlers),
        sockets: BTreeMap::new(),
        jobs: JoinSet::new(),
        running: BTreeMap::new(),
    };
    tasks.spawn("plugin-watch", OnExit::Exit, watch.run(tasks.token()));
}

/// Distinguishes a socket from its successor at the same path.
type Identity = (u64, u64, i64, i64);

#[derive(Debug)]
struct Socket {
    identity: Identity,
    registered: Option<(String, PluginInfo)>,
    busy: bool,
    wait: Duration,
    again_at: Instant,
}

#[derive(Debug)]
enum Done {
    Registered(String, PluginInfo),
    Failed(String),
    Gone,
}

#[derive(Debug)]
struct Watch {
    dir: PathBuf,
    shown: GaugeFamily,
    /// Entries of the gauge: sockets, and those of them that are registered.
    counted: BTreeSet<(PathBuf, &'static str)>,
    handlers: Arc<PluginHandlers>,
    sockets: BTreeMap<PathBuf, Socket>,
    jobs: JoinSet<Done>,
    running: BTreeMap<Id, PathBuf>,
}

impl Watch {
    async fn run(mut self, token: CancellationToken) {
        let mut ticker = tokio::time::interval(EVERY);
        loop {
            // Cancel-safe: a tick or a joined job is either taken or stays.
            tokio::select! {
                () = token.cancelled() => return,
                _ = ticker.tick() => {
                    let dir = self.dir.clone();
                    let found = sys::blocking::run(move || scan(&dir)).await.unwrap_or_default();
                    self.compare(found);
                }
                Some(done) = self.jobs.join_next_with_id() => self.finish(done),
            }
            self.count();
        }
    }

    fn count(&mut self) {
        let mut counted = BTreeSet::new();
        for (path, socket) in &self.sockets {
            counted.insert((path.clone(), "desired_state_of_world"));
            if socket.registered.is_some() {
                counted.insert((path.clone(), "actual_state_of_world"));
            }
        }
        for (path, state) in self.counted.difference(&counted) {
            self.shown.remove(&[&path.to_string_lossy(), state]);
        }
        for (path, state) in counted.difference(&self.counted) {
            self.shown.set(&[&path.to_string_lossy(), state], 1.0);
        }
        self.counted = counted;
    }

    fn compare(&mut self, found: BTreeMap<PathBuf, Identity>) {
        let now = Instant::now();
        let mut gone = Vec::new();
        for (path, socket) in &mut self.sockets {
            if socket.busy || found.get(path) == Some(&socket.identity) {
                continue;
            }
            gone.push((path.clone(), socket.registered.take()));
        }
        for (path, registered) in gone {
            match registered {
                Some((kind, info)) => {
                    if let Some(socket) = self.sockets.get_mut(&path) {
                        socket.busy = true;
                    }
                    tracing::info!(path = %path.display(), plugin = info.name, "plugin gone");
                    let handlers = Arc::clone(&self.handlers);
                    self.spawn(path, async move {
                        if let Some(handler) = handlers.get(&kind) {
                            handler.deregister(&info).await;
                        }
                        Done::Gone
                    });
                }
                None => {
                    self.sockets.remove(&path);
                }
            }
        }
        for (path, identity) in found {
            let socket = self.sockets.entry(path.clone()).or_insert(Socket {
                identity,
                registered: None,
                busy: false,
                wait: FIRST_WAIT,
                again_at: now,
            });
            if socket.busy || socket.registered.is_some() || socket.again_at > now {
                continue;
            }
            if self.jobs.len() >= MOST_JOBS {
                // Handled by a later scan.
                continue;
            }
            socket.busy = true;
            let handlers = Arc::clone(&self.handlers);
            self.spawn(path.clone(), async move { register(&path, &handlers).await });
        }
    }

    fn spawn(&mut self, path: PathBuf, work: impl Future<Output = Done> + Send + 'static) {
        let id = self.jobs.spawn(work).id();
        self.running.insert(id, path);
    }

    fn finish(&mut self, done: Result<(Id, Done), tokio::task::JoinError>) {
        let (id, done) = match done {
            Ok(done) => done,
            Err(e) => (e.id(), Done::Failed("the handler panicked".into())),
        };
        let Some(path) = self.running.remove(&id) else { return };
        let Some(socket) = self.sockets.get_mut(&path) else { return };
        socket.busy = false;
        match done {
            Done::Registered(kind, info) => {
                tracing::info!(path = %path.display(), plugin = info.name, kind, "plugin registered");
                socket.wait = FIRST_WAIT;
                socket.registered = Some((kind, info));
            }
            Done::Failed(err) => {
                tracing::error!(path = %path.display(), err, "plugin registration failed");
                socket.again_at = Instant::now() + socket.wait;
                socket.wait = (socket.wait * 2).min(LAST_WAIT);
            }
            Done::Gone => {
                self.sockets.remove(&path);
            }
        }
    }
}

/// Sockets below `dir`, and links to sockets; names that start with a dot and links to folders are ignored.
fn scan(dir: &Path) -> BTreeMap<PathBuf, Identity> {
    let mut found = BTreeMap::new();
    if sys::fs::create_dir_all(dir, 0o750).is_ok() {
        scan_into(dir, &mut found, (0, &mut 0));
    }
    found
}

fn scan_into(
    dir: &Path,
    found: &mut BTreeMap<PathBuf, Identity>,
    (depth, looked_at): (usize, &mut usize),
) {
    if depth > MAX_DEPTH {
        return;
    }
    for name in sys::fs::list_dir(dir).unwrap_or_default() {
        *looked_at += 1;
        if *looked_at > MOST_ENTRIES {
            return;
        }
        if name.starts_with('.') {
            continue;
        }
        let path = dir.join(name);
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            scan_into(&path, found, (depth + 1, looked_at));
            continue;
        }
        let Ok(target) = std::fs::metadata(&path) else { continue };
        if target.file_type().is_socket() {
            let identity = (target.dev(), target.ino(), target.mtime(), target.mtime_nsec());
            found.insert(path, identity);
        }
    }
}

/// Checks a plugin's info against the limits; returns what is wrong with it.
fn fault_of(info: &Info) -> Option<&'static str> {
    if info.name.len() > LONGEST_NAME {
        return Some("plugin name is too long");
    }
    if info.endpoint.len() > LONGEST_PATH {
        return Some("plugin endpoint is too long");
    }
    let long = |text: &String| text.len() > LONGEST_NAME;
    if info.supported_versions.len() > MOST_VERSIONS || info.supported_versions.iter().any(long) {
        return Some("plugin has too many versions");
    }
    long(&info.r#type).then_some("plugin type is too long")
}

/// The message cut to [`LONGEST_MESSAGE`].
fn truncated(text: &str) -> &str {
    let end = text.floor_char_boundary(LONGEST_MESSAGE);
    text.get(..end).unwrap_or_default()
}

async fn register(socket: &Path, handlers: &PluginHandlers) -> Done {
    let mut client = RegistrationClient::new(channel(socket));
    let asked = tokio::time::timeout(DIAL_AND_INFO, client.get_info(InfoRequest {})).await;
    let info = match asked {
        Ok(Ok(info)) => info.into_inner(),
        Ok(Err(status)) => {
            return Done::Failed(format!(
                "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {}, err: {}",
                socket.display(),
                truncated(status.message())
            ));
        }
        Err(_) => {
            return Done::Failed(format!(
                "RegisterPlugin error -- dial failed at socket {}, err: timed out",
                socket.display()
            ));
        }
    };
    if let Some(fault) = fault_of(&info) {
        let path = socket.display();
        return Done::Failed(format!("RegisterPlugin error -- {fault} at socket {path}"));
    }
    let endpoint = if info.endpoint.is_empty() { socket.to_owned() } else { info.endpoint.into() };
    let plugin = PluginInfo { name: info.name, endpoint, versions: info.supported_versions };
    let result = match handlers.get(&info.r#type) {
        None => Err(format!(
            "RegisterPlugin error -- no handler registered for plugin type: {} at socket {}",
            info.r#type,
            socket.display()
        )),
        Some(handler) => match handler.validate(&plugin).await {
            Err(e) => {
                Err(format!("RegisterPlugin error -- plugin validation failed with err: {e}"))
            }
            Ok(()) => handler.register(&plugin).await.map_err(|e| {
                format!("RegisterPlugin error -- plugin registration failed with err: {e}")
            }),
        },
    };
    let status = RegistrationStatus {
        plugin_registered: result.is_ok(),
        error: result.as_ref().err().cloned().unwrap_or_default(),
    };
    let notified = tokio::time::timeout(NOTIFY, client.notify_registration_status(status)).await;
    match (result, notified) {
        (Ok(()), Ok(Ok(_))) => Done::Registered(info.r#type, plugin),
        (Ok(()), _) => {
            // The plugin was not notified of its registration, so it must not be used.
            if let Some(handler) = handlers.get(&info.r#type) {
                handler.deregister(&plugin).await;
            }
            Done::Failed(format!(
                "RegisterPlugin error -- failed to send registration status at socket {}",
                socket.display()
            ))
        }
        (Err(e), _) => Done::Failed(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_full_of_sockets_is_looked_at_in_part() {
        let dir = std::env::temp_dir().join(format!("rubelet-many-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        for n in 0..MOST_ENTRIES + 100 {
            std::fs::write(dir.join(format!("sub/{n}")), "").unwrap();
        }
        let mut looked_at = 0;
        scan_into(&dir, &mut BTreeMap::new(), (0, &mut looked_at));
        assert_eq!(looked_at, MOST_ENTRIES + 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_plugin_that_says_too_much_of_itself_is_refused() {
        let good = Info {
            r#type: "CSIPlugin".to_owned(),
            name: "driver.example.com".to_owned(),
            endpoint: "/run/driver.sock".to_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        };
        assert_eq!(fault_of(&good), None);
        let long = "x".repeat(1 << 20);
        for bad in [
            Info { name: long.clone(), ..good.clone() },
            Info { endpoint: long.clone(), ..good.clone() },
            Info { r#type: long.clone(), ..good.clone() },
            Info { supported_versions: vec![long], ..good.clone() },
            Info { supported_versions: vec!["1".to_owned(); 1000], ..good },
        ] {
            assert!(fault_of(&bad).is_some());
        }
        assert_eq!(truncated(&"ä".repeat(1000)).len(), LONGEST_MESSAGE);
    }

    #[test]
    fn sockets_are_found_in_folders_and_behind_links() {
        let dir = std::env::temp_dir().join(format!("rubelet-plugins-{}", std::process::id()));
        let elsewhere = dir.join("elsewhere");
        let registry = dir.join("registry");
        std::fs::create_dir_all(registry.join("sub")).unwrap();
        std::fs::create_dir_all(&elsewhere).unwrap();
        let listen = |path: PathBuf| std::os::unix::net::UnixListener::bind(path).unwrap();
        let _sockets = [
            listen(registry.join("a.sock")),
            listen(registry.join("sub/b.sock")),
            listen(registry.join(".hidden.sock")),
            listen(elsewhere.join("c.sock")),
        ];
        std::fs::write(registry.join("file"), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.join("c.sock"), registry.join("c.sock")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, registry.join("folder")).unwrap();
        let found: Vec<PathBuf> = scan(&registry).into_keys().collect();
        assert_eq!(found, ["a.sock", "c.sock", "sub/b.sock"].map(|name| registry.join(name)));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
