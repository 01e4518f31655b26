//! Files of the node: the kernel's, the runtime's, and our own checkpoints, which anybody may have changed.

use std::path::Path;
use std::time::Duration;

use engine::allocation::AllocationState;
use engine::claims::ClaimBook;
use engine::devices::DeviceBook;
use engine::topology::Entries;
use units::cri_log::{LineFilter, LineOptions, Streams, Wanted};

use crate::{Target, text};

pub(crate) const TARGETS: &[Target] = &[
    ("log", log),
    ("mountinfo", mountinfo),
    ("cgroup", |input| sys::fuzzing::cgroup_file(text(input))),
    ("net-dev", |input| drop(sys::stats::parse_net_dev(text(input)))),
    ("kernel-log", kernel_log),
    ("resolv-conf", |input| drop(engine::request::dns::ResolvConf::parse(text(input)))),
    ("checkpoint-cpus", cpus),
    ("checkpoint-memory", memory),
    ("checkpoint-pods", pods),
    ("checkpoint-devices", devices),
    ("checkpoint-claims", claims),
    ("checkpoint-userns", |input| drop(engine::userns::decode(input))),
    ("projects", |input| drop(engine::volumes::Projects::parse(input, input))),
];

/// Lines of a container's log; the first two bytes say what is asked of them.
fn log(input: &[u8]) {
    let [flags, limit, rest @ ..] = input else { return };
    let options = LineOptions {
        since: (flags & 1 != 0).then_some((1_767_322_000, 0)),
        timestamps: flags & 2 != 0,
        limit_bytes: (flags & 4 != 0).then_some(u64::from(*limit)),
        limit_lines: (flags & 8 != 0).then_some(u64::from(*limit)),
        streams: match flags >> 4 & 3 {
            1 => Streams::Stdout,
            2 => Streams::Stderr,
            _ => Streams::All,
        },
    };
    let mut filter = LineFilter::new(options);
    let mut out = Vec::new();
    for line in rest.split_inclusive(|byte| *byte == b'\n') {
        if !matches!(filter.line(line, &mut out), Ok(Wanted::More)) {
            break;
        }
    }
    if let Some(limit) = options.limit_bytes {
        assert!(out.len() as u64 <= limit, "{} bytes, not {limit}", out.len());
    }
}

fn mountinfo(input: &[u8]) {
    let table = sys::mountinfo::parse(input);
    for path in table.iter().take(4).map(|mount| mount.mount_point.as_path()) {
        sys::mountinfo::at_or_below(&table, path);
        sys::mountinfo::references(&table, path);
        sys::mountinfo::label_of(&table, path);
    }
    sys::mountinfo::at_or_below(&table, Path::new("/"));
}

fn kernel_log(input: &[u8]) {
    let mut watch = engine::oom::OomReader::default();
    for kill in text(input).lines().filter_map(|line| watch.line(line)) {
        kill.system_message();
        kill.victim();
    }
}

fn cpus(input: &[u8]) {
    for form in [Entries::Containers, Entries::Pods] {
        let decoded =
            engine::cpus::checkpoint::decode(text(input), "static", &Default::default(), form);
        if let Ok(state) = decoded {
            let again = engine::cpus::checkpoint::encode("static", &state, form);
            let again =
                engine::cpus::checkpoint::decode(&again, "static", &Default::default(), form);
            assert_eq!(again.ok(), Some(state));
        }
    }
}

fn memory(input: &[u8]) {
    for form in [Entries::Containers, Entries::Pods] {
        if let Ok(state) = engine::memory::checkpoint::decode(text(input), "Static", form) {
            engine::memory::checkpoint::encode("Static", &state, form);
        }
    }
}

fn pods(input: &[u8]) {
    if let Ok(state) = AllocationState::from_checkpoint(text(input)) {
        assert!(state.to_checkpoint().is_ok());
    }
}

fn devices(input: &[u8]) {
    let mut book = DeviceBook::default();
    if book.restore(text(input), Duration::ZERO).is_ok() {
        assert!(book.to_checkpoint().is_ok());
    }
}

fn claims(input: &[u8]) {
    if let Ok(book) = ClaimBook::restore(text(input)) {
        assert!(book.to_checkpoint().is_ok());
    }
}
