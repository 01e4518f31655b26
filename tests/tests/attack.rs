//! Every attack on a node with thirty pods, under Rubelet and the Go kubelet one after the other, and a
//! table of what others notice (`make attack`).
//!
//! `SECONDS=n` is how long each lasts (30), `ATTACK=name,name` takes those alone, `KUBELET=go` or
//! `KUBELET=rubelet` attacks one kubelet alone. Everything is sent to loopback.
#![forbid(unsafe_code)]

use testkit::real::KubeletKind;
use tests::attack::{Figures, Stage, all, table};

#[test]
fn nobody_slows_the_node_down_more_than_one_with_the_go_kubelet() {
    let seconds = std::env::var("SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    let only = std::env::var("ATTACK").unwrap_or_default();
    let wanted = |name: &str| only.is_empty() || only.split(',').any(|own| name.contains(own));
    let attacks: Vec<_> = all().into_iter().filter(|attack| wanted(attack.name)).collect();
    assert!(!attacks.is_empty(), "no attack is named like {only:?}");
    let kinds = match std::env::var_os("KUBELET") {
        Some(_) => vec![KubeletKind::from_env().unwrap()],
        None => vec![KubeletKind::Go, KubeletKind::Rubelet],
    };
    println!("{}", table::head());
    let mut columns: Vec<(KubeletKind, Vec<Figures>)> = Vec::new();
    for kind in kinds {
        let stage = Stage::start(kind).unwrap();
        let endure = |attack| {
            let figures = stage.endure(attack, seconds).unwrap();
            println!("{}", table::line(attack, kind, &figures));
            figures
        };
        columns.push((kind, attacks.iter().copied().map(endure).collect()));
    }
    let of = |kind| columns.iter().find(|(k, _)| *k == kind).map(|(_, figures)| figures);
    let Some(ours) = of(KubeletKind::Rubelet) else { return };
    let mut missed = Vec::new();
    println!("\n{}", table::head());
    for (at, attack) in attacks.iter().enumerate() {
        let go = of(KubeletKind::Go).map(|figures| &figures[at]);
        if let Some(go) = go {
            println!("{}", table::line(*attack, KubeletKind::Go, go));
        }
        println!("{}", table::line(*attack, KubeletKind::Rubelet, &ours[at]));
        for limit in table::missed(*attack, &ours[at], go) {
            println!("    missed: {limit}");
            missed.push(format!("{}: {limit}", attack.name));
        }
    }
    assert!(missed.is_empty(), "limits missed:\n{}", missed.join("\n"));
}
