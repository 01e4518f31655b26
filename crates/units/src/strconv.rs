//! Go's `strconv`: numbers, booleans and quoted strings with Go's error texts.

use std::fmt::Write;
use std::net::IpAddr;

/// A failed conversion; prints as Go's `*strconv.NumError`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("strconv.{function}: parsing {}: {reason}", quote(.text))]
pub struct NumError {
    /// The Go function.
    pub function: &'static str,
    /// The text that was parsed.
    pub text: String,
    /// What is wrong with it.
    pub reason: NumFault,
}

/// What is wrong with a number's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NumFault {
    /// Not a number.
    #[error("invalid syntax")]
    Syntax,
    /// Does not fit.
    #[error("value out of range")]
    Range,
}

fn fail(function: &'static str, text: &str, reason: NumFault) -> NumError {
    NumError { function, text: text.to_owned(), reason }
}

/// `strconv.Atoi`.
pub fn atoi(text: &str) -> Result<i64, NumError> {
    parse_int(text, 10, 64).map_err(|error| fail("Atoi", text, error.reason))
}

/// `strconv.ParseInt(text, base, bits)` for base 10 or 0 (prefixes `0x`, `0o`, `0b`, `0`, and `_`).
pub fn parse_int(text: &str, base: u32, bits: u32) -> Result<i64, NumError> {
    const NAME: &str = "ParseInt";
    let negative = text.starts_with('-');
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let magnitude = magnitude(digits, base, bits).map_err(|reason| fail(NAME, text, reason))?;
    let signed = if negative { -i128::from(magnitude) } else { i128::from(magnitude) };
    let limit = 1_i128 << bits.clamp(1, 64).saturating_sub(1);
    if signed < -limit || signed >= limit {
        return Err(fail(NAME, text, NumFault::Range));
    }
    i64::try_from(signed).map_err(|_| fail(NAME, text, NumFault::Range))
}

/// `strconv.ParseUint(text, base, bits)`, see [`parse_int`].
pub fn parse_uint(text: &str, base: u32, bits: u32) -> Result<u64, NumError> {
    const NAME: &str = "ParseUint";
    magnitude(text, base, bits).map_err(|reason| fail(NAME, text, reason))
}

/// `strconv.ParseBool`.
pub fn parse_bool(text: &str) -> Result<bool, NumError> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(fail("ParseBool", text, NumFault::Syntax)),
    }
}

/// An address whose numbers may have leading zeros (k8s.io/utils: `ParseIPSloppy`).
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    let bare = |part: &str| -> String {
        let digits = part.trim_start_matches('0');
        if digits.is_empty() && !part.is_empty() { "0".to_owned() } else { digits.to_owned() }
    };
    // In an IPv6 address only the embedded IPv4 part has dots.
    let (head, tail) = text
        .rsplit_once(':')
        .map_or(("", text), |(_, tail)| (&text[..text.len() - tail.len()], tail));
    let plain: Vec<String> = tail.split('.').map(bare).collect();
    let strict = text.parse().ok();
    let sloppy = || format!("{head}{}", plain.join(".")).parse().ok();
    strict.or_else(|| tail.contains('.').then(sloppy).flatten())
}

/// `strconv.ParseFloat(text, 32)`.
pub fn parse_float32(text: &str) -> Result<f32, NumError> {
    let syntax = || fail("ParseFloat", text, NumFault::Syntax);
    let bare = text.trim_start_matches(['+', '-']);
    let sign = &text[..text.len() - bare.len()];
    if sign.len() > 1 {
        return Err(syntax());
    }
    if text.contains('_') && !underscores_ok(text) {
        return Err(syntax());
    }
    let digits: String = bare.chars().filter(|c| *c != '_').collect();
    if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        let value = hex_float(hex).ok_or_else(syntax)?;
        #[expect(clippy::cast_possible_truncation, reason = "rounded to the type asked for")]
        let value = value as f32;
        if value.is_infinite() {
            return Err(fail("ParseFloat", text, NumFault::Range));
        }
        return Ok(if sign == "-" { -value } else { value });
    }
    let value: f32 = format!("{sign}{digits}").parse().map_err(|_| syntax())?;
    let spelled_out = text.bytes().any(|b| matches!(b, b'i' | b'I' | b'n' | b'N'));
    if value.is_infinite() && !spelled_out {
        return Err(fail("ParseFloat", text, NumFault::Range));
    }
    Ok(value)
}

