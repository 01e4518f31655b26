//! Sources of a request's credentials, and proxies to the server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::Method;
use kubeapi::{Connection, ConnectionConfig, ConnectionError, Kubeconfig, NodeApi};
use ports::{OnExit, Tasks};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::fake_api::FakeApi;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

fn acceptor() -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// An address that terminates TLS and forwards to the fake.
async fn over_tls(api: &FakeApi, tasks: &Tasks) -> String {
    let acceptor = acceptor();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let target = api.url().replace("http://", "");
    let inner = tasks.clone();
    tasks.spawn("tls", OnExit::Fine, async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, target) = (acceptor.clone(), target.clone());
            inner.spawn("tls-connection", OnExit::Fine, async move {
                let mut client = acceptor.accept(stream).await.unwrap();
                let mut server = TcpStream::connect(target).await.unwrap();
                // Ends when either side does.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    url
}

fn kubeconfig(server: &str, user: Value, proxy: Option<String>) -> Kubeconfig {
    let mut cluster = json!({"server": server, "insecure-skip-tls-verify": true});
    if let Some(proxy) = proxy {
        cluster["proxy-url"] = proxy.into();
    }
    let text = json!({
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    Kubeconfig::parse(&text.to_string(), Path::new("/")).unwrap()
}

async fn ask(kubeconfig: &Kubeconfig, times: usize) {
    let connection = Connection::new(kubeconfig, &ConnectionConfig::default()).await.unwrap();
    let node = NodeApi::new(&connection, "node1");
    for _ in 0..times {
        // Whether it exists does not matter here.
        let _ = node.get().await;
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("rubelet-cred-{name}-{}", std::process::id()));
    sys::fs::create_dir_all(&folder, 0o755).unwrap();
    folder
}

#[tokio::test]
async fn a_token_file_wins_over_a_token() {
    let api = FakeApi::start().await.unwrap();
    let tasks = Tasks::new();
    let server = over_tls(&api, &tasks).await;
    let file = folder("file").join("token");
    sys::fs::write(&file, "from-file\n").unwrap();
    ask(&kubeconfig(&server, json!({"token": "fixed", "tokenFile": file}), None), 1).await;
    ask(&kubeconfig(&server, json!({"token": "fixed"}), None), 1).await;
    ask(&kubeconfig(&server, json!({"username": "u", "password": "p"}), None), 1).await;
    ask(&kubeconfig(&server, json!({}), None), 1).await;
    ask(&kubeconfig(&api.url(), json!({"token": "fixed"}), None), 1).await;
    let sent = ["Bearer from-file", "Bearer fixed", "Basic dTpw", "", ""];
    assert_eq!(api.authorizations(), sent, "nothing goes over an open line");
    sys::fs::remove_file(&file).unwrap();
    sys::fs::remove_dir(file.parent().unwrap()).unwrap();
}

#[tokio::test]
async fn what_a_kubeconfig_has_itself_wins_over_a_plugin() {
    let api = FakeApi::start().await.unwrap();
    let tasks = Tasks::new();
    let server = over_tls(&api, &tasks).await;
    let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"});
    ask(&kubeconfig(&server, json!({"token": "fixed", "exec": exec}), None), 1).await;
    ask(&kubeconfig(&server, json!({"username": "u", "exec": exec}), None), 1).await;
    assert_eq!(api.authorizations(), ["Bearer fixed", "Basic dTo="]);
}

#[tokio::test]
async fn a_token_file_that_cannot_be_read_leaves_the_token_before_it() {
    let api = FakeApi::start().await.unwrap();
    let tasks = Tasks::new();
    let server = over_tls(&api, &tasks).await;
    let folder = folder("gone");
    let file = folder.join("token");
    let user = json!({"token": "fixed", "tokenFile": file});
    let kubeconfig = kubeconfig(&server, user, None);
    let connection = Connection::new(&kubeconfig, &ConnectionConfig::default()).await.unwrap();
    let node = NodeApi::new(&connection, "node1");
    let _ = node.get().await;
    sys::fs::write(&file, "from-file\n").unwrap();
    // Read again after a refusal; then it is gone.
    api.refuse(Method::GET, "/nodes/node1", 1, 401);
    let _ = node.get().await;
    sys::fs::write(&file, " \n").unwrap();
    let _ = node.get().await;
    let sent = ["Bearer fixed", "Bearer from-file", "Bearer from-file"];
    assert_eq!(api.authorizations(), sent);
    sys::fs::remove_file(&file).unwrap();
    sys::fs::remove_dir(&folder).unwrap();
}

#[tokio::test]
async fn an_exec_plugin_runs_again_after_a_refusal() {
    let api = FakeApi::start().await.unwrap();
    let folder = folder("exec");
    let (plugin, counter) = (folder.join("plugin"), folder.join("count"));
    let script = "#!/bin/sh\n\
        [ -n \"$KUBERNETES_EXEC_INFO\" ] || exit 1\n\
        echo x >> \"$1\"\n\
        n=$(wc -l < \"$1\")\n\
        echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\
        \"status\":{\"token\":\"'$GREETING$n'\"}}'\n";
    sys::fs::write(&plugin, script).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": plugin,
        "args": [counter],
        "env": [{"name": "GREETING", "value": "hello"}],
    }});
    api.refuse(Method::GET, "/nodes/node1", 1, 401);
    let tasks = Tasks::new();
    let server = over_tls(&api, &tasks).await;
    ask(&kubeconfig(&server, user, None), 3).await;
    assert_eq!(api.authorizations(), ["Bearer hello1", "Bearer hello2", "Bearer hello2"]);
    sys::fs::remove_file(&plugin).unwrap();
    sys::fs::remove_file(&counter).unwrap();
    sys::fs::remove_dir(&folder).unwrap();
}

#[tokio::test]
async fn a_failing_exec_plugin_fails_requests_until_it_does_not() {
    let api = FakeApi::start().await.unwrap();
    let folder = folder("late");
    let file = folder.join("credential");
    let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/cat", "args": [file]}});
    let tasks = Tasks::new();
    let kubeconfig = kubeconfig(&over_tls(&api, &tasks).await, user, None);
    let connection = Connection::new(&kubeconfig, &ConnectionConfig::default()).await.unwrap();
    let node = NodeApi::new(&connection, "node1");
    let error = node.get().await.unwrap_err().to_string();
    assert!(
        error.contains("getting credentials: exec: executable /bin/cat failed with exit code 1"),
        "{error}"
    );
    assert!(api.authorizations().is_empty(), "nothing was sent");
    let credential = json!({"apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential", "status": {"token": "late"}});
    sys::fs::write(&file, credential.to_string()).unwrap();
    let _ = node.get().await;
    assert_eq!(api.authorizations(), ["Bearer late"]);
    sys::fs::remove_file(&file).unwrap();
    sys::fs::remove_dir(&folder).unwrap();
}

#[tokio::test]
async fn client_certificate_files_that_are_none_yet_do_not_keep_a_connection_from_being_made() {
    let server = "https://127.0.0.1:1";
    let folder = folder("junk");
    let file = folder.join("junk");
    sys::fs::write(&file, "junk").unwrap();
    let files = json!({"client-certificate": file, "client-key": file});
    let made =
        Connection::new(&kubeconfig(server, files, None), &ConnectionConfig::default()).await;
    assert!(!made.unwrap().identity().is_present());
    let inline = json!({"client-certificate-data": "anVuaw==", "client-key": file});
    let made =
        Connection::new(&kubeconfig(server, inline, None), &ConnectionConfig::default()).await;
    assert!(matches!(made.unwrap_err(), ConnectionError::Identity(_)));
    sys::fs::remove_file(&file).unwrap();
    sys::fs::remove_dir(&folder).unwrap();
}

/// Forwards the one connection that asks for a tunnel to its target.
async fn serve_tunnel<S: AsyncRead + AsyncWrite + Unpin>(stream: S) {
    let mut client = BufReader::new(stream);
    let mut request = String::new();
    client.read_line(&mut request).await.unwrap();
    let target = request.split(' ').nth(1).unwrap().to_owned();
    assert!(request.starts_with("CONNECT "), "{request}");
    let mut line = String::new();
    while client.read_line(&mut line).await.unwrap() > 2 {
        line.clear();
    }
    let mut server = TcpStream::connect(target).await.unwrap();
    let mut client = client.into_inner();
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    // Ends when either side does.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

#[tokio::test]
async fn requests_go_through_the_proxy_of_the_kubeconfig() {
    for scheme in ["http", "https"] {
        let api = FakeApi::start().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("{scheme}://{}", listener.local_addr().unwrap());
        let tasks = Tasks::new();
        let server = over_tls(&api, &tasks).await;
        tasks.spawn("proxy", OnExit::Fine, async move {
            let (stream, _) = listener.accept().await.unwrap();
            match scheme {
                "https" => serve_tunnel(acceptor().accept(stream).await.unwrap()).await,
                _ => serve_tunnel(stream).await,
            }
        });
        ask(&kubeconfig(&server, json!({"token": "t"}), Some(proxy)), 2).await;
        assert_eq!(api.requests().len(), 2, "both over one tunnel: {:?}", api.requests());
        assert_eq!(api.authorizations(), ["Bearer t", "Bearer t"], "{scheme}");
    }
}

#[tokio::test]
async fn a_proxy_on_an_open_line_is_asked_for_whole_urls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://u:p@{}", listener.local_addr().unwrap());
    let tasks = Tasks::new();
    let (heard, mut said) = tokio::sync::mpsc::channel(1);
    tasks.spawn("proxy", OnExit::Fine, async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut client = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            client.read_line(&mut head).await.unwrap();
        }
        let refused = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        client.into_inner().write_all(refused).await.unwrap();
        heard.send(head).await.unwrap();
    });
    ask(&kubeconfig("http://api.example:8080", json!({}), Some(proxy)), 1).await;
    let head = said.recv().await.unwrap().to_lowercase();
    let start = "get http://api.example:8080/api/v1/nodes/node1 http/1.1\r\n";
    assert!(head.starts_with(start), "{head}");
    assert!(head.contains("\r\nproxy-authorization: basic dtpw\r\n"), "{head}");
    assert!(head.contains("\r\nhost: api.example:8080\r\n"), "{head}");
}

#[tokio::test]
async fn a_kubeconfig_may_act_for_somebody_else() {
    let api = FakeApi::start().await.unwrap();
    let tasks = Tasks::new();
    let user = json!({"token": "t", "as": "jane", "as-uid": "7", "as-groups": ["a", "b"],
        "as-user-extra": {"example.com/Why": ["x", "y"]}});
    let said = |api: &FakeApi| {
        let mut said = Vec::new();
        for name in ["user", "uid", "group", "extra-example.com%2fwhy"] {
            said.extend(api.headers(&format!("impersonate-{name}")));
        }
        said
    };
    let secure = kubeconfig(&over_tls(&api, &tasks).await, user.clone(), None);
    ask(&secure, 1).await;
    assert_eq!(said(&api), ["jane", "7", "a", "b", "x", "y"]);
    assert_eq!(api.authorizations(), ["Bearer t"]);
    // Impersonation is not secret: it is sent over plain HTTP too. A client certificate needs no
    // header.
    ask(&kubeconfig(&api.url(), user, None), 1).await;
    assert_eq!(said(&api).len(), 12);
    ask(&secure.without_credentials(), 1).await;
    assert_eq!(said(&api).len(), 12);
    assert_eq!(api.requests().len(), 3);
}
