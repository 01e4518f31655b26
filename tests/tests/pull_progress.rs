//! A registry that stops in the middle of a layer: whoever asks on the node is told how far the pull is.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{KubeletKind, TestNode, eventually_some};

const PATIENCE: Duration = Duration::from_secs(90);
/// What the layer claims to have, and what is ever sent of it.
const LAYER: usize = 4 << 20;
const SENT: usize = 1 << 20;
/// The first byte of whoever tries TLS.
const TLS_HANDSHAKE: u8 = 0x16;

fn digest(content: &[u8]) -> String {
    let mut program =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    program.stdin.take().unwrap().write_all(content).unwrap();
    let mut text = String::new();
    program.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    program.wait().unwrap();
    format!("sha256:{}", text.split_whitespace().next().unwrap())
}

/// What a path answers with: type, body, and how long the body claims to be.
type Shelf = BTreeMap<String, (&'static str, Vec<u8>, usize)>;

/// A registry with one image; it lives until the returned end of the channel is dropped.
struct Registry {
    address: String,
    /// Connections stay open, with the rest unsent, until the test is over.
    _stalled: Receiver<TcpStream>,
}

impl Registry {
    fn start() -> Self {
        let layer = digest(b"never whole");
        let config = json!({"architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer]}})
        .to_string()
        .into_bytes();
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                       "digest": digest(&config), "size": config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar",
                        "digest": layer, "size": LAYER}]})
        .to_string()
        .into_bytes();
        let whole = |kind, body: Vec<u8>| {
            let length = body.len();
            (kind, body, length)
        };
        let bytes = "application/octet-stream";
        let shelf = Shelf::from([
            ("/v2/".to_owned(), whole("application/json", b"{}".to_vec())),
            ("/v2/app/manifests/1".to_owned(), whole(kind, manifest.clone())),
            (format!("/v2/app/manifests/{}", digest(&manifest)), whole(kind, manifest)),
            (format!("/v2/app/blobs/{}", digest(&config)), whole(bytes, config)),
            (format!("/v2/app/blobs/{layer}"), (bytes, vec![0; SENT], LAYER)),
        ]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (keep, stalled) = channel();
        let shelf = Arc::new(shelf);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shelf, keep) = (Arc::clone(&shelf), keep.clone());
                thread::spawn(move || {
                    if let Some(stalled) = serve(stream, &shelf) {
                        // Closed at once when nobody keeps it any more.
                        let _ = keep.send(stalled);
                    }
                });
            }
        });
        Self { address, _stalled: stalled }
    }
}

/// Answers requests of one connection; gives it back when an answer is left unfinished.
fn serve(stream: TcpStream, shelf: &Shelf) -> Option<TcpStream> {
    let mut stream = stream;
    let mut asked = BufReader::new(stream.try_clone().ok()?);
    if asked.fill_buf().ok()?.first() == Some(&TLS_HANDSHAKE) {
        // The runtime takes this for leave to go on without TLS, as it may on loopback.
        stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").ok()?;
        return None;
    }
    let mut lines = asked.lines();
    loop {
        let request = lines.next()?.ok()?;
        while !lines.next()?.ok()?.is_empty() {}
        let mut words = request.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let path = target.split('?').next()?;
        let Some((kind, body, length)) = shelf.get(path) else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").ok()?;
            continue;
        };
        let marked = if path.contains("/manifests/") {
            format!("Docker-Content-Digest: {}\r\n", digest(body))
        } else {
            String::new()
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{marked}\r\n"
        );
        stream.write_all(head.as_bytes()).ok()?;
        if method == "GET" {
            stream.write_all(body).ok()?;
            if body.len() < *length {
                return Some(stream);
            }
        }
    }
}

/// What `rubelet explain` tells of the pod.
fn explained(root: &Path) -> Option<Value> {
    let program = testkit::real::rubelet_bin().unwrap();
    let root = format!("--root-dir={}", root.display());
    let output = Command::new(program).args(["explain", "-o", "json", &root]).output().unwrap();
    let story: Value = serde_json::from_slice(&output.stdout).ok()?;
    let pods = story["pods"].as_array()?.clone();
    pods.into_iter().find(|pod| pod["name"] == "default/pulls-node1")
}

#[test]
fn explain_tells_how_far_a_pull_is() {
    let registry = Registry::start();
    let node = TestNode::builder().kubelet(KubeletKind::Rubelet).start().unwrap();
    let image = format!("{}/app:1", registry.address);
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "pulls", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": image}]}});
    node.add_manifest("pulls.json", &pod.to_string()).unwrap();
    let seen = Mutex::new(Value::Null);
    let wait = eventually_some(PATIENCE, "the pull is told of with its bytes", || {
        let pod = explained(&node.root_dir())?;
        *seen.lock().unwrap() = pod["waits"].clone();
        let waits = pod["waits"].as_array()?.clone();
        let told = |wait: &Value| {
            let what = wait["what"].as_str().unwrap_or_default();
            wait["who"] == format!("image {image:?}") && what.starts_with("the pull (1.0 MiB of")
        };
        waits.into_iter().find(told)
    });
    let wait = wait.unwrap_or_else(|error| panic!("{error:#}: {}", seen.lock().unwrap()));
    let what = wait["what"].as_str().unwrap();
    assert!(what.starts_with("the pull (1.0 MiB of 4.0 MiB"), "{what}");
}
