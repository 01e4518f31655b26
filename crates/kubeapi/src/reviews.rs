//! Token and access reviews (upstream: the token and authorizer webhooks).
//!
//! Promises: a review that fails temporarily is retried a few times with growing pauses; every
//! attempt has the lane's deadline; equal concurrent reviews are sent once. Reviews have their own
//! rate limit, which peers share round-robin and in which access reviews have priority: anybody can
//! make up tokens, while access reviews only follow authentication. Nothing is cached here.

mod flight;
mod shares;

use crate::connection::{Connection, Lane, Urgency};
use crate::error::{ApiError, Refusal};
use crate::watch::random_fraction;
use api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use async_trait::async_trait;
use flight::{Flights, Part};
use futures::FutureExt;
use kube::Api;
use kube::api::PostParams;
use ports::{AccessQuestion, ReviewTry, Reviewed, Reviews, UserInfo};
use sha2::{Digest, Sha256};
use shares::{Busy, Shares};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const FACTOR: f64 = 1.5;
const JITTER: f64 = 0.2;
const TRIES: usize = 5;
const CREATED: u16 = 201;
/// How long a review waits for the rate limit.
const RATE_LIMIT_WAIT: Duration = Duration::from_secs(10);
/// Concurrent token reviews, and as many access reviews.
const IN_FLIGHT: usize = 64;
/// No authenticator issues longer tokens; they are rejected without a review.
const LONGEST_TOKEN: usize = 128 << 10;

/// Reviews by the API server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiReviews {
    asker: Asker,
    tokens: Arc<Flights<[u8; 32], Reviewed<Option<UserInfo>>>>,
    accesses: Arc<Flights<AccessQuestion, Reviewed<bool>>>,
}

/// Sends the reviews.
#[derive(Debug, Clone)]
struct Asker {
    lane: Lane,
    shares: Arc<Shares<Share>>,
    tokens: Arc<Semaphore>,
    accesses: Arc<Semaphore>,
}

/// Who shares a part of the budget.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Share {
    /// Everybody who sends tokens from this address or IPv6 network.
    Peer(Option<IpAddr>),
    /// An authenticated user.
    User(String),
}

impl Share {
    fn peer(address: Option<IpAddr>) -> Self {
        Self::Peer(address.map(|address| match address.to_canonical() {
            // The owner of the network chooses the lower half.
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
            v4 @ IpAddr::V4(_) => v4,
        }))
    }
}

impl ApiReviews {
    /// Reviews over this connection.
    pub fn new(connection: &Connection) -> Self {
        let asker = Asker {
            lane: connection.reviews().clone(),
            shares: Arc::new(Shares::new()),
            tokens: Arc::new(Semaphore::new(IN_FLIGHT)),
            accesses: Arc::new(Semaphore::new(IN_FLIGHT)),
        };
        Self { asker, tokens: Arc::new(Flights::new()), accesses: Arc::new(Flights::new()) }
    }
}

