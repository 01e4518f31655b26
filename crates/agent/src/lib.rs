//! Composition root: builds handles, wires channels, supervises, shuts down in order.
//!
//! Owns: the order of start and stop. Promises: nothing is half-started: a fault before the main
//! tasks run ends the process with one message; after that only a task that nothing works without
//! can end it. Containers are never touched on the way out.
//!
//! Deliberately absent: policy.
#![forbid(unsafe_code)]

mod allocatable;
mod cluster;
mod eviction_and_shutdown;
mod explain;
mod host;
mod idle_metrics;
mod image_gc_and_logs;
mod iptables;
mod layout;
mod lifecycle;
mod placement;
mod reclaim;
mod registries;
mod resource_managers;
mod runtime;
mod settings;
mod start;
mod startup_checks;
mod traces;
mod watchdog;

pub use host::HostError;
pub use runtime::RuntimeError;
pub use watchdog::WatchdogError;

use config::Config;
use lifecycle::Ending;
use ports::{Clock as _, SystemClock, Tasks};
use std::sync::Arc;
use std::time::Duration;
use telemetry::log::LogHandle;

/// Why the agent could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The service manager's watchdog settings make no sense.
    #[error(transparent)]
    Watchdog(#[from] WatchdogError),
    /// The lock file.
    #[error("{0}")]
    Lock(String),
    /// The machine.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The container runtime.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A folder that must be there.
    #[error(transparent)]
    Layout(#[from] sys::fs::FsError),
    /// The cgroup tree.
    #[error(transparent)]
    Cgroups(#[from] resources::cgroups::CgroupSetupError),
    /// The cgroups of the agent and of the system's processes.
    #[error(transparent)]
    SystemCgroups(#[from] resources::SystemCgroupsError),
    /// Devices of plugins.
    #[error(transparent)]
    Devices(#[from] resources::devices::DevicesError),
    /// Dynamic resources.
    #[error(transparent)]
    Claims(#[from] resources::dra::ClaimsError),
    /// A socket for clients on this machine.
    #[error(transparent)]
    Socket(#[from] sockets::ListenError),
    /// CPUs, memory or their alignment.
    #[error("{0}")]
    Placement(String),
    /// The node's resources: reservation, kernel settings, enforcement.
    #[error("{0}")]
    ContainerManager(String),
    /// A setting that is found to be wrong once the runtime has answered.
    #[error("{0}")]
    Setting(String),
    /// Eviction thresholds.
    #[error(transparent)]
    Thresholds(#[from] engine::eviction::ThresholdError),
    /// The way to the API server.
    #[error("{0}")]
    Api(String),
    /// Image pulls.
    #[error(transparent)]
    Images(#[from] images::ImagesError),
    /// Credential provider plugins.
    #[error("{0}")]
    Providers(String),
    /// A folder that must be there cannot be made.
    #[error("{0}")]
    Folders(String),
    /// Nobody can be listened to.
    #[error("{0}")]
    Listen(String),
    /// Log rotation.
    #[error(transparent)]
    Logs(#[from] pods::logs::LogRotationError),
    /// A checkpoint that cannot be trusted.
    #[error(transparent)]
    Checkpoint(#[from] pods::PodsError),
    /// The HTTP API.
    #[error(transparent)]
    Server(#[from] server::ServerError),
    /// The pods socket.
    #[error(transparent)]
    PodsApi(#[from] server::PodsApiError),
    /// Signals cannot be received.
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
    /// A task that nothing works without has ended.
    #[error("{0}")]
    Task(String),
}

impl AgentError {
    /// What is logged at the end, and the error with it: upstream ends most starts with one line and
    /// some in the middle of their work, with a line of their own.
    pub fn last_line(&self) -> (&'static str, String) {
        let message = match self {
            Self::ContainerManager(_) => "Failed to start ContainerManager",
            Self::Providers(_) => "Failed to register CRI auth plugins",
            Self::Folders(_) => "Failed to initialize internal modules",
            Self::Listen(_) => "Failed to listen and serve",
            Self::Socket(error) => {
                return ("Failed to create listener for podResources endpoint", unbound(error));
            }
            Self::Devices(resources::devices::DevicesError::Socket(error)) => {
                return ("Failed to start ContainerManager", unbound(error));
            }
            _ => {
                let chain = telemetry::Chain(self);
                return ("command failed", format!("failed to run Kubelet: {chain}"));
            }
        };
        (message, self.to_string())
    }
}

/// Why a socket cannot be had, in upstream's words.
fn unbound(error: &sockets::ListenError) -> String {
    let why = units::errno::go_text(&error.source);
    match error.source.kind() {
        std::io::ErrorKind::IsADirectory => {
            let shown = units::strconv::quote(&error.path.to_string_lossy());
            format!("failed to unlink socket file {shown}: {why}")
        }
        _ => format!("listen unix {}: bind: {why}", error.path.display()),
    }
}

/// A new certificate for this host, signed by itself, and its key; PEM.
pub fn self_signed_pair(host: &str) -> Result<(String, String), server::tls::TlsError> {
    server::tls::self_signed_pair(host, SystemClock.now().as_second())
}

/// Why these PEM texts are no certificate with its key, in Go's words.
pub fn pair_fault(certificate: &[u8], key: &[u8]) -> Option<String> {
    server::tls::pair_fault(certificate, key)
}

/// Where the agent of this root directory tells why pods wait.
pub fn explain_socket(root: &std::path::Path) -> std::path::PathBuf {
    let roots = ports::Roots { kubelet: root.to_owned(), ..ports::Roots::default() };
    server::explain_socket(&roots.rubelet())
}

/// How long calls to the runtime that are under way may take to end: the runtime cancels what its caller
/// does not wait for, and a pod that may run once would have had its turn. With the rest of the way out it
/// is well within the 90 s after which a service manager kills.
const CALLS_UNDER_WAY: Duration = Duration::from_secs(30);

/// How long tasks may take to end. What they leave undone is done after the next start.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// How long the tasks of a start that failed are waited for.
const GIVE_UP: Duration = Duration::from_secs(1);

/// Runs the agent until a signal, lock contention or a fatal fault ends it.
pub async fn run(config: Config, logs: LogHandle) -> Result<(), AgentError> {
    let tasks = Tasks::new();
    let outcome = run_with(&config, logs, &tasks).await;
    if outcome.is_ok() {
        finish_calls(&tasks).await;
    }
    // What a start that failed has begun has nothing to finish, and may wait for what never came.
    let patience = if outcome.is_ok() { SHUTDOWN } else { GIVE_UP };
    let late = tasks.shutdown_within(patience).await;
    if !late.is_empty() && outcome.is_ok() {
        tracing::error!(tasks = ?late, "ending without tasks that did not end in time");
    }
    match outcome? {
        Ending::Signal | Ending::LockContention => Ok(()),
        Ending::TaskFailed => Err(AgentError::Task(tasks.fatal().unwrap_or_default())),
    }
}

/// Begins nothing new and waits for what is under way; everything else works on meanwhile.
async fn finish_calls(tasks: &Tasks) {
    tracing::info!("Ending: waiting for the calls to the runtime that are under way");
    if let Ok(socket) = std::env::var("NOTIFY_SOCKET")
        && let Err(error) = sys::systemd::notify(&socket, "STOPPING=1")
    {
        tracing::debug!(err = %error, "service manager not notified");
    }
    let left = tasks.finish_within(CALLS_UNDER_WAY).await;
    if left > 0 {
        tracing::warn!(pods = left, "ending with calls to the runtime under way");
    }
}

async fn run_with(config: &Config, logs: LogHandle, tasks: &Tasks) -> Result<Ending, AgentError> {
    tracing::info!(kubeletVersion = config.version, "Kubelet version");
    let variable = |name| std::env::var(name).ok();
    let watchdog = watchdog::period(
        variable("WATCHDOG_USEC").as_deref(),
        variable("WATCHDOG_PID").as_deref(),
        std::process::id(),
    )?;
    let mut signal = std::pin::pin!(lifecycle::signalled());
    let health_metrics = Arc::new(server::HealthMetrics::new(SystemClock.now().as_second()));
    let mut contention: futures::future::BoxFuture<'_, ()> = Box::pin(std::future::pending());
    let mut _lock = None;
    if let Some(file) = &config.node.lock_file {
        let path = file.path.display();
        tracing::info!(path = %path, "Acquiring file lock");
        _lock = Some(lifecycle::lock(&file.path).await.map_err(AgentError::Lock)?);
        if file.exit_on_contention {
            tracing::info!(path = %path, "Watching for inotify events");
            contention = Box::pin(lifecycle::contention(&file.path, tasks.token()));
        }
    }
    let started = tokio::select! {
        // A start that is given up leaves tasks behind; the caller ends them.
        started = start::start(config, logs, Arc::clone(&health_metrics), tasks) => started?,
        // Cancel-safe: the signal is seen once and ends everything.
        signalled = &mut signal => {
            signalled.map_err(AgentError::Signals)?;
            return Ok(Ending::Signal);
        }
    };
    // Last, as upstream: whoever sees it healthy finds every other socket open.
    if let Some(address) = config.server.healthz {
        let all = tasks.clone();
        tasks.spawn_anew("health", move || {
            server::health::serve(address, Arc::clone(&health_metrics), all.clone())
        });
    }
    if let Some(socket) = variable("NOTIFY_SOCKET") {
        if let Err(error) = sys::systemd::notify(&socket, "READY=1") {
            tracing::debug!(err = %error, "service manager not notified");
        }
        if let Some(period) = watchdog {
            let (checks, stop) = (started.checks(), tasks.token());
            tasks.spawn_anew("watchdog", move || {
                watchdog::run(socket.clone(), period, checks.clone(), stop.clone())
            });
        }
    }
    tracing::info!("Started kubelet");
    let failed = tasks.stopping();
    Ok(tokio::select! {
        // Cancel-safe: each of these only waits.
        signalled = &mut signal => {
            signalled.map_err(AgentError::Signals)?;
            Ending::Signal
        }
        () = &mut contention => Ending::LockContention,
        () = failed.cancelled() => Ending::TaskFailed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_cannot_be_had_ends_the_start_in_upstreams_words() {
        let last = |errno: i32| {
            let source = std::io::Error::from_raw_os_error(errno);
            let path = "/root/pod-resources/kubelet.sock".into();
            AgentError::Socket(sockets::ListenError { path, source }).last_line()
        };
        let message = "Failed to create listener for podResources endpoint";
        assert_eq!(
            last(21),
            (
                message,
                "failed to unlink socket file \"/root/pod-resources/kubelet.sock\": is a directory"
                    .to_owned()
            )
        );
        let (_, why) = last(13);
        assert_eq!(why, "listen unix /root/pod-resources/kubelet.sock: bind: permission denied");
    }
}
