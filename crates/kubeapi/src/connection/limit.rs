//! Client-side rate limit: a token bucket in which an urgent request books its turn and then waits for it.
//!
//! Promises: the rate holds for all together; a request that is not urgent books nothing ahead, so that a
//! thousand of them do not hold up one that is; nobody waits for ever behind urgent ones.

use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How long the next of those that are not urgent lets urgent ones pass.
const PATIENCE: Duration = Duration::from_secs(1);

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

/// Who goes first when there are more requests than the rate allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Others wait for what it tells them: statuses, mirror pods, tokens.
    High,
    /// The rest: lists, watches, gets.
    Low,
}

#[derive(Debug)]
pub(crate) struct TokenBucket {
    rate: Rate,
    state: Mutex<State>,
    /// The line of those that are not urgent; its head looks for a free token.
    line: Semaphore,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    pub(crate) fn new(rate: Rate) -> Self {
        let state = State { tokens: f64::from(rate.burst), at: Instant::now() };
        Self { rate, state: Mutex::new(state), line: Semaphore::new(1) }
    }

    /// Waits for this request's turn and says how long that took. A dropped wait keeps its booking.
    pub(crate) async fn acquire(&self, urgency: Urgency) -> Duration {
        let began = Instant::now();
        let _head = match urgency {
            Urgency::High => None,
            // Kept to the end, so that never more than one of these has booked.
            Urgency::Low => {
                let head = self.line.acquire().await.ok();
                self.let_pass().await;
                head
            }
        };
        let wait = self.book(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        began.elapsed()
    }

    /// Waits until a token is free, or for as long as can be asked of anybody.
    async fn let_pass(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = Instant::now();
            let Some(wait) = self.until_free(now).filter(|_| now < end) else { return };
            tokio::time::sleep_until(end.min(now + wait)).await;
        }
    }

    /// How long it is until a token is free; `None` if one is.
    fn until_free(&self, now: Instant) -> Option<Duration> {
        let state = self.state.lock().ok()?;
        let lacking = 1.0 - self.tokens(&state, now);
        // Not less than the clock can tell.
        let wait = Duration::from_secs_f64(lacking.max(0.0) / self.rate.per_second);
        (wait > Duration::from_micros(1)).then_some(wait)
    }

    fn book(&self, now: Instant) -> Duration {
        let Ok(mut state) = self.state.lock() else { return Duration::ZERO };
        state.tokens = self.tokens(&state, now) - 1.0;
        state.at = now;
        if state.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-state.tokens / self.rate.per_second)
        }
    }

    fn tokens(&self, state: &State, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(state.at).as_secs_f64() * self.rate.per_second;
        (state.tokens + gained).min(f64::from(self.rate.burst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lets_a_burst_through_and_then_one_per_interval() {
        let bucket = TokenBucket::new(Rate { per_second: 10.0, burst: 3 });
        let start = Instant::now();
        for urgency in [Urgency::High, Urgency::Low, Urgency::High] {
            assert_eq!(bucket.acquire(urgency).await, Duration::ZERO);
        }
        bucket.acquire(Urgency::High).await;
        bucket.acquire(Urgency::Low).await;
        let waited = start.elapsed().as_millis();
        assert!((200..=204).contains(&waited), "two tokens at ten a second: {waited} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn an_urgent_request_overtakes_all_that_are_not() {
        let bucket = TokenBucket::new(Rate { per_second: 10.0, burst: 1 });
        bucket.acquire(Urgency::High).await;
        let start = Instant::now();
        let low = futures::future::join_all((0..50).map(|_| bucket.acquire(Urgency::Low)));
        let urgent = async {
            // After the others have come.
            tokio::task::yield_now().await;
            bucket.acquire(Urgency::High).await
        };
        let (low, urgent) = futures::future::join(low, urgent).await;
        assert!(urgent <= Duration::from_millis(202), "{urgent:?}");
        let whole = start.elapsed();
        assert!((5_000..5_300).contains(&whole.as_millis()), "the rate holds: {whole:?}");
        assert!(low.windows(2).all(|pair| pair[0] <= pair[1]), "in the order they came: {low:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_behind_urgent_requests() {
        let bucket = TokenBucket::new(Rate { per_second: 10.0, burst: 1 });
        let urgent = async {
            loop {
                futures::future::join(bucket.acquire(Urgency::High), bucket.acquire(Urgency::High))
                    .await;
            }
        };
        let low = async {
            tokio::task::yield_now().await;
            bucket.acquire(Urgency::Low).await
        };
        let waited = tokio::select! {
            biased;
            () = urgent => Duration::MAX,
            waited = low => waited,
        };
        assert!(waited >= PATIENCE && waited <= PATIENCE * 2, "{waited:?}");
    }

    #[test]
    fn zero_or_negative_qps_is_unlimited() {
        assert_eq!(Rate::from_config(-1, 10), None);
        assert_eq!(Rate::from_config(0, 10), None);
        assert_eq!(Rate::from_config(5, 10), Some(Rate { per_second: 5.0, burst: 10 }));
    }
}
