//! Resolves host names without a thread: `hosts`, then DNS, as Go's own resolver does.
//!
//! Owns: the sources (`hosts`, `resolv.conf`, `nsswitch.conf`, read again after five seconds), the
//! lookups in flight, and how many of them each owner may have.
//!
//! Promises: nothing blocks and nothing outlives its caller: a dropped lookup closes its sockets.
//! One owner (a pod) has at most `PER_OWNER` lookups at a time, so names whose server is silent
//! delay nobody else. Equal concurrent lookups are one. Error texts are Go's.
//!
//! Where `nsswitch.conf` names a source that needs a library (mDNS, `myhostname`), a name that no
//! other source knows is looked up by the C library, on threads of their own, one per pod; Go calls
//! it first in that case.
//!
//! Deliberately absent: a deadline for the whole lookup, which callers have; a cache of results.

mod config;
mod message;
mod order;

use crate::blocking;
use crate::shares::Shares;
use config::{DnsConfig, Hosts, Order, has_libraries, is_domain_name};
use futures::FutureExt as _;
use futures::future::{BoxFuture, WeakShared};
use message::{Kind, Question, Reply};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;
use units::errno::go_text;

/// How long the parsed files are cached.
const SOURCES_TTL: Duration = Duration::from_secs(5);
/// Lookups that one owner may have in flight.
const PER_OWNER: usize = 4;
const DNS_PORT: u16 = 53;
const NO_SUCH_HOST: &str = "no such host";
const TIMEOUT: &str = "i/o timeout";

/// Why a name has no address, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("lookup {name}{}: {why}", On(server.as_deref()))]
pub struct LookupError {
    name: String,
    server: Option<String>,
    why: String,
}

struct On<'a>(Option<&'a str>);

impl fmt::Display for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |server| write!(f, " on {server}"))
    }
}

impl LookupError {
    fn no_such_host(name: &str) -> Self {
        Self { name: name.to_owned(), server: None, why: NO_SUCH_HOST.to_owned() }
    }

    /// The error of a caller whose own deadline expired.
    pub fn timed_out(name: &str) -> Self {
        Self { name: name.to_owned(), server: None, why: TIMEOUT.to_owned() }
    }
}

type Answer = Result<Arc<[IpAddr]>, LookupError>;
type InFlight = WeakShared<BoxFuture<'static, Answer>>;

#[derive(Debug)]
struct Sources {
    order: Order,
    /// Whether some sources need a library.
    libraries: bool,
    hosts: Hosts,
    dns: DnsConfig,
}

#[derive(Debug)]
struct Inner {
    etc: PathBuf,
    port: u16,
    read: Mutex<Option<(Instant, Arc<Sources>)>>,
    in_flight: Mutex<HashMap<String, InFlight>>,
    shares: Shares,
    library_shares: Shares,
    turn: AtomicUsize,
}

/// Resolves host names. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Resolver(Arc<Inner>);

impl Resolver {
    /// Uses the files of this directory (`/etc`).
    pub fn new(etc: &Path) -> Self {
        Self::with_port(etc, DNS_PORT)
    }

    /// The same, with DNS servers on another port.
    pub fn with_port(etc: &Path, port: u16) -> Self {
        Self(Arc::new(Inner {
            etc: etc.to_owned(),
            port,
            read: Mutex::default(),
            in_flight: Mutex::default(),
            shares: Shares::new(PER_OWNER),
            library_shares: Shares::new(1),
            turn: AtomicUsize::new(0),
        }))
    }

