//! Go's text forms and Kubernetes' arithmetic: quantities, durations, CPU sets, hashes.
//!
//! Owns: every value whose text form or rounding Go defines and others parse or hash.
//!
//! Promises: pure values in, pure values out; no parser panics on any input.
//!
//! Deliberately absent: clocks, I/O, and any knowledge of what a value is used for.
#![forbid(unsafe_code)]

pub mod base64;
pub mod cpuset;
pub mod cri_log;
pub mod duration;
pub mod errno;
pub mod gojson;
pub mod goproxy;
pub mod gourl;
pub mod hash;
pub mod pem;
pub mod percentage;
pub mod quantity;
pub mod release;
pub mod spew;
pub mod strconv;
pub mod x509;
pub mod yaml;

pub use cpuset::{CpuSet, CpuSetError};
pub use duration::{DurationError, GoDuration};
pub use hash::{container_hash, crc32_ieee, fnv1a_32, fnv1a_64, fnv1a_128, string_checksum};
pub use percentage::{Percentage, PercentageError};
pub use quantity::{Format, HeldQuantity, Quantity, QuantityError, SpelledQuantity};
