//! Checks the patterns of log queries with Go's error texts (Go: `regexp/syntax`, Perl flavour).
//!
//! Deliberately absent: the limits for nesting depth and size of an expression.

/// Unicode's categories, short and long, in the form used for comparison: without punctuation and
/// in lower case.
const CATEGORIES: &str = "\
    c cc cf cn co cs l lc ll lm lo lt lu m mc me mn n nd nl no p pc pd pe pf pi po ps s \
    sc sk sm so z zl zp zs casedletter closepunctuation combiningmark \
    connectorpunctuation control currencysymbol dashpunctuation decimalnumber \
    enclosingmark finalpunctuation format initialpunctuation letter letternumber \
    lineseparator lowercaseletter mark mathsymbol modifierletter modifiersymbol \
    nonspacingmark number openpunctuation other otherletter othernumber otherpunctuation \
    othersymbol paragraphseparator privateuse punctuation separator spaceseparator \
    spacingmark surrogate symbol titlecaseletter unassigned uppercaseletter cntrl digit \
    punct any assigned ascii";
/// Unicode's scripts, in the same form.
const SCRIPTS: &str = "\
    adlam ahom anatolianhieroglyphs arabic armenian avestan balinese bamum bassavah batak \
    bengali bhaiksuki bopomofo brahmi braille buginese buhid canadianaboriginal carian \
    caucasianalbanian chakma cham cherokee chorasmian common coptic cuneiform cypriot \
    cyprominoan cyrillic deseret devanagari divesakuru dogra duployan egyptianhieroglyphs \
    elbasan elymaic ethiopic georgian glagolitic gothic grantha greek gujarati \
    gunjalagondi gurmukhi han hangul hanifirohingya hanunoo hatran hebrew hiragana \
    imperialaramaic inherited inscriptionalpahlavi inscriptionalparthian javanese kaithi \
    kannada katakana kawi kayahli kharoshthi khitansmallscript khmer khojki khudawadi lao \
    latin lepcha limbu lineara linearb lisu lycian lydian mahajani makasar malayalam \
    mandaic manichaean marchen masaramgondi medefaidrin meeteimayek mendekikakui \
    meroiticcursive meroitichieroglyphs miao modi mongolian mro multani myanmar nabataean \
    nagmundari nandinagari newtailue newa nko nushu nyiakengpuachuehmong ogham olchiki \
    oldhungarian olditalic oldnortharabian oldpermic oldpersian oldsogdian \
    oldsoutharabian oldturkic olduyghur oriya osage osmanya pahawhhmong palmyrene \
    paucinhau phagspa phoenician psalterpahlavi rejang runic samaritan saurashtra sharada \
    shavian siddham signwriting sinhala sogdian sorasompeng soyombo sundanese sylotinagri \
    syriac tagalog tagbanwa taile taitham taiviet takri tamil tangsa tangut telugu thaana \
    thai tibetan tifinagh tirhuta toto ugaritic vai vithkuqi wancho warangciti yezidi yi \
    zanabazarsquare";
/// POSIX class names.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];
/// The limit for the product of nested repetitions.
const MOST_REPEATS: u64 = 1000;

/// The error in a pattern; `None` if it is valid.
pub(super) fn fault(pattern: &str) -> Option<String> {
    Reader { whole: pattern, rest: pattern, groups: vec![Group::default()], last: None }
        .read()
        .err()
}

type Checked<T> = Result<T, String>;

fn bad<T>(why: &str, part: &str) -> Checked<T> {
    Err(format!("error parsing regexp: {why}: `{part}`"))
}

/// An open group: the whole pattern, or a part in parentheses.
#[derive(Debug, Default)]
struct Group {
    /// The maximal repeat count of the preceding operand; `None` if there is no operand.
    operand: Option<u64>,
    /// The largest repeat count of all operands so far.
    deepest: u64,
}

struct Reader<'a> {
    whole: &'a str,
    rest: &'a str,
    /// Never empty.
    groups: Vec<Group>,
    /// The text beginning with the repetition that ends directly before the current position.
    last: Option<&'a str>,
}

