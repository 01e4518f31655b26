//! `/logs/?query=…`: logs of the node's services, from the journal or from files.
//!
//! Promises: names that reach a command line consist of safe characters only, no shell is involved,
//! output is streamed as it is found, and the search ends after 30 seconds (kubelet:
//! `nodeLogQuery`).

mod out;
mod pattern;

use super::node_logs::open;
use crate::gotime::rfc3339;
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue};
use http::{HeaderMap, StatusCode};
use out::{Gone, Out};
use ports::OnExit;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;
use units::cri_log::Moment;
use units::strconv::{parse_int, quote};

/// The kernel's limit for one component of a path (`NAME_MAX`).
const LONGEST_PART: usize = 255;
const DEADLINE: Duration = Duration::from_secs(30);
const MOST_SERVICES: usize = 4;
const MOST_LINES: i64 = 100_000;
const LONGEST_NAME: usize = 256;
/// The limit for the list of unit names that is read.
const MOST_NAMES: u64 = 4 << 20;
/// Queries that run concurrently; others wait.
const AT_ONCE: usize = 4;
static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);
const PIECE: usize = 16 << 10;
const KIND: &str = "text/plain;charset=UTF-8";

/// The kind of a request.
pub(super) enum Mode {
    /// No query: a file by its path.
    Files,
    /// A file named in the query.
    File(String),
    /// An invalid query.
    Refused(Box<Reply>),
    /// Logs of services.
    Services(Asked),
}

/// A validated query for services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Asked {
    services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Options {
    since: Option<(Moment, String)>,
    until: Option<(Moment, String)>,
    lines: Option<i64>,
    boot: Option<i64>,
    pattern: String,
}

/// Validates the query and the path below `/logs/`.
pub(super) fn decide(query: &Query, path: &str, root: &Path) -> Mode {
    let refuse = |status, text: String| Mode::Refused(Box::new(reply::error(status, &text)));
    let asked = match parse(query) {
        Ok(asked) => asked,
        Err(faults) => return refuse(StatusCode::BAD_REQUEST, aggregate(faults)),
    };
    if asked == Asked::default() {
        return Mode::Files;
    }
    if !path.is_empty() && path != "/" {
        return refuse(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode".to_owned());
    }
    let faults = validate(&asked, root);
    if !faults.is_empty() {
        return refuse(StatusCode::NOT_ACCEPTABLE, aggregate(faults));
    }
    match asked.files.first() {
        Some(file) => Mode::File(file.clone()),
        None => Mode::Services(asked),
    }
}

/// Several errors in the format of Kubernetes' aggregates.
fn aggregate(faults: Vec<String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for fault in faults {
        if !seen.contains(&fault) {
            seen.push(fault);
        }
    }
    match seen.as_slice() {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

fn list(names: &[String]) -> String {
    serde_json::to_string(names).unwrap_or_default()
}

fn parse(query: &Query) -> Result<Asked, Vec<String>> {
    let mut asked = Asked::default();
    let mut faults = Vec::new();
    let given: Vec<String> = query.all("query").map(str::to_owned).collect();
    for name in &given {
        if name.contains(['/', '\\']) {
            asked.files.push(name.clone());
        } else if !name.trim().is_empty() {
            asked.services.push(name.clone());
        }
    }
    if !given.is_empty() && asked.files.is_empty() && asked.services.is_empty() {
        faults.push(format!("query: Invalid value: {}: may not be empty", list(&given)));
    }
    let value = |key| query.first(key).filter(|text| !text.is_empty());
    let mut time = |key: &'static str| {
        let text = value(key)?;
        let moment = rfc3339(text);
        if moment.is_none() {
            faults.push(format!("{key}: Invalid value: {}: invalid time format", quote(text)));
        }
        Some((moment?, text.to_owned()))
    };
    asked.options.since = time("sinceTime");
    asked.options.until = time("untilTime");
    let mut number = |key: &'static str| {
        let text = value(key)?;
        match parse_int(text, 10, 64) {
            Ok(number) => Some(number),
            Err(error) => {
                let error = error.to_string().replace("strconv.ParseInt", "strconv.Atoi");
                faults.push(format!("{key}: Invalid value: {}: {error}", quote(text)));
                None
            }
        }
    };
    asked.options.boot = number("boot");
    asked.options.lines = number("tailLines");
    asked.options.pattern = value("pattern").unwrap_or_default().to_owned();
    if faults.is_empty() { Ok(asked) } else { Err(faults) }
}

fn validate(asked: &Asked, root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    let (services, files, options) = (&asked.services, &asked.files, &asked.options);
    for name in services {
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        let why = if name.len() > LONGEST_NAME {
            format!("length must be less than {LONGEST_NAME}")
        } else if name.chars().all(safe) {
            continue;
        } else {
            "input contains unsupported characters".to_owned()
        };
        faults.push(format!("query: Invalid value: {}: {why}", quote(name)));
    }
    if services.len() > MOST_SERVICES {
        let (count, most) = (services.len(), MOST_SERVICES);
        faults.push(format!("query: Too many: {count}: must have at most {most} items"));
    }
    let bad = |value: String, why: &str| format!("query: Invalid value: {value}: {why}");
    if files.is_empty() && services.is_empty() {
        faults.push("query: Required value: cannot be empty with options".to_owned());
    } else if !files.is_empty() && !services.is_empty() {
        let both = format!("[{}], [{}]", files.join(" "), services.join(" "));
        faults.push(bad(quote(&both), "cannot specify a file and service"));
    } else if files.len() > 1 {
        faults.push(bad(list(files), "cannot specify more than one file"));
    } else if let [file] = files.as_slice() {
        if *options != Options::default() {
            faults.push(bad(list(files), "cannot specify file with options"));
        } else if let Err(why) = stat(root, file) {
            faults.push(bad(list(files), &why));
        }
    }
    if let (Some((since, _)), Some((until, text))) = (&options.since, &options.until)
        && since > until
    {
        let shown = quote(&marshalled(text));
        faults.push(format!("untilTime: Invalid value: {shown}: must be after `sinceTime`"));
    }
    if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
        faults.push(format!("boot: Invalid value: {boot}: must be less than 1"));
    }
    if let Some(lines) = options.lines.filter(|lines| !(0..=MOST_LINES).contains(lines)) {
        let why = format!("must be between 0 and {MOST_LINES}, inclusive");
        faults.push(format!("tailLines: Invalid value: {lines}: {why}"));
    }
    if let Some(why) = pattern::fault(&options.pattern) {
        let shown = quote(&options.pattern);
        faults.push(format!("pattern: Invalid value: {shown}: {why}"));
    }
    faults
}

