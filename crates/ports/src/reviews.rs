//! Authentication and authorization of clients by the API server (TokenReview, SubjectAccessReview).

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The authenticated user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UserInfo {
    /// User name.
    pub name: String,
    /// UID, if the authenticator gave one.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra attributes, by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The attributes of a SubjectAccessReview: may this user do that to this node?
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessQuestion {
    /// The user.
    pub user: UserInfo,
    /// `get`, `create`, …
    pub verb: &'static str,
    /// Sub-resource of `nodes`.
    pub sub_resource: &'static str,
    /// The node's name.
    pub node_name: String,
}

/// The result of a review, and the requests that were made for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reviewed<T> {
    /// The verdict, or why there is none.
    pub result: Result<T, String>,
    /// Every request that was made, in order.
    pub tries: Vec<ReviewTry>,
}

/// One request to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReviewTry {
    /// Status code of the response; `None` if there was none.
    pub code: Option<u16>,
    /// How long it took.
    pub took: Duration,
}

/// Token and access reviews.
///
/// Anybody can send any number of tokens, so an implementation has a separate budget for reviews, shares it
/// fairly among peers, and merges equal requests. A caller that disconnects drops the future and leaves the
/// queue.
#[async_trait]
pub trait Reviews: Send + Sync + std::fmt::Debug {
    /// The user of a token; `None` if it is not valid. `peer` is the sender's address, if it is known.
    async fn token(&self, token: &str, peer: Option<IpAddr>) -> Reviewed<Option<UserInfo>>;
    /// Whether the access is allowed.
    async fn access(&self, question: &AccessQuestion) -> Reviewed<bool>;
}
