//! The chain of authenticators, against a scripted reviewer.

use super::*;
use async_trait::async_trait;
use http::HeaderValue;
use ports::{ReviewTry, Reviewed};
use std::sync::Mutex;

/// A peer without a client certificate.
const HERE: (IpAddr, &[CertificateDer<'static>]) = (IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), &[]);

#[derive(Debug, Default)]
struct Reviewer {
    asked: Mutex<Vec<String>>,
    down: bool,
}

fn reviewed<T>(result: Result<T, String>, code: Option<u16>) -> Reviewed<T> {
    Reviewed { result, tries: vec![ReviewTry { code, took: Duration::from_millis(1) }] }
}

#[async_trait]
impl Reviews for Reviewer {
    async fn token(&self, token: &str, _: Option<IpAddr>) -> Reviewed<Option<UserInfo>> {
        self.asked.lock().unwrap().push(format!("token {token}"));
        if self.down {
            return reviewed(Err("API server is away".to_owned()), None);
        }
        if token == "odd" {
            return reviewed(Err("no key".to_owned()), Some(201));
        }
        let known = UserInfo { name: "alice".to_owned(), ..UserInfo::default() };
        reviewed(Ok((token == "good").then_some(known)), Some(201))
    }

    async fn access(&self, question: &AccessQuestion) -> Reviewed<bool> {
        let text = format!("{} {} {}", question.user.name, question.verb, question.sub_resource);
        self.asked.lock().unwrap().push(text);
        reviewed(Ok(question.sub_resource == "proxy" && question.verb != "create"), Some(201))
    }
}

fn guard(anonymous: bool, down: bool) -> (Guard, Arc<Reviewer>) {
    let reviewer = Arc::new(Reviewer { down, ..Reviewer::default() });
    let minute = Duration::from_secs(60);
    let config = AuthConfig {
        node_name: "node1".to_owned(),
        anonymous,
        token_cache: Some(minute),
        access_cache: Some((minute, minute)),
        strict_streaming: true,
    };
    let reviews: Arc<dyn Reviews> = Arc::<Reviewer>::clone(&reviewer);
    (
        Guard::new(
            config,
            None,
            Some(reviews),
            AuthMetrics::new(&telemetry::metrics::Registry::new()),
        ),
        reviewer,
    )
}

#[tokio::test]
async fn requests_count_by_the_code_of_their_answer() {
    let count = async |down| {
        let registry = telemetry::metrics::Registry::new();
        let (mut guard, _) = guard(false, down);
        guard.metrics = AuthMetrics::new(&registry);
        let _ = guard.check(&Method::GET, "/pods", &mut token("odd"), HERE).await;
        registry.render()
    };
    let odd = count(false).await;
    assert!(odd.contains("apiserver_delegated_authn_request_total{code=\"201\"} 1\n"), "{odd}");
    assert!(odd.contains("authentication_token_cache_fetch_total{status=\"error\"} 1\n"), "{odd}");
    let away = count(true).await;
    let none = "apiserver_delegated_authn_request_total{code=\"<error>\"} 1\n";
    assert!(away.contains(none), "{away}");
}

fn token(value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = HeaderValue::from_str(&format!("Bearer {value}")).unwrap();
    headers.insert(header::AUTHORIZATION, value);
    headers
}

#[tokio::test]
async fn a_bad_token_is_never_anonymous() {
    let (guard, _) = guard(true, false);
    let refused = guard.check(&Method::GET, "/pods", &mut token("bad"), HERE).await.unwrap_err();
    assert_eq!((refused.status.as_u16(), refused.body.as_str()), (401, "Unauthorized"));
    let user = guard.check(&Method::GET, "/pods", &mut HeaderMap::new(), HERE).await.unwrap();
    assert_eq!(user.name, "system:anonymous");
}

#[tokio::test]
async fn a_reviewer_that_is_away_lets_nobody_in() {
    let (guard, _) = guard(true, true);
    let refused = guard.check(&Method::GET, "/pods", &mut token("good"), HERE).await.unwrap_err();
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn sub_resources_are_asked_in_order_and_answers_are_kept() {
    let (guard, reviewer) = guard(false, false);
    for _ in 0..3 {
        let user = guard.check(&Method::GET, "/pods", &mut token("good"), HERE).await.unwrap();
        assert_eq!((user.name.as_str(), user.groups.len()), ("alice", 1));
    }
    let asked = reviewer.asked.lock().unwrap().clone();
    assert_eq!(asked, ["token good", "alice get pods", "alice get proxy"]);
    tokio::time::advance(Duration::from_secs(61)).await;
    guard.check(&Method::GET, "/pods", &mut token("good"), HERE).await.unwrap();
    assert_eq!(reviewer.asked.lock().unwrap().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_bad_tokens_leaves_good_ones_known() {
    let (guard, reviewer) = guard(false, false);
    guard.check(&Method::GET, "/pods", &mut token("good"), HERE).await.unwrap();
    for number in 0..3 * CACHE_ENTRIES {
        let mut bad = token(&format!("bad{number}"));
        assert!(guard.check(&Method::GET, "/pods", &mut bad, HERE).await.is_err());
    }
    let asked = reviewer.asked.lock().unwrap().len();
    guard.check(&Method::GET, "/pods", &mut token("good"), HERE).await.unwrap();
    let mut again = token(&format!("bad{}", 3 * CACHE_ENTRIES - 1));
    assert!(guard.check(&Method::GET, "/pods", &mut again, HERE).await.is_err());
    assert_eq!(reviewer.asked.lock().unwrap().len(), asked, "both are known");
}

#[tokio::test]
async fn nobody_is_asked_about_a_token_of_absurd_length() {
    let (guard, reviewer) = guard(true, false);
    let mut long = token(&"x".repeat(LONGEST_TOKEN + 1));
    let refused = guard.check(&Method::GET, "/pods", &mut long, HERE).await.unwrap_err();
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert!(reviewer.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn strict_streaming_wants_create_even_for_get() {
    let (guard, _) = guard(false, false);
    let path = "/exec/n/p/c";
    let refused = guard.check(&Method::GET, path, &mut token("good"), HERE).await.unwrap_err();
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(
        refused.body,
        "Forbidden (user=alice, verb=create, resource=nodes, subresource(s)=[proxy])\n"
    );
}

#[test]
fn tokens_also_come_in_a_websocket_sub_protocol() {
    let offer = |protocols: &'static str| {
        HeaderMap::from_iter([
            (header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade")),
            (header::UPGRADE, HeaderValue::from_static("websocket")),
            (header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocols)),
        ])
    };
    let good = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.Z29vZA";
    let found = protocol_token(&offer(good)).unwrap();
    assert_eq!(found, Some(("good".to_owned(), "v4.channel.k8s.io".to_owned())));
    let alone = "base64url.bearer.authorization.k8s.io.Z29vZA";
    assert_eq!(protocol_token(&offer(alone)), Err("missing additional subprotocol"));
    let broken = "base64url.bearer.authorization.k8s.io.!!, v4.channel.k8s.io";
    assert!(protocol_token(&offer(broken)).is_err());
    let mut plain = offer(good);
    plain.remove(header::UPGRADE);
    assert_eq!(protocol_token(&plain), Ok(None), "only a WebSocket request may");
}

#[tokio::test]
async fn a_token_of_strange_bytes_is_a_bad_one() {
    let (guard, _) = guard(true, false);
    let value = HeaderValue::from_bytes(b"Bearer good\xfc").unwrap();
    let mut headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
    let refused = guard.check(&Method::GET, "/pods", &mut headers, HERE).await.unwrap_err();
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
}

#[test]
fn a_bearer_token_is_one_word() {
    let ask = |value: &'static str| {
        let value = HeaderValue::from_static(value);
        bearer(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
    };
    assert_eq!(ask("BEARER a b").as_deref(), Some("a"));
    for none in ["Bearer", "Bearer  a", "Basic a", ""] {
        assert_eq!(ask(none), None, "{none:?}");
    }
}
