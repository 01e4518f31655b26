//! The chains in a network namespace of the test's own, with a neighbour behind a cable.

use super::*;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command as Program, Stdio};

/// A network namespace that goes with its holder.
struct Net {
    holder: Child,
}

impl Net {
    fn new() -> Self {
        let mut holder = Program::new("unshare")
            .args(["--net", "sh", "-c", "iptables -S && echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(holder.stdout.take().unwrap());
        let ready = said.lines().map_while(Result::ok).any(|line| line == "ready");
        let net = Self { holder };
        assert!(ready, "root, network namespaces and iptables are needed");
        net
    }

    fn enter(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.holder.id())]
    }

    /// How a program ended in there, and what it printed.
    fn run(&self, line: &str) -> (Option<i32>, String) {
        let enter = self.enter();
        let mut program = Program::new(&enter[0]);
        let output = program.args(&enter[1..]).args(["bash", "-c", line]).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    fn must(&self, line: &str) -> String {
        let (code, text) = self.run(line);
        assert_eq!(code, Some(0), "{line}: {text}");
        text
    }

    fn family(&self, tool: &'static str) -> Family {
        Family { tool, by: self.enter(), keeps_loopback: tool == "iptables" }
    }

    /// Whether somebody at a loopback address answers: a closed port does, by refusing.
    fn reaches_loopback(&self) -> bool {
        let (code, text) = self.run("timeout 2 bash -c ': </dev/tcp/127.0.0.1/9'");
        assert!(code == Some(124) || text.contains("refused"), "{code:?}: {text}");
        code != Some(124)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// A node that routes loopback addresses, as kube-proxy's do, and its neighbour.
fn cabled() -> (Net, Net) {
    let (node, neighbour) = (Net::new(), Net::new());
    let peer = neighbour.holder.id();
    node.must(&format!("ip link add near type veth peer name far netns {peer}"));
    for (net, link, address) in
        [(&node, "near", "192.0.2.1/24"), (&neighbour, "far", "192.0.2.2/24")]
    {
        net.must(&format!("ip addr add {address} dev {link} && ip link set {link} up"));
        net.must("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet");
    }
    node.must("ip link set lo up");
    neighbour.must("ip route add 127.0.0.0/8 via 192.0.2.1");
    (node, neighbour)
}

/// CVE-2020-8558.
#[tokio::test]
async fn a_neighbour_does_not_reach_the_nodes_loopback_addresses() {
    let (node, neighbour) = cabled();
    assert!(neighbour.reaches_loopback(), "without the rule the way is open");
    node.family("iptables").sync().await.unwrap();
    assert!(!neighbour.reaches_loopback());
    assert!(node.reaches_loopback(), "the node itself does");
}

#[tokio::test]
async fn the_chains_are_made_once_and_again_when_somebody_flushed_them() {
    let node = Net::new();
    let (v4, v6) = (node.family("iptables"), node.family("ip6tables"));
    let expected = "-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n-N KUBE-FIREWALL\n\
        -N KUBE-KUBELET-CANARY\n-A INPUT -j KUBE-FIREWALL\n-A OUTPUT -j KUBE-FIREWALL\n\
        -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \
        \"block incoming localnet connections\" -m conntrack ! --ctstate \
        RELATED,ESTABLISHED,DNAT -j DROP\n";
    for _ in 0..2 {
        v4.sync().await.unwrap();
        v6.sync().await.unwrap();
        assert_eq!(node.must("iptables -S"), expected);
    }
    assert!(node.must("iptables -t mangle -S").contains("-N KUBE-IPTABLES-HINT"));
    assert!(node.must("ip6tables -t mangle -S").contains("-N KUBE-IPTABLES-HINT"));
    assert!(!node.must("ip6tables -S").contains(FIREWALL));
    for table in ["filter", "mangle", "nat"] {
        node.must(&format!("iptables -t {table} -F && iptables -t {table} -X"));
    }
    v4.repair().await;
    assert_eq!(node.must("iptables -S"), expected);
    // Ours come before rules of others that let everything in.
    node.must("iptables -F INPUT && iptables -A INPUT -j ACCEPT && iptables -t mangle -X");
    v4.repair().await;
    let rules = node.must("iptables -S INPUT");
    assert_eq!(rules, "-P INPUT ACCEPT\n-A INPUT -j KUBE-FIREWALL\n-A INPUT -j ACCEPT\n");
}
