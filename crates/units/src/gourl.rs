//! URLs as Go's `net/url` reads them, with its objections word for word.
//!
//! Promises: total; what is taken apart is taken apart where Go does it, and the first fault is the
//! one that Go names.
//!
//! Deliberately absent: putting whole URLs together, and queries, which are kept as they are.

use crate::strconv::{quote, quote_bytes};
use std::borrow::Cow;

/// A URL in its parts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GoUrl {
    /// In lower case; empty for a relative one.
    pub scheme: String,
    /// What follows the scheme where no slash does.
    pub opaque: String,
    /// What stands before `@`, as it is written.
    pub user: Option<String>,
    /// Host and port.
    pub host: String,
    /// The path, its escapes resolved.
    pub path: String,
    /// What follows `?`, as it is written.
    pub query: String,
}

/// Reads a URL; the error is Go's (`parse "x": missing protocol scheme`).
pub fn parse(text: &str) -> Result<GoUrl, String> {
    let (before, fragment) = text.split_once('#').unwrap_or((text, ""));
    let failed = |text: &str, why: String| format!("parse {}: {why}", quote(text));
    let url = take_apart(before).map_err(|why| failed(before, why))?;
    unescape(fragment, Place::Elsewhere).map_err(|why| failed(text, why))?;
    Ok(url)
}

/// Reads the address of an API server: without scheme and host, what stands there is host and port,
/// spoken to in the clear (client-go: `DefaultServerURL`).
pub fn of_server(server: &str) -> Result<GoUrl, String> {
    let server = &*kept(server);
    match parse(server) {
        Ok(url) if !url.scheme.is_empty() && !url.host.is_empty() => return Ok(url),
        _ => {}
    }
    let url = parse(&format!("http://{server}"))?;
    match url.path.as_str() {
        "" | "/" => Ok(url),
        _ => Err(format!("host must be a URL or a host:port pair: {}", quote(server))),
    }
}

/// What client-go keeps of an address that is a path only: written anew, without its query.
fn kept(server: &str) -> Cow<'_, str> {
    let path = server.split('?').next().unwrap_or_default();
    let control = server.bytes().any(|b| b < b' ' || b == 0x7f);
    match unescape(path, Place::Elsewhere) {
        Ok(plain) if path.starts_with('/') && plain.len() > 1 && !control => {
            let stays = |b: u8| path_byte(b) || b"!'()*[]%".contains(&b);
            if path.bytes().all(stays) { path.into() } else { escaped(&plain).into() }
        }
        _ => server.into(),
    }
}

/// A path as Go writes it.
fn escaped(path: &str) -> String {
    let one = |b: u8| if path_byte(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
    path.bytes().map(one).collect()
}

fn path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte)
}

/// Where an escape stands: hosts have stricter rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Host,
    Zone,
    Elsewhere,
}

fn take_apart(text: &str) -> Result<GoUrl, String> {
    if text.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    if text == "*" {
        return Ok(GoUrl { path: "*".to_owned(), ..GoUrl::default() });
    }
    let (scheme, rest) = split_scheme(text)?;
    let (mut rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url =
        GoUrl { scheme: scheme.to_ascii_lowercase(), query: query.to_owned(), ..GoUrl::default() };
    if !rest.starts_with('/') {
        if !url.scheme.is_empty() {
            rest.clone_into(&mut url.opaque);
            return Ok(url);
        }
        if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
    }
    let has_authority = !url.scheme.is_empty() || !rest.starts_with("///");
    if let Some(after) = rest.strip_prefix("//").filter(|_| has_authority) {
        let (authority, path) = after.find('/').map_or((after, ""), |at| after.split_at(at));
        rest = path;
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        url.host = host_of(&url.scheme, host)?;
        if let Some(user) = user {
            user_fault(user)?;
            url.user = Some(user.to_owned());
        }
    }
    url.path = unescape(rest, Place::Elsewhere)?;
    Ok(url)
}

fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            b':' => return Ok((&text[..at], &text[at + 1..])),
            _ => return Ok(("", text)),
        }
    }
    Ok(("", text))
}

