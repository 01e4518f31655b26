//! Questions to the API server about who asks and what they may do.

use async_trait::async_trait;
use std::collections::BTreeMap;

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

/// Token and access reviews.
#[async_trait]
pub trait Reviews: Send + Sync + std::fmt::Debug {
    /// Whose token it is; `None` if it is nobody's.
    async fn token(&self, token: &str) -> Result<Option<UserInfo>, String>;
    /// Whether it is allowed.
    async fn access(&self, question: &AccessQuestion) -> Result<bool, String>;
}
