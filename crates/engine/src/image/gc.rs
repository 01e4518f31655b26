//! Which images are removed when space runs out.
//!
//! Upstream: `pkg/kubelet/images/image_gc_manager.go`. The state is in memory only: after a restart
//! every image is protected by the minimum age again.

use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// When images are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcPolicy {
    /// `imageGCHighThresholdPercent`: at or above it, space is freed.
    pub high_percent: i64,
    /// `imageGCLowThresholdPercent`: down to it.
    pub low_percent: i64,
    /// `imageMinimumGCAge`: younger images stay.
    pub min_age: SignedDuration,
    /// `imageMaximumGCAge`: images unused for longer go; zero switches it off.
    pub max_age: SignedDuration,
}

/// Which image: where runtimes keep images for each runtime handler (gate RuntimeClassInImageCriApi), the same id may
/// be there more than once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageKey {
    /// Its id.
    pub id: String,
    /// The runtime handler it was pulled for; empty for the default one, and where images are not kept per handler.
    pub handler: String,
}

impl ImageKey {
    /// The image of this id, for the default handler.
    pub fn of_id(id: &str) -> Self {
        Self { id: id.to_owned(), handler: String::new() }
    }

    /// The text of `InvalidImageID`, of an image that has no id to remove it by.
    pub fn invalid_text(&self) -> String {
        let known_as = match self.handler.as_str() {
            "" => self.id.clone(),
            handler => format!("{},{handler}", self.id),
        };
        format!("ImageID is not valid, skipping, image: {known_as}")
    }
}

/// Images that containers run or mount, each with those containers: `namespace/pod/container`.
pub type Holders = BTreeMap<ImageKey, BTreeSet<String>>;

/// An image as the runtime lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedImage {
    /// Which one.
    pub key: ImageKey,
    /// Its size in bytes.
    pub size: u64,
    /// The runtime does not want it removed.
    pub pinned: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Remembered {
    first_detected: Timestamp,
    last_used: Option<Timestamp>,
    size: u64,
    pinned: bool,
}

/// When images on this node were first seen and last used.
#[derive(Debug, Clone, Default)]
pub struct ImageMemory {
    images: BTreeMap<ImageKey, Remembered>,
}

/// An image that may be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Which one.
    pub key: ImageKey,
    /// Its size in bytes.
    pub size: u64,
    first_detected: Timestamp,
    last_used: Option<Timestamp>,
}

impl ImageMemory {
    /// Updates the records with the runtime's images and those in use.
    pub fn observe(&mut self, listed: &[ListedImage], in_use: &Holders, now: Timestamp) {
        for image in listed {
            let known = self.images.entry(image.key.clone()).or_insert(Remembered {
                first_detected: now,
                last_used: None,
                size: 0,
                pinned: false,
            });
            if in_use.contains_key(&image.key) {
                known.last_used = Some(now);
            }
            known.size = image.size;
            known.pinned = image.pinned;
        }
        let present: BTreeSet<&ImageKey> = listed.iter().map(|i| &i.key).collect();
        self.images.retain(|key, _| present.contains(key));
    }

    /// Images that are neither used nor pinned, the longest unused first.
    pub fn candidates(&self, in_use: &Holders) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = self
            .images
            .iter()
            .filter(|(key, image)| !image.pinned && !in_use.contains_key(*key))
            .map(|(key, image)| Candidate {
                key: key.clone(),
                size: image.size,
                first_detected: image.first_detected,
                last_used: image.last_used,
            })
            .collect();
        all.sort_by_key(|c| (c.last_used, c.first_detected));
        all
    }

    /// Images that cannot be removed because containers use them.
    pub fn held(&self, in_use: &Holders) -> Held {
        let size = |key| self.images.get(key).map(|image| image.size);
        let mut images: Vec<(u64, &BTreeSet<String>)> =
            in_use.iter().filter_map(|(key, by)| Some((size(key)?, by))).collect();
        images.sort_by_key(|(size, by)| (std::cmp::Reverse(*size), *by));
        let bytes = images.iter().fold(0_u64, |sum, (size, _)| sum.saturating_add(*size));
        let told = images.iter().take(MOST_TOLD).map(|(size, by)| {
            let by: Vec<&str> = by.iter().take(MOST_TOLD).map(String::as_str).collect();
            format!("{} by {}", size_text(*size), by.join(", "))
        });
        Held { images: images.len(), bytes, by: told.collect::<Vec<_>>().join("; ") }
    }

    /// An image was removed.
    pub fn forget(&mut self, key: &ImageKey) {
        self.images.remove(key);
    }

    /// Ids of all known images.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.images.keys().map(|key| key.id.as_str())
    }
}

/// At most this many images, and this many containers of each, are named.
const MOST_TOLD: usize = 5;