impl<'a> Reader<'a> {
    fn read(mut self) -> Checked<()> {
        while let Some(first) = self.rest.chars().next() {
            let before = self.rest;
            let mut repetition = None;
            match first {
                '(' if before.starts_with("(?") => self.open_with_flags()?,
                '(' => {
                    self.skip(1);
                    self.groups.push(Group::default());
                }
                ')' => self.close()?,
                '|' => {
                    self.skip(1);
                    self.operand_is(None);
                }
                '[' => {
                    self.rest = class(before)?;
                    self.operand_is(Some(1));
                }
                '*' | '+' | '?' => {
                    self.skip(1);
                    self.repeat(before, 1)?;
                    repetition = Some(before);
                }
                '{' => match counts(before) {
                    Some((least, most, after)) => {
                        let text = cut(before, after);
                        let (Some(least), Some(most)) = (least, most) else {
                            return bad("invalid repeat count", text);
                        };
                        let top = most.unwrap_or(least);
                        if least.max(top) > MOST_REPEATS || least > top {
                            return bad("invalid repeat count", text);
                        }
                        self.rest = after;
                        // Zero repetitions count as one.
                        self.repeat(before, top.max(1))?;
                        if most == Some(0) {
                            self.operand_is(Some(1));
                        }
                        repetition = Some(before);
                    }
                    None => self.take_char(),
                },
                '\\' => self.escape()?,
                _ => self.take_char(),
            }
            self.last = repetition;
        }
        if self.groups.len() > 1 { bad("missing closing )", self.whole) } else { Ok(()) }
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn take_char(&mut self) {
        self.skip(self.rest.chars().next().map_or(0, char::len_utf8));
        self.operand_is(Some(1));
    }

    fn operand_is(&mut self, operand: Option<u64>) {
        if let Some(group) = self.groups.last_mut() {
            group.operand = operand;
            group.deepest = group.deepest.max(operand.unwrap_or(1));
        }
    }

    /// Repeats the preceding operand, which must not be a repetition itself.
    fn repeat(&mut self, before: &'a str, times: u64) -> Checked<()> {
        if self.rest.starts_with('?') {
            self.skip(1);
        }
        if let Some(last) = self.last {
            return bad("invalid nested repetition operator", cut(last, self.rest));
        }
        let text = cut(before, self.rest);
        let Some(operand) = self.groups.last().and_then(|group| group.operand) else {
            return bad("missing argument to repetition operator", text);
        };
        let repeats = operand * times;
        if times > 1 && repeats > MOST_REPEATS {
            return bad("invalid repeat count", text);
        }
        self.operand_is(Some(repeats));
        Ok(())
    }

    fn close(&mut self) -> Checked<()> {
        let Some(group) = self.groups.pop().filter(|_| !self.groups.is_empty()) else {
            return bad("unexpected )", self.whole);
        };
        self.skip(1);
        self.operand_is(Some(group.deepest.max(1)));
        Ok(())
    }

    /// `(?P<name>`, `(?<name>`, `(?flags:` or `(?flags)`.
    fn open_with_flags(&mut self) -> Checked<()> {
        let text = self.rest;
        let named = [("(?P<", 4), ("(?<", 3)];
        let named = named.iter().find(|(mark, at)| text.starts_with(mark) && text.len() > *at);
        if let Some((_, at)) = named {
            let Some(end) = text.find('>') else { return bad("invalid named capture", text) };
            let name = text.get(*at..end).unwrap_or_default();
            if name.is_empty() || !name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) {
                let shown = text.get(..=end).unwrap_or_default();
                return bad("invalid named capture", shown);
            }
            self.skip(end + 1);
            self.groups.push(Group::default());
            return Ok(());
        }
        let (mut minus, mut flags) = (false, false);
        for (at, c) in text.char_indices().skip(2) {
            match c {
                'i' | 'm' | 's' | 'U' => flags = true,
                '-' if !minus => (minus, flags) = (true, false),
                ':' | ')' if !minus || flags => {
                    self.skip(at + 1);
                    if c == ':' {
                        self.groups.push(Group::default());
                    }
                    return Ok(());
                }
                _ => {
                    let shown = text.get(..at + c.len_utf8()).unwrap_or_default();
                    return bad("invalid or unsupported Perl syntax", shown);
                }
            }
        }
        bad("invalid or unsupported Perl syntax", text)
    }

    fn escape(&mut self) -> Checked<()> {
        let text = self.rest;
        match text.chars().nth(1) {
            Some('A' | 'b' | 'B' | 'z') => self.skip(2),
            Some('C') => return bad("invalid escape sequence", "\\C"),
            Some('Q') => {
                let (literal, rest) = text.split_once("\\E").unwrap_or((text, ""));
                self.rest = rest;
                if literal.len() == 2 {
                    return Ok(());
                }
            }
            _ => {
                self.rest = match group_escape(text)? {
                    Some(rest) => rest,
                    None => escaped(text)?.1,
                };
            }
        }
        self.operand_is(Some(1));
        Ok(())
    }
}

/// The part of `text` before `rest`.
fn cut<'a>(text: &'a str, rest: &str) -> &'a str {
    text.get(..text.len() - rest.len()).unwrap_or_default()
}

type Count = Option<u64>;

