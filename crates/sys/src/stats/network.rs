//! Network counters of one network namespace, from `/proc/<pid>/net/dev`.

use super::read_all::read_all;
use crate::fs::FsError;
use rustix::fs::{Mode, OFlags};
use std::path::Path;

/// Counters of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceUsage {
    /// Its name.
    pub name: String,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Receive errors.
    pub rx_errors: u64,
    /// Packets dropped on receive.
    pub rx_dropped: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Send errors.
    pub tx_errors: u64,
    /// Packets dropped on send.
    pub tx_dropped: u64,
}

/// Interfaces of the network namespace that `pid` (or `self`) is in, without loopback, virtual
/// pairs and bridges of container engines.
pub fn network_usage(proc_root: &Path, pid: &str) -> Result<Vec<InterfaceUsage>, FsError> {
    let path = proc_root.join(pid).join("net/dev");
    let read = || -> rustix::io::Result<Vec<InterfaceUsage>> {
        let open = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        read_all(&mut Vec::new(), &open).map(parse_net_dev)
    };
    let read = read();
    read.map_err(|source| FsError { operation: "read", path, source: source.into() })
}

/// The interfaces in the text of a `net/dev` file.
pub fn parse_net_dev(text: &str) -> Vec<InterfaceUsage> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<InterfaceUsage> {
    const IGNORED: [&str; 3] = ["veth", "docker", "nerdctl"];
    let (name, counters) = line.split_once(':')?;
    let name = name.trim();
    if name == "lo" || IGNORED.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let numbers: Vec<u64> = counters.split_whitespace().map_while(|n| n.parse().ok()).collect();
    let at = |index: usize| numbers.get(index).copied();
    Some(InterfaceUsage {
        name: name.to_owned(),
        rx_bytes: at(0)?,
        rx_packets: at(1)?,
        rx_errors: at(2)?,
        rx_dropped: at(3)?,
        tx_bytes: at(8)?,
        tx_packets: at(9)?,
        tx_errors: at(10)?,
        tx_dropped: at(11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_counters_and_leaves_out_virtual_ends() {
        let text = "Inter-|   Receive                    |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed\n    \
            lo:     100       2    0    0    0     0          0         0      100       2    0    0    0     0       0          0\n  \
            eth0: 1500      10    1    2    0     0          0         0      700       5    3    4    0     0       0          0\n\
            veth12: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n";
        let found = parse_net_dev(text);
        assert_eq!(found.len(), 1);
        let eth0 = &found[0];
        assert_eq!((eth0.name.as_str(), eth0.rx_bytes, eth0.rx_errors), ("eth0", 1500, 1));
        assert_eq!((eth0.tx_bytes, eth0.tx_errors, eth0.tx_dropped), (700, 3, 4));
    }

    #[test]
    fn a_broken_line_is_left_out() {
        assert_eq!(parse_net_dev("eth0: 1 2 x\nnonsense"), []);
    }
}
