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

const CHECK_PERIOD: Duration = Duration::from_secs(60);
const COMMAND_DEADLINE: Duration = Duration::from_secs(30);
const CANARY: &str = "KUBE-KUBELET-CANARY";
const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";

/// Keeps the chains until cancelled.
pub(crate) async fn run(cancel: CancellationToken) {
    let mut families = Vec::new();
    for tool in ["iptables", "ip6tables"] {
        match sync(tool).await {
            Ok(()) => families.push(tool),
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
        for tool in &families {
            if run_tool(tool, &["-w", "5", "-t", "mangle", "-S", CANARY]).await.is_err()
                && let Err(error) = sync(tool).await
            {
                tracing::warn!(tool, err = error, "could not repair the iptables chains");
            }
        }
    }
}

async fn sync(tool: &str) -> Result<(), String> {
    for table in ["mangle", "nat", "filter"] {
        ensure_chain(tool, table, CANARY).await?;
    }
    ensure_chain(tool, "mangle", HINT).await?;
    if tool != "iptables" {
        return Ok(());
    }
    ensure_chain(tool, "filter", FIREWALL).await?;
    let rule = [
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
    ensure_rule(tool, FIREWALL, "-A", &rule).await?;
    for chain in ["OUTPUT", "INPUT"] {
        ensure_rule(tool, chain, "-I", &["-j", FIREWALL]).await?;
    }
    Ok(())
}

async fn ensure_chain(tool: &str, table: &str, chain: &str) -> Result<(), String> {
    if run_tool(tool, &["-w", "5", "-t", table, "-S", chain]).await.is_ok() {
        return Ok(());
    }
    run_tool(tool, &["-w", "5", "-t", table, "-N", chain]).await
}

async fn ensure_rule(tool: &str, chain: &str, add: &str, rule: &[&str]) -> Result<(), String> {
    let with =
        |verb| ["-w", "5", "-t", "filter", verb, chain].iter().chain(rule).copied().collect();
    let check: Vec<&str> = with("-C");
    if run_tool(tool, &check).await.is_ok() {
        return Ok(());
    }
    let add: Vec<&str> = with(add);
    run_tool(tool, &add).await
}

async fn run_tool(tool: &str, arguments: &[&str]) -> Result<(), String> {
    let child = Command::new(tool)
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
