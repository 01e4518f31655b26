//! The resolver against servers on the loopback interface.

use super::*;
use std::future::Future;
use tokio::net::TcpListener;

/// A directory with these files, removed when dropped.
struct Etc(PathBuf);

impl Etc {
    fn new(test: &str, files: &[(&str, &str)]) -> Self {
        let path =
            std::env::temp_dir().join(format!("rubelet-names-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (name, text) in files {
            std::fs::write(path.join(name), text).unwrap();
        }
        Self(path)
    }
}

impl Drop for Etc {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

const LOCAL: (&str, &str) = ("resolv.conf", "nameserver 127.0.0.1\nsearch cluster.local\n");

async fn server() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

/// The name that a query is for, and whether for IPv4.
fn asked(message: &[u8]) -> (String, bool) {
    let (mut name, mut at) = (String::new(), 12);
    while message[at] != 0 {
        let end = at + 1 + usize::from(message[at]);
        name.push_str(std::str::from_utf8(&message[at + 1..end]).unwrap());
        name.push('.');
        at = end;
    }
    (name, message[at + 2] == 1)
}

/// A response with these flags and, if it fits the query, this address.
fn answer(message: &[u8], flags: u8, address: Option<[u8; 4]>) -> Vec<u8> {
    let mut answer = message[..message.len() - 11].to_vec();
    (answer[2], answer[3], answer[11]) = (0x80 | (flags & 2), 0x80 | ((flags & 1) * 3), 0);
    if let Some(address) = address.filter(|_| asked(message).1) {
        answer[7] = 1;
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
        answer.extend(address);
    }
    answer
}

const UNKNOWN: u8 = 1;
const TOO_LONG: u8 = 2;

/// Serves while the work runs; also returns the names that were queried.
async fn while_serving<T>(
    socket: UdpSocket,
    serve: impl Fn(&[u8]) -> Vec<u8>,
    work: impl Future<Output = T>,
) -> (T, Vec<String>) {
    let mut names = Vec::new();
    let serving = async {
        let mut buffer = [0; 512];
        loop {
            let (got, from) = socket.recv_from(&mut buffer).await.unwrap();
            names.push(asked(&buffer[..got]).0);
            socket.send_to(&serve(&buffer[..got]), from).await.unwrap();
        }
    };
    let done = tokio::select! {
        done = work => done,
        () = serving => unreachable!("served for ever"),
    };
    (done, names)
}

#[tokio::test]
async fn a_name_is_searched_for_and_found() {
    let (socket, port) = server().await;
    let etc = Etc::new("search", &[LOCAL]);
    let resolver = Resolver::with_port(&etc.0, port);
    let serve = |message: &[u8]| {
        let found = asked(message).0 == "web.cluster.local.";
        answer(message, if found { 0 } else { UNKNOWN }, found.then_some([10, 0, 0, 7]))
    };
    let (found, names) = while_serving(socket, serve, resolver.lookup("pod", "web", 80)).await;
    assert_eq!(found.unwrap(), ["10.0.0.7:80".parse().unwrap()]);
    assert_eq!(names, ["web.cluster.local."; 2]);
}

#[tokio::test]
async fn a_name_that_nobody_knows_is_told_of_in_gos_words() {
    let (socket, port) = server().await;
    let etc = Etc::new("unknown", &[LOCAL]);
    let resolver = Resolver::with_port(&etc.0, port);
    let serve = |message: &[u8]| answer(message, UNKNOWN, None);
    let (found, _) = while_serving(socket, serve, resolver.lookup("pod", "a.b", 80)).await;
    let told = found.unwrap_err().to_string();
    assert_eq!(told, format!("lookup a.b on 127.0.0.1:{port}: no such host"));
}

#[tokio::test]
async fn addresses_and_names_of_the_hosts_file_need_no_server() {
    let etc = Etc::new("hosts", &[LOCAL, ("hosts", "10.1.1.1 here\n")]);
    let resolver = Resolver::with_port(&etc.0, 9);
    for (host, want) in [
        ("here", "10.1.1.1:80"),
        ("HERE.", "10.1.1.1:80"),
        ("10.2.2.2", "10.2.2.2:80"),
        ("fd00::1", "[fd00::1]:80"),
        ("fe80::1%1", "[fe80::1%1]:80"),
        ("fe80::1%lo", "[fe80::1%1]:80"),
    ] {
        let found = resolver.lookup("pod", host, 80).await.unwrap();
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [want]);
    }
    let told = resolver.lookup("pod", "a b", 80).await.unwrap_err().to_string();
    assert_eq!(told, "lookup a b: no such host");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_given_up() {
    let (socket, port) = server().await;
    let etc = Etc::new("silent", &[("resolv.conf", "nameserver 127.0.0.1\noptions timeout:2")]);
    let resolver = Resolver::with_port(&etc.0, port);
    let began = Instant::now();
    let told = resolver.lookup("pod", "x.example.", 80).await.unwrap_err().to_string();
    assert!(
        told.starts_with(&format!("lookup x.example. on 127.0.0.1:{port}: read udp ")),
        "{told}"
    );
    assert!(told.ends_with(&format!("->127.0.0.1:{port}: i/o timeout")), "{told}");
    assert!(began.elapsed() >= Duration::from_secs(4), "two attempts of two seconds");
    drop(socket);
}

#[tokio::test]
async fn names_of_one_owner_do_not_hold_up_those_of_another() {
    let (socket, port) = server().await;
    let etc = Etc::new("owners", &[LOCAL]);
    let resolver = Resolver::with_port(&etc.0, port);
    // Queries for `.silent.` are never answered, like those of a domain whose server is down.
    let silent = |message: &[u8]| asked(message).0.contains("silent");
    let greedy: Vec<String> = (0..100).map(|n| format!("n{n}.silent.")).collect();
    let stuck = greedy.iter().map(|name| resolver.lookup("greedy", name, 80));
    let mut stuck = Box::pin(futures::future::join_all(stuck));
    let serve = |message: &[u8]| match silent(message) {
        true => vec![0],
        false => answer(message, 0, Some([10, 0, 0, 8])),
    };
    let work = async {
        tokio::select! {
            _ = &mut stuck => unreachable!("nobody answers"),
            found = async {
                // Until the other owner has all the lookups in flight that it may have.
                let found = resolver.lookup("modest", "fine.example.", 80).await;
                resolver.lookup("other", "fine.example.", 80).await.unwrap();
                found
            } => found,
        }
    };
    let (found, names) = while_serving(socket, serve, work).await;
    assert_eq!(found.unwrap().len(), 1);
    let asked = names.iter().filter(|name| name.contains("silent")).count();
    assert!(asked <= 2 * PER_OWNER, "{asked} questions of one owner");
    drop(stuck);
    assert!(!resolver.0.shares.knows("greedy"));
    assert!(lock(&resolver.0.in_flight).values().all(|lookup| lookup.upgrade().is_none()));
}

#[tokio::test]
async fn equal_lookups_under_way_are_one() {
    let (socket, port) = server().await;
    let etc = Etc::new("equal", &[LOCAL]);
    let resolver = Resolver::with_port(&etc.0, port);
    let owners: Vec<String> = (0..50).map(|n| format!("pod{n}")).collect();
    let all = owners.iter().map(|owner| resolver.lookup(owner, "web.example.", 80));
    let serve = |message: &[u8]| answer(message, 0, Some([10, 0, 0, 9]));
    let work = futures::future::join_all(all);
    let (found, names) = while_serving(socket, serve, work).await;
    assert!(found.iter().all(|found| found.as_ref().is_ok_and(|found| found.len() == 1)));
    assert_eq!(names.len(), 2);
}

#[tokio::test]
async fn what_does_not_fit_is_asked_for_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let socket = UdpSocket::bind(("127.0.0.1", port)).await.unwrap();
    let etc = Etc::new("tcp", &[LOCAL]);
    let resolver = Resolver::with_port(&etc.0, port);
    let stream = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut message = vec![0; usize::from(stream.read_u16().await.unwrap())];
            stream.read_exact(&mut message).await.unwrap();
            let answer = answer(&message, 0, Some([10, 0, 0, 6]));
            stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    };
    let work = async {
        tokio::select! {
            found = resolver.lookup("pod", "long.example.", 80) => found,
            () = stream => unreachable!("served for ever"),
        }
    };
    let serve = |message: &[u8]| answer(message, TOO_LONG, None);
    let (found, _) = while_serving(socket, serve, work).await;
    assert_eq!(found.unwrap(), ["10.0.0.6:80".parse().unwrap()]);
}

#[tokio::test]
async fn where_a_library_has_a_say_it_is_asked_last() {
    let (socket, port) = server().await;
    let switch = ("nsswitch.conf", "hosts: files dns myhostname\n");
    let etc = Etc::new("library", &[LOCAL, switch]);
    let resolver = Resolver::with_port(&etc.0, port);
    let serve = |message: &[u8]| answer(message, UNKNOWN, None);
    // Only in the machine's own `hosts` file, not in the test's: only the C library finds it.
    let (found, _) = while_serving(socket, serve, resolver.lookup("pod", "localhost", 80)).await;
    assert!(found.unwrap().iter().all(|address| address.ip().is_loopback()));
}
