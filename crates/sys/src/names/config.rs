//! The resolver's configuration: `resolv.conf`, `hosts` and the `hosts` line of `nsswitch.conf`,
//! parsed as Go's own resolver does.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Further servers are ignored.
const MAX_SERVERS: usize = 3;
/// The longest name, without a trailing dot.
const MAX_NAME: usize = 253;

/// Which sources are used, in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Order {
    #[default]
    FilesDns,
    DnsFiles,
    Files,
    Dns,
}

impl Order {
    /// Parses `nsswitch.conf`. Sources that need a library come last.
    pub(super) fn parse(text: &str) -> Self {
        let mut known: Vec<&str> =
            sources(text).filter(|word| ["files", "dns"].contains(word)).collect();
        known.dedup();
        match known.as_slice() {
            ["files"] => Self::Files,
            ["dns"] => Self::Dns,
            ["dns", ..] => Self::DnsFiles,
            _ => Self::FilesDns,
        }
    }
}

/// Whether `nsswitch.conf` names sources that need a library of the machine (`myhostname`, `sss`, mDNS).
pub(super) fn has_libraries(text: &str) -> bool {
    sources(text).any(|word| !["files", "dns"].contains(&word))
}

/// The words of the last `hosts` line; an action in brackets may consist of several.
fn sources(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let line = lines.filter_map(|line| line.trim().strip_prefix("hosts:")).next_back();
    let mut inside = false;
    line.unwrap_or_default().split_whitespace().filter(move |word| {
        let criterion = inside || word.starts_with('[');
        inside = criterion && !word.ends_with(']');
        !criterion
    })
}

/// `resolv.conf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DnsConfig {
    pub(super) servers: Vec<SocketAddr>,
    /// Each ends in a dot.
    search: Vec<String>,
    dots: usize,
    pub(super) timeout: Duration,
    pub(super) attempts: usize,
    pub(super) rotate: bool,
    /// One query at a time.
    pub(super) single: bool,
    pub(super) tcp: bool,
    pub(super) authentic: bool,
}

impl DnsConfig {
    /// Parses the file's text, which is empty when there is no file; `hostname` provides the search
    /// domain when the file has none.
    pub(super) fn parse(text: &str, port: u16, hostname: &str) -> Self {
        let mut config = Self {
            servers: Vec::new(),
            search: Vec::new(),
            dots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
            rotate: false,
            single: false,
            tcp: false,
            authentic: false,
        };
        for line in text.lines().filter(|line| !line.starts_with([';', '#'])) {
            let mut words = line.split([' ', '\t', '\r']).filter(|word| !word.is_empty());
            match words.next() {
                Some("nameserver") if config.servers.len() < MAX_SERVERS => {
                    config.servers.extend(words.next().and_then(|word| server(word, port)));
                }
                Some("domain") => config.search = words.next().map(rooted).into_iter().collect(),
                Some("search") => {
                    config.search = words.map(rooted).filter(|name| name != ".").collect();
                }
                Some("options") => words.for_each(|word| config.option(word)),
                _ => {}
            }
        }
        if config.servers.is_empty() {
            let local = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
            config.servers = local.map(|ip| SocketAddr::new(ip, port)).to_vec();
        }
        if config.search.is_empty()
            && let Some((_, domain)) = hostname.split_once('.')
            && !domain.is_empty()
        {
            config.search = vec![rooted(domain)];
        }
        config
    }

    fn option(&mut self, word: &str) {
        let number = |text: &str| {
            let digits: String = text.chars().take_while(char::is_ascii_digit).take(6).collect();
            digits.parse::<usize>().unwrap_or_default()
        };
        if let Some(dots) = word.strip_prefix("ndots:") {
            self.dots = number(dots).min(15);
        } else if let Some(seconds) = word.strip_prefix("timeout:") {
            let seconds = u64::try_from(number(seconds).max(1)).unwrap_or(1);
            self.timeout = Duration::from_secs(seconds);
        } else if let Some(attempts) = word.strip_prefix("attempts:") {
            self.attempts = number(attempts).max(1);
        }
        match word {
            "rotate" => self.rotate = true,
            "single-request" | "single-request-reopen" => self.single = true,
            "use-vc" | "usevc" | "tcp" => self.tcp = true,
            "trust-ad" => self.authentic = true,
            _ => {}
        }
    }

    /// The names to query, one after the other; each ends in a dot.
    pub(super) fn candidates(&self, name: &str) -> Vec<String> {
        let asked = |name: &String| {
            let name = name.strip_suffix('.').unwrap_or(name);
            let onion = name.len() >= 6
                && name.get(name.len() - 6..).is_some_and(|end| end.eq_ignore_ascii_case(".onion"));
            !name.is_empty() && name.len() <= MAX_NAME && !onion
        };
        if name.ends_with('.') {
            return std::iter::once(name.to_owned()).filter(asked).collect();
        }
        let plain = rooted(name);
        let suffixed = self.search.iter().map(|suffix| format!("{plain}{suffix}"));
        let mut names: Vec<String> = suffixed.collect();
        if name.matches('.').count() >= self.dots {
            names.insert(0, plain);
        } else {
            names.push(plain);
        }
        names.retain(asked);
        names
    }
}