fn user_fault(user: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(fine) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    for part in user.splitn(2, ':') {
        unescape(part, Place::Elsewhere)?;
    }
    Ok(())
}

fn host_of(scheme: &str, host: &str) -> Result<String, String> {
    match host.rfind('[') {
        Some(0) => return literal_of(host),
        Some(_) => return Err("invalid IP-literal".to_owned()),
        None => {}
    }
    if let Some(first) = host.find(':') {
        // Several colons are borne but with the web's own schemes.
        let strict = ["http", "https"].contains(&scheme);
        let at = if strict { first } else { host.rfind(':').unwrap_or(first) };
        port_fault(&host[at..])?;
    }
    unescape(host, Place::Host)
}

/// An address in brackets, with a port or without.
fn literal_of(host: &str) -> Result<String, String> {
    let Some(close) = host.rfind(']') else {
        return Err("missing ']' in host".to_owned());
    };
    let (inside, port) = (&host[1..close], &host[close + 1..]);
    port_fault(port)?;
    let name = match inside.find("%25") {
        Some(at) => {
            let address = unescape(&inside[..at], Place::Host)?;
            address + &unescape(&inside[at..], Place::Zone)?
        }
        None => unescape(inside, Place::Host)?,
    };
    match name.find(['.', ':', '%']).and_then(|at| name[at..].chars().next()) {
        Some(':') => v6_fault(&name).map_or(Ok(()), Err)?,
        Some('%') => return Err(address_fault(&name, "missing IPv6 address")),
        Some(_) => {
            let fault = v4_fault(&name, &name);
            return Err(fault.unwrap_or_else(|| "invalid IP-literal".to_owned()));
        }
        None => return Err(address_fault(&name, "unable to parse IP")),
    }
    Ok(format!("[{name}]{port}"))
}

fn address_fault(name: &str, why: &str) -> String {
    format!("invalid host: ParseAddr({}): {why}", quote(name))
}

/// What Go says of an IPv4 address that is none; `name` is the whole it stands in.
fn v4_fault(name: &str, text: &str) -> Option<String> {
    let told = |why: &str| Some(address_fault(name, why));
    let (mut fields, mut field) = (1, "");
    for (at, c) in text.char_indices() {
        let rest = &text[at..];
        match c {
            '0'..='9' if field == "0" => return told("IPv4 field has octet with leading zero"),
            '0'..='9' => {
                field = &text[at - field.len()..=at];
                if field.parse::<u8>().is_err() {
                    return told("IPv4 field has value >255");
                }
            }
            '.' if field.is_empty() || rest == "." => {
                return told_at(name, "IPv4 field must have at least one digit", rest);
            }
            '.' if fields == 4 => return told("IPv4 address too long"),
            '.' => {
                fields += 1;
                field = "";
            }
            _ => return told_at(name, "unexpected character", rest),
        }
    }
    if fields < 4 { told("IPv4 address too short") } else { None }
}

fn told_at(name: &str, why: &str, rest: &str) -> Option<String> {
    Some(address_fault(name, &format!("{why} (at {})", quote(rest))))
}

