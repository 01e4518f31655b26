//! Errors of the operating system in Go's words.

use std::io;

/// What the kernel said, as Go writes it: in lower case and without the number.
pub fn go_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_goes_and_the_first_letter_is_small() {
        assert_eq!(go_text(&io::Error::from_raw_os_error(2)), "no such file or directory");
        assert_eq!(go_text(&io::Error::other("Odd")), "odd");
        assert_eq!(go_text(&io::Error::other("")), "");
    }
}