    /// The addresses of a host, best first; an IP address resolves to itself. Cancel-safe.
    pub async fn lookup(
        &self,
        owner: &str,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, LookupError> {
        if let Some(address) = literal(host, port) {
            return Ok(vec![address]);
        }
        if !is_domain_name(host) {
            return Err(LookupError::no_such_host(host));
        }
        let _share = Shares::take(&self.0.shares, owner).await;
        let found = match self.join(host).await {
            Err(error) if error.why == NO_SUCH_HOST && self.sources().await.libraries => {
                let _share = Shares::take(&self.0.library_shares, owner).await;
                in_library(host).await.ok_or(error)?
            }
            other => other?,
        };
        Ok(found.iter().map(|ip| SocketAddr::new(*ip, port)).collect())
    }

    /// Waits for the lookup of this name that is in flight, or starts one.
    async fn join(&self, name: &str) -> Answer {
        let shared = {
            let mut in_flight = lock(&self.0.in_flight);
            match in_flight.get(name).and_then(WeakShared::upgrade) {
                Some(shared) => shared,
                None => {
                    in_flight.retain(|_, lookup| lookup.upgrade().is_some());
                    let (this, asked) = (self.clone(), name.to_owned());
                    let lookup = async move { this.ask(&asked).await }.boxed().shared();
                    if let Some(weak) = lookup.downgrade() {
                        in_flight.insert(name.to_owned(), weak);
                    }
                    lookup
                }
            }
        };
        shared.await
    }

    async fn ask(&self, name: &str) -> Answer {
        let sources = self.sources().await;
        let in_files = || {
            let mut found = sources.hosts.get(name)?.to_vec();
            order::sort(&mut found);
            Some(found)
        };
        let found = match sources.order {
            Order::Files => in_files().ok_or_else(|| LookupError::no_such_host(name)),
            Order::Dns => self.ask_servers(&sources.dns, name).await,
            Order::FilesDns => match in_files() {
                Some(found) => Ok(found),
                None => self.ask_servers(&sources.dns, name).await,
            },
            Order::DnsFiles => match self.ask_servers(&sources.dns, name).await {
                Ok(found) => Ok(found),
                Err(error) => in_files().ok_or(error),
            },
        };
        found.map(Arc::from)
    }

    async fn sources(&self) -> Arc<Sources> {
        if let Some((at, sources)) = &*lock(&self.0.read)
            && at.elapsed() < SOURCES_TTL
        {
            return Arc::clone(sources);
        }
        let (etc, port) = (self.0.etc.clone(), self.0.port);
        let read = blocking::run(move || {
            let text = |file| {
                let bytes = crate::fs::read(etc.join(file)).unwrap_or_default();
                String::from_utf8_lossy(&bytes).into_owned()
            };
            let hostname = crate::host::hostname();
            let switch = text("nsswitch.conf");
            Sources {
                order: Order::parse(&switch),
                libraries: has_libraries(&switch),
                hosts: Hosts::parse(&text("hosts")),
                dns: DnsConfig::parse(&text("resolv.conf"), port, &hostname),
            }
        });
        let sources = Arc::new(read.await.unwrap_or_else(|_| Sources {
            order: Order::default(),
            libraries: false,
            hosts: Hosts::default(),
            dns: DnsConfig::parse("", port, ""),
        }));
        *lock(&self.0.read) = Some((Instant::now(), Arc::clone(&sources)));
        sources
    }

    async fn ask_servers(
        &self,
        config: &DnsConfig,
        name: &str,
    ) -> Result<Vec<IpAddr>, LookupError> {
        let mut last: Option<LookupError> = None;
        for candidate in config.candidates(name) {
            let ask = |kind| self.ask_kind(config, &candidate, kind);
            let answers = if config.single {
                [ask(Kind::A).await, ask(Kind::Aaaa).await]
            } else {
                let (four, six) = futures::join!(ask(Kind::A), ask(Kind::Aaaa));
                [four, six]
            };
            let mut found = Vec::new();
            for answer in answers {
                match answer {
                    Ok(addresses) => found.extend(addresses),
                    // An error about the name itself says more than one about a longer candidate.
                    Err(mut error) => {
                        error.name = name.to_owned();
                        let own = candidate.strip_suffix('.') == Some(name);
                        if last.is_none() || own {
                            last = Some(error);
                        }
                    }
                }
            }
            if !found.is_empty() {
                order::sort(&mut found);
                return Ok(found);
            }
        }
        Err(last.unwrap_or_else(|| LookupError::no_such_host(name)))
    }

    /// Queries one server after the other until one knows the name.
    async fn ask_kind(
        &self,
        config: &DnsConfig,
        name: &str,
        kind: Kind,
    ) -> Result<Vec<IpAddr>, LookupError> {
        let first = if config.rotate { self.0.turn.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let mut last = LookupError::no_such_host(name);
        let rounds = config.attempts.saturating_mul(config.servers.len());
        let servers = config.servers.iter().cycle();
        for server in servers.skip(first % config.servers.len().max(1)).take(rounds) {
            let failed = |why: String| LookupError {
                name: name.to_owned(),
                server: Some(server.to_string()),
                why,
            };
            let question = Question { id: number(), name, kind, authentic: config.authentic };
            match exchange(*server, &question, config).await {
                Ok(Reply::Addresses(found)) => return Ok(found),
                Ok(Reply::NoSuchHost) => return Err(failed(NO_SUCH_HOST.to_owned())),
                Ok(Reply::Truncated) => last = failed("no answer from DNS server".to_owned()),
                Ok(Reply::Fault(why)) => last = failed(why.to_owned()),
                Err(why) => last = failed(why),
            }
        }
        Err(last)
    }
}

/// Looks up the name with the C library.
async fn in_library(name: &str) -> Option<Arc<[IpAddr]>> {
    let name = name.to_owned();
    let asked = blocking::run_for(blocking::Purpose::Names, move || {
        let found = (name.as_str(), 0).to_socket_addrs().ok()?;
        let mut ips: Vec<IpAddr> = found.map(|address| address.ip()).collect();
        ips.dedup();
        Some(ips)
    });
    asked.await.ok().flatten().filter(|ips| !ips.is_empty()).map(Arc::from)
}

/// One query to one server, over UDP and, if the response is truncated, over TCP.
async fn exchange(
    server: SocketAddr,
    question: &Question<'_>,
    config: &DnsConfig,
) -> Result<Reply, String> {
    let Some(asked) = message::question(question) else {
        return Err("cannot marshal DNS message".to_owned());
    };
    if !config.tcp {
        let reply = over_udp(server, question, &asked, config.timeout).await?;
        if reply != Reply::Truncated {
            return Ok(reply);
        }
    }
    let exchanged = over_tcp(server, question, &asked);
    match tokio::time::timeout(config.timeout, exchanged).await {
        Ok(reply) => reply,
        Err(_) => Err(format!("dial tcp {server}: {TIMEOUT}")),
    }
}

async fn over_udp(
    server: SocketAddr,
    question: &Question<'_>,
    asked: &[u8],
    timeout: Duration,
) -> Result<Reply, String> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let dialled = |error: std::io::Error| format!("dial udp {server}: {}", go_text(&error));
    let socket = UdpSocket::bind(any).await.map_err(dialled)?;
    socket.connect(server).await.map_err(dialled)?;
    let ends = match socket.local_addr() {
        Ok(own) => format!("{own}->{server}"),
        Err(_) => server.to_string(),
    };
    let sent = socket.send(asked).await;
    sent.map_err(|error| format!("write udp {ends}: write: {}", go_text(&error)))?;
    let mut buffer = [0; message::UDP_SIZE as usize];
    // Datagrams that are not the response are ignored; the timeout continues.
    let receive = async {
        loop {
            let got = socket.recv(&mut buffer).await?;
            if let Some(reply) = message::reply(buffer.get(..got).unwrap_or_default(), question) {
                return Ok::<_, std::io::Error>(reply);
            }
        }
    };
    match tokio::time::timeout(timeout, receive).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(format!("read udp {ends}: read: {}", go_text(&error))),
        Err(_) => Err(format!("read udp {ends}: {TIMEOUT}")),
    }
}

