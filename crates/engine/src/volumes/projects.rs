//! Folders tracked by project quotas, and the host's files that assign projects:
//! `/etc/projects` (`<id>:<folder>`) and `/etc/projid` (`<name>:<id>`).
//!
//! Upstream's symbols for comparison: `fsquota.AssignQuota`, `addDirToProject`,
//! `removeDirFromProject`, `findAvailableQuota`. Lines of others are kept as they are.
//!
//! Deliberately absent: reading and writing the files, asking the filesystem.

use super::spec::{Plugin, VolumeSpec};
use crate::resources::pod_limits;
use api::core::v1::Pod;
use std::collections::BTreeSet;
use units::Quantity;

/// The number of a project; zero is none.
pub type ProjectId = u32;

/// The first number that is assigned.
const FIRST: ProjectId = 1_048_577;
/// The search gives up after this many numbers that are in use on the filesystem but not in the files.
pub const MOST_USED: usize = 128;

/// A filesystem with quotas of projects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaFilesystem {
    /// XFS.
    Xfs,
    /// ext4.
    Ext4,
}

impl QuotaFilesystem {
    /// By its magic number, if project quota accounting is on.
    pub fn of(magic: u64, accounting: bool) -> Option<Self> {
        match magic {
            0x5846_5342 if accounting => Some(Self::Xfs),
            0xef53 if accounting => Some(Self::Ext4),
            _ => None,
        }
    }

    /// The quota limit in bytes for a volume of this size. It only enables accounting and is never reached: a pod
    /// that uses more is evicted, as without a quota. Zero is none.
    pub fn limit(self, size: i64) -> u64 {
        const LARGEST: u64 = i64::MAX.unsigned_abs();
        match self {
            _ if size == 0 => 0,
            Self::Xfs => LARGEST,
            Self::Ext4 => LARGEST & ((1 << 58) - 1),
        }
    }
}

/// The size for the quota of this pod's volume (`0`: without a limit); `None` if it gets none. Only a pod in a user
/// namespace cannot change the project of its files.
pub fn quota_size(pod: &Pod, spec: &VolumeSpec) -> Option<i64> {
    if pod.spec.as_ref()?.host_users != Some(false) {
        return None;
    }
    let volume = spec.as_inline()?;
    let own = match spec.plugin {
        Plugin::ConfigMap => None,
        Plugin::EmptyDir => {
            let empty = volume.empty_dir.as_ref()?;
            if !empty.medium.as_deref().unwrap_or_default().is_empty() {
                return None;
            }
            let size = empty.size_limit.as_ref().and_then(|q| q.0.parse::<Quantity>().ok());
            size.map(Quantity::value).filter(|size| *size > 0)
        }
        _ => return None,
    };
    let whole = pod_limits(pod).get("ephemeral-storage").map_or(0, |limit| limit.value());
    Some(own.filter(|own| whole == 0 || *own < whole).unwrap_or(whole))
}

/// Why a folder's project cannot be taken out of the files. Display is upstream's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProjectsError {
    /// It is in another project.
    #[error("attempting to remove quota ID {asked} from path {dir}, but expecting ID {listed}")]
    Another {
        /// The folder.
        dir: String,
        /// The project it should be in.
        asked: ProjectId,
        /// The project it is in.
        listed: ProjectId,
    },
    /// It is there more than once.
    #[error("found multiple quota IDs for path {0}")]
    Several(String),
    /// It is not there.
    #[error("cannot find quota associated with path {0}")]
    Unlisted(String),
}

/// One line: its project, its content and the original text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    /// Zero for a line that cannot be parsed.
    id: ProjectId,
    /// A folder or a name.
    data: Vec<u8>,
    text: Vec<u8>,
}

/// Both files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projects {
    folders: Vec<Line>,
    names: Vec<Line>,
}

impl Projects {
    /// From the text of both files.
    pub fn parse(projects: &[u8], projid: &[u8]) -> Self {
        Self { folders: lines(projects, folder), names: lines(projid, name) }
    }

    /// The project that the folder is in.
    pub fn id_of(&self, dir: &str) -> Option<ProjectId> {
        let line = self.folders.iter().find(|line| line.data == dir.as_bytes());
        line.map(|line| line.id).filter(|id| *id != 0)
    }

    /// Numbers that neither file has, from the least.
    pub fn free(&self) -> impl Iterator<Item = ProjectId> + use<> {
        let listed: BTreeSet<ProjectId> =
            self.folders.iter().chain(&self.names).map(|line| line.id).collect();
        (FIRST..=i32::MAX.unsigned_abs()).filter(move |id| !listed.contains(id))
    }

