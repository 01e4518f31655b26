//! An API server in memory: real watches, resource versions, patches and preconditions; no
//! validation, no authorization, no defaulting.
//!
//! It serves plain HTTP on loopback, so that the whole client is under test. Faults are part of it:
//! requests can be refused, left without an answer, answered from the past, and watches cut.

mod patch;
mod path;
mod store;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use http::{HeaderMap, Method, StatusCode};
use path::{Query, Target};
use ports::{OnExit, Tasks};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Refused, Store};
use tokio::sync::watch;

/// A request to be treated badly.
#[derive(Debug, Clone)]
struct Fault {
    method: Method,
    path_part: String,
    times: u32,
    /// The status to answer with; `None` leaves the request without an answer.
    status: Option<u16>,
}

/// What a server whose cache is behind does when it is asked for something newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// It says so, as kube-apiserver does.
    Refuses,
    /// It answers all the same.
    Answers,
}

#[derive(Debug, Default)]
struct Inner {
    store: Store,
    /// What lists and watches that need not be consistent are answered from.
    past: Option<(Store, Behind)>,
    /// What a server that falls behind goes back to.
    remembered: Option<Store>,
    faults: Vec<Fault>,
    requests: Vec<String>,
    queries: Vec<(String, String)>,
    headers: Vec<HeaderMap>,
}

#[derive(Debug, Clone)]
struct Shared {
    inner: Arc<Mutex<Inner>>,
    /// The newest resource version: wakes watches.
    newest: Arc<watch::Sender<u64>>,
    /// Counted up to cut every watch.
    generation: Arc<watch::Sender<u64>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the store and wakes watches.
    fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let (outcome, newest) = {
            let mut inner = self.lock();
            (change(&mut inner.store), inner.store.version())
        };
        self.newest.send_replace(newest);
        outcome
    }
}

impl Inner {
    /// Where a request is answered from.
    fn view(&self, query: &Query) -> Result<&Store, Refused> {
        match &self.past {
            Some((past, how)) if !query.consistent => {
                let (asked, known) = (query.resource_version, past.version());
                let lists = !query.watch || query.send_initial_events;
                if lists && asked > known && *how == Behind::Refuses {
                    return Err(Refused::too_large(asked, known));
                }
                Ok(past)
            }
            _ => Ok(&self.store),
        }
    }
}

/// A running fake; it ends when dropped.
#[derive(Debug)]
pub struct FakeApi {
    shared: Shared,
    address: SocketAddr,
    tasks: Tasks,
}

