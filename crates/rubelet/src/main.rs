//! Entry point: arguments → configuration → agent → exit code.
//!
//! ```text
//! rubelet [flags]          run the node agent
//! rubelet config [flags]   print the settings in force and where each comes from
//! rubelet check [flags]    check the settings and this machine
//! rubelet explain [pod]    ask the running agent what pods wait for
//! ```
//!
//! Started under the name `kubelet` it does the same.
#![forbid(unsafe_code)]

mod check;
mod disk;
mod explain;
mod logs;
mod show;

use config::{CgroupVersion, Loaded, Request};
use disk::Disk;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use sys::cgroup::Cgroups;

/// Worker threads are few: the agent waits more than it computes.
const MAX_WORKERS: usize = 4;
/// How long a thread for calls that block stays when nobody needs it.
const IDLE_THREAD: Duration = Duration::from_secs(2);
/// How long calls that block may still take at the end.
const LAST_CALLS: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let mut args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let command = match args.first().map(String::as_str) {
        Some("config") => Command::Config,
        Some("check") => Command::Check,
        Some("explain") => Command::Explain,
        _ => Command::Run,
    };
    if command != Command::Run {
        args.remove(0);
    }
    let form = match command {
        Command::Config | Command::Check | Command::Explain => show::Form::take(&mut args),
        Command::Run => show::Form::Yaml,
    };
    if command == Command::Explain {
        return explained(&args, form);
    }
    let cgroups = cgroup_version();
    let disk = if command == Command::Run { Disk::Changed } else { Disk::LookedAt };
    let loaded = config::load(args.iter().cloned(), &disk, cgroups);
    if command == Command::Check && !matches!(loaded.result, Ok(Request::Print(_))) {
        return checked(&args, &loaded, cgroups, form);
    }
    let Loaded { notices, lines, early, logging, effective, result } = loaded;
    for notice in notices {
        // A closed standard error is no reason not to run.
        let _ = writeln!(std::io::stderr(), "{notice}");
    }
    let (early, lines) = lines.split_at(early.min(lines.len()));
    logs::write_early(early);
    let handle = logs::init(logging.as_ref());
    lines.iter().for_each(logs::write);
    // Settings are shown even when they are wrong; what is wrong follows.
    if let (Command::Config, Some(effective)) = (command, &effective) {
        let _ = print(&show::effective(effective, form));
    }
    let failed = |error: String| ("command failed", error);
    let finished = match (result, command) {
        (Err(error), _) => Err(failed(error.to_string())),
        (Ok(Request::Print(text)), _) => print(&text).map_err(failed),
        (Ok(Request::Leave(code)), _) => return ExitCode::from(code),
        (Ok(Request::Run(_)), Command::Config | Command::Check | Command::Explain) => Ok(()),
        (Ok(Request::Run(config)), Command::Run) => match &config.faults.callers {
            Some(fault) => Err(failed(format!("failed to run Kubelet: {fault}"))),
            None => run(*config, handle),
        },
    };
    match finished {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, error)) => {
            tracing::error!(err = error, "{message}");
            ExitCode::FAILURE
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Run,
    Config,
    Check,
    Explain,
}

/// Runs the agent; what is logged at the end if it fails.
fn run(
    config: config::Config,
    logs: telemetry::log::LogHandle,
) -> Result<(), (&'static str, String)> {
    sys::heap::limit_arenas();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.min(MAX_WORKERS))
        .max_blocking_threads(sys::blocking::MAX_THREADS)
        .thread_keep_alive(IDLE_THREAD)
        .enable_all()
        .build()
        .map_err(|e| ("command failed", format!("failed to run Kubelet: {e}")))?;
    let outcome = runtime.block_on(Box::pin(agent::run(config, logs)));
    // A call that hangs in the kernel must not keep the process.
    runtime.shutdown_timeout(LAST_CALLS);
    outcome.map_err(|e| e.last_line())
}

/// Checks settings and machine; the exit code says whether pods can run.
fn checked(args: &[String], loaded: &Loaded, cgroups: CgroupVersion, form: show::Form) -> ExitCode {
    let report = check::run(args, loaded, cgroups);
    let text = match form {
        show::Form::Yaml => report.text(),
        show::Form::Json => report.json(),
    };
    let failed = print(&text).is_err() || report.failed();
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Tells what the agent on this machine says.
fn explained(args: &[String], form: show::Form) -> ExitCode {
    match explain::run(args, form).and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed standard error leaves only the exit code.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn cgroup_version() -> CgroupVersion {
    let roots = ports::Roots::default();
    match Cgroups::detect(&roots.sys, &roots.proc) {
        Ok(cgroups) if cgroups.is_v2() => CgroupVersion::V2,
        _ => CgroupVersion::V1,
    }
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has seen enough (`| head`) is fine.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(()),
    }
}
