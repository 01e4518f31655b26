//! Times in query strings and headers, parsed as Go's `time.Parse` and `http.ParseTime` do.

use jiff::civil::DateTime;
use units::cri_log::Moment;

/// Seconds and nanoseconds since the epoch; `None` for what Go rejects.
pub(crate) fn rfc3339(text: &str) -> Option<Moment> {
    let mut rest = text;
    let year = digits(&mut rest, 4, 4)?;
    literal(&mut rest, '-')?;
    let month = digits(&mut rest, 2, 2)?;
    literal(&mut rest, '-')?;
    let day = digits(&mut rest, 2, 2)?;
    literal(&mut rest, 'T')?;
    // Go allows a single digit for the hour only.
    let hour = digits(&mut rest, 1, 2)?;
    literal(&mut rest, ':')?;
    let minute = digits(&mut rest, 2, 2)?;
    literal(&mut rest, ':')?;
    let second = digits(&mut rest, 2, 2)?;
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let end = fraction.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(fraction.len());
        let shown: String = fraction.get(..end)?.chars().take(9).collect();
        if shown.is_empty() {
            return None;
        }
        nanos = format!("{shown:0<9}").parse().ok()?;
        rest = fraction.get(end..)?;
    }
    let offset = zone(rest)?;
    let whole = seconds([year, month, day], [hour, minute, second])?;
    Some((whole.checked_sub(offset)?, nanos))
}

/// Seconds since the epoch of a time in UTC; `None` for an invalid date or time.
fn seconds(date: [i64; 3], time: [i64; 3]) -> Option<i64> {
    let narrow = |n: i64| i8::try_from(n).ok();
    let ([year, month, day], [hour, minute, second]) = (date, time);
    let civil = DateTime::new(
        i16::try_from(year).ok()?,
        narrow(month)?,
        narrow(day)?,
        narrow(hour)?,
        narrow(minute)?,
        narrow(second)?,
        0,
    );
    let epoch = jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0);
    Some(civil.ok()?.duration_since(epoch).as_secs())
}

const DAYS: [&str; 7] =
    ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Seconds since the epoch of a header's time, in any of its three formats; the day of the week is
/// not checked.
pub(crate) fn http_time(text: &str) -> Option<i64> {
    modern(text).or_else(|| old(text)).or_else(|| ancient(text))
}

/// `Mon, 02 Jan 2006 15:04:05 GMT`.
fn modern(text: &str) -> Option<i64> {
    let mut rest = text;
    short_day(&mut rest)?;
    literal(&mut rest, ',')?;
    space(&mut rest)?;
    let day = digits(&mut rest, 2, 2)?;
    space(&mut rest)?;
    let month = month(&mut rest)?;
    space(&mut rest)?;
    let year = digits(&mut rest, 4, 4)?;
    space(&mut rest)?;
    let time = clock(&mut rest)?;
    space(&mut rest)?;
    (rest == "GMT").then(|| seconds([year, month, day], time)).flatten()
}

/// `Monday, 02-Jan-06 15:04:05 MST`; only zones without an offset.
fn old(text: &str) -> Option<i64> {
    let mut rest = text;
    let length = DAYS.iter().map(|day| day.len()).find(|length| {
        let front = rest.get(..*length).map(str::to_ascii_lowercase);
        front.is_some_and(|front| DAYS.contains(&&*front))
    })?;
    rest = rest.get(length..)?;
    literal(&mut rest, ',')?;
    space(&mut rest)?;
    let day = digits(&mut rest, 2, 2)?;
    literal(&mut rest, '-')?;
    let month = month(&mut rest)?;
    literal(&mut rest, '-')?;
    let year = digits(&mut rest, 2, 2)?;
    space(&mut rest)?;
    let time = clock(&mut rest)?;
    space(&mut rest)?;
    let named = rest.bytes().all(|byte| byte.is_ascii_uppercase());
    let zone = named && (rest.len() == 3 || (rest.len() == 4 && rest.ends_with('T')));
    let year = if year >= 69 { 1900 + year } else { 2000 + year };
    zone.then(|| seconds([year, month, day], time)).flatten()
}

