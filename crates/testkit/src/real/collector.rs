//! A collector of traces: takes spans over OTLP (gRPC) on a loopback port and keeps them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use async_trait::async_trait;
use proto::otlp_trace_v1::any_value::Value as Any;
use proto::otlp_trace_v1::trace_service_server::{TraceService, TraceServiceServer};
use proto::otlp_trace_v1::{ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Span};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A span with what it came with.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectedSpan {
    /// The name of the service that sent it.
    pub service: String,
    /// Which part of the program it belongs to.
    pub scope: String,
    /// The span.
    pub span: Span,
}

impl CollectedSpan {
    /// An attribute's text; numbers as text.
    pub fn attribute(&self, key: &str) -> Option<String> {
        text(&self.span.attributes, key)
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(text.clone()),
        Any::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

type Spans = Arc<Mutex<Vec<CollectedSpan>>>;

/// A running collector.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    spans: Spans,
    // Dropping the runtime ends it.
    _runtime: tokio::runtime::Runtime,
}

impl Collector {
    /// Listens on a free port.
    pub fn start() -> anyhow::Result<Collector> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start the collector")?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let spans = Spans::default();
        let service = TraceServiceServer::new(Inbox { spans: Arc::clone(&spans) });
        let connections = TcpListenerStream::new(listener);
        let serving = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(serving.serve_with_incoming(connections));
        Ok(Collector { address, spans, _runtime: runtime })
    }

    /// `host:port`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// What was sent so far.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.spans.lock().map(|spans| spans.clone()).unwrap_or_default()
    }
}

#[derive(Debug)]
struct Inbox {
    spans: Spans,
}

#[async_trait]
impl TraceService for Inbox {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = self.spans.lock().map_err(|_| Status::internal("poisoned"))?;
        for sent in request.into_inner().resource_spans {
            let attributes = sent.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = text(&attributes, "service.name").unwrap_or_default();
            for part in sent.scope_spans {
                let scope = part.scope.map(|scope| scope.name).unwrap_or_default();
                spans.extend(part.spans.into_iter().map(|span| CollectedSpan {
                    service: service.clone(),
                    scope: scope.clone(),
                    span,
                }));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
