//! Composition root: builds handles, wires channels, supervises, shuts down in order.
#![forbid(unsafe_code)]
