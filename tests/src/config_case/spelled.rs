//! Values spelled by chance, from the letters of their type: what no list of examples has.

use super::chance::Dice;

/// So many words of a list, one after the other.
fn words(list: &[&'static str], most: usize, dice: &mut Dice) -> String {
    (0..=dice.below(most)).map(|_| dice.of(list)).collect()
}

/// A whole number near a power of two or ten, in some form.
pub(super) fn number(dice: &mut Dice) -> String {
    if dice.once_in(4) {
        let letters = ["0", "1", "7", "9", "-", "+", "_", ".", "e", "x", "b", "o", " ", "F"];
        return words(&letters, 6, dice);
    }
    let power = match dice.below(3) {
        0 => 10_i128.pow(u32::try_from(dice.below(22)).unwrap_or(0)),
        1 => i128::try_from(dice.below(2000)).unwrap_or(0),
        _ => 1 << dice.below(67),
    };
    let near = power + i128::try_from(dice.below(5)).unwrap_or(0) - 2;
    let value = if dice.once_in(4) { -near } else { near };
    match dice.below(12) {
        0 => format!("{value:#x}"),
        1 => format!("{value:#o}"),
        2 => format!("0{value}"),
        3 => format!("{value}.0"),
        4 => format!("{value}e{}", dice.below(4)),
        _ => value.to_string(),
    }
}

/// A length of time of a few parts.
pub(super) fn duration(dice: &mut Dice) -> String {
    let mut text = dice.of(&["", "", "", "-", "+", " "]).to_owned();
    for _ in 0..=dice.below(3) {
        let whole = match dice.below(5) {
            0 => String::new(),
            1 => number(dice),
            _ => dice.below(100_000).to_string(),
        };
        let part = match dice.below(4) {
            0 => format!(".{}", dice.below(1 << 40)),
            1 => dice.of(&[".", ".0", "", "", ".000000000000000000001"]).to_owned(),
            _ => String::new(),
        };
        let unit = dice.of(&["h", "m", "s", "s", "ms", "us", "µs", "μs", "ns", "", "d", "S", "M"]);
        text.push_str(&format!("{whole}{part}{unit}"));
    }
    text
}

/// An amount of something.
pub(super) fn quantity(dice: &mut Dice) -> String {
    let sign = dice.of(&["", "", "", "", "-", "+"]);
    let whole = match dice.below(5) {
        0 => String::new(),
        1 => number(dice),
        2 => format!("00{}", dice.below(100)),
        _ => dice.below(1 << 20).to_string(),
    };
    let part = match dice.below(4) {
        0 => format!(".{:03}", dice.below(1000)),
        1 => dice.of(&[".", ".0", ".5", ".0000000001", ".9999999999"]).to_owned(),
        _ => String::new(),
    };
    let suffix = dice.of(&[
        "", "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
        "e3", "E3", "e-3", "E+2", "e", "K", "mi", "%", "e10", "E-10", "e1.5", " Mi", "i", "B",
    ]);
    format!("{sign}{whole}{part}{suffix}")
}

/// An amount, or a share of all there is.
pub(super) fn threshold(dice: &mut Dice) -> String {
    if dice.once_in(2) {
        return quantity(dice);
    }
    let sign = dice.of(&["", "", "", "-", "+"]);
    let part = dice.of(&["", ".5", ".", ".99", "e1", "e-1", "_0"]);
    format!("{sign}{}{part}%", dice.below(120))
}

/// An address, of either family.
pub(super) fn address(dice: &mut Dice) -> String {
    if dice.once_in(2) {
        let parts =
            ["0", "1", "10", "127", "255", "256", "01", "001", "0001", "300", "", "x", "-1", "0x1"];
        let count = if dice.once_in(6) { dice.below(6) } else { 4 };
        let all: Vec<&str> = (0..count)
            .map(|_| if dice.once_in(6) { dice.of(&parts) } else { dice.of(&parts[..6]) })
            .collect();
        return all.join(".");
    }
    let parts =
        ["::", ":", "0", "1", "ffff", "fe80", "12345", "g", ".", "1.2.3.4", "%lo", "[", "]"];
    words(&parts, 6, dice)
}

/// A set of processors.
pub(super) fn cpus(dice: &mut Dice) -> String {
    let parts = ["0", "1", "2", "3", "10", "64", ",", ",", "-", "-", " ", "+1", "01", "x", "--"];
    words(&parts, 7, dice)
}

/// A URL, or what looks like one.
pub(super) fn url(dice: &mut Dice) -> String {
    let scheme = dice.of(&[
        "http://", "https://", "unix://", "tcp://", "", "//", ":", "1a://", "a+b.c-d:", "HTTP://",
        "http:/", "http:", "dns:///", "a_b://",
    ]);
    let user = dice.of(&["", "", "", "", "u@", "u:p@", "@", "a b@", "%zz@", "u:@"]);
    let host = dice.of(&[
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
    let port = dice.of(&["", "", "", ":1", ":", ":x", ":65536", ":-1", ":1:2", ":0x1", ":٣"]);
    let path = words(
        &[
            "", "", "/", "/a", "/a b", "/%41", "/%zz", "/%", "?x", "?a=b", "#f", "#%zz", "/..",
            "\u{7f}", "\\", ":",
        ],
        2,
        dice,
    );
    format!("{scheme}{user}{host}{port}{path}")
}

/// A name as labels, taints and annotations have it.
pub(super) fn name(dice: &mut Dice) -> String {
    let part = |dice: &mut Dice| match dice.below(6) {
        0 => "a".repeat([62, 63, 64, 253, 254][dice.below(5)]),
        1 => words(&["a", "B", "1", "-", "_", ".", "/", " ", "é", "*"], 5, dice),
        _ => words(&["a", "b", "C", "1", "-", ".", "_"], 4, dice),
    };
    if dice.once_in(3) { format!("{}/{}", part(dice), part(dice)) } else { part(dice) }
}

/// A list as comma separated values have it.
pub(super) fn list(dice: &mut Dice) -> String {
    words(&["a", "b", ",", ",", "\"", "\"", " ", "\n", "\r", "\\", "'", "=", "pods"], 8, dice)
}

/// Pairs of a command line.
pub(super) fn pairs(dice: &mut Dice) -> String {
    let key = ["cpu", "memory", "a", "memory.available", "0", "nodefs.available", "", " a"];
    let mark = ["=", "=", "=", "<", ":", "==", "", " = "];
    let mut text = String::new();
    for _ in 0..=dice.below(3) {
        let value = match dice.below(4) {
            0 => quantity(dice),
            1 => threshold(dice),
            2 => duration(dice),
            _ => dice.of(&["true", "false", "b", "", "x y", "\"b\""]).to_owned(),
        };
        let between = dice.of(&[",", ",", ",", ";", " ", ",,"]);
        text.push_str(&format!("{}{}{value}{between}", dice.of(&key), dice.of(&mark)));
    }
    if dice.once_in(4) { text } else { text.trim_end_matches([',', ';', ' ']).to_owned() }
}

/// A plain scalar of YAML, from the letters that make numbers, times and words of it.
pub(super) fn scalar(dice: &mut Dice) -> String {
    let letters: &[&'static str] = match dice.below(5) {
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
    words(letters, 6, dice)
}

/// The same with a letter more, less, or another.
pub(super) fn misspelled(text: &str, dice: &mut Dice) -> String {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let at = places[dice.below(places.len())];
    let after = text[at..].chars().next().map_or(at, |c| at + c.len_utf8());
    let letter = dice.of(&[
        " ", "\t", "-", "+", ".", ",", ":", "/", "=", "0", "1", "9", "a", "Z", "_", "%", "\"", "é",
        "\u{0}", "\u{a0}", "\u{200b}", "\n", "@", "i",
    ]);
    match dice.below(5) {
        0 => format!("{}{}", &text[..at], &text[after..]),
        1 => format!("{}{letter}{}", &text[..at], &text[after..]),
        2 => format!("{text}{text}"),
        3 if dice.once_in(2) => text.to_uppercase(),
        _ => format!("{}{letter}{}", &text[..at], &text[at..]),
    }
}
