//! Files and folders of cgroups that this process keeps open, by their numbers: whoever counts what it has open
//! need not ask the kernel what each of these thousands is.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the number is of one that is kept.
static NUMBERS: Mutex<Vec<bool>> = Mutex::new(Vec::new());

fn numbers() -> MutexGuard<'static, Vec<bool>> {
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which numbers are of files and folders that are kept, by number.
pub(in crate::stats) fn kept_numbers() -> Vec<bool> {
    numbers().clone()
}

/// A file or folder that stays open.
#[derive(Debug)]
pub(super) struct Kept(OwnedFd);

impl Kept {
    pub(super) fn new(open: OwnedFd) -> Self {
        let kept = Self(open);
        kept.note(true);
        kept
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

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Kept {
    // Before it is closed, and its number given to another.
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
        let kept = Kept::new(file.into());
        let number = usize::try_from(kept.as_fd().as_raw_fd()).unwrap();
        let is_known = || kept_numbers().get(number).copied();
        assert_eq!(is_known(), Some(true));
        // Its number cannot become another's meanwhile.
        let same = kept.as_fd().try_clone_to_owned().unwrap();
        kept.note(false);
        assert_eq!(is_known(), Some(false));
        drop((kept, same));
    }
}
