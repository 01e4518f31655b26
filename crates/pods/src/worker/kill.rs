//! Stopping containers and sandboxes as planned.
//!
//! Promises: `Killing` is posted before anything happens to a container; hook, turn and stop share
//! one budget; a grace period that shrinks meanwhile takes effect at once, also on a stop that the
//! runtime already works on; containers come before their sandbox, always.

use super::hooks::{self, HookTarget};
use crate::runtime::RuntimeFault;
use crate::shared::Shared;
use crate::timeline::Timeline;
use api::core::v1::{Container, Pod};
use api::pod::PodExt;
use engine::pod::kill::{KillPod, StopBudget, StopContainer, faults, plan_restored};
use engine::runtime::ContainerView;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use ports::{EventSeverity, EventTarget, NodeEvent};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a hook that outlived its budget may take to answer after its container ended.
const HOOK_AFTERMATH: Duration = Duration::from_millis(500);

/// Later than anything that is waited for: a hundred years.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// What a kill needs besides the plan.
#[derive(Debug, Clone)]
pub(super) struct Killer<'a> {
    pub(super) shared: &'a Shared,
    pub(super) pod: &'a Arc<Pod>,
    pub(super) pod_ip: &'a str,
    pub(super) timeline: &'a Timeline,
    /// The grace period in force; it only shrinks.
    pub(super) grace: watch::Receiver<crate::pod_states::Interrupt>,
    /// When this kill began: a grace given before counts from here.
    pub(super) began: Instant,
    /// Where events say that the container is: in its pod's spec, or that nobody knows the spec any more.
    pub(super) place: Place,
}

/// Where a container is, for events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a list of its pod's spec.
    Spec,
    /// Nobody knows the spec.
    Unknown,
}

/// Kills a container in an unknown state whose pod is known from its annotations only.
pub(crate) async fn kill_restored(
    shared: &Shared,
    pod: &Arc<Pod>,
    view: &ContainerView,
) -> Result<(), String> {
    let (_no_grace, grace) = watch::channel(crate::pod_states::Interrupt::default());
    let timeline = shared.timelines.of(pod);
    let killer = Killer {
        shared,
        pod,
        pod_ip: "",
        timeline: &timeline,
        grace,
        began: Instant::now(),
        place: Place::Unknown,
    };
    let stop = plan_restored(view, "Container is in unknown state, try killing it before removal");
    killer.container(&stop, None).await
}

