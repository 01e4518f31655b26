//! Every change that this crate makes to files and mounts passes through here first, so that a
//! simulation can count the changes, check them, make them fail, and simulate a crash between any
//! two of them.
//!
//! In a running node there is no watcher: then a change costs one read of a thread-local variable.

use crate::fs::FsError;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Called before each operation with its name and path. An error is returned instead of making the
/// change, as if the disk had failed. It may unwind: then the change and everything after it do not
/// happen, as if the process had been killed.
pub type Watcher = Rc<dyn Fn(&'static str, &Path) -> io::Result<()>>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// A change is about to be made on this thread.
pub fn before(operation: &'static str, path: &Path) -> Result<(), FsError> {
    before_at(operation, || path.to_owned())
}

/// The same where the path has to be joined first.
pub(crate) fn before_at(
    operation: &'static str,
    path: impl FnOnce() -> PathBuf,
) -> Result<(), FsError> {
    let Some(watcher) = WATCHER.with_borrow(Clone::clone) else { return Ok(()) };
    let path = path();
    watcher(operation, &path).map_err(|source| FsError { operation, path, source })
}

/// Runs `work` on this thread with `watcher` called before each change.
pub fn with_watcher<T>(watcher: Watcher, work: impl FnOnce() -> T) -> T {
    struct Unwatch(Option<Watcher>);
    impl Drop for Unwatch {
        fn drop(&mut self) {
            let before = self.0.take();
            WATCHER.with_borrow_mut(|watcher| *watcher = before);
        }
    }
    let _unwatch = Unwatch(WATCHER.with_borrow_mut(|current| current.replace(watcher)));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    #[test]
    fn a_watcher_can_make_a_change_fail() {
        let dir = std::env::temp_dir().join(format!("rubelet-effects-fail-{}", std::process::id()));
        let watcher: Watcher = Rc::new(|_, _| Err(io::Error::from(io::ErrorKind::StorageFull)));
        let failed = with_watcher(watcher, || fs::create_dir_all(&dir, 0o755)).unwrap_err();
        assert_eq!(failed.source.kind(), io::ErrorKind::StorageFull);
        assert!(!dir.exists());
    }

    #[test]
    fn a_watcher_sees_each_change_and_can_end_the_work_between_two() {
        let dir = std::env::temp_dir().join(format!("rubelet-effects-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let seen = Rc::new(Cell::new(0));
        let counter = Rc::clone(&seen);
        let watcher: Watcher = Rc::new(move |_, _| {
            counter.set(counter.get() + 1);
            if counter.get() == 2 {
                resume_unwind(Box::new("killed"));
            }
            Ok(())
        });
        let killed = catch_unwind(AssertUnwindSafe(|| {
            with_watcher(watcher, || {
                fs::create_dir_all(&dir, 0o755).unwrap();
                fs::write(dir.join("file"), "x").unwrap();
            });
        }));
        assert!(killed.is_err());
        assert!(dir.exists() && !dir.join("file").exists());
        fs::write(dir.join("file"), "x").unwrap();
        assert_eq!(seen.get(), 2, "nobody watches any more");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