/// `{least}`, `{least,}` or `{least,most}`: both bounds, where `None` is too large, and the rest of
/// the text. No upper bound is an inner `None`.
fn counts(text: &str) -> Option<(Count, Option<Count>, &str)> {
    let (least, rest) = integer(text.strip_prefix('{')?)?;
    let (most, rest) = match rest.strip_prefix(',') {
        None => (least.map(Some), rest),
        Some(rest) if rest.starts_with('}') => (Some(None), rest),
        Some(rest) => {
            let (most, rest) = integer(rest)?;
            (most.map(Some), rest)
        }
    };
    Some((least, most, rest.strip_prefix('}')?))
}

/// A number without leading zeros, and the rest of the text; the inner `None` is too large.
fn integer(text: &str) -> Option<(Count, &str)> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = cut(text, rest);
    if digits.is_empty() || (digits.len() > 1 && digits.starts_with('0')) {
        return None;
    }
    Some((digits.parse().ok().filter(|number| *number < 1_000_000_000), rest))
}

/// `\d` and the like, or `\p{Name}`: the rest of the text after it.
fn group_escape(text: &str) -> Checked<Option<&str>> {
    let Some(rest) = text.strip_prefix('\\') else { return Ok(None) };
    if let Some(rest) = rest.strip_prefix(['d', 'D', 's', 'S', 'w', 'W']) {
        return Ok(Some(rest));
    }
    let Some(rest) = rest.strip_prefix(['p', 'P']) else { return Ok(None) };
    let (name, rest) = match rest.strip_prefix('{') {
        Some(inside) => match inside.split_once('}') {
            Some(split) => split,
            None => return bad("invalid character class range", text),
        },
        None => rest.split_at(rest.chars().next().map_or(0, char::len_utf8)),
    };
    let plain: String = name.strip_prefix('^').unwrap_or(name).to_ascii_lowercase();
    let plain: String = plain.chars().filter(|c| !"_- ".contains(*c)).collect();
    let mut known = CATEGORIES.split(' ').chain(SCRIPTS.split(' '));
    if plain.is_empty() || known.all(|known| known != plain) {
        return bad("invalid character class range", cut(text, rest));
    }
    Ok(Some(rest))
}

/// The character of an escape, and the rest of the text.
fn escaped(text: &str) -> Checked<(char, &str)> {
    let mut chars = text.chars();
    chars.next();
    let Some(first) = chars.next() else {
        return bad("trailing backslash at end of expression", "");
    };
    let octal = |c: char| c.to_digit(8);
    let simple = match first {
        'a' => Some('\u{7}'),
        'f' => Some('\u{c}'),
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        'v' => Some('\u{b}'),
        other => (other.is_ascii() && !other.is_ascii_alphanumeric()).then_some(other),
    };
    if let Some(c) = simple {
        return Ok((c, chars.as_str()));
    }
    let next_is_octal = chars.as_str().starts_with(|c: char| octal(c).is_some());
    if first == '0' || (octal(first).is_some() && next_is_octal) {
        let mut value = octal(first).unwrap_or(0);
        for _ in 0..2 {
            let Some(digit) = chars.as_str().chars().next().and_then(octal) else { break };
            value = value * 8 + digit;
            chars.next();
        }
        return Ok((char::from_u32(value).unwrap_or('\0'), chars.as_str()));
    }
    if first == 'x' {
        match hexadecimal(chars.as_str()) {
            Ok(found) => return Ok(found),
            Err(rest) => return bad("invalid escape sequence", cut(text, rest)),
        }
    }
    bad("invalid escape sequence", cut(text, chars.as_str()))
}

/// `4F` or `{10FFFF}` after `\x`, and the rest of the text; an error is the text after the invalid
/// part.
fn hexadecimal(text: &str) -> Result<(char, &str), &str> {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return Err(text) };
    if first != '{' {
        let second = chars.next();
        let digits = [Some(first), second].map(|c| c.and_then(|c| c.to_digit(16)));
        return match digits {
            [Some(high), Some(low)] => {
                Ok((char::from_u32(high * 16 + low).unwrap_or('\0'), chars.as_str()))
            }
            _ => Err(chars.as_str()),
        };
    }
    let (mut value, mut digits) = (0_u32, 0);
    while let Some(c) = chars.next() {
        match c.to_digit(16) {
            Some(digit) => (value, digits) = (value * 16 + digit, digits + 1),
            // Surrogates are valid numbers; they compare as the last character before the
            // surrogates.
            None if c == '}' && digits > 0 => {
                return Ok((char::from_u32(value).unwrap_or('\u{d7ff}'), chars.as_str()));
            }
            None => break,
        }
        if value > u32::from(char::MAX) {
            break;
        }
    }
    Err(chars.as_str())
}