/// A valid time as Go formats it again: at most nine digits of a fraction without trailing zeros,
/// and `Z` for a zero offset.
fn marshalled(text: &str) -> String {
    let (whole, rest) = text.split_at_checked(19).unwrap_or((text, ""));
    let zone_at = rest.find(['Z', '+', '-']).unwrap_or(rest.len());
    let (fraction, zone) = rest.split_at(zone_at);
    let fraction = fraction.get(1..).unwrap_or_default();
    let fraction = fraction.get(..9).unwrap_or(fraction).trim_end_matches('0');
    let zone = if matches!(zone, "+00:00" | "-00:00") { "Z" } else { zone };
    let dot = if fraction.is_empty() { "" } else { "." };
    format!("{whole}{dot}{fraction}{zone}")
}

fn stat(root: &Path, file: &str) -> Result<(), String> {
    let down = file.trim_start_matches("./");
    let escapes = down.starts_with('/') || down.split('/').any(|part| part == "..");
    if escapes {
        return Err(format!("statat {file}: path escapes from parent"));
    }
    match open(root, Path::new(down)) {
        Some(_) => Ok(()),
        None => Err(format!("statat {file}: no such file or directory")),
    }
}

/// Runs a validated query.
pub(super) async fn run(
    deps: &ServerDeps,
    root: PathBuf,
    asked: Asked,
    headers: &HeaderMap,
) -> Reply {
    let packed = headers.get(ACCEPT_ENCODING).is_some_and(|value| value == "gzip");
    let (mut out, pieces) = out::channel(packed);
    deps.tasks.spawn("log-query", OnExit::Alone, async move {
        let found = tokio::time::timeout(DEADLINE, collect(root, asked, &mut out)).await;
        // Output found in time is sent completely, unless the caller has disconnected.
        if !matches!(found, Ok(Err(Gone))) {
            let _ = tokio::time::timeout(DEADLINE, out.finish()).await;
        }
    });
    let mut reply = reply::with_type(StatusCode::OK, KIND, pieces.body().await);
    if packed {
        reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    reply
}

async fn collect(root: PathBuf, asked: Asked, out: &mut Out) -> Result<(), Gone> {
    let Ok(_turn) = TURNS.acquire().await else { return Ok(()) };
    let units = units().await.unwrap_or_default();
    let (native, others): (Vec<&String>, Vec<&String>) =
        asked.services.iter().partition(|name| units.contains(&format!("{name}.service")));
    if !native.is_empty() {
        match journalctl(&arguments(&asked.options, &native)) {
            Ok(command) => copy(command, out).await?,
            Err(_) if asked.options.boot.unwrap_or(0) == 0 => {
                out.write(b"\nerror: journal output not available\n").await?;
            }
            Err(_) => {}
        }
    }
    if !others.is_empty() && asked.options != Options::default() {
        let names: Vec<&str> = others.iter().map(|name| name.as_str()).collect();
        let text = format!(
            "\noptions present and query resolved to log files for [{}]\ntry without specifying options\n",
            names.join(" ")
        );
        return out.write(text.as_bytes()).await;
    }
    for name in others {
        let (root, wanted) = (root.clone(), name.clone());
        let found =
            sys::blocking::run_for(sys::blocking::Purpose::Callers, move || find(&root, &wanted))
                .await;
        match found.unwrap_or_else(|_| Err(String::new())) {
            Ok(file) => copy_file(file, name, out).await?,
            Err(text) => out.write(text.as_bytes()).await?,
        }
    }
    Ok(())
}

/// Opens the first of `s`, `s.log`, `s/s.log`, or returns the error text.
fn find(root: &Path, name: &str) -> Result<File, String> {
    let places = [name.to_owned(), format!("{name}.log"), format!("{name}/{name}.log")];
    let too_long = |place: &&String| place.split('/').any(|part| part.len() > LONGEST_PART);
    let file = places.iter().take_while(|place| !too_long(place)).find_map(|place| {
        let file = open(root, Path::new(place))?;
        file.metadata().is_ok_and(|meta| meta.is_file()).then_some(file)
    });
    file.ok_or_else(|| match places.iter().find(too_long) {
        Some(place) => {
            format!("\nerror getting log for {name}: openat {place}: file name too long\n")
        }
        None => format!("\nlog not found for {name}\n"),
    })
}

async fn copy_file(mut file: File, name: &str, out: &mut Out) -> Result<(), Gone> {
    loop {
        let read = sys::blocking::run_for(sys::blocking::Purpose::Callers, move || {
            let mut piece = vec![0; PIECE];
            let got = file.read(&mut piece)?;
            piece.truncate(got);
            io::Result::Ok((file, piece))
        });
        match read.await.map_err(io::Error::other).flatten() {
            Ok((_, piece)) if piece.is_empty() => return Ok(()),
            Ok((again, piece)) => {
                file = again;
                out.write(&piece).await?;
            }
            Err(error) => {
                let text = format!("\nerror getting log for {name}: {error}\n");
                return out.write(text.as_bytes()).await;
            }
        }
    }
}

fn arguments(options: &Options, services: &[&String]) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
    for (name, time) in [("since", &options.since), ("until", &options.until)] {
        if let Some((_, text)) = time {
            arguments.push(format!("--{name}={}", unpadded(text)));
        }
    }
    if let Some(lines) = options.lines {
        arguments.push("--pager-end".to_owned());
        arguments.push(format!("--lines={lines}"));
    }
    arguments.extend(services.iter().map(|name| format!("--unit={name}")));
    if !options.pattern.is_empty() {
        arguments.push(format!("--grep={}", options.pattern));
    }
    if let Some(boot) = options.boot {
        arguments.extend(["--boot".to_owned(), boot.to_string()]);
    }
    arguments
}

