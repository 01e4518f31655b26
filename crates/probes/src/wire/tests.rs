//! What is sent, and bounds on what is read.

use super::*;

fn sent(given: &[(&str, &str)], host: &str, caller: Caller) -> String {
    let given: Vec<_> = given.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    String::from_utf8(request("/x", host, &Headers::new(&given), caller)).unwrap()
}

#[test]
fn a_request_has_its_lines_in_gos_order() {
    let given = [("x-b", " 2 "), ("user-agent", "me"), ("X-A", "1"), ("X-B", "3"), ("Host", "own")];
    assert_eq!(
        sent(&given, "own", Caller::Probe),
        "GET /x HTTP/1.1\r\nHost: own\r\nUser-Agent: me\r\nX-A: 1\r\nX-B: 2\r\nX-B: 3\r\n\
         Connection: close\r\n\r\n"
    );
    assert_eq!(
        sent(&[("Content-Length", "5")], "[fe80::1%eth0]:80", Caller::Hook),
        "GET /x HTTP/1.1\r\nHost: [fe80::1]:80\r\nAccept-Encoding: gzip\r\n\r\n"
    );
    let upgrade = sent(&[("Connection", "Upgrade"), ("Range", "x")], "a b", Caller::Probe);
    assert_eq!(upgrade, "GET /x HTTP/1.1\r\nHost: \r\nConnection: Upgrade\r\nRange: x\r\n\r\n");
}

#[test]
fn what_may_not_be_sent_is_named_without_its_value() {
    let fault = |name: &str, value: &str| Headers::new(&[(name.into(), value.into())]).fault();
    assert_eq!(
        fault("x-secret", "a\nb").unwrap(),
        "net/http: invalid header field value for \"X-Secret\""
    );
    assert_eq!(fault("a b", "c").unwrap(), "net/http: invalid header field name \"a b\"");
    assert_eq!(fault("X", "a\tb\u{e4}"), None);
}

#[tokio::test]
async fn a_head_without_end_is_given_up() {
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    let flood = async {
        let line = format!("A: {}\r\n", "x".repeat(60_000));
        let _ = theirs.write_all(b"HTTP/1.1 200 OK\r\n").await;
        while theirs.write_all(line.as_bytes()).await.is_ok() {}
    };
    let mut wire = Wire::new(ours, String::new());
    let read = async move { wire.head().await.unwrap_err() };
    let (fault, ()) = tokio::join!(read, flood);
    assert_eq!(
        fault.of_head(),
        "net/http: server response headers exceeded 10485760 bytes; aborted"
    );
}

#[tokio::test]
async fn long_heads_of_a_thousand_answers_take_no_more_than_there_is_for_all() {
    let heads: &'static Semaphore = Box::leak(Box::new(Semaphore::new(16)));
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..1000 {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let flood = async {
            // Short lines, which take more than they are long.
            let lines = b"a:\r\n".repeat(1000);
            let _ = theirs.write_all(b"HTTP/1.1 200 OK\r\n").await;
            for _ in 0..5 {
                if theirs.write_all(&lines).await.is_err() {
                    return;
                }
            }
            let _ = theirs.write_all(b"\r\n").await;
        };
        let mut wire = Wire::with(ours, String::new(), heads);
        let read = async move {
            let head = wire.head().await.map_err(|fault| fault.of_head());
            // Who was refused hangs up.
            head.map(|head| (head, wire))
        };
        let (read, ()) = tokio::join!(read, flood);
        match read {
            Ok(answer) => held.push(answer),
            Err(text) => {
                assert_eq!(text, NO_ROOM);
                refused += 1;
            }
        }
    }
    assert_eq!(held.len(), 1);
    assert_eq!(held.len() + refused, 1000);
    assert!(heads.available_permits() < 16);
    drop(held);
    assert_eq!(heads.available_permits(), 16);
    // Answers of a usual length never ask for more than every answer has.
    let none: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    theirs.write_all(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n").await.unwrap();
    assert_eq!(Wire::with(ours, String::new(), none).head().await.unwrap().status, 200);
}