impl FakeApi {
    /// Starts on a free port of loopback.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Shared {
            inner: Arc::default(),
            newest: Arc::new(watch::Sender::new(0)),
            generation: Arc::new(watch::Sender::new(0)),
        };
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let tasks = Tasks::new();
        let token = tasks.token();
        tasks.spawn("fake-api", OnExit::Fine, async move {
            let serving = axum::serve(listener, router).into_future();
            tokio::select! {
                // Cancel-safe: a token has no state to lose.
                () = token.cancelled() => {}
                // Dropped with the fake: connections end, as those of a dead server.
                outcome = serving => {
                    if let Err(err) = outcome {
                        tracing::warn!(err = %err, "fake API server ended");
                    }
                }
            }
        });
        Ok(Self { shared, address, tasks })
    }

    /// The server's URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig for it, as text.
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url()}}],
            "users": [{"name": "fake", "user": {"token": "fake"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        })
        .to_string()
    }

    /// Creates or replaces an object, found by its `apiVersion`, `kind` and name.
    pub fn put(&self, object: Value) -> Value {
        self.shared.change(|store| store.put(object))
    }

    /// An object by plural, namespace (empty for none) and name.
    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.lock().store.get(plural, namespace, name)
    }

    /// All objects of a plural.
    pub fn objects(&self, plural: &str) -> Vec<Value> {
        self.shared.lock().store.all(plural)
    }

    /// Removes an object at once, as a forced deletion does.
    pub fn remove(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.change(|store| store.remove(plural, namespace, name))
    }

    /// What was asked so far, as `METHOD /path`.
    pub fn requests(&self) -> Vec<String> {
        self.shared.lock().requests.clone()
    }

    /// The queries of the requests so far whose path contains `path_part`.
    pub fn queries(&self, path_part: &str) -> Vec<String> {
        let inner = self.shared.lock();
        let found = inner.queries.iter().filter(|(path, _)| path.contains(path_part));
        found.map(|(_, query)| query.clone()).collect()
    }

    /// The `Authorization` headers of the requests so far, empty where there was none.
    pub fn authorizations(&self) -> Vec<String> {
        let credential = |headers: &HeaderMap| {
            let value = headers.get(http::header::AUTHORIZATION);
            value.and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
        };
        self.shared.lock().headers.iter().map(credential).collect()
    }

    /// The values of this header in the requests so far.
    pub fn headers(&self, name: &str) -> Vec<String> {
        let inner = self.shared.lock();
        let values = inner.headers.iter().flat_map(|headers| headers.get_all(name));
        values.filter_map(|v| v.to_str().ok().map(str::to_owned)).collect()
    }

    /// The next `times` requests of this method whose path and query contain `path_part` are refused.
    pub fn refuse(&self, method: Method, path_part: &str, times: u32, status: u16) {
        self.fault(method, path_part, times, Some(status));
    }

    /// The next `times` such requests get no answer.
    pub fn swallow(&self, method: Method, path_part: &str, times: u32) {
        self.fault(method, path_part, times, None);
    }

    /// Cuts every watch.
    pub fn cut_watches(&self) {
        self.shared.generation.send_modify(|generation| *generation += 1);
    }

    /// Forgets the history: a watch from an older version is told that it is too old.
    pub fn compact(&self) {
        self.shared.lock().store.compact();
    }

    /// Keeps this moment for [`FakeApi::fall_behind`].
    pub fn remember(&self) {
        let mut inner = self.shared.lock();
        inner.remembered = Some(inner.store.clone());
    }

    /// From now on everything that need not be consistent is answered as of the moment that was kept
    /// last, or else of this one.
    pub fn fall_behind(&self, how: Behind) {
        let mut inner = self.shared.lock();
        let past = inner.remembered.clone().unwrap_or_else(|| inner.store.clone());
        inner.past = Some((past, how));
    }

    /// The present is told again.
    pub fn catch_up(&self) {
        self.shared.change(|_| ());
        self.shared.lock().past = None;
        self.shared.newest.send_modify(|_| ());
    }

    fn fault(&self, method: Method, path_part: &str, times: u32, status: Option<u16>) {
        let fault = Fault { method, path_part: path_part.into(), times, status };
        self.shared.lock().faults.push(fault);
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    {
        let mut inner = shared.lock();
        inner.headers.push(parts.headers.clone());
        inner.queries.push((path.clone(), query.clone()));
    }
    if let Some(status) = note(&shared, &parts.method, &path, &query) {
        return match status {
            Some(status) => refusal(&Refused::injected(status)),
            None => std::future::pending().await,
        };
    }
    if path == "/healthz" || path == "/readyz" {
        return "ok".into_response();
    }
    let Some(target) = Target::parse(&path) else {
        return refusal(&Refused::not_found("path", &path));
    };
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let Ok(bytes) = axum::body::to_bytes(body, 16 << 20).await else {
        return refusal(&Refused::bad("body could not be read"));
    };
    if parts.method == Method::GET && query.watch {
        return watch_stream(shared, target, query);
    }
    let content_type = parts.headers.get(http::header::CONTENT_TYPE);
    let content_type = content_type.and_then(|v| v.to_str().ok()).unwrap_or_default();
    match respond(&shared, &parts.method, &target, &query, (content_type, &bytes)) {
        Ok((status, value)) => json_response(status, &value),
        Err(refused) => refusal(&refused),
    }
}

/// Keeps the request; the fault to play, if one fits.
fn note(shared: &Shared, method: &Method, path: &str, query: &str) -> Option<Option<u16>> {
    let mut inner = shared.lock();
    inner.requests.push(format!("{method} {path}"));
    let target = format!("{path}?{query}");
    let fits = |f: &&mut Fault| f.times > 0 && f.method == method && target.contains(&f.path_part);
    let fault = inner.faults.iter_mut().find(fits)?;
    fault.times -= 1;
    Some(fault.status)
}

