//! Traces of a real run, taken in by a collector: a pod's sync, the calls it made to the runtime, a request.
//! `KUBELET=go` asks the same of the Go kubelet.
#![forbid(unsafe_code)]

use std::time::Duration;

use serde_json::json;
use testkit::real::{
    CollectedSpan, Collector, KubeletKind, KubeletOptions, TestNode, eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const CLIENT: i32 = 3;
const SERVER: i32 = 2;

fn manifest() -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "traced", "namespace": "default"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
            "name": "traced", "image": IMAGE,
            "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
        }]},
    })
    .to_string()
}

/// The spans that are around this one, the nearest first.
fn around<'a>(spans: &'a [CollectedSpan], span: &'a CollectedSpan) -> Vec<&'a CollectedSpan> {
    let of = |inner: &CollectedSpan| {
        let outer = inner.span.parent_span_id.clone();
        spans.iter().find(move |span| !outer.is_empty() && span.span.span_id == outer)
    };
    std::iter::successors(of(span), |span| of(span)).collect()
}

fn header(span: &CollectedSpan) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("00-{}-{}-01", hex(&span.span.trace_id), hex(&span.span.span_id))
}

#[test]
fn a_pods_sync_its_runtime_calls_and_a_request_reach_the_collector() {
    let collector = Collector::start().unwrap();
    let tracing = json!({"endpoint": collector.endpoint(), "samplingRatePerMillion": 1_000_000});
    let config = json!({"tracing": tracing});
    let node = TestNode::builder()
        .kubelet(KubeletKind::from_env().unwrap())
        .options(KubeletOptions { config, ..KubeletOptions::default() })
        .record()
        .start()
        .unwrap();
    node.add_manifest("traced.json", &manifest()).unwrap();
    node.wait_running("traced", PATIENCE).unwrap();
    assert_eq!(node.kubelet_get("/pods").unwrap().0, 200);

    let named = |spans: &[CollectedSpan], name: &str| {
        spans.iter().find(|span| span.span.name == name).cloned()
    };
    let calls = ["RunPodSandbox", "CreateContainer", "StartContainer"];
    let spans = eventually_some(PATIENCE, "all spans", || {
        let spans = collector.spans();
        let call = |call: &str| named(&spans, &format!("runtime.v1.RuntimeService/{call}"));
        let of_calls: Option<Vec<_>> = calls.iter().map(|name| call(name)).collect();
        let synced = of_calls?.iter().all(|span| {
            around(&spans, span).last().is_some_and(|outermost| outermost.span.name == "syncPod")
        });
        (synced && named(&spans, "/pods").is_some()).then_some(spans)
    })
    .unwrap();

    let recorded = node.recorder().unwrap().calls();
    for name in calls {
        let span = named(&spans, &format!("runtime.v1.RuntimeService/{name}")).unwrap();
        assert_eq!((span.span.kind, span.service.as_str()), (CLIENT, "kubelet"));
        assert_eq!(span.attribute("rpc.method").as_deref(), Some(name));
        let sync = *around(&spans, &span).last().unwrap();
        assert_eq!(sync.span.trace_id, span.span.trace_id);
        assert!(sync.attribute("k8s.pod.name").unwrap().starts_with("traced"), "{sync:?}");
        assert!(sync.span.start_time_unix_nano <= span.span.start_time_unix_nano);
        assert!(sync.span.end_time_unix_nano >= span.span.end_time_unix_nano);
        let heard = recorded.iter().find(|call| call.method == name).unwrap();
        assert_eq!(heard.traceparent, Some(header(&span)), "{name}");
    }
    let request = named(&spans, "/pods").unwrap();
    assert_eq!(request.span.kind, SERVER);
    assert!(request.span.parent_span_id.is_empty());
    assert_eq!(request.attribute("http.response.status_code").as_deref(), Some("200"));
}
