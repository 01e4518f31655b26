//! Client-side rate limit: a token bucket in which a request books its turn and then waits for it.

use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// A sustained rate and a burst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests per second.
    pub per_second: f64,
    /// Requests at once.
    pub burst: u32,
}

impl Rate {
    /// From a `qps`/`burst` pair of the configuration, where 0 or less means unlimited.
    pub fn from_config(qps: i32, burst: i32) -> Option<Self> {
        let burst = u32::try_from(burst).ok().filter(|b| *b > 0).unwrap_or(1);
        (qps > 0).then(|| Self { per_second: f64::from(qps), burst })
    }
}

#[derive(Debug)]
pub(crate) struct TokenBucket {
    rate: Rate,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    pub(crate) fn new(rate: Rate) -> Self {
        let state = State { tokens: f64::from(rate.burst), at: Instant::now() };
        Self { rate, state: Mutex::new(state) }
    }

    /// Waits for this request's turn and says how long that took. A dropped wait keeps its booking.
    pub(crate) async fn acquire(&self) -> Duration {
        let wait = self.book(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        wait
    }

    fn book(&self, now: Instant) -> Duration {
        let Ok(mut state) = self.state.lock() else { return Duration::ZERO };
        let gained = now.saturating_duration_since(state.at).as_secs_f64() * self.rate.per_second;
        state.tokens = (state.tokens + gained).min(f64::from(self.rate.burst)) - 1.0;
        state.at = now;
        if state.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-state.tokens / self.rate.per_second)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lets_a_burst_through_and_then_one_per_interval() {
        let bucket = TokenBucket::new(Rate { per_second: 10.0, burst: 3 });
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(bucket.acquire().await, Duration::ZERO);
        }
        bucket.acquire().await;
        bucket.acquire().await;
        let waited = start.elapsed().as_millis();
        assert!((200..=202).contains(&waited), "two tokens at ten a second: {waited} ms");
    }

    #[test]
    fn zero_or_negative_qps_is_unlimited() {
        assert_eq!(Rate::from_config(-1, 10), None);
        assert_eq!(Rate::from_config(0, 10), None);
        assert_eq!(Rate::from_config(5, 10), Some(Rate { per_second: 5.0, burst: 10 }));
    }
}
