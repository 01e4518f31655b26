//! Pods from manifest files (`staticPodPath`).
//!
//! Promises: the whole folder is read on every change and every period, so that the delivered set
//! is always what the folder says; a file that cannot be used is reported with its path, line and
//! reason, once per state, and never hides the others. A file that was good and is broken now
//! keeps its pod until the next periodic look, so that truncate-then-write kills nothing. Only files
//! whose bytes changed are decoded: a hundred files that appear one by one cost a hundred decodings.

use super::SourceReport;
use super::manifest::{self, MAX_MANIFEST_BYTES, ManifestError};
use super::statics::{Origin, StaticPods};
use api::core::v1::Pod;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use sys::watch::FolderWatch;
use tokio_util::sync::CancellationToken;

/// What reading the path gave.
#[derive(Debug)]
enum Look {
    /// Nothing is there.
    Missing,
    /// Neither folder nor regular file, or it cannot be read: nothing is known.
    Unusable(String),
    /// The files, each with its pod or its fault.
    Files(BTreeMap<PathBuf, FileLook>),
}

#[derive(Debug)]
enum FileLook {
    /// The bytes are those of the pod that is known.
    Same,
    Read {
        modified: Option<jiff::Timestamp>,
        print: u64,
        pod: Box<Result<Pod, ManifestError>>,
    },
}

/// The last good pod of a file.
#[derive(Debug)]
struct Good {
    /// Of the bytes that the pod was read from.
    print: u64,
    pod: Arc<Pod>,
}

/// Why the folder is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Period,
    Event,
}

/// The file source's task.
#[derive(Debug)]
pub(crate) struct FileSource {
    path: PathBuf,
    period: Duration,
    statics: StaticPods,
    report: SourceReport,
    /// Faults already reported, so that one broken file is one line in the log.
    reported: BTreeMap<PathBuf, String>,
    good: BTreeMap<PathBuf, Good>,
    /// Whether `good` is what was delivered last.
    delivered: bool,
}

impl FileSource {
    pub(crate) fn new(
        path: PathBuf,
        period: Duration,
        statics: StaticPods,
        report: SourceReport,
    ) -> Self {
        let (reported, good) = (BTreeMap::new(), BTreeMap::new());
        let path = without_end(&path);
        Self { path, period, statics, report, reported, good, delivered: false }
    }

    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let mut period = tokio::time::interval(self.period);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut watch = FolderWatch::new(&self.path).ok();
        loop {
            let cause = tokio::select! {
                () = cancel.cancelled() => return, // cancel-safe: a token
                _ = period.tick() => Cause::Period, // cancel-safe: documented by tokio
                alive = changed(&mut watch) => { // cancel-safe: inotify keeps unread events
                    if !alive {
                        watch = None;
                    }
                    Cause::Event
                }
            };
            if watch.is_none() {
                watch = FolderWatch::new(&self.path).ok();
            }
            self.look(cause).await;
        }
    }

    async fn look(&mut self, cause: Cause) {
        let path = self.path.clone();
        let known = self.good.iter().map(|(path, good)| (path.clone(), good.print)).collect();
        let look = match sys::blocking::run(move || read_path(&path, &known)).await {
            Ok(look) => look,
            Err(error) => Look::Unusable(error.to_string()),
        };
        match look {
            Look::Missing => {
                self.note_fault(self.path.clone(), "path does not exist");
                self.delivered &= self.good.is_empty();
                self.good.clear();
                self.deliver().await;
            }
            Look::Unusable(reason) => self.note_fault(self.path.clone(), &reason),
            Look::Files(files) => {
                self.reported.remove(&self.path);
                self.take_files(files, cause).await;
            }
        }
    }

    async fn take_files(&mut self, files: BTreeMap<PathBuf, FileLook>, cause: Cause) {
        let single = files.len() == 1 && files.contains_key(&self.path);
        let before = self.good.len();
        self.good.retain(|path, _| files.contains_key(path));
        self.delivered &= self.good.len() == before;
        self.reported.retain(|path, _| files.contains_key(path));
        for (path, look) in files {
            let FileLook::Read { modified, print, pod } = look else {
                self.reported.remove(&path);
                continue;
            };
            let prepared = (*pod).and_then(|pod| {
                let origin = Origin::File { path: &path, modified };
                self.statics.prepare(pod, origin).map_err(|e| ManifestError::Invalid(e.to_string()))
            });
            match prepared {
                Ok(pod) => {
                    self.reported.remove(&path);
                    self.good.insert(path, Good { print, pod: Arc::new(pod) });
                    self.delivered = false;
                }
                Err(error) => {
                    self.note_fault(path.clone(), &error.to_string());
                    if single {
                        // A lone manifest file that is broken says nothing about its pod.
                        return;
                    }
                    if cause == Cause::Period {
                        self.delivered &= self.good.remove(&path).is_none();
                    }
                }
            }
        }
        self.report.faults(&self.reported);
        self.deliver().await;
    }

    async fn deliver(&mut self) {
        if self.delivered {
            return;
        }
        // Last file in sort order wins when two files name the same pod.
        let mut by_name = BTreeMap::new();
        for Good { pod, .. } in self.good.values() {
            let key = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
            by_name.insert(key, Arc::clone(pod));
        }
        self.report.deliver(by_name.into_values().collect()).await;
        self.delivered = true;
    }

    fn note_fault(&mut self, path: PathBuf, reason: &str) {
        if self.reported.get(&path).is_none_or(|known| known != reason) {
            tracing::error!(path = %path.display(), err = reason, "cannot use pod manifest");
            self.reported.insert(path, reason.to_owned());
            self.report.faults(&self.reported);
        }
    }
}

