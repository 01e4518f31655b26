//! What policies make of hints: tables, and properties on eight nodes.

use super::*;
use crate::topology::masks_of;
use proptest::prelude::*;

fn numa(nodes: u32) -> Numa {
    let row = |node: u32| (0..nodes).map(|other| if other == node { 10 } else { 20 }).collect();
    Numa { distances: (0..nodes).map(|node| (node, row(node))).collect() }
}

fn policy(kind: PolicyKind, nodes: u32) -> Policy {
    Policy::new(kind, numa(nodes), &BTreeMap::new()).unwrap()
}

/// `01+` is node 0 preferred, `11-` both nodes not preferred, `*+`/`*-` any; `nil` no opinion, empty none possible.
fn provider(text: &str) -> ResourceHints {
    let one = |hint: &str| {
        let (mask, sign) = hint.split_at(hint.len() - 1);
        let bits = mask.chars().rev().zip(0..).filter(|(c, _)| *c == '1').map(|(_, bit)| bit);
        let affinity = (mask != "*").then(|| NumaMask::of(bits));
        Hint { affinity, preferred: sign == "+" }
    };
    text.split(';')
        .filter(|part| !part.is_empty())
        .enumerate()
        .map(|(index, part)| {
            let hints = part.trim();
            let hints = (hints != "nil")
                .then(|| hints.split_whitespace().filter(|h| *h != "-").map(one).collect());
            (format!("r{index}"), hints)
        })
        .collect()
}

fn shown((hint, admit): (Hint, bool)) -> String {
    let mask = hint.affinity.map_or("nil".to_owned(), |mask| mask.to_string());
    format!(
        "{mask}{}{}",
        if hint.preferred { "+" } else { "-" },
        if admit { "" } else { " refused" }
    )
}

#[test]
fn each_policy_chooses_as_upstream() {
    // Hints of the providers, then best-effort, restricted and single-numa-node on two nodes.
    let cases: [(&[&str], &str, &str, &str); 13] = [
        (&[], "11+", "11+", "nil+"),
        (&["", ""], "11+", "11+", "nil+"),
        (&["nil"], "11+", "11+", "nil+"),
        (&["-"], "11-", "11- refused", "nil- refused"),
        (&["01+ 10+ 11-"], "01+", "01+", "01+"),
        (&["01+ 10+ 11-", "10+ 11-"], "10+", "10+", "10+"),
        (&["01+", "10+"], "11-", "11- refused", "nil- refused"),
        (&["11+"], "11+", "11+", "nil- refused"),
        (&["01+ 10+ 11-", "11+"], "11-", "11- refused", "nil- refused"),
        (&["01- 10- 11-"], "01-", "01- refused", "nil- refused"),
        (&["01+ 10+", "nil", ""], "01+", "01+", "01+"),
        (&["01+ 10+", "-"], "01-", "01- refused", "nil- refused"),
        (&["11- 01-", "11-"], "11-", "11- refused", "nil- refused"),
    ];
    for (hints, best_effort, restricted, single) in cases {
        let providers: Vec<ResourceHints> = hints.iter().map(|h| provider(h)).collect();
        let merged = |kind| shown(policy(kind, 2).merge(&providers));
        assert_eq!(merged(PolicyKind::BestEffort), best_effort, "best-effort of {hints:?}");
        assert_eq!(merged(PolicyKind::Restricted), restricted, "restricted of {hints:?}");
        assert_eq!(merged(PolicyKind::SingleNumaNode), single, "single-numa-node of {hints:?}");
    }
}

#[test]
fn no_policy_has_no_affinity_and_admits() {
    let merged = policy(PolicyKind::None, 2).merge(&[provider("-")]);
    assert_eq!(shown(merged), "nil-");
}

