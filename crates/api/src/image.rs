//! Words about images that several crates use.

/// The user an image names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageUser {
    /// By number; an image without a user counts as 0.
    Uid(i64),
    /// By name.
    Name(String),
}
