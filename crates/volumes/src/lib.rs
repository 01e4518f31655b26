//! Desired and actual volumes, plugins, atomic writer, subpaths.
#![forbid(unsafe_code)]
