//! URLs as Go's `net/url` takes them apart and puts them together, errors included: probes, hooks and
//! redirects show them in events, and what a server is asked for depends on them.
//!
//! Deliberately absent: decoding. A path is kept as it is sent, so that nothing is escaped twice.

use units::strconv::quote;

/// A URL or a reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Url {
    /// In lower case; empty in a reference.
    pub scheme: String,
    /// What follows a scheme without a slash.
    opaque: String,
    /// Name and password, decoded.
    user: Option<(String, Option<String>)>,
    /// Host and port as in the URL, but decoded.
    pub host: String,
    /// As it is sent.
    path: String,
    /// What follows a `?`, if there is one.
    query: Option<String>,
    /// What follows a `#`, escaped.
    fragment: String,
    /// `scheme:/path`.
    omits_host: bool,
}

/// A part of a URL, by what it may contain unescaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Path,
    Host,
    Zone,
    User,
    Fragment,
}

impl Part {
    /// Whether a byte stands for itself there.
    fn has(self, byte: u8) -> bool {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            return true;
        }
        match self {
            Part::Path => b"$&+,/:;=@".contains(&byte),
            Part::Host | Part::Zone => b"!$&'()*+,;=:[]<>\"".contains(&byte),
            Part::User => b"$&+,;=".contains(&byte),
            Part::Fragment => b"$&+,/:;=?@!()*".contains(&byte),
        }
    }
}

impl Url {
    /// Takes a text apart (`net/url: Parse`).
    pub(crate) fn parse(text: &str) -> Result<Url, String> {
        let (front, fragment) = text.split_once('#').unwrap_or((text, ""));
        let failed = |about: &str, error: String| format!("parse {}: {error}", quote(about));
        let mut url = Url::parse_front(front).map_err(|error| failed(front, error))?;
        url.fragment = encoded(fragment, Part::Fragment).map_err(|error| failed(text, error))?;
        Ok(url)
    }

    /// What has only a path, which may contain anything.
    pub(crate) fn of_path(path: &str) -> Url {
        let path = if path == "*" { path.to_owned() } else { escape(path.as_bytes(), Part::Path) };
        Url { path, ..Url::default() }
    }