/// `2006-1-2 15:4:5`, in the given time zone.
fn unpadded(text: &str) -> String {
    let part = |from: usize, to: usize| {
        text.get(from..to).and_then(|digits| digits.parse::<u32>().ok()).unwrap_or_default()
    };
    let (year, month, day) = (part(0, 4), part(5, 7), part(8, 10));
    let (hour, minute, second) = (part(11, 13), part(14, 16), part(17, 19));
    format!("{year}-{month}-{day} {hour:02}:{minute}:{second}")
}

/// Starts journalctl; it is killed when its reader is dropped.
fn journalctl(arguments: &[String]) -> io::Result<tokio::process::Child> {
    let mut command = Command::new("journalctl");
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// The names of all units with journal entries; `None` if they cannot be read.
async fn units() -> Option<String> {
    let mut child = journalctl(&["--field".to_owned(), "_SYSTEMD_UNIT".to_owned()]).ok()?;
    let mut text = Vec::new();
    child.stdout.take()?.take(MOST_NAMES).read_to_end(&mut text).await.ok()?;
    let succeeded = child.wait().await.is_ok_and(|status| status.success());
    succeeded.then(|| String::from_utf8_lossy(&text).into_owned())
}

/// Copies a command's stdout and stderr as they are written.
async fn copy(mut child: tokio::process::Child, out: &mut Out) -> Result<(), Gone> {
    let (mut said, mut complained) = (child.stdout.take(), child.stderr.take());
    let (mut one, mut other) = (vec![0; PIECE], vec![0; PIECE]);
    loop {
        tokio::select! {
            // Cancel-safe: a dropped read has consumed nothing.
            read = read(&mut said, &mut one), if said.is_some() => match read {
                0 => said = None,
                count => out.write(one.get(..count).unwrap_or_default()).await?,
            },
            // Cancel-safe: a dropped read has consumed nothing.
            read = read(&mut complained, &mut other), if complained.is_some() => match read {
                0 => complained = None,
                count => out.write(other.get(..count).unwrap_or_default()).await?,
            },
            else => return Ok(()),
        }
    }
}

/// The number of bytes read; 0 at the end and on errors.
async fn read(from: &mut Option<impl AsyncRead + Unpin>, piece: &mut [u8]) -> usize {
    match from {
        Some(from) => from.read(piece).await.unwrap_or(0),
        None => 0,
    }
}

/// The kind of a query, in one word.
#[cfg(any(test, fuzzing))]
pub(crate) fn outcome(query: &Query, root: &Path) -> &'static str {
    match decide(query, "", root) {
        Mode::Files => "files",
        Mode::File(_) => "file",
        Mode::Refused(_) => "refused",
        Mode::Services(_) => "services",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(query: &str) -> Option<String> {
        let query = Query::parse(query);
        match parse(&query) {
            Err(faults) => Some(aggregate(faults)),
            Ok(asked) => {
                let faults = validate(&asked, Path::new("/nonexistent"));
                (!faults.is_empty()).then(|| aggregate(faults))
            }
        }
    }

    #[test]
    fn only_safe_queries_reach_a_command() {
        for (query, want) in [
            ("query=", "query: Invalid value: [\"\"]: may not be empty"),
            ("query=a%20b", "query: Invalid value: \"a b\": input contains unsupported characters"),
            ("query=a;b", ""),
            ("tailLines=5", "query: Required value: cannot be empty with options"),
            ("query=a&boot=1", "boot: Invalid value: 1: must be less than 1"),
            (
                "query=a&tailLines=-1",
                "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive",
            ),
            ("query=a&sinceTime=x", "sinceTime: Invalid value: \"x\": invalid time format"),
            (
                "query=a&pattern=(",
                "pattern: Invalid value: \"(\": error parsing regexp: missing closing ): `(`",
            ),
            (
                "query=/a&query=b",
                "query: Invalid value: \"[/a], [b]\": cannot specify a file and service",
            ),
            (
                "query=../x",
                "query: Invalid value: [\"../x\"]: statat ../x: path escapes from parent",
            ),
        ] {
            let want = (!want.is_empty()).then(|| want.to_owned());
            let got = refusal(query);
            if query == "query=a;b" {
                assert!(parse(&Query::parse(query)).is_ok_and(|asked| asked == Asked::default()));
            } else {
                assert_eq!(got, want, "{query}");
            }
        }
        assert_eq!(refusal("query=kubelet&tailLines=5&boot=-1"), None);
    }

    // Buffering everything in memory would lose all of it at the time limit.
    #[tokio::test]
    async fn what_a_command_says_is_sent_as_it_comes() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo second >&2; exec yes"]).kill_on_drop(true);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut out, mut pieces) = out::channel(false);
        let heard = async {
            let mut all = Vec::new();
            while all.len() < 1 << 20 {
                all.extend(pieces.next().await.unwrap());
            }
            drop(pieces);
            String::from_utf8(all).unwrap()
        };
        let (copied, heard) = tokio::join!(copy(command, &mut out), heard);
        assert_eq!(copied, Err(Gone), "nobody listens to what has no end");
        assert!(
            heard.contains("first\n") && heard.contains("second\n") && heard.contains("y\ny\n")
        );
    }

    #[test]
    fn times_are_written_as_go_writes_them() {
        for (text, want) in [
            ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z"),
            ("2020-01-01T00:00:00,500+00:00", "2020-01-01T00:00:00.5Z"),
            ("2020-01-01T00:00:00.0-01:00", "2020-01-01T00:00:00-01:00"),
            ("2020-01-01T00:00:00.1234567891Z", "2020-01-01T00:00:00.123456789Z"),
        ] {
            assert_eq!(marshalled(text), want);
        }
    }

    #[test]
    fn options_become_arguments() {
        let query =
            Query::parse("query=a&sinceTime=2026-01-02T03:04:05Z&tailLines=7&pattern=x&boot=0");
        let asked = parse(&query).unwrap();
        let names: Vec<&String> = asked.services.iter().collect();
        let want = [
            "--utc",
            "--no-pager",
            "--output=short-precise",
            "--since=2026-1-2 03:4:5",
            "--pager-end",
            "--lines=7",
            "--unit=a",
            "--grep=x",
            "--boot",
            "0",
        ];
        assert_eq!(arguments(&asked.options, &names), want);
    }
}
