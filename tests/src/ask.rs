//! Requests to put to both kubelets: a table of what matters, and as many made by chance as wanted.

mod odd;
mod random;
mod table;
mod wild;

pub use odd::odd;
pub use random::RandomAsks;
pub use table::{PATHS, access, table};

use std::fmt::Write as _;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Nobody said.
    Anonymous,
    /// A token that nobody gave out.
    BadToken,
    /// A good token of somebody without rights.
    Nobody,
    /// A token that may read everything but the proxy.
    Reader,
    /// A token that may get and create on the proxy.
    Streamer,
    /// The administrator's token.
    Admin,
    /// The administrator's client certificate.
    AdminCertificate,
    /// A good client certificate of somebody without rights.
    NobodyCertificate,
    /// A certificate of another authority.
    ForeignCertificate,
    /// A certificate of another authority, and the administrator's token.
    ForeignCertificateAdminToken,
    /// A good certificate without a name.
    NamelessCertificate,
    /// The administrator's certificate of years ago.
    ExpiredCertificate,
    /// The administrator's certificate of years to come.
    FutureCertificate,
    /// A certificate of the administrator's name that is for servers.
    ServerCertificate,
    /// The administrator's certificate, without extensions.
    Version1Certificate,
    /// The administrator's certificate, which may sign others.
    AuthorityCertificate,
    /// The administrator's certificate, for any use.
    AnyUseCertificate,
    /// A certificate of several groups, with more in its name.
    ManyGroupsCertificate,
}

/// Everybody.
pub const EVERYBODY: [Who; 18] = [
    Who::Anonymous,
    Who::BadToken,
    Who::Nobody,
    Who::Reader,
    Who::Streamer,
    Who::Admin,
    Who::AdminCertificate,
    Who::NobodyCertificate,
    Who::ForeignCertificate,
    Who::ForeignCertificateAdminToken,
    Who::NamelessCertificate,
    Who::ExpiredCertificate,
    Who::FutureCertificate,
    Who::ServerCertificate,
    Who::Version1Certificate,
    Who::AuthorityCertificate,
    Who::AnyUseCertificate,
    Who::ManyGroupsCertificate,
];

impl Who {
    /// The bearer token.
    #[must_use]
    pub fn token(self) -> Option<&'static str> {
        match self {
            Who::BadToken => Some("nonsense"),
            Who::Nobody => Some("token-of-nobody"),
            Who::Reader => Some("token-of-reader"),
            Who::Streamer => Some("token-of-streamer"),
            Who::Admin | Who::ForeignCertificateAdminToken => Some("admin-token"),
            _ => None,
        }
    }
}

/// One request, in common names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Who asks.
    pub who: Who,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: &'static str,
    /// More headers.
    pub headers: Vec<(String, String)>,
    /// The body; sent with its length.
    pub body: Option<String>,
    /// Everything, word for word; the rest only describes it.
    pub raw: Option<String>,
}

impl Ask {
    /// The administrator's question.
    #[must_use]
    pub fn new(method: &str, target: &str) -> Ask {
        Ask {
            who: Who::Admin,
            method: method.to_owned(),
            target: target.to_owned(),
            version: "HTTP/1.1",
            headers: Vec::new(),
            body: None,
            raw: None,
        }
    }

    /// By somebody else.
    #[must_use]
    pub fn by(mut self, who: Who) -> Ask {
        self.who = who;
        self
    }

    /// With a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: &str) -> Ask {
        self.body = Some(body.to_owned());
        self
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        encode(&self.text())
    }

    /// The same in common names, with [stand-ins](byte) for bytes that are no text.
    #[must_use]
    pub fn text(&self) -> String {
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        let mut text = format!("{} {} {}\r\n", self.method, self.target, self.version);
        let has = |name: &str| self.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        if !has("host") && self.version == "HTTP/1.1" {
            text.push_str("Host: node:10250\r\n");
        }
        if !has("connection") && self.version == "HTTP/1.1" {
            text.push_str("Connection: close\r\n");
        }
        if let Some(token) = self.who.token().filter(|_| !has("authorization")) {
            let _ = write!(text, "Authorization: Bearer {token}\r\n");
        }
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "no-host") {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        if let Some(body) = &self.body {
            let _ = write!(text, "Content-Length: {}\r\n", body.len());
        }
        text.push_str("\r\n");
        text.push_str(self.body.as_deref().unwrap_or_default());
        text
    }
}

/// Stand-ins for the bytes from 128 on, of characters that nobody uses.
const FIRST: u32 = 0xf700;

/// The character that stands for a byte from 128 on.
#[must_use]
pub fn byte(byte: u8) -> char {
    char::from_u32(FIRST + u32::from(byte)).unwrap_or('?')
}

/// The bytes of a text, with those that its stand-ins mean.
#[must_use]
pub fn encode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        let stands_for = u32::from(c).checked_sub(FIRST).and_then(|byte| u8::try_from(byte).ok());
        match stands_for.filter(|byte| *byte >= 128) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    bytes
}

impl std::fmt::Display for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(raw) = &self.raw {
            return write!(f, "{:?}", short(raw));
        }
        write!(f, "{:?}: {} {} {}", self.who, self.method, short(&self.target), self.version)?;
        for (name, value) in &self.headers {
            write!(f, " [{name}: {}]", short(value))?;
        }
        if let Some(body) = &self.body {
            write!(f, " body {:?}", short(body))?;
        }
        Ok(())
    }
}

fn short(text: &str) -> String {
    if text.len() <= 400 {
        return text.to_owned();
    }
    format!("{}… ({} bytes)", text.chars().take(60).collect::<String>(), text.len())
}
