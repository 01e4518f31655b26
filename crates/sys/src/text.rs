//! The program's own code in memory: unmapping pages that only the start or a burst of pods needed.
//!
//! Reading flags, building tables and the first handshakes touch most of the program once. Those
//! pages stay resident forever although they are copies of the file. Unmapped, they cost nothing;
//! code that runs again is mapped again from the page cache, sixteen pages at a time.

use crate::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Unmaps all clean pages of the program's file; returns the number of bytes examined. Takes less
/// than a millisecond.
///
/// # Errors
/// When the list of mappings cannot be read, or the kernel refuses.
pub fn unmap_clean() -> io::Result<usize> {
    let program = std::env::current_exe()?;
    let program = program.to_string_lossy();
    let listing = fs::read_to_string(Path::new("/proc/self/smaps")).map_err(io::Error::other)?;
    let mut bytes = 0;
    for range in clean_mappings(&listing, &program) {
        let length = range.len();
        #[expect(unsafe_code, reason = "advice about memory has no safe interface")]
        // SAFETY: the range is a private, never written mapping of a file, so each page that is
        // dropped is read again from the same file, with the same content, when it is touched.
        let refused = unsafe {
            libc::madvise(
                std::ptr::without_provenance_mut(range.start),
                length,
                libc::MADV_DONTNEED,
            )
        };
        if refused != 0 {
            return Err(io::Error::last_os_error());
        }
        bytes += length;
    }
    Ok(bytes)
}

/// The mappings of `program` that are not writable and in which no page was ever written. (The
/// read-only part that the loader relocates was: it has anonymous pages and must stay.)
fn clean_mappings(smaps: &str, program: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some(range) = address_range(first) {
            let rights = words.next().unwrap_or_default();
            let ours = words.nth(3) == Some(program);
            current = (ours && matches!(rights, "r--p" | "r-xp")).then_some(range);
        } else if first == "Anonymous:" && words.next() == Some("0") {
            found.extend(current.take());
        }
    }
    found
}

fn address_range(word: &str) -> Option<Range<usize>> {
    let (start, end) = word.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clean_read_only_mappings_of_the_program_are_taken() {
        let smaps = "\
1000-2000 r--p 00000000 fe:00 7    /usr/bin/rubelet
Rss:                  4 kB
Anonymous:            0 kB
2000-5000 r-xp 00001000 fe:00 7    /usr/bin/rubelet
Anonymous:            0 kB
5000-6000 r--p 00004000 fe:00 7    /usr/bin/rubelet
Anonymous:            4 kB
6000-7000 rw-p 00005000 fe:00 7    /usr/bin/rubelet
Anonymous:            0 kB
8000-9000 r-xp 00000000 fe:00 9    /usr/lib/libc.so.6
Anonymous:            0 kB
a000-b000 r-xp 00000000 fe:00 9    /opt/usr/bin/rubelet
Anonymous:            0 kB
";
        assert_eq!(clean_mappings(smaps, "/usr/bin/rubelet"), [0x1000..0x2000, 0x2000..0x5000]);
    }

    #[test]
    fn the_program_goes_on_after_its_pages_are_dropped() {
        assert!(unmap_clean().unwrap() > 0);
        let text = format!("{:?}", std::time::Duration::from_millis(1500));
        assert_eq!(text, "1.5s");
    }
}
