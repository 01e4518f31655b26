//! Thresholds: signals, values, grace periods, minimum reclaim.

use super::{FsLayout, Observation};
use crate::admission::Pressure;
use std::collections::BTreeMap;
use std::time::Duration;
use units::{DurationError, GoDuration, Percentage, PercentageError, Quantity, QuantityError};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory of the node.
    MemoryAvailable,
    /// Memory for pods.
    AllocatableMemoryAvailable,
    /// Bytes of the node's filesystem.
    NodeFsAvailable,
    /// Inodes of the node's filesystem.
    NodeFsInodesFree,
    /// Bytes of the images' filesystem.
    ImageFsAvailable,
    /// Inodes of the images' filesystem.
    ImageFsInodesFree,
    /// Bytes of the writable layers' filesystem.
    ContainerFsAvailable,
    /// Inodes of the writable layers' filesystem.
    ContainerFsInodesFree,
    /// Process ids.
    PidAvailable,
}

impl Signal {
    /// All signals.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::PidAvailable,
    ];

    /// The name in configuration and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    fn parse(text: &str) -> Result<Self, ThresholdError> {
        Self::ALL
            .into_iter()
            .find(|signal| signal.as_str() == text)
            .ok_or_else(|| ThresholdError::Unsupported(text.to_owned()))
    }

    /// The starved resource, in events and messages.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => {
                "ephemeral-storage"
            }
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => {
                "inodes"
            }
            Self::PidAvailable => "pids",
        }
    }

    /// The node condition it leads to.
    pub fn pressure(self) -> Pressure {
        match self.resource() {
            "memory" => Pressure::Memory,
            "pids" => Pressure::Pid,
            _ => Pressure::Disk,
        }
    }

    /// `nodefs`, `imagefs` or `containerfs`.
    pub fn filesystem(self) -> Option<&'static str> {
        let (name, _) = self.as_str().split_once('.')?;
        name.ends_with("fs").then_some(name)
    }
}

/// A value: absolute or a share of the capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// Absolute.
    Amount(Quantity),
    /// A share.
    Share(Percentage),
}

impl Value {
    /// The value for this capacity.
    pub fn quantity(self, capacity: Quantity) -> Quantity {
        match self {
            Self::Amount(quantity) => quantity,
            Self::Share(share) => Quantity::from_bytes(share.of(capacity.value())),
        }
    }
}

/// A threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    /// Below this it is met.
    pub value: Value,
    /// How long it must be met before pods are evicted; zero for a hard one.
    pub grace: Duration,
    /// What must be free beyond the value before the threshold counts as resolved.
    pub min_reclaim: Option<Value>,
}

impl Threshold {
    /// Whether pods are evicted at once.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// Whether the reading is below the value, or below value plus minimum reclaim.
    pub(super) fn is_met(&self, observed: &Observation, with_reclaim: bool) -> bool {
        let mut value = self.value.quantity(observed.capacity);
        if let (true, Some(extra)) = (with_reclaim, self.min_reclaim) {
            value = value.saturating_add(extra.quantity(observed.capacity));
        }
        value > observed.available
    }
}

