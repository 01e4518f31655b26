//! Reading logs that are complete, growing and rotated.

use super::*;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

struct Log {
    folder: PathBuf,
    path: PathBuf,
}

impl Log {
    fn new(content: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rubelet-logs-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("0.log");
        std::fs::write(&path, content).unwrap();
        Self { folder, path }
    }

    fn append(&self, content: &str) {
        let mut file = std::fs::OpenOptions::new().append(true).open(&self.path).unwrap();
        file.write_all(content.as_bytes()).unwrap();
    }

    async fn read(&self, query: LogQuery) -> Result<String, String> {
        let (sink, mut pieces) = mpsc::channel(64);
        let dead = || async { Ok(false) };
        read_log(&self.path, query, dead, sink).await.map_err(|e| e.to_string())?;
        let mut all = Vec::new();
        while let Ok(piece) = pieces.try_recv() {
            all.extend(piece);
        }
        Ok(String::from_utf8(all).unwrap())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn line(text: &str) -> String {
    format!("2026-01-02T03:04:05Z stdout F {text}\n")
}

fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|n| line(&n.to_string())).collect()
}

#[tokio::test]
async fn reads_whole_logs_of_many_pieces() {
    let count = 40_000;
    let log = Log::new(&lines(0..count));
    let got = log.read(LogQuery::default()).await.unwrap();
    let want: String = (0..count).map(|n| format!("{n}\n")).collect();
    assert_eq!(got.len(), want.len());
    assert_eq!(got, want);
}

#[tokio::test]
async fn the_tail_does_not_count_an_unfinished_line() {
    let log = Log::new(&(lines(0..5000) + "2026-01-02T03:04:05Z stdout F unfinished"));
    let tail = |n| LogQuery { tail_lines: Some(n), ..LogQuery::default() };
    assert_eq!(log.read(tail(2)).await.unwrap(), "4998\n4999\n");
    assert_eq!(log.read(tail(0)).await.unwrap(), "");
    assert_eq!(log.read(tail(1_000_000)).await.unwrap().lines().count(), 5001);
    let short = Log::new(&lines(0..3));
    assert_eq!(short.read(tail(2)).await.unwrap(), "1\n2\n");
}

#[tokio::test]
async fn limits_end_the_reading() {
    let log = Log::new(&lines(0..100));
    let query = LogQuery { limit_bytes: Some(5), ..LogQuery::default() };
    assert_eq!(log.read(query).await.unwrap(), "0\n1\n2");
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let log = Log::new("");
    std::fs::remove_dir_all(&log.folder).unwrap();
    let text = log.read(LogQuery::default()).await.unwrap_err();
    let (path, folder) = (log.path.display(), log.folder.display());
    assert_eq!(
        text,
        format!(
            "failed to try resolving symlinks in path \"{path}\": lstat {folder}: no such file or \
             directory"
        )
    );
}

/// Collects the lines that a follower receives until there are `count`.
async fn collect(pieces: &mut mpsc::Receiver<Vec<u8>>, seen: &mut String, count: usize) {
    while seen.lines().count() < count {
        let piece = pieces.recv().await.expect("the follower goes on");
        seen.push_str(std::str::from_utf8(&piece).unwrap());
    }
}

