//! Container log lines: reading what runtimes write, writing what users see.
//!
//! A CRI log line is `<RFC 3339 time> <stdout|stderr> <tag> <text>`; tag `P` means that the line goes
//! on in the next one. Lines of docker's JSON driver are read too. The format is taken from the
//! first line; later lines that do not fit are skipped.
//!
//! Made for speed: a line is looked at once, times are compared as numbers and only when asked for.

use serde::Deserialize;

/// The first line is of no format we know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to get parse function: unsupported log format: {}", crate::strconv::quote_bytes(.0))]
pub struct UnsupportedFormat(Vec<u8>);

/// A moment: seconds and nanoseconds since the epoch.
pub type Moment = (i64, u32);

/// Which streams are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Streams {
    /// Both, mixed as they were written.
    #[default]
    All,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What of a log is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineOptions {
    /// Lines before it are left out.
    pub since: Option<Moment>,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// At most this many bytes come out.
    pub limit_bytes: Option<u64>,
    /// At most this many lines go in (left-out ones count).
    pub limit_lines: Option<u64>,
    /// Which streams.
    pub streams: Streams,
}

/// Whether more lines are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Go on.
    More,
    /// A limit is reached.
    Done,
}

/// Turns log lines into what a user sees.
#[derive(Debug, Clone)]
pub struct LineFilter {
    options: LineOptions,
    format: Option<Format>,
    /// The next text begins a line of its own.
    fresh: bool,
    /// What becomes of the rest of a line of which only the begin was taken.
    rest: Option<Rest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    Line {
        shown: bool,
        partial: bool,
    },
    /// It is no line of a log.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Cri,
    DockerJson,
}

struct Line<'a> {
    time: &'a [u8],
    stdout: bool,
    /// Another line goes on with it.
    partial: bool,
    text: std::borrow::Cow<'a, [u8]>,
}

impl LineFilter {
    /// A filter for one log.
    pub fn new(options: LineOptions) -> Self {
        Self { options, format: None, fresh: true, rest: None }
    }

    /// Whether another line is wanted at all.
    pub fn wanted(&self) -> Wanted {
        match self.options.limit_lines {
            Some(0) => Wanted::Done,
            _ => Wanted::More,
        }
    }

    /// Takes one line with its newline, if it has one, and appends what is to be shown; after
    /// [`LineFilter::begin`] the next piece of that line, the last one with its newline.
    pub fn line(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<Wanted, UnsupportedFormat> {
        if let Some(rest) = self.rest {
            return Ok(self.more(rest, line, out));
        }
        let format = self.format_of(line)?;
        let Some(line) = parse(format, line) else { return Ok(self.wanted()) };
        if self.show(&line, out) == Wanted::Done {
            return Ok(Wanted::Done);
        }
        self.fresh = line.text.last().is_none_or(|b| *b == b'\n');
        Ok(self.ended())
    }

    /// Takes the begin of a line that is too long to be held as a whole.
    pub fn begin(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<Wanted, UnsupportedFormat> {
        let format = self.format_of(piece)?;
        let Some(line) = parse(format, piece) else {
            self.rest = Some(Rest::Unknown);
            return Ok(self.wanted());
        };
        let shown = self.is_asked_for(&line);
        self.rest = Some(Rest::Line { shown, partial: line.partial });
        Ok(self.show(&line, out))
    }

    fn more(&mut self, rest: Rest, piece: &[u8], out: &mut Vec<u8>) -> Wanted {
        let ends = piece.ends_with(b"\n");
        if ends {
            self.rest = None;
        }
        let Rest::Line { shown, partial } = rest else { return self.wanted() };
        let text = if partial { piece.strip_suffix(b"\n").unwrap_or(piece) } else { piece };
        if shown && self.append(text, out) == Wanted::Done {
            return Wanted::Done;
        }
        self.fresh = ends && !partial;
        if ends { self.ended() } else { Wanted::More }
    }

    fn format_of(&mut self, line: &[u8]) -> Result<Format, UnsupportedFormat> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        let found =
            [Format::Cri, Format::DockerJson].into_iter().find(|f| parse(*f, line).is_some());
        Ok(*self.format.insert(found.ok_or_else(|| UnsupportedFormat(line.to_vec()))?))
    }

    /// One line less is wanted.
    fn ended(&mut self) -> Wanted {
        if let Some(left) = &mut self.options.limit_lines {
            *left = left.saturating_sub(1);
        }
        self.wanted()
    }

    fn is_asked_for(&self, line: &Line<'_>) -> bool {
        let early = self
            .options
            .since
            .is_some_and(|since| parse_time(line.time).is_some_and(|moment| moment < since));
        let stream = match self.options.streams {
            Streams::All => true,
            Streams::Stdout => line.stdout,
            Streams::Stderr => !line.stdout,
        };
        stream && !early
    }

    fn show(&mut self, line: &Line<'_>, out: &mut Vec<u8>) -> Wanted {
        if !self.is_asked_for(line) {
            return Wanted::More;
        }
        let mut stamp = Vec::new();
        if self.options.timestamps && self.fresh {
            push_time(line.time, &mut stamp);
            stamp.push(b' ');
        }
        match self.append(&stamp, out) {
            Wanted::More => self.append(&line.text, out),
            Wanted::Done => Wanted::Done,
        }
    }

    /// Appends as much as the limit leaves.
    fn append(&mut self, text: &[u8], out: &mut Vec<u8>) -> Wanted {
        let Some(left) = &mut self.options.limit_bytes else {
            out.extend_from_slice(text);
            return Wanted::More;
        };
        let most = usize::try_from(*left).unwrap_or(usize::MAX);
        let taken = text.get(..most).unwrap_or(text);
        out.extend_from_slice(taken);
        *left -= taken.len() as u64;
        if *left == 0 { Wanted::Done } else { Wanted::More }
    }
}

fn parse(format: Format, line: &[u8]) -> Option<Line<'_>> {
    match format {
        Format::Cri => parse_cri(line),
        Format::DockerJson => parse_docker(line),
    }
}

