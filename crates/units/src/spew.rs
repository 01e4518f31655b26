//! Go object dumps (`%#v` of the spew package), which checkpoint checksums are computed over.
//!
//! Owns: the grammar. The type names belong to the checkpoint that is being hashed.

use std::fmt;

/// A Go value as the dump shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dump {
    /// A nil map, slice or pointer.
    Nil,
    /// A number, string or anything else printed raw.
    Raw(String),
    /// A slice.
    List(Vec<Dump>),
    /// A map; the pairs must come in Go's order (numbers numerically, strings by bytes).
    Map(Vec<(String, Dump)>),
    /// A struct: name, type and value of each field.
    Struct(Vec<Field>),
    /// A pointer that is an element of a map or slice.
    Pointer(Box<Dump>),
}

/// One field of a dumped struct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Go's field name.
    pub name: &'static str,
    /// Go's type.
    pub go_type: &'static str,
    /// The value.
    pub value: Dump,
}

impl Dump {
    /// A number, string or anything else printed raw.
    pub fn raw(value: impl fmt::Display) -> Self {
        Self::Raw(value.to_string())
    }

    /// A struct from its fields.
    pub fn fields<const N: usize>(fields: [(&'static str, &'static str, Self); N]) -> Self {
        Self::Struct(
            fields
                .into_iter()
                .map(|(name, go_type, value)| Field { name, go_type, value })
                .collect(),
        )
    }

    /// The dump of a value of this type: `(type)value`.
    pub fn typed(&self, go_type: &str) -> String {
        format!("({go_type}){self}")
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("<nil>"),
            Self::Raw(text) => f.write_str(text),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    let space = if index == 0 { "" } else { " " };
                    write!(f, "{space}{item}")?;
                }
                f.write_str("]")
            }
            Self::Map(pairs) => {
                f.write_str("map[")?;
                for (index, (key, value)) in pairs.iter().enumerate() {
                    let space = if index == 0 { "" } else { " " };
                    write!(f, "{space}{key}:{value}")?;
                }
                f.write_str("]")
            }
            Self::Struct(fields) => {
                f.write_str("{")?;
                for (index, Field { name, go_type, value }) in fields.iter().enumerate() {
                    let space = if index == 0 { "" } else { " " };
                    write!(f, "{space}{name}:({go_type}){value}")?;
                }
                f.write_str("}")
            }
            Self::Pointer(value) => write!(f, "<*>{value}"),
        }
    }
}

/// The dump of a byte slice: `([]uint8)[123 34 …]`.
pub fn bytes(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("([]uint8)[{}]", numbers.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::fnv1a_32;

    fn cpu_checkpoint(policy: &str, default: &str, entries: Dump) -> u32 {
        let dump = Dump::fields([
            ("PolicyName", "string", Dump::raw(policy)),
            ("DefaultCPUSet", "string", Dump::raw(default)),
            ("Entries", "map[string]map[string]string", entries),
            ("Checksum", "checksum.Checksum", Dump::raw(0)),
        ]);
        fnv1a_32(dump.typed("*state.CPUManagerCheckpoint").as_bytes())
    }

    #[test]
    fn cpu_manager_checksums_are_the_go_kubelets() {
        assert_eq!(cpu_checkpoint("none", "", Dump::Map(vec![])), 1_353_318_690);
        assert_eq!(cpu_checkpoint("none", "4-6", Dump::Map(vec![])), 354_655_845);
        let containers = Dump::Map(vec![
            ("container1".to_owned(), Dump::raw("4-6")),
            ("container2".to_owned(), Dump::raw("1-3")),
        ]);
        let entries = Dump::Map(vec![("pod".to_owned(), containers)]);
        assert_eq!(cpu_checkpoint("none", "1-3", entries), 3_610_638_499);
    }

    #[test]
    fn memory_manager_checksum_is_the_go_kubelets() {
        let table = Dump::fields([
            ("TotalMemSize", "uint64", Dump::raw(2048)),
            ("SystemReserved", "uint64", Dump::raw(512)),
            ("Allocatable", "uint64", Dump::raw(1536)),
            ("Reserved", "uint64", Dump::raw(512)),
            ("Free", "uint64", Dump::raw(1024)),
        ]);
        let memory = Dump::Map(vec![("memory".to_owned(), Dump::Pointer(Box::new(table)))]);
        let node = Dump::fields([
            ("NumberOfAssignments", "int", Dump::raw(0)),
            ("MemoryMap", "map[v1.ResourceName]*state.MemoryTable", memory),
            ("Cells", "[]int", Dump::List(vec![])),
        ]);
        let machine = Dump::Map(vec![("0".to_owned(), Dump::Pointer(Box::new(node)))]);
        let block = Dump::fields([
            ("NUMAAffinity", "[]int", Dump::List(vec![Dump::raw(0)])),
            ("Type", "v1.ResourceName", Dump::raw("memory")),
            ("Size", "uint64", Dump::raw(512)),
        ]);
        let containers = Dump::Map(vec![("container1".to_owned(), Dump::List(vec![block]))]);
        let entries = Dump::Map(vec![("pod".to_owned(), containers)]);
        let dump = Dump::fields([
            ("PolicyName", "string", Dump::raw("static")),
            ("MachineState", "state.NUMANodeMap", machine),
            ("Entries", "state.ContainerMemoryAssignments", entries),
            ("Checksum", "checksum.Checksum", Dump::raw(0)),
        ]);
        let text = dump.typed("*state.MemoryManagerCheckpoint");
        assert_eq!(fnv1a_32(text.as_bytes()), 4_215_593_881);
    }

    #[test]
    fn device_checksum_is_the_go_kubelets() {
        let dump = Dump::fields([
            ("PodDeviceEntries", "[]checkpoint.PodDevicesEntry", Dump::Nil),
            ("RegisteredDevices", "map[string][]string", Dump::Map(vec![])),
        ]);
        assert_eq!(fnv1a_32(dump.typed("checkpoint.checkpointData").as_bytes()), 3_467_439_661);
    }
}
