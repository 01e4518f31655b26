//! Service account tokens, cached until they are close to expiry (upstream: `token.Manager`).

use crate::connection::Lane;
use crate::error::ApiError;
use crate::watch::random_fraction;
use api::authentication::v1::{
    BoundObjectReference, TokenRequest as ApiTokenRequest, TokenRequestSpec,
};
use api::core::v1::ServiceAccount;
use api::machinery::apis::meta::v1::ObjectMeta;
use jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use ports::{Clock, TokenRequest, TokenResponse};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A token older than this is renewed regardless of its expiry.
const LONGEST_USE_SECONDS: i64 = 24 * 60 * 60;
const JITTER_SECONDS: f64 = 10.0;

#[derive(Debug)]
pub(crate) struct Tokens {
    lane: Lane,
    clock: Arc<dyn Clock>,
    cache: Mutex<HashMap<TokenRequest, Cached>>,
}

#[derive(Debug, Clone)]
struct Cached {
    response: TokenResponse,
    life_seconds: Option<i64>,
}

impl Cached {
    fn is_expired(&self, now: Timestamp) -> bool {
        now > self.response.expires_at
    }

    /// Whether 80 % of the lifetime, or a day, has passed.
    fn wants_refresh(&self, now: Timestamp, jitter_seconds: i64) -> bool {
        let Some(life) = self.life_seconds else { return false };
        let (now, end) = (now.as_second(), self.response.expires_at.as_second());
        now > end - life + LONGEST_USE_SECONDS - jitter_seconds
            || now > end - life * 20 / 100 - jitter_seconds
    }
}

impl Tokens {
    pub(crate) fn new(lane: Lane, clock: Arc<dyn Clock>) -> Self {
        Self { lane, clock, cache: Mutex::default() }
    }

    pub(crate) async fn get(&self, wanted: &TokenRequest) -> Result<TokenResponse, String> {
        let now = self.clock.now();
        #[expect(clippy::cast_possible_truncation, reason = "a number below ten")]
        let jitter_seconds = (random_fraction() * JITTER_SECONDS) as i64;
        let cached = self.cache.lock().ok().and_then(|c| c.get(wanted).cloned());
        if let Some(token) = &cached
            && !token.wants_refresh(now, jitter_seconds)
        {
            return Ok(token.response.clone());
        }
        match self.request(wanted).await {
            Ok(token) => {
                let response = token.response.clone();
                if let Ok(mut cache) = self.cache.lock() {
                    cache.retain(|_, t| !t.is_expired(now));
                    cache.insert(wanted.clone(), token);
                }
                Ok(response)
            }
            Err(err) => match cached {
                None => Err(format!("failed to fetch token: {err}")),
                Some(old) if old.is_expired(now) => {
                    Err(format!("token {} expired and refresh failed: {err}", describe(wanted)))
                }
                Some(old) => {
                    let pod = &wanted.pod_name;
                    tracing::error!(pod, err = %err, "could not refresh token, using the old one");
                    Ok(old.response)
                }
            },
        }
    }

    /// Drops the tokens bound to a pod.
    pub(crate) fn forget_pod(&self, uid: &str) {
        if let Ok(mut cache) = self.cache.lock() {
            cache.retain(|request, _| request.pod_uid != uid);
        }
    }

    async fn request(&self, wanted: &TokenRequest) -> Result<Cached, ApiError> {
        let uid = Some(&wanted.service_account_uid).filter(|uid| !uid.is_empty());
        let body = ApiTokenRequest {
            metadata: ObjectMeta { uid: uid.cloned(), ..ObjectMeta::default() },
            spec: Some(TokenRequestSpec {
                audiences: Some(wanted.audiences.clone()),
                expiration_seconds: Some(wanted.expiration_seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(wanted.pod_name.clone()),
                    uid: Some(wanted.pod_uid.clone()),
                }),
            }),
            status: None,
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.lane.client(), &wanted.namespace);
        let params = PostParams::default();
        let answer: ApiTokenRequest = self
            .lane
            .ask_referred(|| {
                api.create_subresource("token", &wanted.service_account, &params, &body)
            })
            .await?;
        let bad = || ApiError::Malformed("answer without a token".into());
        let status = answer.status.ok_or_else(bad)?;
        Ok(Cached {
            response: TokenResponse {
                token: status.token.ok_or_else(bad)?,
                expires_at: status.expiration_timestamp.ok_or_else(bad)?.0,
            },
            life_seconds: answer.spec.and_then(|s| s.expiration_seconds),
        })
    }
}

/// The request as Go formats it.
fn describe(wanted: &TokenRequest) -> String {
    let audiences: Vec<String> = wanted.audiences.iter().map(|a| format!("{a:?}")).collect();
    let audiences = match audiences.as_slice() {
        [] => "[]string(nil)".to_owned(),
        some => format!("[]string{{{}}}", some.join(", ")),
    };
    format!(
        "{:?}/{:?}/{audiences}/{}/v1.BoundObjectReference{{Kind:\"Pod\", APIVersion:\"v1\", Name:{:?}, UID:{:?}}}/{:?}",
        wanted.service_account,
        wanted.namespace,
        wanted.expiration_seconds,
        wanted.pod_name,
        wanted.pod_uid,
        wanted.service_account_uid
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(life_seconds: Option<i64>, end: i64) -> Cached {
        let expires_at = Timestamp::from_second(end).unwrap();
        Cached { response: TokenResponse { token: "t".into(), expires_at }, life_seconds }
    }

    #[test]
    fn a_request_is_shown_as_go_shows_it() {
        let mut wanted = TokenRequest {
            namespace: "n".into(),
            service_account: "s".into(),
            service_account_uid: String::new(),
            pod_name: "p".into(),
            pod_uid: "u".into(),
            audiences: vec!["a".into(), "b".into()],
            expiration_seconds: 3600,
        };
        let pod = r#"v1.BoundObjectReference{Kind:"Pod", APIVersion:"v1", Name:"p", UID:"u"}"#;
        assert_eq!(describe(&wanted), format!(r#""s"/"n"/[]string{{"a", "b"}}/3600/{pod}/"""#));
        wanted.audiences.clear();
        wanted.service_account_uid = "x".into();
        assert_eq!(describe(&wanted), format!(r#""s"/"n"/[]string(nil)/3600/{pod}/"x""#));
    }

    #[test]
    fn wants_refresh_after_four_fifths_of_its_life_or_a_day() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let hour = token(Some(3600), 3600);
        assert!(!hour.wants_refresh(at(2880), 0));
        assert!(hour.wants_refresh(at(2881), 0));
        assert!(hour.wants_refresh(at(2875), 9), "jitter brings it forward");
        let year = token(Some(31_536_000), 31_536_000);
        assert!(!year.wants_refresh(at(86_400), 0));
        assert!(year.wants_refresh(at(86_401), 0));
        assert!(!token(None, 10).wants_refresh(at(100), 0), "without a life it is never renewed");
    }
}
