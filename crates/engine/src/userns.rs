//! User namespaces of pods: which range of host ids each pod has.
//!
//! Owns: the division of the node's ids into slots of equal size, their assignment, and the content of
//! the file that stores a pod's range.
//!
//! Promises: two pods never share a host id; file content and texts are those of the Go kubelet
//! (`pkg/kubelet/userns`).
//!
//! Deliberately absent: files and commands.

use crate::request::security::UserNamespaceRange;
use api::ids::PodUid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use units::gojson::{self, Shape};
use units::strconv::{parse_uint, quote};

/// Ranges are multiples of this many ids.
const UNIT: u32 = 65_536;

/// The ids that pods may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostIds {
    /// The first one.
    pub first: u32,
    /// How many.
    pub length: u32,
}

impl HostIds {
    /// Everything above the first slot, which belongs to the host.
    pub fn all_but_hosts(ids_per_pod: u32) -> Self {
        Self { first: ids_per_pod, length: u32::MAX - ids_per_pod.saturating_sub(1) }
    }

    /// Reads the output of `getsubids`: `0: kubelet 65536 2147483648`.
    pub fn parse(output: &str) -> Result<Self, UsernsError> {
        let text = output.trim_matches('\n');
        if text.contains('\n') {
            return Err(UsernsError::SubIds(format!(
                "error parsing line {}: it must contain only one line",
                quote(output)
            )));
        }
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [_, _, first, length] = parts.as_slice() else {
            return Err(UsernsError::SubIds(format!("invalid line {}", quote(output))));
        };
        let number = |text: &str| {
            let number = parse_uint(text, 10, 32).map_err(|e| {
                UsernsError::SubIds(format!("error parsing line {}: {e}", quote(output)))
            });
            number.map(|number| u32::try_from(number).unwrap_or(u32::MAX))
        };
        Ok(Self { first: number(first)?, length: number(length)? })
    }
}

/// Why a range cannot be allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsernsError {
    /// The output of `getsubids` cannot be parsed.
    #[error("{0}")]
    SubIds(String),
    /// `idsPerPod` is no multiple of the unit.
    #[error("kubelet user namespace length {0} is not a multiple of 65536")]
    Length(u32),
    /// The first id is not at a slot's start.
    #[error("kubelet user assigned ID {first} is not a multiple of {per_pod}")]
    First {
        /// The first id.
        first: u32,
        /// Ids per pod.
        per_pod: u32,
    },
    /// The first slot belongs to the host.
    #[error("kubelet user assigned ID {first} must be greater or equal to {per_pod}")]
    HostSlot {
        /// The first id.
        first: u32,
        /// Ids per pod.
        per_pod: u32,
    },
    /// The ids do not fill whole slots.
    #[error("kubelet user assigned IDs length {length} is not a multiple of {per_pod}")]
    Uneven {
        /// How many ids.
        length: u32,
        /// Ids per pod.
        per_pod: u32,
    },
    /// There are fewer slots than pods.
    #[error("kubelet user assigned IDs are not enough to support {0} pods")]
    TooFew(u32),
    /// Every slot is taken.
    #[error("could not find an empty slot to allocate a user namespace")]
    Full,
    /// A file is not as we write it.
    #[error("{0}")]
    File(String),
    /// A file has another length than configured.
    #[error("wrong user namespace length {0}")]
    WrongLength(u32),
    /// A file's range does not begin at a slot's start.
    #[error("wrong user namespace offset specified {0}")]
    WrongOffset(u32),
    /// The pod has another range already.
    #[error("different user namespace range already used by pod {0:?}")]
    Different(String),
    /// A file's range is outside the node's ids.
    #[error("id {0} is out of range")]
    OutOfRange(u32),
    /// Another pod has the range.
    #[error("range picked for pod {0:?} already taken")]
    Taken(String),
}

/// The assignment of slots.
#[derive(Debug, Clone)]
pub struct Slots {
    per_pod: u32,
    first: u32,
    count: u32,
    by_slot: BTreeMap<u32, PodUid>,
    by_pod: BTreeMap<PodUid, u32>,
}

impl Slots {
    /// Divides the ids; there must be a slot for each of `max_pods`.
    pub fn new(ids: HostIds, per_pod: u32, max_pods: u32) -> Result<Self, UsernsError> {
        let HostIds { first, length } = ids;
        if per_pod == 0 || !per_pod.is_multiple_of(UNIT) {
            return Err(UsernsError::Length(per_pod));
        }
        if !first.is_multiple_of(per_pod) {
            return Err(UsernsError::First { first, per_pod });
        }
        if first < per_pod {
            return Err(UsernsError::HostSlot { first, per_pod });
        }
        if !length.is_multiple_of(per_pod) {
            return Err(UsernsError::Uneven { length, per_pod });
        }
        let count = length / per_pod;
        if count < max_pods {
            return Err(UsernsError::TooFew(max_pods));
        }
        let first = first / per_pod;
        Ok(Self { per_pod, first, count, by_slot: BTreeMap::new(), by_pod: BTreeMap::new() })
    }