fn rooted(name: &str) -> String {
    if name.ends_with('.') { name.to_owned() } else { format!("{name}.") }
}

/// A server's address; a link-local one has its interface by index.
fn server(word: &str, port: u16) -> Option<SocketAddr> {
    match word.split_once('%') {
        None => Some(SocketAddr::new(word.parse().ok()?, port)),
        Some((ip, zone)) => super::zoned(ip.parse().ok()?, zone, port),
    }
}

/// `hosts`: addresses by name, in lower case and without a trailing dot.
#[derive(Debug, Clone, Default)]
pub(super) struct Hosts(HashMap<String, Vec<IpAddr>>);

impl Hosts {
    pub(super) fn parse(text: &str) -> Self {
        let mut hosts: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let address = words.next().and_then(|word| word.split('%').next());
            let Some(address) = address.and_then(|word| word.parse().ok()) else { continue };
            for name in words {
                hosts.entry(key(name)).or_default().push(address);
            }
        }
        Self(hosts)
    }

    pub(super) fn get(&self, name: &str) -> Option<&[IpAddr]> {
        self.0.get(&key(name)).map(Vec::as_slice)
    }
}

fn key(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Whether a text is a valid name for a lookup (`net: isDomainName`).
pub(super) fn is_domain_name(name: &str) -> bool {
    if name == "." {
        return true;
    }
    let labels = name.strip_suffix('.').unwrap_or(name);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(fits)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    labels.len() <= MAX_NAME && labels.split('.').all(is_label) && !labels.bytes().all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resolver_file_is_read_as_go_reads_it() {
        let text = "# c\n;c\nnameserver 10.0.0.1\nnameserver x\nnameserver fd00::1\n\
                    nameserver 10.0.0.2\nnameserver 10.0.0.3\ndomain a\nsearch b c. .\n\
                    options ndots:99 timeout:0 attempts:0 rotate use-vc single-request trust-ad\n";
        let config = DnsConfig::parse(text, 53, "h.dom");
        let servers: Vec<String> = config.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.0.0.1:53", "[fd00::1]:53", "10.0.0.2:53"]);
        assert_eq!(config.search, ["b.", "c."]);
        assert_eq!((config.dots, config.attempts), (15, 1));
        assert_eq!(config.timeout, Duration::from_secs(1));
        assert!(config.rotate && config.tcp && config.single && config.authentic);
        let none = DnsConfig::parse("", 53, "h.dom");
        assert_eq!((none.search, none.attempts), (vec!["dom.".to_owned()], 2));
        assert_eq!(none.servers.len(), 2);
    }

    #[test]
    fn names_are_searched_in_gos_order() {
        let config = DnsConfig::parse("search x y\noptions ndots:1", 53, "");
        assert_eq!(config.candidates("a"), ["a.x.", "a.y.", "a."]);
        assert_eq!(config.candidates("a.b"), ["a.b.", "a.b.x.", "a.b.y."]);
        assert_eq!(config.candidates("a."), ["a."]);
        assert!(config.candidates("a.onion.").is_empty());
        assert_eq!(config.candidates("é-x.onioné").len(), 3);
    }

    #[test]
    fn sources_come_in_the_order_of_the_switch_file() {
        for (line, want) in [
            ("", Order::FilesDns),
            ("passwd: files\n", Order::FilesDns),
            ("hosts: files mdns4_minimal [NOTFOUND=return] dns myhostname", Order::FilesDns),
            ("hosts: dns files # last", Order::DnsFiles),
            ("hosts:files", Order::Files),
            ("hosts: dns", Order::Dns),
            ("hosts: resolve", Order::FilesDns),
        ] {
            assert_eq!(Order::parse(line), want, "{line}");
        }
        for (line, want) in [
            ("hosts: files dns", false),
            ("hosts: files [NOTFOUND=return UNAVAIL=continue] dns", false),
            ("hosts: files mdns4_minimal [NOTFOUND=return] dns", true),
            ("hosts: files dns myhostname", true),
        ] {
            assert_eq!(has_libraries(line), want, "{line}");
        }
    }

    #[test]
    fn hosts_are_found_by_any_of_their_names() {
        let hosts = Hosts::parse("127.0.0.1 localhost Own.Name # x\n::1 localhost\nbad name\n");
        assert_eq!(hosts.get("LOCALHOST.").unwrap().len(), 2);
        assert_eq!(hosts.get("own.name").unwrap().len(), 1);
        assert_eq!(hosts.get("x"), None);
    }

    #[test]
    fn what_is_no_name_is_not_looked_up() {
        for host in ["1.2.3", "127.1", "2130706433", "a b", "-x", "a..b", "", "a:b", "a%b"] {
            assert!(!is_domain_name(host), "{host}");
        }
        assert!(!is_domain_name(&format!("{}.x", "a".repeat(64))));
        for host in ["a", "1.a", "x_y.example.", "0x7f.1", "."] {
            assert!(is_domain_name(host), "{host}");
        }
    }
}
