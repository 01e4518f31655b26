//! Images over a fake runtime, with paused time.

mod collected;
mod counted;
mod progress;

use super::*;
use api::ByteString;
use api::core::v1::Pod;
use api::core::v1::{
    ConfigMap, LocalObjectReference, Node, PersistentVolume, PersistentVolumeClaim, PodSpec,
    Secret, Service,
};
use api::image::ImageUser;
use api::node::v1::RuntimeClass;
use async_trait::async_trait;
use engine::image::gc::{GcPolicy, Holders, ImageKey};
use engine::image::record::AllowList;
use jiff::{SignedDuration, Timestamp};
use ports::{EventTarget, NodeEvent, ObjectError, TokenRequest, TokenResponse};
use proto::cri_v1::PodSandboxConfig;
use proto::cri_v1::{AuthConfig, Image, ImageSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

const IMAGE: &str = "r.io/app:1";

/// A runtime that knows some images and whose registry wants a password.
#[derive(Debug, Default)]
struct Runtime {
    images: Mutex<BTreeMap<String, Image>>,
    used: Mutex<BTreeSet<String>>,
    /// User and password the registry takes; `None` takes everybody.
    password: Mutex<Option<(String, String)>>,
    error: Mutex<Option<String>>,
    fails_status: Mutex<bool>,
    pulls: Mutex<Vec<Option<String>>>,
    removed: Mutex<Vec<String>>,
    gate: Mutex<Option<Arc<Notify>>>,
    progress: Mutex<Option<engine::image::progress::PullBytes>>,
}

impl Runtime {
    fn add(&self, name: &str, id: &str, size: u64) {
        let image = Image {
            id: id.into(),
            repo_tags: vec![name.into()],
            size,
            username: "web".into(),
            ..Image::default()
        };
        self.images.lock().unwrap().insert(name.into(), image);
    }

    fn pulls(&self) -> Vec<Option<String>> {
        self.pulls.lock().unwrap().clone()
    }
}

#[async_trait]
impl ImageCalls for Runtime {
    async fn status(&self, spec: ImageSpec) -> Result<Option<Image>, String> {
        if *self.fails_status.lock().unwrap() {
            return Err("rpc error: code = Unknown desc = down".into());
        }
        Ok(self.images.lock().unwrap().get(&spec.image).cloned())
    }

    async fn pull(
        &self,
        spec: ImageSpec,
        auth: Option<AuthConfig>,
        _: PodSandboxConfig,
    ) -> Result<String, String> {
        self.pulls.lock().unwrap().push(auth.as_ref().map(|a| a.username.clone()));
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.notified().await;
        }
        if let Some(error) = self.error.lock().unwrap().clone() {
            return Err(error);
        }
        if let Some((user, password)) = self.password.lock().unwrap().clone() {
            match auth {
                Some(a) if a.username == user && a.password == password => {}
                Some(a) => return Err(format!("denied {}", a.username)),
                None => return Err("denied".into()),
            }
        }
        self.add(&spec.image, "sha256:app", 1234);
        Ok("sha256:app".into())
    }

    async fn list(&self) -> Result<Vec<Image>, String> {
        Ok(self.images.lock().unwrap().values().cloned().collect())
    }

    async fn remove(&self, image: &ImageKey) -> Result<(), String> {
        let mut images = self.images.lock().unwrap();
        images.retain(|_, listed| calls::key(listed).id != image.id);
        self.removed.lock().unwrap().push(image.id.clone());
        Ok(())
    }

    async fn in_use(&self, _: &[Image]) -> Result<Holders, String> {
        let used = self.used.lock().unwrap();
        Ok(used.iter().map(|id| (ImageKey::of_id(id), BTreeSet::new())).collect())
    }

    async fn progress(
        &self,
        image: &str,
        _: Timestamp,
    ) -> Option<engine::image::progress::PullBytes> {
        assert_eq!(image, IMAGE);
        *self.progress.lock().unwrap()
    }
}

