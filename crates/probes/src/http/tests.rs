//! What servers answer and what is made of it, compared with Go.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Answers each connection with the next text and hands back what was asked.
async fn server(
    answers: Vec<impl AsRef<[u8]> + Send + 'static>,
) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    #[expect(clippy::disallowed_methods, reason = "a test server")]
    let task = tokio::spawn(async move {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 4096];
            let read = stream.read(&mut buffer).await.unwrap();
            asked.push(String::from_utf8_lossy(&buffer[..read]).into_owned());
            stream.write_all(answer.as_ref()).await.unwrap();
        }
        asked
    });
    (port, task)
}

fn target(port: u16, path: &str) -> Url {
    Url::parse(&format!("http://127.0.0.1:{port}{path}")).unwrap()
}

#[tokio::test]
async fn a_handshake_that_fails_is_told_in_gos_words() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    #[expect(clippy::disallowed_methods, reason = "a test server")]
    let server = tokio::spawn(async move {
        // An alert of the kind "handshake failure", then nothing at all.
        for answer in [&[21, 3, 3, 0, 2, 2, 40][..], &[]] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = vec![0; 4096];
            assert!(stream.read(&mut hello).await.unwrap() > 0);
            stream.write_all(answer).await.unwrap();
        }
    });
    let target = Url::parse(&format!("https://127.0.0.1:{port}/")).unwrap();
    for cause in ["remote error: tls: handshake failure", "EOF"] {
        let answer =
            probe(&Names::here(), &target, &Headers::default(), Duration::from_secs(30)).await;
        assert_eq!(answer, ProbeAnswer::Failure(format!("Get \"{target}\": {cause}")));
    }
    server.await.unwrap();
}

#[tokio::test]
async fn sends_the_kubelets_headers_and_judges_the_status() {
    let ok = "HTTP/1.1 204 No Content\r\n\r\n".to_owned();
    let bad = "HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno".to_owned();
    let (port, task) = server(vec![ok, bad]).await;
    let headers = headers_with_defaults(&[("x-a".into(), "1".into())], "kube-probe/1.36");
    let second = Duration::from_secs(5);
    assert_eq!(
        probe(&Names::here(), &target(port, "/h?q=1"), &headers, second).await,
        ProbeAnswer::Success
    );
    assert_eq!(
        probe(&Names::here(), &target(port, "/"), &headers, second).await,
        ProbeAnswer::Failure("HTTP probe failed with statuscode: 503".into())
    );
    let asked = task.await.unwrap();
    assert!(asked[0].starts_with("GET /h?q=1 HTTP/1.1\r\n"), "{}", asked[0]);
    for line in ["User-Agent: kube-probe/1.36", "Accept: */*", "Connection: close", "X-A: 1"] {
        assert!(asked[0].contains(line), "{line} missing in {}", asked[0]);
    }
    assert!(asked[0].contains(&format!("Host: 127.0.0.1:{port}")));
}

#[tokio::test]
async fn follows_redirects_to_the_same_host_only() {
    let near = "HTTP/1.1 301 M\r\nLocation: /new\r\nContent-Length: 0\r\n\r\n".to_owned();
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned();
    let far = "HTTP/1.1 302 F\r\nLocation: http://example.com/\r\nContent-Length: 4\r\n\r\nbody"
        .to_owned();
    let (port, task) = server(vec![near, ok, far]).await;
    let headers = headers_with_defaults(&[], "kube-probe/1.36");
    let second = Duration::from_secs(5);
    assert_eq!(
        probe(&Names::here(), &target(port, "/"), &headers, second).await,
        ProbeAnswer::Success
    );
    assert_eq!(
        probe(&Names::here(), &target(port, "/"), &headers, second).await,
        ProbeAnswer::Warning("Probe terminated redirects, Response body: body".into())
    );
    assert!(task.await.unwrap()[1].starts_with("GET /new "));
}