async fn over_tcp(
    server: SocketAddr,
    question: &Question<'_>,
    asked: &[u8],
) -> Result<Reply, String> {
    let dialled = |e: std::io::Error| format!("dial tcp {server}: connect: {}", go_text(&e));
    let mut stream = TcpStream::connect(server).await.map_err(dialled)?;
    let length = u16::try_from(asked.len()).unwrap_or_default();
    let message = [&length.to_be_bytes(), asked].concat();
    let exchanged = async {
        stream.write_all(&message).await?;
        let length = stream.read_u16().await?;
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchanged.await.map_err(|e| format!("read tcp {server}: {}", go_text(&e)))?;
    message::reply(&answer, question).ok_or_else(|| "invalid DNS response".to_owned())
}

/// An unpredictable number: the keys of a hasher are random.
fn number() -> u16 {
    let bits = std::hash::RandomState::new().build_hasher().finish();
    u16::try_from(bits & 0xffff).unwrap_or_default()
}

/// A host that is an IP address, possibly with a zone (`fe80::1%eth0`).
fn literal(host: &str, port: u16) -> Option<SocketAddr> {
    match host.split_once('%') {
        None => Some(SocketAddr::new(host.parse().ok()?, port)),
        Some((ip, zone)) => zoned(ip.parse().ok()?, zone, port),
    }
}

/// A link-local address with its interface, given by name or index.
fn zoned(ip: std::net::Ipv6Addr, zone: &str, port: u16) -> Option<SocketAddr> {
    let number = zone.parse().ok().or_else(|| {
        let socket = std::net::UdpSocket::bind("[::]:0").ok()?;
        rustix::net::netdevice::name_to_index(&socket, zone).ok()
    })?;
    Some(std::net::SocketAddrV6::new(ip, port, 0, number).into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