/// A hexadecimal number with its binary exponent, without prefix and sign: `1.8p3`.
fn hex_float(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once(['p', 'P'])?;
    let exponent = exponent.strip_prefix('+').unwrap_or(exponent);
    let digits = exponent.strip_prefix('-').unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut exponent: i32 =
        exponent.parse().unwrap_or(if exponent.starts_with('-') { -10_000 } else { 10_000 });
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let mut value = 0.0_f64;
    for digit in whole.chars().chain(part.chars()) {
        value = value * 16.0 + f64::from(digit.to_digit(16)?);
    }
    exponent = exponent.saturating_sub(4 * i32::try_from(part.len()).ok()?);
    // In two steps, neither of which leaves the range before the other comes.
    let half = exponent / 2;
    Some(value * 2.0_f64.powi(half) * 2.0_f64.powi(exponent - half))
}

/// What is too large is found before what is wrong behind it.
fn magnitude(text: &str, base: u32, bits: u32) -> Result<u64, NumFault> {
    if text.is_empty() {
        return Err(NumFault::Syntax);
    }
    let (digits, radix) = if base == 0 { prefixed(text) } else { (text, base) };
    let most = u64::MAX >> (64 - bits.clamp(1, 64));
    let mut value = 0_u64;
    let mut seen = false;
    for c in digits.chars() {
        if c == '_' && base == 0 {
            continue;
        }
        let digit = c.to_digit(radix).ok_or(NumFault::Syntax)?;
        seen = true;
        let next = value.checked_mul(u64::from(radix));
        let next = next.and_then(|value| value.checked_add(u64::from(digit)));
        value = next.filter(|value| *value <= most).ok_or(NumFault::Range)?;
    }
    let grouped = base == 0 && digits.contains('_');
    if !seen || (grouped && !underscores_ok(text)) {
        return Err(NumFault::Syntax);
    }
    Ok(value)
}

fn prefixed(text: &str) -> (&str, u32) {
    let lower = text.get(..2).map(str::to_ascii_lowercase);
    match lower.as_deref() {
        Some("0x") => (&text[2..], 16),
        Some("0b") => (&text[2..], 2),
        Some("0o") => (&text[2..], 8),
        _ if text.starts_with('0') && text.len() > 1 => (&text[1..], 8),
        _ => (text, 10),
    }
}

/// Underscores may only stand between digits (or after the base prefix).
fn underscores_ok(text: &str) -> bool {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let prefix = bare.get(..2).map(str::to_ascii_lowercase);
    let prefixed = matches!(prefix.as_deref(), Some("0x" | "0b" | "0o"));
    let hex = prefix.as_deref() == Some("0x");
    // A prefix counts as a digit; an underscore stands between two digits.
    let (mut digit, mut open) = (prefixed, false);
    for byte in bare.bytes().skip(if prefixed { 2 } else { 0 }) {
        let is_digit = byte.is_ascii_digit() || hex && byte.is_ascii_hexdigit();
        match byte {
            b'_' if !digit => return false,
            b'_' => (digit, open) = (false, true),
            _ if !is_digit && open => return false,
            _ => (digit, open) = (is_digit, false),
        }
    }
    !open
}

/// `%v`: a float in its shortest form, with an exponent below 1e-4 and from 1e6 on.
pub fn float(value: f64) -> String {
    let mut text = String::new();
    push_float(&mut text, value);
    text
}

/// Adds a float as [`float`] writes it.
pub fn push_float(out: &mut String, value: f64) {
    /// Whole numbers up to here are exact, and written without the search for the shortest form.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else if value == 0.0 && value.is_sign_positive() {
        out.push('0');
    } else if value > 0.0 && value < EXACT && value.fract() == 0.0 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, small"
        )]
        push_whole(out, value as u64);
    } else {
        push_any(out, value);
    }
}

