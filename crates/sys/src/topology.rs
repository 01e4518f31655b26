//! CPUs, caches, memory and distances of the machine's NUMA nodes, from sysfs.
//!
//! Promises: the same nodes, cores and numbers as cAdvisor's `GetNodesInfo`, which the Go kubelet
//! uses for placement: offline CPUs are left out, a cache counts as shared by some cores ("uncore")
//! if it is of level 3 or above and not shared by the whole node. Deliberately absent: what is
//! decided with it (`engine::cpus`, `engine::memory`).

use crate::fs::{self, FsError};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use units::CpuSet;

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineTopology {
    /// NUMA nodes (sockets where the kernel knows no nodes), by number.
    pub nodes: Vec<NumaNode>,
    /// Sockets.
    pub sockets: usize,
}

/// One NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its memory in bytes.
    pub memory: u64,
    /// Size in KiB and number of its huge pages.
    pub huge_pages: Vec<(u64, u64)>,
    /// Distance to every node, in order of their numbers; empty if unknown.
    pub distances: Vec<u64>,
    /// Its cores.
    pub cores: Vec<Core>,
}

/// One physical core.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Core {
    /// The kernel's number, unique in a socket.
    pub id: i64,
    /// Its socket.
    pub socket: i64,
    /// Its hardware threads (CPU numbers).
    pub threads: Vec<u32>,
    /// Caches it shares with some cores of its node.
    pub uncore_caches: Vec<i64>,
}

/// Reads the machine below `sys` and `proc`.
pub fn read(sys: &Path, proc: &Path) -> Result<MachineTopology, FsError> {
    let cpus = sys.join("devices/system/cpu");
    let online =
        fs::read_to_string(cpus.join("online")).ok().and_then(|text| text.trim().parse().ok());
    let place = Place { cpus, online };
    let nodes_dir = sys.join("devices/system/node");
    let mut nodes = Vec::new();
    for id in numbered(&nodes_dir, "node")? {
        let dir = nodes_dir.join(format!("node{id}"));
        let cores = place.cores(&numbered(&dir, "cpu")?)?;
        nodes.push(NumaNode {
            id,
            memory: memory(&dir)?,
            huge_pages: huge_pages(&dir.join("hugepages"))?,
            distances: distances(&dir),
            cores,
        });
    }
    if nodes.is_empty() {
        nodes = place.nodes_by_socket()?;
    }
    nodes.iter_mut().for_each(|node| place.add_caches(node));
    let sockets = sockets(&proc.join("cpuinfo"), &nodes);
    Ok(MachineTopology { nodes, sockets })
}

/// The sysfs directory of the CPUs, and which are online (all if unknown).
struct Place {
    cpus: PathBuf,
    online: Option<CpuSet>,
}

impl Place {
    /// Core and socket of a CPU; `None` if it is offline or the kernel does not report them.
    fn of_cpu(&self, cpu: u32) -> Result<Option<(i64, i64)>, FsError> {
        if self.online.as_ref().is_some_and(|online| !online.contains(cpu)) {
            return Ok(None);
        }
        let dir = self.cpus.join(format!("cpu{cpu}/topology"));
        let number = |name: &str| -> Result<Option<i64>, FsError> {
            match fs::read_to_string(dir.join(name)) {
                Ok(text) => Ok(text.trim().parse().ok()),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            }
        };
        Ok(number("core_id")?.zip(number("physical_package_id")?))
    }

    fn cores(&self, cpus: &[u32]) -> Result<Vec<Core>, FsError> {
        let mut cores: Vec<Core> = Vec::new();
        for cpu in cpus {
            let Some((id, socket)) = self.of_cpu(*cpu)? else { continue };
            match cores.iter_mut().find(|core| (core.id, core.socket) == (id, socket)) {
                Some(core) => core.threads.push(*cpu),
                None => cores.push(Core { id, socket, threads: vec![*cpu], ..Core::default() }),
            }
        }
        Ok(cores)
    }