#[tokio::test]
async fn following_survives_rotation_and_ends_with_the_container() {
    let log = Log::new(&lines(0..2));
    let (sink, mut pieces) = mpsc::channel(64);
    let alive = Arc::new(AtomicBool::new(true));
    let (path, flag) = (log.path.clone(), Arc::clone(&alive));
    let follower = tokio::task::spawn(async move {
        let query = LogQuery { follow: true, ..LogQuery::default() };
        let state = || {
            let running = flag.load(Ordering::Relaxed);
            async move { Ok(running) }
        };
        read_log(&path, query, state, sink).await
    });
    let mut seen = String::new();
    collect(&mut pieces, &mut seen, 2).await;
    // A line in two writes is received as one line.
    log.append("2026-01-02T03:04:05Z stdout F ");
    log.append("2\n");
    collect(&mut pieces, &mut seen, 3).await;
    // The runtime still writes to the renamed file until it opens the new one.
    let old = log.folder.join("0.log.20260102-030405");
    std::fs::rename(&log.path, &old).unwrap();
    let mut writer = std::fs::OpenOptions::new().append(true).open(&old).unwrap();
    writer.write_all(line("3").as_bytes()).unwrap();
    std::fs::write(&log.path, line("4")).unwrap();
    collect(&mut pieces, &mut seen, 5).await;
    log.append(&line("5"));
    alive.store(false, Ordering::Relaxed);
    while let Some(piece) = pieces.recv().await {
        seen.push_str(std::str::from_utf8(&piece).unwrap());
    }
    assert_eq!(seen, "0\n1\n2\n3\n4\n5\n");
    follower.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_the_old_file_gets_after_the_new_one_exists_comes_first() {
    let log = Log::new(&lines(0..1));
    let query = LogQuery { follow: true, ..LogQuery::default() };
    let mut reader = Reader::open(&log.path, query).unwrap();
    let mut seen = String::new();
    let mut step = |reader: &mut Reader| {
        let Step { out, end } = reader.step().unwrap();
        seen.push_str(std::str::from_utf8(&out).unwrap());
        (end, seen.clone())
    };
    assert_eq!(step(&mut reader), (End::OfFile, "0\n".to_owned()));
    let old = log.folder.join("0.log.20260102-030405");
    std::fs::rename(&log.path, &old).unwrap();
    std::fs::write(&log.path, line("2")).unwrap();
    assert_eq!(step(&mut reader), (End::Handover, "0\n".to_owned()));
    let mut writer = std::fs::OpenOptions::new().append(true).open(&old).unwrap();
    writer.write_all(line("1").as_bytes()).unwrap();
    assert_eq!(step(&mut reader), (End::Handover, "0\n1\n".to_owned()));
    tokio::time::advance(HANDOVER).await;
    assert_eq!(step(&mut reader), (End::OfFile, "0\n1\n2\n".to_owned()));
}

#[tokio::test]
async fn a_follower_whose_reader_left_stops() {
    let log = Log::new(&lines(0..1));
    let (sink, mut pieces) = mpsc::channel(1);
    let path = log.path.clone();
    let follower = tokio::task::spawn(async move {
        let query = LogQuery { follow: true, ..LogQuery::default() };
        read_log(&path, query, || async { Ok(true) }, sink).await
    });
    assert_eq!(pieces.recv().await.unwrap(), b"0\n");
    drop(pieces);
    follower.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_line_without_an_end_is_shown_in_pieces_and_never_held() {
    let text = "x".repeat(3 * LONGEST_LINE + 7);
    let log = Log::new(&(line(&text) + &line("after")));
    let shown = log.read(LogQuery::default()).await.unwrap();
    assert_eq!(shown.len(), text.len() + "\nafter\n".len());
    assert!(shown.ends_with("x\nafter\n"));
    let mut reader = Reader::open(&log.path, LogQuery::default()).unwrap();
    let mut held = 0;
    while reader.step().unwrap().end == End::More {
        held = held.max(reader.line.capacity());
    }
    assert!(held <= 2 * LONGEST_LINE, "{held} bytes held");
}

#[tokio::test]
async fn limits_count_in_a_line_that_is_shown_in_pieces() {
    let text = "x".repeat(2 * LONGEST_LINE);
    let log = Log::new(&(line(&text) + &line("after")));
    let most = LONGEST_LINE as u64 + 100;
    let query = LogQuery { limit_bytes: Some(most), ..LogQuery::default() };
    assert_eq!(log.read(query).await.unwrap().len() as u64, most);
    let query = LogQuery { tail_lines: Some(2), timestamps: true, ..LogQuery::default() };
    let shown = log.read(query).await.unwrap();
    let stamp = "2026-01-02T03:04:05.000000000Z ";
    assert!(
        shown.starts_with(&format!("{stamp}x")) && shown.ends_with(&format!("\n{stamp}after\n"))
    );
    let query = LogQuery { streams: Streams::Stderr, ..LogQuery::default() };
    assert_eq!(log.read(query).await.unwrap(), "");
}
