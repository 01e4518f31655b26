//! The table of figures, ratios and what is wanted of them.

use testkit::real::KubeletKind;

use crate::floor::Floor;
use crate::measure::Figures;

/// A row: its name, how to read it, and the largest ratio (ours to Go's) that is wanted.
struct Row {
    name: &'static str,
    of: fn(&Figures) -> f64,
    wanted: f64,
}

const ROWS: [Row; 18] = [
    Row { name: "alone: memory, one pod, MiB", of: |f| f.alone_mib, wanted: 0.25 },
    Row { name: "alone: all pods running, s", of: |f| f.alone_batch_s, wanted: 1.0 },
    Row { name: "alone: death → next one runs, s", of: |f| f.alone_restart_s, wanted: 1.0 },
    Row { name: "start → node Ready, s", of: |f| f.ready_s, wanted: 1.0 },
    Row { name: "resident memory, no pods, MiB", of: |f| f.empty_mib, wanted: 0.25 },
    Row { name: "resident memory, all pods, MiB", of: |f| f.full_mib, wanted: 0.25 },
    Row { name: "idle CPU, all pods, millicores", of: |f| f.idle_millicores, wanted: 0.2 },
    Row { name: "idle context switches per second", of: |f| f.idle_switches, wanted: 1.0 },
    Row { name: "CPU of the first scrape, ms", of: |f| f.first_scrape_cpu_ms, wanted: 1.0 },
    Row { name: "CPU of one scrape after it, ms", of: |f| f.scrape_cpu_ms, wanted: 1.0 },
    Row { name: "all pods ready, s", of: |f| f.batch_s, wanted: 1.0 },
    Row { name: "start latency p50, s", of: |f| f.p50_s, wanted: 1.0 },
    Row { name: "start latency p99, s", of: |f| f.p99_s, wanted: 1.0 },
    Row { name: "CPU per pod started, ms", of: |f| f.start_cpu_ms, wanted: 0.5 },
    Row { name: "container death → restart reported, s", of: |f| f.restart_s, wanted: 1.0 },
    Row { name: "all pods deleted, s", of: |f| f.delete_s, wanted: 1.0 },
    Row { name: "CPU per pod deleted, ms", of: |f| f.end_cpu_ms, wanted: 0.5 },
    Row { name: "binary, MiB", of: |f| f.binary_mib, wanted: 1.0 },
];

/// Print everything; ratios where both kubelets were measured.
pub(crate) fn print(columns: &[(KubeletKind, Figures)], floor: Floor) {
    let of = |kind| columns.iter().find(|(k, _)| *k == kind).map(|(_, figures)| figures);
    let (go, ours) = (of(KubeletKind::Go), of(KubeletKind::Rubelet));
    println!("\n{:<40} {:>10} {:>10} {:>8} {:>8}", "", "Go", "rubelet", "ratio", "wanted");
    for row in &ROWS {
        let shown = |figures: Option<&Figures>| match figures {
            Some(figures) => format!("{:.2}", (row.of)(figures)),
            None => "-".to_owned(),
        };
        let (ratio, verdict) = match (go, ours) {
            (Some(go), Some(ours)) if (row.of)(go) > 0.0 => {
                let ratio = (row.of)(ours) / (row.of)(go);
                (format!("{ratio:.2}"), if ratio <= row.wanted { "" } else { "  missed" })
            }
            _ => ("-".to_owned(), ""),
        };
        let (name, wanted) = (row.name, format!("≤ {:.2}", row.wanted));
        println!(
            "{name:<40} {:>10} {:>10} {ratio:>8} {wanted:>8}{verdict}",
            shown(go),
            shown(ours)
        );
    }
    for (kind, figures) in columns {
        let of_floor = |seconds: f64| seconds / floor.batch.as_secs_f64();
        println!(
            "{kind:?}: all pods run after {:.2} × the runtime's floor alone, {:.2} × in a cluster; \
             a restart takes the runtime's time and {:.0} ms",
            of_floor(figures.alone_batch_s),
            of_floor(figures.batch_s),
            (figures.alone_restart_s - floor.one.as_secs_f64()) * 1000.0,
        );
    }
}