impl Killer<'_> {
    /// Kills all containers in parallel, then stops the sandboxes one by one; an error is in upstream's words.
    pub(super) async fn pod(&self, plan: KillPod) -> Result<(), String> {
        let stopped = watch::Sender::new(BTreeSet::<String>::new());
        let mut kills: Vec<BoxFuture<'_, Result<(), String>>> = Vec::new();
        for stop in &plan.containers {
            kills.push(Box::pin(self.in_turn(stop, &stopped)));
        }
        let results = join_all(kills).await;
        let names = plan.containers.iter().map(|stop| stop.target.name.clone());
        let stuck: Vec<(String, String)> =
            names.zip(results).filter_map(|(name, result)| Some((name, result.err()?))).collect();
        let mut left = None;
        for sandbox in &plan.sandboxes {
            match self.shared.runtime.stop_sandbox(sandbox.as_str()).await {
                Ok(()) => self.timeline.note("sandbox stopped", sandbox.as_str()),
                Err(fault) => left = Some(fault.text),
            }
        }
        let uid = self.pod.uid_str();
        faults(uid, &stuck, left.as_deref()).map_or(Ok(()), Err)
    }

    async fn in_turn(
        &self,
        stop: &StopContainer,
        stopped: &watch::Sender<BTreeSet<String>>,
    ) -> Result<(), String> {
        self.container(stop, Some(stopped)).await?;
        stopped.send_modify(|names| {
            names.insert(stop.target.name.clone());
        });
        Ok(())
    }

    /// Kills one container: event, hook, turn, stop.
    pub(super) async fn container(
        &self,
        stop: &StopContainer,
        stopped: Option<&watch::Sender<BTreeSet<String>>>,
    ) -> Result<(), String> {
        let name = &stop.target.name;
        self.event(stop, EventSeverity::Normal, "Killing", stop.target.message.clone());
        self.timeline.note_container("killing", name, stop.target.message.clone());
        let began = Instant::now();
        let budget = || self.budget(stop.budget.after(began.elapsed()));
        let definition = self.definition(stop);
        let mut overran = None;
        if let (Some(handler), Some(_)) = (&stop.pre_stop, budget().window()) {
            let target = HookTarget {
                pod: self.pod,
                container: &definition,
                container_id: stop.target.id.as_str(),
                pod_ip: self.pod_ip,
            };
            let mut hook = Box::pin(hooks::run(self.shared, target, handler));
            match self.within(&mut hook, stop.budget, began).await {
                Some(result) => self.hook_ended(stop, result),
                None => {
                    // Upstream counts a sleep that a shorter grace period ended, not one that was
                    // too long from the start.
                    if handler.sleep.is_some()
                        && stop.budget.after(began.elapsed()).window().is_some()
                    {
                        self.shared.metrics.starts.sleep_early.inc(&[]);
                    }
                    self.timeline.note_container("preStop hook overran the grace period", name, "");
                    overran = Some(hook);
                }
            }
        }
        // The hook and the wait for the turn are taken off in whole seconds each.
        let rest = self.turn_and_stop(stop, stopped, stop.budget.after(began.elapsed()));
        let Some(mut hook) = overran else { return rest.await };
        // The hook is not ended by its budget but with its container: dropping the call would have
        // the runtime kill the command at once.
        let mut rest = std::pin::pin!(rest);
        let result = tokio::select! {
            result = &mut rest => { // pinned outside: goes on after the other arm
                if let Ok(ended) = tokio::time::timeout(HOOK_AFTERMATH, hook).await {
                    self.hook_ended(stop, ended);
                }
                return result;
            }
            ended = &mut hook => ended, // pinned outside: done when it answers
        };
        self.hook_ended(stop, result);
        rest.await
    }

    fn hook_ended(&self, stop: &StopContainer, result: Result<(), String>) {
        let name = &stop.target.name;
        match result {
            Ok(()) => self.timeline.note_container("preStop hook done", name, ""),
            Err(error) => {
                tracing::error!(containerName = %name, err = %error, "PreStop hook failed");
                self.timeline.note_container("preStop hook failed", name, error);
                let message = "PreStopHook failed".to_owned();
                self.event(stop, EventSeverity::Warning, "FailedPreStopHook", message);
            }
        }
    }

    /// Waits until the containers that must go first are gone, then stops this one.
    async fn turn_and_stop(
        &self,
        stop: &StopContainer,
        stopped: Option<&watch::Sender<BTreeSet<String>>>,
        budget: StopBudget,
    ) -> Result<(), String> {
        let name = &stop.target.name;
        let began = Instant::now();
        if let (Some(stopped), Some(_)) = (stopped, self.budget(budget).window())
            && !stop.after.is_empty()
        {
            let mut follow = stopped.subscribe();
            let ordered = async {
                let ready = |names: &BTreeSet<String>| stop.after.iter().all(|n| names.contains(n));
                // The sender outlives this call.
                let _ = follow.wait_for(ready).await;
            };
            self.within(ordered, budget, began).await;
        }
        self.stop(stop, budget, began).await.map_err(|fault| {
            self.timeline.note_container("stop failed", name, fault.to_string());
            fault.text
        })?;
        self.timeline.note_container("stopped", name, "");
        Ok(())
    }

    /// What is left of a budget, given the grace in force: it may have been shortened since.
    fn budget(&self, left: StopBudget) -> StopBudget {
        match self.grace.borrow().grace {
            Some((seconds, since)) => {
                // One that was in force when we began is in the plan; whoever asks takes off the time.
                let news = since > self.began;
                let spent = if news { since.elapsed().as_secs() } else { 0 };
                let spent = i64::try_from(spent).unwrap_or(i64::MAX);
                left.shortened(seconds.saturating_sub(spent))
            }
            None => left,
        }
    }

    /// Runs `work` until the budget is over; the budget may shrink meanwhile.
    async fn within<T>(
        &self,
        work: impl Future<Output = T>,
        planned: StopBudget,
        began: Instant,
    ) -> Option<T> {
        let mut grace = self.grace.clone();
        let mut work = std::pin::pin!(work);
        loop {
            let left = self.budget(planned.after(began.elapsed()));
            let window = left.window()?;
            tokio::select! {
                done = &mut work => return Some(done), // pinned outside: goes on after a loop
                () = tokio::time::sleep(window) => return None, // cancel-safe: a timer
                changed = grace.changed() => { // cancel-safe: documented by tokio
                    if changed.is_err() {
                        return tokio::time::timeout(window, work).await.ok();
                    }
                }
            }
        }
    }

    /// Asks the runtime to stop the container; asks again with less time when the grace shrinks.
    async fn stop(
        &self,
        stop: &StopContainer,
        budget: StopBudget,
        began: Instant,
    ) -> Result<(), RuntimeFault> {
        let mut grace = self.grace.clone();
        grace.mark_unchanged();
        let id = stop.target.id.as_str();
        let seconds = self.budget(budget.after(began.elapsed())).stop_timeout();
        let mut deadline = deadline_in(seconds);
        let runtime = &self.shared.runtime;
        let mut calls: FuturesUnordered<BoxFuture<'_, Result<(), RuntimeFault>>> =
            FuturesUnordered::new();
        calls.push(Box::pin(runtime.stop_container(id, seconds)));
        loop {
            tokio::select! {
                // Cancel-safe: the calls live in the set.
                Some(result) = futures::StreamExt::next(&mut calls) => {
                    if result.is_ok() || calls.is_empty() {
                        return result;
                    }
                }
                changed = grace.changed() => { // cancel-safe: documented by tokio
                    let left = self.budget(budget.after(began.elapsed())).stop_timeout();
                    if changed.is_err() {
                        return match futures::StreamExt::next(&mut calls).await {
                            Some(result) => result,
                            None => Ok(()),
                        };
                    }
                    // Whole seconds: what is left of the same budget is no news.
                    if deadline_in(left) + Duration::from_secs(1) < deadline {
                        deadline = deadline_in(left);
                        self.timeline.note_container("grace shortened", &stop.target.name, format!("{left}s"));
                        calls.push(Box::pin(runtime.stop_container(id, left)));
                    }
                }
            }
        }
    }

    fn definition(&self, stop: &StopContainer) -> Container {
        let spec = self.pod.spec.as_ref();
        spec.into_iter()
            .flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()))
            .find(|c| c.name == stop.target.name)
            .cloned()
            .unwrap_or_else(|| Container { name: stop.target.name.clone(), ..Container::default() })
    }

    fn event(
        &self,
        stop: &StopContainer,
        severity: EventSeverity,
        reason: &'static str,
        message: String,
    ) {
        let name = &stop.target.name;
        let field_path = Some(match self.place {
            Place::Spec => stop.target.kind.field_path(name),
            Place::Unknown => format!("implicitly required container {name}"),
        });
        let target = EventTarget::Pod { pod: Arc::clone(self.pod), field_path };
        self.shared.events.emit(NodeEvent { target, severity, reason, message });
    }
}

/// When that many seconds are over; a pod may ask for more of them than clocks can count.
fn deadline_in(seconds: i64) -> Instant {
    let wait = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    Instant::now() + wait.min(FAR)
}
