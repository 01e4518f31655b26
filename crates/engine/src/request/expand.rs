//! `$(VAR)` expansion in commands, arguments, environment values and `subPathExpr`.
//!
//! Upstream: `third_party/forked/golang/expansion`. Works on bytes, because a secret may hold
//! values that are not UTF-8 and they must reach the container unchanged.

/// Replaces each `$(NAME)` by `lookup(NAME)`.
///
/// `$$` becomes `$`; an unclosed `$(`, and `$` before any other character, stay as they are.
pub fn expand(input: &[u8], mut lookup: impl FnMut(&str) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.iter().position(|b| *b == b'$') {
        let (before, from) = rest.split_at(at);
        out.extend_from_slice(before);
        match from {
            [_, b'$', tail @ ..] => {
                out.push(b'$');
                rest = tail;
            }
            [_, b'(', tail @ ..] => match tail.iter().position(|b| *b == b')') {
                Some(end) => {
                    let (name, after) = tail.split_at(end);
                    out.extend_from_slice(&lookup(&String::from_utf8_lossy(name)));
                    rest = after.get(1..).unwrap_or_default();
                }
                None => {
                    out.extend_from_slice(b"$(");
                    rest = tail;
                }
            },
            [_, other, tail @ ..] => {
                out.extend_from_slice(&[b'$', *other]);
                rest = tail;
            }
            _ => {
                out.push(b'$');
                rest = &[];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

/// The text of a reference that cannot be resolved: itself.
pub fn unresolved(name: &str) -> Vec<u8> {
    format!("$({name})").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_as_the_go_kubelet_does() {
        let cases = [
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(B)z", "x1y2z"),
            ("$(MISSING)", "$(MISSING)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$(A)", "$$(A)"),
            ("$(A", "$(A"),
            ("$(A$(B)", "$(A$(B)"),
            ("$((A))", "$((A))"),
            ("$A", "$A"),
            ("$", "$"),
            ("end$", "end$"),
            ("$()", "$()"),
            ("$é", "$é"),
            ("", ""),
        ];
        for (input, want) in cases {
            let got = expand(input.as_bytes(), |name| match name {
                "A" => b"1".to_vec(),
                "B" => b"2".to_vec(),
                other => unresolved(other),
            });
            assert_eq!(String::from_utf8(got).unwrap(), want, "input {input:?}");
        }
    }

    #[test]
    fn keeps_bytes_that_are_not_text() {
        assert_eq!(expand(b"a$(A)", |_| vec![0xff, 0xfe]), vec![b'a', 0xff, 0xfe]);
    }

    proptest::proptest! {
        #[test]
        fn text_without_a_dollar_stays_and_doubled_dollars_shield_everything(
            plain in "[^$]{0,40}",
            any in "\\PC{0,40}",
        ) {
            proptest::prop_assert_eq!(expand(plain.as_bytes(), unresolved), plain.as_bytes());
            let shielded = any.replace('$', "$$");
            let back = expand(shielded.as_bytes(), |_| b"never".to_vec());
            proptest::prop_assert_eq!(back, any.as_bytes());
        }
    }
}