fn parse_cri(line: &[u8]) -> Option<Line<'_>> {
    let (time, rest) = split_space(line)?;
    if !is_time(time) {
        return None;
    }
    let (stream, rest) = split_space(rest)?;
    let stdout = match stream {
        b"stdout" => true,
        b"stderr" => false,
        _ => return None,
    };
    let (tags, mut text) = split_space(rest)?;
    let partial = tags == b"P" || tags.starts_with(b"P:");
    if partial {
        text = text.strip_suffix(b"\n").unwrap_or(text);
    }
    Some(Line { time, stdout, partial, text: text.into() })
}

fn parse_docker(line: &[u8]) -> Option<Line<'_>> {
    #[derive(Deserialize)]
    struct Entry<'a> {
        #[serde(default)]
        log: String,
        #[serde(default)]
        stream: String,
        #[serde(default, borrow)]
        time: Option<&'a str>,
    }
    let entry: Entry<'_> = serde_json::from_slice(line).ok()?;
    let time = entry.time.unwrap_or("0001-01-01T00:00:00Z").as_bytes();
    let stdout = match entry.stream.as_str() {
        "stdout" => true,
        "stderr" => false,
        _ => return None,
    };
    let text = entry.log.into_bytes().into();
    is_time(time).then_some(Line { time, stdout, partial: false, text })
}

fn split_space(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|b| *b == b' ')?;
    Some((bytes.get(..at)?, bytes.get(at + 1..)?))
}

/// `YYYY-MM-DDTHH:MM:SS`, a fraction if any, and the zone.
fn split_time(time: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (seconds, rest) = time.split_at_checked(19)?;
    let digits = match rest.strip_prefix(b".").or_else(|| rest.strip_prefix(b",")) {
        None => 0,
        Some(fraction) => fraction.iter().take_while(|b| b.is_ascii_digit()).count(),
    };
    let (fraction, zone) = match digits {
        0 => (&rest[..0], rest),
        n => (rest.get(1..=n)?, rest.get(n + 1..)?),
    };
    Some((seconds, fraction, zone))
}

/// Whether Go reads it as a time: a day that the month has, a moment that the day has.
fn is_time(time: &[u8]) -> bool {
    let Some((seconds, _, zone)) = split_time(time) else { return false };
    let shape = seconds.iter().zip(b"0000-00-00T00:00:00").all(|(byte, form)| match form {
        b'0' => byte.is_ascii_digit(),
        form => byte == form,
    });
    let two = |tens: u8, ones: u8| (tens - b'0') * 10 + (ones - b'0');
    let in_zone = match zone {
        b"Z" => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => {
            [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit())
                && two(*h1, *h2) <= 24
                && two(*m1, *m2) <= 60
        }
        _ => false,
    };
    if !shape || !in_zone {
        return false;
    }
    let at = |place: usize| match seconds.get(place..place + 2) {
        Some([tens, ones]) => two(*tens, *ones),
        _ => 0,
    };
    let (century, year, month) = (at(0), at(2), at(5));
    let leap = year.is_multiple_of(4) && (year != 0 || century.is_multiple_of(4));
    let days = match month {
        2 => 28 + u8::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&at(8)) && at(11) < 24 && at(14) < 60 && at(17) < 60
}