/// What Go says of an IPv6 address that is none.
fn v6_fault(name: &str) -> Option<String> {
    let (address, zone) = match name.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (name, None),
    };
    if zone == Some("") {
        return Some(address_fault(name, "zone must be a non-empty string"));
    }
    if address == "::" {
        return None;
    }
    let at = |why: &str, rest: &str| told_at(name, why, rest);
    let mut rest = address.strip_prefix("::").unwrap_or(address);
    let mut doubled = rest.len() != address.len();
    let mut groups = 0;
    while groups < 8 {
        let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        let after = &rest[digits..];
        if digits > 4 {
            return at("each group must have 4 or less digits", rest);
        }
        if digits == 0 {
            return at("each colon-separated field must have at least one digit", rest);
        }
        if after.starts_with('.') {
            if !doubled && groups != 6 {
                let why = "embedded IPv4 address must replace the final 2 fields of the address";
                return at(why, rest);
            }
            if groups > 6 {
                let why = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return at(why, rest);
            }
            if let Some(fault) = v4_fault(name, rest) {
                return Some(fault);
            }
            groups += 2;
            rest = "";
            break;
        }
        groups += 1;
        rest = match after.as_bytes() {
            [] => "",
            [b':'] => return at("colon must be followed by more characters", after),
            [b':', b':', ..] if doubled => return at("multiple :: in address", &after[1..]),
            [b':', b':', ..] => {
                doubled = true;
                &after[2..]
            }
            [b':', ..] => &after[1..],
            _ => return at("unexpected character, want colon", after),
        };
        if rest.is_empty() {
            break;
        }
    }
    if !rest.is_empty() {
        return at("trailing garbage after address", rest);
    }
    match (groups < 8, doubled) {
        (true, false) => Some(address_fault(name, "address string too short")),
        (false, true) => {
            let why = "the :: must expand to at least one field of zeros";
            Some(address_fault(name, why))
        }
        _ => None,
    }
}

fn port_fault(port: &str) -> Result<(), String> {
    let fine = port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    if fine { Ok(()) } else { Err(format!("invalid port {} after host", quote(port))) }
}

/// What a host may have as it is.
fn host_char(byte: u8) -> bool {
    byte >= 0x80 || byte.is_ascii_alphanumeric() || b"!\"$&'()*+,-.:;<=>[]_~".contains(&byte)
}

