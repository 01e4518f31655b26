//! Reviews for callers of the node's API have their own rate limit, shared fairly; against the fake
//! API server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kubeapi::{ApiPods, ApiReviews, Connection, ConnectionConfig, Kubeconfig, Rate};
use ports::{AccessQuestion, PodApi, Reviews, UserInfo};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use testkit::fake_api::FakeApi;
use tokio::time::Instant;

const RATE: Rate = Rate { per_second: 10.0, burst: 5 };

async fn connect(api: &FakeApi) -> Connection {
    let kubeconfig = Kubeconfig::parse(&api.kubeconfig(), Path::new("/")).unwrap();
    let config = ConnectionConfig { rate: Some(RATE), ..ConnectionConfig::default() };
    Connection::new(&kubeconfig, &config).await.unwrap()
}

fn peer(last: u8) -> Option<IpAddr> {
    Some(IpAddr::from([10, 0, 0, last]))
}

fn question(name: &str) -> AccessQuestion {
    AccessQuestion {
        user: UserInfo { name: name.into(), ..UserInfo::default() },
        verb: "get",
        sub_resource: "stats",
        node_name: "node1".into(),
    }
}

fn reviewed(api: &FakeApi) -> usize {
    api.requests().iter().filter(|request| request.ends_with("/tokenreviews")).count()
}

#[tokio::test(start_paused = true)]
async fn callers_who_hang_up_cost_nobody_a_turn() {
    let api = FakeApi::start().await.unwrap();
    let connection = connect(&api).await;
    let (reviews, pods) = (ApiReviews::new(&connection), ApiPods::new(&connection));
    for number in 0..5_000 {
        let token = format!("token-{number}");
        let hung_up = reviews.token(&token, peer(1));
        let _ = tokio::time::timeout(Duration::ZERO, hung_up).await;
    }
    let begun = Instant::now();
    let _ = pods.get("ns", "absent").await;
    assert!(begun.elapsed() < Duration::from_millis(10), "{:?}", begun.elapsed());
    reviews.token("honest", peer(1)).await.result.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_crowd_waits_behind_itself() {
    let api = FakeApi::start().await.unwrap();
    let connection = connect(&api).await;
    let (reviews, pods) = (ApiReviews::new(&connection), ApiPods::new(&connection));
    let tokens: Vec<String> = (0..400).map(|number| format!("token-{number}")).collect();
    let mut crowd: FuturesUnordered<_> =
        tokens.iter().map(|token| reviews.token(token, peer(1))).collect();
    // The first poll of all of them: for most there is no place.
    let refused = async {
        let mut refused = 0;
        while let Some(answer) = crowd.next().await {
            refused += usize::from(answer.result.is_err());
            if refused == 400 - 64 {
                return;
            }
        }
    };
    let begun = Instant::now();
    refused.await;
    assert!(begun.elapsed() < Duration::from_secs(1), "at once: {:?}", begun.elapsed());
    let begun = Instant::now();
    let (access, user) = (question("somebody"), UserInfo::default());
    let others = async {
        let other = reviews.token("honest", peer(2));
        let third = reviews.token("good", Some("fd00::1".parse().unwrap()));
        let access = reviews.access(&access);
        let (other, third, access) = futures::join!(other, third, access);
        (other.result.unwrap(), third.result.unwrap(), access.result.unwrap())
    };
    let status = async {
        let _ = pods.get("ns", "absent").await;
        assert!(begun.elapsed() < Duration::from_millis(10), "{:?}", begun.elapsed());
    };
    let crowding = async { while crowd.next().await.is_some() {} };
    let answers = async {
        let (found, ()) = futures::join!(others, status);
        (found, begun.elapsed())
    };
    let (((other, third, allowed), took), ()) = futures::join!(answers, crowding);
    assert_eq!((other, third, allowed), (None, None, false), "{user:?}");
    assert!(took < Duration::from_secs(1), "{took:?} among a crowd");
}

#[tokio::test(start_paused = true)]
async fn equal_questions_at_the_same_time_are_one() {
    let api = FakeApi::start().await.unwrap();
    let connection = connect(&api).await;
    let reviews = ApiReviews::new(&connection);
    let asked = (0..50).map(|_| reviews.token("same", peer(1)));
    let answers = futures::future::join_all(asked).await;
    assert!(answers.iter().all(|answer| answer.result == Ok(None)));
    let reported = answers.iter().filter(|answer| !answer.tries.is_empty()).count();
    assert_eq!((reviewed(&api), reported), (1, 1), "asked once, and counted once");
}