/// The moment of an RFC 3339 time.
pub fn parse_time(time: &[u8]) -> Option<Moment> {
    if !is_time(time) {
        return None;
    }
    let (seconds, fraction, zone) = split_time(time)?;
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        Some(seconds.get(range)?.iter().fold(0, |n, b| n * 10 + i64::from(b - b'0')))
    };
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let clock = number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?;
    let offset = match zone {
        [sign, h1, h2, _, m1, m2] => {
            let two = |a: u8, b: u8| i64::from(a - b'0') * 10 + i64::from(b - b'0');
            let minutes = two(*h1, *h2) * 60 + two(*m1, *m2);
            if *sign == b'-' { -minutes * 60 } else { minutes * 60 }
        }
        _ => 0,
    };
    let mut nanos = 0_u32;
    for place in 0..9 {
        let digit = fraction.get(place).map_or(0, |b| u32::from(b - b'0'));
        nanos = nanos * 10 + digit;
    }
    Some((days_since_epoch(year, month, day) * 86_400 + clock - offset, nanos))
}

/// Days from 1970-01-01 in the Gregorian calendar.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The time with nine digits of fraction.
fn push_time(time: &[u8], out: &mut Vec<u8>) {
    let Some((seconds, fraction, zone)) = split_time(time) else { return };
    out.extend_from_slice(seconds);
    out.push(b'.');
    out.extend((0..9).map(|place| fraction.get(place).copied().unwrap_or(b'0')));
    match zone {
        b"+00:00" | b"-00:00" => out.push(b'Z'),
        zone => out.extend_from_slice(zone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(options: LineOptions, lines: &[&str]) -> String {
        let mut filter = LineFilter::new(options);
        let mut out = Vec::new();
        for line in lines {
            if filter.line(line.as_bytes(), &mut out).unwrap() == Wanted::Done {
                break;
            }
        }
        String::from_utf8(out).unwrap()
    }

    const LOG: [&str; 4] = [
        "2026-01-02T03:04:05.1Z stdout F one\n",
        "2026-01-02T03:04:06.123456789+02:00 stderr P tw\n",
        "2026-01-02T03:04:07Z stderr F o\n",
        "2026-01-02T03:04:08Z stdout F:x three\n",
    ];

    #[test]
    fn partial_lines_are_joined() {
        assert_eq!(show(LineOptions::default(), &LOG), "one\ntwo\nthree\n");
    }

    #[test]
    fn times_stand_only_before_whole_lines_and_have_nine_digits() {
        let options = LineOptions { timestamps: true, ..LineOptions::default() };
        assert_eq!(
            show(options, &LOG),
            "2026-01-02T03:04:05.100000000Z one\n\
             2026-01-02T03:04:06.123456789+02:00 two\n\
             2026-01-02T03:04:08.000000000Z three\n"
        );
    }

    #[test]
    fn streams_can_be_told_apart() {
        let of = |streams| show(LineOptions { streams, ..LineOptions::default() }, &LOG);
        assert_eq!(of(Streams::Stdout), "one\nthree\n");
        assert_eq!(of(Streams::Stderr), "two\n");
    }

    #[test]
    fn since_compares_moments_across_zones() {
        let since = parse_time(b"2026-01-02T03:04:07Z");
        assert_eq!(show(LineOptions { since, ..LineOptions::default() }, &LOG), "o\nthree\n");
    }

    #[test]
    fn bytes_are_limited_exactly_with_the_time_counted() {
        for (limit, want) in [(3, "one"), (4, "one\n"), (6, "one\ntw"), (7, "one\ntwo")] {
            let options = LineOptions { limit_bytes: Some(limit), ..LineOptions::default() };
            assert_eq!(show(options, &LOG), want);
        }
        let options =
            LineOptions { limit_bytes: Some(5), timestamps: true, ..LineOptions::default() };
        assert_eq!(show(options, &LOG), "2026-");
    }

    #[test]
    fn lines_are_limited_by_what_goes_in() {
        let options = LineOptions { limit_lines: Some(2), ..LineOptions::default() };
        assert_eq!(show(options, &LOG), "one\ntw");
        let none = LineFilter::new(LineOptions { limit_lines: Some(0), ..LineOptions::default() });
        assert_eq!(none.wanted(), Wanted::Done);
    }

    #[test]
    fn docker_lines_are_read() {
        let line = "{\"log\":\"hi\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-02T03:04:05Z\"}\n";
        assert_eq!(show(LineOptions::default(), &[line, "garbage\n", line]), "hi\nhi\n");
    }

    #[test]
    fn a_first_line_of_no_format_is_an_error_and_later_ones_are_skipped() {
        let mut filter = LineFilter::new(LineOptions::default());
        let error = filter.line(b"what\n", &mut Vec::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to get parse function: unsupported log format: \"what\\n\""
        );
        let error = filter.line(b"\xffu\n", &mut Vec::new()).unwrap_err();
        assert!(error.to_string().ends_with(r#""\xffu\n""#), "{error}");
        let bad = ["2026-01-02T03:04:05Z stdxxx F a\n", "2026-01-02 stdout F a\n", "x\n", "\n"];
        for line in bad {
            assert_eq!(show(LineOptions::default(), &[LOG[0], line, LOG[3]]), "one\nthree\n");
        }
    }

    #[test]
    fn times_are_counted_from_the_epoch() {
        for (time, want) in [
            ("1970-01-01T00:00:00Z", Some((0, 0))),
            ("2000-02-29T00:00:00Z", Some((951_782_400, 0))),
            ("2026-11-15T15:00:00.5+01:00", Some((1_794_751_200, 500_000_000))),
            ("1969-12-31T23:59:59Z", Some((-1, 0))),
            ("2026-11-15T15:00:00", None),
            ("2026-11-15", None),
            ("2026-02-29T00:00:00Z", None),
            ("1900-02-29T00:00:00Z", None),
            ("2026-04-31T00:00:00Z", None),
            ("2026-00-01T00:00:00Z", None),
            ("2026-13-01T00:00:00Z", None),
            ("2026-01-00T00:00:00Z", None),
            ("2026-01-01T24:00:00Z", None),
            ("2026-01-01T00:60:00Z", None),
            ("2026-01-01T00:00:60Z", None),
            ("2026-01-01T00:00:00+25:00", None),
        ] {
            assert_eq!(parse_time(time.as_bytes()), want, "{time}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_shown_skipped_or_refused(
            first in "2026-01-02T03:04:05(\\.[0-9]{0,12})?(Z|\\+01:00|x) std(out|err|x) [FPx:]{1,3} .{0,20}\n?",
            rest in proptest::collection::vec(proptest::collection::vec(0_u8..=255, 0..60), 0..6),
            limit in 0_u64..50,
        ) {
            let options = LineOptions {
                since: Some((0, 0)),
                timestamps: true,
                limit_bytes: Some(limit),
                ..LineOptions::default()
            };
            let mut filter = LineFilter::new(options);
            let mut out = Vec::new();
            let lines = std::iter::once(first.into_bytes()).chain(rest);
            for line in lines {
                if !matches!(filter.line(&line, &mut out), Ok(Wanted::More)) {
                    break;
                }
            }
            proptest::prop_assert!(out.len() as u64 <= limit);
        }

        #[test]
        fn moments_are_those_of_the_calendar(seconds in -4_000_000_000_i64..8_000_000_000) {
            // Walk the other way: from a moment to its date and back.
            let (days, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
            let (mut year, mut day) = (1970, days);
            let length = |y: i64| if y % 4 == 0 && (y % 100 != 0 || y % 400 == 0) { 366 } else { 365 };
            while day < 0 { year -= 1; day += length(year); }
            while day >= length(year) { day -= length(year); year += 1; }
            let february = if length(year) == 366 { 29 } else { 28 };
            let mut month = 1;
            for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
                if day < days { break; }
                day -= days;
                month += 1;
            }
            let text = format!(
                "{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z",
                day + 1, clock / 3600, clock / 60 % 60, clock % 60
            );
            proptest::prop_assert_eq!(parse_time(text.as_bytes()), Some((seconds, 0)));
        }
    }
}