#[tokio::test]
async fn pods_may_be_fetched_from_another_place_but_without_credentials() {
    let there = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npods".to_owned();
    let (far, asked_far) = server(vec![there]).await;
    let away = format!(
        "HTTP/1.1 302 F\r\nLocation: http://localhost:{far}/p\r\nContent-Length: 0\r\n\r\n"
    );
    let (near, asked_near) = server(vec![away]).await;
    let fetch = HttpFetch {
        url: format!("http://127.0.0.1:{near}/"),
        headers: [("Authorization", "x"), ("X-A", "1"), ("Host", "elsewhere")]
            .map(|(name, value)| (name.into(), value.into()))
            .to_vec(),
        max_body: 5,
    };
    let answer = HttpClient::for_hooks(Names::here()).fetch(fetch).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (200, b"pods".as_slice()));
    let asked = asked_near.await.unwrap();
    for line in ["Authorization: x", "User-Agent: Go-http-client/1.1"] {
        assert!(asked[0].contains(line), "{line} missing in {}", asked[0]);
    }
    assert!(asked[0].contains(&format!("Host: 127.0.0.1:{near}\r\n")), "{}", asked[0]);
    let asked = asked_far.await.unwrap();
    assert!(asked[0].starts_with("GET /p ") && asked[0].contains("X-A: 1"), "{}", asked[0]);
    assert!(!asked[0].contains("Authorization"), "{}", asked[0]);
}

#[tokio::test]
async fn packed_pods_are_unpacked_and_a_limit_counts_what_is_in_them() {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packer, b"many pods").unwrap();
    let packed = packer.finish().unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        packed.len()
    );
    let answer = [head.as_bytes(), &packed].concat();
    let (port, task) = server(vec![answer.clone(), answer.clone(), answer]).await;
    let url = format!("http://127.0.0.1:{port}/");
    let mut fetch = HttpFetch { url, headers: Vec::new(), max_body: 1000 };
    let client = HttpClient::for_hooks(Names::here());
    assert_eq!(client.fetch(fetch.clone()).await.unwrap().body, b"many pods");
    // Whoever asks for it gets it as it is.
    fetch.headers = vec![("Accept-Encoding".to_owned(), "gzip".to_owned())];
    assert_eq!(client.fetch(fetch.clone()).await.unwrap().body, packed);
    (fetch.headers, fetch.max_body) = (Vec::new(), 9);
    let error = client.fetch(fetch).await.unwrap_err().to_string();
    assert_eq!(error, "the read limit is reached");
    let asked = task.await.unwrap();
    assert!(asked[0].contains("\r\nAccept-Encoding: gzip\r\n"), "{}", asked[0]);
    assert!(!asked[0].contains("Connection"), "{}", asked[0]);
}

#[tokio::test]
async fn a_proxy_is_asked_for_the_whole_url_or_for_a_tunnel() {
    let pods = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npods".to_owned();
    let refused = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_owned();
    let (port, task) = server(vec![pods, refused]).await;
    let client =
        HttpClient { proxies: Proxies::Always(port), ..HttpClient::for_hooks(Names::here()) };
    let fetch = |url: &str| HttpFetch { url: url.to_owned(), headers: Vec::new(), max_body: 10 };
    let answer = client.fetch(fetch("http://pods.example/a?b")).await.unwrap();
    assert_eq!(answer.body, b"pods");
    let error = client.fetch(fetch("https://pods.example/a")).await.unwrap_err().to_string();
    assert_eq!(error, r#"Get "https://pods.example/a": Forbidden"#);
    let asked = task.await.unwrap();
    let known = "Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n";
    let start = "GET http://pods.example/a?b HTTP/1.1\r\nHost: pods.example\r\n";
    assert!(asked[0].starts_with(start) && asked[0].contains(known), "{}", asked[0]);
    let tunnel = "CONNECT pods.example:443 HTTP/1.1\r\nHost: pods.example:443\r\n";
    assert!(asked[1].starts_with(tunnel) && asked[1].contains(known), "{}", asked[1]);
    let nobody = HttpClient { proxies: Proxies::Always(1), ..HttpClient::for_hooks(Names::here()) };
    let error = nobody.fetch(fetch("http://pods.example/")).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "Get \"http://pods.example/\": proxyconnect tcp: dial tcp 127.0.0.1:1: connect: \
         connection refused"
    );
}

#[tokio::test]
async fn pods_that_reach_the_limit_are_too_many() {
    let there = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npods".to_owned();
    let (port, task) = server(vec![there]).await;
    let url = format!("http://127.0.0.1:{port}/");
    let fetch = HttpFetch { url, headers: Vec::new(), max_body: 4 };
    let error = HttpClient::for_hooks(Names::here()).fetch(fetch).await.unwrap_err();
    assert_eq!(error.to_string(), "the read limit is reached");
    task.await.unwrap();
}

