//! An amount together with what its spelling means to Go where it wants a whole number.

use super::{HeldQuantity, Quantity, QuantityError};
use serde::{Serialize, Serializer};
use std::str::FromStr;

/// A quantity, and the number Go takes it for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpelledQuantity {
    /// The amount.
    pub amount: Quantity,
    /// The whole number, where Go sees one in the spelling: `1536Mi` is one, `1.5Gi` is not.
    pub whole: Option<i64>,
}

impl FromStr for SpelledQuantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Ok(Self {
            amount: text.parse()?,
            whole: HeldQuantity::parse(text).ok().and_then(|q| q.as_i64()),
        })
    }
}

impl Serialize for SpelledQuantity {
    /// The canonical text: the spelling is lost, as in Go.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.amount.serialize(serializer)
    }
}
