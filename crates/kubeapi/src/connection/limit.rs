//! Client-side rate limit: a token bucket with two queues.
//!
//! ```text
//!   urgent ──▶ head takes the next token
//!   other  ──▶ head takes a token when no urgent request waits, or moves to the end of the urgent queue
//! ```
//!
//! Promises: the rate holds for both queues together; only the head of a queue waits for a token,
//! so that a cancelled wait affects nobody else; a thousand low-priority requests do not delay a
//! high-priority one, and low-priority ones are not starved; a request that cannot get a token in
//! time fails at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// How long the first low-priority request lets high-priority ones pass.
const PATIENCE: Duration = Duration::from_secs(1);

/// A sustained rate and a burst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests per second.
    pub per_second: f64,
    /// Requests that may be sent at once.
    pub burst: u32,
}

impl Rate {
    /// From a `qps`/`burst` pair of the configuration, where 0 or less means unlimited.
    pub fn from_config(qps: i32, burst: i32) -> Option<Self> {
        let burst = u32::try_from(burst).ok().filter(|b| *b > 0).unwrap_or(1);
        (qps > 0).then(|| Self { per_second: f64::from(qps), burst })
    }
}

/// Which requests go first when there are more than the rate allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Requests that others wait for: statuses, mirror pods, tokens, the watch of pods.
    High,
    /// The rest: gets, watches of objects that pods refer to.
    Low,
}

/// No token is available in time (client-go's error text).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline"
)]
pub(crate) struct RateLimited;

#[derive(Debug)]
pub(crate) struct TokenBucket {
    rate: Rate,
    state: Mutex<State>,
    urgent: Line,
    other: Line,
}

#[derive(Debug)]
struct State {
    /// Never negative: a token is taken only when it is there.
    tokens: f64,
    at: Instant,
}

/// Waiting requests, in order of arrival.
#[derive(Debug)]
struct Line {
    head: Semaphore,
    length: AtomicUsize,
}

impl Line {
    fn new() -> Self {
        Self { head: Semaphore::new(1), length: AtomicUsize::new(0) }
    }

    fn length(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    fn enter(&self) -> Place<'_> {
        self.length.fetch_add(1, Ordering::Relaxed);
        Place(self)
    }
}

/// A place in a queue; it is released when dropped.
#[derive(Debug)]
struct Place<'a>(&'a Line);

