//! Times in query strings, read as Go's `time.Parse(time.RFC3339, …)` reads them.

use jiff::civil::DateTime;
use units::cri_log::Moment;

/// Seconds and nanoseconds since the epoch; `None` for what Go refuses.
pub(crate) fn rfc3339(text: &str) -> Option<Moment> {
    let mut rest = text;
    let year = digits(&mut rest, 4, 4)?;
    literal(&mut rest, '-')?;
    let month = digits(&mut rest, 2, 2)?;
    literal(&mut rest, '-')?;
    let day = digits(&mut rest, 2, 2)?;
    literal(&mut rest, 'T')?;
    // Go is lenient about the hour alone.
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
    let narrow = |n: i64| i8::try_from(n).ok();
    let civil = DateTime::new(
        i16::try_from(year).ok()?,
        narrow(month)?,
        narrow(day)?,
        narrow(hour)?,
        narrow(minute)?,
        narrow(second)?,
        0,
    );
    let utc = civil.ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some((utc.timestamp().as_second().checked_sub(offset)?, nanos))
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
    (rest.is_empty() && hours <= 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
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
}
