//! The few iptables chains that other components expect the node agent to keep
//! (kubelet: `initNetworkUtil`).
//!
//! Owns: the hint chain in both families, and on IPv4 the rule that keeps other hosts away from
//! loopback addresses. Promises: a family whose tools are missing is left alone with one log line;
//! a flushed table is repaired within a minute.

use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

const CHECK_PERIOD: Duration = Duration::from_secs(60);
const COMMAND_DEADLINE: Duration = Duration::from_secs(30);
const CANARY: &str = "KUBE-KUBELET-CANARY";
const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";
/// What comes from elsewhere to a loopback address is dropped, unless it answers or was translated: with
/// `route_localnet` on, neighbours could reach what listens on loopback only (CVE-2020-8558).
const NO_MARTIANS: [&str; 16] = [
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "-d",
    "127.0.0.0/8",
    "!",
    "-s",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];

/// An address family with the tool for it.
#[derive(Debug, Clone)]
struct Family {
    tool: &'static str,
    /// What the tool is run by; nothing but in tests, which enter a network namespace.
    by: Vec<String>,
    /// Whether others can be kept from loopback addresses: only IPv4 routes them.
    keeps_loopback: bool,
}

/// Keeps the chains until cancelled.
pub(crate) async fn run(cancel: CancellationToken) {
    let mut families = Vec::new();
    for (tool, keeps_loopback) in [("iptables", true), ("ip6tables", false)] {
        let family = Family { tool, by: Vec::new(), keeps_loopback };
        match family.sync().await {
            Ok(()) => families.push(family),
            Err(error) => {
                tracing::info!(
                    tool,
                    err = error,
                    "no iptables support for this family; its chains are not kept"
                );
            }
        }
    }
    if families.is_empty() {
        return;
    }
    let mut ticks = tokio::time::interval(CHECK_PERIOD);
    loop {
        tokio::select! {
            // Cancel-safe: nothing is held.
            () = cancel.cancelled() => return,
            // Cancel-safe: a missed tick comes again.
            _ = ticks.tick() => {}
        }
        for family in &families {
            family.repair().await;
        }
    }
}

impl Family {
    /// Looks for the canary; where somebody flushed it, the rest is gone too.
    async fn repair(&self) {
        if self.run(&["-w", "5", "-t", "mangle", "-S", CANARY]).await.is_err()
            && let Err(error) = self.sync().await
        {
            tracing::warn!(tool = self.tool, err = error, "could not repair the iptables chains");
        }
    }

    async fn sync(&self) -> Result<(), String> {
        for table in ["mangle", "nat", "filter"] {
            self.ensure_chain(table, CANARY).await?;
        }
        self.ensure_chain("mangle", HINT).await?;
        if !self.keeps_loopback {
            return Ok(());
        }
        self.ensure_chain("filter", FIREWALL).await?;
        self.ensure_rule(FIREWALL, "-A", &NO_MARTIANS).await?;
        for chain in ["OUTPUT", "INPUT"] {
            self.ensure_rule(chain, "-I", &["-j", FIREWALL]).await?;
        }
        Ok(())
    }

    async fn ensure_chain(&self, table: &str, chain: &str) -> Result<(), String> {
        if self.run(&["-w", "5", "-t", table, "-S", chain]).await.is_ok() {
            return Ok(());
        }
        self.run(&["-w", "5", "-t", table, "-N", chain]).await
    }

    async fn ensure_rule(&self, chain: &str, add: &str, rule: &[&str]) -> Result<(), String> {
        let with =
            |verb| ["-w", "5", "-t", "filter", verb, chain].iter().chain(rule).copied().collect();
        let check: Vec<&str> = with("-C");
        if self.run(&check).await.is_ok() {
            return Ok(());
        }
        let add: Vec<&str> = with(add);
        self.run(&add).await
    }

    async fn run(&self, arguments: &[&str]) -> Result<(), String> {
        let tool = self.tool;
        let mut words = self.by.iter().map(String::as_str).chain([tool]);
        let child = Command::new(words.next().unwrap_or(tool))
            .args(words)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(COMMAND_DEADLINE, child).await {
            Err(_) => Err(format!("{tool}: no answer in {}s", COMMAND_DEADLINE.as_secs())),
            Ok(Err(error)) => Err(format!("{tool}: {error}")),
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}
