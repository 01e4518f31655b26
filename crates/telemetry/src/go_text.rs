//! Go's text formats that logs and metrics share with the Go kubelet: quoted strings and floats.

pub use units::strconv::{float, push_float};

/// Go's `strconv.Quote`: double quotes, with everything that is not printable escaped.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            ' '..='~' => out.push(c),
            _ if u32::from(c) < 0x80 => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            _ if printable(c) => out.push(c),
            _ if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Whether Go prints the (non-ASCII) character unescaped. Rust's `str::escape_debug` has the same
/// definition of printable, apart from a combining mark at the very start, hence the letter before
/// it.
fn printable(c: char) -> bool {
    let text = String::from_iter(['a', c]);
    text.escape_debug().eq(text.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_like_go() {
        for (text, want) in [
            ("plain", r#""plain""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("tab\tnl\nbell\x07", r#""tab\tnl\nbell\a""#),
            ("\x01\x7f", r#""\x01\x7f""#),
            ("grüße 世界 '", r#""grüße 世界 '""#),
            ("\u{a0}\u{200b}", r#""\u00a0\u200b""#),
            ("e\u{301}\u{93e}\u{93c}", "\"e\u{301}\u{93e}\u{93c}\""),
            ("\u{e0001}", r#""\U000e0001""#),
        ] {
            assert_eq!(quote(text), want);
        }
    }

    #[test]
    fn prints_floats_like_go() {
        for (value, want) in [
            (0.0, "0"),
            (1.0, "1"),
            (-1.0, "-1"),
            (0.005, "0.005"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (3.0517578125, "3.0517578125"),
            (100000.0, "100000"),
            (123456.789, "123456.789"),
            (999999.0, "999999"),
            (1e6, "1e+06"),
            (1234567.5, "1.2345675e+06"),
            (123456789.0, "1.23456789e+08"),
            (745.0580596923828, "745.0580596923828"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (1.5e300, "1.5e+300"),
            (-2.5e-7, "-2.5e-07"),
        ] {
            assert_eq!(float(value), want, "{value}");
        }
    }
}
