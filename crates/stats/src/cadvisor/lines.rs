//! The text of a page about many cgroups.

use super::{Owner, Shown};
use crate::cadvisor::families::float;
use jiff::Timestamp;
use std::collections::BTreeMap;
use telemetry::go_text::push_float;
use telemetry::metrics::{Desc, Kind, push_header, push_label};

/// What adds the samples of one family.
type Add<'a> = Box<dyn Fn(&mut Lines<'_>, &[Shown<'_>]) + 'a>;

/// A page in the making: families by name.
pub(super) struct Page<'a> {
    text: String,
    at: Timestamp,
    families: BTreeMap<&'static str, (&'a Desc, Kind, Add<'a>)>,
}

impl<'a> Page<'a> {
    /// A page after some text, of what was read at a moment.
    pub(super) fn new(text: String, at: Timestamp) -> Self {
        Self { text, at, families: BTreeMap::new() }
    }

    /// Adds a family.
    pub(super) fn family(
        &mut self,
        desc: &'a Desc,
        kind: Kind,
        add: impl Fn(&mut Lines<'_>, &[Shown<'_>]) + 'a,
    ) {
        self.families.insert(desc.name(), (desc, kind, Box::new(add)));
    }

    /// The text with all families that have samples.
    pub(super) fn write(self, shown: &[Shown<'_>]) -> String {
        /// What a sample takes without its labels.
        const LINE: usize = 64;
        let Self { mut text, at, families } = self;
        let labels: usize = shown.iter().map(|s| s.labels.whole.len() + LINE).sum();
        text.reserve(labels.saturating_mul(families.len()));
        let time = format!(" {}\n", at.as_millisecond());
        for (name, (desc, kind, add)) in families {
            let start = text.len();
            push_header(&mut text, desc, kind);
            let header = text.len();
            add(&mut Lines { text: &mut text, name, at, time: &time }, shown);
            if text.len() == header {
                text.truncate(start);
            }
        }
        text
    }
}

/// Labels of one cgroup as they are printed.
pub(super) struct Labels<'a> {
    container: &'a str,
    id: &'a str,
    whole: String,
    /// Where in the whole the labels end after which others may come.
    ends: [usize; 4],
}

/// A label as it follows another.
pub(super) fn label(name: &str, value: &str) -> String {
    let mut text = ",".to_owned();
    push_label(&mut text, name, value);
    text
}

impl<'a> Labels<'a> {
    /// The labels of a cgroup and its owner.
    pub(super) fn new(id: &'a str, owner: &Owner<'a>) -> Self {
        let mut whole = "{".to_owned();
        let mut ends = [0; 4];
        let groups: [&[(&str, &str)]; 4] = [
            &[("container", owner.container)],
            &[(",id", id), (",image", owner.image)],
            &[(",name", owner.name), (",namespace", owner.namespace)],
            &[(",pod", owner.pod)],
        ];
        for (group, end) in groups.iter().zip(&mut ends) {
            for (name, value) in *group {
                push_label(&mut whole, name, value);
            }
            *end = whole.len();
        }
        whole.push_str("} ");
        Self { container: owner.container, id, whole, ends }
    }

    /// What samples are sorted by.
    pub(super) fn key(&self) -> (&'a str, &'a str) {
        (self.container, self.id)
    }

    /// The container's name.
    pub(super) fn container(&self) -> &'a str {
        self.container
    }
}

/// Further labels, each with a comma in front, at the places where their names belong.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extra<'a> {
    pub(super) before_id: &'a str,
    pub(super) after_image: &'a str,
    pub(super) after_namespace: &'a str,
    pub(super) after_pod: &'a str,
}

/// The samples of one family.
pub(super) struct Lines<'a> {
    text: &'a mut String,
    name: &'a str,
    at: Timestamp,
    time: &'a str,
}

impl Lines<'_> {
    /// When the values were read, in whole seconds.
    pub(super) fn seconds(&self) -> f64 {
        float(u64::try_from(self.at.as_millisecond() / 1000).unwrap_or(0))
    }

    /// A sample without labels and time.
    pub(super) fn alone(&mut self, value: f64) {
        self.text.push_str(self.name);
        self.text.push(' ');
        push_float(self.text, value);
        self.text.push('\n');
    }

    /// A sample for each cgroup that has a value, with the time it was read.
    pub(super) fn each(&mut self, shown: &[Shown<'_>], value: impl Fn(&Shown<'_>) -> Option<f64>) {
        let time = self.time;
        self.plain(shown, value, time);
    }

    /// The same without a time.
    pub(super) fn each_untimed(
        &mut self,
        shown: &[Shown<'_>],
        value: impl Fn(&Shown<'_>) -> Option<f64>,
    ) {
        self.plain(shown, value, "\n");
    }

    fn plain(&mut self, shown: &[Shown<'_>], value: impl Fn(&Shown<'_>) -> Option<f64>, end: &str) {
        for s in shown {
            if let Some(value) = value(s) {
                self.text.push_str(self.name);
                self.text.push_str(&s.labels.whole);
                push_float(self.text, value);
                self.text.push_str(end);
            }
        }
    }

    /// A sample with further labels and the time it was read.
    pub(super) fn with(&mut self, labels: &Labels<'_>, extra: Extra<'_>, value: f64) {
        self.text.push_str(self.name);
        let extras = [extra.before_id, extra.after_image, extra.after_namespace, extra.after_pod];
        let mut from = 0;
        for (end, extra) in labels.ends.iter().zip(extras) {
            self.text.push_str(labels.whole.get(from..*end).unwrap_or_default());
            self.text.push_str(extra);
            from = *end;
        }
        self.text.push_str("} ");
        push_float(self.text, value);
        self.text.push_str(self.time);
    }
}
