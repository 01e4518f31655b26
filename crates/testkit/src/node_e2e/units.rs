//! Stand-ins for `sudo`, `systemd-run` and `systemctl`, by which serial specs stop, change and start the
//! kubelet on a machine that systemd does not run.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use crate::real::Slot;

const SCRIPT: &str = include_str!("unit.sh");

/// Put them into a folder of the slot, to be first on the PATH.
pub(super) fn install(slot: &Slot) -> anyhow::Result<PathBuf> {
    let units = slot.path("units");
    std::fs::create_dir_all(&units)?;
    let text = SCRIPT.replace("@UNITS@", &units.display().to_string());
    let script = slot.write("tools/unit", text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    for name in ["sudo", "systemd-run", "systemctl"] {
        symlink(&script, slot.path("tools").join(name))?;
    }
    Ok(slot.path("tools"))
}
