//! What a node without pods must not have: containers, sandboxes, folders, mounts, cgroups, log links.

use std::path::Path;

use testkit::real::TestNode;

/// Everything that was left, each as a line.
pub fn of(node: &TestNode) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for container in node.containers()? {
        let pod = &container["labels"]["io.kubernetes.pod.uid"];
        found.push(format!("container {} of {pod} {}", container["metadata"], container["state"]));
    }
    for sandbox in node.sandboxes()? {
        found.push(format!("sandbox {} {}", sandbox["metadata"], sandbox["state"]));
    }
    let pods = node.root_dir().join("pods");
    found.extend(entries(&pods).map(|entry| format!("folder {entry}")));
    found.extend(entries(&node.pod_logs_dir()).map(|entry| format!("logs {entry}")));
    found.extend(mounts_below(&pods)?.into_iter().map(|mount| format!("mount {mount}")));
    for root in node.slot().cgroup_folders() {
        found.extend(pod_cgroups(&root).map(|group| format!("cgroup {group}")));
    }
    found.extend(links_into(&node.pod_logs_dir()).map(|link| format!("log link {link}")));
    Ok(found)
}

fn entries(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let list = std::fs::read_dir(folder).into_iter().flatten().flatten();
    list.map(|entry| entry.path().display().to_string())
}

fn mounts_below(folder: &Path) -> anyhow::Result<Vec<String>> {
    let prefix = format!("{}/", folder.display());
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split_whitespace().nth(4));
    Ok(points.filter(|point| point.starts_with(&prefix)).map(str::to_owned).collect())
}

/// Cgroups of pods, in any class of quality.
fn pod_cgroups(root: &Path) -> impl Iterator<Item = String> {
    let classes = ["kubepods", "kubepods/burstable", "kubepods/besteffort"];
    let groups: Vec<String> = classes.iter().flat_map(|class| entries(&root.join(class))).collect();
    groups.into_iter().filter(|group| {
        let name = Path::new(group).file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("pod")) && Path::new(group).is_dir()
    })
}

/// Links of `/var/log/containers` that lead into this folder.
fn links_into(folder: &Path) -> impl Iterator<Item = String> {
    let list = std::fs::read_dir("/var/log/containers").into_iter().flatten().flatten();
    list.filter_map(move |entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        target.starts_with(folder).then(|| entry.path().display().to_string())
    })
}
