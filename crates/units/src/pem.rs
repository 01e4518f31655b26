//! PEM as Go's `encoding/pem` reads it.
//!
//! Promises: a block is found or passed over exactly as there: one that is not whole (no end, another
//! label at its end, what is no base64) is as good as not there.

/// One block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// What it says it is.
    pub label: String,
    /// Whether lines of the form `key: value` stand before its content.
    pub has_headers: bool,
    /// Its content.
    pub bytes: Vec<u8>,
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"\n-----END ";
const DASHES: &[u8] = b"-----";

/// All blocks of a text, in order.
pub fn blocks(data: &[u8]) -> Vec<Block> {
    let mut found = Vec::new();
    let mut rest = data;
    while let Some((block, after)) = next(rest) {
        found.push(block);
        rest = after;
    }
    found
}

/// The certificates of a text, in order (Go: `tls.X509KeyPair`, which skips everything else).
pub fn certificates(data: &[u8]) -> Vec<Vec<u8>> {
    let found = blocks(data).into_iter().filter(|block| block.label == "CERTIFICATE");
    found.map(|block| block.bytes).collect()
}

/// The first private key of a text.
pub fn private_key(data: &[u8]) -> Option<Vec<u8>> {
    blocks(data).into_iter().find(is_private_key).map(|block| block.bytes)
}

/// Whether a block says that it is a private key, of whatever kind.
pub(crate) fn is_private_key(block: &Block) -> bool {
    block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY")
}

/// The next block, and what follows its last line; `None` if there is no more.
pub fn next(data: &[u8]) -> Option<(Block, &[u8])> {
    let mut from = 0;
    loop {
        let end = from + find(data.get(from..)?, END)?;
        let trailer = end + END.len();
        match whole(data, from, end) {
            Found::Block(block) => {
                let (_, rest) = line(data.get(trailer..)?);
                return Some((block, rest));
            }
            Found::Nothing => from = trailer,
            Found::Lost => return None,
        }
    }
}

enum Found {
    Block(Block),
    /// Not here, perhaps behind this end.
    Nothing,
    /// Its headers run on beyond its end.
    Lost,
}

/// The block that ends at this line break, looked for from a place on.
fn whole(data: &[u8], from: usize, end: usize) -> Found {
    let Some(before) = data.get(from..end) else { return Found::Nothing };
    // The last beginning counts: those before it have no end.
    let Some(begin) = before.windows(BEGIN.len()).rposition(|window| window == BEGIN) else {
        return Found::Nothing;
    };
    if begin > 0 && before.get(begin - 1) != Some(&b'\n') {
        return Found::Nothing;
    }
    let Some(after) = data.get(from + begin + BEGIN.len()..) else { return Found::Nothing };
    let (first, mut rest) = line(after);
    let Some(label) = first.strip_suffix(DASHES) else { return Found::Nothing };
    let mut has_headers = false;
    loop {
        if rest.is_empty() {
            return Found::Lost;
        }
        let (header, behind) = line(rest);
        if !header.contains(&b':') {
            break;
        }
        has_headers = true;
        rest = behind;
    }
    let content = data.len() - rest.len();
    if has_headers && content > end {
        return if content > end + END.len() { Found::Lost } else { Found::Nothing };
    }
    let trailer = data.get(end + END.len()..).unwrap_or_default();
    let closed = trailer.strip_prefix(label).and_then(|rest| rest.strip_prefix(DASHES));
    if closed.is_none_or(|rest| !line(rest).0.is_empty()) {
        return Found::Nothing;
    }
    let body = data.get(content..end).unwrap_or_default();
    let body: Vec<u8> = body.iter().copied().filter(|byte| !b" \t".contains(byte)).collect();
    // What is no text is no base64 either.
    let bytes = std::str::from_utf8(&body).ok().and_then(|text| crate::base64::decode(text).ok());
    match bytes {
        Some(bytes) => {
            let label = String::from_utf8_lossy(label).into_owned();
            Found::Block(Block { label, has_headers, bytes })
        }
        None => Found::Nothing,
    }
}

