//! Base64 as Go's `StdEncoding` reads it: line breaks are passed over, the end is padded.

/// What cannot be read, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("illegal base64 data at input byte {0}")]
pub struct CorruptInput(pub usize);

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Decodes a text.
pub fn decode(text: &str) -> Result<Vec<u8>, CorruptInput> {
    let mut kept =
        text.bytes().enumerate().filter(|(_, byte)| !matches!(byte, b'\r' | b'\n')).peekable();
    let mut bytes = Vec::new();
    while kept.peek().is_some() {
        let (mut bits, mut count) = (0u32, 0);
        while count < 4 {
            let Some((at, byte)) = kept.next() else {
                // The input ends within a group.
                return Err(CorruptInput(text.len().saturating_sub(count)));
            };
            if let Some(value) = digit(byte) {
                bits = bits << 6 | u32::from(value);
                count += 1;
                continue;
            }
            if byte != b'=' || count < 2 {
                return Err(CorruptInput(at));
            }
            if count == 2 {
                match kept.next() {
                    None => return Err(CorruptInput(text.len())),
                    Some((_, b'=')) => {}
                    Some((at, _)) => return Err(CorruptInput(at)),
                }
            }
            if let Some((at, _)) = kept.next() {
                return Err(CorruptInput(at));
            }
            let bits = bits << (6 * (4 - count));
            let whole = bits.to_be_bytes();
            bytes.extend(whole.iter().skip(1).take(count - 1));
            return Ok(bytes);
        }
        bytes.extend(bits.to_be_bytes().iter().skip(1));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_padding_are_read() {
        assert_eq!(decode("aGk=").unwrap(), b"hi");
        assert_eq!(decode("aGkh\naGk=\n").unwrap(), b"hi!hi");
        assert_eq!(decode("eA==").unwrap(), b"x");
        assert_eq!(decode("").unwrap(), b"");
    }

    #[test]
    fn what_is_wrong_is_told_by_its_place() {
        for (text, at) in [("!", 0), ("aGk", 0), ("aG!=", 2), ("eA==x", 4), ("e===", 1)] {
            assert_eq!(decode(text), Err(CorruptInput(at)), "{text}");
        }
    }
}
