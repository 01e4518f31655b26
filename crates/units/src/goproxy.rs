//! The proxy that the environment names for a server, by Go's rules (`httpproxy`).
//!
//! Promises: this machine itself is never asked for through a proxy; of `NO_PROXY` names, addresses
//! and networks count, with or without a port. `ALL_PROXY` is nobody's.

use std::net::IpAddr;

/// The proxy to use for a server at this host (without brackets) and port, as it was given.
pub fn choose(
    scheme: &str,
    host: &str,
    port: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let first =
        |names: [&str; 2]| names.into_iter().filter_map(&variable).find(|value| !value.is_empty());
    let proxy = match scheme {
        "https" => first(["HTTPS_PROXY", "https_proxy"])?,
        // A caller of a program that speaks CGI can set this variable.
        "http" if variable("REQUEST_METHOD").is_none_or(|method| method.is_empty()) => {
            first(["HTTP_PROXY", "http_proxy"])?
        }
        _ => return None,
    };
    let usual = if scheme == "https" { "443" } else { "80" };
    let exceptions = first(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    let spared = is_spared(&host.to_lowercase(), port.unwrap_or(usual), &exceptions);
    (!spared).then_some(proxy)
}

/// Whether a server is spoken to without a proxy.
fn is_spared(host: &str, port: &str, exceptions: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.to_canonical().is_loopback()) {
        return true;
    }
    exceptions.split(',').map(|entry| entry.trim().to_lowercase()).any(|entry| {
        if entry.is_empty() || entry == "*" {
            return entry == "*";
        }
        if let Some((network, length)) = network(&entry) {
            return address.is_some_and(|address| contains(network, length, address));
        }
        let (name, wanted) = with_port(&entry);
        if name.is_empty() || wanted.is_some_and(|wanted| wanted != port && !wanted.is_empty()) {
            return false;
        }
        match (name.parse::<IpAddr>().ok(), address) {
            (Some(spared), address) => {
                address.map(|address| address.to_canonical()) == Some(spared.to_canonical())
            }
            (None, Some(_)) => false,
            (None, None) => below(host, name),
        }
    })
}

/// Whether a host is the one of an entry, or below it. One that begins with a dot is not itself meant.
fn below(host: &str, entry: &str) -> bool {
    let entry = entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry);
    match entry.strip_prefix('.') {
        Some(_) => host.ends_with(entry),
        None => host == entry || host.ends_with(&format!(".{entry}")),
    }
}

/// A network, by its address and the length of its prefix.
fn network(entry: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = entry.split_once('/')?;
    let (address, length) = (address.parse().ok()?, length.parse().ok()?);
    let longest = if matches!(address, IpAddr::V4(_)) { 32 } else { 128 };
    (length <= longest).then_some((address, length))
}

fn contains(network: IpAddr, length: u32, address: IpAddr) -> bool {
    match (network, address.to_canonical()) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let rest = 32_u32.saturating_sub(length);
            u32::from(network).checked_shr(rest) == u32::from(address).checked_shr(rest)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let rest = 128_u32.saturating_sub(length);
            u128::from(network).checked_shr(rest) == u128::from(address).checked_shr(rest)
        }
        _ => false,
    }
}

/// An entry's host, and its port if it has one (Go: `net.SplitHostPort`, or the whole).
fn with_port(entry: &str) -> (&str, Option<&str>) {
    match entry.rsplit_once(':') {
        Some((host, port)) if host.starts_with('[') && host.ends_with(']') => {
            (host.trim_start_matches('[').trim_end_matches(']'), Some(port))
        }
        // More than one colon makes an address.
        Some((host, port)) if !host.contains([':', '[', ']']) => (host, Some(port)),
        _ => (entry, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxied(server: &str, no_proxy: &str) -> bool {
        let variables = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", no_proxy)];
        let named = |name: &str| variables.iter().find(|(known, _)| *known == name);
        ask(server, |name| named(name).map(|(_, value)| (*value).to_owned())).is_some()
    }

    fn ask(server: &str, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
        let (scheme, place) = server.split_once("://").unwrap();
        let (host, port) = with_port(place);
        choose(scheme, host.trim_matches(['[', ']']), port, variable)
    }

    // Each as Go's `http.ProxyFromEnvironment` answers.
    #[test]
    fn this_machine_is_never_behind_a_proxy() {
        for own in ["https://127.0.0.1:6443", "https://localhost", "https://[::1]:6443"] {
            assert!(!proxied(own, ""), "{own}");
        }
        assert!(proxied("https://10.0.0.1:6443", ""));
        assert!(proxied("https://localhost.example", ""));
        assert!(!proxied("http://10.0.0.1", ""), "HTTPS_PROXY is for https alone");
    }

    #[test]
    fn exceptions_are_names_addresses_and_networks() {
        for (server, no_proxy, wanted) in [
            ("https://api.example", "example", false),
            ("https://example", "example", false),
            ("https://example", ".example", true),
            ("https://api.example", ".example", false),
            ("https://api.example", "*.example", false),
            ("https://example", "*.example", true),
            ("https://anexample", "example", true),
            ("https://API.Example", " x , EXAMPLE ", false),
            ("https://api.example:6443", "api.example:443", true),
            ("https://api.example:6443", "api.example:6443", false),
            ("https://api.example", "api.example:443", false),
            ("https://10.1.2.3", "10.0.0.0/8", false),
            ("https://10.1.2.3", "10.1.2.3", false),
            ("https://10.1.2.3:6443", "10.1.2.3:443", true),
            ("https://11.1.2.3", "10.0.0.0/8", true),
            ("https://[fd00::1]", "fd00::/8", false),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", false),
            ("https://10.1.2.3", "0.0.0.0/0", false),
            ("https://10.1.2.3", ".3", true),
            ("https://api.example", "*", false),
            ("https://api.example", ",,", true),
        ] {
            assert_eq!(proxied(server, no_proxy), wanted, "{server} without {no_proxy}");
        }
    }

    #[test]
    fn the_first_variable_that_says_something_counts() {
        let asked = |server: &str, variables: &[(&str, &str)]| {
            let named = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned())
            };
            ask(server, named)
        };
        let lower = [("HTTPS_PROXY", ""), ("https_proxy", "b")];
        assert_eq!(asked("https://a", &lower).as_deref(), Some("b"));
        assert_eq!(asked("https://a", &[("ALL_PROXY", "b")]), None);
        let http = [("HTTP_PROXY", "b")];
        assert_eq!(asked("http://a", &http).as_deref(), Some("b"));
        assert_eq!(asked("http://a", &[http[0], ("REQUEST_METHOD", "GET")]), None);
    }
}
