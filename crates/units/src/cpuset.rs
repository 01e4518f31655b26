//! Sets of CPU numbers in the kernel's list form: `0-3,7`.

use crate::strconv;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The largest range taken from a text, far above any machine's number of CPUs.
const MAX_CPU: i64 = 1 << 20;

/// An ordered set of CPU numbers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuSet(BTreeSet<u32>);

/// Why a text is not a CPU set; the texts are Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// A part is not a number.
    #[error(transparent)]
    Number(#[from] strconv::NumError),
    /// A range runs backwards.
    #[error("invalid range {} ({start} > {end})", strconv::quote(.range))]
    Backwards {
        /// The range as written.
        range: String,
        /// Its first number.
        start: i64,
        /// Its last number.
        end: i64,
    },
    /// A number no machine has.
    #[error("cpu number {0} is out of range")]
    OutOfRange(i64),
}

impl CpuSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// How many CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is in.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Adds one CPU; false when it was in already.
    pub fn insert(&mut self, cpu: u32) -> bool {
        self.0.insert(cpu)
    }

    /// Takes one CPU out; false when it was not in.
    pub fn remove(&mut self, cpu: u32) -> bool {
        self.0.remove(&cpu)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Whether every CPU is also in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// CPUs in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// CPUs in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// CPUs in `self` but not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        if text.is_empty() {
            return Ok(Self::new());
        }
        let mut ranges = Vec::new();
        for range in text.split(',') {
            let (start, end) = match range.split_once('-') {
                None => {
                    let cpu = strconv::atoi(range)?;
                    (cpu, cpu)
                }
                Some((start, end)) => (strconv::atoi(start)?, strconv::atoi(end)?),
            };
            if start > end {
                return Err(CpuSetError::Backwards { range: range.to_owned(), start, end });
            }
            if end > MAX_CPU {
                return Err(CpuSetError::OutOfRange(end));
            }
            let first = u32::try_from(start).map_err(|_| CpuSetError::OutOfRange(start))?;
            let last = u32::try_from(end).map_err(|_| CpuSetError::OutOfRange(end))?;
            ranges.push((first, last));
        }
        // Each processor is taken once, however often it is named.
        ranges.sort_unstable();
        let mut next = 0;
        let fresh = ranges.into_iter().flat_map(|(first, last)| {
            let from = first.max(next);
            next = next.max(last.saturating_add(1));
            from..=last
        });
        Ok(Self(fresh.collect()))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(start) = cpus.next() {
            let mut end = start;
            while let Some(next) = cpus.next_if_eq(&end.saturating_add(1)) {
                end = next;
            }
            write!(f, "{separator}{start}")?;
            if end > start {
                write!(f, "-{end}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_is_named_ten_thousand_times_is_read_once() {
        let text = vec!["0-100000"; 10_000].join(",");
        let set: CpuSet = text.parse().unwrap();
        assert_eq!(set.to_string(), "0-100000");
        assert_eq!("5,1-3,2-4,3,9,0-1".parse::<CpuSet>().unwrap().to_string(), "0-5,9");
    }
    use proptest::prelude::*;

    #[test]
    fn reads_and_prints_ranges() {
        let cases = [
            ("", ""),
            ("5", "5"),
            ("1,2,3,4,5", "1-5"),
            ("1,2-2,3", "1-3"),
            ("0-3,7,9-10", "0-3,7,9-10"),
            ("10,1", "1,10"),
        ];
        for (text, printed) in cases {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn errors_read_as_go_has_them() {
        let cases = [
            ("nonnumeric", r#"strconv.Atoi: parsing "nonnumeric": invalid syntax"#),
            ("-1", r#"strconv.Atoi: parsing "": invalid syntax"#),
            ("1-", r#"strconv.Atoi: parsing "": invalid syntax"#),
            ("6-5", r#"invalid range "6-5" (6 > 5)"#),
            ("0,", r#"strconv.Atoi: parsing "": invalid syntax"#),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<CpuSet>().unwrap_err().to_string(), error);
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(cpus in prop::collection::btree_set(0_u32..300, 0..40)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