#[derive(Debug, Default)]
struct Told(Mutex<Vec<(String, String)>>);

impl Events for Told {
    fn emit(&self, event: NodeEvent) {
        if let EventTarget::Pod { field_path, .. } = &event.target {
            assert!(field_path.as_deref().is_none_or(|f| f == "spec.containers{c}"));
        }
        self.0.lock().unwrap().push((event.reason.into(), event.message));
    }
}

impl Told {
    fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn reasons(&self) -> Vec<String> {
        self.take().into_iter().map(|(reason, _)| reason).collect()
    }
}

#[derive(Debug, Default)]
struct Api(Mutex<BTreeMap<String, Arc<Secret>>>);

impl Api {
    fn add(&self, name: &str, user: &str, password: &str) {
        let json = format!(
            "{{\"auths\":{{\"r.io\":{{\"username\":\"{user}\",\"password\":\"{password}\"}}}}}}"
        );
        let mut secret = Secret {
            type_: Some("kubernetes.io/dockerconfigjson".into()),
            data: Some([(".dockerconfigjson".into(), ByteString(json.into()))].into()),
            ..Secret::default()
        };
        secret.metadata.name = Some(name.into());
        secret.metadata.namespace = Some("ns".into());
        secret.metadata.uid = Some(format!("uid-{name}"));
        self.0.lock().unwrap().insert(name.into(), Arc::new(secret));
    }
}

fn absent<T>() -> Result<T, ObjectError> {
    Err(ObjectError::NotFound("not found".into()))
}

#[async_trait]
impl Objects for Api {
    fn register_pod(&self, _: &Arc<Pod>) {}
    fn forget_pod(&self, _: &str) {}
    async fn config_map(&self, _: &str, _: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        absent()
    }
    async fn secret(&self, _: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        self.0.lock().unwrap().get(name).cloned().map_or_else(absent, Ok)
    }
    fn services(&self) -> Option<Arc<Vec<Arc<Service>>>> {
        None
    }
    async fn runtime_class(&self, _: &str) -> Result<Arc<RuntimeClass>, ObjectError> {
        absent()
    }
    async fn claim(&self, _: &str, _: &str) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        absent()
    }
    async fn volume(&self, _: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
        absent()
    }
    async fn node_now(&self) -> Result<Arc<Node>, ObjectError> {
        absent()
    }
    async fn token(&self, _: &TokenRequest) -> Result<TokenResponse, ObjectError> {
        absent()
    }
}

#[derive(Debug)]
struct At(Mutex<Timestamp>);

impl At {
    fn advance(&self, seconds: i64) {
        let mut now = self.0.lock().unwrap();
        *now += SignedDuration::from_secs(seconds);
    }
}

