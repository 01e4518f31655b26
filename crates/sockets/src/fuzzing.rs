//! Parsers of client input, for `fuzz/`: each takes any bytes and must neither panic nor hang.

use crate::hpack::Decoder;

/// Header blocks on one connection, each preceded by its length in one byte.
pub fn header_blocks(mut input: &[u8]) {
    let mut decoder = Decoder::new();
    while let [length, rest @ ..] = input {
        let (block, more) = rest.split_at(usize::from(*length).min(rest.len()));
        if decoder.decode(block).is_err() {
            return;
        }
        input = more;
    }
}
