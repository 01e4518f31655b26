//! Volume stats of persistent volume claims (upstream: `volumeStatsCollector`).
//!
//! Promises: one sample per claim, however many pods use it. Deliberately absent: measuring; the
//! stats summary does it.

use api::stats::{PodStats, PvcReference, VolumeStats};
use std::collections::BTreeSet;
use telemetry::metrics::{Desc, Kind, SampleValue, Scrape};

const LABELS: &[&str] = &["namespace", "persistentvolumeclaim"];
const CAPACITY: Desc =
    Desc::alpha("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume")
        .labels(LABELS);
const AVAILABLE: Desc =
    Desc::alpha("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume")
        .labels(LABELS);
const USED: Desc =
    Desc::alpha("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume")
        .labels(LABELS);
const INODES: Desc =
    Desc::alpha("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume")
        .labels(LABELS);
const INODES_FREE: Desc =
    Desc::alpha("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume")
        .labels(LABELS);
const INODES_USED: Desc =
    Desc::alpha("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume")
        .labels(LABELS);
const ABNORMAL: Desc = Desc::alpha(
    "kubelet_volume_stats_health_status_abnormal",
    "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 \
     indicates volume is healthy",
)
.labels(LABELS);

/// Adds a sample of each family for each claim.
pub(super) fn add(pods: &[PodStats], scrape: &mut Scrape) {
    let mut seen = BTreeSet::new();
    for volume in pods.iter().flat_map(|pod| &pod.volumes) {
        let Some(claim) = &volume.claim else { continue };
        if seen.insert((&claim.namespace, &claim.name)) {
            add_claim(volume, claim, scrape);
        }
    }
}

fn add_claim(volume: &VolumeStats, claim: &PvcReference, scrape: &mut Scrape) {
    let fs = &volume.fs;
    let numbers = [
        (&CAPACITY, fs.capacity_bytes),
        (&AVAILABLE, fs.available_bytes),
        (&USED, fs.used_bytes),
        (&INODES, fs.inodes),
        (&INODES_FREE, fs.inodes_free),
        (&INODES_USED, fs.inodes_used),
    ];
    let numbers = numbers.map(|(desc, number)| (desc, Some(number.unwrap_or_default())));
    let health = volume.health.map(|health| u64::from(health.abnormal));
    for (desc, number) in numbers.into_iter().chain([(&ABNORMAL, health)]) {
        let Some(number) = number else { continue };
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        let value = SampleValue::Number(number as f64);
        let labels = [&*claim.namespace, &*claim.name];
        scrape.family(desc, Kind::Gauge).push_values(LABELS, &labels, value, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::stats::{FsStats, VolumeHealthStats};
    use telemetry::metrics::Registry;

    fn volume(claim: Option<&str>, used: u64, health: Option<bool>) -> VolumeStats {
        let claim = claim.map(|name| PvcReference { name: name.into(), namespace: "ns".into() });
        let fs = FsStats {
            capacity_bytes: Some(100),
            available_bytes: Some(100 - used),
            used_bytes: Some(used),
            inodes: Some(10),
            inodes_free: Some(9),
            inodes_used: Some(1),
            ..FsStats::default()
        };
        let health = health.map(|abnormal| VolumeHealthStats { abnormal });
        VolumeStats { fs, name: "v".into(), claim, health }
    }

    #[test]
    fn each_claim_is_told_once_and_other_volumes_are_not() {
        let pod = |volumes| PodStats { volumes, ..PodStats::default() };
        let first = pod(vec![volume(Some("a"), 30, None), volume(None, 99, None)]);
        let second = pod(vec![volume(Some("a"), 40, None), volume(Some("b"), 50, Some(true))]);
        let text = Registry::new().render_with(|scrape| add(&[first, second], scrape));
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let mut expected: Vec<String> = Vec::new();
        let of = |name: &str, claim: &str, number: u32| {
            format!(
                "kubelet_volume_stats_{name}{{namespace=\"ns\",persistentvolumeclaim=\"{claim}\"}} {number}"
            )
        };
        for (name, a, b) in [
            ("available_bytes", 70, 50),
            ("capacity_bytes", 100, 100),
            ("inodes", 10, 10),
            ("inodes_free", 9, 9),
            ("inodes_used", 1, 1),
            ("used_bytes", 30, 50),
        ] {
            expected.extend([of(name, "a", a), of(name, "b", b)]);
        }
        expected.push(of("health_status_abnormal", "b", 1));
        expected.sort();
        let mut samples: Vec<String> = samples.into_iter().map(str::to_owned).collect();
        samples.sort();
        assert_eq!(samples, expected);
        let help =
            "# HELP kubelet_volume_stats_used_bytes [ALPHA] Number of used bytes in the volume";
        assert!(text.contains(help), "{text}");
    }
}
