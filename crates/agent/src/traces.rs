//! Sends recorded spans to a collector (OTLP over gRPC), as `tracing` of the configuration says.
//!
//! Promises: a collector that is away, slow or full costs spans and nothing else: every attempt has
//! a deadline, and the queue behind it is bounded.

use config::Config;
use ports::{Clock as _, OnExit, SystemClock, Tasks};
use proto::otlp_trace_v1::any_value::Value as Any;
use proto::otlp_trace_v1::trace_service_client::TraceServiceClient;
use proto::otlp_trace_v1::{
    AnyValue, ExportTraceServiceRequest, InstrumentationScope, KeyValue, Link, Resource,
    ResourceSpans, ScopeSpans, Span as Sent, Status,
};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;
use telemetry::traces::{Kind, Recorder, Sources, Span, Value, install};

/// Time between two batches (OpenTelemetry: `OTEL_BSP_SCHEDULE_DELAY`).
const PERIOD: Duration = Duration::from_secs(5);
/// Time for one batch (OpenTelemetry: `OTEL_EXPORTER_OTLP_TIMEOUT`).
const DEADLINE: Duration = Duration::from_secs(10);

/// Begins to record and send, if the configuration says so.
pub(crate) fn start(config: &Config, hostname: &str, tasks: &Tasks) {
    let Some(tracing) = &config.tracing else { return };
    let sources = Sources {
        now: Box::new(|| u64::try_from(SystemClock.now().as_nanosecond()).unwrap_or(0)),
        random: Box::new(random),
    };
    let recorder = install(tracing.sampling_rate_per_million, sources);
    // Upstream dials it in vain and does not tell.
    if tracing.endpoint.is_empty() {
        return;
    }
    let channel = match sockets::lazy_target(&tracing.endpoint) {
        Ok(channel) => channel,
        Err(error) => {
            tracing::error!(err = %error, endpoint = tracing.endpoint, "traces are not sent");
            return;
        }
    };
    let client = TraceServiceClient::new(channel);
    let resource =
        Resource { attributes: vec![text("service.name", "kubelet"), text("host.name", hostname)] };
    tasks.spawn("traces", OnExit::Fine, run(recorder, client, resource, tasks.token()));
}

async fn run(
    recorder: Arc<Recorder>,
    mut client: TraceServiceClient<sockets::Channel>,
    resource: Resource,
    cancel: tokio_util::sync::CancellationToken,
) {
    loop {
        let spans = tokio::select! {
            // Cancel-safe: spans that wait are lost with the process.
            () = cancel.cancelled() => return,
            // Cancel-safe: takes nothing before it is done.
            spans = recorder.batch(PERIOD) => spans,
        };
        if spans.is_empty() {
            continue;
        }
        let count = spans.len();
        let sending = client.export(request(&resource, spans));
        match tokio::time::timeout(DEADLINE, sending).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => {
                let error = sockets::go_error(&status);
                tracing::debug!(err = error, count, "traces export failed");
            }
            Err(_) => tracing::debug!(count, "traces export took too long"),
        }
    }
}

fn request(resource: &Resource, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let mut by_scope: BTreeMap<&'static str, Vec<Sent>> = BTreeMap::new();
    for span in spans {
        by_scope.entry(span.opening.scope).or_default().push(sent(span));
    }
    let scope = |name: &str| InstrumentationScope { name: name.to_owned(), ..Default::default() };
    let scope_spans = by_scope
        .into_iter()
        .map(|(name, spans)| ScopeSpans {
            scope: Some(scope(name)),
            spans,
            schema_url: String::new(),
        })
        .collect();
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans,
            schema_url: String::new(),
        }],
    }
}

fn sent(span: Span) -> Sent {
    let Span { context, parent, opening, closing, began, ended } = span;
    let attributes = opening.attributes.into_iter().chain(closing.attributes);
    let link = |context: telemetry::traces::Context| Link {
        trace_id: context.trace.to_vec(),
        span_id: context.span.to_vec(),
    };
    Sent {
        trace_id: context.trace.to_vec(),
        span_id: context.span.to_vec(),
        trace_state: String::new(),
        parent_span_id: parent.map(|parent| parent.to_vec()).unwrap_or_default(),
        name: opening.name,
        kind: match opening.kind {
            Kind::Internal => 1,
            Kind::Server => 2,
            Kind::Client => 3,
        },
        start_time_unix_nano: began,
        end_time_unix_nano: ended,
        attributes: attributes.map(|(key, value)| attribute(key, value)).collect(),
        links: opening.link.map(link).into_iter().collect(),
        status: Some(Status {
            code: if closing.error.is_some() { 2 } else { 0 },
            message: closing.error.unwrap_or_default(),
        }),
        flags: 1,
    }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => Any::StringValue(text),
        Value::Number(number) => Any::IntValue(number),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::Text(value.to_owned()))
}

/// Names of spans need to be different, not secret.
fn random() -> [u8; 16] {
    let half = || RandomState::new().hash_one(0_u8);
    ((u128::from(half()) << 64) | u128::from(half())).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::traces::{Closing, Context, Opening};

    #[test]
    fn spans_are_sent_by_scope_with_their_family_and_their_end() {
        let context = Context { trace: [1; 16], span: [2; 8], sampled: true };
        let span = |scope, error: Option<&str>| Span {
            context,
            parent: Some([3; 8]),
            opening: Opening {
                scope,
                name: "n".to_owned(),
                kind: Kind::Client,
                attributes: vec![("a", "b".into())],
                link: None,
            },
            closing: Closing { attributes: vec![("c", 5.into())], error: error.map(str::to_owned) },
            began: 1,
            ended: 2,
        };
        let spans = vec![span("x", None), span("y", Some("bad")), span("x", None)];
        let sent = request(&Resource::default(), spans);
        let scopes = &sent.resource_spans[0].scope_spans;
        let counts: Vec<usize> = scopes.iter().map(|scope| scope.spans.len()).collect();
        assert_eq!(counts, [2, 1]);
        let bad = &scopes[1].spans[0];
        assert_eq!(bad.parent_span_id, [3; 8]);
        assert_eq!((bad.kind, bad.attributes.len()), (3, 2));
        assert_eq!(bad.status.as_ref().unwrap().message, "bad");
    }

    #[test]
    fn no_two_draws_are_the_same() {
        assert_ne!(random(), random());
    }
}
