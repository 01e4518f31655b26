//! Kernel settings that pods rely on (kubelet: `setupKernelTunables`).

use std::path::Path;

/// Setting below `/proc/sys` and its value.
const WANTED: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// What to do about a setting with another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunableRule {
    /// Change it.
    Change,
    /// Change it if that is allowed.
    TryToChange,
    /// Refuse to start (`protectKernelDefaults`).
    Refuse,
}

/// Sets the values; the error lists all failures.
pub fn set_kernel_tunables(proc: &Path, rule: TunableRule) -> Result<(), String> {
    let mut faults = Vec::new();
    for (name, wanted) in WANTED {
        let path = proc.join("sys").join(name);
        let actual = match sys::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse::<i64>().ok(),
            Err(error) => {
                faults.push(opening(&path, &error));
                continue;
            }
        };
        if actual == Some(wanted) {
            continue;
        }
        if rule == TunableRule::Refuse {
            let actual = actual.unwrap_or_default();
            faults.push(format!(
                "invalid kernel flag: {name}, expected value: {wanted}, actual value: {actual}"
            ));
            continue;
        }
        tracing::info!(flag = name, expectedValue = wanted, "Updating kernel flag");
        match sys::fs::write(&path, wanted.to_string()) {
            Ok(()) => {}
            Err(error) if rule == TunableRule::TryToChange => {
                tracing::info!(flag = name, err = %error.source, "Updating kernel flag failed (running in UserNS, ignoring)");
            }
            Err(error) => faults.push(opening(&path, &error)),
        }
    }
    match faults.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

/// Why a setting could not be read or written, as Go says it.
fn opening(path: &Path, error: &sys::fs::FsError) -> String {
    format!("open {}: {}", path.display(), units::errno::go_text(&error.source))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make their own files")]
mod tests {
    use super::*;

    fn machine(name: &str) -> std::path::PathBuf {
        let proc = std::env::temp_dir().join(format!("rubelet-{name}-{}", std::process::id()));
        for (name, value) in WANTED {
            let path = proc.join("sys").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }
        proc
    }

    #[test]
    fn settings_are_changed_unless_they_are_protected() {
        let proc = machine("tunables");
        std::fs::write(proc.join("sys/vm/overcommit_memory"), "0\n").unwrap();
        let refused = set_kernel_tunables(&proc, TunableRule::Refuse).unwrap_err();
        assert_eq!(
            refused,
            "invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0"
        );
        set_kernel_tunables(&proc, TunableRule::Change).unwrap();
        set_kernel_tunables(&proc, TunableRule::Refuse).unwrap();
        std::fs::write(proc.join("sys/kernel/panic"), "0\n").unwrap();
        std::fs::remove_file(proc.join("sys/kernel/panic_on_oops")).unwrap();
        let both = set_kernel_tunables(&proc, TunableRule::Refuse).unwrap_err();
        let missing = proc.join("sys/kernel/panic_on_oops");
        assert_eq!(
            both,
            format!(
                "[invalid kernel flag: kernel/panic, expected value: 10, actual value: 0, open {}: no \
                 such file or directory]",
                missing.display()
            )
        );
        std::fs::remove_dir_all(proc).unwrap();
    }
}
