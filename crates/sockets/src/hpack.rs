//! Header compression of HTTP/2 (RFC 7541): a complete decoder, and an encoder that never
//! compresses.
//!
//! Only what is needed to read a client's headers and to pass them on in another encoding.

mod tables;

use std::collections::VecDeque;
use std::sync::OnceLock;
use tables::{CODE_BITS, FIELDS};

/// The table size that servers offer by default; ours keep the default.
const TABLE_BYTES: usize = 4096;
/// The overhead counted for each table entry.
const ENTRY_OVERHEAD: usize = 32;
/// The limit for all fields of one message.
const MAX_LIST_BYTES: usize = 256 << 10;

/// An invalid header block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HpackError {
    /// It ends in the middle of a field.
    #[error("header block is cut short")]
    Short,
    /// A number is too large.
    #[error("number in header block is too large")]
    Number,
    /// A field index that is not in the table.
    #[error("header field {0} does not exist")]
    Index(usize),
    /// The string is not valid Huffman code.
    #[error("bad code in header text")]
    Code,
    /// The client requests a larger table than it was offered.
    #[error("header table may not have {0} bytes")]
    TableSize(usize),
    /// The fields exceed the limit.
    #[error("header list is too long")]
    TooLong,
}

/// One header field; name and value need not be UTF-8.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// The decoder state of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    newest_first: VecDeque<Field>,
    bytes: usize,
    limit: usize,
}

impl Decoder {
    /// The state at the start of a connection.
    pub(crate) fn new() -> Self {
        Self { newest_first: VecDeque::new(), bytes: 0, limit: TABLE_BYTES }
    }

