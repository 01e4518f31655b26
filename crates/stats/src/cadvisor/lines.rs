//! The text of a response about many cgroups, in pieces.

use super::{Owner, Seen, Shown};
use crate::cadvisor::families::float;
use jiff::Timestamp;
use std::collections::{BTreeMap, VecDeque, btree_map};
use std::sync::Arc;
use telemetry::go_text::push_float;
use telemetry::metrics::{Desc, Kind, push_header, push_label};

/// Adds the samples of one family.
type Add = Box<dyn Fn(&mut Lines<'_>, &Seen) + Send>;

/// A family to be written.
type Family = (&'static Desc, Kind, Add);

/// A response being composed: families by name.
#[derive(Default)]
pub(super) struct Page {
    families: BTreeMap<&'static str, Family>,
}

impl Page {
    /// Adds a family.
    pub(super) fn family(
        &mut self,
        desc: &'static Desc,
        kind: Kind,
        add: impl Fn(&mut Lines<'_>, &Seen) + Send + 'static,
    ) {
        self.families.insert(desc.name(), (desc, kind, Box::new(add)));
    }

    /// The response for values read at `at`, between other text.
    pub(super) fn pieces(self, before: String, seen: Seen, at: Timestamp, after: String) -> Pieces {
        Pieces {
            text: Text { full: VecDeque::new(), open: before },
            families: self.families.into_iter(),
            after,
            seen,
            at,
            time: format!(" {}\n", at.as_millisecond()),
        }
    }
}

/// The size of a piece; only the last one is much shorter, and one is longer only if it has a very
/// long line. It is a few HTTP/2 frames, and small enough that its memory is reused for the next
/// piece.
const PIECE: usize = 64 << 10;
/// A piece with less free space than this is complete.
const LINE: usize = 1 << 10;

/// Text being written.
struct Text {
    /// Complete pieces.
    full: VecDeque<String>,
    open: String,
}

impl Text {
    /// After a line: continues in the next piece if this one is full.
    fn end_line(&mut self) {
        if self.open.len() + LINE > PIECE {
            let next = String::with_capacity(PIECE);
            self.full.push_back(std::mem::replace(&mut self.open, next));
        }
    }
}

/// A response's text, generated as it is read: that of a full node has megabytes.
pub(super) struct Pieces {
    text: Text,
    families: btree_map::IntoIter<&'static str, Family>,
    after: String,
    seen: Seen,
    at: Timestamp,
    time: String,
}

impl Iterator for Pieces {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            if let Some(full) = self.text.full.pop_front() {
                return Some(full);
            }
            let Some((name, (desc, kind, add))) = self.families.next() else {
                let mut last = std::mem::take(&mut self.text.open);
                last.push_str(&std::mem::take(&mut self.after));
                return (!last.is_empty()).then_some(last);
            };
            let start = self.text.open.len();
            push_header(&mut self.text.open, desc, kind);
            let header = self.text.open.len();
            let mut lines = Lines { text: &mut self.text, name, at: self.at, time: &self.time };
            add(&mut lines, &self.seen);
            if self.text.full.is_empty() && self.text.open.len() == header {
                self.text.open.truncate(start);
            }
        }
    }
}

/// The rendered labels of one cgroup.
pub(super) struct Labels {
    container: String,
    id: Arc<str>,
    whole: String,
    /// The offsets at which other labels may be inserted.
    ends: [usize; 4],
}

/// A label with a comma in front.
pub(super) fn label(name: &str, value: &str) -> String {
    let mut text = ",".to_owned();
    push_label(&mut text, name, value);
    text
}

impl Labels {
    /// The labels of a cgroup and its owner.
    pub(super) fn new(id: &Arc<str>, owner: &Owner<'_>) -> Self {
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
        Self { container: owner.container.to_owned(), id: Arc::clone(id), whole, ends }
    }

    /// The sort key of samples.
    pub(super) fn key(&self) -> (&str, &str) {
        (&self.container, &self.id)
    }

    /// The container's name.
    pub(super) fn container(&self) -> &str {
        &self.container
    }
}

/// Additional labels, each with a comma in front, by where their names belong in the order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extra<'a> {
    pub(super) before_id: &'a str,
    pub(super) after_image: &'a str,
    pub(super) after_namespace: &'a str,
    pub(super) after_pod: &'a str,
}

/// The samples of one family.
pub(super) struct Lines<'a> {
    text: &'a mut Text,
    name: &'a str,
    at: Timestamp,
    time: &'a str,
}

impl Lines<'_> {
    /// When the values were read, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        float(u64::try_from(self.at.as_millisecond() / 1000).unwrap_or(0))
    }

    /// A sample without labels and timestamp.
    pub(super) fn alone(&mut self, value: f64) {
        let open = &mut self.text.open;
        open.push_str(self.name);
        open.push(' ');
        push_float(open, value);
        open.push('\n');
        self.text.end_line();
    }

    /// A sample for each cgroup that has a value, with a timestamp.
    pub(super) fn each(&mut self, shown: &[Shown], value: impl Fn(&Shown) -> Option<f64>) {
        let time = self.time;
        self.plain(shown, value, time);
    }

    /// The same without a timestamp.
    pub(super) fn each_untimed(&mut self, shown: &[Shown], value: impl Fn(&Shown) -> Option<f64>) {
        self.plain(shown, value, "\n");
    }

    fn plain(&mut self, shown: &[Shown], value: impl Fn(&Shown) -> Option<f64>, end: &str) {
        for s in shown {
            if let Some(value) = value(s) {
                let open = &mut self.text.open;
                open.push_str(self.name);
                open.push_str(&s.labels.whole);
                push_float(open, value);
                open.push_str(end);
                self.text.end_line();
            }
        }
    }

    /// A sample with additional labels and a timestamp.
    pub(super) fn with(&mut self, labels: &Labels, extra: Extra<'_>, value: f64) {
        let open = &mut self.text.open;
        open.push_str(self.name);
        let extras = [extra.before_id, extra.after_image, extra.after_namespace, extra.after_pod];
        let mut from = 0;
        for (end, extra) in labels.ends.iter().zip(extras) {
            open.push_str(labels.whole.get(from..*end).unwrap_or_default());
            open.push_str(extra);
            from = *end;
        }
        open.push_str("} ");
        push_float(open, value);
        open.push_str(self.time);
        self.text.end_line();
    }
}