    fn nodes_by_socket(&self) -> Result<Vec<NumaNode>, FsError> {
        let mut nodes: Vec<NumaNode> = Vec::new();
        for core in self.cores(&numbered(&self.cpus, "cpu")?)? {
            let Ok(id) = u32::try_from(core.socket) else { continue };
            match nodes.iter_mut().find(|node| node.id == id) {
                Some(node) => node.cores.push(core),
                None => nodes.push(NumaNode { id, cores: vec![core], ..NumaNode::default() }),
            }
        }
        nodes.sort_by_key(|node| node.id);
        Ok(nodes)
    }

    /// Stops at the first core whose caches the kernel does not describe.
    fn add_caches(&self, node: &mut NumaNode) {
        let cores = node.cores.len();
        for core in &mut node.cores {
            let threads_of_node = cores * core.threads.len();
            let Some(caches) = core.threads.first().and_then(|cpu| self.caches(*cpu)) else {
                return;
            };
            for cache in caches.iter().filter(|cache| cache.level > 2) {
                if cache.cpus != threads_of_node && !core.uncore_caches.contains(&cache.id) {
                    core.uncore_caches.push(cache.id);
                }
            }
        }
    }

    fn caches(&self, cpu: u32) -> Option<Vec<Cache>> {
        let dir = self.cpus.join(format!("cpu{cpu}/cache"));
        let names = fs::list_dir(&dir).ok()?;
        let mut names: Vec<String> = names.into_iter().filter(|n| n.starts_with("index")).collect();
        names.sort();
        names
            .iter()
            .map(|name| {
                let text = |file: &str| fs::read_to_string(dir.join(name).join(file)).ok();
                let mask = text("shared_cpu_map")?;
                let words = mask.trim().split(',').map(|word| u64::from_str_radix(word, 16).ok());
                let cpus: Option<u32> = words.map(|word| word.map(u64::count_ones)).sum();
                Some(Cache {
                    id: text("id")?.trim().parse().ok()?,
                    level: text("level")?.trim().parse().ok()?,
                    cpus: usize::try_from(cpus?).ok()?,
                })
            })
            .collect()
    }
}

struct Cache {
    id: i64,
    level: u32,
    /// How many CPUs share it.
    cpus: usize,
}

/// Numbers of the entries `prefixN`, ascending; none if the directory is missing.
fn numbered(dir: &Path, prefix: &str) -> Result<Vec<u32>, FsError> {
    let names = match fs::list_dir(dir) {
        Ok(names) => names,
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let number = |name: &String| name.strip_prefix(prefix)?.parse().ok();
    let numbers: BTreeSet<u32> = names.iter().filter_map(number).collect();
    Ok(numbers.into_iter().collect())
}

/// `MemTotal` of a node in bytes; 0 if the kernel does not report it.
fn memory(node: &Path) -> Result<u64, FsError> {
    let text = match fs::read_to_string(node.join("meminfo")) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => return Ok(0),
        Err(error) => return Err(error),
    };
    let line = text.lines().find_map(|line| line.split_once("MemTotal:").map(|(_, rest)| rest));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.unwrap_or_default().saturating_mul(1024))
}