    fn parse_front(text: &str) -> Result<Url, String> {
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        if text == "*" {
            return Ok(Url::of_path(text));
        }
        let (scheme, rest) = split_scheme(text)?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query.to_owned())),
            None => (rest, None),
        };
        let mut url = Url { scheme: scheme.to_ascii_lowercase(), query, ..Url::default() };
        if !rest.starts_with('/') {
            if !url.scheme.is_empty() {
                rest.clone_into(&mut url.opaque);
                return Ok(url);
            }
            if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
        }
        let mut path = rest;
        let has_authority = !url.scheme.is_empty() || !rest.starts_with("///");
        if let Some(after) = rest.strip_prefix("//").filter(|_| has_authority) {
            let (authority, rest) = after.split_at(after.find('/').unwrap_or(after.len()));
            url.set_authority(authority)?;
            path = rest;
        } else {
            url.omits_host = !url.scheme.is_empty() && rest.starts_with('/');
        }
        url.path = encoded(path, Part::Path)?;
        Ok(url)
    }

    fn set_authority(&mut self, authority: &str) -> Result<(), String> {
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        self.host = parse_host(&self.scheme, host)?;
        let Some(user) = user else { return Ok(()) };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
        if !user.bytes().all(fits) {
            return Err("net/url: invalid userinfo".to_owned());
        }
        let text = |part: &str| unescape(part, Part::User).map(lossy);
        self.user = Some(match user.split_once(':') {
            Some((name, password)) => (text(name)?, Some(text(password)?)),
            None => (text(user)?, None),
        });
        Ok(())
    }

    /// Where a reference that was found at this URL leads.
    pub(crate) fn resolve(&self, reference: &Url) -> Url {
        let mut url = reference.clone();
        if reference.scheme.is_empty() {
            self.scheme.clone_into(&mut url.scheme);
        }
        if reference.is_absolute() || !reference.host.is_empty() || reference.user.is_some() {
            url.path = resolve_path(&reference.path, "");
            return url;
        }
        if reference.path.is_empty() && reference.query.is_none() {
            url.query.clone_from(&self.query);
            if reference.fragment.is_empty() {
                self.fragment.clone_into(&mut url.fragment);
            }
        }
        if reference.path.is_empty() && !self.opaque.is_empty() {
            self.opaque.clone_into(&mut url.opaque);
            return url;
        }
        self.host.clone_into(&mut url.host);
        url.user.clone_from(&self.user);
        url.path = resolve_path(&self.path, &reference.path);
        url
    }

    /// Whether it says how it is to be asked for.
    pub(crate) fn is_absolute(&self) -> bool {
        !self.scheme.is_empty()
    }

    /// Whether TLS is spoken.
    pub(crate) fn is_tls(&self) -> bool {
        self.scheme == "https"
    }

    /// The host without its port and brackets.
    pub(crate) fn hostname(&self) -> &str {
        let host = self.split_host().0;
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The port to dial; a text, for what is no port is told of by whoever dials.
    pub(crate) fn port(&self) -> &str {
        match self.split_host().1 {
            "" if self.is_tls() => "443",
            "" => "80",
            port => port,
        }
    }

    fn split_host(&self) -> (&str, &str) {
        match self.host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, port),
            _ => (&self.host, ""),
        }
    }

    /// What a server is asked for.
    pub(crate) fn request_uri(&self) -> String {
        let mut uri = match (self.opaque.as_str(), self.path.as_str()) {
            ("", "") => "/".to_owned(),
            ("", path) => path.to_owned(),
            (opaque, _) if opaque.starts_with("//") => format!("{}:{opaque}", self.scheme),
            (opaque, _) => opaque.to_owned(),
        };
        if let Some(query) = &self.query {
            uri.push('?');
            uri.push_str(query);
        }
        uri
    }

    /// `name:password` of the URL itself, for basic authentication.
    pub(crate) fn credentials(&self) -> Option<String> {
        let (name, password) = self.user.as_ref()?;
        Some(format!("{name}:{}", password.as_deref().unwrap_or_default()))
    }

    /// Without the password, as errors show it.
    pub(crate) fn redacted(&self) -> String {
        match &self.user {
            Some((name, Some(_))) => self.with_user(Some(&format!("{name}:***"))),
            _ => self.to_string(),
        }
    }

    /// As a server learns where its reader comes from.
    pub(crate) fn as_referer(&self) -> String {
        self.with_user(None)
    }

    fn with_user(&self, user: Option<&str>) -> String {
        let mut text = String::new();
        if !self.scheme.is_empty() {
            text.push_str(&self.scheme);
            text.push(':');
        }
        if self.opaque.is_empty() {
            let anywhere = !self.scheme.is_empty() || !self.host.is_empty() || user.is_some();
            let nowhere = self.host.is_empty() && user.is_none();
            if anywhere && !(self.omits_host && nowhere) {
                if !nowhere || !self.path.is_empty() {
                    text.push_str("//");
                }
                if let Some(user) = user {
                    text.push_str(user);
                    text.push('@');
                }
                text.push_str(&escape(self.host.as_bytes(), Part::Host));
            }
            if !self.path.is_empty() && !self.path.starts_with('/') && !self.host.is_empty() {
                text.push('/');
            }
            let first = self.path.split('/').next().unwrap_or_default();
            if text.is_empty() && first.contains(':') {
                text.push_str("./");
            }
            text.push_str(&self.path);
        } else {
            text.push_str(&self.opaque);
        }
        if let Some(query) = &self.query {
            text.push('?');
            text.push_str(query);
        }
        if !self.fragment.is_empty() {
            text.push('#');
            text.push_str(&self.fragment);
        }
        text
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|(name, password)| {
            let mut text = escape(name.as_bytes(), Part::User);
            if let Some(password) = password {
                text.push(':');
                text.push_str(&escape(password.as_bytes(), Part::User));
            }
            text
        });
        f.write_str(&self.with_user(user.as_deref()))
    }
}

fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            b':' => {
                let (scheme, rest) = text.split_at(at);
                return Ok((scheme, rest.strip_prefix(':').unwrap_or(rest)));
            }
            _ => break,
        }
    }
    Ok(("", text))
}