    /// Puts the folder into a project of its own.
    pub fn add(&mut self, dir: &str, id: ProjectId) {
        let name = format!("volume{id}");
        self.names.push(Line {
            id,
            text: format!("{name}:{id}").into_bytes(),
            data: name.into_bytes(),
        });
        let text = format!("{id}:{dir}").into_bytes();
        self.folders.push(Line { id, data: dir.as_bytes().to_vec(), text });
    }

    /// Takes the folder out of its project, and the project away with its last folder.
    pub fn remove(&mut self, dir: &str, id: ProjectId) -> Result<(), ProjectsError> {
        let mut own = self.folders.iter().filter(|line| line.data == dir.as_bytes());
        match (own.next(), own.next()) {
            (None, _) => return Err(ProjectsError::Unlisted(dir.to_owned())),
            (Some(line), _) if line.id != id => {
                let (dir, listed) = (dir.to_owned(), line.id);
                return Err(ProjectsError::Another { dir, asked: id, listed });
            }
            (_, Some(_)) => return Err(ProjectsError::Several(dir.to_owned())),
            _ => {}
        }
        self.folders.retain(|line| line.data != dir.as_bytes());
        if !self.folders.iter().any(|line| line.id == id) {
            self.names.retain(|line| line.id != id);
        }
        Ok(())
    }

    /// The text of `/etc/projects`.
    pub fn projects(&self) -> Vec<u8> {
        text(&self.folders)
    }

    /// The text of `/etc/projid`.
    pub fn projid(&self) -> Vec<u8> {
        text(&self.names)
    }
}

fn text(lines: &[Line]) -> Vec<u8> {
    lines.iter().flat_map(|line| line.text.iter().copied().chain([b'\n'])).collect()
}

/// Parses a line: the project, and the folder or name.
type Reader = fn(&[u8]) -> Option<(ProjectId, &[u8])>;

/// Lines as Go's scanner has them: the last need not end, and a carriage return goes with the line's end.
fn lines(text: &[u8], read: Reader) -> Vec<Line> {
    let mut all: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    if all.last().is_some_and(|last| last.is_empty()) {
        all.pop();
    }
    let whole = |text: &[u8]| {
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let (id, data) = read(text).unwrap_or_default();
        Line { id, data: data.to_vec(), text: text.to_vec() }
    };
    all.into_iter().map(whole).collect()
}

/// `<id>:<folder>`.
fn folder(line: &[u8]) -> Option<(ProjectId, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((number(line.get(..colon)?)?, line.get(colon + 1..)?))
}

/// `<name>:<id>`; a line that begins with `#` is a comment.
fn name(line: &[u8]) -> Option<(ProjectId, &[u8])> {
    if line.first()? == &b'#' {
        return None;
    }
    // Anything may be the first character of a name, a colon too.
    let colon = line.iter().skip(1).position(|byte| *byte == b':')? + 1;
    Some((number(line.get(colon + 1..)?)?, line.get(..colon)?))
}

