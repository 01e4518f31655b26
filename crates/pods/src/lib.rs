//! Pod sources, one worker per pod, runtime view, probes, images, logs, status.
#![forbid(unsafe_code)]

pub mod images;