    /// Decodes one complete block.
    pub(crate) fn decode(&mut self, block: &[u8]) -> Result<Vec<Field>, HpackError> {
        let mut input = Input(block);
        let mut fields = Vec::new();
        let mut total = 0;
        while let Some(first) = input.peek() {
            let field = if first & 0x80 != 0 {
                self.field(input.number(7)?)?
            } else if first & 0xc0 == 0x40 {
                let field = self.literal(&mut input, 6)?;
                self.insert(field.clone());
                field
            } else if first & 0xe0 == 0x20 {
                let size = input.number(5)?;
                if size > TABLE_BYTES {
                    return Err(HpackError::TableSize(size));
                }
                self.limit = size;
                self.evict();
                continue;
            } else {
                self.literal(&mut input, 4)?
            };
            total += field.0.len() + field.1.len() + ENTRY_OVERHEAD;
            if total > MAX_LIST_BYTES {
                return Err(HpackError::TooLong);
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn literal(&self, input: &mut Input<'_>, prefix: u32) -> Result<Field, HpackError> {
        let name = match input.number(prefix)? {
            0 => input.text()?,
            index => self.field(index)?.0,
        };
        Ok((name, input.text()?))
    }

    fn field(&self, index: usize) -> Result<Field, HpackError> {
        let at = index.checked_sub(1).ok_or(HpackError::Index(0))?;
        if let Some((name, value)) = FIELDS.get(at) {
            return Ok((name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        }
        self.newest_first.get(at - FIELDS.len()).cloned().ok_or(HpackError::Index(index))
    }

    fn insert(&mut self, field: Field) {
        self.bytes += field.0.len() + field.1.len() + ENTRY_OVERHEAD;
        self.newest_first.push_front(field);
        self.evict();
    }

    fn evict(&mut self) {
        while self.bytes > self.limit {
            let Some(oldest) = self.newest_first.pop_back() else { return };
            self.bytes -= oldest.0.len() + oldest.1.len() + ENTRY_OVERHEAD;
        }
    }
}

/// Encodes fields as literals, without using the receiver's table.
pub(crate) fn encode(fields: &[Field]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            put_number(&mut block, text.len());
            block.extend_from_slice(text);
        }
    }
    block
}

/// A length with a prefix of seven bits.
fn put_number(out: &mut Vec<u8>, number: usize) {
    let low = |n: usize| u8::try_from(n & 0x7f).unwrap_or_default();
    let Some(mut rest) = number.checked_sub(0x7f) else {
        out.push(low(number));
        return;
    };
    out.push(0x7f);
    while rest > 0x7f {
        out.push(low(rest) | 0x80);
        rest >>= 7;
    }
    out.push(low(rest));
}

#[derive(Debug)]
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn byte(&mut self) -> Result<u8, HpackError> {
        let (first, rest) = self.0.split_first().ok_or(HpackError::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self, prefix: u32) -> Result<usize, HpackError> {
        let mask = (1_u8 << prefix) - 1;
        let first = self.byte()? & mask;
        let mut number = usize::from(first);
        if first < mask {
            return Ok(number);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(HpackError::Number)
    }

    fn text(&mut self) -> Result<Vec<u8>, HpackError> {
        let coded = self.peek().ok_or(HpackError::Short)? & 0x80 != 0;
        let length = self.number(7)?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(HpackError::Short)?;
        self.0 = rest;
        if coded { uncode(text) } else { Ok(text.to_vec()) }
    }
}

/// A node of the Huffman tree: another node, or a decoded byte.
#[derive(Debug, Clone, Copy)]
enum Step {
    Missing,
    Node(usize),
    Byte(u8),
}

fn tree() -> &'static [[Step; 2]] {
    static TREE: OnceLock<Vec<[Step; 2]>> = OnceLock::new();
    TREE.get_or_init(|| {
        let mut bytes: Vec<u8> = (0..=u8::MAX).collect();
        let bits = |byte: u8| CODE_BITS.get(usize::from(byte)).copied().unwrap_or_default();
        bytes.sort_by_key(|byte| (bits(*byte), *byte));
        let mut nodes = vec![[Step::Missing; 2]];
        let (mut code, mut length) = (0_u32, 0);
        for byte in bytes {
            code <<= bits(byte) - length;
            length = bits(byte);
            plant(&mut nodes, code, length, byte);
            code += 1;
        }
        nodes
    })
}

fn plant(nodes: &mut Vec<[Step; 2]>, code: u32, length: u8, byte: u8) {
    let mut at = 0;
    for shift in (0..length).rev() {
        let side = usize::from(code >> shift & 1 == 1);
        let new = nodes.len();
        let Some(step) = nodes.get_mut(at).and_then(|node| node.get_mut(side)) else { return };
        if shift == 0 {
            *step = Step::Byte(byte);
            return;
        }
        at = match *step {
            Step::Node(next) => next,
            _ => {
                *step = Step::Node(new);
                nodes.push([Step::Missing; 2]);
                new
            }
        };
    }
}

fn uncode(text: &[u8]) -> Result<Vec<u8>, HpackError> {
    let tree = tree();
    let mut out = Vec::with_capacity(text.len() * 8 / 5);
    let (mut at, mut pending, mut ones) = (0, 0_u8, true);
    for byte in text {
        for shift in (0..8).rev() {
            let side = usize::from(byte >> shift & 1 == 1);
            ones = ones && side == 1;
            pending += 1;
            match tree.get(at).and_then(|node| node.get(side)) {
                Some(Step::Node(next)) => at = *next,
                Some(Step::Byte(found)) => {
                    out.push(*found);
                    (at, pending, ones) = (0, 0, true);
                }
                _ => return Err(HpackError::Code),
            }
        }
    }
    // The remaining bits must be a prefix of the end-of-string code: fewer than eight ones.
    if pending < 8 && ones { Ok(out) } else { Err(HpackError::Code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let pair = |p: &[u8]| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    fn texts(fields: &[Field]) -> Vec<(String, String)> {
        let text = |t: &[u8]| String::from_utf8(t.to_vec()).unwrap();
        fields.iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    /// RFC 7541, C.4: three requests with coded texts on one connection.
    #[test]
    fn reads_the_three_requests_of_the_specification() {
        let mut decoder = Decoder::new();
        let mut read = |hex| texts(&decoder.decode(&bytes(hex)).unwrap());
        let start = [pair(":method", "GET"), pair(":scheme", "http"), pair(":path", "/")];
        let authority = pair(":authority", "www.example.com");
        let first = read("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff");
        assert_eq!(first, [&start[..], std::slice::from_ref(&authority)].concat());
        let second = read("8286 84be 5886 a8eb 1064 9cbf");
        assert_eq!(second[4], pair("cache-control", "no-cache"));
        assert_eq!(second[3], authority);
        let third = read("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
        assert_eq!(
            third,
            [
                pair(":method", "GET"),
                pair(":scheme", "https"),
                pair(":path", "/index.html"),
                authority,
                pair("custom-key", "custom-value"),
            ]
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        let long = vec![b'x'; 70_000];
        let fields: Vec<Field> =
            vec![(b":path".to_vec(), b"/v1/List".to_vec()), (b"long".to_vec(), long)];
        assert_eq!(Decoder::new().decode(&encode(&fields)).unwrap(), fields);
    }

    #[test]
    fn every_byte_has_a_code() {
        for byte in 0..=u8::MAX {
            let bits = u32::from(CODE_BITS[usize::from(byte)]);
            let mut order: Vec<u8> = (0..=u8::MAX).collect();
            order.sort_by_key(|b| (CODE_BITS[usize::from(*b)], *b));
            let (mut code, mut length) = (0_u32, 0);
            for other in order {
                code <<= CODE_BITS[usize::from(other)] - length;
                length = CODE_BITS[usize::from(other)];
                if other == byte {
                    break;
                }
                code += 1;
            }
            let padded = (u64::from(code) << (64 - bits)) | (u64::MAX >> bits);
            let text = padded.to_be_bytes();
            let used = usize::try_from(bits.div_ceil(8)).unwrap();
            assert_eq!(uncode(&text[..used]).unwrap(), [byte], "byte {byte}");
        }
    }

    #[test]
    fn refuses_what_breaks_the_rules() {
        let cases = [
            ("cut", "41", HpackError::Short),
            ("no such field", "ff 00", HpackError::Index(127)),
            ("field zero", "80", HpackError::Index(0)),
            ("table too large", "3f e2 1f", HpackError::TableSize(4097)),
            ("endless number", "ff ff ff ff ff ff", HpackError::Number),
            ("padding of a whole byte", "00 82 1f ff 00", HpackError::Code),
        ];
        for (name, hex, wanted) in cases {
            assert_eq!(Decoder::new().decode(&bytes(hex)), Err(wanted), "{name}");
        }
    }

    #[test]
    fn old_fields_leave_a_table_that_shrinks() {
        let mut decoder = Decoder::new();
        decoder.decode(&bytes("40 01 61 01 62")).unwrap();
        assert_eq!(texts(&decoder.decode(&[0xbe]).unwrap()), [pair("a", "b")]);
        assert_eq!(decoder.decode(&[0x20, 0xbe]), Err(HpackError::Index(62)));
    }
}
