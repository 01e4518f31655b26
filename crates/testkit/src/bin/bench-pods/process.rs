//! What the kernel counts for one process.

use anyhow::Context;

/// Processor time a process has used so far, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("process stat")?.1;
    let ticks = |index: usize| -> anyhow::Result<f64> {
        Ok(after_name.split_whitespace().nth(index).context("process stat")?.parse()?)
    };
    // The kernel counts in hundredths of a second for user space.
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

/// Times its threads were put to sleep, or off a processor, so far.
pub(crate) fn switches(pid: u32) -> anyhow::Result<f64> {
    let mut all = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        // A thread may end meanwhile.
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        for line in status.lines().filter(|line| line.contains("ctxt_switches:")) {
            all += line.rsplit(':').next().unwrap_or_default().trim().parse::<f64>()?;
        }
    }
    Ok(all)
}

/// Resident memory.
pub(crate) fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}