impl Asker {
    /// Sends the review until there is a response, interprets it with `judge`, and reports the
    /// attempts.
    async fn ask<A, T, F>(
        &self,
        share: Share,
        request: impl Fn() -> F,
        judge: impl FnOnce(A) -> Result<T, String>,
    ) -> Reviewed<T>
    where
        F: Future<Output = Result<A, kube::Error>>,
    {
        let unasked = |error: String| Reviewed { result: Err(error), tries: Vec::new() };
        let place = match self.shares.enter(&share) {
            Ok(place) => place,
            Err(busy) => return unasked(busy.to_string()),
        };
        let (urgency, room) = match share {
            Share::Peer(_) => (Urgency::Low, &self.tokens),
            Share::User(_) => (Urgency::High, &self.accesses),
        };
        let ready = async { (place.start().await, room.acquire().await.ok()) };
        let Ok(_in_flight) = tokio::time::timeout(RATE_LIMIT_WAIT, ready).await else {
            return unasked(Busy.to_string());
        };
        let mut pause = FIRST_PAUSE;
        let mut tries = Vec::new();
        loop {
            let token = async {
                let _head = place.head().await;
                self.lane.wait_for_token(urgency, RATE_LIMIT_WAIT).await
            };
            match tokio::time::timeout(RATE_LIMIT_WAIT, token).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Reviewed { result: Err(error.to_string()), tries },
                Err(_) => return Reviewed { result: Err(Busy.to_string()), tries },
            }
            let asked = Instant::now();
            let answer = self.lane.ask(request()).await;
            tries.push(ReviewTry { code: code(&answer), took: asked.elapsed() });
            match answer {
                Ok(answer) => return Reviewed { result: judge(answer), tries },
                Err(error) if tries.len() < TRIES && may_pass(&error) => {
                    tokio::time::sleep(pause.mul_f64(1.0 + JITTER * random_fraction())).await;
                    pause = pause.mul_f64(FACTOR);
                }
                Err(error) => return Reviewed { result: Err(error.to_string()), tries },
            }
        }
    }

    async fn token(self, token: String, share: Share) -> Reviewed<Option<UserInfo>> {
        let review = TokenReview {
            spec: TokenReviewSpec { token, ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.lane.client());
        let params = PostParams::default();
        let judge = |answer: TokenReview| judge_token(answer.status.unwrap_or_default());
        self.ask(share, || api.create(&params, &review), judge).await
    }

    async fn access(self, question: AccessQuestion) -> Reviewed<bool> {
        let review =
            SubjectAccessReview { spec: spec(&question), ..SubjectAccessReview::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.lane.client());
        let params = PostParams::default();
        let share = Share::User(question.user.name);
        self.ask(share, || api.create(&params, &review), judge_access).await
    }
}

/// The attempts are reported to only one of the callers that share a result.
fn report_once<T>((mut reviewed, part): (Reviewed<T>, Part)) -> Reviewed<T> {
    if part == Part::Joined {
        reviewed.tries.clear();
    }
    reviewed
}

/// The status code for metrics: reviews are creates; without a response there is none.
fn code<T>(answer: &Result<T, ApiError>) -> Option<u16> {
    match answer {
        Ok(_) | Err(ApiError::Malformed(_)) => Some(CREATED),
        Err(ApiError::Refused { code, .. }) => Some(*code),
        Err(ApiError::Unreachable(_)) => None,
    }
}

/// Whether a retry may succeed.
fn may_pass(error: &ApiError) -> bool {
    match error {
        ApiError::Unreachable(text) => was_cut(text),
        ApiError::Refused { kind, code, retry_after, .. } => {
            *kind == Refusal::TooManyRequests || matches!(*code, 500 | 504) || retry_after.is_some()
        }
        ApiError::Malformed(_) => false,
    }
}

/// Whether the connection was cut off during the review. An unreachable server will still be
/// unreachable a second later: the error is returned at once (upstream:
/// `webhook.DefaultShouldRetry`).
fn was_cut(text: &str) -> bool {
    let text = text.to_lowercase();
    let never_made = ["error trying to connect", "tcp connect error", "connection refused"];
    let cut = ["connection reset", "connection closed", "keep-alive timed out", "broken pipe"];
    !never_made.iter().any(|part| text.contains(part)) && cut.iter().any(|part| text.contains(part))
}

#[async_trait]
impl Reviews for ApiReviews {
    async fn token(&self, token: &str, peer: Option<IpAddr>) -> Reviewed<Option<UserInfo>> {
        if token.len() > LONGEST_TOKEN {
            let error = format!("a token of {} bytes is none", token.len());
            return Reviewed { result: Err(error), tries: Vec::new() };
        }
        let key = Sha256::digest(token).into();
        let ask = || self.asker.clone().token(token.to_owned(), Share::peer(peer)).boxed();
        report_once(self.tokens.join(&key, ask).await)
    }

    async fn access(&self, question: &AccessQuestion) -> Reviewed<bool> {
        let ask = || self.asker.clone().access(question.clone()).boxed();
        report_once(self.accesses.join(question, ask).await)
    }
}