/// `Mon Jan _2 15:04:05 2006`.
fn ancient(text: &str) -> Option<i64> {
    let mut rest = text;
    short_day(&mut rest)?;
    space(&mut rest)?;
    let month = month(&mut rest)?;
    space(&mut rest)?;
    let day = digits(&mut rest, 1, 2)?;
    space(&mut rest)?;
    let time = clock(&mut rest)?;
    space(&mut rest)?;
    let year = digits(&mut rest, 4, 4)?;
    rest.is_empty().then(|| seconds([year, month, day], time)).flatten()
}

fn short_day(rest: &mut &str) -> Option<()> {
    let front = rest.get(..3)?.to_ascii_lowercase();
    *rest = rest.get(3..)?;
    DAYS.iter().any(|day| day.starts_with(&front)).then_some(())
}

fn month(rest: &mut &str) -> Option<i64> {
    let front = rest.get(..3)?.to_ascii_lowercase();
    *rest = rest.get(3..)?;
    let place = MONTHS.iter().position(|month| *month == front)?;
    i64::try_from(place + 1).ok()
}

/// `15:04:05`, with an optional fraction that is ignored.
fn clock(rest: &mut &str) -> Option<[i64; 3]> {
    let hour = digits(rest, 1, 2)?;
    literal(rest, ':')?;
    let minute = digits(rest, 2, 2)?;
    literal(rest, ':')?;
    let second = digits(rest, 2, 2)?;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let behind = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
        if behind.len() < fraction.len() {
            *rest = behind;
        }
    }
    Some([hour, minute, second])
}

/// One space or more.
fn space(rest: &mut &str) -> Option<()> {
    let behind = rest.trim_start_matches(' ');
    let any = behind.len() < rest.len();
    *rest = behind;
    any.then_some(())
}

/// Seconds east of UTC.
fn zone(mut rest: &str) -> Option<i64> {
    if rest == "Z" {
        return Some(0);
    }
    let sign = match rest.chars().next()? {
        '+' => 1,
        '-' => -1,
        _ => return None,
    };
    rest = rest.get(1..)?;
    let hours = digits(&mut rest, 2, 2)?;
    literal(&mut rest, ':')?;
    let minutes = digits(&mut rest, 2, 2)?;
    (rest.is_empty() && hours <= 24 && minutes <= 60)
        .then_some(sign * (hours * 3600 + minutes * 60))
}

fn digits(rest: &mut &str, least: usize, most: usize) -> Option<i64> {
    let count = rest.bytes().take(most).take_while(u8::is_ascii_digit).count();
    if count < least {
        return None;
    }
    let (number, after) = rest.split_at_checked(count)?;
    *rest = after;
    number.parse().ok()
}

fn literal(rest: &mut &str, wanted: char) -> Option<()> {
    *rest = rest.strip_prefix(wanted)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_taken_and_refused_as_go_does() {
        assert_eq!(rfc3339("1970-01-01T00:00:01Z"), Some((1, 0)));
        assert_eq!(rfc3339("1970-01-01T01:00:01.5+01:00"), Some((1, 500_000_000)));
        assert_eq!(rfc3339("1970-01-01T0:00:01,25Z"), Some((1, 250_000_000)));
        assert_eq!(rfc3339("9999-12-31T23:59:59Z"), Some((253_402_300_799, 0)));
        assert_eq!(rfc3339("1970-01-01T00:00:00-00:60"), Some((3600, 0)));
        for bad in [
            "",
            "x",
            "2020-01-01",
            "2020-02-30T00:00:00Z",
            "2020-01-01t00:00:00Z",
            "2020-01-01T24:00:00Z",
            "2020-01-01T00:00:00 01:00",
            "2020-01-01T00:00:00.Z",
            "2020-01-01T00:00:00Zx",
        ] {
            assert_eq!(rfc3339(bad), None, "{bad}");
        }
    }

    #[test]
    fn header_times_have_three_forms() {
        let moment = Some(784_111_777);
        assert_eq!(http_time("Sun, 06 Nov 1994 08:49:37 GMT"), moment);
        assert_eq!(http_time("Sunday, 06-Nov-94 08:49:37 GMT"), moment);
        assert_eq!(http_time("Sun Nov  6 08:49:37 1994"), moment);
        assert_eq!(http_time("mon,  06 nov 1994 8:49:37.5 GMT"), moment, "as Go reads it");
        for bad in [
            "",
            "x",
            "0",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun Nov 6 08:49:37 1994 GMT",
        ] {
            assert_eq!(http_time(bad), None, "{bad}");
        }
    }
}
