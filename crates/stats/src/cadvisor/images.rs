//! Image names as cAdvisor reports them: those of the runtime's own store.
//!
//! The runtime lists containers by the ids of their images and does not list the images of
//! sandboxes. Each is queried once; a failed query is repeated for the next response.

use crate::reading::Reading;
use cri::RuntimeClient;
use cri::api::{Image, ImageSpec};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The cached names.
#[derive(Debug, Default)]
pub(crate) struct ImageNames {
    /// By the image reference in the container list.
    images: HashMap<String, String>,
    /// By sandbox id.
    sandboxes: HashMap<String, String>,
}

impl ImageNames {
    /// The name of a container's image; the listed reference if it has none.
    pub(super) fn of<'a>(&'a self, image: &'a str) -> &'a str {
        self.images.get(image).map_or(image, String::as_str)
    }

    /// The name of a sandbox's image; empty if unknown.
    pub(super) fn of_sandbox(&self, sandbox: &str) -> &str {
        self.sandboxes.get(sandbox).map_or("", String::as_str)
    }

    /// Queries unknown names, and drops those of removed images and sandboxes.
    pub(crate) async fn learn(&mut self, runtime: &RuntimeClient, reading: &Reading) {
        let containers = || reading.pods.iter().flat_map(|pod| &pod.containers);
        let listed: HashSet<&str> = containers().map(|c| c.image.as_str()).collect();
        self.images.retain(|image, _| listed.contains(image.as_str()));
        for image in listed {
            if !self.images.contains_key(image) {
                let wanted = ImageSpec { image: image.to_owned(), ..ImageSpec::default() };
                match runtime.image_status(wanted, false).await {
                    Ok(answer) => {
                        let known = answer.image.as_ref().and_then(name).unwrap_or(image);
                        self.images.insert(image.to_owned(), known.to_owned());
                    }
                    Err(error) => {
                        tracing::debug!(err = %error, image, "Failed to get the name of an image")
                    }
                }
            }
        }
        let there: HashSet<&str> = reading.pods.iter().map(|pod| &*pod.sandbox_id).collect();
        self.sandboxes.retain(|sandbox, _| there.contains(sandbox.as_str()));
        // New sandboxes with the same runtime handler have the same image, so one verbose status,
        // which is large, is enough.
        let mut new: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for pod in &reading.pods {
            if !self.sandboxes.contains_key(&pod.sandbox_id) {
                new.entry(&pod.handler).or_default().push(&pod.sandbox_id);
            }
        }
        for sandboxes in new.into_values() {
            let Some(first) = sandboxes.first() else { continue };
            match runtime.pod_sandbox_status(first, true).await {
                Ok(answer) => {
                    let image = of_info(&answer.info);
                    let named = sandboxes.into_iter().map(|one| (one.to_owned(), image.clone()));
                    self.sandboxes.extend(named);
                }
                Err(error) => {
                    tracing::debug!(err = %error, podSandboxID = first, "Failed to get the image of a sandbox");
                }
            }
        }
    }
}

/// The first of an image's names; tags come before digests.
fn name(image: &Image) -> Option<&str> {
    image.repo_tags.first().or(image.repo_digests.first()).map(String::as_str)
}

/// The image in the runtime's verbose status.
fn of_info(info: &BTreeMap<String, String>) -> String {
    let verbose = info.get("info").and_then(|text| serde_json::from_str(text).ok());
    let verbose: serde_json::Value = verbose.unwrap_or_default();
    verbose["image"].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_tag_comes_first() {
        let image = |tags: &[&str], digests: &[&str]| Image {
            repo_tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            repo_digests: digests.iter().map(|&digest| digest.to_owned()).collect(),
            ..Image::default()
        };
        assert_eq!(name(&image(&["r/a:1", "r/b:1"], &["r/a@d"])), Some("r/a:1"));
        assert_eq!(name(&image(&[], &["r/a@d"])), Some("r/a@d"));
        assert_eq!(name(&image(&[], &[])), None);
    }

    #[test]
    fn the_image_of_a_sandbox_is_in_the_runtimes_own_words() {
        let info = |text: &str| of_info(&[("info".to_owned(), text.to_owned())].into());
        assert_eq!(info(r#"{"pid":1,"image":"r/pause:1","runtimeSpec":{}}"#), "r/pause:1");
        assert_eq!(info(r#"{"image":7}"#), "");
        assert_eq!((info("no JSON"), of_info(&BTreeMap::new())), (String::new(), String::new()));
    }
}
