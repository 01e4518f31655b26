//! Values spelled by chance, from the letters of their type: what no list of examples has.

use super::rng::Rng;

/// So many words of a list, one after the other.
fn words(list: &[&'static str], most: usize, rng: &mut Rng) -> String {
    (0..=rng.below(most)).map(|_| rng.of(list)).collect()
}

/// A whole number near a power of two or ten, in some form.
pub(super) fn number(rng: &mut Rng) -> String {
    if rng.once_in(4) {
        let letters = ["0", "1", "7", "9", "-", "+", "_", ".", "e", "x", "b", "o", " ", "F"];
        return words(&letters, 6, rng);
    }
    let power = match rng.below(3) {
        0 => 10_i128.pow(u32::try_from(rng.below(22)).unwrap_or(0)),
        1 => i128::try_from(rng.below(2000)).unwrap_or(0),
        _ => 1 << rng.below(67),
    };
    let near = power + i128::try_from(rng.below(5)).unwrap_or(0) - 2;
    let value = if rng.once_in(4) { -near } else { near };
    match rng.below(12) {
        0 => format!("{value:#x}"),
        1 => format!("{value:#o}"),
        2 => format!("0{value}"),
        3 => format!("{value}.0"),
        4 => format!("{value}e{}", rng.below(4)),
        _ => value.to_string(),
    }
}

/// A length of time of a few parts.
pub(super) fn duration(rng: &mut Rng) -> String {
    let mut text = rng.of(&["", "", "", "-", "+", " "]).to_owned();
    for _ in 0..=rng.below(3) {
        let whole = match rng.below(5) {
            0 => String::new(),
            1 => number(rng),
            _ => rng.below(100_000).to_string(),
        };
        let part = match rng.below(4) {
            0 => format!(".{}", rng.below(1 << 40)),
            1 => rng.of(&[".", ".0", "", "", ".000000000000000000001"]).to_owned(),
            _ => String::new(),
        };
        let unit = rng.of(&["h", "m", "s", "s", "ms", "us", "µs", "μs", "ns", "", "d", "S", "M"]);
        text.push_str(&format!("{whole}{part}{unit}"));
    }
    text
}

/// An amount of something.
pub(super) fn quantity(rng: &mut Rng) -> String {
    let sign = rng.of(&["", "", "", "", "-", "+"]);
    let whole = match rng.below(5) {
        0 => String::new(),
        1 => number(rng),
        2 => format!("00{}", rng.below(100)),
        _ => rng.below(1 << 20).to_string(),
    };
    let part = match rng.below(4) {
        0 => format!(".{:03}", rng.below(1000)),
        1 => rng.of(&[".", ".0", ".5", ".0000000001", ".9999999999"]).to_owned(),
        _ => String::new(),
    };
    let suffix = rng.of(&[
        "", "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
        "e3", "E3", "e-3", "E+2", "e", "K", "mi", "%", "e10", "E-10", "e1.5", " Mi", "i", "B",
    ]);
    format!("{sign}{whole}{part}{suffix}")
}

/// An amount, or a share of all there is.
pub(super) fn threshold(rng: &mut Rng) -> String {
    if rng.once_in(2) {
        return quantity(rng);
    }
    let sign = rng.of(&["", "", "", "-", "+"]);
    let part = rng.of(&["", ".5", ".", ".99", "e1", "e-1", "_0"]);
    format!("{sign}{}{part}%", rng.below(120))
}

/// An address, of either family.
pub(super) fn address(rng: &mut Rng) -> String {
    if rng.once_in(2) {
        let parts =
            ["0", "1", "10", "127", "255", "256", "01", "001", "0001", "300", "", "x", "-1", "0x1"];
        let count = if rng.once_in(6) { rng.below(6) } else { 4 };
        let all: Vec<&str> = (0..count)
            .map(|_| if rng.once_in(6) { rng.of(&parts) } else { rng.of(&parts[..6]) })
            .collect();
        return all.join(".");
    }
    let parts =
        ["::", ":", "0", "1", "ffff", "fe80", "12345", "g", ".", "1.2.3.4", "%lo", "[", "]"];
    words(&parts, 6, rng)
}

/// A set of processors.
pub(super) fn cpus(rng: &mut Rng) -> String {
    let parts = ["0", "1", "2", "3", "10", "64", ",", ",", "-", "-", " ", "+1", "01", "x", "--"];
    words(&parts, 7, rng)
}

/// A URL, or what looks like one.
pub(super) fn url(rng: &mut Rng) -> String {
    let scheme = rng.of(&[
        "http://", "https://", "unix://", "tcp://", "", "//", ":", "1a://", "a+b.c-d:", "HTTP://",
        "http:/", "http:", "dns:///", "a_b://",
    ]);
    let user = rng.of(&["", "", "", "", "u@", "u:p@", "@", "a b@", "%zz@", "u:@"]);
    let host = rng.of(&[
        "a",
        "127.0.0.1",
        "[::1]",
        "[::1",
        "::1",
        "a b",
        "a%20b",
        "a%zz",
        "",
        "é",
        "a_b",
        "[fe80::1%25lo]",
        "[fe80::1%lo]",
        "[x]",
        "a\"b",
        "*.a",
        "a..b",
        "a<b",
        "]",
        "[]",
        "a^b",
    ]);
    let port = rng.of(&["", "", "", ":1", ":", ":x", ":65536", ":-1", ":1:2", ":0x1", ":٣"]);
    let path = words(
        &[
            "", "", "/", "/a", "/a b", "/%41", "/%zz", "/%", "?x", "?a=b", "#f", "#%zz", "/..",
            "\u{7f}", "\\", ":",
        ],
        2,
        rng,
    );
    format!("{scheme}{user}{host}{port}{path}")
}

/// A name as labels, taints and annotations have it.
pub(super) fn name(rng: &mut Rng) -> String {
    let part = |rng: &mut Rng| match rng.below(6) {
        0 => "a".repeat([62, 63, 64, 253, 254][rng.below(5)]),
        1 => words(&["a", "B", "1", "-", "_", ".", "/", " ", "é", "*"], 5, rng),
        _ => words(&["a", "b", "C", "1", "-", ".", "_"], 4, rng),
    };
    if rng.once_in(3) { format!("{}/{}", part(rng), part(rng)) } else { part(rng) }
}

/// A list as comma separated values have it.
pub(super) fn list(rng: &mut Rng) -> String {
    words(&["a", "b", ",", ",", "\"", "\"", " ", "\n", "\r", "\\", "'", "=", "pods"], 8, rng)
}

/// Pairs of a command line.
pub(super) fn pairs(rng: &mut Rng) -> String {
    let key = ["cpu", "memory", "a", "memory.available", "0", "nodefs.available", "", " a"];
    let mark = ["=", "=", "=", "<", ":", "==", "", " = "];
    let mut text = String::new();
    for _ in 0..=rng.below(3) {
        let value = match rng.below(4) {
            0 => quantity(rng),
            1 => threshold(rng),
            2 => duration(rng),
            _ => rng.of(&["true", "false", "b", "", "x y", "\"b\""]).to_owned(),
        };
        let between = rng.of(&[",", ",", ",", ";", " ", ",,"]);
        text.push_str(&format!("{}{}{value}{between}", rng.of(&key), rng.of(&mark)));
    }
    if rng.once_in(4) { text } else { text.trim_end_matches([',', ';', ' ']).to_owned() }
}

/// A plain scalar of YAML, from the letters that make numbers, times and words of it.
pub(super) fn scalar(rng: &mut Rng) -> String {
    let letters: &[&'static str] = match rng.below(5) {
        0 => &["0", "1", "9", ".", "e", "E", "+", "-", "_", "x", "o", "b", ":"],
        1 => &["2001", "-", "01", "1", "T", "t", " ", ":", "00", "Z", "+01:00", ".5", "-12-14"],
        2 => &[
            "t", "r", "u", "e", "T", "y", "n", "o", "~", "null", "Yes", "on", "OFF", ".inf", ".NaN",
        ],
        3 => &["'", "\"", "\\", "a", " ", "n", "x41", "u00e9", "#", ":", "{", "}", "[", "]", ","],
        _ => &[
            "!!", "str", "int", "bool", "float", " ", "5", "&a", "*a", "<<", "binary", "aGk=", "!",
            "null", "map",
        ],
    };
    words(letters, 6, rng)
}

/// The same with a letter more, less, or another.
pub(super) fn misspelled(text: &str, rng: &mut Rng) -> String {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let at = places[rng.below(places.len())];
    let after = text[at..].chars().next().map_or(at, |c| at + c.len_utf8());
    let letter = rng.of(&[
        " ", "\t", "-", "+", ".", ",", ":", "/", "=", "0", "1", "9", "a", "Z", "_", "%", "\"", "é",
        "\u{0}", "\u{a0}", "\u{200b}", "\n", "@", "i",
    ]);
    match rng.below(5) {
        0 => format!("{}{}", &text[..at], &text[after..]),
        1 => format!("{}{letter}{}", &text[..at], &text[after..]),
        2 => format!("{text}{text}"),
        3 if rng.once_in(2) => text.to_uppercase(),
        _ => format!("{}{letter}{}", &text[..at], &text[at..]),
    }
}
