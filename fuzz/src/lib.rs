//! Parsers of foreign bytes, one target each: any input is read or refused, without a panic, without an end
//! that does not come, without memory beyond measure (`make fuzz`).
//!
//! Owns: the list of targets and what each must keep beside that (what is written is read again the same).
//! Seeds are in `fixtures/fuzz/<target>`. Deliberately absent: how targets are run (`xtask fuzz`).
#![forbid(unsafe_code)]

mod callers;
mod files;
mod images;
mod objects;
mod plugins;
mod settings;
mod words;

/// A target: its name and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub fn targets() -> Vec<Target> {
    [
        callers::TARGETS,
        files::TARGETS,
        images::TARGETS,
        objects::TARGETS,
        plugins::TARGETS,
        settings::TARGETS,
        words::TARGETS,
    ]
    .concat()
}

/// An input as text; what is no text is left out.
fn text(input: &[u8]) -> &str {
    std::str::from_utf8(input).unwrap_or_default()
}
