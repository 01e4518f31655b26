//! The mount table, as in `/proc/<pid>/mountinfo`.
//!
//! Owns: the parser (it never fails: a malformed line is skipped) and queries about paths. The
//! table is a snapshot, which may differ from what later system calls find.

use crate::fs::{self, FsError};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount's id.
    pub id: u64,
    /// The id of the mount it sits on.
    pub parent: u64,
    /// Device of the filesystem.
    pub major: u32,
    /// Device of the filesystem.
    pub minor: u32,
    /// Which directory of the filesystem is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub mount_point: PathBuf,
    /// Per-mount options such as `rw,nosuid`.
    pub options: Vec<String>,
    /// Filesystem type.
    pub fs_type: String,
    /// Filesystem source.
    pub source: String,
    /// Per-filesystem options.
    pub super_options: Vec<String>,
}

/// Parses the complete table; malformed lines are skipped.
pub fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// Reads the table of this process below `proc` (normally `/proc`).
pub fn read(proc: &Path) -> Result<Vec<MountEntry>, FsError> {
    Ok(parse(&fs::read(proc.join("self/mountinfo"))?))
}

/// Mounts at or below `path`, deepest (and latest) first: the order in which to unmount.
pub fn at_or_below<'a>(table: &'a [MountEntry], path: &Path) -> Vec<&'a MountEntry> {
    let mut found: Vec<&MountEntry> =
        table.iter().filter(|m| m.mount_point.starts_with(path)).collect();
    found.sort_by_key(|m| {
        (std::cmp::Reverse(m.mount_point.components().count()), std::cmp::Reverse(m.id))
    });
    found
}

/// Other mount points of the same directory of the filesystem as the mount at `path`.
pub fn references(table: &[MountEntry], path: &Path) -> Vec<PathBuf> {
    let Some(this) = table.iter().rev().find(|m| m.mount_point == path) else {
        return Vec::new();
    };
    table
        .iter()
        .filter(|m| {
            (m.major, m.minor) == (this.major, this.minor)
                && m.root == this.root
                && m.mount_point != path
        })
        .map(|m| m.mount_point.clone())
        .collect()
}

/// The SELinux label that the mount was given (`context=`), if any.
pub fn label_of(table: &[MountEntry], path: &Path) -> Option<String> {
    let this = table.iter().rev().find(|m| m.mount_point == path)?;
    // A label contains commas, and is then quoted.
    let options = format!(",{}", this.super_options.join(","));
    let (_, rest) = options.split_once(",context=")?;
    let label = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => rest.split(',').next(),
    };
    label.map(str::to_owned)
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ').filter(|f| !f.is_empty());
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = fields.next()?;
    let colon = device.iter().position(|b| *b == b':')?;
    let major = u32::try_from(number(device.get(..colon)?)?).ok()?;
    let minor = u32::try_from(number(device.get(colon + 1..)?)?).ok()?;
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let options = list(fields.next()?);
    // Optional fields end at a single hyphen.
    fields.by_ref().find(|f| *f == b"-")?;
    let fs_type = text(fields.next()?);
    let source = text(fields.next()?);
    let super_options = fields.next().map(list).unwrap_or_default();
    Some(MountEntry {
        id,
        parent,
        major,
        minor,
        root,
        mount_point,
        options,
        fs_type,
        source,
        super_options,
    })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

fn list(field: &[u8]) -> Vec<String> {
    text(field).split(',').map(str::to_owned).collect()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

/// Undoes the kernel's octal escapes (`\040`).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        match escaped {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
        40 22 0:35 / /a\\040b rw,nosuid - tmpfs tmpfs rw,size=10k\n\
        garbage\n\
        41 40 254:0 /data /a\\040b/c ro master:1 propagate_from:2 - ext4 /dev/root rw\n\
        42 22 254:0 /data /elsewhere rw - ext4 /dev/root rw\n";

    #[test]
    fn reads_escapes_and_any_number_of_optional_fields() {
        let table = parse(TABLE);
        assert_eq!(table.len(), 4);
        assert_eq!(table[1].mount_point, Path::new("/a b"));
        assert_eq!(table[1].super_options, ["rw", "size=10k"]);
        assert_eq!(table[2].root, Path::new("/data"));
        assert_eq!(table[2].fs_type, "ext4");
    }

    #[test]
    fn lists_deepest_mounts_first() {
        let table = parse(TABLE);
        let points: Vec<_> =
            at_or_below(&table, Path::new("/a b")).iter().map(|m| m.mount_point.clone()).collect();
        assert_eq!(points, [Path::new("/a b/c"), Path::new("/a b")]);
    }

    #[test]
    fn finds_other_mounts_of_the_same_folder() {
        let table = parse(TABLE);
        assert_eq!(references(&table, Path::new("/elsewhere")), [Path::new("/a b/c")]);
    }

    #[test]
    fn a_label_of_a_mount_keeps_its_commas() {
        let table = parse(
            b"1 0 8:1 / /a rw - ext4 /dev/sda rw,context=\"u:r:t:s0:c1,c2\",noatime\n\
              2 0 8:2 / /b rw - ext4 /dev/sdb rw,context=u:r:t:s0,noatime\n\
              3 0 8:3 / /c rw - ext4 /dev/sdc rw,seclabel\n",
        );
        let labels = ["/a", "/b", "/c"].map(|path| label_of(&table, Path::new(path)));
        assert_eq!(labels, [Some("u:r:t:s0:c1,c2".into()), Some("u:r:t:s0".into()), None]);
    }

    #[test]
    fn survives_truncated_and_binary_lines() {
        for end in 0..TABLE.len() {
            parse(&TABLE[..end]);
        }
        assert!(parse(b"\xff\xfe 1 2:3 \\9 \\ - - -").is_empty());
    }
}