    /// The pod's range, or a free one. The search begins at a position derived from the pod's UID, so that ranges
    /// are not reused in order.
    pub fn allocate(&mut self, pod: &PodUid) -> Result<UserNamespaceRange, UsernsError> {
        if let Some(slot) = self.by_pod.get(pod) {
            return Ok(self.range(*slot));
        }
        let begin = units::fnv1a_32(pod.as_str().as_bytes()) % self.count.max(1);
        let slot = (begin..self.count)
            .chain(0..begin)
            .map(|index| self.first + index)
            .find(|slot| !self.by_slot.contains_key(slot))
            .ok_or(UsernsError::Full)?;
        self.take(pod, slot);
        Ok(self.range(slot))
    }

    /// Records the range from a pod's file.
    pub fn record(&mut self, pod: &PodUid, range: UserNamespaceRange) -> Result<(), UsernsError> {
        if range.length != self.per_pod {
            return Err(UsernsError::WrongLength(range.length));
        }
        if !range.host_id.is_multiple_of(self.per_pod) {
            return Err(UsernsError::WrongOffset(range.host_id));
        }
        let slot = range.host_id / self.per_pod;
        match self.by_pod.get(pod) {
            Some(own) if *own == slot => return Ok(()),
            Some(_) => return Err(UsernsError::Different(pod.to_string())),
            None => {}
        }
        if slot < self.first || slot - self.first >= self.count {
            return Err(UsernsError::OutOfRange(range.host_id));
        }
        if self.by_slot.contains_key(&slot) {
            return Err(UsernsError::Taken(pod.to_string()));
        }
        self.take(pod, slot);
        Ok(())
    }

    /// Frees a pod's range.
    pub fn release(&mut self, pod: &str) {
        if let Some(slot) = self.by_pod.remove(pod) {
            self.by_slot.remove(&slot);
        }
    }

    fn take(&mut self, pod: &PodUid, slot: u32) {
        self.by_slot.insert(slot, pod.clone());
        self.by_pod.insert(pod.clone(), slot);
    }

    fn range(&self, slot: u32) -> UserNamespaceRange {
        UserNamespaceRange { host_id: slot.saturating_mul(self.per_pod), length: self.per_pod }
    }
}

const FILE: Shape<'_> = (
    "userns.userNamespace",
    &[("uidMappings", "[]userns.idMapping"), ("gidMappings", "[]userns.idMapping")],
);

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// The content of a pod's file.
pub fn encode(range: UserNamespaceRange) -> Vec<u8> {
    let mapping = Mapping { host_id: range.host_id, container_id: 0, length: range.length };
    let file = File { uid_mappings: vec![mapping], gid_mappings: vec![mapping] };
    serde_json::to_vec(&file).unwrap_or_default()
}

