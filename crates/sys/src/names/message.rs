//! DNS messages: encodes queries for the addresses of a name, and parses the responses.
//!
//! Promises: no input panics; work is linear in the length of the message, which is at most 64 KiB.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The UDP response size that is advertised (as by Go's resolver).
pub(super) const UDP_SIZE: u16 = 1232;

const CLASS_IN: u16 = 1;
const TYPE_OPT: u16 = 41;
const HEADER: usize = 12;
const RESPONSE: u16 = 1 << 15;
const AUTHORITATIVE: u16 = 1 << 10;
const TRUNCATED: u16 = 1 << 9;
const RECURSION_DESIRED: u16 = 1 << 8;
const RECURSION_AVAILABLE: u16 = 1 << 7;
const AUTHENTIC: u16 = 1 << 5;

/// The record type of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    A,
    Aaaa,
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Aaaa => 28,
        }
    }
}

/// One query.
#[derive(Debug, Clone)]
pub(super) struct Question<'a> {
    pub(super) id: u16,
    /// A name that ends in a dot.
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    /// Whether the AD bit (authentic data) is requested.
    pub(super) authentic: bool,
}

/// The content of a response to our query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// Addresses, in order, also those of the other family.
    Addresses(Vec<IpAddr>),
    /// The name does not exist, or has no such address.
    NoSuchHost,
    /// The response is truncated; to be repeated over TCP.
    Truncated,
    /// The server failed or sent an unusable response.
    Fault(&'static str),
}

pub(super) const MISBEHAVING: &str = "server misbehaving";
pub(super) const UNREADABLE: &str = "cannot unmarshal DNS message";
const LAME: &str = "lame referral";

/// Encodes a query; `None` for a name that does not fit.
pub(super) fn question(question: &Question<'_>) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(HEADER + question.name.len() + 17);
    let authentic = if question.authentic { AUTHENTIC } else { 0 };
    for number in [question.id, RECURSION_DESIRED | authentic, 1, 0, 0, 1] {
        bytes.extend(number.to_be_bytes());
    }
    for label in question.name.strip_suffix('.')?.split('.').filter(|_| question.name != ".") {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        bytes.push(length);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend(question.kind.number().to_be_bytes());
    bytes.extend(CLASS_IN.to_be_bytes());
    // EDNS0: larger responses are accepted.
    bytes.push(0);
    bytes.extend(TYPE_OPT.to_be_bytes());
    bytes.extend(UDP_SIZE.to_be_bytes());
    bytes.extend([0; 6]);
    Some(bytes)
}

/// Parses a message; `None` if it is not a response to our query.
pub(super) fn reply(message: &[u8], question: &Question<'_>) -> Option<Reply> {
    let mut reader = Reader { message, at: 0 };
    let id = reader.number()?;
    let flags = reader.number()?;
    let [questions, answers, authorities, more] =
        [reader.number()?, reader.number()?, reader.number()?, reader.number()?];
    if id != question.id || flags & RESPONSE == 0 || questions == 0 {
        return None;
    }
    let same = reader.is_name(question.name)?;
    let (kind, class) = (reader.number()?, reader.number()?);
    if !same || kind != question.kind.number() || class != CLASS_IN || questions != 1 {
        return None;
    }
    if flags & TRUNCATED != 0 {
        return Some(Reply::Truncated);
    }
    Some(judge(reader, flags, (answers, authorities, more), question.kind))
}

fn judge(
    mut reader: Reader<'_>,
    flags: u16,
    (answers, authorities, more): (u16, u16, u16),
    wanted: Kind,
) -> Reply {
    let mut ends = reader.clone();
    let skipped = (0..u32::from(answers) + u32::from(authorities)).all(|_| ends.record().is_some());
    let mut code = flags & 0xf;
    let mut has_more = false;
    if skipped {
        for _ in 0..more {
            let Some(record) = ends.record() else { break };
            has_more = true;
            if record.kind == TYPE_OPT {
                // The OPT record has the upper bits of the response code in its TTL field.
                code |= u16::from(record.first_of_ttl) << 4;
                break;
            }
        }
    }
    if code == 3 {
        return Reply::NoSuchHost;
    }
    let lame = flags & (AUTHORITATIVE | RECURSION_AVAILABLE) == 0;
    if code == 0 && lame && answers == 0 && !has_more {
        return Reply::Fault(LAME);
    }
    if code != 0 {
        return Reply::Fault(MISBEHAVING);
    }
    let (mut found, mut addresses) = (false, Vec::new());
    for _ in 0..answers {
        let Some(record) = reader.record() else { return Reply::Fault(UNREADABLE) };
        found |= record.kind == wanted.number();
        let address = match record.kind {
            1 => <[u8; 4]>::try_from(record.data).ok().map(|ip| IpAddr::V4(Ipv4Addr::from(ip))),
            28 => <[u8; 16]>::try_from(record.data).ok().map(|ip| IpAddr::V6(Ipv6Addr::from(ip))),
            _ => continue,
        };
        match address {
            // Address records before the first matching record are ignored.
            Some(address) if found => addresses.push(address),
            Some(_) => {}
            None => return Reply::Fault(UNREADABLE),
        }
    }
    if found { Reply::Addresses(addresses) } else { Reply::NoSuchHost }
}

struct Record<'a> {
    kind: u16,
    first_of_ttl: u8,
    data: &'a [u8],
}

