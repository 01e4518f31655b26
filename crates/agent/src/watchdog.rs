//! The service manager's watchdog: tell it that we live, unless a check fails.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use units::strconv::{NumError, atoi};

/// A named check; `Err` says what is wrong.
pub(crate) type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Why the watchdog's environment cannot be used. Display is upstream's text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchdogError {
    /// A variable is not a number.
    #[error("create health checker: configure watchdog: error converting {0}: {1}")]
    NotANumber(&'static str, NumError),
    /// `WATCHDOG_USEC` is zero or negative.
    #[error(
        "create health checker: configure watchdog: error WATCHDOG_USEC must be a positive number"
    )]
    NotPositive,
    /// The time is too short to be kept.
    #[error("create health checker: configure watchdog timeout too small: {0}")]
    TooSmall(units::GoDuration),
}

/// The watchdog's period as the service manager asked for it; `None` when it did not ask us.
pub(crate) fn period(
    usec: Option<&str>,
    pid: Option<&str>,
    own_pid: u32,
) -> Result<Option<Duration>, WatchdogError> {
    let Some(usec) = usec.filter(|u| !u.is_empty()) else { return Ok(None) };
    let number = |name, text| atoi(text).map_err(|why| WatchdogError::NotANumber(name, why));
    let micros = number("WATCHDOG_USEC", usec)?;
    let micros = u64::try_from(micros).ok().filter(|n| *n > 0).ok_or(WatchdogError::NotPositive)?;
    if let Some(pid) = pid.filter(|p| !p.is_empty())
        && number("WATCHDOG_PID", pid)? != i64::from(own_pid)
    {
        return Ok(None);
    }
    let timeout = Duration::from_micros(micros);
    if timeout <= Duration::from_secs(1) {
        return Err(WatchdogError::TooSmall(timeout.into()));
    }
    Ok(Some(timeout / 2))
}

/// Notifies every period while every check passes.
pub(crate) async fn run(
    socket: String,
    period: Duration,
    checks: Vec<(&'static str, Check)>,
    cancel: CancellationToken,
) {
    let mut ticks = tokio::time::interval(period);
    loop {
        tokio::select! {
            // Cancel-safe: nothing is held.
            () = cancel.cancelled() => return,
            // Cancel-safe: a missed tick comes again.
            _ = ticks.tick() => {}
        }
        let failed = checks.iter().find_map(|(name, check)| check().err().map(|e| (name, e)));
        if let Some((name, reason)) = failed {
            tracing::error!(
                check = name,
                err = reason,
                "Do not notify watchdog this iteration as the kubelet is reportedly not healthy"
            );
        } else if let Err(error) = sys::systemd::notify(&socket, "WATCHDOG=1") {
            tracing::error!(err = %error, "Failed to notify systemd watchdog");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_service_managers_wishes() {
        let half = |s| Ok(Some(Duration::from_secs(s)));
        assert_eq!(period(None, None, 7), Ok(None));
        assert_eq!(period(Some("20000000"), None, 7), half(10));
        assert_eq!(period(Some("20000000"), Some("7"), 7), half(10));
        assert_eq!(period(Some("20000000"), Some("8"), 7), Ok(None));
        assert_eq!(period(Some("0"), None, 7), Err(WatchdogError::NotPositive));
        let text = |usec| period(Some(usec), None, 7).unwrap_err().to_string();
        let other = period(Some("20000000"), Some("x"), 7).unwrap_err().to_string();
        assert_eq!(
            other,
            "create health checker: configure watchdog: error converting WATCHDOG_PID: strconv.Atoi: parsing \"x\": invalid syntax"
        );
        assert!(text("99999999999999999999").ends_with(": value out of range"));
        assert_eq!(
            text("1000000"),
            "create health checker: configure watchdog timeout too small: 1s"
        );
        assert_eq!(
            text("soon"),
            "create health checker: configure watchdog: error converting WATCHDOG_USEC: strconv.Atoi: parsing \"soon\": invalid syntax"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn stays_silent_while_a_check_fails() {
        let path = std::env::temp_dir().join(format!("rubelet-dog-{}", std::process::id()));
        let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let healthy = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = Arc::clone(&healthy);
        let check: Check = Arc::new(move || {
            let ok = seen.load(std::sync::atomic::Ordering::SeqCst);
            if ok { Ok(()) } else { Err("stuck".to_owned()) }
        });
        let cancel = CancellationToken::new();
        let name = path.to_str().unwrap().to_owned();
        let dog = run(name, Duration::from_secs(5), vec![("syncloop", check)], cancel.clone());
        let test = async {
            let mut buffer = [0; 32];
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert!(socket.recv(&mut buffer).is_err(), "notified while unhealthy");
            healthy.store(true, std::sync::atomic::Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(6)).await;
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"WATCHDOG=1");
            cancel.cancel();
        };
        tokio::join!(dog, test);
        sys::fs::remove_file(&path).unwrap();
    }
}