/// The first line without its end and the blanks before it, and what follows.
fn line(data: &[u8]) -> (&[u8], &[u8]) {
    let (mut line, rest) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => {
            let (line, rest) = data.split_at(at);
            (line.strip_suffix(b"\r").unwrap_or(line), rest.get(1..).unwrap_or_default())
        }
        None => (data, &data[data.len()..]),
    };
    while let [front @ .., b' ' | b'\t'] = line {
        line = front;
    }
    (line, rest)
}

fn find(data: &[u8], wanted: &[u8]) -> Option<usize> {
    data.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Vec<String> {
        blocks(text.as_bytes()).into_iter().map(|block| block.label).collect()
    }

    // Each answer is that of Go's `pem.Decode`, called until it finds no more.
    #[test]
    fn only_whole_blocks_are_found() {
        let good = "-----BEGIN A-----\neA==\n-----END A-----\n";
        assert_eq!(labels(good), ["A"]);
        assert_eq!(labels(good.trim_end()), ["A"]);
        assert_eq!(labels(&good.replace('\n', "\r\n")), ["A"]);
        assert_eq!(labels(&format!("x\n{good}y\n{good}")), ["A", "A"]);
        assert_eq!(labels(&format!("-----BEGIN A-----\n{good}")), ["A"]);
        assert_eq!(labels("-----BEGIN A-----\n-----END A-----"), ["A"]);
        assert_eq!(labels("-----BEGIN A-----\ne A\t==\n-----END A----- \t\n"), ["A"]);
        for bad in [
            "",
            "-----BEGIN A-----",
            "-----BEGIN A-----\neA==\n",
            "-----BEGIN A-----\neA==\n-----END B-----\n",
            "-----BEGIN A-----\neA==\n-----END A-----x\n",
            "-----BEGIN A-----\neA=\n-----END A-----\n",
            "-----BEGIN A-----\n!\n-----END A-----\n",
            "-----BEGIN A-----\neA== -----END A-----\n",
            "-----BEGIN A----\neA==\n-----END A----\n",
            "x-----BEGIN A-----\neA==\n-----END A-----\n",
            "-----BEGIN A-----\nk: v\n-----END A-----\n",
            "-----BEGIN A-----\nk: v\n",
        ] {
            assert_eq!(labels(bad), Vec::<String>::new(), "{bad:?}");
        }
    }

    #[test]
    fn a_block_that_is_not_whole_hides_no_other() {
        let good = "-----BEGIN A-----\neA==\n-----END A-----\n";
        assert_eq!(labels(&format!("-----BEGIN B-----\n!\n-----END B-----\n{good}")), ["A"]);
        let found =
            blocks(format!("-----BEGIN B-----\nk: v\n\neQ==\n-----END B-----\n{good}").as_bytes());
        let shown: Vec<_> = found.iter().map(|b| (&*b.label, b.has_headers, &*b.bytes)).collect();
        assert_eq!(shown, [("B", true, &b"y"[..]), ("A", false, b"x")]);
    }

    #[test]
    fn certificates_and_keys_are_found_among_others() {
        let block = |label: &str, content: &str| {
            format!("-----BEGIN {label}-----\n{content}\n-----END {label}-----\n")
        };
        let text = [
            block("X", "eA=="),
            block("CERTIFICATE", "k: v\n\neQ=="),
            block("EC PRIVATE KEY", "eg=="),
            block("PRIVATE KEY", "eA=="),
            block("CERTIFICATE", "eA=="),
        ];
        let text = text.concat();
        assert_eq!(certificates(text.as_bytes()), [b"y".to_vec(), b"x".to_vec()]);
        assert_eq!(private_key(text.as_bytes()).as_deref(), Some(&b"z"[..]));
        assert_eq!(private_key(block("PUBLIC KEY", "eA==").as_bytes()), None);
    }

    proptest::proptest! {
        #[test]
        fn nothing_makes_it_fail(text in "(-----BEGIN A-----|\n|-----END A-----|eA==| |:|x|\r){0,20}") {
            blocks(text.as_bytes());
        }
    }
}