#[tokio::test]
async fn an_empty_accept_header_is_not_sent() {
    let headers = headers_with_defaults(&[("Accept".into(), String::new())], "x");
    assert_eq!(headers.get("Accept"), None);
    assert!(headers.get("User-Agent").is_some());
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error_not_a_failure() {
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".to_owned();
    let (port, task) = server(vec![cut]).await;
    let headers = headers_with_defaults(&[], "x");
    let answer = probe(&Names::here(), &target(port, "/"), &headers, Duration::from_secs(5)).await;
    let message = "unexpected EOF".to_owned();
    assert_eq!(answer, ProbeAnswer::Error { state: "failure", message });
    task.await.unwrap();
}

/// Answers one request with a text and then keeps the connection open.
async fn slow_server(answer: String) -> (u16, tokio::task::JoinHandle<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    #[expect(clippy::disallowed_methods, reason = "a test server")]
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        let asked = String::from_utf8_lossy(&buffer[..read]).into_owned();
        // Until the other side leaves.
        while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
        asked
    });
    (port, task)
}

#[tokio::test]
async fn a_body_that_does_not_come_is_an_error_not_a_failure() {
    let start = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".to_owned();
    let (port, task) = slow_server(start).await;
    let headers = headers_with_defaults(&[("X-A".into(), "\u{e9}".into())], "x");
    let answer = probe(&Names::here(), &target(port, "/"), &headers, Duration::from_secs(2)).await;
    let message = "context deadline exceeded \
                   (Client.Timeout or context cancellation while reading body)";
    assert_eq!(answer, ProbeAnswer::Error { state: "failure", message: message.to_owned() });
    let asked = task.await.unwrap();
    assert!(asked.contains("X-A: \u{e9}\r\n"), "{asked}");
}

#[tokio::test]
async fn what_a_body_has_beyond_the_bound_is_not_waited_for() {
    let long = PROBE_BODY + 1;
    let part = "x".repeat(PROBE_BODY);
    let start = format!("HTTP/1.1 200 OK\r\nContent-Length: {long}\r\n\r\n{part}");
    let (port, task) = slow_server(start).await;
    let headers = headers_with_defaults(&[], "x");
    let answer = probe(&Names::here(), &target(port, "/"), &headers, Duration::from_secs(60)).await;
    assert_eq!(answer, ProbeAnswer::Success);
    task.await.unwrap();
}

#[tokio::test]
async fn headers_that_do_not_come_are_a_failure() {
    let (port, task) = slow_server(String::new()).await;
    let headers = headers_with_defaults(&[], "x");
    let answer = probe(&Names::here(), &target(port, "/"), &headers, Duration::from_secs(2)).await;
    assert!(matches!(&answer, ProbeAnswer::Failure(text) if text.contains("awaiting headers")));
    task.await.unwrap();
}

/// What Go 1.26 makes of answers, well-formed and bent, asked as the kubelet asks.
#[tokio::test]
async fn answers_are_taken_as_go_takes_them() {
    let file =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/units/http-answers.jsonl");
    let headers = headers_with_defaults(&[], "x");
    for line in String::from_utf8(sys::fs::read(file).unwrap()).unwrap().lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let bytes = |key: &str| -> Vec<u8> {
            let text = case[key].as_str().unwrap_or_default();
            text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
        };
        let (port, task) = server(vec![bytes("answer"); 10]).await;
        let seen =
            probe(&Names::here(), &target(port, "/"), &headers, Duration::from_secs(30)).await;
        task.abort();
        let text = |key: &str| {
            let text = case[key].as_str().unwrap_or_default();
            text.replace("PORT", &port.to_string())
        };
        let expected = match case["status"].as_u64() {
            Some(200..=299) => ProbeAnswer::Success,
            Some(300..=399) => ProbeAnswer::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                String::from_utf8(bytes("body")).unwrap()
            )),
            Some(status) => {
                ProbeAnswer::Failure(format!("HTTP probe failed with statuscode: {status}"))
            }
            None if case.get("failure").is_some() => ProbeAnswer::Failure(text("failure")),
            None => ProbeAnswer::Error { state: "failure", message: text("error") },
        };
        assert_eq!(seen, expected, "{case}");
    }
}

#[tokio::test]
async fn a_server_may_answer_before_it_is_asked() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target(listener.local_addr().unwrap().port(), "/");
    #[expect(clippy::disallowed_methods, reason = "a test server")]
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        let mut asked = String::new();
        stream.read_to_string(&mut asked).await.unwrap();
        asked
    });
    let headers = headers_with_defaults(&[], "x");
    let answer = probe(&Names::here(), &target, &headers, Duration::from_secs(60)).await;
    assert_eq!(answer, ProbeAnswer::Success);
    assert!(task.await.unwrap().starts_with("GET / HTTP/1.1\r\n"));
}