fn respond(
    shared: &Shared,
    method: &Method,
    target: &Target,
    query: &Query,
    (content_type, bytes): (&str, &Bytes),
) -> Result<(StatusCode, Value), Refused> {
    let body = || -> Result<Value, Refused> {
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(bytes).map_err(|e| Refused::bad(&e.to_string()))
    };
    match *method {
        Method::GET if target.name.is_empty() => {
            Ok((StatusCode::OK, shared.lock().view(query)?.list(target, query)))
        }
        Method::GET => {
            let found = shared.lock().store.get(&target.plural, &target.namespace, &target.name);
            let found = found.ok_or_else(|| Refused::not_found(&target.plural, &target.name))?;
            Ok((StatusCode::OK, found))
        }
        Method::POST if target.subresource == "token" => Ok((StatusCode::CREATED, token(body()?))),
        Method::POST => {
            let object = body()?;
            let stored = shared.change(|store| store.create(target, object))?;
            Ok((StatusCode::CREATED, stored))
        }
        Method::PUT => {
            let object = body()?;
            Ok((StatusCode::OK, shared.change(|store| store.replace(target, object))?))
        }
        Method::PATCH => {
            let patch = body()?;
            let strategic = content_type.contains("strategic-merge-patch");
            let changed = shared.change(|store| store.patch(target, &patch, strategic))?;
            Ok((StatusCode::OK, changed))
        }
        Method::DELETE => {
            let options = body()?;
            Ok((StatusCode::OK, shared.change(|store| store.delete(target, &options))?))
        }
        _ => Err(Refused::bad("method is not served")),
    }
}

fn token(mut request: Value) -> Value {
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
    let end = store::now().as_second().saturating_add(seconds);
    let end = jiff::Timestamp::from_second(end).unwrap_or_default();
    request["status"] = json!({"token": "token", "expirationTimestamp": end.to_string()});
    request
}

/// Events as one JSON document per line, until the watch is cut.
fn watch_stream(shared: Shared, target: Target, query: Query) -> Response {
    let mut from = query.resource_version;
    let mut first = Vec::new();
    if from == 0 || query.send_initial_events {
        let inner = shared.lock();
        let store = match inner.view(&query) {
            Ok(store) => store,
            Err(refused) => return refusal(&refused),
        };
        let items = store.select(&target, &query);
        first.extend(items.into_iter().map(|o| json!({"type": "ADDED", "object": o})));
        from = store.version();
        if query.send_initial_events {
            first.push(json!({"type": "BOOKMARK", "object": {
                "apiVersion": target.api_version(), "kind": store::kind_of(&target.plural),
                "metadata": {"resourceVersion": from.to_string(),
                    "annotations": {"k8s.io/initial-events-end": "true"}}}}));
        }
    } else if shared.lock().store.is_compacted(from) {
        let status = Refused::expired().status();
        let line = line(&json!({"type": "ERROR", "object": status}));
        return Body::from(line).into_response();
    }
    let generation = shared.generation.subscribe();
    let newest = shared.newest.subscribe();
    let initial = futures::stream::iter(first.into_iter().map(|e| Ok::<_, axum::Error>(line(&e))));
    let state = (shared, target, query, from, newest, generation);
    let later = futures::stream::unfold(state, |state| async move {
        let (shared, target, query, mut from, mut newest, mut generation) = state;
        loop {
            // A watch that is cut, or whose history is gone, must not show what came after.
            if generation.has_changed().unwrap_or(true) || shared.lock().store.is_compacted(from) {
                return None;
            }
            let (events, known) = {
                let inner = shared.lock();
                let store = inner.past.as_ref().map_or(&inner.store, |(past, _)| past);
                newest.mark_unchanged();
                (store.since(from, &target, &query), store.version())
            };
            from = known.max(from);
            if !events.is_empty() {
                let last = events.iter().map(|e| e.version).max().unwrap_or(from);
                from = from.max(last);
                let text: String = events.iter().map(|e| line(&e.document())).collect();
                let state = (shared, target, query, from, newest, generation);
                return Some((Ok(text), state));
            }
            tokio::select! {
                // Cancel-safe: the newest version is read again.
                changed = newest.changed() => changed.ok()?,
                // Cancel-safe: ends the watch.
                _ = generation.changed() => return None,
            }
        }
    });
    Body::from_stream(initial.chain(later)).into_response()
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

fn json_response(status: StatusCode, value: &Value) -> Response {
    let headers = [(http::header::CONTENT_TYPE, "application/json")];
    (status, headers, value.to_string()).into_response()
}

fn refusal(refused: &Refused) -> Response {
    let status = StatusCode::from_u16(refused.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_response(status, &refused.status())
}
