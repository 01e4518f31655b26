//! The figures of both kubelets side by side, and the limits.

use std::time::Duration;

use testkit::real::KubeletKind;

use super::{Attack, Figures};

/// Two heart-beats are a quarter of the lease apart; one may be late by a jitter and a busy machine, not lost.
const HEART_BEAT: Duration = Duration::from_millis(4500);
/// How much memory an attack may cost.
const GROWTH_MIB: f64 = 32.0;
/// What a pod may take longer than twice the usual, for the sake of a busy machine.
const SLACK: Duration = Duration::from_millis(1000);
/// Shorter than this, processor times tell nothing.
const CPU_SLACK: f64 = 1.0;

/// The limits that were missed. What Go misses too, by more, is what the attack does to the machine.
#[must_use]
pub fn missed(attack: Attack, ours: &Figures, go: Option<&Figures>) -> Vec<String> {
    let mut missed = Vec::new();
    let machine = |of: fn(&Figures) -> Option<Duration>| {
        // `None` is "never": longer than anything.
        go.is_some_and(|go| match (of(ours), of(go)) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(other)) => own <= other,
        })
    };
    if ours.heart_beat > HEART_BEAT && !machine(|f| Some(f.heart_beat)) {
        missed.push(format!("heart-beat after {}", shown(Some(ours.heart_beat))));
    }
    let pod_limit = ours.usual_pod * 2 + SLACK;
    if ours.new_pod.is_none_or(|time| time > pod_limit) && !machine(|f| f.new_pod) {
        missed.push(format!(
            "new pod after {}, not {}",
            shown(ours.new_pod),
            shown(Some(pod_limit))
        ));
    }
    if ours.health.is_none() && !machine(|f| f.health) {
        missed.push("/healthz was refused".to_owned());
    }
    if ours.growth > GROWTH_MIB {
        missed.push(format!("{:.0} MiB more memory", ours.growth));
    }
    if let Some(go) = go {
        let (own, other) = (cost(attack, ours), cost(attack, go));
        if own > other && ours.cpu > go.cpu + CPU_SLACK
            || own > other * 1.2 && attack.counts.is_some() && ours.cpu > CPU_SLACK
        {
            missed.push(format!("CPU {own:.2}, Go's {other:.2}"));
        }
    }
    missed
}

/// Processor seconds, or milliseconds for each thing that was done.
fn cost(attack: Attack, figures: &Figures) -> f64 {
    match attack.counts {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        Some(_) if figures.done > 0 => figures.cpu * 1000.0 / figures.done as f64,
        _ => figures.cpu,
    }
}

/// The head of the table.
#[must_use]
pub fn head() -> String {
    format!(
        "{:<24} {:<8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>9} {:>8}",
        "attack",
        "kubelet",
        "done",
        "heartbeat",
        "usual pod",
        "new pod",
        "healthz",
        "CPU s",
        "ms each",
        "MiB more"
    )
}

/// A line of the table.
#[must_use]
pub fn line(attack: Attack, kind: KubeletKind, figures: &Figures) -> String {
    let each = match attack.counts {
        Some(_) if figures.done > 0 => format!("{:.3}", cost(attack, figures)),
        _ => "-".to_owned(),
    };
    format!(
        "{:<24} {:<8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8.2} {each:>9} {:>8.1}",
        attack.name,
        format!("{kind:?}").to_lowercase(),
        figures.done,
        shown(Some(figures.heart_beat)),
        shown(Some(figures.usual_pod)),
        shown(figures.new_pod),
        shown(figures.health),
        figures.cpu,
        figures.growth,
    )
}

fn shown(time: Option<Duration>) -> String {
    time.map_or_else(|| "never".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACK: Attack = Attack { name: "a", counts: None, run: |_| Ok(0) };

    fn good() -> Figures {
        Figures {
            done: 100,
            heart_beat: Duration::from_secs(2),
            new_pod: Some(Duration::from_millis(700)),
            usual_pod: Duration::from_millis(500),
            health: Some(Duration::from_millis(3)),
            cpu: 3.0,
            growth: 5.0,
        }
    }

    #[test]
    fn a_node_that_goes_on_misses_nothing() {
        assert_eq!(missed(ATTACK, &good(), Some(&good())), Vec::<String>::new());
        assert_eq!(missed(ATTACK, &good(), None), Vec::<String>::new());
    }

    #[test]
    fn each_limit_is_seen_when_missed() {
        for worse in [
            Figures { heart_beat: Duration::from_secs(9), ..good() },
            Figures { new_pod: None, ..good() },
            Figures { new_pod: Some(Duration::from_secs(4)), ..good() },
            Figures { health: None, ..good() },
            Figures { growth: 40.0, ..good() },
            Figures { cpu: 5.0, ..good() },
        ] {
            assert_eq!(missed(ATTACK, &worse, Some(&good())).len(), 1, "{worse:?}");
        }
    }

    #[test]
    fn what_go_misses_by_more_is_the_machines() {
        let slow = Figures { new_pod: Some(Duration::from_secs(8)), ..good() };
        let slower = Figures { new_pod: None, ..good() };
        assert!(missed(ATTACK, &slow, Some(&slower)).is_empty());
        assert_eq!(missed(ATTACK, &slower, Some(&slow)).len(), 1);
    }

    #[test]
    fn processor_time_is_for_each_thing_done_where_they_are_counted() {
        let counted = Attack { counts: Some("requests"), ..ATTACK };
        let busy = Figures { done: 300, cpu: 6.0, ..good() };
        assert!(missed(counted, &busy, Some(&good())).is_empty());
        let dear = Figures { done: 50, cpu: 6.0, ..good() };
        assert_eq!(missed(counted, &dear, Some(&good())).len(), 1);
    }
}
