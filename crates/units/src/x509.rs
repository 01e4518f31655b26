//! The outline of a certificate, and of one with its key, as far as Go tells one fault from another
//! (`crypto/x509: parseCertificate`, `crypto/tls: X509KeyPair`).
//!
//! Deliberately absent: names, keys and extensions; whoever uses a certificate reads those.

use crate::pem::{Block, blocks, is_private_key};

/// What Go says of what is no certificate; `None` if its outline is that of one.
pub fn outline_fault(der: &[u8]) -> Option<&'static str> {
    outline(der).err().or_else(|| {
        let mut rest = der;
        element(&mut rest, SEQUENCE)?;
        (!rest.is_empty()).then_some("x509: trailing data")
    })
}

/// What Go says of PEM texts that are no certificate with its key; `None` if at first sight they are.
pub fn pair_outline_fault(certificate: &[u8], key: &[u8]) -> Option<String> {
    let shown = |found: &[Block]| {
        let labels: Vec<&str> = found.iter().map(|block| block.label.as_str()).collect();
        format!("[{}]", labels.join(" "))
    };
    let found = blocks(certificate);
    let Some(leaf) = found.iter().find(|block| block.label == "CERTIFICATE") else {
        return Some(match found.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".to_owned(),
            [only] if only.label.ends_with("PRIVATE KEY") => {
                "tls: failed to find certificate PEM data in certificate input, but did find a \
                 private key; PEM inputs may have been switched"
                    .to_owned()
            }
            many => format!(
                "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping \
                 PEM blocks of the following types: {}",
                shown(many)
            ),
        });
    };
    let found = blocks(key);
    if !found.iter().any(is_private_key) {
        return Some(match found.as_slice() {
            [] => "tls: failed to find any PEM data in key input".to_owned(),
            [only] if only.label == "CERTIFICATE" => {
                "tls: found a certificate rather than a key in the PEM for the private key"
                    .to_owned()
            }
            many => format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input \
                 after skipping PEM blocks of the following types: {}",
                shown(many)
            ),
        });
    }
    outline_fault(&leaf.bytes).map(str::to_owned)
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const VERSION: u8 = 0xa0;

fn outline(mut der: &[u8]) -> Result<(), &'static str> {
    let mut whole = element(&mut der, SEQUENCE).ok_or("x509: malformed certificate")?;
    let mut signed = element(&mut whole, SEQUENCE).ok_or("x509: malformed tbs certificate")?;
    if signed.first() == Some(&VERSION) {
        let malformed = "x509: malformed version";
        let mut inside = element(&mut signed, VERSION).ok_or(malformed)?;
        let version = integer(&mut inside).filter(|_| inside.is_empty()).ok_or(malformed)?;
        match version {
            [0..=2] => {}
            [first, ..] if first & 0x80 != 0 => return Err(malformed),
            _ => return Err("x509: invalid version"),
        }
    }
    let serial = integer(&mut signed).ok_or("x509: malformed serial number")?;
    if serial.first().is_some_and(|first| first & 0x80 != 0) {
        return Err("x509: negative serial number");
    }
    let inner =
        element(&mut signed, SEQUENCE).ok_or("x509: malformed signature algorithm identifier")?;
    let outer = element(&mut whole, SEQUENCE).ok_or("x509: malformed algorithm identifier")?;
    if inner != outer {
        return Err("x509: inner and outer signature algorithm identifiers don't match");
    }
    element(&mut signed, SEQUENCE).ok_or("x509: malformed issuer")?;
    element(&mut signed, SEQUENCE).ok_or("x509: malformed validity")?;
    element(&mut signed, SEQUENCE).ok_or("x509: malformed issuer")?;
    let mut key = element(&mut signed, SEQUENCE).ok_or("x509: malformed spki")?;
    element(&mut key, SEQUENCE).ok_or("x509: malformed public key algorithm identifier")?;
    element(&mut key, BIT_STRING).ok_or("x509: malformed subjectPublicKey")?;
    Ok(())
}

/// Takes the next element, which has to be of this kind; its content.
fn element<'a>(from: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (first, [short, after @ ..]) = from.split_first()? else { return None };
    if *first != tag {
        return None;
    }
    let (length, after) = match *short {
        0..=0x7f => (usize::from(*short), after),
        0x81..=0x84 => {
            let (size, after) = after.split_at_checked(usize::from(short & 0x7f))?;
            let length = size.iter().fold(0, |all, byte| all << 8 | usize::from(*byte));
            // The shortest form is the only one.
            let short_enough = length < 0x80 || size.first() == Some(&0);
            if short_enough {
                return None;
            }
            (length, after)
        }
        _ => return None,
    };
    let (content, rest) = after.split_at_checked(length)?;
    *from = rest;
    Some(content)
}

/// Takes a whole number in its shortest form.
fn integer<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let content = element(from, INTEGER)?;
    match content {
        [] => None,
        [0, next, ..] if next & 0x80 == 0 => None,
        [0xff, next, ..] if next & 0x80 != 0 => None,
        content => Some(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let mut whole = vec![SEQUENCE, u8::try_from(content.len()).unwrap()];
        whole.extend(content);
        whole
    }

    #[test]
    fn faults_are_named_from_the_outside_in() {
        const NO: &[u8] = &[0x05, 0];
        const EMPTY: &[u8] = &[SEQUENCE, 0];
        const ONE: &[u8] = &[INTEGER, 1, 1];
        let key = sequence(&[EMPTY, &[BIT_STRING, 1, 0]]);
        let signed = |parts: &[&[u8]]| {
            let rest: &[&[u8]] = &[ONE, EMPTY, EMPTY, EMPTY, EMPTY, &key];
            let all: Vec<&[u8]> =
                parts.iter().copied().chain(rest[parts.len().min(6)..].iter().copied()).collect();
            outline_fault(&sequence(&[&sequence(&all), EMPTY, NO]))
        };
        assert_eq!(signed(&[]), None);
        assert_eq!(outline_fault(b"x"), Some("x509: malformed certificate"));
        assert_eq!(outline_fault(&[]), Some("x509: malformed certificate"));
        assert_eq!(outline_fault(&[SEQUENCE, 0x81, 0]), Some("x509: malformed certificate"));
        assert_eq!(outline_fault(EMPTY), Some("x509: malformed tbs certificate"));
        assert_eq!(signed(&[NO]), Some("x509: malformed serial number"));
        assert_eq!(signed(&[&[INTEGER, 1, 0xff]]), Some("x509: negative serial number"));
        assert_eq!(signed(&[&[INTEGER, 2, 0, 1]]), Some("x509: malformed serial number"));
        assert_eq!(signed(&[&[VERSION, 3, INTEGER, 1, 3]]), Some("x509: invalid version"));
        assert_eq!(signed(&[&[VERSION, 2, INTEGER, 0]]), Some("x509: malformed version"));
        assert_eq!(
            signed(&[ONE, &sequence(&[ONE])]),
            Some("x509: inner and outer signature algorithm identifiers don't match")
        );
        assert_eq!(signed(&[ONE, EMPTY, NO]), Some("x509: malformed issuer"));
        assert_eq!(signed(&[ONE, EMPTY, EMPTY, EMPTY, EMPTY, NO]), Some("x509: malformed spki"));
        let whole = sequence(&[&sequence(&[ONE, EMPTY, EMPTY, EMPTY, EMPTY, &key]), EMPTY, NO]);
        assert_eq!(outline_fault(&[whole, vec![0]].concat()), Some("x509: trailing data"));
    }
}
