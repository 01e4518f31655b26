//! Every change that this crate makes to files and mounts passes here first, so that a simulation can
//! count the changes, judge them, and end its world between any two of them.
//!
//! Nothing watches in a running node: then a change costs one look at a thread's own variable.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

/// Is told what is about to happen, and where. It may leave by unwinding: then the change and
/// everything after it do not happen, as if the process had been killed.
pub type Watcher = Rc<dyn Fn(&'static str, &Path)>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// A change is about to be made on this thread.
pub fn before(operation: &'static str, path: &Path) {
    let watcher = WATCHER.with_borrow(Clone::clone);
    if let Some(watcher) = watcher {
        watcher(operation, path);
    }
}

/// Runs `work` on this thread under the eyes of `watcher`.
pub fn watched<T>(watcher: Watcher, work: impl FnOnce() -> T) -> T {
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
        });
        let killed = catch_unwind(AssertUnwindSafe(|| {
            watched(watcher, || {
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