impl<'a> Place<'a> {
    /// Waits until all earlier requests in the queue have a token or have given up. The semaphore
    /// is never closed.
    async fn head(&self) -> Option<SemaphorePermit<'a>> {
        self.0.head.acquire().await.ok()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.length.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TokenBucket {
    pub(crate) fn new(rate: Rate) -> Self {
        let state = State { tokens: f64::from(rate.burst), at: Instant::now() };
        Self { rate, state: Mutex::new(state), urgent: Line::new(), other: Line::new() }
    }

    /// Waits for a token and returns how long that took; fails at once if it would take longer than
    /// `limit`. A cancelled wait leaves its queue and takes no token.
    pub(crate) async fn acquire(
        &self,
        urgency: Urgency,
        limit: Option<Duration>,
    ) -> Result<Duration, RateLimited> {
        let began = Instant::now();
        let Some(limit) = limit else {
            self.wait_for_token(urgency).await;
            return Ok(began.elapsed());
        };
        if self.expected(urgency, began) > limit {
            return Err(RateLimited);
        }
        match tokio::time::timeout(limit, self.wait_for_token(urgency)).await {
            Ok(()) => Ok(began.elapsed()),
            // High-priority requests came later and went first.
            Err(_) => Err(RateLimited),
        }
    }

    async fn wait_for_token(&self, urgency: Urgency) {
        match urgency {
            Urgency::High => self.urgent_token().await,
            Urgency::Low => {
                let place = self.other.enter();
                let _head = place.head().await;
                if !self.spare_token().await {
                    self.urgent_token().await;
                }
            }
        }
    }

    async fn urgent_token(&self) {
        let place = self.urgent.enter();
        let _head = place.head().await;
        while let Some(wait) = self.take(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes a token that no high-priority request waits for; `false` if there was none for
    /// `PATIENCE`.
    async fn spare_token(&self) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = Instant::now();
            let wait = if self.urgent.length() == 0 {
                let Some(wait) = self.take(now) else { return true };
                wait
            } else {
                Duration::from_secs_f64(1.0 / self.rate.per_second)
            };
            if now >= end {
                return false;
            }
            tokio::time::sleep_until(end.min(now + wait)).await;
        }
    }

    /// How long a request sent now would wait.
    pub(crate) fn expected(&self, urgency: Urgency, now: Instant) -> Duration {
        let before = match urgency {
            Urgency::High => self.urgent.length(),
            Urgency::Low => self.urgent.length().saturating_add(self.other.length()),
        };
        let before = u32::try_from(before).unwrap_or(u32::MAX);
        let Ok(state) = self.state.lock() else { return Duration::ZERO };
        let lacking = f64::from(before) + 1.0 - self.tokens(&state, now);
        Duration::try_from_secs_f64(lacking.max(0.0) / self.rate.per_second)
            .unwrap_or(Duration::MAX)
    }

    /// Takes a token, or returns the time until there is one.
    fn take(&self, now: Instant) -> Option<Duration> {
        let mut state = self.state.lock().ok()?;
        let tokens = self.tokens(&state, now);
        let wait = Duration::from_secs_f64((1.0 - tokens).max(0.0) / self.rate.per_second);
        // Shorter waits are below the clock's resolution.
        if wait > Duration::from_micros(1) {
            return Some(wait);
        }
        *state = State { tokens: (tokens - 1.0).max(0.0), at: now };
        None
    }

    fn tokens(&self, state: &State, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(state.at).as_secs_f64() * self.rate.per_second;
        (state.tokens + gained).min(f64::from(self.rate.burst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(burst: u32) -> TokenBucket {
        TokenBucket::new(Rate { per_second: 10.0, burst })
    }

    async fn wait(bucket: &TokenBucket, urgency: Urgency) -> Duration {
        bucket.acquire(urgency, None).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn lets_a_burst_through_and_then_one_per_interval() {
        let bucket = bucket(3);
        let start = Instant::now();
        for urgency in [Urgency::High, Urgency::Low, Urgency::High] {
            assert_eq!(wait(&bucket, urgency).await, Duration::ZERO);
        }
        wait(&bucket, Urgency::High).await;
        wait(&bucket, Urgency::Low).await;
        let waited = start.elapsed().as_millis();
        assert!((200..=204).contains(&waited), "two tokens at ten a second: {waited} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn an_urgent_request_overtakes_all_that_are_not() {
        let bucket = bucket(1);
        wait(&bucket, Urgency::High).await;
        let start = Instant::now();
        let low = futures::future::join_all((0..50).map(|_| wait(&bucket, Urgency::Low)));
        let urgent = async {
            // After the others have queued.
            tokio::task::yield_now().await;
            wait(&bucket, Urgency::High).await
        };
        let (low, urgent) = futures::future::join(low, urgent).await;
        assert!(urgent <= Duration::from_millis(202), "{urgent:?}");
        let whole = start.elapsed();
        assert!((5_000..5_300).contains(&whole.as_millis()), "the rate holds: {whole:?}");
        assert!(low.windows(2).all(|pair| pair[0] <= pair[1]), "in the order they came: {low:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_behind_urgent_requests() {
        let bucket = bucket(1);
        let urgent = async {
            loop {
                let (one, other) = (wait(&bucket, Urgency::High), wait(&bucket, Urgency::High));
                futures::future::join(one, other).await;
            }
        };
        let low = async {
            tokio::task::yield_now().await;
            wait(&bucket, Urgency::Low).await
        };
        let waited = tokio::select! {
            biased;
            () = urgent => Duration::MAX,
            waited = low => waited,
        };
        assert!(waited >= PATIENCE && waited <= PATIENCE * 2, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn waits_that_are_dropped_cost_nobody_anything() {
        let bucket = bucket(1);
        wait(&bucket, Urgency::High).await;
        for urgency in [Urgency::High, Urgency::Low].repeat(5_000) {
            let hung_up = wait(&bucket, urgency);
            tokio::time::timeout(Duration::ZERO, hung_up).await.unwrap_err();
        }
        let waited = wait(&bucket, Urgency::High).await;
        assert!(waited <= Duration::from_millis(102), "{waited:?}");
        let waited = wait(&bucket, Urgency::Low).await;
        assert!(waited <= Duration::from_millis(102), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_would_be_too_long_is_refused_at_once() {
        let bucket = bucket(1);
        wait(&bucket, Urgency::High).await;
        let second = Some(Duration::from_secs(1));
        let mut waits: Vec<_> =
            (0..10).map(|_| Box::pin(bucket.acquire(Urgency::High, second))).collect();
        for wait in &mut waits {
            assert!(futures::poll!(wait.as_mut()).is_pending());
        }
        let start = Instant::now();
        assert_eq!(bucket.acquire(Urgency::High, second).await, Err(RateLimited));
        assert_eq!(bucket.acquire(Urgency::Low, second).await, Err(RateLimited));
        assert_eq!(start.elapsed(), Duration::ZERO);
        // Requests that give up make room.
        waits.truncate(5);
        let (others, mine) = futures::future::join(
            futures::future::join_all(waits),
            bucket.acquire(Urgency::High, second),
        )
        .await;
        assert!(others.iter().all(Result::is_ok), "{others:?}");
        assert!(mine.unwrap() <= Duration::from_millis(610), "{mine:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_overtaken_for_too_long_is_told_so() {
        let bucket = bucket(1);
        wait(&bucket, Urgency::High).await;
        let limit = Duration::from_millis(500);
        let low = bucket.acquire(Urgency::Low, Some(limit));
        let urgent = async {
            for _ in 0..20 {
                let (one, other) = (wait(&bucket, Urgency::High), wait(&bucket, Urgency::High));
                futures::future::join(one, other).await;
            }
        };
        let start = Instant::now();
        let (low, ()) = futures::future::join(async { (low.await, start.elapsed()) }, urgent).await;
        assert_eq!(low, (Err(RateLimited), limit));
    }

    #[test]
    fn zero_or_negative_qps_is_unlimited() {
        assert_eq!(Rate::from_config(-1, 10), None);
        assert_eq!(Rate::from_config(0, 10), None);
        assert_eq!(Rate::from_config(5, 10), Some(Rate { per_second: 5.0, burst: 10 }));
    }
}
