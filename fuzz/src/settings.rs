//! The node's own settings: command line, configuration files, kubeconfig.

use config::{CgroupVersion, ConfigFiles};

use crate::{Target, text};

pub(crate) const TARGETS: &[Target] = &[
    ("configuration", configuration),
    ("kubeconfig", kubeconfig),
    ("command-line", command_line),
    ("credential-providers", |input| drop(config::credentials::decode(input))),
    ("cri-endpoint", |input| drop(cri::Endpoint::parse(text(input)))),
];

/// One file that is under every path.
struct Everywhere<'a>(&'a [u8]);

impl ConfigFiles for Everywhere<'_> {
    fn read(&self, _: &str) -> Result<Vec<u8>, String> {
        Ok(self.0.to_vec())
    }

    fn walk(&self, path: &str) -> Result<Vec<String>, String> {
        Ok(vec![path.to_owned()])
    }

    fn working_dir(&self) -> String {
        "/".to_owned()
    }
}

fn configuration(input: &[u8]) {
    drop(config::load(["--config=/a"], &Everywhere(input), CgroupVersion::V1));
}

fn kubeconfig(input: &[u8]) {
    drop(config::load(["--kubeconfig=/a"], &Everywhere(input), CgroupVersion::V2));
}

fn command_line(input: &[u8]) {
    let words = text(input).split('\n').map(str::to_owned);
    drop(config::load(words, &Everywhere(b""), CgroupVersion::V1));
}