fn number(digits: &[u8]) -> Option<ProjectId> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn shown(projects: &Projects) -> (String, String) {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(projects.projects()), text(projects.projid()))
    }

    /// The steps of upstream's `TestAddRemoveQuotas`.
    #[test]
    fn folders_come_and_go_between_the_lines_of_others() {
        const FOLDERS: &str = "# folders of others\n1048578:/quota/d\n";
        const NAMES: &str = "# names of others\nxxxxxx:1048579\n";
        let mut all = Projects::parse(FOLDERS.as_bytes(), NAMES.as_bytes());
        let expect = |all: &Projects, folders: &[(u32, &str)]| {
            let lines: String = folders.iter().map(|(id, dir)| format!("{id}:{dir}\n")).collect();
            let names: String =
                folders.iter().map(|(id, _)| format!("volume{id}:{id}\n")).collect();
            assert_eq!(shown(all), (format!("{FOLDERS}{lines}"), format!("{NAMES}{names}")));
            // What is written is read again.
            let (first, second) = shown(all);
            assert_eq!(&Projects::parse(first.as_bytes(), second.as_bytes()), all);
        };
        let add = |all: &mut Projects, dir: &str| {
            let id = all.free().next().unwrap();
            all.add(dir, id);
        };
        let (a, b, c) =
            ((1_048_577, "/quota1/a"), (1_048_580, "/quota1/b"), (1_048_581, "/quota2/b"));
        add(&mut all, "/quota1/a");
        expect(&all, &[a]);
        add(&mut all, "/quota1/b");
        expect(&all, &[a, b]);
        add(&mut all, "/quota2/b");
        expect(&all, &[a, b, c]);
        assert_eq!(all.id_of("/quota1/b"), Some(1_048_580));
        all.remove("/quota1/b", 1_048_580).unwrap();
        expect(&all, &[a, c]);
        all.remove("/quota1/a", 1_048_577).unwrap();
        expect(&all, &[c]);
        let again = all.remove("/quota1/a", 1_048_577).unwrap_err();
        assert_eq!(again.to_string(), "cannot find quota associated with path /quota1/a");
        let foreign = all.remove("/quota2/b", 7).unwrap_err();
        assert_eq!(
            foreign.to_string(),
            "attempting to remove quota ID 7 from path /quota2/b, but expecting ID 1048581"
        );
        all.remove("/quota2/b", 1_048_581).unwrap();
        expect(&all, &[]);
    }

    #[test]
    fn a_project_stays_with_its_other_folders_and_two_lines_for_one_are_nobodys_to_choose() {
        let mut all = Projects::parse(b"7:/a\n7:/b\n8:/c\n8:/c\n", b"seven:7\neight:8\n");
        all.remove("/a", 7).unwrap();
        assert_eq!(shown(&all), ("7:/b\n8:/c\n8:/c\n".into(), "seven:7\neight:8\n".into()));
        all.remove("/b", 7).unwrap();
        assert_eq!(shown(&all).1, "eight:8\n");
        assert_eq!(all.remove("/c", 8), Err(ProjectsError::Several("/c".into())));
    }

    #[test]
    fn lines_nobody_understands_are_kept_and_keep_no_number() {
        let (folders, names) = (
            "#1048577:/x\nrubbish\n99999999999999999999:/y\n1048578:/z:/w\n\n1048580:/end",
            "#v:1048577\n::1048579\na:b:3\nx:1048577x\n1048581\n",
        );
        let all = Projects::parse(folders.as_bytes(), names.as_bytes());
        assert_eq!(shown(&all), (format!("{folders}\n"), names.to_owned()));
        assert_eq!((all.id_of("/z:/w"), all.id_of("/y")), (Some(1_048_578), None));
        let free: Vec<u32> = all.free().take(3).collect();
        assert_eq!(free, [1_048_577, 1_048_581, 1_048_582]);
        // As a file edited elsewhere.
        let all = Projects::parse(b"5:/a\r\n6:/b\r\n", b"");
        assert_eq!((all.id_of("/a"), shown(&all).0.as_str()), (Some(5), "5:/a\n6:/b\n"));
    }

    #[test]
    fn only_local_volumes_of_pods_in_a_user_namespace_are_counted() {
        let size = |host_users: Option<bool>, volume: Value, limit: Value| {
            let mut volume = volume;
            volume["name"] = json!("v");
            let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {
                "hostUsers": host_users, "volumes": [volume.clone()],
                "containers": [{"name": "c", "resources": {"limits": limit}}]}}))
            .unwrap();
            let volume = serde_json::from_value(volume).unwrap();
            quota_size(&pod, &VolumeSpec::inline(&volume).unwrap())
        };
        let (own, none) = (Some(false), json!({}));
        let empty = |source: Value| json!({"emptyDir": source});
        let limit = json!({"ephemeral-storage": "1Mi"});
        let (mi, ki) = (1 << 20, 1 << 10);
        assert_eq!(size(None, empty(json!({"sizeLimit": "1Ki"})), none.clone()), None);
        assert_eq!(size(Some(true), empty(json!({})), none.clone()), None);
        assert_eq!(size(own, empty(json!({})), none.clone()), Some(0));
        assert_eq!(size(own, empty(json!({"sizeLimit": "1Ki"})), none.clone()), Some(ki));
        assert_eq!(size(own, empty(json!({"sizeLimit": "1Ki"})), limit.clone()), Some(ki));
        assert_eq!(size(own, empty(json!({"sizeLimit": "2Mi"})), limit.clone()), Some(mi));
        assert_eq!(size(own, empty(json!({"sizeLimit": "0"})), limit.clone()), Some(mi));
        assert_eq!(size(own, empty(json!({"medium": "Memory"})), limit.clone()), None);
        assert_eq!(size(own, json!({"configMap": {"name": "m"}}), limit.clone()), Some(mi));
        assert_eq!(size(own, json!({"secret": {"secretName": "s"}}), limit), None);
    }

    #[test]
    fn limits_are_the_largest_the_filesystem_can_hold() {
        let (xfs, ext4) = (0x5846_5342, 0xef53);
        assert_eq!(QuotaFilesystem::of(xfs, false), None);
        assert_eq!(QuotaFilesystem::of(0x0102_1994, true), None);
        let limit = |magic, size| QuotaFilesystem::of(magic, true).unwrap().limit(size);
        assert_eq!(limit(xfs, 1024), 9_223_372_036_854_775_807);
        assert_eq!(limit(ext4, 1024), 288_230_376_151_711_743);
        assert_eq!((limit(xfs, 0), limit(ext4, 0)), (0, 0));
    }
}