/// Images that are kept because containers use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// How many.
    pub images: usize,
    /// Their sizes together.
    pub bytes: u64,
    /// The largest ones, each with containers that hold it.
    pub by: String,
}

impl Candidate {
    /// Unused for longer than the maximum age. Never-used images count as infinitely old, so the
    /// rule starts only after collection itself ran for that long.
    pub fn too_old(&self, policy: &GcPolicy, now: Timestamp, running_since: Timestamp) -> bool {
        !policy.max_age.is_zero()
            && now.duration_since(running_since) > policy.max_age
            && self.last_used.is_none_or(|used| now.duration_since(used) > policy.max_age)
    }

    /// May be removed for space: not used since `now`, not younger than the minimum age.
    pub fn removable(&self, policy: &GcPolicy, now: Timestamp) -> bool {
        self.last_used.is_none_or(|used| used < now)
            && now.duration_since(self.first_detected) >= policy.min_age
    }
}

/// How full the image filesystem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fullness {
    /// In percent.
    pub used_percent: i64,
    /// How much to free; `None` below the threshold.
    pub to_free: Option<i64>,
}

/// How much must go; `None` when the capacity is unknown.
pub fn fullness(policy: &GcPolicy, capacity: u64, available: u64) -> Option<Fullness> {
    let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
    let available = i64::try_from(available).unwrap_or(i64::MAX).min(capacity);
    if capacity == 0 {
        return None;
    }
    let percent = |part: i64, of: i64| {
        i64::try_from(i128::from(part) * 100 / i128::from(of)).unwrap_or(i64::MAX)
    };
    let used_percent = 100 - percent(available, capacity);
    let wanted = i128::from(capacity) * i128::from(100 - policy.low_percent) / 100;
    let to_free = i64::try_from(wanted - i128::from(available)).unwrap_or(i64::MAX);
    Some(Fullness {
        used_percent,
        to_free: (used_percent >= policy.high_percent).then_some(to_free),
    })
}

/// The text of `FreeDiskSpaceFailed`.
pub fn insufficient_text(used_percent: i64, capacity: u64, freed: u64) -> String {
    format!(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {} used). \
         Failed to free sufficient space by deleting unused images (freed {freed} bytes). \
         Investigate disk usage, as it could be used by active images, logs, volumes, or other \
         data.",
        size_text(capacity)
    )
}

#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
fn size_text(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    let size = bytes as f64;
    match size {
        s if s < KIB => format!("{bytes} B"),
        s if s < KIB * KIB => format!("{:.1} KiB", s / KIB),
        s if s < KIB.powi(3) => format!("{:.1} MiB", s / KIB.powi(2)),
        s if s < KIB.powi(4) => format!("{:.1} GiB", s / KIB.powi(3)),
        s => format!("{:.1} TiB", s / KIB.powi(4)),
    }
}

