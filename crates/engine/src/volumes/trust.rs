//! Certificates of cluster trust bundles as one file.

use api::certificates::v1beta1::ClusterTrustBundle;
use api::machinery::apis::meta::v1::LabelSelector;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which bundles are wanted.
#[derive(Debug, Clone)]
pub enum TrustQuery<'a> {
    /// The one of this name.
    Name(&'a str),
    /// Those of a signer whose labels match; no selector matches nothing.
    Signer {
        /// The signer.
        name: &'a str,
        /// The labels.
        labels: Option<&'a LabelSelector>,
    },
}

impl TrustQuery<'_> {
    /// Why there are no certificates when no bundle matches.
    pub fn missing(&self) -> String {
        match self {
            Self::Name(name) => format!(
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
            ),
            Self::Signer { .. } => {
                "combination of signerName and labelSelector matched zero ClusterTrustBundles"
                    .to_owned()
            }
        }
    }
}

/// All certificates of the wanted bundles, each once; `None` if no bundle matches. The order is
/// rotated by `seed`, so that users do not rely on it.
pub fn trust_anchors(
    bundles: &[Arc<ClusterTrustBundle>],
    query: &TrustQuery<'_>,
    seed: u64,
) -> Option<String> {
    let chosen: Vec<&ClusterTrustBundle> = bundles
        .iter()
        .map(|b| &**b)
        .filter(|bundle| match query {
            TrustQuery::Name(name) => bundle.metadata.name.as_deref() == Some(name),
            TrustQuery::Signer { name, labels } => {
                bundle.spec.signer_name.as_deref() == Some(name)
                    && labels
                        .is_some_and(|selector| matches(selector, bundle.metadata.labels.as_ref()))
            }
        })
        .collect();
    if chosen.is_empty() {
        return None;
    }
    let blocks: BTreeSet<String> =
        chosen.iter().flat_map(|b| certificates(&b.spec.trust_bundle)).collect();
    let mut blocks: Vec<String> = blocks.into_iter().collect();
    if !blocks.is_empty() {
        let turn = usize::try_from(seed % blocks.len() as u64).unwrap_or_default();
        blocks.rotate_left(turn);
    }
    Some(blocks.concat())
}

/// The `CERTIFICATE` blocks of a PEM text in one form: no headers, lines of 64 characters.
pub(super) fn certificates(text: &str) -> Vec<String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(BEGIN) {
        let Some((body, next)) = after.split_once(END) else { break };
        let data: String = body
            .lines()
            .filter(|line| !line.contains(':'))
            .flat_map(|line| line.chars().filter(|c| !c.is_whitespace()))
            .collect();
        let mut block = format!("{BEGIN}\n");
        let bytes: Vec<char> = data.chars().collect();
        for line in bytes.chunks(64) {
            block.extend(line);
            block.push('\n');
        }
        block.push_str(END);
        block.push('\n');
        blocks.push(block);
        rest = next;
    }
    blocks
}

fn matches(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let value = |key: &str| labels.and_then(|l| l.get(key));
    let plain =
        selector.match_labels.iter().flatten().all(|(key, wanted)| value(key) == Some(wanted));
    plain
        && selector.match_expressions.iter().flatten().all(|e| {
            let values = e.values.as_deref().unwrap_or_default();
            match e.operator.as_str() {
                "In" => value(&e.key).is_some_and(|v| values.contains(v)),
                "NotIn" => value(&e.key).is_none_or(|v| !values.contains(v)),
                "Exists" => value(&e.key).is_some(),
                "DoesNotExist" => value(&e.key).is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bundle(
        name: &str,
        signer: &str,
        labels: serde_json::Value,
        pem: &str,
    ) -> Arc<ClusterTrustBundle> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "labels": labels},
                "spec": {"signerName": signer, "trustBundle": pem}
            }))
            .unwrap(),
        )
    }

    fn pem(data: &str) -> String {
        format!(
            "junk\n-----BEGIN CERTIFICATE-----\nKey: value\n{data}\n-----END CERTIFICATE-----\n"
        )
    }

    #[test]
    fn a_bundle_that_is_missing_is_named_with_its_kind() {
        assert_eq!(
            TrustQuery::Name("b").missing(),
            "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"b\" not found"
        );
    }

    #[test]
    fn bundles_are_chosen_cleaned_and_joined_without_doubles() {
        let all = [
            bundle("a", "s", json!({"x": "1"}), &pem("QUFB")),
            bundle("b", "s", json!({"x": "2"}), &format!("{}{}", pem("QUFB"), pem("QkJC"))),
            bundle("c", "t", json!({}), &pem("Q0ND")),
        ];
        let one = trust_anchors(&all, &TrustQuery::Name("a"), 0).unwrap();
        assert_eq!(one, "-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----\n");
        let everything = LabelSelector::default();
        let signer = |labels| TrustQuery::Signer { name: "s", labels };
        let both = trust_anchors(&all, &signer(Some(&everything)), 1).unwrap();
        assert_eq!(both.matches("BEGIN").count(), 2);
        assert!(!both.contains("Key"));
        assert_eq!(trust_anchors(&all, &signer(None), 0), None);
        assert_eq!(trust_anchors(&all, &TrustQuery::Name("none"), 0), None);
    }
}
