//! Giving devices to containers.

use super::Devices;
use super::calls::{NotGiven, Patience, Turn, Wish};
use crate::lock;
use api::core::v1::{Container, Pod};
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

/// Upstream waits for ever. A plugin may have to program hardware, but not for longer than this.
pub(super) const ALLOCATE: Duration = Duration::from_secs(10 * 60);
const PRE_START: Duration = Duration::from_secs(30);

impl Devices {
    /// Allocates what a container asks for and does not have yet; what init containers leave is used first.
    pub(super) async fn give(
        &self,
        pod: &Pod,
        container: &Container,
        patience: Patience,
    ) -> Result<(), NotGiven> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.book(|book| book.begin_pod(uid));
        let given = self.give_all(pod, container, patience).await;
        if matches!(given, Err(NotGiven::Failed(_))) {
            self.book(|book| book.recount());
        }
        given?;
        let leaves = is_plain_init(pod, &container.name);
        self.book(|book| match leaves {
            true => book.leave_to_next(uid, &container.name),
            false => book.keep(uid, &container.name),
        });
        Ok(())
    }

    async fn give_all(
        &self,
        pod: &Pod,
        container: &Container,
        patience: Patience,
    ) -> Result<(), NotGiven> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let key = (uid.to_owned(), container.name.clone());
        let affinity = lock(&self.inner.affinities).get(&key).copied();
        let sources_ready = self.inner.deps.pods.borrow().sources_ready;
        let running = !sources_ready && self.inner.config.running.contains(&key);
        for (resource, count) in wishes(container) {
            if self.inner.config.claims_for_extended && is_claimed(pod, &container.name, &resource)
            {
                continue;
            }
            if !self.book(|book| book.is_device(&resource)) {
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
            let wish =
                Wish { uid: key.0.clone(), container: key.1.clone(), resource: resource.clone() };
            if let Some(fault) = self.take_fault(&wish) {
                return Err(NotGiven::Failed(fault));
            }
            let held = self.book(|book| book.held(uid, &container.name, &resource).is_some());
            // Whoever has its devices needs nobody's answer.
            let turn = match running || held || count == 0 {
                true => None,
                false => Some(self.turn(pod, &wish, patience).await?),
            };
            let choice = self.book(|book| book.choose(request));
            let choice = choice.map_err(|error| NotGiven::Failed(error.to_string()))?;
            let Some(turn) = turn.filter(|_| choice != Choice::Nothing) else { continue };
            let (id, token) = (turn.id, turn.token.clone());
            let asked = self.clone().ask(turn, choice);
            self.inner.deps.tasks.spawn("device-allocation", OnExit::Fine, async move {
                // Whoever abandons it has freed what was chosen; a plugin that goes on does so for nobody.
                let _ = token.run_until_cancelled(asked).await;
            });
            self.ended(&wish, id, patience).await?;
        }
        Ok(())
    }

    /// Has the plugin give what was chosen, and books it.
    async fn ask(self, turn: Turn, choice: Choice) {
        let resource = turn.wish.resource.as_str();
        match self.answer(&turn, choice).await {
            Ok((ids, answer)) => {
                let bytes = answer.encode_to_vec();
                let owner = (turn.wish.uid.as_str(), turn.wish.container.as_str());
                let booked = turn.unless_abandoned(|| {
                    self.book(|book| book.given(owner, resource, &ids, (answer, bytes)));
                });
                if booked && let Err(fault) = self.save().await {
                    turn.failed(fault);
                }
            }
            Err(fault) => {
                self.book(|book| book.recount());
                turn.failed(fault);
            }
        }
    }

    async fn answer(
        &self,
        turn: &Turn,
        choice: Choice,
    ) -> Result<(DeviceIds, wire::ContainerAllocateResponse), String> {
        let resource = turn.wish.resource.as_str();
        let ids = match choice {
            Choice::Nothing => DeviceIds::new(),
            Choice::Take(ids) => ids,
            Choice::Ask(question) => {
                turn.asks("GetPreferredAllocation");
                let preferred = self.preferred(resource, &question).await?;
                let chosen = self.book(|book| book.preferred(question, &preferred));
                chosen.map_err(|error| error.to_string())?
            }
        };
        turn.asks("Allocate");
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

    /// Tells the plugins that a container is about to start; whether devices are missing, which happens when the
    /// plugin was unknown at admission.
    pub(super) async fn pre_start(&self, uid: &str, container: &Container) -> Result<bool, String> {
        let mut missing = false;
        for (resource, count) in wishes(container) {
            if count == 0 || !self.book(|book| book.is_device(&resource)) {
                continue;
            }
            let held = self.book(|book| {
                book.held(uid, &container.name, &resource).map(engine::devices::Held::ids)
            });
            let Some(options) = self.book(|book| book.options(&resource)) else {
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

/// A plugin's answer for a pod that is admitted, or why there is none; upstream knows no limit, so it has no words.
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

/// A call's answer, or its failure in Go's words.
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

/// What a container asks for, of anything; extended resources have limits equal to requests.
pub(super) fn wishes(container: &Container) -> BTreeMap<String, usize> {
    let limits = side_of(container.resources.as_ref(), Side::Limits);
    let count = |amount: units::Quantity| usize::try_from(amount.value()).unwrap_or_default();
    limits.into_iter().map(|(name, amount)| (name, count(amount))).collect()
}

/// An init container that ends before the next one starts.
fn is_plain_init(pod: &Pod, name: &str) -> bool {
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
    let found = init.into_iter().flatten().find(|container| container.name == name);
    found.is_some_and(|container| container.restart_policy.as_deref() != Some("Always"))
}

/// Whether a claim stands behind the resource (upstream: `isDRAExtendedResource`).
fn is_claimed(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    status.is_some_and(|status| {
        let mut mappings = status.request_mappings.iter();
        mappings.any(|m| m.container_name == container && m.resource_name == resource)
    })
}
