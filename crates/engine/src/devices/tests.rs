//! Devices are chosen, checkpointed and reported as upstream does.

use super::*;
use crate::topology::{Hint, NumaMask};
use proto::device_plugin_v1beta1::{CdiDevice, ContainerAllocateResponse};
use std::time::Duration;

const R: &str = "example.com/resource";

fn device(id: &str, nodes: &[i64]) -> Device {
    let nodes = Some(nodes.to_vec()).filter(|nodes| !nodes.is_empty());
    Device { id: id.to_owned(), healthy: true, nodes }
}

fn ids(list: &[&str]) -> DeviceIds {
    list.iter().map(|id| (*id).to_owned()).collect()
}

fn state(devices: &[(&str, &[i64])]) -> DeviceState {
    let mut state = DeviceState::new(vec![0, 1]);
    state.connected(R, PluginOptions::default());
    state.listed(R, devices.iter().map(|(id, nodes)| device(id, nodes)).collect());
    state
}

fn wish(uid: &'static str, container: &'static str, count: usize) -> Request<'static> {
    Request { uid, container, resource: R, count, affinity: None, running: false }
}

fn give(
    state: &mut DeviceState,
    uid: &'static str,
    container: &'static str,
    count: usize,
) -> DeviceIds {
    let Choice::Take(chosen) = state.choose(wish(uid, container, count)).unwrap() else {
        panic!("nothing was chosen")
    };
    let answer = ContainerAllocateResponse::default();
    state.given((uid, container), R, &chosen, (answer, Vec::new()));
    chosen
}

#[test]
fn refusals_have_upstreams_words_in_upstreams_order() {
    let mut empty = DeviceState::default();
    let said = |result: Result<Choice, DeviceError>| result.unwrap_err().to_string();
    assert_eq!(
        said(empty.choose(wish("u", "c", 1))),
        "cannot allocate unregistered device example.com/resource"
    );
    let mut one = state(&[("a", &[])]);
    assert_eq!(
        said(one.choose(wish("u", "c", 2))),
        "requested number of devices unavailable for example.com/resource. Requested: 2, Available: 1"
    );
    give(&mut one, "u", "c", 1);
    assert_eq!(
        said(one.choose(wish("u", "c", 2))),
        "pod \"u\" container \"c\" changed request for resource \"example.com/resource\" from 1 to 2"
    );
    let mut broken = device("a", &[]);
    broken.healthy = false;
    one.listed(R, vec![broken, device("b", &[])]);
    assert_eq!(
        said(one.choose(wish("u", "c", 1))),
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/resource"
    );
    one.disconnected(R, Duration::ZERO);
    assert_eq!(
        said(one.choose(wish("u", "c", 1))),
        "no healthy devices present; cannot allocate unhealthy devices example.com/resource"
    );
    let running = Request { running: true, ..wish("u", "c", 1) };
    assert_eq!(one.choose(running), Ok(Choice::Nothing));
}

#[test]
fn init_containers_leave_their_devices_and_sidecars_keep_them() {
    let mut state = state(&[("a", &[]), ("b", &[]), ("c", &[])]);
    state.begin_pod("u");
    assert_eq!(give(&mut state, "u", "init", 1), ids(&["a"]));
    state.leave_to_next("u", "init");
    assert_eq!(give(&mut state, "u", "sidecar", 1), ids(&["a"]));
    state.keep("u", "sidecar");
    assert_eq!(give(&mut state, "u", "app", 2), ids(&["b", "c"]));
    state.begin_pod("v");
    assert!(state.choose(wish("v", "c", 1)).is_err());
    assert!(state.forget_all_but(|uid| uid == "v"));
    assert!(state.choose(wish("v", "c", 3)).is_ok());
}

#[test]
fn the_plugin_chooses_among_what_is_aligned() {
    let mut state = state(&[("a", &[0]), ("b", &[1]), ("c", &[1]), ("d", &[1])]);
    state.connected(R, PluginOptions { preferred: true, ..PluginOptions::default() });
    let on_one = Request { affinity: Some(NumaMask::of([1])), ..wish("u", "c", 2) };
    let Choice::Ask(question) = state.choose(on_one).unwrap() else { panic!("not asked") };
    assert_eq!(question.available, ids(&["b", "c", "d"]));
    assert_eq!((question.must_include.len(), question.size), (0, 2));
    // Devices that are not aligned are ignored, and missing ones filled up.
    assert_eq!(state.preferred(question, &ids(&["a", "d"])).unwrap(), ids(&["b", "d"]));
}

#[test]
fn aligned_devices_come_first_when_they_do_not_suffice() {
    let mut state = state(&[("a", &[0]), ("b", &[1]), ("c", &[])]);
    let on_one = Request { affinity: Some(NumaMask::of([1])), ..wish("u", "c", 2) };
    assert_eq!(state.choose(on_one), Ok(Choice::Take(ids(&["a", "b"]))));
}

