//! Allocation of devices to containers.

use super::Devices;
use super::calls::{CallPermit, DeviceRequest, NotGiven, Patience};
use crate::lock;
use api::core::v1::{Container, Pod};
use api::pod::PodExt;
use engine::devices::{Choice, DeviceIds, Question, Request};
use engine::resources::{Side, side_of};
use ports::OnExit;
use prost::Message as _;
use proto::device_plugin_v1beta1 as wire;
use sockets::go_error;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Response, Status};

/// Timeout of Allocate, which may program hardware. Upstream has none.
pub(super) const ALLOCATE: Duration = Duration::from_secs(10 * 60);
const PRE_START: Duration = Duration::from_secs(30);

impl Devices {
    /// Allocates what a container requests and does not have yet; devices of finished init containers are reused
    /// first.
    pub(super) async fn give(
        &self,
        pod: &Pod,
        container: &Container,
        patience: Patience,
    ) -> Result<(), NotGiven> {
        let uid = pod.uid_str();
        self.state(|state| state.begin_pod(uid));
        let given = self.give_all(pod, container, patience).await;
        if matches!(given, Err(NotGiven::Failed(_))) {
            self.state(|state| state.recount());
        }
        given?;
        let leaves = is_plain_init(pod, &container.name);
        self.state(|state| match leaves {
            true => state.leave_to_next(uid, &container.name),
            false => state.keep(uid, &container.name),
        });
        Ok(())
    }

    async fn give_all(
        &self,
        pod: &Pod,
        container: &Container,
        patience: Patience,
    ) -> Result<(), NotGiven> {
        let uid = pod.uid_str();
        let key = (uid.to_owned(), container.name.clone());
        let affinity = lock(&self.inner.affinities).get(&key).copied();
        let sources_ready = self.inner.deps.pods.borrow().sources_ready;
        let running = !sources_ready && self.inner.config.running.contains(&key);
        for (resource, count) in device_requests(container) {
            if self.inner.config.claims_for_extended && is_claimed(pod, &container.name, &resource)
            {
                continue;
            }
            if !self.state(|state| state.is_device(&resource)) {
                continue;
            }
            let request = Request {
                uid,
                container: &container.name,
                resource: &resource,
                count,
                affinity,
                running,
            };
            let wanted = DeviceRequest {
                uid: key.0.clone(),
                container: key.1.clone(),
                resource: resource.clone(),
            };
            if let Some(fault) = self.take_fault(&wanted) {
                return Err(NotGiven::Failed(fault));
            }
            let held = self.state(|state| state.held(uid, &container.name, &resource).is_some());
            // A container that has its devices needs no call.
            let permit = match running || held || count == 0 {
                true => None,
                false => Some(self.permit(pod, &wanted, patience).await?),
            };
            let choice = self.state(|state| state.choose(request));
            let choice = choice.map_err(|error| NotGiven::Failed(error.to_string()))?;
            let Some(permit) = permit.filter(|_| choice != Choice::Nothing) else { continue };
            let (id, token) = (permit.id, permit.token.clone());
            let asked = self.clone().ask(permit, choice);
            self.inner.deps.tasks.spawn("device-allocation", OnExit::Fine, async move {
                // Abandoning has freed the chosen devices; a late answer of the plugin is ignored.
                let _ = token.run_until_cancelled(asked).await;
            });
            self.ended(&wanted, id, patience).await?;
        }
        Ok(())
    }

    /// Calls the plugin for the chosen devices, and records the allocation.
    async fn ask(self, permit: CallPermit, choice: Choice) {
        let resource = permit.wanted.resource.as_str();
        match self.answer(&permit, choice).await {
            Ok((ids, answer)) => {
                let bytes = answer.encode_to_vec();
                let owner = (permit.wanted.uid.as_str(), permit.wanted.container.as_str());
                let recorded = permit.unless_abandoned(|| {
                    self.state(|state| state.given(owner, resource, &ids, (answer, bytes)));
                });
                if recorded && let Err(fault) = self.save().await {
                    permit.failed(fault);
                }
            }
            Err(fault) => {
                self.state(|state| state.recount());
                permit.failed(fault);
            }
        }
    }

    async fn answer(
        &self,
        permit: &CallPermit,
        choice: Choice,
    ) -> Result<(DeviceIds, wire::ContainerAllocateResponse), String> {
        let resource = permit.wanted.resource.as_str();
        let ids = match choice {
            Choice::Nothing => DeviceIds::new(),
            Choice::Take(ids) => ids,
            Choice::Ask(question) => {
                permit.asks("GetPreferredAllocation");
                let preferred = self.preferred(resource, &question).await?;
                let chosen = self.state(|state| state.preferred(question, &preferred));
                chosen.map_err(|error| error.to_string())?
            }
        };
        permit.asks("Allocate");
        let answer = self.allocate_rpc(resource, &ids).await?;
        Ok((ids, answer))
    }

