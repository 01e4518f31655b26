//! Pods from manifest files (`staticPodPath`).
//!
//! Promises: the whole folder is read on every change and every period, so that the delivered set
//! is always what the folder says; a file that cannot be used is reported with its path, line and
//! reason, once per state, and never hides the others. A file that was good and is broken now
//! keeps its pod until the next periodic look, so that truncate-then-write kills nothing.

use super::SourceReport;
use super::manifest::{self, MAX_MANIFEST_BYTES, ManifestError};
use super::statics::{Origin, StaticPods};
use api::core::v1::Pod;
use std::collections::BTreeMap;
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
struct FileLook {
    modified: Option<jiff::Timestamp>,
    pod: Result<Pod, ManifestError>,
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
    /// The last good pod of each file.
    good: BTreeMap<PathBuf, Arc<Pod>>,
}

impl FileSource {
    pub(crate) fn new(
        path: PathBuf,
        period: Duration,
        statics: StaticPods,
        report: SourceReport,
    ) -> Self {
        Self { path, period, statics, report, reported: BTreeMap::new(), good: BTreeMap::new() }
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
        let look = match sys::blocking::run(move || read_path(&path)).await {
            Ok(look) => look,
            Err(error) => Look::Unusable(error.to_string()),
        };
        match look {
            Look::Missing => {
                self.note_fault(self.path.clone(), "path does not exist");
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
        self.good.retain(|path, _| files.contains_key(path));
        self.reported.retain(|path, _| files.contains_key(path));
        for (path, look) in files {
            let prepared = look.pod.and_then(|pod| {
                let origin = Origin::File { path: &path, modified: look.modified };
                self.statics.prepare(pod, origin).map_err(|e| ManifestError::Invalid(e.to_string()))
            });
            match prepared {
                Ok(pod) => {
                    self.reported.remove(&path);
                    self.good.insert(path, Arc::new(pod));
                }
                Err(error) => {
                    self.note_fault(path.clone(), &error.to_string());
                    if single {
                        // A lone manifest file that is broken says nothing about its pod.
                        return;
                    }
                    if cause == Cause::Period {
                        self.good.remove(&path);
                    }
                }
            }
        }
        self.report.faults(&self.reported);
        self.deliver().await;
    }

    async fn deliver(&self) {
        // Last file in sort order wins when two files name the same pod.
        let mut by_name = BTreeMap::new();
        for pod in self.good.values() {
            let key = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
            by_name.insert(key, Arc::clone(pod));
        }
        self.report.deliver(by_name.into_values().collect()).await;
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

fn read_path(path: &Path) -> Look {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Look::Missing,
        Err(e) => return Look::Unusable(e.to_string()),
    };
    let mut files = BTreeMap::new();
    if metadata.is_dir() {
        let names = match sys::fs::list_dir(path) {
            Ok(names) => names,
            Err(e) => return Look::Unusable(e.source.to_string()),
        };
        for name in names.iter().filter(|n| !n.starts_with('.')) {
            let file = path.join(name);
            // Follows links; sockets, folders and the like are none of our business.
            let Ok(metadata) = std::fs::metadata(&file) else { continue };
            if metadata.is_file() {
                let look = read_file(&file, &metadata);
                files.insert(file, look);
            }
        }
    } else if metadata.is_file() {
        files.insert(path.to_owned(), read_file(path, &metadata));
    } else {
        return Look::Unusable("neither a folder nor a regular file".to_owned());
    }
    Look::Files(files)
}

fn read_file(path: &Path, metadata: &std::fs::Metadata) -> FileLook {
    let modified = metadata.modified().ok().and_then(|t| jiff::Timestamp::try_from(t).ok());
    let size = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    if size > MAX_MANIFEST_BYTES {
        return FileLook { modified, pod: Err(ManifestError::TooLarge(size)) };
    }
    let pod = match sys::fs::read(path) {
        Ok(bytes) => manifest::decode_pod(&bytes),
        Err(e) => Err(ManifestError::Syntax { line: 0, reason: e.source.to_string() }),
    };
    FileLook { modified, pod }
}