fn parse_host(scheme: &str, host: &str) -> Result<String, String> {
    let port_fits = |port: &str| {
        let digits = port.strip_prefix(':');
        port.is_empty() || digits.is_some_and(|d| d.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let bad_port = |port: &str| format!("invalid port {} after host", quote(port));
    match host.rfind('[') {
        Some(0) => {
            let Some((literal, port)) = host.rsplit_once(']') else {
                return Err("missing ']' in host".to_owned());
            };
            if !port_fits(port) {
                return Err(bad_port(port));
            }
            return Ok(format!("[{}]{port}", parse_literal(literal.get(1..).unwrap_or_default())?));
        }
        Some(_) => return Err("invalid IP-literal".to_owned()),
        None => {}
    }
    // Lists of hosts are left to other schemes.
    let strict = scheme == "http" || scheme == "https";
    let colon = if strict { host.find(':') } else { host.rfind(':') };
    if let Some(port) = colon.and_then(|at| host.get(at..)).filter(|port| !port_fits(port)) {
        return Err(bad_port(port));
    }
    unescape(host, Part::Host).map(lossy)
}

/// What stands between brackets: an IPv6 address, perhaps with a zone.
fn parse_literal(text: &str) -> Result<String, String> {
    let (host, zone) = text.split_at(text.find("%25").unwrap_or(text.len()));
    let mut literal = lossy(unescape(host, Part::Host)?);
    literal.push_str(&lossy(unescape(zone, Part::Zone)?));
    let (address, zone) = match literal.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (literal.as_str(), None),
    };
    match address.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V6(_)) if zone != Some("") => Ok(literal),
        Ok(std::net::IpAddr::V4(_)) if zone.is_none() => Err("invalid IP-literal".to_owned()),
        _ => Err(format!("invalid host: ParseAddr({}): unable to parse IP", quote(&literal))),
    }
}

/// A path or fragment as it is sent: as it was given if that will do.
fn encoded(text: &str, part: Part) -> Result<String, String> {
    let bytes = unescape(text, part)?;
    let fits = |byte: u8| part.has(byte) || b"!$&'()*+,;=:@[]%".contains(&byte);
    Ok(if text.bytes().all(fits) { text.to_owned() } else { escape(&bytes, part) })
}

fn escape(bytes: &[u8], part: Part) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if part.has(*byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

fn unescape(text: &str, part: Part) -> Result<Vec<u8>, String> {
    let bad =
        |escape: &[u8]| Err(format!("invalid URL escape {}", units::strconv::quote_bytes(escape)));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        if *byte != b'%' {
            if matches!(part, Part::Host | Part::Zone) && byte.is_ascii() && !part.has(*byte) {
                let shown = quote(&char::from(*byte).to_string());
                return Err(format!("invalid character {shown} in host name"));
            }
            bytes.push(*byte);
            rest = after;
            continue;
        }
        let value = match after {
            [high, low, ..] => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        let escape = rest.get(..3).unwrap_or(rest);
        let Some(value) = value else { return bad(escape) };
        // Only a percent sign and what is no ASCII may be written so in a host.
        let odd = match part {
            Part::Host => value.is_ascii() && value != b'%',
            Part::Zone => value != b'%' && value != b' ' && !Part::Host.has(value),
            _ => false,
        };
        if odd {
            return bad(escape);
        }
        bytes.push(value);
        rest = rest.get(3..).unwrap_or_default();
    }
    Ok(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Both escaped; `.` and `..` are gone afterwards.
fn resolve_path(base: &str, reference: &str) -> String {
    let full = if reference.is_empty() {
        base.to_owned()
    } else if reference.starts_with('/') {
        reference.to_owned()
    } else {
        let folder = base.rfind('/').and_then(|at| base.get(..=at)).unwrap_or_default();
        format!("{folder}{reference}")
    };
    if full.is_empty() {
        return full;
    }
    let (mut path, mut at_start, mut last) = ("/".to_owned(), true, "");
    for segment in full.split('/') {
        last = segment;
        match segment {
            "." => at_start = false,
            ".." => {
                path.truncate(path.rfind('/').filter(|at| *at > 0).unwrap_or(1));
                at_start = path.len() == 1;
            }
            segment => {
                if !at_start {
                    path.push('/');
                }
                path.push_str(segment);
                at_start = false;
            }
        }
    }
    if last == "." || last == ".." {
        path.push('/');
    }
    // What began with a slash has two by now.
    match path.strip_prefix('/') {
        Some(rest) if rest.starts_with('/') => rest.to_owned(),
        _ => path,
    }
}

#[cfg(test)]
mod tests;
