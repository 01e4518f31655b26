//! Files and variables in memory for tests.

use crate::{CgroupVersion, Config, ConfigFiles, Loaded, Request, load};
use std::collections::BTreeMap;

/// Files by absolute path, and variables; the working folder is `/work`.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryFiles(BTreeMap<String, Vec<u8>>, Vec<(String, String)>);

impl MemoryFiles {
    /// From paths relative to the working folder.
    pub(crate) fn new<P: AsRef<str>, C: AsRef<str>>(
        files: impl IntoIterator<Item = (P, C)>,
    ) -> Self {
        Self(
            files
                .into_iter()
                .map(|(path, content)| {
                    (format!("/work/{}", path.as_ref()), content.as_ref().as_bytes().to_vec())
                })
                .collect(),
            Vec::new(),
        )
    }

    /// The same with these variables.
    pub(crate) fn with_variables(mut self, variables: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.1 = variables.iter().map(owned).collect();
        self
    }

    fn absolute(path: &str) -> String {
        crate::text::absolute_path("/work", path)
    }
}

impl ConfigFiles for MemoryFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let absolute = Self::absolute(path);
        if absolute == "/work" {
            return Err(format!("read {path}: is a directory"));
        }
        self.0
            .get(&absolute)
            .cloned()
            .ok_or_else(|| format!("open {path}: no such file or directory"))
    }

    fn walk(&self, path: &str) -> Result<Vec<String>, String> {
        let root = Self::absolute(path);
        if self.0.contains_key(&root) {
            return Ok(vec![path.to_owned()]);
        }
        let below = format!("{root}/");
        let mut found: Vec<&str> =
            self.0.keys().filter_map(|file| file.strip_prefix(&below)).collect();
        if found.is_empty() {
            return Err(format!("lstat {path}: no such file or directory"));
        }
        found.sort_by_key(|file| file.split('/').map(str::to_owned).collect::<Vec<_>>());
        Ok(found.into_iter().map(|file| format!("{path}/{file}")).collect())
    }

    fn variables(&self) -> Vec<(String, String)> {
        self.1.clone()
    }

    fn working_dir(&self) -> String {
        "/work".to_owned()
    }
}

/// The head every configuration file needs.
pub(crate) const HEAD: &str =
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
/// Lets a configuration file be used without an API server.
pub(crate) const ALONE: &str =
    "authentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n";

/// Loads with files on a cgroup v2 host.
pub(crate) fn loaded(args: &[&str], files: &[(&str, &str)]) -> Loaded {
    load(args.iter().copied(), &MemoryFiles::new(files.iter().copied()), CgroupVersion::V2)
}

/// The configuration that comes out.
pub(crate) fn config(args: &[&str], files: &[(&str, &str)]) -> Config {
    match loaded(args, files).result {
        Ok(Request::Run(config)) => *config,
        other => panic!("{args:?}: {other:?}"),
    }
}

/// The fault that comes out.
pub(crate) fn fault(args: &[&str], files: &[(&str, &str)]) -> String {
    match loaded(args, files).result {
        Err(error) => error.to_string(),
        Ok(Request::Run(config)) if config.faults.first().is_some() => {
            format!("failed to run Kubelet: {}", config.faults.first().unwrap())
        }
        Ok(_) => panic!("{args:?} {files:?} was taken"),
    }
}