    async fn preferred(&self, resource: &str, question: &Question) -> Result<DeviceIds, String> {
        let Some(mut client) = self.plugin(resource) else {
            return Err(format!(
                "endpoint not found in cache for a registered resource: {resource}"
            ));
        };
        let request = wire::PreferredAllocationRequest {
            container_requests: vec![wire::ContainerPreferredAllocationRequest {
                available_device_i_ds: question.available.iter().cloned().collect(),
                must_include_device_i_ds: question.must_include.iter().cloned().collect(),
                allocation_size: i32::try_from(question.size).unwrap_or(i32::MAX),
            }],
        };
        let call = client.get_preferred_allocation(request);
        let answer = in_time(resource, "GetPreferredAllocation", call).await;
        let answer = answer.map_err(|error| {
            format!("device plugin GetPreferredAllocation rpc failed with err: {error}")
        })?;
        let first = answer.container_responses.into_iter().next();
        Ok(first.map(|answer| answer.device_i_ds.into_iter().collect()).unwrap_or_default())
    }

    async fn allocate_rpc(
        &self,
        resource: &str,
        ids: &DeviceIds,
    ) -> Result<wire::ContainerAllocateResponse, String> {
        let Some(mut client) = self.plugin(resource) else {
            return Err(format!("unknown Device Plugin {resource}"));
        };
        let request = wire::AllocateRequest {
            container_requests: vec![wire::ContainerAllocateRequest {
                devices_ids: ids.iter().cloned().collect(),
            }],
        };
        let began = Instant::now();
        let answer = in_time(resource, "Allocate", client.allocate(request)).await;
        self.inner.deps.metrics.allocation.observe_duration(&[resource], began.elapsed());
        let first = answer?.container_responses.into_iter().next();
        first.ok_or_else(|| "no containers return in allocation response ".to_owned())
    }

    /// Calls PreStartContainer of the plugins; returns whether devices are missing, which happens when the plugin was
    /// unknown at admission.
    pub(super) async fn pre_start(&self, uid: &str, container: &Container) -> Result<bool, String> {
        let mut missing = false;
        for (resource, count) in device_requests(container) {
            if count == 0 || !self.state(|state| state.is_device(&resource)) {
                continue;
            }
            let held = self.state(|state| {
                state.held(uid, &container.name, &resource).map(engine::devices::Held::ids)
            });
            let Some(options) = self.state(|state| state.options(&resource)) else {
                return Err(format!(
                    "endpoint not found in cache for a registered resource: {resource}"
                ));
            };
            if options.pre_start {
                let Some(ids) = &held else {
                    return Err(format!(
                        "no devices found allocated in local cache for pod {uid}, container {}, resource {resource}",
                        container.name
                    ));
                };
                self.pre_start_rpc(&resource, ids).await.map_err(|error| {
                    format!("device plugin PreStartContainer rpc failed with err: {error}")
                })?;
            }
            missing |= held.is_none();
        }
        Ok(missing)
    }

    async fn pre_start_rpc(&self, resource: &str, ids: &DeviceIds) -> Result<(), String> {
        let Some(mut client) = self.plugin(resource) else {
            return Err(format!("endpoint {resource} has been stopped"));
        };
        let request = wire::PreStartContainerRequest { devices_ids: ids.iter().cloned().collect() };
        within(PRE_START, client.pre_start_container(request)).await.map(drop)
    }
}

/// A plugin's response within [`ALLOCATE`], or the error; the timeout message is our own, since upstream has no
/// timeout.
async fn in_time<T>(
    resource: &str,
    step: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, String> {
    match tokio::time::timeout(ALLOCATE, call).await {
        Ok(answer) => answer.map(Response::into_inner).map_err(|status| go_error(&status)),
        Err(_) => {
            let limit = ALLOCATE.as_secs();
            Err(format!("the device plugin of {resource} has not answered {step} within {limit}s"))
        }
    }
}

/// A call's response, or its error in Go's words.
async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, String> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(go_error(&status)),
        Err(_) => Err(go_error(&Status::deadline_exceeded("context deadline exceeded"))),
    }
}

/// A container's limits of all resources; extended resources have limits equal to requests.
pub(super) fn device_requests(container: &Container) -> BTreeMap<String, usize> {
    let limits = side_of(container.resources.as_ref(), Side::Limits);
    let count = |amount: units::Quantity| usize::try_from(amount.value()).unwrap_or_default();
    limits.into_iter().map(|(name, amount)| (name, count(amount))).collect()
}

/// Whether it is an init container that ends before the next one starts (not a sidecar).
fn is_plain_init(pod: &Pod, name: &str) -> bool {
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
    let found = init.into_iter().flatten().find(|container| container.name == name);
    found.is_some_and(|container| container.restart_policy.as_deref() != Some("Always"))
}

/// Whether the resource is backed by a claim (upstream: `isDRAExtendedResource`).
fn is_claimed(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    status.is_some_and(|status| {
        let mut mappings = status.request_mappings.iter();
        mappings.any(|m| m.container_name == container && m.resource_name == resource)
    })
}