fn judge_access(answer: SubjectAccessReview) -> Result<bool, String> {
    let status = answer.status.unwrap_or_default();
    match (status.allowed, status.denied.unwrap_or(false)) {
        (true, true) => {
            Err("webhook subject access review returned both allow and deny response".into())
        }
        (allowed, _) => Ok(allowed),
    }
}

fn judge_token(status: TokenReviewStatus) -> Result<Option<UserInfo>, String> {
    if !status.authenticated.unwrap_or(false) {
        // An error next to an authenticated status is ignored.
        let error = status.error.filter(|e| !e.is_empty());
        return error.map_or(Ok(None), Err);
    }
    let user = status.user.unwrap_or_default();
    Ok(Some(UserInfo {
        name: user.username.unwrap_or_default(),
        uid: user.uid.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    }))
}

fn spec(question: &AccessQuestion) -> SubjectAccessReviewSpec {
    let user = &question.user;
    SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
        resource_attributes: Some(ResourceAttributes {
            verb: Some(question.verb.to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(question.sub_resource.to_owned()),
            name: Some(question.node_name.clone()),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::authentication::v1::UserInfo as ReviewedUser;

    #[test]
    fn a_token_is_somebodys_nobodys_or_cannot_be_judged() {
        let user = ReviewedUser {
            username: Some("u".into()),
            groups: Some(vec!["g".into()]),
            ..ReviewedUser::default()
        };
        let known = TokenReviewStatus {
            authenticated: Some(true),
            user: Some(user),
            ..TokenReviewStatus::default()
        };
        let found = judge_token(known.clone()).unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.groups), ("u", vec!["g".to_owned()]));
        assert_eq!(judge_token(TokenReviewStatus::default()), Ok(None));
        let error = Some("no key".to_owned());
        let broken = TokenReviewStatus { error: error.clone(), ..TokenReviewStatus::default() };
        assert_eq!(judge_token(broken), Err("no key".to_owned()));
        let both = TokenReviewStatus { error, ..known };
        assert!(judge_token(both).unwrap().is_some());
    }

    #[test]
    fn access_is_asked_for_a_sub_resource_of_this_node() {
        let question = AccessQuestion {
            user: UserInfo { name: "u".into(), ..UserInfo::default() },
            verb: "get",
            sub_resource: "stats",
            node_name: "n".into(),
        };
        let text = serde_json::to_value(spec(&question)).unwrap();
        let attributes = serde_json::json!({
            "verb": "get", "version": "v1", "resource": "nodes", "subresource": "stats", "name": "n",
        });
        assert_eq!(text["resourceAttributes"], attributes);
        assert_eq!((text["user"].as_str(), text.get("uid")), (Some("u"), None));
    }

    #[test]
    fn an_answer_has_its_code_and_silence_has_none() {
        let refused = ApiError::Refused {
            kind: Refusal::Other,
            code: 500,
            message: String::new(),
            retry_after: None,
        };
        assert_eq!(code(&Ok(())), Some(201));
        assert_eq!(code::<()>(&Err(refused)), Some(500));
        assert_eq!(code::<()>(&Err(ApiError::Unreachable("reset".into()))), None);
    }

    #[test]
    fn only_what_may_pass_is_asked_again() {
        let refused = |code, kind| ApiError::Refused {
            kind,
            code,
            message: String::new(),
            retry_after: None,
        };
        let unreachable = |text: &str| ApiError::Unreachable(text.to_owned());
        assert!(may_pass(&unreachable("client error (SendRequest): Connection reset by peer")));
        assert!(may_pass(&unreachable("http2 error: keep-alive timed out")));
        assert!(!may_pass(&unreachable("tcp connect error: Connection refused (os error 111)")));
        assert!(!may_pass(&unreachable("no answer from the API server within 30s")));
        assert!(may_pass(&refused(500, Refusal::Other)));
        assert!(may_pass(&refused(429, Refusal::TooManyRequests)));
        assert!(!may_pass(&refused(403, Refusal::Forbidden)));
        assert!(!may_pass(&ApiError::Malformed("x".into())));
    }
}
