//! Questions to the API server about who asks and what they may do.

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::time::Duration;

/// Who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UserInfo {
    /// User name.
    pub name: String,
    /// UID, if the authenticator gave one.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// What else is known, by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// May this user do that to this node?
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessQuestion {
    /// Who.
    pub user: UserInfo,
    /// `get`, `create`, …
    pub verb: &'static str,
    /// Sub-resource of `nodes`.
    pub sub_resource: &'static str,
    /// The node's name.
    pub node_name: String,
}

/// What a review came to, and what it took to get there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reviewed<T> {
    /// The judgement, or why there is none.
    pub result: Result<T, String>,
    /// Every request that was made, in order.
    pub tries: Vec<ReviewTry>,
}

/// One request to the reviewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReviewTry {
    /// Status code of the answer; `None` if none came.
    pub code: Option<u16>,
    /// How long it took.
    pub took: Duration,
}

/// Token and access reviews.
#[async_trait]
pub trait Reviews: Send + Sync + std::fmt::Debug {
    /// Whose token it is; `None` if it is nobody's.
    async fn token(&self, token: &str) -> Reviewed<Option<UserInfo>>;
    /// Whether it is allowed.
    async fn access(&self, question: &AccessQuestion) -> Reviewed<bool>;
}
