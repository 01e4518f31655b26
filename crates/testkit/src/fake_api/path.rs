//! What a request's path and query mean.

/// The object or collection of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Target {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) namespace: String,
    pub(super) plural: String,
    pub(super) name: String,
    pub(super) subresource: String,
}

impl Target {
    pub(super) fn parse(path: &str) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let (group, version) = match parts.next()? {
            "api" => (String::new(), parts.next()?.to_owned()),
            "apis" => (parts.next()?.to_owned(), parts.next()?.to_owned()),
            _ => return None,
        };
        let mut rest: Vec<&str> = parts.collect();
        let mut namespace = String::new();
        if rest.len() >= 3 && rest.first() == Some(&"namespaces") {
            namespace = (*rest.get(1)?).to_owned();
            rest.drain(..2);
        }
        let part = |at: usize| rest.get(at).map(|p| (*p).to_owned());
        Some(Self {
            group,
            version,
            namespace,
            plural: part(0)?,
            name: part(1).unwrap_or_default(),
            subresource: part(2).unwrap_or_default(),
        })
    }

    pub(super) fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// The part of a query that matters here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Query {
    pub(super) watch: bool,
    pub(super) send_initial_events: bool,
    pub(super) resource_version: u64,
    /// No version is given: what is answered must be as of now.
    pub(super) consistent: bool,
    /// `field=value` pairs that must hold.
    pub(super) fields: Vec<(String, String)>,
}

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let mut query = Self { consistent: true, ..Self::default() };
        for pair in text.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescaped(value);
            match key {
                "watch" => query.watch = value == "true" || value == "1",
                "sendInitialEvents" => query.send_initial_events = value == "true",
                "resourceVersion" => {
                    query.consistent = value.is_empty();
                    query.resource_version = value.parse().unwrap_or_default();
                }
                "fieldSelector" => {
                    let pairs = value.split(',').filter_map(|p| p.split_once('='));
                    query.fields = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
                }
                _ => {}
            }
        }
        query
    }
}

/// Undoes percent escapes.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = (first == b'%').then(|| after.get(..2)).flatten();
        let escaped = escaped.and_then(|h| std::str::from_utf8(h).ok());
        match escaped.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(if first == b'+' { b' ' } else { first });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_paths_of_every_shape() {
        let read = |path: &str| {
            let t = Target::parse(path).unwrap();
            [t.group, t.namespace, t.plural, t.name, t.subresource].join("|")
        };
        assert_eq!(read("/api/v1/nodes/n1/status"), "||nodes|n1|status");
        assert_eq!(read("/api/v1/namespaces/ns/pods"), "|ns|pods||");
        assert_eq!(read("/api/v1/namespaces/ns"), "||namespaces|ns|");
        assert_eq!(
            read("/apis/coordination.k8s.io/v1/namespaces/k/leases/n1"),
            "coordination.k8s.io|k|leases|n1|"
        );
    }

    #[test]
    fn reads_selectors() {
        let query = Query::parse("&watch=true&fieldSelector=spec.nodeName%3Dnode1");
        assert!(query.watch);
        assert_eq!(query.fields, [("spec.nodeName".to_owned(), "node1".to_owned())]);
    }
}
