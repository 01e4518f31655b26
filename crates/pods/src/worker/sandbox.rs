//! Making a sandbox, or finding the one that is there.

use super::execute::StartContext;
use super::{PodWorker, failed};
use crate::runtime::RuntimeFault;
use api::core::v1::Pod;
use engine::pod::PodPlan;
use engine::pod::life::Outcome;
use engine::runtime::RuntimePod;
use ports::PodMounts;
use std::sync::Arc;

impl PodWorker {
    /// The sandbox to start in; `None` when there is none and none is wanted.
    pub(super) async fn context<'a>(
        &mut self,
        pod: &'a Arc<Pod>,
        runtime: &'a RuntimePod,
        mounts: &'a PodMounts,
        plan: &PodPlan,
        acted: &mut bool,
    ) -> Result<Option<StartContext<'a>>, Outcome> {
        let (sandbox_id, config, ips, own_ip, handler) = if let Some(create) = &plan.create_sandbox
        {
            if self.is_stopping() {
                return Err(Outcome::Interrupted);
            }
            *acted = true;
            self.shared.metrics.started_pods.inc(&[]);
            self.shared.metrics.starts.with_own_users(pod);
            let prepared = tokio::select! {
                // What was asked of a driver is noted first: dropping the wait is as good as its failure.
                prepared = self.shared.placement.prepare(pod) => prepared,
                left = self.wait_exit().reason() => { // cancel-safe: watches
                    self.timeline.note("wait for dynamic resources left", left.as_str());
                    return Err(Outcome::Interrupted);
                }
            };
            if let Err(error) = prepared {
                self.timeline.note("dynamic resources failed", error.to_string());
                self.warn(
                    pod,
                    "FailedPrepareDynamicResources",
                    format!("Failed to prepare dynamic resources: {error}"),
                );
                return Err(Outcome::Done { terminal: false });
            }
            let config = match self.sandbox_config(pod, create.attempt, mounts).await {
                Ok(config) => config,
                Err(error) => return Err(self.no_sandbox(pod, &error)),
            };
            if let Err(error) = self.make_log_dir(&config.log_directory).await {
                return Err(self.no_sandbox(pod, &error));
            }
            let handler = match self.runtime_handler(pod).await {
                Ok(handler) => handler,
                Err(error) => return Err(self.no_sandbox(pod, &error)),
            };
            if self.is_stopping() {
                return Err(Outcome::Interrupted);
            }
            let made = self.run_sandbox(pod, config, &handler).await?;
            // Upstream describes the sandbox anew for its containers, and tells again what is wrong with it.
            let config = match self.sandbox_config(pod, create.attempt, mounts).await {
                Ok(config) => config,
                Err(error) => return Err(self.no_config(&error)),
            };
            (made.id, config, made.ips, made.own_ip, handler)
        } else {
            // Also where nothing is to be started: a resolver that does not fit is told at every look, and the
            // images of volumes are brought back.
            let Some(id) = &plan.sandbox else { return Ok(None) };
            let attempt = runtime.newest_sandbox().map_or(0, |s| s.attempt);
            let config = match self.sandbox_config(pod, attempt, mounts).await {
                Ok(config) => config,
                Err(error) => return Err(self.no_config(&error)),
            };
            let handler = match self.runtime_handler(pod).await {
                Ok(handler) => handler,
                Err(error) => return Err(self.no_config(&error)),
            };
            let own_ip = runtime.own_ip().to_owned();
            (id.to_string(), config, runtime.ips.clone(), own_ip, handler)
        };
        let mut context = StartContext {
            pod,
            runtime,
            mounts,
            sandbox_id,
            sandbox_config: config,
            ips,
            own_ip,
            runtime_handler: handler,
            image_volumes: super::requests::ImageVolumes::default(),
        };
        context.image_volumes = match self.pull_image_volumes(&context).await {
            Ok(volumes) => volumes,
            Err(left) => {
                self.timeline.note("wait for images of volumes left", left.as_str());
                return Err(Outcome::Interrupted);
            }
        };
        Ok(Some(context))
    }

    async fn run_sandbox(
        &mut self,
        pod: &Arc<Pod>,
        config: proto::cri_v1::PodSandboxConfig,
        handler: &str,
    ) -> Result<Made, Outcome> {
        self.timeline.note("making sandbox", "");
        let asked = tokio::time::Instant::now();
        let made = match self.unless_ended(self.shared.runtime.run_sandbox(config, handler)).await {
            Ok(made) => made,
            Err(left) => {
                self.timeline.note("sandbox given up", left.as_str());
                return Err(Outcome::Interrupted);
            }
        };
        self.shared.metrics.starts.sandbox(handler, asked.elapsed(), made.is_ok());
        let id = match made {
            Ok(id) => id,
            Err(fault) => return Err(self.no_sandbox(pod, &fault.text)),
        };
        let status = match self.shared.runtime.new_sandbox_status(&id).await {
            Ok(Some(status)) => status,
            Ok(None) => {
                self.timeline.note("sandbox status failed", "pod sandbox status is nil");
                self.acted();
                return Err(failed());
            }
            Err(RuntimeFault { text: error, .. }) => {
                self.timeline.note("sandbox status failed", error.clone());
                self.warn(
                    pod,
                    "FailedPodSandBoxStatus",
                    format!("Unable to get pod sandbox status: {error}"),
                );
                self.acted();
                return Err(failed());
            }
        };
        let view = crate::view::translate::sandbox(&status);
        let own_ip = view.network.as_ref().map_or("", |n| n.first_ip()).to_owned();
        let mut ips = view.network.map(|n| n.ips()).unwrap_or_default();
        self.timeline.note("sandbox started", format!("{id} {}", ips.join(",")));
        if ips.is_empty() && pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or_default() {
            ips = crate::shared::host_ips(&self.shared.node.borrow());
        }
        self.shared.status.set_sandbox_ready(&self.uid);
        Ok(Made { id, ips, own_ip })
    }

    /// What the sandbox is made of cannot be told any more; that is nobody's event, it is there already.
    fn no_config(&self, error: &str) -> Outcome {
        tracing::error!(podUID = %self.uid, err = error, "cannot describe the sandbox");
        self.timeline.note("sandbox not described", error);
        failed()
    }

    /// The sandbox cannot be made; silent when the pod is to end anyway.
    fn no_sandbox(&mut self, pod: &Arc<Pod>, error: &str) -> Outcome {
        self.timeline.note("sandbox failed", error);
        if self.is_ending() {
            return Outcome::Done { terminal: false };
        }
        self.shared.metrics.started_pods_errors.inc(&[]);
        self.warn(pod, "FailedCreatePodSandBox", format!("Failed to create pod sandbox: {error}"));
        self.acted();
        failed()
    }
}

/// A sandbox that was just made.
struct Made {
    id: String,
    /// The pod's addresses: the node's where it shares its network.
    ips: Vec<String>,
    /// The first address of its own, if any.
    own_ip: String,
}