/// A positive whole number.
fn push_whole(out: &mut String, value: u64) {
    let mut digits = [b'0'; 20];
    let mut first = digits.len();
    let mut rest = value;
    while rest > 0 {
        first -= 1;
        if let (Some(digit), Ok(last)) = (digits.get_mut(first), u8::try_from(rest % 10)) {
            *digit = b'0' + last;
        }
        rest /= 10;
    }
    let digits = digits.get(first..).and_then(|d| std::str::from_utf8(d).ok()).unwrap_or_default();
    let exponent = digits.len().saturating_sub(1);
    if exponent < 6 {
        out.push_str(digits);
        return;
    }
    let (head, tail) = digits.split_at(1);
    out.push_str(head);
    let tail = tail.trim_end_matches('0');
    if !tail.is_empty() {
        out.push('.');
        out.push_str(tail);
    }
    out.push_str(if exponent < 10 { "e+0" } else { "e+1" });
    // At most 15: the number is below 2^53.
    out.push_str(digits_of(exponent % 10));
}

fn digits_of(number: usize) -> &'static str {
    const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    DIGITS.get(number).copied().unwrap_or_default()
}

fn push_any(out: &mut String, value: f64) {
    if (1e-4..1e6).contains(&value.abs()) {
        // Writing to a string cannot fail.
        let _ = write!(out, "{value}");
        return;
    }
    let start = out.len();
    // Writing to a string cannot fail.
    let _ = write!(out, "{value:e}");
    let exponent = out.get(start..).and_then(|text| text.split_once('e'));
    let exponent = exponent.and_then(|(_, exponent)| exponent.parse::<i32>().ok()).unwrap_or(0);
    if let Some(at) = out.rfind('e') {
        out.truncate(at);
    }
    // Only a negative zero has no exponent here.
    if value != 0.0 {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "e{sign}{:02}", exponent.unsigned_abs());
    }
}

/// `%q`: a Go string literal.
pub fn quote(text: &str) -> String {
    quote_bytes(text.as_bytes())
}

/// `%q` of bytes that need not be text.
pub fn quote_bytes(bytes: &[u8]) -> String {
    let mut quoted = String::with_capacity(bytes.len() + 2);
    quoted.push('"');
    for chunk in bytes.utf8_chunks() {
        quote_text(chunk.valid(), &mut quoted);
        for byte in chunk.invalid() {
            quoted.push_str(&format!("\\x{byte:02x}"));
        }
    }
    quoted.push('"');
    quoted
}

fn quote_text(text: &str, quoted: &mut String) {
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if c < ' ' || c == '\u{7f}' => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_ascii() || is_printable(c) => quoted.push(c),
            c if c > '\u{ffff}' => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
}

