//! Images: how they are named, and what is known of their registries.

use engine::image::keyring::{Keyring, matches_image, parse_config, parse_config_json};
use engine::image::provider::{ProviderConfig, read_response};
use engine::image::record::{PullIntent, PulledRecord};
use engine::image::reference;

use crate::{Target, text};

pub(crate) const TARGETS: &[Target] = &[
    ("image-reference", |input| drop(reference::parse(text(input)))),
    ("docker-config", docker_config),
    ("credential-answer", credential_answer),
    ("pull-records", pull_records),
];

fn docker_config(input: &[u8]) {
    for config in [parse_config(input), parse_config_json(input)].into_iter().flatten() {
        let mut keyring = Keyring::default();
        keyring.add(None, &config);
        keyring.look_up("registry.k8s.io/a/b");
    }
    if let Some((pattern, image)) = text(input).split_once('\n') {
        matches_image(pattern, image);
    }
}

fn credential_answer(input: &[u8]) {
    let provider = ProviderConfig {
        name: "plugin".to_owned(),
        match_images: vec!["*.k8s.io".to_owned()],
        default_cache_duration: None,
        api_version: "credentialprovider.kubelet.k8s.io/v1".to_owned(),
        args: Vec::new(),
        env: Vec::new(),
        token_attributes: None,
    };
    let _ = read_response(&provider, "registry.k8s.io/a", None, input);
}

fn pull_records(input: &[u8]) {
    if let Ok(record) = PulledRecord::decode(input) {
        let again = record.encode().and_then(|bytes| PulledRecord::decode(&bytes));
        assert!(again.is_ok());
    }
    let _ = PullIntent::decode(input);
}