/// The text after a class in brackets.
fn class(text: &str) -> Checked<&str> {
    let mut rest = text.strip_prefix('[').unwrap_or(text);
    rest = rest.strip_prefix('^').unwrap_or(rest);
    let mut first = true;
    loop {
        if let Some(rest) = rest.strip_prefix(']').filter(|_| !first) {
            return Ok(rest);
        }
        first = false;
        if let Some((name, behind)) =
            rest.strip_prefix("[:").and_then(|in_it| in_it.split_once(":]"))
        {
            if !POSIX.contains(&name.strip_prefix('^').unwrap_or(name)) {
                return bad("invalid character class range", cut(rest, behind));
            }
            rest = behind;
            continue;
        }
        if let Some(behind) = group_escape(rest)? {
            rest = behind;
            continue;
        }
        let from = rest;
        let (low, behind) = class_char(rest, text)?;
        rest = behind;
        if let Some(end) =
            rest.strip_prefix('-').filter(|end| !end.is_empty() && !end.starts_with(']'))
        {
            let (high, behind) = class_char(end, text)?;
            if high < low {
                return bad("invalid character class range", cut(from, behind));
            }
            rest = behind;
        }
    }
}

fn class_char<'a>(text: &'a str, whole: &str) -> Checked<(char, &'a str)> {
    let mut chars = text.chars();
    match chars.next() {
        None => bad("missing closing ]", whole),
        Some('\\') => escaped(text),
        Some(c) => Ok((c, chars.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_patterns_have_no_fault() {
        for pattern in [
            "",
            "a",
            "a*",
            "a*?",
            "a{2}",
            "a{2,}?",
            "a{,2}",
            "a{02}",
            "{",
            "a|b|",
            "|a",
            "()",
            "()*",
            "^*",
            "(?i)a",
            "(?i:a)b",
            "(?P<n>a)",
            "(?<n>a)",
            "a*(?i)*",
            "[]a]",
            "[a-]",
            "[a-z-9]",
            "[[:alpha:]]",
            "[[:^word:]]",
            "[[:x]",
            "\\d\\pL\\p{Greek}\\P{^Lu}",
            "\\x41\\x{10FFFF}",
            "\\012\\0",
            "\\Qa*(\\E*",
            "\\Q*",
            "\\.\\/",
            "(a{30}){33}",
            "(a{0}){1000}",
            "[\\]]",
        ] {
            assert_eq!(fault(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn faults_have_the_words_of_go() {
        for (pattern, why, part) in [
            ("(", "missing closing )", "("),
            ("(a|b", "missing closing )", "(a|b"),
            ("a)b", "unexpected )", "a)b"),
            ("*", "missing argument to repetition operator", "*"),
            ("a|*?b", "missing argument to repetition operator", "*?"),
            ("({2}", "missing argument to repetition operator", "{2}"),
            ("(?i)+", "missing argument to repetition operator", "+"),
            ("a**", "invalid nested repetition operator", "**"),
            ("a*?+?b", "invalid nested repetition operator", "*?+?"),
            ("a{2}{3}", "invalid nested repetition operator", "{2}{3}"),
            ("a{3,2}", "invalid repeat count", "{3,2}"),
            ("a{1001}", "invalid repeat count", "{1001}"),
            ("a{99999999999}?", "invalid repeat count", "{99999999999}"),
            ("(a{30}){34}?", "invalid repeat count", "{34}?"),
            ("[a", "missing closing ]", "[a"),
            ("x[", "missing closing ]", "["),
            ("[z-a]", "invalid character class range", "z-a"),
            ("[[:x:]]", "invalid character class range", "[:x:]"),
            ("\\p{x}", "invalid character class range", "\\p{x}"),
            ("\\p{x", "invalid character class range", "\\p{x"),
            ("\\py", "invalid character class range", "\\py"),
            ("a\\", "trailing backslash at end of expression", ""),
            ("\\y", "invalid escape sequence", "\\y"),
            ("\\8", "invalid escape sequence", "\\8"),
            ("\\1", "invalid escape sequence", "\\1"),
            ("\\x4", "invalid escape sequence", "\\x4"),
            ("\\x{}a", "invalid escape sequence", "\\x{}"),
            ("\\x{110000}", "invalid escape sequence", "\\x{110000"),
            ("[\\b]", "invalid escape sequence", "\\b"),
            ("\\C", "invalid escape sequence", "\\C"),
            ("(?P<n", "invalid named capture", "(?P<n"),
            ("(?<a-b>)", "invalid named capture", "(?<a-b>"),
            ("(?=a)", "invalid or unsupported Perl syntax", "(?="),
            ("(?<", "invalid or unsupported Perl syntax", "(?<"),
            ("(?i-)a", "invalid or unsupported Perl syntax", "(?i-)"),
            ("(?", "invalid or unsupported Perl syntax", "(?"),
        ] {
            let want = format!("error parsing regexp: {why}: `{part}`");
            assert_eq!(fault(pattern), Some(want), "{pattern}");
        }
    }
}