/// Go: `strconv.IsPrint`, for what is not ASCII.
fn is_printable(c: char) -> bool {
    // Marks are escaped only where nothing stands before them.
    let text: String = ['a', c].iter().collect();
    let mut escaped = text.escape_debug().skip(1);
    escaped.next() == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_too_large_before_it_is_none() {
        let reason = |text: &str, bits| parse_int(text, 0, bits).unwrap_err().reason;
        assert_eq!(reason("1000000000000000000001e3", 64), NumFault::Range);
        assert_eq!(reason("-137438953472e0", 32), NumFault::Range);
        assert_eq!(reason("4294967296_", 32), NumFault::Range);
        assert_eq!(reason("4294967295e0", 32), NumFault::Syntax);
        assert_eq!(reason("4294967295", 32), NumFault::Range);
        assert_eq!(reason("1_", 32), NumFault::Syntax);
        assert_eq!(atoi("99999999999999999999x").unwrap_err().reason, NumFault::Range);
        assert_eq!(atoi("-12"), Ok(-12));
    }

    #[test]
    fn what_cannot_be_seen_is_escaped_in_quotes() {
        for (text, quoted) in [
            ("é٣e\u{301}\u{1f600}", "\"é٣e\u{301}\u{1f600}\""),
            ("\u{a0}\u{200b}\u{2028}", "\"\\u00a0\\u200b\\u2028\""),
            ("\u{85}\u{feff}\u{ad}", "\"\\u0085\\ufeff\\u00ad\""),
            ("\u{e000}\u{e0001}\u{fffd}", "\"\\ue000\\U000e0001\u{fffd}\""),
            ("'\u{7f}\u{1}", "\"'\\x7f\\x01\""),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }

    #[test]
    fn floats_may_be_hexadecimal_and_digits_grouped() {
        assert_eq!(parse_float32("0x1p1"), Ok(2.0));
        assert_eq!(parse_float32("-0x1.8p+3"), Ok(-12.0));
        assert_eq!(parse_float32("1_0.5"), Ok(10.5));
        for bad in ["0x1", "0xp1", "1__0", "_1", "1_", "1_.5", "0x1p", "--1", "+-1", ""] {
            assert!(parse_float32(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_float32("0x1p999").unwrap_err().reason, NumFault::Range);
    }

    #[test]
    fn addresses_may_have_leading_zeros() {
        let shown = |text: &str| parse_ip(text).map(|ip| ip.to_string()).unwrap_or_default();
        assert_eq!(shown("01.002.3.04"), "1.2.3.4");
        assert_eq!(shown("::ffff:01.2.3.4"), "::ffff:1.2.3.4");
        assert_eq!(shown("::1"), "::1");
        for bad in ["", "1.2.3", "1.2.3.256", "1..2.3", "localhost", "1.2.3.4.5", "a.b.c.d"] {
            assert_eq!(shown(bad), "", "{bad}");
        }
    }

    #[test]
    fn integers_are_read_in_every_base_go_takes() {
        assert_eq!(parse_int("0x10", 0, 64), Ok(16));
        assert_eq!(parse_int("-010", 0, 64), Ok(-8));
        assert_eq!(parse_int("1_000", 0, 64), Ok(1000));
        assert_eq!(parse_int("010", 10, 32), Ok(10));
        assert_eq!(parse_int("-2147483648", 0, 32), Ok(-2_147_483_648));
    }

    #[test]
    fn bytes_that_are_no_text_are_quoted_one_by_one() {
        assert_eq!(quote_bytes(b"a\xff\xfe\n\xc3\xa9"), "\"a\\xff\\xfe\\n\u{e9}\"");
    }

    #[test]
    fn errors_read_as_go_has_them() {
        let cases = [
            (parse_int("x", 0, 32), r#"strconv.ParseInt: parsing "x": invalid syntax"#),
            (parse_int("", 0, 32), r#"strconv.ParseInt: parsing "": invalid syntax"#),
            (
                parse_int("3000000000", 0, 32),
                r#"strconv.ParseInt: parsing "3000000000": value out of range"#,
            ),
            (parse_int("1__0", 0, 32), r#"strconv.ParseInt: parsing "1__0": invalid syntax"#),
        ];
        for (result, text) in cases {
            assert_eq!(result.unwrap_err().to_string(), text);
        }
        assert_eq!(
            parse_bool("yes").unwrap_err().to_string(),
            r#"strconv.ParseBool: parsing "yes": invalid syntax"#
        );
        assert_eq!(
            parse_uint("-1", 10, 32).unwrap_err().to_string(),
            r#"strconv.ParseUint: parsing "-1": invalid syntax"#
        );
    }

    #[test]
    fn quotes_as_a_go_literal() {
        assert_eq!(quote("a\"b\\c\n\u{1}é"), "\"a\\\"b\\\\c\\n\\x01é\"");
    }

    #[test]
    fn floats_have_gos_shortest_form() {
        let cases = [
            (100_000.0, "100000"),
            (1e6, "1e+06"),
            (2_147_483_648.0, "2.147483648e+09"),
            (0.0001, "0.0001"),
            (1e-9, "1e-09"),
            (1.5, "1.5"),
            (0.0, "0"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value), text);
        }
    }
}
