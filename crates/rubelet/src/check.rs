//! `rubelet check`: is this machine ready, and what to do where it is not.
//!
//! Owns: the list of checks and how findings are told. Each check reads facts and returns
//! [`Finding`]s; none changes anything.
//!
//! Promises: an answer within two seconds whatever hangs, a fix with everything that is not good,
//! exit code 1 when something would keep pods from running.

mod benchmark;
mod certificates;
mod cni;
mod host;
mod providers;
mod runtime;
mod settings;

use config::{CgroupVersion, Config, Loaded, Request};
use ports::Roots;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Time for everything that asks another process.
const PATIENCE: Duration = Duration::from_millis(1500);

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Works, with a risk.
    Warning,
    /// Keeps the agent or pods from running.
    Error,
}

/// One thing found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// How bad it is.
    pub(crate) level: Level,
    /// What was looked at.
    pub(crate) subject: &'static str,
    /// What was seen.
    pub(crate) seen: String,
    /// What to do about it; empty when all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) fix: String,
}

impl Finding {
    /// As it should be.
    pub(crate) fn ok(subject: &'static str, seen: impl Into<String>) -> Self {
        Self { level: Level::Ok, subject, seen: seen.into(), fix: String::new() }
    }

    /// Works, with a risk.
    pub(crate) fn warning(
        subject: &'static str,
        seen: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, subject, seen: seen.into(), fix: fix.into() }
    }

    /// Keeps the agent or pods from running.
    pub(crate) fn error(
        subject: &'static str,
        seen: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Error, subject, seen: seen.into(), fix: fix.into() }
    }
}

/// Everything found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// The findings, in the order of the checks.
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    /// Whether something keeps the agent or pods from running.
    pub(crate) fn failed(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == Level::Error)
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let width = self.findings.iter().map(|f| f.subject.len()).max().unwrap_or_default();
        for finding in &self.findings {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Warning => "warning",
                Level::Error => "error",
            };
            let indent = width + 11;
            let seen = finding.seen.replace('\n', &format!("\n{:indent$}", ""));
            let _ = writeln!(text, "{level:<8} {:<width$}  {seen}", finding.subject);
            if !finding.fix.is_empty() {
                let _ = writeln!(text, "{:indent$}fix: {}", "", finding.fix);
            }
        }
        let count = |level| self.findings.iter().filter(|f| f.level == level).count();
        let (errors, warnings) = (count(Level::Error), count(Level::Warning));
        let verdict = if errors > 0 { "not ready" } else { "ready" };
        let _ = writeln!(text, "{verdict}: {errors} errors, {warnings} warnings");
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// Runs every check. With settings that cannot be used the machine is still checked, as far as
/// possible against them.
pub(crate) fn run(args: &[String], loaded: &Loaded, cgroups: CgroupVersion) -> Report {
    let mut findings = settings::check(loaded);
    let relaxed = "--fail-cgroupv1=false".to_owned();
    let attempts =
        [args.to_vec(), args.iter().cloned().chain([relaxed.clone()]).collect(), vec![relaxed]];
    let config = attempts.into_iter().find_map(|args| {
        match config::load(args, &crate::disk::Disk::LookedAt, cgroups).result {
            Ok(Request::Run(config)) => Some(config),
            _ => None,
        }
    });
    if let Some(config) = config {
        let roots = Roots { kubelet: config.dirs.root.clone(), ..Roots::default() };
        findings.extend(machine(&config, &roots));
    }
    Report { findings }
}

fn machine(config: &Config, roots: &Roots) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(benchmark::check(config));
    findings.extend(host::permissions(config, sys::process::is_root()));
    findings.extend(host::cgroups(config, roots));
    findings.extend(host::propagation(roots));
    findings.extend(host::swap(config, roots));
    findings.extend(host::clock());
    findings.extend(host::inotify(roots));
    findings.extend(host::kernel(config, roots));
    findings.extend(host::advertisements(roots));
    findings.extend(host::resolver(config));
    findings.extend(host::ports(config));
    findings.extend(certificates::check(config, &ports::SystemClock));
    findings.extend(providers::check(config));
    findings.extend(runtime::check(config, PATIENCE));
    findings.extend(cni::check(roots, &["/opt/cni/bin", "/usr/lib/cni"]));
    findings
}

#[cfg(test)]
mod tests;
