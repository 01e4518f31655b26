//! Whether the machine's clock is synchronised.

use std::io;

/// Whether the kernel believes its clock to be synchronised.
pub fn is_synchronized() -> io::Result<bool> {
    let state = adjtimex()?;
    Ok(state.status & libc::STA_UNSYNC == 0)
}

#[expect(unsafe_code, reason = "no safe wrapper of adjtimex")]
fn adjtimex() -> io::Result<libc::timex> {
    // SAFETY: `timex` is plain data for which all zeros is a value; with `modes` zero the call
    // only reads the clock and writes into the struct it is given.
    unsafe {
        let mut state: libc::timex = std::mem::zeroed();
        if libc::adjtimex(&raw mut state) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_can_be_asked() {
        super::is_synchronized().unwrap();
    }
}
