//! Parsers of the kernel's files that nobody else calls, for `fuzz/`: each takes any text and must not panic.

/// A file of a cgroup, in every form that one can have.
pub fn cgroup_file(text: &str) {
    crate::stats::read_any_form(text);
}