fn unescape(text: &str, place: Place) -> Result<String, String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte != b'%' {
            if place != Place::Elsewhere && !host_char(byte) {
                let shown = quote(&char::from(byte).to_string());
                return Err(format!("invalid character {shown} in host name"));
            }
            out.push(byte);
            at += 1;
            continue;
        }
        let digit = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
        let value = digit(at + 1).zip(digit(at + 2)).map(|(high, low)| high * 16 + low);
        let value = value.and_then(|value| u8::try_from(value).ok());
        let shown = || quote_bytes(&bytes[at..bytes.len().min(at + 3)]);
        let allowed = |value: u8| match place {
            Place::Host => value >= 0x80 || value == b'%',
            Place::Zone => value == b'%' || value == b' ' || (value < 0x80 && host_char(value)),
            Place::Elsewhere => true,
        };
        match value.filter(|value| allowed(*value)) {
            Some(value) => out.push(value),
            None => return Err(format!("invalid URL escape {}", shown())),
        }
        at += 3;
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_as_go_does() {
        let parts = |text: &str| {
            let url = parse(text).unwrap();
            (url.scheme, url.opaque, url.host, url.path)
        };
        let cases = [
            ("unix:///run/x", ("unix", "", "", "/run/x")),
            ("unix:/run/x", ("unix", "", "", "/run/x")),
            ("unix:x", ("unix", "x", "", "")),
            ("unix://None", ("unix", "", "None", "")),
            ("unix://://", ("unix", "", ":", "//")),
            ("HTTPS://a.io:5/x%20y?q#f", ("https", "", "a.io:5", "/x y")),
            ("a/b", ("", "", "", "a/b")),
            ("//a/b", ("", "", "a", "/b")),
            ("///a/b", ("", "", "", "///a/b")),
            ("https://[fe80::1%25lo]:5", ("https", "", "[fe80::1%lo]:5", "")),
            ("dns://a:b:1", ("dns", "", "a:b:1", "")),
        ];
        for (text, (scheme, opaque, host, path)) in cases {
            let want = (scheme.to_owned(), opaque.to_owned(), host.to_owned(), path.to_owned());
            assert_eq!(parts(text), want, "{text}");
        }
    }

    #[test]
    fn faults_read_as_gos() {
        let cases = [
            ("://", "parse \"://\": missing protocol scheme"),
            ("1:2", "parse \"1:2\": first path segment in URL cannot contain colon"),
            ("http://a b", "parse \"http://a b\": invalid character \" \" in host name"),
            ("dns://[::1", "parse \"dns://[::1\": missing ']' in host"),
            ("dns://a:x", "parse \"dns://a:x\": invalid port \":x\" after host"),
            ("https://a:1:2", "parse \"https://a:1:2\": invalid port \":1:2\" after host"),
            ("unix:///%zz", "parse \"unix:///%zz\": invalid URL escape \"%zz\""),
            ("http://%41", "parse \"http://%41\": invalid URL escape \"%41\""),
            ("http://a^b@c", "parse \"http://a^b@c\": net/url: invalid userinfo"),
            ("a\u{1}", "parse \"a\\x01\": net/url: invalid control character in URL"),
            (
                "http://[x]",
                "parse \"http://[x]\": invalid host: ParseAddr(\"x\"): unable to parse IP",
            ),
            ("http://a/%aé", "parse \"http://a/%aé\": invalid URL escape \"%a\\xc3\""),
            ("http://[1.2.3.4]", "parse \"http://[1.2.3.4]\": invalid IP-literal"),
        ];
        for (text, fault) in cases {
            assert_eq!(parse(text).unwrap_err(), fault);
        }
    }

    #[test]
    fn an_address_without_a_scheme_is_one_in_the_clear() {
        let scheme = |server: &str| of_server(server).map(|url| url.scheme);
        assert_eq!(scheme("HTTPS://a/b"), Ok("https".to_owned()));
        for clear in ["a", "a:1", "127.0.0.1:6443/", "https:"] {
            assert_eq!(scheme(clear), Ok("http".to_owned()), "{clear}");
        }
        for (server, shown) in [
            ("a/b", "a/b"),
            ("//a\\\"b:1:2/a", "//a%5C%22b:1:2/a"),
            ("/a(b)?q", "/a(b)"),
            ("/a%20b", "/a%20b"),
            ("/(#", "/%28%23"),
        ] {
            let told = of_server(server).unwrap_err();
            assert_eq!(told, format!("host must be a URL or a host:port pair: {shown:?}"));
        }
    }

    #[test]
    fn addresses_are_refused_in_the_words_of_go() {
        for good in ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "fe80::1%25lo"] {
            assert!(parse(&format!("http://[{good}]")).is_ok(), "{good}");
        }
        for (address, why) in [
            ("1.2.3", "IPv4 address too short"),
            ("1.2.3.4.5", "IPv4 address too long"),
            ("1.2.3.256", "IPv4 field has value >255"),
            ("01.2.3.4", "IPv4 field has octet with leading zero"),
            ("1..3.4", "IPv4 field must have at least one digit (at \".3.4\")"),
            ("1.2.3.", "IPv4 field must have at least one digit (at \".\")"),
            ("1.x.3.4", "unexpected character (at \"x.3.4\")"),
            ("1:2", "address string too short"),
            ("12345::", "each group must have 4 or less digits (at \"12345::\")"),
            (":1", "each colon-separated field must have at least one digit (at \":1\")"),
            ("1:", "colon must be followed by more characters (at \":\")"),
            ("1::2::3", "multiple :: in address (at \":3\")"),
            ("1:2:3:4:5:6:7:8:9", "trailing garbage after address (at \"9\")"),
            ("1:2:3:4::5:6:7:8", "the :: must expand to at least one field of zeros"),
            ("1:g", "each colon-separated field must have at least one digit (at \"g\")"),
            ("1g:2", "unexpected character, want colon (at \"g:2\")"),
            (
                "1:2.3.4.5",
                "embedded IPv4 address must replace the final 2 fields of the address (at \"2.3.4.5\")",
            ),
            ("::1.2.3", "IPv4 address too short"),
        ] {
            let url = format!("http://[{address}]");
            let want = format!("parse \"{url}\": invalid host: ParseAddr(\"{address}\"): {why}");
            assert_eq!(parse(&url).unwrap_err(), want);
        }
    }
}