#[test]
fn closest_nodes_win_only_when_asked() {
    // Nodes 0 and 3 are neighbours, 0 and 1 are not.
    let rows =
        [vec![10, 40, 40, 12], vec![40, 10, 12, 40], vec![40, 12, 10, 40], vec![12, 40, 40, 10]];
    let numa = Numa { distances: (0..).zip(rows).collect() };
    let hints = [provider("0011+ 1001+ 0110+")];
    let plain = Policy::new(PolicyKind::Restricted, numa.clone(), &BTreeMap::new()).unwrap();
    assert_eq!(shown(plain.merge(&hints)), "11+");
    let options = BTreeMap::from([("prefer-closest-numa-nodes".to_owned(), "true".to_owned())]);
    let closest = Policy::new(PolicyKind::Restricted, numa, &options).unwrap();
    assert_eq!(shown(closest.merge(&hints)), "0110+");
}

#[test]
fn more_nodes_than_allowed_are_refused() {
    let fault = Policy::new(PolicyKind::Restricted, numa(9), &BTreeMap::new()).unwrap_err();
    assert_eq!(fault.to_string(), "unsupported on machines with more than 8 NUMA Nodes");
    assert!(Policy::new(PolicyKind::None, numa(9), &BTreeMap::new()).is_ok());
}

fn any_provider() -> impl Strategy<Value = ResourceHints> {
    let masks = masks_of(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let hint = (proptest::option::weighted(0.9, proptest::sample::select(masks)), any::<bool>())
        .prop_map(|(affinity, preferred)| Hint { affinity, preferred });
    let hints = proptest::option::weighted(0.9, proptest::collection::vec(hint, 0..12));
    proptest::collection::btree_map("[a-c]", hints, 0..3)
}

/// Upstream's merge, literally: a fold over every combination in the given order.
fn folded(policy: &Policy, providers: &[ResourceHints]) -> Option<Candidate> {
    let mut hints = flatten(providers);
    if policy.kind == PolicyKind::SingleNumaNode {
        for one in &mut hints {
            one.retain(|h| h.preferred && h.affinity.is_none_or(|m| m.count() == 1));
        }
    }
    let need = widest_need(&hints);
    let mut all = vec![Vec::new()];
    for own in &hints {
        all = all
            .iter()
            .flat_map(|chosen: &Vec<Hint>| own.iter().map(|h| [chosen.as_slice(), &[*h]].concat()))
            .collect();
    }
    let mut best = None;
    for chosen in all {
        let masks: Vec<NumaMask> = chosen.iter().filter_map(|h| h.affinity).collect();
        let mask = masks.iter().fold(policy.numa.all(), |all, mask| all.and(*mask));
        let equal = masks.windows(2).all(|pair| pair[0] == pair[1]);
        let preferred = equal && chosen.iter().all(|h| h.preferred);
        best = policy.better(best, Candidate { mask, preferred }, need);
    }
    best
}

proptest! {
    #[test]
    fn merging_equals_the_fold_over_every_combination(
        providers in proptest::collection::vec(any_provider(), 0..3),
        kind in proptest::sample::select(vec![PolicyKind::BestEffort, PolicyKind::Restricted]),
    ) {
        let policy = policy(kind, 8);
        let (hint, _) = policy.merge(&providers);
        let expected = folded(&policy, &providers)
            .map_or(Hint::new(policy.numa.all(), false), |best| Hint::new(best.mask, best.preferred));
        prop_assert_eq!(hint, expected);
    }

    #[test]
    fn the_order_of_providers_and_hints_does_not_matter(
        mut providers in proptest::collection::vec(any_provider(), 0..4),
        kind in proptest::sample::select(vec![
            PolicyKind::BestEffort, PolicyKind::Restricted, PolicyKind::SingleNumaNode,
        ]),
    ) {
        let policy = policy(kind, 8);
        let before = policy.merge(&providers);
        providers.reverse();
        for hints in providers.iter_mut().flat_map(BTreeMap::values_mut).flatten() {
            hints.reverse();
        }
        prop_assert_eq!(policy.merge(&providers), before);
    }

    #[test]
    fn a_single_node_policy_admits_one_node_or_none_in_particular(
        providers in proptest::collection::vec(any_provider(), 0..4),
    ) {
        let (hint, admitted) = policy(PolicyKind::SingleNumaNode, 8).merge(&providers);
        if admitted {
            prop_assert!(hint.affinity.is_none_or(|mask| mask.count() == 1));
        }
    }
}
