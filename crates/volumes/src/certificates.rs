//! Certificates of `podCertificate` sources: requested for each pod of the node, kept in memory only,
//! and renewed while the pod lives (upstream: `podcertificate.IssuingManager`).

mod key;

use crate::env::{Env, StepError};
use api::certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestSpec};
use api::core::v1::{Pod, PodCertificateProjection};
use api::machinery::apis::meta::v1::{ObjectMeta, OwnerReference};
use api::pod::PodExt;
use base64::Engine;
use engine::volumes::{CertificateStep, PodCertificate, Requested};
use futures::future::join_all;
use ports::{ObjectError, PodsSnapshot};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often a pending request is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often all sources are checked.
const PASS_EVERY: Duration = Duration::from_secs(60);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// One source of one volume of one pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    uid: String,
    volume: String,
    index: usize,
}

#[derive(Debug, Default)]
struct Record {
    certificate: PodCertificate,
    /// After a failure: the earliest time of the next attempt.
    again_at: Option<Instant>,
    failures: u32,
}

/// All certificates of the node's pods.
#[derive(Debug)]
pub(crate) struct Certificates {
    records: Mutex<BTreeMap<Source, Record>>,
    /// Incremented for each certificate that was issued or refused.
    changes: watch::Sender<u64>,
    /// Keys are generated one at a time: an RSA key keeps a CPU busy for seconds.
    key_generation: Semaphore,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        Self {
            records: Mutex::default(),
            changes: watch::channel(0).0,
            key_generation: Semaphore::new(1),
        }
    }

    /// Changes whenever volumes should read their certificates again.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The key and certificate chain for a source.
    pub(crate) fn bundle(
        &self,
        pod: &Pod,
        volume: &str,
        index: usize,
    ) -> Result<(String, String), StepError> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
        let uid = text(&pod.metadata.uid);
        let key = Source { uid, volume: volume.to_owned(), index };
        let records = self.records.lock().map_err(|_| StepError::transient("unimplemented"))?;
        let Some(record) = records.get(&key) else {
            return Err(StepError::transient(format!(
                "no credentials yet for key={{{namespace} {name} {} {volume} {index}}}",
                key.uid
            )));
        };
        let (key, chain) = record.certificate.bundle().map_err(StepError::transient)?;
        Ok((key.0.clone(), chain.to_owned()))
    }

    fn read<T>(&self, source: &Source, look: impl FnOnce(&mut Record) -> T) -> Option<T> {
        let mut records = self.records.lock().ok()?;
        Some(look(records.entry(source.clone()).or_default()))
    }
}

