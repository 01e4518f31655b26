//! Which CPUs are taken: some by hand, and what always holds (many more are in `tests/golden_placement.rs`).

use super::super::CpuInfo;
use super::*;
use proptest::prelude::*;

/// `nodes` × `cores` × `threads`; siblings are `nodes·cores` apart; one socket per node.
fn machine(nodes: u32, cores: u32, threads: u32) -> CpuTopology {
    let all = nodes * cores;
    let info = |core: u32| CpuInfo {
        numa: i64::from(core / cores),
        socket: i64::from(core / cores),
        core: i64::from(core),
        uncore: i64::from(core / cores),
    };
    let cpus = (0..all * threads).map(|cpu| (cpu, info(cpu % all))).collect();
    let count = |number: u32| usize::try_from(number).unwrap();
    CpuTopology { cpus, cores: count(all), sockets: count(nodes) }
}

fn taken(topology: &CpuTopology, free: &str, count: usize, options: CpuOptions) -> String {
    match take(topology, &free.parse().unwrap(), count, options) {
        Ok(cpus) => cpus.to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn holes_are_filled_before_new_groups_are_opened() {
    let two_nodes = machine(2, 4, 2);
    let options = CpuOptions::default();
    let cases = [
        ("0-15", 1, "0"),
        ("0-15", 2, "0,8"),
        ("0-15", 3, "0-1,8"),
        ("0-15", 8, "0-3,8-11"),
        ("1-15", 8, "4-7,12-15"),
        ("1-15", 1, "8"),
        ("1-15", 2, "1,9"),
        ("3,7,15", 2, "7,15"),
        ("0-1", 3, "not enough cpus available to satisfy request: requested=3, available=2"),
    ];
    for (free, count, expected) in cases {
        assert_eq!(taken(&two_nodes, free, count, options), expected, "{count} of {free}");
    }
}

#[test]
fn spreading_over_cores_takes_siblings_last() {
    let options = CpuOptions { distribute_across_cores: true, ..CpuOptions::default() };
    assert_eq!(taken(&machine(1, 4, 2), "0-7", 3, options), "0-2");
}

fn any_options() -> impl Strategy<Value = CpuOptions> {
    let plain = CpuOptions::default();
    proptest::sample::select(vec![
        plain,
        CpuOptions { full_pcpus_only: true, ..plain },
        CpuOptions { distribute_across_numa: true, ..plain },
        CpuOptions { distribute_across_numa: true, full_pcpus_only: true, ..plain },
        CpuOptions { distribute_across_cores: true, ..plain },
        CpuOptions { prefer_align_by_uncore: true, ..plain },
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn what_is_taken_was_free_and_is_as_much_as_asked(
        used in proptest::collection::btree_set(0_u32..64, 0..64),
        count in 1_usize..64,
        options in any_options(),
    ) {
        let topology = machine(8, 4, 2);
        let free: CpuSet = (0..64).filter(|cpu| !used.contains(cpu)).collect();
        match take(&topology, &free, count, options) {
            Ok(cpus) => {
                prop_assert_eq!(cpus.len(), count);
                prop_assert!(cpus.is_subset(&free));
            }
            Err(TakeError::TooFew { .. }) => prop_assert!(free.len() < count),
            // Upstream forgets which nodes it chose among four or more.
            Err(TakeError::Accounting { .. }) => prop_assert!(options.distribute_across_numa),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn whole_cores_are_given_when_whole_cores_are_free(
        used in proptest::collection::btree_set(0_u32..32, 0..32),
        cores in 1_usize..16,
    ) {
        let topology = machine(8, 4, 2);
        let free: CpuSet = (0..64).filter(|cpu| !used.contains(&(cpu % 32))).collect();
        prop_assume!(free.len() >= cores * 2);
        let cpus = take(&topology, &free, cores * 2, CpuOptions::default()).unwrap();
        for cpu in cpus.iter() {
            prop_assert!(cpus.contains((cpu + 32) % 64), "half a core in {}", cpus);
        }
    }
}