/// The `image_size_in_bytes` label of the pull duration histogram.
pub fn size_label(bytes: u64) -> &'static str {
    const MB: u64 = 1024 * 1024;
    const GB: u64 = 1024 * MB;
    const LABELS: [(u64, &str); 11] = [
        (10 * MB, "0-10MB"),
        (100 * MB, "10MB-100MB"),
        (500 * MB, "100MB-500MB"),
        (GB, "500MB-1GB"),
        (5 * GB, "1GB-5GB"),
        (10 * GB, "5GB-10GB"),
        (20 * GB, "10GB-20GB"),
        (30 * GB, "20GB-30GB"),
        (40 * GB, "30GB-40GB"),
        (60 * GB, "40GB-60GB"),
        (100 * GB, "60GB-100GB"),
    ];
    match bytes {
        0 => "N/A",
        size => LABELS.iter().find(|(most, _)| size <= *most).map_or("GT100GB", |(_, l)| l),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: u64 = 1 << 30;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn image(id: &str) -> ListedImage {
        ListedImage { key: ImageKey::of_id(id), size: 10, pinned: id == "pinned" }
    }

    fn policy() -> GcPolicy {
        GcPolicy {
            high_percent: 85,
            low_percent: 80,
            min_age: SignedDuration::from_secs(120),
            max_age: SignedDuration::ZERO,
        }
    }

    fn ids(candidates: &[Candidate]) -> Vec<&str> {
        candidates.iter().map(|c| c.key.id.as_str()).collect()
    }

    #[test]
    fn the_longest_unused_image_goes_first_and_used_or_pinned_ones_stay() {
        let mut memory = ImageMemory::default();
        let used = |names: &[&str]| -> Holders {
            names.iter().map(|name| (ImageKey::of_id(name), BTreeSet::new())).collect()
        };
        memory.observe(&[image("a"), image("b"), image("pinned")], &used(&["a"]), time(0));
        memory.observe(
            &[image("a"), image("b"), image("c"), image("pinned")],
            &used(&["b"]),
            time(1),
        );
        let all = memory.candidates(&used(&[]));
        assert_eq!(ids(&all), ["c", "a", "b"]);
        assert_eq!(ids(&memory.candidates(&used(&["a"]))), ["c", "b"]);
        memory.observe(&[image("b")], &used(&[]), time(2));
        assert_eq!(ids(&memory.candidates(&used(&[]))), ["b"], "gone images are forgotten");
    }

    #[test]
    fn an_image_in_use_for_one_handler_may_go_for_another() {
        let key = |handler: &str| ImageKey { handler: handler.into(), ..ImageKey::of_id("a") };
        let listed = ["", "kata"].map(|handler| ListedImage { key: key(handler), ..image("a") });
        let mut memory = ImageMemory::default();
        let used = Holders::from([(key(""), BTreeSet::new())]);
        memory.observe(&listed, &used, time(0));
        let left: Vec<ImageKey> = memory.candidates(&used).into_iter().map(|c| c.key).collect();
        assert_eq!(left, [key("kata")]);
        memory.forget(&key("kata"));
        assert_eq!(memory.ids().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn young_and_just_used_images_stay() {
        let mut memory = ImageMemory::default();
        memory.observe(&[image("a")], &Holders::new(), time(0));
        let candidate = &memory.candidates(&Holders::new())[0];
        assert!(!candidate.removable(&policy(), time(119)));
        assert!(candidate.removable(&policy(), time(120)));
        memory.observe(&[image("a")], &[(ImageKey::of_id("a"), BTreeSet::new())].into(), time(200));
        assert!(!memory.candidates(&Holders::new())[0].removable(&policy(), time(200)));
    }

    #[test]
    fn the_maximum_age_counts_only_once_we_ran_that_long() {
        let mut memory = ImageMemory::default();
        memory.observe(&[image("a")], &Holders::new(), time(0));
        let with_age = GcPolicy { max_age: SignedDuration::from_secs(60), ..policy() };
        let candidate = &memory.candidates(&Holders::new())[0];
        assert!(!candidate.too_old(&with_age, time(60), time(0)));
        assert!(candidate.too_old(&with_age, time(61), time(0)));
        assert!(!candidate.too_old(&policy(), time(1_000_000), time(0)));
    }

    #[test]
    fn frees_from_the_high_to_the_low_threshold() {
        assert_eq!(fullness(&policy(), 0, 0), None);
        let full = fullness(&policy(), 100, 15).unwrap();
        assert_eq!(full, Fullness { used_percent: 85, to_free: Some(5) });
        assert_eq!(fullness(&policy(), 100, 16).unwrap().to_free, None);
        assert_eq!(fullness(&policy(), 100, 500).unwrap().used_percent, 0);
    }

    #[test]
    fn tells_who_holds_the_largest_images() {
        let mut memory = ImageMemory::default();
        let listed = [("a", GI), ("b", 3 * GI), ("free", 9 * GI), ("c", 512)];
        let listed =
            listed.map(|(id, size)| ListedImage { key: ImageKey::of_id(id), size, pinned: false });
        let by = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let used = Holders::from([
            (ImageKey::of_id("a"), by(&["shop/web-0/main", "shop/web-1/main"])),
            (ImageKey::of_id("b"), by(&["jobs/big/work"])),
            (ImageKey::of_id("c"), by(&["kube-system/dns/dns"])),
            (ImageKey::of_id("gone"), by(&["old/one/main"])),
        ]);
        memory.observe(&listed, &used, time(0));
        let held = memory.held(&used);
        assert_eq!((held.images, held.bytes), (3, 4 * GI + 512));
        assert_eq!(
            held.by,
            "3.0 GiB by jobs/big/work; 1.0 GiB by shop/web-0/main, shop/web-1/main; \
             512 B by kube-system/dns/dns"
        );
        assert_eq!(memory.held(&Holders::new()).by, "");
    }

    #[test]
    fn texts_and_labels_are_upstreams() {
        let capacity = GI * 39 / 2;
        assert_eq!(
            insufficient_text(91, capacity, 7),
            "Insufficient free disk space on the node's image filesystem (91% of 19.5 GiB used). \
             Failed to free sufficient space by deleting unused images (freed 7 bytes). \
             Investigate disk usage, as it could be used by active images, logs, volumes, or other \
             data."
        );
        assert_eq!(size_text(512), "512 B");
        let nameless = |handler: &str| ImageKey { id: String::new(), handler: handler.into() };
        let told = "ImageID is not valid, skipping, image: ";
        assert_eq!(nameless("").invalid_text(), told);
        assert_eq!(nameless("kata").invalid_text(), format!("{told},kata"));
        for (size, want) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (GI, "500MB-1GB"),
            (GI + 1, "1GB-5GB"),
            (200 * GI, "GT100GB"),
        ] {
            assert_eq!(size_label(size), want);
        }
    }
}
