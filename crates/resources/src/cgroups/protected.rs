//! Metrics of the memory protected by `memory.min` and `memory.low` (gate MemoryQoS).

use telemetry::metrics::{Desc, GaugeFamily, Registry};

const MIN: Desc = Desc::alpha(
    "kubelet_memory_qos_node_memory_min_bytes",
    "Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never \
     reclaimed by the kernel.",
);
const LOW: Desc = Desc::alpha(
    "kubelet_memory_qos_node_memory_low_bytes",
    "Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be \
     reclaimed under extreme pressure.",
);

/// The two gauges.
#[derive(Debug, Clone)]
pub struct ProtectedMemory {
    min: GaugeFamily,
    low: GaugeFamily,
}

impl ProtectedMemory {
    /// Registers the gauges.
    pub fn new(registry: &Registry) -> Self {
        Self { min: registry.gauge(MIN), low: registry.gauge(LOW) }
    }

    /// Sets the bytes of Guaranteed and of Burstable pods.
    #[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
    pub(super) fn show(&self, (min, low): (i64, i64)) {
        self.min.set(&[], min as f64);
        self.low.set(&[], low as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_shown_in_bytes() {
        let registry = Registry::new();
        ProtectedMemory::new(&registry).show((1024, 512));
        let page = registry.render();
        assert!(page.contains("\nkubelet_memory_qos_node_memory_min_bytes 1024\n"), "{page}");
        assert!(page.contains("\nkubelet_memory_qos_node_memory_low_bytes 512\n"), "{page}");
    }
}
