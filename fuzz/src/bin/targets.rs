//! One program for all targets: `FUZZ_TARGET=name targets [options of libFuzzer]`; without a name it lists them.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use rubelet_fuzz::{Target, targets};

static CHOSEN: OnceLock<Target> = OnceLock::new();

fn choose() {
    let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let all = targets();
    match all.iter().find(|(name, _)| *name == wanted) {
        Some(target) => {
            CHOSEN.get_or_init(|| *target);
        }
        None => {
            for (name, _) in all {
                println!("{name}");
            }
            std::process::exit(0);
        }
    }
}

fuzz_target!(
    init: choose(),
    |input: &[u8]| {
        if let Some((_, target)) = CHOSEN.get() {
            target(input);
        }
    }
);