async fn changed(watch: &mut Option<FolderWatch>) -> bool {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

fn read_path(path: &Path, known: &BTreeMap<PathBuf, u64>) -> Look {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Look::Missing,
        Err(e) => return Look::Unusable(e.to_string()),
    };
    let mut files = BTreeMap::new();
    if metadata.is_dir() {
        // Pods are told apart by the paths of their files, so these are always spelled alike.
        let path = &plain(path);
        let names = match sys::fs::list_dir(path) {
            Ok(names) => names,
            Err(e) => return Look::Unusable(e.source.to_string()),
        };
        for name in names.iter().filter(|n| !n.starts_with('.')) {
            let file = path.join(name);
            // Follows links; sockets, folders and the like are none of our business.
            let Ok(metadata) = std::fs::metadata(&file) else { continue };
            if metadata.is_file() {
                let look = read_file(&file, &metadata, known.get(&file));
                files.insert(file, look);
            }
        }
    } else if metadata.is_file() {
        files.insert(path.to_owned(), read_file(path, &metadata, known.get(path)));
    } else {
        return Look::Unusable("neither a folder nor a regular file".to_owned());
    }
    Look::Files(files)
}

/// Without slashes at its end.
fn without_end(path: &Path) -> PathBuf {
    PathBuf::from(path.as_os_str().to_string_lossy().trim_end_matches('/'))
}

/// The path without empty, `.` and `..` parts, by its letters alone (Go's `filepath.Clean`).
fn plain(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut parts: Vec<Component<'_>> = Vec::new();
    for part in path.components() {
        match (part, parts.last()) {
            (Component::CurDir, _) | (Component::ParentDir, Some(Component::RootDir)) => {}
            (Component::ParentDir, Some(Component::Normal(_))) => drop(parts.pop()),
            (part, _) => parts.push(part),
        }
    }
    parts.iter().collect()
}

fn read_file(path: &Path, metadata: &std::fs::Metadata, known: Option<&u64>) -> FileLook {
    let modified = metadata.modified().ok().and_then(|t| jiff::Timestamp::try_from(t).ok());
    let size = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    if size >= MAX_MANIFEST_BYTES {
        return FileLook::Read {
            modified,
            print: 0,
            pod: Box::new(Err(ManifestError::TooLarge(size))),
        };
    }
    let bytes = match sys::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) => {
            let pod = Err(ManifestError::Syntax(e.source.to_string()));
            return FileLook::Read { modified, print: 0, pod: Box::new(pod) };
        }
    };
    let print = print_of(&bytes);
    if known == Some(&print) {
        return FileLook::Same;
    }
    FileLook::Read { modified, print, pod: Box::new(manifest::decode_pod(&bytes)) }
}

/// Tells other bytes from those that are known; never kept beyond this process.
fn print_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_the_plain_path_of_their_folder() {
        let cases = [
            ("/etc/m", "/etc/m"),
            ("/etc//m", "/etc/m"),
            ("/etc/./x/../m", "/etc/m"),
            ("/../m", "/m"),
            ("m/../../n", "../n"),
        ];
        for (given, expected) in cases {
            assert_eq!(plain(Path::new(given)), Path::new(expected), "{given}");
        }
        assert_eq!(without_end(Path::new("/etc/m//")), Path::new("/etc/m"));
    }

    #[test]
    fn bytes_that_are_known_are_not_decoded_again() {
        let name = format!("rubelet-manifest-{}.json", std::process::id());
        let file = std::env::temp_dir().join(name);
        let write = |text: &str| sys::fs::write(&file, text).unwrap();
        let look = |known: Option<u64>| {
            read_file(&file, &std::fs::metadata(&file).unwrap(), known.as_ref())
        };
        write(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#);
        let FileLook::Read { print, pod, .. } = look(None) else { panic!("nothing is known") };
        assert!(pod.is_ok());
        assert!(matches!(look(Some(print)), FileLook::Same));
        write(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}"#);
        assert!(matches!(look(Some(print)), FileLook::Read { .. }));
        sys::fs::remove_file(&file).unwrap();
    }
}
