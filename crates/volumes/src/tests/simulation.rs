//! Set-up and tear-down of a thousand pods with crashes at every step.
//!
//! The real subsystem runs in virtual time over a real disk, real mounts and a driver that really mounts;
//! see [`machine`] for crashes and disk faults, [`world`] for the pods and [`cluster`] for the controllers that
//! attach volumes and expand claims. Whatever happened, in the end nothing is mounted, nothing is left on
//! disk, and the driver has been asked to undo all it did; at no time was anything mounted twice at one path,
//! published without being staged, staged without being attached, detached while in use, or unmounted under
//! running containers.

mod cluster;
mod driver;
mod machine;
mod world;

pub(crate) use machine::Machine;
use world::{End, World};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Two pods with volumes of every kind; the node crashes after `step` changes and is restarted.
fn cut_at(step: u64, seed: u64) -> End {
    let mut world = World::new(&format!("cut-{step}-{seed}"), seed, 0);
    world.add_pod_with_everything();
    world.add_pod_with_everything();
    let end = world.live(Some(step), 2);
    if end == End::Died {
        world.meanwhile();
        assert_eq!(world.live(None, 2), End::Done);
    }
    world.check_clean(&format!("killed after {step} changes, seed {seed}"));
    end
}

#[test]
fn a_crash_at_any_step_leaves_no_leak_and_no_double_mount() {
    let seeds = number("SEEDS", 1);
    for seed in 1..=seeds {
        let mut step = number("FIRST", 0);
        // Every step with STRIDE=1; otherwise every seventh, starting at a different one for each seed.
        let stride = number("STRIDE", 7);
        step += seed % stride;
        while cut_at(step, seed) == End::Died {
            step += stride;
        }
        println!("seed {seed}: {step} steps");
        assert!(step > 100, "only {step} steps seen");
    }
}

#[test]
fn a_thousand_pods_under_faults_and_crashes_leave_nothing() {
    let (pods, seed) = (number("PODS", 250), number("SEED", 1));
    let mut world = World::new(&format!("many-{seed}"), seed, 12);
    let mut deaths = 0;
    loop {
        let fuse = 200 + world.machine.below(3000);
        match world.live(Some(fuse), pods) {
            End::Done => break,
            End::Died => {
                deaths += 1;
                world.meanwhile();
            }
        }
    }
    println!("{pods} pods, {deaths} crashes, {} changes", world.machine.state().changes);
    world.check_clean(&format!("seed {seed}"));
}