/// The range in a pod's file.
pub fn decode(bytes: &[u8]) -> Result<UserNamespaceRange, UsernsError> {
    let bad = |why: &str| UsernsError::File(format!("invalid user namespace {why}"));
    let text = gojson::text(bytes);
    let file: File = gojson::decode(&text, FILE)
        .map_err(|e| bad(&format!("mappings file: {}", gojson::fault(&text, &e))))?;
    let [uid] = file.uid_mappings.as_slice() else {
        return Err(bad("configuration: no more than one mapping allowed."));
    };
    let [gid] = file.gid_mappings.as_slice() else {
        return Err(bad("configuration: GID and UID mappings should be identical."));
    };
    if uid != gid {
        return Err(bad("configuration: GID and UID mapping should be identical"));
    }
    if uid.container_id != 0 {
        return Err(bad("configuration: UID 0 must be mapped"));
    }
    Ok(UserNamespaceRange { host_id: uid.host_id, length: uid.length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn ids(first: u32, length: u32) -> HostIds {
        HostIds { first, length }
    }

    #[test]
    fn the_default_range_leaves_the_hosts_own_ids_out() {
        let default = HostIds::all_but_hosts(UNIT);
        assert_eq!(default, ids(65_536, u32::MAX - 65_535));
        let slots = Slots::new(default, UNIT, 110).unwrap();
        assert_eq!(slots.count, 65_535);
        assert_eq!(HostIds::parse("0: kubelet 65536 2147483648\n"), Ok(ids(65_536, 1 << 31)));
        for (output, fault) in [
            ("a\nb\n", r#"error parsing line "a\nb\n": it must contain only one line"#),
            ("", r#"invalid line """#),
            (
                "0: kubelet x 1",
                r#"error parsing line "0: kubelet x 1": strconv.ParseUint: parsing "x": invalid syntax"#,
            ),
        ] {
            assert_eq!(HostIds::parse(output).unwrap_err().to_string(), fault);
        }
    }

    #[test]
    fn ranges_that_do_not_fit_are_refused_with_the_rule() {
        let of = |ids, per_pod, pods| Slots::new(ids, per_pod, pods).map(drop).unwrap_err();
        assert_eq!(of(ids(UNIT, UNIT), 1000, 1), UsernsError::Length(1000));
        assert_eq!(
            of(ids(UNIT + 1, UNIT), UNIT, 1).to_string(),
            "kubelet user assigned ID 65537 is not a multiple of 65536"
        );
        assert!(matches!(of(ids(0, UNIT), UNIT, 1), UsernsError::HostSlot { .. }));
        assert!(matches!(of(ids(UNIT, UNIT + 1), UNIT, 1), UsernsError::Uneven { .. }));
        assert_eq!(of(ids(UNIT, UNIT), UNIT, 2), UsernsError::TooFew(2));
    }

    #[test]
    fn no_two_pods_share_ids_until_they_are_released() {
        let mut slots = Slots::new(ids(UNIT, 4 * UNIT), UNIT, 4).unwrap();
        let pods: Vec<PodUid> = (0..4).map(|n| PodUid::from(format!("p{n}"))).collect();
        let ranges: BTreeSet<u32> =
            pods.iter().map(|p| slots.allocate(p).unwrap().host_id).collect();
        assert_eq!(ranges, [UNIT, 2 * UNIT, 3 * UNIT, 4 * UNIT].into());
        let fifth = PodUid::from("p5");
        assert_eq!(slots.allocate(&fifth), Err(UsernsError::Full));
        let own = slots.allocate(&pods[0]).unwrap();
        slots.release("p0");
        assert_eq!(slots.allocate(&fifth).unwrap(), own, "only that one is free");
    }

    #[test]
    fn ranges_on_disk_are_taken_over_or_refused() {
        let mut slots = Slots::new(ids(UNIT, 4 * UNIT), UNIT, 4).unwrap();
        let range = |host_id, length| UserNamespaceRange { host_id, length };
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        assert_eq!(slots.record(&a, range(UNIT, UNIT)), Ok(()));
        assert_eq!(slots.record(&a, range(UNIT, UNIT)), Ok(()));
        assert_eq!(
            slots.record(&a, range(2 * UNIT, UNIT)),
            Err(UsernsError::Different("a".into()))
        );
        assert_eq!(slots.record(&b, range(UNIT, UNIT)), Err(UsernsError::Taken("b".into())));
        assert_eq!(slots.record(&b, range(0, UNIT)), Err(UsernsError::OutOfRange(0)));
        assert_eq!(slots.record(&b, range(UNIT, 5)), Err(UsernsError::WrongLength(5)));
        assert_eq!(slots.record(&b, range(7, UNIT)), Err(UsernsError::WrongOffset(7)));
    }

    #[test]
    fn the_file_is_the_go_kubelets() {
        let range = UserNamespaceRange { host_id: 131_072, length: 65_536 };
        let text = "{\"uidMappings\":[{\"hostId\":131072,\"containerId\":0,\"length\":65536}],\
                    \"gidMappings\":[{\"hostId\":131072,\"containerId\":0,\"length\":65536}]}";
        assert_eq!(String::from_utf8(encode(range)).unwrap(), text);
        assert_eq!(decode(text.as_bytes()), Ok(range));
        let other = text.replacen("131072", "65536", 1);
        assert!(decode(other.as_bytes()).is_err());
    }

    #[test]
    fn a_file_that_is_not_as_we_write_it_is_refused_in_upstreams_words() {
        let one = r#"[{"hostId":65536,"length":65536}]"#;
        for (text, fault) in [
            ("{", "mappings file: unexpected end of JSON input"),
            ("x", "mappings file: invalid character 'x' looking for beginning of value"),
            ("{}", "configuration: no more than one mapping allowed."),
            ("null", "configuration: no more than one mapping allowed."),
            (r#"{"uidMappings":null}"#, "configuration: no more than one mapping allowed."),
            (r#"{"uidMappings":[{}]}"#, "configuration: GID and UID mappings should be identical."),
            (
                r#"{"uidMappings":[{"containerId":1}],"gidMappings":[{"containerId":1}]}"#,
                "configuration: UID 0 must be mapped",
            ),
        ] {
            let told = decode(text.as_bytes()).unwrap_err().to_string();
            assert_eq!(told, format!("invalid user namespace {fault}"), "{text}");
        }
        let short = format!(r#"{{"UIDMappings":{one},"gidMappings":{one}}}"#);
        let range = UserNamespaceRange { host_id: 65_536, length: 65_536 };
        assert_eq!(decode(short.as_bytes()), Ok(range), "{short}");
    }
}
