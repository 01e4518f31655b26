//! The numbers of the descriptors of cgroup files and directories that this process keeps open:
//! counting open files can then skip the stat of these thousands.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the descriptor with this number is a cached one.
static NUMBERS: Mutex<Vec<bool>> = Mutex::new(Vec::new());

fn numbers() -> MutexGuard<'static, Vec<bool>> {
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which descriptor numbers are cached ones, by number.
pub(in crate::stats) fn cached_numbers() -> Vec<bool> {
    numbers().clone()
}

/// A descriptor that stays open.
#[derive(Debug)]
pub(super) struct CachedFd(OwnedFd);

impl CachedFd {
    pub(super) fn new(open: OwnedFd) -> Self {
        let cached = Self(open);
        cached.note(true);
        cached
    }

    fn note(&self, is_kept: bool) {
        let Ok(number) = usize::try_from(self.0.as_raw_fd()) else { return };
        let mut numbers = numbers();
        if numbers.len() <= number {
            numbers.resize(number + 1, false);
        }
        if let Some(known) = numbers.get_mut(number) {
            *known = is_kept;
        }
    }
}

impl AsFd for CachedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for CachedFd {
    // Before it is closed and its number is reused.
    fn drop(&mut self) {
        self.note(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_known_as_long_as_its_file_is_open() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let cached = CachedFd::new(file.into());
        let number = usize::try_from(cached.as_fd().as_raw_fd()).unwrap();
        let is_known = || cached_numbers().get(number).copied();
        assert_eq!(is_known(), Some(true));
        // Keeps the number from being reused meanwhile.
        let same = cached.as_fd().try_clone_to_owned().unwrap();
        cached.note(false);
        assert_eq!(is_known(), Some(false));
        drop((cached, same));
    }
}