/// Why thresholds cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    /// No such signal.
    #[error("unsupported eviction signal {0}")]
    Unsupported(String),
    /// A soft threshold without a grace period.
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    NoGrace(&'static str),
    /// A value that is not above zero.
    #[error("eviction threshold {0} must be positive: {1}")]
    NotPositive(&'static str, Quantity),
    /// A share below zero.
    #[error("eviction percentage threshold {0} must be >= 0%: {1}")]
    ShareBelow(&'static str, String),
    /// A share above one.
    #[error("eviction percentage threshold {0} must be <= 100%: {1}")]
    ShareAbove(&'static str, String),
    /// A grace period below zero.
    #[error("invalid eviction grace period specified: {0}, must be a positive value")]
    NegativeGrace(String),
    /// A minimum reclaim below zero.
    #[error("negative eviction minimum reclaim specified for {0}")]
    NegativeReclaim(&'static str),
    /// A share of zero as minimum reclaim.
    #[error("eviction percentage minimum reclaim {0} must be positive: {1}")]
    ReclaimShare(&'static str, String),
    /// Not a quantity.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// Not a percentage.
    #[error(transparent)]
    Percentage(#[from] PercentageError),
    /// Not a duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
}

/// The configuration's maps from signal to text.
#[derive(Debug, Clone, Copy)]
pub struct ThresholdConfig<'a> {
    /// `evictionHard`.
    pub hard: &'a BTreeMap<String, String>,
    /// `evictionSoft`.
    pub soft: &'a BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`.
    pub soft_grace: &'a BTreeMap<String, String>,
    /// `evictionMinimumReclaim`.
    pub min_reclaim: &'a BTreeMap<String, String>,
    /// Allocatable is enforced on pods: watch their memory too.
    pub enforce_pods: bool,
}

impl ThresholdConfig<'_> {
    /// All thresholds: hard, soft, then those derived for pods' memory.
    pub fn parse(&self) -> Result<Vec<Threshold>, ThresholdError> {
        let mut all = values(self.hard)?;
        let soft = values(self.soft)?;
        let mut graces = BTreeMap::new();
        for (signal, text) in self.soft_grace {
            let signal = Signal::parse(signal)?;
            let grace: GoDuration = text.parse()?;
            let grace =
                grace.to_std().ok_or_else(|| ThresholdError::NegativeGrace(text.clone()))?;
            graces.insert(signal, grace);
        }
        let mut reclaims = Vec::new();
        for (signal, text) in self.min_reclaim {
            let signal = Signal::parse(signal)?;
            reclaims.push((signal, reclaim_value(signal, text)?));
        }
        for mut threshold in soft {
            let name = threshold.signal.as_str();
            threshold.grace =
                *graces.get(&threshold.signal).ok_or(ThresholdError::NoGrace(name))?;
            all.push(threshold);
        }
        for (signal, value) in reclaims {
            for threshold in all.iter_mut().filter(|t| t.signal == signal) {
                threshold.min_reclaim = Some(value);
            }
        }
        if self.enforce_pods {
            let derived: Vec<Threshold> = all
                .iter()
                .filter(|t| t.signal == Signal::MemoryAvailable && t.is_hard())
                .map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*t })
                .collect();
            all.extend(derived);
        }
        Ok(all)
    }
}

/// Derives the thresholds of the writable layers' filesystem from the filesystem it shares; configured ones are
/// ignored. Returns which were ignored.
pub fn derive_container_fs(
    thresholds: &[Threshold],
    layout: FsLayout,
) -> (Vec<Threshold>, Vec<Signal>) {
    use Signal::{
        ContainerFsAvailable, ContainerFsInodesFree, ImageFsAvailable, ImageFsInodesFree,
        NodeFsAvailable, NodeFsInodesFree,
    };
    let of_container = |t: &Threshold| t.signal.filesystem() == Some("containerfs");
    let ignored = thresholds.iter().filter(|t| of_container(t)).map(|t| t.signal).collect();
    let mut all: Vec<Threshold> = thresholds.iter().filter(|t| !of_container(t)).copied().collect();
    let [bytes, inodes] = match layout {
        FsLayout::DedicatedImages => [ImageFsAvailable, ImageFsInodesFree],
        FsLayout::One | FsLayout::Split => [NodeFsAvailable, NodeFsInodesFree],
    };
    let derived: Vec<Threshold> = all
        .iter()
        .filter_map(|t| {
            let signal = if t.signal == bytes {
                ContainerFsAvailable
            } else if t.signal == inodes {
                ContainerFsInodesFree
            } else {
                return None;
            };
            Some(Threshold { signal, ..*t })
        })
        .collect();
    all.extend(derived);
    (all, ignored)
}

fn values(map: &BTreeMap<String, String>) -> Result<Vec<Threshold>, ThresholdError> {
    let mut found = Vec::new();
    for (signal, text) in map {
        let signal = Signal::parse(signal)?;
        if let Some(value) = threshold_value(signal, text)? {
            found.push(Threshold { signal, value, grace: Duration::ZERO, min_reclaim: None });
        }
    }
    Ok(found)
}

/// `0%` and `100%` switch a signal off.
fn threshold_value(signal: Signal, text: &str) -> Result<Option<Value>, ThresholdError> {
    let name = signal.as_str();
    if !text.ends_with('%') {
        let quantity: Quantity = text.parse()?;
        if quantity <= Quantity::ZERO {
            return Err(ThresholdError::NotPositive(name, quantity));
        }
        return Ok(Some(Value::Amount(quantity)));
    }
    if text == "0%" || text == "100%" {
        return Ok(None);
    }
    let share: Percentage = text.parse()?;
    if share.fraction() < 0.0 {
        return Err(ThresholdError::ShareBelow(name, text.to_owned()));
    }
    if share.fraction() > 1.0 {
        return Err(ThresholdError::ShareAbove(name, text.to_owned()));
    }
    Ok(Some(Value::Share(share)))
}

fn reclaim_value(signal: Signal, text: &str) -> Result<Value, ThresholdError> {
    let name = signal.as_str();
    if text.ends_with('%') {
        let share: Percentage = text.parse()?;
        if share.fraction() <= 0.0 {
            return Err(ThresholdError::ReclaimShare(name, text.to_owned()));
        }
        return Ok(Value::Share(share));
    }
    let quantity: Quantity = text.parse()?;
    if quantity.is_negative() {
        return Err(ThresholdError::NegativeReclaim(name));
    }
    Ok(Value::Amount(quantity))
}
