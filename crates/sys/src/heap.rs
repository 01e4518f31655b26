//! The heap of this process: limiting its arenas, and returning free pages.
//!
//! Both calls are hints to glibc's allocator; with another C library they do nothing.

/// How many arenas the allocator may have. Its default is eight per processor, each of which
/// retains its peak size.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;

/// Keeps the heap in few arenas. To be called before threads are started.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(unsafe_code, reason = "the allocator has no safe interface")]
        // SAFETY: mallopt takes two integers and only changes settings of the allocator.
        let _refused = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
    }
}

/// Returns free pages of the heap to the kernel. Takes about a millisecond.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(unsafe_code, reason = "the allocator has no safe interface")]
        // SAFETY: malloc_trim takes one integer and gives back only pages that nobody uses.
        let _given_back = unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_is_given_back() {
        limit_arenas();
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
        };
        // Small pieces with the last one retained: only a trim can return the memory below it.
        let mut pieces: Vec<Vec<u8>> = (0..200_000).map(|_| vec![1; 200]).collect();
        let kept = pieces.pop();
        let full = resident();
        drop(pieces);
        trim();
        assert!(resident() + 5000 < full, "{} of {full} pages", resident());
        assert!(kept.is_some());
    }
}