/// Size in KiB and number, by size.
fn huge_pages(dir: &Path) -> Result<Vec<(u64, u64)>, FsError> {
    let names = match fs::list_dir(dir) {
        Ok(names) => names,
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut pages = Vec::new();
    for name in names {
        let size = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB"));
        let Some(size) = size.and_then(|size| size.parse().ok()) else { continue };
        let count = fs::read_to_string(dir.join(&name).join("nr_hugepages"))?;
        pages.push((size, count.trim().parse().unwrap_or_default()));
    }
    pages.sort_unstable();
    Ok(pages)
}

fn distances(node: &Path) -> Vec<u64> {
    let text = fs::read_to_string(node.join("distance")).unwrap_or_default();
    text.split_whitespace().map_while(|distance| distance.parse().ok()).collect()
}

/// The number of distinct `physical id`s, or of the sockets that the cores name.
fn sockets(cpuinfo: &Path, nodes: &[NumaNode]) -> usize {
    let text = fs::read_to_string(cpuinfo).unwrap_or_default();
    let ids: BTreeSet<&str> = text.lines().filter(|line| line.starts_with("physical id")).collect();
    if !ids.is_empty() {
        return ids.len();
    }
    let named = nodes.iter().flat_map(|node| &node.cores).map(|core| core.socket);
    named.collect::<BTreeSet<i64>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap(), 0o755).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Two nodes of two cores of two threads; CPU 7 is offline; each core pair of node 0 has its own L3.
    fn machine(name: &str) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("rubelet-topology-{name}-{}", std::process::id()));
        for cpu in 0..8_u32 {
            let node = cpu % 4 / 2;
            put(&root, &format!("devices/system/node/node{node}/cpu{cpu}/x"), "");
            let dir = format!("devices/system/cpu/cpu{cpu}");
            put(&root, &format!("{dir}/topology/core_id"), &format!("{}\n", cpu % 2));
            put(&root, &format!("{dir}/topology/physical_package_id"), &format!("{node}\n"));
            let (id, map) = if node == 0 { (cpu % 4, 0x11_u32 << (cpu % 4)) } else { (9, 0xcc) };
            for (index, level, map) in [("index0", 1, 1_u32 << cpu), ("index3", 3, map)] {
                put(&root, &format!("{dir}/cache/{index}/id"), &format!("{id}\n"));
                put(&root, &format!("{dir}/cache/{index}/level"), &format!("{level}\n"));
                put(
                    &root,
                    &format!("{dir}/cache/{index}/shared_cpu_map"),
                    &format!("0,{map:08x}\n"),
                );
            }
        }
        put(&root, "devices/system/cpu/online", "0-6\n");
        for node in 0..2 {
            let dir = format!("devices/system/node/node{node}");
            put(&root, &format!("{dir}/meminfo"), &format!("Node {node} MemTotal:  2048 kB\n"));
            put(&root, &format!("{dir}/distance"), if node == 0 { "10 21\n" } else { "21 10\n" });
            put(&root, &format!("{dir}/hugepages/hugepages-2048kB/nr_hugepages"), "3\n");
        }
        put(&root, "cpuinfo", "physical id\t: 0\nphysical id\t: 1\nphysical id\t: 0\n");
        root
    }

    #[test]
    fn nodes_cores_caches_and_memory_are_read() {
        let root = machine("full");
        let read = read(&root, &root).unwrap();
        let all = crate::removal::Contents::Everything;
        crate::removal::remove_tree(Path::new("/proc"), &root, all).unwrap();
        assert_eq!(read.sockets, 2);
        let [first, second] = &read.nodes[..] else { panic!("{read:?}") };
        assert_eq!((first.memory, first.distances.clone()), (2048 << 10, vec![10, 21]));
        assert_eq!(first.huge_pages, [(2048, 3)]);
        let shown = |node: &NumaNode| {
            let core =
                |core: &Core| (core.threads.clone(), core.socket, core.uncore_caches.clone());
            node.cores.iter().map(core).collect::<Vec<_>>()
        };
        assert_eq!(shown(first), [(vec![0, 4], 0, vec![0]), (vec![1, 5], 0, vec![1])]);
        // The L3 of node 1 is shared by the whole node; the core that lost a thread sees it as
        // smaller than its node.
        assert_eq!(shown(second), [(vec![2, 6], 1, vec![]), (vec![3], 1, vec![9])]);
    }

    #[test]
    fn without_numa_nodes_sockets_take_their_place() {
        let root = machine("flat");
        let all = crate::removal::Contents::Everything;
        let nodes = root.join("devices/system/node");
        crate::removal::remove_tree(Path::new("/proc"), &nodes, all).unwrap();
        let read = read(&root, &root).unwrap();
        crate::removal::remove_tree(Path::new("/proc"), &root, all).unwrap();
        let threads = |node: &NumaNode| node.cores.iter().map(|c| c.threads.len()).sum::<usize>();
        assert_eq!(
            read.nodes.iter().map(|n| (n.id, threads(n))).collect::<Vec<_>>(),
            [(0, 4), (1, 3)]
        );
    }

    #[test]
    fn this_machine_has_a_cpu() {
        let read = read(Path::new("/sys"), Path::new("/proc")).unwrap();
        assert!(read.nodes.iter().any(|node| !node.cores.is_empty()) && read.sockets > 0);
    }
}
