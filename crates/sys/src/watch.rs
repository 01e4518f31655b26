//! Notifies of changes in a directory, by inotify.
//!
//! Promises: events are only hints and are coalesced by the reader; losing the directory itself
//! ends the stream, so that the caller can set up a new watch.

use futures::StreamExt;
use inotify::{EventMask, Inotify, WatchMask};
use std::io;
use std::path::Path;

/// A watch on one directory or file.
pub struct FolderWatch {
    stream: inotify::EventStream<Vec<u8>>,
}

impl std::fmt::Debug for FolderWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FolderWatch").finish_non_exhaustive()
    }
}

impl FolderWatch {
    /// Starts to watch `path` itself and, if it is a directory, its direct children.
    pub fn new(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mask = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MODIFY
            | WatchMask::ATTRIB
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        inotify.watches().add(path, mask)?;
        Ok(Self { stream: inotify.into_event_stream(vec![0; 4096])? })
    }

    /// Waits for a change of an entry whose name does not start with a dot. `false` means that the
    /// watch is over: the path itself went away. Cancel-safe.
    pub async fn changed(&mut self) -> bool {
        let over = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
        while let Some(event) = self.stream.next().await {
            let Ok(event) = event else { return false };
            if event.mask.intersects(over) {
                return false;
            }
            let hidden =
                event.name.as_ref().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
            if !hidden {
                return true;
            }
        }
        false
    }
}

/// A watch for other processes that open or remove one file.
pub struct OpenWatch {
    stream: inotify::EventStream<Vec<u8>>,
}

impl std::fmt::Debug for OpenWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenWatch").finish_non_exhaustive()
    }
}

impl OpenWatch {
    /// Starts to watch; opens before now are not seen.
    pub fn new(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        inotify.watches().add(path, WatchMask::OPEN | WatchMask::DELETE_SELF)?;
        Ok(Self { stream: inotify.into_event_stream(vec![0; 1024])? })
    }

    /// Waits for the first open or removal, or for the end of the watch itself. Cancel-safe.
    pub async fn opened(&mut self) {
        let _ = self.stream.next().await;
    }
}
