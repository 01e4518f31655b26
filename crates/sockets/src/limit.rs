//! Rate limit for the calls that a socket serves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// A token bucket; shared by its clones.
#[derive(Debug, Clone)]
pub struct RateLimit {
    per_second: f64,
    burst: f64,
    state: Arc<Mutex<(f64, Instant)>>,
}

impl RateLimit {
    /// At most this many calls per second, and `burst` at once.
    pub fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, state: Arc::new(Mutex::new((burst, Instant::now()))) }
    }

    /// Whether one more call may happen now.
    pub fn allow(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let gained = now.duration_since(state.1).as_secs_f64() * self.per_second;
        let filled = (state.0 + gained).min(self.burst);
        let allowed = filled >= 1.0;
        *state = (if allowed { filled - 1.0 } else { filled }, now);
        allowed
    }

    /// Waits until one more call may happen.
    pub async fn turn(&self) {
        while !self.allow() {
            tokio::time::sleep(Duration::from_secs_f64(1.0 / self.per_second)).await;
        }
    }
}

impl Interceptor for RateLimit {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        if self.allow() {
            Ok(request)
        } else {
            Err(Status::resource_exhausted("rejected by rate limit"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_answered_then_as_many_as_time_allows() {
        let limit = RateLimit::new(100.0, 10.0);
        let answered = (0..20).filter(|_| limit.allow()).count();
        assert_eq!(answered, 10);
        tokio::time::advance(Duration::from_millis(25)).await;
        let answered = (0..20).filter(|_| limit.allow()).count();
        assert_eq!(answered, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_beyond_the_burst_come_at_the_given_pace() {
        let limit = RateLimit::new(10.0, 3.0);
        let begun = Instant::now();
        for _ in 0..13 {
            limit.turn().await;
        }
        let took = begun.elapsed();
        assert!(
            took >= Duration::from_millis(990) && took < Duration::from_millis(1200),
            "{took:?}"
        );
    }
}