#[test]
fn hints_name_the_nodes_that_could_serve() {
    let mut state = state(&[("a", &[0]), ("b", &[1]), ("c", &[1])]);
    let hints = |state: &DeviceState, count| state.hints("u", "c", &[(R.to_owned(), count)].into());
    let (zero, one, both) = (NumaMask::of([0]), NumaMask::of([1]), NumaMask::of([0, 1]));
    let wanted = vec![Hint::new(zero, true), Hint::new(one, true), Hint::new(both, false)];
    assert_eq!(hints(&state, 1)[R], Some(wanted));
    let wanted = vec![Hint::new(one, true), Hint::new(both, false)];
    assert_eq!(hints(&state, 2)[R], Some(wanted));
    assert_eq!(hints(&state, 4)[R], Some(Vec::new()));
    let on_one = Request { affinity: Some(one), ..wish("u", "c", 1) };
    let Choice::Take(taken) = state.choose(on_one).unwrap() else { panic!("nothing chosen") };
    state.given(("u", "c"), R, &taken, (ContainerAllocateResponse::default(), Vec::new()));
    let wanted = vec![Hint::new(one, true), Hint::new(both, false)];
    assert_eq!(hints(&state, 1)[R], Some(wanted), "what it has decides");
    assert_eq!(hints(&state, 2)[R], Some(Vec::new()), "another number than it has");
}

#[test]
fn devices_without_topology_do_not_mind() {
    let state = state(&[("a", &[])]);
    assert_eq!(state.hints("u", "c", &[(R.to_owned(), 1)].into())[R], None);
    assert!(state.hints("u", "c", &[("cpu".to_owned(), 1)].into()).is_empty());
}

#[test]
fn a_lost_plugin_keeps_capacity_for_five_minutes() {
    let mut state = state(&[("a", &[]), ("b", &[])]);
    let counts = |state: &mut DeviceState, now| {
        let (facts, changed) = state.facts(Duration::from_secs(now));
        let of = |list: &BTreeMap<String, units::Quantity>| list.get(R).map(|q| q.value());
        (of(&facts.capacity), of(&facts.allocatable), facts.removed, changed)
    };
    assert_eq!(counts(&mut state, 0), (Some(2), Some(2), vec![], false));
    state.disconnected(R, Duration::from_secs(10));
    assert_eq!(counts(&mut state, 310), (Some(2), Some(0), vec![], false));
    assert_eq!(counts(&mut state, 311), (None, None, vec![R.to_owned()], true));
    assert_eq!(counts(&mut state, 312), (None, None, vec![R.to_owned()], false));
    state.connected(R, PluginOptions::default());
    state.listed(R, vec![device("a", &[])]);
    assert_eq!(counts(&mut state, 400), (Some(1), Some(1), vec![], false));
}

#[test]
fn pods_hear_of_devices_that_change_or_come_back() {
    let mut state = state(&[("a", &[]), ("b", &[])]);
    give(&mut state, "u", "c", 1);
    assert!(state.listed(R, vec![device("a", &[]), device("b", &[])]).is_empty());
    let mut broken = device("a", &[]);
    broken.healthy = false;
    assert!(state.listed(R, vec![broken, device("b", &[])]).contains("u"));
    assert_eq!(state.health("u", "c")[R], [("a".to_owned(), false)]);
    assert!(state.listed(R, vec![device("b", &[])]).is_empty());
    assert_eq!(state.health("u", "c")[R], [("a".to_owned(), true)], "nobody reports it");
    assert!(state.listed(R, vec![device("a", &[])]).contains("u"));
}

#[test]
fn the_node_counts_as_having_what_a_pod_was_given() {
    let mut state = state(&[("a", &[]), ("b", &[])]);
    give(&mut state, "u", "c", 2);
    assert_eq!(state.owed("u"), [(R.to_owned(), 2)].into());
    assert!(state.owed("other").is_empty());
}

#[test]
fn a_restart_finds_everything_in_the_checkpoint() {
    let mut before = state(&[("a", &[0, 1]), ("b", &[])]);
    let chosen = ids(&["a", "b"]);
    let answer = ContainerAllocateResponse {
        envs: [("K".to_owned(), "V".to_owned())].into(),
        cdi_devices: vec![CdiDevice { name: "example.com/resource=x".to_owned() }],
        ..ContainerAllocateResponse::default()
    };
    let bytes = prost::Message::encode_to_vec(&answer);
    before.given(("u", "c"), R, &chosen, (answer, bytes));
    before.recount();
    let text = before.to_checkpoint().unwrap();
    let mut after = DeviceState::new(vec![0, 1]);
    assert!(after.restore(&text, Duration::ZERO).unwrap().is_empty());
    assert_eq!(after.additions("u", "c"), before.additions("u", "c"));
    assert_eq!(after.devices_of("u", "c"), before.devices_of("u", "c"));
    assert_eq!(after.owed("u"), before.owed("u"));
    let (facts, _) = after.facts(Duration::ZERO);
    assert_eq!(facts.capacity[R].value(), 0, "until its plugin comes back");
}

#[test]
fn a_device_is_told_once_for_each_node_and_not_at_all_for_a_topology_without_nodes() {
    let mut state = state(&[("a", &[]), ("b", &[1])]);
    let mut devices = vec![device("a", &[]), device("b", &[1]), device("c", &[])];
    devices[2].nodes = Some(Vec::new());
    state.listed(R, devices);
    let told = state.allocatable();
    assert_eq!(told[R].keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_plugin_is_late_until_it_lists_again_or_is_given_up() {
    let mut state = state(&[("a", &[])]);
    let late = |state: &DeviceState| !state.absent_plugins([R]).is_empty();
    assert!(!late(&state));
    state.disconnected(R, Duration::ZERO);
    assert!(late(&state), "it is away");
    state.connected(R, PluginOptions::default());
    assert!(late(&state), "it has said nothing yet");
    state.listed(R, Vec::new());
    assert!(!late(&state), "it is there, without devices");
    state.disconnected(R, Duration::ZERO);
    state.facts(GRACE + Duration::from_secs(1));
    assert!(!late(&state), "nobody waits any longer");
    assert!(state.absent_plugins(["example.com/unheard"]).is_empty());
}