#[derive(Clone)]
struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let bytes = self.message.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u16> {
        let bytes = self.bytes(2)?;
        <[u8; 2]>::try_from(bytes).ok().map(u16::from_be_bytes)
    }

    /// Reads the name of a query, which is never compressed, and compares it case-insensitively.
    fn is_name(&mut self, name: &str) -> Option<bool> {
        let mut read = String::new();
        loop {
            let [length @ 0..=63] = *self.bytes(1)? else { return None };
            if length == 0 {
                break;
            }
            read.push_str(&String::from_utf8_lossy(self.bytes(usize::from(length))?));
            read.push('.');
        }
        Some(read.eq_ignore_ascii_case(name) || (read.is_empty() && name == "."))
    }

    fn skip_name(&mut self) -> Option<()> {
        loop {
            match *self.bytes(1)? {
                [0] => return Some(()),
                [length @ 1..=63] => drop(self.bytes(usize::from(length))?),
                // A compression pointer ends this name.
                [0xc0..=0xff] => return self.bytes(1).map(|_| ()),
                _ => return None,
            }
        }
    }

    fn record(&mut self) -> Option<Record<'a>> {
        self.skip_name()?;
        let (kind, _class) = (self.number()?, self.number()?);
        let first_of_ttl = *self.bytes(4)?.first()?;
        let length = usize::from(self.number()?);
        Some(Record { kind, first_of_ttl, data: self.bytes(length)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Question<'static> {
        Question { id: 7, name: "a.example.", kind: Kind::A, authentic: false }
    }

    /// A response with these flags and records.
    fn answer(flags: u16, records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = question(&asked()).unwrap();
        bytes.truncate(bytes.len() - 11);
        bytes[2..4].copy_from_slice(&(RESPONSE | flags).to_be_bytes());
        bytes[6..8].copy_from_slice(&u16::try_from(records.len()).unwrap().to_be_bytes());
        bytes[10..12].copy_from_slice(&[0, 0]);
        for (kind, data) in records {
            bytes.extend([0xc0, 12]);
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1, 0, 0, 0, 9]);
            bytes.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            bytes.extend(*data);
        }
        bytes
    }

    #[test]
    fn answers_are_judged_as_gos_resolver_does() {
        let ok = RECURSION_AVAILABLE;
        let ip = [10, 0, 0, 1];
        let found = Reply::Addresses(vec![IpAddr::from(ip)]);
        for (message, want) in [
            (answer(ok, &[(1, &ip)]), found.clone()),
            (answer(ok, &[(5, b"\x01b\0"), (1, &ip)]), found),
            (answer(ok, &[(5, b"\x01b\0")]), Reply::NoSuchHost),
            (answer(ok, &[]), Reply::NoSuchHost),
            (answer(ok | 3, &[]), Reply::NoSuchHost),
            (answer(0, &[]), Reply::Fault(LAME)),
            (answer(ok | 2, &[]), Reply::Fault(MISBEHAVING)),
            (answer(ok | 5, &[]), Reply::Fault(MISBEHAVING)),
            (answer(ok | TRUNCATED, &[]), Reply::Truncated),
            (answer(ok, &[(1, &ip[..3])]), Reply::Fault(UNREADABLE)),
        ] {
            assert_eq!(reply(&message, &asked()), Some(want), "{message:?}");
        }
    }

    #[test]
    fn what_answers_another_question_is_no_answer() {
        let good = answer(RECURSION_AVAILABLE, &[(1, &[10, 0, 0, 1])]);
        for other in [
            Question { id: 8, ..asked() },
            Question { name: "b.example.", ..asked() },
            Question { kind: Kind::Aaaa, ..asked() },
        ] {
            assert_eq!(reply(&good, &other), None);
        }
        assert!(reply(&good, &Question { name: "A.Example.", ..asked() }).is_some());
        assert_eq!(reply(&question(&asked()).unwrap(), &asked()), None);
    }

    #[test]
    fn cut_and_bent_messages_are_survived() {
        let good = answer(RECURSION_AVAILABLE, &[(5, b"\x01b\0"), (1, &[10, 0, 0, 1])]);
        for end in 0..good.len() {
            drop(reply(&good[..end], &asked()));
        }
        for at in 0..good.len() {
            for byte in [0, 1, 0x3f, 0x40, 0xc0, 0xff] {
                let mut bent = good.clone();
                bent[at] = byte;
                drop(reply(&bent, &asked()));
            }
        }
    }

    #[test]
    fn a_name_that_does_not_fit_is_not_asked_for() {
        let long = format!("{}.", "a".repeat(64));
        for name in ["a", "a..b.", long.as_str()] {
            assert_eq!(question(&Question { name, ..asked() }), None, "{name}");
        }
        assert!(question(&Question { name: ".", ..asked() }).is_some());
    }
}
