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