/// Follows the pods until cancelled.
pub(crate) async fn run(
    env: Arc<Env>,
    mut pods: watch::Receiver<PodsSnapshot>,
    token: CancellationToken,
) {
    loop {
        let snapshot = pods.borrow_and_update().clone();
        let wanted = wanted(&snapshot);
        if let Ok(mut records) = env.certificates.records.lock() {
            records.retain(|source, _| wanted.iter().any(|(s, ..)| s == source));
        }
        let passes =
            wanted.iter().map(|(source, pod, projection)| advance(&env, source, pod, projection));
        // A request that is cancelled here is made again after the restart.
        let Some(waits) = token.run_until_cancelled(join_all(passes)).await else { return };
        let waiting = waits.contains(&true);
        count(&env, &wanted);
        let pause = if waiting { LOOK_EVERY } else { PASS_EVERY };
        // Every arm is cancel-safe: nothing is taken from a queue.
        tokio::select! {
            () = token.cancelled() => return,
            changed = pods.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}

type Wanted = (Source, Arc<Pod>, PodCertificateProjection);

fn wanted(snapshot: &PodsSnapshot) -> Vec<Wanted> {
    let mut all = Vec::new();
    for (uid, entry) in snapshot.pods.iter().filter(|(_, entry)| entry.life.may_run()) {
        let volumes = entry.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        for volume in volumes {
            let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
            for (index, source) in sources.enumerate() {
                let Some(projection) = &source.pod_certificate else { continue };
                let name = volume.name.clone();
                let source = Source { uid: uid.to_string(), volume: name, index };
                all.push((source, Arc::clone(&entry.pod), projection.clone()));
            }
        }
    }
    all
}

/// Performs the step that is due for one source; returns whether to check it again after `LOOK_EVERY`.
async fn advance(
    env: &Env,
    source: &Source,
    pod: &Arc<Pod>,
    projection: &PodCertificateProjection,
) -> bool {
    let now = env.clock.now();
    let held = env.certificates.read(source, |record| {
        for event in record.certificate.overdue(now) {
            env.warn(pod, event.reason, event.message);
        }
        (record.certificate.step(now), record.again_at.is_some_and(|at| at > Instant::now()))
    });
    let Some((step, held)) = held else { return false };
    if held {
        return true;
    }
    let result = match step {
        CertificateStep::Rest => return false,
        CertificateStep::Request => request(env, source, pod, projection).await,
        CertificateStep::Look(name) => look(env, source, pod, &name).await,
    };
    if let Err(err) = &result {
        tracing::error!(
            pod = pod.metadata.name,
            podUID = source.uid,
            volume = source.volume,
            sourceIndex = source.index,
            err,
            "while handling podCertificate projected volume source"
        );
    }
    env.certificates.read(source, |record| {
        record.failures = if result.is_ok() { 0 } else { record.failures.saturating_add(1) };
        let wait = Duration::from_secs(1 << record.failures.min(6)).min(LONGEST_WAIT);
        record.again_at = (record.failures > 0).then(|| Instant::now() + wait);
    });
    true
}

async fn request(
    env: &Env,
    source: &Source,
    pod: &Pod,
    projection: &PodCertificateProjection,
) -> Result<(), String> {
    let storage = env.storage.as_ref().ok_or("unimplemented")?;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (namespace, pod_name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    let account = account.unwrap_or_default();
    let service_account = (env.objects.service_account(&namespace, &account).await)
        .map_err(|e| format!("while fetching service account: {e}"))?;
    let node = env.node.borrow().node.as_ref().and_then(|n| n.metadata.uid.clone());
    let node_uid = node.ok_or("while getting node object from local cache: not found")?;
    let kind = projection.key_type.clone();
    let permit = env.certificates.key_generation.acquire().await.map_err(|e| e.to_string())?;
    let made = sys::blocking::run(move || key::generate(&kind)).await;
    drop(permit);
    let (key, stub) = made.map_err(|e| e.to_string()).flatten().map_err(|e| {
        format!("while creating initial PodCertificateRequest: while generating keypair: {e}")
    })?;
    let request = PodCertificateRequest {
        metadata: ObjectMeta {
            namespace: Some(namespace),
            generate_name: Some("req-".into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                name: pod_name.clone(),
                uid: source.uid.clone(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: PodCertificateRequestSpec {
            signer_name: projection.signer_name.clone(),
            pod_name,
            pod_uid: source.uid.clone(),
            service_account_name: account,
            service_account_uid: text(&service_account.metadata.uid),
            node_name: env.config.node_name.clone(),
            node_uid,
            max_expiration_seconds: projection.max_expiration_seconds,
            unverified_user_annotations: projection.user_annotations.clone(),
            stub_pkc_s10_request: serde_json::from_value(serde_json::Value::String(
                base64::prelude::BASE64_STANDARD.encode(stub),
            ))
            .map_err(|e| e.to_string())?,
            ..PodCertificateRequestSpec::default()
        },
        status: None,
    };
    let made = (storage.create_pod_certificate_request(&request).await).map_err(|e| {
        format!("while creating initial PodCertificateRequest: while creating on API: {e}")
    })?;
    let requested = Requested::new(key, &made, env.clock.now());
    env.certificates.read(source, |record| record.certificate.requested(requested));
    Ok(())
}

async fn look(env: &Env, source: &Source, pod: &Arc<Pod>, name: &str) -> Result<(), String> {
    let storage = env.storage.as_ref().ok_or("unimplemented")?;
    let namespace = pod.namespace_str();
    let found = match storage.pod_certificate_request(namespace, name).await {
        Ok(found) => found,
        Err(e) => {
            if matches!(e, ObjectError::NotFound(_)) {
                let now = env.clock.now();
                env.certificates.read(source, |record| record.certificate.missing(now));
            }
            let shown = units::strconv::quote(&format!("{namespace}/{name}"));
            return Err(format!("while getting PodCertificateRequest {shown}: {e}"));
        }
    };
    let settled = env.certificates.read(source, |record| {
        let event = record.certificate.seen(&found);
        let waits = matches!(&record.certificate.step(env.clock.now()), CertificateStep::Look(n) if n == name);
        (event, !waits)
    });
    let Some((event, settled)) = settled else { return Ok(()) };
    if let Some(event) = event {
        env.warn(pod, event.reason, event.message);
    }
    if settled {
        env.certificates.changes.send_modify(|count| *count += 1);
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts of sources are small")]
fn count(env: &Env, wanted: &[Wanted]) {
    let now = env.clock.now();
    let mut totals: BTreeMap<(String, &'static str), usize> = BTreeMap::new();
    for (source, _, projection) in wanted {
        let state = env.certificates.read(source, |record| record.certificate.state(now));
        if let Some(state) = state {
            *totals.entry((projection.signer_name.clone(), state)).or_default() += 1;
        }
    }
    let gauge = &env.metrics.certificates;
    gauge.clear();
    for ((signer, state), total) in totals {
        gauge.set(&[&signer, state], total as f64);
    }
}