impl Clock for At {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

struct Bed {
    images: Images,
    runtime: Arc<Runtime>,
    told: Arc<Told>,
    api: Arc<Api>,
    clock: Arc<At>,
    root: PathBuf,
    counted: telemetry::metrics::Registry,
    tasks: Tasks,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

fn config() -> ImagesConfig {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("rubelet-images-{}-{number}", std::process::id());
    ImagesConfig {
        serialize_pulls: false,
        pull_order: PullOrder::Arrival,
        progress_events: None,
        max_parallel_pulls: None,
        max_pods: 1,
        registry_qps: 0.0,
        registry_burst: 0,
        verification: Some(VerificationPolicy::NeverVerifyPreloadedImages),
        kubelet_root: std::env::temp_dir().join(name),
        docker_config: DockerConfigPlaces::default(),
        providers: None,
        handler_in_calls: false,
    }
}

async fn bed(config: ImagesConfig) -> Bed {
    let (runtime, told) = (Arc::new(Runtime::default()), Arc::new(Told::default()));
    let api = Arc::new(Api::default());
    let clock = Arc::new(At(Mutex::new(Timestamp::from_second(1_700_000_000).unwrap())));
    let root = config.kubelet_root.clone();
    let counted = telemetry::metrics::Registry::new();
    let tasks = Tasks::new();
    let deps = ImagesDeps {
        calls: Arc::clone(&runtime) as _,
        objects: Arc::clone(&api) as _,
        events: Arc::clone(&told) as _,
        clock: Arc::clone(&clock) as _,
        tasks: tasks.clone(),
        metrics: ImageMetrics::new(&counted),
    };
    let images = Images::start(config, deps).await.unwrap();
    Bed { images, runtime, told, api, clock, root, counted, tasks }
}

impl Bed {
    /// With the secrets that the pod names and the API has.
    async fn ensure(&self, mut request: EnsureImage) -> Result<EnsuredImage, ImageFault> {
        let spec = request.pod.spec.as_ref().unwrap();
        let known = self.api.0.lock().unwrap().clone();
        let named = spec.image_pull_secrets.iter().flatten();
        request.secrets = named.filter_map(|r| known.get(&r.name).cloned()).collect();
        self.images.ensure(request).await
    }
}

fn request(uid: &str, image: &str, policy: &str, secrets: &[&str]) -> EnsureImage {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.into());
    pod.metadata.namespace = Some("ns".into());
    let names = secrets.iter().map(|n| LocalObjectReference { name: (*n).into() }).collect();
    pod.spec = Some(PodSpec { image_pull_secrets: Some(names), ..PodSpec::default() });
    EnsureImage {
        pod: Arc::new(pod),
        image: image.into(),
        policy: policy.into(),
        field_path: Some("spec.containers{c}".into()),
        sandbox: PodSandboxConfig::default(),
        runtime_handler: "fast".into(),
        secrets: Vec::new(),
    }
}

fn reason(result: &Result<EnsuredImage, ImageFault>) -> &str {
    result.as_ref().map_or_else(|f| f.reason.as_str(), |_| "ok")
}

#[tokio::test(start_paused = true)]
async fn policies_decide_between_using_and_pulling() {
    for (policy, present, want, pulls) in [
        ("Always", true, "ok", 1),
        ("Always", false, "ok", 1),
        ("IfNotPresent", true, "ok", 0),
        ("IfNotPresent", false, "ok", 1),
        ("Never", true, "ok", 0),
        ("Never", false, "ErrImageNeverPull", 0),
        ("", true, "ok", 0),
    ] {
        let bed = bed(config()).await;
        if present {
            bed.runtime.add(IMAGE, "sha256:app", 1);
        }
        let got = bed.ensure(request("u", IMAGE, policy, &[])).await;
        assert_eq!(reason(&got), want, "{policy} {present}");
        assert_eq!(bed.runtime.pulls().len(), pulls, "{policy} {present}");
        if let Ok(image) = got {
            assert_eq!(image.image_ref, "sha256:app");
            assert_eq!(image.user, ImageUser::Name("web".into()));
            assert_eq!(image.runtime_handler, "", "image calls do not name it");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_pull_tells_its_steps_and_size() {
    let bed = bed(config()).await;
    bed.ensure(request("u", IMAGE, "IfNotPresent", &[])).await.unwrap();
    let told = bed.told.take();
    assert_eq!(told[0], ("Pulling".into(), format!("Pulling image \"{IMAGE}\"")));
    assert_eq!(
        told[1],
        (
            "Pulled".into(),
            format!(
                "Successfully pulled image \"{IMAGE}\" in 0s (0s including waiting). Image size: \
                 1234 bytes."
            )
        )
    );
    bed.ensure(request("v", IMAGE, "IfNotPresent", &[])).await.unwrap();
    let text = format!(
        "Container image \"{IMAGE}\" already present on machine and can be accessed by the pod"
    );
    assert_eq!(bed.told.take(), [("Pulled".into(), text)]);
}

#[tokio::test(start_paused = true)]
async fn bad_names_and_a_mute_runtime_have_their_reasons() {
    let bed = bed(config()).await;
    let got = bed.ensure(request("u", "Bad Image!!", "Always", &[])).await.unwrap_err();
    assert_eq!(got.reason, "InvalidImageName");
    assert_eq!(
        got.message,
        "Failed to apply default image tag \"Bad Image!!\": couldn't parse image name \"Bad \
         Image!!\": invalid reference format: repository name (library/Bad Image!!) must be \
         lowercase"
    );
    *bed.runtime.fails_status.lock().unwrap() = true;
    let got = bed.ensure(request("u", IMAGE, "IfNotPresent", &[])).await.unwrap_err();
    assert_eq!(got.reason, "ImageInspectError");
    assert_eq!(got.message, "Failed to inspect image \"\": rpc error: code = Unknown desc = down");
}

#[tokio::test(start_paused = true)]
async fn a_failed_pull_backs_off_for_that_pod_only() {
    let bed = bed(config()).await;
    *bed.runtime.error.lock().unwrap() = Some("boom".into());
    let ask = |uid: &'static str| bed.ensure(request(uid, IMAGE, "Always", &[]));
    let first = ask("u").await.unwrap_err();
    assert_eq!((first.reason.as_str(), first.message.as_str()), ("ErrImagePull", "boom"));
    assert_eq!(bed.told.reasons(), ["Pulling", "Failed"]);
    let second = ask("u").await.unwrap_err();
    assert_eq!(second.reason, "ImagePullBackOff");
    assert_eq!(second.message, format!("Back-off pulling image \"{IMAGE}\": ErrImagePull: boom"));
    assert_eq!(
        bed.told.take(),
        [("BackOff".into(), format!("Back-off pulling image \"{IMAGE}\""))]
    );
    assert_eq!(reason(&ask("v").await), "ErrImagePull");
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(reason(&ask("u").await), "ErrImagePull");
    tokio::time::advance(Duration::from_secs(19)).await;
    assert_eq!(reason(&ask("u").await), "ImagePullBackOff");
    let intents = std::fs::read_dir(bed.root.join("image_manager/pulling")).unwrap().count();
    assert_eq!(intents, 0, "failed pulls leave no intent");
}

#[tokio::test(start_paused = true)]
async fn the_runtimes_own_reasons_are_passed_on() {
    let bed = bed(config()).await;
    *bed.runtime.error.lock().unwrap() = Some("RegistryUnavailable: gone".into());
    let got = bed.ensure(request("u", IMAGE, "Always", &[])).await.unwrap_err();
    assert_eq!(got.reason, "RegistryUnavailable");
    assert_eq!(
        got.message,
        format!("image pull failed for {IMAGE} because the registry is unavailable: gone")
    );
}

#[tokio::test(start_paused = true)]
async fn each_credential_is_tried_and_never_anonymously_after() {
    let bed = bed(config()).await;
    bed.api.add("a", "alice", "1");
    bed.api.add("b", "bob", "2");
    *bed.runtime.password.lock().unwrap() = Some(("bob".into(), "2".into()));
    let wanted = request("u", IMAGE, "Always", &["a", "b"]);
    bed.ensure(wanted.clone()).await.unwrap();
    assert_eq!(bed.runtime.pulls(), [Some("alice".into()), Some("bob".into())]);
    *bed.runtime.password.lock().unwrap() = Some(("carol".into(), "3".into()));
    let got = bed.ensure(wanted).await.unwrap_err();
    assert_eq!(got.message, "[denied alice, denied bob]");
}

#[tokio::test(start_paused = true)]
async fn an_image_pulled_with_a_secret_is_not_for_everybody() {
    let bed = bed(config()).await;
    bed.api.add("a", "alice", "1");
    bed.api.add("same", "alice", "1");
    bed.api.add("other", "mallory", "x");
    *bed.runtime.password.lock().unwrap() = Some(("alice".into(), "1".into()));
    let ask = |uid: &'static str, policy: &'static str, secrets: &'static [&'static str]| {
        bed.ensure(request(uid, IMAGE, policy, secrets))
    };
    ask("u", "IfNotPresent", &["a"]).await.unwrap();
    assert_eq!(bed.runtime.pulls().len(), 1);
    ask("v", "IfNotPresent", &["same"]).await.unwrap();
    assert_eq!(bed.runtime.pulls().len(), 1, "the same credentials in another secret");
    assert_eq!(reason(&ask("w", "IfNotPresent", &["other"]).await), "ErrImagePull");
    assert_eq!(reason(&ask("x", "IfNotPresent", &[]).await), "ErrImagePull");
    assert_eq!(reason(&ask("y", "Never", &[]).await), "ErrImageNeverPull");
    assert_eq!(bed.runtime.pulls().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn policies_of_verification_apply_to_preloaded_images() {
    let list = AllowList::parse(&["r.io/app".into()]).unwrap();
    for (policy, want) in [
        (Some(VerificationPolicy::NeverVerifyPreloadedImages), "ok"),
        (Some(VerificationPolicy::AlwaysVerify), "ErrImageNeverPull"),
        (Some(VerificationPolicy::NeverVerifyAllowlistedImages(list)), "ok"),
        (None, "ok"),
    ] {
        let bed = bed(ImagesConfig { verification: policy.clone(), ..config() }).await;
        bed.runtime.add(IMAGE, "sha256:app", 1);
        let got = bed.ensure(request("u", IMAGE, "Never", &[])).await;
        assert_eq!(reason(&got), want, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_rate_fails_pulls_instead_of_delaying_them() {
    let bed = bed(ImagesConfig { registry_qps: 1.0, registry_burst: 1, ..config() }).await;
    bed.ensure(request("u", IMAGE, "Always", &[])).await.unwrap();
    let got = bed.ensure(request("v", IMAGE, "Always", &[])).await.unwrap_err();
    assert_eq!((got.reason.as_str(), got.message.as_str()), ("ErrImagePull", "pull QPS exceeded"));
    tokio::time::advance(Duration::from_secs(1)).await;
    bed.ensure(request("w", IMAGE, "Always", &[])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_serial_pull_waits_for_the_one_before_it_and_says_so() {
    let bed = bed(ImagesConfig { serialize_pulls: true, ..config() }).await;
    let gate = Arc::new(Notify::new());
    *bed.runtime.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let ask = |uid: &'static str| {
        let images = bed.images.clone();
        async move { images.ensure(request(uid, IMAGE, "Always", &[])).await }
    };
    let first = tokio_test_spawn(ask("u"));
    while bed.runtime.pulls().is_empty() {
        tokio::task::yield_now().await;
    }
    let second = tokio_test_spawn(ask("v"));
    while bed.images.pulls().await.len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bed.runtime.pulls().len(), 1, "one at a time");
    let running: Vec<bool> = bed.images.pulls().await.iter().map(|p| p.started.is_some()).collect();
    assert_eq!(running, [true, false]);
    tokio::time::advance(Duration::from_millis(1500)).await;
    gate.notify_one();
    first.await.unwrap().unwrap();
    while bed.runtime.pulls().len() < 2 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_millis(500)).await;
    gate.notify_one();
    second.await.unwrap().unwrap();
    let told = bed.told.take();
    let last = &told.last().unwrap().1;
    assert!(last.contains("in 500ms (2s including waiting)"), "{last}");
    assert!(bed.images.pulls().await.is_empty());
}

/// Files of intents to pull.
fn intents(bed: &Bed) -> usize {
    std::fs::read_dir(bed.root.join("image_manager/pulling")).unwrap().count()
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_nobody_wants_any_more_is_cut_off() {
    let bed = bed(config()).await;
    let gate = Arc::new(Notify::new());
    *bed.runtime.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let ask = |uid: &'static str| {
        let images = bed.images.clone();
        tokio_test_spawn(async move { images.ensure(request(uid, IMAGE, "Always", &[])).await })
    };
    let (gone, stays) = (ask("gone"), ask("stays"));
    while bed.runtime.pulls().len() < 2 {
        tokio::task::yield_now().await;
    }
    gone.abort();
    // What another pod wants goes on.
    while bed.images.pulls().await.len() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bed.images.pulls().await[0].pod_uid, "stays");
    gate.notify_one();
    stays.await.unwrap().unwrap();
    while intents(&bed) > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_of_a_cancelled_pull_is_not_taken_for_preloaded() {
    let bed = bed(config()).await;
    let gate = Arc::new(Notify::new());
    *bed.runtime.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let ask = |uid: &'static str| {
        let images = bed.images.clone();
        let asked = request(uid, IMAGE, "IfNotPresent", &[]);
        tokio_test_spawn(async move { images.ensure(asked).await })
    };
    let gone = ask("gone");
    while bed.runtime.pulls().is_empty() {
        tokio::task::yield_now().await;
    }
    // The runtime finishes although its caller has left.
    bed.runtime.add(IMAGE, "sha256:secret", 1);
    gone.abort();
    while intents(&bed) > 0 {
        tokio::task::yield_now().await;
    }
    let other = ask("other");
    while bed.runtime.pulls().len() < 2 {
        assert!(!other.is_finished(), "it may use an image that it did not pull");
        tokio::task::yield_now().await;
    }
    gate.notify_one();
    other.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_waits_for_a_pod_that_is_gone_is_never_made() {
    let bed = bed(ImagesConfig { serialize_pulls: true, ..config() }).await;
    let gate = Arc::new(Notify::new());
    *bed.runtime.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let ask = |uid: &'static str| {
        let images = bed.images.clone();
        tokio_test_spawn(async move { images.ensure(request(uid, IMAGE, "Always", &[])).await })
    };
    let first = ask("first");
    while bed.runtime.pulls().is_empty() {
        tokio::task::yield_now().await;
    }
    let waiting: Vec<_> = (0..20).map(|_| ask("gone")).collect();
    while bed.images.pulls().await.len() < 21 {
        tokio::task::yield_now().await;
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    let last = ask("last");
    while bed.images.pulls().await.len() != 2 {
        tokio::task::yield_now().await;
    }
    gate.notify_one();
    first.await.unwrap().unwrap();
    while bed.runtime.pulls().len() < 2 {
        tokio::task::yield_now().await;
    }
    gate.notify_one();
    last.await.unwrap().unwrap();
    assert_eq!(bed.runtime.pulls().len(), 2, "the first and the last");
    while intents(&bed) > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_panics_is_told_to_who_waits() {
    let bed = bed(config()).await;
    *bed.runtime.gate.lock().unwrap() = Some(Arc::new(Notify::new()));
    let images = bed.images.clone();
    let asked = request("u", IMAGE, "Always", &[]);
    let wait = tokio_test_spawn(async move { images.ensure(asked).await });
    while bed.runtime.pulls().is_empty() {
        tokio::task::yield_now().await;
    }
    bed.tasks.make_panic("image pull");
    assert_eq!(reason(&wait.await.unwrap()), "ErrImagePull");
    assert_eq!(bed.tasks.panics(), [("image pull", 1)]);
    assert!(bed.images.pulls().await.is_empty());
}

#[derive(Debug)]
struct Space(ImageFsSpace);

#[async_trait]
impl ImageFs for Space {
    async fn space(&self) -> Result<ImageFsSpace, String> {
        Ok(self.0)
    }
}

fn gc_policy() -> GcPolicy {
    GcPolicy {
        high_percent: 85,
        low_percent: 80,
        min_age: SignedDuration::from_secs(120),
        max_age: SignedDuration::ZERO,
    }
}

fn tokio_test_spawn<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(future)
}
